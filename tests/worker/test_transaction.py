"""ctx.transaction(): what a handler writes and the job's completion are one commit, or nothing."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from holdfast import Context, Job, Queue, transaction
from holdfast.errors import (
    HoldfastError,
    LeaseLost,
    NestedWrite,
    ResultIgnored,
    StoreUnavailable,
    TransactionExpired,
)
from holdfast.events import HandlerErrorIgnored, HandlerStuck, JobCompleted, OutcomeRefused
from holdfast.handlers.options import Executor
from holdfast.observe.log import word
from holdfast.queue import opened
from holdfast.store.open import store_of
from holdfast.store.postgres.attempt_pool import AttemptPool
from holdfast.worker.executors.wire import LineReader
from tests import postgres
from tests.support import Recorder, both_engines, wait_until
from tests.worker import handlers
from tests.worker.handlers import store
from tests.worker.support import PATIENCE, Gate, Spy, get, sql, supersede, time_out

StartWorker = Callable[..., Any]

INSERT = "INSERT INTO app (value) VALUES (?)"


@pytest.fixture
def url(url: str) -> str:
    """On PostgreSQL with the schema in the search path, where handlers find the application's table."""
    _, found, schema = url.partition("schema=")
    return postgres.with_parameters(url, options=f"-csearch_path={schema}") if found else url


@pytest.fixture(autouse=True)
def table(queue: Queue) -> None:
    """The application's own table, beside the queue's."""
    queue.stats()
    sql(queue, "CREATE TABLE app (value TEXT)")


def rows(queue: Queue) -> list[str]:
    return [row[0] for row in sql(queue, "SELECT value FROM app")]


def run_one(queue: Queue, type: str, payload: object = None, **options: Any) -> Job:
    return queue.wait(queue.enqueue(type, payload, **options).id, timeout=PATIENCE)


def register(queue: Queue, kind: str) -> None:
    """The same handler for each executor, under the name `insert`."""
    if kind == "process":
        queue.job(executor="process", name="insert")(handlers.insert)
    elif kind == "thread":
        queue.job(name="insert")(handlers.insert)
    else:
        queue.job(name="insert", executor="process" if kind == "async process" else None)(
            handlers.insert_async
        )


@pytest.mark.process
@both_engines
@pytest.mark.parametrize("kind", ["thread", "async", "process", "async process"])
def test_rows_and_completion_are_one_commit(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, kind: str
) -> None:
    register(queue, kind)
    start_worker()
    job = run_one(queue, "insert", {"value": "x"})
    assert (job.status, job.result, job.attempts) == ("completed", {"stored": "x"}, 1), job.error
    assert rows(queue) == ["x"]
    recorder.wait(JobCompleted, job_id=job.id)


