"""Events as values: every transition of a job, every start and stop of a worker or handler.

Domain code announces these and never words a log line; observe/log.py does that. An event is passed to the
standard logger `holdfast` as the message itself, and to the subscribers of the queue's `events`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from msgspec import Struct

if TYPE_CHECKING:
    from logging import Logger

LOGGER = "holdfast"
DEBUG, INFO, WARNING, ERROR, CRITICAL = 10, 20, 30, 40, 50
_logger: Logger | None = None


def _heard_by(level: int) -> Logger | None:
    """The logger, if it takes a level.

    Where nothing has imported logging, nobody has asked for less than a warning; then it is not loaded, which
    is a tenth of what `queuectl enqueue` takes to start.
    """
    global _logger
    if _logger is None:
        if level < WARNING and "logging" not in sys.modules:
            return None
        import logging

        _logger = logging.getLogger(LOGGER)
    return _logger if _logger.isEnabledFor(level) else None


class Event(Struct, frozen=True, kw_only=True):
    """Something that happened. `str()` gives its name and fields, for loggers not configured by Holdfast.

    If it has an `error`, its `exception` is the error itself, if it was raised in this process. That is for
    subscribers and is not logged.
    """

    name: ClassVar[str]
    """Derived from the class name unless set explicitly: job.cancel_requested for JobCancelRequested."""
    level: ClassVar[int] = INFO

    def __init_subclass__(cls) -> None:
        if "name" not in vars(cls) and not cls.__name__.endswith("Event"):
            subject, *words = re.findall("[A-Z][a-z]+", cls.__name__)
            cls.name = f"{subject}.{'_'.join(words)}".lower()

    def fields(self) -> dict[str, Any]:
        """The fields that have a value, in order."""
        return {
            field: str(value) if isinstance(value, str) else value
            for field in self.__struct_fields__
            if (value := getattr(self, field)) is not None and field != "exception"
        }

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{field}={value!r}" for field, value in self.fields().items())])


class JobEvent(Event, frozen=True, kw_only=True):
    job_id: str
    type: str


class AttemptEvent(JobEvent, frozen=True, kw_only=True):
    attempt: int
    worker_id: str


class JobEnqueued(JobEvent, frozen=True, kw_only=True):
    level = DEBUG
    status: str
    parent_id: str | None = None


class JobPromoted(JobEvent, frozen=True, kw_only=True):
    level = DEBUG


class JobClaimed(AttemptEvent, frozen=True, kw_only=True):
    level = DEBUG


class JobCompleted(AttemptEvent, frozen=True, kw_only=True):
    seconds: float


class JobRetrying(AttemptEvent, frozen=True, kw_only=True):
    level = WARNING
    error: str
    delay: float
    exception: BaseException | None = None


class JobFailed(JobEvent, frozen=True, kw_only=True):
    level = ERROR
    attempt: int
    worker_id: str | None
    error: str
    exception: BaseException | None = None


class JobReaped(JobEvent, frozen=True, kw_only=True):
    level = WARNING
    attempt: int
    worker_id: str | None
    status: str


class JobReleased(JobEvent, frozen=True, kw_only=True):
    worker_id: str


class JobCancelled(JobEvent, frozen=True, kw_only=True):
    worker_id: str | None = None


class JobCancelRequested(JobEvent, frozen=True, kw_only=True):
    """A running job was asked to stop."""


class JobRetried(JobEvent, frozen=True, kw_only=True):
    """It was retried manually."""


class JobDeleted(JobEvent, frozen=True, kw_only=True):
    """It was deleted manually."""


class JobsPruned(Event, frozen=True, kw_only=True):
    """`job_ids` are for subscribers and are not logged."""

    count: int
    job_ids: Sequence[str] = ()

    def fields(self) -> dict[str, Any]:
        return {"count": self.count}


class OutcomeRefused(AttemptEvent, frozen=True, kw_only=True):
    """A late outcome was refused: another attempt owns the job, and nothing was changed."""

    name = "job.outcome_refused"
    level = WARNING


class WorkerStarted(Event, frozen=True, kw_only=True):
    worker_id: str
    pid: int
    concurrency: int


class WorkerStopping(Event, frozen=True, kw_only=True):
    worker_id: str
    running: int


class WorkerStopped(Event, frozen=True, kw_only=True):
    worker_id: str
    released: int


class WorkerCrashed(Event, frozen=True, kw_only=True):
    """The worker met an unrecoverable error. Its jobs become available when their leases expire."""

    level = CRITICAL
    worker_id: str
    error: str
    exception: BaseException | None = None


class WorkerDied(Event, frozen=True, kw_only=True):
    """A worker process ended unexpectedly; its supervisor has released its jobs and restarts it."""

    level = ERROR
    worker_id: str | None
    pid: int
    how: str
    restart_in: float | None


class WorkerRecycled(Event, frozen=True, kw_only=True):
    """A worker process whose slots were all held by stuck handlers was replaced."""

    level = WARNING
    worker_id: str | None
    pid: int


class ServerStarted(Event, frozen=True, kw_only=True):
    address: str
    pid: int


class ServerStopping(Event, frozen=True, kw_only=True):
    """The server accepts no more requests and finishes those in progress."""

    requests: int


class ServerStopped(Event, frozen=True, kw_only=True):
    """`cut_short` requests could not be finished in time."""

    cut_short: int


class ServerDied(Event, frozen=True, kw_only=True):
    """The server process ended unexpectedly; its supervisor restarts it."""

    level = ERROR
    pid: int
    how: str
    restart_in: float | None


class SupervisorStopping(Event, frozen=True, kw_only=True):
    workers: int
    reason: str


class WorkerPaused(Event, frozen=True, kw_only=True):
    worker_id: str


class WorkerResumed(Event, frozen=True, kw_only=True):
    worker_id: str


class WorkerExhausted(Event, frozen=True, kw_only=True):
    """Every slot, or all of a type, is held by a handler that did not stop; only a new process helps."""

    level = CRITICAL
    worker_id: str
    stuck: int


class StartsUnmarked(Event, frozen=True, kw_only=True):
    """A worker can't note on this host which jobs it starts; it works all the same."""

    level = WARNING
    worker_id: str
    error: str


