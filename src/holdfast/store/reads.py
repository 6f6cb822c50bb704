"""The part of a store that only reads, and is the same SQL on every engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from holdfast.config import Value
from holdfast.core.job import Job, Status
from holdfast.errors import JobNotFound
from holdfast.store import look, pages
from holdfast.store.protocol import (
    ErrorGroup,
    JobFilter,
    Minute,
    Place,
    Placed,
    ReusedKey,
    Running,
    StopRequest,
    TypeRecord,
    Waiting,
    WorkerRecord,
)
from holdfast.store.reader import Reader
from holdfast.store.rows import (
    BRIEF_COLUMNS,
    JOB_COLUMNS,
    failure_from,
    job_from,
    settings_from,
    worker_from,
)
from holdfast.store.statistics import STATISTICS_COLUMNS, minute_from


class Reads:
    """See Store in the protocol."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader

    def next_due_at(self) -> int | None:
        row = self._reader.read_one(
            "SELECT due_at FROM holdfast_jobs WHERE status = 'scheduled' ORDER BY due_at LIMIT 1"
        )
        return row[0] if row else None

    def list_busy_types(self) -> set[str]:
        return look.list_busy_types(self._reader)

    # Jobs.

    def get_jobs(self, job_ids: Sequence[str]) -> list[Job]:
        rows = self._reader.read(
            f"SELECT {BRIEF_COLUMNS} FROM holdfast_jobs WHERE id {self._reader.among_texts}",
            (_ids(job_ids),),
        )
        return [job_from(row) for row in rows]

    def get_job(self, job_id: str) -> Job | None:
        row = self._reader.read_one(f"SELECT {JOB_COLUMNS} FROM holdfast_jobs WHERE id = ?", (job_id,))
        if row is None:
            return None
        failures = self._reader.read(
            "SELECT attempt, started_at, finished_at, worker_id, error, traceback, detail"
            " FROM holdfast_failures WHERE seq = ? ORDER BY version",
            (row[0],),
        )
        return job_from(row, tuple(failure_from(failure) for failure in failures))

    def job_size(self, job_id: str) -> int:
        row = self._reader.read_one(
            "SELECT length(payload) + coalesce(length(result), 0) + (SELECT coalesce(sum(length(detail)), 0)"
            " FROM holdfast_failures WHERE seq = holdfast_jobs.seq) FROM holdfast_jobs WHERE id = ?",
            (job_id,),
        )
        return int(row[0]) if row else 0

    def known_job(self, job_id: str) -> Job:
        """The job, which must exist."""
        job = self.get_job(job_id)
        if job is None:
            raise JobNotFound(job_id)
        return job

    def list_jobs(self, filter: JobFilter) -> list[Job]:
        return self.list_page(filter)[0]

    def list_page(self, filter: JobFilter) -> tuple[list[Job], Place | None]:
        found, following = self.list_placed(filter)
        return [placed.job for placed in found], following

    def list_placed(self, filter: JobFilter) -> tuple[list[Placed], Place | None]:
        return pages.list_placed(self._reader, filter)

    def list_payloads(self, job_ids: Sequence[str]) -> dict[str, Any]:
        rows = self._reader.read(
            f"SELECT id, payload FROM holdfast_jobs WHERE id {self._reader.among_texts}",
            (_ids(job_ids),),
        )
        return {id: json.loads(payload) for id, payload in rows}

    # How many.

    def list_error_groups(self, limit: int) -> list[ErrorGroup]:
        return look.list_error_groups(self._reader, limit)

    def count_jobs(self) -> dict[str, dict[Status, int]]:
        columns = ", ".join(Status)
        rows = self._reader.read(f"SELECT type, {columns} FROM holdfast_counts ORDER BY type")
        return {type: dict(zip(Status, counts, strict=True)) for type, *counts in rows if any(counts)}

    def count_enqueued(self) -> dict[str, int]:
        return dict(self._reader.read("SELECT type, enqueued FROM holdfast_counts ORDER BY type"))

    def count_matching(self, filter: JobFilter, cap: int) -> int:
        return pages.count_matching(self._reader, filter, cap)

    def count_retrying(self) -> dict[str, int]:
        return look.count_retrying(self._reader)

    def count_finished(self, since: int) -> dict[str, dict[Status, int]]:
        return look.count_finished(self._reader, since)

    def list_running(self, limit: int) -> list[Running]:
        return look.list_running(self._reader, limit)

    def oldest_waiting(self) -> Waiting | None:
        return look.oldest_waiting(self._reader)

    def list_reused_keys(self, limit: int) -> list[ReusedKey]:
        return look.list_reused_keys(self._reader, limit)

    # What is kept beside the jobs.

    def list_workers(self) -> list[WorkerRecord]:
        rows = self._reader.read(
            "SELECT id, host, pid, state, concurrency, types, slots, started_at, heartbeat_at, turned_at"
            " FROM holdfast_workers ORDER BY started_at, id"
        )
        return [worker_from(row) for row in rows]

    def get_stop_request(self, worker_id: str) -> StopRequest:
        row = self._reader.read_one("SELECT stop FROM holdfast_workers WHERE id = ?", (worker_id,))
        return StopRequest(row[0]) if row else StopRequest.NONE

    def list_types(self) -> list[TypeRecord]:
        rows = self._reader.read("SELECT type, executor, schema FROM holdfast_types ORDER BY type")
        return [TypeRecord(type=type, executor=how, schema=json.loads(schema)) for type, how, schema in rows]

    def read_reconciliation(self) -> str | None:
        row = self._reader.read_one("SELECT report FROM holdfast_reconciliation")
        return None if row is None else row[0]

    def get_settings(self) -> dict[tuple[str, str], Value]:
        return settings_from(self._reader.read("SELECT name, type, value FROM holdfast_settings"))

    def list_paused(self) -> dict[str, int]:
        return dict(self._reader.read("SELECT type, paused_at FROM holdfast_pauses"))

    def list_statistics(self, since_minute: int) -> list[Minute]:
        rows = self._reader.read(
            f"SELECT {STATISTICS_COLUMNS} FROM holdfast_statistics WHERE minute >= ? ORDER BY minute, type",
            (since_minute,),
        )
        return [minute_from(row) for row in rows]


def _ids(given: Sequence[str]) -> str:
    """Those that can be ids, as JSON: what is not printable is none."""
    return json.dumps([id for id in given if id.isprintable()])
