"""The floor: the job table and its indexes, without our triggers, written with bare sqlite3 in batches.

Nothing that keeps jobs in this table on this disk can be faster by much. It has our synchronous=FULL and
our size of the WAL, and knows nothing of leases, limits, other processes or errors.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.bench import TYPE, Bench, remove
from benchmarks.figures import Figure
from holdfast.core.ids import new_id
from holdfast.store.sqlite.database import WAL_LIMIT
from holdfast.store.sqlite.schema import MIGRATIONS

BATCH = 500
_PAGE = 4096
_TABLE_OR_INDEX = re.compile(r"CREATE (TABLE|(UNIQUE )?INDEX \w+ ON) holdfast_jobs ")

_INSERT = """
INSERT INTO holdfast_jobs (id, type, status, priority, due_at, created_at, updated_at, token, payload)
VALUES (?, ?, 'pending', 0, ?, ?, ?, ?, ?)
"""
_SELECT = """
SELECT seq, id, payload, attempts, version FROM holdfast_jobs WHERE status = 'pending' AND type = ?
ORDER BY priority DESC, seq LIMIT ?
"""
_CLAIM = """
UPDATE holdfast_jobs SET status = 'processing', attempts = attempts + 1, version = version + 1,
    worker_id = ?, lease_expires_at = ?, started_at = ?, updated_at = ? WHERE seq = ?
"""
_FINISH = """
UPDATE holdfast_jobs SET status = 'completed', worker_id = NULL, lease_expires_at = NULL, finished_at = ?,
    updated_at = ?, result = 'null' WHERE seq = ? AND version = ? AND status = 'processing'
"""


def measure(bench: Bench) -> list[Figure]:
    sizes = bench.sizes
    rates, commits = [], []
    for _ in range(sizes.rounds):
        rates.append(batch_rates(bench, sizes.floor_jobs))
        commits.append(commit_seconds(bench, sizes.commits))
    return [
        Figure(name="insert, in batches of 500", value=median(r[0] for r in rates), unit="jobs/s"),
        Figure(name="claim and finish, in batches of 500", value=median(r[1] for r in rates), unit="jobs/s"),
        Figure(name="one bare commit", value=median(commits) * 1000, unit="ms"),
        Figure(name="bare commits one after another", value=1 / median(commits), unit="/s"),
    ]


def batch_rates(bench: Bench, jobs: int) -> tuple[float, float]:
    """Jobs a second: inserted, and claimed and finished."""
    with bare_database(bench.new_file()) as connection:
        return _insert(connection, jobs), _claim_and_finish(connection)


def commit_seconds(bench: Bench, commits: int) -> float:
    """The median time to insert and commit one row."""
    with bare_database(bench.new_file()) as connection:
        return median(time_commits(connection, commits))


def time_commits(connection: sqlite3.Connection, commits: int) -> list[float]:
    """The seconds that each of so many commits of one row takes."""
    times = []
    for row in _rows(commits):
        began = time.perf_counter()
        connection.execute("BEGIN IMMEDIATE")
        connection.execute(_INSERT, row)
        connection.execute("COMMIT")
        times.append(time.perf_counter() - began)
    return times


@contextmanager
def bare_database(path: Path) -> Iterator[sqlite3.Connection]:
    """A new file with the job table and its indexes; removed afterwards."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        for pragma in (
            "journal_mode = WAL",
            "synchronous = FULL",
            f"wal_autocheckpoint = {WAL_LIMIT // _PAGE}",
            "cache_size = -16384",
        ):
            connection.execute(f"PRAGMA {pragma}")
        for statement in MIGRATIONS[0].statements:
            if _TABLE_OR_INDEX.match(statement):
                connection.execute(statement)
        yield connection
    remove(path)


def _insert(connection: sqlite3.Connection, jobs: int) -> float:
    rows = _rows(jobs)
    began = time.perf_counter()
    for start in range(0, jobs, BATCH):
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_INSERT, rows[start : start + BATCH])
        connection.execute("COMMIT")
    return jobs / (time.perf_counter() - began)


def _claim_and_finish(connection: sqlite3.Connection) -> float:
    worker, done = new_id(), 0
    began = time.perf_counter()
    while True:
        now = time.time_ns() // 1000
        connection.execute("BEGIN IMMEDIATE")
        jobs = connection.execute(_SELECT, (TYPE, BATCH)).fetchall()
        connection.executemany(_CLAIM, [(worker, now, now, now, job[0]) for job in jobs])
        connection.execute("COMMIT")
        if not jobs:
            return done / (time.perf_counter() - began)
        connection.execute("BEGIN IMMEDIATE")
        connection.executemany(_FINISH, [(now, now, job[0], job[4] + 1) for job in jobs])
        connection.execute("COMMIT")
        done += len(jobs)


def _rows(jobs: int) -> list[tuple[Any, ...]]:
    now = time.time_ns() // 1000
    return [
        (new_id(), TYPE, now, now, now, f"{number:024x}", f'{{"number":{number}}}') for number in range(jobs)
    ]
