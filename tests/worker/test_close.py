"""Closing a queue that is still in use: by its worker, by readers; and a worker that can't start."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.errors import StoreBusy
from holdfast.events import WorkerCrashed
from tests.support import Recorder, wait_until
from tests.worker.support import Spy, run_script

FAULTS = """
import faulthandler, threading
from holdfast import Queue
faulthandler.dump_traceback_later(60, exit=True)
"""

WORKER_LEFT_RUNNING = """
with Queue("sqlite:///app.db") as queue:
    queue.register("work", lambda payload: None)
    queue.enqueue_many("work", [{}] * 100)
    worker = queue.worker().start()
    threads = [thread for thread in threading.enumerate() if thread.name in NAMES]
assert len(threads) == 2, threads
for thread in threads:
    thread.join(30)
    assert not thread.is_alive(), thread
assert not worker.is_running
print("ok")
"""

WORKER_FORGOTTEN = """
with Queue("sqlite:///app.db") as queue:
    queue.register("work", lambda payload: None)
    queue.enqueue_many("work", [{}] * 100)
    queue.worker().start()
print("ok")
"""

READERS = """
queue = Queue("sqlite:///app.db").open()
queue.enqueue_many("work", [{}] * 100)
done = threading.Event()
reads, errors = [0] * 3, set()

def read(number):
    while not done.is_set():
        try:
            assert len(queue.jobs(limit=100)) == 100
            reads[number] += 1
        except Exception as error:
            errors.add(type(error).__name__)

threads = [threading.Thread(target=read, args=(number,)) for number in range(3)]
for thread in threads:
    thread.start()
for round in range(200):
    goal = sum(reads) + 1
    while sum(reads) < goal:
        done.wait(0.001)
    queue.close()
done.set()
for thread in threads:
    thread.join(30)
assert not any(thread.is_alive() for thread in threads)
assert errors <= {"QueueClosed"}, errors
queue.close()
print("ok")
"""


def test_closing_a_queue_ends_the_worker_that_uses_it(tmp_path: Path) -> None:
    names = 'NAMES = ("holdfast-dispatcher", "holdfast-heartbeat")\n'
    done = run_script(tmp_path, FAULTS + names + WORKER_LEFT_RUNNING)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_program_that_ends_with_the_block_of_its_queue_does_not_crash(tmp_path: Path) -> None:
    done = run_script(tmp_path, FAULTS + WORKER_FORGOTTEN)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_closing_a_queue_while_threads_read_does_not_crash(tmp_path: Path) -> None:
    done = run_script(tmp_path, FAULTS + READERS)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


def test_start_raises_every_time_when_the_worker_cannot_start(
    queue: Queue, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    registering = Spy(queue.store.register_worker)
    registering.always = StoreBusy(5)
    monkeypatch.setattr(queue.store, "register_worker", registering)
    for _ in range(20):  # it was a race: now and then start() returned as if all were well
        worker = queue.worker()
        with pytest.raises(StoreBusy):
            worker.start()
        crashed = recorder.wait(WorkerCrashed, worker_id=worker.id)
        assert crashed.error.startswith("StoreBusy")
        wait_until(lambda worker=worker: not worker.is_running)  # type: ignore[misc]
    assert queue.workers() == []


def test_worker_that_could_not_start_can_be_started_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    registering = Spy(queue.store.register_worker)
    registering.failures = [StoreBusy(5)]
    monkeypatch.setattr(queue.store, "register_worker", registering)
    worker = queue.worker()
    with pytest.raises(StoreBusy):
        worker.start()
    wait_until(lambda: not worker.is_running)
    worker.start()
    try:
        assert len(queue.workers()) == 1
    finally:
        assert worker.stop()
