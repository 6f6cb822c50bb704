"""The SQLite store: each operation of the protocol in a transaction of its own, or in the one around it."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from holdfast.config import Value
from holdfast.core.clock import Clock, microseconds
from holdfast.core.job import Job, Status
from holdfast.core.rate_limit import Bucket
from holdfast.errors import CommitUncertain
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
from holdfast.store.sqlite import caller, claim, finish, insert, keep, operate
from holdfast.store.sqlite.database import PATIENCE, Database, is_locked, raise_if_moved
from holdfast.store.sqlite.watch import SqliteWatch

if TYPE_CHECKING:
    from holdfast.store.sqlite.attempt import SqliteAttemptTransaction

# From priority to priority along their index, and so the most urgent of those that are due. Of very many
# priorities the last share the order in which they are due.
MOST_URGENT = """
WITH RECURSIVE priorities (priority) AS (
    VALUES (9223372036854775807)
    UNION ALL
    SELECT (SELECT j.priority FROM holdfast_jobs AS j WHERE j.status = 'scheduled' AND j.priority < p.priority
        ORDER BY j.priority DESC LIMIT 1)
    FROM priorities AS p WHERE p.priority IS NOT NULL LIMIT 100)
SELECT json_group_array(json_array(seq, id, type)) FROM (
    SELECT j.seq, j.id, j.type FROM priorities AS p CROSS JOIN holdfast_jobs AS j
    WHERE j.status = 'scheduled' AND j.priority = p.priority AND j.due_at <= ?
    LIMIT ?)
"""
FIRST_DUE = """
SELECT json_group_array(json_array(seq, id, type)) FROM (
    SELECT seq, id, type FROM holdfast_jobs WHERE status = 'scheduled' AND due_at <= ?
    ORDER BY due_at LIMIT ?)
"""

_LEASED = """
SELECT seq, id, type, version, attempts, max_attempts, worker_id, lease_expires_at, started_at
FROM holdfast_jobs WHERE status = 'processing' AND
"""
EXPIRED = f"{_LEASED} lease_expires_at <= ? ORDER BY lease_expires_at LIMIT 1000"

_LINE = """
SELECT count(*) FROM (
    SELECT 1 FROM holdfast_jobs AS other JOIN holdfast_jobs AS mine ON mine.id = ?1
    WHERE other.status = 'pending' AND other.type = mine.type AND other.priority >= mine.priority
        AND (other.priority > mine.priority OR other.seq < mine.seq) LIMIT ?2)
