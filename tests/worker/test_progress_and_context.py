"""What a handler knows and may do: its job, its progress, its children, its safe points."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Job, Queue
from holdfast.core.job import Progress
from holdfast.errors import ConfigError, InvalidPayload, UnknownType
from holdfast.events import JobEnqueued, JobReleased
from holdfast.testing import MovableClock
from tests.support import Recorder, both_engines, wait_until
from tests.worker import handlers
from tests.worker.support import PATIENCE, Gate, get, supersede

StartWorker = Callable[..., Any]


def run_one(queue: Queue, type: str, payload: object = None, **options: Any) -> Job:
    return queue.wait(queue.enqueue(type, payload, **options).id, timeout=PATIENCE)


@both_engines
def test_now_is_the_present_by_the_clock_of_the_queue(url: str) -> None:
    clock, seen = MovableClock(datetime(2031, 5, 1, tzinfo=UTC)), list[datetime]()
    with Queue(url, clock=clock) as queue:

        @queue.job
        def work(ctx: Context) -> None:
            seen.append(ctx.now)
            clock.advance(hours=1)
            seen.append(ctx.now)

        work.enqueue()
        queue.drain()
    assert seen == [datetime(2031, 5, 1, tzinfo=UTC), datetime(2031, 5, 1, 1, tzinfo=UTC)]
    assert seen[0].tzinfo is UTC


@both_engines
def test_progress_is_stored_while_the_handler_runs(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job
    def work(ctx: Context) -> None:
        ctx.progress(0.1)
        ctx.progress(0.4, "resizing")
        gate.enter()

    start_worker()
    job = work.enqueue()
    gate.wait_entered()
    wait_until(lambda: get(queue, job.id).progress == Progress(0.4, "resizing"))
    gate.open()
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed"


def test_progress_begins_anew_with_each_attempt(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    @queue.job
    def work(ctx: Context) -> None:
        if ctx.attempt == 1:
            ctx.progress(0.9)
            wait_until(lambda: ctx_progress() == Progress(0.9))
            raise RuntimeError
        gate.enter()

    def ctx_progress() -> Progress | None:
        return get(queue, job.id).progress

    job = work.enqueue()
    start_worker()
    gate.wait_entered()
    assert get(queue, job.id).progress is None


@both_engines
def test_late_progress_of_a_superseded_attempt_changes_nothing(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    reported = threading.Event()

    @queue.job
    def work(ctx: Context) -> None:
        gate.enter()
        ctx.progress(0.5)
        reported.set()

    start_worker()
    job = work.enqueue()
    gate.wait_entered()
    supersede(queue, job.id)
    gate.open()
    assert reported.wait(PATIENCE)
    queue.register("marker", lambda payload: None)
    run_one(queue, "marker")
    assert get(queue, job.id).progress is None


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf")])
def test_progress_beyond_its_bounds_is_an_error(queue: Queue, fraction: float) -> None:
    @queue.job(max_attempts=1)
    def work(ctx: Context) -> None:
        ctx.progress(fraction)

    job = work.enqueue()
    queue.drain()
    assert get(queue, job.id).error == f"ValueError: progress must be from 0 to 1, not {fraction!r}"


@pytest.mark.parametrize("message", ["\x00", "\ud800", object()])
def test_progress_message_that_cannot_be_stored_is_an_error(queue: Queue, message: Any) -> None:
    @queue.job(max_attempts=1)
    def work(ctx: Context) -> None:
        ctx.progress(0.5, message)

    job = work.enqueue()
    queue.drain()
    assert get(queue, job.id).status == "failed"


@pytest.mark.parametrize("start", [False, True])
def test_handler_knows_its_job(queue: Queue, start_worker: StartWorker, start: bool) -> None:
    seen: list[Job] = []

    @queue.job(max_attempts=7)
    def work(ctx: Context, n: int) -> None:
        seen.append(ctx.job)

    job = work.with_options(priority=3, key="k", timeout=60).enqueue(n=1)
    if start:
        start_worker()
        queue.wait(job.id, timeout=PATIENCE)
    else:
        queue.drain()
    (mine,) = seen
    assert (mine.id, mine.type, mine.payload) == (job.id, "work", {"n": 1})
    assert (mine.status, mine.attempts, mine.max_attempts) == ("processing", 1, 7)
    assert (mine.priority, mine.key, mine.timeout) == (3, "k", 60)
    assert mine.worker_id is not None


def test_idempotency_key_is_the_same_in_all_attempts_and_another_for_each_job(
    queue: Queue, start_worker: StartWorker
) -> None:
    seen: dict[str, list[tuple[int, str]]] = {}

    @queue.job(max_attempts=3)
    def work(ctx: Context, name: str) -> None:
        seen.setdefault(name, []).append((ctx.attempt, ctx.idempotency_key))
        raise RuntimeError

    a, b = work.enqueue(name="a"), work.enqueue(name="b")
    start_worker()
    for job in (a, b):
        queue.wait(job.id, timeout=PATIENCE)
    assert [attempt for attempt, _ in seen["a"]] == [1, 2, 3]
    assert len({key for _, key in seen["a"]}) == 1
    assert seen["a"][0][1] != seen["b"][0][1]


def test_idempotency_key_survives_a_retry_by_hand(queue: Queue) -> None:
    seen = []

    @queue.job(max_attempts=1)
    def work(ctx: Context) -> None:
        seen.append(ctx.idempotency_key)
        raise RuntimeError

    job = work.enqueue()
    queue.drain()
    queue.retry(job.id)
    queue.drain()
    assert len(seen) == 2
    assert len(set(seen)) == 1


@both_engines
def test_children_exist_from_the_moment_their_parent_completes(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job
    def parent(ctx: Context) -> str:
        child = ctx.enqueue("child", {"n": 1}, priority=4)
        gate.enter()
        return child

    start_worker()
    job = parent.enqueue()
    gate.wait_entered()
    assert queue.jobs(type="child") == []
    gate.open()
    done = queue.wait(job.id, timeout=PATIENCE)
    (child,) = queue.jobs(type="child")
    assert (child.id, child.parent_id, child.priority) == (done.result, job.id, 4)
    assert child.payload == {"n": 1}
    assert queue.children(job.id) == [child.id]
    assert [found.id for found in queue.jobs(parent_id=job.id)] == [child.id]


def test_children_of_a_failed_attempt_never_exist(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job(max_attempts=2)
    def parent(ctx: Context) -> None:
        ctx.enqueue("child", {"attempt": ctx.attempt})
        if ctx.attempt == 1:
            raise RuntimeError

    start_worker()
    run_one(queue, "parent")
    assert [child.payload for child in queue.jobs(type="child")] == [{"attempt": 2}]


@both_engines
def test_children_of_a_superseded_attempt_never_exist(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job
    def parent(ctx: Context) -> None:
        ctx.enqueue("child")
        gate.enter()

    queue.register("marker", lambda payload: None)
    start_worker()
    job = parent.enqueue()
    gate.wait_entered()
    supersede(queue, job.id)
    gate.open()
    run_one(queue, "marker")
    assert queue.jobs(type="child") == []
    assert get(queue, job.id).status == "processing"


@pytest.mark.process
@both_engines
def test_progress_of_a_process_is_stored_and_its_children_exist_when_it_completes(
    queue: Queue, start_worker: StartWorker, tmp_path: Path
) -> None:
    queue.job(executor="process")(handlers.report_progress)
    queue.job(executor="process")(handlers.have_children)
    start_worker(concurrency=1)
    job = queue.enqueue("report_progress", {"path": str(tmp_path / "go")})
    wait_until(lambda: get(queue, job.id).progress == Progress(0.5, "half"))
    (tmp_path / "go").touch()
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed"
    job = run_one(queue, "have_children")
    (child,) = queue.jobs(type="child")
    assert (child.id, child.parent_id, child.payload) == (job.result, job.id, {"n": 1})


@both_engines
def test_child_whose_id_is_taken_becomes_a_link(queue: Queue) -> None:
    @queue.job
    def parent(ctx: Context) -> str:
        return ctx.enqueue("child", {"n": 2}, id="taken")

    other = queue.enqueue("child", {"n": 1}, id="taken")
    job = parent.enqueue()
    assert queue.drain() == 1
    assert get(queue, job.id).status == "completed"
    assert queue.children(job.id) == [other.id]
    assert get(queue, "taken").payload == {"n": 1}
    assert get(queue, "taken").parent_id is None


@both_engines
@pytest.mark.parametrize("payload", [{"n": 1}, {"n": 2}])
def test_child_whose_key_is_taken_becomes_a_link(queue: Queue, payload: dict[str, int]) -> None:
    @queue.job
    def parent(ctx: Context) -> None:
        ctx.enqueue("child", payload, key="k")

    other = queue.enqueue("child", {"n": 1}, key="k")
    job = parent.enqueue()
    assert queue.drain() == 1
    assert queue.children(job.id) == [other.id]
    assert len(queue.jobs(type="child")) == 1


def test_children_are_announced_with_the_state_they_are_in(queue: Queue, recorder: Recorder) -> None:
    @queue.job
    def parent(ctx: Context) -> None:
        ctx.enqueue("child", {"n": 1}, id="now")
        ctx.enqueue("child", {"n": 2}, id="later", delay=3600)
        ctx.enqueue("child", {"n": 3}, id="taken")

    queue.enqueue("child", {"n": 0}, id="taken")
    job = parent.enqueue()
    queue.drain()
    announced = {
        event.job_id: event.status for event in recorder.all(JobEnqueued) if event.parent_id == job.id
    }
    assert announced == {"now": "pending", "later": "scheduled"}


def test_child_may_be_named_by_its_function(queue: Queue) -> None:
    @queue.job
    def child(n: int) -> int:
        return n

    @queue.job
    def parent(ctx: Context) -> str:
        return ctx.enqueue(child, {"n": 5})

    job = parent.enqueue()
    assert queue.drain() == 2
    assert get(queue, get(queue, job.id).result).result == 5


def test_child_that_is_not_acceptable_is_an_error_in_the_handler(queue: Queue) -> None:
    raised: list[type[BaseException]] = []

    @queue.job
    def child(n: int) -> None: ...

    @queue.job
    def parent(ctx: Context) -> None:
        for payload, options in (({"n": "x"}, {}), ({"n": 1}, {"id": "stats"}), ({"n": 1}, {"nope": 1})):
            try:
                ctx.enqueue("child", payload, **options)
            except (InvalidPayload, ConfigError) as error:
                raised.append(type(error))

    job = parent.enqueue()
    queue.drain()
    assert raised == [InvalidPayload, ConfigError, ConfigError]
    assert get(queue, job.id).status == "completed"
    assert queue.jobs(type="child") == []


def test_strict_types_hold_for_children_too(url: str) -> None:
    with Queue(url, strict_types=True) as queue:

        @queue.job(max_attempts=1)
        def parent(ctx: Context) -> None:
            with pytest.raises(UnknownType):
                ctx.enqueue("nobody")

        job = parent.enqueue()
        queue.drain()
        assert get(queue, job.id).status == "completed"


def test_check_at_shutdown_gives_the_job_and_the_attempt_back(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, tmp_path: Path
) -> None:
    started = tmp_path / "started"
    queue.job(handlers.check_for_ever)
    worker = start_worker()
    job = queue.enqueue("check_for_ever", {"started": str(started)})
    wait_until(started.exists)
    assert worker.stop(timeout=PATIENCE), "it stopped at a safe point, nothing was cut short"
    recorder.wait(JobReleased, job_id=job.id)
    left = get(queue, job.id)
    assert (left.status, left.attempts, left.error, left.errors) == ("pending", 0, None, ())
    assert (left.worker_id, left.lease_expires_at) == (None, None)


def test_handler_can_see_that_it_should_stop_and_finish_early(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job
    def work(ctx: Context) -> str:
        gate.count()
        while not ctx.stopping:
            threading.Event().wait(0.001)
        return "as far as I got"

    worker = start_worker()
    job = work.enqueue()
    gate.wait_entered()
    assert worker.stop(timeout=PATIENCE)
    assert get(queue, job.id).result == "as far as I got"


def test_check_does_nothing_while_all_is_well(queue: Queue) -> None:
    @queue.job
    def work(ctx: Context) -> str:
        ctx.check()
        return "done"

    job = work.enqueue()
    queue.drain()
    assert get(queue, job.id).result == "done"


@both_engines
@pytest.mark.parametrize("is_taken", [True, False])
def test_attempt_that_was_stopped_beyond_its_lease_looks_whether_the_job_is_still_its_own(
    queue: Queue, recorder: Recorder, is_taken: bool
) -> None:
    """After a pause of the whole process the handler's thread may be the first to go on."""
    effects: list[str] = []

    @queue.job
    def work(ctx: Context) -> None:
        if is_taken:
            supersede(queue, ctx.job.id)
        ctx._attempt.leased_until -= 3600
        ctx.check()
        effects.append("done")

    job = work.enqueue()
    queue.drain(limit=1)
    left = get(queue, job.id)
    if is_taken:
        assert effects == []
        assert (left.status, left.worker_id, left.errors) == ("processing", "another", ())
    else:
        assert effects == ["done"]
        assert left.status == "completed"


@both_engines
def test_child_gets_the_options_of_its_function(queue: Queue) -> None:
    @queue.job
    def child(n: int) -> None: ...

    @queue.job
    def parent(ctx: Context) -> str:
        urgent = child.with_options(lane="eu", priority=7, key="k", max_attempts=9, timeout=5, delay="1h")
        return ctx.enqueue(urgent, {"n": 1}, priority=8)

    job = parent.enqueue()
    queue.drain(raise_errors=True)
    made = get(queue, get(queue, job.id).result)
    assert (made.type, made.priority, made.key, made.max_attempts, made.timeout, made.status) == (
        ("child:eu", 8, "k", 9, 5.0, "scheduled")
    )
