"""insert_jobs_with on SQLite: the job and the application's rows are one commit of the application's own."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.job import Status
from holdfast.errors import ConfigError, DuplicateJob, KeyTaken, QueueFull
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.engines import ENGINES
from tests.conformance.steps import claim, everything, finish, finished, insert, job, new_job, run

LEVELS: list[Any] = [None, "", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"]
LEGACY: list[Any] = ["", "DEFERRED", "IMMEDIATE", "EXCLUSIVE"]
"""The isolation levels in which sqlite3 itself begins a transaction before the first INSERT."""


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """This file is about one engine: another one's connections need a file of their own."""
    if "engine" in metafunc.fixturenames:
        metafunc.parametrize("engine", [e for e in ENGINES if e.name == "sqlite"], ids=lambda e: e.name)


Connect = Callable[..., sqlite3.Connection]


@pytest.fixture
def connect(store: Store, tmp_path: Path) -> Iterator[Connect]:
    """Makes connections of an application, which has a table of its own in the queue's file."""
    made: list[sqlite3.Connection] = []

    def connect(isolation_level: Any = "", **options: Any) -> sqlite3.Connection:
        path = options.pop("path", tmp_path / "queue.db")
        made.append(sqlite3.connect(path, isolation_level=isolation_level, **options))
        return made[-1]

    connect(None).execute("CREATE TABLE users (name TEXT)")
    yield connect
    for connection in made:
        connection.close()


def begin(connection: sqlite3.Connection) -> None:
    """Begin where sqlite3 does not do it by itself."""
    if connection.isolation_level is None:
        connection.execute("BEGIN")


def users(connect: Connect) -> list[str]:
    with closing(connect(None).cursor()) as cursor:
        return [row[0] for row in cursor.execute("SELECT name FROM users ORDER BY name")]


def ids(store: Store) -> list[str]:
    return [found.id for found in everything(store)]


def enqueue(store: Store, connection: sqlite3.Connection, *names: str, **options: Any) -> None:
    verdicts = store.insert_jobs_with(connection, [new_job(name, **options) for name in names])
    assert all(verdict.inserted for verdict in verdicts)


each_level = pytest.mark.parametrize("level", LEVELS, ids=str)
one_or_many = pytest.mark.parametrize("names", [("a",), ("a", "b", "c")], ids=["one", "many"])


@each_level
@one_or_many
def test_job_exists_once_the_caller_commits(
    store: Store, connect: Connect, level: Any, names: tuple[str, ...]
) -> None:
    connection = connect(level)
    begin(connection)
    connection.execute("INSERT INTO users VALUES ('eve')")
    enqueue(store, connection, *names)
    assert connection.in_transaction
    assert ids(store) == []
    connection.commit()
    assert (ids(store), users(connect)) == (list(names), ["eve"])
    assert [claimed.id for claimed in claim(store)] == list(names)


@each_level
@one_or_many
def test_job_is_gone_when_the_caller_rolls_back(
    store: Store, connect: Connect, level: Any, names: tuple[str, ...]
) -> None:
    connection = connect(level)
    begin(connection)
    connection.execute("INSERT INTO users VALUES ('eve')")
    enqueue(store, connection, *names)
    connection.rollback()
    assert (ids(store), users(connect)) == ([], [])
    assert store.count_jobs() == {}


@pytest.mark.parametrize("level", LEGACY, ids=str)
@one_or_many
def test_enqueue_that_comes_first_begins_the_transaction_as_an_insert_would(
    store: Store, connect: Connect, level: Any, names: tuple[str, ...]
) -> None:
    connection = connect(level)
    enqueue(store, connection, *names)
    assert connection.in_transaction
    assert ids(store) == []
    connection.execute("INSERT INTO users VALUES ('eve')")
    connection.rollback()
    assert (ids(store), users(connect)) == ([], [])


@one_or_many
def test_without_a_transaction_autocommit_commits_at_once(
    store: Store, connect: Connect, names: tuple[str, ...]
) -> None:
    connection = connect(None)
    enqueue(store, connection, *names)
    assert not connection.in_transaction
    assert ids(store) == list(names)


def test_with_block_of_the_connection_works(store: Store, connect: Connect) -> None:
    with connect() as connection:
        connection.execute("INSERT INTO users VALUES ('eve')")
        enqueue(store, connection, "a")
    with pytest.raises(ZeroDivisionError):
        failing_block(store, connect())
    assert (ids(store), users(connect)) == (["a"], ["eve"])


def failing_block(store: Store, connection: sqlite3.Connection) -> None:
    with connection:
        connection.execute("INSERT INTO users VALUES ('mallory')")
        enqueue(store, connection, "b", "c")
        raise ZeroDivisionError


