"""rq on Redis: its defaults, a new process for each job."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from redis import Redis  # type: ignore[import-not-found]
from rq import Queue  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, Producer, redis_durability

PACKAGE = "rq"
durability = redis_durability


def noop(number: int) -> None:
    tally.count()


def note(number: int) -> None:
    tally.note(number)


@contextmanager
def producer() -> Iterator[Producer]:
    with Redis.from_url(ADDRESS) as redis:
        queue = Queue(connection=redis)

        def enqueue_many(numbers: Iterable[int]) -> None:
            queue.enqueue_many([Queue.prepare_data(noop, (number,)) for number in numbers])

        yield Producer(
            lambda number: queue.enqueue(noop, number),
            lambda number: queue.enqueue(note, number),
            enqueue_many,
        )


def command(processes: int) -> list[str]:
    return ["rq", "worker", "--url", ADDRESS]
