"""The store as a dict: what the protocol and the interface promise, in the plainest words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime

from holdfast.core.clock import microseconds, to_datetime
from holdfast.core.error_group import error_group
from holdfast.core.job import FINISHED, RETRYING, Status, names_of
from holdfast.core.lifecycle import Decision
from holdfast.errors import DuplicateJob, JobNotFound, KeyHeld, KeyTaken, QueueFull, WrongState
from holdfast.store.records import Demand, JobFilter, NewJob

LOST_IN_A_ROW = 2
"""Workers that a job has to lose in a row, to be run alone."""

WAITING = frozenset({Status.SCHEDULED, Status.PENDING})


@dataclass(eq=False)
class ModelJob:
    """A job. It is itself, whatever its id: one that is deleted and enqueued again is another."""

    new: NewJob
    order: int
    status: Status
    payload: str
    created_at: int
    due_at: int
    run_at: datetime | None
    max_attempts: int | None
    attempts: int = 0
    version: int = 0
    key_until: int | None = None
    holds_key: bool = False
    cancel_requested: bool = False
    worker: str | None = None
    lease_until: int | None = None
    finished_at: int | None = None
    error: str | None = None
    result: str | None = None
    failures: int = 0
    losses: int = 0


@dataclass(frozen=True)
class ModelClaim:
    """An attempt that was made once; it may be over."""

    job: ModelJob
    version: int
    worker: str


class Refused(Exception):
    """The store raises, or its verdict has, an error of this class."""

    def __init__(self, error: type[Exception]) -> None:
        self.error = error


@dataclass
class Model:
    """All jobs by id, in the order they came."""

    jobs: dict[str, ModelJob] = field(default_factory=dict)
    paused: set[str] = field(default_factory=set)
    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    """By limit and the name that it was set for."""
    enqueued: Counter[str] = field(default_factory=Counter)
    """How many jobs of each type there ever were."""
    now: int = 0
    _order: int = 0

    # Enqueue.

    def insert(self, new: NewJob) -> tuple[str, bool]:
        """The id of the job that stands for this enqueue, and whether it is a new one."""
        holder = self.holder(new.type, new.key)
        if holder is not None:
            if holder.payload != new.payload:
                raise Refused(KeyTaken)
            return holder.new.id, False
        if new.max_depth is not None:
            names, apart = new.max_depth.name, new.max_depth.apart
            waiting = [
                job
                for job in self.jobs.values()
                if job.status in WAITING and names in names_of(job.new.type) and job.new.type not in apart
            ]
            if len(waiting) >= new.max_depth.size:
                raise Refused(QueueFull)
        if new.id in self.jobs:
            raise Refused(DuplicateJob)
        self._add(new)
        return new.id, True

    def _add(self, new: NewJob) -> None:
        delay = microseconds(new.delay or 0)
        self._order += 1
        self.enqueued[new.type] += 1
        self.jobs[new.id] = ModelJob(
            new=new,
            order=self._order,
            status=Status.SCHEDULED if delay > 0 else Status.PENDING,
            payload=new.payload,
            created_at=self.now,
            due_at=self.now + delay,
            run_at=None if new.delay is None else to_datetime(self.now + delay),
            max_attempts=new.max_attempts,
            holds_key=new.key is not None,
        )

    def words_for(self, job: ModelJob) -> set[str]:
        """The words that a filter may find a job by."""
        retrying = job.status is Status.SCHEDULED and job.attempts > 0
        return {job.status, RETRYING} if retrying else {job.status}

    def listed(self, filter: JobFilter) -> list[str]:
        """The ids of all jobs that a filter finds, in its order."""
        found = []
        for job in self.jobs.values():
            moment = job.finished_at if filter.sort == "finished" else job.created_at
            if (
                (not filter.statuses or self.words_for(job) & set(filter.statuses))
                and filter.type in (None, job.new.type)
                and (filter.error is None or filter.error == self.group_of(job))
                and moment is not None
                and (filter.since is None or moment >= filter.since)
                and (filter.until is None or moment < filter.until)
            ):
                key = {"created": 0, "finished": moment, "priority": job.new.priority}[filter.sort]
                found.append((key, job.order, job.new.id))
        return [id for _, _, id in sorted(found, reverse=not filter.ascending)]

    def group_of(self, job: ModelJob) -> str | None:
        """The grouping key of a failed job's error."""
        return error_group(job.error or "") if job.status is Status.FAILED else None

    def holder(self, type: str, key: str | None) -> ModelJob | None:
        if key is None:
            return None
        for job in self.jobs.values():
            if (job.new.type, job.new.key) == (type, key) and self.holds_key(job):
                return job
        return None

    def holds_key(self, job: ModelJob) -> bool:
        return job.holds_key and (job.key_until is None or job.key_until > self.now)

    # The turn.

    def claim(
        self, worker: str, demands: Sequence[Demand], limit: int, lease: float, *, alone: bool = False
    ) -> list[ModelClaim]:
        """`limit` is also that of the slots, which all types share."""
        wanted = {demand.type: demand for demand in demands}
        pending = [
            job for job in self.jobs.values() if job.status is Status.PENDING and job.new.type in wanted
        ]
        pending.sort(key=lambda job: (-job.new.priority, job.order))
        if alone:
            suspects = [job for job in pending if job.losses >= LOST_IN_A_ROW and self.may_start(job)]
            if suspects:
                return [self._start(suspects[0], worker, wanted[suspects[0].new.type], lease)]
        claims: list[ModelClaim] = []
        for job in pending:
            if job.losses < LOST_IN_A_ROW and len(claims) < limit and self.may_start(job):
                claims.append(self._start(job, worker, wanted[job.new.type], lease))
        return claims

    def may_start(self, job: ModelJob) -> bool:
        names = names_of(job.new.type)
        if self.paused.intersection(names):
            return False
        running = [other for other in self.jobs.values() if other.status is Status.PROCESSING]
        for limit in ("max_running", "group_concurrency"):
            owner = self.owner(limit, job.new.type)
            if owner is None or (limit == "group_concurrency" and job.new.group is None):
                continue
            beside = [
                other
                for other in running
                if self.owner(limit, other.new.type) == owner
                and (limit == "max_running" or other.new.group == job.new.group)
            ]
            if len(beside) >= self.limits[limit, owner]:
                return False
        return True

    def owner(self, limit: str, type: str) -> str | None:
        """The name whose limit holds for a type."""
        return next((name for name in names_of(type) if (limit, name) in self.limits), None)

    def _start(self, job: ModelJob, worker: str, demand: Demand, lease: float) -> ModelClaim:
        job.status = Status.PROCESSING
        job.attempts += 1
        job.version += 1
        job.worker = worker
        job.lease_until = self.now + microseconds(lease)
        if job.max_attempts is None:
            job.max_attempts = demand.max_attempts
        return ModelClaim(job, job.version, worker)

    def owns(self, claim: ModelClaim) -> bool:
        job = claim.job
        return (
            self.jobs.get(job.new.id) is job
            and job.status is Status.PROCESSING
            and (job.version, job.worker) == (claim.version, claim.worker)
        )

    def finish(
        self, claim: ModelClaim, decision: Decision, children: Iterable[NewJob], *, expired_only: bool
    ) -> Status | None:
        """The state the attempt led to, or None if it no longer held its job."""
        job = claim.job
        if not self.owns(claim) or (expired_only and not self.is_expired(job)):
            return None
        job.status = decision.status
        if job.cancel_requested and decision.status is not Status.COMPLETED:
            job.status = Status.CANCELLED
        job.attempts -= decision.attempts_back
        job.worker = job.lease_until = None
        job.due_at = self.now + microseconds(decision.delay)
        job.failures += decision.error is not None
        loss = getattr(decision, "loss", 0)
        job.losses = 0 if loss is None else job.losses + loss
        job.error = decision.error or job.error
        if job.status in FINISHED:
            self._end(job)
        if job.status is Status.COMPLETED:
            job.error, job.result = None, decision.result
            for child in children:
                with suppress(Refused):  # then it becomes a link
                    self.insert(child)
        return job.status

    def _end(self, job: ModelJob) -> None:
        job.finished_at = self.now
        job.key_until = None
        if job.new.key_for is None:
            job.holds_key = False
        else:
            job.key_until = self.now + microseconds(job.new.key_for)

    def is_expired(self, job: ModelJob) -> bool:
        return job.lease_until is not None and job.lease_until <= self.now

    def renew(self, claim: ModelClaim, lease: float) -> bool:
        if self.owns(claim):
            claim.job.lease_until = self.now + microseconds(lease)
        return self.owns(claim)

    def due(self) -> list[ModelJob]:
        jobs = [j for j in self.jobs.values() if j.status is Status.SCHEDULED and j.due_at <= self.now]
        return sorted(jobs, key=lambda job: (-job.new.priority, job.due_at))

    def promote(self, id: str) -> None:
        self.jobs[id].status = Status.PENDING

    def prunable(self, before: int, statuses: Iterable[Status]) -> list[ModelJob]:
        jobs = [
            job
            for job in self.jobs.values()
            if job.status in statuses
            and job.finished_at is not None
            and job.finished_at < before
            and not self.holds_key(job)
        ]
        return sorted(jobs, key=lambda job: job.finished_at or 0)

    # People.

    def cancel(self, id: str) -> None:
        job = self._known(id)
        if job.status in WAITING:
            job.status = Status.CANCELLED
            self._end(job)
        elif job.status is Status.PROCESSING:
            job.cancel_requested = True
        else:
            raise Refused(WrongState)

    def retry(self, id: str, payload: str | None) -> None:
        job = self._known(id)
        retrying = job.status is Status.SCHEDULED and job.attempts > 0
        if not retrying and job.status not in (Status.FAILED, Status.CANCELLED):
            raise Refused(WrongState)
        if self.holder(job.new.type, job.new.key) not in (None, job):
            raise Refused(KeyHeld)
        job.status = Status.PENDING
        job.attempts = job.losses = 0
        job.due_at = self.now
        job.finished_at = job.key_until = job.result = None
        job.cancel_requested = False
        job.holds_key = job.new.key is not None
        job.payload = payload or job.payload

    def delete(self, id: str) -> None:
        if self._known(id).status not in FINISHED:
            raise Refused(WrongState)
        del self.jobs[id]

    def _known(self, id: str) -> ModelJob:
        if id not in self.jobs:
            raise Refused(JobNotFound)
        return self.jobs[id]
