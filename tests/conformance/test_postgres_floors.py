"""Floors of lines: where a claim begins to read. None hides a job, or lets others pass it.

Here floors rise at every opportunity, and no line is read from its front unless a test says so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from holdfast.core.clock import SECOND, system_clock
from holdfast.core.lifecycle import Errored, Released
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore, floors, promote
from holdfast.store.records import Claim
from holdfast.testing import MovableClock
from tests import postgres
from tests.conformance.steps import (
    claim,
    claim_one,
    ending,
    finish,
    insert,
    reap,
    rolled_back,
    settings_of,
)
from tests.support import wait_until

NEVER = 1e9


@pytest.fixture(autouse=True)
def _eager(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floors, "RISE_EVERY", 0.0)
    monkeypatch.setattr(floors, "CHEAP_HEADS", -1.0)
    monkeypatch.setattr(floors, "CHEAP_CLAIM", -1.0)
    monkeypatch.setattr(floors, "SLOW_READS", 1)
    monkeypatch.setattr(floors, "LONGEST_DOUBT", NEVER)
    monkeypatch.setattr(floors, "WHOLE_EVERY", NEVER)


@pytest.fixture
def address() -> Iterator[str]:
    with postgres.fresh_url() as url:
        yield url


@pytest.fixture
def store(address: str) -> Iterator[PostgresStore]:
    with closing(opened(address)) as store:
        yield store


@pytest.fixture
def other(address: str, store: PostgresStore) -> Iterator[PostgresStore]:
    with closing(opened(address)) as other:
        yield other


@pytest.fixture
def application(store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's connection, whose transaction begins with its first statement."""
    with psycopg.connect(postgres.server_url()) as connection:
        connection.execute(f"SET search_path TO {store.database.schema}")
        connection.commit()
        yield connection
        connection.rollback()


def opened(address: str) -> PostgresStore:
    store = open_store(address, system_clock)
    assert isinstance(store, PostgresStore)
    return store


def numbered(first: int, last: int) -> list[str]:
    return [f"job-{n}" for n in range(first, last + 1)]


def known(store: PostgresStore, priority: int = 0, type: str = "email") -> int:
    """The floor of a line."""
    return store._claiming.floors._floors.get((type, priority), 0)


def claimed(store: PostgresStore, limit: int = 1, *types: str, **options: Any) -> list[str]:
    return [each.id for each in claim(store, *types, limit=limit, **options)]


def raised(store: PostgresStore, *ids: str, **options: Any) -> list[Claim]:
    """Insert and claim jobs, until the floor of their line is above them."""
    insert(store, *ids, **options)
    type, priority = options.get("type", "email"), options.get("priority", 0)
    claims = claim(store, type, limit=len(ids))
    # Other tests on this server may have transactions open at this moment.
    wait_until(lambda: [store.list_heads(), known(store, priority, type) > claims[-1].seq][1])
    return claims


def look_whole(store: PostgresStore) -> None:
    """What time does: lines are read from their front once more."""
    store._claiming.floors._whole_at = [0.0, 0.0]


# What comes back.


def release(store: PostgresStore, held: Claim) -> None:
    finish(store, held, Released())


def fail_and_promote(store: PostgresStore, held: Claim) -> None:
    store.finish_jobs([ending(held, Errored("boom"))])
    sql = "UPDATE holdfast_jobs SET due_at = 0 WHERE id = $1"
    with store.database.transaction() as session:
        session.rows(sql, [held.id])
    assert store.promote_jobs(10) == [(held.id, held.type)]


def lose(store: PostgresStore, held: Claim) -> None:
    with store.database.transaction() as session:
        session.rows("UPDATE holdfast_jobs SET lease_expires_at = 0 WHERE id = $1", [held.id])
    assert reap(store, has_started=False) == {held.id: "pending"}


def retry(store: PostgresStore, held: Claim) -> None:
    finish(store, held, Errored("boom", permanent=True))
    store.retry_job(held.id, None)


def retry_all(store: PostgresStore, held: Claim) -> None:
    finish(store, held, Errored("boom", permanent=True))
    _, retried, _ = store.retry_failed_jobs(None, after=0, limit=10)
    assert retried == [(held.id, held.type)]


RETURNS = [release, fail_and_promote, lose, retry, retry_all]


