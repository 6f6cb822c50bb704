"""The queue from asyncio: reading, cancelling, and waiting for jobs without holding a thread for each."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Job, Queue
from holdfast.errors import ConfigError, JobNotFound, NestedWrite, QueueClosed, StoreUnavailable
from holdfast.store.open import store_of
from tests.support import both_engines, wait_until
from tests.worker.support import PATIENCE, Spy, get, in_thread, join, run_script

StartWorker = Callable[..., Any]


def watching() -> list[threading.Thread]:
    """The threads that wait for jobs."""
    return [thread for thread in threading.enumerate() if thread.name == "holdfast-wait"]


async def all_of(queue: Queue, jobs: list[Job]) -> list[Job]:
    return await asyncio.gather(*(queue.wait_async(job.id, timeout=PATIENCE) for job in jobs))


# Reading and cancelling.


@both_engines
def test_get_async_gives_the_job_or_none(queue: Queue) -> None:
    job = queue.enqueue("work", {"n": 1})

    async def read() -> tuple[Job | None, Job | None]:
        return await queue.get_async(job.id), await queue.get_async("nobody")

    assert asyncio.run(read()) == (job, None)


@both_engines
def test_cancel_async_cancels_a_waiting_job(queue: Queue) -> None:
    job = queue.enqueue("work")
    assert asyncio.run(queue.cancel_async(job.id)).status == "cancelled"
    assert get(queue, job.id).status == "cancelled"
    with pytest.raises(JobNotFound):
        asyncio.run(queue.cancel_async("nobody"))


def test_cancel_async_inside_a_transaction_is_refused_and_does_not_wait_for_itself(queue: Queue) -> None:
    raised = list[BaseException]()

    @queue.job
    async def work(ctx: Context) -> None:
        async with ctx.transaction():
            try:
                await queue.cancel_async("other")
            except NestedWrite as error:
                raised.append(error)

    queue.enqueue("other", id="other")
    job = work.enqueue()
    queue.drain()
    assert [type(error) for error in raised] == [NestedWrite]
    assert get(queue, job.id).status == "completed"


def test_calls_from_asyncio_need_no_thread_of_its_executor(queue: Queue) -> None:
    """Handlers may have filled it, and they may be what is waited for."""
    job = queue.cancel(queue.enqueue("work").id)

    async def read() -> Job | None:
        asyncio.get_running_loop().run_in_executor = None  # type: ignore[method-assign, assignment]
        assert await queue.wait_async(job.id) == job
        return await queue.get_async(job.id)

    assert asyncio.run(read()) == job


# Waiting.


@both_engines
def test_wait_async_gives_the_finished_job_with_all_its_fields(
    queue: Queue, start_worker: StartWorker
) -> None:
    def fail(payload: object) -> None:
        raise RuntimeError("broken")

    queue.register("good", lambda payload: {"n": payload["n"]})
    queue.register("bad", fail, max_attempts=1)
    start_worker()
    good, bad = asyncio.run(all_of(queue, [queue.enqueue("good", {"n": 1}), queue.enqueue("bad")]))
    assert (good.status, good.result, good.payload) == ("completed", {"n": 1}, {"n": 1})
    assert (bad.status, bad.error, len(bad.errors)) == ("failed", "RuntimeError: broken", 1)
    assert (good, bad) == (get(queue, good.id), get(queue, bad.id))


@both_engines
def test_hundreds_of_waits_on_two_event_loops_share_one_thread(queue: Queue) -> None:
    queue.register("work", lambda payload: payload["n"])
    jobs = queue.enqueue_many("work", [{"n": n} for n in range(200)])
    before = set(threading.enumerate())
    halves = [in_thread(lambda half=half: asyncio.run(all_of(queue, jobs[half::2]))) for half in (0, 1)]  # type: ignore[misc]
    waiting = queue._finish_watcher._waiting
    wait_until(lambda: len(waiting) == 200)
    assert len(watching()) == 1
    assert set(threading.enumerate()) - before == {*watching(), *(thread for thread, _ in halves)}
    queue.drain()
    for half, (thread, outcome) in enumerate(halves):
        join(thread)
        (finished,) = outcome
        assert isinstance(finished, list), finished
        assert [job.result for job in finished] == list(range(half, 200, 2))
    assert waiting == {}
    wait_until(lambda: not watching(), message="the thread ends when nobody waits")


@both_engines
def test_jobs_that_do_not_finish_are_read_in_one_query_when_something_changed(
    queue: Queue, other_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = queue.enqueue_many("work", [{}] * 50)
    spy = Spy(store_of(queue).get_jobs)
    monkeypatch.setattr(store_of(queue), "get_jobs", spy)

    async def wait_for_one() -> Job:
        tasks = [asyncio.create_task(queue.wait_async(job.id)) for job in jobs]
        await asyncio.to_thread(wait_until, lambda: sum(len(ids) for (ids,) in spy.calls) >= 50)
        looks = len(spy.calls)
        await asyncio.to_thread(other_queue.cancel, jobs[7].id)
        done = await tasks[7]
        assert [len(ids) for (ids,) in spy.calls[looks:]][-1] == 50
        assert len(spy.calls) - looks < 10
        for task in tasks:
            task.cancel()
        return done

    assert asyncio.run(wait_for_one()).status == "cancelled"


@both_engines
def test_wait_async_for_a_job_that_goes_away_says_so(queue: Queue) -> None:
    async def wait_and_delete() -> None:
        with pytest.raises(JobNotFound, match="'nobody'"):
            await queue.wait_async("nobody")
        with pytest.raises(JobNotFound, match="'no such id'"):
            await queue.wait_async("no such id")
        job = queue.enqueue("work")
        waiting = asyncio.create_task(queue.wait_async(job.id))
        await asyncio.sleep(0)
        with store_of(queue).transaction():
            store_of(queue).cancel_job(job.id)
            store_of(queue).delete_job(job.id)
        with pytest.raises(JobNotFound, match=job.id):
            await waiting

    asyncio.run(wait_and_delete())


@pytest.mark.parametrize("timeout", [0, 0.05, "50ms"])
def test_wait_async_gives_up_after_its_timeout_and_says_what_the_job_is(
    queue: Queue, timeout: float | str
) -> None:
    job = queue.enqueue("work")
    with pytest.raises(TimeoutError, match=f"job '{job.id}' is still pending after 0(.05)? s"):
        asyncio.run(queue.wait_async(job.id, timeout=timeout))
    assert queue._finish_watcher._waiting == {}


def test_wait_async_with_no_time_at_all_gives_a_finished_job(queue: Queue) -> None:
    job = queue.cancel(queue.enqueue("work").id)
    assert asyncio.run(queue.wait_async(job.id, timeout=0)) == job


def test_wait_takes_durations_only_and_however_long_ones(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None)
    job = queue.enqueue("work")
    for wait in (queue.wait, lambda *args: asyncio.run(queue.wait_async(*args))):
        with pytest.raises(ConfigError, match="timeout must be a duration"):
            wait(job.id, "soon")
    waiting = in_thread(lambda: queue.wait(job.id, 1e10))
    wait_until(lambda: queue._finish_watcher._waiting)
    start_worker()
    assert asyncio.run(queue.wait_async(job.id, 1e10)).status == "completed"
    join(waiting[0])
    assert isinstance(waiting[1][0], Job)


def test_a_cancelled_wait_is_forgotten_and_its_thread_ends(queue: Queue) -> None:
    job = queue.enqueue("work")

    async def cancel() -> None:
        task = asyncio.create_task(queue.wait_async(job.id))
        await asyncio.to_thread(wait_until, lambda: queue._finish_watcher._watch)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(cancel())
    assert queue._finish_watcher._waiting == {}
    wait_until(lambda: not watching())


@both_engines
def test_closing_the_queue_ends_every_wait_with_an_error(queue: Queue) -> None:
    job = queue.enqueue("work")

    async def close() -> None:
        tasks = [asyncio.create_task(queue.wait_async(job.id)) for _ in range(3)]
        await asyncio.to_thread(wait_until, lambda: queue._finish_watcher._watch)
        await asyncio.to_thread(queue.close)
        assert watching() == []
        for task in tasks:
            with pytest.raises(QueueClosed, match="the queue was closed while waiting for this job"):
                await task

    asyncio.run(close())
    in_a_thread, outcome = in_thread(lambda: queue.wait(job.id))
    wait_until(lambda: queue._finish_watcher._watch)
    queue.close()
    join(in_a_thread)
    assert isinstance(outcome[0], QueueClosed)
    assert get(queue, job.id).status == "pending"  # and it opens again


def test_trouble_with_the_store_is_told_to_all_who_wait(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = queue.enqueue_many("work", [{}] * 3)
    with monkeypatch.context() as patched:
        spy = Spy(store_of(queue).get_jobs)
        spy.always = StoreUnavailable("the disk is gone")
        patched.setattr(store_of(queue), "get_jobs", spy)

        async def wait() -> list[Any]:
            waits = (queue.wait_async(job.id) for job in jobs)
            return await asyncio.gather(*waits, return_exceptions=True)

        assert [str(error) for error in asyncio.run(wait())] == ["the disk is gone"] * 3
    for job in jobs:
        queue.cancel(job.id)
    assert [job.status for job in asyncio.run(all_of(queue, jobs))] == ["cancelled"] * 3


def test_where_no_thread_can_be_started_who_waits_is_told(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    job = queue.enqueue("work")
    with monkeypatch.context() as patched:
        patched.setattr(threading.Thread, "start", refuse)
        with pytest.raises(StoreUnavailable, match="can't start a thread to wait in"):
            queue.wait(job.id)
    queue.cancel(job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"


@both_engines
def test_waits_of_threads_share_the_watch(queue: Queue) -> None:
    jobs = queue.enqueue_many("work", [{}] * 20)
    waits = [in_thread(lambda job=job: queue.wait(job.id, timeout=PATIENCE)) for job in jobs]  # type: ignore[misc]
    wait_until(lambda: len(queue._finish_watcher._waiting) == 20)
    assert len(watching()) == 1
    for job in jobs:
        queue.cancel(job.id)
    for thread, outcome in waits:
        join(thread)
        assert isinstance(outcome[0], Job)


FORK = """
import os, sys, threading, time, warnings
from holdfast import Queue