@both_engines
def test_job_is_completed_for_all_to_see_before_the_handler_returns(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job
    def insert(ctx: Context) -> str:
        with ctx.transaction() as connection:
            store(connection, "x")
            ctx.result = "from inside"
        gate.enter()
        return "what is returned later does not count"

    start_worker()
    job = insert.enqueue()
    gate.wait_entered()
    assert get(queue, job.id).status == "completed"
    gate.open()
    assert queue.wait(job.id, timeout=PATIENCE).result == "from inside"


@pytest.mark.process
@both_engines
@pytest.mark.parametrize("kind", ["thread", "async", "process"])
def test_exception_in_the_block_rolls_both_back(queue: Queue, start_worker: StartWorker, kind: str) -> None:
    @queue.job(name="thread", max_attempts=1)
    def in_thread(ctx: Context) -> None:
        with ctx.transaction() as connection:
            store(connection, "x")
            ctx.enqueue("child")
            raise RuntimeError("inside")

    @queue.job(name="async", max_attempts=1)
    async def on_loop(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            store(connection, "x")
            raise RuntimeError("inside")

    queue.job(name="process", executor="process", max_attempts=1)(handlers.insert_and_raise_inside)
    start_worker()
    job = run_one(queue, kind, {"value": "x"} if kind == "process" else None)
    assert (job.status, job.error) == ("failed", "RuntimeError: inside")
    assert rows(queue) == []
    assert queue.jobs(type="child") == []


@both_engines
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_exception_between_two_rows_stops_no_other_work(
    queue: Queue, start_worker: StartWorker, kind: str
) -> None:
    """Its traceback holds the cursor until the outcome is written, which needs the transaction's lock."""

    def read_one_row(connection: Any) -> None:
        store(connection, "x")
        found = connection.execute("SELECT value FROM app UNION ALL SELECT 'y'")
        assert found.fetchone() is not None
        raise RuntimeError("between two rows")

    @queue.job(name="thread", max_attempts=1)
    def in_thread(ctx: Context) -> None:
        with ctx.transaction() as connection:
            read_one_row(connection)

    @queue.job(name="async", max_attempts=1)
    async def on_loop(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            read_one_row(connection)

    start_worker()
    job = run_one(queue, kind)
    assert (job.status, job.error) == ("failed", "RuntimeError: between two rows")
    assert rows(queue) == []


@pytest.mark.process
@both_engines
@pytest.mark.parametrize("kind", ["thread", "async", "process"])
def test_exception_after_the_block_changes_nothing(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, kind: str
) -> None:
    @queue.job(name="async")
    async def on_loop(value: str, ctx: Context) -> None:
        await handlers.insert_async(value, ctx)
        raise RuntimeError("after")

    queue.job(name="thread")(handlers.insert_and_raise_after)
    queue.job(name="process", executor="process")(handlers.insert_and_raise_after)
    start_worker()
    job = run_one(queue, kind, {"value": "x"})
    assert (job.status, job.error, job.errors) == ("completed", None, ())
    assert recorder.wait(HandlerErrorIgnored, job_id=job.id).error == "RuntimeError: after"
    recorder.wait(JobCompleted, job_id=job.id)
    assert rows(queue) == ["x"]
    assert get(queue, job.id) == job


@pytest.mark.process
@both_engines
@pytest.mark.parametrize("kind", ["thread", "async", "process"])
def test_value_returned_after_the_block_is_told_of_and_changes_nothing(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, kind: str
) -> None:
    @queue.job(name="async")
    async def on_loop(value: str, ctx: Context) -> str:
        await handlers.insert_async(value, ctx)
        return "too late"

    queue.job(name="thread")(handlers.insert_and_return)
    queue.job(name="process", executor="process")(handlers.insert_and_return)
    start_worker()
    job = run_one(queue, kind, {"value": "x", "answer": "too late"} if kind != "async" else {"value": "x"})
    assert (job.status, job.result, job.error) == ("completed", {"stored": "x"}, None)
    event = recorder.wait(HandlerErrorIgnored, job_id=job.id)
    assert event.error.startswith("ResultIgnored: the handler returned a value after ctx.transaction()")
    assert "set ctx.result inside the block" in word(event)


def test_value_returned_after_the_block_is_an_error_in_a_test(queue: Queue, recorder: Recorder) -> None:
    queue.job(handlers.insert_and_return)
    job = queue.enqueue("insert_and_return", {"value": "x", "answer": {"stored": "y"}})
    with pytest.raises(ResultIgnored, match=r"set ctx\.result inside the block"):
        queue.drain()
    assert (get(queue, job.id).status, get(queue, job.id).result) == ("completed", {"stored": "x"})
    assert recorder.wait(HandlerErrorIgnored).exception is not None


def test_result_that_is_changed_and_returned_after_the_block_is_an_error_in_a_test(queue: Queue) -> None:
    @queue.job
    def work(ctx: Context) -> dict[str, object]:
        with ctx.transaction():
            report: dict[str, object] = {"rows": 1}
            ctx.result = report
        report["rows"] = True
        return report

    job = work.enqueue()
    with pytest.raises(ResultIgnored):
        queue.drain(raise_errors=True)
    assert get(queue, job.id).result == {"rows": 1}


def test_result_that_is_set_after_the_block_is_an_error_in_a_test(queue: Queue) -> None:
    @queue.job
    def work(ctx: Context) -> None:
        with ctx.transaction():
            pass
        ctx.result = 1

    job = work.enqueue()
    with pytest.raises(ResultIgnored):
        queue.drain(raise_errors=True)
    assert (get(queue, job.id).status, get(queue, job.id).result) == ("completed", None)


def test_result_that_is_the_same_json_may_be_returned_too(queue: Queue) -> None:
    @queue.job
    def work(ctx: Context) -> tuple[int, dict[str, int]]:
        with ctx.transaction():
            ctx.result = [1, {"a": 1, "b": 2}]
        return 1, {"b": 2, "a": 1}

    work.enqueue()
    assert queue.drain(raise_errors=True) == 1


@pytest.mark.parametrize("answer", [None, {"stored": "x"}])
def test_result_may_be_returned_too(queue: Queue, recorder: Recorder, answer: object) -> None:
    queue.job(handlers.insert_and_return)
    queue.enqueue("insert_and_return", {"value": "x", "answer": answer})
    assert queue.drain(raise_errors=True) == 1
    assert recorder.all(HandlerErrorIgnored) == []


@pytest.mark.process
def test_process_that_dies_after_the_block_changes_nothing(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    queue.job(executor="process")(handlers.insert_and_die)
    start_worker()
    job = run_one(queue, "insert_and_die", {"value": "x"})
    recorder.wait(JobCompleted, timeout=60, job_id=job.id)
    assert recorder.wait(HandlerErrorIgnored, timeout=60, job_id=job.id).error.startswith("ProcessDied")
    assert get(queue, job.id).status == "completed"
    assert rows(queue) == ["x"]


@pytest.mark.process
@pytest.mark.parametrize("kind", ["thread", "process"])
def test_handler_may_go_on_for_long_after_the_block(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, tmp_path: Path, kind: Executor
) -> None:
    """Its job is completed, so there is no lease any more; that is no reason to stop the handler."""
    queue.set_config("heartbeat_interval", 0.1)
    queue.job(executor=kind)(handlers.insert_and_go_on)
    start_worker()
    done = tmp_path / "done"
    job = queue.enqueue("insert_and_go_on", {"value": "x", "beats": 1, "done": str(done)})
    recorder.wait(JobCompleted, job_id=job.id)
    assert done.exists(), "the handler was stopped before its end"


class UntoldCommit:
    """Keeps from the worker that a block has committed, until heartbeats have seen it in the database."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self._queue = queue
        self._beats = Spy(store_of(queue).heartbeat)
        self.told = threading.Event()
        monkeypatch.setattr(store_of(queue), "heartbeat", self._beats)
        committed, read_line = transaction.Transaction._committed, LineReader.read_line

        def tell_late(block: transaction.Transaction) -> None:
            self._wait()
            committed(block)

        def read_late(reader: LineReader) -> bytes | None:
            line = read_line(reader)
            if line is not None and b'"JobCompleted"' in line:
                self._wait()
            return line

        monkeypatch.setattr(transaction.Transaction, "_committed", tell_late)
        monkeypatch.setattr(LineReader, "read_line", read_late)

    def _wait(self) -> None:
        assert self._queue.stats()["completed"] == 1
        self._beats.wait_called(4)  # the first may have begun before the commit
        self.told.set()


@pytest.mark.process
@both_engines
@pytest.mark.parametrize("kind", ["thread", "async", "process"])
def test_handler_is_not_stopped_when_a_heartbeat_sees_the_commit_before_its_worker_is_told(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    short_heartbeat: None,
    kind: Executor,
) -> None:
    """The database says that its job is no longer running; it also says that this attempt completed it."""
    untold = UntoldCommit(queue, monkeypatch)
    handler = handlers.insert_and_wait_async if kind == "async" else handlers.insert_and_wait
    queue.job(name="insert", executor=kind)(handler)
    start_worker()
    go_on, done = tmp_path / "go on", tmp_path / "done"
    job = queue.enqueue("insert", {"value": "x", "until": str(go_on), "done": str(done)})
    assert untold.told.wait(PATIENCE)
    go_on.touch()
    recorder.wait(JobCompleted, job_id=job.id)
    assert done.exists(), "the handler was stopped before its end"
    for sign in (HandlerStuck, HandlerErrorIgnored, OutcomeRefused):
        assert recorder.all(sign) == []


@both_engines
@pytest.mark.parametrize("kind", ["thread", "async"])
def test_safe_point_after_the_block_does_not_end_a_handler_whose_lease_is_over(
    queue: Queue, recorder: Recorder, start_worker: StartWorker, kind: str
) -> None:
    """Nobody renews the lease of a completed job, so its end says nothing."""

    def let_lease_end(ctx: Context) -> None:
        ctx._attempt.leased_until = 0.0
        ctx.check()

    def insert(ctx: Context) -> None:
        with ctx.transaction() as connection:
            store(connection, "x")
        let_lease_end(ctx)

    async def insert_async(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            store(connection, "x")
        let_lease_end(ctx)

    queue.job(name="insert")(insert_async if kind == "async" else insert)
    start_worker()
    job = queue.enqueue("insert")
    recorder.wait(JobCompleted, job_id=job.id)
    assert recorder.all(HandlerErrorIgnored) == []


@pytest.mark.process
@both_engines
def test_process_that_dies_before_it_can_tell_of_its_commit_has_completed_its_job(
    queue: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    queue.job(name="insert", executor="process")(handlers.insert_and_never_tell)
    worker = start_worker()
    job = queue.enqueue("insert", {"value": "x"})
    recorder.wait(JobCompleted, job_id=job.id)
    assert recorder.wait(HandlerErrorIgnored, job_id=job.id).error.startswith("ProcessDied")
    assert recorder.all(OutcomeRefused) == []
    worker.stop()
    assert sum(row.completed for row in store_of(queue).list_statistics(0)) == 1


@both_engines
def test_second_block_is_an_error(queue: Queue) -> None:
    raised: list[str] = []

    @queue.job
    def insert(ctx: Context) -> None:
        with ctx.transaction() as connection:
            store(connection, "x")
        try:
            with ctx.transaction() as connection:
                store(connection, "y")
        except HoldfastError as error:
            raised.append(str(error))

    insert.enqueue()
    queue.drain()
    assert raised == ["ctx.transaction() can be used only once: leaving it completes the job"]
    assert rows(queue) == ["x"]


@both_engines
def test_plain_enqueue_inside_is_refused_at_once_and_names_ctx_enqueue(queue: Queue) -> None:
    raised: list[str] = []

    @queue.job
    def insert(ctx: Context) -> None:
        with ctx.transaction():
            for write in (
                lambda: queue.enqueue("child"),
                lambda: queue.enqueue_many("child", [{}]),
                lambda: queue.set_config("concurrency", 3),
            ):
                try:
                    write()
                except NestedWrite as error:
                    raised.append(str(error))

    insert.enqueue()
    queue.drain()
    assert len(raised) == 3
    assert all("ctx.enqueue" in text for text in raised)
    assert queue.jobs(type="child") == []


def test_plain_enqueue_inside_is_refused_at_once_even_while_another_thread_enqueues(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    """The other thread waits for the lock that the handler holds: sharing its commit would be a deadlock."""
    spy = Spy(store_of(queue).insert_jobs)
    raised = threading.Event()

    @queue.job(max_attempts=1)
    def insert(ctx: Context) -> str:
        with ctx.transaction():
            gate.enter()
            try:
                queue.enqueue("child")
            except NestedWrite:
                raised.set()
                ctx.result = "refused"
        return ""

    start_worker()
    queue.set_config("lease_seconds", 60)
    job = insert.enqueue()
    gate.wait_entered()
    monkeypatch.setattr(store_of(queue), "insert_jobs", spy)
    other = threading.Thread(target=queue.enqueue, args=("other",))
    other.start()
    wait_until(lambda: len(spy.calls) == 1)
    gate.open()
    done = queue.wait(job.id, timeout=PATIENCE)
    other.join(PATIENCE)
    assert raised.is_set(), f"it waited for the other thread: {done.error}"
    assert (done.status, done.result) == ("completed", "refused")
    assert len(queue.jobs(type="other")) == 1, "the other thread's job is no victim"


def test_async_enqueue_inside_is_refused_at_once(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job(max_attempts=1)
    async def insert(ctx: Context) -> None:
        async with ctx.transaction():
            try:
                await queue.enqueue_async("child")
            except NestedWrite as error:
                ctx.result = str(error)

    start_worker()
    job = run_one(queue, "insert")
    assert job.status == "completed", job.error
    assert "ctx.enqueue" in job.result


@both_engines
def test_enqueue_through_the_blocks_connection_commits_with_it(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    def insert(ctx: Context, fail: bool) -> None:
        with ctx.transaction() as connection:
            queue.enqueue("child", {"fail": fail}, connection=connection)
            if fail:
                raise RuntimeError

    insert.enqueue(fail=True)
    insert.enqueue(fail=False)
    queue.drain(limit=2)
    assert [child.payload for child in queue.jobs(type="child")] == [{"fail": False}]


@both_engines
def test_children_inside_commit_with_the_block(queue: Queue, start_worker: StartWorker, gate: Gate) -> None:
    @queue.job
    def insert(ctx: Context) -> None:
        with ctx.transaction() as connection:
            store(connection, "x")
            ctx.enqueue("child", {"n": 1})
        gate.enter()

    start_worker()
    job = insert.enqueue()
    gate.wait_entered()
    (child,) = queue.jobs(type="child")
    assert child.parent_id == job.id


@pytest.fixture
def short_transactions(queue: Queue) -> None:
    queue.set_config("transaction_seconds", 0.2)


@pytest.mark.parametrize("kind", ["thread", "async"])
def test_block_that_takes_too_long_is_rolled_back_and_shut(
    queue: Queue, start_worker: StartWorker, short_transactions: None, kind: str
) -> None:
    raised: list[type[BaseException]] = []

    def overstay(connection: Any) -> None:
        cursor = connection.cursor()
        store(connection, "early")
        wait_until(lambda: connection.expired_after is not None)
        for statement in (
            lambda: store(connection, "late"),
            lambda: connection.executemany(INSERT, [("late",)]),
            lambda: cursor.execute(INSERT, ("late",)),
            lambda: connection.execute("SELECT 1"),
            lambda: connection.cursor(),
        ):
            try:
                statement()
            except TransactionExpired as error:
                raised.append(type(error))

    @queue.job(name="thread", max_attempts=1)
    def in_thread(ctx: Context) -> None:
        with ctx.transaction() as connection:
            overstay(connection)

    @queue.job(name="async", max_attempts=1)
    async def on_loop(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            overstay(connection)

    start_worker()
    job = run_one(queue, kind)
    assert len(raised) == 5
    assert job.status == "failed"
    assert job.error is not None
    assert job.error.startswith("TransactionExpired: the transaction took longer than 0.2 s")
    assert rows(queue) == []


def test_others_can_write_again_when_a_block_has_expired(
    queue: Queue, start_worker: StartWorker, short_transactions: None, gate: Gate
) -> None:
    @queue.job(max_attempts=1)
    def insert(ctx: Context) -> None:
        with suppress(TransactionExpired), ctx.transaction() as connection:
            store(connection, "early")
            gate.enter()

    start_worker()
    insert.enqueue()
    gate.wait_entered()
    queue.enqueue("other")  # waits for the lock, which the block has to give up
    gate.open()
    wait_until(lambda: queue.stats()["processing"] == 0)
    assert rows(queue) == []


def test_statement_that_runs_too_long_is_cut_short(
    queue: Queue, start_worker: StartWorker, short_transactions: None
) -> None:
    @queue.job(max_attempts=1)
    def insert(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(
                "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
            )

    start_worker()
    job = run_one(queue, "insert")
    assert job.error is not None
    assert job.error.startswith("TransactionExpired")


def test_time_of_a_block_is_at_most_a_third_of_the_lease(queue: Queue) -> None:
    queue.set_config("transaction_seconds", 100)
    assert queue.settings().transaction_seconds == pytest.approx(1.0)


@both_engines
@pytest.mark.parametrize("when", ["before", "async"])
def test_superseded_attempt_finds_its_lease_lost_and_writes_nothing(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, gate: Gate, when: str
) -> None:
    raised = threading.Event()

    @queue.job(name="before")
    def in_thread(ctx: Context) -> None:
        gate.enter()
        try:
            with ctx.transaction() as connection:
                store(connection, "x")
                ctx.enqueue("child")
        except LeaseLost:
            raised.set()
            raise

    @queue.job(name="async")
    async def on_loop(ctx: Context) -> None:
        await gate.enter_async()
        try:
            async with ctx.transaction() as connection:
                store(connection, "x")
        except LeaseLost:
            raised.set()
            raise

    queue.register("marker", lambda payload: None)
    start_worker()
    job = queue.enqueue(when)
    gate.wait_entered()
    supersede(queue, job.id)
    before = get(queue, job.id)
    gate.open()
    assert raised.wait(PATIENCE)
    run_one(queue, "marker")
    assert rows(queue) == []
    assert queue.jobs(type="child") == []
    assert get(queue, job.id) == before
    assert recorder.wait(JobCompleted).type == "marker"
    assert recorder.all(OutcomeRefused) == []


@both_engines
def test_job_that_is_taken_away_inside_the_block_is_rolled_back(queue: Queue) -> None:
    """Nobody else can write meanwhile; but the handler itself has the queue's tables at hand."""

    @queue.job(max_attempts=1)
    def insert(ctx: Context) -> None:
        with ctx.transaction() as connection:
            store(connection, "x")
            connection.execute("UPDATE holdfast_jobs SET version = version + 1")

    job = insert.enqueue()
    queue.drain()
    assert rows(queue) == []
    assert get(queue, job.id).status == "processing"


REFUSED: list[tuple[str, Callable[[Any], object]]] = [
    ("commit()", lambda c: c.commit()),
    ("rollback()", lambda c: c.rollback()),
    ("close()", lambda c: c.close()),
    ("executescript()", lambda c: c.executescript("SELECT 1")),
    ("cursor.executescript()", lambda c: c.cursor().executescript("SELECT 1")),
    ("COMMIT", lambda c: c.execute("COMMIT")),
    ("commit in small letters", lambda c: c.execute("  commit ; ")),
    ("END", lambda c: c.execute("END TRANSACTION")),
    ("ROLLBACK", lambda c: c.execute("ROLLBACK")),
    ("BEGIN", lambda c: c.execute("BEGIN")),
    ("cursor COMMIT", lambda c: c.cursor().execute("COMMIT")),
    ("with connection", lambda c: c.__enter__().__exit__(None, None, None)),
    ("with connection, raising", lambda c: c.__exit__(ValueError, ValueError(), None)),
    ("isolation_level", lambda c: setattr(c, "isolation_level", None)),
]


@pytest.mark.parametrize("end", [action for _, action in REFUSED], ids=[name for name, _ in REFUSED])
def test_handler_cannot_end_the_transaction_by_itself(queue: Queue, end: Callable[[Any], object]) -> None:
    """Whatever it tries: nothing is committed before the job is completed, nor lost when it is."""

    @queue.job(max_attempts=1)
    def insert(ctx: Context, fail: bool) -> None:
        with ctx.transaction() as connection:
            store(connection, "fail" if fail else "x")
            with suppress(Exception):
                end(connection)
            assert connection.in_transaction, "the transaction has ended early"
            if fail:
                raise RuntimeError

    failed, done = insert.enqueue(fail=True), insert.enqueue(fail=False)
    queue.drain(limit=2)
    assert (get(queue, failed.id).status, get(queue, failed.id).error) == ("failed", "RuntimeError")
    assert get(queue, done.id).status == "completed"
    assert rows(queue) == ["x"]


@pytest.mark.process
def test_commit_by_hand_is_refused_with_words(queue: Queue, start_worker: StartWorker) -> None:
    queue.job(executor="process")(handlers.commit_by_hand)
    start_worker()
    assert run_one(queue, "commit_by_hand").result == "leaving the block commits the transaction"


@both_engines
def test_savepoints_of_the_handler_are_its_own_business(queue: Queue) -> None:
    @queue.job
    def insert(ctx: Context) -> None:
        with ctx.transaction() as connection:
            store(connection, "kept")
            connection.execute("SAVEPOINT mine")
            store(connection, "undone")
            connection.execute("ROLLBACK TO mine")
            connection.execute("RELEASE mine")

    insert.enqueue()
    queue.drain()
    assert rows(queue) == ["kept"]


def test_statement_of_a_handler_reaches_sqlite_as_it_is_written(queue: Queue) -> None:
    """Our own are rewritten for Pythons that take '?1' for a name; in a handler's it may be anything."""

    @queue.job
    def insert(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("INSERT INTO app (value) VALUES ('page?1=' || ?)", ("a",))
            connection.execute("INSERT INTO app (value) VALUES ('page?1')")

    job = queue.enqueue("insert")
    assert queue.drain() == 1
    assert get(queue, job.id).status == "completed", get(queue, job.id).error
    assert rows(queue) == ["page?1=a", "page?1"]


@both_engines
def test_connection_is_of_no_use_after_the_block(queue: Queue) -> None:
    kept: list[Any] = []

    @queue.job
    def insert(ctx: Context) -> None:
        with ctx.transaction() as connection:
            kept.append(connection)
        with pytest.raises(HoldfastError, match="the transaction has ended"):
            store(connection, "late")

    job = insert.enqueue()
    queue.drain()
    assert get(queue, job.id).status == "completed"
    with pytest.raises(HoldfastError, match="the transaction has ended"):
        kept[0].execute(INSERT, ("later",))
    assert rows(queue) == []


def test_result_of_the_block_that_is_no_json_completes_with_a_marker(queue: Queue) -> None:
    @queue.job
    def insert(ctx: Context) -> None:
        with ctx.transaction() as connection:
            store(connection, "x")
            ctx.result = object()

    job = insert.enqueue()
    queue.drain()
    assert get(queue, job.id).result["holdfast"] == "the result could not be stored"
    assert rows(queue) == ["x"]


def test_plain_enqueue_works_again_after_the_block(queue: Queue) -> None:
    @queue.job
    def insert(ctx: Context) -> None:
        with suppress(RuntimeError), ctx.transaction():
            raise RuntimeError
        queue.enqueue("child")

    insert.enqueue()
    queue.drain(limit=1)
    assert len(queue.jobs(type="child")) == 1


def test_async_handler_cancelled_while_it_waits_for_the_lock_leaves_no_lock_behind(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    @queue.job(timeout=0.2, max_attempts=1)
    async def insert(ctx: Context) -> None:
        gate.count()
        async with ctx.transaction() as connection:
            store(connection, "x")

    start_worker()
    holder = sqlite3.connect(queue.url.removeprefix("sqlite:///"), isolation_level=None)
    try:
        job = insert.enqueue()
        wait_until(lambda: queue.stats()["processing"] == 1 or gate.entered)
        holder.execute("BEGIN IMMEDIATE")
        gate.wait_entered()
        threading.Event().wait(0.3)  # past the timeout
        holder.execute("ROLLBACK")
    finally:
        holder.close()
    queue.wait(job.id, timeout=PATIENCE)
    queue.enqueue("other")
    assert asyncio.run(queue.enqueue_async("other")).status == "pending"


def test_block_that_is_held_does_not_expire(queue: Queue) -> None:
    queue.set_config("transaction_seconds", 1)  # time to get to hold()

    @queue.job(max_attempts=1)
    def slow(ctx: Context) -> None:
        with ctx.transaction() as connection:
            ctx.hold()
            time.sleep(1.1)  # longer than transaction_seconds
            store(connection, "held")

    job = slow.enqueue()
    queue.drain()
    assert get(queue, job.id).status == "completed", get(queue, job.id).error
    assert rows(queue) == ["held"]


def test_block_that_has_expired_can_not_be_held(queue: Queue) -> None:
    queue.set_config("transaction_seconds", 0.1)
    effects: list[str] = []

    @queue.job(max_attempts=1)
    def slow(ctx: Context) -> None:
        with ctx.transaction():
            time.sleep(0.3)  # longer than transaction_seconds
            ctx.hold()
            effects.append("renamed")

    job = slow.enqueue()
    queue.drain()
    assert (get(queue, job.id).error or "").startswith("TransactionExpired")
    assert effects == []


def test_hold_belongs_inside_the_block(queue: Queue) -> None:
    @queue.job(max_attempts=1)
    def early(ctx: Context) -> None:
        ctx.hold()

    job = early.enqueue()
    queue.drain()
    assert get(queue, job.id).error == "HoldfastError: ctx.hold() can only be called inside ctx.transaction()"


COROUTINES = 40
"""More than any pool of threads holds that a block could begin or end in."""


@both_engines
def test_blocks_of_many_coroutines_neither_wait_for_each_other_nor_for_handlers_threads(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    """Handlers fill the executor of asyncio, which then has no thread for anything else."""

    @queue.job(max_attempts=1)
    async def fill() -> None:
        await asyncio.gather(*(gate.enter_async() for _ in range(COROUTINES)))

    @queue.job(max_attempts=1)
    async def insert(ctx: Context, value: str) -> None:
        async with ctx.transaction() as connection:
            store(connection, value)

    start_worker(concurrency=COROUTINES + 1)
    filling = fill.enqueue()
    gate.wait_entered(COROUTINES)
    jobs = insert.enqueue_many([{"value": str(number)} for number in range(COROUTINES)])
    for job in jobs:
        done = queue.wait(job.id, timeout=PATIENCE)
        assert (done.status, done.attempts) == ("completed", 1), done.error
    gate.open()
    assert queue.wait(filling.id, timeout=PATIENCE).status == "completed"
    assert sorted(rows(queue), key=int) == [str(number) for number in range(COROUTINES)]


@both_engines
def test_task_that_outlives_the_block_may_write_the_queue(queue: Queue, start_worker: StartWorker) -> None:
    @queue.job(max_attempts=1)
    async def insert(ctx: Context) -> None:
        left = asyncio.Event()

        async def later() -> None:
            try:
                queue.enqueue("child", {"when": "inside"})
            except NestedWrite:
                ctx.result = "refused inside"
            await left.wait()
            await queue.enqueue_async("child", {"when": "after"})

        async with ctx.transaction():
            task = asyncio.create_task(later())
            await asyncio.sleep(0)
        left.set()
        await task

    start_worker(types=["insert"])
    job = run_one(queue, "insert")
    wait_until(lambda: queue.jobs(type="child"))
    assert job.result == "refused inside"
    assert [child.payload for child in queue.jobs(type="child")] == [{"when": "after"}]


@pytest.mark.parametrize("then", ["writes", "raises", "leaves"])
def test_block_that_sqlite_itself_has_rolled_back_commits_nothing(queue: Queue, then: str) -> None:
    """What is written after it would commit by itself."""
    sql(queue, "CREATE TABLE seat (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)")
    sql(queue, "INSERT INTO seat VALUES (1)")

    @queue.job(max_attempts=1)
    def book(ctx: Context) -> None:
        with ctx.transaction() as connection:
            store(connection, "first half")
            with suppress(sqlite3.IntegrityError):
                connection.execute("INSERT INTO seat VALUES (1)")
            if then != "leaves":
                with suppress(HoldfastError):
                    store(connection, "second half")
                with suppress(HoldfastError):
                    connection.execute("SAVEPOINT mine")
            if then == "raises":
                raise RuntimeError("so nothing of it may stay")

    job = book.enqueue()
    queue.drain()
    error = get(queue, job.id).error or ""
    assert rows(queue) == []
    assert get(queue, job.id).status == "failed"
    if then == "raises":
        assert error == "RuntimeError: so nothing of it may stay"
    else:
        assert error.startswith("HoldfastError: a statement inside ctx.transaction() ended the transaction")
        assert "ON CONFLICT ROLLBACK" in error


class OwnCursor(sqlite3.Cursor):
    """As a library may have one."""


@pytest.mark.parametrize("kind", [sqlite3.Cursor, OwnCursor])
def test_cursor_of_the_handlers_own_kind_writes_nothing_once_sqlite_has_rolled_back(
    queue: Queue, kind: type[sqlite3.Cursor]
) -> None:
    sql(queue, "CREATE TABLE seat (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)")
    seen: list[object] = []

    @queue.job(max_attempts=1)
    def book(ctx: Context) -> None:
        with ctx.transaction() as connection:
            cursor = connection.cursor(kind)
            seen.append(isinstance(cursor, kind))
            cursor.execute(INSERT, ["first half"])
            with suppress(sqlite3.IntegrityError):
                cursor.executemany("INSERT INTO seat VALUES (?)", [(1,), (1,)])
            with suppress(HoldfastError):
                cursor.execute(INSERT, ["second half"])

    job = book.enqueue()
    queue.drain()
    assert (get(queue, job.id).status, rows(queue), seen) == ("failed", [], [True])


def test_effect_is_not_held_for_a_block_that_sqlite_has_rolled_back(queue: Queue) -> None:
    sql(queue, "CREATE TABLE seat (id INTEGER PRIMARY KEY ON CONFLICT ROLLBACK)")
    effects: list[str] = []

    @queue.job(max_attempts=1)
    def book(ctx: Context) -> None:
        with ctx.transaction() as connection:
            with suppress(sqlite3.IntegrityError):
                connection.executemany("INSERT INTO seat VALUES (?)", [(1,), (1,)])
            ctx.hold()
            effects.append("renamed")

    job = book.enqueue()
    queue.drain()
    assert get(queue, job.id).status == "failed"
    assert effects == []


@both_engines
@pytest.mark.parametrize("is_async", [False, True])
def test_block_waits_for_no_connection_but_its_own(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """Those who have one may be waiting for this block to end."""
    monkeypatch.setattr(opened, "_OLD_AFTER", 0.0)
    read, readers, in_block = store_of(queue).get_settings, set(), threading.Event()

    def spy() -> Any:
        if in_block.is_set():
            readers.add(threading.current_thread().name)
        return read()

    monkeypatch.setattr(store_of(queue), "get_settings", spy)
    queue.job(name="child")(lambda: None)

    def write(ctx: Context) -> str:
        in_block.set()
        ctx.enqueue("child")
        return threading.current_thread().name

    @queue.job
    def thread(ctx: Context) -> None:
        with ctx.transaction():
            ctx.result = write(ctx)
        in_block.clear()

    @queue.job
    async def coroutine(ctx: Context) -> None:
        async with ctx.transaction():
            ctx.result = write(ctx)
        in_block.clear()

    start_worker()
    ended = run_one(queue, "coroutine" if is_async else "thread")
    assert ended.status == "completed"
    assert ended.result not in readers
    assert not any(name.startswith("holdfast-transaction") for name in readers)


@both_engines
@pytest.mark.parametrize("is_async", [False, True])
def test_block_waits_for_a_store_that_can_not_be_reached_yet(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, is_async: bool
) -> None:
    """As in a handler's own process, which opens the store for its first block."""
    monkeypatch.setattr(transaction, "_PAUSE", 0.01)
    read = store_of(queue).read_settings
    refusals = iter([StoreUnavailable("too many clients")] * 3)

    def refuse_at_first() -> Any:
        for refusal in refusals:
            raise refusal
        return read()

    def forget() -> None:
        queue._settings = None
        monkeypatch.setattr(store_of(queue), "read_settings", refuse_at_first)

    @queue.job(max_attempts=1)
    def thread(ctx: Context) -> None:
        forget()
        with ctx.transaction() as connection:
            store(connection, "a")

    @queue.job(max_attempts=1)
    async def coroutine(ctx: Context) -> None:
        forget()
        async with ctx.transaction() as connection:
            store(connection, "a")

    job = queue.enqueue("coroutine" if is_async else "thread")
    queue.drain()
    assert get(queue, job.id).status == "completed"
    assert rows(queue) == ["a"]
    assert list(refusals) == []


on_postgres = pytest.mark.parametrize("engine", ["postgres"], indirect=True)


@on_postgres
@pytest.mark.parametrize("what", ["progress", "timeout", "held timeout"])
def test_worker_goes_on_while_a_job_is_inside_its_block(
    queue: Queue, start_worker: StartWorker, gate: Gate, recorder: Recorder, what: str
) -> None:
    """Its row is locked for as long: a turn that writes about it passes over it."""

    @queue.job(max_attempts=1, timeout=600)
    def slow(ctx: Context) -> None:
        with ctx.transaction():
            if what == "held timeout":
                ctx.hold()
            ctx.progress(0.9, "saving")
            gate.enter()

    queue.job(name="quick")(lambda: None)
    queue.set_config("lease_seconds", 60)
    worker = start_worker()
    job = slow.enqueue()
    gate.wait_entered()
    if "timeout" in what:
        time_out(worker, job.id)
        recorder.wait(HandlerStuck, job_id=job.id)
    for _ in range(3):
        assert run_one(queue, "quick").status == "completed"
    assert get(queue, job.id).status == "processing"
    gate.open()
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed"


@on_postgres
def test_process_without_work_leaves_its_connections_to_others(
    queue: Queue, start_worker: StartWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"t{uuid4().hex}"
    monkeypatch.setenv("PGAPPNAME", name)  # other tests share the server
    register(queue, "process")
    queue.job(name="child")(lambda value: None)
    start_worker()
    assert run_one(queue, "insert", {"value": "a"}).status == "completed"
    of_blocks = (
        "SELECT count(*) FROM pg_stat_activity"
        " WHERE strpos(query, 'holdfast_end_reset') > 0 AND application_name = ? AND pid <> pg_backend_pid()"
    )
    wait_until(lambda: sql(queue, of_blocks, name) == [(0,)], PATIENCE)
    assert run_one(queue, "insert", {"value": "b"}).status == "completed"
    assert sorted(rows(queue)) == ["a", "b"]


@on_postgres
def test_shutdown_that_comes_inside_the_block_charges_no_attempt(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    """The release of the job has to wait until the block ends."""

    @queue.job(max_attempts=1)
    def slow(ctx: Context) -> None:
        with suppress(RuntimeError), ctx.transaction():
            gate.enter()
            raise RuntimeError

    worker = start_worker()
    job = slow.enqueue()
    gate.wait_entered()
    stopping = threading.Thread(target=worker.stop, kwargs={"timeout": 0.1})
    stopping.start()
    wait_until(lambda: worker._dispatcher._outbox._held_up)
    gate.open()
    stopping.join(PATIENCE)
    assert (get(queue, job.id).status, get(queue, job.id).attempts) == ("pending", 0)


@on_postgres
def test_job_that_waits_for_a_connection_at_the_shutdown_is_given_back(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    store_of_queue: Any = store_of(queue)
    store_of_queue.database.attempts = AttemptPool(store_of_queue.database, 1)

    @queue.job(max_attempts=1)
    def hog(ctx: Context) -> None:
        with ctx.transaction():
            gate.enter()

    @queue.job(max_attempts=1)
    def waits(ctx: Context) -> None:
        gate.count()
        with ctx.transaction():
            pass

    queue.set_config("lease_seconds", 60)
    worker = start_worker()
    first = hog.enqueue()
    gate.wait_entered()
    second = waits.enqueue()
    gate.wait_entered(2)
    stopping = threading.Thread(target=worker.stop)
    stopping.start()
    wait_until(lambda: get(queue, second.id).status == "pending")
    gate.open()
    stopping.join(PATIENCE)
    assert (get(queue, first.id).status, get(queue, second.id).attempts) == ("completed", 0)
