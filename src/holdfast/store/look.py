"""What people look at: running attempts, what waits longest, what finished lately. Reads only."""

from __future__ import annotations

import json

from holdfast.core.clock import to_datetime
from holdfast.core.job import FINISHED, Status
from holdfast.store.protocol import ErrorGroup, ReusedKey, Running, Waiting
from holdfast.store.reader import Reader

OLDEST = "SELECT id, type, due_at FROM holdfast_jobs WHERE status = 'pending' ORDER BY due_at, seq LIMIT 1"


def count_retrying(reader: Reader) -> dict[str, int]:
    return dict(
        reader.read(
            f"SELECT type, count(*) FROM holdfast_jobs {reader.by_index('holdfast_jobs_retrying')}"
            " WHERE status = 'scheduled' AND attempts > 0 GROUP BY type"
        )
    )


# In one statement: a retry that becomes due meanwhile must not be missed in both. From type to type by leaps:
# any number of jobs of one may wait for a retry.
_BUSY_TYPES = """
WITH RECURSIVE retrying (type) AS (
    SELECT (SELECT j.type FROM holdfast_jobs AS j {by_index}
        WHERE j.status = 'scheduled' AND j.attempts > 0 AND j.type > '' ORDER BY j.type LIMIT 1)
    UNION ALL
    SELECT (SELECT j.type FROM holdfast_jobs AS j {by_index}
        WHERE j.status = 'scheduled' AND j.attempts > 0 AND j.type > retrying.type ORDER BY j.type LIMIT 1)
    FROM retrying WHERE retrying.type IS NOT NULL)
SELECT type FROM holdfast_counts WHERE pending > 0 OR processing > 0
UNION SELECT type FROM retrying WHERE type IS NOT NULL
"""


def list_busy_types(reader: Reader) -> set[str]:
    sql = _BUSY_TYPES.format(by_index=reader.by_index("holdfast_jobs_retrying"))
    return {row[0] for row in reader.read(sql)}


_FINISHED = """
SELECT counts.type, states.value,
    (SELECT count(*) FROM holdfast_jobs {by_index}
    WHERE type = counts.type AND status = states.value AND finished_at IS NOT NULL AND finished_at >= ?)
FROM holdfast_counts AS counts CROSS JOIN {elements} AS states ORDER BY counts.type
"""


def count_finished(reader: Reader, since: int) -> dict[str, dict[Status, int]]:
    counts: dict[str, dict[Status, int]] = {}
    sql = _FINISHED.format(by_index=reader.by_index("holdfast_jobs_finished"), elements=reader.elements)
    for type, status, count in reader.read(sql, (since, json.dumps(sorted(FINISHED)))):
        if count:
            counts.setdefault(type, {})[Status(status)] = count
    return counts


def list_running(reader: Reader, limit: int) -> list[Running]:
    rows = reader.read(
        "SELECT id, type, worker_id, attempts, started_at, lease_expires_at, cancel_requested"
        " FROM holdfast_jobs WHERE status = 'processing' ORDER BY lease_expires_at LIMIT ?",
        (limit,),
    )
    return [
        Running(
            id=id,
            type=type,
            worker_id=worker_id,
            attempt=attempt,
            started_at=to_datetime(started_at),
            lease_expires_at=to_datetime(lease_expires_at),
            cancel_requested=bool(cancel_requested),
        )
        for id, type, worker_id, attempt, started_at, lease_expires_at, cancel_requested in rows
    ]


def oldest_waiting(reader: Reader) -> Waiting | None:
    row = reader.read_one(OLDEST)
    return Waiting(id=row[0], type=row[1], since=to_datetime(row[2])) if row else None


def list_reused_keys(reader: Reader, limit: int) -> list[ReusedKey]:
    rows = reader.read(
        "SELECT type, key, count(*) AS jobs FROM holdfast_jobs WHERE key IS NOT NULL"
        " GROUP BY type, key HAVING count(*) > 1 ORDER BY jobs DESC, type, key LIMIT ?",
        (limit,),
    )
    return [ReusedKey(type=type, key=key, jobs=jobs) for type, key, jobs in rows]


def list_error_groups(reader: Reader, limit: int) -> list[ErrorGroup]:
    rows = reader.read(
        "SELECT type, error_group, jobs, last_at FROM holdfast_errors"
        " ORDER BY jobs DESC, last_at DESC, type DESC, error_group DESC LIMIT ?",
        (max(0, limit),),
    )
    return [
        ErrorGroup(type=type, error=error, jobs=jobs, last_at=to_datetime(last_at))
        for type, error, jobs, last_at in rows
    ]
