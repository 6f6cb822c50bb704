"""Stop requests through the database: they reach a worker wherever it runs, in order or at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from holdfast import Context, Queue
from holdfast.events import WorkerExhausted, WorkerStopped, WorkerStopping
from holdfast.store.open import store_of
from holdfast.store.records import StopRequest
from tests.support import Recorder, both_engines, wait_until
from tests.worker.support import PATIENCE, Gate, get, time_out

StartWorker = Callable[..., Any]


def wait_ended(worker: Any) -> None:
    wait_until(lambda: not worker.is_running, PATIENCE, "the worker did not stop")


def test_idle_worker_stops_soon(queue: Queue, other_queue: Queue, start_worker: StartWorker) -> None:
    worker = start_worker()
    store_of(other_queue).request_stop([worker.id], StopRequest.IN_ORDER)
    wait_ended(worker)
    assert store_of(queue).list_workers() == []
    assert worker.stop() is True


@both_engines
def test_request_in_order_lets_running_jobs_finish_and_starts_no_more(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job
    def work() -> str:
        gate.enter()
        return "done"

    first, second = work.enqueue(), work.enqueue()
    worker = start_worker(concurrency=1)
    gate.wait_entered()
    store_of(other_queue).request_stop([worker.id], StopRequest.IN_ORDER)
    assert recorder.wait(WorkerStopping).running == 1
    gate.open()
    wait_ended(worker)
    assert get(queue, first.id).result == "done"
    assert (get(queue, second.id).status, get(queue, second.id).attempts) == ("pending", 0)
    assert recorder.wait(WorkerStopped).released == 0


@both_engines
def test_request_at_once_gives_running_jobs_back(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    queue.register("work", lambda payload: gate.enter())
    job = queue.enqueue("work")
    worker = start_worker()
    gate.wait_entered()
    store_of(other_queue).request_stop([worker.id], StopRequest.AT_ONCE)
    wait_ended(worker)
    assert recorder.wait(WorkerStopped).released == 1
    given_back = get(queue, job.id)
    assert (given_back.status, given_back.attempts) == ("pending", 0)


def test_request_at_once_overtakes_one_in_order(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    queue.register("work", lambda payload: gate.enter())
    job = queue.enqueue("work")
    worker = start_worker()
    gate.wait_entered()
    store_of(other_queue).request_stop([worker.id], StopRequest.IN_ORDER)
    recorder.wait(WorkerStopping)
    assert worker.is_running
    store_of(other_queue).request_stop([worker.id], StopRequest.AT_ONCE)
    wait_ended(worker)
    assert get(queue, job.id).status == "pending"


def test_other_workers_go_on(queue: Queue, other_queue: Queue, start_worker: StartWorker) -> None:
    for each in (queue, other_queue):
        each.register("work", lambda payload: None)
    stopped, other = start_worker(), start_worker(of=other_queue)
    store_of(queue).request_stop([stopped.id], StopRequest.AT_ONCE)
    wait_ended(stopped)
    queue.wait(queue.enqueue("work").id, timeout=PATIENCE)
    assert other.is_running
    assert [found.id for found in store_of(queue).list_workers()] == [other.id]


def test_paused_worker_stops_too(queue: Queue, other_queue: Queue, start_worker: StartWorker) -> None:
    queue.pause()
    worker = start_worker()
    worker.pause()
    store_of(other_queue).request_stop([worker.id], StopRequest.IN_ORDER)
    wait_ended(worker)


def test_worker_can_be_started_again(queue: Queue, other_queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None)
    worker = start_worker()
    store_of(other_queue).request_stop([worker.id], StopRequest.AT_ONCE)
    wait_ended(worker)
    worker.start()
    queue.wait(queue.enqueue("work").id, timeout=PATIENCE)
    assert worker.is_running


# Used up


def test_worker_is_exhausted_while_stuck_handlers_hold_every_slot(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job(timeout=0.05, max_attempts=1)
    def stuck() -> None:
        gate.enter()

    worker = start_worker(concurrency=2)
    queue.wait(stuck.enqueue().id, timeout=PATIENCE)
    assert not worker.is_exhausted, "a slot is left"
    stuck.enqueue()
    recorder.wait(WorkerExhausted)
    assert (worker.is_exhausted, worker.is_running) == (True, True)
    gate.open()
    wait_until(lambda: not worker.is_exhausted, PATIENCE)


def test_worker_is_exhausted_while_stuck_handlers_hold_every_slot_of_a_type(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    """That type would never run here again, though nine slots are free."""

    @queue.job(timeout=0.05, max_attempts=1, concurrency=1)
    def stuck() -> None:
        gate.enter()

    worker = start_worker(concurrency=10)
    stuck.enqueue()
    wait_until(lambda: worker.is_exhausted, PATIENCE)
    gate.open()
    wait_until(lambda: not worker.is_exhausted, PATIENCE)


def test_worker_that_recycles_is_still_exhausted_when_it_has_stopped(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    """Its supervisor asks afterwards."""

    @queue.job(timeout=0.05, max_attempts=1)
    def stuck() -> None:
        gate.enter()

    stuck.enqueue()
    worker = start_worker(concurrency=1, recycle=True)
    wait_ended(worker)
    assert worker.is_exhausted is True


def test_worker_that_was_stopped_is_not_exhausted(queue: Queue, start_worker: StartWorker) -> None:
    worker = queue.worker()
    before = worker.is_exhausted
    worker.start()
    worker.stop()
    assert (before, worker.is_exhausted) == (False, False)


# What a handler can say and ask


def test_handler_sees_the_settings_of_its_type(queue: Queue) -> None:
    seen: list[Any] = []

    @queue.job
    def work(ctx: Context) -> None:
        seen.extend([ctx.setting("max_log_bytes"), ctx.setting("max_retries")])

    queue.set_config("max_log_bytes", 4096, type="work")
    queue.set_config("max_attempts", 7)
    work.enqueue()
    assert queue.drain() == 1
    assert seen == [4096, 7]


@both_engines
def test_evidence_is_kept_with_the_attempt_that_failed(queue: Queue) -> None:
    @queue.job(max_attempts=2)
    def work(ctx: Context) -> None:
        ctx.detail(exitCode=ctx.attempt, output="first")
        ctx.detail(output="tail")
        raise RuntimeError("boom")

    job = work.enqueue()
    while queue.drain() or get(queue, job.id).status != "failed":
        pass
    history = get(queue, job.id).errors
    assert [entry.detail for entry in history] == [
        {"exitCode": 1, "output": "tail"},
        {"exitCode": 2, "output": "tail"},
    ]


def test_evidence_that_is_not_json_is_refused_where_it_is_given(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    def work(ctx: Context) -> None:
        ctx.detail(bad=object())

    job = work.enqueue()
    queue.drain()
    assert get(queue, job.id).status == "failed"
    assert get(queue, job.id).errors[0].detail is None


def test_sync_handler_that_can_be_interrupted_ends_at_its_timeout(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job(timeout=0.1, max_attempts=1)
    def work(ctx: Context) -> None:
        ctx.on_interrupt(gate.open)
        gate.enter()
        ctx.check()

    worker = start_worker(concurrency=1)
    job = queue.wait(work.enqueue().id, timeout=PATIENCE)
    assert (job.status, str(job.error).startswith("TimedOut")) == ("failed", True)
    assert worker.is_exhausted is False


def test_interruption_that_fails_does_not_take_the_worker_down(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job(timeout=600, max_attempts=1)
    def broken(ctx: Context) -> None:
        def fail() -> None:
            raise RuntimeError("it can't be stopped")

        ctx.on_interrupt(fail)
        gate.enter()

    queue.register("work", lambda payload: "done")
    worker = start_worker(concurrency=2)
    job = broken.enqueue()
    gate.wait_entered()
    time_out(worker, job.id)
    wait_until(lambda: get(queue, job.id).is_finished or not worker.is_running, PATIENCE)
    assert worker.is_running
    assert str(get(queue, job.id).error).startswith("TimedOut")
    assert queue.wait(queue.enqueue("work").id, timeout=PATIENCE).result == "done"
