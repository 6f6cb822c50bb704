"""The part of a store that writes: each operation in a transaction of its own, or in the one around it.

What is the same SQL on every engine is here. The rest calls the engine's own function in the transaction.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from holdfast.config import Value
from holdfast.core.clock import microseconds
from holdfast.core.job import Job, Status
from holdfast.core.settings import Settings
from holdfast.store import names, statistics
from holdfast.store.database import PATIENCE, Session
from holdfast.store.prune import PrunePass
from holdfast.store.reads import Reads
from holdfast.store.records import (
    Answer,
    Beat,
    Claimed,
    Demand,
    Finish,
    Minute,
    StopRequest,
    TypeRecord,
    WorkerRecord,
)
from holdfast.store.rows import TYPE, WORKER
from holdfast.store.workers import (
    FORGET_SILENT,
    KNOW_TYPE,
    REDATE,
    REDATE_WORKERS,
    REGISTER,
    REGISTERED,
)

Ended = dict[tuple[int, int], Status]
Retried = tuple[int, list[tuple[str, str]], int | None]

_PAUSE = """
WITH {clock}
INSERT INTO holdfast_pauses (type, paused_at) SELECT ?2, clock.now FROM clock WHERE true
ON CONFLICT DO NOTHING
"""


# In the transaction of each change of a setting or a pause: claims that don't know of it are refused.
_CHANGED = "UPDATE holdfast_schema SET settings_version = settings_version + 1"


class Writes(Reads):
    """The writing half of a Store; see the protocol."""

    # What each engine does in its own way; the first argument is the session of the open transaction.
    _claim_jobs: Callable[..., Claimed]
    _finish_jobs: Callable[..., Ended]
    _write_progress: Callable[..., Collection[int]]
    _promote_jobs: Callable[..., list[tuple[str, str]]]
    _prune_jobs: Callable[..., list[str]]
    _heartbeat: Callable[..., Beat]
    _suspect_jobs: Callable[..., set[tuple[int, int]]]
    _cancel_job: Callable[..., None]
    _retry_job: Callable[..., None]
    _retry_failed_jobs: Callable[..., Retried]
    _delete_job: Callable[..., None]

    @property
    def url(self) -> str:
        return self.database.url

    def _worded(self, sql: str) -> str:
        """SQL in the engine's dialect."""
        words = self.database
        return sql.format(
            clock=words.clock,
            by_leases=words.by_index("holdfast_jobs_leased"),
            skip_locked_jobs=words.skip_locked("j", "seq"),
            skip_locked_workers=words.skip_locked("o", "id"),
        )

    def close(self) -> None:
        self.database.close()

    def transaction(self) -> AbstractContextManager[Any]:
        """Run several writes of this thread in one commit; nested use joins the open one."""
        return self.database.transaction()

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside one."""
        return self.database.in_transaction

    # The turn.

    def claim_jobs(
        self,
        worker_id: str,
        demands: Sequence[Demand],
        settings: Settings | None = None,
        *,
        limit: int,
        lease_seconds: float,
        alone: bool = False,
    ) -> Claimed:
        """Take pending jobs: by priority, then in the order they came, within every limit and pause.

        The settings say which hold, by default those that are stored. With `alone`, a job that has to run
        alone comes first, and nothing else with it.
        """
        if not demands or limit <= 0:
            return Claimed([])
        with self.database.transaction() as session:
            return self._claim_jobs(
                session,
                worker_id,
                demands,
                settings or self._stored_settings(),
                limit=limit,
                lease_seconds=lease_seconds,
                alone=alone,
                now=self._instant(),
            )

    def _stored_settings(self) -> Settings:
        """What holds where no code says anything else."""
        stored = self.read_settings()
        return Settings(stored.values, paused=stored.paused, version=stored.version)

    def finish_jobs(self, finishes: Sequence[Finish]) -> Ended:
        """Write the outcomes of attempts; return the state each accepted one led to, by (seq, version).

        An attempt that no longer owns its job is left out, not raised: another worker owns that job now. One
        that would have to wait for another open transaction, for its job or for its children, stays
        PROCESSING and has to be offered again.
        """
        if not finishes:
            return {}
        with self.database.transaction() as session:
            return self._finish_jobs(session, finishes, self._instant())

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
        is_whole: bool = False,  # noqa: ARG002
    ) -> Iterator[Answer]:
        """Both, without a pause between them if the ends are plain completions.

        The answer is there at the end of the block. Where there is a server, it is at work meanwhile, and the
        block can't use this thread's connection. If this `is_whole`, the whole of a transaction, the server
        may commit it meanwhile, whatever becomes of the block.
        """
        answer = Answer()
        with self.database.transaction():
            yield answer
            answer.ended = self.finish_jobs(finishes)
            answer.claimed = self.claim_jobs(
                worker_id, demands, settings, limit=limit, lease_seconds=lease_seconds
            )

    def write_progress(
        self, worker_id: str, reports: Iterable[tuple[int, int, float, str | None]]
    ) -> Collection[int]:
        """Note (seq, version, fraction, message) of attempts that still hold their jobs.

        Returns the seqs of those that would have to wait for an open transaction: to be offered again.
        """
        with self.database.transaction() as session:
            return self._write_progress(session, worker_id, list(reports), self._instant())

    def promote_jobs(self, limit: int) -> list[tuple[str, str]]:
        """Make due jobs pending, the most urgent first; return their (id, type)."""
        with self.database.transaction() as session:
            promoted = self._promote_jobs(session, limit, self._instant())
            session.wakes |= bool(promoted)
            return promoted

    def prune_jobs(
        self,
        *,
        finished_before: int,
        statuses: Sequence[Status],
        limit: int,
        prune_pass: PrunePass | None = None,
    ) -> list[str]:
        """Delete up to `limit` finished jobs, but none that still holds its key; return their ids.

        A bounded number of jobs is read, so fewer than `limit` may be found before the pass is over.
        """
        with self.database.transaction() as session:
            return self._prune_jobs(
                session, finished_before, statuses, limit, prune_pass or PrunePass(), self._instant()
            )

    # Leases and workers.

    def heartbeat(
        self,
        worker_id: str,
        held: Sequence[tuple[int, int]],
        *,
        state: str,
        lease_seconds: float,
        started: Collection[tuple[int, int]] = frozenset(),
        turn_age: float = 0.0,
        patience: float = math.inf,
    ) -> Beat:
        """Renew the leases of the (seq, version) held, and show that the worker lives.

        For those `started` it is noted that their handlers have begun.

        Its loop last came round `turn_age` seconds ago. It waits for a lock as long as the lease allows, but
        not longer than `patience`.
        """
        # Not more patient than the lease allows: the worker must still have time to stop its handlers.
        with self.database.transaction(patience=min(PATIENCE, lease_seconds / 6, patience)) as session:
            return self._heartbeat(
                session, worker_id, held, started, state, turn_age, lease_seconds, self._instant()
            )

    def suspect_jobs(self, claims: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Mark these (seq, version), whose leases a reaper has seen expired; return those that are marked.

        A renewal removes the mark. What is not marked, its owner can't know about: a lease that was renewed
        in between, or a job that another transaction has locked.
        """
        with self.database.transaction() as session:
            return self._suspect_jobs(session, claims, self._instant())

    def redate_leases(self, lease_seconds: float) -> None:
        """Let leases and heartbeats from the future begin now: the clock has been set back since.

        The leases that are meant reach further ahead than `lease_seconds`, and their workers were last heard
        of (or, where those are forgotten, their claims were made) in the future. The living renew anyway.
        """
        with self.database.transaction() as session:
            session.rows(self._worded(REDATE), [self._instant(), microseconds(lease_seconds)])
            session.rows(self._worded(REDATE_WORKERS), [self._instant()])

    def register_worker(self, worker: WorkerRecord, types: Sequence[TypeRecord]) -> None:
        told = dict(zip(WORKER.names, WORKER.row(worker), strict=True))
        with self.database.transaction() as session:
            session.rows(self._worded(REGISTER), [self._instant(), *(told[name] for name in REGISTERED)])
            session.each(KNOW_TYPE, [TYPE.row(each) for each in sorted(types, key=lambda each: each.type)])

    def remove_workers(self, worker_ids: Sequence[str]) -> None:
        with self.database.transaction() as session:
            session.rows(
                f"DELETE FROM holdfast_workers WHERE id {self.database.among_texts}",
                [json.dumps(list(worker_ids))],
            )

    def remove_silent_workers(self, silent_seconds: float) -> list[str]:
        """Forget workers that have been silent for this long and hold no job."""
        with self.database.transaction() as session:
            parameters = [self._instant(), microseconds(silent_seconds)]
            return [row[0] for row in session.rows(self._worded(FORGET_SILENT), parameters)]

    def request_stop(self, worker_ids: Sequence[str], request: StopRequest) -> None:
        """Ask workers to stop, wherever they run; a weaker request doesn't replace a stronger one."""
        with self.database.transaction() as session:
            session.rows(
                f"UPDATE holdfast_workers SET stop = ? WHERE stop < ? AND id {self.database.among_texts}",
                [int(request), int(request), json.dumps(list(worker_ids))],
            )
            session.wakes = True

    # Operating.

    def cancel_job(self, job_id: str) -> Job:
        """Cancel a waiting job now, or ask the worker of a running one."""
        return self._change_job(self._cancel_job, job_id)

    def retry_job(self, job_id: str, payload: str | None, key: str | None = None) -> Job:
        """Make a job pending again, with another payload and key if they are given."""
        return self._change_job(self._retry_job, job_id, payload, key)

    def _change_job(self, change: Callable[..., None], job_id: str, *given: str | None) -> Job:
        with self.database.transaction() as session:
            change(session, job_id, *given, self._instant())
            session.wakes = True
            job = self.get_job(job_id)
            assert job is not None  # or it would have been refused
            return job

    def retry_failed_jobs(self, type: str | None, *, after: int, limit: int) -> Retried:
        """Retry up to `limit` failed jobs whose `seq` is above `after`, except those whose key is held.

        Returns how many were examined, the (id, type) of those retried, and where to continue, or None.
        """
        with self.database.transaction() as session:
            session.wakes = True
            return self._retry_failed_jobs(session, type, after, limit, self._instant())

    def delete_job(self, job_id: str) -> None:
        with self.database.transaction() as session:
            self._delete_job(session, job_id)

    # Settings, pauses, statistics, the last reconciliation.

    def set_setting(self, name: str, type: str, value: Value) -> None:
        with self.database.transaction() as session:
            session.rows(
                "INSERT INTO holdfast_settings (name, type, value) VALUES (?, ?, ?)"
                " ON CONFLICT (name, type) DO UPDATE SET value = excluded.value",
                [name, type, json.dumps(value)],
            )
            session.rows(_CHANGED)
            session.wakes = True

    def unset_setting(self, name: str, type: str) -> bool:
        with self.database.transaction() as session:
            session.wakes = True
            session.rows(_CHANGED)
            return (
                session.count("DELETE FROM holdfast_settings WHERE name = ? AND type = ?", [name, type]) > 0
            )

    def set_paused(self, type: str, paused: bool) -> None:
        with self.database.transaction() as session:
            session.wakes = True
            session.rows(_CHANGED)
            if paused:
                session.rows(self._worded(_PAUSE), [self._instant(), type])
            else:
                session.rows("DELETE FROM holdfast_pauses WHERE type = ?", [type])

    def write_statistics(self, minutes: Sequence[Minute]) -> None:
        """Replace a worker's own rows by their new sums."""
        with self.database.transaction() as session:
            statistics.write(session, minutes)

    def fold_statistics(
        self, *, hours_before: int, lifetime_before: int, begin: statistics.Key = statistics.FIRST
    ) -> statistics.Key | None:
        """Fold a portion of the rows older than `hours_before` into one row per type and hour, dated at its
        first minute, and those of hours before `lifetime_before` into one lifetime row per type.

        The rows from `begin` on; returns where to continue, or None.
        """
        with self.database.transaction() as session:
            if not self._may_fold(session):
                return None
            elements = self.database.elements
            return statistics.fold(session, elements, begin, hours_before, lifetime_before)

    def forget_names(self) -> bool:
        """Forget types that have no jobs left, and rate limits that nothing has started under for long.

        Returns whether there may be more of them.
        """
        with self.database.transaction() as session:
            if not self._may_fold(session):
                return False
            if self._forget_types(session):
                return True
            names.forget_limits(session, self.now(), self.database.skip_locked("l", "name"))
            return False

    def _forget_types(self, session: Session) -> bool:
        return names.forget_types(session, self.database.among_texts)

    def forget_statistics(self, after: str = "") -> str | None:
        """Fold a portion of the lifetime rows of forgotten types, if all their statistics are that old.

        Those of the types after the given one; returns the one after which to continue, or None.
        """
        with self.database.transaction() as session:
            if not self._may_fold(session):
                return None
            return statistics.forget(session, self.database.elements, after)

    def _may_fold(self, _session: Session) -> bool:
        """Whether nobody else adds up the same rows."""
        return True

    def write_reconciliation(self, report: str) -> None:
        """Keep the report of the last reconciliation."""
        with self.database.transaction() as session:
            session.rows(
                "INSERT INTO holdfast_reconciliation (number, report) VALUES (1, ?)"
                " ON CONFLICT (number) DO UPDATE SET report = excluded.report",
                [report],
            )
