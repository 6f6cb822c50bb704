"""How rows become values."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.config import Value
from holdfast.core.clock import to_datetime
from holdfast.core.job import Failure, Job, Progress, Status
from holdfast.store.protocol import WorkerRecord

JOB_COLUMNS = (
    "seq, id, type, status, priority, attempts, max_attempts, version, key, key_for, run_at, due_at,"
    " timeout, parent_id, cancel_requested, worker_id, lease_expires_at, created_at, updated_at, started_at,"
    " finished_at, progress, progress_message, error, payload, result"
)

BRIEF_COLUMNS = JOB_COLUMNS.replace("payload, result", "'{}', NULL")
"""The same without what may be large, which then is not even read."""


def job_from(row: Sequence[Any], failures: tuple[Failure, ...] = ()) -> Job:
    """A Job from the JOB_COLUMNS of a row."""
    (
        _seq, id, type, status, priority, attempts, max_attempts, version, key, key_for, run_at, due_at,
        timeout, parent_id, cancel_requested, worker_id, lease_expires_at, created_at, updated_at, started_at,
        finished_at, progress, progress_message, error, payload, result,
    ) = row  # fmt: skip
    return Job(
        id=id,
        type=type,
        payload=json.loads(payload),
        status=Status(status),
        priority=priority,
        attempts=attempts,
        max_attempts=max_attempts,
        version=version,
        key=key,
        key_for=key_for,
        run_at=_moment(run_at),
        timeout=timeout,
        result=None if result is None else json.loads(result),
        error=error,
        errors=failures,
        progress=None if progress is None else Progress(progress, progress_message),
        parent_id=parent_id,
        cancel_requested=bool(cancel_requested),
        worker_id=worker_id,
        lease_expires_at=_moment(lease_expires_at),
        next_retry_at=_moment(due_at) if status == Status.SCHEDULED and attempts > 0 else None,
        created_at=to_datetime(created_at),
        updated_at=to_datetime(updated_at),
        started_at=_moment(started_at),
        finished_at=_moment(finished_at),
    )


def failure_from(row: Sequence[Any]) -> Failure:
    attempt, started_at, finished_at, worker_id, error, traceback, detail = row
    return Failure(
        attempt=attempt,
        started_at=to_datetime(started_at),
        finished_at=to_datetime(finished_at),
        worker_id=worker_id,
        error=error,
        traceback=traceback,
        detail=None if detail is None else json.loads(detail),
    )


def worker_from(row: Sequence[Any]) -> WorkerRecord:
    id, host, pid, state, concurrency, types, slots, started_at, heartbeat_at, turned_at = row
    return WorkerRecord(
        id=id,
        host=host,
        pid=pid,
        state=state,
        concurrency=concurrency,
        types=tuple(json.loads(types)),
        slots=json.loads(slots),
        started_at=to_datetime(started_at),
        heartbeat_at=to_datetime(heartbeat_at),
        turned_at=None if turned_at is None else to_datetime(turned_at),
    )


def settings_from(rows: Sequence[Any]) -> dict[tuple[str, str], Value]:
    return {(name, type): json.loads(value) for name, type, value in rows}


def _moment(instant: int | None) -> Any:
    return None if instant is None else to_datetime(instant)
