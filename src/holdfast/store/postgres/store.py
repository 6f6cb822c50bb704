"""The PostgreSQL store: what is specific to this engine."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from typing import Any

from psycopg.errors import QueryCanceled

from holdfast.core.job import Status
from holdfast.errors import StoreError, StoreUnavailable
from holdfast.store.database import Session as AnySession
from holdfast.store.postgres import caller, claim, enqueue, finish, health, leases, operate, promote, tallies
from holdfast.store.postgres.attempt import PostgresAttemptTransaction
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.schema import SEQ
from holdfast.store.postgres.watch import PostgresWatch
from holdfast.store.protocol import Store
from holdfast.store.records import Activity, Claim, Claimed, Demand, Finding, Finish, LogTail, NewJob, Verdict
from holdfast.store.rows import LOG_TAIL
from holdfast.store.writes import Ended

_KEEP_TAIL = f"""
INSERT INTO holdfast_logs (seq, {LOG_TAIL.columns})
SELECT seq, $4, $5, $6 FROM holdfast_jobs
WHERE seq = $1 AND status = 'processing' AND version = $2 AND worker_id = $3 FOR SHARE
ON CONFLICT (seq) DO UPDATE SET host = excluded.host, length = excluded.length, tail = excluded.tail
"""
_TAIL = f"""
SELECT {LOG_TAIL.columns} FROM holdfast_logs AS l JOIN holdfast_jobs AS j ON j.seq = l.seq WHERE j.id = $1
"""

_LINE = f"""
WITH mine AS MATERIALIZED (SELECT type, priority, seq FROM holdfast_jobs WHERE id = $1)
SELECT count(*) FROM (
    SELECT 1 FROM mine CROSS JOIN LATERAL (
        SELECT 1 FROM holdfast_jobs WHERE status = 'pending' AND type = mine.type
            AND priority > mine.priority ORDER BY priority DESC, {SEQ} LIMIT $2) AS higher
    UNION ALL
    SELECT 1 FROM mine CROSS JOIN LATERAL (
        SELECT 1 FROM holdfast_jobs WHERE status = 'pending' AND type = mine.type
            AND priority = mine.priority AND {SEQ} < mine.seq
        ORDER BY priority DESC, {SEQ} LIMIT $2) AS earlier
    LIMIT $2) AS line
"""

# Two who add up the same rows would count them twice; whoever comes second leaves it to the first.
_FOLD_ALONE = "SELECT pg_try_advisory_xact_lock(1751346274, hashtext($1))"


class PostgresStore(Store):
    """See Store in the protocol."""

    is_shared = True

    _finish_jobs = staticmethod(finish.finish_jobs)
    _write_progress = staticmethod(leases.write_progress)
    _promote_jobs = staticmethod(promote.promote_jobs)
    _prune_jobs = staticmethod(operate.prune_jobs)
    _heartbeat = staticmethod(leases.heartbeat)
    _cancel_job = staticmethod(operate.cancel_job)
    _retry_job = staticmethod(operate.retry_job)
    _retry_failed_jobs = staticmethod(operate.retry_failed_jobs)
    _delete_job = staticmethod(operate.delete_job)
    _rate_row = staticmethod(claim.rate_row)
    _line_before = _LINE

    def __init__(self, database: Database) -> None:
        self.database: Database = database
        self.now = database.now
        self._claim_jobs = partial(claim.claim_jobs, claim.LimitLocks())
        self._counts_due = 0.0

    def _instant(self) -> int | None:
        return self.database.instant

    def close_idle(self) -> None:
        self.database.close_idle()

    def transaction(self) -> AbstractContextManager[Any]:
        return self.database.transaction(may_fail=True)

    def watch(self, *, for_work: bool = False) -> PostgresWatch:
        return PostgresWatch(self.database, for_work=for_work)

    # Enqueue.

    def insert_jobs(
        self, jobs: Sequence[NewJob], *, atomic: bool = False, wait: bool = True
    ) -> list[Verdict]:
        return enqueue.insert_jobs(self.database, jobs, atomic=atomic, wait=wait)

    def insert_jobs_with(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        return caller.insert_with(connection, jobs, self.database)

    async def insert_jobs_awaiting(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        return await caller.insert_awaiting(connection, jobs, self.database)

    # The turn.

    def list_active_types(self, *, unpaused: bool = False) -> dict[str, Activity]:
        if not self.in_transaction and time.monotonic() >= self._counts_due:
            # A job that the counts don't know of is never claimed.
            self._counts_due = time.monotonic() + tallies.CHECK_EVERY
            tallies.recount(self.database, tallies.miscounted(self.database))
        sql = claim.UNPAUSED_TYPES if unpaused else claim.ACTIVE_TYPES
        try:
            active, additions = claim.activity_from(self.database.read(sql))
        except StoreUnavailable as error:  # so many additions that a role's statement_timeout was too short?
            if self.in_transaction or not isinstance(error.__cause__, QueryCanceled):
                raise
            tallies.fold(self.database)
            active, additions = claim.activity_from(self.database.read(sql))
        if additions > tallies.LONG and not self.in_transaction:
            with suppress(StoreError):
                tallies.fold(self.database)
        return active

    def finish_and_claim(
        self,
        finishes: Sequence[Finish],
        worker_id: str,
        demands: Sequence[Demand],
        *,
        limit: int,
        lease_seconds: float,
        meanwhile: Callable[[], None],
    ) -> tuple[Ended, Claimed]:
        with self.database.transaction() as session:
            answer = None
            if finishes and demands and limit > 0:
                answer = finish.complete_ahead(session, finishes, self.database.instant)
            ended = self.finish_jobs(finishes) if answer is None else {}
            session.meanwhile = meanwhile
            claimed = self.claim_jobs(worker_id, demands, limit=limit, lease_seconds=lease_seconds)
            session.do_meanwhile()
            if answer is not None:
                ended = dict.fromkeys(answer.rows, Status.COMPLETED)
            return ended, claimed

    def write_log_tail(self, claim: Claim, tail: LogTail) -> None:
        with self.database.transaction() as session:
            session.rows(_KEEP_TAIL, [claim.seq, claim.version, claim.worker_id, *LOG_TAIL.row(tail)])

    def read_log_tail(self, job_id: str) -> LogTail | None:
        row = self.database.read_one(_TAIL, [job_id])
        return LogTail(*row) if row else None

    # Leases.

    def list_cancelled(self, worker_id: str) -> set[tuple[int, int]]:
        return set(self.database.read(leases.CANCELLING, [worker_id]))

    def begin_attempt_transaction(self, claim: Claim, seconds: float) -> PostgresAttemptTransaction:
        return PostgresAttemptTransaction(self.database, claim, seconds)

    # Care.

    def back_up(self, path: str) -> None:
        from holdfast.store.postgres import transfer

        transfer.back_up(self, path)

    def measure(self) -> dict[str, float]:
        return health.measure(self.database)

    def examine(self) -> list[Finding]:
        return health.examine(self.database)

    # Pauses and statistics.

    def set_paused(self, type: str, paused: bool) -> None:
        with self.database.transaction() as session:
            super().set_paused(type, paused)
            if paused:
                session.afterwards.append(lambda: claim.outlast_claims(self.database))

    def _may_fold(self, session: AnySession) -> bool:
        return bool(session.rows(_FOLD_ALONE, [self.database.schema])[0][0])
