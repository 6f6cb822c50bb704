"""taskiq on Redis: the stream broker that its documentation recommends, 2 processes (its default)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

from taskiq_redis import RedisStreamBroker  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, Producer, redis_durability

PACKAGE = "taskiq"
durability = redis_durability
broker = RedisStreamBroker(url=ADDRESS)


@broker.task(task_name="noop")
async def noop(number: int) -> None:
    tally.count()


@broker.task(task_name="note")
async def note(number: int) -> None:
    tally.note(number)


@contextmanager
def producer() -> Iterator[Producer]:
    with asyncio.Runner() as runner:
        runner.run(broker.startup())
        yield Producer(
            lambda number: runner.run(noop.kiq(number)), lambda number: runner.run(note.kiq(number))
        )
        runner.run(broker.shutdown())


def command(processes: int) -> list[str]:
    return ["taskiq", "worker", f"{__name__}:broker"]
