"""tq: the fluent form, in fresh processes, because there is one tq a process."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast import Queue
from holdfast.errors import ConfigError, InvalidPayload
from holdfast.fluent import TaskQueue
from holdfast.store.open import store_of
from tests.support import wait_until
from tests.worker.support import PATIENCE, Gate, run_script

EXAMPLE = """
from holdfast import tq
tq.init("sqlite:///app.db", poll_interval=1.0, batch_size=10, task_timeout=300)           # task_timeout is the lease
tq("crawl").set_worker(handler).set_worker_count(3).set_rate_limit(10).set_timeout(300)   # handler(payload) -> result; the first set_worker
                                                                                          # starts the background worker, unless enable_worker=False
tq("crawl", CrawlPayload).add({"url": "https://example.com/1"}).add({"url": "https://example.com/2"}, run_at=when)
tq.start(); tq.pause(); tq.resume(); tq.stats(); tq.stop()
"""  # noqa: E501

BEFORE = """
from dataclasses import dataclass
from datetime import datetime, UTC

@dataclass
class CrawlPayload:
    url: str

when = datetime.now(UTC)
seen = []

def handler(payload):
    seen.append(payload["url"])
    return {"crawled": payload["url"]}
"""

AFTER = """
from holdfast import Queue
with Queue("sqlite:///app.db") as queue:
    queue.register("crawl", handler)
    queue.drain()
    jobs = queue.jobs()
    assert len(jobs) == 2, jobs
    assert {job.status for job in jobs} == {"completed"}, jobs
    assert sorted(seen) == ["https://example.com/1", "https://example.com/2"], seen
    assert queue.workers() == []
print("ok")
"""


@pytest.mark.process
def test_example_of_the_interface_runs_as_it_stands(tmp_path: Path) -> None:
    done = run_script(tmp_path, BEFORE + EXAMPLE + AFTER)
    assert (done.returncode, done.stdout) == (0, "ok\n"), done.stderr


@pytest.mark.process
def test_program_that_just_ends_leaves_in_order(tmp_path: Path) -> None:
    script = """
from holdfast import tq
tq.init("sqlite:///app.db")
tq("work").set_worker(lambda payload: "done")
tq("work").add({"n": 1})
"""
    done = run_script(tmp_path, script)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    with Queue(f"sqlite:///{tmp_path}/app.db") as queue:
        (job,) = queue.jobs()
        assert job.status in ("completed", "pending"), job
        assert job.attempts == (job.status == "completed"), job
        assert store_of(queue).list_workers() == []


@pytest.mark.process
def test_importing_tq_opens_and_starts_nothing(tmp_path: Path) -> None:
    script = """
import threading
from holdfast import tq
assert threading.active_count() == 1
print(*__import__("os").listdir("."))
"""
    done = run_script(tmp_path, script, QUEUECTL_HOME=str(tmp_path / "home"))
    assert (done.returncode, done.stdout.split()) == (0, ["script.py"]), done.stderr


@dataclasses.dataclass
class CrawlPayload:
    url: str


@pytest.fixture
def tq(url: str) -> Iterator[TaskQueue]:
    tq = TaskQueue()
    tq.init(url, task_timeout=3)
    yield tq
    tq.stop(timeout=2)


def test_first_worker_starts_the_background_worker(tq: TaskQueue) -> None:
    results: list[Any] = []
    tq("work").set_worker(lambda payload: results.append(payload))
    tq("work").add({"n": 1}).add({"n": 2})
    wait_until(lambda: len(results) == 2)
    assert tq.stats()["workers"] == 1


def test_without_a_worker_nothing_runs_until_it_is_started(url: str) -> None:
    tq = TaskQueue()
    tq.init(url, enable_worker=False)
    try:
        tq("work").set_worker(lambda payload: "done").add({"n": 1})
        assert tq.stats()["workers"] == 0
        assert tq.stats()["pending"] == 1
        tq.start()
        (job,) = tq.queue.jobs()
        assert tq.queue.wait(job.id, timeout=PATIENCE).result == "done"
    finally:
        tq.stop()


@pytest.mark.parametrize("handler", ["none", "plain", "typed"])
def test_payload_type_is_checked_where_a_job_is_added(tq: TaskQueue, handler: str) -> None:
    if handler != "none":
        tq("crawl", CrawlPayload if handler == "typed" else None).set_worker(lambda payload: None)
    tq.pause()
    with pytest.raises(InvalidPayload, match=r"payload\.url"):
        tq("crawl", CrawlPayload).add({"url": 7})
    with pytest.raises(InvalidPayload, match="url"):
        tq("crawl", CrawlPayload).add({})
    assert tq.stats()["pending"] == 0
    tq("crawl", CrawlPayload).add({"url": "x"}).add(CrawlPayload("y"))
    assert tq.stats()["pending"] == 2


def test_handler_of_a_typed_task_gets_the_type(tq: TaskQueue) -> None:
    seen: list[Any] = []
    tq("crawl", CrawlPayload).set_worker(seen.append).add({"url": "x"})
    wait_until(lambda: seen)
    assert seen == [CrawlPayload("x")]


def test_worker_count_rate_limit_and_timeout_hold(tq: TaskQueue) -> None:
    gate = Gate()
    tq("work").set_worker_count(2).set_rate_limit(1000).set_timeout(60).set_worker(
        lambda payload: gate.enter()
    )
    try:
        for _ in range(4):
            tq("work").add()
        gate.wait_entered(2)
        assert tq.stats()["processing"] == 2
        config = tq.queue.config("work")
        assert (config["concurrency"], config["rate_limit"], config["job_timeout"]) == (2, 1000, 60)
    finally:
        gate.open()


def test_options_of_a_job_may_be_given(tq: TaskQueue) -> None:
    tq("work").add({"n": 1}, id="job1", priority=5, delay=60)
    job = tq.queue.get("job1")
    assert job is not None
    assert (job.priority, job.status) == (5, "scheduled")


def test_task_timeout_is_the_lease(tq: TaskQueue) -> None:
    assert tq.queue.config()["lease_seconds"] == 3


def test_pause_and_resume(tq: TaskQueue) -> None:
    tq("work").set_worker(lambda payload: "done")
    tq.pause()
    tq("work").add()
    tq.resume()
    (job,) = tq.queue.jobs()
    assert tq.queue.wait(job.id, timeout=PATIENCE).result == "done"


def test_second_init_is_refused_until_it_was_stopped(tq: TaskQueue, url: str) -> None:
    with pytest.raises(ConfigError, match="once"):
        tq.init(url)
    tq.stop()
    tq.init(url, task_timeout=3)


def test_stop_without_start_is_no_error(url: str) -> None:
    TaskQueue().stop()


def test_limits_at_the_end_of_a_chain_hold_from_the_first_start(tq: TaskQueue) -> None:
    tq.queue.enqueue_many("crawl", [{"n": n} for n in range(500)])
    tq("crawl").set_worker(lambda payload: None).set_worker_count(1).set_rate_limit(5).set_timeout(300)
    wait_until(lambda: tq.stats()["completed"] >= 8)
    jobs = tq.queue.jobs(status="completed", limit=500)
    times = sorted(job.started_at.timestamp() for job in jobs if job.started_at is not None)
    assert len(times) <= 5 * (times[-1] - times[0]) + 5 + 1e-6
    assert {job.timeout for job in jobs} == {300}
