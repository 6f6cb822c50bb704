"""Every error Holdfast raises, in one tree. The data is in attributes; a hint says what to do."""

from __future__ import annotations

import copyreg
from typing import Any

from holdfast.durations import LONGEST_DURATION, Duration, parse_duration
from holdfast.text import one_line, shown


class HoldfastError(Exception):
    """Something went wrong in Holdfast."""

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        text = message or (self.__doc__ or type(self).__name__).strip().partition("\n")[0]
        super().__init__(one_line(f"{text} ({hint})" if hint else str(text)))
        self.hint = hint

    def __reduce__(self) -> tuple[Any, ...]:
        """Restore the attributes without calling __init__: most subclasses don't take a message."""
        return copyreg.__newobj__, (type(self), *self.args), self.__dict__  # type: ignore[attr-defined]


class ConfigError(HoldfastError):
    """A setting or option is invalid.

    Where `option` names an argument, the message is that name and then the `problem`.
    """

    def __init__(
        self, problem: str | None = None, *, option: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(problem if option is None else f"{option} {problem}", hint=hint)
        self.option = option
        self.problem = problem


class StoreError(HoldfastError):
    """A database operation failed; the same call may succeed later."""


class StoreBusy(StoreError):
    """Another writer kept the database locked."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the database stayed locked for {seconds:g} s",
            hint="another connection holds a write transaction; keep transactions short, and pass "
            "connection= to enqueue inside one of your own",
        )


class StoreUnavailable(StoreError):
    """The database can't be reached, read or written."""


class QueueClosed(StoreUnavailable):
    """The queue is closed."""


class CommitUncertain(StoreUnavailable):
    """COMMIT failed, and it is unknown whether it took effect."""


class DatabaseReplaced(StoreUnavailable):
    """The database file was removed or replaced while it was open; anything written to it is lost."""

    def __init__(self, path: str, *, removed: bool) -> None:
        what = "removed or renamed" if removed else "replaced by another file"
        super().__init__(
            f"{path} was {what} while this process had it open",
            hint="restart this process; the old file can't store anything more",
        )
        self.path = path
        self.removed = removed


class QueueNotFound(HoldfastError):
    """There is no queue at this address, and none was created."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"there is no queue at {address}", hint="enqueueing a job or starting a worker creates one"
        )
        self.address = address


class SchemaOutOfDate(HoldfastError):
    """The database schema does not match this version of Holdfast."""


class ForeignDatabase(HoldfastError):
    """The database contains something that Holdfast did not create, so it was left unchanged."""


class JobNotFound(HoldfastError):
    """There is no such job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}")
        self.job_id = job_id


class NoOutput(HoldfastError):
    """No output of this job is stored here."""


class DuplicateJob(HoldfastError):
    """Another job already has this id."""

    def __init__(self, job_id: str, message: str | None = None, *, hint: str | None = None) -> None:
        super().__init__(message or f"a job with the id {job_id!r} already exists", hint=hint)
        self.job_id = job_id


class KeyTaken(DuplicateJob):
    """A job with a different payload holds this key."""

    def __init__(self, job_id: str, key: str) -> None:
        super().__init__(
            job_id,
            f"the key {key!r} is held by job {job_id!r}, which has a different payload",
            hint="a key identifies one payload until its job has finished, and for key_for after that",
        )
        self.key = key


class KeyHeld(KeyTaken):
    """The job can't be retried: another job holds its key."""

    def __init__(self, job_id: str, key: str, *, is_finished: bool = False) -> None:
        until = "delete that job, or wait until its key_for has expired"
        hint = until if is_finished else "cancel that job, or wait until it has finished"
        DuplicateJob.__init__(self, job_id, f"the key {key!r} is now held by job {job_id!r}", hint=hint)
        self.key = key


class InvalidPayload(HoldfastError):
    """The payload is invalid. `where` is the path to the problem, such as payload.user.id."""

    def __init__(self, where: str, problem: str) -> None:
        super().__init__(f"{where}: {problem}")
        self.where = where
        self.problem = problem


class PayloadTooLarge(InvalidPayload):
    """The payload is larger than max_payload_bytes allows."""


class UnknownType(HoldfastError):
    """No handler is registered for the job's type."""

    def __init__(self, type: str, known: list[str]) -> None:
        names = ", ".join(sorted(known)) or "none"
        super().__init__(f"no handler is registered for type {type!r}; registered: {names}")
        self.type = type


_OF_FINISHED = {
    "completed": "it can only be deleted; to run it again, enqueue a new job",
    "failed": "it can be retried or deleted",
    "cancelled": "it can be retried or deleted",
}
"""What can still be done with a finished job, by its state."""

_OF_UNFINISHED = {
    "retried": "only failed jobs, cancelled jobs and jobs waiting for a retry can be",
    "deleted": "cancel it first",
}
"""What has to happen before an action on an unfinished job, by action."""


class WrongState(HoldfastError):
    """The job's state does not allow this."""

    def __init__(self, job_id: str, status: str, action: str, allowed: str | None = None) -> None:
        hint = allowed or _OF_FINISHED.get(status) or _OF_UNFINISHED.get(action)
        super().__init__(f"job {job_id!r} is {status} and can't be {action}", hint=hint)
        self.job_id = job_id
        self.status = status
        self.action = action


