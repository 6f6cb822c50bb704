"""The oracle of the crash tests: checks the invariants from the handlers' log and the database.

It knows nothing of Holdfast but its tables: what it reads is what was committed, and what it compares that
with was written by the handlers and the killers themselves.
"""

from __future__ import annotations

import json
import sqlite3
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

STATES = {"scheduled", "pending", "processing", "completed", "failed", "cancelled"}
FINAL = {"completed", "failed", "cancelled"}
WAL_CAP = 64 * 1024 * 1024
SLOTS = 8
"""How many handlers a worker runs at a time where workers are paused."""
LATE = 30.0
"""Seconds by which a restart may miss its time."""


class Start(NamedTuple):
    """An attempt that began. `worker` is the worker's process, `pid` the handler's."""

    job: str
    attempt: int
    pid: int
    worker: int
    at: float


class Log:
    """What the handlers wrote."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self, what: str) -> list[dict[str, Any]]:
        if not self.path.exists():
            return []
        # A line that goes from one page of the file into the next may be seen by halves while it is written.
        text, _, _ = self.path.read_text().rpartition("\n")
        return [line for line in map(json.loads, text.splitlines()) if line["what"] == what]

    def starts(self, job: str | None = None) -> list[Start]:
        """Attempts in the order in which they began."""
        starts = [Start(*(line[field] for field in Start._fields)) for line in self.lines("start")]
        return [start for start in starts if job in (None, start.job)]

    def ended(self, job: str, attempt: int) -> bool:
        """Whether the handler of an attempt has returned or raised."""
        lines = self.lines("end") + self.lines("raised")
        return any((line["job"], line["attempt"]) == (job, attempt) for line in lines)

    def events(self, name: str, *, pid: int | None = None) -> list[dict[str, Any]]:
        """The workers' own events of a name."""
        return [line for line in self.lines("event") if line["name"] == name and pid in (None, line["pid"])]


class Row(NamedTuple):
    """A job as the database has it."""

    seq: int
    id: str
    type: str
    status: str
    attempts: int
    max_attempts: int | None
    version: int
    started_at: int | None
    error: str | None
    progress_message: str | None
    parent_id: str | None
    payload: str


class Failure(NamedTuple):
    seq: int
    version: int
    attempt: int
    started_at: int
    error: str


