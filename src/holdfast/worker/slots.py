"""The slots of a worker process: what is running, what is held ready, and how much more to claim.

A slot is free when its handler returns, and the next held job of its type starts at once, without the
database. How much is held ready follows the rate of each type: no more than will start within about 50 ms.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable

from holdfast.context import Attempt

HORIZON = 0.05
"""How many seconds of work to hold ready."""

MAX_HELD = 1000
LONGEST_HELD = 1.0
"""Seconds after which a held job is released: something took the slots that it was claimed for."""


class Pace:
    """How fast jobs of a type finish here."""

    __slots__ = ("finished", "mean", "rate")

    def __init__(self) -> None:
        self.mean: float | None = None
        self.rate = 0.0
        self.finished = 0

    def note(self, seconds: float) -> None:
        self.finished += 1
        # A slower job counts at once, a faster one by and by: holding too little costs less than too much.
        mean = seconds if self.mean is None else self.mean
        weight = 0.5 if seconds > mean else 0.1
        self.mean = mean + weight * (seconds - mean)

    def measure(self, elapsed: float) -> None:
        rate = self.finished / elapsed
        self.rate = max(rate, (self.rate + rate) / 2)
        self.finished = 0

    def ahead(self, slots: int) -> int:
        """Jobs that will start within the horizon, beyond those that fill the slots now."""
        if self.mean is None or self.mean > HORIZON:
            return 0
        return min(MAX_HELD, int(HORIZON * min(self.rate, slots / max(self.mean, 1e-6))))


class Slots:
    """Thread-safe bookkeeping of a worker's attempts.

    `cap` gives the name and size of a type's cap in this process; types with the same name share it.
    """

    def __init__(self, concurrency: int, cap: Callable[[str], tuple[str, int]]) -> None:
        self.concurrency = concurrency
        self._cap = cap
        self._lock = threading.Lock()
        self._held: defaultdict[str, deque[Attempt]] = defaultdict(deque)
        self._held_count = 0
        self._running: dict[int, Attempt] = {}
        self._running_by_cap: defaultdict[str, int] = defaultdict(int)
        self._paces: defaultdict[str, Pace] = defaultdict(Pace)
        self._measured = time.monotonic()

    def hold(self, attempts: Iterable[Attempt]) -> None:
        """Take claimed attempts in; `refill` tells which of them to start."""
        with self._lock:
            for attempt in attempts:
                self._held[attempt.claim.type].append(attempt)
                self._held_count += 1

    def free(self, attempt: Attempt, seconds: float | None) -> Attempt | None:
        """The handler has returned: its slot is free. Returns the attempt to start in it."""
        with self._lock:
            if self._running.pop(id(attempt), None) is not None:
                self._running_by_cap[attempt.cap] -= 1
            if seconds is not None:
                self._paces[attempt.claim.type].note(seconds)
            return self._pop()

    def refill(self) -> list[Attempt]:
        """Held attempts that have a free slot and should be started."""
        with self._lock:
            return list(iter(self._pop, None))

    def take_back(self, chosen: Callable[[Attempt], bool]) -> list[Attempt]:
        """Remove held attempts that have not started."""
        with self._lock:
            taken: list[Attempt] = []
            for type, line in self._held.items():
                taken += [attempt for attempt in line if chosen(attempt)]
                self._held[type] = deque(attempt for attempt in line if not chosen(attempt))
            self._held_count -= len(taken)
            return taken

    def held_since(self) -> float | None:
        """When the oldest held attempt was claimed."""
        with self._lock:
            if not self._held_count:
                return None
            return min(line[0].claimed for line in self._held.values() if line)

    def running(self) -> list[Attempt]:
        """The attempts whose handlers have not returned, written off or not."""
        with self._lock:
            return list(self._running.values())

    def held(self) -> list[Attempt]:
        with self._lock:
            return [attempt for line in self._held.values() for attempt in line]

    def are_used_up_by(self, stuck: Collection[Attempt]) -> bool:
        """Whether these hold every slot, or every slot of some type."""
        by_cap = Counter(attempt.cap for attempt in stuck)
        return len(stuck) >= self.concurrency or any(
            by_cap[attempt.cap] >= self._cap(attempt.claim.type)[1] for attempt in stuck
        )

    def measure(self) -> None:
        """Close the interval over which rates are measured. Called once per turn."""
        now = time.monotonic()
        with self._lock:
            elapsed = max(0.001, now - self._measured)
            self._measured = now
            for pace in self._paces.values():
                pace.measure(elapsed)

    def room(self, type: str, *, prefetch: bool) -> int:
        """How many more jobs of the type to claim."""
        with self._lock:
            name, cap = self._cap(type)
            slots = min(cap, self.concurrency)
            present = self._running_by_cap.get(name, 0) + sum(
                len(line) for other, line in self._held.items() if line and self._cap(other)[0] == name
            )
            ahead = self._paces[type].ahead(slots) if prefetch and self._is_moving(name, cap) else 0
            return max(0, slots + ahead - present)

    def total_room(self) -> tuple[int, int]:
        """How many more jobs to claim in all, and how many of them at once: half of what is held ready, so
        that one half runs while the outcomes of the other are written."""
        with self._lock:
            ahead = 0
            if self._is_moving(None, self.concurrency):
                ahead = min(MAX_HELD, sum(pace.ahead(self.concurrency) for pace in self._paces.values()))
            present = len(self._running) + self._held_count
            return max(0, self.concurrency + ahead - present), self.concurrency + ahead // 2

    def _is_moving(self, cap: str | None, size: int) -> bool:
        """Whether a slot, of one cap or of all, is free or will be soon: not all are held by slow jobs."""
        long_ago = time.monotonic() - HORIZON
        slow = sum(
            1
            for attempt in self._running.values()
            if (cap is None or attempt.cap == cap) and 0.0 < attempt.started < long_ago
        )
        return slow < size

    def _pop(self) -> Attempt | None:
        """The next held attempt whose type has a free slot: by priority, then in line."""
        if not self._held_count or len(self._running) >= self.concurrency:
            return None
        best: deque[Attempt] | None = None
        best_name = ""
        rank: tuple[int, int] | None = None
        for type, line in self._held.items():
            if not line:
                continue
            name, cap = self._cap(type)
            if self._running_by_cap.get(name, 0) < cap:
                claim = line[0].claim
                if rank is None or (-claim.priority, claim.seq) < rank:
                    best, rank, best_name = line, (-claim.priority, claim.seq), name
        if best is None:
            return None
        attempt = best.popleft()
        self._held_count -= 1
        attempt.cap = best_name
        self._running[id(attempt)] = attempt
        self._running_by_cap[best_name] += 1
        return attempt
