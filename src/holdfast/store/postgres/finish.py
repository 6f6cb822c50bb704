"""Ending attempts: finish, release and reap are one guarded statement with different decisions.

Rows are locked in the order of `seq`, so that no two who end attempts wait for each other in a ring.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.core.job import Status
from holdfast.errors import StoreBusy
from holdfast.store.outcomes import ENDING, FAILURE, ending, failures, link_taken, unbounded
from holdfast.store.postgres.arrays import MOST_TEXT, given, parts, transposed
from holdfast.store.postgres.insert import insert_jobs, run
from holdfast.store.postgres.server_clock import CLOCK, NOW
from holdfast.store.postgres.session import Reply, Session
from holdfast.store.records import Finish


def is_held(job: str, version: str, worker_id: str) -> str:
    """Whether a job still runs as this attempt of this worker. The planner is to see nothing in it: it would
    find the jobs by it, where there are only few such by its statistics, and not by their `seq`."""
    return (
        f"coalesce({job}.status = 'processing' AND {job}.version = {version}"
        f" AND {job}.worker_id = {worker_id}, false)"
    )


_WAITING = frozenset({Status.PENDING, Status.SCHEDULED})

CHILD_PATIENCE = 0.05
"""Seconds to wait for a transaction that is about to insert the key or the id of a child."""

_KEY_UNTIL = "clock.now + (j.key_for * 1000000)::bigint"

_COMPLETED = f"""
    status = 'completed', error = NULL, losses = 0, worker_id = NULL, lease_expires_at = NULL,
    finished_at = clock.now, updated_at = clock.now,
    key_held = j.key_held AND j.key_for IS NOT NULL, key_until = {_KEY_UNTIL}
"""

# Nearly every attempt ends so.
_COMPLETE = f"""
WITH {CLOCK}
UPDATE holdfast_jobs AS j SET result = f.result, {_COMPLETED}
FROM clock, {given("$2::bigint[], $3::bigint[], $4::text[]")} AS f (seq, version, result)
WHERE j.seq = f.seq AND {is_held("j", "f.version", "$5")}
RETURNING j.seq, j.version
"""

# The same for one job, as part of a message that commits: if the job is not held, the division by zero keeps
# the COMMIT behind it from being carried out.
COMPLETE_OR_FAIL = f"""
WITH clock AS MATERIALIZED (SELECT coalesce({{now}}, {NOW}) AS now), done AS (
    UPDATE holdfast_jobs AS j SET result = {{result}}, {_COMPLETED}
    FROM clock WHERE j.seq = {{seq}} AND {is_held("j", "{version}", "{worker_id}")}
    RETURNING 1)
SELECT 1 / count(*) FROM done
"""
NOT_HELD = b"22012"

# A cancellation may have been asked for until this very moment; then whatever is not a completion is one. A
# handler that is inside ctx.transaction() has locked its job: it is alive whatever its lease says, and nobody
# is to wait for it.
_ENDING = (
    "$2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::boolean[], $7::bigint[], $8::text[],"
    " $9::integer[], $10::boolean[], $11::text[], $12::integer[]"
)
_END = f"""
WITH {CLOCK}
UPDATE holdfast_jobs AS j SET
    status = CASE WHEN j.cancel_requested THEN 'cancelled' ELSE f.status END,
    attempts = j.attempts - f.attempts_back,
    losses = coalesce(j.losses + f.loss, 0),
    due_at = clock.now + f.delay,
    error = coalesce(f.error, j.error),
    error_group = CASE WHEN NOT j.cancel_requested THEN f.error_group END,
    worker_id = NULL, lease_expires_at = NULL, returned = true,
    finished_at = CASE WHEN f.final OR j.cancel_requested THEN clock.now END,
    key_held = CASE WHEN f.final OR j.cancel_requested THEN j.key_held AND j.key_for IS NOT NULL
        ELSE j.key_held END,
    key_until = CASE WHEN (f.final OR j.cancel_requested) AND j.key_for IS NOT NULL THEN {_KEY_UNTIL} END,
    updated_at = clock.now
FROM clock, {given(_ENDING)} AS f ({", ".join(ENDING)})
WHERE j.seq = f.seq AND {is_held("j", "f.version", "f.worker_id")}
    AND (NOT f.expired_only OR j.lease_expires_at <= clock.now)
    AND j.seq = ANY (ARRAY(
        SELECT held.seq FROM {given("$2::bigint[], $3::bigint[], $4::text[]")} AS h (seq, version, worker_id)
        JOIN holdfast_jobs AS held ON held.seq = h.seq AND {is_held("held", "h.version", "h.worker_id")}
        ORDER BY held.seq FOR UPDATE OF held SKIP LOCKED))
RETURNING j.seq, j.version, j.status, j.updated_at
"""

STILL_HELD = f"""
SELECT j.seq, j.version FROM {given("$1::bigint[], $2::bigint[], $3::text[]")} AS h (seq, version, worker_id)
JOIN holdfast_jobs AS j ON j.seq = h.seq AND {is_held("j", "h.version", "h.worker_id")}
"""

# A worker knows the server's clock to within the time of a message: nothing ends before it has begun.
_FAILURES = f"""
WITH {CLOCK}
INSERT INTO holdfast_failures (finished_at, {", ".join(FAILURE)})
SELECT clock.now, f.seq, f.version, f.attempt, least(f.started_at, clock.now), f.worker_id, f.error,
    f.traceback, f.detail
