"""The overview and the report: rates, durations, what is stuck, what has no worker."""

from __future__ import annotations

import random
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import pytest

from holdfast import Queue
from holdfast.core.clock import MINUTE, SECOND, to_datetime
from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored
from holdfast.observe.overview import (
    Rates,
    durations,
    overview,
    rates,
    report,
    stuck,
    without_worker,
)
from holdfast.store.open import store_of
from holdfast.store.records import BUCKETS, ErrorGroup, Minute, ReusedKey, WorkerRecord
from holdfast.testing import MovableClock
from tests.conformance.steps import claim, finish, finished, insert, run

SIZE = len(BUCKETS) + 1


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    with Queue(f"{url}?synchronous=off", clock=clock) as queue:
        yield queue


def minute(number: int = 1, type: str = "email", **sums: Any) -> Minute:
    return Minute(
        **{
            "minute": number,
            "type": type,
            "worker_id": "w1",
            "waits": [0] * SIZE,
            "runs": [0] * SIZE,
            **sums,
        }
    )


def histogram(*seconds: float) -> list[int]:
    """The runs of so many seconds each, by bucket."""
    counts = [0] * SIZE
    for value in seconds:
        counts[next((n for n, bound in enumerate(BUCKETS) if value <= bound), SIZE - 1)] += 1
    return counts


def worker(id: str, *types: str) -> WorkerRecord:
    return WorkerRecord(id=id, host="here", pid=1, state="running", concurrency=4, types=types)


# Rates


def test_rate_is_over_the_last_whole_minute_and_the_present_one() -> None:
    now = to_datetime(100 * MINUTE + 15 * SECOND)
    found = rates([minute(99, completed=60, failed=3), minute(100, completed=90, retried=6)], now)
    assert found == {"email": Rates(completed=2.0, failed=0.04, retried=0.08)}


def test_rate_at_the_first_instant_of_a_minute_is_that_of_the_minute_before() -> None:
    assert rates([minute(99, completed=60)], to_datetime(100 * MINUTE))["email"].completed == 1.0


def test_rates_add_up_workers_and_keep_types_apart() -> None:
    found = rates(
        [
            minute(99, completed=60),
            minute(99, completed=60, worker_id="w2"),
            minute(99, "crawl", failed=30),
        ],
        to_datetime(100 * MINUTE),
    )
    assert found == {"email": Rates(completed=2.0), "crawl": Rates(failed=0.5)}


def test_no_statistics_no_rates() -> None:
    assert rates([], to_datetime(100 * MINUTE)) == {}


def test_overview_takes_the_rates_of_this_minute_and_the_one_before(
    queue: Queue, clock: MovableClock
) -> None:
    clock.advance(30)
    now = store_of(queue).now() // MINUTE
    store_of(queue).write_statistics(
        [minute(now - 2, completed=10_000), minute(now - 1, completed=45), minute(now, completed=45)]
    )
    assert overview(queue).rates == {"email": Rates(completed=1.0)}


# Durations


def test_durations_are_means_and_upper_bounds() -> None:
    seconds = [0.004] * 6 + [0.2] * 3 + [4.0]
    found = durations([minute(runs=histogram(*seconds), run_seconds=sum(seconds), wait_seconds=5.0)])["email"]
    assert (found.count, found.p50, found.p95) == (10, 0.005, 5.0)
    assert found.mean == pytest.approx(sum(seconds) / 10)
    assert found.mean_wait == pytest.approx(0.5)


def test_durations_add_up_minutes_workers_and_the_lifetime_row() -> None:
    parts = [(0, "w1", 0.004), (7, "w1", 0.2), (7, "w2", 0.2)]
    found = durations(
        [minute(m, worker_id=w, runs=histogram(s), run_seconds=s, wait_seconds=1.0) for m, w, s in parts]
    )["email"]
    assert (found.count, found.p50, found.mean_wait) == (3, 0.25, 1.0)


