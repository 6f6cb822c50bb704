"""Worker(drain=True): it works until nothing of its types is left to do, and then ends by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Queue
from holdfast.core.job import Status
from holdfast.events import JobRetrying, WorkerStopped
from holdfast.store.open import store_of
from tests.support import Recorder, both_engines, wait_until
from tests.worker.support import PATIENCE, Gate, Spy, get

StartWorker = Callable[..., Any]


def wait_ended(worker: Any) -> None:
    wait_until(lambda: not worker.is_running, PATIENCE, "the worker did not end by itself")


def test_empty_queue_ends_it_at_once(queue: Queue, start_worker: StartWorker, recorder: Recorder) -> None:
    queue.register("work", lambda payload: None)
    worker = start_worker(drain=True)
    wait_ended(worker)
    assert recorder.wait(WorkerStopped).released == 0
    assert store_of(queue).list_workers() == []
    assert worker.stop() is True


def test_everything_pending_is_run_first(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None)
    queue.enqueue_many("work", [{}] * 200)
    wait_ended(start_worker(drain=True, concurrency=3))
    assert queue.count(status="completed") == 200


@both_engines
def test_retries_are_waited_for(queue: Queue, start_worker: StartWorker) -> None:
    attempts: list[int] = []

    @queue.job(max_attempts=3)
    def work(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise RuntimeError("boom")

    job = work.enqueue()
    wait_ended(start_worker(drain=True))
    assert attempts == [1, 2, 3]
    assert get(queue, job.id).status == "failed"


def test_retry_that_takes_its_time_keeps_it_running(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    queue.set_config("backoff_factor", 3600)
    queue.set_config("poll_interval", 0.05)

    @queue.job
    def work(ctx: Context) -> None:
        raise RuntimeError("boom")

    job = work.enqueue()
    looks = Spy(store_of(queue).list_busy_types)
    worker = start_worker(drain=True)
    recorder.wait(JobRetrying)
    store_of(queue).list_busy_types = looks  # type: ignore[method-assign]
    looks.wait_called(2)
    assert worker.is_running
    queue.cancel(job.id)
    wait_ended(worker)


@both_engines
def test_children_are_run_too(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job
    def parent(ctx: Context, depth: int) -> None:
        if depth:
            ctx.enqueue("parent", {"depth": depth - 1})

    parent.enqueue(depth=4)
    wait_ended(start_worker(drain=True))
    assert queue.count(status="completed") == 5


def test_job_of_a_later_time_is_not_waited_for(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None)
    later = queue.enqueue("work", delay=3600)
    now = queue.enqueue("work")
    wait_ended(start_worker(drain=True))
    assert [get(queue, job.id).status for job in (now, later)] == ["completed", "scheduled"]


@both_engines
def test_job_whose_time_has_come_is_run_though_nobody_promoted_it(
    queue: Queue, start_worker: StartWorker
) -> None:
    queue.register("work", lambda payload: None)
    job = queue.enqueue("work", delay=0.001)
    wait_until(lambda: store_of(queue).now() > (store_of(queue).next_due_at() or 0))
    wait_ended(start_worker(drain=True))
    assert get(queue, job.id).status == "completed"


@pytest.mark.parametrize("type", [None, "paused"])
def test_paused_types_are_not_waited_for(queue: Queue, start_worker: StartWorker, type: str | None) -> None:
    queue.register("paused", lambda payload: None)
    job = queue.enqueue("paused")
    queue.pause(type=type)
    wait_ended(start_worker(drain=True))
    assert get(queue, job.id).status == "pending"


def test_type_that_is_not_paused_is_run_beside_one_that_is(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("paused", lambda payload: None)
    queue.register("work", lambda payload: None)
    queue.enqueue("paused")
    job = queue.enqueue("work")
    queue.pause(type="paused")
    wait_ended(start_worker(drain=True))
    assert get(queue, job.id).status == "completed"


def test_foreign_types_are_not_waited_for(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None)
    foreign = queue.enqueue("foreign")
    wait_ended(start_worker(drain=True))
    assert get(queue, foreign.id).status == "pending"


def test_types_that_it_was_not_given_are_not_waited_for(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("mine", lambda payload: None)
    queue.register("other", lambda payload: None)
    mine, other = queue.enqueue("mine"), queue.enqueue("other")
    wait_ended(start_worker(drain=True, types=["mine"]))
    assert [get(queue, job.id).status for job in (mine, other)] == ["completed", "pending"]


def test_lanes_of_its_types_are_waited_for(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None)
    lane = queue.enqueue("work:slow")
    wait_ended(start_worker(drain=True))
    assert get(queue, lane.id).status == "completed"


def test_job_that_another_worker_runs_is_waited_for(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    """It may still fail there, and then wait for a retry."""
    queue.set_config("poll_interval", 0.05)
    queue.register("work", lambda payload: None)
    other_queue.register("work", lambda payload: gate.enter())
    job = queue.enqueue("work")
    start_worker(of=other_queue)
    gate.wait_entered()
    looks = Spy(store_of(queue).list_busy_types)
    store_of(queue).list_busy_types = looks  # type: ignore[method-assign]
    worker = start_worker(drain=True)
    looks.wait_called(2)
    assert worker.is_running
    gate.open()
    wait_ended(worker)
    assert get(queue, job.id).status == "completed"


@both_engines
def test_job_of_a_worker_that_died_is_taken_over_before_it_ends(
    queue: Queue, start_worker: StartWorker, short_heartbeat: None
) -> None:
    queue.register("work", lambda payload: "saved")
    job = queue.enqueue("work")
    from tests.conformance.steps import claim

    assert len(claim(store_of(queue), "work", worker="dead", lease=0.05)) == 1
    wait_ended(start_worker(drain=True))
    assert get(queue, job.id).result == "saved"


def test_own_running_job_is_finished_before_it_ends(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    queue.set_config("shutdown_timeout", 0)

    @queue.job
    def work() -> str:
        gate.enter()
        return "done"

    job = work.enqueue()
    worker = start_worker(drain=True)
    gate.wait_entered()
    opener = threading.Timer(0.05, gate.open)
    opener.start()
    wait_ended(worker)
    opener.join()
    assert get(queue, job.id).result == "done"


def test_pause_does_not_cut_its_running_job_short(
    queue: Queue, start_worker: StartWorker, gate: Gate, recorder: Recorder
) -> None:
    """Running jobs finish, says a pause, however long they take."""
    queue.set_config("poll_interval", 0.05)
    queue.set_config("shutdown_timeout", 0)

    @queue.job
    def work() -> str:
        gate.enter()
        return "done"

    job = work.enqueue()
    worker = start_worker(drain=True)
    gate.wait_entered()
    looks = Spy(store_of(queue).get_stop_request)
    store_of(queue).get_stop_request = looks  # type: ignore[method-assign]
    queue.pause()
    wait_until(lambda: not worker.is_running or len(looks.calls) >= 2, PATIENCE, "it did not look again")
    gate.open()
    wait_ended(worker)
    assert get(queue, job.id).status is Status.COMPLETED
    assert recorder.wait(WorkerStopped).released == 0


def test_what_is_enqueued_meanwhile_is_run_too(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    queue.register("work", lambda payload: gate.enter())
    first = queue.enqueue("work")
    worker = start_worker(drain=True, concurrency=1)
    gate.wait_entered()
    second = queue.enqueue("work")
    gate.open()
    wait_ended(worker)
    assert [get(queue, job.id).status for job in (first, second)] == ["completed", "completed"]


@both_engines
def test_two_of_them_share_the_work_and_both_end(
    queue: Queue, other_queue: Queue, start_worker: StartWorker
) -> None:
    for each in (queue, other_queue):
        each.register("work", lambda payload: None)
    queue.enqueue_many("work", [{}] * 300)
    workers = [start_worker(of=each, drain=True, concurrency=2) for each in (queue, other_queue)]
    for worker in workers:
        wait_ended(worker)
    assert queue.count(status="completed") == 300


def test_it_can_be_stopped_before(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    queue.register("work", lambda payload: gate.enter())
    queue.enqueue_many("work", [{}, {}])
    worker = start_worker(drain=True, concurrency=1)
    gate.wait_entered()
    assert worker.stop(timeout=0) is False
    assert not worker.is_running


def test_run_returns_when_all_is_done(queue: Queue) -> None:
    queue.register("work", lambda payload: None)
    queue.enqueue("work")
    assert queue.worker(drain=True).run() is True
    assert queue.count(status="completed") == 1


def test_worker_without_drain_waits_for_more(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None)
    worker = start_worker()
    queue.wait(queue.enqueue("work").id, timeout=PATIENCE)
    queue.wait(queue.enqueue("work").id, timeout=PATIENCE)
    assert worker.is_running
