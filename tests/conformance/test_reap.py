"""Reaping: jobs come back from workers that are gone, and from nobody else."""

from __future__ import annotations

import pytest

from holdfast.core.clock import SECOND
from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored, Outcome, Released, Stopped
from holdfast.store.protocol import Store
from holdfast.store.records import Expired, WorkerRecord
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    BACK_OFF,
    LEASE,
    claim,
    claim_alone,
    claim_one,
    everything,
    finish,
    insert,
    job,
    reap,
    reaping,
    run,
    status,
)

DEAD = WorkerRecord(id="dead", host="here", pid=1, state="running", concurrency=4, types=("email",))


def test_attempt_expires_when_its_lease_ends(store: Store, clock: MovableClock) -> None:
    run(store, "a")
    clock.advance(LEASE - 0.000001)
    assert store.list_expired() == []
    clock.advance(0.000001)
    assert [expired.id for expired in store.list_expired()] == ["a"]


def test_expired_attempt_is_told_with_its_evidence(store: Store, clock: MovableClock) -> None:
    started_at = store.now()
    claimed = run(store, "a", worker="w1", type="crawl", max_attempts=5)
    clock.advance(LEASE)
    assert store.list_expired() == [
        Expired(claimed.seq, "a", "crawl", 1, 1, 5, "w1", started_at + round(LEASE * SECOND), started_at)
    ]


def test_expired_attempts_come_oldest_first(store: Store, clock: MovableClock) -> None:
    insert(store, "a", "b")
    claim_one(store, lease=60)
    claim_one(store, lease=10)
    clock.advance(60)
    assert [expired.id for expired in store.list_expired()] == ["b", "a"]


def test_only_running_attempts_expire(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "completed"))
    finish(store, run(store, "retrying"), Errored("boom"))
    insert(store, "pending")
    clock.advance(10 * LEASE)
    assert store.list_expired() == []


def test_reaped_job_that_had_started_backs_off_like_any_failure(store: Store, clock: MovableClock) -> None:
    run(store, "a", worker="w1", max_attempts=2)
    clock.advance(LEASE)
    assert reap(store, back_off=BACK_OFF) == {"a": Status.SCHEDULED}
    found = job(store, "a")
    assert (found.status, found.attempts, found.error) == (Status.SCHEDULED, 1, "WorkerLost: w1")
    assert (found.worker_id, found.lease_expires_at, found.finished_at) == (None, None, None)
    clock.advance(BACK_OFF - 1)
    assert store.promote_jobs(1) == []
    clock.advance(1)
    assert store.promote_jobs(1) == [("a", "email")]
    assert claim_one(store, worker="w2").attempts == 2


@pytest.mark.parametrize("has_started", [False, None])
def test_reaped_job_that_had_not_started_is_pending_at_once_and_loses_no_attempt(
    store: Store, clock: MovableClock, has_started: bool | None
) -> None:
    insert(store, "a", max_attempts=1)
    for _ in range(2):
        assert claim_one(store).attempts == 1
        clock.advance(LEASE)
        assert reap(store, has_started=has_started) == {"a": Status.PENDING}
    found = job(store, "a")
    assert (found.attempts, found.error, found.errors) == (0, None, ())


def test_reap_before_the_start_keeps_the_error_of_the_attempt_before(
    store: Store, clock: MovableClock
) -> None:
    finish(store, run(store, "a", max_attempts=2), Errored("boom"))
    clock.advance(BACK_OFF)
    store.promote_jobs(1)
    claim_one(store)
    clock.advance(LEASE)
    reap(store, has_started=False)
    found = job(store, "a")
    assert (found.attempts, found.error, len(found.errors)) == (1, "boom", 1)


def test_reaped_job_without_attempts_left_is_failed_and_says_so(store: Store, clock: MovableClock) -> None:
    run(store, "a", worker="w1", max_attempts=1)
    clock.advance(LEASE)
    assert reap(store) == {"a": Status.FAILED}
    found = job(store, "a")
    assert (found.error, found.finished_at) == ("WorkerLost: w1", clock.now)


