"""What a worker measures of itself: time spent on limits, when its loop last came round, what it did."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Fail, Queue
from holdfast.core.clock import SECOND
from holdfast.observe.metrics import render
from holdfast.store.open import store_of
from holdfast.store.records import WorkerRecord
from holdfast.worker import statistics as statistics_module
from holdfast.worker.statistics import MOST_AT_ONCE, Statistics
from tests.support import both_engines, wait_until
from tests.worker.support import PATIENCE, Gate, Spy

pytestmark = pytest.mark.slow

StartWorker = Callable[..., Any]

NOW = 1_900_000_020 * SECOND
"""A third of a minute into its minute."""


def limited(queue: Queue, type: str = "work") -> float:
    """The seconds that a type was held back by limits, as they are stored."""
    return sum(row.limited_seconds for row in store_of(queue).list_statistics(0) if row.type == type)


def completed(queue: Queue) -> int:
    return sum(row.completed for row in store_of(queue).list_statistics(0))


def pass_time(seconds: float) -> None:
    end = time.monotonic() + seconds
    wait_until(lambda: time.monotonic() >= end)


# The reckoning


class Stopwatch:
    """The statistics of a worker on a monotonic clock that the test moves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 1000.0
        monkeypatch.setattr(statistics_module, "time", SimpleNamespace(monotonic=lambda: self.seconds))
        self.statistics = Statistics("w1")
        self.stored: dict[tuple[int, str], float] = {}

    @property
    def now(self) -> int:
        return NOW + round((self.seconds - 1000) * SECOND)

    def limit(self, *types: str, after: float = 0.0) -> None:
        self.seconds += after
        self.statistics.limit(types, self.now)

    def store(self) -> dict[tuple[int, str], float]:
        """Store what has changed. Returns all that is stored."""
        while rows := self.statistics.portion():
            self.stored |= {(row.minute % 60, row.type): row.limited_seconds for row in rows}
            self.statistics.written(self.now)
        return self.stored


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Stopwatch:
    return Stopwatch(monkeypatch)


def test_time_on_a_limit_runs_from_turn_to_turn_while_it_lasts(watch: Stopwatch) -> None:
    first = NOW // (60 * SECOND) % 60
    watch.limit("a")
    assert watch.store() == {}
    watch.limit("a", after=2)
    watch.limit("a", "b", after=3)
    assert watch.store() == {(first, "a"): 5}
    watch.limit("b", after=1)
    watch.limit(after=4)
    watch.limit(after=20)
    assert watch.store() == {(first, "a"): 6, (first, "b"): 5}


def test_time_on_a_limit_goes_to_the_minute_it_ended_in(watch: Stopwatch) -> None:
    first = NOW // (60 * SECOND) % 60
    watch.limit("a")
    watch.limit("a", after=5)
    assert watch.store() == {(first, "a"): 5}
    watch.limit("a", after=60)
    assert watch.store() == {(first, "a"): 5, ((first + 1) % 60, "a"): 60}


def test_type_that_no_limit_held_back_has_no_row(watch: Stopwatch) -> None:
    watch.limit(after=5)
    watch.limit(after=5)
    assert watch.statistics.portion() == []


def test_rows_of_many_types_are_written_in_portions(watch: Stopwatch) -> None:
    statistics, stored = watch.statistics, Counter[str]()
    types = {f"lane:{number}" for number in range(2 * MOST_AT_ONCE + 1)}
    for type in types:
        statistics.count(type, "completed", watch.now)
    sizes = []
    while statistics.is_due():
        rows = statistics.portion()
        assert rows == statistics.portion(), "what was not stored is offered again"
        sizes.append(len(rows))
        stored.update(row.type for row in rows)
        statistics.count(rows[0].type, "completed", watch.now)  # this may wait until the next time
        statistics.written(watch.now)
    assert sizes == [MOST_AT_ONCE, MOST_AT_ONCE, 1]
    assert stored == Counter(types)
    watch.seconds += 1
    assert statistics.is_due()
    assert [row.completed for row in statistics.portion()] == [2, 2, 2]


