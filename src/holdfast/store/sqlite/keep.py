"""What is kept beside the jobs: settings, pauses, workers, types, statistics."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.core.clock import microseconds
from holdfast.store.protocol import Beat, Minute, TypeRecord, WorkerRecord
from holdfast.store.statistics import (
    ALL_MINUTES,
    SINGLE_MINUTES,
    STATISTICS_COLUMNS,
    added_up,
    hour_of,
    lifetime_of,
    minute_from,
    minute_row,
)

_RENEW = """
UPDATE holdfast_jobs SET lease_expires_at = ?1
FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS version
    FROM json_each(?2)) AS h
WHERE holdfast_jobs.seq = h.seq AND holdfast_jobs.version = h.version
    AND +status = 'processing' AND worker_id = ?3
"""

_STILL_HELD = """
SELECT json_group_array(json_array(j.seq, j.version))
FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS version
    FROM json_each(?1)) AS h
JOIN holdfast_jobs AS j ON j.seq = h.seq AND j.version = h.version
WHERE +j.status = 'processing' AND j.worker_id = ?2
"""

# A lease that was seen expired has been touched since its end. A renewal moves its end beyond that.
_SUSPECT = """
UPDATE holdfast_jobs SET updated_at = ?1
FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS version
    FROM json_each(?2)) AS s
WHERE holdfast_jobs.seq = s.seq AND holdfast_jobs.version = s.version
    AND +status = 'processing' AND +lease_expires_at <= ?1
"""
UNSUSPECTED = f"{_STILL_HELD} AND j.updated_at < j.lease_expires_at"

_REDATE = """
UPDATE holdfast_jobs SET
    lease_expires_at = ?1 + max(?2, lease_expires_at - heard_at), started_at = min(started_at, ?1)
FROM (SELECT j.seq AS number, coalesce(w.heartbeat_at, j.started_at) AS heard_at
    FROM holdfast_jobs AS j LEFT JOIN holdfast_workers AS w ON w.id = j.worker_id
    WHERE j.status = 'processing' AND j.lease_expires_at > ?1 + ?2) AS ahead
WHERE seq = ahead.number AND ahead.heard_at > ?1
"""
_REDATE_WORKERS = """
UPDATE holdfast_workers SET heartbeat_at = ?1, turned_at = min(turned_at, ?1) WHERE heartbeat_at > ?1
"""

CANCELLING = """
SELECT json_group_array(json_array(seq, version)) FROM holdfast_jobs
WHERE status = 'processing' AND cancel_requested = 1 AND worker_id = ?
"""

# A report must not look like the mark of a reaper: one that comes while the lease is overdue is dated before.
_PROGRESS = """
UPDATE holdfast_jobs SET progress = p.fraction, progress_message = p.message,
    updated_at = CASE WHEN updated_at < lease_expires_at THEN min(?1, lease_expires_at - 1) ELSE ?1 END
FROM (SELECT json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS version,
    json_extract(value, '$[2]') AS fraction, json_extract(value, '$[3]') AS message FROM json_each(?2)) AS p
WHERE holdfast_jobs.seq = p.seq AND holdfast_jobs.version = p.version
    AND +status = 'processing' AND worker_id = ?3
"""


_REGISTER = """
INSERT INTO holdfast_workers (id, host, pid, state, concurrency, types, slots, started_at, heartbeat_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)
ON CONFLICT (id) DO UPDATE SET state = excluded.state, concurrency = excluded.concurrency,
    types = excluded.types, slots = excluded.slots
