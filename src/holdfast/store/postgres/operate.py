"""What people do to jobs: cancel, retry, delete, prune. Each is one guarded statement."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

from psycopg.errors import UniqueViolation

from holdfast.core.job import Status
from holdfast.errors import KeyHeld, StoreBusy
from holdfast.store.database import PATIENCE
from holdfast.store.operate import CANCEL_RUNNING, CANCEL_WAITING, DELETE, RETRIED, RETRY, refuse
from holdfast.store.postgres.arrays import given
from holdfast.store.postgres.bounds import LOCK_PATIENCE
from holdfast.store.postgres.finish import CHILD_PATIENCE
from holdfast.store.postgres.insert import FREE_EXPIRED
from holdfast.store.postgres.server_clock import CLOCK
from holdfast.store.postgres.session import Session
from holdfast.store.prune import Place, PrunePass

_CANCEL = [sql.format(clock=CLOCK) for sql in (CANCEL_WAITING, CANCEL_RUNNING)]
_RETRIED = f"{RETRIED}, returned = true"
_RETRY = RETRY.format(clock=CLOCK).replace(RETRIED, _RETRIED)

# Of those that have no key, all at once: nobody can be in their way.
_RETRY_FREE = f"""
WITH {CLOCK}
UPDATE holdfast_jobs AS j SET {_RETRIED}
FROM clock WHERE j.seq = ANY ($2::bigint[]) AND j.status || '' = 'failed' RETURNING j.id
"""

# A leap to the oldest of each type and state: those that stay cost nothing.
_OLDEST_FINISHED = """
SELECT c.type, states.status, oldest.finished_at
FROM holdfast_counts AS c CROSS JOIN unnest($2::text[]) AS states (status) CROSS JOIN LATERAL (
    SELECT finished_at FROM holdfast_jobs
    WHERE type = c.type AND status = states.status AND finished_at IS NOT NULL AND finished_at < $1
    ORDER BY finished_at LIMIT 1) AS oldest
WHERE c.completed + c.failed + c.cancelled > 0
"""

_FINISHED_SINCE = f"""
WITH {CLOCK}
SELECT finished_at, seq, key_held AND coalesce(key_until > (SELECT now FROM clock), false) FROM holdfast_jobs
WHERE type = $2 AND status = $3 AND finished_at IS NOT NULL AND finished_at < $4
    AND (finished_at, seq) > ($5::bigint, $6::bigint)
ORDER BY finished_at, seq LIMIT $7
"""

# Looked at once more: since they were read, somebody may have retried them.
_PRUNE = f"""
WITH {CLOCK}
DELETE FROM holdfast_jobs WHERE seq = ANY (ARRAY(
    SELECT j.seq FROM {given("$2::bigint[]")} AS read (seq) JOIN holdfast_jobs AS j ON j.seq = read.seq
    WHERE j.finished_at IS NOT NULL AND j.finished_at < $3
        AND NOT (j.key_held AND coalesce(j.key_until > (SELECT now FROM clock), false))
    ORDER BY j.seq FOR UPDATE OF j SKIP LOCKED))
RETURNING id
"""


def cancel_job(session: Session, job_id: str, now: int | None) -> None:
    with session.apart(PATIENCE + 1):  # a handler may be inside ctx.transaction()
        if _cancel(session, job_id, now):
            return
        # It may have been claimed between the two, or given back; now nothing moves it until we are through.
        session.rows("SELECT 1 FROM holdfast_jobs WHERE id = $1 FOR UPDATE", [job_id])
        if _cancel(session, job_id, now):
            return
    refuse(session, job_id, "cancelled")


def _cancel(session: Session, job_id: str, now: int | None) -> bool:
    return any(session.rows(sql, [now, job_id]) for sql in _CANCEL)


def retry_job(
    session: Session,
    job_id: str,
    payload: str | None,
    key: str | None,
    now: int | None,
    patience: float | None = None,
) -> None:
    type = held = ""
    try:
        with session.apart(LOCK_PATIENCE if patience is None else patience):
            rows = session.rows(
                "SELECT type, coalesce($2, key) FROM holdfast_jobs WHERE id = $1 FOR UPDATE", [job_id, key]
            )
            if rows and rows[0][1] is not None:
                [(type, held)] = rows
                session.rows(FREE_EXPIRED, [now, [type], [held]])
            retried = session.rows(_RETRY, [now, job_id, payload, key])
    except UniqueViolation:
        holders = session.rows(
            "SELECT id, finished_at IS NOT NULL FROM holdfast_jobs WHERE type = $1 AND key = $2 AND key_held",
            [type, held],
        )
        holder, is_finished = holders[0] if holders else ("?", False)
        raise KeyHeld(holder, held, is_finished=is_finished) from None
    if not retried:
        refuse(session, job_id, "retried")


def retry_failed_jobs(
    session: Session, type: str | None, after: int, limit: int, now: int | None
) -> tuple[int, list[tuple[str, str]], int | None]:
    session.rows("SET LOCAL enable_bitmapscan = off")  # the first of them are wanted, in order
    rows = session.rows(
        "SELECT seq, id, type, key FROM holdfast_jobs"
        " WHERE status || '' = 'failed' AND seq > $1"
        " AND ($2::text IS NULL OR type = $2) ORDER BY seq LIMIT $3 FOR UPDATE SKIP LOCKED",
        [after, type, limit],
    )
    free = [seq for seq, _, _, key in rows if key is None]
    done = {id for (id,) in session.rows(_RETRY_FREE, [now, free])} if free else set()
    for _, id, _, key in rows:
        if key is not None:
            with suppress(KeyHeld, StoreBusy):  # another job holds the key, or is about to: this one stays
                retry_job(session, id, None, None, now, CHILD_PATIENCE)
                done.add(id)
    retried = [(id, own_type) for _, id, own_type, _ in rows if id in done]
    return len(rows), retried, rows[-1][0] if len(rows) == limit else None


def delete_job(session: Session, job_id: str) -> None:
    with session.apart(LOCK_PATIENCE):
        deleted = session.count(DELETE, [job_id])
    if not deleted:
        refuse(session, job_id, "deleted")


def prune_jobs(
    session: Session,
    finished_before: int,
    statuses: Sequence[Status],
    limit: int,
    prune_pass: PrunePass,
    now: int | None,
) -> list[str]:
    def read_on(type: str, status: str, after: Place, limit: int) -> list[tuple[int, int, bool]]:
        parameters = [now, type, status, finished_before, *after, limit]
        return session.rows(_FINISHED_SINCE, parameters)

    words = [status.value for status in statuses]
    oldest = session.rows(_OLDEST_FINISHED, [finished_before, words])
    seqs = prune_pass.choose(oldest, read_on, limit)
    if not seqs:
        return []
    return [row[0] for row in session.rows(_PRUNE, [now, seqs, finished_before])]
