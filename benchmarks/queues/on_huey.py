"""huey: SqliteHuey with its defaults, and the consumer with 10 threads (its default is 1)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from huey import SqliteHuey  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, CONCURRENCY, Producer, sqlite_durability

PACKAGE = "huey"
huey = SqliteHuey(filename=ADDRESS or ":memory:")


@huey.task()
def noop(number: int) -> None:
    tally.count()


@huey.task()
def note(number: int) -> None:
    tally.note(number)


@contextmanager
def producer() -> Iterator[Producer]:
    yield Producer(noop, note)


def durability() -> str:
    return sqlite_durability(huey.storage.conn)


def command(processes: int) -> list[str]:
    return ["huey_consumer", f"{__name__}.huey", "-w", str(CONCURRENCY)]