class QueueFull(HoldfastError):
    """As many jobs are already waiting as max_depth allows.

    `shared_by` is the name that it was set for: the type itself, its base type, or "" for the whole queue.
    """

    def __init__(self, type: str, max_depth: int, shared_by: str | None = None) -> None:
        who = f"type {type!r} has"
        if shared_by not in (None, type):
            who = f"type {shared_by!r} and its lanes have" if shared_by else "the queue has"
        super().__init__(f"{who} {max_depth} waiting jobs, the most that max_depth allows")
        self.type = type
        self.max_depth = max_depth


class BulkRefused(HoldfastError):
    """A job of a bulk enqueue can't be stored. `line` is its line, `stored` how many jobs already are."""

    def __init__(self, line: int, error: HoldfastError, stored: int) -> None:
        before = f"; {stored} jobs from earlier chunks were stored" if stored else "; nothing was stored"
        super().__init__(f"line {line}: {error}{before}")
        self.line = line
        self.error = error
        self.stored = stored


class BatchRefused(HoldfastError):
    """A job of a batch can't be stored, so none were. `index` is its position, from 0; `error` says why."""

    def __init__(self, index: int, error: HoldfastError) -> None:
        super().__init__(f"tasks[{index}]: {error}; nothing was stored")
        self.index = index
        self.error = error


class LeaseLost(HoldfastError):
    """This attempt no longer owns the job; anything it still writes is refused."""


class TransactionExpired(HoldfastError):
    """The transaction took longer than transaction_seconds and was rolled back."""


class ResultIgnored(HoldfastError):
    """A handler returned a value after ctx.transaction() had completed its job; the value is discarded."""

    def __init__(self) -> None:
        super().__init__(
            "the handler returned a value after ctx.transaction() had completed its job",
            hint="set ctx.result inside the block instead; a value returned after it is not stored",
        )


class NestedWrite(HoldfastError):
    """A write to the queue inside another write of the same thread would deadlock."""

    def __init__(self, *, interrupted: bool = False) -> None:
        if interrupted:
            message = "this thread was interrupted while writing to the queue"
            hint = "enqueue from another thread, or after the signal handler has returned"
        else:
            message = "the queue can't be written to inside ctx.transaction(), which holds its lock"
            hint = "enqueue with ctx.enqueue(...), or pass connection="
        super().__init__(message, hint=hint)


# What a handler raises to decide how its attempt ends.


class Fail(Exception):
    """Raise this in a handler to fail the job at once, without another attempt."""

    __reduce__ = HoldfastError.__reduce__


class AttemptFailed(HoldfastError):
    """The attempt failed.

    Handlers can raise it, or subclass it, where the message says it all: no traceback is stored.
    `permanent` means that another attempt would not help.
    """

    def __init__(self, message: str | None = None, *, permanent: bool = False) -> None:
        super().__init__(message)
        self.permanent = permanent


class Retry(Exception):
    """Raise this in a handler to fail the attempt and retry after `delay`: seconds, text or a timedelta."""

    __reduce__ = HoldfastError.__reduce__

    def __init__(
        self, message: str = "the handler asked for a retry", *, delay: Duration | None = None
    ) -> None:
        super().__init__(message)
        self.delay = None if delay is None else _delay(delay)


def _delay(given: Duration) -> float:
    try:
        seconds = parse_duration(given)
    except ValueError:
        raise ValueError(
            f"delay must be a duration, such as 30, '5m' or a timedelta, not {shown(given)}"
        ) from None
    if not 0 <= seconds <= LONGEST_DURATION:
        raise ValueError(f"delay must be from 0 to {LONGEST_DURATION:g} seconds, not {shown(given)}")
    return seconds


# Why an attempt ended other than by its handler; recorded on the job as evidence.


class TimedOut(HoldfastError):
    """The attempt ran longer than its timeout."""

    def __init__(self, after: float) -> None:
        super().__init__(f"the attempt ran longer than its timeout of {after:g} s")
        self.after = after


class WorkerLost(HoldfastError):
    """The worker that ran the attempt died."""

    def __init__(self, worker_id: str | None, last_seen: str) -> None:
        super().__init__(f"worker {worker_id} died or lost its lease; its last heartbeat was at {last_seen}")
        self.worker_id = worker_id
        self.last_seen = last_seen


class ProcessDied(HoldfastError):
    """The process that ran the attempt died."""

    def __init__(self, exit_code: int) -> None:
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"
        super().__init__(f"the handler's process {how}")
        self.exit_code = exit_code


class Interrupted(BaseException):
    """Raised by ctx.check() to end an attempt at a safe point.

    Not an Exception, so that a handler's `except Exception` does not catch it.
    """


# While a queue is moved to another database, and after it.


class QueueMoved(StoreUnavailable):
    """The queue was moved to another database, or is being moved; it can't be written to here."""

    def __init__(self, to: str, *, done: bool = True) -> None:
        if done:
            super().__init__(f"the queue was moved to {to}", hint="use that address")
        else:
            super().__init__(f"the queue is being moved to {to}", hint="use that address once it is done")
        self.to = to
        self.done = done


class QueueArriving(StoreUnavailable):
    """A queue is being moved here, and the move has not finished."""

    def __init__(self, source: str) -> None:
        super().__init__(
            f"a queue is being moved here from {source}",
            hint="if that move was interrupted, run it again",
        )
        self.source = source


class MoveFailed(HoldfastError):
    """The queue could not be moved and stays where it was."""
