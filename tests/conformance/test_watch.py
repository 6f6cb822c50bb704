"""watch: an idle worker learns that another connection has committed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import closing

import pytest

from holdfast.store.protocol import Store, Watch
from tests.conformance.steps import claim_one, insert, rolled_back

SOON = 10.0
LATE = 60.0
"""Seconds: what is to happen at once happens SOON; a wait that nothing ends would last until LATE."""


@pytest.fixture
def watch(store: Store) -> Iterator[Watch]:
    with closing(store.watch()) as watch:
        yield watch


def waited(watch: Watch, timeout: float = LATE) -> float:
    began = time.monotonic()
    watch.wait(timeout)
    return time.monotonic() - began


def test_nothing_has_changed_at_first(watch: Watch) -> None:
    assert not watch.changed()


def test_commit_of_another_is_a_change_told_once(watch: Watch, other: Store) -> None:
    insert(other, "a")
    assert watch.changed()
    assert not watch.changed()


def test_own_commit_is_no_change(watch: Watch, store: Store) -> None:
    insert(store, "a")
    claim_one(store)
    assert not watch.changed()


def test_what_is_rolled_back_is_no_change(watch: Watch, other: Store) -> None:
    with rolled_back(other):
        insert(other, "a")
    assert not watch.changed()


def test_reading_is_no_change(watch: Watch, other: Store) -> None:
    other.count_jobs()
    assert not watch.changed()


def test_wait_ends_when_another_has_committed(watch: Watch, other: Store) -> None:
    insert(other, "a")
    assert waited(watch) < SOON
    assert watch.changed()


def test_wait_ends_when_another_commits_meanwhile(watch: Watch, other: Store) -> None:
    def commit() -> None:
        insert(other, "a")
        other.close_thread()

    thread = threading.Thread(target=commit)
    thread.start()
    assert waited(watch) < SOON
    thread.join()


def test_wait_ends_when_woken(watch: Watch) -> None:
    watch.wake()
    assert waited(watch) < SOON


def test_any_thread_may_wake(watch: Watch) -> None:
    thread = threading.Thread(target=watch.wake)
    thread.start()
    assert waited(watch) < SOON
    thread.join()


def test_waking_is_for_one_wait(watch: Watch) -> None:
    watch.wake()
    watch.wake()
    assert waited(watch) < SOON
    assert waited(watch, 0.02) >= 0.02
    watch.wake()
    assert waited(watch) < SOON


def test_wait_ends_in_time_when_nothing_happens(watch: Watch) -> None:
    assert 0.02 <= waited(watch, 0.02) < SOON
    assert waited(watch, 0.0) < SOON


def test_waking_what_is_closed_is_no_error(store: Store) -> None:
    watch = store.watch()
    watch.close()
    watch.wake()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts the descriptors in /proc")
def test_closed_watch_leaves_nothing_open(store: Store) -> None:
    store.watch().close()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        store.watch().close()
    assert len(os.listdir("/proc/self/fd")) == before
