"""saq on Redis: its defaults, 10 jobs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from saq import Queue  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, Producer, redis_durability

PACKAGE = "saq"
durability = redis_durability


async def noop(context: Any, *, number: int) -> None:
    tally.count()


async def note(context: Any, *, number: int) -> None:
    tally.note(number)


settings = {"queue": Queue.from_url(ADDRESS or "redis://"), "functions": [noop, note]}


@contextmanager
def producer() -> Iterator[Producer]:
    with asyncio.Runner() as runner:
        queue = Queue.from_url(ADDRESS)
        yield Producer(
            lambda number: runner.run(queue.enqueue("noop", number=number)),
            lambda number: runner.run(queue.enqueue("note", number=number)),
        )
        runner.run(queue.disconnect())


def command(processes: int) -> list[str]:
    return ["saq", f"{__name__}.settings"]
