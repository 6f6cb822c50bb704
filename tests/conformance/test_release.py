"""Releasing: a worker that stops gives its jobs back, and the attempts with them."""

from __future__ import annotations

from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored, Released
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    BACK_OFF,
    LEASE,
    claim,
    claim_one,
    everything,
    finish,
    insert,
    job,
    new_job,
    reap,
    run,
)


def test_released_job_is_pending_and_its_attempt_given_back(store: Store) -> None:
    claimed = run(store, "a")
    assert finish(store, claimed, Released()) is Status.PENDING
    found = job(store, "a")
    assert (found.status, found.attempts) == (Status.PENDING, 0)
    assert (found.worker_id, found.lease_expires_at, found.finished_at) == (None, None, None)


def test_version_is_not_given_back(store: Store) -> None:
    first = run(store, "a")
    finish(store, first, Released())
    second = claim_one(store)
    assert (second.attempts, second.version) == (1, first.version + 1)


def test_release_leaves_no_error(store: Store) -> None:
    finish(store, run(store, "a"), Released())
    found = job(store, "a")
    assert (found.error, found.errors) == (None, ())


def test_release_keeps_the_error_of_the_attempt_before(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    clock.advance(BACK_OFF)
    store.promote_jobs(1)
    finish(store, claim_one(store), Released())
    found = job(store, "a")
    assert (found.error, found.attempts, len(found.errors)) == ("boom", 1, 1)


def test_deploys_never_use_up_the_attempts(store: Store) -> None:
    insert(store, "a", max_attempts=1)
    for _ in range(20):
        finish(store, claim_one(store), Released())
    assert finish(store, claim_one(store)) is Status.COMPLETED


def test_released_job_keeps_its_place_in_line(store: Store) -> None:
    insert(store, "first", "second")
    finish(store, claim_one(store), Released())
    assert [claimed.id for claimed in claim(store)] == ["first", "second"]


def test_release_of_a_job_that_was_to_be_cancelled_cancels_it(store: Store) -> None:
    claimed = run(store, "a")
    store.cancel_job("a")
    assert finish(store, claimed, Released()) is Status.CANCELLED


def test_late_release_does_not_give_back_the_attempt_of_another(store: Store, clock: MovableClock) -> None:
    late = run(store, "a", worker="w1")
    clock.advance(LEASE)
    reap(store)
    claim_one(store, worker="w2")
    before = everything(store)
    assert finish(store, late, Released()) is None
    assert everything(store) == before
    assert job(store, "a").attempts == 2


def test_attempt_is_given_back_once(store: Store) -> None:
    claimed = run(store, "a")
    assert finish(store, claimed, Released()) is Status.PENDING
    assert finish(store, claimed, Released()) is None
    assert job(store, "a").attempts == 0


def test_released_job_keeps_its_key(store: Store) -> None:
    finish(store, run(store, "a", key="k"), Released())
    [verdict] = store.insert_jobs([new_job("b", key="k")])
    assert (verdict.id, verdict.inserted) == ("a", False)
