"""list_running: the attempts that workers hold now, and nothing else."""

from __future__ import annotations

from datetime import timedelta

from holdfast.core.lifecycle import Errored, Released
from holdfast.store.protocol import Store
from holdfast.store.records import Running
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    BACK_OFF,
    LEASE,
    OUTCOMES,
    claim,
    claim_one,
    ending,
    finish,
    finished,
    insert,
    reap,
    run,
)


def ids(store: Store, limit: int = 100) -> list[str]:
    return [found.id for found in store.list_running(limit)]


def test_queue_without_running_jobs_lists_none(store: Store) -> None:
    insert(store, "pending")
    insert(store, "later", delay=60)
    assert store.list_running(10) == []


def test_running_attempt_is_listed_with_what_people_ask(store: Store, clock: MovableClock) -> None:
    started_at = clock.now
    run(store, "a", worker="w1", type="crawl")
    assert store.list_running(10) == [
        Running(
            id="a",
            type="crawl",
            worker_id="w1",
            attempt=1,
            started_at=started_at,
            lease_expires_at=started_at + timedelta(seconds=LEASE),
        )
    ]


def test_request_to_cancel_is_shown(store: Store) -> None:
    run(store, "a")
    store.cancel_job("a")
    assert [found.cancel_requested for found in store.list_running(10)] == [True]


def test_second_attempt_is_counted_and_has_its_own_start(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    clock.advance(BACK_OFF)
    store.promote_jobs(1)
    claim_one(store)
    [found] = store.list_running(10)
    assert (found.attempt, found.started_at) == (2, clock.now)


def test_lease_that_ends_first_comes_first_and_renewing_moves_it_back(
    store: Store, clock: MovableClock
) -> None:
    first = run(store, "a")
    clock.advance(1)
    run(store, "b")
    assert ids(store) == ["a", "b"]
    clock.advance(1)
    store.heartbeat("worker", [(first.seq, first.version)], state="running", lease_seconds=LEASE)
    assert ids(store) == ["b", "a"]


def test_limit_keeps_those_whose_lease_ends_first(store: Store, clock: MovableClock) -> None:
    for id in "abc":
        run(store, id)
        clock.advance(1)
    assert ids(store, limit=2) == ["a", "b"]


def test_attempt_whose_lease_is_over_is_listed_until_it_is_reaped(store: Store, clock: MovableClock) -> None:
    run(store, "a")
    clock.advance(LEASE + 1)
    [found] = store.list_running(10)
    assert found.lease_expires_at < clock.now
    reap(store)
    assert store.list_running(10) == []


def test_ended_attempt_is_not_listed_however_it_ended(store: Store) -> None:
    insert(store, *OUTCOMES, "still running")
    claims = {claimed.id: claimed for claimed in claim(store)}
    store.finish_jobs([ending(claims[name], outcome) for name, outcome in OUTCOMES.items()])
    assert ids(store) == ["still running"]


def test_released_job_is_listed_again_only_when_claimed_again(store: Store) -> None:
    finish(store, run(store, "a", worker="w1"), Released())
    assert ids(store) == []
    claim_one(store, worker="w2")
    assert [found.worker_id for found in store.list_running(10)] == ["w2"]


def test_busy_types_are_those_with_work_that_is_not_far_off(store: Store) -> None:
    insert(store, "pending", type="pending")
    run(store, "running", type="running")
    insert(store, "later", type="later", delay=60)
    finished(store, "done", type="done")
    finish(store, run(store, "again", type="retrying"), Errored("boom"))
    assert store.list_busy_types() == {"pending", "running", "retrying"}