queue = Queue("sqlite:///queue.db")
job = queue.enqueue("work")
threading.Thread(target=lambda: queue.wait(job.id)).start()
while queue._finish_watcher._watch is None:
    time.sleep(0.001)
warnings.simplefilter("ignore")  # newer Pythons warn of a fork with threads
queue._finish_watcher._lock.acquire()  # as another thread may have it at that moment
child = os.fork()
if child == 0:
    own = queue.cancel(queue.enqueue("own").id)
    assert queue.wait(own.id, 10) == own
    later = queue.enqueue("later")
    threading.Timer(0.1, queue.cancel, [later.id]).start()
    assert queue.wait(later.id, 10).status == "cancelled"
    queue.close()
    os._exit(0)
queue._finish_watcher._lock.release()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
queue.cancel(job.id)
"""


@pytest.mark.process
def test_a_forked_child_waits_by_itself_and_the_parent_goes_on(tmp_path: Path) -> None:
    done = run_script(tmp_path, FORK)
    assert (done.returncode, done.stderr) == (0, "")


def test_require_gives_the_job_or_raises(queue: Queue) -> None:
    job = queue.enqueue("work")
    assert queue.require(job.id) == job
    for nobody in ("nobody", "no id at all"):
        with pytest.raises(JobNotFound, match=f"there is no job '{nobody}'"):
            queue.require(nobody)
