"""Metrics: each one that is promised, as Prometheus itself reads the text; totals that never fall."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from holdfast import Queue
from holdfast.core.clock import MINUTE
from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored
from holdfast.observe.metrics import CONTENT_TYPE, FORGOTTEN, render
from holdfast.store.open import store_of
from holdfast.store.records import BUCKETS, Minute, TypeRecord, WorkerRecord
from holdfast.store.sqlite.waiting import OLDEST
from holdfast.testing import MovableClock
from holdfast.worker.statistics import Statistics
from tests.conformance.steps import claim, claim_one, finish, finished, insert, run

SIZE = len(BUCKETS) + 1

PROMISED = {
    "holdfast_jobs": "gauge",
    "holdfast_paused": "gauge",
    "holdfast_oldest_ready_seconds": "gauge",
    "holdfast_jobs_enqueued": "counter",
    "holdfast_jobs_completed": "counter",
    "holdfast_jobs_failed": "counter",
    "holdfast_jobs_retried": "counter",
    "holdfast_jobs_reaped": "counter",
    "holdfast_limit_wait_seconds": "counter",
    "holdfast_job_wait_seconds": "histogram",
    "holdfast_job_run_seconds": "histogram",
    "holdfast_workers": "gauge",
    "holdfast_worker_heartbeat_age_seconds": "gauge",
    "holdfast_worker_turn_age_seconds": "gauge",
    "holdfast_store_wal_bytes": "gauge",
}
"""Each metric and its kind; counters end in _total besides."""

COUNTERS = [f"{name}_total" for name, kind in PROMISED.items() if kind == "counter"]


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    with Queue(f"{url}?synchronous=off", clock=clock) as queue:
        yield queue


def families(queue: Queue) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(render(queue).decode())}


def samples(queue: Queue, name: str) -> dict[tuple[str, ...], float]:
    """The values of a sample by its labels' values, in the order of the labels' names."""
    found: dict[tuple[str, ...], float] = {}
    for family in families(queue).values():
        for sample in family.samples:
            if sample.name == name:
                labels = tuple(value for _, value in sorted(sample.labels.items()))
                assert labels not in found, f"{name}{labels} is there twice"
                found[labels] = sample.value
    return found


def value(queue: Queue, name: str, *labels: str) -> float:
    return samples(queue, name)[labels]


def buckets(queue: Queue, name: str, type: str) -> dict[str, float]:
    """The buckets of a histogram in their order, by upper bound."""
    found = samples(queue, f"{name}_bucket")
    return {bound: count for (bound, its_type), count in found.items() if its_type == type}


def minute(number: int = 1, type: str = "email", worker_id: str = "w1", **sums: Any) -> Minute:
    empty = {"waits": [0] * SIZE, "runs": [0] * SIZE}
    return Minute(minute=number, type=type, worker_id=worker_id, **{**empty, **sums})


def register(queue: Queue, id: str = "w1", **fields: Any) -> None:
    record = {"host": "here", "pid": 7, "state": "running", "concurrency": 4, "types": ("email",), **fields}
    store_of(queue).register_worker(WorkerRecord(id=id, **record), [])


# What is there


def test_every_metric_is_there_with_its_kind_from_the_first_day(queue: Queue) -> None:
    """Also before a job was enqueued and a worker was started."""
    found = families(queue)
    assert {name: family.type for name, family in found.items()} == PROMISED
    assert all(family.documentation for family in found.values())


def test_text_is_what_its_content_type_says(queue: Queue) -> None:
    text = render(queue)
    assert CONTENT_TYPE.startswith("text/plain; version=")
    assert CONTENT_TYPE.endswith("charset=utf-8")
    assert text.endswith(b"\n")
    assert text.decode("utf-8")


def test_depth_is_told_by_type_and_state(queue: Queue) -> None:
    insert(store_of(queue), "a", "b", type="email")
    run(store_of(queue), "c", type="crawl")
    insert(store_of(queue), "d", type="crawl", delay=60)
    finish(store_of(queue), claim_one(store_of(queue)))
    depth = samples(queue, "holdfast_jobs")
    assert {labels: count for labels, count in depth.items() if count} == {
        ("completed", "email"): 1,
        ("pending", "email"): 1,
        ("processing", "crawl"): 1,
        ("scheduled", "crawl"): 1,
    }
    assert depth.keys() == {(state.value, type) for state in Status for type in ("email", "crawl")}


def test_age_of_the_oldest_ready_job_is_counted_from_when_it_could_have_run(
    queue: Queue, clock: MovableClock
) -> None:
    assert value(queue, "holdfast_oldest_ready_seconds") == 0
    insert(store_of(queue), "later", delay=60)
    clock.advance(50)
    assert value(queue, "holdfast_oldest_ready_seconds") == 0
    insert(store_of(queue), "ready")
    clock.advance(30)
    store_of(queue).promote_jobs(10)
    assert value(queue, "holdfast_oldest_ready_seconds") == 30
    assert claim_one(store_of(queue)).id == "later"
    assert claim_one(store_of(queue)).id == "ready"
    assert value(queue, "holdfast_oldest_ready_seconds") == 0


def test_job_from_a_clock_that_is_ahead_is_not_of_negative_age(queue: Queue, clock: MovableClock) -> None:
    insert(store_of(queue), "a")
    register(queue)
    clock.advance(-20)
    assert value(queue, "holdfast_oldest_ready_seconds") == 0
    assert value(queue, "holdfast_worker_heartbeat_age_seconds", "here", "7", "w1") == 0


def test_pauses_are_shown_and_a_star_stands_for_all(queue: Queue) -> None:
    assert samples(queue, "holdfast_paused") == {}
    queue.pause()
    queue.pause("email")
    assert samples(queue, "holdfast_paused") == {("*",): 1, ("email",): 1}
    queue.resume()
    assert samples(queue, "holdfast_paused") == {("email",): 1}


def test_workers_are_shown_with_their_last_heartbeat_and_last_turn(queue: Queue, clock: MovableClock) -> None:
    register(queue, "w1")
    register(queue, "w2", host="there", pid=8)
    clock.advance(3)
    store_of(queue).heartbeat("w1", [], state="running", lease_seconds=30, turn_age=1.5)
    clock.advance(2)
    assert value(queue, "holdfast_workers") == 2
    assert samples(queue, "holdfast_worker_heartbeat_age_seconds") == {
        ("here", "7", "w1"): 2,
        ("there", "8", "w2"): 5,
    }
    assert samples(queue, "holdfast_worker_turn_age_seconds") == {("here", "7", "w1"): 3.5}


def test_worker_that_was_silent_for_a_lease_is_not_shown(queue: Queue, clock: MovableClock) -> None:
    register(queue)
    clock.advance(queue.settings().lease_seconds + 1)
    assert value(queue, "holdfast_workers") == 0
    assert samples(queue, "holdfast_worker_heartbeat_age_seconds") == {}


def test_figures_of_the_database_are_shown_under_its_names(queue: Queue) -> None:
    insert(store_of(queue), "a")
    assert value(queue, "holdfast_store_wal_bytes") == store_of(queue).measure()["wal_bytes"] > 0


# Totals


def test_totals_are_sums_over_all_workers_and_minutes(queue: Queue) -> None:
    store_of(queue).write_statistics(
        [
            minute(100, "email", "w1", completed=1, failed=2, retried=3, reaped=4, limited_seconds=0.5),
            minute(100, "email", "w2", completed=10, failed=20, retried=30, reaped=40, limited_seconds=2),
            minute(101, "email", "w1", completed=100),
            minute(101, "crawl", "w1", failed=7),
        ]
    )
    totals = {name: samples(queue, name) for name in COUNTERS}
    assert totals == {
        "holdfast_jobs_enqueued_total": {},
        "holdfast_jobs_completed_total": {("email",): 111, ("crawl",): 0},
        "holdfast_jobs_failed_total": {("email",): 22, ("crawl",): 7},
        "holdfast_jobs_retried_total": {("email",): 33, ("crawl",): 0},
        "holdfast_jobs_reaped_total": {("email",): 44, ("crawl",): 0},
        "holdfast_limit_wait_seconds_total": {("email",): 2.5, ("crawl",): 0},
    }


def test_type_that_nothing_happened_to_has_zeros(queue: Queue) -> None:
    insert(store_of(queue), "a", "b")
    assert value(queue, "holdfast_jobs_enqueued_total", "email") == 2
    for name in COUNTERS[1:]:
        assert samples(queue, name) == {("email",): 0}
    for name in ("holdfast_job_wait_seconds", "holdfast_job_run_seconds"):
        assert set(buckets(queue, name, "email").values()) == {0}
        assert (value(queue, f"{name}_count", "email"), value(queue, f"{name}_sum", "email")) == (0, 0)


def totals(queue: Queue) -> dict[tuple[str, ...], float]:
    """Everything that may not fall: counters, and the counts, sums and buckets of histograms."""
    return {
        (sample.name, *sorted(sample.labels.values())): sample.value
        for family in families(queue).values()
        for sample in family.samples
        if family.type in ("counter", "histogram")
    }


def test_totals_do_not_fall_whatever_becomes_of_the_jobs(queue: Queue, clock: MovableClock) -> None:
    """Deleted, pruned and retried jobs, folded statistics, a store that is opened anew."""
    finished(store_of(queue), "a")
    finished(store_of(queue), "b", Errored("boom", permanent=True))
    insert(store_of(queue), "c", type="crawl", delay=60)
    statistics = Statistics("w1")
    for outcome in ("completed", "failed", "retried"):
        statistics.end("email", outcome, clock(), [(0.3, 2.0)])
    statistics.count("crawl", "reaped", clock())
    store_of(queue).write_statistics([*statistics.portion(), minute(5, limited_seconds=1.5)])
    before = totals(queue)
    assert before["holdfast_jobs_enqueued_total", "email"] == 2
    assert before["holdfast_job_run_seconds_sum", "email"] == 6

    queue.delete("a")
    assert totals(queue) == before
    queue.retry("b")
    queue.cancel("b")
    queue.cancel("c")
    assert totals(queue) == before
    clock.advance(days=30)
    assert queue.cleanup(older_than=60) == 2
    assert totals(queue) == before
    for minute_before in (6, clock() // MINUTE, clock() // MINUTE):
        store_of(queue).fold_statistics(hours_before=minute_before, lifetime_before=minute_before)
        assert totals(queue) == before
    assert [found.minute for found in store_of(queue).list_statistics(0)] == [0, 0]
    assert totals(queue) == before
    queue.close()
    assert totals(queue) == before
    insert(store_of(queue), "a")
    assert totals(queue)["holdfast_jobs_enqueued_total", "email"] == 3


def test_totals_of_forgotten_names_go_to_names_that_stay(queue: Queue) -> None:
    store = store_of(queue)
    worker = WorkerRecord(id="w", pid=1, host="h", state="running", concurrency=1, types=("mail",))
    store.register_worker(worker, [TypeRecord(type="mail", executor="threads", schema={})])
    types = ("mail", "mail:a", "mail:b", "gone")
    for number, type in enumerate(types):
        finished(store, type, type=type)
        waits = [2**number, *[0] * (SIZE - 1)]
        store.write_statistics([minute(100, type, completed=2**number, wait_seconds=0.5, waits=waits)])
        store.delete_job(type)
    insert(store, "b", type="mail:b")
    store.fold_statistics(hours_before=200, lifetime_before=200)
    sums: dict[str, float] = {}
    for labels, total in totals(queue).items():
        sums[labels[0]] = sums.get(labels[0], 0) + total
    while store.forget_names() or store.forget_statistics() is not None:
        pass
    after = totals(queue)
    assert not any("" in labels for labels in after)
    completed = samples(queue, "holdfast_jobs_completed_total")
    assert completed == {("mail",): 3, ("mail:b",): 4, (FORGOTTEN,): 8}
    assert samples(queue, "holdfast_jobs_enqueued_total") == {
        ("mail",): 2,
        ("mail:b",): 2,
        (FORGOTTEN,): 1,
    }
    assert value(queue, "holdfast_job_wait_seconds_count", FORGOTTEN) == 8
    for name, total in sums.items():
        assert sum(count for labels, count in after.items() if labels[0] == name) == total, name


def test_any_process_gives_the_same_totals(queue: Queue, clock: MovableClock) -> None:
    insert(store_of(queue), "a")
    store_of(queue).write_statistics([minute(completed=3)])
    with Queue(queue.url, clock=clock) as other:
        assert totals(other) == totals(queue)


# Histograms


def test_buckets_are_cumulative_with_their_sum_and_count(queue: Queue, clock: MovableClock) -> None:
    statistics = Statistics("w1")
    for wait, run_time in ((0.004, 1), (0.005, 1.5), (0.2, 20), (100_000, 0.001)):
        statistics.end("email", "completed", clock(), [(wait, run_time)])
    store_of(queue).write_statistics(statistics.portion())
    waits = buckets(queue, "holdfast_job_wait_seconds", "email")
    assert list(waits) == [*(f"{bound:g}" for bound in BUCKETS), "+Inf"]
    assert [float(bound) for bound in waits] == [*BUCKETS, float("inf")]
    assert (waits["0.005"], waits["0.1"], waits["0.25"], waits["1800"], waits["+Inf"]) == (2, 2, 3, 3, 4)
    runs = buckets(queue, "holdfast_job_run_seconds", "email")
    assert (runs["0.005"], runs["0.5"], runs["1"], runs["2.5"], runs["30"], runs["+Inf"]) == (
        1,
        1,
        2,
        3,
        4,
        4,
    )
    assert value(queue, "holdfast_job_wait_seconds_count", "email") == 4
    assert value(queue, "holdfast_job_run_seconds_count", "email") == 4
    assert value(queue, "holdfast_job_wait_seconds_sum", "email") == pytest.approx(100_000.209)
    assert value(queue, "holdfast_job_run_seconds_sum", "email") == pytest.approx(22.501)


def test_buckets_never_fall_from_one_to_the_next_and_end_with_the_count(queue: Queue) -> None:
    store_of(queue).write_statistics(
        [
            minute(1, "email", waits=list(range(SIZE)), runs=[3] * SIZE),
            minute(2, "email", waits=[1] * SIZE, runs=list(reversed(range(SIZE)))),
            minute(2, "crawl", waits=[0] * (SIZE - 1) + [5]),
        ]
    )
    for name in ("holdfast_job_wait_seconds", "holdfast_job_run_seconds"):
        for type in ("email", "crawl"):
            counts = list(buckets(queue, name, type).values())
            assert counts == sorted(counts)
            assert counts[-1] == value(queue, f"{name}_count", type)


# Names


@pytest.mark.parametrize(
    "type",
    ["a.b:c-d_E", "shell:media", 'quo"te', "back\\slash", "line\nbreak", "ü 😀", "{x=1}", "x" * 255],
    ids=ascii,
)
def test_type_of_any_name_reads_back_as_it_is(queue: Queue, type: str) -> None:
    """The store takes any; what keeps odd ones out stands elsewhere."""
    insert(store_of(queue), "a", type=type)
    insert(store_of(queue), "plain")
    claim(store_of(queue), type)
    assert value(queue, "holdfast_jobs", "processing", type) == 1
    assert samples(queue, "holdfast_jobs_enqueued_total") == {(type,): 1, ("email",): 1}
    assert buckets(queue, "holdfast_job_wait_seconds", type)["+Inf"] == 0


def test_host_of_any_name_reads_back_as_it_is(queue: Queue) -> None:
    register(queue, host='my "host"\n\\')
    assert samples(queue, "holdfast_worker_heartbeat_age_seconds") == {('my "host"\n\\', "7", "w1"): 0}


def test_metrics_of_a_long_queue_read_no_jobs(queue: Queue) -> None:
    """But for the oldest one that is ready."""
    insert(store_of(queue), *(f"job-{n}" for n in range(50)))
    statements: list[str] = []
    connection = store_of(queue).database.connection()  # type: ignore[attr-defined]
    connection.set_trace_callback(statements.append)
    render(queue)
    connection.set_trace_callback(None)
    assert [sql for sql in statements if "holdfast_jobs " in f"{sql} "] == [OLDEST]
