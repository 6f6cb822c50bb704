"""Bare psycopg: the least that a durable queue in PostgreSQL can be, as a floor.

As on_bare_sqlite3.py, with SKIP LOCKED, so that there can be several workers. The connection is in autocommit
mode and its statements are prepared: an enqueue, a claim and the finish of a claim are one round trip each.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import psycopg

from benchmarks.queues.on_bare_sqlite3 import BATCH, handle
from benchmarks.queues.place import ADDRESS, SERVER_SETTINGS, TASK, Producer
from benchmarks.queues.tally import count

PACKAGE = "psycopg"
_POLL = 0.001
_TABLES = (
    """CREATE TABLE jobs (
        id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY, payload text NOT NULL, status smallint NOT NULL
    )""",
    "CREATE INDEX jobs_pending ON jobs (id) WHERE status = 0",
    "CREATE TABLE effects (number integer)",
)
_INSERT = "INSERT INTO jobs (payload, status) VALUES (%s, 0)"
_CLAIM = f"""
UPDATE jobs SET status = 1 WHERE id = ANY (ARRAY(
    SELECT id FROM jobs WHERE status = 0 ORDER BY id LIMIT {BATCH} FOR UPDATE SKIP LOCKED))
RETURNING id, payload
"""
_FINISH = "UPDATE jobs SET status = 2 WHERE id = ANY (%s)"


def connect() -> psycopg.Connection:
    return psycopg.connect(ADDRESS, autocommit=True, prepare_threshold=0)


def setup() -> None:
    with connect() as connection:
        for table in _TABLES:
            connection.execute(table)


@contextmanager
def producer() -> Iterator[Producer]:
    with connect() as connection:

        def enqueue_many(numbers: Iterable[int]) -> None:
            rows = [(json.dumps({"number": number}),) for number in numbers]
            with connection.transaction(), connection.cursor() as cursor:
                cursor.executemany(_INSERT, rows)

        yield Producer(
            lambda number: connection.execute(_INSERT, [json.dumps({"number": number})]),
            lambda number: connection.execute(_INSERT, [json.dumps({"note": number})]),
            enqueue_many,
        )


def durability() -> str:
    with connect() as connection:
        row = connection.execute(SERVER_SETTINGS).fetchone()
        assert row is not None
        return str(row[0])


def work() -> None:
    with connect() as connection:
        while True:
            jobs = connection.execute(_CLAIM).fetchall()
            if not jobs:
                time.sleep(_POLL)
            elif TASK == "effect":
                _run_in_transactions(connection, jobs)
            else:
                for _, payload in jobs:
                    handle(json.loads(payload))
                connection.execute(_FINISH, [[id for id, _ in jobs]])


def _run_in_transactions(connection: psycopg.Connection, jobs: list[tuple[int, str]]) -> None:
    for id, payload in jobs:
        with connection.transaction():
            connection.execute("INSERT INTO effects VALUES (%s)", [json.loads(payload)["number"]])
            connection.execute(_FINISH, [[id]])
        count()
