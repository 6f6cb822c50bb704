"""What a handler can do while it runs: its Context, and the attempt behind it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from socket import gethostname
from typing import TYPE_CHECKING, Any, Protocol, Unpack

from msgspec import Struct

from holdfast.config import find_setting
from holdfast.core.clock import Clock, lease_clock, to_datetime
from holdfast.core.job import Job, Status
from holdfast.core.payload import encode_payload
from holdfast.core.settings import Settings
from holdfast.enqueueing.enqueuer import Admission
from holdfast.errors import HoldfastError, Interrupted, LeaseLost, ResultIgnored, StoreError
from holdfast.handlers.handler import GivenToHandlers, Handler
from holdfast.store.open import store_of
from holdfast.store.protocol import Store
from holdfast.store.records import Claim, LogTail, NewJob
from holdfast.text import shown
from holdfast.transaction import Transaction, TransactionThreads

if TYPE_CHECKING:
    from holdfast.handlers.options import EnqueueOptions

STOPPING = "stopping"
CANCELLED = "cancelled"
TIMED_OUT = "timed out"
LOST = "lost"
"""Why an attempt should stop: worker shutdown, cancellation, timeout or a lost lease."""


MAX_DETAIL = 1024 * 1024


class AttemptHost(Protocol):
    """What an attempt needs from its queue."""

    @property
    def _store(self) -> Store: ...
    @property
    def admission(self) -> Admission: ...
    @property
    def transaction_threads(self) -> TransactionThreads: ...
    def settings(self) -> Settings: ...


class Enqueueable(Protocol):
    """A job's function, which knows its type."""

    @property
    def type(self) -> str: ...
    @property
    def options(self) -> Mapping[str, Any]: ...


class Attempt(Struct, eq=False):
    """One running attempt, shared by the handler and the worker."""

    claim: Claim
    handler: Handler
    host: AttemptHost
    max_result_bytes: int | None = None
    children: list[NewJob] = []
    committed: bool = False
    """Whether its ctx.transaction() has completed the job: nothing can be lost any more."""
    committed_result: str | None = None
    used_transaction: bool = False
    stop_reason: str | None = None
    detail: dict[str, Any] | None = None
    exception: BaseException | None = None
    """What its handler raised, if that happened in this process."""
    on_interrupt: Callable[[], None] | None = None
    on_commit: Callable[[], None] | None = None
    on_progress: Callable[[Attempt, float, str | None], None] | None = None
    on_wait: Callable[[], None] | None = None
    """Called from time to time while it waits for a connection."""
    on_begin: Callable[[int, int], int | None] | None = None
    """Notes its start, in the instant before the handler is called, and returns where: its `mark`."""
    mark: int | None = None
    has_begun: bool = False
    """Whether its handler has started."""
    claimed: float = 0.0
    """When the job was claimed, on the monotonic clock."""
    leased_until: float = math.inf
    """Until when, on the lease clock, nobody else can own the job. Unknown in a handler's child process."""
    # Set when it has its slot: on the wall clock for the record, on the monotonic one for its pace.
    started_at: int = 0
    started: float = 0.0
    deadline: float | None = None
    """When its time is up, which counts from the handler's start; before that, the time to get there."""
    # The executor's own: how it stops this attempt, and whether it has given up on it.
    handle: Any = None
    cap: str = ""
    interrupted_at: float | None = None
    is_settled: bool = False
    """Whether its end is decided, by its handler or by the worker."""
    written_off: bool = False

    def start(self, clock: Clock) -> None:
        self.started_at = clock()
        self.started = time.monotonic()

    def begin(self) -> None:
        """Its handler starts now: nothing may refuse it any more."""
        if self.on_begin is not None:
            self.mark = self.on_begin(self.claim.seq, self.claim.version)
        if self.claim.timeout is not None:
            self.deadline = time.monotonic() + self.claim.timeout
        self.has_begun = True

    @property
    def name(self) -> tuple[int, int]:
        """The attempt's key in the store: the job's seq, and the version that its claim gave the job."""
        return self.claim.seq, self.claim.version

    @property
    def result_limit(self) -> int:
        """The maximum size of its result in bytes: from the worker, otherwise from the settings."""
        if self.max_result_bytes is not None:
            return self.max_result_bytes
        return int(self.host.settings().get("max_result_bytes", self.claim.type))

    def is_leased(self) -> bool:
        """Whether the job is certainly ours: by our own clock, its lease was renewed in time."""
        return lease_clock() < self.leased_until

    def context(self) -> Context:
        return Context(self)


class SharedOutput(Struct, frozen=True):
    """The end of a job's output, kept in a database that several machines share.

    Trouble with the database costs the copy of the output, never the job.
    """

    _store: Store
    _claim: Claim

    def store_tail(self, length: int, tail: bytes) -> None:
        """Store the last bytes of an output that is `length` bytes long in total."""
        with suppress(StoreError):
            self._store.write_log_tail(self._claim, LogTail(gethostname(), length, tail))

    def last_tail(self) -> LogTail | None:
        """What was stored last, even by an earlier attempt on another machine."""
        with suppress(StoreError):
            return self._store.read_log_tail(self._claim.id)
        return None


