"""prune_jobs: finished jobs are deleted by age, in small bites, and never one that still holds its key."""

from __future__ import annotations

import pytest

from holdfast.core.clock import SECOND
from holdfast.core.job import FINISHED, Status
from holdfast.core.lifecycle import Errored
from holdfast.store import prune as pruning
from holdfast.store.protocol import Store
from holdfast.store.prune import PrunePass
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


# A bounded number of jobs is read at a time.


@pytest.fixture
def small_bites(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "MOST_READ", 3)
    monkeypatch.setattr(pruning, "_AT_LEAST", 2)


def bites(store: Store, limit: int = 100) -> list[list[str]]:
    """What each call of a whole pass deletes."""
    prune_pass = PrunePass()
    pruned: list[list[str]] = []
    while not prune_pass.is_over:
        assert len(pruned) < 50, "it does not come to an end"
        before = store.now()
        pruned.append(
            store.prune_jobs(finished_before=before, statuses=DONE, limit=limit, prune_pass=prune_pass)
        )
    return pruned


@pytest.mark.usefixtures("small_bites")
def test_pass_goes_on_behind_jobs_that_hold_their_keys(store: Store, clock: MovableClock) -> None:
    for n in range(7):
        finished(store, f"held-{n}", key=f"k{n}", key_for=3600)
        clock.advance(1)
    finished(store, "old")
    clock.advance(1)
    assert bites(store) == [[], [], ["old"]]
    assert len(ids(store)) == 7


@pytest.mark.usefixtures("small_bites")
def test_pass_finds_all_that_finished_at_one_instant(store: Store, clock: MovableClock) -> None:
    for n in range(8):
        finished(store, f"{n}", key=f"k{n}" if n % 2 else None, key_for=3600 if n % 2 else None)
    clock.advance(1)
    assert sorted(id for bite in bites(store) for id in bite) == ["0", "2", "4", "6"]


@pytest.mark.usefixtures("small_bites")
def test_pass_goes_through_every_type_and_state(store: Store, clock: MovableClock) -> None:
    for n in range(4):
        finished(store, f"email-{n}", key=f"k{n}", key_for=3600)
        finished(store, f"crawl-{n}", type="crawl")
        insert(store, f"cancelled-{n}")
        store.cancel_job(f"cancelled-{n}")
        clock.advance(1)
    pruned = bites(store, limit=2)
    assert max(map(len, pruned)) == 2
    assert sum(map(len, pruned)) == 8
    assert ids(store) == [f"email-{n}" for n in range(4)]


@pytest.mark.usefixtures("small_bites")
def test_key_that_runs_out_behind_a_pass_is_left_to_the_next(store: Store, clock: MovableClock) -> None:
    for n in range(4):
        finished(store, f"held-{n}", key=f"k{n}", key_for=3600)
    prune_pass = PrunePass()
    clock.advance(1)
    store.prune_jobs(finished_before=store.now(), statuses=DONE, limit=5, prune_pass=prune_pass)
    clock.advance(3600)
    assert store.prune_jobs(finished_before=store.now(), statuses=DONE, limit=5, prune_pass=prune_pass) == [
        "held-3"
    ]
    assert sum(map(len, bites(store))) == 3
