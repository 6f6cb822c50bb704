"""Admitting jobs: options checked, payloads validated, and commits shared between concurrent callers."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.config import parse_duration
from holdfast.core.clock import from_datetime, to_datetime
from holdfast.core.ids import new_id
from holdfast.core.job import Job, check_id, check_type
from holdfast.core.payload import decode, encode_payload
from holdfast.core.settings import Settings
from holdfast.errors import ConfigError, StoreUnavailable
from holdfast.registry import Registry
from holdfast.store.protocol import NewJob, Store, Verdict

if TYPE_CHECKING:
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

MAX_KEY_LENGTH = 512
_INTEGERS = range(-(2**31), 2**31)


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a caller may say about one job, beside its type and payload."""

    id: str | None = None
    priority: int = 0
    max_attempts: int | None = None
    timeout: float | timedelta | None = None
    delay: float | timedelta | None = None
    run_at: datetime | None = None
    key: str | None = None
    key_for: float | timedelta | None = None


def make_options(given: Mapping[str, Any]) -> Options:
    """Options from keyword arguments. Unknown names are an error that lists the known ones."""
    unknown = given.keys() - set(Options.__struct_fields__)
    if unknown:
        allowed = ", ".join(Options.__struct_fields__)
        raise ConfigError(f"there is no option {min(unknown)!r}; allowed: {allowed}, connection")
    return Options(**given)


class Admission:
    """Turns calls into NewJobs, refusing what is wrong before anything is stored."""

    def __init__(self, registry: Registry, *, strict_types: bool) -> None:
        self._registry = registry
        self._strict_types = strict_types

    def admit(
        self, type: str, payload: object, options: Options, settings: Settings, parent_id: str | None = None
    ) -> NewJob:
        check_type(type)
        text = self.check_payload(type, payload, settings)
        run_at, delay = _when(options)
        key, key_for = _key(options)
        return NewJob(
            id=new_id() if options.id is None else check_id(options.id),
            type=type,
            payload=text,
            token=os.urandom(12).hex(),
            priority=_integer("priority", options.priority, _INTEGERS),
            max_attempts=_optional_integer("max_attempts", options.max_attempts, range(1, 2**31)),
            key=key,
            key_for=key_for,
            run_at=run_at,
            delay=delay,
            timeout=_duration("timeout", options.timeout, above_zero=True),
            parent_id=parent_id,
            max_depth=settings.get("max_depth", type),
        )

    def check_payload(self, type: str, payload: object, settings: Settings) -> str:
        """The payload's JSON text, if it can be stored and fits the handler, where that is known."""
        text = encode_payload(payload, settings.get("max_payload_bytes", type))
        handler = self._registry.require(type) if self._strict_types else self._registry.find(type)
        if handler is not None:
            handler.spec.bind(decode(text))
        return text


def job_from(new: NewJob, verdict: Verdict) -> Job:
    """The job as it was just inserted."""
    created_at = to_datetime(verdict.created_at)
    return Job(
        id=new.id,
        type=new.type,
        payload=decode(new.payload),
        status=verdict.status,
        priority=new.priority,
        max_attempts=new.max_attempts,
        key=new.key,
        key_for=new.key_for,
        run_at=None if verdict.run_at is None else to_datetime(verdict.run_at),
        timeout=new.timeout,
        parent_id=new.parent_id,
        created_at=created_at,
        updated_at=created_at,
    )


def _when(options: Options) -> tuple[int | None, float | None]:
    if options.run_at is None:
        return None, _duration("delay", options.delay)
    if options.delay is not None:
        raise ConfigError("run_at and delay exclude each other")
    if not isinstance(options.run_at, datetime):
        raise ConfigError(f"run_at must be a datetime, not {options.run_at!r}")
    if options.run_at.tzinfo is None:
        raise ConfigError("run_at is a naive datetime; give it a time zone, as in datetime.now(UTC)")
    return from_datetime(options.run_at), None


def _key(options: Options) -> tuple[str | None, float | None]:
    key = options.key
    if key is None:
        if options.key_for is not None:
            raise ConfigError("key_for needs a key")
        return None, None
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH or not key.isprintable():
        raise ConfigError(f"key must be 1 to {MAX_KEY_LENGTH} printable characters, not {key!r}")
    return key, _duration("key_for", options.key_for)