FROM clock, unnest($2::bigint[], $3::bigint[], $4::integer[], $5::bigint[], $6::text[], $7::text[],
    $8::text[], $9::text[]) AS f ({", ".join(FAILURE)})
"""

_UNLOCKED = "SELECT seq FROM holdfast_jobs WHERE seq = ANY ($1::bigint[]) ORDER BY seq FOR UPDATE SKIP LOCKED"


def finish_jobs(
    session: Session, finishes: Sequence[Finish], now: int | None, child_patience: float = CHILD_PATIENCE
) -> dict[tuple[int, int], Status]:
    """Finish inside the open transaction; the accepted ones, with the state each led to."""
    ordered = sorted(finishes, key=lambda finish: finish.seq)
    completed = [f for f in ordered if f.decision.status is Status.COMPLETED]
    others = [f for f in ordered if f.decision.status is not Status.COMPLETED]
    ended = _locked(session, [finish for finish in completed if finish.may_be_locked])
    completed = [finish for finish in completed if (finish.seq, finish.version) not in ended]
    plain = [finish for finish in completed if not _may_wait(finish)]
    for worker_id in sorted({finish.worker_id for finish in plain}):
        own = [finish for finish in plain if finish.worker_id == worker_id]
        for part in parts(own, lambda finish: len(finish.decision.result or "")):
            ended |= _complete(session, part, now)
    for finish in completed:
        if _may_wait(finish):
            ended |= _complete_if_free(session, finish, now, child_patience)
    for part in parts(others, _length_of_failure):
        ended |= _end(session, part, now)
    session.wakes |= not _WAITING.isdisjoint(ended.values()) or any(f.children for f in finishes)
    return {(f.seq, f.version): ended[f.seq, f.version] for f in finishes if (f.seq, f.version) in ended}


def complete_ahead(session: Session, finishes: Sequence[Finish], now: int | None) -> Reply | None:
    """Complete jobs of one worker together with the next statement, if nothing else hangs on it."""
    is_plain = all(
        f.decision.status is Status.COMPLETED and not f.children and not f.may_be_locked for f in finishes
    )
    workers = {finish.worker_id for finish in finishes}
    texts = sum(len(finish.decision.result or "") for finish in finishes)
    if not is_plain or len(workers) != 1 or texts > MOST_TEXT:
        return None
    ordered = sorted(finishes, key=lambda finish: finish.seq)
    return session.ahead(_COMPLETE, [now, *_completions(ordered), *workers])


def _may_wait(finish: Finish) -> bool:
    """Whether a child of it may have the key or the id of a job that somebody has not committed yet."""
    return any(child.key is not None or not child.has_new_id for child in finish.children)


def _complete(session: Session, finishes: Sequence[Finish], now: int | None) -> dict[tuple[int, int], Status]:
    """Complete jobs of one worker, with their children."""
    rows = session.rows(_COMPLETE, [now, *_completions(finishes), finishes[0].worker_id])
    ended = dict.fromkeys(rows, Status.COMPLETED)
    for finish in finishes:
        if finish.children and (finish.seq, finish.version) in ended:
            verdicts = run(insert_jobs(unbounded(finish.children), now), session.rows)
            link_taken(session, finish.seq, verdicts)
    return ended


def _complete_if_free(
    session: Session, finish: Finish, now: int | None, patience: float
) -> dict[tuple[int, int], Status]:
    """The same for one that may have to wait, but not for long: the others of the turn wait behind it."""
    try:
        with session.apart(patience):
            return _complete(session, [finish], now)
    except StoreBusy:
        return {(finish.seq, finish.version): Status.PROCESSING}


def _end(session: Session, finishes: Sequence[Finish], now: int | None) -> dict[tuple[int, int], Status]:
    ended: dict[tuple[int, int], Status] = {}
    for seq, version, status, instant in session.rows(_END, [now, *transposed([*map(ending, finishes)])]):
        ended[seq, version] = Status(status)
        now = instant  # one instant for the end of an attempt and the record of it
    missing = [f for f in finishes if (f.seq, f.version) not in ended and not f.expired_only]
    if missing:
        held = session.rows(STILL_HELD, transposed([(f.seq, f.version, f.worker_id) for f in missing]))
        ended |= dict.fromkeys(held, Status.PROCESSING)
        finishes = [f for f in finishes if (f.seq, f.version) not in held]
    rows = failures([f for f in finishes if (f.seq, f.version) in ended])
    if rows:
        session.rows(_FAILURES, [now, *transposed(rows)])
    return ended


def _length_of_failure(finish: Finish) -> int:
    detail = 0 if finish.decision.detail is None else len(json.dumps(finish.decision.detail))
    return len(finish.decision.error or "") + len(finish.decision.traceback or "") + detail


def _locked(session: Session, finishes: Sequence[Finish]) -> dict[tuple[int, int], Status]:
    """The attempts whose jobs are locked by somebody: they are still running."""
    if not finishes:
        return {}
    unlocked = {seq for (seq,) in session.rows(_UNLOCKED, [[finish.seq for finish in finishes]])}
    return {(f.seq, f.version): Status.PROCESSING for f in finishes if f.seq not in unlocked}


def _completions(finishes: Sequence[Finish]) -> list[list[Any]]:
    return transposed([(finish.seq, finish.version, finish.decision.result) for finish in finishes])
