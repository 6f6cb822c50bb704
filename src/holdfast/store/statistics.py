"""Statistics as rows: of one worker and minute, added up by the hour, and for all time.

Rows are added to others in portions, each in one transaction: a table with thousands of lanes would hold
SQLite's write lock for too long.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain
from typing import Any

from holdfast.store import names
from holdfast.store.database import Session
from holdfast.store.records import HOUR, LIFETIME, Minute, empty_minute
from holdfast.store.rows import MINUTE

Key = tuple[int, str, str]
"""A row's minute, type and worker."""

FIRST: Key = (LIFETIME + 1, "", "")

PORTION = 1000
"""Rows that one call folds, with SQLite's write lock held: some fifteen milliseconds."""

MOST_READ = 10_000
"""Rows that it goes through in search of these, in some two milliseconds: most are folded already."""

NAMES_PORTION = 500
"""Lifetime rows that one call looks at, which takes as long if nothing uses their names any more."""

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

_WITHIN = "(minute, type, worker_id) >= (?, ?, ?) AND (minute, type, worker_id) < (?, ?, ?)"
_IS_DUE = f"(minute < ? OR worker_id <> '' OR minute % {HOUR} <> 0)"
_ROW = "SELECT minute, type, worker_id FROM holdfast_statistics WHERE"
_BY_KEY = "ORDER BY minute, type, worker_id LIMIT 1 OFFSET ?"
_NEXT_READ = f"{_ROW} {_WITHIN} {_BY_KEY}"
_NEXT_DUE = f"{_ROW} {_WITHIN} AND {_IS_DUE} {_BY_KEY}"
_TAKE = f"DELETE FROM holdfast_statistics WHERE {_WITHIN} AND {_IS_DUE} RETURNING {MINUTE.columns}"

# Row by row along the key: of a new hour, PostgreSQL believes that it has few rows, and would compare each of
# its rows with each of the types.
_SUMS = f"""
WITH places AS MATERIALIZED (SELECT CAST(? AS bigint) AS minute, value AS type FROM {{elements}} AS types)
SELECT {", ".join(f"s.{name}" for name in MINUTE.names)} FROM places CROSS JOIN holdfast_statistics AS s
WHERE s.minute = places.minute AND s.type = places.type AND s.worker_id = ''
"""

_LIFETIMES = f"""
SELECT type FROM holdfast_statistics WHERE minute = {LIFETIME} AND type > ? ORDER BY type LIMIT ?
"""
# A name with later rows stays: its totals would fall. They have no index by type, but few different minutes,
# each one leap away.
_TAKE_UNUSED = f"""
WITH RECURSIVE minutes (minute) AS MATERIALIZED (
    SELECT min(minute) FROM holdfast_statistics WHERE minute > {LIFETIME}
    UNION ALL
    SELECT (SELECT min(minute) FROM holdfast_statistics WHERE minute > minutes.minute)
    FROM minutes WHERE minutes.minute IS NOT NULL)
DELETE FROM holdfast_statistics
WHERE minute = {LIFETIME} AND type > ? AND type <= ?
    AND (({names.LANE}) OR ({names.UNKNOWN}))
    AND NOT EXISTS (SELECT 1 FROM holdfast_counts AS c WHERE c.type = holdfast_statistics.type)
    AND (SELECT later.minute FROM minutes CROSS JOIN holdfast_statistics AS later
        WHERE later.minute = minutes.minute AND later.type = holdfast_statistics.type LIMIT 1) IS NULL
RETURNING {MINUTE.columns}
"""


def write(session: Session, minutes: Sequence[Minute]) -> None:
    """Replace rows by their new sums."""
    rows = [MINUTE.row(minute) for minute in minutes]
    whole = len(rows) - len(rows) % _AT_ONCE
    parts = [rows[start : start + _AT_ONCE] for start in range(0, whole, _AT_ONCE)]
    session.each(_WRITE_MANY, [[*chain.from_iterable(part)] for part in parts])
    session.each(_WRITE_ONE, rows[whole:])


def fold(session: Session, elements: str, begin: Key, hours_before: int, lifetime_before: int) -> Key | None:
    """Fold the next portion of rows; return where the one after it begins, or None after the last."""
    end: Key = (hours_before, "", "")
    following: Key | None = None
    for row in session.rows(_NEXT_READ, [*begin, *end, MOST_READ]):
        end = following = tuple(row)
    for row in session.rows(_NEXT_DUE, [*begin, *end, lifetime_before, PORTION]):
        end = following = tuple(row)
    taken = _minutes(session, _TAKE, *begin, *end, lifetime_before)

    def place_of(part: Minute) -> tuple[int, str]:
        hour = part.minute // HOUR * HOUR
        return hour if hour >= lifetime_before else LIFETIME, part.type

    _add(session, elements, taken, place_of)
    return following


def forget(session: Session, elements: str, after: str) -> str | None:
    """Add the lifetime rows of unused names to those of their heirs, out of the next few after a name.

    Returns the name after which to continue, or None after the last.
    """
    types = [row[0] for row in session.rows(_LIFETIMES, [after, NAMES_PORTION])]
    if types:
        taken = _minutes(session, _TAKE_UNUSED, after, types[-1])
        _add(session, elements, taken, lambda part: (LIFETIME, names.heir(part.type)))
    return types[-1] if len(types) == NAMES_PORTION else None


def _add(
    session: Session,
    elements: str,
    parts: Sequence[Minute],
    place_of: Callable[[Minute], tuple[int, str]],
) -> None:
    """Add rows that were taken away to those of their places."""
    totals = {place: empty_minute(*place, "") for place in map(place_of, parts)}
    for minute in {minute for minute, _ in totals}:
        types = json.dumps([type for at, type in totals if at == minute])
        for stored in _minutes(session, _SUMS.format(elements=elements), minute, types):
            totals[minute, stored.type] = stored
    for part in parts:
        totals[place_of(part)].add(part)
    write(session, list(totals.values()))


def _minutes(session: Session, sql: str, *parameters: Any) -> list[Minute]:
    return [MINUTE.read(row) for row in session.rows(sql, parameters)]
