"""Leases: renewed while a job runs, given up when they can't be, taken over when nobody renews them."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Context, Queue
from holdfast.core.clock import SECOND, system_clock
from holdfast.core.lifecycle import completion
from holdfast.errors import CommitUncertain, StoreUnavailable
from holdfast.events import (
    HandlerStuck,
    JobCompleted,
    JobFailed,
    JobReaped,
    LeaseLostByWorker,
    OutcomeRefused,
    StoreRecovered,
    StoreTrouble,
)
from holdfast.handlers.options import HandlerOptions
from holdfast.store.open import store_of
from holdfast.store.records import Demand, Finish, WorkerRecord
from holdfast.worker import maintenance
from tests.support import Recorder, both_engines, wait_until
from tests.worker.support import PATIENCE, Gate, Spy, get, path_of, sql, supersede

pytestmark = pytest.mark.slow

StartWorker = Callable[..., Any]


def claim_elsewhere(
    queue: Queue, type: str = "work", *, seconds_ago: float = 60, has_started: bool = True
) -> Any:
    """Claim a job for a worker of another machine that has been dead for so long."""
    demand = Demand(type=type, limit=1, max_attempts=3)
    (claim,) = store_of(queue).claim_jobs("dead", [demand], limit=1, lease_seconds=30).claims
    sql(
        queue,
        "UPDATE holdfast_jobs SET lease_expires_at = lease_expires_at - ?, has_started = ? WHERE seq = ?",
        round((30 + seconds_ago) * 1e6),
        has_started,
        claim.seq,
    )
    return claim


@both_engines
def test_long_job_is_renewed_and_not_taken_by_another_worker(
    queue: Queue,
    other_queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    gate: Gate,
    short_heartbeat: None,
) -> None:
    others = Recorder(other_queue.events)
    queue.register("work", lambda payload: gate.enter())
    other_queue.register("work", lambda payload: "stolen")
    worker = start_worker()
    job = queue.enqueue("work")
    gate.wait_entered()
    first = get(queue, job.id).lease_expires_at
    assert first is not None
    start_worker(other_queue)
    # Well past the end of the first lease, with sweeps every tenth of a second.
    wait_until(lambda: store_of(queue).now() > first.timestamp() * 1e6 + 500_000)
    running = get(queue, job.id)
    assert (running.status, running.worker_id, running.attempts) == ("processing", worker.id, 1)
    gate.open()
    assert queue.wait(job.id, timeout=PATIENCE).result is None
    assert recorder.all(JobReaped) == others.all(JobReaped) == []


def test_jobs_held_and_outcomes_not_yet_written_are_renewed_too(
    queue: Queue,
    start_worker: StartWorker,
    gate: Gate,
    short_heartbeat: None,
    holds_ready: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue.register("work", lambda payload: gate.enter())
    queue.enqueue_many("work", [{}] * 20)
    beats = Spy(store_of(queue).heartbeat)
    monkeypatch.setattr(store_of(queue), "heartbeat", beats)
    start_worker(concurrency=1)
    gate.wait_entered()
    wait_until(lambda: queue.stats()["processing"] == 11)
    beats.wait_called(2)
    wait_until(lambda: len(beats.calls[-1][1]) == 11)


def test_worker_that_cannot_renew_stops_its_async_handlers_and_lets_their_jobs_go(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stopped = threading.Event()
    stopped_at: list[int] = []
    beats = Spy(store_of(queue).heartbeat)
    monkeypatch.setattr(store_of(queue), "heartbeat", beats)

    @queue.job
    async def hang(ctx: Context) -> str:
        gate.count()
        if ctx.attempt > 1:
            return "second try"
        try:
            await asyncio.Event().wait()
        finally:
            stopped_at.append(store_of(queue).now())
            stopped.set()
        return ""

    worker = start_worker()
    job = hang.enqueue()
    gate.wait_entered()
    beats.always = StoreUnavailable("no disk")
    lost = recorder.wait(LeaseLostByWorker)
    assert (lost.worker_id, lost.jobs) == (worker.id, 1)
    assert stopped.wait(PATIENCE)
    seen = get(queue, job.id)
    assert seen.lease_expires_at is None or stopped_at[0] < seen.lease_expires_at.timestamp() * 1e6, (
        "the handler was stopped only when the lease was over"
    )
    beats.always = None
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.result, done.attempts) == ("second try", 2)
    assert done.errors[0].error.startswith(f"WorkerLost: worker {worker.id} died or lost its lease")
    assert recorder.wait(JobCompleted).attempt == 2


@both_engines
def test_worker_that_cannot_renew_writes_its_threads_off_and_drops_their_late_outcomes(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = Spy(store_of(queue).heartbeat)
    monkeypatch.setattr(store_of(queue), "heartbeat", beats)

    @queue.job
    def work(ctx: Context) -> int:
        if ctx.attempt == 1:
            gate.enter()
        return ctx.attempt

    start_worker(concurrency=2)
    job = work.enqueue()
    gate.wait_entered()
    beats.always = StoreUnavailable("no disk")
    assert recorder.wait(HandlerStuck, job_id=job.id).reason == "lost"
    beats.always = None
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.result, done.attempts) == (2, 2)
    gate.open()
    assert get(queue, job.id) == done


def test_trouble_that_passes_in_time_costs_nothing(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    gate: Gate,
    short_heartbeat: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    beats = Spy(store_of(queue).heartbeat)
    monkeypatch.setattr(store_of(queue), "heartbeat", beats)
    queue.register("work", lambda payload: gate.enter())
    start_worker()
    job = queue.enqueue("work")
    gate.wait_entered()
    beats.failures = [StoreUnavailable("once"), StoreUnavailable("twice")]
    recorder.wait(StoreTrouble, count=2)
    recorder.wait(StoreRecovered)
    gate.open()
    assert queue.wait(job.id, timeout=PATIENCE).attempts == 1
    assert recorder.all(LeaseLostByWorker) == []


@both_engines
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_late_outcome_of_a_superseded_attempt_is_refused(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate, kind: str
) -> None:
    @queue.job(name="thread")
    def in_thread() -> str:
        gate.enter()
        return "late"

    @queue.job(name="async")
    async def on_loop() -> str:
        await gate.enter_async()
        return "late"

    start_worker()
    job = queue.enqueue(kind)
    gate.wait_entered()
    supersede(queue, job.id)
    before = get(queue, job.id)
    gate.open()
    assert recorder.wait(OutcomeRefused).job_id == job.id
    assert get(queue, job.id) == before
    assert recorder.all(JobCompleted) == []


@both_engines
def test_handler_whose_job_was_taken_over_is_stopped_by_the_next_heartbeat(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate, short_heartbeat: None
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
    supersede(queue, job.id)
    before = get(queue, job.id)
    assert stopped.wait(PATIENCE)
    assert get(queue, job.id) == before


@both_engines
def test_job_of_a_dead_worker_runs_again(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, short_heartbeat: None
) -> None:
    queue.register("work", lambda payload, ctx: ctx.attempt)
    job = queue.enqueue("work")
    claim_elsewhere(queue)
    start_worker()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.result) == ("completed", 2)
    assert done.errors[0].error.startswith("WorkerLost: worker dead died or lost its lease")
    reaped = recorder.wait(JobReaped)
    assert (reaped.job_id, reaped.worker_id, reaped.status) == (job.id, "dead", "scheduled")


@both_engines
def test_job_of_a_lost_machine_of_which_no_start_is_known_loses_no_attempt(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, short_heartbeat: None
) -> None:
    queue.register("work", lambda payload, ctx: ctx.attempt)
    job = queue.enqueue("work", max_attempts=1)
    claim_elsewhere(queue, has_started=False)
    start_worker()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.result, done.errors) == ("completed", 1, ())
    reaped = recorder.wait(JobReaped)
    assert (reaped.job_id, reaped.worker_id, reaped.status) == (job.id, "dead", "pending")


@both_engines
def test_job_that_keeps_killing_its_workers_ends_failed_and_says_so(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, short_heartbeat: None
) -> None:
    job = queue.enqueue("work", max_attempts=1)
    claim_elsewhere(queue)
    start_worker()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts) == ("failed", 1)
    assert done.error is not None
    assert done.error.startswith("WorkerLost")
    assert recorder.wait(JobReaped).status == "failed"
    failed = recorder.wait(JobFailed)
    assert (failed.job_id, failed.attempt, failed.worker_id) == (job.id, 1, "dead")
    assert failed.error.startswith("WorkerLost")


@both_engines
def test_cancelled_job_of_a_dead_worker_ends_cancelled(
    queue: Queue, start_worker: StartWorker, short_heartbeat: None
) -> None:
    job = queue.enqueue("work")
    claim_elsewhere(queue)
    queue.cancel(job.id)
    start_worker()
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"


@both_engines
def test_reaper_takes_an_expired_lease_only_at_the_second_look(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(maintenance, "time", SimpleNamespace(monotonic=lambda: clock.now))
    job = queue.enqueue("work")
    claim_elsewhere(queue)
    reaper = maintenance.Reaper(store_of(queue))
    settings = queue.settings()
    assert reaper.sweep(5.0, settings) == []
    reaper.looked()
    clock.now += 4.9
    assert reaper.sweep(5.0, settings) == []
    clock.now += 0.2
    assert [expired.id for expired, _ in reaper.sweep(5.0, settings)] == [job.id]
    assert get(queue, job.id).status == "scheduled"


def test_reaper_leaves_what_was_renewed_between_its_looks(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(maintenance, "time", SimpleNamespace(monotonic=lambda: clock.now))
    queue.enqueue("work")
    claim = claim_elsewhere(queue)
    reaper = maintenance.Reaper(store_of(queue))
    settings = queue.settings()
    reaper.sweep(5.0, settings)
    reaper.looked()
    beat = store_of(queue).heartbeat("dead", [(claim.seq, claim.version)], state="running", lease_seconds=30)
    assert not beat.lost
    clock.now += 6
    assert reaper.sweep(5.0, settings) == []


@both_engines
def test_reaper_begins_anew_with_each_renewal(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that was set forward lets the lease of a living worker look expired twice."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(maintenance, "time", SimpleNamespace(monotonic=lambda: clock.now))
    queue.enqueue("work")
    claim = claim_elsewhere(queue)
    reaper = maintenance.Reaper(store_of(queue))
    settings = queue.settings()
    reaper.sweep(5.0, settings)
    reaper.looked()
    store_of(queue).heartbeat("dead", [(claim.seq, claim.version)], state="running", lease_seconds=30)
    sql(queue, "UPDATE holdfast_jobs SET lease_expires_at = lease_expires_at - ?", 60 * SECOND)
    clock.now += 6
    assert reaper.sweep(5.0, settings) == [], "a lease that was renewed, seen expired for the first time"
    reaper.looked()
    clock.now += 6
    assert len(reaper.sweep(5.0, settings)) == 1


def test_reaper_begins_anew_with_each_claim(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(maintenance, "time", SimpleNamespace(monotonic=lambda: clock.now))
    queue.enqueue("work")
    claim_elsewhere(queue)
    reaper = maintenance.Reaper(store_of(queue))
    settings = queue.settings()
    reaper.sweep(5.0, settings)
    reaper.looked()
    sql(queue, "UPDATE holdfast_jobs SET version = version + 1")
    clock.now += 6
    assert reaper.sweep(5.0, settings) == [], "another claim, seen expired for the first time"


@both_engines
def test_database_trouble_in_a_turn_loses_no_outcome(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    runs: list[int] = []
    finishes = Spy(store_of(queue).finish_jobs)
    finishes.failures = [StoreUnavailable("no disk")] * 4
    monkeypatch.setattr(store_of(queue), "finish_jobs", finishes)
    queue.register("work", lambda payload: runs.append(payload["n"]))
    jobs = queue.enqueue_many("work", [{"n": n} for n in range(20)])
    start_worker()
    for job in jobs:
        assert queue.wait(job.id, timeout=PATIENCE).attempts == 1
    assert sorted(runs) == list(range(20))
    assert len(recorder.all(StoreTrouble)) >= 4
    recorder.wait(StoreRecovered)


@both_engines
def test_worker_survives_trouble_while_it_starts(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    registering = Spy(store_of(queue).register_worker)
    registering.failures = [StoreUnavailable("no disk")] * 3
    monkeypatch.setattr(store_of(queue), "register_worker", registering)
    queue.register("work", lambda payload: "done")
    job = queue.enqueue("work")
    worker = start_worker()
    assert queue.wait(job.id, timeout=PATIENCE).attempts == 1
    assert len(recorder.all(StoreTrouble)) == 3
    assert [each.id for each in queue.workers()] == [worker.id]


def test_worker_survives_trouble_while_it_is_idle(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Spy(store_of(queue).list_heads)
    monkeypatch.setattr(store_of(queue), "list_heads", looks)
    queue.register("work", lambda payload: "done")
    worker = start_worker()
    looks.failures = [StoreUnavailable("no disk")] * 3
    job = queue.enqueue("work")
    recorder.wait(StoreTrouble, count=3)
    assert queue.wait(job.id, timeout=PATIENCE).result == "done"
    assert worker.is_running


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_outcome_survives_when_settings_cannot_be_read_at_its_end(
    queue: Queue, start_worker: StartWorker, gate: Gate, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    settings = Spy(store_of(queue).read_settings)
    monkeypatch.setattr(store_of(queue), "read_settings", settings)

    @queue.job(name="thread")
    def in_thread() -> str:
        gate.enter()
        return "done"

    @queue.job(name="async")
    async def on_loop() -> str:
        await gate.enter_async()
        return "done"

    start_worker()
    job = queue.enqueue(kind)
    gate.wait_entered()
    settings.always = StoreUnavailable("no disk")
    queue.register("another", lambda payload: None)  # so that settings read before are out of date
    gate.open()
    settings.wait_called(1)
    settings.always = None
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.result, done.attempts) == ("completed", "done", 1), done.error


def test_progress_reported_in_times_of_trouble_is_stored_after_them(
    queue: Queue, start_worker: StartWorker, gate: Gate, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    writes = Spy(store_of(queue).write_progress)
    writes.failures = [StoreUnavailable("no disk")] * 2
    monkeypatch.setattr(store_of(queue), "write_progress", writes)

    @queue.job
    def work(ctx: Context) -> None:
        ctx.progress(0.5)
        gate.enter()

    start_worker()
    job = work.enqueue()
    recorder.wait(StoreTrouble, count=2)
    wait_until(lambda: get(queue, job.id).progress is not None)
    gate.open()


class DoubtfulCommit:
    """Makes one commit of the worker fail after it was made, or instead of it."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch, *, really: bool) -> None:
        database: Any = store_of(queue).database
        self._database, self._commit = database, database.commit
        self._really = really
        self.armed = threading.Event()
        monkeypatch.setattr(self._database, "commit", self)

    def __call__(self, connection: sqlite3.Connection) -> None:
        if threading.current_thread().name != "holdfast-dispatcher" or not self.armed.is_set():
            self._commit(connection)
            return
        self.armed.clear()
        if self._really:
            self._commit(connection)
        else:
            connection.rollback()
        raise CommitUncertain("the commit failed: disk I/O error")


