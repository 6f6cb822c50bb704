"""The PostgreSQL store: each operation in a transaction of its own, or in the one around it."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
from random import uniform
from typing import Any, TypeVar

from psycopg.errors import QueryCanceled

from holdfast.config import Value
from holdfast.core.job import Job, Status
from holdfast.core.rate_limit import Bucket
from holdfast.errors import CommitUncertain, StoreBusy, StoreError, StoreUnavailable
from holdfast.store.postgres import caller, claim, finish, health, insert, keep, operate, tallies
from holdfast.store.postgres.attempt import PostgresAttemptTransaction
from holdfast.store.postgres.bounds import BULK, SHORT
from holdfast.store.postgres.clock import CLOCK
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import ConnectionLost
from holdfast.store.postgres.patience import BRIEF, LOCK_PATIENCE, PATIENCE
from holdfast.store.postgres.schema import SEQ
from holdfast.store.postgres.watch import PostgresWatch
from holdfast.store.protocol import (
    Activity,
    Beat,
    Claim,
    Claimed,
    Demand,
    Expired,
    Finding,
    Finish,
    Line,
    LogTail,
    Minute,
    NewJob,
    StopRequest,
    TypeRecord,
    Verdict,
    WorkerRecord,
)
from holdfast.store.prune import PrunePass
from holdfast.store.reads import Reads

# From priority to priority along their index, and so the most urgent of those that are due; what is locked is
# what is taken. Of very many priorities the last share the order in which they are due.
_PRIORITIES = 100
_PROMOTE = f"""
WITH RECURSIVE {CLOCK},
priorities (priority, place) AS (
    (SELECT priority, 1 FROM holdfast_jobs WHERE status = 'scheduled' ORDER BY priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT j.priority FROM holdfast_jobs AS j WHERE j.status = 'scheduled' AND j.priority < p.priority
        ORDER BY j.priority DESC LIMIT 1), p.place + 1
    FROM priorities AS p WHERE p.priority IS NOT NULL AND p.place < {_PRIORITIES})
