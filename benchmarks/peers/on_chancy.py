"""chancy: its executor for async jobs, polling again as soon as a job has ended, finished jobs kept."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from chancy import Chancy, Queue, Worker, job  # type: ignore[import-not-found]

CONCURRENCY = 100
"""Jobs at a time; its default is the number of cores."""

_QUIET = logging.getLogger("quiet")
_QUIET.setLevel(logging.ERROR)
_handle: Callable[[int], None] = print


@job()
async def noop(*, number: int) -> None:
    _handle(number)


def prepare(url: str) -> None:
    async def run() -> None:
        async with Chancy(url, log=_QUIET) as chancy:
            await chancy.migrate()
            await chancy.declare(
                Queue("default", concurrency=CONCURRENCY, executor=Chancy.Executor.Async, eager_polling=True)
            )

    asyncio.run(run())


@contextmanager
def producer(url: str) -> Iterator[tuple[Callable[[int], None], Callable[[Iterable[int]], None]]]:
    with Chancy(url, log=_QUIET) as chancy:

        def enqueue(number: int) -> None:
            chancy.sync_push(noop.job.with_kwargs(number=number))

        def enqueue_many(numbers: Iterable[int]) -> None:
            for _ in chancy.sync_push_many([noop.job.with_kwargs(number=number) for number in numbers]):
                pass

        yield enqueue, enqueue_many


def work(url: str, handle: Callable[[int], None]) -> None:
    global _handle
    _handle = handle

    async def run() -> None:
        async with Chancy(url, log=_QUIET) as chancy, Worker(chancy) as worker:
            await worker.wait_for_shutdown()

    asyncio.run(run())
