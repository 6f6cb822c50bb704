"""Promoting: scheduled jobs that are due become pending, the most urgent first."""

from __future__ import annotations

from holdfast.store.postgres.schema import STATUS
from holdfast.store.postgres.server_clock import CLOCK
from holdfast.store.postgres.session import Session

# From priority to priority along their index, and so the most urgent of those that are due; what is locked is
# what is taken. Of very many priorities the last share the order in which they are due.
_PRIORITIES = 100
_PROMOTE = f"""
WITH RECURSIVE {CLOCK},
priorities (priority, place) AS (
    (SELECT priority, 1 FROM holdfast_jobs WHERE {STATUS} = 'scheduled' ORDER BY priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority FROM holdfast_jobs AS j WHERE {STATUS} = 'scheduled'
        AND j.priority < p.priority ORDER BY j.priority DESC LIMIT 1), p.place + 1
    FROM priorities AS p WHERE p.priority IS NOT NULL AND p.place < {_PRIORITIES})
UPDATE holdfast_jobs AS j SET status = 'pending', returned = true, updated_at = clock.now
FROM clock WHERE j.seq = ANY (ARRAY(
    SELECT seq FROM (
        SELECT due.seq FROM priorities AS p CROSS JOIN LATERAL (
            SELECT seq FROM holdfast_jobs WHERE {STATUS} = 'scheduled' AND priority = p.priority
                AND due_at <= (SELECT now FROM clock)
            ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS due
        UNION ALL
        SELECT seq FROM (
            SELECT seq FROM holdfast_jobs WHERE {STATUS} = 'scheduled' AND due_at <= (SELECT now FROM clock)
                AND priority < (SELECT priority FROM priorities WHERE place = {_PRIORITIES})
            ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS others) AS urgent
    LIMIT $2))
RETURNING -j.priority, j.due_at, j.seq, j.id, j.type
"""


def promote_jobs(session: Session, limit: int, now: int | None) -> list[tuple[str, str]]:
    promoted = sorted(session.rows(_PROMOTE, [now, limit]))
    return [(id, type) for *_, id, type in promoted]