class LeaseLostByWorker(Event, frozen=True, kw_only=True):
    """The worker could not renew its leases in time, so it stops its handlers and abandons their jobs."""

    name = "worker.lease_lost"
    level = ERROR
    worker_id: str
    jobs: int


class StoreTrouble(Event, frozen=True, kw_only=True):
    level = ERROR
    worker_id: str | None = None
    error: str
    retry_in: float
    exception: BaseException | None = None


class StoreRecovered(Event, frozen=True, kw_only=True):
    worker_id: str | None = None


class HandlerRegistered(Event, frozen=True, kw_only=True):
    level = DEBUG
    type: str
    executor: str


class HandlerUnregistered(Event, frozen=True, kw_only=True):
    level = DEBUG
    type: str


class HandlerStuck(JobEvent, frozen=True, kw_only=True):
    """A handler did not stop when asked to. Its slot stays blocked until it returns."""

    level = ERROR
    worker_id: str
    reason: str


class HandlerErrorIgnored(JobEvent, frozen=True, kw_only=True):
    """After ctx.transaction() had completed its job, the handler raised an error or returned a value.

    The job stays completed.
    """

    level = WARNING
    error: str
    exception: BaseException | None = None


class DiscrepancyFound(JobEvent, frozen=True, kw_only=True):
    """The effect of a completed job no longer exists, or could not be checked."""

    name = "reconcile.discrepancy"
    level = WARNING
    subject: str
    problem: str


class Reconciled(Event, frozen=True, kw_only=True):
    """The effects of completed jobs were checked."""

    name = "reconcile.done"
    jobs: int
    checked: int
    differing: int
    unchecked: int
    seconds: float


class ReconciliationFailed(Event, frozen=True, kw_only=True):
    """The effects of completed jobs could not be checked, or the report could not be stored."""

    name = "reconcile.failed"
    level = ERROR
    error: str
    exception: BaseException | None = None


class QueuePaused(Event, frozen=True, kw_only=True):
    type: str | None = None


class QueueResumed(Event, frozen=True, kw_only=True):
    type: str | None = None


class SettingChanged(Event, frozen=True, kw_only=True):
    key: str
    value: Any = None
    type: str | None = None


Subscriber = Callable[[Event], None]


class Events:
    """Where a queue's events are announced. `wanted` lets a hot loop skip events that nobody receives."""

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event, in the thread where it happens.

        Returns a function that unsubscribes it.
        """
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(s for s in self._subscribers if s is not subscriber)

        return unsubscribe

    def wanted(self, kind: type[Event]) -> bool:
        return bool(self._subscribers) or _heard_by(kind.level) is not None

    def emit(self, event: Event) -> None:
        self.emit_all((event,))

    def emit_all(self, events: Sequence[Event]) -> None:
        """Announce what happened at one time."""
        _log(events)
        for subscriber in self._subscribers:
            for event in events:
                try:
                    subscriber(event)
                except Exception:
                    # A broken listener must not take the work down with it.
                    import logging

                    logging.getLogger(LOGGER).exception("a subscriber of %s failed", event.name)


def _log(events: Sequence[Event]) -> None:
    """All at once where they go to our own handler and nowhere else: a record costs more than its line."""
    heard = [event for event in events if _heard_by(event.level) is not None]
    if not heard or _logger is None:
        return
    handlers: list[Any] = _logger.handlers
    is_filtered = _logger.filters or any(handler.filters or handler.level for handler in handlers)
    is_alone = len(handlers) == 1 and hasattr(handlers[0], "handle_events") and not _logger.propagate
    if is_alone and not is_filtered:
        handlers[0].handle_events(heard)
    else:
        for event in heard:
            _logger.log(event.level, event)
