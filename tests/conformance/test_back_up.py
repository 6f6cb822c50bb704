"""back_up: a complete copy of the queue as it is at one moment, or nothing."""

from __future__ import annotations

import os
import sqlite3
import stat
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast.core.lifecycle import Errored
from holdfast.errors import HoldfastError, StoreUnavailable
from holdfast.store import backup
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore
from holdfast.store.protocol import Store
from holdfast.store.records import JobFilter
from holdfast.store.sqlite import SqliteStore
from holdfast.testing import MovableClock
from tests.conformance.engines import where
from tests.conformance.steps import claim_one, everything, finish, finished, insert, new_job, run, status


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Where the copy is to be."""
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder / "copy.db"


def opened(path: Path, clock: MovableClock) -> closing[Store]:
    return closing(open_store(f"sqlite:///{path}?synchronous=off", clock))


def names(copy: Path) -> list[str]:
    return sorted(os.listdir(copy.parent))


def test_copy_is_the_whole_queue(store: Store, clock: MovableClock, copy: Path) -> None:
    finished(store, "done")
    finished(store, "dead", Errored("boom", permanent=True), key="k", key_for=60)
    finish(store, run(store, "retrying"), Errored("boom"))
    run(store, "running")
    insert(store, "later", delay=60)
    store.set_setting("max_attempts", "", 7)
    store.set_paused("crawl", True)
    store.back_up(str(copy))
    with opened(copy, clock) as copied:
        assert everything(copied) == everything(store)
        assert copied.count_jobs() == store.count_jobs()
        assert copied.get_settings() == store.get_settings()
        assert copied.list_paused() == store.list_paused()
        assert copied.list_running(10) == store.list_running(10)


def test_copy_is_a_queue_of_its_own(store: Store, clock: MovableClock, copy: Path) -> None:
    insert(store, "a")
    store.back_up(str(copy))
    with opened(copy, clock) as copied:
        finish(copied, claim_one(copied))
        insert(copied, "b")
        assert (status(copied, "a"), status(store, "a")) == ("completed", "pending")
    assert store.get_job("b") is None
    insert(store, "c")


def test_copy_is_one_sound_file_with_nothing_beside_it(store: Store, copy: Path) -> None:
    insert(store, *(f"j{n}" for n in range(200)))
    store.back_up(str(copy))
    assert names(copy) == ["copy.db"]
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("SELECT count(*) FROM holdfast_jobs").fetchone() == (200,)


def test_name_may_be_relative_and_odd(
    store: Store, copy: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(store, "a")
    monkeypatch.chdir(copy.parent)
    store.back_up("it's 100% odd? ü#.db")
    assert names(copy) == ["it's 100% odd? ü#.db"]


@where(lambda engine: engine.is_a_file)
def test_tables_of_an_application_are_copied_too(store: Store, connection: Any, copy: Path) -> None:
    connection.execute("CREATE TABLE users (name TEXT)")
    connection.execute("INSERT INTO users VALUES ('eve')")
    store.back_up(str(copy))
    with closing(sqlite3.connect(copy)) as copied:
        assert copied.execute("SELECT name FROM users").fetchall() == [("eve",)]


# While others write


def test_copy_holds_whole_commits_while_another_writes(
    store: Store, other: Store, clock: MovableClock, copy: Path
) -> None:
    """Everything committed before it began is in it, and of each later commit all or nothing."""
    insert(store, *(f"before-{n}" for n in range(300)))
    going, stop = threading.Event(), threading.Event()
    problems: list[BaseException] = []

    def write() -> None:
        try:
            for n in range(100_000):
                other.insert_jobs([new_job(f"job-{n}-{part}") for part in range(10)])
                going.set()
                if stop.is_set():
                    break
        except BaseException as problem:
            problems.append(problem)
        finally:
            other.close_thread()

    writer = threading.Thread(target=write)
    writer.start()
    try:
        assert going.wait(30)
        for number in range(3):
            seen = sum(store.count_jobs()["email"].values())
            target = copy.with_name(f"copy-{number}.db")
            store.back_up(str(target))
            with closing(sqlite3.connect(target)) as connection:
                [(count,)] = connection.execute("SELECT count(*) FROM holdfast_jobs").fetchall()
                [(kept,)] = connection.execute("SELECT sum(pending) FROM holdfast_counts").fetchall()
                assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
            assert count >= seen
            assert (count % 10, kept) == (0, count)
    finally:
        stop.set()
        writer.join(60)
    assert problems == []
    assert not writer.is_alive()


def test_open_transaction_of_another_is_neither_waited_for_nor_copied(
    store: Store, connection: Any, copy: Path
) -> None:
    insert(store, "a")
    connection.execute("BEGIN")
    connection.execute("UPDATE holdfast_jobs SET priority = 99")
    store.back_up(str(copy))
    connection.execute("ROLLBACK")
    with closing(sqlite3.connect(copy)) as copied:
        assert copied.execute("SELECT priority FROM holdfast_jobs").fetchall() == [(0,)]


# What is refused


@pytest.mark.parametrize("kind", ["file", "empty file", "folder", "link", "broken link"])
def test_existing_name_is_refused_untouched(store: Store, copy: Path, kind: str) -> None:
    insert(store, "a")
    elsewhere = copy.with_name("elsewhere")
    if kind == "folder":
        copy.mkdir()
    elif "link" in kind:
        copy.symlink_to(elsewhere)
        if kind == "link":
            elsewhere.write_bytes(b"precious")
    else:
        copy.write_bytes(b"precious" if kind == "file" else b"")
    before = names(copy), copy.lstat()
    with pytest.raises(StoreUnavailable, match=r"copy\.db already exists"):
        store.back_up(str(copy))
    assert names(copy) == before[0]
    assert copy.lstat().st_mtime_ns == before[1].st_mtime_ns
    if kind == "file":
        assert copy.read_bytes() == b"precious"


@where(lambda engine: engine.is_a_file)
def test_queue_itself_is_not_overwritten(store: Store, tmp_path: Path) -> None:
    insert(store, "a")
    with pytest.raises(StoreUnavailable, match="already exists"):
        store.back_up(str(tmp_path / "queue.db"))
    assert status(store, "a") == "pending"


def test_missing_folder_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="nowhere does not exist"):
        store.back_up(str(tmp_path / "nowhere" / "copy.db"))
    assert not (tmp_path / "nowhere").exists()


def test_name_that_somebody_takes_meanwhile_is_left_to_him(
    store: Store, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    insert(store, "a")

    def taken(path: str, sync: Any = backup._sync) -> None:
        if path.endswith(".part"):
            copy.write_bytes(b"precious")
        sync(path)

    monkeypatch.setattr(backup, "_sync", taken)
    with pytest.raises(StoreUnavailable):
        store.back_up(str(copy))
    assert copy.read_bytes() == b"precious"
    assert names(copy) == ["copy.db"]


def test_two_copies_to_one_name_at_once_make_one_whole_file(
    store: Store, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second comes when the first has written its part and not yet given it its name."""
    insert(store, "a")
    outcomes: list[str] = []

    def twice(path: str, sync: Any = backup._sync) -> None:
        monkeypatch.undo()
        try_back_up()
        sync(path)

    def try_back_up() -> None:
        try:
            store.back_up(str(copy))
            outcomes.append("made")
        except HoldfastError:
            outcomes.append("refused")

    monkeypatch.setattr(backup, "_sync", twice)
    try_back_up()
    assert sorted(outcomes) == ["made", "refused"]
    assert names(copy) == ["copy.db"]


