"""The queue as Prometheus reads it. Everything comes from the database, so any process may be asked.

Totals are those of the whole queue since it was made: they do not fall when a process restarts, when jobs are
deleted or when old statistics are folded together.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector

from holdfast.core.clock import SECOND, from_datetime
from holdfast.core.job import Status
from holdfast.queue import Queue
from holdfast.store.protocol import BUCKETS, Minute, empty_minute

CONTENT_TYPE = CONTENT_TYPE_LATEST

_TOTALS = (
    ("completed", "Attempts that completed their job"),
    ("failed", "Jobs that failed for good"),
    ("retried", "Attempts that failed and led to another"),
    ("reaped", "Attempts taken from workers that died"),
)


def render(queue: Queue) -> bytes:
    """All metrics, in Prometheus' text format."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(_Queue(queue))
    return generate_latest(registry)


class _Queue(Collector):
    def __init__(self, queue: Queue) -> None:
        self._queue = queue

    def collect(self) -> Iterator[Metric]:
        store = self._queue.store
        now = store.now()
        enqueued = store.count_enqueued()
        yield from _depth(self._queue, enqueued)
        yield _oldest(self._queue, now)
        yield _by_type("holdfast_jobs_enqueued", "Jobs ever enqueued", enqueued.items())
        sums = _sums(enqueued, store.list_statistics(0))
        for name, text in _TOTALS:
            yield _by_type(f"holdfast_jobs_{name}", text, ((t, getattr(m, name)) for t, m in sums.items()))
        yield _by_type(
            "holdfast_limit_wait_seconds",
            "Seconds that workers with a free slot kept ready jobs waiting for a rate limit or max_running",
            ((type, minute.limited_seconds) for type, minute in sums.items()),
        )
        yield _histogram(
            "holdfast_job_wait_seconds",
            "From when a job could have started to when its handler was started",
            ((type, minute.waits, minute.wait_seconds) for type, minute in sums.items()),
        )
        yield _histogram(
            "holdfast_job_run_seconds",
            "How long attempts ran",
            ((type, minute.runs, minute.run_seconds) for type, minute in sums.items()),
        )
        yield from _workers(self._queue, now)
        for name, value in store.measure().items():
            yield GaugeMetricFamily(f"holdfast_store_{name}", "A figure of the database itself", value=value)


def _depth(queue: Queue, types: Iterable[str]) -> Iterator[Metric]:
    depth = GaugeMetricFamily("holdfast_jobs", "Jobs by type and state", labels=("type", "state"))
    present = queue.store.count_jobs()
    for type in types:
        for state in Status:
            depth.add_metric((type, state.value), present.get(type, {}).get(state, 0))
    yield depth
    paused = GaugeMetricFamily("holdfast_paused", "1 if a type, or all of them, are paused", labels=("type",))
    for type in queue.store.list_paused():
        paused.add_metric((type or "*",), 1)
    yield paused


def _oldest(queue: Queue, now: int) -> Metric:
    waiting = queue.store.oldest_waiting()
    age = 0.0 if waiting is None else max(0.0, (now - from_datetime(waiting.since)) / SECOND)
    return GaugeMetricFamily(
        "holdfast_oldest_ready_seconds", "How long the oldest ready job has been waiting", value=age
    )


def _by_type(name: str, text: str, values: Iterable[tuple[str, float]]) -> Metric:
    counter = CounterMetricFamily(name, text, labels=("type",))
    for type, value in values:
        counter.add_metric((type,), value)
    return counter


def _sums(types: Iterable[str], minutes: Iterable[Minute]) -> dict[str, Minute]:
    """By type; of those that nothing has happened to yet, zeros."""
    sums = {type: empty_minute(0, type, "") for type in types}
    for minute in minutes:
        sums.setdefault(minute.type, empty_minute(0, minute.type, "")).add(minute)
    return sums


def _histogram(name: str, text: str, rows: Iterable[tuple[str, list[int], float]]) -> Metric:
    histogram = HistogramMetricFamily(name, text, labels=("type",))
    bounds = [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    for type, counts, total in rows:
        running = 0
        buckets = []
        for bound, count in zip(bounds, counts, strict=True):
            running += count
            buckets.append((bound, running))
        histogram.add_metric((type,), buckets, sum_value=total)
    return histogram


def _workers(queue: Queue, now: int) -> Iterator[Metric]:
    yield GaugeMetricFamily("holdfast_workers", "Workers heard of within a lease", value=len(queue.workers()))
    labels = ("worker", "host", "pid")
    heartbeat = GaugeMetricFamily(
        "holdfast_worker_heartbeat_age_seconds", "How long ago a worker was last heard of", labels=labels
    )
    turn = GaugeMetricFamily(
        "holdfast_worker_turn_age_seconds",
        "How long ago a worker's loop had last come round, by its last heartbeat",
        labels=labels,
    )
    for worker in queue.workers(restarting=True):
        names = (worker.id, worker.host, str(worker.pid))
        for family, moment in ((heartbeat, worker.heartbeat_at), (turn, worker.turned_at)):
            if moment is not None:
                family.add_metric(names, max(0.0, (now - from_datetime(moment)) / SECOND))
    yield heartbeat
    yield turn
