"""A process that is lost or frozen in a transaction on PostgreSQL: what it holds up, and for how long."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from typing import Any, Self

import psycopg
import pytest

from holdfast.core.clock import system_clock
from holdfast.core.job import Status
from holdfast.core.lifecycle import Completed
from holdfast.errors import StoreBusy, StoreUnavailable
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore, bounds, limit_locks
from holdfast.store.postgres import enqueue as postgres_enqueue
from holdfast.store.postgres.errors import ConnectionLost
from holdfast.store.records import Claimed, Demand
from tests import postgres
from tests.conformance.steps import (
    LEASE,
    claim,
    claim_one,
    demand,
    ending,
    finish,
    insert,
    job,
    new_job,
    run,
    settings_of,
)
from tests.support import wait_until

IDLE = 1.0


@pytest.fixture
def address() -> Iterator[str]:
    with postgres.fresh_url() as url:
        yield url


@pytest.fixture
def store(address: str) -> Iterator[PostgresStore]:
    with opened(address) as store:
        yield store


@pytest.fixture
def other(address: str, store: PostgresStore) -> Iterator[PostgresStore]:
    """Another process."""
    with opened(address) as other:
        yield other


@contextmanager
def opened(address: str) -> Iterator[PostgresStore]:
    with closing(open_store(address, system_clock)) as store:
        assert isinstance(store, PostgresStore)
        yield store


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch, store: PostgresStore, other: PostgresStore) -> None:
    """The server ends what is idle sooner."""
    for each in (store, other):
        monkeypatch.setattr(each.database, "_idle", IDLE)


class Frozen:
    """A thread that stops in the middle of a transaction, and goes on when it is let."""

    def __init__(self, store: PostgresStore, action: Callable[[], object]) -> None:
        self._store = store
        self._action = action
        self._is_in = threading.Event()
        self._goes_on = threading.Event()
        self._pool = ThreadPoolExecutor(1)
        self._future = self._pool.submit(self._run)

    def _run(self) -> None:
        with self._store.transaction():
            self._action()
            self._is_in.set()
            self._goes_on.wait(30)

    def __enter__(self) -> Self:
        wait_until(lambda: self._is_in.is_set() or self._future.done(), 30)
        assert self._is_in.is_set(), self._future.exception()
        return self

    def thaw(self) -> BaseException | None:
        """What becomes of the transaction."""
        self._goes_on.set()
        return self._future.exception(10)

    def __exit__(self, *exception: object) -> None:
        self._goes_on.set()
        self._pool.shutdown()


def settings(store: PostgresStore) -> dict[str, str]:
    rows = store.database.read(
        "SELECT name, setting FROM pg_settings WHERE name IN"
        " ('idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout', 'transaction_timeout')"
    )
    return dict(rows)


# The bounds.


@pytest.mark.parametrize("may_fail", [True, False])
def test_every_transaction_is_bounded_and_leaves_nothing_behind(store: PostgresStore, may_fail: bool) -> None:
    before = settings(store)
    expected = {
        "idle_in_transaction_session_timeout": "1500",
        "lock_timeout": "5000",
        "statement_timeout": "60000",
        "transaction_timeout": "120000",
    }
    for _ in range(7):  # more often than it takes to prepare a statement
        with store.database.transaction(may_fail=may_fail):
            assert settings(store) == {name: expected[name] for name in before}
    with store.database.snapshot():
        assert "0" not in settings(store).values()
    # What is left are the bounds of a statement that is a transaction by itself.
    alone = {"lock_timeout": "5000", "statement_timeout": "60000"}
    assert settings(store) == before == dict.fromkeys(before, "0") | alone


def test_bounds_that_the_role_has_for_a_single_statement_are_left_to_it(address: str) -> None:
    options = "-clock_timeout=7s -cstatement_timeout=8s"
    with opened(postgres.with_parameters(address, options=options)) as store:
        found = settings(store)
    assert (found["lock_timeout"], found["statement_timeout"]) == ("7000", "8000")


def test_server_that_knows_no_bound_for_a_whole_transaction_is_not_asked_for_one() -> None:
    assert "transaction_timeout" in bounds.SHORT.settings(whole=True)
    assert "transaction_timeout" not in bounds.SHORT.settings(whole=False)


@pytest.mark.usefixtures("short")
@pytest.mark.parametrize("is_pipelined", [True, False])
def test_transaction_that_is_left_alone_is_ended_by_the_server(
    store: PostgresStore, other: PostgresStore, is_pipelined: bool
) -> None:
    insert(store, "a")

    def take() -> None:
        if is_pipelined:
            claim_one(store)
        else:
            assert store.database.session is not None
            store.database.session.rows("SELECT 1 FROM holdfast_jobs FOR UPDATE")

    with Frozen(store, take) as frozen:
        assert claim(other) == []
        wait_until(lambda: [found.id for found in claim(other)] == ["a"], 30)
        assert isinstance(frozen.thaw(), ConnectionLost)
    assert job(store, "a").attempts == 1


@pytest.mark.usefixtures("short")
def test_worker_that_is_frozen_while_its_statements_are_under_way_is_ended_by_the_server(
    store: PostgresStore, other: PostgresStore
) -> None:
    first = run(store, "first", "frozen")
    insert(store, "second")
    settings = settings_of(store)
    free = "SELECT 1 FROM holdfast_jobs WHERE id = 'second' FOR UPDATE SKIP LOCKED"
    under_way, thawed = threading.Event(), threading.Event()

    def freeze() -> None:
        under_way.set()
        thawed.wait(30)

    def turn() -> None:
        with store.finish_and_claim(
            [ending(first, Completed())], "frozen", [demand()], settings, limit=1, lease_seconds=LEASE
        ):
            freeze()

    with ThreadPoolExecutor(1) as pool:
        turning = pool.submit(turn)
        try:
            assert under_way.wait(60)
            wait_until(lambda: not other.database.read(free), 30)
            wait_until(lambda: [found.id for found in claim(other)] == ["second"], 30)
        finally:
            thawed.set()
        assert isinstance(turning.exception(10), ConnectionLost)
    assert finish(store, first) is Status.COMPLETED


def test_process_that_is_too_slow_for_the_server_gets_more_time(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.database, "_idle", 0.05)

    def works_slowly(seconds: float = 0.12) -> bool:
        try:
            with store.transaction() as session:
                session.rows("SELECT 1")
                time.sleep(seconds)
        except ConnectionLost:
            return False
        return True

    assert not works_slowly(1.0)  # time for a busy server to end it
    wait_until(works_slowly, message="each time it gets twice as much")


# What others have to wait for.


def take_limited(store: PostgresStore, *demands: Demand, worker: str = "w", limit: int = 9) -> Claimed:
    limits = settings_of(store, rate_limit={"limited": 100.0, "limited too": 100.0})
    return store.claim_jobs(worker, demands, limits, limit=limit, lease_seconds=LEASE)


def test_limit_that_somebody_does_not_let_go_is_passed_over(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store.database, "_idle", 60)  # it is not ended while we look
    monkeypatch.setattr(limit_locks, "_STUCK_FOR", 60)
    insert(store, "a", type="limited")
    insert(store, *(f"plain-{n}" for n in range(20)), type="plain")
    demands = [demand("limited"), demand("limited too"), demand("plain", limit=1)]

    def take() -> list[str]:
        return [c.id for c in take_limited(other, *demands).claims]

    insert(store, "earlier", "b", type="limited too")
    assert take_limited(store, demand("limited too"), limit=1).claims
    with Frozen(store, lambda: take_limited(store, demand("limited"), worker="frozen", limit=1)):
        assert sorted(take()) == ["b", "plain-0"]  # which waits once
        monkeypatch.setattr(limit_locks, "_LIMIT_PATIENCE", 30)
        began = time.monotonic()
        assert [take() for _ in range(3)] == [["plain-1"], ["plain-2"], ["plain-3"]]
        assert time.monotonic() - began < 30
        found = take_limited(other, *demands)
        assert found.wait is not None
        assert found.wait <= 0.1
    insert(store, "c", type="limited")
    assert "c" in take()


def test_claim_that_waited_in_vain_for_a_limit_reads_the_lines_again(
    store: PostgresStore, other: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They were asked for in the round trip that failed."""
    monkeypatch.setattr(store.database, "_idle", 60)
    monkeypatch.setattr(limit_locks, "_LIMIT_PATIENCE", 0.05)
    insert(store, "a", type="limited")
    types = [f"plain-{n}" for n in range(9)]
    for type in types:
        insert(store, f"job of {type}", type=type)
    demands = [demand("limited"), *map(demand, types)]
    with Frozen(store, lambda: take_limited(store, demand("limited"), worker="frozen", limit=1)):
        assert [c.id for c in take_limited(other, *demands, limit=1).claims] == ["job of plain-0"]


