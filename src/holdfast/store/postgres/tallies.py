"""Keeping the counts short and right: many additions to them become one, and what triggers missed is added.

Counts are made by triggers, which do not run for everybody: not for a replica's or a bulk load's session that
has turned them off. What is waiting there must be found all the same.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress

from holdfast.errors import StoreError
from holdfast.store import names
from holdfast.store.database import Session
from holdfast.store.postgres.bounds import LONG as LONG_BOUNDS
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.schema import FOLD, FOLD_ERRORS, fold_away

LONG = 100
"""Additions at which a worker adds some up."""
_FOLD_EVERY = 0.25
"""Seconds to wait at least until counts are added up again."""
_SHARE = 50
"""And at least this many times as long as it took the last time."""
_ADDITIONS = "SELECT count(*) - count(DISTINCT type) FROM holdfast_tallies"
_AT_ONCE = 100_000
CHECK_EVERY = 5.0
"""Seconds between two looks of a worker for what the counts miss."""

# In one statement, which sees the jobs and their counts as of one moment: from type to type along the index
# of pending jobs.
_MISCOUNTED = """
WITH RECURSIVE waiting (type) AS (
    (SELECT type FROM holdfast_jobs WHERE status = 'pending' ORDER BY type LIMIT 1)
    UNION ALL
    SELECT (SELECT type FROM holdfast_jobs WHERE status = 'pending' AND type > waiting.type
        ORDER BY type LIMIT 1) FROM waiting WHERE waiting.type IS NOT NULL)
SELECT coalesce(w.type, c.type) FROM (SELECT type FROM waiting WHERE type IS NOT NULL) AS w
FULL JOIN holdfast_counts AS c ON c.type = w.type
WHERE (w.type IS NOT NULL) IS DISTINCT FROM (coalesce(c.pending, 0) > 0)
"""

# Two who add the same difference would be wrong again; whoever comes second leaves it to the first.
_RECOUNT_ALONE = "SELECT pg_try_advisory_xact_lock(1751346277, hashtext($1))"
_LIVE = ("scheduled", "pending", "processing")
_RECOUNT = f"""
INSERT INTO holdfast_tallies (type, scheduled, pending, processing, completed, failed, cancelled, enqueued)
SELECT t.type, {
    ", ".join(
        f"(SELECT count(*) FROM holdfast_jobs WHERE status = '{status}' AND type = t.type)"
        f" - coalesce((SELECT {status} FROM holdfast_counts AS c WHERE c.type = t.type), 0)"
        for status in _LIVE
    )
}, 0, 0, 0, 0
FROM unnest($1::text[]) AS t (type)
"""


def miscounted(database: Database) -> list[str]:
    """The types that have pending jobs of which the counts say nothing, or none though they say so."""
    with database.snapshot():
        return [row[0] for row in database.read(_MISCOUNTED)]


def recount(database: Database, types: Sequence[str]) -> None:
    """Add what is missing in the counts of jobs that wait or run."""
    if not types:
        return
    with database.transaction(bounds=LONG_BOUNDS) as session:
        if session.rows(_RECOUNT_ALONE, [database.schema])[0][0]:
            session.rows(_RECOUNT, [list(types)])


class Keeper:
    """Keeps the counts of a queue, now and then, for as little of the time as that may take."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._fold_at = self._check_at = 0.0

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= min(self._fold_at, self._check_at)

    def run(self) -> None:
        """Do what is due, outside any transaction. What can't be done now is done the next time."""
        began = time.monotonic()
        with suppress(StoreError):
            if began >= self._check_at:
                self._check_at = began + CHECK_EVERY
                recount(self._database, miscounted(self._database))
                took = time.monotonic() - began
                self._check_at = began + max(CHECK_EVERY, _SHARE * took)
            if began >= self._fold_at:
                if self._database.read_one(_ADDITIONS)[0] > LONG:
                    fold(self._database)
                took = time.monotonic() - began
                self._fold_at = began + max(_FOLD_EVERY, _SHARE * took)


_FORGET = [
    fold_away(names.dead(names.LANE, "$1"), "split_part(type, ':', 1)"),
    fold_away(names.dead(names.UNKNOWN, "$1"), "''::text"),
]


FORGOTTEN_AT_ONCE = 5000
"""Types that one call forgets: what takes the time is to add up the counts of all."""


def forget_types(session: Session) -> bool:
    """See the module of names."""
    return any(session.rows(sql, [FORGOTTEN_AT_ONCE])[0][0] == FORGOTTEN_AT_ONCE for sql in _FORGET)


def fold(database: Database) -> None:
    """Fold some of them, in a separate transaction."""
    with database.transaction() as session:
        for sql in (FOLD, FOLD_ERRORS):
            session.rows(sql.format(limit="$1"), [_AT_ONCE])
