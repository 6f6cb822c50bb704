"""The SQLite store: what is specific to this engine."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any

from holdfast.core.clock import Clock
from holdfast.core.starting import Head, Usage
from holdfast.errors import CommitUncertain
from holdfast.store.protocol import Store
from holdfast.store.records import Claim, Finding, NewJob, Verdict
from holdfast.store.sqlite import caller, claim, finish, insert, leases, operate, promote
from holdfast.store.sqlite.connection import as_json
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.errors import is_locked, raise_if_moved
from holdfast.store.sqlite.waiting import OLDEST
from holdfast.store.sqlite.watch import SqliteWatch

if TYPE_CHECKING:
    from holdfast.store.sqlite.attempt import SqliteAttemptTransaction

_AHEAD = """
SELECT count(*) FROM (
    SELECT 1 FROM holdfast_jobs AS other JOIN holdfast_jobs AS mine ON mine.id = ?1
    WHERE other.status = 'pending' AND other.type = mine.type AND other.priority >= mine.priority
        AND (other.priority > mine.priority OR other.seq < mine.seq) LIMIT ?2)
"""


class SqliteStore(Store):
    """See Store in the protocol."""

    is_shared = False

    _finish_jobs = staticmethod(finish.finish_jobs)
    _write_progress = staticmethod(leases.write_progress)
    _promote_jobs = staticmethod(promote.promote_jobs)
    _prune_jobs = staticmethod(operate.prune_jobs)
    _heartbeat = staticmethod(leases.heartbeat)
    _suspect_jobs = staticmethod(leases.suspect_jobs)
    _cancel_job = staticmethod(operate.cancel_job)
    _retry_job = staticmethod(operate.retry_job)
    _retry_failed_jobs = staticmethod(operate.retry_failed_jobs)
    _delete_job = staticmethod(operate.delete_job)
    _count_ahead = _AHEAD
    _oldest = OLDEST

    def __init__(self, database: Database, clock: Clock) -> None:
        self.database: Database = database
        self.now = clock
        self._claim_jobs = claim.Claiming().claim_jobs

    def close_thread(self) -> None:
        self.database.close_thread()

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

    def list_heads(self, apart: Collection[str] = ()) -> list[Head]:
        if "" in apart:
            return []
        if apart:
            return claim.heads_from(self.database.read_one(claim.HEADS_APART, (as_json([*apart]),))[0])
        return claim.heads_from(self.database.read_one(claim.HEADS)[0])

    def read_usage(self) -> Usage:
        return claim.read_usage(self.database)

    # Leases.

    def list_unsuspected(
        self,
        worker_id: str,
        held: Sequence[tuple[int, int]],
        *,
        patience: float,  # noqa: ARG002 -- no lock keeps a read waiting
    ) -> set[tuple[int, int]]:
        rows = (as_json(held), worker_id)
        return leases.claims_from(self.database.read_one(leases.UNSUSPECTED, rows)[0])

    def list_cancelled(self, worker_id: str) -> set[tuple[int, int]]:
        return leases.claims_from(self.database.read_one(leases.CANCELLING, (worker_id,))[0])

    def begin_attempt_transaction(self, claim: Claim, seconds: float) -> SqliteAttemptTransaction:
        from holdfast.store.sqlite.attempt import SqliteAttemptTransaction

        return SqliteAttemptTransaction(self.database, claim, seconds, self.now)

    # Care.

    def check_place(self) -> None:
        self.database.file.check()

    def back_up(self, path: str) -> None:
        """With VACUUM INTO: opening the file itself, as cp does, would drop our locks on it."""
        from holdfast.store.backup import make_copy

        make_copy(path, lambda part: self.database.read("VACUUM INTO ?", (part,)))

    def measure(self) -> dict[str, float]:
        return {"wal_bytes": self.database.file.wal_bytes()}

    def examine(self) -> list[Finding]:
        from holdfast.store.sqlite import health

        return health.examine(self.database)
