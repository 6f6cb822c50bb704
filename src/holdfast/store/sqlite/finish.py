"""Ending attempts: finish, release and reap are one guarded statement with different decisions."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence

from holdfast.core.clock import microseconds
from holdfast.core.job import FINISHED, Status
from holdfast.store.protocol import Finish, NewJob
from holdfast.store.sqlite.insert import insert_jobs

# A cancellation may have been asked for until this very moment; then whatever is not a completion is one.
_FINISH = """
UPDATE holdfast_jobs SET
    status = CASE WHEN cancel_requested AND f.status <> 'completed' THEN 'cancelled' ELSE f.status END,
    attempts = attempts - f.attempts_back,
    due_at = f.due_at,
    error = CASE WHEN f.status = 'completed' THEN NULL ELSE coalesce(f.error, holdfast_jobs.error) END,
    result = f.result,
    worker_id = NULL, lease_expires_at = NULL,
    finished_at = CASE WHEN f.final OR cancel_requested THEN ?1 END,
    key_held = CASE WHEN f.final OR cancel_requested THEN key_held AND key_for IS NOT NULL ELSE key_held END,
    key_until = CASE WHEN (f.final OR cancel_requested) AND key_for IS NOT NULL
        THEN ?1 + CAST(key_for * 1000000 AS INTEGER) END,
    updated_at = ?1
FROM (SELECT
    json_extract(value, '$[0]') AS seq, json_extract(value, '$[1]') AS version,
    json_extract(value, '$[2]') AS worker_id, json_extract(value, '$[3]') AS status,
    json_extract(value, '$[4]') AS final, json_extract(value, '$[5]') AS due_at,
    json_extract(value, '$[6]') AS error, json_extract(value, '$[7]') AS result,
    json_extract(value, '$[8]') AS attempts_back, json_extract(value, '$[9]') AS expired_only
    FROM json_each(?2)) AS f
WHERE holdfast_jobs.seq = f.seq AND holdfast_jobs.status = 'processing'
    AND holdfast_jobs.version = f.version AND holdfast_jobs.worker_id = f.worker_id
    AND (NOT f.expired_only OR lease_expires_at <= ?1)
"""

_FAILURES = """
INSERT INTO holdfast_failures (seq, version, attempt, started_at, finished_at, worker_id, error, traceback, detail)
SELECT json_extract(value, '$[0]'), json_extract(value, '$[1]'), json_extract(value, '$[2]'),
    json_extract(value, '$[3]'), ?1, json_extract(value, '$[4]'), json_extract(value, '$[5]'),
    json_extract(value, '$[6]'), json_extract(value, '$[7]')
FROM json_each(?2)
"""

_CANCELLED = """
SELECT json_group_array(seq) FROM holdfast_jobs
WHERE seq IN (SELECT value FROM json_each(?)) AND status = 'cancelled'
"""


def finish_jobs(connection: sqlite3.Connection, finishes: Sequence[Finish], now: int) -> dict[int, Status]:
    """Finish inside the open transaction; the accepted ones by seq, with the state each led to."""
    accepted = _apply(connection, finishes, now)
    _record_failures(connection, accepted, now)
    for finish in accepted:
        if finish.children:
            insert_children(connection, finish.seq, finish.children, now)
    ended = {finish.seq: finish.decision.status for finish in accepted}
    interrupted = [seq for seq, status in ended.items() if status is not Status.COMPLETED]
    if interrupted:
        text = connection.execute(_CANCELLED, (json.dumps(interrupted),)).fetchone()[0]
        ended.update((seq, Status.CANCELLED) for seq in json.loads(text))
    return ended


def _apply(connection: sqlite3.Connection, finishes: Sequence[Finish], now: int) -> Sequence[Finish]:
    """Write what the guard accepts. All at once if it accepts all, as it nearly always does."""
    connection.execute("SAVEPOINT holdfast_finish")
    if _write(connection, finishes, now) == len(finishes):
        accepted = finishes
    else:
        connection.execute("ROLLBACK TO holdfast_finish")
        accepted = [finish for finish in finishes if _write(connection, [finish], now) == 1]
    connection.execute("RELEASE holdfast_finish")
    return accepted


def _write(connection: sqlite3.Connection, finishes: Sequence[Finish], now: int) -> int:
    rows = []
    for finish in finishes:
        decision = finish.decision
        rows.append(
            (
                finish.seq,
                finish.version,
                finish.worker_id,
                decision.status,
                decision.status in FINISHED,
                now + microseconds(decision.delay),
                decision.error,
                decision.result,
                decision.attempts_back,
                finish.expired_only,
            )
        )
    return connection.execute(_FINISH, (now, json.dumps(rows))).rowcount


def _record_failures(connection: sqlite3.Connection, finishes: Sequence[Finish], now: int) -> None:
    rows = [
        (
            finish.seq,
            finish.version,
            finish.attempt,
            finish.started_at,
            finish.worker_id,
            finish.decision.error,
            finish.decision.traceback,
            None if finish.decision.detail is None else json.dumps(finish.decision.detail),
        )
        for finish in finishes
        if finish.decision.error is not None
    ]
    if rows:
        connection.execute(_FAILURES, (now, json.dumps(rows)))


def insert_children(connection: sqlite3.Connection, parent_seq: int, children: Sequence[NewJob], now: int) -> None:
    """Insert a completed job's children; one whose id or key is taken becomes a link to that job."""
    for verdict in insert_jobs(connection, children, now):
        if not verdict.inserted:
            connection.execute(
                "INSERT INTO holdfast_links (parent_id, child_id)"
                " SELECT id, ? FROM holdfast_jobs WHERE seq = ? ON CONFLICT DO NOTHING",
                (verdict.id, parent_seq),
            )
