"""What people do to jobs: cancel, retry, delete, prune. Each is one guarded statement."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from holdfast.core.job import Status
from holdfast.errors import KeyHeld
from holdfast.store.operate import CANCEL_RUNNING, CANCEL_WAITING, DELETE, RETRY, refuse
from holdfast.store.prune import Place, PrunePass
from holdfast.store.sqlite.connection import OwnConnection, as_json
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.insert import free_expired_key

_CANCEL_WAITING, _CANCEL_RUNNING, _RETRY = (
    sql.format(clock=Database.clock) for sql in (CANCEL_WAITING, CANCEL_RUNNING, RETRY)
)
# Where another job holds the key, the unique index refuses, and the job is left as it is.
_RETRY_IF_FREE = _RETRY.replace("UPDATE", "UPDATE OR IGNORE", 1)

# The oldest of each type and state, by a leap each: those that stay cost nothing.
OLDEST_FINISHED = """
SELECT counts.type, states.value,
    (SELECT finished_at FROM holdfast_jobs INDEXED BY holdfast_jobs_finished
    WHERE type = counts.type AND status = states.value AND finished_at IS NOT NULL AND finished_at < ?1
    ORDER BY finished_at LIMIT 1)
FROM holdfast_counts AS counts CROSS JOIN json_each(?2) AS states
WHERE counts.completed + counts.failed + counts.cancelled > 0
"""

FINISHED_SINCE = """
SELECT json_group_array(json_array(finished_at, seq, holds_key)) FROM (
    SELECT finished_at, seq, key_held AND coalesce(key_until > ?4, 0) AS holds_key
    FROM holdfast_jobs INDEXED BY holdfast_jobs_finished
    WHERE type = ?1 AND status = ?2 AND finished_at IS NOT NULL AND finished_at < ?3
        AND (finished_at, seq) > (?5, ?6)
    ORDER BY finished_at, seq LIMIT ?7)
"""


def cancel_job(connection: OwnConnection, job_id: str, now: int) -> None:
    if not any(connection.rows(sql, (now, job_id)) for sql in (_CANCEL_WAITING, _CANCEL_RUNNING)):
        refuse(connection, job_id, "cancelled")


def retry_job(connection: OwnConnection, job_id: str, payload: str | None, key: str | None, now: int) -> None:
    row = connection.execute(
        "SELECT type, coalesce(?, key) FROM holdfast_jobs WHERE id = ?", (key, job_id)
    ).fetchone()
    if row is not None and row[1] is not None:
        free_expired_key(connection.cursor(), row[0], row[1], now)
    try:
        retried = connection.rows(_RETRY, (now, job_id, payload, key))
    except sqlite3.IntegrityError:
        type, key = row
        holder, is_finished = connection.execute(
            "SELECT id, finished_at IS NOT NULL FROM holdfast_jobs INDEXED BY holdfast_jobs_key"
            " WHERE type = ? AND key = ? AND key_held = 1",
            (type, key),
        ).fetchone()
        raise KeyHeld(holder, key, is_finished=is_finished) from None
    if not retried:
        refuse(connection, job_id, "retried")


def retry_failed_jobs(
    connection: OwnConnection, type: str | None, after: int, limit: int, now: int
) -> tuple[int, list[tuple[str, str]], int | None]:
    rows = connection.execute(
        "SELECT seq, id, type, key FROM holdfast_jobs"
        " WHERE status = 'failed' AND seq > ?1 AND (?2 IS NULL OR type = ?2) ORDER BY seq LIMIT ?3",
        (after, type, limit),
    ).fetchall()
    retried = []
    for _, id, own_type, key in rows:
        if key is not None:
            free_expired_key(connection.cursor(), own_type, key, now)
        if connection.rows(_RETRY_IF_FREE, (now, id, None, None)):
            retried.append((id, own_type))
    return len(rows), retried, rows[-1][0] if len(rows) == limit else None


def delete_job(connection: OwnConnection, job_id: str) -> None:
    if connection.count(DELETE, (job_id,)) == 0:
        refuse(connection, job_id, "deleted")


def prune_jobs(
    connection: OwnConnection,
    finished_before: int,
    statuses: Sequence[Status],
    limit: int,
    prune_pass: PrunePass,
    now: int,
) -> list[str]:
    def read_on(type: str, status: str, after: Place, limit: int) -> list[tuple[int, int, bool]]:
        parameters = (type, status, finished_before, now, *after, limit)
        rows: list[tuple[int, int, bool]] = connection.value(FINISHED_SINCE, *parameters)
        return rows

    heads = connection.execute(OLDEST_FINISHED, (finished_before, as_json(statuses))).fetchall()
    seqs = prune_pass.choose([head for head in heads if head[2] is not None], read_on, limit)
    deleted = connection.execute(
        "DELETE FROM holdfast_jobs"
        " WHERE seq IN (SELECT value FROM json_each(?)) AND +finished_at IS NOT NULL RETURNING id",
        (as_json(seqs),),
    )
    return [row[0] for row in deleted.fetchall()]
