"""A handler that raises an error of its own when it is stopped: the reason it was stopped is what counts."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Queue
from holdfast.handlers.options import Executor
from tests.support import wait_until
from tests.worker import handlers
from tests.worker.support import PATIENCE, Gate, get, time_out

pytestmark = pytest.mark.process

StartWorker = Callable[..., Any]
EXECUTORS = ["thread", "async", "process"]


def register(queue: Queue, executor: Executor, **options: Any) -> None:
    """A handler `work(started)` that waits for ever, and fails with a RuntimeError when it is stopped."""
    if executor == "process":
        queue.job(name="work", executor="process", **options)(handlers.fail_on_termination)
        return

    def in_thread(started: str, ctx: Context) -> None:
        killed = threading.Event()
        ctx.on_interrupt(killed.set)
        Path(started).touch()
        assert killed.wait(PATIENCE)
        raise RuntimeError("connection lost")

    async def on_loop(started: str) -> None:
        try:
            await asyncio.to_thread(Path(started).touch)
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            raise RuntimeError("connection lost") from error

    queue.job(name="work", **options)(on_loop if executor == "async" else in_thread)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_error_of_a_handler_that_the_shutdown_deadline_cut_short_costs_no_attempt(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, executor: Executor
) -> None:
    register(queue, executor, max_attempts=1)
    worker = start_worker()
    job = queue.enqueue("work", {"started": str(tmp_path / "started")})
    wait_until((tmp_path / "started").exists)
    assert worker.stop(timeout=0) is False
    left = get(queue, job.id)
    assert (left.status, left.attempts, left.errors) == ("pending", 0, ())


@pytest.mark.parametrize("executor", EXECUTORS)
def test_error_of_a_handler_whose_time_is_up_is_recorded_as_its_timeout(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, executor: Executor
) -> None:
    register(queue, executor, max_attempts=1, timeout=600)
    worker = start_worker()
    job = queue.enqueue("work", {"started": str(tmp_path / "started")})
    wait_until((tmp_path / "started").exists)
    time_out(worker, job.id)
    job = queue.wait(job.id, timeout=PATIENCE)
    assert (job.status, job.error) == ("failed", "TimedOut: the attempt ran longer than its timeout of 600 s")
    assert job.errors[0].traceback is not None
    assert "connection lost" in job.errors[0].traceback, "what the handler made of it is kept as evidence"


@pytest.mark.parametrize("executor", EXECUTORS)
def test_error_of_a_handler_that_was_cancelled_leaves_no_failure_behind(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, executor: Executor
) -> None:
    register(queue, executor)
    start_worker()
    job = queue.enqueue("work", {"started": str(tmp_path / "started")})
    wait_until((tmp_path / "started").exists)
    queue.cancel(job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.error, done.errors) == ("cancelled", None, ())


def test_error_during_a_shutdown_that_has_not_cut_the_handler_short_is_a_failure(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job(max_attempts=1)
    def work() -> None:
        gate.enter()
        raise RuntimeError("broken")

    worker = start_worker()
    job = work.enqueue()
    gate.wait_entered()
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    gate.open()
    stopping.join(PATIENCE)
    done = get(queue, job.id)
    assert (done.status, done.error) == ("failed", "RuntimeError: broken")


def register_wrapping(queue: Queue, executor: Executor) -> None:
    """A handler `work(started)` that goes from safe point to safe point, and wraps what one raises."""
    if executor != "async":
        queue.job(name="work", executor=executor, max_attempts=1)(handlers.wrap_interruption)
        return

    async def work(started: str, ctx: Context) -> None:
        try:
            await asyncio.to_thread(Path(started).touch)
            while True:
                await asyncio.sleep(0.005)
                ctx.check()
        finally:
            raise RuntimeError("clean-up failed")

    queue.job(max_attempts=1)(work)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_error_of_a_handler_that_a_safe_point_has_ended_for_a_shutdown_costs_no_attempt(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, executor: Executor
) -> None:
    register_wrapping(queue, executor)
    worker = start_worker()
    job = queue.enqueue("work", {"started": str(tmp_path / "started")})
    wait_until((tmp_path / "started").exists)
    assert worker.stop(timeout=PATIENCE)
    left = get(queue, job.id)
    assert (left.status, left.attempts, left.errors) == ("pending", 0, ())


@pytest.mark.parametrize("executor", ["thread", "async"])  # a process is killed
def test_error_of_a_handler_that_a_safe_point_has_ended_for_a_cancellation_is_no_failure(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, executor: Executor
) -> None:
    register_wrapping(queue, executor)
    start_worker()
    job = queue.enqueue("work", {"started": str(tmp_path / "started")})
    wait_until((tmp_path / "started").exists)
    queue.cancel(job.id)
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.error, done.errors) == ("cancelled", None, ())
