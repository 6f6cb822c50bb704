"""Statistics as rows: of one worker and minute, added up by the hour, and for all time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from holdfast.store.database import Session
from holdfast.store.records import HOUR, LIFETIME, Minute, empty_minute
from holdfast.store.rows import MINUTE

_ALL_MINUTES = f"minute > {LIFETIME} AND minute < ?"
_SINGLE_MINUTES = f"{_ALL_MINUTES} AND (worker_id <> '' OR minute % {HOUR} <> 0)"
_STORED = "minute = ? AND type = ? AND worker_id = ''"

_KEY = ("minute", "type", "worker_id")
_VALUES = f"({', '.join('?' * len(MINUTE.names))})"
_WRITE = f"""
INSERT INTO holdfast_statistics ({MINUTE.columns}) VALUES {{values}}
ON CONFLICT ({", ".join(_KEY)}) DO UPDATE
SET {", ".join(f"{name} = excluded.{name}" for name in MINUTE.names if name not in _KEY)}
"""
_WRITE_ONE = _WRITE.format(values=_VALUES)
_AT_ONCE = 50
"""Rows of one statement, where there are many: of ten thousand lanes, say."""
_WRITE_MANY = _WRITE.format(values=", ".join([_VALUES] * _AT_ONCE))


def write(session: Session, minutes: Sequence[Minute]) -> None:
    """Replace rows by their new sums."""
    rows = [MINUTE.row(minute) for minute in minutes]
    whole = len(rows) - len(rows) % _AT_ONCE
    parts = [rows[start : start + _AT_ONCE] for start in range(0, whole, _AT_ONCE)]
    session.each(_WRITE_MANY, [[*chain.from_iterable(part)] for part in parts])
    session.each(_WRITE_ONE, rows[whole:])


def fold_hours(session: Session, before_minute: int) -> None:
    """Move rows older than the minute into one row per type and hour."""
    _fold(session, _SINGLE_MINUTES, before_minute, lambda minute: minute // HOUR * HOUR)


def fold_all(session: Session, before_minute: int) -> None:
    """Move rows older than the minute into one lifetime row per type."""
    _fold(session, _ALL_MINUTES, before_minute, lambda _: LIFETIME)


def _fold(session: Session, which: str, before_minute: int, target: Callable[[int], int]) -> None:
    totals: dict[tuple[int, str], Minute] = {}
    gone = f"DELETE FROM holdfast_statistics WHERE {which} RETURNING {MINUTE.columns}"
    for part in _minutes(session, gone, before_minute):
        place = target(part.minute), part.type
        if place not in totals:
            stored = f"SELECT {MINUTE.columns} FROM holdfast_statistics WHERE {_STORED}"
            totals[place] = next(iter(_minutes(session, stored, *place)), empty_minute(*place, ""))
        totals[place].add(part)
    write(session, list(totals.values()))


def _minutes(session: Session, sql: str, *parameters: Any) -> list[Minute]:
    return [MINUTE.read(row) for row in session.rows(sql, parameters)]
