"""What happened to a job, step by step, and how long it took. Pure: each surface formats the times."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from msgspec import Struct

from holdfast.core.job import Job, Status
from holdfast.core.redact import redact


class Step(Struct, frozen=True, kw_only=True):
    """One entry of a job's timeline. `state` is a state's name, for its colour."""

    state: str
    title: str
    attempt: int | None = None
    at: datetime | None = None
    until: datetime | None = None
    worker: str | None = None
    error: str | None = None
    traceback: str | None = None
    detail: dict[str, Any] | None = None

    @property
    def seconds(self) -> float | None:
        return None if self.at is None or self.until is None else (self.until - self.at).total_seconds()


def timeline(job: Job) -> list[Step]:
    """What has happened to a job, as far as it is kept: every failed attempt, and the present one."""
    steps = [Step(state="created", title="Created", at=job.created_at)]
    for failure in job.errors:
        steps.append(
            Step(
                state="failed",
                title=f"Attempt {failure.attempt} failed",
                attempt=failure.attempt,
                at=failure.started_at,
                until=failure.finished_at,
                worker=failure.worker_id,
                error=failure.error,
                traceback=failure.traceback,
                detail=redact(failure.detail),
            )
        )
    last = {"attempt": job.attempts, "at": job.started_at, "until": job.finished_at, "worker": job.worker_id}
    asked = ", cancellation requested" if job.cancel_requested else ""
    now: dict[Status, dict[str, Any]] = {
        Status.PROCESSING: {"title": f"Attempt {job.attempts} running{asked}", **last},
        Status.COMPLETED: {"title": f"Attempt {job.attempts} completed", **last},
        Status.SCHEDULED: {
            "title": "Next attempt" if job.next_retry_at else "Starts",
            "at": job.next_retry_at or job.run_at,
        },
        Status.PENDING: {"title": "Waiting for a worker"},
        Status.CANCELLED: {"title": "Cancelled", "at": job.finished_at},
        Status.FAILED: {"title": "Failed permanently", "at": job.finished_at},
    }
    return [*steps, Step(state=job.status.value, **now[job.status])]


def duration(job: Job, now: datetime) -> float | None:
    """How long its last attempt took, or takes until now; None if that is not known.

    A job may be cancelled long after its last attempt has ended. A failed one knows when its handler began,
    which may be later than its claim, unless its history was not read.
    """
    if job.status is Status.FAILED and job.errors:
        last = job.errors[-1]
        return max(0.0, (last.finished_at - last.started_at).total_seconds())
    if job.started_at is None or job.status in (Status.PENDING, Status.SCHEDULED, Status.CANCELLED):
        return None
    end = now if job.status is Status.PROCESSING else job.finished_at
    return None if end is None else max(0.0, (end - job.started_at).total_seconds())
