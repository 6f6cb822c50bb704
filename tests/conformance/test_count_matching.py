"""count_matching, count_retrying, count_finished: what counting the rows one by one would give."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.core.clock import SECOND
from holdfast.core.job import RETRYING, Status
from holdfast.core.lifecycle import Errored
from holdfast.store.protocol import Store
from holdfast.store.records import JobFilter, Place
from holdfast.testing import MovableClock
from tests.conformance.steps import BACK_OFF, claim, ending, finish, finished, insert, new_job, run

TYPES = ("email", "crawl", "crawl:slow", "void")
WORDS = (*Status, RETRYING)
FINISHED = "completed", "failed", "cancelled"


def fill(store: Store, clock: MovableClock, chance: random.Random) -> None:
    """Jobs of every state, type, parent and number of attempts; `void` has none."""
    for n in range(120):
        delay = chance.choice([None, None, None, 5, 3600])
        parent = chance.choice([None, None, "p1", "p2"])
        store.insert_jobs(
            [new_job(f"j{n}", type=chance.choice(TYPES[:3]), delay=delay, parent_id=parent, max_attempts=2)]
        )
        clock.advance(0.1)
    for _ in range(3):
        for claimed in claim(store, *TYPES, limit=50):
            outcome = chance.choice([None, Errored("boom"), Errored("boom", permanent=True), "keep"])
            if outcome != "keep":
                finish(store, claimed, outcome)  # type: ignore[arg-type]
            elif chance.random() < 0.3:
                store.cancel_job(claimed.id)
        clock.advance(BACK_OFF / 2)
        store.promote_jobs(20)
    for job in store.list_jobs(JobFilter(limit=1000)):
        if job.status in (Status.PENDING, Status.SCHEDULED) and chance.random() < 0.2:
            store.cancel_job(job.id)


def brute(connection: Any, filter: JobFilter) -> int:
    """The rows that a filter finds, looked at one by one in Python."""
    rows = connection.execute("SELECT seq, status, attempts, type, parent_id FROM holdfast_jobs").fetchall()

    def has_status(status: str, attempts: int) -> bool:
        words = {status, RETRYING} if status == "scheduled" and attempts > 0 else {status}
        return not filter.statuses or bool(words & {str(word) for word in filter.statuses})

    return sum(
        has_status(status, attempts)
        and filter.type in (None, type)
        and filter.parent_id in (None, parent_id)
        and (filter.after is None or seq < filter.after.seq)
        for seq, status, attempts, type, parent_id in rows
    )


def random_filter(chance: random.Random) -> JobFilter:
    return JobFilter(
        statuses=tuple(chance.choices(WORDS, k=chance.choice([0, 0, 1, 1, 2, 3]))),
        type=chance.choice([None, None, *TYPES]),
        parent_id=chance.choice([None, None, None, "p1", "p2", "p3"]),
        after=chance.choice([None, None, Place(0, 1), Place(0, 60), Place(0, 1000)]),
        limit=chance.choice([1, 50]),
        offset=chance.choice([0, 7]),
    )


@pytest.mark.parametrize("seed", range(3))
def test_count_is_that_of_the_rows_for_any_filter(
    store: Store, connection: Any, clock: MovableClock, seed: int
) -> None:
    chance = random.Random(seed)
    fill(store, clock, chance)
    present = {job.status for job in store.list_jobs(JobFilter(limit=1000))}
    assert present == set(Status), "the rows hold every state"
    for word in WORDS:
        one = JobFilter(statuses=(word,))
        assert store.count_matching(one, 1000) == brute(connection, one), word
    for _ in range(150):
        filter = random_filter(chance)
        assert store.count_matching(filter, 1000) == brute(connection, filter), filter


def test_count_agrees_with_the_list_page_by_page(store: Store, clock: MovableClock) -> None:
    fill(store, clock, random.Random(7))
    for statuses in ((), ("failed",), (RETRYING, "pending")):
        listed = 0
        while page := store.list_jobs(JobFilter(statuses=statuses, limit=7, offset=listed)):
            listed += len(page)
        assert store.count_matching(JobFilter(statuses=statuses, limit=7, offset=3), 1000) == listed


@pytest.mark.parametrize("filter", [JobFilter(), JobFilter(parent_id="p"), JobFilter(statuses=(RETRYING,))])
@pytest.mark.parametrize("cap", [0, 1, 4, 5, 6])
def test_count_stops_at_the_cap(store: Store, filter: JobFilter, cap: int) -> None:
    insert(store, *(f"j{n}" for n in range(5)), parent_id="p")
    store.finish_jobs([ending(claimed, Errored("boom")) for claimed in claim(store)])
    assert store.count_matching(filter, cap) == min(5, cap)


def test_empty_queue_counts_nothing_for_any_filter(store: Store) -> None:
    for filter in (JobFilter(), JobFilter(type="email"), JobFilter(statuses=(RETRYING,), parent_id="p")):
        assert store.count_matching(filter, 10) == 0


def test_status_named_twice_counts_once(store: Store) -> None:
    insert(store, "a")
    finish(store, run(store, "b", type="crawl"), Errored("boom"))
    assert store.count_matching(JobFilter(statuses=("pending", "pending")), 10) == 1
    assert store.count_matching(JobFilter(statuses=(RETRYING, "scheduled")), 10) == 1


# Waiting for a retry


def test_only_what_waits_after_a_failed_attempt_is_retrying(store: Store, clock: MovableClock) -> None:
    insert(store, "later", delay=3600)
    finish(store, run(store, "a"), Errored("boom"))
    finish(store, run(store, "b"), Errored("boom"))
    finish(store, run(store, "c", type="crawl"), Errored("boom"))
    finished(store, "dead", Errored("boom", permanent=True))
    assert store.count_retrying() == {"email": 2, "crawl": 1}
    store.cancel_job("a")
    store.retry_job("c", None)
    assert store.count_retrying() == {"email": 1}
    clock.advance(BACK_OFF)
    store.promote_jobs(10)
    assert store.count_retrying() == {}


def test_busy_types_have_a_job_that_is_pending_running_or_waits_for_a_retry(store: Store) -> None:
    assert store.list_busy_types() == set()
    insert(store, "later", type="later", delay=3600)
    finished(store, "over", type="over")
    insert(store, "pending", type="pending")
    run(store, "running", type="running")
    for type in ("email", "crawl", "zip"):
        for n in range(3):
            finish(store, run(store, f"{type}-{n}", type=type), Errored("boom"))
    assert store.list_busy_types() == {"pending", "running", "email", "crawl", "zip"}


# Finished lately


def test_finished_jobs_are_counted_by_type_and_state(store: Store) -> None:
    finished(store, "a")
    finished(store, "b")
    finished(store, "c", Errored("boom", permanent=True))
    finished(store, "d", type="crawl")
    insert(store, "e", type="crawl")
    store.cancel_job("e")
    run(store, "running")
    insert(store, "waiting")
    assert store.count_finished(0) == {
        "crawl": {Status.COMPLETED: 1, Status.CANCELLED: 1},
        "email": {Status.COMPLETED: 2, Status.FAILED: 1},
    }


def test_job_that_finished_just_then_counts_and_one_before_does_not(
    store: Store, clock: MovableClock
) -> None:
    finished(store, "old")
    clock.advance(10)
    finished(store, "new")
    assert store.count_finished(store.now()) == {"email": {Status.COMPLETED: 1}}
    assert store.count_finished(store.now() - 10 * SECOND) == {"email": {Status.COMPLETED: 2}}
    assert store.count_finished(store.now() + 1) == {}


def test_retried_job_is_not_finished_any_more(store: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True))
    store.retry_job("a", None)
    assert store.count_finished(0) == {}
