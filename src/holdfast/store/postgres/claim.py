"""Claiming: which pending jobs a worker takes, within every limit, while others claim too.

Rows that another worker has locked are left to it. Where types compete, a look without locks says how many
of each to take, so that no more rows are locked than are claimed.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from holdfast.core.clock import microseconds
from holdfast.core.rate_limit import Bucket
from holdfast.errors import StoreBusy
from holdfast.store.database import PATIENCE
from holdfast.store.limits import Limits
from holdfast.store.postgres.arrays import transposed
from holdfast.store.postgres.bounds import LONGEST_IDLE
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.schema import SEQ
from holdfast.store.postgres.server_clock import CLOCK, PRESENT
from holdfast.store.postgres.session import Session
from holdfast.store.records import Activity, Claim, Claimed, Demand

HELD_BACK_PAUSE = 0.1
"""Seconds after which a worker looks again whether max_running lets it start more: nobody wakes it."""

_LIMIT_PATIENCE = 0.25
"""Seconds to wait for those who claim under the same limit."""
_STUCK_FOR = 2.0
"""Seconds for which a limit that somebody holds on to is not waited for again."""
_STUCK_PAUSE = 0.05
"""Seconds after which a worker tries again to lock a limit that somebody holds on to."""

# With the types that have nothing, too: how many additions their counts are made of is of interest.
ACTIVE_TYPES = """
SELECT type, sum(pending)::bigint, sum(processing)::bigint, count(*) FROM holdfast_tallies GROUP BY type
"""
UNPAUSED_TYPES = """
SELECT type, sum(pending)::bigint, sum(processing)::bigint, count(*) FROM holdfast_tallies AS t
WHERE NOT EXISTS (SELECT 1 FROM holdfast_pauses AS p WHERE p.type IN ('', t.type)) GROUP BY type
"""

# Taken before the statement that reads the pauses, and by nobody alone: who has paused finds by it the claims
# that may not have seen the pause, and waits for them, while others claim.
_CLAIMING = "SELECT pg_advisory_xact_lock_shared(1751346273, hashtext($1))"
_CLAIMS_UNDER_WAY = """
SELECT virtualtransaction FROM pg_locks
WHERE locktype = 'advisory' AND classid = 1751346273 AND objid = hashtext($1)::oid AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_LOOK_AGAIN = 0.005, 0.1

_SET = """
    status = 'processing', attempts = attempts + 1, version = version + 1,
    worker_id = $2, lease_expires_at = clock.now + $3::bigint, started_at = clock.now, updated_at = clock.now,
    progress = NULL, progress_message = NULL
"""
_RETURNING = """
RETURNING j.seq, j.id, j.type, j.payload, j.priority, j.attempts, j.max_attempts, j.version, j.timeout,
    j.created_at, j.due_at, j.worker_id
"""

# What enqueue left open is fixed here, at the first claim.
_CLAIM_ONE = f"""
WITH {CLOCK}
UPDATE holdfast_jobs AS j SET
    max_attempts = coalesce(j.max_attempts, $5::integer), timeout = coalesce(j.timeout, $6::double precision),
    {_SET}
FROM clock WHERE j.seq = ANY (ARRAY(
    SELECT seq FROM holdfast_jobs WHERE status = 'pending' AND type = $4
        AND NOT EXISTS (SELECT 1 FROM holdfast_pauses WHERE type IN ('', $4))
    ORDER BY priority DESC, {SEQ} LIMIT (SELECT $7::bigint) FOR UPDATE SKIP LOCKED))
{_RETURNING}
"""

_DEMANDS = """demands AS MATERIALIZED (
    SELECT * FROM unnest($4::text[], $5::integer[], $6::double precision[], $7::bigint[])
        AS d (type, max_attempts, timeout, room)
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_pauses AS p WHERE p.type IN ('', d.type)))"""

_BEST = f"""
SELECT d.type, c.priority, c.seq FROM demands AS d CROSS JOIN LATERAL (
    SELECT seq, priority FROM holdfast_jobs WHERE status = 'pending' AND type = d.type
    ORDER BY priority DESC, {SEQ} LIMIT d.room) AS c
ORDER BY c.priority DESC, c.seq
"""

