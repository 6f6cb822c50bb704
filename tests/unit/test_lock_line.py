"""LockLine: threads that wait for each other's write lock are woken in turn, and never rely on it."""

from __future__ import annotations

import sqlite3
import threading
import time
from pathlib import Path

import pytest

from holdfast.errors import StoreBusy
from holdfast.store.sqlite import lock_line
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.lock_line import LockLine
from tests.support import wait_until


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> LockLine:
    """The lock is with a thread of this process, which takes as long as a test may."""
    monkeypatch.setattr(lock_line, "_HANDED_ON_WITHIN", 60.0)
    line = LockLine()
    line.taken()
    return line


def waiting(line: LockLine, woken: list[str], name: str, *, again: bool = False) -> threading.Thread:
    """A thread that stands in line, and says when it is woken."""
    count = len(line._waiting)

    def wait() -> None:
        line.pause(again=again)
        woken.append(name)

    thread = threading.Thread(target=wait)
    thread.start()
    wait_until(lambda: len(line._waiting) > count)
    return thread


def test_who_came_first_is_woken_first_and_one_at_a_time(line: LockLine) -> None:
    woken: list[str] = []
    threads = [waiting(line, woken, name) for name in ("first", "second", "third")]
    for thread in threads:
        line.freed()
        line.taken()
        thread.join(10)
    assert woken == ["first", "second", "third"]


def test_who_was_woken_in_vain_keeps_its_place(line: LockLine) -> None:
    woken: list[str] = []
    second = waiting(line, woken, "second")
    first = waiting(line, woken, "first", again=True)
    line.freed()
    first.join(10)
    line.freed()
    second.join(10)
    assert woken == ["first", "second"]


def test_nobody_waits_for_long_who_is_not_woken() -> None:
    line = LockLine()
    for take in (line.freed, line.taken):
        take()
        began = time.monotonic()
        line.pause(again=False)
        assert time.monotonic() - began < 5  # a bound for a stuck thread, not a measurement
        assert not line._waiting


def test_waking_nobody_is_no_error() -> None:
    LockLine().freed()


def test_lock_is_handed_on_at_once_after_a_commit_and_after_a_rollback(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_line, "_HANDED_ON_WITHIN", 60.0)
    database = Database(str(tmp_path / "queue.db"), url="sqlite:///queue.db")
    began = threading.Event()

    def take() -> None:
        with database.transaction():
            began.set()
        database.close_thread()

    try:
        for ends_well in (True, False):
            began.clear()
            thread = threading.Thread(target=take)
            try:
                with database.transaction() as connection:
                    thread.start()
                    wait_until(lambda: len(database._line._waiting) == 1)
                    if not ends_well:
                        connection.execute("SELECT * FROM missing")
            except sqlite3.OperationalError:
                assert not ends_well
            assert began.wait(10)
            thread.join(10)
    finally:
        database.close()


def test_lock_of_another_process_is_tried_again_without_being_woken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lock_line, "_HANDED_ON_WITHIN", 60.0)
    path = tmp_path / "queue.db"
    database = Database(str(path), url="sqlite:///queue.db")
    other = sqlite3.connect(path, isolation_level=None)
    try:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreBusy), database.transaction(patience=0.01):
            pass
        other.execute("ROLLBACK")
        with database.transaction():
            pass
    finally:
        other.close()
        database.close()
