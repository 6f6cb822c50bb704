"""What a store must do. Every engine fills `Store` in and passes the same conformance suite.

What is the same on every engine is in `Reads` and `Writes`. Writes are plural and guarded: an attempt is
named by its job's `seq`, the `version` of its claim and the worker that holds it, and a write of an attempt
that is over changes nothing. Instants are microseconds on the store's own clock (`now`); delays and leases
travel as durations in seconds.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Sequence
from typing import Any, Protocol

from holdfast.core.lifecycle import Decision
from holdfast.core.starting import Head, Usage
from holdfast.store.records import Claim, Finding, LogTail, NewJob, Verdict
from holdfast.store.writes import Writes


class Watch(Protocol):
    """Waits for commits by others. Used by one thread; `wake` may be called from any."""

    def wait(self, timeout: float) -> None:
        """Return when something may have changed, when woken, or after `timeout` seconds."""

    def changed(self) -> bool:
        """Whether another connection has committed since the last call."""

    def wake(self) -> None: ...

    def close(self) -> None: ...


class AttemptTransaction(Protocol):
    """A transaction of the handler's own that completes its job when it commits."""

    connection: Any

    def begin(self, check_wait: Callable[[], None] = lambda: None) -> None:
        """Open it, holding the job. Raises LeaseLost if the attempt no longer owns it.

        As long as the database has no connection or no lock for it, it waits and calls `check_wait`, which
        may raise.
        """

    def hold(self) -> None:
        """Stop it from expiring. Raises TransactionExpired if it already has."""

    def commit(
        self, decision: Decision, children: Sequence[NewJob], done: Callable[[], None] = lambda: None
    ) -> None:
        """Complete the job and commit what was written, both or neither; calls `done` as soon as it is so."""

    def rollback(self) -> None: ...


class Store(Writes):
    """A queue's database. What is not abstract here does nothing, where an engine has nothing to do."""

    is_shared: bool
    """Whether workers on other machines may share it."""

    def close_thread(self) -> None:
        """Close this thread's resources, for a thread that ends before the store does."""

    def close_idle(self) -> None:
        """Close the connections that are not in use, so that others can have them."""

    def check_place(self) -> None:
        """Raise DatabaseReplaced if the address leads to another database than the one that is open."""

    @abstractmethod
    def watch(self, *, for_work: bool = False) -> Watch:
        """For every change that others commit; with `for_work`, those that give a worker something to do
        are enough."""

    @abstractmethod
    def insert_jobs(
        self, jobs: Sequence[NewJob], *, atomic: bool = False, wait: bool = True
    ) -> list[Verdict]:
        """Insert jobs in one commit, each with its own verdict: one refusal does not touch the others.

        With `atomic`, one refusal means that none of them is inserted. Without `wait`, a job whose key or id
        somebody's open transaction is about to take is refused at once, with StoreBusy.
        """

    @abstractmethod
    def insert_jobs_with(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        """The same, atomic, inside the caller's own transaction, which neither commits nor aborts by it."""

    @abstractmethod
    async def insert_jobs_awaiting(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        """The same through a connection that can only be awaited."""

    @abstractmethod
    def list_heads(self, apart: Collection[str] = ()) -> list[Head]:
        """Where the first waiting job of each type stands.

        The lanes of the types `apart` may be left out, and everything if "" is among them.
        """

    @abstractmethod
    def read_usage(self) -> Usage:
        """What runs now, and the state of all rate limits."""

    @abstractmethod
    def list_cancelled(self, worker_id: str) -> set[tuple[int, int]]:
        """The (seq, version) of a worker's running attempts that should be cancelled."""

    @abstractmethod
    def list_unsuspected(
        self, worker_id: str, held: Sequence[tuple[int, int]], *, patience: float
    ) -> set[tuple[int, int]]:
        """Those of the (seq, version) held that are the worker's still, and that no reaper has marked.

        It tells a worker that a lock keeps from writing which of its jobs nobody else can take within the
        next heartbeat. Raises StoreBusy if the lock keeps even a read waiting for longer than `patience`.
        """

    @abstractmethod
    def begin_attempt_transaction(self, claim: Claim, seconds: float) -> AttemptTransaction:
        """A transaction for a handler, not yet begun, which expires after `seconds`."""

    def write_log_tail(self, claim: Claim, tail: LogTail) -> None:
        """Keep the end of an attempt's output, if the attempt still holds its job and `is_shared`."""

    def read_log_tail(self, job_id: str) -> LogTail | None:
        """None if everyone who can read the database can also read the log files next to it."""

    @abstractmethod
    def back_up(self, path: str) -> None:
        """Write a complete copy of the database as it is now to a new file."""

    @abstractmethod
    def measure(self) -> dict[str, float]:
        """Statistics of the engine itself, by their name in metrics."""

    @abstractmethod
    def examine(self) -> list[Finding]:
        """What an operator should know about the database and where it lives."""
