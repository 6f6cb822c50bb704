"""oldest_waiting: the pending job that has been ready for longest, whatever its type and priority."""

from __future__ import annotations

import random
from typing import Any

import pytest

from holdfast.core.clock import to_datetime
from holdfast.core.lifecycle import Errored, Released
from holdfast.store.protocol import Store
from holdfast.store.records import Waiting
from holdfast.testing import MovableClock
from tests.conformance.steps import BACK_OFF, claim, claim_one, finish, finished, insert, run


def check(store: Store, connection: Any) -> None:
    """It is the one that looking at all rows would find."""
    rows = connection.execute(
        "SELECT id, type, due_at FROM holdfast_jobs WHERE status = 'pending' ORDER BY due_at, seq"
    ).fetchall()
    found = store.oldest_waiting()
    if not rows:
        assert found is None
        return
    id, type, due_at = rows[0]
    assert found == Waiting(id=id, type=type, since=to_datetime(due_at))


def test_empty_queue_has_none(store: Store) -> None:
    assert store.oldest_waiting() is None


def test_only_pending_jobs_wait(store: Store) -> None:
    run(store, "running")
    insert(store, "later", delay=60)
    finished(store, "done", type="crawl")
    assert store.oldest_waiting() is None


def test_first_that_came_is_found(store: Store, clock: MovableClock) -> None:
    came = clock.now
    for id, type in [("a", "email"), ("b", "crawl"), ("c", "email")]:
        insert(store, id, type=type)
        clock.advance(1)
    found = store.oldest_waiting()
    assert found is not None
    assert (found.id, found.type, found.since) == ("a", "email", came)
    claim_one(store, "email")
    found = store.oldest_waiting()
    assert found is not None
    assert found.id == "b"


def test_job_of_low_priority_that_starves_is_found(store: Store, clock: MovableClock) -> None:
    insert(store, "starving", priority=-5)
    for priority in range(4):
        clock.advance(1)
        insert(store, *(f"j{priority}-{n}" for n in range(3)), priority=priority)
    found = store.oldest_waiting()
    assert found is not None
    assert found.id == "starving"


@pytest.mark.parametrize("extreme", [-(2**31), 2**31 - 1])
def test_job_of_an_extreme_priority_is_found(store: Store, extreme: int) -> None:
    insert(store, "a", priority=extreme)
    found = store.oldest_waiting()
    assert found is not None
    assert found.id == "a"


def test_scheduled_job_waits_since_it_was_due(store: Store, clock: MovableClock) -> None:
    insert(store, "a", delay=10)
    clock.advance(10)
    due = clock.now
    clock.advance(5)
    store.promote_jobs(1)
    found = store.oldest_waiting()
    assert found is not None
    assert found.since == due


def test_job_that_was_ready_first_is_found_though_another_came_before_it(
    store: Store, clock: MovableClock, connection: Any
) -> None:
    insert(store, "scheduled long ago", delay=60)
    clock.advance(1)
    insert(store, "waiting all the time")
    clock.advance(60)
    check(store, connection)
    store.promote_jobs(1)
    check(store, connection)
    found = store.oldest_waiting()
    assert found is not None
    assert found.id == "waiting all the time"


@pytest.mark.parametrize("seed", range(4))
def test_oldest_is_that_of_all_rows_with_many_types_and_priorities(
    store: Store, clock: MovableClock, connection: Any, seed: int
) -> None:
    chance = random.Random(seed)
    types = [f"type-{n}" for n in range(6)]
    for n in range(60):
        insert(store, f"j{n}", type=chance.choice(types), priority=chance.randint(-9, 9))
        clock.advance(chance.choice([0, 1]))
    check(store, connection)
    while claims := claim(store, *chance.sample(types, 3), limit=7):
        for claimed in claims:
            finish(store, claimed)
        check(store, connection)


@pytest.mark.parametrize("seed", range(4))
def test_oldest_is_that_of_all_rows_after_delays_retries_and_releases(
    store: Store, clock: MovableClock, connection: Any, seed: int
) -> None:
    chance = random.Random(seed)
    types = ["email", "crawl"]
    for n in range(40):
        insert(
            store,
            f"j{n}",
            type=chance.choice(types),
            priority=chance.choice([0, 0, 1]),
            delay=chance.choice([None, None, 3, 30]),
        )
        clock.advance(1)
    for _ in range(6):
        for claimed in claim(store, *types, limit=8):
            finish(store, claimed, chance.choice([None, Errored("boom"), Released()]))
        clock.advance(BACK_OFF / 2)
        store.promote_jobs(100)
        check(store, connection)
