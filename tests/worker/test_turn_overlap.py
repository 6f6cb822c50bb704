"""Turns that overlap with the jobs they have claimed: nothing is forgotten, doubled or told too early."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Context, Job, Queue
from holdfast.context import Attempt
from holdfast.errors import CommitUncertain, StoreUnavailable
from holdfast.events import (
    Event,
    JobClaimed,
    JobCompleted,
    JobPromoted,
    JobReleased,
    OutcomeRefused,
    StoreTrouble,
    WorkerStopped,
)
from holdfast.store.open import store_of
from holdfast.store.postgres import server_clock
from holdfast.store.postgres.address import parse_url
from holdfast.worker.executors.threads import ThreadExecutor
from holdfast.worker.pace import Paces
from holdfast.worker.statistics import Statistics
from tests.support import Recorder, both_engines, wait_still, wait_until
from tests.worker.support import PATIENCE, Gate, Spy, get, sql

StartWorker = Callable[..., Any]

AHEAD = 10
"""How many jobs are held ready here, however fast they are."""


@pytest.fixture(autouse=True)
def known_pace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Paces, "ahead", lambda *_: AHEAD)
    monkeypatch.setattr(Paces, "ahead_in_all", lambda *_: AHEAD)


@pytest.fixture(autouse=True)
def rare_polls(queue: Queue) -> None:
    """What a worker misses, no poll tells it of before the test is over."""
    queue.set_config("poll_interval", 120)
    queue.set_config("lease_seconds", 30)


class Turns:
    """Counts the turns of a worker from 1 on, and lets a test act in them."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self._method = store_of(queue).finish_and_claim
        self.count = 0
        self.before: dict[int, Callable[[], object]] = {}
        """What to do first in a turn; where a server does the work, the claims of the last are held yet."""
        self.after: dict[int, Callable[[], object]] = {}
        """What to do before the commit of a turn."""
        monkeypatch.setattr(store_of(queue), "finish_and_claim", self)

    def __call__(self, *args: Any, **options: Any) -> Any:
        self.count += 1
        number = self.count
        self.before.get(number, _nothing)()
        answer = self._method(*args, **options)
        self.after.get(number, _nothing)()
        return answer


def _nothing() -> None: ...