def test_percentile_beyond_the_last_bound_is_unknown() -> None:
    found = durations([minute(runs=histogram(0.1, 5000.0, 5000.0), run_seconds=10_000.1)])["email"]
    assert (found.p50, found.p95) == (None, None)


def test_types_that_are_forgotten_have_no_durations() -> None:
    """One figure for types that have nothing in common says nothing."""
    assert durations([minute(type="", runs=histogram(1)), minute(runs=histogram(1))]).keys() == {"email"}


def test_type_without_a_finished_run_has_no_durations() -> None:
    assert durations([minute(reaped=3), minute(type="crawl", runs=histogram(1))]).keys() == {"crawl"}
    assert durations([]) == {}


@pytest.mark.parametrize("seed", range(5))
def test_percentiles_are_the_bounds_that_so_many_runs_lie_below(seed: int) -> None:
    chance = random.Random(seed)
    seconds = [chance.choice(BUCKETS) * chance.uniform(0.5, 1) for _ in range(chance.randint(1, 60))]
    found = durations([minute(runs=histogram(*seconds), run_seconds=sum(seconds))])["email"]
    for part, bound in ((0.5, found.p50), (0.95, found.p95)):
        assert bound is not None
        assert sum(value <= bound for value in seconds) >= part * len(seconds)
        lower = [other for other in BUCKETS if other < bound]
        assert not lower or sum(value <= lower[-1] for value in seconds) < part * len(seconds)


# Stuck


def stuck_ids(queue: Queue, clock: MovableClock) -> list[str]:
    return [found.id for found in stuck(queue, store_of(queue).list_running(100), clock.now)]


def test_attempt_that_runs_longer_than_stuck_seconds_is_stuck(queue: Queue, clock: MovableClock) -> None:
    insert(store_of(queue), "a")
    claim(store_of(queue), lease=10_000)
    clock.advance(300)
    assert stuck_ids(queue, clock) == []
    clock.advance(0.001)
    assert stuck_ids(queue, clock) == ["a"]
    assert [found.id for found in overview(queue).stuck] == ["a"]
    assert [found.id for found in report(queue).stuck] == ["a"]


def test_type_may_have_stuck_seconds_of_its_own(queue: Queue, clock: MovableClock) -> None:
    insert(store_of(queue), "quick")
    insert(store_of(queue), "slow", type="crawl")
    claim(store_of(queue), "email", "crawl", lease=10_000)
    queue.set_config("stuck_seconds", 10, type="email")
    clock.advance(11)
    assert stuck_ids(queue, clock) == ["quick"]


def test_attempt_whose_lease_has_run_out_is_stuck_however_short_it_ran(
    queue: Queue, clock: MovableClock
) -> None:
    run(store_of(queue), "a")
    clock.advance(30)
    assert stuck_ids(queue, clock) == []
    clock.advance(0.001)
    assert stuck_ids(queue, clock) == ["a"]


# Without a worker


def counts(**by_type: tuple[int, int]) -> dict[str, Any]:
    """Pending and scheduled jobs by type; `__` stands for a colon."""
    zero = dict.fromkeys(Status, 0)
    return {
        "by_type": {
            type.replace("__", ":"): {**zero, Status.PENDING: pending, Status.SCHEDULED: scheduled}
            for type, (pending, scheduled) in by_type.items()
        }
    }


def test_types_with_waiting_jobs_and_no_worker_are_named() -> None:
    waiting = counts(email=(2, 3), crawl=(1, 0), render=(0, 0))
    assert without_worker(waiting, []) == {"email": 5, "crawl": 1}
    assert without_worker(waiting, [worker("w1", "email")]) == {"crawl": 1}
    assert without_worker(waiting, [worker("w1", "email"), worker("w2", "crawl")]) == {}


def test_lane_is_served_by_its_type_and_not_the_type_by_a_lane() -> None:
    waiting = counts(shell=(1, 0), shell__media=(2, 0), shell__mail=(3, 0))
    assert without_worker(waiting, [worker("w1", "shell")]) == {}
    assert without_worker(waiting, [worker("w1", "shell:media")]) == {"shell": 1, "shell:mail": 3}


