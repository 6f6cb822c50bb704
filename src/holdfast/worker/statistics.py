"""What this worker did, by type and minute: each row has one writer, so it is simply replaced."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Collection, Sequence

from holdfast.core.clock import MINUTE
from holdfast.store.records import BUCKETS, Minute, empty_minute

_PAUSE = 1.0


class Statistics:
    """Sums for the present minute and those not yet written."""

    def __init__(self, worker_id: str) -> None:
        self._worker_id = worker_id
        self._minutes: dict[tuple[int, str], Minute] = {}
        self._changed: set[tuple[int, str]] = set()
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

    def changed(self) -> list[Minute]:
        """The rows that have changed since they were last stored."""
        return [self._minutes[key] for key in self._changed]

    def is_due(self) -> bool:
        """Whether to write them: at most once a second, so that a row is written for many turns."""
        return bool(self._changed) and time.monotonic() >= self._written_at + _PAUSE

    def written(self, now: int) -> None:
        """The rows of `changed` are stored; those of past minutes are forgotten."""
        self._changed.clear()
        self._written_at = time.monotonic()
        present = now // MINUTE
        self._minutes = {key: minute for key, minute in self._minutes.items() if key[0] >= present}

    def _minute(self, type: str, now: int) -> Minute:
        key = now // MINUTE, type
        self._changed.add(key)
        minute = self._minutes.get(key)
        if minute is None:
            minute = self._minutes[key] = empty_minute(key[0], type, self._worker_id)
        return minute
