"""A handler's own transaction: what it writes and its job's completion are one commit, or none."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import Any

import msgspec
import pytest

from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored, Released, completion
from holdfast.errors import HoldfastError, LeaseLost, NestedWrite, TransactionExpired
from holdfast.store.protocol import Store
from holdfast.store.records import Claim, NewJob
from holdfast.store.scope import Scope
from holdfast.store.sqlite import attempt as sqlite_attempt
from holdfast.store.sqlite.handler_connection import HandlerConnection
from holdfast.testing import MovableClock
from tests.conformance.engines import where
from tests.conformance.steps import (
    LEASE,
    claim_one,
    everything,
    finish,
    insert,
    job,
    new_job,
    reap,
    run,
    status,
)
from tests.support import wait_until

INSERT = "INSERT INTO application (n) VALUES (1)"
SHORT = 0.02


@pytest.fixture(autouse=True)
def application_table(connection: Any) -> None:
    connection.execute("CREATE TABLE application (n INTEGER)")


def written(connection: Any) -> list[int]:
    """What is in the application's table, by this connection."""
    return [row[0] for row in connection.execute("SELECT n FROM application ORDER BY n").fetchall()]


@contextmanager
def transaction(store: Store, claimed: Claim, seconds: float = 60.0, *children: NewJob) -> Iterator[Any]:
    """A block that commits and completes when it is left, and rolls back on an exception."""
    own = store.begin_attempt_transaction(claimed, seconds)
    own.begin()
    try:
        yield own.connection
    except BaseException:
        own.rollback()
        raise
    own.commit(completion('{"done": true}'), children)


def test_commit_completes_the_job_with_what_was_written(store: Store, connection: Any) -> None:
    with transaction(store, run(store, "a")) as own:
        own.execute(INSERT)
        assert written(own) == [1]
        assert written(connection) == []
        assert status(store, "a") is Status.PROCESSING
    assert written(connection) == [1]
    found = job(store, "a")
    assert (found.status, found.result, found.worker_id) == (Status.COMPLETED, {"done": True}, None)


def test_rollback_undoes_what_was_written_and_leaves_the_job_running(store: Store, connection: Any) -> None:
    claimed = run(store, "a")
    before = everything(store)
    with suppress(ZeroDivisionError), transaction(store, claimed) as own:
        own.execute(INSERT)
        raise ZeroDivisionError
    assert written(connection) == []
    assert everything(store) == before
    assert finish(store, claimed, Errored("boom")) is Status.SCHEDULED


def test_children_come_with_the_commit(store: Store) -> None:
    with transaction(store, run(store, "a"), 60, new_job("child", parent_id="a")):
        assert store.get_job("child") is None
    assert store.list_children("a") == ["child"]


def fail(own: Any) -> None:
    """Run a statement that can't be, and go on."""
    with pytest.raises(Exception, match="nowhere"):
        own.execute("INSERT INTO nowhere (n) VALUES (1)")


@where(lambda engine: engine.outlives_errors)
def test_failing_statement_does_not_end_the_transaction(store: Store, connection: Any) -> None:
    with transaction(store, run(store, "a")) as own:
        own.execute(INSERT)
        fail(own)
    assert written(connection) == [1]


@where(lambda engine: not engine.outlives_errors)
def test_failing_statement_fails_the_transaction_which_says_what_to_do(store: Store, connection: Any) -> None:
    claimed = run(store, "a")
    advice = r"failed, so none of it can be committed.*savepoint"
    with pytest.raises(HoldfastError, match=advice), transaction(store, claimed) as own:  # noqa: PT012
        own.execute(INSERT)
        fail(own)
    assert written(connection) == []
    assert status(store, "a") is Status.PROCESSING
    assert finish(store, claimed, Errored("boom")) is Status.SCHEDULED


@where(lambda engine: not engine.outlives_errors)
def test_statement_that_fails_inside_a_savepoint_leaves_the_transaction_as_it_was(
    store: Store, connection: Any
) -> None:
    with transaction(store, run(store, "a")) as own:
        own.execute(INSERT)
        with suppress(ZeroDivisionError), own.transaction():
            own.execute("INSERT INTO application (n) VALUES (2)")
            fail(own)
            raise ZeroDivisionError
    assert written(connection) == [1]
    assert status(store, "a") is Status.COMPLETED


# Leases


def superseded(store: Store, clock: MovableClock, how: str) -> Claim:
    """An attempt that has lost its job."""
    late = run(store, "a")
    if how == "released":
        finish(store, late, Released())
    elif how == "finished":
        finish(store, late)
    else:
        clock.advance(LEASE)
        reap(store)
        if how == "taken over":
            claim_one(store, worker="another")
        elif how == "claimed again":
            claim_one(store)
    return late


