"""Before a handler starts: is its job still ours? What a worker held while it stood still is not started."""

from __future__ import annotations

import queue as queues
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue, context
from holdfast.context import CANCELLED, LOST, STOPPING, Attempt
from holdfast.core import clock
from holdfast.core.lifecycle import Completed, Released, Stopped
from holdfast.errors import StoreUnavailable
from holdfast.events import JobReleased, LeaseLostByWorker, OutcomeRefused
from holdfast.handlers.handler import Handler
from holdfast.store.open import store_of
from holdfast.store.records import Claim
from holdfast.worker import dispatcher, heartbeat, run
from holdfast.worker.executors import Executor, wire
from holdfast.worker.executors.loop import LoopExecutor
from holdfast.worker.executors.processes import ProcessExecutor
from holdfast.worker.executors.threads import ThreadExecutor
from holdfast.worker.run import Ending
from tests.support import Recorder, both_engines, wait_until
from tests.worker import handlers
from tests.worker.support import PATIENCE, Gate, LeaseHolder, Spy, sql

StartWorker = Callable[..., Any]
EXECUTORS = ["thread", "async", "process"]


@pytest.fixture
def suspend(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let time pass on the lease clock, as if this process had stood still."""
    gone = [0.0]

    def now() -> float:
        return clock.lease_clock() + gone[0]

    for module in (context, dispatcher, heartbeat, run):
        monkeypatch.setattr(module, "lease_clock", now)

    def pass_by(seconds: float) -> None:
        gone[0] += seconds

    return pass_by


def hold_jobs_behind_a_gate(queue: Queue, start_worker: StartWorker, gate: Gate) -> list[int]:
    """Start a worker whose only slot is taken, with ten of 20 jobs held ready behind; returns what runs."""
    runs: list[int] = []

    def work(payload: dict[str, Any]) -> None:
        if payload.get("block"):
            gate.enter()
        elif "n" in payload:
            runs.append(payload["n"])

    queue.register("work", work)
    late = [{"n": n} for n in range(20)]
    queue.enqueue_many("work", [{"block": True}, *late])
    start_worker(concurrency=1)
    gate.wait_entered()
    wait_until(lambda: queue.stats()["processing"] == 11, message="ten are held ready")
    return runs


@both_engines
def test_jobs_that_others_have_done_while_the_worker_stood_still_are_not_started(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    gate: Gate,
    suspend: Callable[[float], None],
    holds_ready: None,
) -> None:
    runs = hold_jobs_behind_a_gate(queue, start_worker, gate)
    done = sql(
        queue,
        "UPDATE holdfast_jobs SET version = version + 1, status = 'completed', due_at = due_at,"
        " worker_id = NULL, lease_expires_at = NULL"
        " WHERE status = 'processing' AND payload LIKE '%n%' RETURNING payload",
    )
    suspend(60)
    gate.open()
    wait_until(lambda: queue.stats()["processing"] + queue.stats()["pending"] == 0)
    others = {int(payload.split(":")[1].rstrip(" }")) for (payload,) in done}
    assert others
    assert sorted(runs) == sorted(set(range(20)) - others)
    assert recorder.all(OutcomeRefused) == []


@both_engines
def test_jobs_held_while_the_worker_stood_still_cost_no_attempt_if_nobody_took_them(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    gate: Gate,
    suspend: Callable[[float], None],
    holds_ready: None,
) -> None:
    runs = hold_jobs_behind_a_gate(queue, start_worker, gate)
    suspend(60)
    gate.open()
    wait_until(lambda: queue.stats()["completed"] == 21)
    assert sorted(runs) == list(range(20))
    recorder.wait(JobReleased)
    assert {job.attempts for job in queue.jobs(limit=30)} == {1}


class Rig:
    """One executor by itself, and what it reports."""

    def __init__(self, kind: Any, queue: Queue, path: Path) -> None:
        self.queue = queue
        self.path = path
        self.kind = kind
        self.endings: queues.SimpleQueue[Ending] = queues.SimpleQueue()
        given = (self._report, store_of(queue))
        self.executor: Executor
        if kind == "thread":
            self.executor = ThreadExecutor(*given)
        elif kind == "async":
            self.executor = LoopExecutor(*given)
        else:
            self.executor = ProcessExecutor(*given, lambda: None, url=queue.url, defaults={})

    def _report(self, attempt: Attempt, ending: Ending) -> None:
        self.endings.put(ending)

    def close(self) -> None:
        self.executor.close()

    def attempt(self) -> Attempt:
        function = handlers.touch_async if self.kind == "async" else handlers.touch
        handler = Handler("touch", function, whole=False, executor=self.kind)
        payload = f'{{"path": "{self.path}"}}'
        return Attempt(Claim(1, "job1", "touch", payload, 0, 1, 3, 1, None, 0, 0, "me"), handler, self.queue)

    def run(self, attempt: Attempt) -> Ending:
        self.executor.start(attempt)
        return self.endings.get(timeout=PATIENCE)


@pytest.mark.process
@pytest.mark.parametrize("kind", EXECUTORS)
def test_handler_starts_only_while_its_lease_holds_and_nobody_has_told_it_to_stop(
    queue: Queue, tmp_path: Path, kind: str
) -> None:
    with closing(Rig(kind, queue, tmp_path / "ran")) as rig:
        late = rig.attempt()
        late.leased_until = clock.lease_clock()
        assert rig.run(late) == Released()
        for reason, ending in ((LOST, Released()), (STOPPING, Released()), (CANCELLED, Stopped())):
            told = rig.attempt()
            told.stop_reason = reason
            assert rig.run(told) == ending
        assert not rig.path.exists()
        in_time = rig.attempt()
        in_time.leased_until = clock.lease_clock() + PATIENCE
        assert rig.run(in_time) == Completed()
        assert rig.path.exists()


@pytest.mark.process
def test_process_that_is_ready_starts_only_if_the_lease_was_renewed_meanwhile(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It imports the application first, which may take longer than a lease. Until then nothing has begun."""
    send = wire.send

    def send_late(stream: Any, message: Any) -> None:
        if isinstance(message, wire.Run):
            assert not attempt.has_begun
            attempt.leased_until = clock.lease_clock() + (PATIENCE if is_renewed else 0.0)
        send(stream, message)

    monkeypatch.setattr(wire, "send", send_late)
    with closing(Rig("process", queue, tmp_path / "ran")) as rig:
        for is_renewed in (False, True):
            attempt = rig.attempt()
            attempt.leased_until = clock.lease_clock() + PATIENCE
            assert rig.run(attempt) == (Completed() if is_renewed else Released())
            assert rig.path.exists() == attempt.has_begun == is_renewed


def overdue_attempt(queue: Queue) -> Attempt:
    attempt = Attempt(
        Claim(1, "job1", "work", "{}", 0, 1, 3, 1, None, 0, 0, "me"),
        Handler("work", lambda payload: None, whole=True),
        queue,
    )
    attempt.leased_until = 1.0
    return attempt


@pytest.mark.parametrize("has_ended", [False, True])
def test_heartbeat_that_fails_gives_up_what_runs_and_not_what_has_ended(
    queue: Queue, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, has_ended: bool
) -> None:
    """An outcome that can't be written is kept and offered, so nothing is lost that should be announced."""
    attempt = overdue_attempt(queue)
    attempt.is_settled = has_ended
    beats = Spy(store_of(queue).heartbeat)
    beats.always = StoreUnavailable("the disk is full")
    monkeypatch.setattr(store_of(queue), "heartbeat", beats)
    holder = LeaseHolder(queue, attempt)
    heartbeat.Heartbeat("me", store_of(queue), queue.events, holder).beat()
    assert holder.lost == ([] if has_ended else [attempt])
    assert len(recorder.all(LeaseLostByWorker)) == (0 if has_ended else 1)


def test_heartbeat_does_not_vouch_for_what_it_finds_lost(queue: Queue) -> None:
    attempt = overdue_attempt(queue)
    holder = LeaseHolder(queue, attempt)
    heartbeat.Heartbeat("me", store_of(queue), queue.events, holder).beat()
    assert (holder.lost, attempt.leased_until) == ([attempt], 1.0)
