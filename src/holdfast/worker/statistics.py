"""What this worker did, by type and minute: each row has one writer, so it is simply replaced."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Sequence

from holdfast.core.clock import MINUTE
from holdfast.store.records import BUCKETS, Minute, empty_minute

_PAUSE = 1.0

MOST_AT_ONCE = 1000
"""Rows that one transaction writes: of ten thousand lanes, say, all would hold the write lock for long."""


class Statistics:
    """Sums for the present minute and those not yet written."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._minutes: dict[int, dict[str, Minute]] = {}
        self._changed: set[tuple[int, str]] = set()
        self._due: list[tuple[int, str]] = []
        """Those that are being written, the next ones last."""
        self._written_at = 0.0
        self._limited: dict[str, float] = {}

    def count(self, type: str, outcome: str, now: int, number: int = 1) -> Minute:
        """Add to completed, failed, retried or reaped."""
        minute = self._minute(type, now)
        setattr(minute, outcome, getattr(minute, outcome) + number)
        return minute

    def end(self, type: str, outcome: str, now: int, times: Sequence[tuple[float, float]]) -> None:
        """The same for attempts that each waited and ran for so many seconds."""
        minute = self.count(type, outcome, now, len(times))
        waits, runs = minute.waits, minute.runs
        for wait, run in times:
            minute.wait_seconds += wait
            minute.run_seconds += run
            waits[bisect_left(BUCKETS, wait)] += 1
            runs[bisect_left(BUCKETS, run)] += 1

    def limit(self, types: Collection[str], now: int) -> None:
        """These types are held back by a limit now, and no others: count how long each one is."""
        moment = time.monotonic()
        for type, since in self._limited.items():
            self._minute(type, now).limited_seconds += moment - since
        self._limited = dict.fromkeys(types, moment)

    def is_due(self) -> bool:
        """Whether to write: at most once a second, so that a row is written for many turns."""
        return self.goes_on or (bool(self._changed) and time.monotonic() >= self._written_at + _PAUSE)

    @property
    def goes_on(self) -> bool:
        """Whether some of what was due has been written, and some not yet."""
        return bool(self._due)

    def portion(self) -> list[Minute]:
        """The next rows to write, out of those that have changed since they were last stored."""
        if not self._due:
            self._due = sorted(self._changed, reverse=True)
            self._changed.clear()
        return [self._minutes[minute][type] for minute, type in self._due[: -MOST_AT_ONCE - 1 : -1]]

    def written(self, now: int) -> None:
        """The rows of `portion` are stored; those of past minutes are forgotten."""
        del self._due[-MOST_AT_ONCE:]
        self._written_at = time.monotonic()
        if not self._due:
            kept = {now // MINUTE, *(minute for minute, _ in self._changed)}
            for minute in self._minutes.keys() - kept:
                del self._minutes[minute]

    def _minute(self, type: str, now: int) -> Minute:
        number = now // MINUTE
        self._changed.add((number, type))
        minutes = self._minutes.setdefault(number, {})
        minute = minutes.get(type)
        if minute is None:
            minute = minutes[type] = empty_minute(number, type, self._worker_id)
        return minute
