"""Promoting: scheduled jobs that are due become pending, the most urgent first."""

from __future__ import annotations

import time

from holdfast.core.clock import SECOND
from holdfast.store.postgres.floors import WHOLE_EVERY, WHOLE_SHARE
from holdfast.store.postgres.schema import STATUS
from holdfast.store.postgres.server_clock import CLOCK
from holdfast.store.postgres.session import Session

# From priority to priority along their index, and so the most urgent of those that are due; what is locked is
# what is taken. Of very many priorities the last share the order in which they are due.
_PRIORITIES = 100
_PROMOTE = f"""
WITH RECURSIVE {CLOCK},
priorities (priority, place) AS (
    (SELECT priority, 1 FROM holdfast_jobs WHERE {STATUS} = 'scheduled' AND due_at >= $3
        ORDER BY priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority FROM holdfast_jobs AS j WHERE {STATUS} = 'scheduled'
        AND j.due_at >= $3 AND j.priority < p.priority ORDER BY j.priority DESC LIMIT 1), p.place + 1
    FROM priorities AS p WHERE p.priority IS NOT NULL AND p.place < {_PRIORITIES})
UPDATE holdfast_jobs AS j SET status = 'pending', returned = true, updated_at = clock.now
FROM clock WHERE j.seq = ANY (ARRAY(
    SELECT seq FROM (
        SELECT due.seq FROM priorities AS p CROSS JOIN LATERAL (
            SELECT seq FROM holdfast_jobs WHERE {STATUS} = 'scheduled' AND priority = p.priority
                AND due_at >= $3 AND due_at <= (SELECT now FROM clock)
            ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS due
        UNION ALL
        SELECT seq FROM (
            SELECT seq FROM holdfast_jobs WHERE {STATUS} = 'scheduled'
                AND due_at >= $3 AND due_at <= (SELECT now FROM clock)
                AND priority < (SELECT priority FROM priorities WHERE place = {_PRIORITIES})
            ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS others) AS urgent
    LIMIT $2))
RETURNING -j.priority, j.due_at, j.seq, j.id, j.type
"""


NEXT_DUE = f"""
SELECT due_at FROM holdfast_jobs WHERE {STATUS} = 'scheduled' AND due_at >= $1 ORDER BY due_at LIMIT 1
"""

EVER = -(2**63)
SLACK = SECOND
"""For how long a transaction may be open that schedules a job, and not be overlooked until the next whole
look."""


class DueFloor:
    """The instant before which no job was scheduled any more when this process last looked.

    For the same reason as the floors of lines: promoted jobs leave entries. What is scheduled is due later
    than it was written, so none comes below the floor, but for a clock that was set back and for commits that
    come late.
    """

    def __init__(self) -> None:
        self._floor = EVER
        self._whole_at = 0.0

    def reads_whole(self) -> bool:
        return time.monotonic() >= self._whole_at

    def took(self, seconds: float) -> None:
        self._whole_at = time.monotonic() + max(WHOLE_EVERY, WHOLE_SHARE * seconds)

    def at(self, now: int) -> int:
        return min(self._floor, now - SLACK)

    def saw(self, due: int | None, now: int) -> None:
        """The first job is due then, or there is none."""
        self._floor = (now if due is None else min(due, now)) - SLACK


def promote_jobs(session: Session, limit: int, now: int | None, floor: int = EVER) -> list[tuple[str, str]]:
    promoted = sorted(session.rows(_PROMOTE, [now, limit, floor]))
    return [(id, type) for *_, id, type in promoted]
