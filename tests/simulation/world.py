"""The world of a simulation: one thread in which workers, clocks, people and faults take turns, by a seed."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.core.job import FINISHED
from holdfast.errors import HoldfastError
from holdfast.store.records import NewJob
from tests.simulation.clock import PRESENT, simulated_clocks
from tests.simulation.database import Database, Violation
from tests.simulation.oracle import Oracle
from tests.simulation.people import ACTIONS
from tests.simulation.process import KINDS_OF_CODE, Process, new_job, simulated_executors
from tests.simulation.store import COMMITS, FATES, UNAVAILABLE

LEASE = 3.0
MOST_JOBS = 30
MOST_EVENTS = 20_000
PATIENCE = 4.0
"""Seconds in which something starts, once the faults are over, if something may."""
LONGEST = 600.0
"""Seconds in which everything ends, once the faults are over."""


class Faults:
    """What becomes of each call to the database."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._rng = world.rng
        self.are_over = False
        self._failing = self._rng.choice((0.0, 0.02, 0.1, 0.3))
        self._slow = self._rng.choice((0.0, 0.02, 0.1))
        self._look_takes = self._rng.choice((0.0, 0.0, 0.005))
        self.counts: Counter[str] = Counter()

    def draw(self, process: Process, what: str, *, writes: bool) -> tuple[str, float]:
        rng = self._rng
        if what == "list_heads" and self._look_takes and self._world.depth <= 2:
            return COMMITS, self._look_takes
        if self.are_over:
            return COMMITS, 0.0
        fate = COMMITS
        if rng.random() < self._failing:
            fate = rng.choice(FATES[1:] if writes else (UNAVAILABLE, UNAVAILABLE, COMMITS))
            if fate is not COMMITS:
                self.note(fate, process.id, what)
        return fate, self._delay("call delayed")

    def answer_delay(self, process: Process) -> float:
        return 0.0 if self.are_over else self._delay("answer delayed")

    def _delay(self, kind: str) -> float:
        if self._rng.random() >= self._slow or self._world.depth > 2:
            return 0.0
        self.note(kind)
        return self._rng.choice((0.01, 0.1, 0.5, LEASE / 2))

    def note(self, kind: str, *about: object) -> None:
        self.counts[kind] += 1
        self._world.trace("fault:", kind, *about)


