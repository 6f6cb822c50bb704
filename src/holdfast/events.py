"""What happens, as values: every transition of a job, every coming and going of a worker or handler.

Domain code announces these and never words a log line; observe/log.py does that. An event goes to the
standard logger `holdfast` as the message itself, and to whoever subscribed to the queue's `events`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
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
    """Something that happened. `str()` gives its name and fields, for loggers that know nothing of us.

    Where one tells of an `error`, its `exception` is the error itself, if it was raised in this process. That
    is for listeners, and stays out of the log.
    """

    name: ClassVar[str]
    level: ClassVar[int] = INFO

    def fields(self) -> Iterator[tuple[str, Any]]:
        """The fields that have a value, in order."""
        for field in self.__struct_fields__:
            value = getattr(self, field)
            if value is not None and field != "exception":
                yield field, str(value) if isinstance(value, str) else value

    def __str__(self) -> str:
        return " ".join([self.name, *(f"{field}={value!r}" for field, value in self.fields())])


class JobEvent(Event, frozen=True, kw_only=True):
    job_id: str
    type: str


class JobEnqueued(JobEvent, frozen=True, kw_only=True):
    name = "job.enqueued"
    level = DEBUG
    status: str
    parent_id: str | None = None


class JobPromoted(JobEvent, frozen=True, kw_only=True):
    name = "job.promoted"
    level = DEBUG


class JobClaimed(JobEvent, frozen=True, kw_only=True):
    name = "job.claimed"
    level = DEBUG
    attempt: int
    worker_id: str


class JobCompleted(JobEvent, frozen=True, kw_only=True):
    name = "job.completed"
    attempt: int
    worker_id: str
    seconds: float


class JobRetrying(JobEvent, frozen=True, kw_only=True):
    name = "job.retrying"
    level = WARNING
    attempt: int
    worker_id: str
    error: str
    delay: float
    exception: BaseException | None = None


class JobFailed(JobEvent, frozen=True, kw_only=True):
    name = "job.failed"
    level = ERROR
    attempt: int
    worker_id: str | None
    error: str
    exception: BaseException | None = None


class JobReaped(JobEvent, frozen=True, kw_only=True):
    name = "job.reaped"
    level = WARNING
    attempt: int
    worker_id: str | None
    status: str


class JobReleased(JobEvent, frozen=True, kw_only=True):
    name = "job.released"
    worker_id: str


class JobCancelled(JobEvent, frozen=True, kw_only=True):
    name = "job.cancelled"
    worker_id: str | None = None


class JobCancelRequested(JobEvent, frozen=True, kw_only=True):
    name = "job.cancel_requested"


class JobRetried(JobEvent, frozen=True, kw_only=True):
    name = "job.retried"


class JobDeleted(JobEvent, frozen=True, kw_only=True):
    name = "job.deleted"


class JobsPruned(Event, frozen=True, kw_only=True):
    """`job_ids` are for listeners and stay out of the log."""

    name = "jobs.pruned"
    count: int
    job_ids: Sequence[str] = ()

    def fields(self) -> Iterator[tuple[str, Any]]:
        yield "count", self.count


class OutcomeRefused(JobEvent, frozen=True, kw_only=True):
    """A late outcome met the guard: another attempt owns the job, and nothing was changed."""

    name = "job.outcome_refused"
    level = WARNING
    attempt: int
    worker_id: str


class WorkerStarted(Event, frozen=True, kw_only=True):
    name = "worker.started"
    worker_id: str
    pid: int
    concurrency: int


class WorkerStopping(Event, frozen=True, kw_only=True):
    name = "worker.stopping"
    worker_id: str
    running: int


class WorkerStopped(Event, frozen=True, kw_only=True):
    name = "worker.stopped"
    worker_id: str
    released: int


class WorkerCrashed(Event, frozen=True, kw_only=True):
    """The worker met an error that it can't go on from. Its jobs come back when their leases have ended."""

    name = "worker.crashed"
    level = CRITICAL
    worker_id: str
    error: str
    exception: BaseException | None = None


class WorkerDied(Event, frozen=True, kw_only=True):
    """A worker process ended without being told to; its supervisor has freed its jobs and starts another."""

    name = "worker.died"
    level = ERROR
    worker_id: str | None
    pid: int
    how: str
    restart_in: float | None


class WorkerRecycled(Event, frozen=True, kw_only=True):
    """A worker process that stuck handlers had used up was replaced by a new one."""

    name = "worker.recycled"
    level = WARNING
    worker_id: str | None
    pid: int


class ServerStarted(Event, frozen=True, kw_only=True):
    name = "server.started"
    address: str
    pid: int