def _integer(name: str, value: object, allowed: range) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value not in allowed:
        raise ConfigError(f"{name} must be a whole number from {allowed[0]} to {allowed[-1]}, not {value!r}")
    return value


def _optional_integer(name: str, value: object, allowed: range) -> int | None:
    return None if value is None else _integer(name, value, allowed)


def _duration(name: str, value: object, *, above_zero: bool = False) -> float | None:
    if value is None:
        return None
    try:
        seconds = parse_duration(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e10 or (above_zero and seconds == 0):
        kind = "a number of seconds over 0" if above_zero else "a number of seconds from 0"
        raise ConfigError(f"{name} must be {kind}, or a timedelta, not {value!r}")
    return seconds


class _Ticket:
    """One caller's job on its way into a shared commit."""

    def __init__(self, job: NewJob) -> None:
        self.job = job
        self.verdict: Verdict | None = None
        self.failure: Exception | None = None

    @property
    def is_settled(self) -> bool:
        return self.verdict is not None or self.failure is not None

    def outcome(self) -> Verdict:
        if self.failure is not None:
            raise self.failure
        assert self.verdict is not None
        return self.verdict


class _ThreadTicket(_Ticket):
    """A thread that waits until its job is settled, or until it is its turn to commit."""

    def __init__(self, job: NewJob) -> None:
        super().__init__(job)
        self._turn = threading.Semaphore(0)
        self.wait = self._turn.acquire
        self.settle = self._turn.release
        self.lead = self._turn.release


class _AsyncTicket(_Ticket):
    """A coroutine that waits until its job is settled; a thread of ours commits in its place."""

    def __init__(self, job: NewJob, loop: asyncio.AbstractEventLoop, lead: Callable[[], object]) -> None:
        super().__init__(job)
        self._loop = loop
        self.settled: asyncio.Future[None] = loop.create_future()
        self.lead = lead

    def settle(self) -> None:
        with suppress(RuntimeError):  # its loop was closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._resolve)

    def _resolve(self) -> None:
        if not self.settled.done():
            self.settled.set_result(None)


class SharedCommits:
    """Lets concurrent enqueues share a commit.

    The first caller commits in its own thread, at once. Those who arrive meanwhile are the next batch, which
    one of them commits. So nobody waits for company, each returns only when its own job is durable, and
    under load an fsync serves many. Each row has its own verdict: a duplicate fails only its caller.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._waiting: list[_ThreadTicket | _AsyncTicket] = []
        self._leading = False
        self._committer: ThreadPoolExecutor | None = None

    def insert(self, job: NewJob) -> Verdict:
        ticket = _ThreadTicket(job)
        if not self._join(ticket):
            ticket.wait()
        if not ticket.is_settled:
            self._commit_batch()
        return ticket.outcome()

    async def insert_async(self, job: NewJob) -> Verdict:
        import asyncio

        ticket = _AsyncTicket(job, asyncio.get_running_loop(), self._commit_in_thread)
        if self._join(ticket):
            self._commit_in_thread()
        await ticket.settled
        return ticket.outcome()

    def close(self) -> None:
        if self._committer is not None:
            self._committer.shutdown()

    def _join(self, ticket: _ThreadTicket | _AsyncTicket) -> bool:
        """Get in line; True for the one that commits next."""
        with self._lock:
            self._waiting.append(ticket)
            leads, self._leading = not self._leading, True
            return leads

    def _commit_in_thread(self) -> None:
        with self._lock:
            if self._committer is None:
                from concurrent.futures import ThreadPoolExecutor

                self._committer = ThreadPoolExecutor(1, "holdfast-enqueue")
        self._committer.submit(self._commit_batch)

    def _commit_batch(self) -> None:
        with self._lock:
            batch, self._waiting = self._waiting, []
        verdicts: Sequence[Verdict | None] = [None] * len(batch)
        failure: Exception | None = StoreUnavailable("the commit was interrupted")
        try:
            verdicts = self._store.insert_jobs([ticket.job for ticket in batch])
            failure = None
        except Exception as error:
            failure = error
        finally:
            for ticket, verdict in zip(batch, verdicts, strict=True):
                ticket.verdict, ticket.failure = verdict, failure
                ticket.settle()
            self._hand_over()

    def _hand_over(self) -> None:
        with self._lock:
            successor = self._waiting[0] if self._waiting else None
            self._leading = successor is not None
        if successor is not None:
            successor.lead()