class World:
    """One simulation. `run` raises Violation if something happens that must not."""

    def __init__(self, seed: int, tell: Callable[[str], None] | None = None) -> None:
        self.seed = seed
        self.rng = rng = random.Random(seed)
        self.tell = tell
        self.now = 1000.0
        self.depth = 0
        self.events = 0
        self.commits = 0
        self._clock_offset = 1_700_000_000.0
        self._seen_clock = 0.0
        self.is_shared = rng.random() < 0.5
        self.code = rng.randrange(KINDS_OF_CODE)
        self.defaults: dict[str, Any] = {
            "concurrency": rng.choice((1, 2, 3, 5)),
            "lease_seconds": LEASE,
            "heartbeat_interval": 1.0,
            "poll_interval": 1.0,
            "max_attempts": rng.choice((1, 2, 3, 5)),
            "backoff_factor": 0.3,
            "backoff_max": 2.0,
            "shutdown_timeout": rng.choice((0.0, 1.0, 3.0)),
        }
        self.database = Database(self.clock, lambda: self.now)
        self.oracle = Oracle(self)
        self.faults = Faults(self)
        self.processes: list[Process] = []
        self._born = self._jobs = self._order = 0
        self._calls: list[tuple[float, int, Process, Callable[[], None]]] = []
        self._next_action = self.now

    # Clocks and the log.

    def clock(self) -> int:
        """The database's clock."""
        return int((self.now + self._clock_offset) * 1e6)

    def step_clock(self, seconds: float) -> None:
        self._note_clock()
        self._clock_offset += seconds
        self._seen_clock = min(self._seen_clock, self.now + self._clock_offset)
        self.oracle.jumped_at = self.now

    def _note_clock(self) -> None:
        clock = self.now + self._clock_offset
        self.oracle.moved_on += max(0.0, clock - self._seen_clock) if self._seen_clock else 0.0
        self._seen_clock = clock

    def trace(self, *words: object) -> None:
        if self.tell is not None:
            self.tell(f"{self.now - 1000:9.4f} {'  ' * self.depth}{' '.join(map(str, words))}")

    # Jobs.

    def next_job(self, type: str, **options: Any) -> NewJob:
        self._jobs += 1
        return new_job(self._jobs, type, **options)

    @property
    def has_room(self) -> bool:
        return self._jobs < MOST_JOBS

    def child_of(self, _parent: str) -> NewJob:
        return self.next_job(self.rng.choice(("a", "b", "c")))

    # Processes.

    def start_process(self) -> Process:
        self._born += 1
        process = Process(self, self._born)
        process.skew = self.rng.choice((0, 0, 2_000, -2_000)) if self.is_shared else 0
        self.processes.append(process)
        self.trace(process.id, "starts")
        return process

    def living(self) -> list[Process]:
        return [process for process in self.processes if not process.is_dead]

    def later(self, process: Process, delay: float, call: Callable[[], None]) -> None:
        self._order += 1
        heapq.heappush(self._calls, (self.now + delay, self._order, process, call))

    def committed(self, by: Process | None, *, wakes: bool) -> None:
        """A transaction is committed: look at what it did, and wake the others."""
        self._note_clock()
        self.commits += 1
        changes, self.database.journal = self.database.journal, []
        if self.tell is not None:
            for change in changes:
                what = f"{change.verb} {change.row.id} -> {change.status}"
                self.trace(by.id if by else "someone", "commits:", what, f"attempt {change.attempt}")
        self.oracle.committed(changes)
        if wakes or not self.is_shared:
            for process in self.processes:
                if process is not by and not process.is_dead and not process.is_deaf:
                    process.wake(0.002)

    # The scheduler.

    def run_until(self, until: float) -> None:
        self.depth += 1
        while True:
            when, process, act = self._next()
            if when > until:
                break
            self.now = max(self.now, when)
            self.events += 1
            if self.events > MOST_EVENTS:
                raise Violation("it does not come to an end")
            PRESENT.machine = process
            try:
                act()
            except Exception as error:  # whatever worker code makes of it
                Violation.found.append(error)
                raise
            if Violation.found:
                raise Violation.found[0]
        self.depth -= 1
        self.now = max(self.now, until)

    def _next(self) -> tuple[float, Process | None, Callable[[], None]]:
        """What happens next, and when."""
        best, whose, act = self._next_action, None, self._act
        for process in self.processes:
            if process.is_dead:
                continue
            awake = process.suspended_until
            if not process.is_stepping and max(process.next_step, awake) < best:
                best, whose, act = max(process.next_step, awake), process, process.step
            if not process.is_beating and max(process.next_beat, awake) < best:
                best, whose, act = max(process.next_beat, awake), process, process.beat
        while self._calls:
            when, order, process, call = self._calls[0]
            if process.is_dead:
                heapq.heappop(self._calls)
            elif process.suspended_until > when:
                heapq.heapreplace(self._calls, (process.suspended_until, order, process, call))
            elif when < best:
                return when, process, self._pop_call
            else:
                break
        return best, whose, act

    def _pop_call(self) -> None:
        heapq.heappop(self._calls)[3]()

    def _act(self) -> None:
        """Something happens to the world: a person or an accident."""
        rng = self.rng
        self._next_action = self.now + rng.choice((0.0, 0.01, 0.05, 0.3, 1.0, LEASE * rng.random()))
        action = rng.choice(ACTIONS)
        try:
            action(self)
        except HoldfastError as error:
            self.trace("refused:", error)

    # A whole run.

    def run(self) -> None:
        Violation.found.clear()
        with running():
            for _ in range(self.rng.randint(2, 3)):
                self.start_process()
            self.run_until(self.now + self.rng.choice((3.0, 5.0, 8.0, 12.0)))
            self._heal()
            self._finish()

    def _heal(self) -> None:
        """The faults are over, and nothing is paused any more."""
        self.trace("the faults are over")
        self.faults.are_over = True
        self._next_action = float("inf")
        self.database.paused.clear()
        self.database.version += 1
        for process in self.living():
            process.is_deaf = False
            process.suspended_until = 0.0
            if process.is_up and process.dispatcher.paused:
                PRESENT.machine = process
                process.dispatcher.set_paused(False)
        self.committed(None, wakes=True)

    def _finish(self) -> None:
        began = self.now
        seen, waiting_since = self.oracle.claims, self.now + 2 * LEASE + 5.0
        while any(row.status not in FINISHED for row in self.database.rows.values()):
            while len(self.living()) < 2:
                self.start_process()
            self.run_until(self.now + 1.0)
            if self.now - began > LONGEST:
                self.oracle.check_end()
            claims = self.oracle.claims
            if claims != seen or not self.oracle.startable() or not self._has_free_slots():
                seen, waiting_since = claims, max(waiting_since, self.now)
            elif self.now - waiting_since > PATIENCE:
                raise Violation(f"left behind: {[row.id for row in self.oracle.startable()]}")
        self.oracle.check_end()

    def _has_free_slots(self) -> bool:
        """Whether some worker runs nothing at all, so that it could start any job."""
        return any(process.is_up and not process.running for process in self.living())


@contextmanager
def running() -> Iterator[None]:
    with simulated_clocks(), simulated_executors():
        yield


def simulate(seed: int, tell: Callable[[str], None] | None = None) -> World:
    """Run one simulation to its end."""
    world = World(seed, tell)
    world.run()
    return world
