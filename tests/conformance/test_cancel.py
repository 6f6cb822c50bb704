"""cancel_job: at once while a job waits, by request while it runs."""

from __future__ import annotations

import pytest

from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored, Released, Stopped
from holdfast.errors import JobNotFound, WrongState
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    BACK_OFF,
    claim,
    claim_one,
    everything,
    finish,
    finished,
    insert,
    job,
    run,
    status,
)


@pytest.mark.parametrize("delay", [None, 60.0])
def test_waiting_job_is_cancelled_at_once(store: Store, clock: MovableClock, delay: float | None) -> None:
    insert(store, "a", delay=delay)
    clock.advance(1)
    answer = store.cancel_job("a")
    assert answer == job(store, "a")
    assert (answer.status, answer.finished_at, answer.updated_at) == (
        Status.CANCELLED,
        clock.now,
        clock.now,
    )


def test_job_waiting_for_a_retry_is_cancelled_at_once(store: Store) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    answer = store.cancel_job("a")
    assert (answer.status, answer.error, answer.next_retry_at) == (Status.CANCELLED, "boom", None)
    assert len(answer.errors) == 1


def test_cancelled_job_is_neither_claimed_nor_promoted(store: Store, clock: MovableClock) -> None:
    insert(store, "pending")
    insert(store, "scheduled", delay=10)
    store.cancel_job("pending")
    store.cancel_job("scheduled")
    clock.advance(60)
    assert store.promote_jobs(10) == []
    assert claim(store) == []


def test_running_job_goes_on_until_its_worker_has_stopped_it(store: Store) -> None:
    claimed = run(store, "a")
    answer = store.cancel_job("a")
    assert (answer.status, answer.cancel_requested) == (Status.PROCESSING, True)
    assert (answer.worker_id, answer.finished_at) == ("worker", None)
    assert finish(store, claimed, Stopped()) is Status.CANCELLED


def test_worker_is_told_which_attempts_to_stop(store: Store) -> None:
    insert(store, "a", "b", "c")
    first = claim_one(store, worker="w1")
    claim_one(store, worker="w1")
    claim_one(store, worker="w2")
    store.cancel_job("a")
    store.cancel_job("c")
    assert store.list_cancelled("w1") == {(first.seq, first.version)}


def test_attempt_that_has_ended_is_not_told_again(store: Store) -> None:
    claimed = run(store, "a")
    store.cancel_job("a")
    finish(store, claimed, Stopped())
    assert store.list_cancelled("worker") == set()


def test_cancelling_a_running_job_twice_is_one_request(store: Store) -> None:
    run(store, "a")
    store.cancel_job("a")
    assert store.cancel_job("a").cancel_requested


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_finished_job_is_not_cancelled(store: Store, end: str) -> None:
    if end == "cancelled":
        insert(store, "a")
        store.cancel_job("a")
    else:
        finished(store, "a", Errored("boom", permanent=True) if end == "failed" else None)
    before = everything(store)
    with pytest.raises(WrongState) as refused:
        store.cancel_job("a")
    assert (refused.value.job_id, refused.value.status) == ("a", end)
    assert everything(store) == before


def test_unknown_job_is_not_found(store: Store) -> None:
    with pytest.raises(JobNotFound) as refused:
        store.cancel_job("nobody")
    assert refused.value.job_id == "nobody"


def test_request_ends_with_the_attempt_it_was_made_for(store: Store) -> None:
    """A job that was cancelled and then retried runs on when a later attempt fails."""
    claimed = run(store, "a")
    store.cancel_job("a")
    finish(store, claimed, Released())
    store.retry_job("a", None)
    again = claim_one(store)
    assert not job(store, "a").cancel_requested
    assert store.list_cancelled("worker") == set()
    assert finish(store, again, Errored("boom")) is Status.SCHEDULED


def test_other_jobs_are_left_alone(store: Store) -> None:
    insert(store, "a", "b")
    store.cancel_job("a")
    assert status(store, "b") is Status.PENDING


def test_cancelled_retry_does_not_come_back(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    store.cancel_job("a")
    clock.advance(BACK_OFF)
    assert store.promote_jobs(10) == []
