"""Inserting jobs: one statement a job, each with its own verdict."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from itertools import chain
from operator import attrgetter
from typing import Any

from holdfast.core.clock import microseconds
from holdfast.core.job import Status
from holdfast.core.settings import Depth
from holdfast.errors import DuplicateJob
from holdfast.store.migrate import VERSION_TABLE
from holdfast.store.outcomes import found_by_key, lanes_within, queue_full
from holdfast.store.records import NewJob, Verdict
from holdfast.store.rows import NEW_JOB_NAMES, quoted
from holdfast.store.sqlite.connection import as_json

_COLUMNS = (*NEW_JOB_NAMES, "status", "key_held", "run_at", "due_at", "created_at", "updated_at")
LAST_SEQ = f"""
SELECT max(last_seq, coalesce((SELECT max(seq) FROM holdfast_jobs), 0)) FROM {VERSION_TABLE}
"""
"""The number of the job that was inserted last, whether it is still there or not."""

# The row after one that has its `seq` gets the next.
_VALUES = ", ".join("?" * len(_COLUMNS))
_INSERT_ROWS = f"""
INSERT INTO holdfast_jobs (seq, {quoted(_COLUMNS)}) VALUES (({LAST_SEQ}) + 1, {_VALUES}){{more}}
ON CONFLICT DO NOTHING
"""
_INSERTS = {rows: _INSERT_ROWS.format(more=f", (NULL, {_VALUES})" * (rows - 1)) for rows in (50, 8, 1)}
"""Statements for so many rows: each begins with a savepoint of SQLite's own, which costs as much as two."""
_as_given = attrgetter(*NEW_JOB_NAMES)

# Not by holdfast_jobs_keyed, which holds all jobs that ever had the key.
HOLDER = """
SELECT id, token, status, created_at, payload FROM holdfast_jobs INDEXED BY holdfast_jobs_key
WHERE type = ? AND key = ? AND key_held = 1
"""


def insert_jobs(connection: sqlite3.Connection, jobs: Sequence[NewJob], now: int) -> list[Verdict]:
    """Insert inside the open transaction. A conflict is a verdict, never an abort."""
    with closing(plain_cursor(connection)) as cursor:
        if len(jobs) > 1 and not any(job.key or job.max_depth for job in jobs):
            verdicts = _insert_plain(cursor, jobs, now)
            if verdicts is not None:
                return verdicts
        depths: dict[Depth, int] = {}
        return [_insert_one(cursor, job, now, depths) for job in jobs]


def plain_cursor(connection: sqlite3.Connection) -> sqlite3.Cursor:
    """A cursor whose rows are tuples: the connection may be the caller's, with a row factory of its own."""
    cursor = connection.cursor()
    if isinstance(cursor, sqlite3.Cursor):
        cursor.row_factory = None
    return cursor


def insert_all_or_none(connection: sqlite3.Connection, jobs: Sequence[NewJob], now: int) -> list[Verdict]:
    """The same, but if one is refused, none is inserted, and the transaction around it stays usable."""
    refused = True
    connection.execute("SAVEPOINT holdfast_all")
    try:
        verdicts = insert_jobs(connection, jobs, now)
        refused = any(verdict.error is not None for verdict in verdicts)
    finally:
        if refused:
            connection.execute("ROLLBACK TO holdfast_all")
        connection.execute("RELEASE holdfast_all")
    return verdicts


def _insert_plain(cursor: sqlite3.Cursor, jobs: Sequence[NewJob], now: int) -> list[Verdict] | None:
    """All at once; None, with nothing inserted, when an id is taken."""
    cursor.execute("SAVEPOINT holdfast_insert")
    all_inserted = _insert_rows(cursor, [_row(job, now) for job in jobs]) == len(jobs)
    if not all_inserted:
        cursor.execute("ROLLBACK TO holdfast_insert")
    cursor.execute("RELEASE holdfast_insert")
    return [_inserted(job, now) for job in jobs] if all_inserted else None


