"""Errors at single writes: a full or failing disk is told by an error of ours, never by an acknowledgement.

Each fault is tried at each of the first forty writes, and at each sync: for a moment, after which the same
process must get through, and for good, after which another one must.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from tests.process import oracle
from tests.process.conftest import DEFAULTS
from tests.process.faults import Run, Scenario, Scenarios, faults
from tests.process.oracle import Database
from tests.process.programs import Programs
from tests.support import wait_until

POINTS = 40
FAULTS = [("pwrite64", "ENOSPC", POINTS), ("pwrite64", "EIO", POINTS), ("fdatasync,fsync", "EIO", 10)]
JOBS = 3


@pytest.fixture(scope="module")
def scenarios(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scenarios]:
    with closing(Scenarios(tmp_path_factory.mktemp("scenarios"), DEFAULTS)) as scenarios:
        yield scenarios


@pytest.fixture
def before(queue: Queue, database: Database) -> Path:
    store_of(queue).now()
    database.make_rows_table()
    return database.path


def check_told_the_truth(run: Run) -> None:
    """Errors are ours, what was acknowledged is there, and the next process gets through."""
    assert all(
        error.startswith(("StoreUnavailable", "CommitUncertain")) for error in run.program.refused()
    ), run
    assert "sqlite3" not in run.program.errors(), run
    with Queue(f"sqlite:///{run.database.path}") as queue:
        added = queue.enqueue("after_the_fault").id
    with run.database.kept_open():
        oracle.check_file(run.database)
        oracle.check_nothing_lost(run.database, [added, *run.program.accepted()])
        stored = len(run.database.jobs()) - 1
    # An enqueue that was refused may be stored all the same; nothing else may.
    extra = stored - len(run.program.accepted())
    assert 0 <= extra <= len(run.program.refused()), run


@pytest.mark.parametrize(("call", "error", "points"), FAULTS)
def test_enqueue_gets_through_when_the_fault_ends(
    scenarios: Scenarios, tmp_path: Path, before: Path, queue: Queue, call: str, error: str, points: int
) -> None:
    queue.close()

    def check(run: Run) -> None:
        check_told_the_truth(run)
        assert len(run.program.accepted()) == JOBS, run

    scenario = Scenario(scenarios, tmp_path, before, "persistent_producer", jobs=JOBS, tries=50)
    scenario.fail([f"inject={call}:error={error}:when={n}..{n + 3}" for n in range(1, points + 1)], check)


@pytest.mark.parametrize(("call", "error", "points"), FAULTS)
def test_enqueue_never_acknowledges_a_failed_commit(
    scenarios: Scenarios, tmp_path: Path, before: Path, queue: Queue, call: str, error: str, points: int
) -> None:
    queue.close()
    seen = set()

    def check(run: Run) -> None:
        check_told_the_truth(run)
        seen.add(len(run.program.accepted()))
        assert len(run.program.accepted()) == 2 or run.program.refused(), run

    scenario = Scenario(scenarios, tmp_path, before, "enqueue")
    scenario.fail([f"inject={call}:error={error}:when={n}+" for n in range(1, points + 1)], check)
    assert {0, 1} <= seen


def test_a_database_is_made_whole_or_not_at_all(scenarios: Scenarios, tmp_path: Path) -> None:
    def check(run: Run) -> None:
        check_told_the_truth(run)

    scenario = Scenario(scenarios, tmp_path, None, "opening")
    scenario.fail([f"inject=pwrite64:error=ENOSPC:when={n}+" for n in range(1, POINTS + 1)], check)


def test_a_job_is_not_half_completed_by_an_error(
    scenarios: Scenarios, tmp_path: Path, before: Path, queue: Queue
) -> None:
    waiting = [queue.enqueue(type).id for type in ("insert_row", "parent")]
    queue.close()

    def check(run: Run) -> None:
        jobs = run.database.jobs()
        children = [job.parent_id for job in jobs.values() if job.type == "leaf"]
        done = [id for id, _ in run.database.rows()] + children
        assert sorted(done, key=str) == [id for id in sorted(waiting) if jobs[id].status == "completed"], run
        assert len(jobs) == len(waiting) + len(children), run
        assert all(
            error.startswith(("StoreUnavailable", "CommitUncertain")) for error in run.program.refused()
        )
        oracle.check_file(run.database)

    scenario = Scenario(scenarios, tmp_path, before, "drain")
    points = [f"inject=pwrite64:error=ENOSPC:when={n}+" for n in range(1, 2 * POINTS, 2)]
    scenario.fail([*points, *(f"inject=fdatasync,fsync:error=EIO:when={n}+" for n in range(1, 10))], check)


@pytest.mark.parametrize("defaults", [{**DEFAULTS, "lease_seconds": 15}])
@pytest.mark.parametrize("fault", ["pwrite64:error=ENOSPC", "fdatasync:error=EIO", "pread64:error=EIO"])
def test_a_worker_outlives_a_failing_disk(
    queue: Queue, programs: Programs, database: Database, fault: str
) -> None:
    """The fault is shorter than the lease, so that no job has to start twice for it."""
    worker = programs.worker()
    jobs = [queue.enqueue("work", {"seconds": 0.3}).id for _ in range(20)]
    wait_until(programs.log.starts, message="the first handlers run")
    with faults(worker, f"inject={fault}"):
        for _ in range(10):
            jobs.append(queue.enqueue("work").id)
            time.sleep(0.1)
    wait_until(lambda: database.unfinished() == 0, timeout=30, message="all is done in good time")
    assert worker.is_running
    worker.stop()
    assert {job.status for job in database.jobs().values()} == {"completed"}
    assert sorted(start.job for start in programs.log.starts()) == sorted(jobs)
    oracle.check_nothing_lost(database, jobs)
    oracle.check_file(database)
    programs.check_no_traceback()
