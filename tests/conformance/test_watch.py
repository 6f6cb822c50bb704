"""watch: an idle worker learns that another connection has committed."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest

from holdfast.core.lifecycle import Completed, Errored, Released
from holdfast.store.protocol import Store, Watch
from holdfast.store.records import Claim, StopRequest, WorkerRecord
from holdfast.testing import MovableClock
from tests.conformance.engines import where
from tests.conformance.steps import claim_one, finish, finished, insert, new_job, rolled_back, run
from tests.support import open_files

SOON = 30.0
LATE = 60.0
"""Seconds: what is to happen at once happens SOON; a wait that nothing ends would last until LATE."""


@pytest.fixture
def watch(store: Store) -> Iterator[Watch]:
    with closing(store.watch()) as watch:
        yield watch


@pytest.fixture
def quiet(store: Store) -> Iterator[Watch]:
    """What a worker waits with, when all that went before is told."""
    with closing(store.watch(for_work=True)) as watch:
        settle(watch)
        yield watch


def settle(watch: Watch) -> None:
    for _ in range(100):
        watch.wait(0.02)
        if not watch.changed():
            return
    raise AssertionError("it is never quiet")


def waited(watch: Watch, timeout: float = LATE) -> float:
    began = time.monotonic()
    watch.wait(timeout)
    return time.monotonic() - began


@where(lambda engine: engine.knows_its_own)
def test_nothing_has_changed_at_first(watch: Watch) -> None:
    assert not watch.changed()


def test_commit_of_another_is_a_change(watch: Watch, other: Store) -> None:
    watch.changed()
    insert(other, "a")
    assert watch.changed()


def test_change_is_told_once(quiet: Watch, other: Store) -> None:
    insert(other, "a")
    assert waited(quiet) < SOON
    assert quiet.changed()
    assert not quiet.changed()


@where(lambda engine: not engine.knows_its_own)
def test_commit_is_told_though_a_later_one_was_told_before(
    watch: Watch, other: Store, connection: Any
) -> None:
    """Transactions do not end in the order in which they began to write."""
    connection.execute("BEGIN")
    connection.execute("CREATE TABLE application (n INTEGER)")
    insert(other, "a")
    assert watch.changed()
    watch.changed()
    connection.execute("COMMIT")
    assert watch.changed()


@where(lambda engine: engine.knows_its_own)
def test_own_commit_is_no_change(watch: Watch, store: Store) -> None:
    insert(store, "a")
    claim_one(store)
    assert not watch.changed()


@where(lambda engine: engine.knows_its_own)
def test_what_is_rolled_back_is_no_change(watch: Watch, other: Store) -> None:
    with rolled_back(other):
        insert(other, "a")
    assert not watch.changed()


def test_reading_is_no_change(quiet: Watch, other: Store) -> None:
    other.count_jobs()
    assert not quiet.changed()


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


def test_waking_is_for_one_wait(quiet: Watch) -> None:
    quiet.wake()
    quiet.wake()
    assert waited(quiet) < SOON
    assert waited(quiet, 0.02) >= 0.02
    quiet.wake()
    assert waited(quiet) < SOON


def test_wait_ends_in_time_when_nothing_happens(quiet: Watch) -> None:
    assert 0.02 <= waited(quiet, 0.02) < SOON
    assert waited(quiet, 0.0) < SOON


def test_waking_what_is_closed_is_no_error(store: Store) -> None:
    watch = store.watch()
    watch.close()
    watch.wake()


CAUSES: dict[str, Callable[[Store, Claim], object]] = {
    "insert": lambda other, held: insert(other, "new"),
    "insert for later": lambda other, held: insert(other, "new", delay=60),
    "retry": lambda other, held: other.retry_job("dead", None),
    "retry of all": lambda other, held: other.retry_failed_jobs(None, after=0, limit=10),
    "cancel": lambda other, held: other.cancel_job(held.id),
    "release": lambda other, held: finish(other, held, Released()),
    "error that is tried again": lambda other, held: finish(other, held, Errored("boom")),
    "child": lambda other, held: finish(other, held, Completed(), children=(new_job("child"),)),
    "promotion": lambda other, held: other.promote_jobs(10),
    "pause": lambda other, held: other.set_paused("email", True),
    "resume": lambda other, held: other.set_paused("paused", False),
    "setting": lambda other, held: other.set_setting("max_attempts", "", 7),
    "setting that is unset": lambda other, held: other.unset_setting("lease_seconds", ""),
    "stop request": lambda other, held: other.request_stop(["worker"], StopRequest.IN_ORDER),
}
"""What another may do that gives a worker something to do. `held` is an attempt of its own."""


@pytest.mark.parametrize("cause", CAUSES)
def test_worker_is_woken_by_what_another_gives_it_to_do(
    store: Store, other: Store, clock: MovableClock, cause: str
) -> None:
    finished(store, "dead", Errored("boom", permanent=True))
    insert(store, "due", delay=1)
    clock.advance(2)
    store.set_paused("paused", True)
    store.set_setting("lease_seconds", "", 5)
    worker = WorkerRecord(id="worker", host="h", pid=1, state="running", concurrency=1, types=("email",))
    store.register_worker(worker, [])
    held = run(store, "held")
    with closing(store.watch(for_work=True)) as watch:
        settle(watch)
        CAUSES[cause](other, held)
        assert waited(watch) < SOON
        assert watch.changed()


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="looks in /proc")
def test_closed_watch_leaves_nothing_open(store: Store) -> None:
    store.watch().close()
    before = open_files()
    for _ in range(5):
        store.watch().close()
    assert not open_files() - before
