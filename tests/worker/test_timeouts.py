"""Timeouts: what runs too long is really stopped where that is possible, and written off where it is not."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Queue
from holdfast.context import Attempt
from holdfast.errors import Interrupted
from holdfast.events import HandlerStuck, JobCompleted, JobFailed, JobRetrying, WorkerExhausted, WorkerStopped
from holdfast.store.open import store_of
from holdfast.worker import run, runner
from holdfast.worker.slots import Slots
from tests.support import Recorder, both_engines, wait_still, wait_until
from tests.worker import handlers, handlers_slow_import
from tests.worker.support import PATIENCE, Gate, Spy, get, is_alive, time_out

pytestmark = pytest.mark.slow

StartWorker = Callable[..., Any]

TIMED_OUT = "TimedOut: the attempt ran longer than its timeout of 0.2 s"


@both_engines
def test_async_handler_is_stopped_at_its_timeout(queue: Queue, start_worker: StartWorker) -> None:
    stopped = threading.Event()

    @queue.job(timeout=0.2, max_attempts=1)
    async def hang() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            stopped.set()
            raise

    start_worker()
    job = queue.wait(hang.enqueue().id, timeout=PATIENCE)
    assert (job.status, job.error) == ("failed", TIMED_OUT)
    assert stopped.is_set()


@both_engines
def test_timed_out_attempt_is_retried(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job(timeout=0.2)
    async def hang_once(ctx: Context) -> str:
        if ctx.attempt == 1:
            await asyncio.Event().wait()
        return "done"

    start_worker()
    job = queue.wait(hang_once.enqueue().id, timeout=PATIENCE)
    assert (job.status, job.attempts, job.result) == ("completed", 2, "done")
    assert job.errors[0].error == TIMED_OUT


def test_jobs_own_timeout_beats_the_handlers(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job(timeout=3600, max_attempts=1)
    async def hang() -> None:
        await asyncio.Event().wait()

    start_worker()
    job = hang.with_options(timeout=0.2).enqueue()
    assert queue.wait(job.id, timeout=PATIENCE).error == TIMED_OUT


def test_async_handler_that_will_not_stop_is_written_off_and_keeps_its_slot_until_it_returns(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(runner, "GRACE", 0.1)

    @queue.job(timeout=0.2, max_attempts=1)
    async def stubborn() -> None:
        while not gate.is_open:
            try:
                await asyncio.sleep(0.005)
            except asyncio.CancelledError:
                gate.count()

    queue.register("next", lambda payload: None)
    start_worker(concurrency=2)
    job = queue.wait(stubborn.enqueue().id, timeout=PATIENCE)
    assert job.error == TIMED_OUT
    assert recorder.wait(HandlerStuck, job_id=job.id).reason == "timed out"
    assert queue.wait(queue.enqueue("next").id, timeout=PATIENCE).status == "completed"
    gate.open()


@both_engines
@pytest.mark.process
def test_process_handler_is_stopped_in_time_though_nobody_else_wakes_the_worker(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    """It begins when its process is ready, which the loop has not waited for."""
    for name in ("lease_seconds", "heartbeat_interval", "poll_interval"):
        queue.set_config(name, 3600)
    queue.job(executor="process", timeout=1, max_attempts=1)(handlers.sleep_with_grandchild)
    start_worker(concurrency=1)
    for number in range(3):
        job = queue.enqueue("sleep_with_grandchild", {"pids": str(tmp_path / str(number))})
        assert (queue.wait(job.id, timeout=PATIENCE).error or "").startswith("TimedOut")


def test_no_time_is_up_before_the_handler_has_begun(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread may not get to run for a while, and the loop looks at the time meanwhile."""
    ran = threading.Event()
    queue.register("work", lambda payload: ran.set(), timeout=0.001, max_attempts=1)
    worker = start_worker(concurrency=1)
    rounds, refusal = Spy(worker._dispatcher._runner.enforce), run.ending_unstarted
    monkeypatch.setattr(worker._dispatcher._runner, "enforce", rounds)

    def look_late(attempt: Attempt) -> object:
        wait_until(lambda: time.monotonic() > attempt.started + 0.001)
        for _ in range(3):
            worker._dispatcher._watch.wake()
            rounds.wait_called(1)
        return refusal(attempt)

    monkeypatch.setattr(run, "ending_unstarted", look_late)
    job = queue.enqueue("work")
    queue.wait(job.id, timeout=PATIENCE)
    assert ran.is_set()


