"""ctx.transaction() on PostgreSQL: sessions that serve one handler after another, and who waits for whom."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import msgspec
import psycopg
import pytest
from psycopg.rows import dict_row

from holdfast.core.job import Progress, Status
from holdfast.core.lifecycle import Completed, Errored, Outcome, Released, completion
from holdfast.errors import HoldfastError, Interrupted, LeaseLost, StoreUnavailable, TransactionExpired
from holdfast.store.postgres.attempt import PostgresAttemptTransaction
from holdfast.store.postgres.attempt_pool import AttemptPool
from holdfast.store.postgres.errors import ConnectionsExhausted
from holdfast.store.postgres.store import PostgresStore
from holdfast.testing import MovableClock
from tests.conformance.engines import where
from tests.conformance.steps import LEASE, ending, job, new_job, reap, run, status
from tests.support import wait_until

pytestmark = where(lambda engine: engine.name == "postgres")

INSERT = "INSERT INTO application (n) VALUES (1)"
PATIENCE = 30.0
HALF = Progress(0.5, "half")


@pytest.fixture(autouse=True)
def application_table(connection: Any) -> None:
    connection.execute("CREATE TABLE application (n integer)")


def written(connection: Any) -> list[int]:
    return [n for (n,) in connection.execute("SELECT n FROM application").fetchall()]


def begun(store: PostgresStore, id: str, seconds: float = 60.0) -> PostgresAttemptTransaction:
    transaction = store.begin_attempt_transaction(run(store, id), seconds)
    transaction.begin()
    return transaction


@contextmanager
def block(
    store: PostgresStore, id: str, result: str | None = None, seconds: float = 60.0
) -> Iterator[psycopg.Connection[Any]]:
    transaction = begun(store, id, seconds)
    try:
        yield transaction.connection
    except BaseException:
        transaction.rollback()
        raise
    transaction.commit(completion(result), [])


def backend_of(connection: psycopg.Connection[Any]) -> int:
    return connection.info.backend_pid


# Sessions


LEFT_BEHIND = [
    "SET work_mem = '123MB'",
    "SELECT set_config('app.user', 'eve', false)",
    "CREATE TEMPORARY TABLE draft (n integer)",
    "PREPARE mine AS SELECT 1",
    "LISTEN mine",
    "SELECT pg_advisory_lock(4711)",
    "DECLARE mine CURSOR WITH HOLD FOR SELECT 1",
    "SET ROLE pg_read_all_data; RESET ROLE; SET SESSION search_path = pg_catalog",
]
SEEN = """
SELECT current_setting('work_mem') = '123MB', current_setting('app.user', true) = 'eve',
    to_regclass('pg_temp.draft') IS NOT NULL,
    EXISTS (SELECT 1 FROM pg_prepared_statements WHERE name !~ '^holdfast_'),
    EXISTS (SELECT 1 FROM pg_listening_channels()),
    EXISTS (SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = 4711 AND pid = pg_backend_pid()),
    EXISTS (SELECT 1 FROM pg_cursors WHERE name = 'mine'), current_setting('search_path') = 'pg_catalog'
