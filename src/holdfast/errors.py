"""Every error Holdfast raises, in one tree. The data is in attributes; a hint says what to do."""

from __future__ import annotations

from holdfast.durations import LONGEST_DURATION, Duration, parse_duration


class HoldfastError(Exception):
    """Something went wrong in Holdfast."""

    def __init__(self, message: str | None = None, *, hint: str | None = None) -> None:
        text = message or (self.__doc__ or type(self).__name__).strip().partition("\n")[0]
        super().__init__(one_line(f"{text} ({hint})" if hint else text))
        self.hint = hint


def one_line(text: str) -> str:
    """The text with what is not printable escaped, line ends included."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def shown(value: object) -> str:
    """A foreign value as it may stand in a message: short, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # such as an integer of thousands of digits
        return f"a value of type {type(value).__name__}"
    return text if len(text) <= 80 else f"{text[:77]}…"


class ConfigError(HoldfastError):
    """A setting or an option is wrong."""


class StoreError(HoldfastError):
    """The database did not do what was asked; the same call may succeed later."""


class StoreBusy(StoreError):
    """The database stayed locked by another writer."""

    def __init__(self, seconds: float) -> None:
        super().__init__(
            f"the database stayed locked for {seconds:g} s",
            hint="another connection holds a write transaction: keep those short, and pass connection= "
            "to enqueue inside a transaction of your own",
        )


class StoreUnavailable(StoreError):
    """The database can't be reached, read or written."""


class QueueClosed(StoreUnavailable):
    """The queue is closed."""


class CommitUncertain(StoreUnavailable):
    """COMMIT failed, and what was to be committed may be there or not."""


class DatabaseReplaced(StoreUnavailable):
    """The database file was removed or replaced while it was open; what is written to it is lost."""

    def __init__(self, path: str, *, removed: bool) -> None:
        what = "removed or renamed" if removed else "replaced by another file"
        super().__init__(
            f"{path} was {what} while this process had it open",
            hint="restart this process; nothing more can be stored in the old file",
        )
        self.path = path
        self.removed = removed


class QueueNotFound(HoldfastError):
    """There is no queue at the address, and none was made."""

    def __init__(self, address: str) -> None:
        super().__init__(
            f"there is no queue in {address}", hint="the first enqueue makes it, and so does a worker"
        )
        self.address = address


class SchemaOutOfDate(HoldfastError):
    """The database's schema does not fit this version of Holdfast."""


class ForeignDatabase(HoldfastError):
    """The database holds something that Holdfast did not make, and is left untouched."""


class JobNotFound(HoldfastError):
    """There is no such job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"there is no job {job_id!r}")
        self.job_id = job_id


class NoOutput(HoldfastError):
    """The job has no output that is kept here."""


class DuplicateJob(HoldfastError):
    """The id is taken by another job."""

    def __init__(self, job_id: str) -> None:
        super().__init__(f"a job with the id {job_id!r} exists already")
        self.job_id = job_id


class KeyTaken(DuplicateJob):
    """The key is held by a job with another payload."""

    def __init__(self, job_id: str, key: str) -> None:
        HoldfastError.__init__(
            self,
            f"the key {key!r} is held by job {job_id!r}, which has another payload",
            hint="a key stands for one payload while its job is unfinished, and key_for longer",
        )
        self.job_id = job_id
        self.key = key


class KeyHeld(KeyTaken):
    """The job can't be retried: another job holds its key."""

    def __init__(self, job_id: str, key: str, *, is_finished: bool = False) -> None:
        HoldfastError.__init__(
            self,
            f"the key {key!r} is held by job {job_id!r} now",
            hint="delete that job, or wait until its key_for is over"
            if is_finished
            else "cancel that job, or wait until it has finished",
        )
        self.job_id = job_id
        self.key = key


class InvalidPayload(HoldfastError):
    """The payload can't be accepted. `where` names the place, as in payload.user.id."""

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
    "completed": "it can be deleted; to do its work again, enqueue a new job",
    "failed": "it can be retried or deleted",
    "cancelled": "it can be retried or deleted",
}
"""What may be done to a finished job, by its state."""

_OF_UNFINISHED = {
    "retried": "failed and cancelled jobs can be, and those that wait for a retry",
    "deleted": "cancel it first",
}
"""What has to be so before something may be done to a job, by what was asked for."""


class WrongState(HoldfastError):
    """The job's state does not allow this."""

    def __init__(self, job_id: str, status: str, action: str, allowed: str | None = None) -> None:
        hint = allowed or _OF_FINISHED.get(status) or _OF_UNFINISHED.get(action)
        super().__init__(f"job {job_id!r} is {status} and can't be {action}", hint=hint)
        self.job_id = job_id
        self.status = status
        self.action = action


