"""heartbeat: leases are renewed while a worker lives, and only those it still holds."""

from __future__ import annotations

import pytest

from holdfast.core.clock import SECOND, to_datetime
from holdfast.core.job import Status
from holdfast.core.lifecycle import Released
from holdfast.store.protocol import Store
from holdfast.store.records import Beat, Claim, WorkerRecord
from holdfast.testing import MovableClock
from tests.conformance.steps import LEASE, claim, claim_one, everything, finish, insert, job, reap, run


@pytest.fixture(autouse=True)
def workers(store: Store) -> None:
    for id in ("worker", "w1", "w2"):
        record = WorkerRecord(id=id, host="here", pid=1, state="running", concurrency=1, types=())
        store.register_worker(record, [])


NOTHING = Beat(frozenset(), frozenset())


def renew(store: Store, *claims: Claim, worker: str = "worker", lease: float = LEASE) -> Beat:
    held = [(claimed.seq, claimed.version) for claimed in claims]
    return store.heartbeat(worker, held, state="running", lease_seconds=lease)


def lost(*claims: Claim) -> Beat:
    return Beat(frozenset((claimed.seq, claimed.version) for claimed in claims), frozenset())


def test_lease_is_renewed_from_now(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    clock.advance(20)
    assert renew(store, claimed, lease=12.5) == NOTHING
    assert job(store, "a").lease_expires_at == to_datetime(clock() + round(12.5 * SECOND))


def test_renewed_attempt_does_not_expire(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    for _ in range(10):
        clock.advance(LEASE - 1)
        renew(store, claimed)
        assert store.list_expired() == []
    assert finish(store, claimed) is Status.COMPLETED


def test_expired_lease_that_nobody_took_can_still_be_renewed(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    clock.advance(10 * LEASE)
    assert renew(store, claimed) == NOTHING
    assert store.list_expired() == []


def test_all_that_is_held_is_renewed_at_once(store: Store, clock: MovableClock) -> None:
    insert(store, *(f"job-{n}" for n in range(100)))
    claims = claim(store, limit=100)
    clock.advance(LEASE)
    assert renew(store, *claims) == NOTHING
    assert store.list_expired() == []


def test_attempt_that_is_not_named_is_not_renewed(store: Store, clock: MovableClock) -> None:
    insert(store, "a", "b")
    first, _ = claim(store)
    clock.advance(LEASE)
    renew(store, first)
    assert [expired.id for expired in store.list_expired()] == ["b"]


def test_late_renewal_of_a_reaped_attempt_is_lost_and_changes_nothing(
    store: Store, clock: MovableClock
) -> None:
    late = run(store, "a")
    clock.advance(LEASE)
    reap(store)
    before = everything(store)
    assert renew(store, late) == lost(late)
    assert everything(store) == before


def test_late_renewal_is_lost_when_another_worker_has_the_job(store: Store, clock: MovableClock) -> None:
    late = run(store, "a", worker="w1")
    clock.advance(LEASE)
    reap(store)
    claim_one(store, worker="w2")
    clock.advance(1)
    before = everything(store)
    assert renew(store, late, worker="w1") == lost(late)
    assert everything(store) == before


def test_late_renewal_is_lost_when_the_same_worker_has_the_job_again(
    store: Store, clock: MovableClock
) -> None:
    late = run(store, "a")
    finish(store, late, Released())
    again = claim_one(store)
    clock.advance(1)
    before = everything(store)
    assert renew(store, late) == lost(late)
    assert everything(store) == before
    assert renew(store, again) == NOTHING


def test_renewal_of_a_finished_attempt_is_lost(store: Store) -> None:
    claimed = run(store, "a")
    finish(store, claimed)
    assert renew(store, claimed) == lost(claimed)


def test_renewal_by_another_worker_changes_nothing(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a", worker="w1")
    clock.advance(1)
    before = everything(store)
    assert renew(store, claimed, worker="w2") == lost(claimed)
    assert everything(store) == before


def test_renewal_of_a_deleted_job_does_not_reach_the_next_one(store: Store, clock: MovableClock) -> None:
    late = run(store, "deleted", max_attempts=1)
    clock.advance(LEASE)
    reap(store)
    store.delete_job("deleted")
    run(store, "next")
    clock.advance(1)
    before = everything(store)
    assert renew(store, late) == lost(late)
    assert everything(store) == before


def test_one_lost_lease_does_not_touch_the_others(store: Store, clock: MovableClock) -> None:
    insert(store, "a", "b", "c")
    claims = claim(store)
    finish(store, claims[1])
    clock.advance(LEASE)
    assert renew(store, *claims) == lost(claims[1])
    assert store.list_expired() == []


def test_renewal_tells_which_attempts_are_to_be_cancelled(store: Store) -> None:
    insert(store, "a", "b")
    first, second = claim(store)
    store.cancel_job("b")
    assert renew(store, first, second) == Beat(frozenset(), frozenset({(second.seq, second.version)}))


def test_renewal_tells_only_of_cancellations_of_its_own_worker(store: Store) -> None:
    run(store, "a", worker="w1")
    store.cancel_job("a")
    assert renew(store, worker="w2") == NOTHING


def test_attempt_to_be_cancelled_keeps_its_lease_until_it_has_stopped(
    store: Store, clock: MovableClock
) -> None:
    claimed = run(store, "a")
    store.cancel_job("a")
    clock.advance(LEASE)
    renew(store, claimed)
    assert store.list_expired() == []


def test_worker_that_holds_nothing_may_beat(store: Store) -> None:
    assert renew(store) == NOTHING


def test_suspicion_is_seen_by_the_owner_and_cleared_by_its_renewal(store: Store, clock: MovableClock) -> None:
    insert(store, "a", "b")
    claims = claim(store)
    names = [(claimed.seq, claimed.version) for claimed in claims]
    clock.advance(LEASE)
    assert unsuspected(store, names) == set(names)
    assert store.suspect_jobs(names[:1]) == {names[0]}
    assert unsuspected(store, names) == {names[1]}
    renew(store, *claims)
    assert unsuspected(store, names) == set(names)
    assert unsuspected(store, names, worker="another") == set()


def test_only_the_attempt_that_was_seen_expired_is_suspected(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    clock.advance(LEASE)
    assert store.suspect_jobs([(claimed.seq, claimed.version + 1), (claimed.seq + 1, 1)]) == set()
    assert store.suspect_jobs([]) == set()
    assert unsuspected(store, [(claimed.seq, claimed.version)]) == {(claimed.seq, claimed.version)}
    finish(store, claimed)
    assert store.suspect_jobs([(claimed.seq, claimed.version)]) == set()
    assert unsuspected(store, [(claimed.seq, claimed.version)]) == set()


def test_second_reaper_marks_too_and_the_mark_stays(store: Store, other: Store, clock: MovableClock) -> None:
    """Each counts from the commit of its own mark."""
    claimed = run(store, "a")
    name = (claimed.seq, claimed.version)
    clock.advance(LEASE)
    assert store.suspect_jobs([name]) == {name}
    clock.advance(1)
    assert other.suspect_jobs([name]) == {name}
    assert unsuspected(store, [name]) == set()


def test_report_of_progress_is_no_mark_and_removes_none(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    name = (claimed.seq, claimed.version)
    clock.advance(LEASE)
    store.write_progress("worker", [(*name, 0.5, "half")])
    assert unsuspected(store, [name]) == {name}
    store.suspect_jobs([name])
    clock.advance(1)
    store.write_progress("worker", [(*name, 0.6, "more")])
    assert unsuspected(store, [name]) == set()


def unsuspected(store: Store, names: list[tuple[int, int]], worker: str = "worker") -> set[tuple[int, int]]:
    return store.list_unsuspected(worker, names, patience=5.0)


def test_lease_that_has_not_expired_is_not_suspected(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a")
    name = (claimed.seq, claimed.version)
    clock.advance(LEASE - 1)
    before = job(store, "a")
    assert store.suspect_jobs([name]) == set()
    assert job(store, "a") == before
