"""Connections that the server ends at any instant: all go on, and nothing is lost or doubled."""

from __future__ import annotations

import os
import random
import time

import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from tests.process import oracle
from tests.process.postgres_database import PostgresDatabase
from tests.process.programs import Programs
from tests.support import wait_until

LONG = os.environ.get("HOLDFAST_LONG") == "1"
TERMINATED = 2_000 if LONG else 50
SEED = int(os.environ.get("HOLDFAST_SEED", "1"))
BETWEEN = 6
TYPES = {"work": 4, "work_async": 1, "insert_row_slowly": 5}
DEFAULTS: dict[str, object] = {"lease_seconds": 3, "max_attempts": 50, "backoff_factor": 0.01}
SLOW_POLL: dict[str, object] = {**DEFAULTS, "poll_interval": 30}

IN_A_BLOCK = "backend_xid IS NOT NULL AND state = 'idle in transaction' AND query LIKE 'INSERT INTO rows%%'"
LISTENING = "query LIKE 'LISTEN %%'"


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


def _let_it_work(database: PostgresDatabase) -> None:
    enough = database.count("completed") + BETWEEN
    wait_until(lambda: database.count("completed") >= enough, message="some work is done")


@pytest.mark.timeout(4 * 3600 if LONG else 120)
@pytest.mark.parametrize("defaults", [DEFAULTS])
def test_nothing_is_lost_or_doubled_when_connections_are_terminated(
    queue: Queue, programs: Programs, database: PostgresDatabase
) -> None:
    store_of(queue).now()
    queue.close()  # so that all connections are those of the programs
    database.make_rows_table()
    workers = [programs.fork("worker", concurrency=4) for _ in range(2)]
    producers = [
        programs.fork("steadfast_producer", name=name, types=TYPES, seconds=0.06, pause=0.02)
        for name in ("a", "b")
    ]
    chance = random.Random(SEED)
    terminated = 0
    while terminated < TERMINATED:
        _let_it_work(database)
        time.sleep(chance.uniform(0, 0.02))
        busy = database.backends("state <> 'idle'") if terminated % 2 else []
        terminated += database.terminate(chance.choice(busy or database.backends()))
    for producer in producers:
        assert producer.is_running, producer.errors()
        programs.kill(producer)
    wait_until(lambda: database.unfinished() == 0, message="all is done")
    for worker in workers:
        worker.stop()

    assert {job.status for job in database.jobs().values()} == {"completed"}
    oracle.check_all(database, programs.log, accepted=programs.accepted(), stopped={}, given_back=True)
    oracle.check_marks(database, ())
    oracle.check_rows(database)
    # A connection that breaks while the server is there is no reason to refuse anything.
    assert programs.refused() == []
    assert [producer.in_doubt() for producer in producers] == [[], []]
    programs.check_no_traceback()


@pytest.mark.parametrize("type", ["insert_row_slowly", "insert_row_async"])
@pytest.mark.parametrize("defaults", [DEFAULTS])
def test_a_handler_whose_connection_is_terminated_runs_again_and_leaves_one_row(
    queue: Queue, programs: Programs, database: PostgresDatabase, type: str
) -> None:
    store_of(queue).now()
    database.make_rows_table()
    worker = programs.fork("worker")
    job = queue.enqueue(type, {"seconds": 0.6}).id
    for attempt in (1, 2):
        wait_until(lambda: database.backends(IN_A_BLOCK), message="the handler is inside its block")
        assert database.terminate(*database.backends(IN_A_BLOCK))
        wait_until(lambda: programs.log.ended(job, attempt), message="the handler is told")  # noqa: B023
    wait_until(lambda: database.jobs()[job].status == "completed", message="the job is done")
    worker.stop()
    # On a busy machine the look may come late, and the connection is lost while it commits.
    errors = [line["error"] for line in programs.log.lines("raised")]
    assert len(errors) == 2
    assert set(errors) <= {"ConnectionLost", "CommitUncertain"}
    assert database.rows() == [(job, 3)]
    oracle.check_all(database, programs.log, accepted=[job], stopped={})
    programs.check_no_traceback()


@pytest.mark.parametrize("defaults", [SLOW_POLL])
def test_a_worker_is_woken_again_after_its_listening_connection_was_terminated(
    queue: Queue, programs: Programs, database: PostgresDatabase
) -> None:
    store_of(queue).now()
    programs.worker()
    for _ in range(3):
        [before] = database.backends(LISTENING)
        assert database.terminate(before)
        wait_until(lambda: database.backends(LISTENING) not in ([], [before]), message="it listens again")  # noqa: B023
        # The first may be found by what it looks at because of that; for the others it has to be woken.
        for _ in range(3):
            began = time.monotonic()
            job = queue.enqueue("work").id
            wait_until(lambda: programs.log.starts(job), timeout=30, message="it is woken")  # noqa: B023
            print(f"picked up after {time.monotonic() - began:.3f} s")  # noqa: T201
    wait_until(lambda: database.unfinished() == 0, message="all is done")
