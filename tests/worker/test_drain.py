"""queue.drain(): what is pending runs here and now, in the calling thread."""

from __future__ import annotations

import asyncio
import os
import threading
import traceback
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import Context, Fail, Queue, Retry
from holdfast.errors import InvalidPayload
from holdfast.events import JobClaimed, JobCompleted, JobPromoted
from holdfast.store.open import store_of
from holdfast.store.records import Beat
from holdfast.testing import MovableClock
from tests.support import Recorder, both_engines, wait_until
from tests.worker import handlers
from tests.worker.support import PATIENCE, Gate, Spy, get


def test_drain_runs_all_in_this_thread_and_counts_them(queue: Queue) -> None:
    threads: list[threading.Thread] = []
    queue.register("work", lambda payload: threads.append(threading.current_thread()))
    queue.enqueue_many("work", [{}] * 5)
    assert queue.drain() == 5
    assert threads == [threading.current_thread()] * 5
    assert queue.drain() == 0


def test_drain_stops_at_its_limit(queue: Queue) -> None:
    queue.register("work", lambda payload: None)
    queue.enqueue_many("work", [{}] * 5)
    assert queue.drain(limit=2) == 2
    assert queue.stats()["completed"] == 2
    assert queue.drain(limit=0) == 0


def test_drain_runs_every_kind_of_handler_here(queue: Queue) -> None:
    @queue.job
    async def on_loop() -> int:
        await asyncio.sleep(0)
        return os.getpid()

    queue.job(executor="process")(handlers.where)
    queue.enqueue("on_loop")
    queue.enqueue("where")
    assert queue.drain() == 2
    results = [job.result for job in queue.jobs(status="completed")]
    assert results == [{"pid": os.getpid(), "group": os.getpgid(0)}, os.getpid()]


def test_drain_runs_children_too(queue: Queue) -> None:
    @queue.job
    def parent(ctx: Context, depth: int) -> None:
        if depth:
            ctx.enqueue("parent", {"depth": depth - 1})

    parent.enqueue(depth=3)
    assert queue.drain() == 4


@both_engines
def test_drain_goes_by_priority_then_order(queue: Queue) -> None:
    order: list[str] = []
    queue.register("work", lambda payload: order.append(payload["name"]))
    for name, priority in [("b", 0), ("a", 1), ("c", 0)]:
        queue.enqueue("work", {"name": name}, priority=priority)
    queue.drain()
    assert order == ["a", "b", "c"]


@both_engines
def test_drain_leaves_what_waits_for_its_time_or_a_retry(url: str) -> None:
    clock = MovableClock()

    def fail(payload: object) -> None:
        raise RuntimeError

    with Queue(url, clock=clock, defaults={"backoff_jitter": 0}) as queue:
        queue.register("work", lambda payload: None)
        queue.register("fail", fail, max_attempts=2)
        later = queue.enqueue("work", delay=60)
        failing = queue.enqueue("fail")
        assert queue.drain() == 1
        assert (get(queue, later.id).status, get(queue, failing.id).status) == ("scheduled", "scheduled")
        clock.advance(2)
        assert queue.drain() == 1
        assert get(queue, failing.id).status == "failed"
        clock.advance(58)
        assert queue.drain() == 1
        assert get(queue, later.id).status == "completed"


def test_drain_leaves_foreign_and_paused_types(queue: Queue) -> None:
    queue.register("paused", lambda payload: None)
    foreign, paused = queue.enqueue("foreign"), queue.enqueue("paused")
    queue.pause(type="paused")
    assert queue.drain() == 0
    assert get(queue, foreign.id).attempts == get(queue, paused.id).attempts == 0


@both_engines
def test_drain_keeps_to_the_rate_limit(queue: Queue) -> None:
    queue.register("work", lambda payload: None, rate_limit=0.001)
    queue.enqueue_many("work", [{}] * 3)
    assert queue.drain() == 1


@both_engines
def test_drain_records_failures_like_a_worker(queue: Queue) -> None:
    def fail(payload: object) -> None:
        raise SystemExit(3)

    queue.register("fail", fail, max_attempts=1)
    job = queue.enqueue("fail")
    assert queue.drain() == 1
    failed = get(queue, job.id)
    assert (failed.status, failed.error) == ("failed", "SystemExit: 3")


def test_drain_announces_every_transition(queue: Queue, recorder: Recorder) -> None:
    queue.register("work", lambda payload: None)
    job = queue.enqueue("work", delay=0.001)
    while queue.drain() == 0:
        pass
    assert recorder.wait(JobPromoted, timeout=60).job_id == job.id
    assert recorder.wait(JobClaimed, timeout=60).job_id == job.id
    assert recorder.wait(JobCompleted, timeout=60).job_id == job.id


def test_drain_leaves_no_worker_behind(queue: Queue) -> None:
    seen: list[int] = []
    queue.register("work", lambda payload: seen.append(len(queue.workers())))
    queue.enqueue("work")
    queue.drain()
    assert seen == [1]
    assert store_of(queue).list_workers() == []


@both_engines
def test_drain_is_counted_in_the_statistics(queue: Queue) -> None:
    queue.register("work", lambda payload: None)
    queue.enqueue_many("work", [{}] * 3)
    queue.drain()
    assert sum(minute.completed for minute in store_of(queue).list_statistics(1)) == 3


