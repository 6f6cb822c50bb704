"""Stopping a worker: what runs may finish, what can't is given back, and nothing is left behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Queue
from holdfast.errors import HoldfastError
from holdfast.events import JobClaimed, JobReleased, WorkerStarted, WorkerStopped, WorkerStopping
from holdfast.store.open import store_of
from holdfast.worker import worker as worker_module
from holdfast.worker.dispatcher import Dispatcher
from tests.support import Recorder, both_engines, wait_until
from tests.worker import handlers, handlers_slow_import
from tests.worker.support import PATIENCE, Gate, get, is_alive, write_script

StartWorker = Callable[..., Any]


def in_background(action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    results: list[object] = []
    thread = threading.Thread(target=lambda: results.append(action()))
    thread.start()
    return thread, results


@both_engines
def test_worker_of_a_with_block_runs_while_it_lasts(queue: Queue) -> None:
    queue.register("work", lambda payload: None)
    with queue.worker(concurrency=2) as worker:
        assert queue.wait(queue.enqueue("work").id, timeout=PATIENCE).status == "completed"
    assert queue.workers() == []
    with pytest.raises(ZeroDivisionError), worker:
        queue.enqueue("work", priority=1 // 0)
    assert queue.workers() == []
    with worker, pytest.raises(HoldfastError, match="already running"):
        worker.start()


@both_engines
def test_stop_lets_running_jobs_finish(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job
    def in_thread() -> str:
        gate.enter()
        return "done"

    @queue.job
    async def on_loop() -> str:
        await gate.enter_async()
        return "done"

    worker = start_worker()
    jobs = [in_thread.enqueue(), on_loop.enqueue()]
    gate.wait_entered(2)
    stopping, results = in_background(worker.stop)
    assert recorder.wait(WorkerStopping).running == 2
    gate.open()
    stopping.join(PATIENCE)
    assert results == [True]
    assert not worker.is_running
    assert [get(queue, job.id).result for job in jobs] == ["done", "done"]
    assert recorder.wait(WorkerStopped).released == 0


def test_stopping_worker_claims_nothing_more(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job
    def work() -> None:
        gate.enter()

    worker = start_worker()
    work.enqueue()
    gate.wait_entered()
    stopping, _ = in_background(worker.stop)
    recorder.wait(WorkerStopping)
    later = work.enqueue()
    gate.open()
    stopping.join(PATIENCE)
    left = get(queue, later.id)
    assert (left.status, left.attempts) == ("pending", 0)


@both_engines
def test_held_jobs_are_given_back_at_once_with_their_attempt(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate, holds_ready: None
) -> None:
    ran: list[int] = []

    def work(payload: dict[str, Any]) -> None:
        ran.append(payload["n"])
        gate.enter()

    queue.register("work", work)
    jobs = queue.enqueue_many("work", [{"n": n} for n in range(20)])
    worker = start_worker(concurrency=1)
    gate.wait_entered()
    held = jobs[1]
    recorder.wait(JobClaimed, job_id=held.id)
    stopping, results = in_background(worker.stop)
    recorder.wait(JobReleased, job_id=held.id)
    back = get(queue, held.id)
    assert (back.status, back.attempts, back.worker_id) == ("pending", 0, None)
    gate.open()
    stopping.join(PATIENCE)
    assert results == [True]
    assert ran == [0]
    assert queue.stats()["processing"] == 0


@pytest.mark.process
@both_engines
def test_deadline_cuts_what_still_runs_and_gives_the_jobs_back(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate, tmp_path: Path
) -> None:
    @queue.job
    def in_thread(pids: str) -> None:
        Path(pids).write_text("")
        gate.enter()

    @queue.job
    async def on_loop(pids: str) -> None:
        await asyncio.to_thread(Path(pids).write_text, "")
        await asyncio.Event().wait()

    queue.job(name="in_process", executor="process")(handlers.sleep_with_grandchild)
    worker = start_worker()
    kinds = ("in_thread", "on_loop", "in_process")
    jobs = [queue.enqueue(kind, {"pids": str(tmp_path / kind)}) for kind in kinds]
    wait_until(lambda: all((tmp_path / kind).exists() for kind in kinds))
    assert worker.stop(timeout=0.2) is False
    for job in jobs:
        left = get(queue, job.id)
        assert (left.status, left.attempts, left.worker_id, left.errors) == ("pending", 0, None, ())
        recorder.wait(JobReleased, job_id=job.id)
    assert recorder.wait(WorkerStopped).released == 3
    pids = (tmp_path / "in_process").read_text().split()
    wait_until(lambda: not any(is_alive(int(pid)) for pid in pids))


@both_engines
def test_job_that_is_cut_short_runs_elsewhere_and_the_late_outcome_changes_nothing(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job(name="work")
    def slow() -> str:
        gate.enter()
        return "too late"

    other_queue.register("work", lambda payload: "in time")
    worker = start_worker()
    job = slow.enqueue()
    gate.wait_entered()
    assert worker.stop(timeout=0) is False
    start_worker(other_queue)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.result, done.attempts) == ("in time", 1)
    gate.open()
    assert get(queue, job.id) == done


@pytest.mark.process
def test_stop_while_a_process_imports_its_handler_is_heard(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import_gate = tmp_path / "import"
    monkeypatch.setenv("HOLDFAST_TEST_IMPORT_GATE", str(import_gate))
    queue.job(executor="process")(handlers_slow_import.check_for_ever)
    worker = start_worker()
    job = queue.enqueue("check_for_ever")
    wait_until(Path(f"{import_gate}.importing").exists)
    stopping, results = in_background(lambda: worker.stop(timeout=20))
    recorder.wait(WorkerStopping)
    import_gate.touch()
    stopping.join(PATIENCE)
    assert results == [True], "the handler never heard that it should stop"
    assert get(queue, job.id).attempts == 0


@both_engines
def test_worker_row_is_gone_after_the_stop(queue: Queue, start_worker: StartWorker) -> None:
    worker = start_worker()
    (record,) = queue.workers()
    assert (record.id, record.pid, record.state) == (worker.id, os.getpid(), "running")
    worker.stop()
    assert queue.workers() == []
    assert store_of(queue).list_workers() == []


def test_nothing_runs_after_the_stop(queue: Queue, start_worker: StartWorker) -> None:
    ran = threading.Event()
    queue.register("work", lambda payload: ran.set())
    worker = start_worker()
    worker.stop()
    job = queue.enqueue("work")
    assert not [t for t in threading.enumerate() if t.name in ("holdfast-dispatcher", "holdfast-heartbeat")]
    assert get(queue, job.id).status == "pending"
    assert not ran.is_set()


def test_stopped_worker_can_be_started_again(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: "done")
    worker = start_worker()
    worker.stop()
    worker.start()
    try:
        assert queue.wait(queue.enqueue("work").id, timeout=PATIENCE).result == "done"
    finally:
        worker.stop()


def test_worker_that_runs_cannot_be_started_again(queue: Queue, start_worker: StartWorker) -> None:
    worker = start_worker()
    with pytest.raises(HoldfastError, match="already running"):
        worker.start()


def test_stop_of_a_worker_that_never_started_is_no_error(queue: Queue) -> None:
    assert queue.worker().stop() is True


def test_second_stop_may_shorten_the_first(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job
    def work() -> None:
        gate.enter()

    worker = start_worker()
    job = work.enqueue()
    gate.wait_entered()
    first, results = in_background(lambda: worker.stop(timeout=600))
    recorder.wait(WorkerStopping)
    assert worker.stop(timeout=0) is False
    first.join(PATIENCE)
    assert results == [False]
    assert get(queue, job.id).status == "pending"


def test_shutdown_timeout_is_the_setting(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    @queue.job
    def work() -> None:
        gate.enter()

    queue.set_config("shutdown_timeout", 0.1)
    worker = start_worker()
    work.enqueue()
    gate.wait_entered()
    assert worker.stop() is False


def test_run_ends_when_another_thread_stops_it(queue: Queue, recorder: Recorder) -> None:
    worker = queue.worker()
    running, results = in_background(worker.run)
    recorder.wait(WorkerStarted)
    worker.stop()
    running.join(PATIENCE)
    assert results == [True]


def test_signal_that_comes_while_the_worker_starts_is_not_lost(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = queue.worker()
    real = Dispatcher

    def slow_dispatcher(*args: Any, **options: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return real(*args, **options)

    monkeypatch.setattr(worker_module, "Dispatcher", slow_dispatcher)
    rescued = threading.Event()

    def rescue() -> None:
        rescued.set()
        worker.stop()

    timer = threading.Timer(5, rescue)
    timer.start()
    worker.run()
    timer.cancel()
    assert not rescued.is_set(), "the worker went on as if nothing had happened"


def test_run_puts_the_signal_handlers_back(queue: Queue, recorder: Recorder) -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    worker = queue.worker()

    def stop(event: object) -> None:
        if isinstance(event, WorkerStarted):
            os.kill(os.getpid(), signal.SIGTERM)

    queue.events.subscribe(stop)
    assert worker.run() is True
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


# A real process with real signals.

SCRIPT = """
import os, sys, time
from pathlib import Path
from holdfast import Queue

