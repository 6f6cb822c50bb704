"""prune_jobs: finished jobs are deleted by age, in small bites, and never one that still holds its key."""

from __future__ import annotations

import pytest

from holdfast.core.clock import SECOND
from holdfast.core.job import FINISHED, Status
from holdfast.core.lifecycle import Errored
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.steps import everything, finish, finished, insert, new_job, run

DONE = (Status.COMPLETED, Status.CANCELLED)


def prune(
    store: Store, *, older_than: float = 0, statuses: tuple[Status, ...] = DONE, limit: int = 100
) -> int:
    """Prune what finished more than so many seconds ago."""
    before = {job.id for job in everything(store)}
    pruned = store.prune_jobs(
        finished_before=store.now() - round(older_than * SECOND), statuses=statuses, limit=limit
    )
    assert set(pruned) == before - {job.id for job in everything(store)}, "the ids are those of the deleted"
    return len(pruned)


def ids(store: Store) -> list[str]:
    return [found.id for found in everything(store)]


def test_jobs_that_finished_before_are_deleted(store: Store, clock: MovableClock) -> None:
    finished(store, "old")
    clock.advance(60)
    finished(store, "new")
    clock.advance(1)
    assert prune(store, older_than=30) == 1
    assert ids(store) == ["new"]


def test_job_that_finished_just_then_is_kept(store: Store, clock: MovableClock) -> None:
    finished(store, "a")
    clock.advance(30)
    assert prune(store, older_than=30) == 0
    clock.advance(0.000001)
    assert prune(store, older_than=30) == 1


@pytest.mark.parametrize("status", sorted(FINISHED))
def test_only_the_states_named_are_deleted(store: Store, clock: MovableClock, status: Status) -> None:
    finished(store, "completed")
    finished(store, "failed", Errored("boom", permanent=True))
    insert(store, "cancelled")
    store.cancel_job("cancelled")
    clock.advance(1)
    assert prune(store, statuses=(status,)) == 1
    assert sorted(ids(store)) == sorted(FINISHED - {status})


def test_unfinished_jobs_are_never_deleted(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "retrying"), Errored("boom"))
    run(store, "running")
    insert(store, "pending")
    insert(store, "scheduled", delay=60)
    clock.advance(days=365)
    assert prune(store, statuses=tuple(Status)) == 0
    assert len(ids(store)) == 4


def test_retried_job_is_not_old_any_more(store: Store, clock: MovableClock) -> None:
    finished(store, "a", Errored("boom", permanent=True))
    store.retry_job("a", None)
    clock.advance(60)
    assert prune(store, statuses=tuple(Status)) == 0


def test_limit_takes_the_oldest_first(store: Store, clock: MovableClock) -> None:
    for id in "abc":
        finished(store, id)
        clock.advance(1)
    assert prune(store, limit=2) == 2
    assert ids(store) == ["c"]


def test_job_that_still_holds_its_key_is_kept(store: Store, clock: MovableClock) -> None:
    finished(store, "a", key="k", key_for=60)
    clock.advance(59)
    assert prune(store) == 0
    [verdict] = store.insert_jobs([new_job("b", key="k")])
    assert (verdict.id, verdict.inserted) == ("a", False)


def test_job_whose_key_has_run_out_is_deleted(store: Store, clock: MovableClock) -> None:
    finished(store, "a", key="k", key_for=60)
    clock.advance(60)
    assert prune(store) == 1
    insert(store, "b", key="k")


def test_job_that_lost_its_key_when_it_finished_is_deleted(store: Store, clock: MovableClock) -> None:
    finished(store, "a", key="k")
    clock.advance(1)
    assert prune(store) == 1


def test_kept_keys_do_not_use_up_the_limit(store: Store, clock: MovableClock) -> None:
    for id in "ab":
        finished(store, id, key=id, key_for=3600)
    clock.advance(1)
    finished(store, "c")
    clock.advance(1)
    assert prune(store, limit=1) == 1
    assert ids(store) == ["a", "b"]


def test_pruned_job_takes_its_history_along(store: Store, clock: MovableClock) -> None:
    finished(store, "a", Errored("boom", permanent=True))
    clock.advance(1)
    prune(store, statuses=(Status.FAILED,))
    insert(store, "a")
    assert everything(store)[0].errors == ()


def test_no_type_is_always_the_last(store: Store, clock: MovableClock) -> None:
    """One is refilled faster than it is pruned; the other has its turn all the same."""
    finished(store, "first", type="ant")
    clock.advance(1)
    finished(store, "z", type="zebra")
    rounds = 0
    while "z" in ids(store):
        rounds += 1
        assert rounds < 10, "its turn does not come"
        finished(store, f"a{rounds}", type="ant")
        finished(store, f"b{rounds}", type="ant")
        clock.advance(1)
        prune(store, limit=1)


def test_what_holds_its_key_does_not_keep_the_others(store: Store, clock: MovableClock) -> None:
    finished(store, "held", key="k", key_for=3600)
    finished(store, "old")
    clock.advance(1)
    finished(store, "other", type="crawl")
    clock.advance(1)
    assert prune(store, limit=2) == 2
    assert ids(store) == ["held"]