"""


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_next_handler_finds_nothing_of_the_last_in_its_session(store: PostgresStore, end: str) -> None:
    with suppress(ZeroDivisionError), block(store, "a") as own:
        for statement in LEFT_BEHIND:
            own.execute(statement)
        for _ in range(6):
            own.execute("SELECT %s + 1", [1])  # psycopg prepares it
        row = own.execute(SEEN).fetchone()
        assert row is not None
        assert sum(row) == len(LEFT_BEHIND) - 1, "all but the channel, which is heard after the commit"
        own.row_factory = dict_row
        first = backend_of(own)
        if end == "rollback":
            raise ZeroDivisionError
    with block(store, "b") as own:
        assert backend_of(own) == first
        row = own.execute(SEEN).fetchone()
        assert row is not None
        assert not any(row)
        for statement in LEFT_BEHIND:
            own.execute(statement)


OWN = ["synchronous_commit", "tcp_keepalives_idle", "tcp_keepalives_interval", "tcp_keepalives_count"]
OWN.append("tcp_user_timeout")


@pytest.mark.parametrize("end", ["commit", "rollback"])
def test_session_of_handlers_is_as_durable_and_as_soon_found_lost_as_any_other(
    store: PostgresStore, end: str
) -> None:
    """Each of these settings is the session's own, which no configuration of the server's changes."""
    for id in ("a", "b", "c"):
        with suppress(ZeroDivisionError), block(store, id) as own:
            sources = own.execute("SELECT name, source FROM pg_settings WHERE name = ANY (%s)", [OWN])
            assert dict(sources.fetchall()) == dict.fromkeys(OWN, "session")
            assert own.execute("SHOW synchronous_commit").fetchone() == ("on",)
            own.execute("SET synchronous_commit = off")
            if end == "rollback":
                raise ZeroDivisionError


def test_what_was_kept_of_a_block_does_not_reach_the_session_of_the_next(
    store: PostgresStore, connection: Any
) -> None:
    with block(store, "a") as kept:
        cursor, raw = kept.cursor(), psycopg.RawCursor(kept)
    with block(store, "b") as own:
        assert own.pgconn is kept.pgconn
        for attempt in (
            lambda: kept.execute(INSERT),
            lambda: cursor.execute(INSERT),
            lambda: raw.execute(INSERT),
            lambda: psycopg.RawCursor(kept).execute(INSERT),
            lambda: kept.transaction().__enter__(),
            kept.cancel,
        ):
            with pytest.raises(HoldfastError, match="the transaction has ended"):
                attempt()
        assert kept.closed
        kept.close()
        own.execute("SELECT 1")
    assert written(connection) == []


def test_statement_that_waits_while_the_block_ends_is_refused(store: PostgresStore, connection: Any) -> None:
    transaction = begun(store, "a")
    raw = psycopg.RawCursor(transaction.connection)
    with ThreadPoolExecutor(1) as pool:
        with transaction._own.lock:
            late = pool.submit(raw.execute, INSERT)
            assert not late.done()
            transaction.connection.over = True
        with pytest.raises(HoldfastError, match="the transaction has ended"):
            late.result(PATIENCE)
    transaction.rollback()
    assert written(connection) == []


def test_session_whose_block_expired_is_not_lent_again(store: PostgresStore) -> None:
    with suppress(TransactionExpired), block(store, "a", seconds=1) as own:  # time to get to its end
        first = backend_of(own)
        own.execute("SELECT pg_sleep(10)")
    with block(store, "b") as own:
        assert backend_of(own) != first


def test_session_that_was_lost_while_nobody_used_it_is_replaced(
    store: PostgresStore, connection: Any
) -> None:
    with block(store, "a") as own:
        first = backend_of(own)
    connection.execute("SELECT pg_terminate_backend(%s, 5000)", [first])
    with block(store, "b") as own:
        assert backend_of(own) != first
    assert status(store, "b") is Status.COMPLETED


# Waiting for a connection


@pytest.fixture
def single(store: PostgresStore) -> AttemptPool:
    """There is one connection for the blocks of the store."""
    store.database.attempts = AttemptPool(store.database, 1)
    return store.database.attempts


@pytest.mark.usefixtures("single")
def test_block_waits_for_a_connection_until_another_ends(store: PostgresStore) -> None:
    first, second = begun(store, "a"), store.begin_attempt_transaction(run(store, "b"), 60)
    waits = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        begins = pool.submit(second.begin, waits.set)
        assert waits.wait(PATIENCE)
        assert not begins.done()
        first.commit(completion(None), [])
        begins.result(PATIENCE)
    second.commit(completion(None), [])
    assert (status(store, "a"), status(store, "b")) == ("completed", "completed")


@pytest.mark.usefixtures("single")
def test_wait_of_an_attempt_that_is_to_stop_ends(store: PostgresStore) -> None:
    def stop() -> None:
        raise Interrupted

    first, second = begun(store, "a"), store.begin_attempt_transaction(run(store, "b"), 60)
    with pytest.raises(Interrupted):
        second.begin(stop)
    first.rollback()


def test_block_waits_until_the_server_has_a_connection_to_spare(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusals = iter([StoreUnavailable("too many clients"), StoreUnavailable("too many clients")])
    asked: list[None] = []
    connect = store.database.connect

    def refuse_at_first() -> Any:
        asked.append(None)
        for refusal in refusals:
            raise refusal
        return connect()

    monkeypatch.setattr(store.database, "connect", refuse_at_first)
    with block(store, "a"):
        pass
    assert len(asked) == 3
    assert status(store, "a") is Status.COMPLETED


@pytest.mark.parametrize("when", ["idle", "lent"])
def test_handlers_make_room_for_the_queue_when_the_server_has_no_connection_to_spare(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Or a worker whose handlers have them all could not read, nor renew its leases."""
    transaction = begun(store, "a")
    session, connect = transaction._own, store.database.connect

    def connect_if_there_is_room() -> Any:
        if not session.closed:
            if when == "lent":
                transaction.rollback()
            raise ConnectionsExhausted("too many clients")
        return connect()

    if when == "idle":
        transaction.rollback()
    store.database.pool.forget_idle()
    monkeypatch.setattr(store.database, "connect", connect_if_there_is_room)
    assert status(store, "a") is Status.PROCESSING
    assert session.closed
    store.database.pool.forget_idle()
    monkeypatch.setattr(store.database, "connect", raiser(ConnectionsExhausted("too many clients")))
    with pytest.raises(ConnectionsExhausted):
        store.database.pool.take(fresh=True)