def test_drain_renews_the_lease_of_a_long_job(
    queue: Queue, short_heartbeat: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = Spy(store_of(queue).heartbeat)
    monkeypatch.setattr(store_of(queue), "heartbeat", beats)
    queue.register("work", lambda payload: beats.wait_called(2))
    queue.enqueue("work")
    assert queue.drain() == 1
    assert len(beats.calls[-1][1]) <= 1
    assert any(call[1] for call in beats.calls)


def test_interrupting_a_drain_ends_it_and_gives_the_job_back(queue: Queue) -> None:
    """Ctrl-C in a script that drains is meant for the script, not for one job after another."""

    def interrupted(payload: object) -> None:
        raise KeyboardInterrupt

    queue.register("work", interrupted)
    jobs = queue.enqueue_many("work", [{}] * 3)
    with pytest.raises(KeyboardInterrupt):
        queue.drain()
    assert [get(queue, job.id).status for job in jobs] == ["pending"] * 3
    assert store_of(queue).list_workers() == []


@both_engines
def test_drain_beside_a_worker_runs_each_job_once(
    queue: Queue, start_worker: Callable[..., Any], gate: Gate
) -> None:
    runs: list[int] = []
    queue.register("work", lambda payload: runs.append(payload["n"]))
    jobs = queue.enqueue_many("work", [{"n": n} for n in range(200)])
    start_worker()
    queue.drain()
    for job in jobs:
        queue.wait(job.id, timeout=30)
    assert sorted(runs) == list(range(200))


@both_engines
def test_drained_handler_may_report_progress_inside_its_transaction(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    def work(ctx: Context) -> None:
        with ctx.transaction():
            ctx.progress(0.5, "half")
            ctx.result = "done"

    job = work.enqueue()
    queue.drain()
    done = get(queue, job.id)
    assert (done.status, done.result, done.error) == ("completed", "done", None)


def test_drained_handler_sees_its_cancellation_at_a_safe_point(queue: Queue, short_heartbeat: None) -> None:
    @queue.job(max_attempts=1)
    def work(ctx: Context) -> None:
        queue.cancel(ctx.job.id)
        wait_until(lambda: ctx.check(), message="ctx.check() does not raise")

    job = work.enqueue()
    assert queue.drain() == 1
    assert get(queue, job.id).status == "cancelled"


@both_engines
@pytest.mark.parametrize("news", ["lost", "cancelled"])
def test_drain_does_not_stop_a_job_for_what_a_heartbeat_says_of_the_one_before(
    queue: Queue, short_heartbeat: None, monkeypatch: pytest.MonkeyPatch, news: str
) -> None:
    first_beats, second_runs, told = threading.Event(), threading.Event(), threading.Event()
    store, heartbeat = store_of(queue), store_of(queue).heartbeat

    def beat_late(worker_id: str, held: Sequence[tuple[int, int]], **options: Any) -> Beat:
        if second_runs.is_set():
            told.set()
        elif held:
            first_beats.set()
            assert second_runs.wait(PATIENCE)
            beat = heartbeat(worker_id, held, **options)
            assert beat.lost == set(held), "the first job has ended"
            return beat if news == "lost" else Beat(frozenset(), beat.lost)
        return heartbeat(worker_id, held, **options)

    monkeypatch.setattr(store, "heartbeat", beat_late)

    @queue.job
    def work(ctx: Context, number: int) -> None:
        if number == 1:
            assert first_beats.wait(PATIENCE)
        else:
            second_runs.set()
            assert told.wait(PATIENCE)
            ctx.check()

    jobs = work.enqueue_many([{"number": 1}, {"number": 2}])
    assert queue.drain() == 2
    assert [get(queue, job.id).status for job in jobs] == ["completed"] * 2


def test_drain_under_a_running_event_loop_runs_async_handlers(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    async def work() -> str:
        await asyncio.sleep(0)
        return "done"

    job = work.enqueue()

    async def main() -> int:
        return queue.drain()

    assert asyncio.run(main()) == 1
    done = get(queue, job.id)
    assert (done.status, done.result, done.error) == ("completed", "done", None)


# raise_errors


class Broken(Exception):
    pass


@both_engines
def test_drain_can_raise_what_a_handler_raised_once_its_job_is_settled(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    def work() -> None:
        raise Broken("boom")

    first, second = work.enqueue(), work.enqueue()
    with pytest.raises(Broken, match="boom") as caught:
        queue.drain(raise_errors=True)
    assert "in work" in "".join(traceback.format_tb(caught.tb)), "it comes with its own traceback"
    assert (get(queue, first.id).status, get(queue, second.id).status) == ("failed", "pending")
    assert store_of(queue).list_workers() == []
    assert queue.drain() == 1


@pytest.mark.parametrize("error", [Fail("no use"), Broken("async")])
def test_drain_raises_from_async_handlers_and_what_fails_for_good(queue: Queue, error: Exception) -> None:
    @queue.job
    async def work() -> None:
        raise error

    work.enqueue()
    with pytest.raises(type(error)):
        queue.drain(raise_errors=True)


def test_drain_raises_when_a_payload_does_not_fit(queue: Queue) -> None:
    queue.enqueue("work", {"n": "many"})

    @queue.job
    def work(n: int) -> None: ...

    with pytest.raises(InvalidPayload, match="n"):
        queue.drain(raise_errors=True)


def test_drain_does_not_raise_a_retry_that_the_handler_asked_for(queue: Queue) -> None:
    @queue.job
    def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry(delay=0)

    job = work.enqueue()
    assert queue.drain(raise_errors=True) == 2
    assert get(queue, job.id).status == "completed"
