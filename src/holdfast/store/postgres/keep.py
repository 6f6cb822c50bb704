"""What is kept beside the jobs: workers and their leases, types, statistics."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

from holdfast.core.clock import microseconds
from holdfast.store.postgres.arrays import given
from holdfast.store.postgres.clock import CLOCK
from holdfast.store.postgres.finish import is_held
from holdfast.store.postgres.session import Session
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

_BEAT = f"""
WITH {CLOCK}
UPDATE holdfast_workers AS w SET heartbeat_at = clock.now, turned_at = clock.now - $4::bigint, state = $3
FROM clock WHERE w.id = $2
"""

# A locked job is being finished, or inside ctx.transaction(): in both cases nobody takes it from us.
_RENEW = f"""
WITH {CLOCK}
UPDATE holdfast_jobs AS j SET lease_expires_at = clock.now + $5::bigint
FROM clock WHERE j.seq = ANY (ARRAY(
    SELECT held.seq FROM {given("$2::bigint[], $3::bigint[]")} AS h (seq, version)
    JOIN holdfast_jobs AS held ON held.seq = h.seq AND {is_held("held", "h.version", "$4")}
    ORDER BY held.seq FOR UPDATE OF held SKIP LOCKED))
"""

_STILL_HELD = f"""
SELECT j.seq, j.version FROM {given("$1::bigint[], $2::bigint[]")} AS h (seq, version)
JOIN holdfast_jobs AS j ON j.seq = h.seq AND {is_held("j", "h.version", "$3")}
"""

_REDATE = f"""
WITH {CLOCK}, ahead AS MATERIALIZED (
    SELECT j.seq, coalesce(w.heartbeat_at, j.started_at) AS heard_at
    FROM clock, holdfast_jobs AS j LEFT JOIN holdfast_workers AS w ON w.id = j.worker_id
    WHERE j.status = 'processing' AND j.lease_expires_at > clock.now + $2::bigint
        AND coalesce(w.heartbeat_at, j.started_at) > clock.now
    ORDER BY j.seq FOR UPDATE OF j SKIP LOCKED)
UPDATE holdfast_jobs AS j SET
    lease_expires_at = clock.now + greatest($2::bigint, j.lease_expires_at - ahead.heard_at),
    started_at = least(j.started_at, clock.now)
FROM clock, ahead WHERE j.seq = ahead.seq
"""
_REDATE_WORKERS = f"""
WITH {CLOCK}
UPDATE holdfast_workers AS w SET heartbeat_at = clock.now,
    turned_at = CASE WHEN w.turned_at > clock.now THEN clock.now ELSE w.turned_at END
FROM clock WHERE w.id = ANY (ARRAY(
    SELECT id FROM holdfast_workers WHERE heartbeat_at > (SELECT now FROM clock)
    ORDER BY id FOR UPDATE SKIP LOCKED))
"""

CANCELLING = """
SELECT seq, version FROM holdfast_jobs WHERE status = 'processing' AND cancel_requested AND worker_id = $1
"""

# Inside ctx.transaction() a job is all but complete, and its row locked: nobody is to wait for it.
_PROGRESS = f"""
WITH {CLOCK}, p AS MATERIALIZED (
    SELECT held.seq, p.fraction, p.message
    FROM {given("$3::bigint[], $4::bigint[], $5::double precision[], $6::text[]")}
        AS p (seq, version, fraction, message)
    JOIN holdfast_jobs AS held ON held.seq = p.seq AND {is_held("held", "p.version", "$2")}
    ORDER BY held.seq FOR UPDATE OF held SKIP LOCKED)
UPDATE holdfast_jobs AS j SET progress = p.fraction, progress_message = p.message, updated_at = clock.now
FROM clock, p WHERE j.seq = p.seq
RETURNING j.seq
"""

_REGISTER = f"""
WITH {CLOCK}
INSERT INTO holdfast_workers AS w
    (id, host, pid, state, concurrency, types, slots, started_at, heartbeat_at)
SELECT $2, $3, $4, $5, $6, $7, $8, clock.now, clock.now FROM clock
ON CONFLICT (id) DO UPDATE SET state = excluded.state, concurrency = excluded.concurrency,
    types = excluded.types, slots = excluded.slots
"""

_TYPES = """
INSERT INTO holdfast_types (type, executor, schema)
SELECT * FROM unnest($1::text[], $2::text[], $3::text[]) AS n (type, executor, schema)
WHERE NOT EXISTS (SELECT 1 FROM holdfast_types AS same
    WHERE (same.type, same.executor, same.schema) = (n.type, n.executor, n.schema))
ORDER BY n.type
ON CONFLICT (type) DO UPDATE SET executor = excluded.executor, schema = excluded.schema
"""

_FORGET_SILENT = f"""
WITH {CLOCK}
DELETE FROM holdfast_workers WHERE id = ANY (ARRAY(
    SELECT id FROM holdfast_workers AS w WHERE w.heartbeat_at < (SELECT now FROM clock) - $2::bigint
        AND NOT EXISTS (SELECT 1 FROM holdfast_jobs AS j WHERE j.status = 'processing' AND j.worker_id = w.id)
    FOR UPDATE SKIP LOCKED))
