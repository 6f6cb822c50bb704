"""Addresses: which open, which are refused, and that what is not ours stays untouched."""

from __future__ import annotations

import os
import sqlite3
import stat
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.core.clock import system_clock
from holdfast.errors import ConfigError, ForeignDatabase, SchemaOutOfDate, StoreUnavailable
from holdfast.store.migrate import VERSION_TABLE, Migration, pending
from holdfast.store.open import open_store, store_of
from holdfast.store.sqlite import open as sqlite_open
from holdfast.store.sqlite.schema import MIGRATIONS


def open_and_close(url: str) -> None:
    open_store(url, system_clock).close()


def query(path: Path, sql: str) -> list[tuple[object, ...]]:
    connection = sqlite3.connect(path)
    try:
        return connection.execute(sql).fetchall()
    finally:
        connection.close()


# Addresses.


def test_three_slashes_name_a_file_in_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    open_and_close("sqlite:///queue.db")
    assert (tmp_path / "queue.db").exists()


def test_a_relative_address_stays_where_it_was_when_the_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Queue("sqlite:///queue.db") as queue:
        job = queue.enqueue("crawl")
        monkeypatch.chdir(tmp_path / "elsewhere")
        store_of(queue).close_thread()
        assert queue.get(job.id) is not None
    assert not (tmp_path / "elsewhere" / "queue.db").exists()


def test_four_slashes_name_a_file_from_the_root(tmp_path: Path) -> None:
    open_and_close(f"sqlite:///{tmp_path}/queue.db")
    assert (tmp_path / "queue.db").exists()


def test_escapes_in_an_address_name_any_file(tmp_path: Path) -> None:
    open_and_close(f"sqlite:///{tmp_path}/my%20queue%3F.db")
    assert (tmp_path / "my queue?.db").exists()


@pytest.mark.parametrize(
    "url",
    ["", "queue.db", "sqlite:queue.db", "sqlite://", "sqlite:///", "sqlite://queue.db", "sqlite:///:memory:"],
)
def test_an_address_that_names_no_file_is_refused_and_says_how_to_write_it(url: str) -> None:
    with pytest.raises(ConfigError, match=r"sqlite:///queue\.db"):
        open_and_close(url)


def test_an_unknown_scheme_lists_the_engines_there_are() -> None:
    with pytest.raises(ConfigError, match=r"no engine for mongodb:// addresses; installed: .*sqlite"):
        open_and_close("mongodb://localhost/queue")


