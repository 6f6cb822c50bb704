"""The PostgreSQL store: what is specific to this engine."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from holdfast.core.job import Status
from holdfast.core.settings import Settings
from holdfast.core.starting import Head, Usage
from holdfast.store.database import Session as AnySession
from holdfast.store.postgres import (
    caller,
    claim,
    enqueue,
    finish,
    health,
    leases,
    operate,
    pausing,
    promote,
    tallies,
    usage,
)
from holdfast.store.postgres.attempt import PostgresAttemptTransaction
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.schema import SEQ, STATUS
from holdfast.store.postgres.session import Session
from holdfast.store.postgres.watch import PostgresWatch
from holdfast.store.protocol import Store
from holdfast.store.reads import OLDEST
from holdfast.store.records import Answer, Claim, Demand, Expired, Finding, Finish, LogTail, NewJob, Verdict
from holdfast.store.rows import LOG_TAIL

_KEEP_TAIL = f"""
INSERT INTO holdfast_logs (seq, {LOG_TAIL.columns})
SELECT seq, $4, $5, $6 FROM holdfast_jobs
WHERE seq = $1 AND status = 'processing' AND version = $2 AND worker_id = $3 FOR SHARE
ON CONFLICT (seq) DO UPDATE SET host = excluded.host, length = excluded.length, tail = excluded.tail
"""
_TAIL = f"""
SELECT {LOG_TAIL.columns} FROM holdfast_logs AS l JOIN holdfast_jobs AS j ON j.seq = l.seq WHERE j.id = $1
"""

_AHEAD = f"""
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
    _prune_jobs = staticmethod(operate.prune_jobs)
    _heartbeat = staticmethod(leases.heartbeat)
    _suspect_jobs = staticmethod(leases.suspect_jobs)
    _cancel_job = staticmethod(operate.cancel_job)
    _retry_job = staticmethod(operate.retry_job)
    _retry_failed_jobs = staticmethod(operate.retry_failed_jobs)
    _delete_job = staticmethod(operate.delete_job)
    _oldest = OLDEST.replace("status =", f"{STATUS} =")
    _count_ahead = _AHEAD

    def __init__(self, database: Database) -> None:
        self.database: Database = database
        self.now = database.now
        self._claiming = claim.Claiming()
        self._claim_jobs = self._claiming.claim_jobs
        self._counts = tallies.Keeper(database)
        self._due = promote.DueFloor()

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

    def list_heads(self, apart: Collection[str] = ()) -> list[Head]:  # noqa: ARG002
        if not self.in_transaction:
            self._counts.run()
        return self._claiming.list_heads(self.database)

    def next_due_at(self) -> int | None:
        now, is_whole, began = self.now(), self._due.reads_whole(), time.monotonic()
        row = self.database.read_one(promote.NEXT_DUE, [promote.EVER if is_whole else self._due.at(now)])
        due = row[0] if row else None
        if is_whole:
            self._due.took(time.monotonic() - began)
        if not self.in_transaction:  # of which nobody knows whether it commits
            self._due.saw(due, now)
        return due

    def _promote_jobs(self, session: Session, limit: int, now: int | None) -> list[tuple[str, str]]:
        return promote.promote_jobs(session, limit, now, self._due.at(self.now()))

    def read_usage(self) -> Usage:
        return usage.read_usage(self.database)

    @contextmanager
    def finish_and_claim(
        self,
        finishes: Sequence[Finish],
        worker_id: str,
        demands: Sequence[Demand],
        settings: Settings | None = None,
        *,
        limit: int,
        lease_seconds: float,
        is_whole: bool = False,
    ) -> Iterator[Answer]:
        answer = Answer()
        with self.database.transaction(may_fail=is_whole) as session:
            completed = finish.complete_ahead(session, finishes, self.database.instant) if finishes else None
            if completed is None:
                answer.ended = self.finish_jobs(finishes)
            claim = None
            if demands and limit > 0:
                claim = self._claiming.prepare(
                    session,
                    worker_id,
                    demands,
                    settings or self._stored_settings(),
                    limit=limit,
                    lease_seconds=lease_seconds,
                    now=self.database.instant,
                )
            is_all_queued = completed is not None if claim is None else claim.is_queued
            # A pooler says of no server process whether it has ended: there, less is left in doubt.
            if is_whole and is_all_queued and not self.database.is_pooled:
                session.commit_ahead()
            with session.in_flight() if is_all_queued or completed is not None else nullcontext():
                yield answer
            if claim is not None:
                answer.claimed = claim.result()
            if completed is not None:
                answer.ended = dict.fromkeys(completed.rows, Status.COMPLETED)
            if self._counts.is_due:
                session.afterwards.append(self._counts.run)

    def write_log_tail(self, claim: Claim, tail: LogTail) -> None:
        with self.database.transaction() as session:
            session.rows(_KEEP_TAIL, [claim.seq, claim.version, claim.worker_id, *LOG_TAIL.row(tail)])

    def read_log_tail(self, job_id: str) -> LogTail | None:
        row = self.database.read_one(_TAIL, [job_id])
        return LogTail(*row) if row else None

    # Leases.

    def list_held(self, worker_id: str) -> list[Expired]:
        # What a lost connection of ours has under way may be the end or the claim of more.
        self.database.doubt.end(self.database.read)
        return super().list_held(worker_id)

    def list_unsuspected(
        self, worker_id: str, held: Sequence[tuple[int, int]], *, patience: float
    ) -> set[tuple[int, int]]:
        # A transaction, for its bound, behind a pooler too; and not of one snapshot, which would be taken
        # before the wait for a lock.
        with self.database.transaction(patience=patience) as session:
            return leases.list_unsuspected(session, worker_id, held)

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
                session.afterwards.append(lambda: pausing.outlast_claims(self.database))

    def _forget_types(self, session: AnySession) -> bool:
        return tallies.forget_types(session)

    def _may_fold(self, session: AnySession) -> bool:
        return bool(session.rows(_FOLD_ALONE, [self.database.schema])[0][0])
