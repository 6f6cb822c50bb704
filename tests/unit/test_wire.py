"""The pipe between a worker and its handlers' processes: whole messages, however long, at a fair cost."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from holdfast.worker.executors.wire import LineReader

MESSAGE = b"x" * 32 * 1024 * 1024


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    yield reading, writing
    for descriptor in (reading, writing):
        with suppress(OSError):
            os.close(descriptor)


def write(descriptor: int, content: bytes) -> threading.Thread:
    """Write more than a pipe holds, and close it."""

    def pour() -> None:
        with os.fdopen(descriptor, "wb") as stream:
            stream.write(content)

    thread = threading.Thread(target=pour)
    thread.start()
    return thread


def test_long_message_costs_no_more_by_the_byte_than_a_short_one(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    writer = write(writing, MESSAGE + b"\nnext\n")
    reader = LineReader(reading, lambda: False)
    began = time.thread_time()
    assert reader.read_line() == MESSAGE
    assert time.thread_time() - began < 0.7, "read again and again from its beginning, it takes 2 s and more"
    assert reader.read_line() == b"next"
    assert reader.read_line() is None
    writer.join()


def test_messages_that_come_together_are_told_apart(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    write(writing, b"one\n\nthree\nhalf of a fou").join()
    reader = LineReader(reading, lambda: False)
    assert [reader.read_line() for _ in range(4)] == [b"one", b"", b"three", None]


def test_sender_that_is_gone_ends_it_though_somebody_holds_the_pipe_open(pipe: tuple[int, int]) -> None:
    reading, writing = pipe
    os.write(writing, b"one\n")
    reader = LineReader(reading, lambda: True)
    assert reader.read_line() == b"one"
    assert reader.read_line() is None