@both_engines
@pytest.mark.parametrize("really", [True, False])
def test_claims_of_a_commit_in_doubt_are_given_back_and_run_once(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, monkeypatch: pytest.MonkeyPatch, really: bool
) -> None:
    runs: list[int] = []
    doubtful = DoubtfulCommit(queue, monkeypatch, really=really)
    queue.register("work", lambda payload: runs.append(payload["n"]))
    start_worker()
    queue.pause()
    jobs = queue.enqueue_many("work", [{"n": n} for n in range(5)])
    doubtful.armed.set()
    queue.resume()
    for job in jobs:
        done = queue.wait(job.id, timeout=PATIENCE)
        assert (done.status, done.attempts) == ("completed", 1)
    assert sorted(runs) == [0, 1, 2, 3, 4]
    assert "disk I/O error" in recorder.wait(StoreTrouble).error


@both_engines
@pytest.mark.parametrize("really", [True, False])
def test_outcomes_of_a_commit_in_doubt_are_kept_and_told_once(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    really: bool,
) -> None:
    doubtful = DoubtfulCommit(queue, monkeypatch, really=really)

    @queue.job
    def work() -> str:
        gate.enter()
        doubtful.armed.set()
        return "done"

    start_worker()
    job = work.enqueue()
    gate.wait_entered()
    gate.open()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.result, done.attempts) == ("done", 1)
    recorder.wait(StoreRecovered)
    wait_until(lambda: recorder.all(JobCompleted) or recorder.all(OutcomeRefused))
    assert [event.job_id for event in recorder.all(JobCompleted)] == [job.id]
    assert recorder.all(OutcomeRefused) == []


