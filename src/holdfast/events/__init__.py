"""Events as values: every transition of a job, every start and stop of a worker or handler.

Domain code announces these and never words a log line; observe/log.py does that. An event is passed to the
standard logger `holdfast` as the message itself, and to the subscribers of the queue's `events`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.events import announcing, event

LOGGER = event.LOGGER
DEBUG, INFO, WARNING, ERROR, CRITICAL = event.DEBUG, event.INFO, event.WARNING, event.ERROR, event.CRITICAL
Events = announcing.Events
Event = event.Event
JobEvent = event.JobEvent
AttemptEvent = event.AttemptEvent


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