@pytest.mark.parametrize("how", ["reaped", "released", "finished", "taken over", "claimed again"])
def test_superseded_attempt_can_not_begin(store: Store, clock: MovableClock, how: str) -> None:
    late = superseded(store, clock, how)
    before = everything(store)
    with pytest.raises(LeaseLost):
        store.begin_attempt_transaction(late, 60).begin()
    assert everything(store) == before
    insert(store, "after")  # nothing is locked


def test_attempt_of_another_worker_can_not_begin(store: Store) -> None:
    claimed = run(store, "a", worker="w1")
    with pytest.raises(LeaseLost):
        store.begin_attempt_transaction(msgspec.structs.replace(claimed, worker_id="w2"), 60).begin()


def test_expired_lease_that_nobody_took_may_still_complete(
    store: Store, connection: Any, clock: MovableClock
) -> None:
    claimed = run(store, "a")
    clock.advance(10 * LEASE)
    with transaction(store, claimed) as own:
        own.execute(INSERT)
    assert written(connection) == [1]
    assert status(store, "a") is Status.COMPLETED


def test_completion_that_the_guard_refuses_takes_back_what_was_written(store: Store, connection: Any) -> None:
    """Nobody else can take the job meanwhile, so the handler does it itself, by force."""
    claimed = run(store, "a")
    before = everything(store)
    with pytest.raises(LeaseLost):
        write_and_lose(store, claimed)
    assert written(connection) == []
    assert everything(store) == before


def write_and_lose(store: Store, claimed: Claim) -> None:
    with transaction(store, claimed) as own:
        own.execute(INSERT)
        own.execute("UPDATE holdfast_jobs SET version = version + 1")


def test_completion_wins_over_a_requested_cancellation(store: Store) -> None:
    claimed = run(store, "a")
    store.cancel_job("a")
    with transaction(store, claimed):
        pass
    assert status(store, "a") is Status.COMPLETED


def test_outcome_after_the_commit_is_refused(store: Store) -> None:
    claimed = run(store, "a")
    with transaction(store, claimed):
        pass
    before = everything(store)
    assert finish(store, claimed, Errored("too late")) is None
    assert everything(store) == before


# What a handler may not do


@pytest.mark.parametrize(
    "statement", ["COMMIT", "END", "ROLLBACK", "commit -- early", "BEGIN", f"{INSERT}; COMMIT"]
)
def test_handler_can_not_end_the_transaction_by_a_statement(
    store: Store, connection: Any, statement: str
) -> None:
    with transaction(store, run(store, "a")) as own:
        own.execute(INSERT)
        with suppress(Exception):
            own.execute(statement)
        assert written(connection) == []
        assert written(own) == [1]
    assert written(connection) == [1]


@pytest.mark.parametrize("method", ["commit", "rollback", "close"])
def test_handler_can_not_end_the_transaction_by_a_method(store: Store, connection: Any, method: str) -> None:
    with transaction(store, run(store, "a")) as own:
        own.execute(INSERT)
        with pytest.raises(HoldfastError):
            getattr(own, method)()
        assert written(connection) == []
    assert written(connection) == [1]


def test_with_block_on_the_connection_does_not_commit_early(store: Store, connection: Any) -> None:
    with transaction(store, run(store, "a")) as own:
        with suppress(Exception), own:
            own.execute(INSERT)
        assert written(connection) == []


def test_savepoints_are_the_handlers_own(store: Store, connection: Any) -> None:
    with transaction(store, run(store, "a")) as own:
        own.execute(INSERT)
        own.execute("SAVEPOINT mine")
        own.execute(INSERT)
        own.execute("ROLLBACK TO mine")
        own.execute("RELEASE mine")
    assert written(connection) == [1]


def test_connection_is_of_no_use_after_the_commit(store: Store, connection: Any) -> None:
    with transaction(store, run(store, "a")) as own:
        cursor = own.cursor()
    with pytest.raises(HoldfastError):
        own.execute(INSERT)
    with pytest.raises(Exception, match=r"has ended|closed"):
        cursor.execute(INSERT)
    assert written(connection) == []


def test_queue_is_written_inside_by_the_connection_alone(store: Store) -> None:
    """A write of the store's own would wait for the lock that this very thread holds."""
    with transaction(store, run(store, "a")) as own:
        scope = Scope.enter(store.url)
        with pytest.raises(NestedWrite):
            store.insert_jobs([new_job("b")])
        [verdict] = store.insert_jobs_with(own, [new_job("c")])
        assert verdict.inserted
        scope.leave()
    assert [found.id for found in everything(store)] == ["a", "c"]


