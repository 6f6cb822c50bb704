"""Connections of ctx.transaction() on SQLite that are used again, when no handler can tell."""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.job import Status
from holdfast.core.lifecycle import completion
from holdfast.errors import DatabaseReplaced, HoldfastError
from holdfast.store.open import open_store
from holdfast.store.sqlite import SqliteStore
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.handler_connection import HandlerConnection
from holdfast.store.sqlite.parked import MOST_PARKED, ParkedConnections
from holdfast.testing import MovableClock
from tests.conformance.steps import run, status

ids = map("job-{}".format, count())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[SqliteStore]:
    store = open_store(f"sqlite:///{tmp_path / 'queue.db'}?synchronous=off", MovableClock())
    assert isinstance(store, SqliteStore)
    with store.database.transaction() as connection:
        connection.execute("CREATE TABLE notes (text TEXT)")
    yield store
    store.close()


@pytest.fixture
def opened(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> list[type]:
    """The kinds of connections that are opened."""
    opened: list[type] = []
    connect_as = Database.connect_as

    def counted(database: Database, factory: Any) -> Any:
        if factory is HandlerConnection:
            opened.append(factory)
        return connect_as(database, factory)

    monkeypatch.setattr(Database, "connect_as", counted)
    return opened


@contextmanager
def block(store: SqliteStore) -> Iterator[Any]:
    own = store.begin_attempt_transaction(run(store, next(ids)), 60.0)
    own.begin()
    try:
        yield own.connection
    except BaseException:
        own.rollback()
        raise
    own.commit(completion(None), ())


def write(store: SqliteStore, text: str = "note") -> None:
    with block(store) as connection:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))


def notes(store: SqliteStore) -> int:
    return len(store.database.read("SELECT text FROM notes"))


def test_one_connection_serves_one_block_after_another(store: SqliteStore, opened: list[type]) -> None:
    for _ in range(20):
        write(store)
    assert len(opened) == 1
    assert notes(store) == 20


def test_blocks_at_the_same_time_have_one_each(store: SqliteStore, opened: list[type]) -> None:
    """Only one holds the lock; the other has its connection, and waits."""
    write(store)
    with block(store) as first:
        assert store.database.parked.take() is None
        first.execute("INSERT INTO notes VALUES ('first')")
    assert len(opened) == 1


@pytest.mark.parametrize("kept", ["connection", "cursor", "generator"])
def test_what_a_handler_keeps_is_of_no_use_to_it_and_of_none_to_others(
    store: SqliteStore, opened: list[type], kept: str
) -> None:
    with block(store) as connection:
        cursor = connection.execute("INSERT INTO notes VALUES ('a')")
    held: Any = {"connection": connection, "cursor": cursor, "generator": iter(cursor)}[kept]
    del connection, cursor
    with block(store) as other:
        for statement in ("INSERT INTO notes VALUES ('stray')", "COMMIT", "ROLLBACK"):
            with pytest.raises((HoldfastError, AttributeError)):
                held.execute(statement)
        other.execute("INSERT INTO notes VALUES ('b')")
    assert len(opened) == 2
    assert notes(store) == 2
    del held, other
    for _ in range(10):
        write(store)
    assert len(opened) == 2


def attach(connection: Any) -> None:
    connection.execute("ATTACH ':memory:' AS beside")


