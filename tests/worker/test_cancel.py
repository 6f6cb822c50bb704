"""Cancelling: at once what waits, as soon as it has stopped what runs, not at all what finished first."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Queue
from holdfast.context import CANCELLED
from holdfast.errors import JobNotFound, WrongState
from holdfast.events import JobCancelled, JobCancelRequested, JobClaimed, WorkerStopping
from tests.support import Recorder, both_engines, wait_until
from tests.worker import handlers, handlers_slow_import
from tests.worker.support import PATIENCE, Gate, get, is_alive

pytestmark = pytest.mark.slow

StartWorker = Callable[..., Any]


@both_engines
def test_pending_job_is_cancelled_at_once_and_never_runs(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    ran = threading.Event()
    queue.register("work", lambda payload: ran.set())
    queue.register("marker", lambda payload: None)
    job = queue.cancel(queue.enqueue("work").id)
    assert (job.status, job.attempts) == ("cancelled", 0)
    assert job.finished_at is not None
    assert recorder.wait(JobCancelled).job_id == job.id
    start_worker()
    assert queue.wait(queue.enqueue("marker").id, timeout=PATIENCE).status == "completed"
    assert not ran.is_set()


def test_scheduled_job_is_cancelled_at_once(queue: Queue) -> None:
    job = queue.enqueue("work", delay=3600)
    assert queue.cancel(job.id).status == "cancelled"
    assert get(queue, job.id).status == "cancelled"


def test_job_that_waits_for_a_retry_is_cancelled_at_once(queue: Queue) -> None:
    def fail(payload: object) -> None:
        raise RuntimeError

    queue.register("fail", fail, backoff_factor=3600)
    job = queue.enqueue("fail")
    assert queue.drain() == 1
    assert queue.cancel(job.id).status == "cancelled"


def test_held_job_that_has_not_started_is_cancelled_without_running(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate, holds_ready: None
) -> None:
    ran = []

    def work(payload: dict[str, Any]) -> None:
        gate.enter()
        ran.append(payload["n"])

    queue.register("work", work)
    jobs = queue.enqueue_many("work", [{"n": n} for n in range(20)])
    start_worker(concurrency=1)
    gate.wait_entered()
    held = jobs[1]
    recorder.wait(JobClaimed, job_id=held.id)
    queue.cancel(held.id)
    done = queue.wait(held.id, timeout=PATIENCE)
    assert (done.status, done.attempts) == ("cancelled", 0), "before its turn came"
    gate.open()
    queue.wait(jobs[-1].id, timeout=PATIENCE)
    assert ran == [0, *range(2, 20)]


@both_engines
@pytest.mark.parametrize("is_stopping", [False, True])
def test_job_cancelled_before_its_handler_began_is_charged_no_attempt(
    queue: Queue, start_worker: StartWorker, gate: Gate, recorder: Recorder, is_stopping: bool
) -> None:
    """It has a slot, but its loop is blocked by another handler."""

    @queue.job
    async def block() -> None:
        gate.enter()

    @queue.job
    async def work() -> None: ...

    worker = start_worker(concurrency=2)
    block.enqueue()
    gate.wait_entered()
    job = work.enqueue()
    recorder.wait(JobClaimed, job_id=job.id)
    if is_stopping:
        worker.ask_to_stop()
        recorder.wait(WorkerStopping)
    queue.cancel(job.id)
    [attempt] = [each for each in worker._dispatcher.leased() if each.claim.id == job.id]
    wait_until(lambda: attempt.stop_reason == CANCELLED)
    gate.open()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts) == ("cancelled", 0)


@pytest.mark.process
def test_job_cancelled_while_its_process_imports_the_handler_is_charged_no_attempt(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_gate = tmp_path / "import"
    monkeypatch.setenv("HOLDFAST_TEST_IMPORT_GATE", str(import_gate))
    queue.job(executor="process")(handlers_slow_import.quick)
    start_worker()
    job = queue.enqueue("quick")
    wait_until(Path(f"{import_gate}.importing").exists)
    queue.cancel(job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts) == ("cancelled", 0)


@both_engines
def test_running_async_handler_is_cancelled(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    stopped = threading.Event()

    @queue.job
    async def hang() -> None:
        gate.count()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    start_worker()
    job = hang.enqueue()
    gate.wait_entered()
    asked = queue.cancel(job.id)
    assert (asked.status, asked.cancel_requested) == ("processing", True)
    recorder.wait(JobCancelRequested, job_id=job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"
    assert stopped.is_set()
    recorder.wait(JobCancelled, job_id=job.id)


def test_async_job_cancelled_before_its_first_step_frees_its_slot(
    queue: Queue, start_worker: StartWorker, gate: Gate, recorder: Recorder
) -> None:
    """The loop is blocked, so that the task is made and cancelled in the same round of the loop."""
    ran = threading.Event()

    @queue.job
    async def block() -> None:
        gate.enter()

    @queue.job(concurrency=1)
    async def work() -> None:
        ran.set()

    start_worker()
    block.enqueue()
    gate.wait_entered()
    job = work.enqueue()
    recorder.wait(JobClaimed, job_id=job.id)
    queue.cancel(job.id)
    # The worker has passed the cancellation on when it answers the next one.
    second = queue.enqueue("block")
    recorder.wait(JobClaimed, job_id=second.id)
    gate.open()
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"
    assert not ran.is_set()
    assert queue.wait(work.enqueue().id, timeout=60).status == "completed", "the type's only slot is lost"


@pytest.mark.process
def test_running_process_is_killed_with_all_it_started(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    pids = tmp_path / "pids"
    queue.job(executor="process", name="hang")(handlers.sleep_with_grandchild)
    start_worker()
    job = queue.enqueue("hang", {"pids": str(pids)})
    wait_until(pids.exists)
    queue.cancel(job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"
    alive = [int(pid) for pid in pids.read_text().split()]
    wait_until(lambda: not any(is_alive(pid) for pid in alive))


def test_net_of_a_handler_for_all_exceptions_lets_the_cancellation_pass(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    caught = threading.Event()

    @queue.job
    def work(ctx: Context) -> None:
        gate.count()
        while not ctx.stopping:
            pass
        try:
            ctx.check()
        except Exception:
            caught.set()

    start_worker()
    job = work.enqueue()
    gate.wait_entered()
    queue.cancel(job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"
    assert not caught.is_set()


@both_engines
def test_thread_that_checks_ends_cancelled(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    @queue.job
    def work(ctx: Context) -> None:
        gate.count()
        while True:
            ctx.check()

    start_worker()
    job = work.enqueue()
    gate.wait_entered()
    queue.cancel(job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.error) == ("cancelled", None)


def test_thread_that_never_checks_and_finishes_first_is_completed(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job
    def work() -> str:
        gate.enter()
        return "done"

    start_worker()
    job = work.enqueue()
    gate.wait_entered()
    queue.cancel(job.id)
    gate.open()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.result) == ("completed", "done")


def test_cancelled_job_whose_handler_fails_is_not_retried(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job(max_attempts=5)
    def work() -> None:
        gate.enter()
        raise RuntimeError("too late to matter")

    start_worker()
    job = work.enqueue()
    gate.wait_entered()
    queue.cancel(job.id)
    gate.open()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts) == ("cancelled", 1)


@both_engines
def test_cancel_by_another_queue_object_reaches_the_worker(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job
    async def hang() -> None:
        gate.count()
        await asyncio.Event().wait()

    start_worker()
    job = hang.enqueue()
    gate.wait_entered()
    other_queue.cancel(job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"


@pytest.mark.parametrize("outcome", ["completed", "failed", "cancelled"])
def test_finished_job_cannot_be_cancelled(queue: Queue, outcome: str) -> None:
    def work(payload: object) -> None:
        if outcome == "failed":
            raise RuntimeError

    queue.register("work", work, max_attempts=1)
    job = queue.enqueue("work")
    if outcome == "cancelled":
        queue.cancel(job.id)
    queue.drain()
    before = get(queue, job.id)
    assert before.status == outcome
    with pytest.raises(WrongState, match=f"is {outcome} and can't be cancelled") as caught:
        queue.cancel(job.id)
    assert (caught.value.job_id, caught.value.status) == (job.id, outcome)
    assert get(queue, job.id) == before


def test_cancelling_a_job_that_does_not_exist_says_so(queue: Queue) -> None:
    with pytest.raises(JobNotFound, match="'nobody'"):
        queue.cancel("nobody")


@pytest.mark.parametrize("running", [False, True])
def test_key_of_a_cancelled_job_is_free(
    queue: Queue, start_worker: StartWorker, gate: Gate, running: bool
) -> None:
    @queue.job
    async def hang() -> None:
        gate.count()
        await asyncio.Event().wait()

    job = hang.with_options(key="only").enqueue()
    if running:
        start_worker()
        gate.wait_entered()
    queue.cancel(job.id)
    queue.wait(job.id, timeout=PATIENCE)
    assert hang.with_options(key="only").enqueue().id != job.id


@both_engines
def test_cancelled_job_can_be_retried(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: "done")
    job = queue.cancel(queue.enqueue("work").id)
    assert queue.retry(job.id).status == "pending"
    start_worker()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.cancel_requested) == ("completed", False)


@pytest.mark.parametrize("first", ["cancel", "timeout"])
def test_async_handler_is_interrupted_once_by_cancel_and_timeout_together(
    queue: Queue, start_worker: StartWorker, gate: Gate, short_heartbeat: None, first: str
) -> None:
    """The second must not interrupt the clean-up that the first has begun."""
    interrupted = threading.Event()
    times: list[int] = []

    @queue.job(timeout=0.5, max_attempts=1)
    async def work() -> None:
        gate.count()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            times.append(1)
            interrupted.set()
            try:
                await asyncio.sleep(1.0)  # past the timeout and some heartbeats
            except asyncio.CancelledError:
                times.append(2)
            raise

    start_worker()
    job = work.enqueue()
    gate.wait_entered()
    if first == "timeout":
        assert interrupted.wait(PATIENCE)
    queue.cancel(job.id)
    queue.wait(job.id, timeout=PATIENCE)
    assert times == [1]