"""


class SqliteStore(Reads):
    """See Store in the protocol."""

    is_shared = False

    def __init__(self, database: Database, clock: Clock) -> None:
        super().__init__(database)
        self.database = database
        self.url = database.url
        self.now = clock

    def close(self) -> None:
        self.database.close()

    def close_thread(self) -> None:
        self.database.close_thread()

    def close_idle(self) -> None:
        """Nothing: there are as many connections as anybody wants."""

    def transaction(self) -> AbstractContextManager[Any]:
        return self.database.transaction()

    @property
    def in_transaction(self) -> bool:
        return self.database.in_transaction

    def watch(self, *, for_work: bool = False) -> SqliteWatch:  # noqa: ARG002 -- it wakes for both
        return SqliteWatch(self.database)

    # Enqueue.

    def insert_jobs(
        self,
        jobs: Sequence[NewJob],
        *,
        atomic: bool = False,
        wait: bool = True,  # noqa: ARG002 -- whoever writes has the lock to himself
    ) -> list[Verdict]:
        how = insert.insert_all_or_none if atomic else insert.insert_jobs
        try:
            with self.database.transaction() as connection:
                return how(connection, jobs, self.now())
        except CommitUncertain:
            # Once more: a row of ours that did get through is known by its token.
            with self.database.transaction() as connection:
                return how(connection, jobs, self.now())

    def insert_jobs_with(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        self.database.file.check()
        try:
            return insert.insert_all_or_none(caller.checked(connection, self.database), jobs, self.now())
        except sqlite3.IntegrityError as error:
            raise_if_moved(error)
            raise
        except sqlite3.OperationalError as error:
            if is_locked(error):
                error.add_note(caller.LOCKED)
            raise

    async def insert_jobs_awaiting(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        return self.insert_jobs_with(connection, jobs)  # which says what connections it takes

    # The turn.

    def list_active_types(self, *, unpaused: bool = False) -> dict[str, Activity]:
        text = self.database.read_one(claim.UNPAUSED_TYPES if unpaused else claim.ACTIVE_TYPES)[0]
        return claim.activity_from(text)

    def claim_jobs(
        self, worker_id: str, demands: Sequence[Demand], *, limit: int, lease_seconds: float
    ) -> Claimed:
        if not demands or limit <= 0:
            return Claimed([])
        with self.database.transaction() as connection:
            return claim.claim_jobs(
                connection, worker_id, demands, limit=limit, lease_seconds=lease_seconds, now=self.now()
            )

    def finish_jobs(self, finishes: Sequence[Finish]) -> dict[tuple[int, int], Status]:
        if not finishes:
            return {}
        with self.database.transaction() as connection:
            return finish.finish_jobs(connection, finishes, self.now())

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
        with self.database.transaction():
            meanwhile()
            ended = self.finish_jobs(finishes)
            return ended, self.claim_jobs(worker_id, demands, limit=limit, lease_seconds=lease_seconds)

    def list_ended(self, attempts: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Status]:
        rows = self.database.read(finish.ENDED, (json.dumps(attempts),))
        return {(seq, version): Status(status) for seq, version, status in rows}

    def write_progress(
        self, worker_id: str, reports: Iterable[tuple[int, int, float, str | None]]
    ) -> Collection[int]:
        with self.database.transaction() as connection:
            keep.write_progress(connection, worker_id, list(reports), self.now())
        return ()

    def write_log_tail(self, claim: Claim, tail: LogTail) -> None:
        """Nothing: whoever can read this file can read the log files beside it."""

    def promote_jobs(self, limit: int) -> list[tuple[str, str]]:
        promoted: list[tuple[str, str]] = []
        with self.database.transaction() as connection:
            for sql in (MOST_URGENT, FIRST_DUE):
                room = limit - len(promoted)
                text = connection.execute(sql, (self.now(), room)).fetchone()[0] if room else "[]"
                rows = json.loads(text)
                if rows:
                    connection.execute(
                        "UPDATE holdfast_jobs SET status = 'pending', updated_at = ?"
                        " WHERE seq IN (SELECT value FROM json_each(?)) AND +status = 'scheduled'",
                        (self.now(), json.dumps([row[0] for row in rows])),
                    )
                promoted += [(id, type) for _, id, type in rows]
        return promoted

    def list_expired(self) -> list[Expired]:
        return [Expired(*row) for row in self.database.read(EXPIRED, (self.now(),))]

    def list_held(self, worker_id: str) -> list[Expired]:
        return [Expired(*row) for row in self.database.read(f"{_LEASED} worker_id = ?", (worker_id,))]

    def prune_jobs(
        self,
        *,
        finished_before: int,
        statuses: Sequence[Status],
        limit: int,
        prune_pass: PrunePass | None = None,
    ) -> list[str]:
        with self.database.transaction() as connection:
            return operate.prune_jobs(
                connection, finished_before, statuses, limit, prune_pass or PrunePass(), self.now()
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
        # Not more patient than the lease allows: the worker must still have time to stop its handlers.
        with self.database.transaction(min(PATIENCE, lease_seconds / 6, patience)) as connection:
            now = self.now()
            turned_at = now - microseconds(turn_age)
            return keep.heartbeat(connection, worker_id, held, state, turned_at, lease_seconds, now)

    def suspect_jobs(self, claims: Sequence[tuple[int, int]]) -> None:
        with self.database.transaction() as connection:
            keep.suspect_jobs(connection, claims, self.now())

    def list_unsuspected(self, worker_id: str, held: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        rows = (json.dumps(held), worker_id)
        return keep.claims_from(self.database.read_one(keep.UNSUSPECTED, rows)[0])

    def redate_leases(self, lease_seconds: float) -> None:
        with self.database.transaction() as connection:
            keep.redate_leases(connection, lease_seconds, self.now())

    def list_cancelled(self, worker_id: str) -> set[tuple[int, int]]:
        return keep.claims_from(self.database.read_one(keep.CANCELLING, (worker_id,))[0])

    def register_worker(self, worker: WorkerRecord, types: Sequence[TypeRecord]) -> None:
        with self.database.transaction() as connection:
            keep.register_worker(connection, worker, types, self.now())

    def remove_workers(self, worker_ids: Sequence[str]) -> None:
        with self.database.transaction() as connection:
            connection.executemany("DELETE FROM holdfast_workers WHERE id = ?", [(id,) for id in worker_ids])

    def remove_silent_workers(self, silent_seconds: float) -> list[str]:
        with self.database.transaction() as connection:
            return keep.remove_silent_workers(connection, self.now() - microseconds(silent_seconds))

    def request_stop(self, worker_ids: Sequence[str], request: StopRequest) -> None:
        with self.database.transaction() as connection:
            connection.executemany(
                "UPDATE holdfast_workers SET stop = max(stop, ?) WHERE id = ?",
                [(int(request), id) for id in worker_ids],
            )

    def begin_attempt_transaction(self, claim: Claim, seconds: float) -> SqliteAttemptTransaction:
        from holdfast.store.sqlite.attempt import SqliteAttemptTransaction

        return SqliteAttemptTransaction(self.database, claim, seconds, self.now)

    # Operating.

    def cancel_job(self, job_id: str) -> Job:
        with self.database.transaction() as connection:
            operate.cancel_job(connection, job_id, self.now())
            return self.known_job(job_id)

    def retry_job(self, job_id: str, payload: str | None, key: str | None = None) -> Job:
        with self.database.transaction() as connection:
            operate.retry_job(connection, job_id, payload, key, self.now())
            return self.known_job(job_id)

    def retry_failed_jobs(
        self, type: str | None, *, after: int, limit: int
    ) -> tuple[int, list[tuple[str, str]], int | None]:
        with self.database.transaction() as connection:
            return operate.retry_failed_jobs(connection, type, after, limit, self.now())

    def delete_job(self, job_id: str) -> None:
        with self.database.transaction() as connection:
            operate.delete_job(connection, job_id)

    # Reading.

    def read_log_tail(self, job_id: str) -> LogTail | None:  # noqa: ARG002 -- there is none
        return None

    def list_children(self, parent_id: str) -> list[str]:
        rows = self.database.read(
            "SELECT id FROM holdfast_jobs WHERE parent_id = ?1"
            " UNION SELECT id FROM holdfast_links JOIN holdfast_jobs ON id = child_id"
            " WHERE holdfast_links.parent_id = ?1",
            (parent_id,),
        )
        return sorted(row[0] for row in rows)

    def line_before(self, job_id: str, cap: int) -> Line:
        count = self.database.read_one(_LINE, (job_id, cap + 1))[0]
        return Line(min(count, cap), count > cap)

    # Care.

    def check_place(self) -> None:
        self.database.file.check()

    def back_up(self, path: str) -> None:
        from holdfast.store.sqlite import health

        health.back_up(self.database, path)

    def measure(self) -> dict[str, float]:
        return {"wal_bytes": self.database.file.wal_bytes()}

    def examine(self) -> list[Finding]:
        from holdfast.store.sqlite import health

        return health.examine(self.database)

    def write_reconciliation(self, report: str) -> None:
        with self.database.transaction() as connection:
            connection.execute(
                "REPLACE INTO holdfast_reconciliation (number, report) VALUES (1, ?)", (report,)
            )

    # Settings, pauses, statistics.

    def set_setting(self, name: str, type: str, value: Value) -> None:
        with self.database.transaction() as connection:
            connection.execute(
                "REPLACE INTO holdfast_settings (name, type, value) VALUES (?, ?, ?)",
                (name, type, json.dumps(value)),
            )

    def unset_setting(self, name: str, type: str) -> bool:
        with self.database.transaction() as connection:
            deleted = connection.execute(
                "DELETE FROM holdfast_settings WHERE name = ? AND type = ?", (name, type)
            )
            return deleted.rowcount > 0

    def set_paused(self, type: str, paused: bool) -> None:
        with self.database.transaction() as connection:
            if paused:
                connection.execute(
                    "INSERT INTO holdfast_pauses (type, paused_at) VALUES (?, ?) ON CONFLICT DO NOTHING",
                    (type, self.now()),
                )
            else:
                connection.execute("DELETE FROM holdfast_pauses WHERE type = ?", (type,))

    def get_rate_wait(self, name: str, rate: float) -> float:
        row = self.database.read_one(
            "SELECT tokens, refilled_at FROM holdfast_limits WHERE name = ?", (name,)
        )
        return Bucket(*row).refill(rate, self.now()).seconds_until_next(rate) if row else 0.0

    def write_statistics(self, minutes: Sequence[Minute]) -> None:
        with self.database.transaction() as connection:
            keep.write_statistics(connection, minutes)

    def fold_hours(self, before_minute: int) -> None:
        with self.database.transaction() as connection:
            keep.fold_hours(connection, before_minute)

    def fold_statistics(self, before_minute: int) -> None:
        with self.database.transaction() as connection:
            keep.fold_statistics(connection, before_minute)