RETURNING id
"""

_STATISTICS = f"""
INSERT INTO holdfast_statistics ({STATISTICS_COLUMNS})
SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[], $6::bigint[],
    $7::bigint[], $8::double precision[], $9::double precision[], $10::double precision[], $11::text[],
    $12::text[])
ON CONFLICT (minute, type, worker_id) DO UPDATE SET
    completed = excluded.completed, failed = excluded.failed, retried = excluded.retried,
    reaped = excluded.reaped, wait_seconds = excluded.wait_seconds, run_seconds = excluded.run_seconds,
    limited_seconds = excluded.limited_seconds, waits = excluded.waits, runs = excluded.runs
"""

# Two who add up the same rows would count them twice; whoever comes second leaves it to the first.
_FOLD_ALONE = "SELECT pg_try_advisory_xact_lock(1751346274, hashtext($1))"


def heartbeat(
    session: Session,
    worker_id: str,
    held: Sequence[tuple[int, int]],
    state: str,
    turn_age: float,
    lease_seconds: float,
    now: int | None,
) -> Beat:
    found = session.count(_BEAT, [now, worker_id, state, microseconds(turn_age)])
    lost: set[tuple[int, int]] = set()
    if held:
        seqs, versions = [seq for seq, _ in held], [version for _, version in held]
        renewed = session.count(_RENEW, [now, seqs, versions, worker_id, microseconds(lease_seconds)])
        if renewed != len(held):
            lost = set(held) - set(session.rows(_STILL_HELD, [seqs, versions, worker_id]))
    cancelled = frozenset(session.rows(CANCELLING, [worker_id]))
    return Beat(frozenset(lost), cancelled, registered=found == 1)


def redate_leases(session: Session, lease_seconds: float, now: int | None) -> None:
    session.rows(_REDATE, [now, microseconds(lease_seconds)])
    session.rows(_REDATE_WORKERS, [now])


def write_progress(
    session: Session,
    worker_id: str,
    reports: Sequence[tuple[int, int, float, str | None]],
    now: int | None,
) -> set[int]:
    reports = sorted(reports, key=lambda report: report[0])
    seqs, versions = [seq for seq, _, _, _ in reports], [version for _, version, _, _ in reports]
    rows = session.rows(
        _PROGRESS,
        [
            now,
            worker_id,
            seqs,
            versions,
            [float(fraction) for _, _, fraction, _ in reports],
            [message for _, _, _, message in reports],
        ],
    )
    if len(rows) == len(reports):
        return set()
    held = session.rows(_STILL_HELD, [seqs, versions, worker_id])
    return {seq for seq, _ in held} - {seq for (seq,) in rows}


def register_worker(
    session: Session, worker: WorkerRecord, types: Sequence[TypeRecord], now: int | None
) -> None:
    session.rows(
        _REGISTER,
        [
            now,
            worker.id,
            worker.host,
            worker.pid,
            worker.state,
            worker.concurrency,
            json.dumps(worker.types),
            json.dumps(worker.slots),
        ],
    )
    session.rows(
        _TYPES,
        [[t.type for t in types], [t.executor for t in types], [json.dumps(t.schema) for t in types]],
    )


def remove_silent_workers(session: Session, silent_seconds: float, now: int | None) -> list[str]:
    return [row[0] for row in session.rows(_FORGET_SILENT, [now, microseconds(silent_seconds)])]


def write_statistics(session: Session, minutes: Sequence[Minute]) -> None:
    if minutes:
        columns = [list(column) for column in zip(*map(minute_row, minutes), strict=True)]
        columns[7:10] = [[float(value) for value in column] for column in columns[7:10]]
        session.rows(_STATISTICS, columns)


def fold_hours(session: Session, before_minute: int) -> None:
    """Move rows older than the minute into one row per type and hour."""
    _fold(session, SINGLE_MINUTES, before_minute, hour_of)


def fold_statistics(session: Session, before_minute: int) -> None:
    """Move rows older than the minute into one lifetime row per type."""
    _fold(session, ALL_MINUTES, before_minute, lifetime_of)


def _fold(session: Session, which: str, before_minute: int, target: Callable[[int], int]) -> None:
    if not session.rows(_FOLD_ALONE, [session.database.schema])[0][0]:
        return
    gone = session.rows(
        f"DELETE FROM holdfast_statistics WHERE {which} RETURNING {STATISTICS_COLUMNS}", [before_minute]
    )

    def stored(minute: int, type: str) -> list[Minute]:
        rows = session.rows(
            f"SELECT {STATISTICS_COLUMNS} FROM holdfast_statistics"
            " WHERE minute = $1 AND type = $2 AND worker_id = ''",
            [minute, type],
        )
        return [minute_from(row) for row in rows]

    write_statistics(session, added_up([minute_from(row) for row in gone], target, stored))
