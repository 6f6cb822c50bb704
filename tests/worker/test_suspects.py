"""Jobs that have lost two workers in a row: each runs alone, and nobody waits for it for long."""

from __future__ import annotations

import threading
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from holdfast import Context, Job, Queue
from holdfast.events import HandlerStuck, JobFailed
from holdfast.handlers.options import HandlerOptions
from holdfast.store.open import store_of
from holdfast.worker import suspects
from tests.support import Recorder, both_engines
from tests.worker.support import PATIENCE, Gate, Spy, get, sql

StartWorker = Callable[..., Any]


class Crew:
    """Handlers that know who runs beside them."""

    def __init__(self, queue: Queue) -> None:
        self._lock = threading.Lock()
        self._running: set[str] = set()
        self.beside: dict[str, set[str]] = {}
        self.pause = threading.Event()
        queue.register("work", self.work)

    def work(self, payload: dict[str, Any], ctx: Any) -> None:
        name = ctx.job.id
        with self._lock:
            self._running.add(name)
            for other in self._running:
                self.beside.setdefault(other, set()).update(self._running - {other})
        self.pause.wait(0.02)
        with self._lock:
            self._running.remove(name)


def lose_two_workers(queue: Queue, *job_ids: str) -> None:
    for job_id in job_ids:
        sql(queue, "UPDATE holdfast_jobs SET losses = 2 WHERE id = ?", job_id)


def lost_job(queue: Queue) -> Job:
    """A pending job that has lost two workers, and that no worker has seen before."""
    job = queue.enqueue("work", {"lost": True}, delay=3600)
    sql(
        queue,
        "UPDATE holdfast_jobs SET status = 'pending', due_at = created_at, losses = 2 WHERE id = ?",
        job.id,
    )
    return job


@both_engines
def test_suspects_run_one_at_a_time_and_beside_nobody(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "LOOK_PAUSE", 0.05)
    crew = Crew(queue)
    jobs = [job.id for job in queue.enqueue_many("work", [{}] * 60)]
    lost = jobs[5:8]
    lose_two_workers(queue, *lost)
    start_worker(concurrency=4)
    for job_id in jobs:
        done = queue.wait(job_id, timeout=PATIENCE)
        assert (done.status, done.attempts) == ("completed", 1)
    assert {job_id: crew.beside[job_id] for job_id in lost} == {job_id: set() for job_id in lost}
    assert any(crew.beside[job_id] for job_id in jobs), "the others ran beside each other"


