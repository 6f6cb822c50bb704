"""The queue at a glance, and the standing questions about it, answered from few rows however long it is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.core.clock import SECOND, microseconds, to_datetime
from holdfast.core.job import Job, Status, base_type
from holdfast.store.protocol import (
    BUCKETS,
    ErrorGroup,
    Minute,
    ReusedKey,
    Running,
    Waiting,
    WorkerRecord,
)

if TYPE_CHECKING:
    from holdfast.queue import Queue

MOST_RUNNING = 10_000
_MINUTE = 60 * SECOND


class Rates(Struct, frozen=True, kw_only=True):
    """Attempts that ended in the last whole minute and the present one, a second."""

    completed: float = 0.0
    failed: float = 0.0
    retried: float = 0.0


class Overview(Struct, frozen=True, kw_only=True):
    """What `status` shows."""

    now: datetime
    counts: dict[str, Any]
    retrying: dict[str, int]
    workers: list[WorkerRecord]
    running: list[Running]
    paused: list[str]
    stuck: list[Running]
    without_worker: dict[str, int]
    oldest: Waiting | None
    rates: dict[str, Rates]


def overview(queue: Queue) -> Overview:
    """The queue as it is now."""
    store = queue.store
    now = store.now()
    workers = queue.workers()
    running = store.list_running(MOST_RUNNING)
    counts = queue.stats()
    return Overview(
        now=to_datetime(now),
        counts=counts,
        retrying=store.count_retrying(),
        workers=workers,
        running=running,
        paused=sorted(store.list_paused()),
        stuck=stuck(queue, running, to_datetime(now)),
        without_worker=without_worker(counts, workers),
        oldest=store.oldest_waiting(),
        rates=rates(store.list_statistics(now // _MINUTE - 1), now),
    )


def stuck(queue: Queue, running: Sequence[Running], now: datetime) -> list[Running]:
    """Attempts that run longer than stuck_seconds, or whose lease has run out."""
    settings = queue.settings()
    return [
        job
        for job in running
        if (now - job.started_at).total_seconds() > settings.get("stuck_seconds", job.type)
        or job.lease_expires_at < now
    ]


def without_worker(counts: dict[str, Any], workers: Sequence[WorkerRecord]) -> dict[str, int]:
    """The types that have waiting jobs and no running worker, and how many wait."""
    served = {type for worker in workers for type in worker.types}
    waiting = {
        type: states[Status.PENDING] + states[Status.SCHEDULED] for type, states in counts["by_type"].items()
    }
    return {t: n for t, n in waiting.items() if n and t not in served and base_type(t) not in served}


def rates(minutes: Sequence[Minute], now: int) -> dict[str, Rates]:
    """By type, from the statistics of this minute and the one before."""
    seconds = 60 + now % _MINUTE / SECOND
    sums: dict[str, list[int]] = {}
    for minute in minutes:
        total = sums.setdefault(minute.type, [0, 0, 0])
        for place, count in enumerate((minute.completed, minute.failed, minute.retried)):
            total[place] += count
    return {
        type: Rates(completed=done / seconds, failed=failed / seconds, retried=retried / seconds)
        for type, (done, failed, retried) in sums.items()
    }


class Durations(Struct, frozen=True, kw_only=True):
    """How long the attempts of a type took, in seconds. Percentiles are upper bounds, from a histogram.

    `count` is how many were measured. A worker that is killed takes those of its last second with it.
    """

    count: int
    mean: float
    p50: float | None
    p95: float | None
    mean_wait: float


class Answers(Struct, frozen=True, kw_only=True):
    """The standing questions, answered."""

    outstanding: dict[str, dict[str, int]]
    failed: list[Job]
    failed_total: int
    error_groups: list[ErrorGroup]
    stuck: list[Running]
    finished: dict[str, int]
    durations: dict[str, Durations]
    reused_keys: list[ReusedKey]
    last_hour: dict[str, dict[Status, int]]


def report(queue: Queue, *, limit: int = 20) -> Answers:
    """Answer them, with at most `limit` jobs or groups each."""
    store = queue.store
    now = store.now()
    by_type = queue.stats()["by_type"]
    waiting = ("scheduled", "pending", "processing")
    return Answers(
        outstanding={
            type: {state: counts[state] for state in waiting}
            for type, counts in by_type.items()
            if any(counts[state] for state in waiting)
        },
        failed=queue.jobs(status="failed", limit=limit),
        failed_total=sum(counts["failed"] for counts in by_type.values()),
        error_groups=queue.error_groups(limit),
        stuck=stuck(queue, store.list_running(MOST_RUNNING), to_datetime(now)),
        finished={type: ended for type, counts in by_type.items() if (ended := _ended(counts))},
        durations=durations(store.list_statistics(0)),
        reused_keys=store.list_reused_keys(limit),
        last_hour=store.count_finished(now - microseconds(3600)),
    )


def _ended(counts: dict[str, int]) -> int:
    """Those that an attempt has ended: a job may be cancelled without one."""
    return counts[Status.COMPLETED] + counts[Status.FAILED]


def durations(minutes: Sequence[Minute]) -> dict[str, Durations]:
    """By type, over all that is known."""
    size = len(BUCKETS) + 1
    runs: dict[str, list[int]] = {}
    seconds: dict[str, float] = {}
    waits: dict[str, float] = {}
    for minute in minutes:
        total = runs.setdefault(minute.type, [0] * size)
        for place, count in enumerate(minute.runs):
            total[place] += count
        seconds[minute.type] = seconds.get(minute.type, 0.0) + minute.run_seconds
        waits[minute.type] = waits.get(minute.type, 0.0) + minute.wait_seconds
    return {
        type: Durations(
            count=sum(buckets),
            mean=seconds[type] / sum(buckets),
            p50=percentile(buckets, 0.5),
            p95=percentile(buckets, 0.95),
            mean_wait=waits[type] / sum(buckets),
        )
        for type, buckets in sorted(runs.items())
        if sum(buckets)
    }


def percentile(buckets: Sequence[int], part: float) -> float | None:
    """The upper bound of the bucket where it lies; None beyond the last bound."""
    wanted = part * sum(buckets)
    seen = 0
    for bound, count in zip(BUCKETS, buckets, strict=False):
        seen += count
        if seen >= wanted:
            return bound
    return None
