"""Counts on PostgreSQL: additions that are now and then added up, exact whatever happens at the same time."""

from __future__ import annotations

import itertools
import random
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from holdfast.core.job import FINISHED, Status
from holdfast.core.lifecycle import Completed, Errored, Outcome, Released
from holdfast.errors import JobNotFound, StoreError, WrongState
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore, tallies
from holdfast.testing import MovableClock
from tests import postgres
from tests.conformance.steps import (
    BACK_OFF,
    claim,
    claim_one,
    demand,
    ending,
    finish,
    finished,
    insert,
    new_job,
)

TYPES = ("email", "crawl")
ENDS: list[Outcome] = [Completed(), Errored("boom 1", permanent=True), Errored("no route", permanent=True)]


@pytest.fixture
def store(clock: MovableClock) -> Iterator[PostgresStore]:
    """A queue on which nobody waits for a lock for long: it is an error instead."""
    with postgres.fresh_url() as url:
        impatient = postgres.with_parameters(url, options="-c lock_timeout=2s")
        with closing(open_store(impatient, clock, notify=False)) as store:
            assert isinstance(store, PostgresStore)
            yield store


@pytest.fixture
def connection(store: PostgresStore) -> Iterator[Any]:
    """An application's own connection to the database."""
    with closing(psycopg.connect(postgres.server_url(), autocommit=True)) as connection:
        connection.execute(f"SET search_path TO {store.database.schema}")
        yield connection


@pytest.fixture
def no_fold_by_chance(connection: Any) -> None:
    """One insert in 500 folds by itself: not here, where additions are counted."""
    function = "holdfast_count_inserted"
    [(source,)] = connection.execute("SELECT pg_get_functiondef(%s::regproc)", [function]).fetchall()
    assert "random() < 0.002" in source
    connection.execute(source.replace("random() < 0.002", "false"))


def counted(store: PostgresStore) -> dict[str, dict[Status, int]]:
    """The counts as the rows themselves give them."""
    counts: dict[str, dict[Status, int]] = {}
    for type, status, count in store.database.read(
        "SELECT type, status, count(*) FROM holdfast_jobs GROUP BY type, status"
    ):
        counts.setdefault(type, dict.fromkeys(Status, 0))[Status(status)] = count
    return counts


def grouped(store: PostgresStore) -> dict[tuple[str, str], int]:
    """The error groups as the rows themselves give them."""
    rows = store.database.read(
        "SELECT type, error_group, count(*) FROM holdfast_jobs WHERE status = 'failed' GROUP BY 1, 2"
    )
    return {(type, error): count for type, error, count in rows}


def check(store: PostgresStore) -> None:
    """Every count is that of the rows."""
    assert store.count_jobs() == counted(store)
    assert {(g.type, g.error): g.jobs for g in store.list_error_groups(100)} == grouped(store)


def additions(store: PostgresStore) -> int:
    [(count,)] = store.database.read(
        "SELECT (SELECT count(*) FROM holdfast_tallies) + (SELECT count(*) FROM holdfast_error_tallies)"
    )
    return int(count)


def fail_some(store: PostgresStore, count: int = 10) -> None:
    for number in range(count):
        finished(store, f"job-{number}", ENDS[number % 3])


class Mixture:
    """What one of many does to a queue, at random."""

    def __init__(self, store: PostgresStore, seed: int) -> None:
        self.store = store
        self.name = f"w{seed}"
        self.chance = random.Random(seed)
        self.inserted: Counter[str] = Counter()

    def act(self, number: int) -> None:
        acts = [self.insert, self.insert, self.work, self.work, self.operate, self.prune, self.fold]
        with suppress(JobNotFound, WrongState):  # another was there before
            self.chance.choice(acts)(number)

    def insert(self, number: int) -> None:
        type = self.chance.choice(TYPES)
        count = self.chance.randrange(1, 5)
        delay = self.chance.choice([None, None, 60.0])
        verdicts = self.store.insert_jobs(
            [new_job(f"{self.name}-{number}-{n}", type=type, delay=delay) for n in range(count)]
        )
        self.inserted[type] += sum(verdict.inserted for verdict in verdicts)

    def work(self, number: int) -> None:
        claims = claim(self.store, *TYPES, worker=self.name, limit=self.chance.randrange(1, 6))
        outcomes: list[Outcome] = [*ENDS, Errored("again"), Released()]
        self.store.finish_jobs([ending(claimed, self.chance.choice(outcomes)) for claimed in claims])

    def operate(self, number: int) -> None:
        rows = self.store.database.read("SELECT id FROM holdfast_jobs ORDER BY random() LIMIT 1")
        for (id,) in rows:
            verb = self.chance.choice(["cancel", "retry", "delete"])
            if verb == "cancel":
                self.store.cancel_job(id)
            elif verb == "retry":
                self.store.retry_job(id, None)
            else:
                self.store.delete_job(id)

    def prune(self, number: int) -> None:
        self.store.prune_jobs(finished_before=self.store.now() + 1, statuses=sorted(FINISHED), limit=3)

    def fold(self, number: int) -> None:
        tallies.fold(self.store.database)


