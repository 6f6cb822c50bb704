"""The queue: what application code and every surface speak to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar, overload

from holdfast import listing
from holdfast.config import (
    SETTINGS,
    Value,
    default_database_url,
    find_setting,
    parse_options,
    parse_setting,
)
from holdfast.core import check
from holdfast.core.clock import Clock, from_datetime, microseconds, system_clock, to_datetime
from holdfast.core.job import Job, Status, base_type, check_type, could_be_id, require_possible_id
from holdfast.core.settings import Settings
from holdfast.durations import LONGEST_DURATION, Duration, parse_duration
from holdfast.enqueue import Admission, Enqueuer
from holdfast.errors import ConfigError, JobNotFound, StoreBusy, shown
from holdfast.events import (
    Events,
    JobCancelled,
    JobCancelRequested,
    JobDeleted,
    JobRetried,
    JobsPruned,
    QueuePaused,
    QueueResumed,
    SettingChanged,
)
from holdfast.listing import Page
from holdfast.live_settings import LiveSettings
from holdfast.registry import OPTIONS, Registry
from holdfast.running_workers import RunningWorkers
from holdfast.store.address import anchored
from holdfast.store.open import open_store
from holdfast.store.protocol import RESTARTING, ErrorGroup, Store, WorkerRecord
from holdfast.store.prune import PrunePass

if TYPE_CHECKING:
    from holdfast.bulk import Bulk
    from holdfast.context import Context
    from holdfast.core.explain import Reason
    from holdfast.function import JobDecorator, JobFunction
    from holdfast.handler import Handler, Prepare, Reconcile
    from holdfast.transaction import TransactionThreads
    from holdfast.worker import Worker

P = ParamSpec("P")
R = TypeVar("R")

_BREATH = 0.002
_BATCH = 500
"""Jobs that a long operation changes in one commit."""


class Queue:
    """A job queue in a database. Nothing is opened until it is used; one Queue serves all threads.

    With `create=False` a database that holds no queue is not made one: QueueNotFound is raised instead.
    `strict_types` refuses to enqueue types without a handler here. `defaults` are settings that stand below
    what is stored in the database. On PostgreSQL workers are told of new jobs by NOTIFY; with
    `notify=False` this queue tells nobody, and its workers look by themselves.
    """

    def __init__(
        self,
        url: str | None = None,
        *,
        create: bool = True,
        strict_types: bool = False,
        defaults: Mapping[str, object] | None = None,
        clock: Clock = system_clock,
        notify: bool = True,
    ) -> None:
        self.url = anchored(url or default_database_url())
        self.create = create
        self.notify = notify
        self.events = Events()
        self.registry = Registry(self.events)
        self.admission = Admission(self.registry, strict_types=strict_types, built_in=_built_in)
        self.defaults = dict(parse_setting(key, value) for key, value in (defaults or {}).items())
        self.clock = clock
        self._lock = threading.RLock()
        self._store: Store | None = None
        self._enqueuer: Enqueuer | None = None
        self.running_workers = RunningWorkers()
        self._settings = LiveSettings(lambda: self.store, self.registry, lambda: self.defaults)

    @cached_property
    def transaction_threads(self) -> TransactionThreads:
        from holdfast.transaction import TransactionThreads

        return TransactionThreads()

    @property
    def store(self) -> Store:
        """The open store."""
        store = self._store  # another thread may close the queue at any moment
        if store is None:
            with self._lock:
                store = self._store
                if store is None:
                    store = open_store(self.url, self.clock, create=self.create, notify=self.notify)
                    self._enqueuer = Enqueuer(store, self.admission, self.settings, self.events)
                    self._store = store
        return store

    def _opened(self, connection: Any = None) -> Enqueuer:
        if self._enqueuer is None:
            try:
                self.open()
            except StoreBusy as error:
                if connection is None:
                    raise
                raise ConfigError(
                    "the queue's tables can't be made while your own transaction holds the lock",
                    hint="call queue.open() before it begins",
                ) from error
        assert self._enqueuer is not None
        return self._enqueuer

    def open(self) -> Self:
        """Open the database now, making our tables if need be; otherwise the first use does.

        An application that first enqueues inside a write transaction of its own must call this before.
        """
        self.store  # noqa: B018 -- opens it
        return self

    def migrate(self) -> Self:
        """Open the database, making our tables, or bringing older ones up to date.

        On SQLite opening is enough. On PostgreSQL other machines may be at work with the older tables, so
        that has to be asked for.
        """
        self.close()
        open_store(self.url, self.clock, migrate=True).close()
        return self.open()

    def close(self) -> None:
        """Close the database connections. The queue opens again when it is used again.

        Workers of this queue in this process are stopped first, as by `worker.stop()`.
        """
        self.running_workers.stop()
        with self._lock:
            store, enqueuer = self._store, self._enqueuer
            self._store = self._enqueuer = None
            self._settings.forget()
        if enqueuer is not None:
            enqueuer.close()
        if store is not None:
            store.close()

    def close_idle(self) -> None:
        """Close the connections that nobody uses at the moment; they are made again when they are needed."""
        store = self._store
        if store is not None:
            store.close_idle()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Handlers.

    @overload
    def job(self, function: Callable[Concatenate[Context, P], R], /) -> JobFunction[P, R]: ...
    @overload
    def job(self, function: Callable[P, R], /) -> JobFunction[P, R]: ...
    @overload
    def job(self, function: None = None, /, **options: Any) -> JobDecorator: ...
    def job(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        executor: str | None = None,
        reconcile: Reconcile | Callable[[Job], str | None] | None = None,
        **options: Any,
    ) -> Any:
        """Make a function a job: its keyword arguments are the payload, its name the type.

        `reconcile(job)` tells whether the effect of a completed job is still there: see Reconcile.
        """
        from holdfast.function import JobFunction
        from holdfast.handler import Handler

        parsed = parse_options(options, OPTIONS)

        def decorate(function: Callable[..., Any]) -> JobFunction[..., Any]:
            type = name or getattr(function, "__name__", None)
            if type is None:
                raise ConfigError(f"{function!r} has no name of its own; say name=")
            handler = Handler(
                type, function, whole=False, executor=executor, reconcile=reconcile, options=parsed
            )
            self.registry.add(handler)
            return JobFunction(self, handler)

        return decorate if function is None else decorate(function)

    def register(
        self,
        type: str,
        handler: Callable[..., Any],
        *,
        payload_type: Any = None,
        executor: str | None = None,
        prepare: Prepare | None = None,
        reconcile: Reconcile | Callable[[Job], str | None] | None = None,
        **options: Any,
    ) -> None:
        """Let `handler(payload)` or `handler(payload, ctx)` run jobs of a type.

        `prepare(payload)` is called where a job is enqueued, with the payload as a dict, once it is checked;
        it returns the payload to store, and options such as a key, which hold where the caller says nothing.
        `reconcile(job)` tells whether the effect of a completed job is still there: see Reconcile.
        """
        from holdfast.handler import Handler

        parsed = parse_options(options, OPTIONS)
        self.registry.add(
            Handler(
                type,
                handler,
                whole=True,
                payload_type=payload_type,
                executor=executor,
                prepare=prepare,
                reconcile=reconcile,
                options=parsed,
            )
        )

    def unregister(self, type: str) -> None:
        """Stop handling a type here; its jobs stay pending."""
        self.registry.remove(type)

    # Enqueue.

    def enqueue(self, type: str, payload: object = None, *, connection: Any = None, **options: Any) -> Job:
        """Store a job and return it; when this returns, the job is durable.

        With `connection` it is inserted in that connection's transaction, and the caller's own commit is the
        moment. Options: id, priority, max_attempts, timeout, delay, run_at, key, key_for.
        """
        return self._with_limit(self._opened(connection).enqueue(type, payload, options, connection))

    async def enqueue_async(
        self, type: str, payload: object = None, *, connection: Any = None, **options: Any
    ) -> Job:
        """The same for asyncio: concurrent calls share commits, and the event loop goes on meanwhile.

        `connection` may also be SQLAlchemy's AsyncConnection or AsyncSession.
        """
        job, _ = await self._opened(connection).enqueue_async(type, payload, options, connection)
        return self._with_limit(job)

    async def admit(self, type: str, payload: object = None, **options: Any) -> tuple[Job, bool]:
        """`enqueue_async`, and whether the job is new: one that holds the same key may have been there."""
        job, is_new = await self._opened().enqueue_async(type, payload, options)
        return self._with_limit(job), is_new

    def enqueue_many(
        self,
        type: str,
        payloads: Iterable[object],
        *,
        atomic: bool = False,
        connection: Any = None,
        **options: Any,
    ) -> list[Job]:
        """Store many jobs of a type: all of them, or none and an error, up to 10,000 and with `atomic`.

        Otherwise there is a commit every 10,000, and an error leaves the batches before it stored.
        """
        jobs = self._opened(connection).enqueue_many(
            type, payloads, options, atomic=atomic, connection=connection
        )
        return [self._with_limit(job) for job in jobs]

    def enqueue_batch(self, items: Iterable[tuple[str, object, Mapping[str, Any]]]) -> list[tuple[Job, bool]]:
        """Store jobs given as (type, payload, options) in one commit: all of them, or none and BatchRefused.

        Returns each job, and whether it is new. For more than some ten thousand there is `bulk`.
        """
        return [(self._with_limit(job), is_new) for job, is_new in self._opened().enqueue_batch(items)]

    def bulk(self) -> Bulk:
        """Many jobs of any types, each with options of its own: checked one by one, then stored together."""
        from holdfast.bulk import Bulk

        return Bulk(self.store, self.admission, self.settings())

    # Reading.

    def get(self, job_id: str) -> Job | None:
        """The job with its history, or None."""
        job = self.store.get_job(job_id) if could_be_id(job_id) else None
        return None if job is None else self._with_limit(job)

    def get_many(self, job_ids: Iterable[str]) -> list[Job]:
        """Those of the jobs that exist, in the order asked for, without payload, result and history."""
        if isinstance(job_ids, str | bytes) or not isinstance(job_ids, Iterable):
            raise ConfigError(f"job_ids must be a list of ids, not {shown(job_ids)}")
        possible = [job_id for job_id in job_ids if could_be_id(job_id)]
        found = {job.id: self._with_limit(job) for job in self.store.get_jobs(possible)}
        return [found[job_id] for job_id in dict.fromkeys(possible) if job_id in found]

    def jobs(
        self,
        *,
        status: str | Iterable[str] | None = None,
        type: str | None = None,
        parent_id: str | None = None,
        limit: int = 50,
        offset: int = 0,
    ) -> list[Job]:
        """Jobs, newest first, without their history."""
        filter = listing.job_filter(status=status, type=type, parent_id=parent_id, limit=limit, offset=offset)
        return [self._with_limit(job) for job in self.store.list_jobs(filter)]

    def page(
        self,
        *,
        status: str | Iterable[str] | None = None,
        type: str | None = None,
        parent_id: str | None = None,
        error: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        search: str | None = None,
        sort: str = "created",
        ascending: bool = False,
        limit: int = 50,
        offset: int = 0,
        cursor: str | None = None,
        brief: bool = False,
    ) -> Page:
        """Jobs page by page: by creation, end (`finished`) or priority, the latest or highest first.

        However deep, a page costs the same, and no job that stays is missed or shown twice. `since` and
        `until` bound the creation, or the end in a list by that. A `search` reads a bounded number of jobs,
        and its cursor leads on. With `brief` the jobs come without payload and result, which are not read.
        """
        page = listing.page(
            self.store, status=status, type=type, parent_id=parent_id, error=error, since=since, until=until,
            search=search, sort=sort, ascending=ascending, limit=limit, offset=offset, cursor=cursor,
            brief=brief,
        )  # fmt: skip
        return listing.with_jobs(page, self._with_limit)

    def count(
        self,
        *,
        status: str | Iterable[str] | None = None,
        type: str | None = None,
        parent_id: str | None = None,
        error: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        sort: str = "created",
        cap: int = 10_000,
    ) -> int:
        """How many jobs all pages of a filter hold; counted up to `cap`."""
        filter = listing.job_filter(
            status=status, type=type, parent_id=parent_id, error=error, since=since, until=until, sort=sort
        )
        return self.store.count_matching(filter, check.whole_number("cap", cap, range(2**32)))

    def error_groups(self, limit: int = 20) -> list[ErrorGroup]:
        """The failed jobs by type and error, the largest group first."""
        return self.store.list_error_groups(check.whole_number("limit", limit, listing.AMOUNTS))

    def children(self, job_id: str) -> list[str]:
        """The ids of the jobs that a completed job enqueued."""
        return self.store.list_children(job_id) if could_be_id(job_id) else []

    def stats(self) -> dict[str, Any]:
        """Jobs by state, in all and by type, and how many workers there are."""
        by_type = self.store.count_jobs()
        totals = {status.value: sum(counts[status] for counts in by_type.values()) for status in Status}
        return {
            **totals,
            "by_type": {
                type: {status.value: counts[status] for status in Status} for type, counts in by_type.items()
            },
            "workers": len(self.workers()),
        }

    def workers(self, *, restarting: bool = False) -> list[WorkerRecord]:
        """The workers heard of within a lease; with `restarting` also those about to be replaced."""
        now, lease = self.store.now(), microseconds(self.settings().lease_seconds)
        # A heartbeat from the future is none: the clock has been set back since.
        alive_since, alive_until = to_datetime(now - lease), to_datetime(now + lease)
        return [
            worker
            for worker in self.store.list_workers()
            if worker.heartbeat_at
            and alive_since <= worker.heartbeat_at <= alive_until
            and (restarting or worker.state != RESTARTING)
        ]

    def why(self, job_id: str) -> list[Reason]:
        """Why a job is not running (yet), and when that will change; for a finished one, how it ended."""
        from holdfast.core.explain import explain
        from holdfast.facts import facts_about

        found = self.get_many([job_id])
        if not found:
            raise JobNotFound(job_id)
        return explain(found[0], facts_about(found[0], self.store, self.refresh_settings(), self.workers()))

    def wait(self, job_id: str, timeout: Duration | None = None) -> Job:
        """The job once it is finished, failed or not. Raises TimeoutError after `timeout`."""
        seconds = None if timeout is None else check.duration("timeout", timeout)
        deadline = None if seconds is None else time.monotonic() + seconds
        watch = self.store.watch()
        try:
            while True:
                watch.changed()
                job = self.get(job_id)
                if job is None:
                    raise JobNotFound(job_id)
                if job.is_finished:
                    return job
                left = 1.0 if deadline is None else min(1.0, deadline - time.monotonic())
                if left <= 0:
                    raise TimeoutError(f"job {job_id!r} is {job.status} after {seconds:g} s")
                watch.wait(left)
        finally:
            watch.close()

    # Operating.

    def retry(self, job_id: str, payload: object = None) -> Job:
        """Run a failed, cancelled or waiting-for-retry job again from its first attempt."""
        require_possible_id(job_id)
        text, key = None, None
        if payload is not None:
            job = self.get(job_id)
            if job is None:
                raise JobNotFound(job_id)
            text, key = self.admission.admit_again(job, payload, self.settings())
        job = self._with_limit(self.store.retry_job(job_id, text, key))
        self.events.emit(JobRetried(job_id=job.id, type=job.type))
        return job

    def retry_all(
        self,
        type: str | None = None,
        *,
        status: str | Iterable[str] = Status.FAILED,
        error: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        search: str | None = None,
        sort: str = "created",
        ascending: bool = False,
        limit: int | None = None,
    ) -> tuple[int, int]:
        """Retry every failed job, or those that a filter finds, as in `page`; at most `limit` of them.

        Returns how many were retried, and how many were left: another job holds their key, or they are not
        in a state to be retried.
        """
        if status == Status.FAILED and limit is None and (error, since, until, search) == (None,) * 4:
            return self._retry_failed(listing.job_filter(type=type, sort=sort).type)
        return self._operate(
            "retry", limit, status=status, type=type, error=error, since=since, until=until, search=search,
            sort=sort, ascending=ascending,
        )  # fmt: skip

    def cancel_all(
        self,
        type: str | None = None,
        *,
        status: str | Iterable[str] = (Status.SCHEDULED, Status.PENDING, Status.PROCESSING),
        error: str | None = None,
        since: datetime | str | None = None,
        until: datetime | str | None = None,
        search: str | None = None,
        sort: str = "created",
        ascending: bool = False,
        limit: int | None = None,
    ) -> tuple[int, int]:
        """Cancel every unfinished job, or those that a filter finds, as in `page`; at most `limit` of them.

        Waiting jobs are cancelled now, running ones asked to stop. Returns how many that was, and how many
        were left because they had finished.
        """
        return self._operate(
            "cancel", limit, status=status, type=type, error=error, since=since, until=until, search=search,
            sort=sort, ascending=ascending,
        )  # fmt: skip

    def _operate(self, action: str, limit: int | None, **filters: Any) -> tuple[int, int]:
        from itertools import islice

        from holdfast.operate import matching, operate

        most = None if limit is None else check.whole_number("limit", limit, listing.AMOUNTS)
        # Those there now: what is done to one may make it fit, or fit no more.
        job_ids = list(islice(matching(self, **filters), most))
        made = operate(self, action, iter(job_ids))
        return made.done, made.refused

    def _retry_failed(self, type: str | None) -> tuple[int, int]:
        count, left = 0, 0
        after: int | None = 0
        while after is not None:
            examined, retried, after = self.store.retry_failed_jobs(type, after=after, limit=_BATCH)
            count += len(retried)
            left += examined - len(retried)
            for job_id, its_type in retried:
                self.events.emit(JobRetried(job_id=job_id, type=its_type))
            time.sleep(_BREATH if after is not None else 0.0)
        return count, left

    def cancel(self, job_id: str) -> Job:
        """Cancel a waiting job now; ask a running one to stop."""
        require_possible_id(job_id)
        job = self._with_limit(self.store.cancel_job(job_id))
        event = JobCancelRequested if job.cancel_requested and not job.is_finished else JobCancelled
        self.events.emit(event(job_id=job.id, type=job.type))
        return job

    def delete(self, job_id: str) -> None:
        """Delete a finished job and its history."""
        require_possible_id(job_id)
        job = self.store.get_job(job_id)
        self.store.delete_job(job_id)
        if job is not None:
            self.events.emit(JobDeleted(job_id=job.id, type=job.type))

    def cleanup(self, older_than: Duration | datetime) -> int:
        """Delete completed and cancelled jobs that finished before then; return how many."""
        return self._prune(older_than, (Status.COMPLETED, Status.CANCELLED))

    def purge(self, older_than: Duration | datetime) -> int:
        """Delete failed jobs that finished before then; return how many."""
        return self._prune(older_than, (Status.FAILED,))

    def _prune(self, older_than: Duration | datetime, statuses: tuple[Status, ...]) -> int:
        before = self._instant_before(older_than)
        total = 0
        prune_pass = PrunePass()
        while True:
            pruned = self.store.prune_jobs(
                finished_before=before, statuses=statuses, limit=_BATCH, prune_pass=prune_pass
            )
            total += len(pruned)
            if pruned:
                self.events.emit(JobsPruned(count=len(pruned), job_ids=pruned))
            if prune_pass.is_over:
                return total
            time.sleep(_BREATH)

    def _instant_before(self, older_than: Duration | datetime) -> int:
        if isinstance(older_than, datetime):
            if older_than.utcoffset() is None:
                raise ConfigError("older_than is a naive datetime; give it a time zone")
            return from_datetime(older_than)
        try:
            seconds = parse_duration(older_than)
        except ValueError:
            seconds = -1.0
        if not 0 <= seconds <= LONGEST_DURATION:
            raise ConfigError(f"older_than must be a duration or a datetime, not {shown(older_than)}")
        return self.store.now() - microseconds(seconds)

    # Settings.

    def settings(self) -> Settings:
        """The settings as they stand, read half a second ago or, in trouble, when that was last possible."""
        return self._settings.get()

    def refresh_settings(self) -> Settings:
        """The settings as they stand now."""
        return self._settings.refresh()

    def config(self, type: str | None = None) -> dict[str, Value]:
        """Every setting's value in force, for a type or for the whole queue."""
        chosen = _type_or_all(type)
        settings = self.refresh_settings()
        return {name: settings.get(name, chosen) for name in sorted(SETTINGS)}

    def set_config(self, key: str, value: object, type: str | None = None) -> None:
        """Store a setting; running workers follow within a second."""
        name, parsed = parse_setting(key, value, type=type)
        self.store.set_setting(name, _type_or_all(type), parsed)
        self.refresh_settings()
        self.events.emit(SettingChanged(key=name, value=parsed, type=type))

    def unset_config(self, key: str, type: str | None = None) -> None:
        """Forget a stored setting, so that the next level down holds."""
        name = find_setting(key, type=type).name
        self.store.unset_setting(name, _type_or_all(type))
        self.refresh_settings()
        self.events.emit(SettingChanged(key=name, value=self.settings().get(name, type or ""), type=type))

    def set_rate_limit(self, rate: float, type: str | None = None) -> None:
        """Limit the starts a second over all processes; 0 is unlimited."""
        self.set_config("rate_limit", rate, type)

    def pause(self, type: str | None = None) -> None:
        """Let no job start, or none of a type, over all processes. Running jobs finish."""
        self.store.set_paused(_type_or_all(type), True)
        self.events.emit(QueuePaused(type=type))

    def resume(self, type: str | None = None) -> None:
        """Undo `pause` with the same argument."""
        self.store.set_paused(_type_or_all(type), False)
        self.events.emit(QueueResumed(type=type))

    # Working.

    def worker(self, **options: Any) -> Worker:
        """A worker for this queue's handlers, not yet started."""
        from holdfast.worker import Worker

        return Worker(self, **options)

    def run_worker(self, **options: Any) -> bool:
        """Work until SIGINT or SIGTERM: the first stops in order, the second at once.

        Returns whether all running jobs could finish.
        """
        return self.worker(**options).run()

    def drain(self, limit: int | None = None, *, raise_errors: bool = False) -> int:
        """Run what is pending, here, in this thread, and return how many jobs ran.

        With `raise_errors` what a handler raises is raised here too, once its job is settled as always; only
        Retry, which is an answer rather than an error, is not.
        """
        from holdfast.worker import drain

        most = None if limit is None else check.whole_number("limit", limit, listing.AMOUNTS)
        return drain(self, most, raise_errors=raise_errors)

    def _with_limit(self, job: Job) -> Job:
        """The job with the attempt limit that will hold for it, where that is still open."""
        if job.max_attempts is not None:
            return job
        from msgspec.structs import replace

        found = self.settings().resolve("max_attempts", job.type)
        is_open = not found.source and self.registry.find(job.type) is None and not _is_built_in(job.type)
        return replace(job, max_attempts=found.value, limit_is_open=is_open)


def _type_or_all(type: str | None) -> str:
    return "" if type is None else check_type(type)


def _is_built_in(type: str) -> bool:
    from holdfast.jobs import BUILT_IN

    return base_type(type) in BUILT_IN


def _built_in(type: str, payload: object) -> Handler | None:
    from holdfast.jobs import checker

    return checker(type, payload)