# Trouble, and who may read it


def test_copy_is_for_its_owner_alone_from_the_first_byte(
    store: SqliteStore | PostgresStore, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Payloads are in it; a copy that becomes private at the end was readable for minutes."""
    insert(store, "a")
    modes: list[int] = []

    def watched(sql: str, parameters: Any = (), read: Any = store.database.read) -> Any:
        rows = read(sql, parameters)
        modes.extend(stat.S_IMODE(file.stat().st_mode) for file in copy.parent.iterdir())
        return rows

    monkeypatch.setattr(store.database, "read", watched)
    before = os.umask(0o022)
    try:
        store.back_up(str(copy))
    finally:
        os.umask(before)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    assert set(modes) == {0o600}


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", path], check=True)
    yield path
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.mark.process
def test_full_disk_leaves_nothing(store: Store, small_disk: Path) -> None:
    insert(store, *(f"j{n}" for n in range(100)), payload='{"text": "' + "x" * 10_000 + '"}')
    with pytest.raises(StoreUnavailable, match="full"):
        store.back_up(str(small_disk / "copy.db"))
    assert os.listdir(small_disk) == []
    insert(store, "the queue goes on")


@pytest.mark.parametrize("step", ["link", "fsync"])
def test_error_at_any_step_leaves_nothing_and_is_told(
    store: Store, copy: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    insert(store, "a")

    def broken(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patched:
        patched.setattr(os, step, broken)
        with pytest.raises(StoreUnavailable, match="Input/output error"):
            store.back_up(str(copy))
    assert names(copy) == []
    store.back_up(str(copy))
    assert names(copy) == ["copy.db"]


def test_ctrl_c_as_the_file_is_made_leaves_nothing(
    store: Store, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(path: str, flags: int, *args: Any, **options: Any) -> int:
        os.close(made(path, flags, *args, **options))
        raise KeyboardInterrupt

    made = os.open
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", interrupted)
        with pytest.raises(KeyboardInterrupt):
            store.back_up(str(copy))
    assert names(copy) == []
    store.back_up(str(copy))
    assert names(copy) == ["copy.db"]


def test_part_left_by_a_crash_is_in_nobodys_way(store: Store, copy: Path) -> None:
    insert(store, "a")
    copy.with_name(f"copy.db.{os.getpid()}.part").write_bytes(b"half a copy")
    store.back_up(str(copy))
    assert store.list_jobs(JobFilter())[0].id == "a"
    with closing(sqlite3.connect(copy)) as connection:
        assert connection.execute("SELECT id FROM holdfast_jobs").fetchall() == [("a",)]