class ServerStopping(Event, frozen=True, kw_only=True):
    """The server accepts nothing more and finishes the requests that it has."""

    name = "server.stopping"
    requests: int


class ServerStopped(Event, frozen=True, kw_only=True):
    """`cut_short` requests could not be finished in time."""

    name = "server.stopped"
    cut_short: int


class ServerDied(Event, frozen=True, kw_only=True):
    """The server's process ended without being told to; its supervisor starts another."""

    name = "server.died"
    level = ERROR
    pid: int
    how: str
    restart_in: float | None


class SupervisorStopping(Event, frozen=True, kw_only=True):
    name = "supervisor.stopping"
    workers: int
    reason: str


class WorkerPaused(Event, frozen=True, kw_only=True):
    name = "worker.paused"
    worker_id: str


class WorkerResumed(Event, frozen=True, kw_only=True):
    name = "worker.resumed"
    worker_id: str


class WorkerExhausted(Event, frozen=True, kw_only=True):
    """Every slot, or all of a type, is held by a handler that did not stop; only a new process helps."""

    name = "worker.exhausted"
    level = CRITICAL
    worker_id: str
    stuck: int


class LeaseLostByWorker(Event, frozen=True, kw_only=True):
    """The worker could not renew in time, so it stops its handlers and lets their jobs go."""

    name = "worker.lease_lost"
    level = ERROR
    worker_id: str
    jobs: int


class StoreTrouble(Event, frozen=True, kw_only=True):
    name = "store.trouble"
    level = ERROR
    worker_id: str | None = None
    error: str
    retry_in: float
    exception: BaseException | None = None


class StoreRecovered(Event, frozen=True, kw_only=True):
    name = "store.recovered"
    worker_id: str | None = None


class HandlerRegistered(Event, frozen=True, kw_only=True):
    name = "handler.registered"
    level = DEBUG
    type: str
    executor: str


class HandlerUnregistered(Event, frozen=True, kw_only=True):
    name = "handler.unregistered"
    level = DEBUG
    type: str


class HandlerStuck(JobEvent, frozen=True, kw_only=True):
    """A handler did not stop when told to. Its slot is written off until it returns."""

    name = "handler.stuck"
    level = ERROR
    worker_id: str
    reason: str


class HandlerErrorIgnored(JobEvent, frozen=True, kw_only=True):
    """A handler raised after ctx.transaction() had completed its job; the job stays completed."""

    name = "handler.error_ignored"
    level = WARNING
    error: str
    exception: BaseException | None = None


class DiscrepancyFound(JobEvent, frozen=True, kw_only=True):
    """The effect of a completed job is not there, or could not be checked."""

    name = "reconcile.discrepancy"
    level = WARNING
    subject: str
    problem: str


class Reconciled(Event, frozen=True, kw_only=True):
    """The completed jobs were compared with the world."""

    name = "reconcile.done"
    jobs: int
    checked: int
    differing: int
    unchecked: int
    seconds: float


class ReconciliationFailed(Event, frozen=True, kw_only=True):
    """The completed jobs could not be compared with the world, or the report of that not be kept."""

    name = "reconcile.failed"
    level = ERROR
    error: str
    exception: BaseException | None = None


class QueuePaused(Event, frozen=True, kw_only=True):
    name = "queue.paused"
    type: str | None = None


class QueueResumed(Event, frozen=True, kw_only=True):
    name = "queue.resumed"
    type: str | None = None


class SettingChanged(Event, frozen=True, kw_only=True):
    name = "setting.changed"
    key: str
    value: Any = None
    type: str | None = None


Subscriber = Callable[[Event], None]


class Events:
    """Where a queue's events are announced. `wanted` lets a hot loop skip making what nobody hears."""

    def __init__(self) -> None:
        self._subscribers: tuple[Subscriber, ...] = ()

    def subscribe(self, subscriber: Subscriber) -> Callable[[], None]:
        """Call `subscriber` with every event, in the thread where it happens; returns what ends it."""
        self._subscribers = (*self._subscribers, subscriber)

        def unsubscribe() -> None:
            self._subscribers = tuple(s for s in self._subscribers if s is not subscriber)

        return unsubscribe

    def wanted(self, kind: type[Event]) -> bool:
        return bool(self._subscribers) or _heard_by(kind.level) is not None

    def emit(self, event: Event) -> None:
        logger = _heard_by(event.level)
        if logger is not None:
            logger.log(event.level, event)
        for subscriber in self._subscribers:
            try:
                subscriber(event)
            except Exception:
                # A broken listener must not take the work down with it.
                import logging

                logging.getLogger(LOGGER).exception("a subscriber of %s failed", event.name)
