"""Closing a queue that is still in use: by its worker, by readers; and a worker that can't start."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.errors import HoldfastError, StoreBusy
from holdfast.events import Event, JobCompleted, StoreTrouble, WorkerCrashed
from holdfast.store.open import store_of
from holdfast.worker import Worker
from tests.support import Recorder, both_engines, open_files, wait_until
from tests.worker.support import PATIENCE, Gate, Spy, get, run_script

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
for round in range(60):
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


@pytest.mark.process
def test_closing_a_queue_ends_the_worker_that_uses_it_and_the_program_may_end_with_it(tmp_path: Path) -> None:
    names = 'NAMES = ("holdfast-dispatcher", "holdfast-heartbeat")\n'
    done = run_script(tmp_path, FAULTS + names + WORKER_LEFT_RUNNING)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.process
def test_closing_a_queue_while_threads_read_does_not_crash(tmp_path: Path) -> None:
    done = run_script(tmp_path, FAULTS + READERS)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@both_engines
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_closing_a_queue_lets_its_workers_finish_what_they_run(queue: Queue, gate: Gate, kind: str) -> None:
    def in_thread(payload: object) -> str:
        gate.enter()
        return "done"

    async def on_loop(payload: object) -> str:
        await gate.enter_async()
        return "done"

    queue.register("work", in_thread if kind == "thread" else on_loop)
    job = queue.enqueue("work")
    workers = [queue.worker(concurrency=1).start() for _ in range(2)]
    gate.wait_entered()
    closing = threading.Thread(target=queue.close)
    closing.start()
    wait_until(lambda: any(worker.is_running for worker in workers) and not all_running(workers))
    gate.open()
    closing.join(PATIENCE)
    assert [worker.is_running for worker in workers] == [False, False]
    assert all(worker.stop() for worker in workers)
    done = get(queue, job.id)
    assert (done.status, done.result, done.attempts) == ("completed", "done", 1)
    assert queue.workers() == []


def all_running(workers: list[Worker]) -> bool:
    return all(worker.is_running for worker in workers)


def test_job_that_outlasts_the_shutdown_timeout_of_a_closing_queue_is_given_back(
    queue: Queue, gate: Gate
) -> None:
    queue.set_config("shutdown_timeout", 0)
    queue.register("work", lambda payload: gate.enter())
    job = queue.enqueue("work")
    worker = queue.worker().start()
    gate.wait_entered()
    queue.close()
    assert worker.stop() is False
    back = get(queue, job.id)
    assert (back.status, back.attempts) == ("pending", 0)


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_handler_that_closes_the_queue_it_runs_on_fails_and_says_why(
    queue: Queue, start_worker: Callable[..., Any], kind: str
) -> None:
    def in_thread(payload: object) -> None:
        queue.close()

    async def on_loop(payload: object) -> None:
        await asyncio.to_thread(queue.close)

    queue.register("work", in_thread if kind == "thread" else on_loop, max_attempts=1)
    worker = start_worker()
    job = queue.wait(queue.enqueue("work").id, timeout=PATIENCE)
    assert job.status == "failed"
    assert job.error is not None
    assert job.error.startswith("HoldfastError: a handler or subscriber can't close the queue")
    assert worker.is_running


@pytest.mark.parametrize("waits_for_its_own_end", ["close", "stop"])
@pytest.mark.parametrize("kind", [JobCompleted, StoreTrouble])
def test_subscriber_in_a_thread_of_the_worker_does_not_wait_for_its_end(
    queue: Queue,
    start_worker: Callable[..., Any],
    gate: Gate,
    short_heartbeat: None,
    monkeypatch: pytest.MonkeyPatch,
    kind: type[Event],
    waits_for_its_own_end: str,
) -> None:
    """Events come in the thread where they happen: an end in the loop's, trouble in the heartbeat's."""
    queue.register("work", lambda payload: gate.enter())
    queue.register("quick", lambda payload: None)
    worker = start_worker()
    answers: list[Exception] = []

    def subscriber(event: Event) -> None:
        if isinstance(event, kind) and not answers:
            try:
                queue.close() if waits_for_its_own_end == "close" else worker.stop()
            except HoldfastError as error:
                answers.append(error)

    queue.events.subscribe(subscriber)
    beats = Spy(store_of(queue).heartbeat)
    beats.failures = [StoreBusy(5)] if kind is StoreTrouble else []
    job = queue.enqueue("work")
    gate.wait_entered()
    monkeypatch.setattr(store_of(queue), "heartbeat", beats)
    queue.enqueue("quick")
    wait_until(lambda: answers)
    gate.open()
    assert "in another thread" in str(answers[0])
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed", "its outcome is not lost"
    assert worker.stop()


def test_handler_may_close_another_queue(
    queue: Queue, other_queue: Queue, start_worker: Callable[..., Any]
) -> None:
    queue.register("work", lambda payload: other_queue.close())
    other_queue.open()
    start_worker()
    assert queue.wait(queue.enqueue("work").id, timeout=PATIENCE).status == "completed"


def test_worker_whose_connections_are_closed_under_it_does_not_claim_that_all_could_finish(
    queue: Queue, gate: Gate
) -> None:
    queue.register("work", lambda payload: gate.enter())
    queue.enqueue("work")
    worker = queue.worker().start()
    gate.wait_entered()
    store_of(queue).close()
    wait_until(lambda: not worker.is_running)
    assert worker.stop() is False


def test_start_raises_every_time_when_the_worker_cannot_start(
    queue: Queue, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    registering = Spy(store_of(queue).register_worker)
    registering.always = HoldfastError("no room")
    monkeypatch.setattr(store_of(queue), "register_worker", registering)
    for _ in range(20):  # it was a race: now and then start() returned as if all were well
        worker = queue.worker()
        with pytest.raises(HoldfastError, match="no room"):
            worker.start()
        crashed = recorder.wait(WorkerCrashed, worker_id=worker.id)
        assert crashed.error == "HoldfastError: no room"
        wait_until(lambda worker=worker: not worker.is_running)  # type: ignore[misc]
    assert queue.workers() == []


def test_worker_that_could_not_start_can_be_started_again(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    registering = Spy(store_of(queue).register_worker)
    registering.failures = [HoldfastError("no room")]
    monkeypatch.setattr(store_of(queue), "register_worker", registering)
    worker = queue.worker()
    with pytest.raises(HoldfastError, match="no room"):
        worker.start()
    wait_until(lambda: not worker.is_running)
    worker.start()
    try:
        assert len(queue.workers()) == 1
    finally:
        assert worker.stop()


def test_worker_that_gets_no_thread_can_be_started_later(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def fail() -> None:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            worker.start()

    worker = queue.worker()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        fail()
        before = open_files()
        fail()
        assert not open_files() - before
    assert worker.stop()
    queue.close()
    with worker:
        assert worker.is_running


def test_what_a_block_raises_is_not_replaced_by_the_failure_of_its_worker(queue: Queue) -> None:
    worker = queue.worker()

    def fail_in_the_block() -> None:
        with worker:
            worker._failure = RuntimeError("the worker's")
            raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        fail_in_the_block()
