"""The part of a store that only reads, and is the same SQL on every engine."""

from __future__ import annotations

import json
from abc import ABC
from collections.abc import Collection, Sequence
from typing import Any

from holdfast.config import Value
from holdfast.core.clock import Clock
from holdfast.core.job import FINISHED, Failure, Job, Status
from holdfast.core.starting import MOST_LOSSES
from holdfast.store import pages
from holdfast.store.database import Database
from holdfast.store.records import (
    ErrorGroup,
    Expired,
    GroupActivity,
    JobFilter,
    JobsAhead,
    Minute,
    Place,
    Placed,
    ReusedKey,
    Running,
    StopRequest,
    StoredSettings,
    TypeRecord,
    Waiting,
    WorkerRecord,
)
from holdfast.store.rows import (
    BRIEF_COLUMNS,
    ERROR_GROUP,
    EXPIRED_COLUMNS,
    FAILURE,
    JOB_COLUMNS,
    MINUTE,
    RUNNING,
    TYPE,
    WAITING,
    WORKER,
    Stored,
    T,
    job_from,
)

_LEASED = f"SELECT {EXPIRED_COLUMNS} FROM holdfast_jobs WHERE status = 'processing' AND"
EXPIRED = f"""
WITH {{clock}} {_LEASED} lease_expires_at <= (SELECT now FROM clock) ORDER BY lease_expires_at LIMIT 1000
"""

# Jobs that have lost two workers in a row: each waits until a worker has nothing else to run.
SUSPECT_TYPES = f"""
SELECT DISTINCT type FROM (
    SELECT type FROM holdfast_jobs {{by_index}} WHERE status = 'pending' AND losses >= {MOST_LOSSES}
    ORDER BY priority DESC, seq LIMIT 1000) AS suspects
"""

OLDEST = f"SELECT {WAITING.columns} FROM holdfast_jobs WHERE status = 'pending' ORDER BY due_at, seq LIMIT 1"

# In one statement: a retry that becomes due meanwhile must not be missed in both. From type to type by leaps:
# any number of jobs of one may wait for a retry.
_BUSY_TYPES = """
WITH RECURSIVE retrying (type) AS (
    SELECT (SELECT j.type FROM holdfast_jobs AS j {by_index}
        WHERE j.status = 'scheduled' AND j.attempts > 0 AND j.type > '' ORDER BY j.type LIMIT 1)
    UNION ALL
    SELECT (SELECT j.type FROM holdfast_jobs AS j {by_index}
        WHERE j.status = 'scheduled' AND j.attempts > 0 AND j.type > retrying.type ORDER BY j.type LIMIT 1)
    FROM retrying WHERE retrying.type IS NOT NULL)
SELECT type FROM holdfast_counts WHERE pending > 0 OR processing > 0
UNION SELECT type FROM retrying WHERE type IS NOT NULL
"""

_SETTINGS = """
SELECT 'setting', name, type, value FROM holdfast_settings
UNION ALL SELECT 'pause', NULL, type, NULL FROM holdfast_pauses
UNION ALL SELECT 'version', NULL, NULL, CAST(settings_version AS text) FROM holdfast_schema
"""

NEXT_DUE = "SELECT due_at FROM holdfast_jobs WHERE status = 'scheduled' ORDER BY due_at LIMIT 1"

_GROUPS_READ = 100_000
# Of the jobs that wait so many at most are read, those first that are claimed first of their types.
BUSIEST_GROUPS = f"""
WITH parts (type, name, waiting, running) AS (
    SELECT type, "group", 1, 0 FROM (
        SELECT type, "group" FROM holdfast_jobs {{by_waiting}}
        WHERE status = 'pending' AND "group" IS NOT NULL
        ORDER BY type, priority DESC, "group", {{seq}} LIMIT {_GROUPS_READ}) AS waiting
    UNION ALL
    SELECT type, "group", 0, 1 FROM holdfast_jobs {{by_running}}
    WHERE status = 'processing' AND "group" IS NOT NULL)
SELECT type, name, sum(waiting), sum(running) FROM parts GROUP BY type, name
ORDER BY count(*) DESC, type, name LIMIT ?
"""

