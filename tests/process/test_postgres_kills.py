"""Workers and producers on PostgreSQL, killed at any instant: nothing is lost and nothing doubled."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from tests.process import oracle
from tests.process.app import MAX_RUNNING, RATE
from tests.process.oracle import Database
from tests.process.programs import Program, Programs
from tests.support import wait_until

LONG = os.environ.get("HOLDFAST_LONG") == "1"
KILLS = 2_000 if LONG else 20
BETWEEN = 12
"""Jobs that complete between two kills."""

SEED = int(os.environ.get("HOLDFAST_SEED", "1"))
WORKERS, PRODUCERS = 3, 2
LEASE, SWEEP = 3.0, 0.3
TYPES = {"work": 50, "work_async": 10, "limited": 5, "rated": 2, "insert_row_slowly": 30}
DEFAULTS: dict[str, object] = {
    "lease_seconds": LEASE,
    "heartbeat_interval": SWEEP,
    "max_attempts": 50,
    "backoff_factor": 0.01,
    "backoff_max": 0.1,
}


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


class Storm:
    """Keeps the processes up that it keeps killing: a worker mostly, then and now a producer."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._chance = random.Random(SEED)
        self._started = 0
        self.workers = [self._start_worker() for _ in range(WORKERS)]
        self.producers = [self._start_producer() for _ in range(PRODUCERS)]

    def kill_a_worker(self) -> None:
        time.sleep(self._chance.uniform(0, 0.05))
        index = self._chance.randrange(WORKERS)
        self._kill(self.workers[index])
        self.workers[index] = self._start_worker()

    def kill_a_producer(self) -> None:
        index = self._chance.randrange(PRODUCERS)
        self._kill(self.producers[index])
        self.producers[index] = self._start_producer()

    def end_producers(self) -> None:
        for producer in self.producers:
            self._kill(producer)

    def _kill(self, program: Program) -> None:
        assert program.is_running, program.errors()
        self._programs.kill(program)

    def _start_worker(self) -> Program:
        return self._programs.fork("worker", concurrency=8)

    def _start_producer(self) -> Program:
        self._started += 1
        name = f"p{self._started}"
        return self._programs.fork("steadfast_producer", name=name, types=TYPES, seconds=0.06, pause=0.06)


def _let_it_work(database: Database, jobs: int = BETWEEN) -> None:
    enough = database.count("completed") + jobs
    wait_until(lambda: database.count("completed") >= enough, message="some work is done")


@pytest.mark.timeout(4 * 3600 if LONG else 120)
@pytest.mark.parametrize("defaults", [DEFAULTS])
def test_nothing_is_lost_or_doubled_in_a_storm_of_kills(
    queue: Queue, programs: Programs, database: Database
) -> None:
    store_of(queue).now()
    database.make_rows_table()
    storm = Storm(programs)
    for number in range(KILLS):
        _let_it_work(database)
        storm.kill_a_worker()
        if number % 10 == 9:
            storm.kill_a_producer()
        oracle.check_limits_now(database, {"limited": MAX_RUNNING})
    storm.end_producers()
    calm = time.time()
    wait_until(lambda: database.unfinished() == 0, message="all is done")
    for worker in storm.workers:
        worker.stop()

    assert len(programs.killed) == KILLS + KILLS // 10 + PRODUCERS
    assert {job.status for job in database.jobs().values()} == {"completed"}
    oracle.check_all(database, programs.log, accepted=programs.accepted(), stopped=programs.killed)
    assert programs.refused() == []
    oracle.check_marks(database, ())
    oracle.check_rows(database)
    oracle.check_rate(database, "rated", RATE)
    oracle.check_restarts(database, programs.log, programs.killed, lease=LEASE, sweep=SWEEP, not_before=calm)
    programs.check_no_traceback()


@pytest.mark.parametrize("defaults", [DEFAULTS])
def test_a_worker_that_dies_inside_the_block_leaves_no_row(
    queue: Queue, programs: Programs, database: Database, tmp_path: Path
) -> None:
    bombs = tmp_path / "bombs"
    bombs.mkdir()
    store_of(queue).now()
    database.make_rows_table()
    jobs = [job.id for job in queue.enqueue_many("insert_row", [{"bombs": str(bombs)}] * 5)]
    for name in ("one", "two"):
        (bombs / name).touch()
        worker = programs.fork("worker", concurrency=1)
        programs.killed[worker.pid] = time.time()
        assert worker.wait() == -9
        assert not list(bombs.iterdir())
        if name == "one":
            assert database.rows() == []
    last = programs.fork("worker")
    wait_until(lambda: database.unfinished() == 0, message="all is done")
    last.stop()
    assert {job.status for job in database.jobs().values()} == {"completed"}
    oracle.check_all(database, programs.log, accepted=jobs, stopped=programs.killed)
    oracle.check_rows(database)
    programs.check_no_traceback()
