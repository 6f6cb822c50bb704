"""count_jobs: always what counting the rows would give, whoever wrote them; count_enqueued: all that came."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored, Released
from holdfast.store import names
from holdfast.store.postgres import tallies
from holdfast.store.protocol import Store
from holdfast.store.records import JobFilter, TypeRecord, WorkerRecord
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
    new_job,
    reap,
    rolled_back,
    run,
)


def counted(connection: Any) -> dict[str, dict[Status, int]]:
    """The counts as the rows themselves give them."""
    rows = connection.execute("SELECT type, status, count(*) FROM holdfast_jobs GROUP BY type, status")
    counts: dict[str, dict[Status, int]] = {}
    for type, status, count in rows.fetchall():
        counts.setdefault(type, dict.fromkeys(Status, 0))[Status(status)] = count
    return counts


def test_counts_are_by_type_and_state(store: Store) -> None:
    insert(store, "a", "b", "c", type="email")
    insert(store, "d", type="email", delay=60)
    finish(store, claim_one(store))
    insert(store, "e", type="crawl")
    zero = dict.fromkeys(Status, 0)
    assert store.count_jobs() == {
        "email": {**zero, Status.PENDING: 2, Status.SCHEDULED: 1, Status.COMPLETED: 1},
        "crawl": {**zero, Status.PENDING: 1},
    }


def test_empty_queue_counts_nothing(store: Store) -> None:
    assert store.count_jobs() == {}


def test_type_without_jobs_is_not_counted(store: Store) -> None:
    finished(store, "a")
    store.delete_job("a")
    assert store.count_jobs() == {}


def test_counts_follow_every_verb(store: Store, connection: Any, clock: MovableClock) -> None:
    def check() -> None:
        assert store.count_jobs() == counted(connection)

    insert(store, *OUTCOMES, type="email")
    insert(store, "crawl-1", "crawl-2", type="crawl")
    insert(store, "later", "never", type="crawl", delay=5)
    check()
    claims = claim(store, "email", "crawl")
    check()
    store.finish_jobs([ending(c, OUTCOMES.get(c.id, Errored("boom"))) for c in claims])
    check()
    store.cancel_job("never")
    check()
    clock.advance(BACK_OFF)
    store.promote_jobs(2)
    check()
    store.promote_jobs(100)
    check()
    claims = claim(store, "email", "crawl", limit=3)
    check()
    finish(store, claims[0], Released())
    check()
    clock.advance(LEASE)
    reap(store)
    check()
    store.retry_job("never", None)
    store.retry_job("failed for good", None)
    check()
    store.delete_job("completed")
    check()
    clock.advance(1)
    store.prune_jobs(finished_before=store.now(), statuses=tuple(Status), limit=100)
    check()


def test_refused_insert_is_not_counted(store: Store, connection: Any) -> None:
    insert(store, "a", key="k")
    store.insert_jobs([new_job("a"), new_job("b", key="k"), new_job("c")])
    assert store.count_jobs() == counted(connection)


def test_refused_finish_is_not_counted(store: Store, connection: Any) -> None:
    insert(store, "a", "b")
    claims = claim(store)
    finish(store, claims[0])
    store.finish_jobs([ending(claimed, Errored("boom")) for claimed in claims])
    assert store.count_jobs() == counted(connection)


def test_what_is_rolled_back_is_not_counted(store: Store, connection: Any) -> None:
    insert(store, "a")
    with rolled_back(store):
        insert(store, "b", "c")
        finish(store, claim_one(store))
    assert store.count_jobs() == counted(connection)


def test_children_are_counted(store: Store, connection: Any) -> None:
    claimed = run(store, "a")
    finish(store, claimed, children=(new_job("b", type="crawl"), new_job("c")))
    assert store.count_jobs() == counted(connection)


# Ever enqueued


def test_every_job_that_came_is_counted_for_ever(store: Store, clock: MovableClock) -> None:
    """Whatever becomes of it: it is never counted again, and never forgotten."""
    insert(store, *OUTCOMES, type="email")
    insert(store, "later", "never", type="crawl", delay=5)
    came = {"crawl": 2, "email": len(OUTCOMES)}
    assert store.count_enqueued() == came
    store.finish_jobs([ending(c, OUTCOMES[c.id]) for c in claim(store)])
    store.cancel_job("never")
    clock.advance(BACK_OFF)
    store.promote_jobs(100)
    finish(store, claim_one(store), Released())
    claim_one(store)
    clock.advance(LEASE)
    reap(store)
    store.retry_job("never", None)
    store.retry_failed_jobs(None, after=0, limit=100)
    assert store.count_enqueued() == came
    store.delete_job("completed")
    assert store.count_enqueued() == came
    for claimed in claim(store, "email", "crawl"):
        finish(store, claimed)
    clock.advance(1)
    while store.prune_jobs(finished_before=store.now(), statuses=tuple(Status), limit=2):
        assert store.count_enqueued() == came
    for left in store.list_jobs(JobFilter()):
        store.cancel_job(left.id)
        store.delete_job(left.id)
    assert store.count_jobs() == {}
    assert store.count_enqueued() == came
    insert(store, "completed", type="email")
    assert store.count_enqueued() == {**came, "email": len(OUTCOMES) + 1}


def test_queue_that_nothing_came_to_has_counted_nothing(store: Store) -> None:
    assert store.count_enqueued() == {}


def test_only_what_was_inserted_counts_as_enqueued(store: Store) -> None:
    insert(store, "a", key="k")
    store.insert_jobs([new_job("a"), new_job("b", key="k"), new_job("c", max_depth=1), new_job("d")])
    store.insert_jobs([new_job("e"), new_job("a")], atomic=True)
    with rolled_back(store):
        insert(store, "f")
    assert store.count_enqueued() == {"email": 2}


def test_children_and_jobs_of_an_application_count_as_enqueued(store: Store, connection: Any) -> None:
    finish(store, run(store, "a"), children=(new_job("b", type="crawl"), new_job("c"), new_job("a")))
    connection.execute("BEGIN")
    store.insert_jobs_with(connection, [new_job("d")])
    assert store.count_enqueued() == {"crawl": 1, "email": 2}
    connection.execute("COMMIT")
    assert store.count_enqueued() == {"crawl": 1, "email": 3}


def test_count_of_what_came_is_kept_when_the_store_is_opened_anew(store: Store, other: Store) -> None:
    finished(store, "a")
    store.delete_job("a")
    store.close()
    assert other.count_enqueued() == {"email": 1}


def enqueued(store: Store) -> dict[str, int]:
    return store.count_enqueued()


def test_types_without_jobs_are_forgotten_and_what_there_was_is_not(store: Store) -> None:
    for type in ("mail:a", "mail:b", "mail", "crawl", "crawl:x", "known"):
        finished(store, type, type=type)
        store.delete_job(type)
    insert(store, "kept", type="mail:b")
    worker = WorkerRecord(id="w", pid=1, host="h", state="running", concurrency=1, types=("known",))
    store.register_worker(worker, [TypeRecord(type="known", executor="threads", schema={})])
    total = sum(enqueued(store).values())
    for _ in range(3):
        store.forget_names()
        assert sum(enqueued(store).values()) == total
        assert store.count_jobs() == {
            "mail:b": {**dict.fromkeys(Status, 0), Status.PENDING: 1},
        }
    assert enqueued(store) == {"": 4, "known": 1, "mail:b": 2}


def test_types_are_forgotten_in_portions(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(names, "AT_ONCE", 5)
    monkeypatch.setattr(tallies, "FORGOTTEN_AT_ONCE", 5)
    for number in range(12):
        type = f"mail:{number}" if number % 2 else f"type-{number}"
        finished(store, type, type=type)
        store.delete_job(type)
    lanes, others = [6], [6]
    while store.forget_names():
        left = enqueued(store).keys() - {"", "mail"}
        lanes.append(sum(":" in type for type in left))
        others.append(len(left) - lanes[-1])
        assert sum(enqueued(store).values()) == 12
    assert enqueued(store) == {"": 12}
    assert lanes[:2] == [6, 1]
    assert all(before - after <= 5 for before, after in [*pairwise(lanes), *pairwise(others)])
    assert len(others) > 2


def test_type_that_was_forgotten_counts_again(store: Store) -> None:
    finished(store, "a", type="mail:a")
    store.delete_job("a")
    store.forget_names()
    insert(store, "b", "c", type="mail:a")
    assert store.count_jobs()["mail:a"][Status.PENDING] == 2
    assert sum(enqueued(store).values()) == 3


def test_full_buckets_of_long_ago_are_forgotten(store: Store, clock: MovableClock, connection: Any) -> None:
    for type in ("old", "new"):
        insert(store, f"{type}-1", f"{type}-2", type=type)
        store.set_setting("rate_limit", type, 1)
    claim(store, "old", limit=1)
    clock.advance(days=29)
    claim(store, "new", limit=1)
    rows = "SELECT count(*) FROM holdfast_limits WHERE refilled_at >= 0"
    store.forget_names()
    assert connection.execute(rows).fetchone()[0] == 2
    clock.advance(days=2)
    store.forget_names()
    assert connection.execute(rows).fetchone()[0] == 1
    assert len(claim(store, "old")) == 1
