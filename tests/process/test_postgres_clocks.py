"""Two machines with clocks two days apart work one queue: only the database's clock counts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from datetime import timedelta
from glob import glob

import pytest

from holdfast import Queue
from holdfast.core.clock import SECOND, to_datetime
from holdfast.store.open import store_of
from tests.process.postgres_database import PostgresDatabase
from tests.process.programs import ROOT, Program, Programs
from tests.support import wait_until

LIBRARY = [*glob("/usr/lib/*/faketime/libfaketime.so.1"), *glob("/usr/lib*/faketime/libfaketime.so.1")]
DAY = 86_400.0
CLOCKS = {"fast": "+1d", "slow": "-1d"}
LEASE, SWEEP = 3.0, 0.5
DELAY = 1.0
SLACK = 30.0
"""Seconds that a busy machine may take for what it does at once."""

DEFAULTS: dict[str, object] = {
    "lease_seconds": LEASE,
    "heartbeat_interval": SWEEP,
    "backoff_strategy": "fixed",
    "backoff_factor": DELAY,
    "backoff_jitter": 0,
}

pytestmark = [
    pytest.mark.skipif(not LIBRARY, reason="libfaketime is missing: apt-get install faketime"),
    pytest.mark.parametrize("defaults", [DEFAULTS]),
]


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


def clock(name: str) -> dict[str, str]:
    """What gives a process another idea of the time of day. Durations stay as they are."""
    return {"LD_PRELOAD": LIBRARY[0], "FAKETIME": CLOCKS[name], "FAKETIME_DONT_FAKE_MONOTONIC": "1"}


def start_workers(programs: Programs) -> dict[str, Program]:
    workers = {name: programs.start("worker", environment=clock(name), concurrency=4) for name in CLOCKS}

    def started() -> bool:
        return len(programs.log.events("worker.started")) == len(workers)

    wait_until(lambda: started() or not all(w.is_running for w in workers.values()), message="the workers")
    for worker in workers.values():
        assert worker.is_running, worker.errors()
    return workers


def check_clocks_differ(programs: Programs, workers: dict[str, Program]) -> None:
    """By what they wrote themselves; or the test would show nothing."""
    offset = time.time() - time.monotonic()
    for name, worker in workers.items():
        lines = programs.log.events("worker.started", pid=worker.pid)
        skews = {round((line["at"] - line["tick"] - offset) / DAY) for line in lines}
        assert skews == {1 if name == "fast" else -1}


def ticks(programs: Programs, what: str, job: str) -> list[float]:
    return [line["tick"] for line in programs.log.lines(what) if line["job"] == job]


def test_delays_retries_and_leases_follow_the_clock_of_the_database(
    queue: Queue, programs: Programs, database: PostgresDatabase
) -> None:
    began_at = store_of(queue).now()
    workers = start_workers(programs)
    check_clocks_differ(programs, workers)
    began = time.monotonic()
    delayers = [programs.start("enqueue_delayed", environment=clock(name), seconds=DELAY) for name in CLOCKS]
    due = {
        queue.enqueue("work", run_at=to_datetime(store_of(queue).now()) + timedelta(seconds=DELAY)).id: began
    }
    long = [queue.enqueue("hold", {"seconds": 1.5 * LEASE}).id for _ in range(4)]
    failing = queue.enqueue("fail_first").id
    for delayer in delayers:
        assert delayer.wait() == 0, delayer.errors()
        due[delayer.accepted()[0]] = began
    wait_until(lambda: database.unfinished() == 0, message="all is done")

    for job, earliest in due.items():
        [start] = ticks(programs, "start", job)
        assert DELAY <= start - earliest < DELAY + 2 * SLACK, job
    [raised] = ticks(programs, "raised", failing)
    assert DELAY <= ticks(programs, "start", failing)[1] - raised < DELAY + SLACK
    jobs = database.jobs()
    assert {jobs[job].attempts for job in (*due, *long)} == {1}
    assert programs.log.events("job.reaped") == []
    fast, slow = status(queue, "fast"), status(queue, "slow")
    assert fast == slow
    assert (fast["completed"], fast["workers"], fast["stuck"]) == (len(jobs), 2, [])
    for worker in workers.values():
        worker.stop()
    check_instants(database, began_at, store_of(queue).now())
    check_statistics(database, began_at, store_of(queue).now(), completed=len(jobs), retried=1)
    programs.check_no_traceback()


def check_instants(database: PostgresDatabase, earliest: int, latest: int) -> None:
    """Everything that was written of the past lies in it."""
    for table, columns in {
        "holdfast_jobs": ("created_at", "updated_at", "started_at", "finished_at", "due_at"),
        "holdfast_failures": ("started_at", "finished_at"),
    }.items():
        for column in columns:
            [(first, last)] = database.query(f"SELECT min({column}), max({column}) FROM {table}")
            assert earliest <= first <= last <= latest, f"{table}.{column}"


def check_statistics(
    database: PostgresDatabase, earliest: int, latest: int, *, completed: int, retried: int
) -> None:
    minute = 60 * SECOND
    [(first, last, *sums)] = database.query(
        "SELECT min(minute), max(minute), sum(completed), sum(retried), sum(reaped), max(wait_seconds),"
        " max(run_seconds) FROM holdfast_statistics"
    )
    assert earliest // minute <= first <= last <= latest // minute
    assert sums[:3] == [completed, retried, 0]
    assert all(0 <= seconds < 60 for seconds in sums[3:])


def test_a_killed_workers_job_is_taken_over_in_time_and_those_of_the_living_are_not(
    queue: Queue, programs: Programs, database: PostgresDatabase
) -> None:
    store_of(queue).now()
    workers = start_workers(programs)
    jobs = [queue.enqueue("hold", {"seconds": 1.5 * LEASE}).id for _ in range(6)]
    wait_until(lambda: len(programs.log.starts()) == len(jobs), message="all run")
    by_worker = {start.job: start.worker for start in programs.log.starts()}
    assert set(by_worker.values()) == {worker.pid for worker in workers.values()}
    dead = workers["fast"]
    killed = time.monotonic()
    programs.kill(dead)
    lost = [job for job in jobs if by_worker[job] == dead.pid and not programs.log.ended(job, 1)]
    assert lost
    wait_until(lambda: all(len(ticks(programs, "start", job)) == 2 for job in lost), message="taken over")
    for job in lost:
        assert ticks(programs, "start", job)[1] - killed < LEASE + 2 * SWEEP + 1 + SLACK
    wait_until(lambda: database.unfinished() == 0, message="all is done")
    workers["slow"].stop()
    final = database.jobs()
    assert {job for job in jobs if final[job].attempts > 1} == set(lost)
    programs.check_no_traceback()


def status(queue: Queue, name: str) -> dict[str, object]:
    """What `queuectl status` says on a machine with such a clock."""
    command = [sys.executable, "-m", "holdfast.cli", "status", "--json"]
    environment = {**os.environ, "QUEUECTL_DATABASE_URL": queue.url, **clock(name)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True)
    found: dict[str, object] = json.loads(done.stdout)
    return found
