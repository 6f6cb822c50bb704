"""What a long walk remembers: a set of texts and records by text, on disk, gone when it is closed."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from pathlib import Path

import pytest

from holdfast.store.disk_memory import DiskMemory
from tests.support import open_files

TEXTS = ["", " ", "a", "A", "ä", "a\u0308", "a\0b", "a\nb", "x" * 100_000, "x" * 99_999, "\U0001f40c"]


def test_a_text_is_added_once() -> None:
    with DiskMemory() as memory:
        assert [memory.add(text) for text in TEXTS] == [True] * len(TEXTS)
        assert [memory.add(text) for text in TEXTS] == [False] * len(TEXTS)


def test_records_come_in_the_order_they_were_made() -> None:
    with DiskMemory() as memory:
        for number in range(1000):
            memory.record(f"{number % 7}", f"{number}".encode())
        assert list(memory.records()) == [f"{number}".encode() for number in range(1000)]


def test_a_record_is_kept_as_it_is() -> None:
    data = bytes(range(256)) * 1000
    with DiskMemory() as memory:
        memory.record("a", data)
        memory.record("a", b"")
        assert list(memory.records()) == [data, b""]


def test_what_is_forgotten_is_gone_and_counted() -> None:
    with DiskMemory() as memory:
        for text in ("a", "b", "a"):
            memory.record(text, text.encode())
        assert memory.forget("a") == 2
        assert memory.forget("a") == 0
        assert memory.forget("c") == 0
        assert list(memory.records()) == [b"b"]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_that_look_alike_are_not_the_same(text: str) -> None:
    with DiskMemory() as memory:
        for other in TEXTS:
            memory.record(other, other.encode())
        assert memory.forget(text) == 1
        assert list(memory.records()) == [other.encode() for other in TEXTS if other != text]


def test_a_set_and_the_records_do_not_know_each_other() -> None:
    with DiskMemory() as memory:
        memory.record("a", b"")
        assert memory.add("a")
        memory.forget("a")
        assert not memory.add("a")


def test_two_of_them_share_nothing() -> None:
    with DiskMemory() as one, DiskMemory() as other:
        one.add("a")
        one.record("a", b"1")
        assert other.add("a")
        assert list(other.records()) == []


def test_a_closed_one_takes_nothing() -> None:
    with DiskMemory() as memory:
        pass
    with pytest.raises(sqlite3.ProgrammingError):
        memory.add("a")


def test_it_is_closed_also_by_an_error_and_in_the_middle_of_its_records() -> None:
    def leave() -> None:
        with DiskMemory() as memory:
            for number in range(3):
                memory.record(f"{number}", b"")
            for _ in memory.records():
                raise KeyError

    before = open_files()
    with pytest.raises(KeyError):
        leave()
    assert not open_files() - before


def test_it_may_be_made_in_one_thread_and_used_in_another() -> None:
    added: list[bool] = []
    with DiskMemory() as memory:
        thread = threading.Thread(target=lambda: added.append(memory.add("a")))
        thread.start()
        thread.join()
    assert added == [True]


def test_many_texts_take_no_memory_of_python_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than its cache of 4 MiB holds: what it spills goes to a file without a name."""
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    with DiskMemory() as memory:
        before = sys.getallocatedblocks()
        for number in range(90_000):
            assert memory.add(f"{number}")
        for _ in range(600):
            memory.record("a", b"x" * 10_000)
        assert not memory.add("0")
        assert not memory.add("89999")
        assert sys.getallocatedblocks() - before < 1000
        assert os.listdir(tmp_path) == []
        assert sum(1 for _ in memory.records()) == 600
    assert os.listdir(tmp_path) == []