if sys.version_info >= (3, 12):  # sqlite3 has autocommit= since then

    @one_or_many
    def test_connection_with_autocommit_off_is_always_in_a_transaction(
        store: Store, connect: Connect, names: tuple[str, ...]
    ) -> None:
        connection = connect(autocommit=False)
        enqueue(store, connection, *names)
        assert ids(store) == []
        connection.rollback()
        assert ids(store) == []
        enqueue(store, connection, *names)
        connection.commit()
        assert ids(store) == list(names)


def test_many_jobs_are_one_commit(store: Store, connect: Connect) -> None:
    connection = connect()
    names = [f"job-{n:04}" for n in range(2000)]
    enqueue(store, connection, *names)
    assert ids(store) == []
    connection.commit()
    assert store.count_jobs()["email"][Status.PENDING] == 2000


# What a connection may look like


def by_name(cursor: sqlite3.Cursor, row: tuple[Any, ...]) -> dict[str, Any]:
    return {column[0]: value for column, value in zip(cursor.description, row, strict=True)}


@pytest.mark.parametrize("row_factory", [None, sqlite3.Row, by_name])
@pytest.mark.parametrize("text_factory", [str, bytes, lambda raw: raw.decode("utf-8", "replace")])
def test_factories_of_the_caller_do_not_matter(
    store: Store, connect: Connect, row_factory: Any, text_factory: Any
) -> None:
    finished(store, "old", key="old", key_for=3600)
    connection = connect()
    connection.row_factory = row_factory
    connection.text_factory = text_factory
    enqueue(store, connection, "a", key="k", payload='{"n": "žluť"}', max_depth=100)
    [again] = store.insert_jobs_with(connection, [new_job("b", key="k", payload='{"n": "žluť"}')])
    assert (again.id, again.inserted, again.error, again.status) == ("a", False, None, Status.PENDING)
    [taken] = store.insert_jobs_with(connection, [new_job("c", key="k")])
    assert isinstance(taken.error, KeyTaken)
    assert taken.error.job_id == "a"
    [duplicate] = store.insert_jobs_with(connection, [new_job("a")])
    assert isinstance(duplicate.error, DuplicateJob)
    connection.commit()
    assert ids(store) == ["old", "a"]
    assert (connection.row_factory, connection.text_factory) == (row_factory, text_factory)


def test_converters_of_the_caller_do_not_matter(store: Store, connect: Connect) -> None:
    connection = connect(detect_types=sqlite3.PARSE_DECLTYPES | sqlite3.PARSE_COLNAMES)
    enqueue(store, connection, "a", key="k")
    connection.commit()
    assert ids(store) == ["a"]


def test_row_in_doubt_is_known_by_its_token_through_bytes(store: Store, connect: Connect) -> None:
    connection = connect()
    connection.text_factory = bytes
    again = new_job("a", token="mine")
    assert store.insert_jobs_with(connection, [again])[0].inserted
    assert store.insert_jobs_with(connection, [again])[0].inserted


# Refusals


@each_level
def test_duplicate_does_not_abort_the_transaction(store: Store, connect: Connect, level: Any) -> None:
    insert(store, "taken")
    connection = connect(level)
    begin(connection)
    connection.execute("INSERT INTO users VALUES ('eve')")
    [verdict] = store.insert_jobs_with(connection, [new_job("taken")])
    assert isinstance(verdict.error, DuplicateJob)
    assert connection.in_transaction
    enqueue(store, connection, "a")
    connection.commit()
    assert (ids(store), users(connect)) == (["taken", "a"], ["eve"])


@each_level
def test_batch_is_all_or_nothing_and_spares_the_callers_rows(
    store: Store, connect: Connect, level: Any
) -> None:
    insert(store, "taken")
    connection = connect(level)
    begin(connection)
    connection.execute("INSERT INTO users VALUES ('eve')")
    verdicts = store.insert_jobs_with(connection, [new_job("a"), new_job("taken"), new_job("b")])
    assert [verdict.error is None for verdict in verdicts] == [True, False, True]
    assert connection.in_transaction
    connection.commit()
    assert (ids(store), users(connect)) == (["taken"], ["eve"])


def test_taken_key_and_full_queue_do_not_abort_the_transaction(store: Store, connect: Connect) -> None:
    insert(store, "holder", key="k", payload='{"n": 1}')
    connection = connect()
    connection.execute("INSERT INTO users VALUES ('eve')")
    [taken] = store.insert_jobs_with(connection, [new_job("a", key="k")])
    [full] = store.insert_jobs_with(connection, [new_job("b", max_depth=1)])
    assert isinstance(taken.error, KeyTaken)
    assert isinstance(full.error, QueueFull)
    connection.commit()
    assert (ids(store), users(connect)) == (["holder"], ["eve"])


def test_savepoints_of_the_caller_are_left_as_they_are(store: Store, connect: Connect) -> None:
    connection = connect()
    connection.execute("INSERT INTO users VALUES ('eve')")
    connection.execute("SAVEPOINT mine")
    enqueue(store, connection, "a", "b")
    connection.execute("ROLLBACK TO mine")
    enqueue(store, connection, "c")
    connection.execute("RELEASE mine")
    connection.commit()
    assert (ids(store), users(connect)) == (["c"], ["eve"])


