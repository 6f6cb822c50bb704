"""pgqueuer: asyncpg (the driver it recommends), finished jobs in its log table (its only way)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module

from pgqueuer import PgQueuer, Queries  # type: ignore[import-not-found]

asyncpg = import_module("asyncpg")

BATCH = 100
"""Jobs taken at a time; its default is 10."""


def prepare(url: str) -> None:
    async def run() -> None:
        connection = await asyncpg.connect(url)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    asyncio.run(run())


@contextmanager
def producer(url: str) -> Iterator[tuple[Callable[[int], None], Callable[[Iterable[int]], None]]]:
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(url))
        queries = Queries.from_asyncpg_connection(connection)

        def enqueue(number: int) -> None:
            runner.run(queries.enqueue("noop", b"%d" % number))

        def enqueue_many(numbers: Iterable[int]) -> None:
            payloads = [b"%d" % number for number in numbers]
            runner.run(queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads)))

        yield enqueue, enqueue_many
        runner.run(connection.close())


def work(url: str, handle: Callable[[int], None]) -> None:
    async def run() -> None:
        queuer = PgQueuer.from_asyncpg_connection(await asyncpg.connect(url))

        @queuer.entrypoint("noop")
        async def noop(job) -> None:
            handle(int(job.payload))

        await queuer.run(batch_size=BATCH)

    asyncio.run(run())