@pytest.mark.parametrize("come_back", RETURNS)
@pytest.mark.parametrize("limits", [{}, {"max_running": 50}], ids=["plain", "limited"])
def test_job_that_comes_back_through_another_process_is_claimed_first(
    store: PostgresStore,
    other: PostgresStore,
    come_back: Callable[[PostgresStore, Claim], None],
    limits: dict[str, Any],
) -> None:
    _, second, third, *_ = raised(store, *numbered(1, 5))
    insert(store, "later")
    come_back(other, third)
    come_back(other, second)
    head = next(head for head in store.list_heads() if head.type == "email")
    assert head.seq == second.seq
    settings = settings_of(store, **limits) if limits else None
    assert claimed(store, 2, settings=settings) == ["job-2", "job-3"]
    assert claimed(store, 9, settings=settings) == ["later"]


def test_job_cancelled_and_retried_before_it_ever_ran_is_claimed_first(
    store: PostgresStore, other: PostgresStore
) -> None:
    insert(store, "early")
    store.cancel_job("early")
    raised(store, *numbered(1, 5))
    insert(store, "later")
    other.retry_job("early", None)
    assert claimed(store, 2) == ["early", "later"]


# What is committed late.


INSERT = """
INSERT INTO holdfast_jobs (id, type, status, due_at, created_at, updated_at, token, payload)
VALUES ('slow', 'email', 'pending', 1, 1, 1, 't', '{}')
"""


def test_job_of_a_transaction_that_was_slow_is_claimed_in_its_place(
    store: PostgresStore, application: psycopg.Connection[Any]
) -> None:
    application.execute(INSERT)
    insert(store, *numbered(1, 20))
    for _ in range(5):
        claim(store, limit=2)
        store.list_heads()
    application.commit()
    assert claimed(store, 2) == ["slow", "job-11"]
    wait_until(lambda: [store.list_heads(), known(store) > 0][1])


def test_job_of_a_very_slow_transaction_is_found_by_the_next_whole_look(
    store: PostgresStore, application: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "LONGEST_DOUBT", 0.0)
    application.execute(INSERT)
    raised(store, *numbered(1, 20))
    insert(store, "later")
    application.commit()
    look_whole(store)
    assert [head.seq for head in store.list_heads()] == [1]
    assert claimed(store, 2) == ["slow", "later"]


def test_claim_that_nobody_looks_before_reads_lines_from_their_front_by_itself(
    store: PostgresStore, application: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "LONGEST_DOUBT", 0.0)
    application.execute(INSERT)
    raised(store, *numbered(1, 20))
    application.execute(INSERT.replace("'slow'", "'slow too'"))
    application.commit()
    look_whole(store)
    assert claimed(store, 1) == ["slow"]
    assert claimed(store, 1) == ["slow too"]  # the floor was lowered to what was found


