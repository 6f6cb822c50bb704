"""The storm: producers and workers, any of them killed at any instant, and nothing is lost.

Sized for the suite; HOLDFAST_LONG=1 runs the long one. The instants come from a seed, which is printed when
the test fails; what the processes make of them is up to the machine.
"""

from __future__ import annotations

import os
import random
import time

import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from tests.process import oracle
from tests.process.app import MAX_RUNNING, RATE
from tests.process.oracle import Database
from tests.process.programs import Program, Programs
from tests.support import wait_until

LONG = os.environ.get("HOLDFAST_LONG") == "1"
KILLS, JOBS = (5_000, 200_000) if LONG else (80, 1_500)
SEED = int(os.environ.get("HOLDFAST_SEED", "1"))
WORKERS, PRODUCERS = 4, 2
SECONDS_A_KILL = 0.05
LEASE, SWEEP = 3.0, 0.3
TYPES = {"work": 80, "work_async": 20, "work_in_process": 1, "limited": 5, "rated": 2}
DEFAULTS: dict[str, object] = {
    "lease_seconds": LEASE,
    "heartbeat_interval": SWEEP,
    "max_attempts": 50,
    "backoff_factor": 0.01,
    "backoff_max": 0.1,
}


class Storm:
    """Keeps the processes up that it keeps killing."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._chance = random.Random(SEED)
        self._started = 0
        self.workers = [self._start_worker() for _ in range(WORKERS)]
        self.producers = [self._start_producer() for _ in range(PRODUCERS)]

    def kill_one(self) -> None:
        group = self.workers if self._chance.random() < WORKERS / (WORKERS + PRODUCERS) else self.producers
        index = self._chance.randrange(len(group))
        assert group[index].is_running, group[index].errors()
        self._programs.kill(group[index])
        group[index] = self._start_worker() if group is self.workers else self._start_producer()

    def end_producers(self) -> None:
        for producer in self.producers:
            self._programs.kill(producer)

    def _start_worker(self) -> Program:
        return self._programs.fork("worker", concurrency=8)

    def _start_producer(self) -> Program:
        self._started += 1
        return self._programs.fork("producer", seed=self._started, types=TYPES, seconds=0.06, pause=0.02)


def seldom(database: Database) -> Database:
    """To be looked at ten times a second at most: each look counts thousands of rows."""
    time.sleep(0.1)
    return database


@pytest.mark.timeout(4 * 3600 if LONG else 300)
@pytest.mark.parametrize("defaults", [DEFAULTS])
def test_nothing_is_lost_in_a_storm_of_kills(queue: Queue, programs: Programs, database: Database) -> None:
    store_of(queue).now()  # the first opening has tests of its own
    storm = Storm(programs)
    chance = random.Random(SEED)
    for _ in range(KILLS):
        time.sleep(chance.uniform(0, 2 * SECONDS_A_KILL))
        storm.kill_one()
        oracle.check_limits_now(database, {"limited": MAX_RUNNING})
        database.check_size()
    wait_until(
        lambda: seldom(database).count(*oracle.STATES) >= JOBS or not storm.producers[0].is_running,
        timeout=120,  # how long it takes is the machine's business, which has other tests to run
        message=f"{JOBS} jobs",
    )
    storm.end_producers()
    calm = time.time()
    wait_until(lambda: seldom(database).unfinished() == 0, timeout=60 + JOBS / 200, message="all is done")
    for worker in storm.workers:
        worker.stop()

    assert len(programs.killed) == KILLS + PRODUCERS
    assert {job.status for job in database.jobs().values()} == {"completed"}
    oracle.check_all(database, programs.log, accepted=programs.accepted(), stopped=programs.killed)
    oracle.check_rate(database, "rated", RATE)
    oracle.check_restarts(database, programs.log, programs.killed, lease=LEASE, sweep=SWEEP, not_before=calm)
    programs.check_no_traceback()