"""


def heartbeat(
    connection: sqlite3.Connection,
    worker_id: str,
    held: Sequence[tuple[int, int]],
    state: str,
    turned_at: int,
    lease_seconds: float,
    now: int,
) -> Beat:
    found = connection.execute(
        "UPDATE holdfast_workers SET heartbeat_at = ?, turned_at = ?, state = ? WHERE id = ?",
        (now, turned_at, state, worker_id),
    )
    lost: set[tuple[int, int]] = set()
    if held:
        rows = json.dumps(held)
        renewed = connection.execute(_RENEW, (now + microseconds(lease_seconds), rows, worker_id)).rowcount
        if renewed != len(held):
            text = connection.execute(_STILL_HELD, (rows, worker_id)).fetchone()[0]
            lost = set(held) - claims_from(text)
    cancelled = claims_from(connection.execute(CANCELLING, (worker_id,)).fetchone()[0])
    return Beat(frozenset(lost), frozenset(cancelled), registered=found.rowcount == 1)


def suspect_jobs(connection: sqlite3.Connection, claims: Sequence[tuple[int, int]], now: int) -> None:
    connection.execute(_SUSPECT, (now, json.dumps(claims)))


def redate_leases(connection: sqlite3.Connection, lease_seconds: float, now: int) -> None:
    connection.execute(_REDATE, (now, microseconds(lease_seconds)))
    connection.execute(_REDATE_WORKERS, (now,))


def claims_from(text: str) -> set[tuple[int, int]]:
    """The (seq, version) pairs of a JSON answer."""
    return {(seq, version) for seq, version in json.loads(text)}


def write_progress(
    connection: sqlite3.Connection,
    worker_id: str,
    reports: Sequence[tuple[int, int, float, str | None]],
    now: int,
) -> None:
    connection.execute(_PROGRESS, (now, json.dumps(reports), worker_id))


def register_worker(
    connection: sqlite3.Connection, worker: WorkerRecord, types: Sequence[TypeRecord], now: int
) -> None:
    connection.execute(
        _REGISTER,
        (
            worker.id,
            worker.host,
            worker.pid,
            worker.state,
            worker.concurrency,
            json.dumps(worker.types),
            json.dumps(worker.slots),
            now,
        ),
    )
    connection.executemany(
        "REPLACE INTO holdfast_types (type, executor, schema) VALUES (?, ?, ?)",
        [(t.type, t.executor, json.dumps(t.schema)) for t in types],
    )


def remove_silent_workers(connection: sqlite3.Connection, silent_since: int) -> list[str]:
    rows = connection.execute(
        "DELETE FROM holdfast_workers WHERE heartbeat_at < ? AND id NOT IN"
        " (SELECT worker_id FROM holdfast_jobs WHERE status = 'processing') RETURNING id",
        (silent_since,),
    ).fetchall()
    return [row[0] for row in rows]


def write_statistics(connection: sqlite3.Connection, minutes: Sequence[Minute]) -> None:
    connection.executemany(
        f"REPLACE INTO holdfast_statistics ({STATISTICS_COLUMNS})"
        " VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        [minute_row(minute) for minute in minutes],
    )


def fold_hours(connection: sqlite3.Connection, before_minute: int) -> None:
    """Move rows older than the minute into one row per type and hour."""
    _fold(connection, SINGLE_MINUTES, before_minute, hour_of)


def fold_statistics(connection: sqlite3.Connection, before_minute: int) -> None:
    """Move rows older than the minute into one lifetime row per type."""
    _fold(connection, ALL_MINUTES, before_minute, lifetime_of)


def _fold(
    connection: sqlite3.Connection, which: str, before_minute: int, target: Callable[[int], int]
) -> None:
    parts = _statistics(connection, which, before_minute)
    if not parts:
        return
    connection.execute(f"DELETE FROM holdfast_statistics WHERE {which}", (before_minute,))

    def stored(minute: int, type: str) -> list[Minute]:
        return _statistics(connection, "minute = ? AND type = ? AND worker_id = ''", minute, type)

    write_statistics(connection, added_up(parts, target, stored))


def _statistics(connection: sqlite3.Connection, which: str, *parameters: Any) -> list[Minute]:
    rows = connection.execute(
        f"SELECT {STATISTICS_COLUMNS} FROM holdfast_statistics WHERE {which}", parameters
    )
    return [minute_from(row) for row in rows.fetchall()]
