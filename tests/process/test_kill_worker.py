"""A worker killed in the middle of its handlers: nothing is lost, and nothing runs on without it."""

from __future__ import annotations

import pytest

from holdfast import Queue
from tests.process import oracle
from tests.process.oracle import Database
from tests.process.programs import Programs, is_alive
from tests.support import wait_until

LEASE = 3.0
SWEEP = 1.0
KINDS = ("hold", "hold_async", "hold_in_process")


def test_jobs_of_a_killed_worker_start_again_in_time(
    queue: Queue, programs: Programs, database: Database
) -> None:
    jobs = [queue.enqueue(kind, {"seconds": 600}).id for kind in KINDS for _ in range(3)]
    first = programs.worker(concurrency=len(jobs))
    wait_until(lambda: len(programs.log.starts()) == len(jobs), message="all handlers run")
    second = programs.worker(concurrency=len(jobs))
    programs.kill(first)
    wait_until(lambda: database.unfinished() == 0, message="all jobs are finished")
    assert {job.status for job in database.jobs().values()} == {"completed"}
    assert [start.worker for start in programs.log.starts()] == [first.pid] * 9 + [second.pid] * 9
    oracle.check_restarts(database, programs.log, programs.killed, lease=LEASE, sweep=SWEEP)
    second.stop()
    oracle.check_all(database, programs.log, accepted=jobs, stopped=programs.killed)
    for failures in database.failures().values():
        assert [failure.error.split(":")[0] for failure in failures] == ["WorkerLost"]
    programs.check_no_traceback()


@pytest.mark.parametrize(
    "defaults", [{"lease_seconds": LEASE, "heartbeat_interval": 0.3, "backoff_factor": 0.01}]
)
def test_poison_that_kills_every_worker_ends_failed_and_says_so(
    queue: Queue, programs: Programs, database: Database
) -> None:
    workers = [programs.worker(types=["poison"]) for _ in range(2)]
    healthy = programs.worker(types=["work"])
    poison = queue.enqueue("poison", max_attempts=2).id
    wait_until(lambda: database.jobs()[poison].status == "failed", message="the poison is given up")
    assert [worker.wait() for worker in workers] == [-9, -9]
    assert len(programs.log.starts(poison)) == 2
    failures = database.failures()[database.jobs()[poison].seq]
    assert [(failure.attempt, failure.error.split(":")[0]) for failure in failures] == [
        (1, "WorkerLost"),
        (2, "WorkerLost"),
    ]
    assert (database.jobs()[poison].error or "").startswith("WorkerLost")
    assert healthy.is_running
    healthy.stop()


@pytest.mark.parametrize("type", ["family", "hog_in_process"])
def test_processes_of_handlers_die_with_their_worker(
    queue: Queue, programs: Programs, type: str, database: Database
) -> None:
    """Also grandchildren, and a child that is deep in a C call which keeps its interpreter lock."""
    queue.enqueue(type, {"seconds": 600} if type == "hog_in_process" else {})
    worker = programs.worker()
    wait_until(lambda: programs.log.lines("family"), message="the handler runs")
    pids = programs.log.lines("family")[0]["pids"]
    assert all(is_alive(pid) for pid in pids)
    programs.kill(worker)
    wait_until(
        lambda: not any(is_alive(pid) for pid in pids), timeout=30, message=f"{pids} outlive their worker"
    )
