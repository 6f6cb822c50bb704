"""NOTIFY: few of them, none lost, none in a commit of ours; and workers that hear them."""

from __future__ import annotations

import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from typing import Any

import psycopg
import pytest

from holdfast import Queue
from holdfast.core.clock import system_clock
from holdfast.errors import QueueClosed
from holdfast.events import JobCompleted, WorkerStarted
from holdfast.store.open import open_store, store_of
from holdfast.store.postgres import PostgresStore, notify
from holdfast.store.postgres.notify import channel
from holdfast.store.records import NewJob
from tests import postgres
from tests.support import Recorder, open_files, wait_until

SOON = 30.0
"""Seconds, where without a NOTIFY it would take a minute."""


@pytest.fixture
def address() -> Iterator[str]:
    with postgres.fresh_url() as url:
        yield url


@pytest.fixture
def queue(address: str) -> Iterator[Queue]:
    with Queue(address, defaults={"poll_interval": 60}) as queue:
        yield queue.open()


class Ear:
    """Hears what is told to workers."""

    def __init__(self, queue: Queue) -> None:
        self._connection = psycopg.connect(postgres.server_url(), autocommit=True)
        self._connection.execute(f"LISTEN {channel(database_of(queue).identity)}")

    def heard(self, expected: int = 0) -> int:
        """How many have come by now; waits for as many as are expected."""
        count = sum(1 for _ in self._connection.notifies(timeout=10, stop_after=expected)) if expected else 0
        self._connection.execute("SELECT 1")  # what was sent before has come by then
        return count + sum(1 for _ in self._connection.notifies(timeout=0))

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def ear(queue: Queue) -> Iterator[Ear]:
    with closing(Ear(queue)) as ear:
        yield ear


def database_of(queue: Queue) -> Any:
    assert isinstance(store_of(queue), PostgresStore)
    return store_of(queue).database


