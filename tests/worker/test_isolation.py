"""Nothing passes from one job to the next: what a handler sets in its context ends with it."""

from __future__ import annotations

import asyncio
import decimal
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

import pytest

from holdfast import Queue
from tests.worker import handlers
from tests.worker.support import PATIENCE

StartWorker = Callable[..., Any]

tenant: ContextVar[int | None] = ContextVar("tenant", default=None)


def register(queue: Queue, executor: str) -> None:
    """A handler `remember(n)` that returns what it found in its context, and leaves n there."""
    if executor == "process":
        queue.job(executor="process", name="remember")(handlers.remember)
        return

    def remember(n: int) -> int | None:
        found = tenant.get()
        tenant.set(n)
        return found

    async def remember_async(n: int) -> int | None:
        await asyncio.sleep(0)
        return remember(n)

    queue.job(name="remember")(remember_async if executor == "async" else remember)


@pytest.mark.process
@pytest.mark.parametrize("executor", ["thread", "async", "process"])
def test_context_variable_of_a_job_is_not_seen_by_the_next(
    queue: Queue, start_worker: StartWorker, executor: str
) -> None:
    register(queue, executor)
    jobs = queue.enqueue_many("remember", [{"n": n} for n in range(20)])
    start_worker(concurrency=1)
    assert [queue.wait(job.id, timeout=PATIENCE).result for job in jobs] == [None] * 20


def test_context_variable_does_not_pass_from_one_executor_to_another(
    queue: Queue, start_worker: StartWorker
) -> None:
    """A thread that ends a job may start one on the loop, and the loop one in a thread."""
    seen: list[int | None] = []

    @queue.job
    def in_thread(n: int) -> None:
        seen.append(tenant.get())
        tenant.set(n)

    @queue.job
    async def on_loop(n: int) -> None:
        seen.append(tenant.get())
        tenant.set(n)

    jobs = []
    for n in range(20):
        jobs += [in_thread.enqueue(n=n), on_loop.enqueue(n=n)]
    start_worker(concurrency=1)
    for job in jobs:
        queue.wait(job.id, timeout=PATIENCE)
    assert seen == [None] * 40


@pytest.mark.parametrize("executor", ["thread", "async"])
def test_drained_jobs_see_the_context_of_their_caller_and_leave_nothing_in_it(
    queue: Queue, executor: str
) -> None:
    register(queue, executor)
    jobs = queue.enqueue_many("remember", [{"n": n} for n in range(3)])
    token = tenant.set(42)
    try:
        queue.drain()
        assert tenant.get() == 42
    finally:
        tenant.reset(token)
    assert [queue.wait(job.id, timeout=PATIENCE).result for job in jobs] == [42] * 3


def test_decimal_precision_of_a_job_is_not_that_of_the_next(queue: Queue, start_worker: StartWorker) -> None:
    """Libraries keep their state in context variables, too."""

    @queue.job
    def divide(precision: int | None = None) -> str:
        if precision is not None:
            decimal.getcontext().prec = precision
        return str(decimal.Decimal(1) / 3)

    jobs = [divide.enqueue(precision=2), divide.enqueue()]
    start_worker(concurrency=1)
    short, full = (queue.wait(job.id, timeout=PATIENCE).result for job in jobs)
    assert (short, len(full)) == ("0.33", 30)