ALTERATIONS: dict[str, Callable[[Any], object]] = {
    "pragma": lambda c: c.execute("PRAGMA case_sensitive_like = ON"),
    "temporary table": lambda c: c.execute("CREATE TEMP TABLE scratch (n)"),
    "table in the temporary schema": lambda c: c.execute("CREATE TABLE temp.scratch (n)"),
    "view in the temporary schema": lambda c: c.execute("CREATE VIEW temp.seen AS SELECT 1 AS n"),
    "trigger in the temporary schema": lambda c: c.execute(
        "CREATE TRIGGER temp.noted AFTER INSERT ON notes BEGIN DELETE FROM notes; END"
    ),
    "temporary view": lambda c: c.execute("CREATE TEMP VIEW seen AS SELECT 1 AS n"),
    "temporary trigger": lambda c: c.execute(
        "CREATE TEMP TRIGGER noted AFTER INSERT ON notes BEGIN DELETE FROM notes; END"
    ),
    "temporary index": lambda c: [
        c.execute(sql) for sql in ("CREATE TEMP TABLE t (n)", "CREATE INDEX temp.i ON t (n)")
    ],
    "attached database": attach,
    "function": lambda c: c.create_function("one", 0, lambda: 1),
    "aggregate": lambda c: c.create_aggregate("total_of", 1, object),
    "collation": lambda c: c.create_collation("odd", lambda a, b: 0),
    "authorizer": lambda c: c.set_authorizer(lambda *_: sqlite3.SQLITE_OK),
    "progress handler": lambda c: c.set_progress_handler(lambda: 0, 1000),
    "trace": lambda c: c.set_trace_callback(lambda _: None),
    "limit": lambda c: c.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 3),
    "isolation level": lambda c: setattr(c, "isolation_level", "DEFERRED"),
    "attribute of its own": lambda c: setattr(c, "cache", {}),
}


@pytest.mark.parametrize("what", ALTERATIONS)
def test_a_connection_with_something_lasting_is_not_used_again(
    store: SqliteStore, opened: list[type], what: str
) -> None:
    with block(store) as connection:
        ALTERATIONS[what](connection)
    del connection
    write(store)
    assert len(opened) == 2
    assert notes(store) == 1


def test_rows_are_tuples_of_text_again(store: SqliteStore, opened: list[type]) -> None:
    with block(store) as connection:
        connection.row_factory, connection.text_factory = sqlite3.Row, bytes
        connection.execute("INSERT INTO notes VALUES ('a')")
        [row] = connection.execute("SELECT text FROM notes")
        assert row["text"] == b"a"
    del connection, row
    with block(store) as connection:
        assert connection.execute("SELECT text FROM notes").fetchall() == [("a",)]
    assert len(opened) == 1


@pytest.mark.parametrize("statement", ["COMMIT", "ROLLBACK", "END", "BEGIN", "BEGIN IMMEDIATE"])
def test_words_that_end_a_transaction_are_refused_in_every_block(store: SqliteStore, statement: str) -> None:
    """Though statements that were compiled before are not asked about again."""
    for _ in range(3):
        with block(store) as connection:
            connection.execute("INSERT INTO notes VALUES ('a')")
            with pytest.raises(sqlite3.Error):
                connection.execute(statement)
        del connection
    assert notes(store) == 3


def test_what_was_rolled_back_is_in_no_later_block(store: SqliteStore) -> None:
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), block(store) as connection:  # noqa: PT012
            connection.execute("INSERT INTO notes VALUES ('a')")
            raise ZeroDivisionError
        del connection
    write(store)
    assert notes(store) == 1


OPEN: dict[str, Callable[[Any], Any]] = {
    "rows": lambda c: next(rows := c.execute("SELECT text FROM notes")) and rows,
    "changed rows": lambda c: next(rows := c.execute("UPDATE notes SET text = 'b' RETURNING text")) and rows,
    "rows of a plain cursor": lambda c: (
        next(rows := sqlite3.Cursor(c).execute("SELECT 1 FROM notes")) and rows
    ),
    "blob": lambda c: c.blobopen("notes", "text", 1),
}


@pytest.fixture
def noted(store: SqliteStore) -> SqliteStore:
    with store.database.transaction() as connection:
        connection.each("INSERT INTO notes VALUES (?)", [("a",), ("a",)])
    return store


@pytest.mark.parametrize("what", OPEN)
def test_a_block_that_is_rolled_back_lets_the_lock_go_whatever_is_open(noted: SqliteStore, what: str) -> None:
    with pytest.raises(ZeroDivisionError), block(noted) as connection:  # noqa: PT012
        connection.execute("INSERT INTO notes VALUES ('a')")
        held = OPEN[what](connection)
        raise ZeroDivisionError
    with noted.database.transaction(patience=0.0):
        pass
    assert notes(noted) == 2
    del held, connection


