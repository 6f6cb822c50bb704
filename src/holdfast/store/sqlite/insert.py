"""Inserting jobs: one statement a job, each with its own verdict."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

from holdfast.core.clock import microseconds
from holdfast.core.job import Status
from holdfast.core.payload import same_json
from holdfast.errors import DuplicateJob, HoldfastError, KeyTaken, QueueFull
from holdfast.store.protocol import NewJob, Verdict

_INSERT = """
INSERT INTO holdfast_jobs (id, type, status, priority, max_attempts, key, key_for, key_held, run_at, due_at,
    timeout, parent_id, created_at, updated_at, token, payload)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""

# Not by holdfast_jobs_keyed, which holds all jobs that ever had the key.
HOLDER = """
SELECT id, payload, status, created_at, token FROM holdfast_jobs INDEXED BY holdfast_jobs_key
WHERE type = ? AND key = ? AND key_held = 1
"""


def insert_jobs(connection: sqlite3.Connection, jobs: Sequence[NewJob], now: int) -> list[Verdict]:
    """Insert inside the open transaction. A conflict is a verdict, never an abort."""
    cursor = connection.cursor()
    cursor.row_factory = None  # the connection may be the caller's, with a row factory of its own
    try:
        if len(jobs) > 1 and not any(job.key or job.max_depth for job in jobs):
            verdicts = _insert_plain(cursor, jobs, now)
            if verdicts is not None:
                return verdicts
        return [_insert_one(cursor, job, now) for job in jobs]
    finally:
        cursor.close()


def insert_all_or_none(connection: sqlite3.Connection, jobs: Sequence[NewJob], now: int) -> list[Verdict]:
    """The same, but with one refusal nothing is inserted, and the transaction around it goes on."""
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
    cursor.executemany(_INSERT, [_row(job, now) for job in jobs])
    if cursor.rowcount == len(jobs):
        cursor.execute("RELEASE holdfast_insert")
        return [_inserted(job, now) for job in jobs]
    cursor.execute("ROLLBACK TO holdfast_insert")
    cursor.execute("RELEASE holdfast_insert")
    return None


def _insert_one(cursor: sqlite3.Cursor, job: NewJob, now: int) -> Verdict:
    if job.key is not None:
        free_expired_key(cursor, job.type, job.key, now)
    if job.max_depth is not None and _depth(cursor, job.type) >= job.max_depth:
        return _known(cursor, job, now) or Verdict(id=job.id, error=QueueFull(job.type, job.max_depth))
    cursor.execute(_INSERT, _row(job, now))
    if cursor.rowcount == 1:
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
    found = _holder(cursor, job)
    if found is not None:
        return found
    row = cursor.execute("SELECT token FROM holdfast_jobs WHERE id = ?", (job.id,)).fetchone()
    return _inserted(job, now) if row is not None and _text(row[0]) == job.token else None


def _holder(cursor: sqlite3.Cursor, job: NewJob) -> Verdict | None:
    """The job that holds the key: the answer if its payload is the same, else the error."""
    if job.key is None:
        return None
    row = cursor.execute(
        HOLDER,
        (job.type, job.key),
    ).fetchone()
    if row is None:
        return None
    id, payload, status, created_at, token = (_text(value) for value in row)
    error: HoldfastError | None = None
    if not same_json(payload, job.payload):
        error = KeyTaken(id, job.key)
    return Verdict(
        id=id, error=error, inserted=token == job.token, status=Status(status), created_at=created_at
    )


def _depth(cursor: sqlite3.Cursor, type: str) -> int:
    row = cursor.execute("SELECT pending + scheduled FROM holdfast_counts WHERE type = ?", (type,)).fetchone()
    return row[0] if row else 0


def _waits_until(job: NewJob, now: int) -> int | None:
    return now + microseconds(job.delay) if job.delay is not None else job.run_at


def _inserted(job: NewJob, now: int) -> Verdict:
    run_at = _waits_until(job, now)
    return Verdict(id=job.id, inserted=True, status=_status(run_at, now), created_at=now, run_at=run_at)


def _status(run_at: int | None, now: int) -> Status:
    return Status.SCHEDULED if run_at is not None and run_at > now else Status.PENDING


def _row(job: NewJob, now: int) -> tuple[Any, ...]:
    run_at = _waits_until(job, now)
    status = _status(run_at, now)
    return (
        job.id,
        job.type,
        status.value,
        job.priority,
        job.max_attempts,
        job.key,
        job.key_for,
        job.key is not None,
        run_at,
        run_at if status is Status.SCHEDULED else now,
        job.timeout,
        job.parent_id,
        now,
        now,
        job.token,
        job.payload,
    )


def _text(value: Any) -> Any:
    # A caller's connection may have a text_factory that gives bytes.
    return value.decode() if isinstance(value, bytes) else value
