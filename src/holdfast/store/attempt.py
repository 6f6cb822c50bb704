"""ctx.transaction() on every engine: its time limit, its commit, and what it refuses the handler.

How a job is held, and how a statement is cut short, is up to each engine.
"""

from __future__ import annotations

import threading
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NoReturn

from holdfast.core.job import Status
from holdfast.core.lifecycle import Decision
from holdfast.errors import CommitUncertain, HoldfastError, TransactionExpired
from holdfast.store.database import Reader
from holdfast.store.deadlines import DEADLINES, Deadline
from holdfast.store.records import Claim, Finish, NewJob

ENDED = "the transaction has ended; its connection can no longer be used"


class Guarded:
    """Wraps a driver's connection, and refuses whatever would end the transaction early."""

    expired_after: float | None = None
    begun = over = False
    how_it_ends = ""
    """What else ends a transaction on this engine, as a hint."""

    @abstractmethod
    def is_in_transaction(self) -> bool:
        """Whether the driver still has a transaction open."""

    def check(self) -> None:
        """Raise unless the transaction is still open: otherwise a statement would commit by itself."""
        self.check_time()
        if self.begun and not self.is_in_transaction():
            raise HoldfastError(
                "a statement inside ctx.transaction() ended the transaction, so the job is not completed",
                hint=self.how_it_ends,
            )

    def check_time(self) -> None:
        """Raise if the transaction has expired or is over."""
        if self.expired_after is not None:
            raise TransactionExpired(
                f"the transaction took longer than {self.expired_after:g} s and was rolled back",
                hint="keep it short, or raise transaction_seconds",
            )
        if self.over:
            raise HoldfastError(ENDED)

    def commit(self) -> NoReturn:
        raise HoldfastError("leaving the block commits the transaction")

    def rollback(self) -> NoReturn:
        raise HoldfastError("raise an exception to roll the transaction back")


class TimeLimit:
    """Calls `expire` in a thread of its own when the time is up, but never while or after it is lifted."""

    def __init__(self, seconds: float, expire: Callable[[], None]) -> None:
        self._expire = expire
        self._settling = threading.Lock()
        self._is_lifted = False
        self._seconds = seconds
        self._deadline: Deadline | None = None

    def start(self) -> None:
        self._deadline = DEADLINES.add(self._seconds, self._run_out)

    @contextmanager
    def lifted(self) -> Iterator[None]:
        """Waits for an `expire` that has begun; from here on there is none."""
        with self._settling:
            self._is_lifted = True
            if self._deadline is not None:
                DEADLINES.call_off(self._deadline)
            yield

    def _run_out(self) -> None:
        if self._settling.acquire(blocking=False):
            try:
                if not self._is_lifted:  # it may be called off a moment too late
                    self._expire()
            finally:
                self._settling.release()


def completion_of(claim: Claim, decision: Decision, children: Sequence[NewJob]) -> Finish:
    """The end of an attempt that its own transaction completes."""
    return Finish(
        seq=claim.seq,
        type=claim.type,
        version=claim.version,
        worker_id=claim.worker_id,
        attempt=claim.attempts,
        decision=decision,
        started_at=0,  # which is written of failures alone
        children=tuple(children),
    )


def commit_completion(database: Reader, commit: Callable[[], None], claim: Claim) -> None:
    """Commit; where nobody can say whether that was done, the job's row does."""
    try:
        commit()
    except CommitUncertain:
        row = database.read_one("SELECT status, version FROM holdfast_jobs WHERE seq = ?", [claim.seq])
        if row != (Status.COMPLETED, claim.version):
            raise
