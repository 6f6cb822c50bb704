"""Keys that an application's open transaction is about to take on PostgreSQL: who waits, and who does not."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast import Job, Queue
from holdfast.enqueueing import held_up
from holdfast.errors import StoreBusy
from tests.conformance.connections import application_url
from tests.support import wait_until
from tests.worker.support import in_thread, join, sql

pytestmark = pytest.mark.parametrize("engine", ["postgres"], indirect=True)

WAITING = "SELECT count(*) FROM pg_stat_activity WHERE ? = ANY(pg_blocking_pids(pid))"
"""How many wait for one server process. Other tests share the server, and have waiters of their own."""


@pytest.fixture
def app(queue: Queue) -> Iterator[Any]:
    """A transaction of the application's own, which has enqueued the key 'taken'."""
    queue.open()
    with closing(psycopg.connect(application_url(queue.url))) as connection:
        queue.enqueue("work", {}, key="taken", connection=connection)
        yield connection


def wait_for_held_up(queue: Queue, count: int) -> None:
    held: Any = queue._enqueuer._commits._held_up  # type: ignore[union-attr]
    wait_until(lambda: sum(map(len, held._held.values())) == count)


def enqueue_async(queue: Queue, **options: Any) -> Job:
    return asyncio.run(queue.enqueue_async("work", {}, **options))


@pytest.mark.parametrize("commits", [True, False])
def test_taken_key_holds_up_only_those_who_want_it(queue: Queue, app: Any, commits: bool) -> None:
    ways: list[Callable[..., Any]] = [lambda **o: queue.enqueue("work", {}, **o)] * 3
    ways += [lambda **o: enqueue_async(queue, **o)] * 2
    waiting = [in_thread(lambda way=way: way(key="taken")) for way in ways]  # type: ignore[misc]
    wait_for_held_up(queue, 5)
    others = [in_thread(lambda way=way: way()) for way in ways]  # type: ignore[misc]
    others.append(in_thread(lambda: queue.enqueue("work", {}, key="another")))
    others.append(in_thread(lambda: queue.enqueue("other", {}, key="taken")))
    for thread, outcome in others:
        join(thread)
        assert isinstance(outcome[0], Job)
    assert [outcome for _, outcome in waiting] == [[]] * 5
    app.commit() if commits else app.rollback()
    for thread, _ in waiting:
        join(thread)
    assert len({outcome[0].id for _, outcome in waiting if isinstance(outcome[0], Job)}) == 1
    assert all(isinstance(outcome[0], Job) for _, outcome in waiting)
    assert len([job for job in queue.jobs() if job.key == "taken"]) == 2


def test_key_that_stays_taken_is_refused(queue: Queue, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_up, "PATIENCE", 0.1)
    with pytest.raises(StoreBusy, match=r"locked for 0\.1 s"):
        queue.enqueue("work", {}, key="taken")
    with pytest.raises(StoreBusy, match=r"locked for 0\.1 s"):
        enqueue_async(queue, key="taken")
    queue.enqueue("work", {})


def test_id_that_stays_taken_is_refused(queue: Queue, app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(held_up, "PATIENCE", 0.1)
    queue.enqueue("work", {}, id="taken", connection=app)
    with pytest.raises(StoreBusy):
        queue.enqueue("work", {}, id="taken")


def test_taken_key_is_refused_at_once_where_no_thread_can_wait_for_it(
    queue: Queue, app: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(StoreBusy):
        queue.enqueue("work", {}, key="taken")
    queue.enqueue("work", {})


def test_closing_the_queue_answers_those_who_wait_for_a_key(queue: Queue, app: Any) -> None:
    thread, outcome = in_thread(lambda: queue.enqueue("work", {}, key="taken"))
    wait_for_held_up(queue, 1)
    queue.close()
    join(thread)
    assert len(outcome) == 1


@pytest.mark.parametrize("way", ["batch", "bulk"])
def test_keys_in_another_order_are_no_deadlock(queue: Queue, app: Any, way: str) -> None:
    """We have the second key and wait for the first, the application the other way round."""

    def store() -> list[str]:
        if way == "batch":
            items: list[Any] = [("work", {}, {"key": key}) for key in ("second", "taken")]
            return [job.id for job, _ in queue.enqueue_batch(items)]
        with queue.bulk() as bulk:
            for key in ("second", "taken"):
                bulk.add(1, "work", {}, {"key": key})
            return list(bulk.store())

    thread, outcome = in_thread(store)
    wait_until(lambda: sql(queue, WAITING, app.info.backend_pid) == [(1,)])
    job = queue.enqueue("work", {}, key="second", connection=app)
    app.commit()
    join(thread)
    [taken] = [job.id for job in queue.jobs() if job.key == "taken"]
    assert outcome == [[job.id, taken]]


def fail_jobs(queue: Queue, *keys: str | None) -> None:
    for key in keys:
        queue.enqueue("failed", {}, key=key, max_attempts=1)
    queue.register("failed", lambda payload: 1 / 0)
    queue.drain()


def test_retry_of_all_passes_over_a_busy_key(queue: Queue) -> None:
    fail_jobs(queue, None, "taken", "free", None)
    with closing(psycopg.connect(application_url(queue.url))) as app:
        queue.enqueue("failed", {}, key="taken", connection=app)
        assert queue.retry_all() == (3, 1)
        app.rollback()
    assert queue.retry_all() == (1, 0)


def test_retry_of_all_passes_over_an_expired_key_that_is_taken_over(queue: Queue) -> None:
    fail_jobs(queue, "taken", None)
    job = queue.enqueue("failed", {}, key="taken", key_for=0.001)
    sql(
        queue,
        "UPDATE holdfast_jobs SET status = 'completed', finished_at = 1, key_until = 1 WHERE id = ?",
        job.id,
    )
    with closing(psycopg.connect(application_url(queue.url))) as app:
        queue.enqueue("failed", {}, key="taken", connection=app)
        assert queue.retry_all() == (1, 1)


def test_busy_key_among_many_is_passed_over_and_named(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.store.postgres.operate.LOCK_PATIENCE", 0.05)
    fail_jobs(queue, None, "taken", None)
    with closing(psycopg.connect(application_url(queue.url))) as app:
        queue.enqueue("failed", {}, key="taken", connection=app)
        result = queue.act("retry", queue.ids(status="failed"))
    assert (result.done, result.refused) == (2, 1)
    assert isinstance(result.refusals[0].error, StoreBusy)
    assert queue.stats()["pending"] == 2