def test_job_enqueued_by_the_connection_goes_with_a_rollback(store: Store) -> None:
    with suppress(ZeroDivisionError), transaction(store, run(store, "a")) as own:
        store.insert_jobs_with(own, [new_job("b"), new_job("c")])
        raise ZeroDivisionError
    assert [found.id for found in everything(store)] == ["a"]


# Time


def wait_until_expired(connection: Any) -> None:
    def is_expired() -> bool:
        try:
            connection.execute("SELECT 1")
        except TransactionExpired:
            return True
        return False

    wait_until(is_expired)


def test_expired_transaction_writes_nothing(store: Store, connection: Any) -> None:
    claimed = run(store, "a")
    before = everything(store)
    with pytest.raises(TransactionExpired):
        outlast(store, claimed)
    assert written(connection) == []
    assert everything(store) == before
    assert finish(store, claimed, Errored("took too long")) is Status.SCHEDULED


def outlast(store: Store, claimed: Claim) -> None:
    """Write, wait until time is up, and leave the block as if nothing were wrong."""
    with transaction(store, claimed, SHORT, new_job("child")) as own:
        own.execute(INSERT)
        wait_until_expired(own)


def test_expired_transaction_refuses_every_statement(store: Store, connection: Any) -> None:
    with suppress(TransactionExpired), transaction(store, run(store, "a"), SHORT) as own:
        cursor = own.cursor()
        wait_until_expired(own)
        for execute in (own.execute, cursor.execute):
            with pytest.raises(TransactionExpired):
                execute(INSERT)
    assert written(connection) == []


def test_expired_transaction_holds_no_lock(store: Store) -> None:
    """A handler that is stuck in it does not stop the queue."""
    with suppress(TransactionExpired), transaction(store, run(store, "a"), SHORT) as own:
        own.execute(INSERT)
        wait_until_expired(own)
        insert(store, "b")


@where(lambda engine: engine.is_a_file)
@pytest.mark.parametrize("busy", [False, True], ids=["idle", "amid a statement"])
def test_expiry_that_comes_late_still_frees_the_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    """As after a suspension: all of its patience is over before it has looked once."""
    monkeypatch.setattr(sqlite_attempt, "_EXPIRE_PATIENCE", -1.0)
    with suppress(TransactionExpired), transaction(store, run(store, "a"), SHORT) as own:
        own.execute(INSERT)
        with own.statement if busy else nullcontext():
            wait_until(lambda: own.expired_after is not None)
            wait_until(lambda: not any(thread.name == "holdfast-expiry" for thread in threading.enumerate()))
        if busy:
            with pytest.raises(TransactionExpired):
                own.execute("SELECT 1")
        insert(store, "b")


def test_expired_transaction_holds_no_lock_however_many_statements_it_sends(store: Store) -> None:
    """SQLite interrupts what begins beside an interrupted statement: the rollback must not be among it."""
    for number in range(25):
        with suppress(TransactionExpired), transaction(store, run(store, f"busy-{number}"), 0.01) as own:
            own.execute(INSERT)
            while True:
                try:
                    own.execute("SELECT 1").fetchall()
                except TransactionExpired:
                    break
            insert(store, f"other-{number}", type="other")  # or StoreBusy, if the lock were still held


@where(lambda engine: engine.is_a_file)
def test_rollback_is_tried_again_if_it_was_interrupted_with_a_cursor_that_is_being_dropped(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    shut, tried = HandlerConnection.shut, threading.Semaphore(0)

    def note(connection: HandlerConnection) -> None:
        shut(connection)
        tried.release()

    monkeypatch.setattr(HandlerConnection, "shut", note)
    with suppress(TransactionExpired), transaction(store, run(store, "a"), SHORT) as own:
        own.execute(INSERT)
        # While Python drops a cursor, its statement is open for a moment, and nobody finds it: like this one.
        dropped = sqlite3.Cursor(own)
        dropped.execute("SELECT 1 UNION ALL SELECT 2")
        assert tried.acquire(timeout=30)
        assert own.in_transaction
        dropped.close()
        wait_until(lambda: not own.in_transaction, message="the transaction is rolled back")
        insert(store, "b")  # or StoreBusy


def test_statement_that_runs_when_time_is_up_is_cut_short(store: Store, connection: Any) -> None:
    endless = "WITH RECURSIVE c (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM c) SELECT max(n) FROM c"
    with suppress(TransactionExpired), transaction(store, run(store, "a"), SHORT) as own:
        own.execute(INSERT)
        with pytest.raises(TransactionExpired):
            own.execute(endless).fetchall()
    assert written(connection) == []