@both_engines
def test_others_have_their_turns_between_suspects(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A machine that was lost twice may leave many behind, and each has a worker to itself."""
    monkeypatch.setattr(suspects, "LOOK_PAUSE", 0.1)
    pause, order = threading.Event(), []

    def work(payload: dict[str, Any], ctx: Context) -> None:
        order.append(ctx.job.id)
        pause.wait(0.05)

    queue.register("work", work)
    jobs = [job.id for job in queue.enqueue_many("work", [{}] * 60)]
    lost = jobs[:5]
    lose_two_workers(queue, *lost)
    start_worker(concurrency=2)
    for job_id in jobs:
        assert queue.wait(job_id, timeout=PATIENCE).status == "completed"
    places = sorted(order.index(job_id) for job_id in lost)
    last_other = max(order.index(job_id) for job_id in jobs[5:])
    between = [after - before - 1 for before, after in pairwise(places) if after < last_other]
    assert len(between) >= 2, order
    assert min(between) >= 2, order


@both_engines
def test_suspect_waits_for_a_busy_worker_which_makes_room_only_for_a_moment(
    queue: Queue, start_worker: StartWorker, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "LOOK_PAUSE", 0.05)
    monkeypatch.setattr(suspects, "MAKING_ROOM", 0.3)
    queue.register("work", lambda payload: gate.enter() if payload.get("block") else None)
    queue.enqueue("work", {"block": True})
    start_worker(concurrency=4)
    gate.wait_entered()
    lost = lost_job(queue)
    # A commit of somebody else lets the worker look; then the job that came later must not wait for long.
    later = queue.enqueue("work")
    assert queue.wait(later.id, timeout=PATIENCE).status == "completed"
    waiting = get(queue, lost.id)
    assert (waiting.status, waiting.attempts) == ("pending", 0)
    assert queue.why(lost.id)[0].code == "runs_alone"
    gate.open()
    assert queue.wait(lost.id, timeout=PATIENCE).status == "completed"


@both_engines
def test_idle_worker_takes_a_suspect_though_nothing_else_waits(
    queue: Queue, start_worker: StartWorker
) -> None:
    crew = Crew(queue)
    paused = queue.enqueue("work", delay=0.2)
    lose_two_workers(queue, paused.id)
    start_worker(concurrency=4)
    assert queue.wait(paused.id, timeout=PATIENCE).status == "completed"
    assert crew.beside[paused.id] == set()


@both_engines
@pytest.mark.parametrize("cap", ["the worker's", "the type's"])
def test_suspect_is_not_claimed_by_a_worker_without_a_slot_for_it(
    queue: Queue, start_worker: StartWorker, gate: Gate, recorder: Recorder, cap: str
) -> None:
    """A handler that was written off keeps its slot, and another worker may have one."""
    is_types = cap == "the type's"

    def work(payload: dict[str, Any]) -> None:
        if payload.get("stick"):
            gate.enter()

    options: HandlerOptions = {"timeout": 0.2, "max_attempts": 1}
    if is_types:
        options["concurrency"] = 1
    queue.register("work", work, **options)
    queue.register("other", lambda payload: None)
    start_worker(concurrency=2 if is_types else 1)
    queue.enqueue("work", {"stick": True})
    recorder.wait(HandlerStuck)
    recorder.wait(JobFailed)
    lost = lost_job(queue)
    queue.enqueue("other")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suspects, "LOOK_PAUSE", 0.05)
        looks = Spy(store_of(queue).list_suspect_types)
        patch.setattr(store_of(queue), "list_suspect_types", looks)
        looks.wait_called(2)
    waiting = get(queue, lost.id)
    assert (waiting.status, waiting.version) == ("pending", 0)
    gate.open()
    assert queue.wait(lost.id, timeout=PATIENCE).status == "completed"


@both_engines
def test_suspect_of_a_paused_type_holds_nobody_up(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suspects, "LOOK_PAUSE", 0.05)
    for type in ("work", "other"):
        queue.register(type, lambda payload: None)
    lost = queue.enqueue("work")
    lose_two_workers(queue, lost.id)
    queue.pause("work")
    start_worker(concurrency=2)
    for _ in range(5):
        job = queue.enqueue("other")
        assert queue.wait(job.id, timeout=PATIENCE).status == "completed"
    assert get(queue, lost.id).status == "pending"
    queue.resume("work")
    assert queue.wait(lost.id, timeout=PATIENCE).status == "completed"


@both_engines
def test_drain_runs_suspects_too(queue: Queue) -> None:
    queue.register("work", lambda payload: None)
    jobs = [job.id for job in queue.enqueue_many("work", [{}] * 3)]
    lose_two_workers(queue, jobs[1])
    assert queue.drain() == 3
    assert {get(queue, job_id).status for job_id in jobs} == {"completed"}


def test_worker_that_waits_in_vain_for_room_is_idle_meanwhile(
    queue: Queue, start_worker: StartWorker, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It looks now and then, and writes nothing."""
    monkeypatch.setattr(suspects, "LOOK_PAUSE", 0.05)
    queue.register("work", lambda payload: gate.enter() if payload.get("block") else None)
    queue.enqueue("work", {"block": True})
    lost = queue.enqueue("work", {"lost": True})
    lose_two_workers(queue, lost.id)
    start_worker(concurrency=2)
    gate.wait_entered()
    turns = Spy(store_of(queue).finish_and_claim)
    monkeypatch.setattr(store_of(queue), "finish_and_claim", turns)
    threading.Event().wait(1.0)
    assert len(turns.calls) <= 5
    assert get(queue, lost.id).status == "pending"