@pytest.mark.parametrize(
    ("word", "level"), [("full", 2), ("normal", 1), ("NORMAL", 1), ("extra", 3), ("off", 0)]
)
def test_durability_is_chosen_in_the_address(tmp_path: Path, word: str, level: int) -> None:
    store = sqlite_open.open_store(f"sqlite:///{tmp_path}/queue.db?synchronous={word}", system_clock)
    with store.transaction() as connection:
        assert connection.execute("PRAGMA synchronous").fetchone() == (level,)
    store.close()


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("synchronous=sometimes", "synchronous must be one of full, normal, extra, off"),
        ("synchronus=full", "no option 'synchronus'; allowed: synchronous, network"),
        ("network=yes", "network"),
    ],
)
def test_a_wrong_option_is_refused_and_lists_what_is_allowed(
    tmp_path: Path, query: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        open_and_close(f"sqlite:///{tmp_path}/queue.db?{query}")
    assert not (tmp_path / "queue.db").exists()


# Where the file may be.


def test_a_missing_folder_is_not_made(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="does not exist"):
        open_and_close(f"sqlite:///{tmp_path}/missing/queue.db")
    assert not (tmp_path / "missing").exists()


def test_the_home_folder_is_made_for_its_owner_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home = tmp_path / "home"
    monkeypatch.setenv("QUEUECTL_HOME", str(home))
    monkeypatch.delenv("QUEUECTL_DATABASE_URL", raising=False)
    with Queue() as queue:
        queue.enqueue("crawl")
    assert stat.S_IMODE(home.stat().st_mode) == 0o700


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_network_file_system_is_refused_and_names_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(sqlite_open, "file_system", lambda path: kind)
    with pytest.raises(StoreUnavailable, match="PostgreSQL"):
        open_and_close(f"sqlite:///{tmp_path}/queue.db")
    assert not (tmp_path / "queue.db").exists()
    open_and_close(f"sqlite:///{tmp_path}/queue.db?network=allow")


def test_a_folder_in_place_of_the_file_is_unavailable(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable):
        open_and_close(f"sqlite:///{tmp_path}")


def test_an_old_sqlite_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(StoreUnavailable, match="too old"):
        open_and_close(f"sqlite:///{tmp_path}/queue.db")


# What is in the file.


def test_a_new_file_becomes_a_queue_with_a_write_ahead_log(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    open_and_close(f"sqlite:///{path}")
    assert query(path, "PRAGMA journal_mode") == [("wal",)]
    assert query(path, f"SELECT version FROM {VERSION_TABLE}") == [(MIGRATIONS[-1].number,)]


def test_opening_again_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "queue.db"
    open_and_close(f"sqlite:///{path}")
    before = path.read_bytes()
    open_and_close(f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_an_applications_own_tables_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE users (name TEXT)")
    connection.execute("INSERT INTO users VALUES ('Ada')")
    connection.commit()
    connection.close()
    open_and_close(f"sqlite:///{path}")
    assert query(path, "SELECT name FROM users") == [("Ada",)]


def foreign_table(path: Path) -> None:
    query(path, "CREATE TABLE holdfast_jobs (id TEXT)")


def foreign_version_table(path: Path) -> None:
    query(path, f"CREATE TABLE {VERSION_TABLE} (owner TEXT)")


def newer_schema(path: Path) -> None:
    open_and_close(f"sqlite:///{path}")
    connection = sqlite3.connect(path)
    connection.execute(f"UPDATE {VERSION_TABLE} SET version = 999")
    connection.commit()
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()


def not_sqlite(path: Path) -> None:
    path.write_text("Dear Ada, " * 1000)


@pytest.mark.parametrize(
    ("make", "error", "problem"),
    [
        (foreign_table, ForeignDatabase, "'holdfast_jobs' that Holdfast did not create"),
        (foreign_version_table, ForeignDatabase, "that Holdfast did not create"),
        (newer_schema, SchemaOutOfDate, "schema version 999; .*upgrade"),
        (not_sqlite, ForeignDatabase, "is not a SQLite database"),
    ],
)
def test_what_is_not_ours_is_refused_untouched(
    tmp_path: Path, make: object, error: type[Exception], problem: str
) -> None:
    path = tmp_path / "queue.db"
    assert callable(make)
    make(path)
    before = path.read_bytes()
    with pytest.raises(error, match=problem):
        open_and_close(f"sqlite:///{path}")
    assert path.read_bytes() == before
    assert os.listdir(tmp_path) == ["queue.db"]


# Migrations.

STEPS = (Migration(1, "one", ()), Migration(2, "two", ()), Migration(3, "three", ()))


@pytest.mark.parametrize(("version", "numbers"), [(0, [1, 2, 3]), (1, [2, 3]), (2, [3]), (3, [])])
def test_a_database_gets_the_steps_it_lacks_in_order(version: int, numbers: list[int]) -> None:
    assert [step.number for step in pending(STEPS, version)] == numbers


def test_a_newer_database_is_refused_with_what_to_do() -> None:
    with pytest.raises(SchemaOutOfDate) as caught:
        pending(STEPS, 4)
    assert caught.value.hint is not None
    assert "upgrade" in caught.value.hint


def test_the_steps_are_numbered_without_gaps() -> None:
    assert [step.number for step in MIGRATIONS] == list(range(1, len(MIGRATIONS) + 1))


def test_a_migration_that_fails_leaves_no_half_schema(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = Migration(MIGRATIONS[-1].number + 1, "broken", ("CREATE TABLE holdfast_new (x)", "NONSENSE"))
    monkeypatch.setattr(sqlite_open, "MIGRATIONS", (*MIGRATIONS, broken))
    path = tmp_path / "queue.db"
    with pytest.raises(sqlite3.OperationalError):
        open_and_close(f"sqlite:///{path}")
    assert query(path, "SELECT name FROM sqlite_master") == []
