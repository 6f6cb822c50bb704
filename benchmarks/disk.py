"""Disk: what a finished job with a payload of 200 bytes takes, its share of every index and table included.

The jobs come and finish in ten portions, as they do in a queue that is used, and after each one the server
vacuums, which its autovacuum does in its own time. Bare is a minimal row with the same payload.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from benchmarks.bench import Bench, remove
from benchmarks.compare import BARE
from benchmarks.figures import OURS, Comparison, Entry, Result
from benchmarks.postgres.place import connect, new_database
from holdfast import Queue

EXPECTED = {"SQLite": 0.6, "PostgreSQL": 0.7}
_PAYLOAD = 200
_PORTIONS = 10

_SIZE = """
SELECT sum(pg_total_relation_size(oid)) FROM pg_class
WHERE relkind = 'r' AND relnamespace = 'public'::regnamespace
"""
_BARE_TABLES = "CREATE TABLE jobs (id {key}, payload text NOT NULL, status integer NOT NULL)"
_BARE_INDEX = "CREATE INDEX jobs_pending ON jobs (id) WHERE status = 0"


def measure(bench: Bench) -> list[Result]:
    results: list[Result] = []
    for engine, measure_one, place in (("SQLite", _file, _new_file), ("PostgreSQL", _server, new_database)):
        entries = []
        for who in (OURS, BARE[engine]):
            with place(bench) as address:
                entries.append(Entry(who, [measure_one(address, bench.sizes.finished, who == OURS)]))
        comparison = Comparison(
            name=f"disk for a finished job with 200 bytes of payload, {engine}",
            section=engine,
            unit="KB",
            entries=entries,
            less_is_better=True,
        )
        comparison.expect(entries[0].value, EXPECTED[engine])
        results.append(comparison)
    return results


@contextmanager
def _new_file(bench: Bench) -> Iterator[str]:
    path = bench.new_file()
    try:
        yield str(path)
    finally:
        remove(path)


def _file(address: str, jobs: int, is_ours: bool) -> float:
    """KB a job in a SQLite file."""
    if is_ours:
        before = _run_portions(f"sqlite:///{address}", jobs, lambda: _file_size(address))
    else:
        with closing(sqlite3.connect(address, isolation_level=None)) as file:
            file.execute("PRAGMA journal_mode = WAL")
            file.execute(_BARE_TABLES.format(key="INTEGER PRIMARY KEY"))
            file.execute(_BARE_INDEX)
            before = _file_size(address)
            payload = _payload()
            file.execute("BEGIN")
            file.executemany("INSERT INTO jobs (payload, status) VALUES (?, 0)", [(payload,)] * jobs)
            file.execute("UPDATE jobs SET status = 2")
            file.execute("COMMIT")
    return (_file_size(address) - before) / jobs / 1024


def _server(address: str, jobs: int, is_ours: bool) -> float:
    """KB a job in the tables of a PostgreSQL database."""
    with connect(address) as connection:

        def size() -> int:
            connection.execute("VACUUM")
            [(total,)] = connection.execute(_SIZE).fetchall()
            return int(total)

        if is_ours:
            before = _run_portions(address, jobs, size)
        else:
            connection.execute(_BARE_TABLES.format(key="bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY"))
            connection.execute(_BARE_INDEX)
            before = size()
            for _ in range(_PORTIONS):
                connection.execute(
                    "INSERT INTO jobs (payload, status) SELECT %s, 0 FROM generate_series(1, %s)",
                    [_payload(), jobs // _PORTIONS],
                )
                connection.execute("UPDATE jobs SET status = 2 WHERE status = 0")
                size()
        return (size() - before) / jobs / 1024


def _run_portions(address: str, jobs: int, size: Callable[[], int]) -> int:
    """Enqueue and run so many jobs; the size before."""
    with Queue(address) as queue:

        @queue.job
        def noop(text: str) -> None:
            pass

        queue.open()
        before = size()
        payload = json.loads(_payload())
        with queue.worker():
            for _ in range(_PORTIONS):
                last = queue.enqueue_many("noop", [payload] * (jobs // _PORTIONS))[-1]
                queue.wait(last.id, timeout=60)
                while queue.count(status=["pending", "processing"]):
                    time.sleep(0.005)
                size()
    return before


def _file_size(address: str) -> int:
    with closing(sqlite3.connect(address)) as file:
        file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return Path(address).stat().st_size


def _payload() -> str:
    """JSON of 200 bytes."""
    return json.dumps({"text": "x" * (_PAYLOAD - len('{"text":""}'))}, separators=(",", ":"))
