"""A lock keeps everybody from writing for longer than a lease: the living keep their jobs.

On SQLite, a transaction holds the only write lock; on PostgreSQL, somebody has locked the table of jobs.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import psycopg
import pytest

from holdfast import Context, Queue, context
from holdfast.context import Attempt
from holdfast.core import clock
from holdfast.core.clock import SECOND, system_clock
from holdfast.errors import StoreBusy, StoreUnavailable
from holdfast.events import JobReaped, LeaseLostByWorker, StoreTrouble
from holdfast.store.open import store_of
from holdfast.store.postgres.address import parse_url
from holdfast.store.records import Demand
from holdfast.store.sqlite import attempt, database
from holdfast.worker import dispatcher, heartbeat, maintenance, run
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.maintenance import Reaper
from tests.support import Recorder, both_engines, wait_until
from tests.worker.support import PATIENCE, Gate, LeaseHolder, Spy, get, in_thread, join, path_of, sql

pytestmark = pytest.mark.slow

StartWorker = Callable[..., Any]


class Lock:
    """An application that keeps everybody else from writing jobs."""

    def __init__(self, connection: Any, sql: str) -> None:
        self._connection = connection
        self._sql = sql

    def take(self, mode: str = "SHARE") -> None:
        """With the mode that CREATE INDEX takes on PostgreSQL; SQLite has only one."""
        self._connection.execute(self._sql.format(mode=mode))

    def release(self) -> None:
        self._connection.execute("COMMIT")


@pytest.fixture
def lock(queue: Queue) -> Iterator[Lock]:
    queue.open()
    if store_of(queue).is_shared:
        address = parse_url(queue.url)
        take = f"BEGIN; LOCK TABLE {address.schema}.holdfast_jobs IN {{mode}} MODE"
        with psycopg.connect(address.conninfo, autocommit=True) as connection:
            yield Lock(connection, take)
    else:
        with closing(sqlite3.connect(path_of(queue), isolation_level=None, timeout=PATIENCE)) as connection:
            yield Lock(connection, "BEGIN IMMEDIATE")


def move_clock(queue: Queue, monkeypatch: pytest.MonkeyPatch, clock: Callable[[], int]) -> None:
    """Let the database tell another time."""
    store = store_of(queue)
    if store.is_shared:
        monkeypatch.setattr(store.database, "_clock", clock)
    else:
        monkeypatch.setattr(store, "now", clock)


@pytest.fixture
def long_heartbeat(queue: Queue) -> None:
    """As long as the lease allows, so that a busy machine, too, reads within the part of it that it has."""
    queue.set_config("heartbeat_interval", 1.0)


@pytest.fixture
def pass_time(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Let time pass for leases, in the database as in the worker."""
    gone = [0.0]
    move_clock(queue, monkeypatch, lambda: system_clock() + round(gone[0] * SECOND))
    for module in (context, dispatcher, heartbeat, run):
        monkeypatch.setattr(module, "lease_clock", lambda: clock.lease_clock() + gone[0])

    def pass_by(seconds: float) -> None:
        gone[0] += seconds

    return pass_by