def test_locked_database_delays_a_worker_but_breaks_nothing(
    queue: Queue, start_worker: StartWorker, gate: Gate, recorder: Recorder
) -> None:
    queue.register("work", lambda payload: gate.enter())
    start_worker()
    job = queue.enqueue("work")
    gate.wait_entered()
    holder = sqlite3.connect(path_of(queue), isolation_level=None)
    try:
        holder.execute("BEGIN IMMEDIATE")
        gate.open()
        recorder.wait(StoreTrouble)
        holder.execute("ROLLBACK")
    finally:
        holder.close()
    assert queue.wait(job.id, timeout=PATIENCE).attempts == 1


@both_engines
def test_guard_refuses_an_outcome_whose_lease_was_reaped(queue: Queue) -> None:
    job = queue.enqueue("work")
    claim = claim_elsewhere(queue)
    maintenance.reap(store_of(queue), store_of(queue).list_expired(), queue.settings(), expired_only=True)
    late = Finish(
        seq=claim.seq,
        type=claim.type,
        version=claim.version,
        worker_id="dead",
        attempt=1,
        decision=completion('"late"'),
        started_at=claim.created_at,
    )
    assert store_of(queue).finish_jobs([late]) == {}
    assert get(queue, job.id).status == "scheduled"


@both_engines
def test_lost_job_waits_as_the_code_of_its_worker_says(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    """Whoever takes it back, the supervisor above all, has not loaded that code."""
    queue.defaults["backoff_jitter"] = 0
    options: HandlerOptions = {"backoff_strategy": "fixed", "backoff_factor": 600}
    queue.register("work", lambda payload: gate.enter(), **options)
    worker = start_worker()
    job = queue.enqueue("work")
    gate.wait_entered()
    store = store_of(other_queue)
    with store.transaction():
        held = store.list_held(worker.id)
        maintenance.reap(store, held, other_queue.settings(), expired_only=False)
    seen = get(queue, job.id)
    assert seen.status == "scheduled"
    assert seen.next_retry_at is not None
    assert seen.next_retry_at - seen.updated_at == timedelta(seconds=600)


def test_lowered_lease_does_not_take_a_job_from_a_living_worker(
    queue: Queue,
    other_queue: Queue,
    start_worker: StartWorker,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The heartbeat sleeps for as long as the old lease allowed, and is woken by the change."""
    queue.set_config("lease_seconds", 3600)
    queue.set_config("heartbeat_interval", 1200)
    queue.register("work", lambda payload: gate.enter())
    other_queue.register("work", lambda payload: "stolen")
    others = Recorder(other_queue.events)
    beats, sweeps = Spy(store_of(queue).heartbeat), Spy(store_of(other_queue).list_expired)
    monkeypatch.setattr(store_of(queue), "heartbeat", beats)
    monkeypatch.setattr(store_of(other_queue), "list_expired", sweeps)
    start_worker()
    early = queue.enqueue("work")
    gate.wait_entered()
    queue.set_config("lease_seconds", 3)
    beats.wait_called(1)
    late = queue.enqueue("work")
    gate.wait_entered(2)
    start_worker(other_queue)
    beats.wait_called(4)
    sweeps.wait_called(1)
    assert others.all(JobReaped) == []
    gate.open()
    for job in (early, late):
        done = queue.wait(job.id, timeout=PATIENCE)
        assert (done.attempts, done.result) == (1, None)


def test_dead_workers_job_comes_back_though_the_clock_was_set_back(
    queue: Queue, start_worker: StartWorker, short_heartbeat: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ahead = [3600 * SECOND]
    monkeypatch.setattr(store_of(queue), "now", lambda: system_clock() + ahead[0])
    queue.register("work", lambda payload, ctx: ctx.attempt)
    job = queue.enqueue("work")
    demand = Demand(type="work", limit=1, max_attempts=3)
    (claim,) = store_of(queue).claim_jobs("dead", [demand], limit=1, lease_seconds=3).claims
    name = (claim.seq, claim.version)
    store_of(queue).heartbeat("dead", [name], state="running", lease_seconds=3, started={name})
    dead = WorkerRecord(id="dead", host="here", pid=1, state="running", concurrency=1, types=("work",))
    store_of(queue).register_worker(dead, [])
    ahead[0] = 0
    assert queue.workers() == [], "it was last heard of in the future"
    start_worker()
    wait_until(
        lambda: lease_of(queue, job.id) <= system_clock() + 3 * SECOND, message="the lease begins anew"
    )
    ahead[0] = 4 * SECOND
    assert queue.wait(job.id, timeout=PATIENCE).result == 2


def lease_of(queue: Queue, job_id: str) -> float:
    until = get(queue, job_id).lease_expires_at
    assert until is not None
    return until.timestamp() * SECOND
