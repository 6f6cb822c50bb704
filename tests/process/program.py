"""The processes of the crash tests: `python -m tests.process.program ROLE {"option": …}`.

A role writes `accepted ID` to its standard output after the call that accepted the job has returned, and
`refused ERROR` when a call raised an error of ours. Any other error ends it with a traceback.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import random
import select
import sys
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from itertools import count
from typing import Any

from holdfast import HoldfastError, events
from holdfast.errors import CommitUncertain
from holdfast.store.open import store_of
from holdfast.worker import runner
from holdfast.worker.slots import Slots
from tests.process.app import note, queue

TRACED = 424242
_QUIET = (events.JobEnqueued, events.JobPromoted, events.JobClaimed, events.JobCompleted)


def say(*words: object) -> None:
    os.write(1, " ".join(map(str, words)).encode() + b"\n")


def accepted(ids: Iterable[str]) -> None:
    say("\n".join(f"accepted {id}" for id in ids))


def refused(error: HoldfastError) -> None:
    say("refused", type(error).__name__, str(error).replace("\n", " "))


def worker(holds: int | None = None, **options: Any) -> None:
    """A worker, whose events go to the log. It `holds` so many jobs ready, whatever its pace."""
    if holds is not None:
        _hold_ready(holds)
    queue.events.subscribe(_note_event)
    queue.run_worker(**options)


def _hold_ready(count: int) -> None:
    def room(slots: Slots) -> int:
        return max(0, slots.concurrency + count - len(slots.running()) - len(slots.held()))

    runner.LONGEST_HELD = math.inf  # type: ignore[attr-defined]
    Slots.room = lambda self, *_, **__: room(self)  # type: ignore[method-assign]
    Slots.total_room = lambda self: (room(self), room(self))  # type: ignore[method-assign]


def _note_event(event: events.Event) -> None:
    if not isinstance(event, _QUIET):
        note("event", name=event.name, **{f"event_{key}": value for key, value in event.fields().items()})


def producer(seed: int, types: dict[str, int], seconds: float = 0.0, pause: float = 0.0) -> None:
    """Enqueues for ever, of each type with its weight, singly and in small batches, some with a key."""
    chance = random.Random(seed)
    names, weights = list(types), list(types.values())
    while True:
        type = chance.choices(names, weights)[0]
        payload = {"seconds": chance.uniform(0, seconds)}
        if chance.random() < 0.05:
            accepted(job.id for job in queue.enqueue_many(type, [payload] * 5))
        elif chance.random() < 0.1:
            accepted([queue.enqueue(type, {}, key=f"key-{chance.randrange(5)}").id])
        else:
            accepted([queue.enqueue(type, payload).id])
        time.sleep(pause * chance.random())


def tight_loop(end: str) -> None:
    """Enqueues jobs that nobody serves, as fast as it can, until a file is there."""
    while not os.path.exists(end):
        try:
            accepted([queue.enqueue("unserved").id])
        except HoldfastError as error:
            refused(error)


def persistent_producer(jobs: int, tries: int, pause: float = 0.0, type: str = "work") -> None:
    """Enqueues so many jobs, each as often as it takes."""
    for _ in range(jobs):
        for _ in range(tries):
            try:
                accepted([queue.enqueue(type).id])
                break
            except HoldfastError as error:
                refused(error)
                time.sleep(pause)
        else:
            sys.exit(f"not accepted in {tries} tries")


def steadfast_producer(
    name: str,
    types: dict[str, int],
    seconds: float = 0.0,
    pause: float = 0.0,
    jobs: int | None = None,
    gate: str | None = None,
) -> None:
    """Enqueues whatever the database does, each job once, and tells of each what it was told.

    A mark in the payload says which one a job is, if it is there. While the file `gate` exists, it waits.
    """
    chance = random.Random(name)
    names, weights = list(types), list(types.values())
    for number in count() if jobs is None else range(jobs):
        if gate is not None and os.path.exists(gate):
            say("waiting")
            while os.path.exists(gate):
                time.sleep(0.05)
        mark = f"{name}-{number}"
        payload = {"seconds": chance.uniform(0, seconds), "mark": mark}
        try:
            accepted([queue.enqueue(chance.choices(names, weights)[0], payload).id])
        except CommitUncertain:
            say("in_doubt", mark)
        except HoldfastError as error:
            say("refused", mark, type(error).__name__, str(error).replace("\n", " "))
        time.sleep(pause * chance.random())


def enqueue_delayed(seconds: float) -> None:
    accepted([queue.enqueue("work", delay=seconds).id])


def nursery() -> None:
    """Loads what a worker needs, and then forks one role for each line that it is given."""
    import holdfast.worker.worker

    if queue.url.startswith("postgresql:"):
        import holdfast.store.postgres
    else:
        import holdfast.store.sqlite.store  # noqa: F401

    for line in sys.stdin:
        # In the end it stays a zombie, so that its pid is nobody else's.
        say(_in_child(partial(_become, *json.loads(line))))
    with suppress(ChildProcessError):
        while os.wait():
            pass


def _become(role: str, options: dict[str, Any], output: str, errors: str) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    for number, path in ((1, output), (2, errors)):
        os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    try:
        ROLES[role](**options)
    except Exception:
        traceback.print_exc()
        raise


# Scenarios: one change each, on a database that a test has prepared.


def opening() -> None:
    store_of(queue).now()


def enqueue() -> None:
    for _ in range(2):
        accepted([queue.enqueue("work").id])


def enqueue_many(count: int) -> None:
    accepted(job.id for job in queue.enqueue_many("work", [{}] * count))


def drain() -> None:
    queue.drain()
    say("drained")


def retry(id: str) -> None:
    accepted([queue.retry(id).id])


def cancel(id: str) -> None:
    accepted([queue.cancel(id).id])


def cleanup() -> None:
    say("deleted", queue.cleanup(0))


def closing(scenario: Callable[..., None]) -> Callable[..., None]:
    """The scenario, and then a queue that is closed in order. An error of ours is told and no failure."""

    def run(**options: Any) -> None:
        try:
            with queue:
                scenario(**options)
        except HoldfastError as error:
            refused(error)

    return run


# Forks. The child ends with os._exit: what it inherited is its parent's to close.


def _in_child(action: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        action()
        status = 0
    finally:
        os._exit(status)


def _join(pid: int) -> None:
    if os.waitpid(pid, 0)[1]:
        sys.exit("the child failed")


def _enqueue_here() -> None:
    accepted([queue.enqueue("work").id])


def _enqueue_async_here() -> None:
    async def enqueue() -> None:
        accepted([(await queue.enqueue_async("work")).id])

    asyncio.run(enqueue())


def _enqueue_and_drain() -> None:
    _enqueue_here()
    queue.drain()
    _enqueue_here()


def fork_and_enqueue() -> None:
    """Used before, in the child and in the parent."""
    _enqueue_here()
    child = _in_child(_enqueue_and_drain)
    _enqueue_here()
    _join(child)
    _enqueue_here()


def fork_and_enqueue_async() -> None:
    _enqueue_async_here()
    child = _in_child(_enqueue_async_here)
    _enqueue_async_here()
    _join(child)


def fork_during_enqueue(locked: str) -> None:
    """Another thread is in the middle of an enqueue, waiting for the lock, when the process forks."""
    _enqueue_here()
    while not os.path.exists(locked):
        time.sleep(0.01)
    thread = threading.Thread(target=_enqueue_here)
    thread.start()
    time.sleep(0.2)
    child = _in_child(_enqueue_here)
    thread.join()
    _join(child)


def fork_and_close_first() -> None:
    """The parent closes its queue while the child still uses its own; then the child is killed."""
    _enqueue_here()
    ready_read, ready_write = os.pipe()
    closed_read, closed_write = os.pipe()

    def outlive() -> None:
        _enqueue_here()
        os.write(ready_write, b"r")
        os.read(closed_read, 1)
        _enqueue_here()
        os.kill(os.getpid(), 9)

    child = _in_child(outlive)
    os.read(ready_read, 1)
    queue.close()
    os.write(closed_write, b"c")
    os.waitpid(child, 0)


ROLES: dict[str, Callable[..., None]] = {
    role.__name__: role
    for role in (
        worker,
        producer,
        tight_loop,
        persistent_producer,
        steadfast_producer,
        enqueue_delayed,
        nursery,
        fork_and_enqueue,
        fork_and_enqueue_async,
        fork_during_enqueue,
        fork_and_close_first,
    )
} | {
    scenario.__name__: closing(scenario)
    for scenario in (opening, enqueue, enqueue_many, drain, retry, cancel, cleanup)
}


def wait_for_tracer() -> None:
    """Wait until strace is there: it makes getppid() answer with TRACED."""
    while os.getppid() != TRACED:
        time.sleep(0.001)


if __name__ == "__main__":
    if "FAKETIME" in os.environ:
        # libfaketime refuses to sleep until an instant of the monotonic clock, which is how Python sleeps.
        time.sleep = lambda seconds: select.select([], [], [], float(seconds))  # type: ignore[assignment]
    ROLES[sys.argv[1]](**json.loads(sys.argv[2]))