@pytest.fixture
def turns(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Turns:
    return Turns(queue, monkeypatch)


def assert_each_ran_once(queue: Queue, jobs: list[Job]) -> None:
    for job in jobs:
        done = queue.wait(job.id, timeout=PATIENCE)
        assert (done.status, done.attempts) == ("completed", 1)


def assert_each_was_told_once(queue: Queue, recorder: Recorder, jobs: list[Job]) -> None:
    """Of a worker that has stopped: by events, and in the statistics."""
    assert Counter(event.job_id for event in recorder.all(JobCompleted)) == Counter(job.id for job in jobs)
    assert recorder.all(OutcomeRefused) == []
    assert sql(queue, "SELECT sum(completed) FROM holdfast_statistics") == [(len(jobs),)]


# What is held.


@both_engines
def test_held_jobs_run_while_no_turn_gets_through(
    queue: Queue, start_worker: StartWorker, turns: Turns, recorder: Recorder, gate: Gate
) -> None:
    def fail() -> None:
        if turns.count == 2 or gate.entered < 2 + AHEAD // 2:
            turns.before[turns.count + 1] = fail
            raise StoreUnavailable("staged")

    gate.open()
    turns.before[2] = fail
    queue.register("work", lambda payload: gate.enter())
    jobs = queue.enqueue_many("work", [{}] * 40)
    start_worker(concurrency=2)
    assert_each_ran_once(queue, jobs)
    assert gate.entered == 40
    assert recorder.all(StoreTrouble) != []
    assert recorder.all(JobReleased) == []


@both_engines
def test_worker_that_is_stopped_in_a_turn_runs_or_gives_back_what_that_has_claimed(
    queue: Queue, turns: Turns
) -> None:
    ran: list[str] = []

    @queue.job
    def work(ctx: Context) -> None:
        ran.append(ctx.idempotency_key)

    jobs = work.enqueue_many([{}] * 40)
    worker = queue.worker(concurrency=2)

    def stop() -> None:
        assert worker._dispatcher is not None
        worker._dispatcher.stop()

    turns.after[1] = stop
    worker.start()
    worker.stop()
    found = [get(queue, job.id) for job in jobs]
    assert {job.id: job.attempts for job in found if job.status == "completed"} == dict.fromkeys(ran, 1)
    assert {job.attempts for job in found if job.id not in ran} == {0}
    assert {job.status for job in found if job.id not in ran} == {"pending"}


@both_engines
def test_worker_that_drains_ends_when_nothing_is_held_or_waits_for_a_retry(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    @queue.job
    def sync(ctx: Context, fails: bool) -> None:
        if fails and ctx.attempt == 1:
            raise ValueError("once")

    @queue.job
    async def in_loop() -> None: ...

    for number in range(60):
        sync.enqueue(fails=number % 20 == 0)
        in_loop.enqueue()
    start_worker(concurrency=3, drain=True)
    recorder.wait(WorkerStopped)
    assert queue.stats()["completed"] == 120
    assert recorder.all(JobReleased) == []


@both_engines
def test_small_batches_hold_nothing_up(queue: Queue, start_worker: StartWorker, recorder: Recorder) -> None:
    queue.register("work", lambda payload: None)
    jobs = queue.enqueue_many("work", [{}] * 20)
    start_worker(concurrency=3, batch_size=1)
    assert_each_ran_once(queue, jobs)
    assert recorder.all(JobReleased) == []


@both_engines
def test_lowered_concurrency_leaves_nothing_behind(queue: Queue, start_worker: StartWorker) -> None:
    queue.set_config("concurrency", 6)

    def work(payload: dict[str, Any]) -> None:
        if payload["n"] == 30:
            queue.set_config("concurrency", 1)

    queue.register("work", work)
    jobs = queue.enqueue_many("work", [{"n": n} for n in range(100)])
    start_worker()
    assert_each_ran_once(queue, jobs)


# What is seen.


@both_engines
@pytest.mark.parametrize("how", ["by a handler", "by another process", "as a child", "as a retry"])
def test_work_that_comes_while_other_work_fills_every_turn_is_seen(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, how: str
) -> None:
    ran: Counter[str] = Counter()
    before: list[int] = []

    @queue.job
    def urgent(ctx: Context) -> None:
        before.append(ran["many"])
        if how == "as a retry" and ctx.attempt == 1:
            raise ValueError("once")

    @queue.job
    def many(ctx: Context, n: int) -> None:
        ran["many"] += 1
        if n == 20 and how in ("by a handler", "as a retry"):
            queue.enqueue("urgent", priority=10)
        elif n == 20 and how == "by another process":
            other_queue.enqueue("urgent", priority=10)
        elif n == 20:
            ctx.enqueue("urgent", priority=10)

    jobs = many.enqueue_many([{"n": n} for n in range(4000)])
    start_worker(concurrency=1)
    assert_each_ran_once(queue, jobs)
    assert len(before) == (2 if how == "as a retry" else 1)
    assert max(before) < 3900


@both_engines
def test_idle_worker_takes_no_turns_and_no_looks(
    queue: Queue, start_worker: StartWorker, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = Spy(store_of(queue).list_heads)
    monkeypatch.setattr(store_of(queue), "list_heads", looks)
    queue.register("work", lambda payload: None)
    jobs = queue.enqueue_many("work", [{}] * 40)
    start_worker(concurrency=2)
    assert_each_ran_once(queue, jobs)
    wait_still(lambda: (turns.count, len(looks.calls)))


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_clock_that_is_due_to_be_read_again_stops_no_turn(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_clock, "_KEPT", 0)
    queue.register("work", lambda payload: None)
    jobs = queue.enqueue_many("work", [{}] * 100)
    start_worker(concurrency=2)
    assert_each_ran_once(queue, jobs)


# What fails half way.

FAULT = (
    "CREATE SEQUENCE faults",
    """CREATE FUNCTION fault() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    IF nextval('{schema}.faults') IN (20, 21, 50) THEN {what}; END IF; RETURN NEW; END $$""",
    """CREATE TRIGGER fault BEFORE UPDATE OF status ON holdfast_jobs FOR EACH ROW
    WHEN (NEW.status = '{status}') EXECUTE FUNCTION fault()""",
)
FAULTS = {
    "error": "RAISE EXCEPTION 'staged' USING ERRCODE = '40001'",
    "cut": "PERFORM pg_terminate_backend(pg_backend_pid())",
}


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("status", ["completed", "processing"])
def test_turn_that_breaks_between_its_statements_loses_and_doubles_nothing(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, status: str, fault: str
) -> None:
    schema = parse_url(queue.url).schema
    for statement in FAULT:
        sql(queue, statement.format(schema=schema, what=FAULTS[fault], status=status))
    runs: Counter[int] = Counter()
    queue.register("work", lambda payload: runs.update([payload["n"]]))
    jobs = queue.enqueue_many("work", [{"n": n} for n in range(80)])
    worker = start_worker(concurrency=3)
    assert_each_ran_once(queue, jobs)
    worker.stop()
    assert len(recorder.all(StoreTrouble)) == 3
    assert runs == Counter(range(80))
    assert_each_was_told_once(queue, recorder, jobs)


@both_engines
@pytest.mark.parametrize("happened", [True, False])
def test_turns_whose_commits_are_in_doubt_lose_and_double_nothing(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    happened: bool,
) -> None:
    database: Any = store_of(queue).database
    commit, commits = database.commit, Counter[str]()

    def doubtful(connection: Any) -> None:
        name = threading.current_thread().name
        commits[name] += 1
        if name != "holdfast-dispatcher" or commits[name] % 3:
            commit(connection)
            return
        if happened:
            commit(connection)
        else:
            connection.rollback()
        raise CommitUncertain("staged")

    runs: Counter[int] = Counter()
    queue.register("work", lambda payload: runs.update([payload["n"]]))
    jobs = queue.enqueue_many("work", [{"n": n} for n in range(80)])
    monkeypatch.setattr(database, "commit", doubtful)
    worker = start_worker(concurrency=3)
    assert_each_ran_once(queue, jobs)
    monkeypatch.undo()
    worker.stop()
    assert recorder.all(StoreTrouble) != []
    assert runs == Counter(range(80))
    assert_each_was_told_once(queue, recorder, jobs)


@both_engines
def test_what_is_told_of_a_turn_is_committed(
    queue: Queue, other_queue: Queue, start_worker: StartWorker
) -> None:
    told: Counter[tuple[type[Event], str]] = Counter()

    def look(event: Event) -> None:
        if isinstance(event, JobClaimed | JobCompleted):
            told[type(event), get(other_queue, event.job_id).status] += 1

    queue.events.subscribe(look)
    queue.register("work", lambda payload: None)
    jobs = queue.enqueue_many("work", [{}] * 40)
    worker = start_worker(concurrency=3)
    assert_each_ran_once(queue, jobs)
    worker.stop()
    assert told[JobCompleted, "completed"] == 40
    assert told[JobClaimed, "processing"] + told[JobClaimed, "completed"] == 40


@both_engines
def test_maintenance_that_was_not_committed_is_not_told(
    queue: Queue,
    start_worker: StartWorker,
    turns: Turns,
    recorder: Recorder,
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Statistics, "is_due", lambda statistics: False)
    promote, promoted = store_of(queue).promote_jobs, Counter[str]()

    def fail() -> None:
        gate.open()  # an outcome, so that the next turn has nothing else to do
        raise StoreUnavailable("staged")

    def promote_in_vain(limit: int) -> list[tuple[str, str]]:
        found = promote(limit)
        promoted.update(id for id, _ in found)
        if promoted.total() == 1:
            turns.before[turns.count + 1] = fail
        return found

    monkeypatch.setattr(store_of(queue), "promote_jobs", promote_in_vain)
    queue.register("slow", lambda payload: gate.enter())
    queue.register("later", lambda payload: None)
    start_worker(concurrency=2)
    slow = queue.enqueue("slow")
    gate.wait_entered()
    later = queue.enqueue("later", delay=0.1)
    queue.wait(slow.id, timeout=PATIENCE)
    queue.enqueue("nobodys")  # a change, so that the worker looks when the next job is due
    assert queue.wait(later.id, timeout=PATIENCE).attempts == 1
    recorder.wait(JobCompleted, job_id=later.id)
    assert promoted == {later.id: 2}
    assert len(recorder.all(JobPromoted)) == 1


@both_engines
def test_job_that_follows_one_for_which_there_was_no_thread_is_started(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, starts = ThreadExecutor.start, Counter[str]()

    def refuse_the_first(executor: ThreadExecutor, attempt: Attempt) -> None:
        starts["all"] += 1
        if starts["all"] == 1:
            raise RuntimeError("can't start new thread")
        start(executor, attempt)

    monkeypatch.setattr(ThreadExecutor, "start", refuse_the_first)
    queue.register("work", lambda payload: None)
    jobs = queue.enqueue_many("work", [{}] * 20)
    start_worker(concurrency=1)
    for job in jobs:
        assert queue.wait(job.id, timeout=PATIENCE).status == "completed"


@both_engines
def test_event_loop_for_which_there_was_no_thread_is_started_later(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    start, refused = threading.Thread.start, Counter[str]()

    def refuse_once(thread: threading.Thread) -> None:
        if thread.name == "holdfast-loop" and not refused["loop"]:
            refused["loop"] += 1
            raise RuntimeError("can't start new thread")
        start(thread)

    @queue.job
    async def work() -> None: ...

    monkeypatch.setattr(threading.Thread, "start", refuse_once)
    start_worker(concurrency=1)
    assert queue.wait(work.enqueue().id, timeout=PATIENCE).attempts == 1


@both_engines
def test_what_a_subscriber_enqueues_while_other_work_fills_every_turn_is_seen(
    queue: Queue, start_worker: StartWorker
) -> None:
    ran: Counter[str] = Counter()
    before: list[int] = []

    def enqueue_once(event: Event) -> None:
        if isinstance(event, JobCompleted) and ran["many"] > 20 and not ran["told"]:
            ran["told"] += 1
            queue.enqueue("urgent", priority=10)

    queue.events.subscribe(enqueue_once)
    queue.register("urgent", lambda payload: before.append(ran["many"]))
    queue.register("many", lambda payload: ran.update(["many"]))
    jobs = queue.enqueue_many("many", [{}] * 4000)
    start_worker(concurrency=1)
    assert_each_ran_once(queue, jobs)
    wait_until(lambda: before)
    assert before[0] < 3900


@both_engines
def test_all_that_a_commit_in_doubt_has_claimed_is_given_back_and_seen_at_once(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.set_config("lease_seconds", 600)
    queue.register("work", lambda payload: None)
    jobs = queue.enqueue_many("work", [{}] * 3)
    database: Any = store_of(queue).database
    commit, doubts = database.commit, Counter[str]()

    def doubtful(connection: Any) -> None:
        commit(connection)
        claimed = sql(queue, "SELECT count(*) FROM holdfast_jobs WHERE status = 'processing'")
        if claimed == [(3,)] and not doubts["one"]:
            doubts["one"] += 1
            raise CommitUncertain("staged")

    monkeypatch.setattr(database, "commit", doubtful)
    start_worker(concurrency=3)
    for job in jobs:
        assert queue.wait(job.id, timeout=PATIENCE).attempts == 1
    assert doubts["one"] == 1


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
@pytest.mark.parametrize("how", ["stopped", "paused"])
def test_what_is_held_when_a_worker_is_stopped_or_paused_is_not_started(
    queue: Queue, start_worker: StartWorker, turns: Turns, recorder: Recorder, how: str
) -> None:
    ran: list[int] = []
    workers: list[Any] = []

    def end() -> None:
        wait_until(lambda: workers)
        if how == "paused":
            workers[0].pause()
        else:
            workers[0]._dispatcher.stop(0.0)

    turns.before[2] = end
    queue.register("work", lambda payload: ran.append(payload["n"]))
    queue.enqueue_many("work", [{"n": n} for n in range(40)])
    workers.append(start_worker(concurrency=2))
    recorder.wait(JobReleased, count=2 + AHEAD // 2)
    assert ran == []


@both_engines
def test_held_jobs_run_while_a_turn_is_at_something_else(
    queue: Queue, start_worker: StartWorker, turns: Turns, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.set_config("heartbeat_interval", 0.1)
    ran = threading.Event()
    sweep, waits = store_of(queue).list_expired, list[bool]()

    def sweep_late() -> Any:
        if turns.count == 1:
            waits.append(ran.wait(PATIENCE))
        return sweep()

    monkeypatch.setattr(store_of(queue), "list_expired", sweep_late)
    turns.after[1] = lambda: threading.Event().wait(0.11)  # by then a sweep is due
    queue.register("work", lambda payload: ran.set())
    jobs = queue.enqueue_many("work", [{}] * 40)
    start_worker(concurrency=2)
    assert_each_ran_once(queue, jobs)
    assert waits == [True]


@both_engines
def test_no_turn_follows_where_nothing_more_can_be_taken(
    queue: Queue, start_worker: StartWorker, turns: Turns, recorder: Recorder, gate: Gate
) -> None:
    """Of a limited type nothing is held ready, though there would be room for others."""
    queue.register("fast", lambda payload: None)
    queue.register("limited", lambda payload: gate.enter(), rate_limit=1000)
    start_worker(concurrency=2)
    queue.wait(queue.enqueue("fast").id, timeout=PATIENCE)
    before = wait_still(lambda: turns.count)
    queue.enqueue_many("limited", [{}] * 2)
    gate.wait_entered(2)
    recorder.wait(JobClaimed, count=3)
    assert wait_still(lambda: turns.count) == before + 1