@both_engines
def test_worker_that_is_kept_from_writing_for_minutes_keeps_its_jobs(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    gate: Gate,
    long_heartbeat: None,
    lock: Lock,
    pass_time: Callable[[float], None],
) -> None:
    queue.register("work", lambda payload: gate.enter(), max_attempts=1)
    worker = start_worker()
    job = queue.enqueue("work")
    gate.wait_entered()
    lock.take()
    for _ in range(5):
        pass_time(60)
        recorder.wait(StoreTrouble, count=len(recorder.all(StoreTrouble)) + 2)
    lock.release()
    wait_until(lambda: lease_of(queue, job.id) > store_of(queue).now(), message="the lease is renewed")
    assert get(queue, job.id).worker_id == worker.id
    gate.open()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts, done.errors) == ("completed", 1, ())
    assert recorder.all(LeaseLostByWorker) == []
    assert recorder.all(JobReaped) == []


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
@pytest.mark.parametrize("mode", ["SHARE", "EXCLUSIVE"])
def test_job_of_a_worker_outlives_a_lock_of_its_table_that_outlives_its_lease(
    queue: Queue,
    other_queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    gate: Gate,
    long_heartbeat: None,
    lock: Lock,
    mode: str,
) -> None:
    """By real clocks, with another worker that would take the job, and reports of progress all the time."""
    others = Recorder(other_queue.events)

    @queue.job(max_attempts=1)
    def work(ctx: Context) -> None:
        gate.count()
        while not gate.is_open:
            ctx.progress(0.5)
            ctx.check()
            time.sleep(0.01)

    worker = start_worker()
    job = work.enqueue()
    gate.wait_entered()
    start_worker(other_queue)
    lock.take(mode)
    lease = lease_of(queue, job.id)
    wait_until(lambda: store_of(queue).now() > lease + 2 * SECOND, message="the lease is over for long")
    lock.release()
    wait_until(lambda: lease_of(queue, job.id) > store_of(queue).now(), message="the lease is renewed")
    assert get(queue, job.id).worker_id == worker.id
    gate.open()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.status, done.attempts, done.errors) == ("completed", 1, ())
    assert gate.entered == 1, "it ran once"
    assert recorder.all(LeaseLostByWorker) == []
    assert recorder.all(JobReaped) == others.all(JobReaped) == []


