"""The leases of running attempts: renewed by heartbeats, marked by reapers; and progress reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.core.clock import microseconds
from holdfast.store.records import Beat
from holdfast.store.sqlite.connection import OwnConnection, as_json, from_json, given

_RENEW = f"""
UPDATE holdfast_jobs SET lease_expires_at = ?1, has_started = holdfast_jobs.has_started OR h.has_started
FROM {given("?2", "seq", "version", "has_started")} AS h
WHERE holdfast_jobs.seq = h.seq AND holdfast_jobs.version = h.version
    AND +status = 'processing' AND worker_id = ?3
"""

_STILL_HELD = f"""
SELECT json_group_array(json_array(j.seq, j.version))
FROM {given("?1", "seq", "version")} AS h
JOIN holdfast_jobs AS j ON j.seq = h.seq AND j.version = h.version
WHERE +j.status = 'processing' AND j.worker_id = ?2
"""

# A lease that was seen expired has been touched since its end. A renewal moves its end beyond that.
_SUSPECT = f"""
UPDATE holdfast_jobs SET updated_at = ?1
FROM {given("?2", "seq", "version")} AS s
WHERE holdfast_jobs.seq = s.seq AND holdfast_jobs.version = s.version
    AND +status = 'processing' AND +lease_expires_at <= ?1
RETURNING holdfast_jobs.seq, holdfast_jobs.version
"""
UNSUSPECTED = f"{_STILL_HELD} AND j.updated_at < j.lease_expires_at"

CANCELLING = """
SELECT json_group_array(json_array(seq, version)) FROM holdfast_jobs
WHERE status = 'processing' AND cancel_requested = 1 AND worker_id = ?
"""

# A report must not look like the mark of a reaper: one that comes while the lease is overdue is dated before.
_PROGRESS = f"""
UPDATE holdfast_jobs SET progress = p.fraction, progress_message = p.message,
    updated_at = CASE WHEN updated_at < lease_expires_at THEN min(?1, lease_expires_at - 1) ELSE ?1 END
FROM {given("?2", "seq", "version", "fraction", "message")} AS p
WHERE holdfast_jobs.seq = p.seq AND holdfast_jobs.version = p.version
    AND +status = 'processing' AND worker_id = ?3
"""


def heartbeat(
    connection: OwnConnection,
    worker_id: str,
    held: Sequence[tuple[int, int]],
    started: Collection[tuple[int, int]],
    state: str,
    turn_age: float,
    lease_seconds: float,
    now: int,
) -> Beat:
    found = connection.execute(
        "UPDATE holdfast_workers SET heartbeat_at = ?, turned_at = ?, state = ? WHERE id = ?",
        (now, now - microseconds(turn_age), state, worker_id),
    )
    lost: set[tuple[int, int]] = set()
    if held:
        rows = as_json([(*name, name in started) for name in held])
        renewed = connection.execute(_RENEW, (now + microseconds(lease_seconds), rows, worker_id)).rowcount
        if renewed != len(held):
            lost = set(held) - set(map(tuple, connection.value(_STILL_HELD, rows, worker_id)))
    cancelled = map(tuple, connection.value(CANCELLING, worker_id))
    return Beat(frozenset(lost), frozenset(cancelled), registered=found.rowcount == 1)


def suspect_jobs(
    connection: OwnConnection, claims: Sequence[tuple[int, int]], now: int
) -> set[tuple[int, int]]:
    return set(connection.rows(_SUSPECT, (now, as_json(claims))))


def claims_from(text: str) -> set[tuple[int, int]]:
    """The (seq, version) pairs of a JSON answer."""
    return {(seq, version) for seq, version in from_json(text)}


def write_progress(
    connection: OwnConnection,
    worker_id: str,
    reports: Sequence[tuple[int, int, float, str | None]],
    now: int,
) -> tuple[()]:
    connection.execute(_PROGRESS, (now, as_json(reports), worker_id))
    return ()  # nobody else writes, so none has to wait
