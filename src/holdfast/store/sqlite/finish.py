"""Ending attempts: finish, release and reap are one guarded statement with different decisions.

The + before a guard's column keeps SQLite from starting with that column's index: the rows are found by
their primary key, one look each, however many jobs are running.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence

from holdfast.core.job import Status
from holdfast.store.outcomes import ENDING, FAILURE, ending, failures, link_taken, unbounded
from holdfast.store.records import Finish
from holdfast.store.sqlite.connection import OwnConnection, as_json, given
from holdfast.store.sqlite.counts import count_completed
from holdfast.store.sqlite.insert import insert_jobs

# Nearly every attempt ends so, and this statement takes two thirds of the general one's time.
_COMPLETE = f"""
UPDATE holdfast_jobs SET
    status = 'completed', error = NULL, result = f.result, losses = 0,
    worker_id = NULL, lease_expires_at = NULL,
    finished_at = ?1, updated_at = ?1,
    key_held = key_held AND key_for IS NOT NULL, key_until = ?1 + CAST(key_for * 1000000 AS INTEGER)
FROM {given("?2", "seq", "version", "result")} AS f
WHERE holdfast_jobs.seq = f.seq AND +status = 'processing'
    AND holdfast_jobs.version = f.version AND worker_id = ?3
"""

# A cancellation may have been asked for until this very moment; then whatever is not a completion is one.
_END = f"""
UPDATE holdfast_jobs SET
    status = CASE WHEN cancel_requested THEN 'cancelled' ELSE f.status END,
    attempts = attempts - f.attempts_back,
    losses = coalesce(losses + f.loss, 0),
    due_at = ?1 + f.delay,
    error = coalesce(f.error, holdfast_jobs.error),
    error_group = CASE WHEN NOT cancel_requested THEN f.error_group END,
    worker_id = NULL, lease_expires_at = NULL,
    finished_at = CASE WHEN f.final OR cancel_requested THEN ?1 END,
    key_held = CASE WHEN f.final OR cancel_requested THEN key_held AND key_for IS NOT NULL ELSE key_held END,
    key_until = CASE WHEN (f.final OR cancel_requested) AND key_for IS NOT NULL
        THEN ?1 + CAST(key_for * 1000000 AS INTEGER) END,
    updated_at = ?1
FROM {given("?2", *ENDING)} AS f
WHERE holdfast_jobs.seq = f.seq AND +holdfast_jobs.status = 'processing'
    AND holdfast_jobs.version = f.version AND holdfast_jobs.worker_id = f.worker_id
    AND (NOT f.expired_only OR lease_expires_at <= ?1)
"""

_FAILURES = f"""
INSERT INTO holdfast_failures (finished_at, {", ".join(FAILURE)}) SELECT ?1, * FROM {given("?2", *FAILURE)}
"""

_CANCELLED = """
SELECT json_group_array(seq) FROM holdfast_jobs
WHERE seq IN (SELECT value FROM json_each(?)) AND status = 'cancelled'
"""


def finish_jobs(
    connection: OwnConnection, finishes: Sequence[Finish], now: int
) -> dict[tuple[int, int], Status]:
    """Finish inside the open transaction; the accepted ones, with the state each led to."""
    completed: dict[str, list[Finish]] = {}
    others: list[Finish] = []
    for finish in finishes:
        if finish.decision.status is Status.COMPLETED:
            completed.setdefault(finish.worker_id, []).append(finish)
        else:
            others.append(finish)
    ended: dict[tuple[int, int], Status] = {}
    for group in completed.values():
        for finish in _guarded(connection, group, _complete, now):
            ended[finish.seq, finish.version] = Status.COMPLETED
            if finish.children:
                verdicts = insert_jobs(connection, unbounded(finish.children), now)
                link_taken(connection, finish.seq, verdicts)
    if others:
        accepted = _guarded(connection, others, _end, now)
        _record_failures(connection, accepted, now)
        cancelled = set(connection.value(_CANCELLED, as_json([finish.seq for finish in accepted])))
        for finish in accepted:
            status = Status.CANCELLED if finish.seq in cancelled else finish.decision.status
            ended[finish.seq, finish.version] = status
    return ended


Write = Callable[[sqlite3.Connection, Sequence[Finish], int], int]


def _guarded(
    connection: sqlite3.Connection, finishes: Sequence[Finish], write: Write, now: int
) -> Sequence[Finish]:
    """Write what the guard accepts. All at once if it accepts all, as it nearly always does."""
    if len(finishes) == 1:
        return finishes if write(connection, finishes, now) == 1 else []
    connection.execute("SAVEPOINT holdfast_finish")
    try:
        all_accepted = write(connection, finishes, now) == len(finishes)
    except (sqlite3.DataError, OverflowError):  # more than SQLite takes as one value
        all_accepted = False
    if not all_accepted:
        connection.execute("ROLLBACK TO holdfast_finish")
        finishes = [finish for finish in finishes if write(connection, [finish], now) == 1]
    connection.execute("RELEASE holdfast_finish")
    return finishes


def _complete(connection: sqlite3.Connection, finishes: Sequence[Finish], now: int) -> int:
    rows = as_json([(finish.seq, finish.version, finish.decision.result) for finish in finishes])
    completed = connection.execute(_COMPLETE, (now, rows, finishes[0].worker_id)).rowcount
    if completed == len(finishes):
        count_completed(connection, [finish.type for finish in finishes])
    return completed


def _end(connection: sqlite3.Connection, finishes: Sequence[Finish], now: int) -> int:
    return connection.execute(_END, (now, as_json([*map(ending, finishes)]))).rowcount


def _record_failures(connection: sqlite3.Connection, finishes: Sequence[Finish], now: int) -> None:
    rows = failures(finishes)
    try:
        connection.execute(_FAILURES, (now, as_json(rows)))
    except (sqlite3.DataError, OverflowError):  # more than SQLite takes as one value
        for row in rows:
            connection.execute(_FAILURES, (now, as_json([row])))
