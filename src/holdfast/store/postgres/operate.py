"""What people do to jobs: cancel, retry, delete, prune. Each is one guarded statement."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from psycopg.errors import LockNotAvailable, UniqueViolation

from holdfast.core.job import Status
from holdfast.errors import JobNotFound, KeyHeld, WrongState
from holdfast.store.postgres.clock import CLOCK
from holdfast.store.postgres.finish import CHILD_PATIENCE
from holdfast.store.postgres.insert import FREE_EXPIRED
from holdfast.store.postgres.patience import LOCK_PATIENCE, PATIENCE
from holdfast.store.postgres.session import Session

_CANCEL_WAITING = f"""
WITH {CLOCK}
UPDATE holdfast_jobs AS j SET status = 'cancelled', finished_at = clock.now, updated_at = clock.now,
    key_held = j.key_held AND j.key_for IS NOT NULL, key_until = clock.now + (j.key_for * 1000000)::bigint
FROM clock WHERE j.id = $2 AND j.status IN ('scheduled', 'pending')
"""

_CANCEL_RUNNING = f"""
WITH {CLOCK}
UPDATE holdfast_jobs AS j SET cancel_requested = true, updated_at = clock.now
FROM clock WHERE j.id = $2 AND j.status = 'processing'
"""

_RETRY = f"""
WITH {CLOCK}
UPDATE holdfast_jobs AS j SET status = 'pending', attempts = 0, due_at = clock.now, updated_at = clock.now,
    finished_at = NULL, cancel_requested = false, result = NULL, progress = NULL, progress_message = NULL,
    error_group = NULL, key = coalesce($4, j.key), key_held = coalesce($4, j.key) IS NOT NULL,
    key_until = NULL, payload = coalesce($3, j.payload)
FROM clock
WHERE j.id = $2 AND (j.status IN ('failed', 'cancelled') OR (j.status = 'scheduled' AND j.attempts > 0))
"""

_DELETE = "DELETE FROM holdfast_jobs WHERE id = $1 AND status IN ('completed', 'failed', 'cancelled')"

# A leap to the oldest of each type and state: those that stay cost nothing.
_OLDEST_FINISHED = """
SELECT c.type, states.status, oldest.finished_at
FROM holdfast_counts AS c CROSS JOIN unnest($2::text[]) AS states (status) CROSS JOIN LATERAL (
    SELECT finished_at FROM holdfast_jobs
    WHERE type = c.type AND status = states.status AND finished_at IS NOT NULL AND finished_at < $1
    ORDER BY finished_at LIMIT 1) AS oldest
WHERE c.completed + c.failed + c.cancelled > 0
ORDER BY oldest.finished_at
"""

_PRUNE = f"""
WITH {CLOCK}
DELETE FROM holdfast_jobs WHERE seq = ANY (ARRAY(
    SELECT seq FROM holdfast_jobs
    WHERE type = $2 AND status = $3 AND finished_at IS NOT NULL AND finished_at < $4
        AND NOT (key_held AND coalesce(key_until > (SELECT now FROM clock), false))
    ORDER BY finished_at LIMIT $5 FOR UPDATE SKIP LOCKED))
RETURNING id
"""


def cancel_job(session: Session, job_id: str, now: int | None) -> None:
    session.wait_at_most(PATIENCE + 1)  # a handler may be inside ctx.transaction()
    for sql in (_CANCEL_WAITING, _CANCEL_RUNNING):
        if session.count(sql, [now, job_id]):
            return
    # It may have been claimed between the two, or given back; now nothing moves it until we are through.
    session.rows("SELECT 1 FROM holdfast_jobs WHERE id = $1 FOR UPDATE", [job_id])
    for sql in (_CANCEL_WAITING, _CANCEL_RUNNING):
        if session.count(sql, [now, job_id]):
            return
    _refuse(session, job_id, "cancelled")


def retry_job(session: Session, job_id: str, payload: str | None, key: str | None, now: int | None) -> None:
    session.wait_at_most(LOCK_PATIENCE)
    rows = session.rows(
        "SELECT type, coalesce($2, key) FROM holdfast_jobs WHERE id = $1 FOR UPDATE", [job_id, key]
    )
    if rows and rows[0][1] is not None:
        session.rows(FREE_EXPIRED, [now, [rows[0][0]], [rows[0][1]]])
    try:
        with session.connection.transaction():
            retried = session.count(_RETRY, [now, job_id, payload, key])
    except UniqueViolation:
        [(type, held)] = rows
        holders = session.rows(
            "SELECT id FROM holdfast_jobs WHERE type = $1 AND key = $2 AND key_held", [type, held]
        )
        raise KeyHeld(holders[0][0] if holders else "?", held) from None
    if not retried:
        _refuse(session, job_id, "retried")


def retry_failed_jobs(
    session: Session, type: str | None, after: int, limit: int, now: int | None
) -> tuple[int, list[tuple[str, str]], int | None]:
    session.wait_at_most(CHILD_PATIENCE)  # for each of many keys
    session.rows("SET LOCAL enable_bitmapscan = off")  # the first of them are wanted, in order
    rows = session.rows(
        "SELECT seq, id, type, key FROM holdfast_jobs"
        " WHERE status || '' = 'failed' AND seq > $1"
        " AND ($2::text IS NULL OR type = $2) ORDER BY seq LIMIT $3 FOR UPDATE",
        [after, type, limit],
    )
    retried = []
    for _, id, own_type, key in rows:
        if key is not None:
            session.rows(FREE_EXPIRED, [now, [own_type], [key]])
        # Where another job holds the key, or is about to, the job is left as it is.
        try:
            with session.connection.transaction():
                session.count(_RETRY, [now, id, None, None])
        except (UniqueViolation, LockNotAvailable):
            continue
        retried.append((id, own_type))
    return len(rows), retried, rows[-1][0] if len(rows) == limit else None


def delete_job(session: Session, job_id: str) -> None:
    if not session.count(_DELETE, [job_id]):
        _refuse(session, job_id, "deleted")


def prune_jobs(
    session: Session, finished_before: int, statuses: Sequence[Status], limit: int, now: int | None
) -> list[str]:
    ids: list[str] = []
    # Where the oldest one waits first: so no type is always the last.
    words = [status.value for status in statuses]
    for type, status, _ in session.rows(_OLDEST_FINISHED, [finished_before, words]):
        if len(ids) >= limit:
            break
        rows = session.rows(_PRUNE, [now, type, status, finished_before, limit - len(ids)])
        ids += [row[0] for row in rows]
    return ids


def _refuse(session: Session, job_id: str, action: str) -> NoReturn:
    rows = session.rows("SELECT status FROM holdfast_jobs WHERE id = $1", [job_id])
    if not rows:
        raise JobNotFound(job_id)
    raise WrongState(job_id, rows[0][0], action)