def test_worker_that_has_gone_silent_serves_nobody(queue: Queue, clock: MovableClock) -> None:
    insert(store_of(queue), "a")
    store_of(queue).register_worker(worker("w1", "email"), [])
    assert overview(queue).without_worker == {}
    clock.advance(31)
    view = overview(queue)
    assert (view.workers, view.without_worker) == ([], {"email": 1})


# All of it


def test_overview_of_an_empty_queue_is_empty(queue: Queue, clock: MovableClock) -> None:
    view = overview(queue)
    assert view.now == clock.now
    assert view.counts["pending"] == view.counts["workers"] == 0
    empty = (view.retrying, view.workers, view.running, view.paused, view.stuck, view.without_worker)
    assert not any(empty)
    assert (view.oldest, view.rates) == (None, {})


def test_overview_shows_everything_at_once(queue: Queue, clock: MovableClock) -> None:
    store = store_of(queue)
    finished(store, "done")
    finish(store, run(store, "retrying"), Errored("boom"))
    run(store, "running", worker="w1")
    insert(store, "waiting")
    store.register_worker(worker("w1", "email"), [])
    queue.pause(type="crawl")
    queue.pause()
    view = overview(queue)
    assert view.counts["by_type"]["email"] == {
        "scheduled": 1,
        "pending": 1,
        "processing": 1,
        "completed": 1,
        "failed": 0,
        "cancelled": 0,
    }
    assert view.retrying == {"email": 1}
    assert [found.id for found in view.workers] == ["w1"]
    assert [found.id for found in view.running] == ["running"]
    assert view.paused == ["", "crawl"]
    assert view.oldest is not None
    assert (view.oldest.id, view.oldest.since) == ("waiting", clock.now)


def test_report_answers_each_question(queue: Queue, clock: MovableClock) -> None:
    store = store_of(queue)
    finished(store, "long ago")
    clock.advance(3601)
    for n in range(3):
        finished(store, f"dead-{n}", Errored("boom", permanent=True), key="k")
    finished(store, "done", type="crawl")
    insert(store, "later", delay=60)
    run(store, "running", type="crawl")
    store.write_statistics([minute(0, runs=histogram(1.0), run_seconds=1.0)])
    answers = report(queue, limit=2)
    assert answers.outstanding == {
        "crawl": {"scheduled": 0, "pending": 0, "processing": 1},
        "email": {"scheduled": 1, "pending": 0, "processing": 0},
    }
    assert [job.id for job in answers.failed] == ["dead-2", "dead-1"]
    assert answers.failed_total == 3
    assert answers.error_groups == [ErrorGroup(type="email", error="boom", jobs=3, last_at=clock.now)]
    assert answers.reused_keys == [ReusedKey(type="email", key="k", jobs=3)]
    assert answers.last_hour == {"crawl": {Status.COMPLETED: 1}, "email": {Status.FAILED: 3}}
    assert answers.durations["email"].count == 1


def test_report_has_the_largest_groups_of_errors(queue: Queue) -> None:
    for n, error in enumerate(("row 1", "row 2", "row 3", "late 1", "late 2", "once")):
        finished(store_of(queue), f"dead-{n}", Errored(error, permanent=True))
    groups = report(queue, limit=2).error_groups
    assert [(group.error, group.jobs) for group in groups] == [("row #", 3), ("late #", 2)]
    assert len(report(queue).error_groups) == 3


def test_report_counts_jobs_whose_worker_died_before_it_could_tell_of_them(queue: Queue) -> None:
    for number in range(5):
        finish(store_of(queue), run(store_of(queue), f"j{number}"))
    answers = report(queue)
    assert (answers.finished, answers.durations) == ({"email": 5}, {})


def test_type_with_nothing_outstanding_is_left_out(queue: Queue) -> None:
    finished(store_of(queue), "done")
    assert report(queue).outstanding == {}
