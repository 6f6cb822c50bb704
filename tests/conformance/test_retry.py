"""retry_job: a person gives a job that ended badly another set of attempts."""

from __future__ import annotations

import pytest

from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored, Stopped
from holdfast.errors import JobNotFound, WrongState
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    BACK_OFF,
    LEASE,
    claim,
    claim_one,
    everything,
    finish,
    finished,
    insert,
    job,
    reap,
    run,
)


def test_failed_job_is_pending_again_with_all_its_attempts(store: Store, clock: MovableClock) -> None:
    finished(store, "a", Errored("boom"), max_attempts=1)
    clock.advance(60)
    answer = store.retry_job("a", None)
    assert answer == job(store, "a")
    assert (answer.status, answer.attempts, answer.finished_at) == (Status.PENDING, 0, None)
    assert answer.updated_at == clock.now
    assert claim_one(store).attempts == 1


def test_cancelled_job_can_be_retried(store: Store) -> None:
    claimed = run(store, "a")
    store.cancel_job("a")
    finish(store, claimed, Stopped())
    answer = store.retry_job("a", None)
    assert (answer.status, answer.cancel_requested) == (Status.PENDING, False)


def test_job_waiting_for_a_retry_need_not_wait(store: Store) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    answer = store.retry_job("a", None)
    assert (answer.status, answer.attempts, answer.next_retry_at) == (Status.PENDING, 0, None)


def test_history_is_kept_and_goes_on(store: Store) -> None:
    finished(store, "a", Errored("first"), max_attempts=1)
    store.retry_job("a", None)
    finish(store, claim_one(store), Errored("second"))
    found = job(store, "a")
    assert [(failure.attempt, failure.error) for failure in found.errors] == [(1, "first"), (1, "second")]


def test_version_is_not_reset(store: Store, clock: MovableClock) -> None:
    late = run(store, "a", max_attempts=1)
    clock.advance(LEASE)
    reap(store)
    store.retry_job("a", None)
    again = claim_one(store)
    assert (again.attempts, again.version) == (1, late.version + 1)
    assert finish(store, late) is None
    assert finish(store, again) is Status.COMPLETED


def test_limit_of_attempts_holds_again(store: Store, clock: MovableClock) -> None:
    finished(store, "a", Errored("boom"), max_attempts=2)
    clock.advance(BACK_OFF)
    store.promote_jobs(1)
    finish(store, claim_one(store), Errored("boom"))
    store.retry_job("a", None)
    starts = 0
    while claims := claim(store):
        starts += 1
        finish(store, claims[0], Errored("boom"))
        clock.advance(BACK_OFF)
        store.promote_jobs(1)
    assert starts == 2


def test_payload_may_be_replaced(store: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True), payload='{"n": 1}')
    assert store.retry_job("a", '{"n": 2}').payload == {"n": 2}
    assert claim_one(store).payload == '{"n": 2}'


def test_payload_is_kept_unless_replaced(store: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True), payload='{"n": 1}')
    assert store.retry_job("a", None).payload == {"n": 1}


def test_progress_of_the_attempts_before_is_gone(store: Store) -> None:
    claimed = run(store, "a")
    store.write_progress("worker", [(claimed.seq, claimed.version, 0.5, "half")])
    finish(store, claimed, Errored("boom", permanent=True))
    assert store.retry_job("a", None).progress is None


def test_retried_job_is_not_promoted_when_its_back_off_would_have_ended(
    store: Store, clock: MovableClock
) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    store.retry_job("a", None)
    claim_one(store)
    clock.advance(BACK_OFF)
    assert store.promote_jobs(10) == []


@pytest.mark.parametrize("state", ["scheduled", "pending", "processing", "completed"])
def test_job_in_another_state_is_not_retried(store: Store, state: str) -> None:
    insert(store, "a", delay=60 if state == "scheduled" else None)
    if state in ("processing", "completed"):
        claimed = claim_one(store)
        if state == "completed":
            finish(store, claimed)
    before = everything(store)
    with pytest.raises(WrongState) as refused:
        store.retry_job("a", '{"n": 2}')
    assert (refused.value.job_id, refused.value.status) == ("a", state)
    assert everything(store) == before


def test_unknown_job_is_not_found(store: Store) -> None:
    with pytest.raises(JobNotFound):
        store.retry_job("nobody", None)


def test_other_jobs_are_left_alone(store: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True))
    finished(store, "b", Errored("boom", permanent=True))
    before = job(store, "b")
    store.retry_job("a", None)
    assert job(store, "b") == before
