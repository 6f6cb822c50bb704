"""What is announced, and how it reads in the log."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import pytest

from holdfast import Context, Queue
from holdfast import events as e
from holdfast.errors import ProcessDied
from holdfast.observe import log
from tests.support import Recorder, both_engines
from tests.worker import handlers
from tests.worker.support import PATIENCE, Gate, get, sql, supersede

StartWorker = Callable[..., Any]


def names(recorder: Recorder, job_id: str) -> list[str]:
    """The events of a job, in order."""
    return [event.name for event in recorder.all(e.JobEvent) if event.job_id == job_id]


# An event for everything that happens.


def test_events_of_a_job_that_completes(queue: Queue, start_worker: StartWorker, recorder: Recorder) -> None:
    queue.register("work", lambda payload: None)
    job = queue.enqueue("work", delay=0.01)
    worker = start_worker()
    completed = recorder.wait(e.JobCompleted)
    assert names(recorder, job.id) == ["job.enqueued", "job.promoted", "job.claimed", "job.completed"]
    assert (completed.type, completed.attempt, completed.worker_id) == ("work", 1, worker.id)
    assert 0 <= completed.seconds < PATIENCE


def test_events_of_a_job_that_fails(queue: Queue, start_worker: StartWorker, recorder: Recorder) -> None:
    def fail(payload: object) -> None:
        raise RuntimeError("broken")

    queue.register("work", fail, max_attempts=2)
    job = queue.enqueue("work")
    start_worker()
    failed = recorder.wait(e.JobFailed)
    assert names(recorder, job.id) == [
        "job.enqueued",
        "job.claimed",
        "job.retrying",
        "job.promoted",
        "job.claimed",
        "job.failed",
    ]
    assert (failed.error, failed.attempt) == ("RuntimeError: broken", 2)


def test_events_of_what_people_do(queue: Queue, recorder: Recorder) -> None:
    job = queue.enqueue("work")
    queue.cancel(job.id)
    queue.retry(job.id)
    queue.cancel(job.id)
    queue.delete(job.id)
    assert names(recorder, job.id) == [
        "job.enqueued",
        "job.cancelled",
        "job.retried",
        "job.cancelled",
        "job.deleted",
    ]


def test_events_of_a_running_job_that_is_cancelled(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate
) -> None:
    @queue.job
    def work(ctx: Context) -> None:
        gate.enter()
        while True:
            ctx.check()

    job = work.enqueue()
    start_worker()
    gate.wait_entered()
    queue.cancel(job.id)
    gate.open()
    recorder.wait(e.JobCancelled)
    assert names(recorder, job.id) == [
        "job.enqueued",
        "job.claimed",
        "job.cancel_requested",
        "job.cancelled",
    ]


@both_engines
def test_events_of_a_job_that_is_given_back_or_reaped(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate, short_heartbeat: None
) -> None:
    @queue.job
    def work(ctx: Context) -> None:
        gate.enter()
        ctx.check()

    worker = start_worker()
    taken, back = work.enqueue(), work.enqueue()
    gate.wait_entered(2)
    supersede(queue, taken.id)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    recorder.wait(e.WorkerStopping)
    gate.open()
    stopping.join(PATIENCE)
    assert recorder.wait(e.JobReleased).job_id == back.id
    assert "job.released" not in names(recorder, taken.id)
    sql(queue, "UPDATE holdfast_jobs SET lease_expires_at = 1 WHERE id = ?", taken.id)
    queue.unregister("work")
    start_worker()
    reaped = recorder.wait(e.JobReaped)
    assert (reaped.job_id, reaped.worker_id, reaped.status) == (taken.id, "another", "pending")


def test_enqueue_many_announces_each_job(queue: Queue, recorder: Recorder) -> None:
    jobs = queue.enqueue_many("work", [{}] * 3)
    assert [event.job_id for event in recorder.all(e.JobEnqueued)] == [job.id for job in jobs]


def test_job_found_again_by_its_key_is_not_announced_as_new(queue: Queue, recorder: Recorder) -> None:
    queue.enqueue("work", key="k")
    queue.enqueue("work", key="k")
    assert len(recorder.all(e.JobEnqueued)) == 1


@both_engines
def test_events_of_a_worker_that_comes_and_goes(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    worker = start_worker(concurrency=3)
    worker.pause()
    worker.resume()
    worker.stop()
    seen = [event for event in recorder.all(e.Event) if event.name.startswith("worker.")]
    assert [event.name for event in seen] == [
        "worker.started",
        "worker.paused",
        "worker.resumed",
        "worker.stopping",
        "worker.stopped",
    ]
    assert recorder.wait(e.WorkerStarted).concurrency == 3


def test_events_of_handlers_that_come_and_go(queue: Queue, recorder: Recorder) -> None:
    queue.register("work", lambda payload: None)
    queue.unregister("work")
    registered = recorder.wait(e.HandlerRegistered)
    assert (registered.type, registered.executor) == ("work", "thread")
    assert recorder.wait(e.HandlerUnregistered).type == "work"


def test_every_kind_of_event_has_a_name_of_its_own_and_a_sentence() -> None:
    kinds = [kind for kind in vars(e).values() if isinstance(kind, type) and hasattr(kind, "name")]
    kinds = [kind for kind in kinds if issubclass(kind, e.Event)]
    assert len({kind.name for kind in kinds}) == len(kinds) >= 25
    for kind in kinds:
        assert kind in log._WORDINGS, f"{kind.__name__} has no sentence"


def test_event_reads_well_in_a_logger_that_knows_nothing_of_us() -> None:
    event = e.JobFailed(job_id="job1", type="work", attempt=3, worker_id=None, error="broken")
    assert str(event) == "job.failed job_id='job1' type='work' attempt=3 error='broken'"


def test_broken_subscriber_harms_nothing(
    queue: Queue, start_worker: StartWorker, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(event: e.Event) -> None:
        raise RuntimeError("a broken listener")

    queue.events.subscribe(broken)
    after = Recorder(queue.events)
    queue.register("work", lambda payload: "done")
    start_worker()
    assert queue.wait(queue.enqueue("work").id, timeout=PATIENCE).result == "done"
    after.wait(e.JobCompleted)
    assert "a subscriber of job.completed failed" in caplog.text


def test_subscriber_that_unsubscribed_hears_nothing_more(queue: Queue) -> None:
    heard: list[e.Event] = []
    unsubscribe = queue.events.subscribe(heard.append)
    queue.enqueue("work")
    unsubscribe()
    queue.enqueue("work")
    assert len(heard) == 1


# Log lines.


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def logger_as_it_was() -> Iterator[None]:
    """Leaves the logger as it was before the test."""
    logger = logging.getLogger(e.LOGGER)
    before = list(logger.handlers), logger.level, logger.propagate
    yield
    logger.handlers[:], logger.level, logger.propagate = before
    logger.manager._clear_cache()  # type: ignore[attr-defined]


def logged(stream: TextIO, *events: e.Event, **options: Any) -> list[str]:
    log.configure(stream=stream, **options)
    announced = e.Events()
    for event in events:
        announced.emit(event)
    assert isinstance(stream, io.StringIO)
    return stream.getvalue().splitlines()


FAILED = e.JobFailed(job_id="job1", type="work", attempt=3, worker_id="w", error="ValueError: broken")


def test_log_is_json_where_there_is_no_terminal() -> None:
    (line,) = logged(io.StringIO(), FAILED)
    entry = json.loads(line)
    time = entry.pop("time")
    assert time.endswith("Z")
    assert entry == {
        "level": "error",
        "event": "job.failed",
        "job_id": "job1",
        "type": "work",
        "attempt": 3,
        "worker_id": "w",
        "error": "ValueError: broken",
    }


def test_log_is_text_on_a_terminal() -> None:
    (line,) = logged(Terminal(), FAILED)
    assert line.endswith("error    work job1 failed permanently in attempt 3: ValueError: broken")


@pytest.mark.parametrize(("format", "begins"), [("json", "{"), ("text", "")])
def test_format_may_be_chosen(format: str, begins: str) -> None:
    for stream in (io.StringIO(), Terminal()):
        (line,) = logged(stream, FAILED, format=format)
        assert line.startswith("{") == (begins == "{")


def test_format_that_does_not_exist_is_refused() -> None:
    with pytest.raises(ValueError, match="auto, text or json"):
        log.configure("yaml")


def test_second_configuration_replaces_the_first() -> None:
    first, second = io.StringIO(), io.StringIO()
    log.configure(stream=first)
    assert len(logged(second, FAILED)) == 1
    assert first.getvalue() == ""


def test_quiet_events_are_left_out_unless_asked_for() -> None:
    quiet = e.JobEnqueued(job_id="job1", type="work", status="pending")
    assert logged(io.StringIO(), quiet) == []
    assert len(logged(io.StringIO(), quiet, level=logging.DEBUG)) == 1


NASTY = "\x1b[31m red \x07 \r\n forged line \x00 \x7f \x9b31m \u2028 \u202e end"


@pytest.mark.parametrize("format", ["text", "json"])
def test_control_characters_cannot_drive_the_terminal_or_forge_a_line(format: str) -> None:
    stream = io.StringIO()
    event = e.JobFailed(job_id="job1", type="work", attempt=1, worker_id=None, error=NASTY)
    log.configure(format, stream=stream)
    e.Events().emit(event)
    text = stream.getvalue()
    assert text.count("\n") == 1
    assert text.endswith("\n")
    assert text[:-1].isprintable(), [c for c in text[:-1] if not c.isprintable()]
    if format == "json":
        assert json.loads(text)["error"] == NASTY


@pytest.mark.parametrize("format", ["text", "json"])
def test_control_characters_in_a_traceback_are_escaped_too(format: str) -> None:
    def broken(event: e.Event) -> None:
        raise RuntimeError(NASTY)

    stream = io.StringIO()
    log.configure(format, stream=stream)
    announced = e.Events()
    announced.subscribe(broken)
    announced.emit(FAILED)
    text = stream.getvalue()
    assert "RuntimeError" in text
    assert text.replace("\n", "").isprintable()


@pytest.mark.parametrize("format", ["text", "json"])
def test_lone_surrogates_do_not_break_the_log(format: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="utf-8", write_through=True)
    log.configure(format, stream=stream)
    e.Events().emit(e.JobFailed(job_id="j", type="t", attempt=1, worker_id=None, error="lone \ud83d"))
    assert b"lone" in raw.getvalue()


@pytest.mark.parametrize("format", ["text", "json"])
def test_other_messages_of_the_logger_are_written_too(format: str) -> None:
    stream = io.StringIO()
    log.configure(format, stream=stream)
    logging.getLogger(e.LOGGER).warning("something %s\nelse", "odd")
    assert "something odd" in stream.getvalue()
    assert stream.getvalue().count("\n") == 1


def test_log_of_a_worker_tells_the_story_of_a_job(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    stream = io.StringIO()
    log.configure("json", stream=stream, level=logging.DEBUG)
    queue.register("work", lambda payload: None)
    worker = start_worker()
    job = queue.enqueue("work")
    recorder.wait(e.JobCompleted)
    worker.stop()
    entries = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [entry["event"] for entry in entries if entry.get("job_id") == job.id] == [
        "job.enqueued",
        "job.claimed",
        "job.completed",
    ]
    assert get(queue, job.id).status == "completed"


# The exception behind an error.


@pytest.mark.parametrize(("log_jobs", "levels"), [("all", 2), ("failures", 1), ("none", 0)])
def test_type_decides_which_events_of_its_jobs_are_logged(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, log_jobs: str, levels: int
) -> None:
    stream = io.StringIO()
    log.configure("json", stream=stream)
    queue.register("good", lambda payload: None)
    queue.register("bad", lambda payload: 1 / 0, max_attempts=1)
    queue.register("other", lambda payload: None)
    for type in ("good", "bad"):
        queue.set_config("log_jobs", log_jobs, type=type)
    worker = start_worker()
    for type in ("good", "bad", "other"):
        queue.wait(queue.enqueue(type).id, timeout=PATIENCE)
    worker.stop()
    lines = [line for line in map(json.loads, stream.getvalue().splitlines()) if "job_id" in line]
    assert len([line for line in lines if line["type"] in ("good", "bad")]) == levels
    assert [line["event"] for line in lines if line["type"] == "other"] == ["job.completed"]
    assert len(recorder.all(e.JobCompleted)) == 2


def test_error_event_carries_the_exception_that_the_handler_raised(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    raised = RuntimeError("broken")

    def fail(payload: object) -> None:
        raise raised

    async def fail_async(payload: object) -> None:
        raise raised

    queue.register("thread", fail, max_attempts=2)
    queue.register("loop", fail_async, max_attempts=1)
    start_worker()
    queue.enqueue("thread")
    queue.enqueue("loop")
    assert recorder.wait(e.JobRetrying, type="thread").exception is raised
    assert recorder.wait(e.JobFailed, type="thread").exception is raised
    assert recorder.wait(e.JobFailed, type="loop").exception is raised


def test_error_ignored_after_a_commit_is_carried_too(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    @queue.job
    def work(ctx: Context) -> None:
        with ctx.transaction():
            pass
        raise KeyError("late")

    start_worker()
    work.enqueue()
    assert isinstance(recorder.wait(e.HandlerErrorIgnored).exception, KeyError)


@pytest.mark.process
def test_death_of_a_process_is_carried_and_what_its_handler_raised_is_not(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    queue.job(executor="process", max_attempts=1)(handlers.exit_at_once)
    queue.job(executor="process", max_attempts=1)(handlers.fail_for_good)
    start_worker(concurrency=1)
    for type in ("fail_for_good", "exit_at_once"):
        queue.enqueue(type)
    assert recorder.wait(e.JobFailed, type="fail_for_good").exception is None, "it was raised elsewhere"
    assert isinstance(recorder.wait(e.JobFailed, type="exit_at_once").exception, ProcessDied)


def test_exception_stays_out_of_the_log() -> None:
    event = e.JobFailed(
        job_id="j", type="t", attempt=1, worker_id="w", error="boom", exception=RuntimeError("secret")
    )
    record = logging.LogRecord("holdfast", event.level, "", 1, event, None, None)
    for line in (str(event), log.JsonFormatter().format(record), log.TextFormatter().format(record)):
        assert "secret" not in line
        assert "exception" not in line
