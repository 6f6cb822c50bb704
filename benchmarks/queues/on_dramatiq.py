"""dramatiq on Redis: its defaults, a process for each core with 8 threads."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import dramatiq  # type: ignore[import-not-found]
from dramatiq.brokers.redis import RedisBroker  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, Producer, redis_durability

PACKAGE = "dramatiq"
durability = redis_durability
dramatiq.set_broker(RedisBroker(url=ADDRESS))


@dramatiq.actor
def noop(number: int) -> None:
    tally.count()


@dramatiq.actor
def note(number: int) -> None:
    tally.note(number)


@contextmanager
def producer() -> Iterator[Producer]:
    yield Producer(noop.send, note.send)


def command(processes: int) -> list[str]:
    return ["dramatiq", __name__]
