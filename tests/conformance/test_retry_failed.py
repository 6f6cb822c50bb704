"""retry_failed_jobs: the dead-letter queue goes back in line, in bites, each job at most once."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    claim,
    claim_one,
    ending,
    everything,
    finish,
    finished,
    insert,
    job,
    new_job,
    rolled_back,
    run,
    status,
)

DEAD = Errored("boom", permanent=True)


def fail(store: Store, *ids: str, type: str = "email", **options: object) -> None:
    for id in ids:
        assert finished(store, id, DEAD, type=type, **options).status is Status.FAILED


def walk(store: Store, type: str | None = None, limit: int = 2) -> Iterator[tuple[int, list[str]]]:
    """Every bite from the first to the last: how many were looked at, and the ids retried."""
    after: int | None = 0
    for _ in range(100):
        if after is None:
            return
        examined, retried, after = store.retry_failed_jobs(type, after=after, limit=limit)
        for id, own_type in retried:
            assert job(store, id).type == own_type
        yield examined, [id for id, _ in retried]
    raise AssertionError("the walk did not end")


@pytest.mark.parametrize("limit", [1, 2, 3, 5, 6, 500])
def test_every_failed_job_is_retried_once_in_the_order_they_came(store: Store, limit: int) -> None:
    fail(store, *"abcde")
    bites = list(walk(store, limit=limit))
    assert [id for _, ids in bites for id in ids] == [*"abcde"]
    assert sum(examined for examined, _ in bites) == 5
    assert all(len(ids) <= limit for _, ids in bites)
    assert {found.status for found in everything(store)} == {Status.PENDING}


def test_retried_job_is_as_retry_job_leaves_it(store: Store, clock: MovableClock) -> None:
    fail(store, "one", "many", payload='{"n": 1}')
    clock.advance(60)
    store.retry_job("one", None)
    store.retry_failed_jobs(None, after=0, limit=10)
    one, many = everything(store)
    for name in ("status", "attempts", "payload", "finished_at", "updated_at", "progress", "result", "error"):
        assert getattr(one, name) == getattr(many, name), name
    assert (many.attempts, many.updated_at, len(many.errors)) == (0, clock.now, 1)
    assert [claimed.attempts for claimed in claim(store)] == [1, 1]


def test_job_that_fails_again_meanwhile_is_not_retried_twice(store: Store) -> None:
    fail(store, *"abcd", max_attempts=1)
    retried: list[str] = []
    for _, ids in walk(store):
        retried += ids
        store.finish_jobs([ending(claimed, DEAD) for claimed in claim(store)])
    assert retried == [*"abcd"]
    assert {found.status for found in everything(store)} == {Status.FAILED}


def test_only_failed_jobs_are_retried(store: Store) -> None:
    insert(store, "pending")
    insert(store, "scheduled", delay=60)
    run(store, "running", type="crawl")
    finished(store, "completed", type="crawl")
    insert(store, "cancelled")
    store.cancel_job("cancelled")
    finish(store, run(store, "retrying", type="crawl"), Errored("boom"))
    before = everything(store)
    assert store.retry_failed_jobs(None, after=0, limit=100) == (0, [], None)
    assert everything(store) == before


def test_type_restricts_it(store: Store) -> None:
    fail(store, "a", "b")
    fail(store, "c", type="crawl")
    fail(store, "d", type="crawl:slow")
    fail(store, "e", type="crawl")
    assert [ids for _, ids in walk(store, "crawl", limit=10)] == [["c", "e"]]
    assert [status(store, id) for id in "abd"] == [Status.FAILED] * 3


def test_cursor_of_a_restricted_walk_goes_on_after_the_last_of_its_type(store: Store) -> None:
    fail(store, "a", type="crawl")
    fail(store, "b", "c")
    fail(store, "d", type="crawl")
    fail(store, "e", type="crawl")
    assert [id for _, ids in walk(store, "crawl", limit=1) for id in ids] == ["a", "d", "e"]


def test_jobs_before_the_cursor_are_left_alone(store: Store) -> None:
    fail(store, *"abc")
    _, first, after = store.retry_failed_jobs(None, after=0, limit=1)
    assert (first, after is None) == ([("a", "email")], False)
    store.finish_jobs([ending(claimed, DEAD) for claimed in claim(store)])
    assert after is not None
    _, rest, end = store.retry_failed_jobs(None, after=after, limit=10)
    assert ([id for id, _ in rest], end) == (["b", "c"], None)


def test_walk_of_exactly_the_limit_ends_with_an_empty_bite(store: Store) -> None:
    fail(store, "a", "b")
    assert list(walk(store, limit=2)) == [(2, ["a", "b"]), (0, [])]


def test_job_whose_key_another_holds_is_left_as_it_is(store: Store) -> None:
    fail(store, "a", key="k")
    fail(store, "b")
    insert(store, "holder", key="k", delay=60)
    before = job(store, "a")
    assert store.retry_failed_jobs(None, after=0, limit=10) == (2, [("b", "email")], None)
    assert job(store, "a") == before
    assert store.count_jobs()["email"][Status.FAILED] == 1


def test_same_key_of_another_type_is_no_hindrance(store: Store) -> None:
    fail(store, "a", key="k")
    insert(store, "other", key="k", type="crawl")
    assert store.retry_failed_jobs(None, after=0, limit=10)[1] == [("a", "email")]


def test_of_several_failed_jobs_with_one_key_the_first_gets_it(store: Store) -> None:
    fail(store, *"abc", key="k")
    assert store.retry_failed_jobs(None, after=0, limit=10) == (3, [("a", "email")], None)
    [verdict] = store.insert_jobs([new_job("d", key="k")])
    assert verdict.id == "a"


def test_job_that_still_holds_its_own_key_is_retried_and_keeps_it(store: Store, clock: MovableClock) -> None:
    fail(store, "a", key="k", key_for=60)
    clock.advance(30)
    assert store.retry_failed_jobs(None, after=0, limit=10)[1] == [("a", "email")]
    clock.advance(60)
    [verdict] = store.insert_jobs([new_job("b", key="k")])
    assert (verdict.id, verdict.inserted) == ("a", False), "its key is held for as long as it waits"


def test_expired_key_of_another_job_is_freed(store: Store, clock: MovableClock) -> None:
    fail(store, "a", key="k")
    finished(store, "b", key="k", key_for=60)
    clock.advance(59)
    assert store.retry_failed_jobs(None, after=0, limit=10)[1] == []
    clock.advance(1)
    assert store.retry_failed_jobs(None, after=0, limit=10)[1] == [("a", "email")]
    [verdict] = store.insert_jobs([new_job("c", key="k")])
    assert verdict.id == "a"


def test_late_outcome_of_the_old_attempt_is_refused(store: Store) -> None:
    late = run(store, "a", max_attempts=1)
    finish(store, late, DEAD)
    store.retry_failed_jobs(None, after=0, limit=10)
    again = claim_one(store)
    assert again.version > late.version
    assert finish(store, late) is None


def test_bite_that_is_rolled_back_changes_nothing(store: Store) -> None:
    fail(store, *"ab")
    before = everything(store)
    with rolled_back(store):
        store.retry_failed_jobs(None, after=0, limit=10)
    assert everything(store) == before


def test_empty_queue_has_nothing_to_retry(store: Store) -> None:
    assert store.retry_failed_jobs(None, after=0, limit=10) == (0, [], None)
