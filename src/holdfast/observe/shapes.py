"""How jobs, workers and counts look as JSON: the shapes that the HTTP API and `queuectl --json` share."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.core.explain import Reason
from holdfast.core.job import Failure, Job
from holdfast.store.protocol import Running, WorkerRecord


def task(job: Job) -> dict[str, Any]:
    """Everything about a job."""
    return {
        **task_item(job),
        "payload": job.payload,
        "result": job.result,
        "errors": [failure(entry) for entry in job.errors],
    }


def task_item(job: Job) -> dict[str, Any]:
    """A job as an item of a list: without payload, result and history."""
    return {
        "id": job.id,
        "type": job.type,
        "status": job.status.value,
        "priority": job.priority,
        "attempts": job.attempts,
        "maxAttempts": job.max_attempts,
        "version": job.version,
        "idempotencyKey": job.key,
        "keyFor": job.key_for,
        "runAfter": instant(job.run_at),
        "nextRetryAt": instant(job.next_retry_at),
        "timeout": job.timeout,
        "error": job.error,
        "progress": None
        if job.progress is None
        else {"fraction": job.progress.fraction, "message": job.progress.message},
        "parentId": job.parent_id,
        "cancelRequested": job.cancel_requested,
        "workerId": job.worker_id,
        "leaseExpiresAt": instant(job.lease_expires_at),
        "createdAt": instant(job.created_at),
        "updatedAt": instant(job.updated_at),
        "lastAttemptAt": instant(job.started_at),
        "completedAt": instant(job.finished_at),
    }


def failure(entry: Failure) -> dict[str, Any]:
    """One failed attempt of a job's history."""
    return {
        **(entry.detail or {}),
        "attempt": entry.attempt,
        "startedAt": instant(entry.started_at),
        "finishedAt": instant(entry.finished_at),
        "worker": entry.worker_id,
        "error": entry.error,
        "traceback": entry.traceback,
    }


def accepted(job: Job) -> dict[str, Any]:
    """The answer to an enqueue."""
    return {
        "id": job.id,
        "type": job.type,
        "status": job.status.value,
        "createdAt": instant(job.created_at),
    }


def retried(job: Job) -> dict[str, Any]:
    """The answer to a retry."""
    return {
        "id": job.id,
        "status": job.status.value,
        "attempts": job.attempts,
        "nextRetryAt": instant(job.next_retry_at),
    }


def cancelled(job: Job) -> dict[str, Any]:
    """The answer to a cancellation."""
    return {"id": job.id, "status": job.status.value, "cancelRequested": job.cancel_requested}


def task_list(
    jobs: Sequence[Job], *, total: int, cap: int, limit: int, offset: int, full: bool
) -> dict[str, Any]:
    """A page of jobs; `total` was counted to one beyond `cap`."""
    return {
        "tasks": [(task if full else task_item)(job) for job in jobs],
        "total": min(total, cap),
        "totalIsCapped": total > cap,
        "limit": limit,
        "offset": offset,
    }


def stats(counts: Mapping[str, Any]) -> dict[str, Any]:
    """What `Queue.stats` returns."""
    return {camel(key): value for key, value in counts.items()}


def worker(record: WorkerRecord, running: Iterable[Running], now: datetime) -> dict[str, Any]:
    """A worker and what it runs."""
    age = None if record.heartbeat_at is None else max(0.0, (now - record.heartbeat_at).total_seconds())
    return {
        "id": record.id,
        "pid": record.pid,
        "host": record.host,
        "state": record.state,
        "concurrency": record.concurrency,
        "types": list(record.types),
        "startedAt": instant(record.started_at),
        "heartbeatAt": instant(record.heartbeat_at),
        "heartbeatAge": age,
        "running": [running_job(job) for job in running if job.worker_id == record.id],
    }


def running_job(job: Running) -> dict[str, Any]:
    return {
        "id": job.id,
        "type": job.type,
        "attempt": job.attempt,
        "startedAt": instant(job.started_at),
        "cancelRequested": job.cancel_requested,
    }


def reasons(job: Job, found: Sequence[Reason]) -> dict[str, Any]:
    """Why a job is not running."""
    return {
        "id": job.id,
        "status": job.status.value,
        "reasons": [{"code": r.code, "text": r.text, "until": r.until} for r in found],
    }


def instant(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC, with a Z."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
