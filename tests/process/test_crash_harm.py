"""A crash harms only what was running: what was held ready loses no attempt, and neighbours are spared."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from tests.process import oracle
from tests.process.oracle import Database
from tests.process.programs import Program, Programs
from tests.support import both_engines, wait_until

LEASE, SWEEP = 3.0, 0.3
DEFAULTS: dict[str, object] = {
    "lease_seconds": LEASE,
    "heartbeat_interval": SWEEP,
    "backoff_factor": 0.01,
    "backoff_jitter": 0,
}
HELD = 500

pytestmark = [both_engines, pytest.mark.parametrize("defaults", [DEFAULTS])]


@pytest.fixture
def url(request: pytest.FixtureRequest, engine: str, tmp_path: Path) -> Iterator[str]:
    if engine == "postgres":
        yield request.getfixturevalue("postgres_url")
    else:
        yield f"sqlite:///{tmp_path / 'queue.db'}"


class Held:
    """A worker whose only slot is taken by one long job, with many quick ones held ready behind it."""

    def __init__(self, queue: Queue, programs: Programs, database: Database, seconds: float = 600) -> None:
        self._programs = programs
        self._database = database
        store_of(queue).now()
        self.long = queue.enqueue("hold", {"seconds": seconds}, max_attempts=2).id
        quick = queue.enqueue_many("work", [{}] * 2 * HELD, max_attempts=1)
        self.jobs = [self.long, *(job.id for job in quick)]
        self.worker = programs.worker(concurrency=1, holds=HELD)
        wait_until(lambda: programs.log.starts(self.long), message="the long job runs")
        wait_until(lambda: database.count("processing") == HELD + 1, message="the others are held ready")

    def wait_until_known(self) -> None:
        """Until a heartbeat has said that the long job has started."""
        sql = "SELECT count(*) FROM holdfast_jobs WHERE id = ? AND has_started"
        wait_until(lambda: self._database.query(sql, self.long) == [(1,)], message="a heartbeat")

    def finish(self, others: Program) -> None:
        wait_until(lambda: self._database.unfinished() == 0, message="all is done")
        others.stop()
        final = self._database.jobs()
        assert {job.status for job in final.values()} == {"completed"}
        attempts = {id: job.attempts for id, job in final.items() if job.attempts != 1}
        assert attempts == {self.long: 2}, "only what was running has lost an attempt"
        failures = self._database.failures()
        assert [*failures] == [final[self.long].seq]
        oracle.check_all(
            self._database, self._programs.log, accepted=self.jobs, stopped=self._programs.killed
        )
        self._programs.check_no_traceback()


def mark_of(worker: Program, programs: Programs) -> Path:
    [event] = programs.log.events("worker.started", pid=worker.pid)
    return Path(tempfile.gettempdir(), f"holdfast-{os.getuid()}", event["event_worker_id"])


def test_what_a_killed_worker_held_ready_loses_no_attempt(
    queue: Queue, programs: Programs, database: Database
) -> None:
    held = Held(queue, programs, database)
    programs.kill(held.worker)
    held.finish(programs.worker())
    assert database.query("SELECT id FROM holdfast_jobs WHERE losses > 0") == []


def test_what_a_lost_machine_held_ready_loses_no_attempt(
    queue: Queue, programs: Programs, database: Database
) -> None:
    """Nothing is left there but what its heartbeats said."""
    held = Held(queue, programs, database)
    held.wait_until_known()
    programs.kill(held.worker)
    mark_of(held.worker, programs).unlink()
    held.finish(programs.worker())


def test_what_a_suspended_worker_held_ready_loses_no_attempt_and_runs_once(
    queue: Queue, programs: Programs, database: Database
) -> None:
    held = Held(queue, programs, database, seconds=LEASE + 6)
    programs.killed[held.worker.pid] = time.time()
    held.worker.signal(signal.SIGSTOP)
    other = programs.worker()
    wait_until(lambda: database.unfinished() == 0, message="the other worker has done it all")
    resumed_at = time.time()
    held.worker.signal(signal.SIGCONT)
    wait_until(lambda: programs.log.ended(held.long, 1), message="the late attempt ends")
    held.worker.stop()
    held.finish(other)
    starts = [start for start in programs.log.starts() if start.worker == held.worker.pid]
    assert not [start for start in starts if start.at > resumed_at]


def test_job_whose_process_was_importing_its_handler_loses_no_attempt(
    queue: Queue, programs: Programs, database: Database, tmp_path: Path
) -> None:
    gate = tmp_path / "import"
    store_of(queue).now()
    job = queue.enqueue("quick", max_attempts=1).id
    worker = programs.worker(environment={"HOLDFAST_TEST_IMPORT_GATE": str(gate)})
    wait_until(Path(f"{gate}.importing").exists, message="the import")
    programs.kill(worker)
    other = programs.worker()
    wait_until(lambda: database.unfinished() == 0, message="it is done")
    other.stop()
    final = database.jobs()[job]
    assert (final.status, final.attempts) == ("completed", 1)
    assert not database.failures()
    programs.check_no_traceback()


def run_until_done(programs: Programs, database: Database, **options: int) -> None:
    """With one worker after another, as a supervisor does."""
    worker = programs.worker(**options)

    def is_done() -> bool:
        nonlocal worker
        if not worker.is_running:
            assert worker.wait() == -signal.SIGKILL
            programs.killed[worker.pid] = programs.log.starts()[-1].at
            worker = programs.worker(**options)
        return database.unfinished() == 0

    wait_until(is_done, timeout=90, message="all is done")
    worker.stop()


def test_job_that_kills_its_worker_takes_no_neighbour_with_it(
    queue: Queue, programs: Programs, database: Database
) -> None:
    store_of(queue).now()
    innocent = [queue.enqueue("work", {"seconds": 0.6}).id for _ in range(9)]
    poison = queue.enqueue("poison", {"seconds": 0.3}).id
    run_until_done(programs, database, concurrency=10)
    final = database.jobs()
    assert {final[id].status for id in innocent} == {"completed"}
    assert final[poison].status == "failed"
    assert (final[poison].error or "").startswith("WorkerLost")
    assert len(programs.log.starts(poison)) == 3
    last = programs.log.starts(poison)[-1]
    assert [start.job for start in programs.log.starts() if start.worker == last.worker].count(poison) == 1
    oracle.check_all(database, programs.log, accepted=[*innocent, poison], stopped=programs.killed)
    programs.check_no_traceback()


def test_job_that_kills_its_worker_beside_many_held_ready_harms_none_of_them(
    queue: Queue, programs: Programs, database: Database
) -> None:
    store_of(queue).now()
    jobs = [job.id for job in queue.enqueue_many("work", [{}] * HELD)]
    poison = queue.enqueue("poison").id
    jobs += [job.id for job in queue.enqueue_many("work", [{}] * HELD)]
    run_until_done(programs, database, concurrency=1, holds=HELD)
    final = database.jobs()
    assert {final[id].status for id in jobs} == {"completed"}
    assert final[poison].status == "failed"
    assert len(programs.log.starts(poison)) == 3
    oracle.check_all(database, programs.log, accepted=[*jobs, poison], stopped=programs.killed)
    programs.check_no_traceback()
