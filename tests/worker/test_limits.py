"""Limits: how many run at a time here, over all workers, and how many start in a second."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast import Queue
from holdfast.core.starting import Usage
from holdfast.errors import ConfigError
from holdfast.events import JobCompleted, StoreTrouble
from holdfast.store.open import store_of
from holdfast.store.records import Claim, Demand
from holdfast.store.sqlite.database import Database
from tests.support import Recorder, both_engines, wait_until
from tests.worker.support import PATIENCE, Gate, Spy, get

pytestmark = pytest.mark.slow

StartWorker = Callable[..., Any]


class Meter:
    """Counts how many handlers are inside at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.inside = 0
        self.most = 0

    def __call__(self, payload: object) -> None:
        with self._lock:
            self.inside += 1
            self.most = max(self.most, self.inside)
        threading.Event().wait(0.01)  # long enough for others to come in if they may
        with self._lock:
            self.inside -= 1


def wait_all(queue: Queue, jobs: Sequence[Any]) -> None:
    for job in jobs:
        assert queue.wait(job.id, timeout=PATIENCE).status == "completed"


def test_worker_runs_no_more_than_its_slots(queue: Queue, start_worker: StartWorker) -> None:
    meter = Meter()
    queue.register("work", meter)
    jobs = queue.enqueue_many("work", [{}] * 40)
    start_worker(concurrency=3)
    wait_all(queue, jobs)
    assert meter.most == 3