@pytest.mark.process
def test_process_handler_is_killed_with_all_it_started_and_the_worker_goes_on(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    for handler in (handlers.sleep_with_grandchild, handlers.ignore_termination):
        queue.job(executor="process", timeout=600, max_attempts=1)(handler)
    queue.job(executor="process")(handlers.where)
    worker = start_worker(concurrency=2)
    types = ("sleep_with_grandchild", "ignore_termination")
    jobs = [queue.enqueue(type, {"pids": str(tmp_path / type)}) for type in types]
    for job in jobs:
        wait_until((tmp_path / job.type).exists)
        time_out(worker, job.id)
        done = queue.wait(job.id, timeout=PATIENCE)
        assert done.error == "TimedOut: the attempt ran longer than its timeout of 600 s"
        pids = [int(pid) for pid in (tmp_path / job.type).read_text().split()]
        assert len(pids) == 2
        wait_until(lambda: not any(map(is_alive, pids)), message="processes are left")  # noqa: B023
    assert queue.wait(queue.enqueue("where").id, timeout=PATIENCE).status == "completed"


@both_engines
def test_job_of_a_stuck_thread_fails_while_the_thread_still_runs(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job(timeout=0.2, max_attempts=1)
    def stuck() -> str:
        gate.enter()
        return "too late"

    start_worker(concurrency=2)
    job = queue.wait(stuck.enqueue().id, timeout=PATIENCE)
    assert (job.status, job.error) == ("failed", TIMED_OUT)
    assert recorder.wait(HandlerStuck).reason == "timed out"
    gate.open()
    assert get(queue, job.id) == job


def test_job_of_a_stuck_thread_is_retried_in_another_slot(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job(timeout=0.2)
    def stuck_once(ctx: Context) -> int:
        if ctx.attempt == 1:
            gate.enter()
        return ctx.attempt

    start_worker(concurrency=2)
    job = queue.wait(stuck_once.enqueue().id, timeout=PATIENCE)
    assert (job.status, job.result) == ("completed", 2)
    gate.open()
    assert get(queue, job.id) == job, "the late outcome of attempt 1 changes nothing"


def test_slot_of_a_stuck_thread_is_not_used_until_it_returns(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    ran = []

    def work(payload: dict[str, Any]) -> None:
        ran.append(payload["n"])

    @queue.job(timeout=0.2, max_attempts=1, concurrency=1)
    def mixed(stick: bool) -> None:
        if stick:
            gate.enter()

    queue.register("other", work)
    start_worker(concurrency=2)
    mixed.enqueue(stick=True)
    recorder.wait(HandlerStuck)
    waiting = mixed.enqueue(stick=False)
    marker = queue.enqueue("other", {"n": 1})
    assert queue.wait(marker.id, timeout=PATIENCE).status == "completed"
    assert get(queue, waiting.id).status == "pending", "the type's only slot is stuck"
    gate.open()
    assert queue.wait(waiting.id, timeout=PATIENCE).status == "completed"


def test_worker_with_all_slots_stuck_says_so_and_claims_nothing(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job(timeout=0.2, max_attempts=1)
    def stuck() -> None:
        gate.enter()

    queue.register("next", lambda payload: None)
    worker = start_worker(concurrency=2)
    stuck.enqueue_many([{}, {}])
    assert recorder.wait(WorkerExhausted).stuck == 2
    job = queue.enqueue("next")
    recorder.wait(JobFailed, count=2)
    assert get(queue, job.id).status == "pending"
    assert worker.is_running


def test_worker_works_again_when_its_stuck_handlers_have_returned(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job(timeout=0.2, max_attempts=1)
    def stuck() -> None:
        gate.enter()

    queue.register("next", lambda payload: "done")
    start_worker(concurrency=1)
    stuck.enqueue()
    recorder.wait(WorkerExhausted)
    job = queue.enqueue("next")
    gate.open()
    assert queue.wait(job.id, timeout=60).result == "done"


@both_engines
def test_slot_of_a_stuck_handler_is_used_again_as_soon_as_it_returns(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its outcome was written long ago, and nobody polls or commits anything that would wake the worker."""
    for name in ("lease_seconds", "heartbeat_interval", "poll_interval"):
        queue.set_config(name, 3600)

    @queue.job(timeout=0.2, max_attempts=1)
    def stuck() -> None:
        gate.enter()

    queue.register("next", lambda payload: "done")
    start_worker(concurrency=1)
    stuck.enqueue()
    recorder.wait(WorkerExhausted)
    recorder.wait(JobFailed)
    job = queue.enqueue("next")
    looked = Spy(store_of(queue).list_heads)
    monkeypatch.setattr(store_of(queue), "list_heads", looked)
    wait_still(lambda: len(looked.calls))
    gate.open()
    assert queue.wait(job.id, timeout=PATIENCE).result == "done"


def test_handler_that_returns_as_its_time_is_up_has_one_outcome(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loop looks at the time between the handler's outcome and the end of its slot."""

    @queue.job(timeout=0.2, max_attempts=1)
    def work() -> str:
        return "done"

    worker = start_worker(concurrency=1)
    free, rounds = Slots.free, Spy(worker._dispatcher._runner.enforce)
    monkeypatch.setattr(worker._dispatcher._runner, "enforce", rounds)

    def free_late(slots: Slots, attempt: Attempt, seconds: float | None) -> Attempt | None:
        assert attempt.deadline is not None
        attempt.deadline = 0.0
        wake = worker._dispatcher._watch.wake
        for _ in range(3):
            wake()
            rounds.wait_called(1)
        return free(slots, attempt, seconds)

    monkeypatch.setattr(Slots, "free", free_late)
    job = work.enqueue()
    assert queue.wait(job.id, timeout=PATIENCE).result == "done"
    worker.stop()
    assert len(recorder.all(JobCompleted)) == 1
    assert not recorder.all(HandlerStuck)


def test_jobs_held_behind_stuck_handlers_are_given_back(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    def work(payload: dict[str, Any]) -> None:
        if payload.get("stick"):
            gate.enter()

    for each in (queue, other_queue):
        each.register("work", work, timeout=0.5, max_attempts=1)
    jobs = queue.enqueue_many("work", [*([{}] * 300), {"stick": True}, *([{}] * 50)])
    start_worker(concurrency=1)
    recorder.wait(WorkerExhausted)
    start_worker(other_queue)
    for job in jobs[301:]:
        assert queue.wait(job.id, timeout=60).status == "completed"


def test_worker_that_may_be_recycled_stops_when_it_is_used_up(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job(timeout=0.2, max_attempts=1)
    def stuck() -> None:
        gate.enter()

    worker = start_worker(concurrency=1, recycle=True)
    job = stuck.enqueue()
    recorder.wait(WorkerExhausted)
    recorder.wait(WorkerStopped)
    wait_until(lambda: not worker.is_running)
    assert get(queue, job.id).error == TIMED_OUT, "its outcome was written before it left"
    assert queue.workers() == []


def test_thread_sees_its_timeout_at_the_next_check(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    interrupted = threading.Event()

    @queue.job(timeout=0.2, max_attempts=1)
    def work(ctx: Context) -> None:
        try:
            while True:
                ctx.check()
        except Interrupted:
            interrupted.set()
            raise

    start_worker(concurrency=1)
    job = queue.wait(work.enqueue().id, timeout=PATIENCE)
    assert job.error == TIMED_OUT
    assert interrupted.wait(PATIENCE)


def test_timeout_counts_from_the_handlers_start_not_from_the_claim(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate, holds_ready: None
) -> None:
    """A job that was held behind a slow one has its whole time when it starts."""

    def work(payload: dict[str, Any]) -> None:
        if payload.get("block"):
            gate.enter()

    queue.register("work", work)
    queue.enqueue("work", {"block": True})
    last = queue.enqueue_many("work", [{}] * 20, timeout=1, max_attempts=1)
    start_worker(concurrency=1)
    gate.wait_entered()
    wait_until(lambda: queue.stats()["processing"] > 1, message="nothing is held")
    held = queue.jobs(status="processing", limit=100)
    assert len(held) > 1
    waited = threading.Event()
    waited.wait(1.1)  # longer than the timeout: this is what the promise is about
    gate.open()
    for job in last:
        assert queue.wait(job.id, timeout=PATIENCE).status == "completed"
    assert recorder.all(JobRetrying) == []


@pytest.mark.process
def test_timeout_of_a_process_handler_counts_from_its_start_not_from_the_import(
    queue: Queue, start_worker: StartWorker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import_gate = tmp_path / "import"
    monkeypatch.setenv("HOLDFAST_TEST_IMPORT_GATE", str(import_gate))
    queue.job(executor="process", timeout=1, max_attempts=1)(handlers_slow_import.quick)
    start_worker()
    job = queue.enqueue("quick")
    wait_until(lambda: Path(f"{import_gate}.importing").exists())
    threading.Event().wait(1.1)  # longer than the timeout: this is what the promise is about
    import_gate.touch()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert done.status == "completed", done.error
