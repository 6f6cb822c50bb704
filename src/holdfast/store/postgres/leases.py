"""The leases of running attempts: renewed by heartbeats, marked by reapers; and progress reports."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from holdfast.core.clock import microseconds
from holdfast.store.postgres.arrays import given, transposed
from holdfast.store.postgres.finish import STILL_HELD, is_held
from holdfast.store.postgres.schema import STATUS
from holdfast.store.postgres.server_clock import CLOCK
from holdfast.store.postgres.session import Session
from holdfast.store.records import Beat

_BEAT = f"""
WITH {CLOCK}
UPDATE holdfast_workers AS w SET heartbeat_at = clock.now, turned_at = clock.now - $4::bigint, state = $3
FROM clock WHERE w.id = $2
"""

# A locked job is being finished, or inside ctx.transaction(): then nobody takes it from us. Or its progress
# is just being written, or a reaper marks it: then the next renewal must not be far.
_RENEW = f"""
WITH {CLOCK}
UPDATE holdfast_jobs AS j SET
    lease_expires_at = clock.now + $5::bigint, has_started = j.has_started OR b.has_started
FROM clock, {given("$2::bigint[], $6::boolean[]")} AS b (seq, has_started)
WHERE j.seq = b.seq AND j.seq = ANY (ARRAY(
    SELECT held.seq FROM {given("$2::bigint[], $3::bigint[]")} AS h (seq, version)
    JOIN holdfast_jobs AS held ON held.seq = h.seq AND {is_held("held", "h.version", "$4")}
    ORDER BY held.seq FOR UPDATE OF held SKIP LOCKED))
RETURNING j.seq
"""

# A lease that was seen expired has been touched since its end. A renewal moves its end beyond that.
_SUSPECT = f"""
WITH {CLOCK}, s AS MATERIALIZED (
    SELECT held.seq FROM {given("$2::bigint[], $3::bigint[]")} AS s (seq, version)
    JOIN holdfast_jobs AS held ON held.seq = s.seq
        AND coalesce(held.status = 'processing' AND held.version = s.version, false)
    ORDER BY held.seq FOR UPDATE OF held SKIP LOCKED)
UPDATE holdfast_jobs AS j SET updated_at = clock.now
FROM clock, s WHERE j.seq = s.seq AND coalesce(j.lease_expires_at <= clock.now, false)
RETURNING j.seq, j.version
"""
_UNSUSPECTED = f"{STILL_HELD} WHERE j.updated_at < j.lease_expires_at"

# Along an index of these alone: that of all that run may have very many entries of jobs that are over.
CANCELLING = f"""
SELECT seq, version FROM holdfast_jobs
WHERE cancel_requested AND {STATUS} = 'processing' AND worker_id = $1
"""

# Inside ctx.transaction() a job is all but complete, and its row locked: nobody is to wait for it. A report
# must not look like the mark of a reaper: one that comes while the lease is overdue is dated before.
_PROGRESS = f"""
WITH {CLOCK}, p AS MATERIALIZED (
    SELECT held.seq, p.fraction, p.message
    FROM {given("$3::bigint[], $4::bigint[], $5::double precision[], $6::text[]")}
        AS p (seq, version, fraction, message)
    JOIN holdfast_jobs AS held ON held.seq = p.seq AND {is_held("held", "p.version", "$2")}
    ORDER BY held.seq FOR UPDATE OF held SKIP LOCKED)
UPDATE holdfast_jobs AS j SET progress = p.fraction, progress_message = p.message,
    updated_at = CASE WHEN j.updated_at < j.lease_expires_at THEN least(clock.now, j.lease_expires_at - 1)
        ELSE clock.now END
FROM clock, p WHERE j.seq = p.seq
RETURNING j.seq
"""


def heartbeat(
    session: Session,
    worker_id: str,
    held: Sequence[tuple[int, int]],
    started: Collection[tuple[int, int]],
    state: str,
    turn_age: float,
    lease_seconds: float,
    now: int | None,
) -> Beat:
    found = session.count(_BEAT, [now, worker_id, state, microseconds(turn_age)])
    lost: set[tuple[int, int]] = set()
    skipped: set[tuple[int, int]] = set()
    if held:
        seqs, versions = transposed(held)
        lease = microseconds(lease_seconds)
        flags = [name in started for name in held]
        renewed = {seq for (seq,) in session.rows(_RENEW, [now, seqs, versions, worker_id, lease, flags])}
        if len(renewed) != len(held):
            ours = set(session.rows(STILL_HELD, [seqs, versions, [worker_id] * len(held)]))
            lost = set(held) - ours
            skipped = {name for name in ours if name[0] not in renewed}
    cancelled = frozenset(session.rows(CANCELLING, [worker_id]))
    return Beat(frozenset(lost), cancelled, registered=found == 1, skipped=frozenset(skipped))


def suspect_jobs(
    session: Session, claims: Sequence[tuple[int, int]], now: int | None
) -> set[tuple[int, int]]:
    return set(session.rows(_SUSPECT, [now, *transposed(claims)])) if claims else set()


def list_unsuspected(
    session: Session, worker_id: str, held: Sequence[tuple[int, int]]
) -> set[tuple[int, int]]:
    return set(session.rows(_UNSUSPECTED, [*transposed(held), [worker_id] * len(held)]))


def write_progress(
    session: Session,
    worker_id: str,
    reports: Sequence[tuple[int, int, float, str | None]],
    now: int | None,
) -> set[int]:
    if not reports:
        return set()
    seqs, versions, fractions, messages = transposed(sorted(reports, key=lambda report: report[0]))
    fractions = [*map(float, fractions)]
    rows = session.rows(_PROGRESS, [now, worker_id, seqs, versions, fractions, messages])
    if len(rows) == len(reports):
        return set()
    held = session.rows(STILL_HELD, [seqs, versions, [worker_id] * len(seqs)])
    return {seq for seq, _ in held} - {seq for (seq,) in rows}
