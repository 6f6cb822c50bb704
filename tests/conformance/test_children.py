"""Children: jobs that a handler enqueued, which exist only if its own job completes."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.job import Status
from holdfast.core.lifecycle import Completed, Errored, Released, Stopped
from holdfast.store.protocol import Store
from holdfast.store.records import NewJob
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    LEASE,
    claim,
    ending,
    everything,
    finish,
    finished,
    insert,
    job,
    new_job,
    reap,
    run,
    status,
)


def child(id: str, parent: str = "parent", **options: Any) -> NewJob:
    return new_job(id, parent_id=parent, **options)


def complete_with(store: Store, *children: NewJob, parent: str = "parent") -> None:
    """Complete a job, of a type of its own, that enqueued these."""
    assert finish(store, run(store, parent, type="order"), children=children) is Status.COMPLETED


def test_children_come_with_the_completion(store: Store) -> None:
    complete_with(store, child("a"), child("b", type="crawl", priority=3, delay=60))
    assert (job(store, "a").parent_id, job(store, "a").status) == ("parent", Status.PENDING)
    assert (job(store, "b").type, job(store, "b").status) == ("crawl", Status.SCHEDULED)
    assert store.list_children("parent") == ["a", "b"]


def test_job_without_children_has_none(store: Store) -> None:
    complete_with(store)
    assert store.list_children("parent") == []
    assert store.list_children("nobody") == []


@pytest.mark.parametrize("outcome", [Errored("boom"), Errored("boom", permanent=True), Released(), Stopped()])
def test_no_other_outcome_brings_children(store: Store, outcome: Errored | Released | Stopped) -> None:
    claimed = run(store, "parent")
    finish(store, claimed, outcome, children=(child("a"),))
    assert store.get_job("a") is None


def test_children_of_a_refused_completion_are_not_there(store: Store, clock: MovableClock) -> None:
    late = run(store, "parent")
    clock.advance(LEASE)
    reap(store)
    before = everything(store)
    assert finish(store, late, children=(child("a"),)) is None
    assert everything(store) == before


def test_child_of_a_refused_completion_does_not_come_with_the_others_of_a_batch(store: Store) -> None:
    insert(store, "late", "parent")
    late, parent = claim(store)
    finish(store, late, Released())
    store.finish_jobs(
        [
            ending(late, Completed(), children=(child("a", "late"),)),
            ending(parent, Completed(), children=(child("b"),)),
        ]
    )
    assert store.get_job("a") is None
    assert store.list_children("parent") == ["b"]


def test_child_whose_id_is_taken_becomes_a_link(store: Store) -> None:
    insert(store, "taken", payload='{"n": 1}')
    before = job(store, "taken")
    complete_with(store, child("taken", payload='{"n": 2}'), child("b"))
    assert job(store, "taken") == before
    assert store.list_children("parent") == ["b", "taken"]


@pytest.mark.parametrize("payload", ["{}", '{"n": 2}'])
def test_child_whose_key_is_taken_becomes_a_link(store: Store, payload: str) -> None:
    insert(store, "holder", key="k")
    before = job(store, "holder")
    complete_with(store, child("a", key="k", payload=payload))
    assert store.get_job("a") is None
    assert job(store, "holder") == before
    assert store.list_children("parent") == ["holder"]


def test_siblings_with_one_key_are_one_child(store: Store) -> None:
    complete_with(store, child("a", key="k"), child("b", key="k"))
    assert store.list_children("parent") == ["a"]


def test_two_children_that_become_one_link_are_one(store: Store) -> None:
    insert(store, "holder", key="k")
    complete_with(store, child("a", key="k"), child("b", key="k"))
    assert store.list_children("parent") == ["holder"]


def test_child_may_follow_its_parent_under_the_same_key(store: Store) -> None:
    claimed = run(store, "parent", key="k")
    finish(store, claimed, children=(child("next", key="k"),))
    assert status(store, "next") is Status.PENDING


def test_child_exists_even_if_its_type_is_full(store: Store) -> None:
    """The handler was told its id, and its own job is completed: nobody would enqueue it again."""
    insert(store, "waiting")
    complete_with(store, child("a", max_depth=1))
    assert status(store, "a") is Status.PENDING
    assert store.list_children("parent") == ["a"]


def test_children_outlive_their_parent(store: Store) -> None:
    complete_with(store, child("a"))
    store.delete_job("parent")
    assert job(store, "a").parent_id == "parent"


def test_links_go_with_the_parent(store: Store) -> None:
    insert(store, "holder", key="k")
    complete_with(store, child("a", key="k"))
    store.delete_job("parent")
    insert(store, "parent")
    assert store.list_children("parent") == []


def test_deleted_child_is_a_child_no_more(store: Store) -> None:
    finished(store, "linked")
    complete_with(store, child("linked"))
    store.delete_job("linked")
    assert store.list_children("parent") == []


def test_children_of_several_parents_are_kept_apart(store: Store) -> None:
    insert(store, "one", "two")
    first, second = claim(store)
    store.finish_jobs(
        [
            ending(first, Completed(), children=(child("a", "one"), child("b", "one"))),
            ending(second, Completed(), children=(child("c", "two"),)),
        ]
    )
    assert (store.list_children("one"), store.list_children("two")) == (["a", "b"], ["c"])
