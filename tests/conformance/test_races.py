"""Races, staged: the winner holds the transaction, the loser has begun and waits, and is named."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

import pytest

from holdfast.core.job import Status
from holdfast.core.lifecycle import Completed, Errored, Stopped, completion
from holdfast.errors import JobNotFound, KeyHeld, LeaseLost, WrongState
from holdfast.store.protocol import Store
from holdfast.store.records import Claim
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    LEASE,
    claim,
    claim_one,
    demand,
    everything,
    finish,
    finished,
    insert,
    job,
    new_job,
    reap,
    rolled_back,
    run,
    settings_of,
    status,
)

W = TypeVar("W")
L = TypeVar("L")


class Loser:
    """Runs one action in a thread of its own, as another process would, and knows when it has begun."""

    def __init__(self, store: Store, action: Callable[[], L]) -> None:
        self._store = store
        self._action = action
        self._begun = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._future: Future[L] = self._pool.submit(self._run)
        assert self._begun.wait(60)

    def _run(self) -> Any:
        self._begun.set()
        try:
            return self._action()
        finally:
            self._store.close_thread()

    def is_waiting(self) -> bool:
        return not self._future.done()

    def result(self) -> Any:
        """What the action returned, or raises what it raised."""
        try:
            return self._future.result(30)
        finally:
            self._pool.shutdown()


def race(
    winner_store: Store, winner: Callable[[], W], loser_store: Store, loser: Callable[[], Any]
) -> tuple[W, Loser]:
    """The winner acts and commits only when the loser is at it."""
    with winner_store.transaction():
        won = winner()
        lost = Loser(loser_store, loser)
        # Where all share one lock, it waits; where each row has its own, it may pass over what is locked.
        assert loser_store.is_shared or lost.is_waiting()
    return won, lost


# Claim against claim


def test_claim_and_claim_the_loser_gets_the_next_job(store: Store, other: Store) -> None:
    insert(store, "first", "second")
    won, lost = race(
        store, lambda: claim_one(store, worker="winner"), other, lambda: claim_one(other, worker="loser")
    )
    assert (won.id, lost.result().id) == ("first", "second")


def test_claim_and_claim_of_the_last_job_the_loser_gets_nothing(store: Store, other: Store) -> None:
    insert(store, "only")
    won, lost = race(
        store, lambda: claim_one(store, worker="winner"), other, lambda: claim(other, worker="loser")
    )
    assert (won.id, lost.result()) == ("only", [])
    assert (job(store, "only").worker_id, job(store, "only").attempts) == ("winner", 1)


def test_claim_and_claim_under_a_cap_the_loser_gets_nothing(store: Store, other: Store) -> None:
    insert(store, "a", "b")
    capped = settings_of(store, max_running=1)

    def take(own: Store, worker: str) -> list[Claim]:
        return own.claim_jobs(worker, [demand()], capped, limit=10, lease_seconds=LEASE).claims

    won, lost = race(store, lambda: take(store, "winner"), other, lambda: take(other, "loser"))
    assert (len(won), lost.result()) == (1, [])


def test_claim_and_claim_under_a_rate_the_loser_waits(store: Store, other: Store) -> None:
    insert(store, "a", "b")
    limited = settings_of(store, rate_limit=1.0)

    def take(own: Store, worker: str) -> Any:
        return own.claim_jobs(worker, [demand()], limited, limit=10, lease_seconds=LEASE)

    won, lost = race(store, lambda: take(store, "winner"), other, lambda: take(other, "loser"))
    assert len(won.claims) == 1
    assert (lost.result().claims, lost.result().wait) == ([], pytest.approx(1.0))


def test_claims_of_many_at_once_take_every_job_once(store: Store, other: Store) -> None:
    insert(store, *(f"job-{n}" for n in range(200)))
    barrier = threading.Barrier(4)

    def take_all(own: Store, worker: str) -> list[str]:
        barrier.wait(30)
        taken: list[str] = []
        while claims := claim(own, worker=worker, limit=3):
            taken += [claimed.id for claimed in claims]
        return taken

    takers = [
        Loser(own, lambda own=own, n=n: take_all(own, f"w{n}"))  # type: ignore[misc]
        for n, own in enumerate((store, other, store, other))
    ]
    taken = [id for taker in takers for id in taker.result()]
    assert sorted(taken) == sorted(f"job-{n}" for n in range(200))
    assert all(found.attempts == 1 for found in everything(store))


# Finish and renew against the reaper


def test_finish_before_reap_the_reaper_finds_nothing(store: Store, other: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    clock.advance(LEASE)
    seen = other.list_expired()
    won, lost = race(
        store, lambda: finish(store, claimed, Completed('"mine"')), other, lambda: reap(other, seen)
    )
    assert (won, lost.result()) == (Status.COMPLETED, {})
    assert (status(store, "a"), job(store, "a").result, job(store, "a").errors) == ("completed", "mine", ())


def test_reap_before_finish_the_late_outcome_is_refused(
    store: Store, other: Store, clock: MovableClock
) -> None:
    claimed = run(store, "a")
    clock.advance(LEASE)
    won, lost = race(other, lambda: reap(other), store, lambda: finish(store, claimed, Completed('"late"')))
    assert (won, lost.result()) == ({"a": Status.SCHEDULED}, None)
    assert (status(store, "a"), job(store, "a").result) == ("pending", None)


def test_renew_before_reap_the_reaper_finds_a_living_lease(
    store: Store, other: Store, clock: MovableClock
) -> None:
    claimed = run(store, "a")
    clock.advance(LEASE)
    seen = other.list_expired()
    assert len(seen) == 1
    _, lost = race(store, lambda: beat(store, claimed), other, lambda: reap(other, seen))
    assert lost.result() == {}
    assert finish(store, claimed) is Status.COMPLETED


def test_reap_before_renew_the_renewal_is_lost(store: Store, other: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    clock.advance(LEASE)
    won, lost = race(other, lambda: reap(other), store, lambda: beat(store, claimed))
    assert won == {"a": Status.SCHEDULED}
    name = (claimed.seq, claimed.version)
    # Where each row has its own lock, it passes over the job while the reaper has it, and knows nothing yet.
    assert lost.result() == {name} or (store.is_shared and lost.result() == frozenset())
    assert beat(store, claimed) == {name}
    assert job(store, "a").lease_expires_at is None


def beat(own: Store, claimed: Claim) -> frozenset[tuple[int, int]]:
    held = [(claimed.seq, claimed.version)]
    return own.heartbeat("worker", held, state="running", lease_seconds=LEASE).lost


def test_reap_and_reap_the_second_reaper_writes_nothing(
    store: Store, other: Store, clock: MovableClock
) -> None:
    run(store, "a", max_attempts=1)
    clock.advance(LEASE)
    seen = store.list_expired()
    won, lost = race(store, lambda: reap(store, seen), other, lambda: reap(other, seen))
    assert (won, lost.result()) == ({"a": Status.FAILED}, {})
    assert len(job(store, "a").errors) == 1


# A handler's transaction against the reaper


def test_completing_transaction_before_reap_the_reaper_finds_nothing(
    store: Store, other: Store, clock: MovableClock
) -> None:
    claimed = run(store, "a")
    clock.advance(LEASE)
    seen = other.list_expired()
    transaction = store.begin_attempt_transaction(claimed, 60)
    transaction.begin()
    reaper = Loser(other, lambda: reap(other, seen))
    assert other.is_shared or reaper.is_waiting()
    transaction.commit(completion('"mine"'), [new_job("child", parent_id="a")])
    assert reaper.result() == {}
    assert (status(store, "a"), job(store, "a").result) == ("completed", "mine")
    assert store.list_children("a") == ["child"]


def test_reap_before_a_transaction_begins_it_can_not_begin(
    store: Store, other: Store, clock: MovableClock
) -> None:
    claimed = run(store, "a")
    clock.advance(LEASE)
    transaction = store.begin_attempt_transaction(claimed, 60)
    _, lost = race(other, lambda: reap(other), store, transaction.begin)
    with pytest.raises(LeaseLost):
        lost.result()
    assert status(store, "a") is Status.PENDING


def test_transaction_rolled_back_before_reap_the_job_is_reaped(
    store: Store, other: Store, clock: MovableClock
) -> None:
    claimed = run(store, "a")
    clock.advance(LEASE)
    seen = other.list_expired()
    transaction = store.begin_attempt_transaction(claimed, 60)
    transaction.begin()
    reaper = Loser(other, lambda: reap(other, seen))
    transaction.rollback()
    # It waited for the transaction, or passed over its job, which the next one takes.
    assert reaper.result() | reap(other, seen) == {"a": Status.SCHEDULED}


# People against workers


def test_cancel_before_finish_a_failure_becomes_cancelled(store: Store, other: Store) -> None:
    claimed = run(store, "a")
    won, lost = race(
        other, lambda: other.cancel_job("a"), store, lambda: finish(store, claimed, Errored("boom"))
    )
    offered = lost.result()
    if offered is Status.PROCESSING:  # it passed over the job that was locked, and is offered again
        offered = finish(store, claimed, Errored("boom"))
    assert (won.status, offered) == (Status.PROCESSING, Status.CANCELLED)


def test_cancel_before_finish_a_completion_stands(store: Store, other: Store) -> None:
    claimed = run(store, "a")
    _, lost = race(other, lambda: other.cancel_job("a"), store, lambda: finish(store, claimed))
    assert lost.result() is Status.COMPLETED


@pytest.mark.parametrize("outcome", [Completed(), Errored("boom", permanent=True), Stopped()])
def test_finish_before_cancel_the_cancellation_is_refused(
    store: Store, other: Store, outcome: Completed | Errored | Stopped
) -> None:
    claimed = run(store, "a")
    won, lost = race(store, lambda: finish(store, claimed, outcome), other, lambda: other.cancel_job("a"))
    with pytest.raises(WrongState):
        lost.result()
    assert status(store, "a") is won


def test_claim_before_cancel_the_running_job_is_asked_to_stop(store: Store, other: Store) -> None:
    insert(store, "a")
    _, lost = race(store, lambda: claim_one(store), other, lambda: other.cancel_job("a"))
    answer = lost.result()
    assert (answer.status, answer.cancel_requested) == (Status.PROCESSING, True)


def test_cancel_before_claim_the_worker_gets_nothing(store: Store, other: Store) -> None:
    insert(store, "a")
    _, lost = race(other, lambda: other.cancel_job("a"), store, lambda: claim(store))
    assert lost.result() == []
    assert (status(store, "a"), job(store, "a").attempts) == ("cancelled", 0)


def test_promote_before_cancel_the_pending_job_is_cancelled(
    store: Store, other: Store, clock: MovableClock
) -> None:
    insert(store, "a", delay=10)
    clock.advance(10)
    won, lost = race(store, lambda: store.promote_jobs(10), other, lambda: other.cancel_job("a"))
    assert won == [("a", "email")]
    assert lost.result().status is Status.CANCELLED


def test_cancel_before_promote_nothing_is_promoted(store: Store, other: Store, clock: MovableClock) -> None:
    insert(store, "a", delay=10)
    clock.advance(10)
    _, lost = race(other, lambda: other.cancel_job("a"), store, lambda: store.promote_jobs(10))
    assert lost.result() == []
    assert status(store, "a") is Status.CANCELLED


def test_promote_and_promote_each_job_is_promoted_once(
    store: Store, other: Store, clock: MovableClock
) -> None:
    insert(store, "a", delay=10)
    clock.advance(10)
    won, lost = race(store, lambda: store.promote_jobs(10), other, lambda: other.promote_jobs(10))
    assert (won, lost.result()) == ([("a", "email")], [])


def test_pause_before_claim_the_worker_gets_nothing(store: Store, other: Store) -> None:
    insert(store, "a")
    if store.is_shared:  # there it holds from its commit on, and nobody waits for that
        other.set_paused("email", True)
        assert claim(store) == []
    else:
        _, lost = race(other, lambda: other.set_paused("email", True), store, lambda: claim(store))
        assert lost.result() == []
    assert status(store, "a") is Status.PENDING


def test_claim_before_pause_the_job_runs_to_its_end(store: Store, other: Store) -> None:
    insert(store, "a")
    won, lost = race(store, lambda: claim_one(store), other, lambda: other.set_paused("email", True))
    lost.result()
    assert finish(store, won) is Status.COMPLETED


def test_retry_before_delete_the_deletion_is_refused(store: Store, other: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True))
    won, lost = race(store, lambda: store.retry_job("a", None), other, lambda: other.delete_job("a"))
    assert won.status is Status.PENDING
    with pytest.raises(WrongState):
        lost.result()
    assert status(store, "a") is Status.PENDING


def test_delete_before_retry_the_job_is_not_found(store: Store, other: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True))
    _, lost = race(store, lambda: store.delete_job("a"), other, lambda: other.retry_job("a", None))
    with pytest.raises(JobNotFound):
        lost.result()


def test_retry_and_retry_the_second_is_refused(store: Store, other: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True))
    _, lost = race(store, lambda: store.retry_job("a", None), other, lambda: other.retry_job("a", None))
    with pytest.raises(WrongState):
        lost.result()


def test_retry_before_prune_the_job_is_kept(store: Store, other: Store, clock: MovableClock) -> None:
    finished(store, "a", Errored("boom", permanent=True))
    clock.advance(60)

    def prune() -> list[str]:
        return other.prune_jobs(finished_before=other.now(), statuses=(Status.FAILED,), limit=10)

    _, lost = race(store, lambda: store.retry_job("a", None), other, prune)
    assert lost.result() == []
    assert status(store, "a") is Status.PENDING


# Keys and ids


def test_insert_and_insert_of_one_key_the_loser_finds_the_winner(store: Store, other: Store) -> None:
    _, lost = race(
        store,
        lambda: insert(store, "winner", key="k"),
        other,
        lambda: other.insert_jobs([new_job("loser", key="k")]),
    )
    [verdict] = lost.result()
    assert (verdict.id, verdict.inserted, verdict.error) == ("winner", False, None)
    assert [found.id for found in everything(store)] == ["winner"]


def test_insert_and_insert_of_one_id_the_loser_is_refused(store: Store, other: Store) -> None:
    _, lost = race(
        store,
        lambda: insert(store, "a", payload='{"by": "winner"}'),
        other,
        lambda: other.insert_jobs([new_job("a", payload='{"by": "loser"}'), new_job("b")]),
    )
    refused, accepted = lost.result()
    assert (refused.inserted, accepted.inserted) == (False, True)
    assert job(store, "a").payload == {"by": "winner"}


def test_insert_and_insert_at_the_last_place_the_loser_finds_it_full(store: Store, other: Store) -> None:
    _, lost = race(
        store,
        lambda: insert(store, "a", max_depth=1),
        other,
        lambda: other.insert_jobs([new_job("b", max_depth=1)]),
    )
    assert lost.result()[0].error is not None
    assert store.get_job("b") is None


def test_finish_before_insert_the_key_is_free(store: Store, other: Store) -> None:
    claimed = run(store, "a", key="k")
    _, lost = race(
        store, lambda: finish(store, claimed), other, lambda: other.insert_jobs([new_job("b", key="k")])
    )
    assert lost.result()[0].inserted


def test_insert_before_finish_the_key_was_held(store: Store, other: Store) -> None:
    claimed = run(store, "a", key="k")
    won, lost = race(
        other, lambda: other.insert_jobs([new_job("b", key="k")]), store, lambda: finish(store, claimed)
    )
    assert (won[0].id, won[0].inserted) == ("a", False)
    assert lost.result() is Status.COMPLETED


def test_insert_before_retry_of_one_key_the_retry_is_refused(store: Store, other: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True), key="k")
    _, lost = race(store, lambda: insert(store, "b", key="k"), other, lambda: other.retry_job("a", None))
    with pytest.raises(KeyHeld) as refused:
        lost.result()
    assert refused.value.job_id == "b"


def test_retry_before_insert_of_one_key_the_retried_job_is_found(store: Store, other: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True), key="k")
    _, lost = race(
        store,
        lambda: store.retry_job("a", None),
        other,
        lambda: other.insert_jobs([new_job("b", key="k")]),
    )
    assert (lost.result()[0].id, lost.result()[0].inserted) == ("a", False)


def test_loser_acts_when_the_winner_rolls_back(store: Store, other: Store) -> None:
    insert(store, "only")
    with rolled_back(store):
        claim_one(store, worker="winner")
        lost = Loser(other, lambda: claim(other, worker="loser"))
    [claimed] = lost.result() or claim(other, worker="loser")
    assert claimed.id == "only"
    assert (job(store, "only").worker_id, job(store, "only").attempts) == ("loser", 1)