@pytest.mark.parametrize("level", [None, "IMMEDIATE"], ids=str)
@one_or_many
def test_enqueue_that_finds_the_database_locked_leaves_no_transaction_open(
    store: Store, connect: Connect, level: Any, names: tuple[str, ...]
) -> None:
    """Else the application's next INSERT would wait for a commit that nobody makes."""
    connection = connect(level, timeout=0)
    jobs = [new_job(name) for name in names]
    with store.transaction(), pytest.raises(sqlite3.OperationalError, match="locked"):
        store.insert_jobs_with(connection, jobs)
    assert not connection.in_transaction
    assert all(verdict.inserted for verdict in store.insert_jobs_with(connection, jobs))
    connection.commit()
    assert ids(store) == list(names)


@pytest.mark.parametrize("level", [None, ""], ids=str)
def test_enqueue_that_finds_the_disk_full_says_so_and_keeps_nothing(
    store: Store, connect: Connect, level: Any
) -> None:
    connection = connect(level)
    [(pages,)] = connection.execute("PRAGMA page_count").fetchall()
    connection.execute(f"PRAGMA max_page_count = {pages}").fetchall()
    large = '{"text": "' + "x" * 100_000 + '"}'
    with pytest.raises(sqlite3.OperationalError, match="full"):
        store.insert_jobs_with(connection, [new_job("a"), new_job("b", payload=large)])
    connection.commit()
    assert not connection.in_transaction
    assert ids(store) == []


def test_connection_to_another_database_is_refused(store: Store, connect: Connect, tmp_path: Path) -> None:
    connection = connect(path=tmp_path / "another.db")
    with pytest.raises(ConfigError, match=r"another\.db"):
        store.insert_jobs_with(connection, [new_job("a")])
    assert not connection.in_transaction


def test_connection_to_a_copy_of_the_queue_is_refused(store: Store, connect: Connect, tmp_path: Path) -> None:
    connect(None).execute("VACUUM INTO ?", (str(tmp_path / "copy.db"),))
    with pytest.raises(ConfigError, match=r"copy\.db"):
        store.insert_jobs_with(connect(path=tmp_path / "copy.db"), [new_job("a")])


def test_connection_to_memory_is_refused(store: Store, connect: Connect) -> None:
    with pytest.raises(ConfigError, match="in memory"):
        store.insert_jobs_with(connect(path=":memory:"), [new_job("a")])


def test_attached_queue_is_refused(store: Store, connect: Connect, tmp_path: Path) -> None:
    connection = connect(None, path=tmp_path / "another.db")
    connection.execute("ATTACH ? AS queue", (str(tmp_path / "queue.db"),))
    with pytest.raises(ConfigError):
        store.insert_jobs_with(connection, [new_job("a")])


@pytest.mark.parametrize("wrong", [None, "queue.db", object()])
def test_what_is_no_sqlite_connection_is_refused(store: Store, wrong: object) -> None:
    with pytest.raises(ConfigError, match=type(wrong).__name__):
        store.insert_jobs_with(wrong, [new_job("a")])


def test_another_path_to_the_same_file_is_the_same_database(
    store: Store, connect: Connect, tmp_path: Path
) -> None:
    (tmp_path / "folder").mkdir()
    connection = connect(path=tmp_path / "folder" / ".." / "queue.db")
    enqueue(store, connection, "a")
    connection.commit()
    assert ids(store) == ["a"]


# What is stored


def test_job_is_stored_as_any_other(store: Store, connect: Connect, clock: MovableClock) -> None:
    connection = connect()
    options: dict[str, Any] = {"type": "crawl", "payload": '{"n": 1}', "priority": 4, "max_attempts": 2}
    enqueue(store, connection, "with", **options, delay=60, key="k1", key_for=5.0, timeout=1.0)
    connection.commit()
    insert(store, "without", **options, delay=60, key="k2", key_for=5.0, timeout=1.0)
    one, other = job(store, "with"), job(store, "without")
    differ = {"id", "key"}
    assert all(
        getattr(one, name) == getattr(other, name) for name in one.__struct_fields__ if name not in differ
    )


def test_key_of_a_job_not_yet_committed_is_seen_by_its_own_transaction(
    store: Store, connect: Connect
) -> None:
    connection = connect()
    enqueue(store, connection, "a", key="k")
    [verdict] = store.insert_jobs_with(connection, [new_job("b", key="k")])
    assert (verdict.id, verdict.inserted) == ("a", False)
    connection.rollback()
    insert(store, "c", key="k")


def test_key_that_has_run_out_is_taken_over(store: Store, connect: Connect, clock: MovableClock) -> None:
    finish(store, run(store, "old", key="k", key_for=10))
    clock.advance(10)
    connection = connect()
    enqueue(store, connection, "new", key="k", payload='{"n": 2}')
    connection.commit()
    assert ids(store) == ["old", "new"]