def raiser(error: Exception) -> Any:
    def fail() -> None:
        raise error

    return fail


# Nobody waits for a block


@pytest.mark.parametrize("outcome", [Errored("boom"), Released()])
def test_outcome_of_a_job_inside_its_block_is_held_up_and_not_waited_for(
    store: PostgresStore, outcome: Outcome
) -> None:
    claimed, other = run(store, "a"), run(store, "b")
    transaction = store.begin_attempt_transaction(claimed, 60)
    transaction.begin()
    offered = [ending(claimed, outcome), ending(other, outcome)]
    ended = store.finish_jobs(offered)
    assert ended[claimed.seq, claimed.version] is Status.PROCESSING
    assert ended[other.seq, other.version] is not Status.PROCESSING
    assert not job(store, "a").errors
    transaction.rollback()
    assert status(store, "a") is Status.PROCESSING
    assert list(store.finish_jobs(offered)) == [(claimed.seq, claimed.version)]
    assert status(store, "a") is not Status.PROCESSING


def test_completion_of_an_attempt_that_may_be_inside_its_block_is_held_up_too(store: PostgresStore) -> None:
    transaction = begun(store, "a")
    claimed = transaction._claim
    finish = msgspec.structs.replace(ending(claimed, Completed()), may_be_locked=True)
    name = (claimed.seq, claimed.version)
    assert store.finish_jobs([finish]) == {name: Status.PROCESSING}
    transaction.rollback()
    assert store.finish_jobs([finish]) == {name: Status.COMPLETED}


def test_progress_of_a_job_inside_its_block_is_kept_for_later(store: PostgresStore) -> None:
    claimed, other = run(store, "a"), run(store, "b")
    transaction = store.begin_attempt_transaction(claimed, 60)
    transaction.begin()
    reports = [(each.seq, each.version, 0.5, "half") for each in (claimed, other)]
    assert store.write_progress("worker", reports) == {claimed.seq}
    assert (job(store, "a").progress, job(store, "b").progress) == (None, HALF)
    transaction.rollback()
    assert not store.write_progress("worker", reports)
    assert job(store, "a").progress == HALF
    assert not store.write_progress("another", reports)


# Isolation


def isolation(connection: psycopg.Connection[Any]) -> str:
    row = connection.execute("SHOW transaction_isolation").fetchone()
    assert row is not None
    return str(row[0])


