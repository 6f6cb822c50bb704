"""celery on Redis: its defaults, no result backend, a prefork process for each core."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from celery import Celery  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, Producer, redis_durability

PACKAGE = "celery"
durability = redis_durability
app = Celery("bench", broker=ADDRESS)


@app.task(name="noop")
def noop(number: int) -> None:
    tally.count()


@app.task(name="note")
def note(number: int) -> None:
    tally.note(number)


@contextmanager
def producer() -> Iterator[Producer]:
    yield Producer(noop.delay, note.delay)


def command(processes: int) -> list[str]:
    return ["celery", "--app", f"{__name__}:app", "worker"]
