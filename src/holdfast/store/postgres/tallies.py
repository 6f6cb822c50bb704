"""Keeping the counts short and right: many additions to them become one, and what triggers missed is added.

Counts are made by triggers, which do not run for everybody: not for a replica's or a bulk load's session that
has turned them off. What is waiting there must be found all the same.
"""

from __future__ import annotations

from collections.abc import Sequence

from holdfast.store.postgres.bounds import LONG as LONG_BOUNDS
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.schema import FOLD, FOLD_ERRORS

LONG = 100
"""Additions at which a worker adds some up."""
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


def fold(database: Database) -> None:
    """Fold some of them, in a separate transaction."""
    with database.transaction() as session:
        for sql in (FOLD, FOLD_ERRORS):
            session.rows(sql.format(limit="$1"), [_AT_ONCE])
