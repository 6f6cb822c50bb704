"""Workers that stand still, by SIGSTOP or by a handler that keeps the interpreter lock.

A late attempt changes nothing, and a short pause costs nothing.
"""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.handlers.options import Defaults
from holdfast.store.open import store_of
from tests.process import oracle
from tests.process.oracle import Database
from tests.process.programs import Programs
from tests.support import wait_until

LEASE = 3.0
BEATS = 0.8
"""Seconds after a pause in which a worker has tried to renew, and written what it would write."""


@pytest.fixture
def defaults() -> Defaults:
    return {"lease_seconds": LEASE, "heartbeat_interval": 0.3}


class Scene:
    """Two late jobs in a worker that will stand still, one with a row and one without; and another worker."""

    def __init__(self, queue: Queue, programs: Programs, database: Database, folder: Path, type: str) -> None:
        self.programs = programs
        self.database = database
        self.go, self.done = folder / "go", folder / "done"
        store_of(queue).now()
        database.make_rows_table()
        self.with_row, self.without_row = (
            queue.enqueue(type, {"row": row, "go": str(self.go), "done": str(self.done)}).id
            for row in (True, False)
        )
        self.jobs = {self.with_row, self.without_row}
        self.paused = programs.worker()
        wait_until(lambda: len(programs.log.starts()) == len(self.jobs), message="all handlers run")
        self.other = programs.worker()

    def pause(self) -> None:
        self.programs.killed[self.paused.pid] = time.time()
        self.paused.signal(signal.SIGSTOP)

    def resume(self) -> None:
        self.paused.signal(signal.SIGCONT)

    def taken_over(self) -> set[str]:
        return {start.job for start in self.programs.log.starts() if start.attempt > 1}

    def let_late_attempts_write(self) -> None:
        self.go.touch()
        wait_until(
            lambda: all(self.programs.log.ended(job, 1) for job in self.jobs), message="late attempts end"
        )

    def finish(self) -> None:
        """End what took over, and see that everything there is was written by the last attempts."""
        time.sleep(BEATS)
        for job in self.taken_over():
            assert self.database.jobs()[job].status == "processing"
            wait_until(lambda job=job: self.database.jobs()[job].progress_message == "attempt 2")  # type: ignore[misc]
        self.done.touch()
        wait_until(lambda: self.database.unfinished() == 0, message="all is done")
        for worker in (self.paused, self.other):
            worker.stop()
        final = self.database.jobs()
        assert {job.status for job in final.values()} == {"completed"}
        assert self.database.rows() == [(self.with_row, final[self.with_row].attempts)]
        children = {
            (job.parent_id, json.loads(job.payload)["by"]) for job in final.values() if job.type == "leaf"
        }
        assert children == {(job, final[job].attempts) for job in self.jobs}
        assert len(final) == 2 * len(self.jobs)
        oracle.check_all(self.database, self.programs.log, accepted=self.jobs, stopped=self.programs.killed)
        self.programs.check_no_traceback()


@pytest.mark.parametrize("defaults", [{"lease_seconds": 60, "heartbeat_interval": 0.3}])
def test_a_pause_shorter_than_the_lease_costs_nothing(
    queue: Queue, programs: Programs, database: Database, tmp_path: Path
) -> None:
    scene = Scene(queue, programs, database, tmp_path, "late")
    scene.pause()
    time.sleep(1.0)
    scene.resume()
    time.sleep(BEATS)
    scene.let_late_attempts_write()
    scene.finish()
    assert scene.taken_over() == set()


def test_an_attempt_that_was_superseded_in_a_pause_changes_nothing(
    queue: Queue, programs: Programs, database: Database, tmp_path: Path
) -> None:
    scene = Scene(queue, programs, database, tmp_path, "late")
    scene.pause()
    wait_until(lambda: scene.taken_over() == scene.jobs, message="the other worker takes over")
    scene.resume()
    time.sleep(BEATS)
    scene.let_late_attempts_write()
    scene.finish()


@pytest.mark.parametrize("defaults", [{"lease_seconds": LEASE}])
def test_a_machine_that_was_suspended_takes_no_job_from_the_living(
    queue: Queue, programs: Programs, database: Database, tmp_path: Path
) -> None:
    """The other worker wakes first and finds the leases long expired; it looks again before it takes them."""
    scene = Scene(queue, programs, database, tmp_path, "late")
    scene.pause()
    scene.other.signal(signal.SIGSTOP)
    time.sleep(1.1 * LEASE)
    scene.other.signal(signal.SIGCONT)
    time.sleep(0.1)
    scene.resume()
    scene.let_late_attempts_write()
    scene.finish()
    assert scene.taken_over() == set()
    assert programs.log.events("job.reaped") == []


def test_a_handlers_process_that_goes_on_without_its_paused_worker_changes_nothing(
    queue: Queue, programs: Programs, database: Database, tmp_path: Path
) -> None:
    scene = Scene(queue, programs, database, tmp_path, "late_in_process")
    scene.pause()
    wait_until(lambda: scene.taken_over() == scene.jobs, message="the other worker takes over")
    scene.let_late_attempts_write()
    scene.resume()
    scene.finish()
    assert [line["error"] for line in programs.log.lines("raised")] == ["LeaseLost"]


def test_a_handler_that_keeps_the_interpreter_lock_is_survived(
    queue: Queue, programs: Programs, database: Database
) -> None:
    hog = queue.enqueue("hog", {"seconds": 5}).id
    hogged = programs.worker()
    wait_until(lambda: programs.log.starts(hog), message="the handler runs")
    programs.killed[hogged.pid] = time.time()  # it counts as paused
    other = programs.worker()
    wait_until(lambda: programs.log.ended(hog, 1), message="the handler lets go")
    wait_until(lambda: database.jobs()[hog].status == "completed", message="the job is done")
    other.stop()
    after = queue.enqueue("work").id
    wait_until(lambda: database.jobs()[after].status == "completed", message="the worker works on")
    assert [start.worker for start in programs.log.starts(after)] == [hogged.pid]
    hogged.stop()
    oracle.check_all(database, programs.log, accepted=[hog, after], stopped=programs.killed)
    programs.check_no_traceback()