def test_isolation_is_read_committed_unless_the_handler_says_otherwise(store: PostgresStore) -> None:
    with block(store, "a") as own:
        own.execute("SET default_transaction_isolation = 'serializable'")
        assert isolation(own) == "read committed"
    with block(store, "b") as own:
        assert isolation(own) == "read committed"


@pytest.mark.parametrize(
    "statement",
    [
        "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE",
        "set transaction isolation level serializable;",
        "SET LOCAL transaction_isolation = 'serializable'",
    ],
)
def test_first_statement_may_set_the_isolation(store: PostgresStore, connection: Any, statement: str) -> None:
    with block(store, "a") as own:
        own.execute(statement)
        own.execute(INSERT)
        assert isolation(own) == "serializable"
        assert not store.write_progress("worker", [(10_000, 1, 0.5, None)])
        reap(store)
    assert (status(store, "a"), written(connection)) == (Status.COMPLETED, [1])


def test_later_statement_about_the_isolation_undoes_nothing(store: PostgresStore, connection: Any) -> None:
    transaction = begun(store, "a")
    psycopg.RawCursor(transaction.connection).execute(INSERT)
    with pytest.raises(psycopg.errors.ActiveSqlTransaction):
        transaction.connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    transaction.rollback()
    with block(store, "b") as own, suppress(psycopg.Error), own.transaction():
        own.execute(INSERT)
        own.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    assert written(connection) == []


