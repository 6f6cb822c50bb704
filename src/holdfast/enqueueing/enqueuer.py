"""Enqueueing: options and payloads are validated, and jobs are stored."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.core import check
from holdfast.core.clock import to_datetime
from holdfast.core.ids import new_id, new_ids
from holdfast.core.job import Job, check_type
from holdfast.core.payload import decode, encode_payload
from holdfast.core.settings import Settings
from holdfast.enqueueing.options import OPTIONS, check_options, checked, with_defaults
from holdfast.enqueueing.shared_commits import SharedCommits
from holdfast.errors import BatchRefused, ConfigError, HoldfastError, NestedWrite
from holdfast.events import Events, JobEnqueued
from holdfast.handlers.registry import Registry
from holdfast.store.database import BREATH
from holdfast.store.protocol import Store
from holdfast.store.records import NewJob, Verdict
from holdfast.store.scope import is_inside
from holdfast.text import shown

if TYPE_CHECKING:
    import asyncio

    from holdfast.handlers.handler import Handler

BATCH = 10_000
"""Jobs that enqueue_many puts into one commit."""


class Admission:
    """Turns calls into NewJobs, and refuses invalid ones before anything is stored."""

    def __init__(
        self, registry: Registry, *, strict_types: bool, built_in: Callable[[str, object], Handler | None]
    ) -> None:
        """`built_in` finds what checks the payload of a built-in type; None if there is nothing to check."""
        self._registry = registry
        self._built_in = built_in
        self._strict_types = strict_types

    def admit(
        self,
        type: str,
        payload: object,
        options: Mapping[str, Any],
        settings: Settings,
        parent_id: str | None = None,
    ) -> NewJob:
        """The job to insert."""
        return self.admitting(type, options, settings, parent_id)(payload)

    def admitting(
        self,
        type: str,
        options: Mapping[str, Any],
        settings: Settings,
        parent_id: str | None = None,
        make_id: Callable[[], str] = new_id,
    ) -> Callable[[object], NewJob]:
        """What turns a payload into a job of this type with these options.

        Whatever is the same for all payloads is looked up and checked once.
        """
        if options:
            check_options(options.keys())
        type = check_type(type)
        prepared = self._preparing(type, settings)
        shared: dict[str, Any] | None = None
        max_depth = settings.depth(type, self._registry.names_with)

        def admit(payload: object) -> NewJob:
            nonlocal shared
            text, defaults = prepared(payload)
            if defaults:
                values = checked(with_defaults(options, defaults))
            else:
                values = shared = checked(options) if shared is None else shared
            has_new_id = "id" not in values
            return NewJob(
                **(values if not has_new_id else {**values, "id": make_id()}),
                type=type,
                payload=text,
                token="" if has_new_id else os.urandom(12).hex(),
                parent_id=parent_id,
                max_depth=max_depth,
                has_new_id=has_new_id,
            )

        return admit

    def admit_again(self, job: Job, payload: object, settings: Settings) -> tuple[str, str | None]:
        """The text of another payload for a job, and its new key, if the one it has came from its payload."""
        text, defaults = self._preparing(job.type, settings)(payload)
        try:
            before = self._preparing(job.type, settings)(job.payload)[1]
        except Exception:  # what is stored may be from before this handler
            before = {}
        if job.key is None or before.get("key") != job.key or "key" not in defaults:
            return text, None
        return text, checked({"key": defaults["key"]}).get("key")

    def _preparing(self, type: str, settings: Settings) -> Callable[[object], tuple[str, dict[str, Any]]]:
        """What gives a payload's text as it is stored, and the options that its handler gives the job.

        It raises InvalidPayload if a payload can't be stored, or doesn't fit the handler, if that is known.
        """
        limit = settings.get("max_payload_bytes", type)
        known = self._registry.require(type) if self._strict_types else self._registry.find(type)

        def prepared(payload: object) -> tuple[str, dict[str, Any]]:
            plain, text = encode_payload(payload, limit)
            handler = known or self._built_in(type, payload)
            if handler is None:
                return text, {}
            handler.spec.bind(plain)
            if handler.prepare is None:
                return text, {}
            given = handler.prepare(plain)
            if not (isinstance(given, tuple) and len(given) == 2 and isinstance(given[1], dict)):
                raise ConfigError(
                    f"prepare= of {type!r} must return a payload and a dict of options, not {shown(given)}"
                )
            return encode_payload(given[0], limit)[1], given[1]

        return prepared


class Enqueuer:
    """Stores admitted jobs: one, many, from asyncio, or through the caller's own connection."""

    def __init__(
        self,
        store: Store,
        admission: Admission,
        settings: Callable[[], Settings],
        events: Events,
        get_job: Callable[[str], Job | None],
        limit_of: Callable[[str], tuple[int, bool]],
    ) -> None:
        self._store = store
        self._admission = admission
        self._settings = settings
        self._events = events
        self._get_job = get_job
        self._limit_of = limit_of
        self._commits = SharedCommits(store)
        self._turns: WeakKeyDictionary[Any, asyncio.Lock] = WeakKeyDictionary()

    def close(self) -> None:
        self._commits.close()

    def enqueue(self, type: str, payload: object, options: Mapping[str, Any], connection: Any) -> Job:
        if connection is None:
            self._refuse_nested()
        new = self._admit(type, payload, options)
        if connection is None:
            return self._settle(new, self._commits.insert(new))
        return self._settle(new, self._store.insert_jobs_with(connection, [new])[0])

    async def enqueue_async(
        self, type: str, payload: object, options: Mapping[str, Any], connection: Any = None
    ) -> tuple[Job, bool]:
        """The job, and whether it is new."""
        if connection is None:
            self._refuse_nested()
        new = self._admit(type, payload, options)
        if connection is None:
            verdict = await self._commits.insert_async(new)
        elif hasattr(connection, "run_sync"):  # SQLAlchemy's way into its asyncio connections and sessions
            async with self._turn_with(connection):
                [verdict] = await _whole(connection.run_sync(self._store.insert_jobs_with, [new]), new)
        elif _is_awaited(connection):
            async with self._turn_with(connection):
                [verdict] = await _whole(self._store.insert_jobs_awaiting(connection, [new]), new)
        else:
            verdict = self._store.insert_jobs_with(connection, [new])[0]
        return self._settle(new, verdict), verdict.inserted

    def _turn_with(self, connection: Any) -> asyncio.Lock:
        """One at a time: the savepoints of two tasks on one connection would roll back each other's jobs."""
        import asyncio

        return self._turns.setdefault(connection, asyncio.Lock())

    def enqueue_batch(self, items: Iterable[tuple[str, object, Mapping[str, Any]]]) -> list[tuple[Job, bool]]:
        """Store jobs of any types and options in one commit: all of them, or none and BatchRefused."""
        self._refuse_nested()
        new: list[NewJob] = []
        for item in check.items("items", items, "(type, payload, options)"):
            try:
                type, payload, options = _three(item)
                new.append(self._admit(type, payload, check.mapping("options", options)))
            except HoldfastError as error:
                raise BatchRefused(len(new), error) from None
        verdicts = self._store.insert_jobs(new, atomic=True)
        for index, verdict in enumerate(verdicts):
            if verdict.error is not None:
                raise BatchRefused(index, verdict.error)
        return [
            (self._settle(n, verdict), verdict.inserted) for n, verdict in zip(new, verdicts, strict=True)
        ]

    def enqueue_many(
        self,
        type: str,
        payloads: Iterable[object],
        options: Mapping[str, Any],
        *,
        atomic: bool,
        connection: Any,
    ) -> list[Job]:
        check_options(options.keys())
        if any(value is not None and not OPTIONS[name].is_shared for name, value in options.items()):
            raise ConfigError("id and key each identify one job; enqueue those jobs one by one")
        if connection is None:
            self._refuse_nested()
        given = check.items("payloads", payloads, "payloads")
        settings = self._settings()
        admit = self._admission.admitting(type, options, settings, make_id=new_ids().__next__)
        new = [admit(payload) for payload in given]
        if connection is not None:
            return self._settle_all(new, self._store.insert_jobs_with(connection, new))
        jobs: list[Job] = []
        size = max(1, len(new)) if atomic else BATCH
        for start in range(0, len(new), size):
            if start:
                time.sleep(BREATH)
            batch = new[start : start + size]
            jobs += self._settle_all(batch, self._store.insert_jobs(batch, atomic=True))
        return jobs

    def _refuse_nested(self) -> None:
        """Refuse a call that would wait for itself. Must come first: even reading a setting may wait."""
        # Before joining a shared commit: others must not wait for the lock that our caller holds.
        if is_inside(self._store.url):
            raise NestedWrite
        # What a signal handler has interrupted may be rolled back yet, and we would be part of it.
        if self._store.in_transaction:
            raise NestedWrite(interrupted=True)

    def _admit(self, type: str, payload: object, options: Mapping[str, Any]) -> NewJob:
        return self._admission.admit(type, {} if payload is None else payload, options, self._settings())

    def _settle_all(self, new: Sequence[NewJob], verdicts: Sequence[Verdict]) -> list[Job]:
        for verdict in verdicts:
            if verdict.error is not None:
                raise verdict.error
        return [self._settle(job, verdict) for job, verdict in zip(new, verdicts, strict=True)]

    def _settle(self, new: NewJob, verdict: Verdict) -> Job:
        """The job that a verdict refers to, or its error."""
        if verdict.error is not None:
            raise verdict.error
        if verdict.inserted:
            if self._events.wanted(JobEnqueued):
                self._events.emit(JobEnqueued(job_id=new.id, type=new.type, status=verdict.status))
            return as_inserted(new, verdict, self._limit_of)
        # Inside a caller's transaction the holder of the key may not be visible to us yet.
        return self._get_job(verdict.id) or as_inserted(new, verdict, self._limit_of)


