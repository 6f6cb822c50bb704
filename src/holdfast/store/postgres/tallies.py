"""Keeping the counts short: many additions to them become one, which changes no count."""

from __future__ import annotations

from holdfast.store.postgres.database import Database

LONG = 100
"""Additions at which some are added up."""
_AT_ONCE = 20_000

# Whoever else is at it has locked its rows, which are left to it. What is found to be nothing is dropped, but
# for types: how many jobs of one there ever were is never forgotten.
_FOLD = """
WITH gone AS (
    DELETE FROM holdfast_tallies WHERE number = ANY (ARRAY(
        SELECT number FROM holdfast_tallies
        WHERE type IN (SELECT type FROM holdfast_tallies GROUP BY type HAVING count(*) > 1)
        ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING type, scheduled, pending, processing, completed, failed, cancelled, enqueued)
INSERT INTO holdfast_tallies (type, scheduled, pending, processing, completed, failed, cancelled, enqueued)
SELECT type, sum(scheduled), sum(pending), sum(processing), sum(completed), sum(failed), sum(cancelled),
    sum(enqueued)
FROM gone GROUP BY type
"""
_FOLD_ERRORS = """
WITH gone AS (
    DELETE FROM holdfast_error_tallies WHERE number = ANY (ARRAY(
        SELECT number FROM holdfast_error_tallies
        WHERE (type, error_group) IN (
            SELECT type, error_group FROM holdfast_error_tallies GROUP BY type, error_group
            HAVING count(*) > 1)
        ORDER BY number LIMIT $1 FOR UPDATE SKIP LOCKED))
    RETURNING type, error_group, jobs, last_at)
INSERT INTO holdfast_error_tallies (type, error_group, jobs, last_at)
SELECT type, error_group, sum(jobs), max(last_at) FROM gone GROUP BY type, error_group HAVING sum(jobs) <> 0
"""


def fold(database: Database) -> None:
    """Add some of them up, in a transaction of its own."""
    with database.transaction() as session:
        for sql in (_FOLD, _FOLD_ERRORS):
            session.rows(sql, [_AT_ONCE])
