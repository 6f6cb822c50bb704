"""Opening and closing a queue's database, and its settings."""

from __future__ import annotations

import threading
import time
from functools import cached_property
from typing import TYPE_CHECKING, Any, Self

from holdfast.config import SETTINGS, default_database_url, parse_setting
from holdfast.core import check
from holdfast.core.clock import Clock, system_clock
from holdfast.core.job import Job, base_type, could_be_id
from holdfast.core.settings import Settings
from holdfast.enqueueing.enqueuer import Admission, Enqueuer
from holdfast.errors import ConfigError, HoldfastError, JobNotFound, StoreBusy, StoreError
from holdfast.events import Events
from holdfast.handlers.registry import Registry
from holdfast.jobs import BUILT_IN, checker
from holdfast.queue.wait import FinishWatcher
from holdfast.store.open import anchored, open_store
from holdfast.store.protocol import Store
from holdfast.store.scope import is_inside
from holdfast.system.threads import Threads

if TYPE_CHECKING:
    from holdfast.handlers.options import Defaults
    from holdfast.transaction import TransactionThreads
    from holdfast.worker import Worker

_CALLS = 8
"""Threads that run the blocking calls of coroutines."""
_OLD_AFTER = 0.5
"""Seconds after which settings are read again."""


class OpenQueue:
    """What every part of a queue uses: its open database, its handlers, events and settings."""

    def __init__(
        self,
        url: str | None = None,
        *,
        create: bool = True,
        strict_types: bool = False,
        defaults: Defaults | None = None,
        clock: Clock = system_clock,
        notify: bool = True,
    ) -> None:
        self.url = anchored(check.text("url", url or default_database_url()))
        given = {} if defaults is None else check.mapping("defaults", defaults)
        self.create = create
        self.notify = notify
        self.events = Events(self._log_jobs)
        self.registry = Registry(self.events)
        self.admission = Admission(self.registry, strict_types=strict_types, built_in=checker)
        self.defaults = dict(parse_setting(key, value) for key, value in given.items())
        self.clock = clock
        self._lock = threading.RLock()
        self._opened: Store | None = None
        self._enqueuer: Enqueuer | None = None
        self._finish_watcher = FinishWatcher(lambda: self._store, self.get)
        self._threads = Threads("holdfast-call", _CALLS)
        self.running_workers: list[Worker] = []
        """Those on this queue's own connections, which end before these are closed."""
        self._settings: tuple[float, int, Settings] | None = None
        """The settings, when they were read, and the generation of the handlers whose options they have."""

    @cached_property
    def transaction_threads(self) -> TransactionThreads:
        from holdfast.transaction import TransactionThreads

        return TransactionThreads()

    @property
    def _store(self) -> Store:
        """The open store. The engine gets it by `store_of`; surfaces have what a queue answers."""
        store = self._opened  # another thread may close the queue at any moment
        if store is None:
            with self._lock:
                store = self._opened
                if store is None:
                    store = open_store(self.url, self.clock, create=self.create, notify=self.notify)
                    self._enqueuer = Enqueuer(
                        store, self.admission, self.settings, self.events, self.get, self._limit_of
                    )
                    self._opened = store
        return store

    def enqueuer(self, connection: Any = None) -> Enqueuer:
        """Stores jobs in the open store; `connection` is the one to write them with."""
        if self._enqueuer is None:
            try:
                self.open()
            except StoreBusy as error:
                if connection is None:
                    raise
                raise ConfigError(
                    "the queue's tables can't be created while your own transaction holds the lock",
                    hint="call queue.open() before the transaction begins",
                ) from error
        assert self._enqueuer is not None
        return self._enqueuer

    @property
    def address(self) -> str:
        """The address of the open database, without its password."""
        return self._store.url

    def open(self) -> Self:
        """Open the database now, and create the tables if needed; otherwise the first use does.

        An application that first enqueues inside its own write transaction must call this beforehand.
        """
        self._store  # noqa: B018 -- opens it
        return self

    def migrate(self) -> Self:
        """Open the database, and create the tables or migrate older ones.

        On SQLite, opening is enough. On PostgreSQL, other machines may still use the older tables, so a
        migration must be requested explicitly.
        """
        self.close()
        open_store(self.url, self.clock, migrate=True).close()
        return self.open()

    def close(self) -> None:
        """Close the database connections. The queue reopens when it is used again.

        This queue's workers in this process are stopped first, as by `worker.stop()`; calls that wait for a
        job raise QueueClosed.
        """
        self._stop_workers()
        self._finish_watcher.close()
        with self._lock:
            store, enqueuer = self._opened, self._enqueuer
            self._opened = self._enqueuer = None
            self._settings = None
        if enqueuer is not None:
            enqueuer.close()
        if store is not None:
            store.close()

    def _stop_workers(self) -> None:
        """Stop them all, side by side, as `worker.stop()` does."""
        workers = list(self.running_workers)
        if any(worker.is_calling() for worker in workers):
            raise HoldfastError(
                "a handler or subscriber can't close the queue of the worker that calls it",
                hint="it would wait for itself; close the queue in another thread",
            )
        for worker in workers:
            worker.ask_to_stop()
        for worker in workers:
            worker.wait_until_stopped()

    def close_idle(self) -> None:
        """Close the connections that nobody uses at the moment; they are made again when they are needed."""
        if (store := self._opened) is not None:
            store.close_idle()

    def close_thread(self) -> None:
        """Close the connection of this thread, which is about to end."""
        if (store := self._opened) is not None:
            store.close_thread()

    def check_place(self) -> None:
        """Raise DatabaseReplaced if the address leads to another database than the one that is open."""
        if (store := self._opened) is not None:
            store.check_place()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def settings(self) -> Settings:
        """The settings, cached for up to 0.5 s; the last known values if the database is down.

        Inside ctx.transaction(), the cached values are used: the block must not wait for a connection that
        others may only release after it has ended.
        """
        known = self._settings
        if known is None:
            return self.refresh_settings()
        read_at, generation, settings = known
        is_old = time.monotonic() - read_at > _OLD_AFTER or generation != self.registry.generation
        if is_old and not is_inside(self._store.url):
            try:
                return self.refresh_settings()
            except StoreError:  # what is known will do: a handler's work must not fail for it
                self._settings = time.monotonic(), generation, settings
        return settings

    def _log_jobs(self, type: str) -> str:
        """By the settings as they are known: an event waits for no database."""
        known = self._settings
        return "all" if known is None else str(known[2].get("log_jobs", type))

    def refresh_settings(self) -> Settings:
        """The current settings, read now."""
        generation = self.registry.generation
        found = self._store.read_settings()
        # Others are of a newer release, or no settings at all.
        stored = {key: value for key, value in found.values.items() if key[0] in SETTINGS}
        known = self._settings
        if known is not None and known[1] == generation and known[2].version == found.version:
            settings = known[2]  # with all that it has looked up already
        else:
            settings = Settings(
                stored,
                declared=self.registry.declared,
                defaults=self.defaults,
                paused=found.paused,
                version=found.version,
                generation=generation,
            )
        self._settings = time.monotonic(), generation, settings
        return settings

    def get(self, job_id: str) -> Job | None:
        """The job with its history, or None."""
        job = self._store.get_job(job_id) if could_be_id(job_id) else None
        return None if job is None else self._with_limit(job)

    def require(self, job_id: str) -> Job:
        """The job with its history. Raises JobNotFound if there is none."""
        job = self.get(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    def _with_limit(self, job: Job) -> Job:
        """The job with the attempt limit that will hold for it, where that is still open."""
        if job.max_attempts is not None:
            return job
        from msgspec.structs import replace

        limit, is_open = self._limit_of(job.type)
        return replace(job, max_attempts=limit, limit_is_open=is_open)

    def _limit_of(self, type: str) -> tuple[int, bool]:
        """The attempt limit of a type, and whether a worker's code may still say otherwise."""
        found = self.settings().resolve("max_attempts", type)
        is_open = not found.source and self.registry.find(type) is None and base_type(type) not in BUILT_IN
        return found.value, is_open
