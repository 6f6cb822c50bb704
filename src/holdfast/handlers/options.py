"""Keyword arguments for type checkers, which then report misspelt names and wrong values.

The values are validated where they are used, because not everybody uses a type checker.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any, Literal, TypedDict

from holdfast.config import BackoffStrategy, LoggedJobs
from holdfast.durations import Duration

Executor = Literal["thread", "async", "process"]


class CommonSettings(TypedDict, total=False):
    """Settings that code can give to a type as well as to the whole queue."""

    max_attempts: int
    concurrency: int
    rate_limit: float
    max_running: int | None
    group_concurrency: int | None
    fair: bool
    prefetch: int | None
    max_depth: int | None
    max_payload_bytes: int
    max_result_bytes: int
    log_jobs: LoggedJobs
    backoff_strategy: BackoffStrategy
    backoff_base: float
    backoff_factor: float
    backoff_max: Duration
    backoff_jitter: float


class HandlerOptions(CommonSettings, total=False):
    """Options of a type, in `job` and `register`: settings given in code."""

    timeout: Duration | None


class Defaults(CommonSettings, total=False):
    """Settings of the whole queue, in `Queue(defaults=)`."""

    job_timeout: Duration | None
    lease_seconds: Duration
    heartbeat_interval: Duration
    poll_interval: Duration
    stuck_seconds: Duration
    max_log_bytes: int
    retention_completed: Duration | None
    retention_failed: Duration | None
    shutdown_timeout: Duration
    transaction_seconds: Duration


class ManyOptions(TypedDict, total=False):
    """Options that several jobs can share, in `enqueue_many`."""

    priority: int
    group: str | None
    max_attempts: int | None
    timeout: Duration | None
    delay: Duration | None
    run_at: datetime | None


class EnqueueOptions(ManyOptions, total=False):
    """Options of one job, in `enqueue`, `enqueue_async` and `ctx.enqueue`."""

    id: str | None
    key: str | None
    key_for: Duration | None


class CallOptions(EnqueueOptions, total=False):
    """Options in `with_options` of a job's function."""

    lane: str | None
    connection: Any


class WorkerOptions(TypedDict, total=False):
    """Options of a worker."""

    concurrency: int | None
    types: Collection[str] | None
    batch_size: int | None
    recycle: bool
    drain: bool
