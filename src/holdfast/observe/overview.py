"""The queue at a glance, and the report, from few rows however long the queue is."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from holdfast.core.clock import MINUTE, SECOND, from_datetime
from holdfast.core.job import UNFINISHED, Job, Status, base_type
from holdfast.store.records import (
    BUCKETS,
    ErrorGroup,
    GroupActivity,
    Minute,
    ReusedKey,
    Running,
    Waiting,
    WorkerRecord,
    empty_minute,
)

if TYPE_CHECKING:
    from holdfast.queue import Queue


MOST_GROUPS = 10
"""Groups that are shown: those with the most jobs waiting or running."""


class Rates(Struct, frozen=True, kw_only=True):
    """Attempts that ended per second, over the last full minute and the current one."""

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
    groups: list[GroupActivity]


def overview(queue: Queue) -> Overview:
    """The queue as it is now."""
    now = queue.now()
    workers = queue.workers()
    running = queue.running()
    counts = queue.stats()
    return Overview(
        now=now,
        counts=counts,
        retrying=queue.retrying(),
        workers=workers,
        running=running,
        paused=queue.paused(),
        stuck=stuck(queue, running, now),
        without_worker=without_worker(counts, workers),
        oldest=queue.oldest_waiting(),
        rates=rates(queue.statistics(1), now),
        groups=queue.busiest_groups(MOST_GROUPS),
    )


def stuck(queue: Queue, running: Sequence[Running], now: datetime) -> list[Running]:
    """Attempts that have run longer than stuck_seconds, or whose lease has expired."""
    settings = queue.settings()
    return [
        job
        for job in running
        if (now - job.started_at).total_seconds() > settings.get("stuck_seconds", job.type)
        or job.lease_expires_at < now
    ]


def without_worker(counts: dict[str, Any], workers: Sequence[WorkerRecord]) -> dict[str, int]:
    """The types that have waiting jobs but no running worker, with the number of waiting jobs."""
    served = {type for worker in workers for type in worker.types}
    waiting = {
        type: states[Status.PENDING] + states[Status.SCHEDULED] for type, states in counts["by_type"].items()
    }
    return {t: n for t, n in waiting.items() if n and t not in served and base_type(t) not in served}


def rates(minutes: Sequence[Minute], now: datetime) -> dict[str, Rates]:
    """By type, from the statistics of this minute and the one before."""
    seconds = 60 + from_datetime(now) % MINUTE / SECOND
    return {
        type: Rates(
            completed=total.completed / seconds,
            failed=total.failed / seconds,
            retried=total.retried / seconds,
        )
        for type, total in sums(minutes).items()
    }


def sums(minutes: Iterable[Minute], types: Iterable[str] = ()) -> dict[str, Minute]:
    """By type, what all workers did; zeros for those of `types` that nothing has happened to yet."""
    found = {type: empty_minute(0, type, "") for type in types}
    for minute in minutes:
        found.setdefault(minute.type, empty_minute(0, minute.type, "")).add(minute)
    return found


class Durations(Struct, frozen=True, kw_only=True, rename="camel"):
    """Run times of a type's attempts, in seconds. Percentiles are upper bounds from a histogram.

    `count` is how many were measured. If a worker is killed, those of its last second are missing.
    """

    count: int
    mean: float
    p50: float | None
    p95: float | None
    mean_wait: float


class Answers(Struct, frozen=True, kw_only=True):
    """What `report` shows."""

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
    """Summarise backlog, failures and durations, with at most `limit` jobs or groups each."""
    now = queue.now()
    by_type = queue.stats()["by_type"]
    return Answers(
        outstanding={
            type: {state.value: counts[state] for state in UNFINISHED}
            for type, counts in by_type.items()
            if any(counts[state] for state in UNFINISHED)
        },
        failed=queue.jobs(status="failed", limit=limit),
        failed_total=sum(counts["failed"] for counts in by_type.values()),
        error_groups=queue.error_groups(limit),
        stuck=stuck(queue, queue.running(), now),
        finished={type: ended for type, counts in by_type.items() if (ended := _ended(counts))},
        durations=durations(queue.statistics()),
        reused_keys=queue.reused_keys(limit),
        last_hour=queue.finished_since(now - timedelta(hours=1)),
    )


def _ended(counts: dict[str, int]) -> int:
    """The jobs that an attempt ended: a job may be cancelled without one."""
    return counts[Status.COMPLETED] + counts[Status.FAILED]


def durations(minutes: Sequence[Minute]) -> dict[str, Durations]:
    """By type, over all that is known; without the types that are forgotten."""
    return {
        type: Durations(
            count=count,
            mean=total.run_seconds / count,
            p50=percentile(total.runs, 0.5),
            p95=percentile(total.runs, 0.95),
            mean_wait=total.wait_seconds / count,
        )
        for type, total in sorted(sums(minutes).items())
        if type and (count := sum(total.runs))
    }


def percentile(buckets: Sequence[int], part: float) -> float | None:
    """The upper bound of the bucket where it lies; None beyond the last bound."""
    wanted = part * sum(buckets)
    so_far = zip(BUCKETS, accumulate(buckets), strict=False)
    return next((bound for bound, count in so_far if count >= wanted), None)
