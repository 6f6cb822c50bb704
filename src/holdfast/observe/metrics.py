"""The queue as Prometheus reads it. Everything comes from the database, so any process can be scraped.

Totals are those of the whole queue since it was made: they do not fall when a process restarts, when jobs are
deleted or when old statistics are folded together. When a name is forgotten, its totals go to another's.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from itertools import accumulate
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from holdfast.core.job import Status
from holdfast.observe.overview import sums
from holdfast.queue import Queue
from holdfast.store.records import BUCKETS

T = TypeVar("T")

CONTENT_TYPE = CONTENT_TYPE_LATEST

_TOTALS = (
    ("completed", "Jobs completed"),
    ("failed", "Jobs that failed permanently"),
    ("retried", "Failed attempts that were retried"),
    ("reaped", "Attempts recovered from lost workers"),
)


FORGOTTEN = "(no longer there)"
"""Stands for the types that have no jobs left and that no worker knows."""


def render(queue: Queue) -> bytes:
    """All metrics, in Prometheus' text format."""
    return generate_latest(_Queue(queue))


class _Queue(Collector):
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def collect(self) -> Iterator[Metric]:
        queue = self._queue
        now = queue.now()
        enqueued = queue.enqueued()
        yield from _depth(queue, filter(None, enqueued))
        yield _oldest(queue, now)
        yield _by_type("holdfast_jobs_enqueued", "Jobs enqueued", _named(enqueued).items())
        totals = _named(sums(queue.statistics(), enqueued))
        for name, text in _TOTALS:
            yield _by_type(f"holdfast_jobs_{name}", text, ((t, getattr(m, name)) for t, m in totals.items()))
        yield _by_type(
            "holdfast_limit_wait_seconds",
            "Seconds that a rate limit or max_running kept ready jobs waiting while a worker had a free slot",
            ((type, minute.limited_seconds) for type, minute in totals.items()),
        )
        yield _histogram(
            "holdfast_job_wait_seconds",
            "Time from when a job was ready to run until its handler started",
            ((type, minute.waits, minute.wait_seconds) for type, minute in totals.items()),
        )
        yield _histogram(
            "holdfast_job_run_seconds",
            "Run time of attempts",
            ((type, minute.runs, minute.run_seconds) for type, minute in totals.items()),
        )
        yield from _workers(queue, now)
        for name, value in queue.measure().items():
            yield GaugeMetricFamily(f"holdfast_store_{name}", "Statistic of the database itself", value=value)


def _named(by_type: dict[str, T]) -> dict[str, T]:
    return {type or FORGOTTEN: value for type, value in by_type.items()}


def _depth(queue: Queue, types: Iterable[str]) -> Iterator[Metric]:
    depth = GaugeMetricFamily("holdfast_jobs", "Jobs by type and state", labels=("type", "state"))
    present = queue.stats()["by_type"]
    for type in types:
        for state in Status:
            depth.add_metric((type, state.value), present.get(type, {}).get(state, 0))
    yield depth
    paused = GaugeMetricFamily(
        "holdfast_paused", "1 if the type is paused; type * is the whole queue", labels=("type",)
    )
    for type in queue.paused():
        paused.add_metric((type or "*",), 1)
    yield paused


def _oldest(queue: Queue, now: datetime) -> Metric:
    waiting = queue.oldest_waiting()
    age = 0.0 if waiting is None else max(0.0, (now - waiting.since).total_seconds())
    return GaugeMetricFamily(
        "holdfast_oldest_ready_seconds", "Time that the oldest ready job has been waiting", value=age
    )


def _by_type(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    counter = CounterMetricFamily(name, text, labels=("type",))
    for type, value in values:
        counter.add_metric((type,), value)
    return counter


def _histogram(name: str, text: str, rows: Iterable[tuple[str, list[int], float]]) -> Metric:
    histogram = HistogramMetricFamily(name, text, labels=("type",))
    bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    for type, counts, total in rows:
        buckets = list(zip(bounds, accumulate(counts), strict=True))
        histogram.add_metric((type,), buckets, sum_value=total)
    return histogram


def _workers(queue: Queue, now: datetime) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "holdfast_workers", "Workers with a heartbeat within the lease", value=len(queue.workers())
    )
    labels = ("worker", "host", "pid")
    heartbeat = GaugeMetricFamily(
        "holdfast_worker_heartbeat_age_seconds", "Age of the worker's last heartbeat", labels=labels
    )
    turn = GaugeMetricFamily(
        "holdfast_worker_turn_age_seconds",
        "Age of the worker's last dispatch loop, as of its last heartbeat",
        labels=labels,
    )
    for worker in queue.workers(restarting=True):
        names = (worker.id, worker.host, str(worker.pid))
        for family, moment in ((heartbeat, worker.heartbeat_at), (turn, worker.turned_at)):
            if moment is not None:
                family.add_metric(names, max(0.0, (now - moment).total_seconds()))
    yield heartbeat
    yield turn
