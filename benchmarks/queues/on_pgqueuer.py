"""pgqueuer: asyncpg (the driver it recommends), finished jobs in its log table (its only way), 100 jobs taken
at a time (its default is 10).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib import import_module
from typing import Any

from pgqueuer import PgQueuer, Queries  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, SERVER_SETTINGS, Producer

asyncpg = import_module("asyncpg")

PACKAGE = "pgqueuer"
_BATCH = 100


def setup() -> None:
    async def run() -> None:
        connection = await asyncpg.connect(ADDRESS)
        await Queries.from_asyncpg_connection(connection).install()
        await connection.close()

    asyncio.run(run())


@contextmanager
def producer() -> Iterator[Producer]:
    with asyncio.Runner() as runner:
        connection = runner.run(asyncpg.connect(ADDRESS))
        queries = Queries.from_asyncpg_connection(connection)

        def enqueue_many(numbers: Iterable[int]) -> None:
            payloads = [b"%d" % number for number in numbers]
            runner.run(queries.enqueue(["noop"] * len(payloads), payloads, [0] * len(payloads)))

        yield Producer(
            lambda number: runner.run(queries.enqueue("noop", b"%d" % number)),
            lambda number: runner.run(queries.enqueue("note", b"%d" % number)),
            enqueue_many,
        )
        runner.run(connection.close())


def durability() -> str:
    async def run() -> str:
        connection = await asyncpg.connect(ADDRESS)
        settings = await connection.fetchval(SERVER_SETTINGS)
        await connection.close()
        return str(settings)

    return asyncio.run(run())


@asynccontextmanager
async def main() -> AsyncIterator[Any]:
    """What `pgq run` starts."""
    connection = await asyncpg.connect(ADDRESS)
    queuer = PgQueuer.from_asyncpg_connection(connection)

    @queuer.entrypoint("noop")
    async def noop(job: Any) -> None:
        tally.count()

    @queuer.entrypoint("note")
    async def note(job: Any) -> None:
        tally.note(int(job.payload))

    yield queuer
    await connection.close()


def command(processes: int) -> list[str]:
    return ["pgq", "run", f"{__name__}:main", "--batch-size", str(_BATCH)]
