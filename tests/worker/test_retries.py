"""Failed attempts: when they are tried again, how they end, and what the history says."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Context, Fail, Job, Queue, Retry
from holdfast.errors import AttemptFailed, InvalidPayload
from holdfast.events import JobFailed, JobRetrying
from tests.support import Recorder, both_engines, wait_until
from tests.worker import handlers
from tests.worker.support import PATIENCE, Gate, get, sql

StartWorker = Callable[..., Any]


def run_one(queue: Queue, type: str, payload: object = None, **options: Any) -> Job:
    return queue.wait(queue.enqueue(type, payload, **options).id, timeout=PATIENCE)


@both_engines
def test_failed_attempt_is_tried_again_until_it_succeeds(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    @queue.job
    def flaky(ctx: Context) -> str:
        if ctx.attempt < 3:
            raise RuntimeError(f"attempt {ctx.attempt}")
        return "at last"

    start_worker()
    job = run_one(queue, "flaky")
    assert (job.status, job.result, job.attempts, job.error) == ("completed", "at last", 3, None)
    assert [failure.error for failure in job.errors] == ["RuntimeError: attempt 1", "RuntimeError: attempt 2"]
    assert [event.attempt for event in recorder.all(JobRetrying)] == [1, 2]


@both_engines
def test_back_off_grows_with_each_attempt(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    queue.set_config("backoff_factor", 0.01)
    queue.set_config("backoff_base", 3)
    queue.set_config("backoff_max", 0.2)
    queue.register("fail", _raise, max_attempts=5)
    start_worker()
    assert run_one(queue, "fail").attempts == 5
    assert [event.delay for event in recorder.all(JobRetrying)] == pytest.approx([0.03, 0.09, 0.2, 0.2])


@both_engines
def test_job_waits_for_its_retry_as_scheduled_until_the_time_it_names(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    queue.set_config("backoff_factor", 1800)
    queue.register("fail", _raise)
    start_worker()
    job = queue.enqueue("fail")
    recorder.wait(JobRetrying, job_id=job.id)
    waiting = get(queue, job.id)
    assert (waiting.status, waiting.attempts, waiting.worker_id) == ("scheduled", 1, None)
    assert waiting.error == "ValueError: always"
    assert waiting.next_retry_at == waiting.errors[0].finished_at + timedelta(hours=1)
    assert waiting.run_at is None, "run_at is what the caller asked for"


@both_engines
def test_short_back_off_is_not_stretched_to_the_next_poll(queue: Queue, start_worker: StartWorker) -> None:
    queue.set_config("poll_interval", 3600)
    queue.set_config("lease_seconds", 3600)
    queue.set_config("heartbeat_interval", 1200)
    queue.register("fail", _raise, max_attempts=3)
    start_worker()
    assert queue.wait(queue.enqueue("fail").id, timeout=60).attempts == 3


def test_retry_chooses_its_own_delay(queue: Queue, start_worker: StartWorker, recorder: Recorder) -> None:
    @queue.job
    def later() -> None:
        raise Retry("the service is down", delay=7200)

    start_worker()
    job = later.enqueue()
    assert recorder.wait(JobRetrying, job_id=job.id).delay == 7200
    waiting = get(queue, job.id)
    assert waiting.error == "Retry: the service is down"
    assert waiting.next_retry_at == waiting.errors[0].finished_at + timedelta(hours=2)


def test_retry_counts_as_a_failed_attempt(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job(max_attempts=2)
    def later() -> None:
        raise Retry(delay=0)

    start_worker()
    job = run_one(queue, "later")
    assert (job.status, job.attempts) == ("failed", 2)


def test_retry_with_a_delay_that_makes_no_sense_is_an_error_of_the_handler() -> None:
    for delay in (-1, 1e12, float("nan"), timedelta(seconds=-1), timedelta.max):
        with pytest.raises(ValueError, match="delay must be from 0 to"):
            Retry(delay=delay)


def test_retry_with_a_delay_that_is_no_duration_says_what_one_is() -> None:
    for delay in ("soon", "", b"5m", True, [5]):
        with pytest.raises(ValueError, match="delay must be a duration, such as 30, '5m' or a timedelta"):
            Retry(delay=delay)  # type: ignore[arg-type]


@pytest.mark.parametrize("delay", [timedelta(minutes=5), "5m", 300])
def test_retry_takes_its_delay_as_any_duration(queue: Queue, delay: timedelta | str | int) -> None:
    @queue.job
    def later() -> None:
        raise Retry("busy", delay=delay)

    job = later.enqueue()
    queue.drain()
    waiting = get(queue, job.id)
    assert (waiting.status, waiting.error) == ("scheduled", "Retry: busy")
    assert waiting.next_retry_at is not None
    assert waiting.started_at is not None
    waits = waiting.next_retry_at - waiting.started_at
    assert timedelta(minutes=5) <= waits < timedelta(minutes=6)


@both_engines
def test_fail_ends_the_job_at_once(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job(max_attempts=10)
    def hopeless() -> None:
        raise Fail("the account is closed")

    start_worker()
    job = run_one(queue, "hopeless")
    assert (job.status, job.attempts, job.error) == ("failed", 1, "Fail: the account is closed")


@pytest.mark.process
def test_fail_retry_and_exit_mean_the_same_in_a_process(queue: Queue, start_worker: StartWorker) -> None:
    for handler in (handlers.fail_for_good, handlers.retry_later):
        queue.job(executor="process")(handler)
    queue.job(executor="process", max_attempts=1)(handlers.exit_in_order)
    start_worker(concurrency=1)
    assert run_one(queue, "exit_in_order").error == "SystemExit: 3"
    job = run_one(queue, "fail_for_good")
    assert (job.status, job.attempts, job.error) == ("failed", 1, "Fail: no use")
    waits = queue.enqueue("retry_later")
    wait_until(lambda: get(queue, waits.id).error is not None)
    assert (get(queue, waits.id).status, get(queue, waits.id).error) == ("scheduled", "Retry: busy")


@both_engines
def test_job_without_attempts_left_is_failed_with_its_full_history(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    @queue.job(max_attempts=3)
    def fail(ctx: Context) -> None:
        raise KeyError(f"attempt {ctx.attempt}")

    worker = start_worker()
    job = run_one(queue, "fail")
    assert (job.status, job.attempts, job.max_attempts) == ("failed", 3, 3)
    assert job.error == "KeyError: 'attempt 3'"
    assert [failure.attempt for failure in job.errors] == [1, 2, 3]
    for failure in job.errors:
        assert failure.worker_id == worker.id
        assert failure.error == f"KeyError: 'attempt {failure.attempt}'"
        assert failure.traceback is not None
        assert "raise KeyError" in failure.traceback
        assert job.created_at <= failure.started_at <= failure.finished_at
    assert recorder.wait(JobFailed).attempt == 3
    assert queue.stats()["failed"] == 1


def test_jobs_own_limit_beats_the_handlers(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("fail", _raise, max_attempts=5)
    start_worker()
    assert run_one(queue, "fail", max_attempts=1).attempts == 1


def test_payload_that_no_longer_fits_the_handler_fails_at_once(
    queue: Queue, other_queue: Queue, start_worker: StartWorker
) -> None:
    called = threading.Event()

    @queue.job(max_attempts=5)
    def work(n: int) -> None:
        called.set()

    job = other_queue.enqueue("work", {"n": "seven"})  # no handler is known there, so nothing can be checked
    start_worker()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts) == ("failed", 1)
    assert done.error == "InvalidPayload: payload.n: expected int, got str"
    assert not called.is_set()
    with pytest.raises(InvalidPayload, match=r"payload\.n"):
        work.enqueue(n="seven")  # type: ignore[arg-type]


@both_engines
def test_payload_that_is_no_json_in_the_database_fails_its_job_alone(
    queue: Queue, start_worker: StartWorker
) -> None:
    queue.register("work", lambda payload: "fine")
    bad, good = queue.enqueue("work"), queue.enqueue("work")
    sql(queue, "UPDATE holdfast_jobs SET payload = '{' WHERE id = ?", bad.id)
    start_worker()
    assert queue.wait(good.id, timeout=PATIENCE).result == "fine"
    wait_until(lambda: sql(queue, "SELECT status FROM holdfast_jobs WHERE id = ?", bad.id) == [("failed",)])


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), asyncio.CancelledError(), StopIteration(1)]
)
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_whatever_a_handler_raises_only_fails_its_attempt(
    queue: Queue, start_worker: StartWorker, error: BaseException, kind: str
) -> None:
    def in_thread(payload: object) -> None:
        raise error

    async def on_loop(payload: object) -> None:
        raise error

    queue.register("raise", in_thread if kind == "thread" else on_loop, max_attempts=1)
    queue.register("fine", lambda payload: "fine")
    worker = start_worker()
    job = run_one(queue, "raise")
    assert job.status == "failed"
    assert job.error is not None
    assert run_one(queue, "fine").result == "fine"
    assert worker.is_running


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_exit_in_a_task_that_an_async_handler_started_leaves_the_worker_working(
    queue: Queue, start_worker: StartWorker
) -> None:
    async def bystander(payload: object) -> str:
        await gate.enter_async()
        return "fine"

    async def boom() -> None:
        raise SystemExit(3)

    async def start_boom(payload: object) -> None:
        task = asyncio.ensure_future(boom())
        await asyncio.wait([task])

    gate = Gate()
    queue.register("bystander", bystander)
    queue.register("boom", start_boom, max_attempts=1)
    worker = start_worker()
    running = queue.enqueue("bystander")
    gate.wait_entered()
    job = queue.enqueue("boom")
    gate.open()
    assert queue.wait(running.id, timeout=60).status == "completed"
    assert queue.wait(job.id, timeout=60).is_finished
    assert run_one(queue, "bystander").result == "fine"
    assert worker.is_running


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


@pytest.mark.parametrize(
    ("error", "stored"),
    [
        (ValueError("a\x00b"), "ValueError: a\\x00b"),
        (ValueError("lone \ud83d surrogate"), "ValueError: lone \\ud83d surrogate"),
        (ValueError("𝄞 ü"), "ValueError: 𝄞 ü"),
        (ValueError(), "ValueError"),
        (Unspeakable(), "Unspeakable: (its message can't be displayed)"),
    ],
)
def test_any_error_text_can_be_stored(
    queue: Queue, start_worker: StartWorker, error: Exception, stored: str
) -> None:
    def fail(payload: object) -> None:
        raise error

    queue.register("fail", fail, max_attempts=1)
    start_worker()
    job = run_one(queue, "fail")
    assert (job.status, job.error) == ("failed", stored)
    assert job.errors[0].traceback is not None


def test_huge_error_text_is_shortened_in_the_middle(queue: Queue, start_worker: StartWorker) -> None:
    def fail(payload: object) -> None:
        raise ValueError("<" + "x" * 5_000_000 + ">")

    queue.register("fail", fail, max_attempts=1)
    start_worker()
    job = run_one(queue, "fail")
    assert job.error is not None
    assert job.errors[0].traceback is not None
    assert job.error.startswith("ValueError: <xxx")
    assert job.error.endswith("xxx>")
    assert len(job.error) < 10_000
    assert len(job.errors[0].traceback) < 100_000


@pytest.mark.parametrize(
    ("result", "problem"),
    [
        (object(), "result: is an object, which is not JSON"),
        ({"a": [1, float("nan")]}, "result.a[1]: nan is not JSON"),
        ({"a": "\x00"}, "result.a: contains a NUL character, which can't be stored"),
        ("\ud800", "result: contains a lone surrogate, which is not a character"),
        ({1: 2}, "result: has the key 1; keys must be text"),
    ],
)
def test_result_that_is_no_json_completes_the_job_with_a_marker(
    queue: Queue, start_worker: StartWorker, result: object, problem: str
) -> None:
    queue.register("work", lambda payload: result)
    start_worker()
    job = run_one(queue, "work")
    assert (job.status, job.attempts) == ("completed", 1)
    assert job.result == {"holdfast": "the result could not be stored", "problem": problem}


def test_result_that_is_too_large_completes_the_job_with_a_marker(
    queue: Queue, start_worker: StartWorker
) -> None:
    queue.register("work", lambda payload: "x" * payload["size"], max_result_bytes=100)
    start_worker()
    assert run_one(queue, "work", {"size": 98}).result == "x" * 98
    job = run_one(queue, "work", {"size": 99})
    assert job.status == "completed"
    assert job.result["problem"] == "it is 101 bytes as JSON; max_result_bytes is 100"


@both_engines
@pytest.mark.parametrize("result", [2**80, "𝄞", 0.1, [], {}, False, 0, ""])
def test_result_is_kept_exactly(queue: Queue, start_worker: StartWorker, result: object) -> None:
    queue.register("work", lambda payload: result)
    start_worker()
    kept = run_one(queue, "work").result
    assert kept == result
    assert type(kept) is type(result)


class OutOfPaper(AttemptFailed):
    """An error of an application."""


@pytest.mark.parametrize(("permanent", "attempts"), [(False, 2), (True, 1)])
def test_attempt_failed_keeps_its_message_and_detail_without_a_traceback(
    queue: Queue, start_worker: StartWorker, permanent: bool, attempts: int
) -> None:
    def work(payload: object, ctx: Context) -> None:
        ctx.detail(tray=2)
        raise OutOfPaper("tray 2 is empty", permanent=permanent)

    queue.register("work", work, max_attempts=2, backoff_factor=0)
    start_worker()
    job = run_one(queue, "work")
    assert (job.status, job.attempts, job.error) == ("failed", attempts, "OutOfPaper: tray 2 is empty")
    assert [(failure.traceback, failure.detail) for failure in job.errors] == [(None, {"tray": 2})] * attempts


def _raise(payload: object) -> None:
    raise ValueError("always")
