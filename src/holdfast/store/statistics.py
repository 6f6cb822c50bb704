"""Statistics as rows: of one worker and minute, added up by the hour, and for all time."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from msgspec.json import Decoder

from holdfast.store.protocol import HOUR, LIFETIME, Minute, empty_minute

SINGLE_MINUTES = f"minute > {LIFETIME} AND minute < ? AND (worker_id <> '' OR minute % {HOUR} <> 0)"
ALL_MINUTES = f"minute > {LIFETIME} AND minute < ?"


STATISTICS_COLUMNS = (
    "minute, type, worker_id, completed, failed, retried, reaped, wait_seconds, run_seconds,"
    " limited_seconds, waits, runs"
)


_histogram = Decoder(list[int]).decode  # an hour of many workers has thousands


def minute_from(row: Sequence[Any]) -> Minute:
    (
        minute, type, worker_id, completed, failed, retried, reaped, wait_seconds, run_seconds,
        limited_seconds, waits, runs,
    ) = row  # fmt: skip
    return Minute(
        minute=minute,
        type=type,
        worker_id=worker_id,
        completed=completed,
        failed=failed,
        retried=retried,
        reaped=reaped,
        wait_seconds=wait_seconds,
        run_seconds=run_seconds,
        limited_seconds=limited_seconds,
        waits=_histogram(waits),
        runs=_histogram(runs),
    )


def minute_row(m: Minute) -> tuple[Any, ...]:
    """The STATISTICS_COLUMNS of a minute."""
    return (
        m.minute,
        m.type,
        m.worker_id,
        m.completed,
        m.failed,
        m.retried,
        m.reaped,
        m.wait_seconds,
        m.run_seconds,
        m.limited_seconds,
        json.dumps(m.waits),
        json.dumps(m.runs),
    )


def hour_of(minute: int) -> int:
    return minute // HOUR * HOUR


def lifetime_of(_: int) -> int:
    return LIFETIME


def added_up(
    parts: Iterable[Minute], target: Callable[[int], int], stored: Callable[[int, str], Sequence[Minute]]
) -> list[Minute]:
    """The rows that older ones become, added to what is stored there already."""
    totals: dict[tuple[int, str], Minute] = {}
    for part in parts:
        minute = target(part.minute)
        if (minute, part.type) not in totals:
            found = stored(minute, part.type)
            totals[minute, part.type] = found[0] if found else empty_minute(minute, part.type, "")
        totals[minute, part.type].add(part)
    return list(totals.values())
