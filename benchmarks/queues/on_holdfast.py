"""Holdfast with its defaults: 10 threads."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from benchmarks.bench import url_of
from benchmarks.queues.place import ADDRESS, SERVER_SETTINGS, TASK, Producer, sqlite_durability
from benchmarks.queues.tally import count
from benchmarks.queues.tally import note as note_start
from holdfast import Context, Queue
from holdfast.store.open import store_of

PACKAGE = "holdfast-queue"
EFFECTS = "CREATE TABLE IF NOT EXISTS effects (number integer)"

_is_postgres = ADDRESS.startswith("postgresql:")
_url = url_of(ADDRESS if _is_postgres else Path(ADDRESS))
queue = Queue(_url)
_effect = f"INSERT INTO effects VALUES ({'%s' if _is_postgres else '?'})"


@queue.job
def noop(number: int) -> None:
    count()


@queue.job
def note(number: int) -> None:
    note_start(number)


@queue.job
def effect(ctx: Context, number: int) -> None:
    with ctx.transaction() as connection:
        connection.execute(_effect, [number])
    count()


def setup() -> None:
    with Queue(_url) as new:
        new.open()
    if TASK == "effect":
        _make_effects()


def _make_effects() -> None:
    if _is_postgres:
        import psycopg

        with psycopg.connect(ADDRESS) as server:
            server.execute(EFFECTS)
    else:
        with closing(sqlite3.connect(ADDRESS)) as file:
            file.execute(EFFECTS)


@contextmanager
def producer() -> Iterator[Producer]:
    with queue:

        def enqueue_many(numbers: Iterable[int]) -> None:
            queue.enqueue_many(TASK, [{"number": number} for number in numbers])

        yield Producer(
            lambda number: queue.enqueue(TASK, {"number": number}),
            lambda number: queue.enqueue("note", {"number": number}),
            enqueue_many,
        )


def durability() -> str:
    with queue:
        queue.open()
        database: Any = store_of(queue).database
        with database.transaction() as connection:
            if _is_postgres:
                return str(connection.rows(SERVER_SETTINGS)[0][0])
            return sqlite_durability(connection)


def command(processes: int) -> list[str]:
    return ["queuectl", "worker", "start", "--app", f"{__name__}:queue", "--count", str(processes)]