class QueueFull(HoldfastError):
    """The type has as many waiting jobs as max_depth allows."""

    def __init__(self, type: str, max_depth: int) -> None:
        super().__init__(f"type {type!r} has {max_depth} waiting jobs, as many as max_depth allows")
        self.type = type
        self.max_depth = max_depth


class BulkRefused(HoldfastError):
    """A job of a bulk can't be stored. `line` is where it came from, `stored` how many are there already."""

    def __init__(self, line: int, error: HoldfastError, stored: int) -> None:
        before = f"; {stored} jobs of the chunks before it are stored" if stored else "; nothing was stored"
        super().__init__(f"line {line}: {error}{before}")
        self.line = line
        self.error = error
        self.stored = stored


class BatchRefused(HoldfastError):
    """A job of a batch can't be stored, so none was. `index` is its place, from 0; `error` says why."""

    def __init__(self, index: int, error: HoldfastError) -> None:
        super().__init__(f"tasks[{index}]: {error}; nothing was stored")
        self.index = index
        self.error = error


class LeaseLost(HoldfastError):
    """This attempt no longer owns the job; whatever it still writes is refused."""


class TransactionExpired(HoldfastError):
    """The transaction took longer than transaction_seconds and was rolled back."""


class NestedWrite(HoldfastError):
    """A write to the queue inside another one of the same thread would wait for its own lock."""

    def __init__(self, *, interrupted: bool = False) -> None:
        if interrupted:
            super().__init__(
                "this thread was interrupted while it wrote to the queue",
                hint="enqueue from another thread, or after the signal handler has returned",
            )
            return
        super().__init__(
            "the queue can't be written inside ctx.transaction(), which holds its lock",
            hint="enqueue with ctx.enqueue(...), or pass connection=",
        )


# What a handler raises to choose its own end.


class Fail(Exception):
    """Ends the job as failed at once: trying again would not help."""


class Retry(Exception):
    """Ends the attempt as failed and asks for the next one after `delay`: seconds, text or a timedelta."""

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


# Why an attempt ended without its handler's say; recorded on the job as evidence.


class TimedOut(HoldfastError):
    """The attempt ran longer than its timeout."""

    def __init__(self, after: float) -> None:
        super().__init__(f"the attempt ran longer than its timeout of {after:g} s")
        self.after = after


class WorkerLost(HoldfastError):
    """The worker that ran the attempt died."""

    def __init__(self, worker_id: str | None, last_seen: str) -> None:
        super().__init__(f"worker {worker_id} died or lost its lease; it was last heard of at {last_seen}")
        self.worker_id = worker_id
        self.last_seen = last_seen


class ProcessDied(HoldfastError):
    """The process that ran the attempt died."""

    def __init__(self, exit_code: int) -> None:
        how = f"was killed by signal {-exit_code}" if exit_code < 0 else f"exited with code {exit_code}"
        super().__init__(f"the handler's process {how}")
        self.exit_code = exit_code


class CommandNotStarted(HoldfastError):
    """A shell command could not be started. `permanent` means that trying again would not help."""

    def __init__(self, problem: str, *, permanent: bool = False) -> None:
        super().__init__(f"the command could not be started: {problem}")
        self.problem = problem
        self.permanent = permanent


class CommandFailed(HoldfastError):
    """A shell command ended with an exit code other than 0, or by a signal."""

    def __init__(self, exit_code: int, last_line: str = "") -> None:
        how = f"killed by signal {-exit_code}" if exit_code < 0 else f"exit code {exit_code}"
        super().__init__(f"{how}: {last_line}" if last_line else how)
        self.exit_code = exit_code
        self.last_line = last_line


class ExtractionFailed(HoldfastError):
    """Claude Code gave no answer that can be kept; another attempt may."""

    def __init__(self, problem: str, *, exit_code: int) -> None:
        super().__init__(problem)
        self.problem = problem
        self.exit_code = exit_code


class Interrupted(BaseException):
    """Raised by ctx.check() to end an attempt at a safe point.

    Not an Exception, so that a handler's `except Exception` lets it pass.
    """


# While a queue is moved to another database, and after it.


class QueueMoved(StoreUnavailable):
    """The queue was moved to another database, or is on its way there; here nothing can be written."""

    def __init__(self, to: str, *, done: bool = True) -> None:
        if done:
            super().__init__(f"the queue was moved to {to}", hint="use that address")
        else:
            super().__init__(f"the queue is being moved to {to}", hint="use that address in a moment")
        self.to = to
        self.done = done


class QueueArriving(StoreUnavailable):
    """A queue is being moved here and is not complete yet."""

    def __init__(self, source: str) -> None:
        super().__init__(
            f"a queue is being moved here from {source}",
            hint="if nobody is at it any more, run that queuectl move again",
        )
        self.source = source


class MoveFailed(HoldfastError):
    """The queue could not be moved, and is where it was."""
