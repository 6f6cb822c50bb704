"""An application's open transaction holds up the jobs whose children have its key, and nobody else."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from holdfast import Context, Queue
from holdfast.core.job import Job, Status
from holdfast.errors import StoreBusy
from holdfast.store.open import store_of
from tests import postgres
from tests.support import wait_until

pytestmark = pytest.mark.postgres


@pytest.fixture
def queue() -> Iterator[Queue]:
    with postgres.fresh_url() as url, Queue(url, defaults={"lease_seconds": 3}) as queue:

        @queue.job
        def parent(ctx: Context) -> None:
            ctx.enqueue("child", {}, key="K")

        @queue.job
        def other() -> None: ...

        yield queue


@pytest.fixture
def application(queue: Queue) -> Iterator[psycopg.Connection[Any]]:
    """An application that has enqueued a job with the key, and has not committed yet."""
    with psycopg.connect(postgres.server_url()) as connection:
        queue.enqueue("child", {}, id="theirs", key="K", connection=connection)
        yield connection
        connection.rollback()


def job(queue: Queue, id: str) -> Job:
    found = queue.get(id)
    assert found is not None
    return found


@pytest.mark.parametrize("ends", ["commit", "rollback"])
def test_other_jobs_go_on_and_the_held_up_one_completes_when_it_can(
    queue: Queue,
    application: psycopg.Connection[Any],
    start_worker: Callable[..., Any],
    ends: str,
) -> None:
    start_worker(queue)
    held_up = queue.enqueue("parent").id
    wait_until(lambda: job(queue, held_up).started_at is not None)
    for _ in range(3):
        assert queue.wait(queue.enqueue("other").id, timeout=60).status is Status.COMPLETED
    assert job(queue, held_up).status is Status.PROCESSING
    getattr(application, ends)()
    finished = queue.wait(held_up, timeout=60)
    assert (finished.status, finished.attempts) == (Status.COMPLETED, 1)
    [child] = queue.children(held_up)
    assert (child == "theirs") == (ends == "commit")


def test_its_lease_is_renewed_while_it_waits(
    queue: Queue, application: psycopg.Connection[Any], start_worker: Callable[..., Any]
) -> None:
    start_worker(queue)
    held_up = queue.enqueue("parent").id
    wait_until(lambda: job(queue, held_up).lease_expires_at is not None)
    first = job(queue, held_up).lease_expires_at
    assert first is not None
    wait_until(lambda: (job(queue, held_up).lease_expires_at or first) > first, timeout=30)
    assert job(queue, held_up).attempts == 1
    application.rollback()  # or the worker would wait for it as it stops


def test_worker_that_is_to_stop_does_not_wait_for_it_beyond_its_time(
    queue: Queue, application: psycopg.Connection[Any], start_worker: Callable[..., Any]
) -> None:
    worker = start_worker(queue)
    held_up = queue.enqueue("parent").id
    wait_until(lambda: worker._dispatcher._outbox._held_up)
    worker.stop(timeout=0.2)
    assert job(queue, held_up).status is Status.PROCESSING


def test_ctx_transaction_waits_a_while_for_the_key_of_its_child(
    queue: Queue, application: psycopg.Connection[Any], start_worker: Callable[..., Any]
) -> None:
    @queue.job(max_attempts=1)
    def careful(ctx: Context) -> None:
        with ctx.transaction():
            ctx.enqueue("child", {}, key="K")
            threading.Timer(0.3, application.commit).start()

    start_worker(queue)
    done = queue.wait(queue.enqueue("careful").id, timeout=60)
    assert (done.status, queue.children(done.id)) == (Status.COMPLETED, ["theirs"])


def test_retry_of_all_passes_over_a_key_that_waits_for_a_transaction(
    queue: Queue, application: psycopg.Connection[Any]
) -> None:
    @queue.job(max_attempts=1)
    def failing(n: int) -> None:
        raise ValueError(n)

    for n in range(3):
        queue.enqueue("failing", {"n": n}, key=str(n))
    queue.drain()
    queue.enqueue("failing", {"n": 1}, key="1", connection=application)
    looked_at, retried, _ = store_of(queue).retry_failed_jobs(None, after=0, limit=10)
    assert (looked_at, len(retried)) == (3, 2)


def test_retry_of_a_job_whose_key_waits_for_a_transaction_says_busy(
    queue: Queue, application: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.operate.LOCK_PATIENCE", 0.05)
    with psycopg.connect(postgres.server_url()) as connection:
        cancelled = queue.enqueue("child", {"n": 2}, key="L", connection=connection).id
    queue.cancel(cancelled)
    queue.enqueue("child", {"n": 3}, key="L", connection=application)
    with pytest.raises(StoreBusy):
        queue.retry(cancelled)
    application.rollback()
    assert queue.retry(cancelled).status is Status.PENDING


def test_enqueue_with_an_id_that_waits_for_a_transaction_says_busy_and_holds_up_nobody(
    queue: Queue, application: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.store.postgres.enqueue.LOCK_PATIENCE", 0.05)
    with pytest.raises(StoreBusy):
        queue.enqueue("other", id="theirs")
    assert queue.enqueue("other").status is Status.PENDING


def test_drain_says_busy_rather_than_wait_for_the_transaction_of_its_own_caller(
    queue: Queue, application: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    queue.enqueue("other")
    queue.drain()  # which loads it
    monkeypatch.setattr(sys.modules["holdfast.worker.drain"], "_PATIENCE", 0.1)
    queue.enqueue("parent")
    with pytest.raises(StoreBusy):
        queue.drain()