_CLAIM_COUNTS = f"""
UPDATE holdfast_jobs AS j SET
    max_attempts = coalesce(j.max_attempts, d.max_attempts), timeout = coalesce(j.timeout, d.timeout),
    {_SET}
FROM clock, demands AS d WHERE j.type = d.type AND j.seq = ANY (ARRAY(
    SELECT c.seq FROM counts CROSS JOIN LATERAL (
        SELECT seq FROM holdfast_jobs WHERE status = 'pending' AND type = counts.type
        ORDER BY priority DESC, {SEQ} LIMIT counts.wanted FOR UPDATE SKIP LOCKED) AS c))
{_RETURNING}
"""
_CLAIM_BEST = f"""
WITH {CLOCK}, {_DEMANDS},
counts AS MATERIALIZED (SELECT type, count(*) AS wanted FROM ({_BEST} LIMIT (SELECT $8::bigint)) AS best
    GROUP BY type)
{_CLAIM_COUNTS}
"""
_CLAIM_CHOSEN = f"""
WITH {CLOCK}, {_DEMANDS},
counts AS MATERIALIZED (SELECT type, room AS wanted FROM demands)
{_CLAIM_COUNTS}
"""

_CANDIDATES = f"""
WITH demands AS MATERIALIZED (SELECT * FROM unnest($1::text[], $2::bigint[]) AS d (type, room)
    WHERE NOT EXISTS (SELECT 1 FROM holdfast_pauses AS p WHERE p.type IN ('', d.type)))
{_BEST}
"""

_ENSURE_LIMITS = """
INSERT INTO holdfast_limits (name, tokens, refilled_at) SELECT name, 0, -1 FROM unnest($1::text[]) AS n (name)
WHERE NOT EXISTS (SELECT 1 FROM holdfast_limits AS l WHERE l.name = n.name)
ORDER BY name ON CONFLICT DO NOTHING
"""
# Held until the commit: those who share a limit claim one after another.
_LOCK_LIMITS = """
SELECT name, tokens, refilled_at FROM holdfast_limits WHERE name = ANY ($1::text[]) ORDER BY name FOR UPDATE
"""
_TRY_LIMITS = f"{_LOCK_LIMITS} SKIP LOCKED"
_PRESENT = f"SELECT {PRESENT}"
_RUNNING = "SELECT type, count(*) FROM holdfast_jobs WHERE status = 'processing' GROUP BY type"
_SAVE_LIMITS = """
UPDATE holdfast_limits AS l SET tokens = n.tokens, refilled_at = n.refilled_at
FROM unnest($1::text[], $2::double precision[], $3::bigint[]) AS n (name, tokens, refilled_at)
WHERE l.name = n.name
"""


def activity_from(rows: Sequence[Any]) -> tuple[dict[str, Activity], int]:
    """The answer of ACTIVE_TYPES or UNPAUSED_TYPES, and of how many additions beyond one a type."""
    active = {
        type: Activity(pending, running) for type, pending, running, _ in rows if pending > 0 or running > 0
    }
    return active, sum(row[3] - 1 for row in rows)


def outlast_claims(database: Database) -> None:
    """Wait for the claims that were in progress when a pause was committed: they may not have seen it.

    If a worker is lost or frozen, the server ends its claim. Raises StoreBusy if one takes longer than that.
    """
    patience = LONGEST_IDLE + PATIENCE
    deadline = time.monotonic() + patience
    pause, longest = _LOOK_AGAIN
    before = under_way = set(database.read(_CLAIMS_UNDER_WAY, [database.schema]))
    while under_way:
        if time.monotonic() > deadline:
            raise StoreBusy(patience)
        time.sleep(pause)
        pause = min(2 * pause, longest)
        under_way = before.intersection(database.read(_CLAIMS_UNDER_WAY, [database.schema]))


class LimitLocks:
    """The rows of the limits, which processes lock one after another.

    It waits once for a process that holds on to one. After that, it takes such rows only if they are free,
    for a while.
    """

    def __init__(self) -> None:
        self._stuck_until: dict[str, float] = {}

    def take(self, session: Session, names: set[str]) -> dict[str, Bucket]:
        """The limits that could be had; until the commit they are ours."""
        now = time.monotonic()
        stuck = {name for name in names if now < self._stuck_until.get(name, 0.0)}
        rows = self._wait_for(session, sorted(names - stuck)) if names > stuck else []
        if rows is None:
            rows = session.rows(_TRY_LIMITS, [sorted(names)])
            taken = names.difference(name for name, _, _ in rows)
            self._stuck_until |= dict.fromkeys(taken, time.monotonic() + _STUCK_FOR)
        elif stuck:
            rows += session.rows(_TRY_LIMITS, [sorted(stuck)])
        return {name: Bucket(tokens, at) for name, tokens, at in rows}

    def _wait_for(self, session: Session, names: list[str]) -> list[Any] | None:
        try:
            with session.apart(_LIMIT_PATIENCE):
                session.ahead(_ENSURE_LIMITS, [names])
                return session.rows(_LOCK_LIMITS, [names])
        except StoreBusy:
            return None


