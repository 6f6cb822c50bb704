"""What a handler may do while it runs: the Context it is given, and the attempt behind it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from socket import gethostname
from typing import Any, Protocol

from holdfast.config import find_setting
from holdfast.core.clock import Clock, lease_clock
from holdfast.core.job import Job, Status
from holdfast.core.payload import decode, encode_payload
from holdfast.core.settings import Settings
from holdfast.enqueue import Admission, make_options
from holdfast.errors import HoldfastError, Interrupted, LeaseLost, StoreError, shown
from holdfast.handler import Handler
from holdfast.store.protocol import Claim, LogTail, NewJob, Store
from holdfast.transaction import Transaction, TransactionThreads

STOPPING = "stopping"
CANCELLED = "cancelled"
TIMED_OUT = "timed out"
LOST = "lost"
"""Why an attempt is told to stop: the worker ends, its job was cancelled, its time is up, its lease lost."""


MAX_DETAIL = 1024 * 1024


class AttemptHost(Protocol):
    """What an attempt needs of the queue it belongs to."""

    @property
    def store(self) -> Store: ...
    @property
    def admission(self) -> Admission: ...
    @property
    def transaction_threads(self) -> TransactionThreads: ...
    def settings(self) -> Settings: ...


class Attempt:
    """One running attempt, shared by the handler's side and the worker's."""

    __slots__ = (
        "cap",
        "children",
        "claim",
        "claimed",
        "committed",
        "deadline",
        "detail",
        "exception",
        "handle",
        "handler",
        "host",
        "interrupted_at",
        "leased_until",
        "max_result_bytes",
        "on_commit",
        "on_interrupt",
        "on_progress",
        "on_wait",
        "started",
        "started_at",
        "stop_reason",
        "used_transaction",
        "written_off",
    )

    def __init__(
        self, claim: Claim, handler: Handler, host: AttemptHost, *, max_result_bytes: int | None = None
    ) -> None:
        self.claim = claim
        self.handler = handler
        self.host = host
        self.max_result_bytes = max_result_bytes
        self.children: list[NewJob] = []
        self.committed = False
        self.used_transaction = False
        self.stop_reason: str | None = None
        self.detail: dict[str, Any] | None = None
        self.exception: BaseException | None = None
        """What its handler raised, where that was in this process."""
        self.on_interrupt: Callable[[], None] | None = None
        self.on_commit: Callable[[], None] | None = None
        self.on_progress: Callable[[Attempt, float, str | None], None] | None = None
        self.on_wait: Callable[[], None] | None = None
        """Called now and then while it waits for a connection."""
        self.claimed = 0.0
        """When the job was claimed, on the monotonic clock."""
        self.leased_until = math.inf
        """Until when, on the lease clock, nobody else can have the job. A handler's process does not know."""
        # Set when the handler starts: on the wall clock for the record, on the monotonic one for timeouts.
        self.started_at = 0
        self.started = 0.0
        self.deadline: float | None = None
        # The executor's own: how it stops this attempt, and whether it has given up on it.
        self.handle: Any = None
        self.cap = ""
        self.interrupted_at: float | None = None
        self.written_off = False

    def start(self, clock: Clock) -> None:
        self.started_at = clock()
        self.started = time.monotonic()
        if self.claim.timeout is not None:
            self.deadline = self.started + self.claim.timeout

    @property
    def result_limit(self) -> int:
        """How many bytes its result may have: as the worker said, or else as the settings say."""
        if self.max_result_bytes is not None:
            return self.max_result_bytes
        return int(self.host.settings().get("max_result_bytes", self.claim.type))

    def is_leased(self) -> bool:
        """Whether the job is ours for sure: its lease was renewed in time, by our own clock."""
        return lease_clock() < self.leased_until

    def context(self) -> Context:
        return Context(self)


