"""promote_jobs: scheduled jobs become pending when they are due."""

from __future__ import annotations

from holdfast.core.clock import SECOND, to_datetime
from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.steps import BACK_OFF, claim, everything, finish, insert, job, run, status


def test_due_job_becomes_pending(store: Store, clock: MovableClock) -> None:
    insert(store, "a", type="crawl", delay=10)
    clock.advance(10)
    assert store.promote_jobs(10) == [("a", "crawl")]
    assert status(store, "a") is Status.PENDING
    assert job(store, "a").updated_at == clock.now


def test_job_is_not_promoted_before_its_time(store: Store, clock: MovableClock) -> None:
    insert(store, "a", delay=10)
    clock.advance(10 - 0.000001)
    before = everything(store)
    assert store.promote_jobs(10) == []
    assert everything(store) == before


def test_nothing_is_promoted_twice(store: Store, clock: MovableClock) -> None:
    insert(store, "a", delay=10)
    clock.advance(10)
    store.promote_jobs(10)
    assert store.promote_jobs(10) == []


def test_what_is_due_first_is_promoted_first(store: Store, clock: MovableClock) -> None:
    insert(store, "late", delay=30)
    insert(store, "early", delay=10)
    insert(store, "middle", delay=20)
    clock.advance(60)
    assert store.promote_jobs(2) == [("early", "email"), ("middle", "email")]
    assert status(store, "late") is Status.SCHEDULED
    assert store.promote_jobs(2) == [("late", "email")]


def test_urgent_job_is_promoted_before_those_that_were_due_earlier(store: Store, clock: MovableClock) -> None:
    insert(store, "early", "too", delay=10)
    insert(store, "low", delay=10, priority=-5)
    insert(store, "urgent", delay=30, priority=9)
    insert(store, "not yet", delay=90, priority=10)
    clock.advance(60)
    assert store.promote_jobs(1) == [("urgent", "email")]
    assert {id for id, _ in store.promote_jobs(2)} == {"early", "too"}
    assert store.promote_jobs(2) == [("low", "email")]


def test_due_job_is_promoted_however_many_priorities_wait_before_it(
    store: Store, clock: MovableClock
) -> None:
    for priority in range(1, 121):
        insert(store, f"later-{priority}", delay=3600, priority=priority)
    insert(store, "due", "also", delay=10)
    clock.advance(60)
    assert [store.promote_jobs(1), store.promote_jobs(5)] == [[("due", "email")], [("also", "email")]]


def test_promoted_job_takes_the_place_it_was_enqueued_in(store: Store, clock: MovableClock) -> None:
    insert(store, "first", delay=10)
    insert(store, "second")
    clock.advance(10)
    store.promote_jobs(10)
    assert [claimed.id for claimed in claim(store)] == ["first", "second"]


def test_run_at_is_what_the_caller_asked_for(store: Store, clock: MovableClock) -> None:
    asked = store.now() + 10 * SECOND
    insert(store, "a", run_at=asked)
    clock.advance(60)
    store.promote_jobs(10)
    assert job(store, "a").run_at == to_datetime(asked)


def test_job_waiting_for_a_retry_is_promoted(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    clock.advance(BACK_OFF)
    assert store.promote_jobs(10) == [("a", "email")]
    found = job(store, "a")
    assert (found.status, found.attempts, found.next_retry_at) == (Status.PENDING, 1, None)
    assert found.error == "boom"


def test_jobs_that_are_not_scheduled_are_left_alone(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "completed"))
    run(store, "running")
    insert(store, "cancelled", delay=10)
    store.cancel_job("cancelled")
    insert(store, "pending")
    clock.advance(60)
    before = everything(store)
    assert store.promote_jobs(10) == []
    assert everything(store) == before


def test_paused_types_are_promoted_as_well(store: Store, clock: MovableClock) -> None:
    insert(store, "a", delay=10)
    store.set_paused("email", True)
    clock.advance(10)
    assert store.promote_jobs(10) == [("a", "email")]


def test_next_due_is_the_first_of_what_is_scheduled(store: Store, clock: MovableClock) -> None:
    assert store.next_due_at() is None
    now = store.now()
    insert(store, "late", delay=30)
    insert(store, "early", delay=10)
    insert(store, "pending")
    assert store.next_due_at() == now + 10 * SECOND
    clock.advance(10)
    store.promote_jobs(10)
    assert store.next_due_at() == now + 30 * SECOND


def test_cancelled_job_is_not_due(store: Store) -> None:
    insert(store, "a", delay=30)
    store.cancel_job("a")
    assert store.next_due_at() is None