def test_pause_waits_for_a_claim_under_way_and_other_claims_wait_for_nobody(
    store: PostgresStore, other: PostgresStore
) -> None:
    insert(store, "a", "b")
    insert(store, "c", type="crawl")
    with ThreadPoolExecutor(1) as pool, ExitStack() as stack:
        frozen = stack.enter_context(Frozen(store, lambda: claim(store, limit=1)))
        pause = pool.submit(other.set_paused, "email", True)
        wait_until(lambda: other.list_paused(), 30)
        assert claim(other) == []
        assert [found.id for found in claim(other, "crawl")] == ["c"]
        assert not pause.done()
        assert frozen.thaw() is None
        pause.result(60)
    assert job(store, "a").status is Status.PROCESSING


@pytest.mark.usefixtures("short")
def test_pause_does_not_wait_for_a_worker_that_is_frozen(store: PostgresStore, other: PostgresStore) -> None:
    insert(store, "a")
    with Frozen(store, lambda: claim_one(store)) as frozen:
        other.set_paused("email", True)
        assert claim(other) == []
        assert isinstance(frozen.thaw(), StoreUnavailable)
    assert job(store, "a").status is Status.PENDING


ENQUEUED: dict[str, list[dict[str, Any]]] = {
    "one": [{}],
    "many": [{}, {}],
    "many, of which one has a key": [{}, {"key": "k"}],
    "many of a type with a max_depth": [{"max_depth": 9}, {"max_depth": 9}],
}


