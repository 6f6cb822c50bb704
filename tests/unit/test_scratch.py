"""What a long walk remembers: a set of texts and records by text, on disk, gone when it is closed."""

from __future__ import annotations

import os
import sqlite3
import sys
import threading
from pathlib import Path

import pytest

from holdfast.store.scratch import Scratch

TEXTS = ["", " ", "a", "A", "ä", "a\u0308", "a\0b", "a\nb", "x" * 100_000, "x" * 99_999, "\U0001f40c"]


def test_a_text_is_added_once() -> None:
    with Scratch() as scratch:
        assert [scratch.add(text) for text in TEXTS] == [True] * len(TEXTS)
        assert [scratch.add(text) for text in TEXTS] == [False] * len(TEXTS)


def test_records_come_in_the_order_they_were_made() -> None:
    with Scratch() as scratch:
        for number in range(1000):
            scratch.record(f"{number % 7}", f"{number}".encode())
        assert list(scratch.records()) == [f"{number}".encode() for number in range(1000)]


def test_a_record_is_kept_as_it_is() -> None:
    data = bytes(range(256)) * 1000
    with Scratch() as scratch:
        scratch.record("a", data)
        scratch.record("a", b"")
        assert list(scratch.records()) == [data, b""]


def test_what_is_forgotten_is_gone_and_counted() -> None:
    with Scratch() as scratch:
        for text in ("a", "b", "a"):
            scratch.record(text, text.encode())
        assert scratch.forget("a") == 2
        assert scratch.forget("a") == 0
        assert scratch.forget("c") == 0
        assert list(scratch.records()) == [b"b"]


@pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
def test_texts_that_look_alike_are_not_the_same(text: str) -> None:
    with Scratch() as scratch:
        for other in TEXTS:
            scratch.record(other, other.encode())
        assert scratch.forget(text) == 1
        assert list(scratch.records()) == [other.encode() for other in TEXTS if other != text]


def test_a_set_and_the_records_do_not_know_each_other() -> None:
    with Scratch() as scratch:
        scratch.record("a", b"")
        assert scratch.add("a")
        scratch.forget("a")
        assert not scratch.add("a")


def test_two_of_them_share_nothing() -> None:
    with Scratch() as one, Scratch() as other:
        one.add("a")
        one.record("a", b"1")
        assert other.add("a")
        assert list(other.records()) == []


def test_a_closed_one_takes_nothing() -> None:
    with Scratch() as scratch:
        pass
    with pytest.raises(sqlite3.ProgrammingError):
        scratch.add("a")


def test_it_is_closed_also_by_an_error_and_in_the_middle_of_its_records() -> None:
    def leave() -> None:
        with Scratch() as scratch:
            for number in range(3):
                scratch.record(f"{number}", b"")
            for _ in scratch.records():
                raise KeyError

    before = os.listdir("/proc/self/fd")
    with pytest.raises(KeyError):
        leave()
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_it_may_be_made_in_one_thread_and_used_in_another() -> None:
    added: list[bool] = []
    with Scratch() as scratch:
        thread = threading.Thread(target=lambda: added.append(scratch.add("a")))
        thread.start()
        thread.join()
    assert added == [True]


def test_many_texts_take_no_memory_of_python_and_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than its cache of 4 MiB holds: what it spills goes to a file without a name."""
    monkeypatch.setenv("SQLITE_TMPDIR", str(tmp_path))
    with Scratch() as scratch:
        before = sys.getallocatedblocks()
        for number in range(90_000):
            assert scratch.add(f"{number}")
        for _ in range(600):
            scratch.record("a", b"x" * 10_000)
        assert not scratch.add("0")
        assert not scratch.add("89999")
        assert sys.getallocatedblocks() - before < 1000
        assert os.listdir(tmp_path) == []
        assert sum(1 for _ in scratch.records()) == 600
    assert os.listdir(tmp_path) == []