class Context:
    """What a running handler knows and may do."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._job: Job | None = None
        self._transaction: Transaction | None = None
        self.result: Any = None
        """What `transaction()` stores as the job's result."""

    @property
    def job(self) -> Job:
        """The job as it was when first asked for in this attempt."""
        if self._job is None:
            claim = self._attempt.claim
            job = self._attempt.host.store.get_job(claim.id)
            if job is None or job.version != claim.version:
                raise LeaseLost
            self._job = job
        return self._job

    @property
    def attempt(self) -> int:
        """The number of this attempt, from 1."""
        return self._attempt.claim.attempts

    @property
    def idempotency_key(self) -> str:
        """The same text in every attempt of this job. Pass it on to services that deduplicate by one."""
        return self._attempt.claim.id

    def setting(self, name: str) -> Any:
        """The value in force of one of the queue's settings, for this job's type."""
        return self._attempt.host.settings().get(find_setting(name).name, self._attempt.claim.type)

    @property
    def stopping(self) -> bool:
        """Whether the attempt should end at its next safe point."""
        return self._attempt.stop_reason is not None

    def check(self) -> None:
        """A safe point: ends the attempt here if it should stop.

        At shutdown the job is given back and the attempt not counted; after a cancel it ends cancelled. An
        attempt that has lost its job ends here, too, so this belongs before every effect that is not undone.
        """
        if self._attempt.stop_reason is not None:
            raise Interrupted(self._attempt.stop_reason)
        if not self._attempt.is_leased() and not self._holds_job():
            raise Interrupted(LOST)  # nobody has come to tell: this process was stopped for a while

    def _holds_job(self) -> bool:
        claim = self._attempt.claim
        job = self._attempt.host.store.get_job(claim.id)
        return job is not None and (job.version, job.status) == (claim.version, Status.PROCESSING)

    def on_interrupt(self, stop: Callable[[], None]) -> None:
        """Let a sync handler be stopped: `stop` is called, in another thread, when its time is up.

        That is so at a timeout, a cancellation, a lost lease and the end of a shutdown. It must not block,
        and make the handler come to its next `check()` soon: kill the process it waits for, close the socket.
        Without it a thread can only be asked. Async and process handlers need none: they are stopped anyway.
        """
        self._attempt.on_interrupt = stop
        if self._attempt.written_off or self._attempt.stop_reason not in (None, STOPPING):
            stop()  # it came before there was anybody to tell

    def detail(self, **values: Any) -> None:
        """Evidence to keep with this attempt in the job's history, should it fail: any JSON values."""
        text = encode_payload({**(self._attempt.detail or {}), **values}, MAX_DETAIL)
        self._attempt.detail = decode(text)

    def keep_output(self, length: int, tail: bytes) -> None:
        """Keep the end of what this job has printed where other machines can see it.

        `length` is that of the whole. Nothing where the queue is a file on this machine, nor if the database
        is in trouble: it costs the copy of the output, never the job.
        """
        store = self._attempt.host.store
        if store.is_shared:
            with suppress(StoreError):
                store.write_log_tail(self._attempt.claim, LogTail(gethostname(), length, tail))

    def kept_output(self) -> LogTail | None:
        """What earlier attempts have kept, on whichever machine."""
        with suppress(StoreError):
            return self._attempt.host.store.read_log_tail(self._attempt.claim.id)
        return None

    @property
    def shares_output(self) -> bool:
        """Whether what is kept is of use to anybody: workers on other machines may share the queue."""
        return self._attempt.host.store.is_shared

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Report how far the work is, from 0 to 1. The latest report is stored a few times a second."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress goes from 0 to 1, not {fraction!r}")
        if message is not None and not isinstance(message, str):
            raise TypeError(f"the message of a progress report is text, not {shown(message)}")
        encode_payload({"message": message}, 1024 * 1024)  # refuses what can't be stored
        if self._attempt.on_progress is not None:
            self._attempt.on_progress(self._attempt, float(fraction), message)

    def enqueue(self, type: Any, payload: object = None, **options: Any) -> str:
        """Enqueue a child of this job and return its id.

        It exists only if this job completes, from the same commit on. If its id or key is taken by then, the
        other job is linked in its place.
        """
        if self._attempt.committed:
            raise HoldfastError(
                "the job has completed, so it can have no more children", hint="use queue.enqueue"
            )
        host = self._attempt.host
        name = type if isinstance(type, str) else type.type
        child = host.admission.admit(
            name,
            {} if payload is None else payload,
            make_options(options),
            host.settings(),
            parent_id=self._attempt.claim.id,
        )
        self._attempt.children.append(child)
        return child.id

    def transaction(self) -> Transaction:
        """A connection to the queue's own database whose commit completes this job.

        `with ctx.transaction() as connection:`, in async handlers `async with`. What is written in the block
        and the completion are one commit: it happens exactly once. Keep it short; a second block is an error.
        """
        if self._transaction is not None:
            raise HoldfastError("ctx.transaction() can be used once: leaving it completes the job")
        self._attempt.used_transaction = True
        self._transaction = Transaction(self, self._attempt)
        return self._transaction

    def hold(self) -> None:
        """Inside `transaction()`: let it expire no more, or raise TransactionExpired if it has.

        Just before an effect outside the database that must not happen without the commit, such as a rename:
        a slow disk then keeps the lock, instead of having its way when the job is somebody else's.
        """
        if self._transaction is None:
            raise HoldfastError("ctx.hold() belongs inside ctx.transaction()")
        self._transaction.hold()