def claim_jobs(
    locks: LimitLocks,
    session: Session,
    worker_id: str,
    demands: Sequence[Demand],
    *,
    limit: int,
    lease_seconds: float,
    now: int | None,
) -> Claimed:
    """Claim inside the open transaction."""
    session.ahead(_CLAIMING, [session.database.schema])
    lease = microseconds(lease_seconds)
    if any(demand.rate or demand.max_running for demand in demands):
        return _claim_limited(session, worker_id, demands, locks, limit, lease, now)
    if len(demands) == 1:
        [demand] = demands
        rows = session.rows(
            _CLAIM_ONE,
            [now, worker_id, lease, demand.type, demand.max_attempts, _timeout(demand),
             min(limit, demand.limit)],
        )  # fmt: skip
    else:
        rooms = [min(limit, demand.limit) for demand in demands]
        rows = session.rows(_CLAIM_BEST, [now, worker_id, lease, *_columns(demands, rooms), limit])
    return Claimed(_claims(rows))


def _claim_limited(
    session: Session,
    worker_id: str,
    demands: Sequence[Demand],
    locks: LimitLocks,
    limit: int,
    lease: int,
    now: int | None,
) -> Claimed:
    asked = len(demands)
    demands, buckets, running, present = _lock_limits(session, demands, locks, now)
    limits = Limits(demands, buckets, running, present)
    by_type = {demand.type: demand for demand in demands}
    rooms = {demand.type: min(limit, limits.room(demand)) for demand in demands}
    open_types = [type for type, room in rooms.items() if room > 0]
    candidates = session.rows(_CANDIDATES, [open_types, [rooms[type] for type in open_types]])
    wanted: Counter[str] = Counter()
    for type, _, _ in candidates:
        if wanted.total() == limit:
            break
        if limits.take(by_type[type]):
            wanted[type] += 1
    rows = []
    if wanted:
        chosen = [by_type[type] for type in wanted]
        rows = session.rows(_CLAIM_CHOSEN, [present, worker_id, lease, *_columns(chosen, [*wanted.values()])])
    taken = Limits(demands, buckets, running, present)  # of what was wanted, others may hold some
    for row in rows:
        taken.take(by_type[row[2]])
    _save(session, taken)
    wait = limits.wait()
    held_back = limits.held_back_unpaused(session)
    if any(by_type[type].max_running for type in held_back):
        wait = HELD_BACK_PAUSE if wait is None else min(wait, HELD_BACK_PAUSE)
    if len(demands) < asked:
        wait = _STUCK_PAUSE if wait is None else min(wait, _STUCK_PAUSE)
    return Claimed(_claims(rows), wait, held_back)


def _lock_limits(
    session: Session, demands: Sequence[Demand], locks: LimitLocks, now: int | None
) -> tuple[list[Demand], dict[str, Bucket], dict[str, int], int]:
    """The demands whose limits are ours until the commit; the stored buckets, the jobs that run, and the
    instant of both."""
    rows = locks.take(session, {name for demand in demands for name in _limit_rows(demand)})
    ours = [demand for demand in demands if rows.keys() >= _limit_rows(demand)]
    [(present,)] = session.rows(_PRESENT, [now])
    rates = {demand.rate_name: rows[rate_row(demand.rate_name)] for demand in ours if demand.rate}
    buckets = {name: bucket for name, bucket in rates.items() if bucket.at >= 0}
    is_capped = any(demand.max_running for demand in ours)
    return ours, buckets, dict(session.rows(_RUNNING)) if is_capped else {}, present


def _limit_rows(demand: Demand) -> set[str]:
    rate = {rate_row(demand.rate_name)} if demand.rate else set()
    return rate | ({f"max_running {demand.running_name}"} if demand.max_running else set())


def rate_row(name: str) -> str:
    """The name of a rate limit in the table, which also contains those of max_running."""
    return f"rate {name}"


def _save(session: Session, limits: Limits) -> None:
    names = sorted(limits.changed)
    if names:
        buckets = [limits.buckets[name] for name in names]
        session.rows(
            _SAVE_LIMITS, [[rate_row(n) for n in names], [b.tokens for b in buckets], [b.at for b in buckets]]
        )


def _columns(demands: Sequence[Demand], rooms: Sequence[int]) -> list[list[Any]]:
    return transposed(
        [(d.type, d.max_attempts, _timeout(d), room) for d, room in zip(demands, rooms, strict=True)]
    )


def _timeout(demand: Demand) -> float | None:
    return None if demand.timeout is None else float(demand.timeout)


def _claims(rows: Sequence[Any]) -> list[Claim]:
    claims = [Claim(*row) for row in rows]
    claims.sort(key=lambda claim: (-claim.priority, claim.seq))
    return claims