def test_rows_of_past_minutes_are_forgotten_once_they_are_stored(watch: Stopwatch) -> None:
    for number in range(2 * MOST_AT_ONCE):
        watch.statistics.count(f"lane:{number}", "completed", watch.now)
    watch.store()
    watch.seconds += 60
    watch.statistics.count("new", "completed", watch.now)
    watch.store()
    assert [list(types) for types in watch.statistics._minutes.values()] == [["new"]]


# Real workers


def test_statistics_of_many_lanes_are_all_stored_soon(queue: Queue, start_worker: StartWorker) -> None:
    """Whoever waits for the write lock waits for one portion, but nothing waits for the next sweep."""
    queue.set_config("heartbeat_interval", 60)
    queue.set_config("poll_interval", 60)
    queue.register("work", lambda payload: None)
    count = 2 * MOST_AT_ONCE + 500
    queue.enqueue_batch([(f"work:{number}", {}, {}) for number in range(count)])
    start_worker()
    wait_until(lambda: completed(queue) >= count - MOST_AT_ONCE, PATIENCE)


@both_engines
def test_time_on_a_rate_limit_is_stored_while_it_lasts(queue: Queue, start_worker: StartWorker) -> None:
    queue.set_config("poll_interval", 0.1)
    queue.register("work", lambda payload: None, rate_limit=0.001)
    queue.register("free", lambda payload: None)
    jobs = queue.enqueue_many("work", [{}] * 3)
    queue.enqueue_many("free", [{}] * 3)
    began = time.monotonic()
    worker = start_worker()
    queue.wait(jobs[0].id, timeout=PATIENCE)
    held_since = time.monotonic()
    wait_until(lambda: limited(queue) > 0.2)
    held = time.monotonic() - held_since
    worker.stop(timeout=PATIENCE)
    assert held <= limited(queue) <= time.monotonic() - began
    assert limited(queue, "free") == 0


def test_time_on_a_limit_is_counted_to_the_workers_end(queue: Queue, start_worker: StartWorker) -> None:
    """Though it has no turn in which to count it: there is nothing to do for an hour."""
    for key in ("poll_interval", "lease_seconds"):
        queue.set_config(key, 3600)
    queue.set_config("heartbeat_interval", 1200)
    queue.register("work", lambda payload: None, rate_limit=0.001)
    jobs = queue.enqueue_many("work", [{}] * 3)
    worker = start_worker()
    queue.wait(jobs[0].id, timeout=PATIENCE)
    held_since = time.monotonic()
    pass_time(0.3)
    held = time.monotonic() - held_since
    worker.stop(timeout=PATIENCE)
    assert limited(queue) >= held