@pytest.mark.parametrize("what", [what for what in OPEN if what != "rows of a plain cursor"])
def test_a_block_that_has_committed_keeps_no_snapshot(noted: SqliteStore, what: str) -> None:
    """It would keep the WAL from being used again from its beginning."""
    with block(noted) as connection:
        connection.execute("INSERT INTO notes VALUES ('a')")
        held = OPEN[what](connection)
    write(noted)
    with noted.database.using():
        [(is_busy, _, _)] = noted.database.connection().execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    assert not is_busy
    assert notes(noted) == 4
    del held, connection


def test_a_cursor_past_ours_writes_nothing_after_the_block(store: SqliteStore) -> None:
    with block(store) as connection:
        cursor = sqlite3.Cursor(connection)
        cursor.execute("INSERT INTO notes VALUES ('a')")
    with pytest.raises(sqlite3.Error):
        cursor.execute("INSERT INTO notes VALUES ('a')")
    assert notes(store) == 1
    del cursor, connection


@pytest.mark.parametrize("what", ["function", "isolation level", "attribute of its own"])
def test_a_connection_altered_after_its_block_is_not_used_again(
    store: SqliteStore, opened: list[type], what: str
) -> None:
    with block(store) as connection:
        pass
    ALTERATIONS[what](connection)
    del connection
    write(store)
    assert len(opened) == 2


def test_a_connection_that_is_remembered_is_not_used_again(store: SqliteStore, opened: list[type]) -> None:
    """An application may keep what belongs to a connection as long as there is one."""
    with block(store) as connection:
        remembered = weakref.WeakKeyDictionary({connection: "first"})
    del connection
    with block(store) as connection:
        assert connection not in remembered
    assert len(opened) == 2


def test_a_block_counts_its_own_changes(store: SqliteStore) -> None:
    for _ in range(3):
        with block(store) as connection:
            assert connection.total_changes == 0
            connection.execute("INSERT INTO notes VALUES ('a')")
            assert connection.total_changes == 1
        del connection


def test_no_block_begins_in_a_file_that_was_replaced(store: SqliteStore) -> None:
    write(store)
    claimed = run(store, "a")
    path = Path(store.database.path)
    copy = path.with_name("copy.db")
    with closing(sqlite3.connect(copy)) as target, store.database.using():
        store.database.connection().backup(target)
    copy.rename(path)
    with pytest.raises(DatabaseReplaced):
        store.begin_attempt_transaction(claimed, 60.0).begin()


def test_a_parked_connection_keeps_few_pages(store: SqliteStore) -> None:
    with block(store) as connection:
        [(size,)] = connection.execute("PRAGMA cache_size").fetchall()
    assert size == -2048


def test_no_more_are_kept_than_a_few(store: SqliteStore) -> None:
    held = []
    for _ in range(MOST_PARKED + 3):
        with block(store) as connection:
            held.append(connection)
    del connection
    parked = store.database.parked.take_all()
    assert len(parked) == MOST_PARKED
    for connection in parked:
        sqlite3.Connection.close(connection)


def test_a_closed_store_keeps_none(store: SqliteStore) -> None:
    write(store)
    store.close()
    assert store.database.parked.take_all() == []


def test_parked_connections_of_a_store_that_nobody_closes_are_closed() -> None:
    """Python 3.13 warns of each that is not."""
    parked = ParkedConnections()
    connection = HandlerConnection(":memory:", isolation_level=None, check_same_thread=False)
    assert parked.park(connection)
    del parked
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        sqlite3.Connection.cursor(connection)


def test_a_block_that_outlives_its_store_leaves_none(store: SqliteStore) -> None:
    with block(store) as connection:
        id = connection.execute("SELECT id FROM holdfast_jobs").fetchone()[0]
        store.close()
    assert store.database.parked.take_all() == []
    path = store.database.path
    with sqlite3.connect(path) as found:
        assert found.execute("SELECT status FROM holdfast_jobs WHERE id = ?", (id,)).fetchone() == (
            Status.COMPLETED.value,
        )
    found.close()


def test_jobs_are_completed_by_reused_connections(store: SqliteStore) -> None:
    claimed = run(store, "a")
    own = store.begin_attempt_transaction(claimed, 60.0)
    own.begin()
    own.commit(completion('{"n": 1}'), ())
    assert status(store, "a") is Status.COMPLETED
