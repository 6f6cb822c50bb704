"""The floor: what a bare queue would cost on this server, with psycopg and nothing else.

A table with the columns of ours, and the two indexes that a minimal queue needs: its primary key and the
pending jobs in their order. No text id with an index of its own, no index of what runs or has ended, no
triggers, fillfactor and autovacuum as they come. One connection in autocommit mode, so that a statement is a
transaction and one round trip, prepared once. It knows nothing of pauses, limits, counts or lost leases.

Insert: one row a commit; and by COPY, 10,000 rows a commit. Claim and finish: UPDATE … RETURNING of as many
rows as our worker takes at a time (the mean of the drain beside it), found with FOR UPDATE SKIP LOCKED in the
order of priority; then an UPDATE that finishes them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from statistics import median
from typing import Any

import psycopg
from psycopg import RawCursor

from benchmarks.bench import TYPE, Bench
from benchmarks.figures import Figure
from benchmarks.postgres.place import connect, new_schema, settle
from holdfast import Queue
from holdfast.core.ids import new_id

BATCH = 400
"""Jobs that are claimed at a time where no drain stands beside it."""

BULK = 10_000

_TABLE = (
    "CREATE TABLE bare (LIKE holdfast_jobs INCLUDING DEFAULTS INCLUDING IDENTITY INCLUDING CONSTRAINTS)",
    "ALTER TABLE bare ADD PRIMARY KEY (seq)",
    "CREATE INDEX ON bare (type, priority DESC, seq) WHERE status = 'pending'",
)
_COLUMNS = "id, type, status, due_at, created_at, updated_at, token, payload"
_INSERT = f"INSERT INTO bare ({_COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8)"
_CLAIM = """
UPDATE bare SET status = 'processing', attempts = attempts + 1, version = version + 1, worker_id = $1,
    lease_expires_at = $2, started_at = $2, updated_at = $2
WHERE seq = ANY (ARRAY(
    SELECT seq FROM bare WHERE status = 'pending' AND type = $3 ORDER BY priority DESC, seq
    LIMIT (SELECT $4::bigint)
    FOR UPDATE SKIP LOCKED))
RETURNING seq, id, payload, attempts, version
"""
_FINISH = """
UPDATE bare SET status = 'completed', worker_id = NULL, lease_expires_at = NULL, finished_at = $1,
    updated_at = $1, result = 'null'
WHERE seq = ANY ($2::bigint[]) AND status = 'processing' AND worker_id = $3
"""


def measure(bench: Bench) -> list[Figure]:
    sizes = bench.sizes
    commits, copies, claims = [], [], []
    for _ in range(sizes.rounds):
        commits.append(commit_rate(bench, sizes.postgres_singly))
        copies.append(copy_rate(bench, sizes.postgres_many))
        claims.append(claim_rate(bench, sizes.postgres_drain, BATCH))
    return [
        Figure(name="bare INSERT and COMMIT, one by one", value=median(commits), unit="jobs/s"),
        Figure(name=f"bare COPY, {BULK:,} a commit", value=median(copies), unit="jobs/s"),
        Figure(name=f"bare claim and finish, {BATCH} at a time", value=median(claims), unit="jobs/s"),
    ]


def commit_rate(bench: Bench, commits: int) -> float:
    """Commits of one row a second, one after another."""
    with bare_table(bench) as connection:
        return commits / sum(time_commits(connection, commits))


def copy_rate(bench: Bench, jobs: int) -> float:
    """Rows inserted a second, many with each commit."""
    rows = _rows(jobs)
    with bare_table(bench) as connection:
        began = time.perf_counter()
        for start in range(0, jobs, BULK):
            with connection.cursor().copy(f"COPY bare ({_COLUMNS}) FROM STDIN") as copy:
                for row in rows[start : start + BULK]:
                    copy.write_row(row)
        return jobs / (time.perf_counter() - began)


def claim_rate(bench: Bench, jobs: int, batch: int) -> float:
    """Jobs claimed and finished a second, so many at a time."""
    with bare_table(bench) as connection:
        with connection.cursor().copy(f"COPY bare ({_COLUMNS}) FROM STDIN") as copy:
            for row in _rows(jobs):
                copy.write_row(row)
        settle(connection, "bare")
        cursor, worker, done = RawCursor(connection), new_id(), 0
        began = time.perf_counter()
        while done < jobs:
            claimed = cursor.execute(_CLAIM, [worker, _now(), TYPE, batch], prepare=True).fetchall()
            done += cursor.execute(
                _FINISH, [_now(), [row[0] for row in claimed], worker], prepare=True
            ).rowcount
            if not claimed:
                raise AssertionError(f"{done} of {jobs} jobs were found")
        return jobs / (time.perf_counter() - began)


def time_commits(connection: psycopg.Connection, commits: int) -> list[float]:
    """The seconds that each of so many commits of one row takes."""
    cursor, times = RawCursor(connection), []
    for row in _rows(commits):
        began = time.perf_counter()
        cursor.execute(_INSERT, row, prepare=True)
        times.append(time.perf_counter() - began)
    return times


@contextmanager
def bare_table(bench: Bench) -> Iterator[psycopg.Connection]:
    """A connection to an empty table; dropped afterwards."""
    with new_schema(bench) as url:
        with Queue(url) as queue:
            queue.open()  # makes the table that it is like
        with connect(url) as connection:
            for statement in _TABLE:
                connection.execute(statement)
            connection.execute("CHECKPOINT")
            yield connection


def _rows(jobs: int) -> list[tuple[Any, ...]]:
    now = _now()
    return [
        (new_id(), TYPE, "pending", now, now, now, f"{number:024x}", f'{{"number":{number}}}')
        for number in range(jobs)
    ]


def _now() -> int:
    return time.time_ns() // 1000