class Database:
    """A queue's file, read with plain SQL."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def query(self, sql: str, *parameters: object) -> list[Any]:
        with closing(sqlite3.connect(self.path, timeout=10)) as connection:
            connection.execute("PRAGMA wal_autocheckpoint = 0")
            return connection.execute(sql, parameters).fetchall()

    @contextmanager
    def kept_open(self) -> Iterator[None]:
        """Around many queries: each would else be the last to close the file, and so delete its WAL."""
        with closing(sqlite3.connect(self.path)) as connection:
            connection.execute("PRAGMA schema_version").fetchall()
            yield

    def write(self, sql: str) -> None:
        with closing(sqlite3.connect(self.path, timeout=10)) as connection, connection:
            connection.execute(sql)

    def jobs(self) -> dict[str, Row]:
        return {
            row[1]: Row(*row)
            for row in self.query(f"SELECT {', '.join(Row._fields)} FROM holdfast_jobs ORDER BY seq")
        }

    def failures(self) -> dict[int, list[Failure]]:
        """The failed attempts of each job, in order."""
        found = defaultdict(list)
        for row in self.query(f"SELECT {', '.join(Failure._fields)} FROM holdfast_failures ORDER BY version"):
            found[row[0]].append(Failure(*row))
        return found

    def count(self, *statuses: str) -> int:
        marks = ", ".join("?" * len(statuses))
        return int(
            self.query(f"SELECT count(*) FROM holdfast_jobs WHERE status IN ({marks})", *statuses)[0][0]
        )

    def unfinished(self) -> int:
        return self.count(*(STATES - FINAL))

    def rows(self) -> list[tuple[str, int]]:
        """What the handlers inserted: job and attempt."""
        return self.query("SELECT job, attempt FROM rows ORDER BY job")

    def make_rows_table(self) -> None:
        # No key: a second row of a job must be able to show itself.
        self.write("CREATE TABLE rows (job TEXT NOT NULL, attempt INTEGER NOT NULL)")

    def check_sound(self) -> None:
        """What lies beneath the tables is whole, and no larger than it may be."""
        assert self.query("PRAGMA integrity_check") == [("ok",)]
        self.check_size()

    def check_size(self) -> None:
        wal = self.path.with_name(self.path.name + "-wal")
        size = wal.stat().st_size if wal.exists() else 0
        assert size < WAL_CAP, f"the WAL has grown to {size:,} bytes"

    def close(self) -> None:
        """Nothing: each query has a connection of its own."""


# I1


def check_nothing_lost(database: Database, accepted: Collection[str]) -> None:
    """Every id that enqueue returned is there, in a legal state."""
    jobs = database.jobs()
    lost = set(accepted) - jobs.keys()
    assert not lost, f"{len(lost)} of {len(accepted)} accepted jobs are lost: {sorted(lost)[:5]}"
    assert {job.status for job in jobs.values()} <= STATES


# I2


def check_outcomes(database: Database, *, given_back: bool = False) -> None:
    """Each claim of a finished job has exactly one committed outcome, and the last one is final.

    A claim raises the version; a failed attempt leaves one record with its version, a completed one none.
    So the records of a completed job are versions 1 … n − 1, of a failed one 1 … n. Where claims are
    `given_back`, because their workers died before they started or nobody knew whether they were committed,
    versions may be missing but no attempts.
    """
    failures = database.failures()
    for job in database.jobs().values():
        versions = [failure.version for failure in failures[job.seq]]
        attempts = [failure.attempt for failure in failures[job.seq]]
        going_on = job.status in ("completed", "processing")
        assert attempts == list(range(1, job.attempts - going_on + 1)), f"{job}: outcomes {attempts}"
        assert len(set(versions)) == len(versions), f"{job}: outcomes of {versions}"
        assert max(versions, default=0) <= job.version - going_on, f"{job}: outcomes of {versions}"
        if not given_back:
            assert versions == attempts, f"{job}: outcomes of {versions}"
            assert job.attempts == job.version, job


# I3


def check_extra_starts(log: Log, stopped: Mapping[int, float]) -> None:
    """An attempt follows another only if that failed, or its worker was killed or paused, and after that.

    A worker may be paused in the moment between its look at the lease and the first line of the handler: for
    each of its slots one attempt may begin late.
    """
    raised = {(line["job"], line["attempt"]): line["at"] for line in log.lines("raised")}
    late: Counter[int] = Counter()
    for all_starts in _by_job(log).values():
        starts: list[Start] = []
        for start in all_starts:
            is_late = bool(starts) and start.attempt < starts[-1].attempt
            if is_late and start.at > stopped.get(start.worker, float("inf")):
                late[start.worker] += 1
            else:
                starts.append(start)
        for earlier, later in pairwise(starts):
            assert earlier.attempt < later.attempt, f"{later} began twice, or out of order after {earlier}"
            if raised.get((earlier.job, earlier.attempt), later.at) < later.at:
                continue
            assert earlier.worker in stopped, f"{later} though the worker of {earlier} lives"
            assert later.at > stopped[earlier.worker], f"{later} began before the worker of {earlier} died"
    assert all(count <= SLOTS for count in late.values()), f"late starts by worker: {late}"


# I5


def check_attempt_limits(database: Database, log: Log) -> None:
    starts = _by_job(log)
    for job in database.jobs().values():
        assert job.max_attempts is not None or job.attempts == 0, job
        assert len(starts[job.id]) <= job.attempts <= (job.max_attempts or 0), f"{job}: {starts[job.id]}"


# I11


def check_charges(
    database: Database, log: Log, *, killed: int = 0, handed_over: Collection[str] = ("work_in_process",)
) -> None:
    """An attempt is charged if, and only if, its handler started."""
    silent = silent_starts(database, log, handed_over)
    assert len(silent) <= silent_at_most(killed), f"charged for no start: {silent}"


def silent_at_most(killed: int) -> float:
    """A start is noted in the instant before the handler is called, which then writes its own line: of those
    killed, one in twenty may have died in between, and one of however few."""
    return max(1, killed / 20)


def silent_starts(
    database: Database, log: Log, handed_over: Collection[str] = ("work_in_process",)
) -> list[tuple[Row, int]]:
    """The attempts that were charged and have no line. Those of the types that are `handed_over` to another
    process are left out: they are noted before it imports the application."""
    starts: dict[str, set[int]] = defaultdict(set)
    for start in log.starts():
        starts[start.job].add(start.attempt)
    silent = []
    for job in database.jobs().values():
        charged = set(range(1, job.attempts + 1))
        assert starts[job.id] <= charged, f"{job} was not charged for all of {starts[job.id]}"
        assert job.status != "failed" or starts[job.id], f"{job} failed without ever having started"
        if job.type not in handed_over:
            silent += [(job, attempt) for attempt in charged - starts[job.id]]
    return silent


# I6


def check_limits_now(database: Database, limits: Mapping[str, int]) -> None:
    """To be called while the work goes on."""
    running = dict(
        database.query("SELECT type, count(*) FROM holdfast_jobs WHERE status = 'processing' GROUP BY type")
    )
    for type, limit in limits.items():
        assert running.get(type, 0) <= limit, f"{running[type]} of {type} run, {limit} may"
    twice = database.query(
        "SELECT type, key FROM holdfast_jobs WHERE key IS NOT NULL"
        " AND status IN ('scheduled', 'pending', 'processing') GROUP BY type, key HAVING count(*) > 1"
    )
    assert not twice, f"held twice: {twice}"


def check_rate(database: Database, type: str, rate: float) -> None:
    """Starts in any t seconds ≤ rate × t + max(1, rate), by the instants of all claims."""
    jobs = {job.seq: job for job in database.jobs().values() if job.type == type}
    failures = database.failures()
    starts = [failure.started_at for seq in jobs for failure in failures[seq]]
    starts += [job.started_at for job in jobs.values() if job.status == "completed" and job.started_at]
    starts.sort()
    # How far the count of starts is ahead of rate × time: the worst window ends here and begins at the least.
    least = float("inf")
    for index, at in enumerate(starts):
        ahead = index - rate * at / 1e6
        least = min(least, ahead)
        assert ahead - least + 1 <= max(1.0, rate) + 1e-6, f"{type} began too often, up to {at}"


# I7


def check_restarts(
    database: Database,
    log: Log,
    killed: Mapping[int, float],
    *,
    lease: float,
    sweep: float,
    not_before: float = 0.0,
) -> None:
    """What ran on a killed worker starts again soon after lease + 2 sweeps; from `not_before` on.

    That is without the back-off, which has to be small. How soon is for the benchmarks to say: here a machine
    that has other things to do is no reason to fail.
    """
    bound = lease + 2 * sweep + LATE
    delays = []
    jobs = database.jobs()
    for starts in _by_job(log).values():
        for index, start in enumerate(starts):
            again = starts[index + 1] if index + 1 < len(starts) else None
            if start.worker in killed and again is not None:
                delays.append(again.at - max(killed[start.worker], not_before))
            elif start.worker in killed:
                assert jobs[start.job].status in FINAL, f"{jobs[start.job]} did not start again"
    late = sorted(delay for delay in delays if delay > bound)
    assert not late, f"{len(late)} of {len(delays)} started again late: {late}"


# I8


def check_file(database: Database) -> None:
    database.check_sound()
    check_counts(database)


def check_counts(database: Database) -> None:
    """What is kept beside the jobs fits them: the counts by state, and no history without its job."""
    counted = defaultdict(int)
    for type, status, count in database.query(
        "SELECT type, status, count(*) FROM holdfast_jobs GROUP BY 1, 2"
    ):
        counted[type, status] = count
    names = sorted(STATES)
    for type, *counts in database.query(f"SELECT type, {', '.join(names)} FROM holdfast_counts"):
        assert counts == [counted.pop((type, name), 0) for name in names], type
    assert not counted
    assert not database.query(
        "SELECT seq FROM holdfast_failures WHERE seq NOT IN (SELECT seq FROM holdfast_jobs)"
    )


def check_all(
    database: Database,
    log: Log,
    *,
    accepted: Collection[str],
    stopped: Mapping[int, float],
    given_back: bool = False,
) -> None:
    """I1 to I5, I8 and I11, when the faults are over and all is done. The others need to know more."""
    check_nothing_lost(database, accepted)
    assert database.unfinished() == 0
    check_outcomes(database, given_back=given_back or bool(stopped))
    check_extra_starts(log, stopped)
    check_attempt_limits(database, log)
    check_charges(database, log, killed=len(stopped))
    check_file(database)


# Exactly once


def check_rows(database: Database) -> None:
    """The last attempt of each completed job that inserts rows has inserted one, and nobody else has."""
    inserting = [job for job in database.jobs().values() if job.type.startswith("insert_row")]
    assert inserting
    wanted = sorted((job.id, job.attempts) for job in inserting if job.status == "completed")
    assert database.rows() == wanted


def check_marks(database: Database, refused: Iterable[str]) -> None:
    """No job that carries a mark is there twice, or though its producer was told that it was refused."""
    marks = Counter(json.loads(job.payload).get("mark") for job in database.jobs().values())
    del marks[None]
    assert marks
    assert set(marks.values()) == {1}, [mark for mark, count in marks.items() if count > 1]
    there = [line for line in refused if line.split()[0] in marks]
    assert not there, f"refused, and there all the same: {there}"


def _by_job(log: Log) -> Mapping[str, Sequence[Start]]:
    """The starts of each job that count: one that a worker gave back as it stopped is made again."""
    found: dict[str, list[Start]] = defaultdict(list)
    interrupted = {
        (line["job"], line["attempt"], line["worker"])
        for line in log.lines("raised")
        if line["error"] == "Interrupted"
    }
    for start in _in_order(log):
        starts = found[start.job]
        if starts and starts[-1].attempt == start.attempt and _name(starts[-1]) in interrupted:
            starts.pop()
        starts.append(start)
    return found


def _name(start: Start) -> tuple[str, int, int]:
    return start.job, start.attempt, start.worker


def _in_order(log: Log) -> Iterator[Start]:
    yield from sorted(log.starts(), key=lambda start: (start.job, start.at))
