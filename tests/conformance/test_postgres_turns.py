"""A turn that goes to PostgreSQL together with its commit: when it fails, and under other settings."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast.core.clock import system_clock
from holdfast.core.job import Status
from holdfast.core.lifecycle import Completed
from holdfast.errors import CommitUncertain, StoreUnavailable
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore
from holdfast.store.records import Answer, Finish
from tests import postgres
from tests.conformance.steps import LEASE, claim_one, demand, ending, insert, settings_of, status
from tests.support import wait_until


@pytest.fixture
def address() -> Iterator[str]:
    with postgres.fresh_url() as url:
        yield url


@pytest.fixture
def store(address: str) -> Iterator[PostgresStore]:
    with closing(opened(address)) as store:
        yield store


@pytest.fixture
def server() -> Iterator[psycopg.Connection[Any]]:
    """A look at the server from outside."""
    with psycopg.connect(postgres.server_url(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def lock(store: PostgresStore) -> Iterator[psycopg.Connection[Any]]:
    """Somebody else's transaction, in which nothing is locked yet."""
    with psycopg.connect(postgres.server_url()) as connection:
        connection.execute(f"SET search_path TO {store.database.schema}")
        connection.commit()
        yield connection


def opened(address: str) -> PostgresStore:
    store = open_store(address, system_clock)
    assert isinstance(store, PostgresStore)
    return store


def turn(
    store: PostgresStore,
    finishes: Sequence[Finish] = (),
    meanwhile: Callable[[psycopg.Connection[Any]], object] = lambda connection: None,
) -> Answer:
    """`meanwhile` is given the connection, on which the server is at the turn."""
    settings = settings_of(store)
    with store.finish_and_claim(
        finishes, "worker", [demand()], settings, limit=1, lease_seconds=LEASE, is_whole=True
    ) as answer:
        assert store.database.session is not None
        meanwhile(store.database.session.connection)
    return answer


def wait_until_blocked(server: psycopg.Connection[Any], process: int) -> None:
    sql = "SELECT cardinality(pg_blocking_pids(%s)) > 0"
    wait_until(lambda: server.execute(sql, [process]).fetchone() == (True,), 30)


def lock_rows(lock: psycopg.Connection[Any]) -> None:
    lock.execute("SELECT 1 FROM holdfast_jobs FOR UPDATE")


@pytest.mark.parametrize("turns", range(9))  # psycopg prepares what it has been given five times
def test_turn_that_fails_leaves_nothing_behind_for_the_next_one(
    store: PostgresStore, server: psycopg.Connection[Any], lock: psycopg.Connection[Any], turns: int
) -> None:
    insert(store, *(f"job-{n}" for n in range(20)))
    finishes: list[Finish] = []
    for _ in range(turns):
        finishes = [ending(claim, Completed()) for claim in turn(store, finishes).claimed.claims]
    lock.execute("LOCK TABLE holdfast_jobs")

    def cancel(connection: psycopg.Connection[Any]) -> None:
        process = connection.info.backend_pid
        wait_until_blocked(server, process)
        server.execute("SELECT pg_cancel_backend(%s)", [process])

    with pytest.raises(StoreUnavailable, match="cancel"):
        turn(store, finishes, cancel)
    lock.rollback()
    for _ in range(3):
        answer = turn(store, finishes)
        assert (len(answer.ended), len(answer.claimed.claims)) == (len(finishes), 1)
        finishes = [ending(claim, Completed()) for claim in answer.claimed.claims]


@pytest.mark.parametrize("bound", ["lock_timeout", "statement_timeout"])
def test_turn_has_its_own_bounds_whatever_the_role_has(
    address: str, store: PostgresStore, lock: psycopg.Connection[Any], bound: str
) -> None:
    insert(store, "a")
    lock.execute("LOCK TABLE holdfast_jobs IN SHARE MODE")
    with closing(opened(postgres.with_parameters(address, options=f"-c{bound}=200ms"))) as bounded:

        def wait_for_longer(_: psycopg.Connection[Any]) -> None:
            lock.execute("SELECT pg_sleep(0.5)")
            lock.rollback()

        assert len(turn(bounded, meanwhile=wait_for_longer).claimed.claims) == 1


def test_isolation_that_turns_rely_on_is_not_changed_by_a_reload(store: PostgresStore) -> None:
    insert(store, "a")
    turn(store)
    [found] = store.database.read(
        "SELECT setting, source FROM pg_settings WHERE name = 'default_transaction_isolation'"
    )
    assert found == ("read committed", "session")


def test_what_a_lost_connection_has_under_way_is_certain_once_the_worker_has_asked(
    store: PostgresStore, server: psycopg.Connection[Any], lock: psycopg.Connection[Any]
) -> None:
    insert(store, "a")
    running = claim_one(store)
    insert(store, "b")
    lock_rows(lock)

    def cut(connection: psycopg.Connection[Any]) -> None:
        """The server does not find out: it waits for a lock."""
        wait_until_blocked(server, connection.info.backend_pid)
        with socket.socket(fileno=os.dup(connection.fileno())) as ours:
            ours.shutdown(socket.SHUT_RDWR)

    with pytest.raises(CommitUncertain):
        turn(store, [ending(running, Completed())], cut)
    with store.transaction():
        assert [held.id for held in store.list_held("worker")] == ["a"]
    lock.rollback()
    lock.execute("LOCK TABLE holdfast_jobs")  # once there is nobody else who has touched it
    lock.rollback()
    assert (status(store, "a"), status(store, "b")) == (Status.PROCESSING, Status.PENDING)
