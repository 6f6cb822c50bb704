"""Looking at jobs, workers and the whole queue."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from msgspec.structs import replace

from holdfast.core import check
from holdfast.core.clock import MINUTE, microseconds, to_datetime
from holdfast.core.filter import COUNTED, Filter, FilterWords, StatusWord, as_filter
from holdfast.core.job import Job, Status, could_be_id, require_possible_id
from holdfast.durations import Duration
from holdfast.errors import JobNotFound
from holdfast.listing import pages as listing
from holdfast.listing.pages import Page
from holdfast.queue.opened import OpenQueue
from holdfast.store.protocol import Watch
from holdfast.store.records import (
    RESTARTING,
    ErrorGroup,
    Finding,
    GroupActivity,
    LogTail,
    Minute,
    ReusedKey,
    Running,
    TypeRecord,
    Waiting,
    WorkerRecord,
)

if TYPE_CHECKING:
    from holdfast.core.explain import Reason


class Reading(OpenQueue):
    """Reading jobs, workers and the queue."""

    async def get_async(self, job_id: str) -> Job | None:
        """`get` for asyncio: the event loop is not blocked."""
        return await self._threads.run(partial(self.get, job_id))

    def get_many(self, job_ids: Iterable[str]) -> list[Job]:
        """The jobs that exist, in the order given, without payload, result and history."""
        possible = _possible(job_ids)
        found = {job.id: self._with_limit(job) for job in self._store.get_jobs(possible)}
        return [found[job_id] for job_id in dict.fromkeys(possible) if job_id in found]

    def get_whole(self, job_ids: Iterable[str], most: int = sys.maxsize) -> list[Job]:
        """The same with payload, result and history.

        Returns the first jobs, up to `most` characters in total, but at least one.
        """
        characters = check.whole_number("most", most, range(sys.maxsize + 1))
        return [self._with_limit(job) for job in self._store.get_whole_jobs(_possible(job_ids), characters)]

    def require_brief(self, job_id: str) -> Job:
        """The job without payload, result and history. Raises JobNotFound if there is none."""
        for job in self.get_many([job_id]):
            return job
        raise JobNotFound(job_id)

    def jobs(
        self,
        *,
        status: StatusWord | Iterable[StatusWord] | None = None,
        type: str | None = None,
        group: str | None = None,
        parent_id: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> list[Job]:
        """Jobs, newest first, without their history."""
        return self.page(
            status=status, type=type, group=group, parent_id=parent_id, limit=limit, offset=offset
        ).jobs

    def page(
        self,
        filter: Filter | None = None,
        *,
        limit: int = 50,
        offset: int = 0,
        cursor: str | None = None,
        brief: bool = False,
        with_total: bool = False,
        **words: Unpack[FilterWords],
    ) -> Page:
        """A page of the jobs that match a filter, whose fields may be given as keyword arguments.

        Every page costs the same, however deep, and no job is missed or repeated. A search examines a limited
        number of jobs; its cursor continues it. With `brief`, payload and result are left out and not read.
        """
        page = listing.page(
            self._store, as_filter(filter, words), limit=limit, offset=offset, cursor=cursor, brief=brief,
            with_total=with_total,
        )  # fmt: skip
        return replace(page, jobs=[self._with_limit(job) for job in page.jobs])

    def count(self, filter: Filter | None = None, *, cap: int = COUNTED, **words: Unpack[FilterWords]) -> int:
        """How many jobs match a filter, counted up to `cap`; for a search, among the jobs it examines."""
        return listing.count(self._store, as_filter(filter, words), cap)

    def ids(self, filter: Filter | None = None, **words: Unpack[FilterWords]) -> Iterator[str]:
        """The ids of the jobs that match a filter, in its order: those that exist now, not later ones.

        For a search, these are the matches among the jobs that it examines.
        """
        return listing.walk(self._store, as_filter(filter, words))

    def error_groups(self, limit: int = 20) -> list[ErrorGroup]:
        """The failed jobs by type and error, largest group first."""
        return self._store.list_error_groups(check.whole_number("limit", limit, listing.AMOUNTS))

    def children(self, job_id: str) -> list[str]:
        """The ids of the jobs that a completed job enqueued."""
        return self._store.list_children(job_id) if could_be_id(job_id) else []

    def stats(self) -> dict[str, Any]:
        """Job counts by state, in total and by type, and the number of workers."""
        by_type = self._store.count_jobs()
        totals = {status.value: sum(counts[status] for counts in by_type.values()) for status in Status}
        return {
            **totals,
            "by_type": {
                type: {status.value: counts[status] for status in Status} for type, counts in by_type.items()
            },
            "workers": len(self.workers()),
        }

    def workers(self, *, restarting: bool = False) -> list[WorkerRecord]:
        """The workers with a heartbeat within the lease; with `restarting`, also those being replaced."""
        now, lease = self._store.now(), microseconds(self.settings().lease_seconds)
        # A heartbeat from the future is none: the clock has been set back since.
        alive_since, alive_until = to_datetime(now - lease), to_datetime(now + lease)
        return [
            worker
            for worker in self._store.list_workers()
            if worker.heartbeat_at
            and alive_since <= worker.heartbeat_at <= alive_until
            and (restarting or worker.state != RESTARTING)
        ]

    def why(self, job: str | Job) -> list[Reason]:
        """Why a job is not running, and when that will change; for a finished job, how it ended."""
        from holdfast.core.explain import explain
        from holdfast.listing.why import situation_of

        if not isinstance(job, Job):
            job = self.require_brief(job)
        return explain(job, situation_of(job, self._store, self.refresh_settings(), self.workers()))

    def wait(self, job_id: str, timeout: Duration | None = None) -> Job:
        """Wait for a job to finish, failed or not, and return it. Raises TimeoutError after `timeout`."""
        seconds = check.optional_duration("timeout", timeout)
        job = self.require(job_id)
        if not job.is_finished and seconds != 0:
            finish = self._finish_watcher.future(job_id)
            try:
                return finish.result(None if seconds is None else min(seconds, threading.TIMEOUT_MAX))
            except TimeoutError:
                job = self.require(job_id)
            finally:
                finish.cancel()
        return _require_finished(job, seconds)

    async def wait_async(self, job_id: str, timeout: Duration | None = None) -> Job:
        """`wait` for asyncio: thousands of calls can wait without holding a thread each."""
        import asyncio

        seconds = check.optional_duration("timeout", timeout)
        require_possible_id(job_id)
        try:
            async with asyncio.timeout(seconds):
                return await asyncio.wrap_future(self._finish_watcher.future(job_id))
        except TimeoutError:
            return _require_finished(await self._threads.run(partial(self.require, job_id)), seconds)

    # What surfaces show.

    def now(self) -> datetime:
        """The current time by the clock that decides when jobs run: on PostgreSQL, the server's."""
        return to_datetime(self._store.now())

    def running(self) -> list[Running]:
        """The running attempts, ordered by when their lease expires; at most 10,000."""
        return self._store.list_running(COUNTED)

    def paused(self) -> list[str]:
        """The paused types; "" means the whole queue."""
        return sorted(self._store.list_paused())

    def retrying(self) -> dict[str, int]:
        """How many jobs are waiting for a retry, by type."""
        return self._store.count_retrying()

    def oldest_waiting(self) -> Waiting | None:
        """The pending job that has been ready to run the longest."""
        return self._store.oldest_waiting()

    def reused_keys(self, limit: int) -> list[ReusedKey]:
        """The keys that more than one job has had, most used first."""
        return self._store.list_reused_keys(check.whole_number("limit", limit, listing.AMOUNTS))

    def busiest_groups(self, limit: int = 10) -> list[GroupActivity]:
        """The groups with the most jobs that wait or run, for each type; at most `limit`.

        It looks at the first 100,000 waiting jobs.
        """
        return self._store.busiest_groups(check.whole_number("limit", limit, listing.AMOUNTS))

    def finished_since(self, moment: datetime) -> dict[str, dict[Status, int]]:
        """How many jobs finished since then, by type and state."""
        return self._store.count_finished(check.instant("moment", moment))

    def enqueued(self) -> dict[str, int]:
        """How many jobs were ever enqueued, by type.

        A lane that has no jobs left is counted in its base type after a while, and a type that no worker
        knows either under "".
        """
        return self._store.count_enqueued()

    def statistics(self, minutes: int | None = None) -> list[Minute]:
        """The workers' statistics: for the last full minutes and the current one, or in total.

        The totals of lanes and types that are no longer used are added as those of `enqueued`.
        """
        if minutes is None:
            return self._store.list_statistics(0)
        whole = check.whole_number("minutes", minutes, listing.AMOUNTS)
        return self._store.list_statistics(self._store.now() // MINUTE - whole)

    def published_types(self) -> list[TypeRecord]:
        """The types that workers have published."""
        return self._store.list_types()

    def known_workers(self) -> list[WorkerRecord]:
        """All workers in the database, alive or not."""
        return self._store.list_workers()

    def size_of(self, job_id: str) -> int:
        """Characters that a job's payload, result and history hold; 0 if there is none."""
        return self._store.job_size(job_id) if could_be_id(job_id) else 0

    def shared_output(self, job_id: str) -> LogTail | None:
        """The end of a command's output, where other machines can read it too; None on SQLite."""
        return self._store.read_log_tail(job_id) if could_be_id(job_id) and self._store.is_shared else None

    def last_reconciliation(self) -> str | None:
        """The report of the last reconciliation, as JSON."""
        return self._store.read_reconciliation()

    def measure(self) -> dict[str, float]:
        """Statistics of the database itself, by their name in the metrics."""
        return self._store.measure()

    def examine(self) -> list[Finding]:
        """What an operator should know about the database and where it lives."""
        return self._store.examine()

    @contextmanager
    def watch(self) -> Iterator[Watch]:
        """Waits for what others commit, for as long as a `with` lasts; for a thread of its own."""
        watch = self._store.watch()
        try:
            yield watch
        finally:
            watch.close()
            self.close_thread()


def _possible(job_ids: Iterable[str]) -> list[str]:
    """The ones that are valid job ids."""
    return [job_id for job_id in check.items("job_ids", job_ids, "ids") if could_be_id(job_id)]


def _require_finished(job: Job, seconds: float | None) -> Job:
    if not job.is_finished:
        after = "" if seconds is None else f" after {seconds:g} s"
        raise TimeoutError(f"job {job.id!r} is still {job.status}{after}")
    return job