@pytest.mark.parametrize("seed", [10, 20])
def test_counts_are_exact_through_any_mixture_by_many_at_once(store: PostgresStore, seed: int) -> None:
    mixtures = [Mixture(store, seed + n) for n in range(4)]
    together = threading.Barrier(len(mixtures))
    problems: list[BaseException] = []

    def act(mixture: Mixture) -> None:
        try:
            together.wait(30)
            for number in range(40):
                mixture.act(number)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=act, args=(mixture,)) for mixture in mixtures]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    check(store)
    inserted = sum((mixture.inserted for mixture in mixtures), Counter())
    assert store.count_enqueued() == inserted
    tallies.fold(store.database)
    check(store)
    assert store.count_enqueued() == inserted


def test_folding_shortens_and_changes_no_count(store: PostgresStore) -> None:
    fail_some(store)
    insert(store, "a", type="crawl")
    for number in itertools.count():  # one insert in 500 folds by itself
        if additions(store) > 30:
            break
        insert(store, f"more-{number}")
    before = store.count_jobs(), store.count_enqueued(), store.list_error_groups(10)
    tallies.fold(store.database)
    assert additions(store) == 2 + 2  # one a type, and one an error
    assert (store.count_jobs(), store.count_enqueued(), store.list_error_groups(10)) == before
    check(store)


def test_errors_of_which_none_is_left_are_forgotten_and_types_are_not(store: PostgresStore) -> None:
    fail_some(store, 3)
    for number in range(3):
        store.delete_job(f"job-{number}")
    tallies.fold(store.database)
    assert additions(store) == 1
    assert (store.count_jobs(), store.count_enqueued()) == ({}, {"email": 3})


def test_looking_for_work_folds_when_the_additions_are_many(
    store: PostgresStore, no_fold_by_chance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tallies, "LONG", 10)
    monkeypatch.setattr(tallies, "_FOLD_EVERY", 0.0)
    monkeypatch.setattr(tallies, "_SHARE", 0)
    for number in range(10):
        insert(store, f"job-{number}")
    insert(store, "one-more")
    store.list_heads()
    assert additions(store) == 11
    insert(store, "two-more")
    store.list_heads()
    assert store.count_jobs()["email"][Status.PENDING] == 12
    assert additions(store) == 1


