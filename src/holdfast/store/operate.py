"""What people do to jobs, where it is the same on every engine: guarded statements, and why one is refused.

`{clock}` is the engine's own word for the present instant. Each returns the id of a job that it has changed.
"""

from __future__ import annotations

from typing import NoReturn

from holdfast.errors import JobNotFound, WrongState
from holdfast.store.database import Session

CANCEL_WAITING = """
WITH {clock}
UPDATE holdfast_jobs AS j SET status = 'cancelled', due_at = j.due_at,
    finished_at = clock.now, updated_at = clock.now,
    key_held = j.key_held AND j.key_for IS NOT NULL,
    key_until = clock.now + CAST(j.key_for * 1000000 AS bigint)
FROM clock WHERE j.id = ?2 AND j.status IN ('scheduled', 'pending') RETURNING id
"""

CANCEL_RUNNING = """
WITH {clock}
UPDATE holdfast_jobs AS j SET cancel_requested = true, updated_at = clock.now
FROM clock WHERE j.id = ?2 AND j.status = 'processing' RETURNING id
"""

RETRIED = """
status = 'pending', attempts = 0, due_at = clock.now, updated_at = clock.now, finished_at = NULL,
    cancel_requested = false, result = NULL, progress = NULL, progress_message = NULL, error_group = NULL,
    losses = 0
"""
RETRY = f"""
WITH {{clock}}
UPDATE holdfast_jobs AS j SET {RETRIED}, payload = coalesce(?3, j.payload), key = coalesce(?4, j.key),
    key_held = coalesce(?4, j.key) IS NOT NULL, key_until = NULL
FROM clock
WHERE j.id = ?2 AND (j.status IN ('failed', 'cancelled') OR (j.status = 'scheduled' AND j.attempts > 0))
RETURNING id
"""

DELETE = "DELETE FROM holdfast_jobs WHERE id = ? AND status IN ('completed', 'failed', 'cancelled')"


def refuse(session: Session, job_id: str, action: str) -> NoReturn:
    """Say why a job could not be changed."""
    rows = session.rows("SELECT status FROM holdfast_jobs WHERE id = ?", [job_id])
    if not rows:
        raise JobNotFound(job_id)
    raise WrongState(job_id, rows[0][0], action)