class Context(GivenToHandlers):
    """What a running handler knows about its job, and what it can do."""

    def __init__(self, attempt: Attempt) -> None:
        self._attempt = attempt
        self._job: Job | None = None
        self._transaction: Transaction | None = None
        self._result: Any = None

    @property
    def result(self) -> Any:
        """What `transaction()` stores as the job's result."""
        return self._result

    @result.setter
    def result(self, value: Any) -> None:
        if self._attempt.committed:
            raise ResultIgnored
        self._result = value

    @property
    def job(self) -> Job:
        """The job as it was when first read in this attempt."""
        if self._job is None:
            claim = self._attempt.claim
            job = store_of(self._attempt.host).get_job(claim.id)
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
        """The same in every attempt of this job. Pass it to services that accept an idempotency key."""
        return self._attempt.claim.id

    @property
    def now(self) -> datetime:
        """The current time in UTC, by the clock that decides when jobs are due.

        On PostgreSQL that is the server's clock, so handlers on all machines agree.
        """
        return to_datetime(store_of(self._attempt.host).now())

    def setting(self, name: str) -> Any:
        """The value in effect of one of the queue's settings, for this job's type."""
        return self._attempt.host.settings().get(find_setting(name).name, self._attempt.claim.type)

    @property
    def stopping(self) -> bool:
        """Whether the attempt should end at its next safe point."""
        return self._attempt.stop_reason is not None

    def check(self) -> None:
        """A safe point: the attempt ends here if it should stop.

        At shutdown, the job is released and the attempt not counted; after a cancellation, the job ends
        cancelled. An attempt that has lost its lease also ends here, so call this before every irreversible
        effect.
        """
        if self._attempt.stop_reason is not None:
            raise Interrupted(self._attempt.stop_reason)
        if self._attempt.committed:  # its job is completed, so there is no lease that could be lost
            return
        if not self._attempt.is_leased() and not self._holds_job():
            raise Interrupted(LOST)  # nobody has come to tell: this process was stopped for a while

    def _holds_job(self) -> bool:
        claim = self._attempt.claim
        job = store_of(self._attempt.host).get_job(claim.id)
        return job is not None and (job.version, job.status) == (claim.version, Status.PROCESSING)

    def on_interrupt(self, stop: Callable[[], None]) -> None:
        """Make a sync handler stoppable: `stop` is called in another thread when the handler must stop.

        That happens at a timeout, a cancellation, a lost lease and the end of a shutdown. `stop` must not
        block, and must make the handler reach its next `check()` soon: kill the process it waits for, close
        the socket. Without it, a thread can only be asked to stop. Async and process handlers don't need it.
        """
        self._attempt.on_interrupt = stop
        if self._attempt.written_off or self._attempt.stop_reason not in (None, STOPPING):
            stop()  # it came before there was anybody to tell

    def detail(self, **values: Any) -> None:
        """Details to keep with this attempt in the job's history if it fails: any JSON values."""
        self._attempt.detail, _ = encode_payload({**(self._attempt.detail or {}), **values}, MAX_DETAIL)

    @property
    def shared_output(self) -> SharedOutput | None:
        """Where the end of this job's output can be stored for other machines.

        None if the queue is a file on this machine: no other machine could read it.
        """
        store = store_of(self._attempt.host)
        return SharedOutput(store, self._attempt.claim) if store.is_shared else None

    def progress(self, fraction: float, message: str | None = None) -> None:
        """Report progress from 0 to 1, with a message. The latest report is stored a few times a second."""
        if not 0 <= fraction <= 1:
            raise ValueError(f"progress must be from 0 to 1, not {fraction!r}")
        if message is not None:
            if not isinstance(message, str):
                raise TypeError(f"a progress message must be text, not {shown(message)}")
            message = str.__str__(message)  # also of an enum
        encode_payload({"message": message}, 1024 * 1024)  # refuses what can't be stored
        if self._attempt.on_progress is not None:
            self._attempt.on_progress(self._attempt, float(fraction), message)

    def enqueue(
        self,
        type: str | Enqueueable,
        payload: object = None,
        **options: Unpack[EnqueueOptions],
    ) -> str:
        """Enqueue a child of this job and return its id.

        The child exists only if this job completes, and is stored in the same commit. If its id or key is
        taken by then, the other job is linked instead.
        """
        if self._attempt.committed:
            raise HoldfastError(
                "the job has completed, so it can't enqueue any more children", hint="use queue.enqueue"
            )
        host = self._attempt.host
        child = host.admission.admit(
            type if isinstance(type, str) else type.type,
            {} if payload is None else payload,
            options if isinstance(type, str) else {**type.options, **options},
            host.settings(),
            parent_id=self._attempt.claim.id,
        )
        self._attempt.children.append(child)
        return child.id

    def transaction(self) -> Transaction:
        """A connection to the queue's own database whose commit completes this job.

        `with ctx.transaction() as connection:`, in async handlers `async with`. What is written in the block
        and the completion are one commit, so they happen exactly once. Keep it short; a second block is an
        error.
        """
        if self._transaction is not None:
            raise HoldfastError("ctx.transaction() can be used only once: leaving it completes the job")
        self._attempt.used_transaction = True
        self._transaction = Transaction(self, self._attempt)
        return self._transaction

    def hold(self) -> None:
        """Inside `transaction()`: stop it from expiring, or raise TransactionExpired if it already has.

        Call this just before an effect outside the database that must not happen without the commit, such as
        a rename: a slow disk then holds the lock, instead of finishing after another worker has the job.
        """
        if self._transaction is None:
            raise HoldfastError("ctx.hold() can only be called inside ctx.transaction()")
        self._transaction.hold()