def test_job_that_was_taken_away_is_not_held_again_by_setting_the_isolation(
    store: PostgresStore, other: PostgresStore, clock: MovableClock
) -> None:
    transaction = begun(store, "a")
    psycopg.RawCursor(transaction._own).execute("ROLLBACK")  # as if the server had ended it
    clock.advance(LEASE)
    assert reap(other) == {"a": Status.SCHEDULED}
    with pytest.raises(HoldfastError):
        transaction.connection.execute("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    with pytest.raises(LeaseLost):
        transaction._restart("SET TRANSACTION ISOLATION LEVEL SERIALIZABLE")
    transaction.rollback()


# The commit


@pytest.mark.parametrize("result", ['"it\'s \\\\ \\u0000"', '"größer"', '{"a": "{now} $1 ?"}', None])
@pytest.mark.parametrize("standard", ["on", "off"])
def test_result_is_stored_as_it_is(store: PostgresStore, result: str | None, standard: str) -> None:
    with block(store, "a", result) as own:
        own.execute("SET LOCAL escape_string_warning = off")
        own.execute(f"SET LOCAL standard_conforming_strings = {standard}")
    expected = None if result is None else msgspec.json.decode(result)
    assert (status(store, "a"), job(store, "a").result) == (Status.COMPLETED, expected)


def test_constraint_that_fails_at_the_commit_completes_nothing(store: PostgresStore, connection: Any) -> None:
    connection.execute("CREATE TABLE seat (n integer UNIQUE DEFERRABLE INITIALLY DEFERRED)")

    def book_twice(id: str) -> None:
        with block(store, id) as own:
            own.execute("INSERT INTO seat VALUES (1), (1)")

    with pytest.raises(psycopg.errors.UniqueViolation):
        book_twice("a")
    assert status(store, "a") is Status.PROCESSING
    with block(store, "b"):
        pass
    assert status(store, "b") is Status.COMPLETED


def test_transaction_that_was_ended_by_force_takes_no_statement_and_completes_nothing(
    store: PostgresStore, connection: Any
) -> None:
    transaction = begun(store, "a")
    transaction.connection.execute(INSERT)
    psycopg.RawCursor(transaction.connection).execute("ROLLBACK")
    for again in (
        lambda: transaction.connection.execute(INSERT),
        lambda: psycopg.RawCursor(transaction.connection).execute(INSERT),
        transaction.hold,
        lambda: transaction.commit(completion(None), [new_job("child")]),
    ):
        with pytest.raises(HoldfastError, match="ended the transaction"):
            again()
    assert (written(connection), status(store, "a")) == ([], Status.PROCESSING)


def test_copy_that_is_still_open_fails_the_block(store: PostgresStore, connection: Any) -> None:
    kept: list[Any] = []

    def leave_open() -> None:
        with block(store, "a") as own:
            kept.append(own.cursor().copy("COPY application FROM STDIN"))
            kept[0].__enter__().write("1\n")

    with pytest.raises(HoldfastError, match="still open"):
        leave_open()
    assert (written(connection), status(store, "a")) == ([], Status.PROCESSING)
    with block(store, "b"):
        pass
    with suppress(psycopg.Error, HoldfastError):
        kept[0].gen.close()


def test_stream_that_was_left_in_the_middle_of_an_error_does_not_hang_the_block(
    store: PostgresStore,
) -> None:
    def fail_midway() -> None:
        with block(store, "a") as own:
            kept.append(own.cursor().stream("SELECT generate_series(1, 100000)"))
            next(kept[0])
            raise ZeroDivisionError

    kept: list[Any] = []
    with pytest.raises(ZeroDivisionError):
        fail_midway()
    with block(store, "b"):
        pass
    assert (status(store, "a"), status(store, "b")) == (Status.PROCESSING, Status.COMPLETED)
    with suppress(psycopg.Error):
        kept[0].close()


@pytest.mark.parametrize("result", [None, '"größer"'])
def test_handler_that_deallocates_all_completes_all_the_same(
    store: PostgresStore, connection: Any, result: str | None
) -> None:
    for id in ("a", "b"):
        with block(store, id, result) as own:
            own.execute(INSERT)
            own.execute("DEALLOCATE ALL")
    assert (status(store, "a"), status(store, "b")) == (Status.COMPLETED, Status.COMPLETED)
    assert written(connection) == [1, 1]


def test_completion_costs_no_multixact(store: PostgresStore, connection: Any) -> None:
    def newest() -> int:
        """The number of the one that two locks of this transaction make."""
        with connection.transaction():
            connection.execute("SELECT 1 FROM application FOR KEY SHARE")
            connection.execute("SAVEPOINT inner_one")
            connection.execute("SELECT 1 FROM application FOR UPDATE")
            [(number,)] = connection.execute("SELECT xmax::text::bigint FROM application").fetchall()
        return int(number)

    connection.execute(INSERT)
    before = newest()
    for n in range(20):
        with block(store, f"job{n}"):
            pass
    assert before < newest() < before + 20, "others may make one in the meantime"


def test_heartbeat_says_which_lease_it_could_not_renew(store: PostgresStore) -> None:
    """Or its worker would believe it renewed, and come again only a heartbeat later."""
    claims = [run(store, "a"), run(store, "b")]
    names = [(claim.seq, claim.version) for claim in claims]
    transaction = store.begin_attempt_transaction(claims[0], 60.0)
    transaction.begin()
    beat = store.heartbeat("worker", [*names, (names[0][0], 99)], state="running", lease_seconds=LEASE)
    assert beat.lost == {(names[0][0], 99)}
    assert beat.skipped == {names[0]}
    transaction.rollback()
    beat = store.heartbeat("worker", names, state="running", lease_seconds=LEASE)
    assert not beat.lost | beat.skipped


def test_server_ends_a_block_that_its_process_has_left_alone(store: PostgresStore) -> None:
    with block(store, "a", seconds=30) as own:
        for name in ("idle_in_transaction_session_timeout", "statement_timeout"):
            assert own.execute(f"SHOW {name}").fetchone() == ("31s",)


def test_held_block_has_no_bound(store: PostgresStore) -> None:
    transaction = begun(store, "a")
    transaction.hold()
    for name in ("idle_in_transaction_session_timeout", "statement_timeout"):
        assert transaction.connection.execute(f"SHOW {name}").fetchone() == ("0",)
    transaction.rollback()
    wait_until(lambda: status(store, "a") is Status.PROCESSING)


def test_the_longest_block_that_may_be_asked_for_begins(store: PostgresStore) -> None:
    """The server counts milliseconds in 32 bits."""
    begun(store, "a", seconds=1e10).rollback()