def test_reaped_attempt_is_in_the_history(store: Store, clock: MovableClock) -> None:
    started = clock.now
    run(store, "a", worker="w1")
    clock.advance(LEASE)
    reap(store)
    [failure] = job(store, "a").errors
    assert (failure.attempt, failure.worker_id, failure.error) == (1, "w1", "WorkerLost: w1")
    assert (failure.started_at, failure.finished_at) == (started, clock.now)


def test_job_that_kills_every_worker_ends_failed(store: Store, clock: MovableClock) -> None:
    insert(store, "poison", max_attempts=3)
    starts = 0
    while claims := claim(store) or claim_alone(store):
        starts += len(claims)
        clock.advance(LEASE)
        reap(store)
    assert starts == 3
    assert status(store, "poison") is Status.FAILED
    assert [failure.attempt for failure in job(store, "poison").errors] == [1, 2, 3]


def test_attempt_renewed_after_it_was_seen_expired_is_not_reaped(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    clock.advance(LEASE)
    seen = store.list_expired()
    store.heartbeat("worker", [(claimed.seq, claimed.version)], state="running", lease_seconds=LEASE)
    before = everything(store)
    assert reap(store, seen) == {}
    assert everything(store) == before
    assert finish(store, claimed) is Status.COMPLETED


def test_attempt_finished_after_it_was_seen_expired_is_not_reaped(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    clock.advance(LEASE)
    seen = store.list_expired()
    finish(store, claimed)
    before = everything(store)
    assert reap(store, seen) == {}
    assert everything(store) == before


def test_next_attempt_is_not_reaped_for_the_one_before(store: Store, clock: MovableClock) -> None:
    run(store, "a")
    clock.advance(LEASE)
    seen = store.list_expired()
    reap(store, seen)
    claim_one(store)
    clock.advance(LEASE)
    before = everything(store)
    assert reap(store, seen) == {}
    assert everything(store) == before


def test_second_reaper_finds_nothing_left(store: Store, other: Store, clock: MovableClock) -> None:
    run(store, "a")
    clock.advance(LEASE)
    seen = store.list_expired()
    assert reap(store, seen) == {"a": Status.SCHEDULED}
    assert reap(other, seen) == {}
    assert len(job(store, "a").errors) == 1


def test_living_attempts_are_not_touched_when_others_are_reaped(store: Store, clock: MovableClock) -> None:
    insert(store, "dead", "alive")
    claim_one(store, worker="w1", lease=10)
    claim_one(store, worker="w2", lease=60)
    clock.advance(10)
    assert reap(store) == {"dead": Status.SCHEDULED}
    assert status(store, "alive") is Status.PROCESSING


@pytest.mark.parametrize("max_attempts", [1, 3])
def test_reaped_job_that_was_to_be_cancelled_is_cancelled(
    store: Store, clock: MovableClock, max_attempts: int
) -> None:
    run(store, "a", max_attempts=max_attempts)
    store.cancel_job("a")
    clock.advance(LEASE)
    assert reap(store) == {"a": Status.CANCELLED}
    assert job(store, "a").finished_at == clock.now


def test_supervisor_that_saw_a_worker_die_need_not_wait_for_its_leases(store: Store) -> None:
    insert(store, "a", "b", "c")
    claim(store, worker="dead", limit=2)
    claim_one(store, worker="alive")
    finishes = [reaping(attempt, expired_only=False) for attempt in store.list_held("dead")]
    assert set(store.finish_jobs(finishes).values()) == {Status.SCHEDULED}
    assert [status(store, id) for id in "abc"] == [Status.SCHEDULED, Status.SCHEDULED, Status.PROCESSING]


def test_living_lease_is_refused_to_the_sweep(store: Store) -> None:
    run(store, "a")
    finishes = [reaping(attempt) for attempt in store.list_held("worker")]
    assert store.finish_jobs(finishes) == {}
    assert status(store, "a") is Status.PROCESSING


def test_held_are_the_running_attempts_of_a_worker(store: Store) -> None:
    insert(store, "a", "b", "c")
    first = claim_one(store, worker="w1")
    claim_one(store, worker="w2")
    third = claim_one(store, worker="w1")
    finish(store, first)
    assert [(held.id, held.seq, held.version) for held in store.list_held("w1")] == [
        ("c", third.seq, third.version)
    ]
    assert store.list_held("nobody") == []


def test_reaped_job_keeps_its_place_in_line(store: Store, clock: MovableClock) -> None:
    insert(store, "first", "second")
    claim_one(store)
    clock.advance(LEASE)
    reap(store)
    assert [claimed.id for claimed in claim(store)] == ["first", "second"]


def test_failure_after_a_reap_backs_off_by_all_attempts(store: Store, clock: MovableClock) -> None:
    run(store, "a", max_attempts=3)
    clock.advance(LEASE)
    reap(store)
    again = claim_one(store)
    assert finish(store, again, Errored("boom")) is Status.SCHEDULED
    clock.advance(BACK_OFF)
    store.promote_jobs(1)
    assert finish(store, claim_one(store), Errored("boom")) is Status.FAILED


# What is known of a start.


def test_heartbeat_says_which_handlers_have_begun(store: Store, clock: MovableClock) -> None:
    insert(store, "running", "held")
    running, held = claim(store)
    names = [(claimed.seq, claimed.version) for claimed in (running, held)]
    for started in ({names[0]}, set()):  # once it is known, it stays so
        store.heartbeat("worker", names, state="running", lease_seconds=LEASE, started=started)
    assert {held.id: held.has_started for held in store.list_held("worker")} == {
        "running": True,
        "held": False,
    }
    finish(store, running, Errored("boom"))
    clock.advance(BACK_OFF)
    store.promote_jobs(1)
    claim_one(store)
    assert not any(held.has_started for held in store.list_held("worker")), "another attempt, another start"


def test_heartbeat_of_another_worker_says_nothing_about_a_start(store: Store) -> None:
    claimed = run(store, "a")
    name = (claimed.seq, claimed.version)
    store.heartbeat("other", [name], state="running", lease_seconds=LEASE, started={name})
    assert [held.has_started for held in store.list_held("worker")] == [False]


# Jobs that lose one worker after another.


def lose(store: Store, clock: MovableClock, times: int, *, has_started: bool | None = True) -> None:
    """Let a job's worker be lost so many times."""
    for _ in range(times):
        claimed = claim(store) or claim_alone(store)
        assert claimed
        clock.advance(LEASE)
        reap(store, has_started=has_started)
        clock.advance(BACK_OFF)
        store.promote_jobs(10)


@pytest.mark.parametrize("has_started", [True, None])
def test_job_that_lost_two_workers_in_a_row_is_claimed_alone_and_counts_as_started(
    store: Store, clock: MovableClock, has_started: bool | None
) -> None:
    insert(store, "a", max_attempts=5)
    lose(store, clock, 1, has_started=has_started)
    assert store.list_suspect_types() == set()
    assert [claimed.id for claimed in claim(store)] == ["a"]
    clock.advance(LEASE)
    reap(store, has_started=has_started)
    clock.advance(BACK_OFF)
    store.promote_jobs(1)
    insert(store, "b", "c")
    assert [head.seq for head in store.list_heads()] == [2], "what runs alone is not in line"
    assert store.list_suspect_types() == {"email"}
    assert store.count_losses("a") == 2
    assert claim_alone(store, "other") == []
    assert [claimed.id for claimed in claim_alone(store, worker="w1")] == ["a"]
    assert [held.has_started for held in store.list_held("w1")] == [True]
    assert store.list_suspect_types() == set()
    assert [claimed.id for claimed in claim(store)] == ["b", "c"]


def test_job_that_waits_to_run_alone_leaves_no_line_behind(store: Store, clock: MovableClock) -> None:
    insert(store, "a")
    lose(store, clock, 2)
    assert store.list_heads() == []
    assert claim(store, "email", "other") == []
    assert [claimed.id for claimed in claim_alone(store)] == ["a"]


def test_attempt_given_back_before_its_start_says_nothing_about_the_job(
    store: Store, clock: MovableClock
) -> None:
    insert(store, "a", max_attempts=5)
    lose(store, clock, 1)
    lose(store, clock, 3, has_started=False)
    assert store.count_losses("a") == 1
    finish(store, claim_one(store), Released())
    assert store.count_losses("a") == 1


@pytest.mark.parametrize(
    "outcome",
    [None, Errored("boom"), Errored("boom", permanent=True), Released(has_started=True), Stopped()],
    ids=["completed", "failed", "failed for good", "released", "stopped"],
)
def test_every_other_end_of_an_attempt_that_ran_clears_the_losses(
    store: Store, clock: MovableClock, outcome: Outcome | None
) -> None:
    insert(store, "a", max_attempts=5)
    lose(store, clock, 2)
    [claimed] = claim_alone(store)
    finish(store, claimed, outcome)
    assert store.count_losses("a") == 0


def test_retry_by_a_person_clears_the_losses(store: Store, clock: MovableClock) -> None:
    insert(store, "a", max_attempts=2)
    lose(store, clock, 2)
    assert (status(store, "a"), store.count_losses("a")) == (Status.FAILED, 2)
    store.retry_job("a", None)
    assert store.count_losses("a") == 0
    assert [claimed.id for claimed in claim(store)] == ["a"]


# A clock that was set back.

HOUR = 3600.0


@pytest.mark.parametrize("is_known", [True, False])
def test_lease_of_a_dead_worker_from_before_the_clock_was_set_back_ends(
    store: Store, clock: MovableClock, is_known: bool
) -> None:
    if is_known:
        store.register_worker(DEAD, [])
    run(store, "a", worker="dead")
    clock.advance(10)
    if is_known:
        store.heartbeat("dead", [(1, 1)], state="running", lease_seconds=LEASE)
    clock.advance(-HOUR)
    for _ in range(3):  # the first sweep decides, others change nothing
        store.redate_leases(LEASE)
        assert store.list_expired() == []
        clock.advance(LEASE / 4)
    clock.advance(LEASE / 2)
    assert [expired.id for expired in store.list_expired()] == ["a"]
    assert reap(store, has_started=False) == {"a": Status.PENDING}


def test_longer_lease_from_before_the_clock_was_set_back_keeps_its_length(
    store: Store, clock: MovableClock
) -> None:
    store.register_worker(DEAD, [])
    insert(store, "a")
    claim_one(store, worker="dead", lease=10 * LEASE)
    clock.advance(-HOUR)
    store.redate_leases(LEASE)
    clock.advance(10 * LEASE - 1)
    assert store.list_expired() == []
    clock.advance(1)
    assert [expired.id for expired in store.list_expired()] == ["a"]


def test_lease_taken_or_renewed_since_the_clock_was_set_back_is_left_alone(
    store: Store, clock: MovableClock
) -> None:
    store.register_worker(DEAD, [])
    first = run(store, "first", worker="dead")
    clock.advance(-HOUR)
    run(store, "second", worker="dead")  # before its next heartbeat
    second = job(store, "second")
    store.redate_leases(LEASE)
    assert job(store, "second") == second
    store.heartbeat("dead", [(first.seq, first.version)], state="running", lease_seconds=10 * LEASE)
    renewed = job(store, "first")
    store.redate_leases(LEASE)
    assert job(store, "first") == renewed


def test_worker_last_heard_of_in_the_future_was_heard_of_now(store: Store, clock: MovableClock) -> None:
    store.register_worker(DEAD, [])
    clock.advance(-HOUR)
    store.redate_leases(LEASE)
    [found] = store.list_workers()
    assert found.heartbeat_at == clock.now
    assert found.turned_at is None
    clock.advance(2 * LEASE)
    assert store.remove_silent_workers(LEASE) == ["dead"]