def _three(item: object) -> tuple[Any, Any, Any]:
    if not isinstance(item, tuple | list) or len(item) != 3:
        raise ConfigError(f"a job must be given as (type, payload, options), not {shown(item)}")
    return item[0], item[1], item[2]


async def _whole(insert: Coroutine[Any, Any, list[Verdict]], job: NewJob) -> list[Verdict]:
    """Insert, also if the task is cancelled meanwhile: a statement that is cut short fails the transaction.

    A job that may have to wait for somebody else's transaction is in a savepoint, and is cut short.
    """
    if job.key is not None or not job.has_new_id:
        return await insert
    import asyncio

    task = asyncio.ensure_future(insert)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if not task.cancelled():
            task.exception()  # nobody is there to be told
        raise


def _is_awaited(connection: Any) -> bool:
    from inspect import iscoroutinefunction

    return iscoroutinefunction(getattr(connection, "execute", None))


_SHARED = tuple(
    name
    for name in NewJob.__struct_fields__
    if name in Job.__struct_fields__ and name not in ("id", "payload", "run_at", "max_attempts")
)
"""What a job has of the one that was inserted, as it is."""
_shared_of = attrgetter(*_SHARED)
_instant = lru_cache(maxsize=1)(to_datetime)  # all jobs of a batch have the same


def as_inserted(new: NewJob, verdict: Verdict, limit_of: Callable[[str], tuple[int, bool]]) -> Job:
    """The job as it was just inserted."""
    created_at = _instant(verdict.created_at)
    limit, is_open = (new.max_attempts, False) if new.max_attempts is not None else limit_of(new.type)
    return Job(
        **dict(zip(_SHARED, _shared_of(new), strict=True)),
        id=verdict.id,
        payload=decode(new.payload),
        run_at=None if verdict.run_at is None else to_datetime(verdict.run_at),
        max_attempts=limit,
        limit_is_open=is_open,
        status=verdict.status,
        created_at=created_at,
        updated_at=created_at,
    )
