"""How jobs, workers and counts look as JSON: the shapes that the HTTP API and `queuectl --json` share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from holdfast.config import Value
from holdfast.core.explain import Reason
from holdfast.core.job import Failure, Job
from holdfast.observe.overview import Answers, Overview
from holdfast.store.protocol import ErrorGroup, Running, WorkerRecord

COUNTED = 10_000
"""How far the jobs of a list are counted for people."""


def task(job: Job, shown: Callable[[Any], Any] = lambda value: value) -> dict[str, Any]:
    """Everything about a job; its payload, result and details of failures as `shown` gives them."""
    return {
        **task_item(job),
        "payload": shown(job.payload),
        "result": shown(job.result),
        "errors": [failure(entry, shown) for entry in job.errors],
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


def failure(entry: Failure, shown: Callable[[Any], Any] = lambda value: value) -> dict[str, Any]:
    """One failed attempt of a job's history; its details as `shown` gives them."""
    return {
        **shown(entry.detail or {}),
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
    tasks: list[dict[str, Any]],
    *,
    total: int | None,
    limit: int,
    offset: int,
    following: str | None,
    examined: int | None = None,
) -> dict[str, Any]:
    """A page of tasks or items, and where the next one begins; `total` is shown up to COUNTED.

    What a search finds beyond its page is not counted: it has no total, but says how many it has examined.
    """
    page = {
        "tasks": tasks,
        "total": len(tasks) if total is None else min(total, COUNTED),
        "totalIsCapped": following is not None if total is None else total > COUNTED,
        "limit": limit,
        "offset": offset,
        "nextCursor": following,
    }
    return page if examined is None else {**page, "examined": examined}


def stats(counts: Mapping[str, Any]) -> dict[str, Any]:
    """What `Queue.stats` returns."""
    return {camel(key): value for key, value in counts.items()}


def overview(view: Overview) -> dict[str, Any]:
    """The counts of `stats`, and what a person should know beside them."""
    return {
        **stats(view.counts),
        "retrying": sum(view.retrying.values()),
        "paused": "" in view.paused,
        "pausedTypes": [type for type in view.paused if type],
        "stuck": [running_job(job) for job in view.stuck],
        "withoutWorker": view.without_worker,
        "oldestWaiting": None
        if view.oldest is None
        else {"id": view.oldest.id, "type": view.oldest.type, "since": instant(view.oldest.since)},
    }


def report(found: Answers) -> dict[str, Any]:
    """The answers to the standing questions."""
    return {
        "outstanding": found.outstanding,
        "failed": {
            "total": found.failed_total,
            "newest": [task_item(job) for job in found.failed],
            "groups": [error_group(group) for group in found.error_groups],
        },
        "stuck": [running_job(job) for job in found.stuck],
        "durations": {
            type: {"count": d.count, "mean": d.mean, "p50": d.p50, "p95": d.p95, "meanWait": d.mean_wait}
            for type, d in found.durations.items()
        },
        "duplicates": [{"type": r.type, "key": r.key, "jobs": r.jobs} for r in found.reused_keys],
        "lastHour": {
            type: {state.value: count for state, count in counts.items()}
            for type, counts in found.last_hour.items()
        },
    }


def error_group(group: ErrorGroup) -> dict[str, Any]:
    """Failed jobs whose errors are alike."""
    return {
        "type": group.type,
        "error": group.error,
        "jobs": group.jobs,
        "lastAt": instant(group.last_at),
    }


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
        "turnedAt": instant(record.turned_at),
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


def settings(
    values: Mapping[str, Value], stored: Mapping[tuple[str, str], Value], only: str | None
) -> dict[str, Any]:
    """Every setting's value in force, and what is stored for types of their own, or for one."""
    by_type: dict[str, dict[str, Value]] = {}
    for (name, type), value in sorted(stored.items()):
        if type and only in (None, type):
            by_type.setdefault(type, {})[name] = value
    return {**values, "byType": by_type}


def setting(name: str, value: Value, type: str | None) -> dict[str, Any]:
    """One setting's value in force."""
    return {"key": name, "value": value, "type": type}


def instant(moment: datetime | None) -> str | None:
    """ISO 8601 in UTC, with a Z."""
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
