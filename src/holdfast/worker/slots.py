"""The slots of a worker process: what is running, what is held ready, and how much more to claim.

A slot is free when its handler returns, and the next held job of its type starts at once, without the
database. How much is held ready follows the pace of jobs here: no more than will start within about 50 ms.
"""

from __future__ import annotations

import threading
import time
from bisect import insort
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable

from holdfast.context import Attempt
from holdfast.worker.pace import HORIZON, MAX_HELD, Paces

LONGEST_HELD = 1.0
"""Seconds after which a held job is released: something took the slots that it was claimed for."""


_Placed = tuple[int, int, int, Attempt]
"""By priority, then in line. A job that was lost and claimed again may be held twice, for a moment."""


class Slots:
    """Thread-safe bookkeeping of a worker's attempts.

    `cap` gives the name and size of a type's cap in this process; types with the same name share it.
    `prefetch` likewise says how many may be held ready beyond the free slots: None leaves it to the pace.
    """

    def __init__(
        self,
        concurrency: int,
        cap: Callable[[str], tuple[str, int]],
        prefetch: Callable[[str], tuple[str, int | None]] = lambda _: ("", None),
    ) -> None:
        self.concurrency = concurrency
        self._cap = cap
        self._prefetch = prefetch
        self._lock = threading.Lock()
        self._held: dict[int, Attempt] = {}  # by id, in the order they were claimed
        self._lines: dict[str, deque[_Placed]] = {}  # the same by cap, sorted
        self._running: dict[int, Attempt] = {}
        self._running_by_cap: Counter[str] = Counter()
        self._paces = Paces()
        self._measured = time.monotonic()

    def hold(self, attempts: Collection[Attempt]) -> None:
        """Take claimed attempts in; `refill` tells which of them to start."""
        with self._lock:
            for attempt in attempts:
                self._held[id(attempt)] = attempt
            self._line_up(attempts)

    def follow(self, concurrency: int) -> None:
        """The settings have changed: count what runs and is held by the caps as they are now."""
        with self._lock:
            self.concurrency = concurrency
            self._lines = {}
            self._running_by_cap = Counter()
            self._line_up(self._held.values())
            for attempt in self._running.values():
                attempt.cap = self._cap(attempt.claim.type)[0]
            self._running_by_cap.update(attempt.cap for attempt in self._running.values())

    def free(self, attempt: Attempt, seconds: float | None) -> Attempt | None:
        """The handler has returned: its slot is free. Returns the attempt to start in it."""
        with self._lock:
            if self._running.pop(id(attempt), None) is not None:
                self._running_by_cap[attempt.cap] -= 1
                if not self._running_by_cap[attempt.cap]:
                    del self._running_by_cap[attempt.cap]
            if seconds is not None:
                self._paces.note(attempt.cap, attempt.claim.type, seconds)
            return self._pop()

    def refill(self) -> list[Attempt]:
        """Held attempts that have a free slot and should be started."""
        with self._lock:
            return list(iter(self._pop, None))

    def take_back(self, chosen: Callable[[Attempt], bool]) -> list[Attempt]:
        """Remove held attempts that have not started."""
        with self._lock:
            taken = [attempt for attempt in self._held.values() if chosen(attempt)]
            for attempt in taken:
                del self._held[id(attempt)]
            for cap in {attempt.cap for attempt in taken}:
                line = deque(placed for placed in self._lines.pop(cap) if id(placed[-1]) in self._held)
                if line:
                    self._lines[cap] = line
            return taken

    def held_since(self) -> float | None:
        """When the oldest held attempt was claimed."""
        with self._lock:
            return next((attempt.claimed for attempt in self._held.values()), None)

    def is_idle(self) -> bool:
        """Whether nothing runs or is held ready, apart from handlers whose attempts are over without them."""
        with self._lock:
            return not self._held and all(attempt.written_off for attempt in self._running.values())

    def running(self) -> list[Attempt]:
        """The attempts whose handlers have not returned, written off or not."""
        with self._lock:
            return list(self._running.values())

    def held(self) -> list[Attempt]:
        with self._lock:
            return list(self._held.values())

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
            self._paces.measure(elapsed)

    def room(self, type: str, *, prefetch: bool) -> int:
        """How many more jobs of the type to claim."""
        with self._lock:
            name, cap = self._cap(type)
            slots = min(cap, self.concurrency)
            present = self._running_by_cap[name] + len(self._lines.get(name, ()))
            ahead = self._paces.ahead(name, type, slots) if prefetch and self._is_moving(name, cap) else 0
            room = max(0, slots + ahead - present)
            return min(room, self._within_prefetch(type, name, slots)) if ahead else room

    def kind(self, type: str) -> str:
        """Types of one kind, cap and `prefetch` have room for as many."""
        with self._lock:
            return self._paces.kind(type)

    def has_free(self, type: str) -> bool:
        """Whether a job of the type would start at once."""
        with self._lock:
            name, cap = self._cap(type)
            return len(self._running) < self.concurrency and self._running_by_cap[name] < cap

    def total_room(self) -> tuple[int, int]:
        """How many more jobs to claim in all, and how many of them at once: half of what is held ready, so
        that one half runs while the outcomes of the other are written."""
        with self._lock:
            ahead = 0
            if self._is_moving(None, self.concurrency):
                most = self._prefetch("")[1]
                ahead = self._paces.ahead_in_all(self.concurrency)
                ahead = ahead if most is None else min(most, ahead)
            present = len(self._running) + len(self._held)
            return max(0, self.concurrency + ahead - present), self.concurrency + ahead // 2

    def _within_prefetch(self, type: str, cap: str, slots: int) -> int:
        """How many more jobs of a type fill free slots, or may be held ready beyond them."""
        name, most = self._prefetch(type)
        if most is None:
            return MAX_HELD + slots
        free = min(slots - self._running_by_cap[cap], self.concurrency - len(self._running))
        held = sum(self._prefetch(attempt.claim.type)[0] == name for attempt in self._held.values())
        return max(0, max(0, free) + most - held)

    def _is_moving(self, cap: str | None, size: int) -> bool:
        """Whether a slot, of one cap or of all, is free or will be soon: not all are held by slow jobs."""
        long_ago = time.monotonic() - HORIZON
        slow = sum(
            1
            for attempt in self._running.values()
            if (cap is None or attempt.cap == cap) and 0.0 < attempt.started < long_ago
        )
        return slow < size

    def _line_up(self, attempts: Iterable[Attempt]) -> None:
        """Let held attempts stand in line by priority, then as they came: mostly they come in that order."""
        type: str | None = None
        for attempt in attempts:
            claim = attempt.claim
            if claim.type != type:
                type, cap = claim.type, self._cap(claim.type)[0]
                line = self._lines.setdefault(cap, deque())
            attempt.cap = cap
            placed = -claim.priority, claim.seq, claim.version, attempt
            if line and placed < line[-1]:
                insort(line, placed)
            else:
                line.append(placed)

    def _pop(self) -> Attempt | None:
        """The next held attempt whose type has a free slot: by priority, then in line."""
        if not self._held or len(self._running) >= self.concurrency:
            return None
        best: _Placed | None = None
        for name, line in self._lines.items():
            if best is None or line[0][:2] < best[:2]:
                size = self._cap(line[0][-1].claim.type)[1]
                if self._running_by_cap[name] < size:
                    best = line[0]
        if best is None:
            return None
        attempt = best[-1]
        line = self._lines[attempt.cap]
        line.popleft()
        if not line:
            del self._lines[attempt.cap]
        del self._held[id(attempt)]
        self._running[id(attempt)] = attempt
        self._running_by_cap[attempt.cap] += 1
        return attempt
