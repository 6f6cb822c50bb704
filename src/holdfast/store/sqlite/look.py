"""What people look at: running attempts, what waits longest, what finished lately. Reads only."""

from __future__ import annotations

from typing import Any

from holdfast.core.clock import to_datetime
from holdfast.core.job import RETRYING, Status
from holdfast.store.protocol import JobFilter, ReusedKey, Running, Waiting
from holdfast.store.sqlite.database import Database

OLDEST = "SELECT id, type, due_at FROM holdfast_jobs WHERE status = 'pending' ORDER BY due_at LIMIT 1"


def conditions(filter: JobFilter) -> tuple[str, list[Any]]:
    """A filter as a WHERE clause. States stand in it as literals, so that partial indexes are found."""
    parts: list[str] = []
    parameters: list[Any] = []
    if filter.statuses:
        parts.append(f"({' OR '.join(_of_status(status) for status in filter.statuses)})")
    for column, value in (
        ("type = ?", filter.type),
        ("parent_id = ?", filter.parent_id),
        ("seq < ?", filter.before),
    ):
        if value is not None:
            parts.append(column)
            parameters.append(value)
    return f" WHERE {' AND '.join(parts)}" if parts else "", parameters


def _of_status(word: str) -> str:
    if word == RETRYING:
        return "(status = 'scheduled' AND attempts > 0)"
    return f"status = '{Status(word).value}'"


def count_matching(database: Database, filter: JobFilter, cap: int) -> int:
    if filter.parent_id is None and filter.before is None and RETRYING not in filter.statuses:
        columns = " + ".join(sorted({Status(word).value for word in filter.statuses} or set(Status)))
        where, parameters = ("", []) if filter.type is None else (" WHERE type = ?", [filter.type])
        row = database.read_one(f"SELECT sum({columns}) FROM holdfast_counts{where}", parameters)
        return min(row[0] or 0, cap)
    if filter.statuses == (RETRYING,) and filter.parent_id is None and filter.before is None:
        retrying = count_retrying(database)
        return min(sum(retrying.values()) if filter.type is None else retrying.get(filter.type, 0), cap)
    where, parameters = conditions(filter)
    sql = f"SELECT count(*) FROM (SELECT 1 FROM holdfast_jobs{where} LIMIT ?)"
    return int(database.read_one(sql, (*parameters, cap))[0])


def count_retrying(database: Database) -> dict[str, int]:
    return dict(
        database.read(
            "SELECT type, count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_retrying"
            " WHERE status = 'scheduled' AND attempts > 0 GROUP BY type"
        )
    )


def count_finished(database: Database, since: int) -> dict[str, dict[Status, int]]:
    counts: dict[str, dict[Status, int]] = {}
    for type, status, count in database.read(
        "SELECT type, status, count(*) FROM holdfast_jobs INDEXED BY holdfast_jobs_finished"
        " WHERE finished_at IS NOT NULL AND finished_at >= ? GROUP BY type, status ORDER BY type",
        (since,),
    ):
        counts.setdefault(type, {})[Status(status)] = count
    return counts


def list_running(database: Database, limit: int) -> list[Running]:
    rows = database.read(
        "SELECT id, type, worker_id, attempts, started_at, lease_expires_at, cancel_requested"
        " FROM holdfast_jobs WHERE status = 'processing' ORDER BY lease_expires_at LIMIT ?",
        (limit,),
    )
    return [
        Running(
            id=id,
            type=type,
            worker_id=worker_id,
            attempt=attempt,
            started_at=to_datetime(started_at),
            lease_expires_at=to_datetime(lease_expires_at),
            cancel_requested=bool(cancel_requested),
        )
        for id, type, worker_id, attempt, started_at, lease_expires_at, cancel_requested in rows
    ]


def oldest_waiting(database: Database) -> Waiting | None:
    row = database.read_one(OLDEST)
    return Waiting(id=row[0], type=row[1], since=to_datetime(row[2])) if row else None


def list_reused_keys(database: Database, limit: int) -> list[ReusedKey]:
    rows = database.read(
        "SELECT type, key, count(*) AS jobs FROM holdfast_jobs WHERE key IS NOT NULL"
        " GROUP BY type, key HAVING jobs > 1 ORDER BY jobs DESC, type, key LIMIT ?",
        (limit,),
    )
    return [ReusedKey(type=type, key=key, jobs=jobs) for type, key, jobs in rows]