@pytest.mark.parametrize("how", ENQUEUED)
def test_nobody_waits_for_ever_for_a_table_that_somebody_has_locked(
    address: str, store: PostgresStore, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    monkeypatch.setattr(postgres_enqueue, "LOCK_PATIENCE", 0.1)
    jobs = [new_job(f"{n}", has_new_id=True, **options) for n, options in enumerate(ENQUEUED[how])]
    impatient = postgres.with_parameters(address, options="-clock_timeout=100ms")
    with opened(impatient) as other, psycopg.connect(postgres.server_url()) as application:
        application.execute(f"LOCK TABLE {store.database.schema}.holdfast_jobs")
        with pytest.raises(StoreBusy):
            other.insert_jobs(jobs, wait=False)
        with pytest.raises(StoreBusy):
            other.get_job("0")
        application.rollback()
        assert all(verdict.inserted for verdict in other.insert_jobs(jobs, wait=False))


DUTIES: dict[str, Callable[[PostgresStore], object]] = {
    "fold statistics": lambda store: store.fold_statistics(hours_before=60, lifetime_before=0),
    "forget names": lambda store: store.forget_names(),
    "forget statistics": lambda store: store.forget_statistics(),
    "remove silent workers": lambda store: store.remove_silent_workers(60),
}


@pytest.mark.parametrize("duty", DUTIES)
def test_duty_that_somebody_is_at_is_left_to_him(
    store: PostgresStore, other: PostgresStore, duty: str
) -> None:
    with psycopg.connect(postgres.server_url(), autocommit=True) as server:
        schema = store.database.schema
        server.execute(
            f"INSERT INTO {schema}.holdfast_workers (id, host, pid, state, concurrency, types, started_at,"
            " heartbeat_at) VALUES ('silent', 'h', 1, 'running', 1, '[]', 1, 1)"
        )
    with Frozen(store, lambda: DUTIES[duty](store)), other.transaction() as session:
        session.wait_at_most(0.2)
        DUTIES[duty](other)