_FINISHED = """
SELECT counts.type, states.value,
    (SELECT count(*) FROM holdfast_jobs {by_index}
    WHERE type = counts.type AND status = states.value AND finished_at IS NOT NULL AND finished_at >= ?)
FROM holdfast_counts AS counts CROSS JOIN {elements} AS states ORDER BY counts.type
"""


class Reads(ABC):
    """The reading half of a Store; see the protocol."""

    database: Database
    now: Clock
    _oldest = OLDEST
    _next_due = NEXT_DUE
    _count_ahead: str
    """Counts the pending jobs that come before one of the same type, up to a number."""

    def _instant(self) -> int | None:
        """The present instant as a parameter: None lets the server's own clock decide."""
        return self.now()

    # The turn.

    def next_due_at(self) -> int | None:
        """When the first scheduled job is due."""
        row = self.database.read_one(self._next_due)
        return row[0] if row else None

    def list_busy_types(self) -> set[str]:
        """The types that have a job that is pending, running or waiting for a retry."""
        sql = _BUSY_TYPES.format(by_index=self.database.by_index("holdfast_jobs_retrying"))
        return {row[0] for row in self.database.read(sql)}

    def list_suspect_types(self) -> set[str]:
        """The types of the pending jobs that have lost two workers in a row, and have to run alone."""
        sql = SUSPECT_TYPES.format(by_index=self.database.by_index("holdfast_jobs_suspect"))
        return {row[0] for row in self.database.read(sql)}

    def count_losses(self, job_id: str) -> int:
        """How many workers in a row were lost while they ran a job."""
        row = self.database.read_one("SELECT losses FROM holdfast_jobs WHERE id = ?", (job_id,))
        return int(row[0]) if row else 0

    def list_expired(self) -> list[Expired]:
        rows = self.database.read(EXPIRED.format(clock=self.database.clock), (self._instant(),))
        return [Expired(*row) for row in rows]

    def list_held(self, worker_id: str) -> list[Expired]:
        """The attempts that the database says a worker holds."""
        return [Expired(*row) for row in self.database.read(f"{_LEASED} worker_id = ?", (worker_id,))]

    def list_ended(self, attempts: Collection[tuple[int, int]]) -> dict[tuple[int, int], Status]:
        """Which of the (seq, version) have ended, and in which state their jobs are since."""
        rows = self.database.read(
            "SELECT seq, version, status FROM holdfast_jobs"
            f" WHERE seq {self.database.among_numbers} AND status || '' <> 'processing'",
            (json.dumps([seq for seq, _ in attempts]),),
        )
        return {(seq, v): Status(status) for seq, v, status in rows if (seq, v) in attempts}

    # Jobs.

    def get_jobs(self, job_ids: Sequence[str]) -> list[Job]:
        """Those of the jobs that exist, brief and without their history, in no order."""
        rows = self.database.read(
            f"SELECT {BRIEF_COLUMNS} FROM holdfast_jobs WHERE id {self.database.among_texts}",
            (_ids(job_ids),),
        )
        return [job_from(row) for row in rows]

    def get_job(self, job_id: str) -> Job | None:
        row = self.database.read_one(f"SELECT {JOB_COLUMNS} FROM holdfast_jobs WHERE id = ?", (job_id,))
        if row is None:
            return None
        failures = self._records(FAILURE, "holdfast_failures WHERE seq = ? ORDER BY version", row[0])
        return job_from(row, tuple(failures))

    def get_whole_jobs(self, job_ids: Sequence[str], most: int) -> list[Job]:
        """Those of the jobs that exist, with all that they hold, in the order asked for.

        Large ones end it early: no more than hold `most` characters together, but always the first.
        """
        sizes = self._sizes(job_ids)
        chosen: list[str] = []
        for job_id in dict.fromkeys(job_ids):
            if job_id in sizes:
                most -= sizes[job_id]
                if chosen and most < 0:
                    break
                chosen.append(job_id)
        rows = self.database.read(
            f"SELECT {JOB_COLUMNS} FROM holdfast_jobs WHERE id {self.database.among_texts}", (_ids(chosen),)
        )
        histories: dict[int, list[Failure]] = {row[0]: [] for row in rows}
        for seq, *failure in self.database.read(
            f"SELECT seq, {FAILURE.columns} FROM holdfast_failures"
            f" WHERE seq {self.database.among_numbers} ORDER BY seq, version",
            (json.dumps(list(histories)),),
        ):
            histories[seq].append(FAILURE.read(failure))
        jobs = [job_from(row, tuple(histories[row[0]])) for row in rows]
        found = {job.id: job for job in jobs}
        return [found[job_id] for job_id in chosen if job_id in found]

    def job_size(self, job_id: str) -> int:
        """Characters of a job's payload, result and details of failures; 0 if there is no such job."""
        return self._sizes([job_id]).get(job_id, 0)

    def _sizes(self, job_ids: Sequence[str]) -> dict[str, int]:
        rows = self.database.read(
            "SELECT id, length(payload) + coalesce(length(result), 0)"
            " + (SELECT coalesce(sum(length(detail)), 0) FROM holdfast_failures"
            f" WHERE seq = holdfast_jobs.seq) FROM holdfast_jobs WHERE id {self.database.among_texts}",
            (_ids(job_ids),),
        )
        return {id: int(size) for id, size in rows}

    def list_jobs(self, filter: JobFilter) -> list[Job]:
        """The jobs that a filter finds, without their history."""
        return [placed.job for placed in self.list_placed(filter)[0]]

    def list_placed(self, filter: JobFilter) -> tuple[list[Placed], Place | None]:
        """The same, each job with its place, and the `after` of the page after it; None if there is none.

        However deep, a page costs the same, and no job that stays where it is is missed or shown twice.
        """
        return pages.list_placed(self.database, filter)

    def list_payloads(self, job_ids: Sequence[str]) -> dict[str, Any]:
        """The payloads of those of the jobs that exist."""
        rows = self.database.read(
            f"SELECT id, payload FROM holdfast_jobs WHERE id {self.database.among_texts}",
            (_ids(job_ids),),
        )
        return {id: json.loads(payload) for id, payload in rows}

    def list_children(self, parent_id: str) -> list[str]:
        """The ids of the jobs that a job enqueued, or was linked to."""
        rows = self.database.read(
            "SELECT id FROM holdfast_jobs WHERE parent_id = ?1"
            " UNION SELECT id FROM holdfast_links AS l JOIN holdfast_jobs ON id = l.child_id"
            " WHERE l.parent_id = ?1",
            (parent_id,),
        )
        return sorted(row[0] for row in rows)

    # How many.

    def count_ahead(self, job_id: str, cap: int) -> JobsAhead:
        count = self.database.read_one(self._count_ahead, (job_id, cap + 1))[0]
        return JobsAhead(min(count, cap), count > cap)

    def list_error_groups(self, limit: int) -> list[ErrorGroup]:
        """The failed jobs by type and error, largest group first; from stored counts."""
        largest = "ORDER BY jobs DESC, last_at DESC, type DESC, error_group DESC LIMIT ?"
        return self._records(ERROR_GROUP, f"holdfast_errors {largest}", max(0, limit))

    def count_jobs(self) -> dict[str, dict[Status, int]]:
        """Jobs by type and state; exact, from stored counts."""
        columns = ", ".join(Status)
        rows = self.database.read(f"SELECT type, {columns} FROM holdfast_counts ORDER BY type")
        return {type: dict(zip(Status, counts, strict=True)) for type, *counts in rows if any(counts)}

    def count_enqueued(self) -> dict[str, int]:
        """How many jobs of each type were ever inserted; never falls."""
        return dict(self.database.read("SELECT type, enqueued FROM holdfast_counts ORDER BY type"))

    def count_matching(self, filter: JobFilter, cap: int) -> int:
        """How many jobs a filter finds, whatever its limit and offset; stops counting at `cap`."""
        return pages.count_matching(self.database, filter, cap)

    def count_retrying(self) -> dict[str, int]:
        """How many jobs are waiting for a retry, by type."""
        return dict(
            self.database.read(
                f"SELECT type, count(*) FROM holdfast_jobs {self.database.by_index('holdfast_jobs_retrying')}"
                " WHERE status = 'scheduled' AND attempts > 0 GROUP BY type"
            )
        )

    def busiest_groups(self, limit: int) -> list[GroupActivity]:
        """The groups with most jobs that wait or run, of each type; of a million that wait, of the first."""
        words = self.database
        sql = BUSIEST_GROUPS.format(
            by_waiting=words.by_index("holdfast_jobs_grouped"),
            by_running=words.by_index("holdfast_jobs_busy_groups"),
            seq=words.seq_within,
        )
        return [
            GroupActivity(type=type, group=group, waiting=int(waiting), running=int(running))
            for type, group, waiting, running in words.read(sql, (max(0, limit),))
        ]

    def count_finished(self, since: int) -> dict[str, dict[Status, int]]:
        """How many jobs finished since then, by type and state."""
        counts: dict[str, dict[Status, int]] = {}
        sql = _FINISHED.format(
            by_index=self.database.by_index("holdfast_jobs_finished"), elements=self.database.elements
        )
        for type, status, count in self.database.read(sql, (since, json.dumps(sorted(FINISHED)))):
            if count:
                counts.setdefault(type, {})[Status(status)] = count
        return counts

    def list_running(self, limit: int) -> list[Running]:
        """The running attempts, those first whose lease ends first."""
        running = "holdfast_jobs WHERE status = 'processing' ORDER BY lease_expires_at LIMIT ?"
        return self._records(RUNNING, running, limit)

    def oldest_waiting(self) -> Waiting | None:
        """The pending job that has been ready the longest."""
        row = self.database.read_one(self._oldest)
        return WAITING.read(row) if row else None

    def list_reused_keys(self, limit: int) -> list[ReusedKey]:
        rows = self.database.read(
            "SELECT type, key, count(*) AS jobs FROM holdfast_jobs WHERE key IS NOT NULL"
            " GROUP BY type, key HAVING count(*) > 1 ORDER BY jobs DESC, type, key LIMIT ?",
            (limit,),
        )
        return [ReusedKey(type=type, key=key, jobs=jobs) for type, key, jobs in rows]

    # What is kept beside the jobs.

    def list_workers(self) -> list[WorkerRecord]:
        return self._records(WORKER, "holdfast_workers ORDER BY started_at, id")

    def get_stop_request(self, worker_id: str) -> StopRequest:
        row = self.database.read_one("SELECT stop FROM holdfast_workers WHERE id = ?", (worker_id,))
        return StopRequest(row[0]) if row else StopRequest.NONE

    def list_types(self) -> list[TypeRecord]:
        return self._records(TYPE, "holdfast_types ORDER BY type")

    def read_reconciliation(self) -> str | None:
        row = self.database.read_one("SELECT report FROM holdfast_reconciliation")
        return None if row is None else row[0]

    def get_settings(self) -> dict[tuple[str, str], Value]:
        """Stored values by (name, type); the type is "" for the whole queue."""
        return self.read_settings().values

    def read_settings(self) -> StoredSettings:
        """The stored settings and the pauses, as of one moment."""
        rows = self.database.read(_SETTINGS)
        return StoredSettings(
            values={(name, type): json.loads(value) for kind, name, type, value in rows if kind == "setting"},
            paused=frozenset(type for kind, _, type, _ in rows if kind == "pause"),
            version=next(int(value) for kind, _, _, value in rows if kind == "version"),
        )

    def list_paused(self) -> dict[str, int]:
        """The paused types and since when; "" stands for all."""
        return dict(self.database.read("SELECT type, paused_at FROM holdfast_pauses"))

    def list_statistics(self, since_minute: int) -> list[Minute]:
        return self._records(
            MINUTE, "holdfast_statistics WHERE minute >= ? ORDER BY minute, type", since_minute
        )

    def _records(self, stored: Stored[T], rest: str, *parameters: Any) -> list[T]:
        """All of a kind, from a table."""
        rows = self.database.read(f"SELECT {stored.columns} FROM {rest}", parameters)
        return [stored.read(row) for row in rows]


def _ids(given: Sequence[str]) -> str:
    """Those that can be ids, as JSON: what is not printable is none."""
    return json.dumps([id for id in given if id.isprintable()])