folder = Path(sys.argv[1])
queue = Queue(f"sqlite:///{folder}/queue.db")

@queue.job
def wait_for(name: str) -> str:
    (folder / f"{name}.started").touch()
    while not (folder / f"{name}.go").exists():
        time.sleep(0.005)
    return "done"

if __name__ == "__main__":
    queue.run_worker(concurrency=2)
    print("left in order", flush=True)
"""


@pytest.fixture
def program(queue: Queue, tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that runs `queue.run_worker()`."""
    queue.set_config("heartbeat_interval", 0.1)  # so that its state is seen soon
    script = write_script(tmp_path, SCRIPT)
    with subprocess.Popen(
        [sys.executable, "-W", "error", str(script), str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        wait_until(lambda: len(queue.workers()) == 1)
        yield process
        process.kill()


@pytest.mark.process
def test_first_signal_stops_in_order(queue: Queue, program: subprocess.Popen[str], tmp_path: Path) -> None:
    job = queue.enqueue("wait_for", {"name": "a"})
    wait_until((tmp_path / "a.started").exists)
    program.send_signal(signal.SIGTERM)
    wait_until(lambda: [worker.state for worker in queue.workers()] == ["stopping"])
    later = queue.enqueue("wait_for", {"name": "b"})
    (tmp_path / "a.go").touch()
    output, errors = program.communicate(timeout=PATIENCE)
    assert (program.returncode, output) == (0, "left in order\n"), errors
    assert get(queue, job.id).result == "done"
    assert (get(queue, later.id).status, get(queue, later.id).attempts) == ("pending", 0)
    assert store_of(queue).list_workers() == []


@pytest.mark.process
def test_second_signal_stops_at_once_and_gives_the_job_back(
    queue: Queue, program: subprocess.Popen[str], tmp_path: Path
) -> None:
    job = queue.enqueue("wait_for", {"name": "a"})
    wait_until((tmp_path / "a.started").exists)
    program.send_signal(signal.SIGINT)
    wait_until(lambda: [worker.state for worker in queue.workers()] == ["stopping"])
    program.send_signal(signal.SIGTERM)
    output, errors = program.communicate(timeout=PATIENCE)
    assert (program.returncode, output) == (0, "left in order\n"), errors
    left = get(queue, job.id)
    assert (left.status, left.attempts) == ("pending", 0)
    assert store_of(queue).list_workers() == []


def test_context_is_not_asked_to_stop_before_it_must(queue: Queue, start_worker: StartWorker) -> None:
    seen: list[bool] = []

    @queue.job
    def work(ctx: Context) -> None:
        seen.append(ctx.stopping)

    start_worker()
    queue.wait(work.enqueue().id, timeout=PATIENCE)
    assert seen == [False]
