"""Pausing: stored flags that every worker follows, and a worker's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Queue
from holdfast.errors import ConfigError
from holdfast.events import (
    JobClaimed,
    JobReleased,
    QueuePaused,
    QueueResumed,
    WorkerPaused,
    WorkerResumed,
)
from holdfast.store.open import store_of
from tests.support import Recorder, both_engines
from tests.worker.support import PATIENCE, Gate, Spy, get

StartWorker = Callable[..., Any]


@pytest.fixture
def looks(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Spy:
    """Counts how often the worker of `queue` has looked for something to start."""
    spy = Spy(store_of(queue).list_heads)
    monkeypatch.setattr(store_of(queue), "list_heads", spy)
    return spy


@pytest.fixture(autouse=True)
def slow_poll(queue: Queue) -> None:
    """Changes must be followed because they are seen, not because of the next poll."""
    queue.set_config("poll_interval", 3600)


@both_engines
def test_paused_queue_starts_nothing_and_resumes_at_once(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, looks: Spy
) -> None:
    queue.register("work", lambda payload: None)
    start_worker()
    other_queue.pause()
    before = len(looks.calls)
    job = other_queue.enqueue("work")
    looks.wait_called(1, after=before)
    before = len(looks.calls)
    other = other_queue.enqueue("work")
    looks.wait_called(1, after=before)
    assert get(queue, job.id).status == get(queue, other.id).status == "pending"
    other_queue.resume()
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed"
    assert queue.wait(other.id, timeout=PATIENCE).status == "completed"


def test_running_jobs_finish_while_the_queue_is_paused(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job
    def work() -> str:
        gate.enter()
        return "done"

    start_worker()
    job = work.enqueue()
    gate.wait_entered()
    queue.pause()
    gate.open()
    assert queue.wait(job.id, timeout=PATIENCE).result == "done"


@both_engines
def test_pause_of_a_type_leaves_the_others_running(
    queue: Queue, other_queue: Queue, start_worker: StartWorker
) -> None:
    queue.register("a", lambda payload: None)
    queue.register("b", lambda payload: None)
    start_worker()
    other_queue.pause(type="a")
    paused = queue.enqueue("a", priority=9)
    assert queue.wait(queue.enqueue("b").id, timeout=PATIENCE).status == "completed"
    assert get(queue, paused.id).status == "pending"
    other_queue.resume(type="a")
    assert queue.wait(paused.id, timeout=PATIENCE).status == "completed"


def test_lane_is_paused_by_itself(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("shell", lambda payload: None)
    queue.pause(type="shell:media")
    paused = queue.enqueue("shell:media")
    start_worker()
    assert queue.wait(queue.enqueue("shell").id, timeout=PATIENCE).status == "completed"
    assert queue.wait(queue.enqueue("shell:text").id, timeout=PATIENCE).status == "completed"
    assert get(queue, paused.id).status == "pending"


def test_type_runs_only_when_neither_flag_is_set(queue: Queue) -> None:
    queue.register("work", lambda payload: None)
    queue.enqueue("work")
    queue.pause()
    queue.pause(type="work")
    queue.resume()
    assert queue.drain() == 0
    queue.pause()
    queue.resume(type="work")
    assert queue.drain() == 0
    queue.resume()
    assert queue.drain() == 1


def test_pausing_twice_is_undone_by_one_resume(queue: Queue) -> None:
    queue.register("work", lambda payload: None)
    queue.enqueue("work")
    queue.pause()
    queue.pause()
    queue.resume()
    assert queue.drain() == 1


def test_resume_of_what_is_not_paused_does_no_harm(queue: Queue) -> None:
    queue.resume()
    queue.resume(type="work")


@both_engines
def test_pause_outlives_the_queue_object(queue: Queue, other_queue: Queue) -> None:
    other_queue.register("work", lambda payload: None)
    queue.pause()
    queue.enqueue("work")
    queue.close()
    assert other_queue.drain() == 0


def test_paused_worker_starts_nothing_while_another_goes_on(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    queue.register("work", lambda payload: "the paused one")
    other_queue.register("work", lambda payload: "the other one")
    worker = start_worker()
    worker.pause()
    assert worker.is_paused
    assert worker.is_running
    recorder.wait(WorkerPaused)
    start_worker(other_queue)
    for _ in range(5):
        assert queue.wait(queue.enqueue("work").id, timeout=PATIENCE).result == "the other one"


def test_resumed_worker_takes_what_has_waited(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    queue.register("work", lambda payload: None)
    worker = start_worker()
    worker.pause()
    job = queue.enqueue("work")
    worker.resume()
    recorder.wait(WorkerResumed)
    assert not worker.is_paused
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed"


def test_running_jobs_of_a_paused_worker_finish(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    queue.register("work", lambda payload: gate.enter())
    worker = start_worker()
    job = queue.enqueue("work")
    gate.wait_entered()
    worker.pause()
    gate.open()
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed"


def test_worker_can_be_paused_before_it_starts(queue: Queue, start_worker: StartWorker, looks: Spy) -> None:
    queue.register("work", lambda payload: None)
    job = queue.enqueue("work")
    worker = queue.worker()
    worker.pause()
    worker.start()
    try:
        assert worker.is_paused
        assert get(queue, job.id).status == "pending"
    finally:
        worker.stop()
    assert get(queue, job.id).attempts == 0


def test_pause_and_resume_are_announced(queue: Queue, recorder: Recorder) -> None:
    queue.pause()
    queue.pause(type="work")
    queue.resume(type="work")
    assert [event.type for event in recorder.all(QueuePaused)] == [None, "work"]
    assert [event.type for event in recorder.all(QueueResumed)] == ["work"]


def test_pause_of_what_cannot_be_a_type_is_refused(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="'no spaces'"):
        queue.pause(type="no spaces")


def test_paused_worker_gives_back_what_it_held_ready(
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
    worker.pause()
    recorder.wait(JobReleased, job_id=held.id)
    back = get(queue, held.id)
    assert (back.status, back.attempts, back.worker_id) == ("pending", 0, None)
    gate.open()
    assert queue.wait(jobs[0].id, timeout=PATIENCE).status == "completed"
    assert ran == [0]
    assert queue.stats()["processing"] == 0
