"""Forgetting names that were used once: types without jobs, and rate limits that have long been idle.

The number of jobs that such a type ever had, and its statistics, are added to those of its base type; for a
base type that no worker knows, to those of the type "".
"""

from __future__ import annotations

import json
from typing import Any

from holdfast.core.clock import SECOND
from holdfast.core.job import Status, base_type
from holdfast.store.database import Session

AT_ONCE = 1000
"""How many types one call forgets, with SQLite's write lock held."""

_LONG_FULL = 30 * 86400 * SECOND
"""After 30 days, every bucket is full again, as is one without a row."""

_NO_JOBS = " AND ".join(f"{status} = 0" for status in Status)
LANE = "type LIKE '%:%'"
UNKNOWN = "type NOT LIKE '%:%' AND type <> '' AND type NOT IN (SELECT type FROM holdfast_types)"

_ADD = """
INSERT INTO holdfast_counts (type, enqueued) VALUES (?, ?)
ON CONFLICT (type) DO UPDATE SET enqueued = enqueued + excluded.enqueued
"""


def dead(which: str, limit: str = "?") -> str:
    """A query for the lanes, or the unknown types, that have no jobs, with the number that each ever had."""
    return f"SELECT type, enqueued FROM holdfast_counts WHERE {_NO_JOBS} AND {which} LIMIT {limit}"


def forget_types(session: Session, among_texts: str) -> bool:
    """Forget some, and return whether there may be more. For engines whose counts are a table.

    Lanes first: after them, their base type may have to go.
    """
    for which in (LANE, UNKNOWN):
        gone = session.rows(dead(which), [AT_ONCE])
        if gone:
            session.rows(
                f"DELETE FROM holdfast_counts WHERE type {among_texts}",
                [json.dumps([type for type, _ in gone])],
            )
            session.each(_ADD, _by_heir(gone))
        if len(gone) == AT_ONCE:
            return True
    return False


def heir(type: str) -> str:
    """The name that the totals of a forgotten one are added to."""
    base = base_type(type)
    return base if base != type else ""


def _by_heir(gone: list[Any]) -> list[tuple[str, int]]:
    added: dict[str, int] = {}
    for type, enqueued in gone:
        added[heir(type)] = added.get(heir(type), 0) + enqueued
    return sorted(added.items())


def forget_limits(session: Session, now: int, skip_locked: str) -> None:
    """Remove the buckets of rate limits that have not been used for 30 days."""
    session.rows(
        "DELETE FROM holdfast_limits WHERE name IN ("
        " SELECT l.name FROM holdfast_limits AS l WHERE l.refilled_at >= 0 AND l.refilled_at < ?"
        f" {skip_locked})",
        [now - _LONG_FULL],
    )