def test_worker_that_starts_while_somebody_holds_the_lock_begins_when_it_is_free(
    queue: Queue,
    start_worker: StartWorker,
    recorder: Recorder,
    lock: Lock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(database.Database.begin, "__defaults__", (0.05,))
    transaction: Any = database.Database.transaction
    monkeypatch.setitem(transaction.__wrapped__.__kwdefaults__, "patience", 0.05)
    queue.register("work", lambda payload: None)
    job = queue.enqueue("work")
    lock.take()
    worker = start_worker()
    recorder.wait(StoreTrouble)
    assert worker.is_running
    lock.release()
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed"
    assert [each.id for each in queue.workers()] == [worker.id]


def lease_of(queue: Queue, job_id: str) -> float:
    until = get(queue, job_id).lease_expires_at
    assert until is not None
    return until.timestamp() * SECOND


class Scene:
    """A job of worker "me", whose lease has run out; me, and the reaper of another worker."""

    def __init__(self, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
        self.queue = queue
        self.clock = SimpleNamespace(now=1000.0)
        monkeypatch.setattr(maintenance, "time", SimpleNamespace(monotonic=lambda: self.clock.now))
        queue.set_config("heartbeat_interval", 1.0)
        queue.register("work", lambda payload: None)
        self.job = queue.enqueue("work")
        demand = Demand(type="work", limit=1, max_attempts=3)
        (claim,) = store_of(queue).claim_jobs("me", [demand], limit=1, lease_seconds=3).claims
        move_clock(queue, monkeypatch, lambda: system_clock() + 60 * SECOND)
        handler = queue.registry.find("work")
        assert handler is not None
        self.attempt = Attempt(claim, handler, queue)
        self.attempt.leased_until = 0.0
        holder = LeaseHolder(queue, self.attempt)
        self.lost = holder.lost
        self.me = Heartbeat("me", store_of(queue), queue.events, holder)
        self.reaper = Reaper(store_of(queue))

    def sweep(self) -> list[str]:
        with store_of(self.queue).transaction():
            reaped = self.reaper.sweep(1.0, self.queue.settings())
        self.reaper.looked()
        return [lost.id for lost, _ in reaped]


@pytest.fixture
def scene(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(queue, monkeypatch)


@both_engines
def test_lease_that_no_reaper_has_seen_expired_is_kept_while_nobody_can_write(
    scene: Scene, lock: Lock
) -> None:
    lock.take()
    for _ in range(3):
        assert scene.me.beat() < 0.2, "it tries again before a reaper could look twice"
    assert scene.lost == []


@both_engines
def test_lease_that_a_reaper_has_seen_expired_is_given_up_when_it_cannot_be_renewed(
    scene: Scene, lock: Lock
) -> None:
    """The lock was free, and the reaper had it first; next time it will take the job."""
    assert scene.sweep() == []
    lock.take()
    scene.me.beat()
    assert scene.lost == [scene.attempt]
    lock.release()
    scene.clock.now += 1.1
    assert scene.sweep() == [scene.job.id]


@both_engines
def test_renewal_between_two_looks_of_a_reaper_keeps_the_job(scene: Scene, lock: Lock) -> None:
    assert scene.sweep() == []
    scene.me.beat()
    scene.clock.now += 1.1
    assert scene.sweep() == []
    scene.attempt.leased_until = 0.0
    lock.take()
    scene.me.beat()
    assert scene.lost == [], "the renewal has cleared the reaper's mark"


@both_engines
def test_report_of_progress_while_the_lease_is_overdue_is_no_mark_of_a_reaper(
    scene: Scene, lock: Lock
) -> None:
    claim = scene.attempt.claim
    store_of(scene.queue).write_progress("me", [(claim.seq, claim.version, 0.5, "half")])
    lock.take()
    scene.me.beat()
    assert scene.lost == []
    lock.release()
    assert scene.sweep() == []
    store_of(scene.queue).write_progress("me", [(claim.seq, claim.version, 0.6, "more")])
    lock.take()
    scene.me.beat()
    assert scene.lost == [scene.attempt], "nor does it remove one"


def test_worker_that_was_kept_from_writing_lets_the_others_renew_before_it_looks(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds the lock for long, again and again: who gets it in between must not suspect the rest."""
    time = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: time.now))
    scene.me.beat()
    time.now += scene.queue.settings().lease_seconds
    assert not scene.me.is_steady(), "its own heartbeat is overdue"
    scene.me.beat()
    assert not scene.me.is_steady(), "it comes just in time, and others may not have"
    time.now += 1.1
    assert scene.me.is_steady()


@both_engines
def test_reaper_counts_from_the_commit_of_its_first_look(scene: Scene) -> None:
    with store_of(scene.queue).transaction():
        assert scene.reaper.sweep(1.0, scene.queue.settings()) == []
        scene.clock.now += 60  # a commit that took its time: nobody could see the mark
    scene.reaper.looked()
    assert scene.sweep() == []
    scene.clock.now += 1.1
    assert scene.sweep() == [scene.job.id]


@both_engines
def test_look_of_a_reaper_that_was_not_committed_does_not_count(scene: Scene) -> None:
    scene.reaper.sweep(1.0, scene.queue.settings())
    scene.reaper.forget()
    scene.clock.now += 1.1
    assert scene.sweep() == []


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_look_that_could_leave_no_mark_does_not_count(scene: Scene, lock: Lock) -> None:
    """The job's row was locked at the first look: its owner could not know of it."""
    block = store_of(scene.queue).begin_attempt_transaction(scene.attempt.claim, 60.0)
    block.begin()
    assert scene.sweep() == []
    block.rollback()
    lock.take()
    scene.me.beat()
    assert scene.lost == [], "nothing says that anybody has looked"
    lock.release()
    scene.clock.now += 1.1
    assert scene.sweep() == [], "this is the first look"
    lock.take()
    scene.me.beat()
    assert scene.lost == [scene.attempt]
    lock.release()
    scene.clock.now += 1.1
    assert scene.sweep() == [scene.job.id]


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_overdue_lease_that_a_heartbeat_could_not_renew_is_tried_again_soon(scene: Scene) -> None:
    """A report of progress or a reaper's first look had locked the row, and nobody waits for a row."""
    address = parse_url(scene.queue.url)
    with psycopg.connect(address.conninfo) as other:
        other.execute(f"SELECT 1 FROM {address.schema}.holdfast_jobs FOR UPDATE")
        assert scene.me.beat() < 0.2
        assert not scene.attempt.is_leased()
        assert scene.lost == []
        other.rollback()
        assert scene.me.beat() > 0.2
        assert scene.attempt.is_leased()
        other.execute(f"SELECT 1 FROM {address.schema}.holdfast_jobs FOR UPDATE")
        assert scene.me.beat() > 0.2, "it has time"


@pytest.mark.parametrize("engine", ["postgres"], indirect=True)
def test_lease_is_given_up_while_nobody_can_read_either(scene: Scene, lock: Lock) -> None:
    """VACUUM FULL, say: whether a reaper has been there can't be known."""
    lock.take("ACCESS EXCLUSIVE")
    scene.me.beat()
    assert scene.lost == [scene.attempt]


@both_engines
def test_answer_that_took_too_long_says_nothing(
    scene: Scene, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By now a reaper may have marked the job, and be about to take it."""
    store = store_of(scene.queue)
    time, list_unsuspected = SimpleNamespace(now=1000.0), store.list_unsuspected
    monkeypatch.setattr(heartbeat, "time", SimpleNamespace(monotonic=lambda: time.now))

    def late(*args: Any, **kwargs: Any) -> set[tuple[int, int]]:
        time.now += 0.3
        return list_unsuspected(*args, **kwargs)

    monkeypatch.setattr(store, "list_unsuspected", late)
    lock.take()
    scene.me.beat()
    assert scene.lost == [scene.attempt]


@both_engines
def test_trouble_other_than_a_lock_ends_the_job_though_no_reaper_has_seen_it(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    beats = Spy(store_of(scene.queue).heartbeat)
    beats.always = StoreUnavailable("the statement took too long")
    monkeypatch.setattr(store_of(scene.queue), "heartbeat", beats)
    scene.me.beat()
    assert scene.lost == [scene.attempt]


@both_engines
def test_job_that_another_has_taken_is_given_up_though_nobody_can_write_now(scene: Scene, lock: Lock) -> None:
    sql(scene.queue, "UPDATE holdfast_jobs SET version = version + 1, worker_id = 'another'")
    lock.take()
    scene.me.beat()
    assert scene.lost == [scene.attempt]


def test_block_of_a_handler_waits_until_it_can_begin(
    scene: Scene, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_CHECK_PAUSE", 0.01)
    transaction = store_of(scene.queue).begin_attempt_transaction(scene.attempt.claim, 5.0)
    check_wait = Spy(lambda: None)
    lock.take()
    thread, outcome = in_thread(lambda: transaction.begin(check_wait))
    check_wait.wait_called(3)
    lock.release()
    join(thread)
    assert outcome == [None]
    transaction.rollback()


def test_block_of_a_handler_that_is_to_stop_waits_no_longer(
    scene: Scene, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_CHECK_PAUSE", 0.01)
    transaction = store_of(scene.queue).begin_attempt_transaction(scene.attempt.claim, 5.0)
    check_wait = Spy(lambda: None)
    check_wait.always = StoreUnavailable("stop")
    lock.take()
    with pytest.raises(StoreUnavailable, match="stop"):
        transaction.begin(check_wait)


def test_block_that_waits_for_a_lock_of_its_own_handler_ends_with_an_error(
    scene: Scene, lock: Lock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempt, "_CHECK_PAUSE", 0.01)
    monkeypatch.setattr(attempt, "LOCK_PATIENCE", 0.05)
    transaction = store_of(scene.queue).begin_attempt_transaction(scene.attempt.claim, 5.0)
    lock.take()
    with pytest.raises(StoreBusy, match=r"locked for 0\.05 s"):
        transaction.begin()
