"""Opening a SQLite file: what is made, what is refused untouched, and what lives beside our tables."""

from __future__ import annotations

import hashlib
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.clock import system_clock
from holdfast.errors import ConfigError, ForeignDatabase, SchemaOutOfDate, StoreUnavailable
from holdfast.store.migrate import VERSION_TABLE, Migration
from holdfast.store.open import open_store
from holdfast.store.protocol import Store
from holdfast.store.sqlite import open as opening
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.schema import MIGRATIONS
from tests.conformance.steps import claim_one, finish, insert, status

NEWEST = MIGRATIONS[-1].number


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{path}?synchronous=off", system_clock)) as store:
        yield store


@contextmanager
def connected(path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection


def run_sql(path: Path, *statements: str) -> list[Any]:
    """Run statements; the rows of the last one."""
    with connected(path) as connection:
        return [connection.execute(statement).fetchall() for statement in statements][-1]


def tables(path: Path) -> set[str]:
    return {row[0] for row in run_sql(path, "SELECT name FROM sqlite_master WHERE type = 'table'")}


def our_tables(path: Path) -> set[str]:
    return {name for name in tables(path) if name.startswith("holdfast_")}


def schema(path: Path) -> list[Any]:
    return run_sql(path, "SELECT type, name, sql FROM sqlite_master ORDER BY type, name")


def digest(folder: Path) -> dict[str, str]:
    """Every file of a folder by its content. Only for databases that nobody has open."""
    return {
        str(file.relative_to(folder)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in folder.rglob("*")
        if file.is_file()
    }


def refuse(path: Path, error: type[Exception], match: str | None = None) -> None:
    """Opening raises, and leaves every byte as it was."""
    before = digest(path.parent)
    with pytest.raises(error, match=match), opened(path):
        pass
    assert digest(path.parent) == before


# What is made


def test_new_file_is_made_with_its_schema(path: Path) -> None:
    with opened(path) as store:
        insert(store, "a")
    assert run_sql(path, f"SELECT version FROM {VERSION_TABLE}") == [(NEWEST,)]
    assert run_sql(path, "PRAGMA journal_mode") == [("wal",)]
    assert run_sql(path, "PRAGMA integrity_check") == [("ok",)]


def test_file_that_is_opened_again_is_as_it_was(path: Path) -> None:
    with opened(path) as store:
        insert(store, "a")
    before = schema(path)
    with opened(path) as store:
        assert status(store, "a") == "pending"
        assert finish(store, claim_one(store)) == "completed"
    assert schema(path) == before


def test_all_our_tables_bear_our_name(path: Path) -> None:
    with opened(path):
        pass
    assert {name for name in tables(path) if not name.startswith("sqlite_")} == our_tables(path)
    names = run_sql(path, "SELECT name FROM sqlite_master WHERE sql IS NOT NULL")
    assert {name for (name,) in names if not name.startswith(("holdfast_", "sqlite_"))} == set()


def test_empty_file_becomes_a_queue(path: Path) -> None:
    path.touch()
    with opened(path) as store:
        insert(store, "a")


def test_tables_of_an_application_live_beside_ours(path: Path) -> None:
    run_sql(
        path,
        "CREATE TABLE users (name TEXT)",
        "CREATE TABLE holdfast (n INTEGER)",
        "CREATE TABLE holdfasting (n INTEGER)",
        "INSERT INTO users VALUES ('eve')",
    )
    with opened(path) as store:
        insert(store, "a")
        assert run_sql(path, "SELECT name FROM users") == [("eve",)]
        run_sql(path, "CREATE INDEX users_name ON users (name)", "INSERT INTO users VALUES ('bob')")
        assert finish(store, claim_one(store)) == "completed"
    assert {"users", "holdfast", "holdfasting"} < tables(path)


def test_application_may_come_later(path: Path) -> None:
    with opened(path) as store:
        run_sql(path, "CREATE TABLE users (name TEXT)", "INSERT INTO users VALUES ('eve')")
        insert(store, "a")
    with opened(path) as store:
        assert status(store, "a") == "pending"
    assert run_sql(path, "SELECT name FROM users") == [("eve",)]


@pytest.mark.parametrize("name", ["with space.db", "žluť 😀.db", "per%cent.db", "plus+.db", "no_suffix"])
def test_file_may_have_any_name(tmp_path: Path, name: str) -> None:
    url = f"sqlite:///{tmp_path}/{name.replace('%', '%25')}"
    with closing(open_store(url, system_clock)) as store:
        insert(store, "a")
    assert (tmp_path / name).exists()


def test_relative_address_is_under_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with closing(open_store("sqlite:///queue.db", system_clock)) as store:
        insert(store, "a")
        monkeypatch.chdir("/")
        assert status(store, "a") == "pending"
    assert (tmp_path / "queue.db").exists()


def test_queue_that_is_a_link_is_opened(tmp_path: Path, path: Path) -> None:
    with opened(path) as store:
        insert(store, "a")
    link = tmp_path / "link.db"
    link.symlink_to(path)
    with opened(link) as store:
        assert status(store, "a") == "pending"


# What is refused, untouched


@pytest.mark.parametrize(
    "content",
    [
        b"xy",  # one byte alone is an empty database to SQLite
        b"this is not a database\n" * 100,
        b"\x00" * 4096,
        b"SQLite format 2\x00" + b"\x00" * 5000,
        b"PK\x03\x04" + bytes(range(256)) * 40,
    ],
    ids=["short", "text", "zeros", "other format", "zip"],
)
def test_file_that_is_not_sqlite_is_refused_untouched(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    refuse(path, ForeignDatabase, "not a SQLite database")


@pytest.mark.parametrize("name", ["holdfast_jobs", "holdfast_notes", "HOLDFAST_JOBS"])
def test_foreign_table_of_our_name_is_refused_untouched(path: Path, name: str) -> None:
    run_sql(path, f"CREATE TABLE {name} (n INTEGER)", f"INSERT INTO {name} VALUES (1)")
    refuse(path, ForeignDatabase, name)


def test_foreign_view_of_our_name_is_refused_untouched(path: Path) -> None:
    run_sql(path, "CREATE VIEW holdfast_jobs AS SELECT 1 AS n")
    refuse(path, ForeignDatabase, "holdfast_jobs")


@pytest.mark.parametrize(
    "statements",
    [
        [f"CREATE TABLE {VERSION_TABLE} (name TEXT)"],
        [f"CREATE TABLE {VERSION_TABLE} (version TEXT)", f"INSERT INTO {VERSION_TABLE} VALUES ('one')"],
        [f"CREATE TABLE {VERSION_TABLE} (version INTEGER)"],
        [f"CREATE TABLE {VERSION_TABLE} (version INTEGER)", f"INSERT INTO {VERSION_TABLE} VALUES (1), (2)"],
        [f"CREATE VIEW {VERSION_TABLE} AS SELECT 1 AS version, 2 AS other"],
    ],
    ids=["other columns", "text", "no row", "two rows", "view"],
)
def test_foreign_version_table_is_refused_untouched(path: Path, statements: list[str]) -> None:
    run_sql(path, *statements)
    refuse(path, ForeignDatabase)


def test_version_table_without_the_rest_is_refused_untouched(path: Path) -> None:
    run_sql(
        path,
        f"CREATE TABLE {VERSION_TABLE} (version INTEGER NOT NULL)",
        f"INSERT INTO {VERSION_TABLE} VALUES ({NEWEST})",
    )
    refuse(path, ForeignDatabase)


def test_newer_schema_is_refused_with_what_to_do(path: Path) -> None:
    with opened(path) as store:
        insert(store, "a")
    run_sql(path, f"UPDATE {VERSION_TABLE} SET version = {NEWEST + 1}", "PRAGMA wal_checkpoint(TRUNCATE)")
    refuse(path, SchemaOutOfDate, "upgrade Holdfast")


def test_foreign_file_keeps_its_journal_mode(path: Path) -> None:
    run_sql(path, "CREATE TABLE holdfast_jobs (n INTEGER)")
    refuse(path, ForeignDatabase)
    assert run_sql(path, "PRAGMA journal_mode") == [("delete",)]


def test_missing_folder_is_refused_by_name(tmp_path: Path) -> None:
    with (
        pytest.raises(StoreUnavailable, match="nowhere does not exist"),
        opened(tmp_path / "nowhere" / "q.db"),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


def test_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is a folder"), opened(tmp_path):
        pass


def test_file_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreUnavailable), opened(tmp_path / "file" / "queue.db"):
        pass


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite://:memory:", "sqlite://queue.db"]
)
def test_address_that_names_no_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, url: str
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="does not name a file"):
        open_store(url, system_clock)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("query", "named"),
    [
        ("mode=memory", "mode"),
        ("synchronous=fast", "synchronous"),
        ("synchronous=", "synchronous"),
        ("Synchronous=full", "Synchronous"),
        ("network=yes", "network"),
        ("synchronous=full&cache=shared", "cache"),
    ],
)
def test_bad_option_is_refused_by_name(path: Path, query: str, named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        open_store(f"sqlite:///{path}?{query}", system_clock)
    assert not path.exists()


@pytest.mark.parametrize("url", ["queue.db", "", "mysql://localhost/queue", "sqlite:/queue.db"])
def test_address_of_no_engine_is_refused(url: str) -> None:
    with pytest.raises(ConfigError):
        open_store(url, system_clock)


@pytest.mark.parametrize(
    ("query", "level"),
    [("", 2), ("?synchronous=full", 2), ("?synchronous=NORMAL", 1), ("?synchronous=off", 0)],
)
def test_commits_are_synced_in_full_unless_told_otherwise(path: Path, query: str, level: int) -> None:
    with closing(opening.open_store(f"sqlite:///{path}{query}", system_clock)) as store:
        assert store.database.read_one("PRAGMA synchronous") == (level,)


# Migrations


class Interrupted(Exception):
    """Stands for a crash inside a migration."""


def test_migration_that_fails_leaves_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = Migration(NEWEST, "broken", (*MIGRATIONS[-1].statements, "CREATE TABLE nonsense ("))
    monkeypatch.setattr(opening, "MIGRATIONS", (*MIGRATIONS[:-1], broken))
    with pytest.raises(sqlite3.OperationalError), opened(path):
        pass
    assert tables(path) == set()
    monkeypatch.undo()
    with opened(path) as store:
        insert(store, "a")


@pytest.mark.parametrize("part", [0, 1, 3, 10, -1])
def test_migration_interrupted_anywhere_leaves_nothing(
    path: Path, monkeypatch: pytest.MonkeyPatch, part: int
) -> None:
    run_sql(path, "CREATE TABLE users (name TEXT)")
    statements = list(MIGRATIONS[0].statements)
    statements[part] = Interrupting(statements[part])
    monkeypatch.setattr(opening, "MIGRATIONS", (Migration(1, "interrupted", tuple(statements)),))
    monkeypatch.setattr(Database, "connect_as", interruptible(Database.connect_as))
    with pytest.raises(Interrupted), opened(path):
        pass
    monkeypatch.undo()
    assert tables(path) == {"users"}
    with opened(path) as store:
        insert(store, "a")


class Interrupting(str):
    """A statement in the middle of which the process dies."""

    __slots__ = ()


def interruptible(connect_as: Any) -> Any:
    class Connection(sqlite3.Connection):
        def execute(self, sql: str, *parameters: Any) -> sqlite3.Cursor:
            cursor = super().execute(sql, *parameters)
            if isinstance(sql, Interrupting):
                raise Interrupted
            return cursor

    return lambda self, _kind: connect_as(self, Connection)


def test_older_schema_is_brought_up_to_date_with_its_jobs(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as store:
        insert(store, "a")
    step = Migration(NEWEST + 1, "a new table", ("CREATE TABLE holdfast_new (n INTEGER)",))
    monkeypatch.setattr(opening, "MIGRATIONS", (*MIGRATIONS, step))
    with opened(path) as store:
        assert status(store, "a") == "pending"
    assert "holdfast_new" in our_tables(path)
    assert run_sql(path, f"SELECT version FROM {VERSION_TABLE}") == [(NEWEST + 1,)]


def test_older_schema_stays_as_it_was_when_its_migration_fails(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened(path) as store:
        insert(store, "a")
    before = schema(path)
    step = Migration(
        NEWEST + 1,
        "half",
        ("CREATE TABLE holdfast_new (n INTEGER)", "DROP TABLE holdfast_pauses", "NONSENSE"),
    )
    monkeypatch.setattr(opening, "MIGRATIONS", (*MIGRATIONS, step))
    with pytest.raises(sqlite3.OperationalError), opened(path):
        pass
    monkeypatch.undo()
    assert schema(path) == before
    with opened(path) as store:
        assert status(store, "a") == "pending"


# Opening at once


def test_threads_that_open_a_new_file_at_once_share_one_schema(path: Path) -> None:
    barrier = threading.Barrier(4)
    problems: list[BaseException] = []

    def open_and_insert(id: str) -> None:
        try:
            barrier.wait(30)
            with opened(path) as store:
                insert(store, id)
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=open_and_insert, args=(f"job-{n}",)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert problems == []
    with opened(path) as store:
        assert sum(store.count_jobs()["email"].values()) == 4


OPEN_AND_INSERT = """
import sys
from holdfast.core.clock import system_clock
from holdfast.store.open import open_store
from holdfast.store.records import NewJob

url, id = sys.argv[1:]
print("ready", flush=True)
sys.stdin.readline()
store = open_store(url, system_clock)
[verdict] = store.insert_jobs([NewJob(id=id, type="email", payload="{}", token=id)])
store.close()
sys.exit(0 if verdict.inserted else 1)
"""


@pytest.mark.process
def test_processes_that_open_a_new_file_at_once_share_one_schema(path: Path) -> None:
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", OPEN_AND_INSERT, f"sqlite:///{path}", f"job-{n}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for n in range(3)
    ]
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    ends = [(process.communicate(timeout=60)[1], process.returncode) for process in processes]
    assert ends == [("", 0)] * 3
    with opened(path) as store:
        assert sum(store.count_jobs()["email"].values()) == 3


def test_opening_waits_for_a_writer_that_is_at_work(path: Path) -> None:
    """A file that an application is writing to, in whatever journal mode, is opened when it is done."""
    begun, end = threading.Event(), threading.Event()

    def write() -> None:
        with connected(path) as connection:
            connection.execute("BEGIN IMMEDIATE")
            connection.execute("CREATE TABLE users (name TEXT)")
            begun.set()
            assert end.wait(30)
            connection.execute("COMMIT")

    writer = threading.Thread(target=write)
    writer.start()
    assert begun.wait(30)
    opener = threading.Thread(target=lambda: opened_once(path))
    opener.start()
    end.set()
    writer.join()
    opener.join()
    assert our_tables(path)
    assert "users" in tables(path)


def opened_once(path: Path) -> None:
    with opened(path) as store:
        insert(store, "a")


def test_closed_store_leaves_no_file_open(path: Path) -> None:
    with opened(path) as store:
        insert(store, "a")
    assert sorted(file.name for file in path.parent.iterdir()) == ["queue.db"]


def test_closed_store_refuses_and_can_be_closed_again(path: Path) -> None:
    with opened(path) as store:
        insert(store, "a")
    store.close()
    with pytest.raises((StoreUnavailable, sqlite3.ProgrammingError)):
        store.count_jobs()
