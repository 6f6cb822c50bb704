"""ctx.transaction() on workers that keep dying, half of them inside the block: exactly one row a job."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest

from holdfast import Queue
from tests.process import oracle
from tests.process.oracle import Database
from tests.process.programs import Program, Programs
from tests.support import wait_until

JOBS = 100
KILLS = 10
BETWEEN = 6
"""Jobs that complete between two kills."""

DEFAULTS: dict[str, object] = {"lease_seconds": 3, "heartbeat_interval": 0.3}


def _let_it_work(database: Database) -> None:
    enough = database.count("completed") + BETWEEN
    wait_until(lambda: database.count("completed") >= enough, message="some work is done")


def _blow_up(programs: Programs, worker: Program, bombs: Path) -> None:
    """The handler that finds the bomb kills its own process inside the block."""
    programs.killed[worker.pid] = time.time()
    (bombs / "bomb").touch()
    assert worker.wait() == -9
    assert not list(bombs.iterdir())


@pytest.mark.parametrize("defaults", [DEFAULTS])
def test_each_job_inserts_its_row_exactly_once_whenever_its_worker_dies(
    queue: Queue, programs: Programs, database: Database, tmp_path: Path
) -> None:
    bombs = tmp_path / "bombs"
    bombs.mkdir()
    payload = {"bombs": str(bombs), "seconds": 0.02}
    jobs = [job.id for job in queue.enqueue_many("insert_row", [payload] * JOBS, max_attempts=30)]
    database.make_rows_table()
    chance = random.Random(1)
    for number in range(KILLS):
        worker = programs.worker(concurrency=4)
        _let_it_work(database)
        if number % 2:
            time.sleep(chance.uniform(0, 0.05))
            programs.kill(worker)
        else:
            _blow_up(programs, worker, bombs)
    last = programs.worker()
    wait_until(lambda: database.unfinished() == 0, message="all is done")
    last.stop()

    assert len(programs.killed) == KILLS
    assert {job.status for job in database.jobs().values()} == {"completed"}
    assert [job for job, _ in database.rows()] == sorted(jobs)
    assert dict(database.rows()) == {job.id: job.attempts for job in database.jobs().values()}
    oracle.check_all(database, programs.log, accepted=jobs, stopped=programs.killed)
    programs.check_no_traceback()
