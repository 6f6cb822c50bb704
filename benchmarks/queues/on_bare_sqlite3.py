"""Bare sqlite3: the least that a durable queue in a SQLite file can be, as a floor.

A row has a number, a payload and a status, and an index of the pending ones. Everything is committed in WAL
mode with synchronous=FULL: each single enqueue; each claim of 100 jobs; and the finish of those 100. It
knows nothing of types, leases, retries, limits or errors, and forgets the jobs of a worker that dies. An
idle worker looks every millisecond.
"""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager

from benchmarks.queues.place import ADDRESS, TASK, Producer, sqlite_durability
from benchmarks.queues.tally import count, note

VERSION = sqlite3.sqlite_version
BATCH = 100
_POLL = 0.001
_BUSY = 60.0
_TABLES = (
    "CREATE TABLE jobs (id INTEGER PRIMARY KEY, payload TEXT NOT NULL, status INTEGER NOT NULL)",
    "CREATE INDEX jobs_pending ON jobs (id) WHERE status = 0",
    "CREATE TABLE effects (number INTEGER)",
)
_INSERT = "INSERT INTO jobs (payload, status) VALUES (?, 0)"
_CLAIM = f"""
UPDATE jobs SET status = 1
WHERE id IN (SELECT id FROM jobs INDEXED BY jobs_pending WHERE status = 0 ORDER BY id LIMIT {BATCH})
RETURNING id, payload
"""
_FINISH = "UPDATE jobs SET status = 2 WHERE id = ?"


def connect() -> sqlite3.Connection:
    connection = sqlite3.connect(ADDRESS, isolation_level=None, timeout=_BUSY)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    return connection


def setup() -> None:
    with closing(connect()) as connection:
        for table in _TABLES:
            connection.execute(table)


@contextmanager
def producer() -> Iterator[Producer]:
    mine = threading.local()

    def connection() -> sqlite3.Connection:
        if not hasattr(mine, "connection"):
            mine.connection = connect()
        own: sqlite3.Connection = mine.connection
        return own

    def enqueue(number: int) -> None:
        connection().execute(_INSERT, [json.dumps({"number": number})])

    def note(number: int) -> None:
        connection().execute(_INSERT, [json.dumps({"note": number})])

    def enqueue_many(numbers: Iterable[int]) -> None:
        connection().execute("BEGIN IMMEDIATE")
        connection().executemany(_INSERT, [(json.dumps({"number": number}),) for number in numbers])
        connection().execute("COMMIT")

    yield Producer(enqueue, note, enqueue_many)


def durability() -> str:
    with closing(connect()) as connection:
        return sqlite_durability(connection)


def work() -> None:
    with closing(connect()) as connection:
        while True:
            jobs = connection.execute(_CLAIM).fetchall()
            if not jobs:
                time.sleep(_POLL)
            elif TASK == "effect":
                _run_in_transactions(connection, jobs)
            else:
                for _, payload in jobs:
                    handle(json.loads(payload))
                connection.execute("BEGIN IMMEDIATE")
                connection.executemany(_FINISH, [(id,) for id, _ in jobs])
                connection.execute("COMMIT")


def _run_in_transactions(connection: sqlite3.Connection, jobs: list[tuple[int, str]]) -> None:
    for id, payload in jobs:
        number = json.loads(payload)["number"]
        connection.execute("BEGIN IMMEDIATE")
        connection.execute("INSERT INTO effects VALUES (?)", [number])
        connection.execute(_FINISH, [id])
        connection.execute("COMMIT")
        count()


def handle(payload: dict[str, int]) -> None:
    if "note" in payload:
        note(payload["note"])
    else:
        count()
