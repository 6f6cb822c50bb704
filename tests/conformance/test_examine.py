"""examine: what is wrong with the database and where it lives, each with what to do about it."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.clock import system_clock
from holdfast.store.protocol import Store
from holdfast.store.records import Finding
from holdfast.store.sqlite import SqliteStore, health, open_store
from holdfast.store.sqlite.health import MIB, has_wal_reset_bug
from tests.conformance.engines import where
from tests.conformance.steps import insert

CHECKS = {"SQLite", "durability", "file system", "free space", "WAL", "permissions", "file", "integrity"}
SERVER_CHECKS = {"PostgreSQL", "durability", "connections", "old transactions"}


@pytest.fixture
def safe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SqliteStore]:
    """A queue with nothing to find: on a disk with room, in a folder of its own, with full syncs."""
    monkeypatch.setattr(health, "file_system", lambda path: "ext4")
    monkeypatch.setattr(os, "statvfs", lambda path: room(100_000))
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 51, 3))
    folder = tmp_path / "own"
    folder.mkdir(mode=0o700)
    with closing(open_store(f"sqlite:///{folder / 'queue.db'}", system_clock)) as store:
        yield store


def room(mebibytes: int) -> Any:
    return SimpleNamespace(f_bavail=mebibytes * 256, f_bfree=10**12, f_frsize=4096, f_bsize=1)


def finding(store: Store, check: str) -> Finding:
    [found] = [found for found in store.examine() if found.check == check]
    return found


def path_of(store: SqliteStore) -> Path:
    return Path(store.database.path)


def test_queue_with_nothing_to_find_is_all_right(safe: SqliteStore) -> None:
    insert(safe, "a")
    findings = safe.examine()
    assert {found.check for found in findings} == CHECKS
    assert [found for found in findings if found.level != "ok"] == []


@where(lambda engine: engine.is_a_file)
def test_file_is_examined_in_every_respect(store: Store) -> None:
    assert {found.check for found in store.examine()} == CHECKS


@where(lambda engine: not engine.is_a_file)
def test_server_is_examined_in_every_respect(store: Store) -> None:
    assert {found.check for found in store.examine()} >= SERVER_CHECKS


def test_every_finding_that_is_not_ok_says_what_to_do(store: Store) -> None:
    findings = store.examine()
    assert {found.level for found in findings} <= {"ok", "warning", "problem"}
    assert [found for found in findings if (found.level == "ok") is not (found.advice is None)] == []


def test_examination_changes_nothing_and_waits_for_nobody(store: Store, connection: Any) -> None:
    insert(store, "a")
    before = store.count_jobs()
    connection.execute("BEGIN")
    connection.execute("UPDATE holdfast_jobs SET priority = 99")
    store.examine()
    connection.execute("ROLLBACK")
    assert store.count_jobs() == before


# SQLite's version


@pytest.mark.parametrize(
    "version",
    [
        (3, 7, 0),
        (3, 35, 0),
        (3, 43, 2),
        (3, 44, 0),
        (3, 44, 5),
        (3, 45, 0),
        (3, 49, 2),
        (3, 50, 0),
        (3, 50, 6),
        (3, 51, 0),
        (3, 51, 2),
    ],
    ids=str,
)
def test_versions_with_the_wal_reset_bug_are_known(version: tuple[int, ...]) -> None:
    assert has_wal_reset_bug(version)


@pytest.mark.parametrize(
    "version",
    [(3, 6, 23), (3, 44, 6), (3, 44, 9), (3, 50, 7), (3, 50, 11), (3, 51, 3), (3, 52, 0), (4, 0, 0)],
    ids=str,
)
def test_versions_without_it_are_known(version: tuple[int, ...]) -> None:
    assert not has_wal_reset_bug(version)


def test_buggy_version_is_all_right_where_only_we_write(
    safe: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 45, 1))
    found = finding(safe, "SQLite")
    assert (found.level, found.advice) == ("ok", None)
    assert "WAL-reset bug" in found.text


def test_buggy_version_is_a_warning_where_an_application_writes_too(
    safe: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(sqlite3.connect(path_of(safe))) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
        connection.execute("CREATE TABLE holdfasting (n INTEGER)")
    assert finding(safe, "SQLite").level == "ok"
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 45, 1))
    found = finding(safe, "SQLite")
    assert found.level == "warning"
    assert "2 tables" in found.text
    assert "wal_autocheckpoint" in str(found.advice)


# Durability


@pytest.mark.parametrize(
    ("word", "level"), [("full", "ok"), ("extra", "ok"), ("normal", "warning"), ("off", "warning")]
)
def test_commits_that_a_power_cut_may_lose_are_a_warning(tmp_path: Path, word: str, level: str) -> None:
    with closing(open_store(f"sqlite:///{tmp_path}/q.db?synchronous={word}", system_clock)) as store:
        found = finding(store, "durability")
    assert found.level == level
    assert word.upper() in found.text


def test_queue_whose_write_ahead_log_was_switched_off_is_a_problem(safe: SqliteStore) -> None:
    safe.close_thread()
    with closing(sqlite3.connect(path_of(safe))) as connection:
        assert connection.execute("PRAGMA journal_mode = DELETE").fetchall() == [("delete",)]
    found = finding(safe, "durability")
    assert (found.level, "delete" in found.text) == ("problem", True)


# Where it lives


@pytest.mark.parametrize(
    ("kind", "level"),
    [
        ("ext4", "ok"),
        ("xfs", "ok"),
        ("overlay", "ok"),
        ("", "ok"),
        ("tmpfs", "warning"),
        ("ramfs", "warning"),
        ("nfs", "problem"),
        ("nfs4", "problem"),
        ("cifs", "problem"),
        ("fuse.sshfs", "problem"),
    ],
)
def test_kind_of_file_system_decides(
    safe: SqliteStore, monkeypatch: pytest.MonkeyPatch, kind: str, level: str
) -> None:
    monkeypatch.setattr(health, "file_system", lambda path: kind)
    found = finding(safe, "file system")
    assert found.level == level
    assert kind in found.text
    assert str(path_of(safe).parent) in found.text


@pytest.mark.parametrize(
    ("free", "level"), [(0, "problem"), (99, "problem"), (100, "warning"), (1023, "warning"), (1024, "ok")]
)
def test_little_space_is_a_warning_and_too_little_a_problem(
    safe: SqliteStore, monkeypatch: pytest.MonkeyPatch, free: int, level: str
) -> None:
    monkeypatch.setattr(os, "statvfs", lambda path: room(free))
    found = finding(safe, "free space")
    assert (found.level, found.text) == (level, f"{free} MiB")


def test_large_wal_is_a_warning(safe: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safe.database.file, "wal_bytes", lambda: 64 * MIB)
    assert finding(safe, "WAL").level == "ok"
    monkeypatch.setattr(safe.database.file, "wal_bytes", lambda: 65 * MIB)
    found = finding(safe, "WAL")
    assert (found.level, found.text) == ("warning", "65.0 MiB")


# Who may read and write it


@pytest.mark.parametrize("suffix", ["", "-wal", "-shm"])
def test_file_that_everybody_can_write_is_a_problem(safe: SqliteStore, suffix: str) -> None:
    insert(safe, "a")
    file = Path(f"{path_of(safe)}{suffix}")
    file.chmod(0o666)
    found = finding(safe, "permissions")
    assert (found.level, found.text) == ("problem", f"{file} is writable by everyone")


def test_folder_that_everybody_can_write_is_a_problem_unless_it_is_sticky(safe: SqliteStore) -> None:
    folder = path_of(safe).parent
    folder.chmod(0o777)
    assert finding(safe, "permissions").level == "problem"
    path_of(safe).chmod(0o600)
    for beside in ("-wal", "-shm"):
        Path(f"{path_of(safe)}{beside}").chmod(0o600)
    folder.chmod(0o777 | stat.S_ISVTX)
    assert finding(safe, "permissions").level == "ok"


def test_file_that_everybody_can_read_is_a_warning_where_they_can_get_at_it(safe: SqliteStore) -> None:
    path_of(safe).chmod(0o644)
    path_of(safe).parent.chmod(0o755)
    found = finding(safe, "permissions")
    assert (found.level, found.advice) == ("warning", f"chmod 600 {path_of(safe)}")
    path_of(safe).parent.chmod(0o750)
    assert finding(safe, "permissions").level == "ok"


def test_file_that_we_can_not_write_is_a_problem(safe: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("queue.db"))
    found = finding(safe, "permissions")
    assert (found.level, found.text) == ("problem", f"{path_of(safe)} is not writable by this user")


# What is in it


def test_damage_is_a_problem(safe: SqliteStore) -> None:
    insert(safe, *(f"j{n}" for n in range(500)))
    path, url = path_of(safe), safe.url
    safe.close()
    with path.open("r+b") as file:  # nobody has it open
        # Behind the pages of the schema, which were made first, lie those of the jobs.
        file.seek(path.stat().st_size // 4096 * 3 // 4 * 4096)
        file.write(b"\xff" * 8192)
    with closing(open_store(url, system_clock)) as damaged:
        found = finding(damaged, "integrity")
    assert found.level == "problem"
    assert "restore the last backup" in str(found.advice)