def test_time_on_max_running_is_counted_until_a_place_is_free(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    queue.set_config("poll_interval", 0.1)
    queue.register("work", lambda payload: gate.enter(), max_running=1)
    worker = start_worker(concurrency=4)
    began = time.monotonic()
    jobs = queue.enqueue_many("work", [{}] * 2)
    gate.wait_entered()
    held_since = time.monotonic()
    pass_time(0.3)
    held = time.monotonic() - held_since
    gate.open()
    for job in jobs:
        queue.wait(job.id, timeout=PATIENCE)
    ended = time.monotonic()
    pass_time(0.5)
    worker.stop(timeout=PATIENCE)
    assert 0.5 * held <= limited(queue) <= ended - began + 0.25


def test_wait_for_a_free_slot_is_no_wait_for_a_limit(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    queue.set_config("poll_interval", 0.05)
    queue.register("work", lambda payload: gate.enter(), rate_limit=1000)
    worker = start_worker(concurrency=1)
    jobs = queue.enqueue_many("work", [{}] * 3)
    gate.wait_entered()
    pass_time(0.3)
    gate.open()
    for job in jobs:
        queue.wait(job.id, timeout=PATIENCE)
    worker.stop(timeout=PATIENCE)
    assert limited(queue) == 0


def test_pause_is_no_wait_for_a_limit(
    queue: Queue, start_worker: StartWorker, short_heartbeat: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.register("work", lambda payload: None, rate_limit=0.001)
    jobs = queue.enqueue_many("work", [{}] * 3)
    turns = Spy(store_of(queue).claim_jobs)
    monkeypatch.setattr(store_of(queue), "claim_jobs", turns)
    began = time.monotonic()
    worker = start_worker()
    queue.wait(jobs[0].id, timeout=PATIENCE)
    queue.pause("work")
    paused_at = time.monotonic()
    turns.wait_called(8)
    worker.stop(timeout=PATIENCE)
    paused = time.monotonic() - paused_at
    assert limited(queue) <= paused_at - began + paused / 2


# The last turn


def only_worker(queue: Queue) -> WorkerRecord:
    [worker] = store_of(queue).list_workers()
    return worker


def lag(queue: Queue) -> float:
    """How far the loop's last round is behind the heartbeat that told of it; a year if none was told."""
    worker = only_worker(queue)
    assert worker.heartbeat_at is not None
    turned_at = worker.turned_at or worker.heartbeat_at - timedelta(days=365)
    return (worker.heartbeat_at - turned_at).total_seconds()


def test_idle_worker_shows_that_its_loop_comes_round(
    queue: Queue, start_worker: StartWorker, short_heartbeat: None
) -> None:
    queue.set_config("poll_interval", 0.1)
    queue.register("work", lambda payload: None)
    start_worker()
    wait_until(lambda: only_worker(queue).turned_at is not None, PATIENCE)
    first = only_worker(queue).turned_at
    assert first is not None
    wait_until(lambda: (only_worker(queue).turned_at or first) > first + timedelta(seconds=0.2), PATIENCE)
    wait_until(lambda: 0 <= lag(queue) < 0.5, PATIENCE)


def test_loop_that_stands_still_shows_while_the_heartbeat_goes_on(
    queue: Queue, start_worker: StartWorker, short_heartbeat: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.set_config("poll_interval", 0.1)
    queue.register("work", lambda payload: None)
    ask, blocked, go_on = store_of(queue).get_stop_request, threading.Event(), threading.Event()

    def stuck(worker_id: str) -> Any:
        blocked.set()
        assert go_on.wait(PATIENCE)
        return ask(worker_id)

    start_worker()
    wait_until(lambda: lag(queue) < 0.5, PATIENCE)
    monkeypatch.setattr(store_of(queue), "get_stop_request", stuck)
    try:
        assert blocked.wait(PATIENCE)
        wait_until(lambda: lag(queue) > 0.6, PATIENCE)
        stopped_at = only_worker(queue).turned_at
        wait_until(lambda: lag(queue) > 2.0, PATIENCE)
        assert stopped_at is not None
        still = only_worker(queue).turned_at
        assert still is not None
        assert abs(still - stopped_at) < timedelta(seconds=1)
    finally:
        go_on.set()
    wait_until(lambda: lag(queue) < 0.5, PATIENCE)


# Into metrics


@both_engines
def test_what_a_worker_did_is_in_the_metrics(queue: Queue, start_worker: StartWorker) -> None:
    def work(payload: dict[str, str]) -> None:
        if payload["how"] == "badly":
            raise OSError("no route")
        if payload["how"] == "never":
            raise Fail("no such user")

    queue.register("work", work, max_attempts=2)
    jobs = [queue.enqueue("work", {"how": how}) for how in ("well", "well", "badly", "never")]
    worker = start_worker()
    for job in jobs:
        queue.wait(job.id, timeout=PATIENCE)
    worker.stop(timeout=PATIENCE)
    found = {
        sample.name: sample.value
        for family in text_string_to_metric_families(render(queue).decode())
        for sample in family.samples
        if sample.labels == {"type": "work"}
    }
    assert {name: value for name, value in found.items() if not name.endswith("_sum")} == {
        "holdfast_jobs_enqueued_total": 4,
        "holdfast_jobs_completed_total": 2,
        "holdfast_jobs_failed_total": 2,
        "holdfast_jobs_retried_total": 1,
        "holdfast_jobs_reaped_total": 0,
        "holdfast_limit_wait_seconds_total": 0,
        "holdfast_job_wait_seconds_count": 5,
        "holdfast_job_run_seconds_count": 5,
    }
    assert found["holdfast_job_wait_seconds_sum"] > 0
    assert found["holdfast_job_run_seconds_sum"] > 0