def test_turns_fold_when_the_additions_are_many(
    store: PostgresStore, no_fold_by_chance: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that always has something to do never looks outside its turns."""
    monkeypatch.setattr(tallies, "LONG", 10)
    for number in range(12):
        insert(store, f"job-{number}")
    with store.transaction():
        with store.finish_and_claim([], "w", [demand()], limit=1, lease_seconds=30):
            pass
        assert additions(store) == 13
    assert additions(store) == 1


def test_looking_folds_nothing_where_there_are_only_many_types(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tallies, "LONG", 10)
    for number in range(15):
        insert(store, f"job-{number}", type=f"type-{number}")
    before = store.database.read("SELECT number FROM holdfast_tallies ORDER BY number")
    store.list_heads()
    tallies.fold(store.database)
    assert store.database.read("SELECT number FROM holdfast_tallies ORDER BY number") == before


@pytest.mark.parametrize("isolation", ["read committed", "repeatable read"])
def test_inserts_fold_now_and_then_where_there_is_no_worker(
    store: PostgresStore, connection: Any, isolation: str
) -> None:
    """Whoever makes them; it is left to chance, which is on the side of so many."""
    connection.execute(f"SET default_transaction_isolation = '{isolation}'")
    connection.execute(
        """DO $$ BEGIN FOR i IN 1..8000 LOOP
        INSERT INTO holdfast_jobs (id, type, status, due_at, created_at, updated_at, token, payload)
        VALUES ('x' || i, 'email', 'pending', 1, 1, 1, 't', '{}'); END LOOP; END $$"""
    )
    assert (additions(store) < 7900) == (isolation == "read committed")
    check(store)


# What triggers have missed.


def test_jobs_that_the_counts_miss_are_found_and_counted(store: PostgresStore, connection: Any) -> None:
    insert(store, "seen", "gone", type="crawl")
    connection.execute("SET session_replication_role = replica")  # as a bulk load may
    connection.execute("UPDATE holdfast_jobs SET type = 'mail' WHERE id = 'seen'")
    connection.execute("DELETE FROM holdfast_jobs WHERE id = 'gone'")
    assert [finding.level for finding in store.examine() if finding.check == "counts"] == ["warning"]
    assert [head.type for head in store.list_heads()] == ["mail"]
    assert {type for type, counts in store.count_jobs().items() if counts[Status.PENDING]} == {"mail"}
    assert [found.id for found in claim(store, "mail")] == ["seen"]
    assert "counts" not in {finding.check for finding in store.examine()}
    check(store)


def test_two_who_recount_at_once_add_the_difference_once(store: PostgresStore, connection: Any) -> None:
    connection.execute("SET session_replication_role = replica")
    insert(store, "a")
    connection.execute("UPDATE holdfast_jobs SET type = 'mail'")
    with store.transaction(), ThreadPoolExecutor(1) as pool:
        tallies.recount(store.database, ["mail"])
        pool.submit(tallies.recount, store.database, ["mail"]).result(60)
    assert store.count_jobs()["mail"][Status.PENDING] == 1


def test_counts_are_looked_at_once_in_a_while(store: PostgresStore, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[object] = []

    def look(database: object) -> list[str]:
        looks.append(database)
        return []

    monkeypatch.setattr(tallies, "miscounted", look)
    for _ in range(5):
        store.list_heads()
    assert len(looks) == 1


def test_fold_that_is_killed_changes_no_count(store: PostgresStore, connection: Any) -> None:
    fail_some(store)
    before = store.count_jobs(), store.count_enqueued(), store.list_error_groups(10), additions(store)
    with suppress(StoreError), store.database.transaction() as session:
        tallies.fold(store.database)
        connection.execute("SELECT pg_terminate_backend(%s, 10000)", [session.connection.info.backend_pid])
    assert session.connection.broken
    after = store.count_jobs(), store.count_enqueued(), store.list_error_groups(10), additions(store)
    assert after == before


def test_two_who_fold_at_once_leave_each_other_alone(store: PostgresStore) -> None:
    """The second comes before the first has committed: it finds nothing to add up, and waits for nobody."""
    fail_some(store)
    with store.transaction():
        tallies.fold(store.database)
        in_thread(lambda: tallies.fold(store.database))
        in_thread(lambda: check(store))
    check(store)


def test_what_is_added_while_a_fold_is_under_way_is_counted_once(store: PostgresStore) -> None:
    fail_some(store)
    with store.transaction():
        tallies.fold(store.database)
        in_thread(lambda: insert(store, "meanwhile"))
    check(store)
    with store.transaction():
        insert(store, "before")
        in_thread(lambda: tallies.fold(store.database))
    check(store)


def in_thread(action: Any) -> None:
    """Do it in another thread, on another connection, to the end."""
    problems: list[BaseException] = []

    def act() -> None:
        try:
            action()
        except BaseException as problem:
            problems.append(problem)

    thread = threading.Thread(target=act)
    thread.start()
    thread.join(60)
    assert problems == []


# An application's transaction


def test_open_transaction_with_jobs_keeps_nobody_waiting(
    store: PostgresStore, connection: Any, clock: MovableClock
) -> None:
    """It may stay open for minutes, and jobs of the same type come and go."""
    insert(store, "waiting")
    connection.execute("BEGIN")
    store.insert_jobs_with(connection, [new_job("a", key="its own"), new_job("b", delay=1)])
    insert(store, "c", key="another")
    insert(store, "d", delay=1)
    for _ in range(2):
        finish(store, claim_one(store), Errored("boom"))
    clock.advance(BACK_OFF)
    assert len(store.promote_jobs(10)) == 3
    store.cancel_job("d")
    assert store.prune_jobs(finished_before=store.now() + 1, statuses=sorted(FINISHED), limit=10) == ["d"]
    tallies.fold(store.database)
    check(store)
    connection.execute("COMMIT")
    check(store)
    assert store.count_enqueued() == {"email": 5}


def test_jobs_of_a_transaction_that_is_rolled_back_were_never_counted(
    store: PostgresStore, connection: Any
) -> None:
    insert(store, "a")
    connection.execute("BEGIN")
    store.insert_jobs_with(connection, [new_job("b")])
    connection.execute("ROLLBACK")
    check(store)
    assert store.count_enqueued() == {"email": 1}
