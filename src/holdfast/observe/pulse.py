"""Throughput over the last hour, and how long the backlog will take at that rate. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import dropwhile

from msgspec import Struct

from holdfast.observe.overview import percentile
from holdfast.store.records import HOUR, Minute, empty_minute

PACE_MINUTES = 5
"""The rate is measured over at most this many minutes before the current one."""

_SHORTEST = 10.0
"""The rate is measured over at least this many seconds."""


class Percentiles(Struct, frozen=True):
    """Upper bounds in seconds, from a histogram; None beyond its last bound, or if nothing ran."""

    p50: float | None = None
    p95: float | None = None
    count: int = 0


class Pulse(Struct, frozen=True, kw_only=True):
    """The last hour; `retried` are attempts that failed and are tried again."""

    minutes: list[Minute]
    """Every minute of it, the present one last."""
    completed: int = 0
    failed: int = 0
    retried: int = 0
    waits: Percentiles
    runs: Percentiles
    pace: float
    """Jobs per second that finished recently."""

    def seconds_until_empty(self, waiting: int) -> float | None:
        """How long this many jobs take at this rate; None if nothing finishes."""
        if not waiting:
            return 0.0
        return waiting / self.pace if self.pace else None


def pulse(statistics: Iterable[Minute], now_minute: int, second: float) -> Pulse:
    """From the statistics of the last hour; `second` is how far the present minute has gone."""
    begin = now_minute - HOUR + 1
    minutes = [empty_minute(minute, "", "") for minute in range(begin, now_minute + 1)]
    for row in statistics:
        if begin <= row.minute <= now_minute:
            minutes[row.minute - begin].add(row)
    hour = empty_minute(begin, "", "")
    for minute in minutes:
        hour.add(minute)
    return Pulse(
        minutes=minutes,
        completed=hour.completed,
        failed=hour.failed,
        retried=hour.retried,
        waits=_percentiles(hour.waits),
        runs=_percentiles(hour.runs),
        pace=_pace(minutes[-PACE_MINUTES - 1 :], second),
    )


def _pace(lately: Sequence[Minute], second: float) -> float:
    """Jobs that finished per second, since the first of these minutes in which one did."""
    ended = list(dropwhile(lambda count: not count, (each.completed + each.failed for each in lately)))
    return sum(ended) / max(_SHORTEST, 60 * (len(ended) - 1) + second)


def _percentiles(buckets: Sequence[int]) -> Percentiles:
    count = sum(buckets)
    return Percentiles(percentile(buckets, 0.5), percentile(buckets, 0.95), count) if count else Percentiles()