def test_burst_of_many_threads_is_told_in_few_words(queue: Queue, ear: Ear) -> None:
    def enqueue() -> None:
        for _ in range(125):
            queue.enqueue("burst", {})

    began = time.monotonic()
    threads = [threading.Thread(target=enqueue) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queue.close()
    took = time.monotonic() - began
    heard = ear.heard(1)
    assert 1 <= heard <= took / 0.005 + 2
    assert queue.count(type="burst") == 1000


def test_first_of_a_burst_is_told_at_once_and_the_last_is_not_forgotten(
    queue: Queue, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notify, "PAUSE", 60.0)
    queue.enqueue("a", {})
    assert ear.heard() == 1
    for _ in range(3):
        queue.enqueue("a", {})
    notifier = database_of(queue).notifier
    notifier._timer.cancel()
    notifier._send_late()  # as the timer would
    assert ear.heard() == 1


def test_process_that_ends_without_closing_its_queue_tells_of_its_last_job(queue: Queue, ear: Ear) -> None:
    program = """
        import sys
        from holdfast import Queue
        from holdfast.store.postgres import notify

        notify.PAUSE = 0.3
        queue = Queue(sys.argv[1])
        queue.enqueue("a", {})
        queue.enqueue("a", {})
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program), queue.url], check=True, timeout=30)
    assert ear.heard(2) == 2


def test_close_waits_for_one_that_is_being_sent(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its connection would be left open, and its message refused."""
    monkeypatch.setattr(notify, "PAUSE", 0.2)
    database = database_of(queue)
    at_it, go_on = threading.Event(), threading.Event()

    def send() -> None:
        at_it.set()
        go_on.wait(60)

    queue.enqueue("a", {})
    monkeypatch.setattr(database.notifier, "_send", send)
    queue.enqueue("a", {})  # of which the timer tells
    assert at_it.wait(60)
    closing_it = threading.Thread(target=database.notifier.close)
    closing_it.start()
    closing_it.join(0.1)
    assert closing_it.is_alive()
    go_on.set()
    closing_it.join()
    wait_until(lambda: not database.notifier._late)


def test_job_is_stored_though_no_thread_can_be_started_to_tell_of_it(
    queue: Queue, ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: object) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(notify, "PAUSE", 0.5)
    queue.enqueue("a", {})
    monkeypatch.setattr(threading.Timer, "start", refuse)
    for _ in range(3):
        queue.enqueue("a", {})
    monkeypatch.undo()
    assert ear.heard(4) == 4
    queue.enqueue("a", {})
    assert ear.heard(1) == 1


def test_queue_that_is_not_to_notify_does_not(address: str, queue: Queue, ear: Ear) -> None:
    with Queue(address, notify=False) as silent:
        for _ in range(3):
            silent.enqueue("a", {})
    assert ear.heard() == 0


def test_notify_is_never_part_of_a_commit(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    database = database_of(queue)
    sessions = []
    monkeypatch.setattr(database.notifier, "touch", lambda: sessions.append(database.session))
    job = queue.enqueue("a", {})
    with store_of(queue).transaction():
        queue.cancel(job.id)
        assert sessions == [None]
    assert sessions == [None, None]


def test_what_is_rolled_back_is_told_to_nobody(queue: Queue, ear: Ear) -> None:
    with suppress(ZeroDivisionError), store_of(queue).transaction():
        store_of(queue).insert_jobs([NewJob(id="a", type="a", payload="{}", token="a")])
        raise ZeroDivisionError
    assert queue.count(type="a") == 0
    database_of(queue).notifier.close()
    assert ear.heard() == 0


# Workers


@pytest.fixture
def worker_of(queue: Queue, start_worker: Callable[..., Any]) -> Recorder:
    """A worker that is idle, and looks by itself only once in a minute."""
    queue.register("a", lambda payload: None)
    recorder = Recorder(queue.events)
    start_worker(concurrency=1)
    recorder.wait(WorkerStarted)
    return recorder


def listening(queue: Queue) -> list[int]:
    with psycopg.connect(postgres.server_url()) as connection:
        rows = connection.execute(
            "SELECT pid FROM pg_stat_activity WHERE query = %s",
            [f"LISTEN {channel(database_of(queue).identity)}"],
        )
        return [pid for (pid,) in rows]


def test_idle_worker_starts_what_another_process_enqueues(
    address: str, queue: Queue, worker_of: Recorder
) -> None:
    with Queue(address) as other:
        other.open()
        for count in (1, 2, 3):
            began = time.monotonic()
            other.enqueue("a", {})
            worker_of.wait(JobCompleted, count=count, timeout=SOON)
            assert time.monotonic() - began < SOON


def test_worker_whose_ear_was_cut_off_hears_again(address: str, queue: Queue, worker_of: Recorder) -> None:
    before = listening(queue)
    assert len(before) == 1
    with psycopg.connect(postgres.server_url(), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(%s, 5000)", before)
    wait_until(lambda: listening(queue) and listening(queue) != before, 30)
    with Queue(address) as other:
        other.enqueue("a", {})
        worker_of.wait(JobCompleted, timeout=SOON)


def test_worker_of_a_queue_that_does_not_notify_looks_by_itself(
    address: str, start_worker: Callable[..., Any]
) -> None:
    with Queue(address, notify=False, defaults={"poll_interval": 60}) as queue, Queue(address) as other:
        queue.register("a", lambda payload: None)
        recorder = Recorder(queue.events)
        worker = start_worker(queue, concurrency=1)
        recorder.wait(WorkerStarted)
        assert listening(queue) == []
        other.enqueue("a", {})
        recorder.wait(JobCompleted, timeout=SOON)
        worker.stop(timeout=5)


def test_watch_that_can_not_begin_leaves_nothing_open(address: str) -> None:
    store = open_store(address, system_clock)
    before = open_files()
    store.close()
    for _ in range(3):
        with pytest.raises(QueueClosed):
            store.watch()
    assert not open_files() - before


def test_stopped_worker_leaves_no_connection(queue: Queue, start_worker: Callable[..., Any]) -> None:
    queue.register("a", lambda payload: None)
    worker = start_worker(concurrency=1)
    wait_until(lambda: listening(queue), 30)
    worker.stop(timeout=5)
    wait_until(lambda: not listening(queue), 30)