def _insert_rows(cursor: sqlite3.Cursor, rows: Sequence[tuple[Any, ...]]) -> int:
    """Returns how many are inserted."""
    inserted = start = 0
    for size, statement in _INSERTS.items():
        while start + size <= len(rows):
            cursor.execute(statement, [*chain.from_iterable(rows[start : start + size])])
            inserted += cursor.rowcount
            start += size
    return inserted


def _insert_one(cursor: sqlite3.Cursor, job: NewJob, now: int, depths: dict[Depth, int]) -> Verdict:
    """`depths` are the jobs that wait, as far as they were counted before."""
    if job.key is not None:
        free_expired_key(cursor, job.type, job.key, now)
    if job.max_depth is not None:
        if job.max_depth not in depths:
            depths[job.max_depth] = _depth(cursor, job.max_depth)
        if depths[job.max_depth] >= job.max_depth.size:
            return _known(cursor, job, now) or Verdict(id=job.id, error=queue_full(job))
    cursor.execute(_INSERTS[1], _row(job, now))
    if cursor.rowcount == 1:
        for depth in depths:
            depths[depth] += depth.counts(job.type)
        return _inserted(job, now)
    return _known(cursor, job, now) or Verdict(id=job.id, error=DuplicateJob(job.id))


def free_expired_key(cursor: sqlite3.Cursor, type: str, key: str, now: int) -> None:
    """Take the key from a finished job whose key_for has passed."""
    cursor.execute(
        "UPDATE holdfast_jobs INDEXED BY holdfast_jobs_key SET key_held = 0"
        " WHERE type = ? AND key = ? AND key_held = 1 AND key_until <= ?",
        (type, key, now),
    )


def _known(cursor: sqlite3.Cursor, job: NewJob, now: int) -> Verdict | None:
    """The verdict on a job that is there already: by its key, or by an enqueue whose commit was in doubt."""
    if job.key is not None:
        row = _first(cursor, HOLDER, job.type, job.key)
        if row is not None:
            return found_by_key(job, *map(_text, row))
    row = _first(cursor, "SELECT token FROM holdfast_jobs WHERE id = ?", job.id)
    return _inserted(job, now) if row is not None and _text(row[0]) == job.token else None


# The types from one name to another, but for those that are, or have for their base, one that is apart.
_DEPTH = """
WITH apart AS (SELECT value FROM json_each(?))
SELECT coalesce(sum(pending + scheduled), 0) FROM holdfast_counts
WHERE (type = ? OR type >= ? AND type < ?) AND type NOT IN apart
    AND substr(type, 1, instr(type || ':', ':') - 1) NOT IN apart
"""


def _depth(cursor: sqlite3.Cursor, depth: Depth) -> int:
    row = _first(cursor, _DEPTH, as_json(depth.apart), *lanes_within(depth.name))
    return int(row[0])


def _first(cursor: sqlite3.Cursor, sql: str, *parameters: Any) -> Any:
    cursor.execute(sql, parameters)
    return cursor.fetchone()


def _inserted(job: NewJob, now: int) -> Verdict:
    status, run_at = _begins(job, now)
    return Verdict(id=job.id, inserted=True, status=status, created_at=now, run_at=run_at)


def _begins(job: NewJob, now: int) -> tuple[Status, int | None]:
    """The state of a new job, and when it is to run if it was given a time."""
    run_at = now + microseconds(job.delay) if job.delay is not None else job.run_at
    return Status.SCHEDULED if run_at is not None and run_at > now else Status.PENDING, run_at


def _row(job: NewJob, now: int) -> tuple[Any, ...]:
    status, run_at = _begins(job, now)
    due_at = run_at if status is Status.SCHEDULED else now
    return (*_as_given(job), status.value, job.key is not None, run_at, due_at, now, now)


def _text(value: Any) -> Any:
    # A caller's connection may have a text_factory that gives bytes.
    return value.decode() if isinstance(value, bytes) else value