def test_lines_are_read_from_their_front_once_a_second_and_for_no_more_than_a_share_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(floors, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(floors, "WHOLE_EVERY", 1.0)
    found = floors.Floors()
    for took, pause in ((0.001, 1.0), (0.5, 10.0)):
        assert found.reads_whole(heads=True)
        found.took(took, heads=True)
        now += pause - 0.01
        assert not found.reads_whole(heads=True)
        now += 0.02


# What is undone.


def test_claim_that_was_rolled_back_leaves_its_jobs_to_the_next(store: PostgresStore) -> None:
    insert(store, *numbered(1, 20))
    for _ in range(3):
        with rolled_back(store):
            for _ in range(3):
                assert claimed(store, 2)
                store.list_heads()
    assert claimed(store, 2) == ["job-1", "job-2"]


def test_jobs_locked_by_a_claim_that_is_rolled_back_are_not_passed_over(
    store: PostgresStore, application: psycopg.Connection[Any]
) -> None:
    insert(store, *numbered(1, 20))
    application.execute("UPDATE holdfast_jobs SET status = 'processing' WHERE id IN ('job-1', 'job-2')")
    for n in (3, 5, 7):
        assert claimed(store, 2) == numbered(n, n + 1)
        store.list_heads()
    application.rollback()
    assert claimed(store, 2) == ["job-1", "job-2"]


# The order.


def test_priorities_that_are_new_come_before_and_between_and_after_those_known(store: PostgresStore) -> None:
    for priority in (5, 0, -5):
        raised(store, *(f"old-{priority}-{n}" for n in range(3)), priority=priority)
    for priority in (-9, 9, 0, 3, -5, 5, -2):
        insert(store, f"new-{priority}", priority=priority)
    assert claimed(store, 3) == ["new-9", "new-5", "new-3"]
    assert claimed(store, 9) == ["new-0", "new--2", "new--5", "new--9"]


def test_several_types_are_claimed_in_one_order_from_their_floors(store: PostgresStore) -> None:
    for type in ("email", "crawl"):
        raised(store, *(f"{type}-{n}" for n in range(3)), type=type)
    for n in range(6):
        insert(store, f"new-{n}", type=("email", "crawl", "fresh")[n % 3])
    assert claimed(store, 4, "email", "crawl", "fresh", "none") == [f"new-{n}" for n in range(4)]
    assert {head.type for head in store.list_heads()} == {"crawl", "fresh"}
    limits = settings_of(store, rate_limit={"": 100.0})
    assert claimed(store, 4, "email", "crawl", "fresh", settings=limits) == ["new-4", "new-5"]


def test_more_lines_than_are_remembered_are_claimed_all_the_same(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(floors, "MOST_LINES", 3)
    monkeypatch.setattr(floors, "MOST_OF_TYPE", 2)
    for n in range(40):
        insert(store, f"job-{n}", type=f"type-{n % 5}", priority=n % 4)
    types = [f"type-{n}" for n in range(5)]
    order = sorted(range(40), key=lambda n: (-(n % 4), n))
    for place in range(0, 40, 4):
        expected = [f"job-{n}" for n in order[place : place + 4]]
        assert claimed(store, 4, *types) == expected
        store.list_heads()


# What is scheduled.


def test_job_that_is_due_long_before_those_promoted_last_is_found_by_the_next_whole_look(
    store: PostgresStore,
) -> None:
    insert(store, "due", delay=0.001)
    wait_until(lambda: store.promote_jobs(10))
    assert store.next_due_at() is None
    late = INSERT.replace("'pending'", "'scheduled'")
    with store.database.transaction() as session:
        session.rows(late)
    assert store.next_due_at() is None
    store._due._whole_at = 0.0
    assert store.next_due_at() == 1
    assert store.promote_jobs(10) == [("slow", "email")]


def test_job_scheduled_by_a_clock_that_was_set_back_is_promoted(address: str) -> None:
    clock = MovableClock(datetime(2030, 1, 1, tzinfo=UTC))
    with closing(open_store(address, clock)) as store:
        insert(store, "before", delay=1)
        clock.advance(10)
        assert store.promote_jobs(10)
        for _ in range(2):
            assert store.next_due_at() is None
        clock.advance(-3600)
        insert(store, "after", delay=1)
        assert store.next_due_at() == clock() + SECOND
        clock.advance(1)
        assert store.promote_jobs(10) == [("after", "email")]


# The cost.


def pages_read(store: PostgresStore, work: Callable[[], object]) -> int:
    """Pages that the server has looked at for this."""
    with psycopg.connect(postgres.server_url(), autocommit=True) as connection:

        def count() -> int:
            connection.execute("SELECT pg_stat_clear_snapshot()")
            return int(
                connection.execute(
                    "SELECT sum(heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read)"
                    " FROM pg_statio_user_tables WHERE relid = %s::regclass",
                    [f"{store.database.schema}.holdfast_jobs"],
                ).fetchall()[0][0]
            )

        store.database.read("SELECT pg_stat_force_next_flush()")
        before = count()
        work()
        store.database.read("SELECT pg_stat_force_next_flush()")
        return count() - before


def test_old_transaction_elsewhere_makes_claims_and_looks_no_dearer(
    store: PostgresStore, application: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(promote, "SLACK", 0)
    application.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
    application.execute("SELECT count(*) FROM pg_class")
    for first in range(1, 4000, 1000):
        insert(store, *numbered(first, first + 999))
        claims = claim(store, limit=1000)
        store.finish_jobs([ending(each, Released()) for each in claims[:5]])
        store.finish_jobs([ending(each, Errored("boom", permanent=True)) for each in claims[5:]])
        claim(store, limit=5)
    insert(store, *(f"later-{n}" for n in range(1000)), delay=0.001)
    wait_until(lambda: sum(len(store.promote_jobs(1000)) for _ in range(2)) or store.next_due_at() is None)
    claims = claim(store, limit=1000)
    store.finish_jobs([ending(each, Errored("boom", permanent=True)) for each in claims])
    raised(store, "one more")
    insert(store, "last")

    def work() -> None:
        store.list_heads()
        assert store.next_due_at() is None
        assert store.promote_jobs(10) == []
        store.list_cancelled("worker")
        assert claim_one(store).id == "last"

    assert pages_read(store, work) < 700


def test_floors_are_not_used_while_lines_are_read_quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    known = floors.Floors()
    slow = floors.CHEAP_HEADS + 1
    for seconds in (slow, slow, 0.0, slow, slow):
        known.took(seconds, heads=True)
        assert known.reads_whole()
    known.took(slow, heads=True)
    known.took(0.0)
    assert not known.reads_whole(heads=True)
    assert not known.reads_whole()
