"""Claiming: which pending jobs a worker takes, within every limit, in one transaction.

Everything goes in and out as one JSON value per statement. The worker's threads share the GIL with its
handlers, and sqlite3 releases it for each row: reading five hundred rows one by one could mean waiting five
hundred times for a busy handler.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Sequence
from typing import Any

from holdfast.core.clock import microseconds
from holdfast.core.rate_limit import Bucket
from holdfast.store.limits import Limits
from holdfast.store.records import Activity, Claim, Claimed, Demand
from holdfast.store.sqlite.connection import OwnConnection

ACTIVE_TYPES = """
SELECT json_group_array(json_array(type, pending, processing)) FROM holdfast_counts
WHERE (pending > 0 OR processing > 0)
"""
UNPAUSED_TYPES = f"""{ACTIVE_TYPES}
AND NOT EXISTS (SELECT 1 FROM holdfast_pauses WHERE holdfast_pauses.type IN ('', holdfast_counts.type))
"""

# Zero for a paused type. Asked inside the claim's own transaction: after a pause is committed nothing starts.
# As a limit, not a condition, which SQLite would ask of each of the million jobs that wait.
_UNPAUSED = "NOT EXISTS (SELECT 1 FROM holdfast_pauses WHERE type IN ('', ?1))"

# As _CLAIM leaves it, in the order of a Claim.
_ROW = """json_group_array(json_array(
    seq, id, type, payload, priority, attempts + 1, coalesce(max_attempts, ?3), version + 1,
    coalesce(timeout, ?4), created_at, due_at))"""

# The candidates of a type, best first: only their places where several types compete, else the whole rows.
CANDIDATES = f"""
SELECT json_group_array(json_array(-priority, seq)) FROM (
    SELECT priority, seq FROM holdfast_jobs WHERE status = 'pending' AND type = ?1
    ORDER BY priority DESC, seq LIMIT ?2 * {_UNPAUSED})
"""
CANDIDATE_ROWS = f"""
SELECT {_ROW} FROM (
    SELECT * FROM holdfast_jobs WHERE status = 'pending' AND type = ?1
    ORDER BY priority DESC, seq LIMIT ?2 * {_UNPAUSED})
"""
_CHOSEN_ROWS = f"SELECT {_ROW} FROM holdfast_jobs WHERE seq IN (SELECT value FROM json_each(?2))"

_BUCKETS = """
SELECT name, tokens, refilled_at FROM holdfast_limits WHERE name IN (SELECT value FROM json_each(?))
"""

# What enqueue left open is fixed here, at the first claim.
_CLAIM = """
UPDATE holdfast_jobs SET
    status = 'processing', attempts = attempts + 1, version = version + 1,
    max_attempts = coalesce(max_attempts, ?1), timeout = coalesce(timeout, ?2),
    worker_id = ?3, lease_expires_at = ?4, started_at = ?5, updated_at = ?5,
    progress = NULL, progress_message = NULL
WHERE seq IN (SELECT value FROM json_each(?6)) AND +status = 'pending'
"""


def activity_from(text: str) -> dict[str, Activity]:
    """The answer of ACTIVE_TYPES or UNPAUSED_TYPES."""
    return {type: Activity(pending, running) for type, pending, running in json.loads(text)}


def claim_jobs(
    connection: OwnConnection,
    worker_id: str,
    demands: Sequence[Demand],
    *,
    limit: int,
    lease_seconds: float,
    now: int,
) -> Claimed:
    """Claim inside the open transaction."""
    limits, chosen = _choose_within_size(connection, demands, limit, now)
    claims: list[Claim] = []
    lease_expires_at = now + microseconds(lease_seconds)
    for demand, rows in chosen:
        seqs = json.dumps([row[0] for row in rows])
        parameters = (demand.max_attempts, demand.timeout, worker_id, lease_expires_at, now, seqs)
        taken = connection.count(_CLAIM, parameters)
        if taken != len(rows):  # can't be: the write lock was held since the rows were read
            raise AssertionError(f"claimed {taken} of {len(rows)} jobs")
        claims += [Claim(*[*row, worker_id]) for row in rows]
    claims.sort(key=lambda claim: (-claim.priority, claim.seq))
    _save(connection, limits)
    return Claimed(claims, limits.wait(), limits.held_back_unpaused(connection))


def _limits(connection: OwnConnection, demands: Sequence[Demand], now: int) -> Limits:
    buckets: dict[str, Bucket] = {}
    running: dict[str, int] = {}
    if names := [demand.rate_name for demand in demands if demand.rate]:
        rows = connection.rows(_BUCKETS, [json.dumps(names)])
        buckets = {name: Bucket(tokens, refilled_at) for name, tokens, refilled_at in rows}
    if any(demand.max_running for demand in demands):
        running = {type: processing for type, _, processing in connection.value(ACTIVE_TYPES)}
    return Limits(demands, buckets, running, now)


def _save(connection: OwnConnection, limits: Limits) -> None:
    for name in limits.changed:
        bucket = limits.buckets[name]
        connection.execute(
            "REPLACE INTO holdfast_limits (name, tokens, refilled_at) VALUES (?, ?, ?)",
            (name, bucket.tokens, bucket.at),
        )


Row = list[Any]


def _choose_within_size(
    connection: OwnConnection, demands: Sequence[Demand], limit: int, now: int
) -> tuple[Limits, list[tuple[Demand, list[Row]]]]:
    """Choose rows; fewer, if as many as asked for would be more than SQLite puts into one value."""
    while True:
        limits = _limits(connection, demands, now)
        try:
            return limits, _choose(connection, demands, limits, limit)
        except sqlite3.DataError:
            if limit == 1:
                raise
            limit = max(1, limit // 2)


def _choose(
    connection: OwnConnection, demands: Sequence[Demand], limits: Limits, limit: int
) -> list[tuple[Demand, list[Row]]]:
    """The rows to take of each demand."""
    if len(demands) == 1:
        demand = demands[0]
        room = min(limit, limits.room(demand))
        rows = _rows(connection, CANDIDATE_ROWS, demand, room) if room > 0 else []
        for _ in rows:
            limits.take(demand)
        return [(demand, rows)] if rows else []
    candidates: list[tuple[int, int, Demand]] = []
    for demand in demands:
        room = min(limit, limits.room(demand))
        if room > 0:
            places = connection.value(CANDIDATES, demand.type, room)
            candidates += [(priority, seq, demand) for priority, seq in places]
    candidates.sort(key=lambda candidate: candidate[:2])
    chosen: dict[str, tuple[Demand, list[int]]] = {}
    count = 0
    for _, seq, demand in candidates:
        if count == limit:
            break
        if limits.take(demand):
            chosen.setdefault(demand.type, (demand, []))[1].append(seq)
            count += 1
    return [
        (demand, _rows(connection, _CHOSEN_ROWS, demand, json.dumps(seqs)))
        for demand, seqs in chosen.values()
    ]


def _rows(connection: OwnConnection, sql: str, demand: Demand, which: int | str) -> list[Row]:
    rows: list[Row] = connection.value(sql, demand.type, which, demand.max_attempts, demand.timeout)
    return rows