UPDATE holdfast_jobs AS j SET status = 'pending', updated_at = clock.now
FROM clock WHERE j.seq = ANY (ARRAY(
    SELECT seq FROM (
        SELECT due.seq FROM priorities AS p CROSS JOIN LATERAL (
            SELECT seq FROM holdfast_jobs WHERE status = 'scheduled' AND priority = p.priority
                AND due_at <= (SELECT now FROM clock)
            ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS due
        UNION ALL
        SELECT seq FROM (
            SELECT seq FROM holdfast_jobs WHERE status = 'scheduled' AND due_at <= (SELECT now FROM clock)
                AND priority < (SELECT priority FROM priorities WHERE place = {_PRIORITIES})
            ORDER BY due_at LIMIT $2 FOR UPDATE SKIP LOCKED) AS others) AS urgent
    LIMIT $2))
RETURNING -j.priority, j.due_at, j.seq, j.id, j.type
"""

_KEEP_TAIL = """
INSERT INTO holdfast_logs (seq, host, length, tail)
SELECT seq, $4, $5, $6 FROM holdfast_jobs
WHERE seq = $1 AND status = 'processing' AND version = $2 AND worker_id = $3 FOR SHARE
ON CONFLICT (seq) DO UPDATE SET host = excluded.host, length = excluded.length, tail = excluded.tail
"""

_LEASED = """
SELECT seq, id, type, version, attempts, max_attempts, worker_id, lease_expires_at, started_at
FROM holdfast_jobs
"""
_EXPIRED = f"""
WITH {CLOCK}
{_LEASED} WHERE status = 'processing' AND lease_expires_at <= (SELECT now FROM clock)
ORDER BY lease_expires_at LIMIT 1000
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

_PAUSE = f"""
WITH {CLOCK}
INSERT INTO holdfast_pauses (type, paused_at) SELECT $2, clock.now FROM clock ON CONFLICT DO NOTHING
"""

_FEW = 1000
"""New jobs that are made ready in no time worth mentioning."""

_WAITING = frozenset({Status.PENDING, Status.SCHEDULED})

T = TypeVar("T")


class PostgresStore(Reads):
    """See Store in the protocol."""

    is_shared = True

    def __init__(self, database: Database) -> None:
        super().__init__(database)
        self.database = database
        self.url = database.url
        self.now = database.now
        self._limit_locks = claim.LimitLocks()
        self._count_check = tallies.CountCheck(database)

    def close(self) -> None:
        self.database.close()

    def close_thread(self) -> None:
        """Nothing: connections belong to no thread."""

    def close_idle(self) -> None:
        self.database.close_idle()

    def transaction(self) -> AbstractContextManager[Any]:
        return self.database.transaction(may_fail=True)

    @property
    def in_transaction(self) -> bool:
        return self.database.session is not None

    def watch(self, *, for_work: bool = False) -> PostgresWatch:
        return PostgresWatch(self.database, for_work=for_work)

    # Enqueue.

    def insert_jobs(
        self, jobs: Sequence[NewJob], *, atomic: bool = False, wait: bool = True
    ) -> list[Verdict]:
        how = insert.insert_all_or_none if atomic else insert.insert_jobs
        try:
            if atomic and len(jobs) > 1:
                return self._despite_others(lambda patience: self._insert(how, jobs, patience))
            return self._certainly(lambda: self._insert(how, jobs, LOCK_PATIENCE if wait else BRIEF))
        except StoreBusy as error:
            # Somebody's open transaction has one of the keys; that is no reason to refuse the others.
            if atomic or self.database.session is not None or all(map(_waits_for_nobody, jobs)):
                raise
            if len(jobs) == 1:
                return [Verdict(id=jobs[0].id, error=error)]
            return self._insert_apart(jobs, wait)

    def _insert(
        self, how: Callable[..., insert.Steps], jobs: Sequence[NewJob], patience: float
    ) -> list[Verdict]:
        is_plain = all(map(_waits_for_nobody, jobs))
        if is_plain and how is insert.insert_jobs and self.database.commits_alone and insert.is_one(jobs):
            self.database.refuse_nested()
            verdicts = insert.run(how(jobs, self.database.instant), self.database.write)
            self.database.notifier.touch()
            return verdicts
        bounds = SHORT if len(jobs) <= _FEW else BULK
        with self.database.transaction(bounds=bounds) as session:
            if not is_plain:
                session.wait_at_most(patience)
            verdicts = insert.run(how(jobs, self.database.instant, alone=True), session.rows)
            session.wakes = True
            return verdicts

    def _insert_apart(self, jobs: Sequence[NewJob], wait: bool) -> list[Verdict]:
        """Those that wait for nobody in one commit, each of the others in one of its own."""
        plain = [job for job in jobs if insert.is_plain(job)]
        insert_plain = partial(self._insert, insert.insert_jobs, plain, LOCK_PATIENCE)
        found = dict(zip(plain, self._certainly(insert_plain), strict=True)) if plain else {}
        return [found.get(job) or self.insert_jobs([job], wait=wait)[0] for job in jobs]

    def _despite_others(self, action: Callable[[float], T]) -> T:
        """Insert many keys at once. Whoever does the same in another order may wait for us while we wait for
        him, until one of us gives in: each after a time of its own, and tries again."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._certainly(lambda: action(uniform(0.2, 0.5)))
            except StoreBusy:
                if time.monotonic() >= deadline:
                    raise
            time.sleep(uniform(0.01, 0.1))

    def _certainly(self, action: Callable[[], T]) -> T:
        """Do what may be done twice, again if the connection breaks: a row of ours that did get through is
        known by its token. Once a commit was in doubt, nothing else is said of it but what became of it."""
        deadline = time.monotonic() + PATIENCE
        doubt: CommitUncertain | None = None
        trouble: StoreError | None = None
        pause = 0.02
        while True:
            try:
                return action()
            except (CommitUncertain, ConnectionLost) as error:
                trouble = error
                if isinstance(error, CommitUncertain):
                    doubt = doubt or error
            except StoreError as error:
                was_here = doubt is not None or (trouble is not None and not isinstance(error, StoreBusy))
                if not was_here:  # it was not to be had from the start
                    raise
                trouble = error
            if self.database.session is not None or time.monotonic() >= deadline:
                raise doubt or trouble
            time.sleep(pause)
            pause = min(2 * pause, 0.5)

    def insert_jobs_with(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        return caller.insert_with(connection, jobs, self.database)

    async def insert_jobs_awaiting(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        return await caller.insert_awaiting(connection, jobs, self.database)

    # The turn.

    def list_active_types(self, *, unpaused: bool = False) -> dict[str, Activity]:
        if self.database.session is None:
            self._count_check.make()
        sql = claim.UNPAUSED_TYPES if unpaused else claim.ACTIVE_TYPES
        try:
            active, additions = claim.activity_from(self.database.read(sql))
        except StoreUnavailable as error:  # so many additions that a role's statement_timeout was too short?
            if self.database.session is not None or not isinstance(error.__cause__, QueryCanceled):
                raise
            tallies.fold(self.database)
            active, additions = claim.activity_from(self.database.read(sql))
        if additions > tallies.LONG and self.database.session is None:
            with suppress(StoreError):
                tallies.fold(self.database)
        return active

    def claim_jobs(
        self, worker_id: str, demands: Sequence[Demand], *, limit: int, lease_seconds: float
    ) -> Claimed:
        if not demands or limit <= 0:
            return Claimed([])
        with self.database.transaction() as session:
            return claim.claim_jobs(
                session,
                worker_id,
                demands,
                self._limit_locks,
                limit=limit,
                lease_seconds=lease_seconds,
                now=self.database.instant,
            )

    def finish_jobs(self, finishes: Sequence[Finish]) -> dict[tuple[int, int], Status]:
        if not finishes:
            return {}
        with self.database.transaction() as session:
            ended = finish.finish_jobs(session, finishes, self.database.instant)
            session.wakes |= not _WAITING.isdisjoint(ended.values()) or any(f.children for f in finishes)
            return ended

    def finish_and_claim(
        self,
        finishes: Sequence[Finish],
        worker_id: str,
        demands: Sequence[Demand],
        *,
        limit: int,
        lease_seconds: float,
        meanwhile: Callable[[], None],
    ) -> tuple[dict[tuple[int, int], Status], Claimed]:
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

    def list_ended(self, attempts: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Status]:
        rows = self.database.read(
            finish.ENDED, [[seq for seq, _ in attempts], [version for _, version in attempts]]
        )
        return {(seq, version): Status(status) for seq, version, status in rows}

    def write_progress(
        self, worker_id: str, reports: Iterable[tuple[int, int, float, str | None]]
    ) -> Collection[int]:
        with self.database.transaction() as session:
            return keep.write_progress(session, worker_id, list(reports), self.database.instant)

    def write_log_tail(self, claim: Claim, tail: LogTail) -> None:
        with self.database.transaction() as session:
            session.rows(
                _KEEP_TAIL,
                [claim.seq, claim.version, claim.worker_id, tail.host, tail.length, tail.tail],
            )

    def promote_jobs(self, limit: int) -> list[tuple[str, str]]:
        with self.database.transaction() as session:
            promoted = sorted(session.rows(_PROMOTE, [self.database.instant, limit]))
            session.wakes |= bool(promoted)
            return [(id, type) for *_, id, type in promoted]

    def list_expired(self) -> list[Expired]:
        return [Expired(*row) for row in self.database.read(_EXPIRED, [self.database.instant])]

    def list_held(self, worker_id: str) -> list[Expired]:
        rows = self.database.read(f"{_LEASED} WHERE status = 'processing' AND worker_id = $1", [worker_id])
        return [Expired(*row) for row in rows]

    def prune_jobs(
        self,
        *,
        finished_before: int,
        statuses: Sequence[Status],
        limit: int,
        prune_pass: PrunePass | None = None,
    ) -> list[str]:
        with self.database.transaction() as session:
            return operate.prune_jobs(
                session, finished_before, statuses, limit, prune_pass or PrunePass(), self.database.instant
            )

    # Leases and workers.

    def heartbeat(
        self,
        worker_id: str,
        held: Sequence[tuple[int, int]],
        *,
        state: str,
        lease_seconds: float,
        turn_age: float = 0.0,
        patience: float = math.inf,
    ) -> Beat:
        with self.database.transaction() as session:
            # Not more patient than the lease allows: the worker must still have time to stop its handlers.
            session.wait_at_most(min(PATIENCE, lease_seconds / 6, patience))
            return keep.heartbeat(
                session, worker_id, held, state, turn_age, lease_seconds, self.database.instant
            )

    def suspect_jobs(self, claims: Sequence[tuple[int, int]]) -> None:
        """Nothing: no worker asks."""

    def list_unsuspected(
        self,
        worker_id: str,  # noqa: ARG002 -- whoever it is
        held: Sequence[tuple[int, int]],  # noqa: ARG002
    ) -> set[tuple[int, int]]:
        """None: what keeps one worker from writing need not keep others."""
        return set()

    def redate_leases(self, lease_seconds: float) -> None:
        with self.database.transaction() as session:
            keep.redate_leases(session, lease_seconds, self.database.instant)

    def list_cancelled(self, worker_id: str) -> set[tuple[int, int]]:
        return set(self.database.read(keep.CANCELLING, [worker_id]))

    def register_worker(self, worker: WorkerRecord, types: Sequence[TypeRecord]) -> None:
        with self.database.transaction() as session:
            keep.register_worker(session, worker, types, self.database.instant)

    def remove_workers(self, worker_ids: Sequence[str]) -> None:
        with self.database.transaction() as session:
            session.rows("DELETE FROM holdfast_workers WHERE id = ANY ($1::text[])", [list(worker_ids)])

    def remove_silent_workers(self, silent_seconds: float) -> list[str]:
        with self.database.transaction() as session:
            return keep.remove_silent_workers(session, silent_seconds, self.database.instant)

    def request_stop(self, worker_ids: Sequence[str], request: StopRequest) -> None:
        with self.database.transaction() as session:
            session.rows(
                "UPDATE holdfast_workers SET stop = greatest(stop, $1::integer) WHERE id = ANY ($2::text[])",
                [int(request), list(worker_ids)],
            )
            session.wakes = True

    def begin_attempt_transaction(self, claim: Claim, seconds: float) -> PostgresAttemptTransaction:
        return PostgresAttemptTransaction(self.database, claim, seconds)

    # Operating.

    def cancel_job(self, job_id: str) -> Job:
        with self.database.transaction() as session:
            operate.cancel_job(session, job_id, self.database.instant)
            session.wakes = True
            return self.known_job(job_id)

    def retry_job(self, job_id: str, payload: str | None, key: str | None = None) -> Job:
        with self.database.transaction() as session:
            operate.retry_job(session, job_id, payload, key, self.database.instant)
            session.wakes = True
            return self.known_job(job_id)

    def retry_failed_jobs(
        self, type: str | None, *, after: int, limit: int
    ) -> tuple[int, list[tuple[str, str]], int | None]:
        with self.database.transaction() as session:
            session.wakes = True
            return operate.retry_failed_jobs(session, type, after, limit, self.database.instant)

    def delete_job(self, job_id: str) -> None:
        with self.database.transaction() as session:
            operate.delete_job(session, job_id)

    # Reading.

    def read_log_tail(self, job_id: str) -> LogTail | None:
        row = self.database.read_one(
            "SELECT l.host, l.length, l.tail FROM holdfast_logs AS l JOIN holdfast_jobs AS j ON j.seq = l.seq"
            " WHERE j.id = $1",
            [job_id],
        )
        return LogTail(*row) if row else None

    def list_children(self, parent_id: str) -> list[str]:
        rows = self.database.read(
            "SELECT id FROM holdfast_jobs WHERE parent_id = $1"
            " UNION SELECT id FROM holdfast_links AS l JOIN holdfast_jobs ON id = l.child_id"
            " WHERE l.parent_id = $1",
            [parent_id],
        )
        return sorted(row[0] for row in rows)

    def line_before(self, job_id: str, cap: int) -> Line:
        count = self.database.read_one(_LINE, [job_id, cap + 1])[0]
        return Line(min(count, cap), count > cap)

    # Care.

    def check_place(self) -> None:
        """Nothing: a server's connections break when its database goes."""

    def back_up(self, path: str) -> None:
        from holdfast.store.postgres import transfer

        transfer.back_up(self, path)

    def measure(self) -> dict[str, float]:
        return health.measure(self.database)

    def examine(self) -> list[Finding]:
        return health.examine(self.database)

    def write_reconciliation(self, report: str) -> None:
        with self.database.transaction() as session:
            session.rows(
                "INSERT INTO holdfast_reconciliation (number, report) VALUES (1, $1)"
                " ON CONFLICT (number) DO UPDATE SET report = excluded.report",
                [report],
            )

    # Settings, pauses, statistics.

    def set_setting(self, name: str, type: str, value: Value) -> None:
        with self.database.transaction() as session:
            session.rows(
                "INSERT INTO holdfast_settings (name, type, value) VALUES ($1, $2, $3)"
                " ON CONFLICT (name, type) DO UPDATE SET value = excluded.value",
                [name, type, json.dumps(value)],
            )
            session.wakes = True

    def unset_setting(self, name: str, type: str) -> bool:
        with self.database.transaction() as session:
            session.wakes = True
            return bool(
                session.count("DELETE FROM holdfast_settings WHERE name = $1 AND type = $2", [name, type])
            )

    def set_paused(self, type: str, paused: bool) -> None:
        with self.database.transaction() as session:
            session.wakes = True
            if paused:
                session.rows(_PAUSE, [self.database.instant, type])
                session.afterwards.append(lambda: claim.outlast_claims(self.database))
            else:
                session.rows("DELETE FROM holdfast_pauses WHERE type = $1", [type])

    def get_rate_wait(self, name: str, rate: float) -> float:
        row = self.database.read_one(
            "SELECT tokens, refilled_at FROM holdfast_limits WHERE name = $1 AND refilled_at >= 0",
            [claim.rate_row(name)],
        )
        return Bucket(*row).refill(rate, self.now()).seconds_until_next(rate) if row else 0.0

    def write_statistics(self, minutes: Sequence[Minute]) -> None:
        with self.database.transaction() as session:
            keep.write_statistics(session, minutes)

    def fold_hours(self, before_minute: int) -> None:
        with self.database.transaction() as session:
            keep.fold_hours(session, before_minute)

    def fold_statistics(self, before_minute: int) -> None:
        with self.database.transaction() as session:
            keep.fold_statistics(session, before_minute)


def _waits_for_nobody(job: NewJob) -> bool:
    """Whether nobody else who enqueues can be in its way: it has no key, a new id, and no max_depth."""
    return insert.is_plain(job) and job.max_depth is None
