"""delete_job: finished jobs can be removed, others can't."""

from __future__ import annotations

import pytest

from holdfast.core.lifecycle import Errored
from holdfast.errors import JobNotFound, WrongState
from holdfast.store.protocol import Store
from tests.conformance.steps import claim_one, everything, finish, finished, insert, job, new_job, run


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_finished_job_is_removed(store: Store, end: str) -> None:
    claimed = run(store, "a", max_attempts=1)
    if end == "cancelled":
        store.cancel_job("a")
    finish(store, claimed, None if end == "completed" else Errored("boom"))
    store.delete_job("a")
    assert store.get_job("a") is None
    assert everything(store) == []


@pytest.mark.parametrize("state", ["scheduled", "pending", "processing"])
def test_unfinished_job_is_not_removed(store: Store, state: str) -> None:
    insert(store, "a", delay=60 if state == "scheduled" else None)
    if state == "processing":
        claim_one(store)
    before = everything(store)
    with pytest.raises(WrongState) as refused:
        store.delete_job("a")
    assert (refused.value.job_id, refused.value.status) == ("a", state)
    assert everything(store) == before


def test_job_waiting_for_a_retry_is_not_removed(store: Store) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    with pytest.raises(WrongState):
        store.delete_job("a")


def test_running_job_that_is_to_be_cancelled_is_not_removed(store: Store) -> None:
    run(store, "a")
    store.cancel_job("a")
    with pytest.raises(WrongState):
        store.delete_job("a")


def test_unknown_job_is_not_found(store: Store) -> None:
    with pytest.raises(JobNotFound):
        store.delete_job("nobody")


def test_job_is_removed_once(store: Store) -> None:
    finished(store, "a")
    store.delete_job("a")
    with pytest.raises(JobNotFound):
        store.delete_job("a")


def test_history_goes_with_the_job(store: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True))
    store.delete_job("a")
    insert(store, "a")
    assert job(store, "a").errors == ()


def test_other_jobs_are_left_alone(store: Store) -> None:
    finished(store, "a", Errored("boom", permanent=True))
    finished(store, "b", Errored("boom", permanent=True))
    before = job(store, "b")
    store.delete_job("a")
    assert everything(store) == [before]


def test_key_goes_with_the_job(store: Store) -> None:
    finished(store, "a", key="k", key_for=3600)
    store.delete_job("a")
    [verdict] = store.insert_jobs([new_job("b", key="k", payload='{"n": 2}')])
    assert verdict.inserted
