"""What happens to a simulated world from outside: what people and applications do, and accidents."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.store.records import StopRequest

if TYPE_CHECKING:
    from tests.simulation.process import Process
    from tests.simulation.world import World

TYPES = ("a", "a:x", "a:y", "b", "b:x", "c")
NAMES = (*TYPES, "")

VALUES: dict[str, tuple[Any, ...]] = {
    "max_running": (1, 2, 3),
    "rate_limit": (1.0, 2.0, 5.0, 0.7),
    "group_concurrency": (1, 2),
    "fair": (True, False),
    "concurrency": (1, 2, 4),
    "max_attempts": (1, 2, 4),
    "prefetch": (0, 1, 5),
}
QUEUE_WIDE: dict[str, tuple[Any, ...]] = {
    "lease_seconds": (3.0, 5.0),
    "heartbeat_interval": (0.3, 1.0),
    "poll_interval": (0.2, 1.0),
}


def enqueue(world: World) -> None:
    rng = world.rng
    for _ in range(rng.choice((1, 1, 2, 5, 8))):
        if not world.has_room:
            return
        world.database.insert(
            world.next_job(
                rng.choice(TYPES),
                priority=rng.choice((0, 0, 0, 1, 2)),
                group=rng.choice((None, None, "g", "h", "i")),
                max_attempts=rng.choice((None, None, 1, 2)),
                timeout=rng.choice((None, None, 0.5, 2.0)),
                key=rng.choice((None, None, None, "k", "l")),
                delay=rng.choice((None, None, None, 0.2, 1.0, 5.0)),
            )
        )
    world.committed(None, wakes=True)


def cancel(world: World) -> None:
    if world.database.ids:
        world.database.cancel(world.rng.choice(list(world.database.ids)))
        world.committed(None, wakes=True)


def retry(world: World) -> None:
    if world.database.ids:
        world.database.retry(world.rng.choice(list(world.database.ids)))
        world.committed(None, wakes=True)


def set_setting(world: World) -> None:
    rng, database = world.rng, world.database
    name = rng.choice((*VALUES, *VALUES, *QUEUE_WIDE))
    owner, values = (rng.choice(NAMES), VALUES[name]) if name in VALUES else ("", QUEUE_WIDE[name])
    database.settings[name, owner] = rng.choice(values)
    database.version += 1
    world.trace("someone sets", name, "of", repr(owner), "to", database.settings[name, owner])
    world.committed(None, wakes=True)


def unset_setting(world: World) -> None:
    if world.database.settings:
        key = world.rng.choice(list(world.database.settings))
        del world.database.settings[key]
        world.database.version += 1
        world.trace("someone unsets", *key)
        world.committed(None, wakes=True)


def pause(world: World) -> None:
    name = world.rng.choice(NAMES)
    world.database.paused ^= {name}
    world.database.version += 1
    world.trace("someone pauses or resumes", repr(name))
    world.committed(None, wakes=True)


def ask_to_stop(world: World) -> None:
    """A request in the database, which the worker finds there."""
    process = _one(world)
    if process is not None and process.id in world.database.workers:
        request = world.rng.choice((StopRequest.IN_ORDER, StopRequest.AT_ONCE))
        world.database.workers[process.id].stop = request
        world.committed(None, wakes=True)
        world.faults.note("stop requested", process.id)


def stop(world: World) -> None:
    process = _one(world)
    if process is not None:
        world.faults.note("stopped by a signal", process.id)
        _as(process, lambda: process.stop(world.rng.choice((None, 0.0, 1.0))))


def pause_worker(world: World) -> None:
    process = _one(world)
    if process is not None:
        _as(process, lambda: process.dispatcher.set_paused(not process.dispatcher.paused))


def start(world: World) -> None:
    if len(world.living()) < 3:
        world.start_process()


def kill(world: World) -> None:
    process = _one(world)
    if process is not None:
        process.is_dead = True
        world.faults.note("killed", process.id)
        if world.rng.random() < 0.7:
            world.start_process()


def suspend(world: World) -> None:
    process = _one(world)
    if process is not None:
        seconds = world.defaults["lease_seconds"] * world.rng.uniform(0.1, 3.0)
        whole_machine = world.rng.random() < 0.3
        process.suspend(seconds, whole_machine=whole_machine)
        world.faults.note("machine asleep" if whole_machine else "suspended", process.id, f"{seconds:.1f} s")


def step_clock(world: World) -> None:
    if world.rng.random() < 0.5:
        return  # twice as rare as the rest
    seconds = world.defaults["lease_seconds"] * world.rng.choice((-3.0, -0.5, 0.5, 1.1, 3.0))
    world.step_clock(seconds)
    world.faults.note("clock stepped", f"{seconds:+.1f} s")


def deafen(world: World) -> None:
    process = _one(world)
    if process is not None and world.is_shared:
        process.is_deaf = not process.is_deaf
        world.faults.note("notifications lost", process.id)


def _one(world: World) -> Process | None:
    """A worker that is up."""
    up = [process for process in world.processes if process.is_up]
    return world.rng.choice(up) if up else None


def _as(process: Process, act: Callable[[], None]) -> None:
    from tests.simulation.clock import PRESENT

    PRESENT.machine = process
    act()


ACTIONS: tuple[Callable[[World], None], ...] = (
    *[enqueue] * 8,
    *[set_setting] * 3,
    unset_setting,
    *[pause] * 2,
    *[cancel] * 2,
    *[retry] * 2,
    ask_to_stop,
    stop,
    pause_worker,
    *[start] * 2,
    *[kill] * 2,
    *[suspend] * 2,
    step_clock,
    deafen,
)
