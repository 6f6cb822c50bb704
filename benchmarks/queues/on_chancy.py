"""chancy: its executor for async jobs, polling again as soon as a job has ended, finished jobs kept, 100 jobs
at a time (its default is the number of cores).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from chancy import Chancy, Queue, job  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, SERVER_SETTINGS, Producer

PACKAGE = "chancy"
_CONCURRENCY = 100

_QUIET = logging.getLogger("quiet")
_QUIET.setLevel(logging.ERROR)

chancy = Chancy(ADDRESS, log=_QUIET)


@job()
async def noop(*, number: int) -> None:
    tally.count()


@job()
async def note(*, number: int) -> None:
    tally.note(number)


def setup() -> None:
    async def run() -> None:
        async with Chancy(ADDRESS, log=_QUIET) as opened:
            await opened.migrate()
            await opened.declare(
                Queue("default", concurrency=_CONCURRENCY, executor=Chancy.Executor.Async, eager_polling=True)
            )

    asyncio.run(run())


@contextmanager
def producer() -> Iterator[Producer]:
    with chancy:

        def enqueue_many(numbers: Iterable[int]) -> None:
            for _ in chancy.sync_push_many([noop.job.with_kwargs(number=number) for number in numbers]):
                pass

        yield Producer(
            lambda number: chancy.sync_push(noop.job.with_kwargs(number=number)),
            lambda number: chancy.sync_push(note.job.with_kwargs(number=number)),
            enqueue_many,
        )


def durability() -> str:
    async def run() -> str:
        async with Chancy(ADDRESS, log=_QUIET) as opened, opened.pool.connection() as connection:
            cursor = await connection.execute(SERVER_SETTINGS)
            [row] = await cursor.fetchall()
            return str(next(iter(row.values())) if isinstance(row, dict) else row[0])

    return asyncio.run(run())


def command(processes: int) -> list[str]:
    return ["chancy", "--app", f"{__name__}.chancy", "worker", "start"]