def test_stored_concurrency_holds_for_workers_that_say_nothing(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    queue.set_config("concurrency", 2)
    queue.register("work", lambda payload: gate.enter())
    queue.register("marker", lambda payload: None)
    start_worker()
    jobs = queue.enqueue_many("work", [{}] * 5)
    gate.wait_entered(2)
    assert queue.stats()["processing"] == 2
    gate.open()
    wait_all(queue, jobs)


def test_type_runs_no_more_than_its_own_slots_and_others_use_the_rest(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    queue.register("narrow", lambda payload: gate.enter(), concurrency=2)
    queue.register("other", lambda payload: None)
    jobs = queue.enqueue_many("narrow", [{}] * 6)
    start_worker(concurrency=4)
    gate.wait_entered(2)
    wait_all(queue, queue.enqueue_many("other", [{}] * 20))
    assert gate.entered == 2
    assert queue.stats()["by_type"]["narrow"]["processing"] == 2
    gate.open()
    wait_all(queue, jobs)


def test_lanes_share_the_slots_of_the_type_they_take_them_from(
    queue: Queue, start_worker: StartWorker
) -> None:
    meter = Meter()
    queue.register("shell", meter, concurrency=1)
    jobs = [queue.enqueue(f"shell:{n % 3}") for n in range(12)]
    start_worker(concurrency=10)
    wait_all(queue, jobs)
    assert meter.most == 1


@both_engines
def test_max_running_is_never_exceeded_over_two_workers(
    queue: Queue, other_queue: Queue, start_worker: StartWorker
) -> None:
    meter = Meter()
    queue.register("work", meter)
    other_queue.register("work", meter)
    queue.set_config("max_running", 3, type="work")
    jobs = queue.enqueue_many("work", [{}] * 60)
    most_rows = []

    def watch_rows(_: object) -> None:
        most_rows.append(queue.stats()["processing"])

    queue.events.subscribe(watch_rows)
    start_worker(concurrency=5)
    start_worker(other_queue, concurrency=5)
    wait_all(queue, jobs)
    assert meter.most <= 3
    assert max(most_rows) <= 3


@both_engines
def test_max_running_lets_the_next_job_in_when_another_worker_ends_one(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    queue.set_config("max_running", 1, type="work")
    queue.register("work", lambda payload: gate.enter())
    other_queue.register("work", lambda payload: "served by the other")
    start_worker()
    first = queue.enqueue("work")
    gate.wait_entered()
    start_worker(other_queue)
    second = queue.enqueue("work", priority=5)
    queue.pause()
    gate.open()
    queue.wait(first.id, timeout=PATIENCE)
    queue.resume()
    assert queue.wait(second.id, timeout=PATIENCE).status == "completed"


@both_engines
def test_stored_max_running_for_all_counts_all_types_together(
    queue: Queue, start_worker: StartWorker
) -> None:
    meter = Meter()
    queue.register("a", meter)
    queue.register("b", meter)
    queue.set_config("max_running", 2)
    jobs = [queue.enqueue("ab"[n % 2]) for n in range(20)]
    start_worker(concurrency=10)
    wait_all(queue, jobs)
    assert meter.most <= 2


def test_running_jobs_of_a_paused_type_count_for_the_max_running_of_all(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    for type in ("a", "b"):
        queue.register(type, lambda payload: gate.enter())
    queue.register("marker", lambda payload: None)
    queue.set_config("max_running", 1)
    queue.set_config("max_running", 5, type="marker")
    start_worker()
    running = queue.enqueue("b")
    gate.wait_entered()
    queue.pause(type="b")
    waiting = queue.enqueue("a", priority=9)
    assert queue.wait(queue.enqueue("marker").id, timeout=PATIENCE).status == "completed"
    assert get(queue, waiting.id).status == "pending"
    assert queue.stats()["processing"] == 1
    gate.open()
    wait_all(queue, [running, waiting])


def test_max_running_of_all_counts_what_another_took_between_look_and_claim(
    queue: Queue,
    other_queue: Queue,
    start_worker: StartWorker,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The loser has looked and found room; the winner claims another type before the loser's turn."""
    queue.set_config("max_running", 1)
    queue.set_config("max_running", 5, type="marker")
    ran: list[str] = []
    for type in ("a", "marker"):
        queue.register(type, lambda payload, ctx: ran.append(ctx.job.type))
    read = store_of(queue).read_usage
    taken: list[Claim] = []

    def read_and_lose() -> Usage:
        seen = read()
        if not taken and not store_of(queue).in_transaction:  # it is the look, and not the claim
            assert seen.running == {}
            other_queue.enqueue("b")
            demand = Demand(type="b", limit=1, max_attempts=3)
            claimed = store_of(other_queue).claim_jobs("winner", [demand], limit=1, lease_seconds=3600)
            taken.extend(claimed.claims)
        return seen

    monkeypatch.setattr(store_of(queue), "read_usage", read_and_lose)
    loser = queue.enqueue("a", priority=9)
    start_worker()
    wait_until(lambda: taken)
    assert queue.wait(queue.enqueue("marker").id, timeout=PATIENCE).status == "completed"
    assert ran == ["marker"]
    assert get(queue, loser.id).status == "pending"


def start_times(queue: Queue, type: str) -> list[float]:
    """When each job was claimed, by the database's own clock."""
    jobs = queue.jobs(type=type, limit=1000)
    return sorted(job.started_at.timestamp() for job in jobs if job.started_at is not None)


def assert_rate(times: Sequence[float], rate: float) -> None:
    """In any t seconds there are at most rate × t + max(1, rate) starts."""
    for first, began in enumerate(times):
        for last in range(first, len(times)):
            allowed = rate * (times[last] - began) + max(1.0, rate)
            assert last - first + 1 <= allowed + 1e-6, f"{last - first + 1} starts, {allowed:.3f} allowed"


@both_engines
@pytest.mark.parametrize(("rate", "count"), [(20.0, 50), (0.5, 2), (2.5, 6)])
def test_rate_limit_holds_over_two_workers(
    queue: Queue, other_queue: Queue, start_worker: StartWorker, rate: float, count: int
) -> None:
    for each in (queue, other_queue):
        each.register("work", lambda payload: None)
    queue.set_rate_limit(rate, type="work")
    jobs = queue.enqueue_many("work", [{}] * count)
    start_worker()
    start_worker(other_queue)
    wait_all(queue, jobs)
    times = start_times(queue, "work")
    assert len(times) == count
    assert_rate(times, rate)


def test_rate_limited_jobs_start_when_their_time_has_come_not_at_the_next_poll(
    queue: Queue, start_worker: StartWorker
) -> None:
    queue.set_config("poll_interval", 3600)
    queue.set_config("lease_seconds", 3600)
    queue.set_config("heartbeat_interval", 1200)
    queue.register("work", lambda payload: None, rate_limit=10)
    start_worker()
    jobs = queue.enqueue_many("work", [{}] * 20)
    for job in jobs:
        assert queue.wait(job.id, timeout=PATIENCE).status == "completed"


def test_limits_of_one_type_do_not_hold_up_others(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    queue.register("slow", lambda payload: None, rate_limit=0.001)
    queue.register("full", lambda payload: gate.enter(), max_running=1)
    queue.register("free", lambda payload: None)
    queue.enqueue_many("slow", [{}] * 50, priority=9)
    queue.enqueue_many("full", [{}] * 50, priority=9)
    start_worker(concurrency=2)
    gate.wait_entered()
    wait_all(queue, queue.enqueue_many("free", [{}] * 100))
    counts = queue.stats()["by_type"]
    assert counts["slow"]["completed"] == 1
    assert counts["full"]["processing"] == 1


@both_engines
def test_rate_limit_can_be_lifted_while_jobs_wait(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None, rate_limit=0.001)
    jobs = queue.enqueue_many("work", [{}] * 10)
    start_worker()
    queue.wait(jobs[0].id, timeout=PATIENCE)
    queue.set_rate_limit(0, type="work")
    wait_all(queue, jobs)


@pytest.mark.parametrize("rate", [-1, "fast", None, True, float("nan"), float("inf")])
def test_rate_limit_that_makes_no_sense_is_refused(queue: Queue, rate: Any) -> None:
    with pytest.raises(ConfigError, match="rate_limit"):
        queue.set_rate_limit(rate)


@both_engines
def test_higher_priority_goes_first_then_the_order_of_arrival(
    queue: Queue, start_worker: StartWorker
) -> None:
    order: list[str] = []
    queue.register("work", lambda payload: order.append(payload["name"]))
    for name, priority in [("c", 0), ("a", 5), ("d", 0), ("b", 5), ("e", -1)]:
        queue.enqueue("work", {"name": name}, priority=priority)
    start_worker(concurrency=1)
    wait_until(lambda: len(order) == 5)
    assert order == ["a", "b", "c", "d", "e"]


@both_engines
def test_small_batches_claim_everything_in_the_end(queue: Queue, start_worker: StartWorker) -> None:
    queue.register("work", lambda payload: None)
    jobs = queue.enqueue_many("work", [{}] * 50)
    start_worker(batch_size=1)
    wait_all(queue, jobs)


@pytest.mark.parametrize(
    "options",
    [
        {"concurrency": 0},
        {"concurrency": "many"},
        {"batch_size": 0},
        {"batch_size": 1.5},
        {"types": "work"},
        {"types": ["no spaces"]},
    ],
)
def test_worker_options_that_make_no_sense_are_refused(queue: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        queue.worker(**options)


def test_raised_concurrency_is_followed_by_a_running_worker(
    queue: Queue, start_worker: StartWorker, gate: Gate
) -> None:
    queue.set_config("concurrency", 1)
    queue.register("work", lambda payload: gate.enter())
    jobs = queue.enqueue_many("work", [{}] * 4)
    start_worker()
    gate.wait_entered(1)
    queue.set_config("concurrency", 4)
    gate.wait_entered(4)
    assert {get(queue, job.id).status for job in jobs} == {"processing"}


@pytest.fixture
def small_values(monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite's limit for one value, a thousand million bytes, made small enough to be met."""
    connect = Database.connect

    def connect_with_limit(self: Database) -> sqlite3.Connection:
        connection = connect(self)
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 300_000)
        return connection

    monkeypatch.setattr(Database, "connect", connect_with_limit)


@pytest.mark.parametrize("types", [["work"], ["work", "more"]])
def test_payloads_too_large_for_one_value_together_are_claimed_in_parts(
    small_values: None, queue: Queue, start_worker: StartWorker, recorder: Recorder, types: list[str]
) -> None:
    for type in types:
        queue.register(type, lambda payload: len(payload["text"]))
    jobs = [queue.enqueue(types[n % len(types)], {"text": "x" * 100_000}) for n in range(8)]
    start_worker(concurrency=10)
    wait_all(queue, jobs)
    assert {get(queue, job.id).attempts for job in jobs} == {1}
    assert {get(queue, job.id).result for job in jobs} == {100_000}
    assert recorder.all(StoreTrouble) == []


@pytest.mark.parametrize("outcome", ["completed", "failed"])
def test_outcomes_too_large_for_one_value_together_are_written_in_parts(
    small_values: None, queue: Queue, start_worker: StartWorker, recorder: Recorder, outcome: str
) -> None:
    meet = threading.Barrier(8)

    def work(payload: object) -> str:
        meet.wait(PATIENCE)  # so that they end together
        if outcome == "failed":
            raise RuntimeError("x" * 60_000)
        return "x" * 100_000

    queue.register("work", work, max_attempts=1)
    jobs = queue.enqueue_many("work", [{}] * 8)
    start_worker(concurrency=8)
    done = [queue.wait(job.id, timeout=PATIENCE) for job in jobs]
    assert {(job.status, job.attempts) for job in done} == {(outcome, 1)}
    if outcome == "completed":
        assert {job.result for job in done} == {"x" * 100_000}
    assert recorder.all(StoreTrouble) == []


def test_paused_worker_sleeps_past_the_time_when_a_rate_limit_lets_the_next_job_start(
    queue: Queue, start_worker: StartWorker, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.set_config("poll_interval", 0.2)
    queue.register("work", lambda payload: None, rate_limit=1)
    queue.enqueue_many("work", [{}] * 3)
    worker = start_worker()
    recorder.wait(JobCompleted)
    worker.pause()
    waits = Spy(worker._dispatcher._watch.wait)
    monkeypatch.setattr(worker._dispatcher._watch, "wait", waits)
    wait_until(lambda: sum(seconds for (seconds,) in waits.calls) > 3, message="it has slept for 3 s")
