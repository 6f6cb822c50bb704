"""Threads that make calls for coroutines."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError
from functools import partial

import pytest

from holdfast.system.threads import Threads
from tests.support import wait_until

PATIENCE = 60.0


def test_calls_beyond_the_number_of_threads_wait_in_line() -> None:
    threads = Threads("holdfast-test", 2)
    go_on, order = threading.Event(), list[int]()
    both = threading.Barrier(3)

    def busy() -> None:
        both.wait(PATIENCE)
        go_on.wait(PATIENCE)

    first = [threads.submit(busy) for _ in range(2)]
    waiting = [threads.submit(partial(order.append, number)) for number in range(20)]
    both.wait(PATIENCE)  # both are at it
    assert order == []
    go_on.set()
    for future in (*first, *waiting):
        future.result(PATIENCE)
    assert sorted(order) == list(range(20))


def test_idle_thread_takes_the_next_call() -> None:
    threads = Threads("holdfast-test", 8)
    seen = set[int | None]()
    for _ in range(10):
        threads.submit(lambda: seen.add(threading.current_thread().ident)).result(PATIENCE)
        wait_until(lambda: threads._idle == 1)
    assert len(seen) == 1


def test_error_is_the_callers() -> None:
    def fail() -> None:
        raise KeyError("this one")

    with pytest.raises(KeyError, match="this one"):
        Threads("holdfast-test", 1).submit(fail).result(PATIENCE)


def test_call_that_was_cancelled_in_line_is_not_made() -> None:
    threads = Threads("holdfast-test", 1)
    go_on, made = threading.Event(), list[str]()
    busy = threads.submit(lambda: go_on.wait(PATIENCE))
    cancelled, last = threads.submit(lambda: made.append("cancelled")), threads.submit(lambda: None)
    assert cancelled.cancel()
    go_on.set()
    busy.result(PATIENCE)
    last.result(PATIENCE)
    assert made == []
    with pytest.raises(CancelledError):
        cancelled.result(0)


def test_where_no_thread_can_be_started_the_caller_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    threads = Threads("holdfast-test", 2)
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            threads.submit(lambda: None)
    threads.submit(lambda: None).result(PATIENCE)
