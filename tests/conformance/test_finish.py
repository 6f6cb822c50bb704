"""finish_jobs: what an outcome makes of a job, and the guard that keeps late ones out."""

from __future__ import annotations

import pytest

from holdfast.core.clock import SECOND, to_datetime
from holdfast.core.job import Status
from holdfast.core.lifecycle import Completed, Errored, Outcome, Released, Stopped
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    BACK_OFF,
    LEASE,
    OUTCOMES,
    claim,
    claim_one,
    ending,
    everything,
    finish,
    insert,
    job,
    new_job,
    reap,
    rolled_back,
    run,
    status,
)

every_outcome = pytest.mark.parametrize("outcome", OUTCOMES.values(), ids=OUTCOMES.keys())


def test_completed_job_keeps_its_result(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    clock.advance(3)
    assert finish(store, claimed, Completed('{"n": [1, null, "žluť 😀"]}')) is Status.COMPLETED
    found = job(store, "a")
    assert (found.status, found.result) == (Status.COMPLETED, {"n": [1, None, "žluť 😀"]})
    assert found.finished_at == found.updated_at == clock.now
    assert (found.worker_id, found.lease_expires_at) == (None, None)


def test_integers_beyond_floats_are_kept_in_results(store: Store) -> None:
    finish(store, run(store, "a"), Completed('{"big": 123456789012345678901234567890}'))
    assert job(store, "a").result == {"big": 123456789012345678901234567890}


def test_completed_job_may_have_no_result(store: Store) -> None:
    finish(store, run(store, "a"), Completed(None))
    assert job(store, "a").result is None


def test_failed_attempt_waits_for_its_retry(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    assert finish(store, claimed, Errored("OSError: no route")) is Status.SCHEDULED
    found = job(store, "a")
    assert (found.status, found.error, found.attempts) == (Status.SCHEDULED, "OSError: no route", 1)
    assert found.next_retry_at == to_datetime(clock() + round(BACK_OFF * SECOND))
    assert (found.worker_id, found.lease_expires_at, found.finished_at) == (None, None, None)


def test_handler_may_choose_the_delay(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "a"), Errored("later", delay=99.5))
    assert job(store, "a").next_retry_at == to_datetime(clock() + round(99.5 * SECOND))


def test_failure_of_the_last_attempt_is_final(store: Store, clock: MovableClock) -> None:
    assert finish(store, run(store, "a", max_attempts=1), Errored("boom")) is Status.FAILED
    found = job(store, "a")
    assert (found.status, found.error, found.finished_at) == (Status.FAILED, "boom", clock.now)
    assert found.next_retry_at is None


def test_permanent_failure_is_final_with_attempts_left(store: Store) -> None:
    assert finish(store, run(store, "a"), Errored("bad address", permanent=True)) is Status.FAILED


def test_error_is_gone_once_completed(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    clock.advance(BACK_OFF)
    store.promote_jobs(10)
    finish(store, claim_one(store))
    found = job(store, "a")
    assert found.error is None
    assert [failure.error for failure in found.errors] == ["boom"]


def test_history_has_one_entry_for_each_failed_attempt(store: Store, clock: MovableClock) -> None:
    insert(store, "a", max_attempts=3)
    for attempt in (1, 2, 3):
        claimed = claim_one(store, worker=f"w{attempt}")
        started_at = store.now()
        clock.advance(2)
        error = Errored(f"error {attempt}", f"traceback {attempt}", {"exitCode": attempt})
        finish(store, claimed, error, started_at=started_at)
        clock.advance(BACK_OFF)
        store.promote_jobs(10)
    history = job(store, "a").errors
    assert [failure.attempt for failure in history] == [1, 2, 3]
    assert [failure.worker_id for failure in history] == ["w1", "w2", "w3"]
    assert [failure.error for failure in history] == ["error 1", "error 2", "error 3"]
    assert [failure.traceback for failure in history] == ["traceback 1", "traceback 2", "traceback 3"]
    assert [failure.detail for failure in history] == [{"exitCode": n} for n in (1, 2, 3)]
    assert [(failure.finished_at - failure.started_at).total_seconds() for failure in history] == [2, 2, 2]
    assert status(store, "a") is Status.FAILED


def test_stopped_attempt_ends_cancelled(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    store.cancel_job("a")
    assert finish(store, claimed, Stopped()) is Status.CANCELLED
    assert job(store, "a").finished_at == clock.now


# The guard


@every_outcome
def test_late_outcome_of_a_reaped_attempt_is_discarded(
    store: Store, clock: MovableClock, outcome: Outcome
) -> None:
    late = run(store, "a")
    clock.advance(LEASE)
    reap(store)
    before = everything(store)
    assert finish(store, late, outcome) is None
    assert everything(store) == before


@every_outcome
def test_late_outcome_is_discarded_when_another_worker_has_the_job(
    store: Store, clock: MovableClock, outcome: Outcome
) -> None:
    late = run(store, "a", worker="w1")
    clock.advance(LEASE)
    reap(store)
    claim_one(store, worker="w2")
    before = everything(store)
    assert finish(store, late, outcome) is None
    assert everything(store) == before


@every_outcome
def test_late_outcome_is_discarded_when_the_same_worker_has_the_job_again(
    store: Store, clock: MovableClock, outcome: Outcome
) -> None:
    late = run(store, "a", worker="w1")
    clock.advance(LEASE)
    reap(store)
    now = claim_one(store, worker="w1")
    before = everything(store)
    assert finish(store, late, outcome) is None
    assert everything(store) == before
    assert finish(store, now) is Status.COMPLETED


@every_outcome
def test_outcome_of_a_worker_that_does_not_hold_the_job_is_discarded(store: Store, outcome: Outcome) -> None:
    claimed = run(store, "a", worker="w1")
    before = everything(store)
    assert finish(store, claimed, outcome, worker_id="w2") is None
    assert everything(store) == before


@every_outcome
@pytest.mark.parametrize("first", OUTCOMES.values(), ids=OUTCOMES.keys())
def test_second_outcome_of_an_attempt_is_discarded(store: Store, first: Outcome, outcome: Outcome) -> None:
    claimed = run(store, "a")
    assert finish(store, claimed, first) is not None
    before = everything(store)
    assert finish(store, claimed, outcome) is None
    assert everything(store) == before


@every_outcome
def test_outcome_of_a_version_to_come_is_discarded(store: Store, outcome: Outcome) -> None:
    claimed = run(store, "a")
    before = everything(store)
    assert finish(store, claimed, outcome, version=claimed.version + 1) is None
    assert everything(store) == before


def test_late_result_and_children_are_discarded(store: Store, clock: MovableClock) -> None:
    late = run(store, "a")
    clock.advance(LEASE)
    reap(store)
    children = (new_job("child", parent_id="a"),)
    assert finish(store, late, Completed('"late"'), children=children) is None
    assert job(store, "a").result is None
    assert store.get_job("child") is None
    assert store.list_children("a") == []


def test_late_failure_leaves_no_history(store: Store, clock: MovableClock) -> None:
    late = run(store, "a")
    clock.advance(LEASE)
    reap(store)
    finish(store, late, Errored("too late"))
    assert [failure.error for failure in job(store, "a").errors] == ["WorkerLost: worker"]


@every_outcome
def test_outcome_of_a_deleted_job_is_not_written_to_the_next_one(
    store: Store, clock: MovableClock, outcome: Outcome
) -> None:
    """Even though the next one may be claimed by the same worker, for the first time as well."""
    late = run(store, "deleted", max_attempts=1, worker="w1")
    clock.advance(LEASE)
    reap(store)
    store.delete_job("deleted")
    run(store, "next", worker="w1")
    before = everything(store)
    assert finish(store, late, outcome) is None
    assert everything(store) == before


def test_outcome_of_a_job_that_never_was_is_discarded(store: Store) -> None:
    claimed = run(store, "a")
    before = everything(store)
    assert finish(store, claimed, seq=claimed.seq + 1000) is None
    assert everything(store) == before


# Batches


def test_nothing_to_finish_is_no_error(store: Store) -> None:
    assert store.finish_jobs([]) == {}


def test_batch_of_all_kinds_ends_each_as_it_should(store: Store) -> None:
    insert(store, *OUTCOMES)
    claims = claim(store)
    ends = [ending(claimed, OUTCOMES[claimed.id]) for claimed in claims]
    store.finish_jobs(ends)
    assert {id: status(store, id) for id in OUTCOMES} == {
        "completed": Status.COMPLETED,
        "failed": Status.SCHEDULED,
        "failed for good": Status.FAILED,
        "lease ended": Status.SCHEDULED,
        "released": Status.PENDING,
        "stopped": Status.CANCELLED,
    }


def test_accepted_outcomes_are_told_by_attempt(store: Store) -> None:
    insert(store, "a", "b")
    first, second = claim(store)
    ended = store.finish_jobs([ending(first, Completed()), ending(second, Errored("boom"))])
    assert ended == {
        (first.seq, first.version): Status.COMPLETED,
        (second.seq, second.version): Status.SCHEDULED,
    }


@every_outcome
def test_one_refused_outcome_does_not_touch_the_others(
    store: Store, clock: MovableClock, outcome: Outcome
) -> None:
    insert(store, "first", "late", "last")
    first, late, last = claim(store)
    finish(store, late, Released())
    refused = job(store, "late")
    ended = store.finish_jobs([ending(claimed, outcome) for claimed in (first, late, last)])
    assert set(ended) == {(first.seq, first.version), (last.seq, last.version)}
    assert status(store, "first") is status(store, "last") is ended[first.seq, first.version]
    assert job(store, "late") == refused
    assert len(job(store, "first").errors) == len(job(store, "last").errors)


def test_batch_may_hold_outcomes_of_several_workers(store: Store) -> None:
    insert(store, "a", "b", "c", "d")
    claims = [claim_one(store, worker=worker) for worker in ("w1", "w2", "w1", "w2")]
    outcomes: list[Outcome] = [Completed('"a"'), Completed('"b"'), Errored("c"), Errored("d")]
    ended = store.finish_jobs([ending(*pair) for pair in zip(claims, outcomes, strict=True)])
    assert len(ended) == 4
    assert (job(store, "a").result, job(store, "b").result) == ("a", "b")
    assert [failure.worker_id for failure in job(store, "d").errors] == ["w2"]


def test_each_result_goes_to_its_own_job(store: Store) -> None:
    insert(store, *(f"job-{n}" for n in range(200)))
    claims = claim(store, limit=200)
    store.finish_jobs([ending(claimed, Completed(f'"{claimed.id}"')) for claimed in claims])
    assert all(found.result == found.id for found in everything(store))


def test_finish_inside_a_transaction_that_fails_is_undone(store: Store) -> None:
    claimed = run(store, "a")
    before = everything(store)
    with rolled_back(store):
        assert finish(store, claimed) is Status.COMPLETED
    assert everything(store) == before
    assert finish(store, claimed) is Status.COMPLETED


# Cancellation


@pytest.mark.parametrize("name", [name for name in OUTCOMES if name != "completed"])
@pytest.mark.parametrize("max_attempts", [1, 3])
def test_requested_cancellation_turns_every_outcome_but_completed_into_cancelled(
    store: Store, clock: MovableClock, name: str, max_attempts: int
) -> None:
    claimed = run(store, "a", max_attempts=max_attempts)
    store.cancel_job("a")
    clock.advance(1)
    assert finish(store, claimed, OUTCOMES[name]) is Status.CANCELLED
    found = job(store, "a")
    assert (found.status, found.finished_at) == (Status.CANCELLED, clock.now)
    assert (found.next_retry_at, found.worker_id, found.lease_expires_at) == (None, None, None)


def test_completion_wins_over_a_requested_cancellation(store: Store) -> None:
    claimed = run(store, "a")
    store.cancel_job("a")
    assert finish(store, claimed, Completed('"done"')) is Status.COMPLETED
    assert job(store, "a").result == "done"


def test_cancellation_of_one_job_does_not_touch_the_others_of_a_batch(store: Store) -> None:
    insert(store, "a", "b")
    claims = claim(store)
    store.cancel_job("a")
    ended = store.finish_jobs([ending(claimed, Errored("boom")) for claimed in claims])
    assert list(ended.values()) == [Status.CANCELLED, Status.SCHEDULED]


def test_error_of_a_cancelled_attempt_is_in_the_history(store: Store) -> None:
    claimed = run(store, "a")
    store.cancel_job("a")
    finish(store, claimed, Errored("killed"))
    assert [failure.error for failure in job(store, "a").errors] == ["killed"]
