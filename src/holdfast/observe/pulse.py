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


class Tally(Struct):
    """What finished in one minute; `retried` are attempts that failed and will be retried."""

    minute: int
    completed: int = 0
    failed: int = 0
    retried: int = 0


class Percentiles(Struct, frozen=True):
    """Upper bounds in seconds, from a histogram; None beyond its last bound, or if nothing ran."""

    p50: float | None = None
    p95: float | None = None
    count: int = 0


class Pulse(Struct, frozen=True, kw_only=True):
    """The last hour."""

    minutes: list[Tally]
    """Every minute of it, the present one last."""
    waits: Percentiles
    runs: Percentiles
    pace: float
    """Jobs per second that finished recently."""

    @property
    def completed(self) -> int:
        return sum(tally.completed for tally in self.minutes)

    @property
    def failed(self) -> int:
        return sum(tally.failed for tally in self.minutes)

    @property
    def retried(self) -> int:
        return sum(tally.retried for tally in self.minutes)

    def seconds_until_empty(self, waiting: int) -> float | None:
        """How long this many jobs take at this rate; None if nothing finishes."""
        if not waiting:
            return 0.0
        return waiting / self.pace if self.pace else None


def pulse(statistics: Iterable[Minute], now_minute: int, second: float) -> Pulse:
    """From the statistics of the last hour; `second` is how far the present minute has gone."""
    begin = now_minute - HOUR + 1
    tallies = [Tally(minute) for minute in range(begin, now_minute + 1)]
    hour = empty_minute(begin, "", "")
    for row in statistics:
        if not begin <= row.minute <= now_minute:
            continue
        tally = tallies[row.minute - begin]
        tally.completed += row.completed
        tally.failed += row.failed
        tally.retried += row.retried
        hour.add(row)
    return Pulse(
        minutes=tallies,
        waits=_percentiles(hour.waits),
        runs=_percentiles(hour.runs),
        pace=_pace(tallies[-PACE_MINUTES - 1 :], second),
    )


def _pace(lately: Sequence[Tally], second: float) -> float:
    """Jobs that finished per second, since the first of these minutes in which one did."""
    ended = list(dropwhile(lambda count: not count, (tally.completed + tally.failed for tally in lately)))
    return sum(ended) / max(_SHORTEST, 60 * (len(ended) - 1) + second)


def _percentiles(buckets: Sequence[int]) -> Percentiles:
    count = sum(buckets)
    return Percentiles(percentile(buckets, 0.5), percentile(buckets, 0.95), count) if count else Percentiles()
