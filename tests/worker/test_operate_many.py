"""Many jobs at once by hand: count, purge, cleanup, and retrying the whole dead-letter queue."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from holdfast import Queue
from holdfast.core.lifecycle import Errored
from holdfast.errors import ConfigError
from holdfast.events import JobCancelled, JobCancelRequested, JobRetried, JobsPruned
from holdfast.queue import operating as queue_module
from holdfast.store.open import store_of
from holdfast.testing import MovableClock
from tests.conformance.steps import claim, ending, finished, insert, run
from tests.support import Recorder, both_engines, unsynced
from tests.worker.support import get

DEAD = Errored("boom", permanent=True)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    with Queue(unsynced(url), clock=clock) as queue:
        yield queue


@pytest.fixture
def small_batches(monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(queue_module, "_BATCH", 4)
    return 4


def fail_many(queue: Queue, count: int, type: str = "email", prefix: str = "dead") -> list[str]:
    ids = [f"{prefix}-{n}" for n in range(count)]
    insert(store_of(queue), *ids, type=type, max_attempts=1)
    store_of(queue).finish_jobs(
        [ending(claimed, DEAD) for claimed in claim(store_of(queue), type, limit=1000)]
    )
    assert queue.count(status="failed", type=type) >= count
    return ids


# count


@both_engines
def test_count_is_that_of_the_jobs_it_would_list(queue: Queue) -> None:
    insert(store_of(queue), *"abc")
    insert(store_of(queue), "d", type="crawl", delay=60)
    fail_many(queue, 2, type="crawl")
    assert queue.count() == 6
    assert queue.count(type="crawl") == 3
    assert queue.count(status="pending") == 3
    assert queue.count(status=["pending", "failed"]) == 5
    assert queue.count(status="dead", type="crawl") == 2
    assert queue.count(type="nobody") == 0


def test_count_takes_the_word_retrying(queue: Queue) -> None:
    insert(store_of(queue), "later", delay=60)
    claimed = run(store_of(queue), "a")
    store_of(queue).finish_jobs([ending(claimed, Errored("boom"))])
    assert (queue.count(status="retrying"), queue.count(status="scheduled")) == (1, 2)
    assert queue.count(status=["retrying", "scheduled"]) == 2


def test_count_stops_at_its_cap(queue: Queue) -> None:
    insert(store_of(queue), *"abcde")
    assert [queue.count(cap=cap) for cap in (4, 5, 6)] == [4, 5, 5]


def test_count_refuses_an_unknown_status_and_lists_the_known_ones(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="retrying"):
        queue.count(status="nonsense")  # type: ignore[arg-type]


# purge and cleanup


@both_engines
def test_purge_takes_failed_jobs_that_are_old_enough_and_cleanup_the_others(
    queue: Queue, clock: MovableClock
) -> None:
    fail_many(queue, 2)
    finished(store_of(queue), "done")
    insert(store_of(queue), "cancelled")
    queue.cancel("cancelled")
    clock.advance(60)
    fail_many(queue, 1, prefix="young")
    insert(store_of(queue), "waiting")
    assert queue.purge(older_than=30) == 2
    assert {job.id for job in queue.jobs()} == {"done", "cancelled", "young-0", "waiting"}
    assert queue.cleanup(older_than=30) == 2
    assert {job.id for job in queue.jobs()} == {"young-0", "waiting"}


@pytest.mark.parametrize(
    "older_than", [30, "30s", timedelta(seconds=30), datetime(2030, 1, 1, 0, 0, 30, tzinfo=UTC)], ids=str
)
def test_purge_takes_an_age_in_every_form(
    queue: Queue, clock: MovableClock, older_than: float | str | timedelta | datetime
) -> None:
    fail_many(queue, 1)
    clock.advance(60)
    fail_many(queue, 1, prefix="young")
    assert queue.purge(older_than) == 1


@pytest.mark.parametrize("jobs", [0, 3, 4, 5, 8, 11])
def test_purge_goes_in_batches_and_tells_the_ids_of_all(
    queue: Queue, clock: MovableClock, small_batches: int, jobs: int
) -> None:
    ids = fail_many(queue, jobs) if jobs else []
    clock.advance(1)
    recorder = Recorder(queue.events)
    assert queue.purge(older_than=0) == jobs
    told = recorder.all(JobsPruned)
    assert sorted(id for event in told for id in event.job_ids) == sorted(ids)
    assert [event.count for event in told] == [len(event.job_ids) for event in told]
    assert all(event.count <= small_batches for event in told)
    assert queue.count() == 0


def test_job_that_holds_its_key_survives_a_purge(queue: Queue, clock: MovableClock) -> None:
    finished(store_of(queue), "a", DEAD, key="k", key_for=3600)
    clock.advance(60)
    assert queue.purge(older_than=0) == 0
    clock.advance(3600)
    assert queue.purge(older_than=0) == 1


# retry_all


@pytest.mark.parametrize("jobs", [0, 3, 4, 5, 11])
def test_every_failed_job_is_retried_once_and_told(queue: Queue, small_batches: int, jobs: int) -> None:
    ids = fail_many(queue, jobs) if jobs else []
    recorder = Recorder(queue.events)
    assert queue.retry_all() == (jobs, 0)
    assert [(event.job_id, event.type) for event in recorder.all(JobRetried)] == [(id, "email") for id in ids]
    assert (queue.count(status="pending"), queue.count(status="failed")) == (jobs, 0)
    assert queue.retry_all() == (0, 0)


def test_type_restricts_retry_all(queue: Queue, small_batches: int) -> None:
    fail_many(queue, 6)
    fail_many(queue, 6, type="crawl", prefix="crawl")
    assert queue.retry_all(type="crawl") == (6, 0)
    assert (queue.count(status="failed", type="email"), queue.count(status="failed", type="crawl")) == (6, 0)
    assert queue.retry_all(type="nobody") == (0, 0)


@both_engines
def test_jobs_whose_key_another_holds_are_left_and_counted(queue: Queue, small_batches: int) -> None:
    for n in range(6):
        finished(store_of(queue), f"a{n}", DEAD, key=f"k{n}")
    for n in (1, 4):
        insert(store_of(queue), f"holder{n}", key=f"k{n}")
    assert queue.retry_all() == (4, 2)
    assert sorted(job.id for job in queue.jobs(status="failed")) == ["a1", "a4"]


def test_cancelled_jobs_and_jobs_that_wait_for_a_retry_are_left(queue: Queue) -> None:
    insert(store_of(queue), "cancelled")
    queue.cancel("cancelled")
    claimed = run(store_of(queue), "retrying")
    store_of(queue).finish_jobs([ending(claimed, Errored("boom"))])
    assert queue.retry_all() == (0, 0)
    assert get(queue, "cancelled").status == "cancelled"
    assert get(queue, "retrying").attempts == 1


# retry_all and cancel_all with a filter


@both_engines
def test_retry_all_takes_the_filters_of_a_list_and_a_limit(queue: Queue, recorder: Recorder) -> None:
    fail_many(queue, 3)
    finished(store_of(queue), "other", Errored("another thing", permanent=True))
    assert queue.retry_all(error="another thing") == (1, 0)
    assert [event.job_id for event in recorder.all(JobRetried)] == ["other"]
    assert queue.retry_all(type="email", limit=1) == (1, 0)
    assert get(queue, "dead-2").status == "pending", "the newest first, as in a list"
    assert queue.retry_all(limit=1, ascending=True) == (1, 0)
    assert get(queue, "dead-0").status == "pending"
    assert queue.retry_all(search="dead-1", limit=0) == (0, 0)
    assert queue.retry_all(since="2031-01-01T00:00:00Z") == (0, 0)
    assert queue.count(status="failed") == 1


@both_engines
def test_retry_all_takes_other_states_and_counts_what_it_left(queue: Queue) -> None:
    insert(store_of(queue), "cancelled")
    queue.cancel("cancelled")
    finished(store_of(queue), "completed")
    assert queue.retry_all(status=["cancelled", "completed"]) == (1, 1)
    assert get(queue, "cancelled").status == "pending"
    assert get(queue, "completed").status == "completed"


@both_engines
def test_cancel_all_cancels_what_waits_and_asks_what_runs(queue: Queue, recorder: Recorder) -> None:
    run(store_of(queue), "running", type="crawl")
    insert(store_of(queue), "a", "b")
    insert(store_of(queue), "later", delay=60)
    finished(store_of(queue), "over", type="zip")
    assert queue.cancel_all(type="email", limit=1) == (1, 0)
    assert get(queue, "later").status == "cancelled", "the newest first, as in a list"
    assert queue.cancel_all() == (3, 0)
    assert {event.job_id for event in recorder.all(JobCancelled)} == {"later", "a", "b"}
    assert [event.job_id for event in recorder.all(JobCancelRequested)] == ["running"]
    assert get(queue, "over").status == "completed"
    assert queue.cancel_all(status="completed") == (0, 1)
