"""A PostgreSQL server that is killed with -9 under workers and producers, who go on by themselves."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.store.open import store_of
from tests.postgres import Server, with_parameters
from tests.process import oracle
from tests.process.postgres_database import PostgresDatabase, own_url
from tests.process.programs import Program, Programs
from tests.support import wait_until

KILLS = 3

LEASE = 3.0
BETWEEN = 30
TYPES = {"work": 5, "work_async": 2, "insert_row_slowly": 5}
DEFAULTS: dict[str, object] = {"lease_seconds": LEASE, "max_attempts": 50, "backoff_factor": 0.01}


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that keeps its promises: what is committed survives it."""
    folder = Path(tempfile.mkdtemp(prefix="holdfast-kill-"))
    folder.chmod(0o755)
    server = Server(folder / "server")
    server.make()
    server.start()
    yield server
    server.stop()
    shutil.rmtree(folder)


@pytest.fixture
def url(server: Server) -> str:
    return own_url(with_parameters(server.url, schema="jobs"), "kills")


class Scene:
    """Two workers and two producers."""

    def __init__(self, programs: Programs, database: PostgresDatabase) -> None:
        self._database = database
        self.programs = programs
        self.workers = [programs.fork("worker", concurrency=4) for _ in range(2)]
        self.producers = [
            programs.fork("steadfast_producer", name=name, types=TYPES, seconds=0.1, pause=0.02)
            for name in ("a", "b")
        ]

    def let_it_work(self) -> None:
        enough = self._database.count("completed") + BETWEEN
        wait_until(lambda: self._database.count("completed") >= enough, message="some work is done")

    def wait_until_back(self) -> None:
        """Wait until each producer has a job accepted and each worker completes one that is new."""
        accepted = {producer: len(producer.accepted()) for producer in self.producers}
        [(new,)] = self._database.query("SELECT max(seq) FROM holdfast_jobs")

        def back() -> bool:
            started = self._database.query(
                "SELECT id FROM holdfast_jobs WHERE seq > ? AND status = 'completed'", new
            )
            return self._all_work({id for (id,) in started}) and all(
                len(producer.accepted()) > before for producer, before in accepted.items()
            )

        wait_until(back, message="everybody works again")

    def _all_work(self, jobs: set[str]) -> bool:
        seen = {start.worker for start in self.programs.log.starts() if start.job in jobs}
        return seen >= {worker.pid for worker in self.workers}

    def end(self) -> None:
        for producer in self.producers:
            assert producer.is_running, producer.errors()
            self.programs.kill(producer)
        wait_until(lambda: self._database.unfinished() == 0, message="all is done")
        for worker in self.workers:
            worker.stop()


def _refusals(producers: list[Program]) -> list[str]:
    return [line for producer in producers for line in producer.refused() + producer.in_doubt()]


@pytest.mark.parametrize("defaults", [DEFAULTS])
def test_all_go_on_and_nothing_is_lost_when_the_server_is_killed(
    server: Server, queue: Queue, programs: Programs, database: PostgresDatabase
) -> None:
    store_of(queue).now()
    database.make_rows_table()
    scene = Scene(programs, database)
    stopped: dict[int, float] = {}
    for number in range(KILLS + 1):
        scene.let_it_work()
        if number < KILLS:
            server.kill()
            wait_until(lambda: server.pid is None, message="nothing is left of it")
        else:
            server.stop("fast")
        if number == KILLS - 1:
            # Longer than a lease: what runs now may be taken over.
            stopped = {worker.pid: time.time() for worker in scene.workers}
            before = len(_refusals(scene.producers))
            wait_until(lambda: len(_refusals(scene.producers)) > before + 2, message="errors")  # noqa: B023
            time.sleep(1.2 * LEASE)
        server.start()
        scene.wait_until_back()
    scene.end()

    assert {job.status for job in database.jobs().values()} == {"completed"}
    oracle.check_all(database, programs.log, accepted=programs.accepted(), stopped=stopped, given_back=True)
    oracle.check_marks(database, programs.refused())
    oracle.check_rows(database)
    refused = [line.split(maxsplit=2)[1:] for line in programs.refused()]
    assert {name for name, _ in refused} <= {"StoreUnavailable", "ConnectionLost"}, refused
    assert all(server.url in message for _, message in refused), refused
    programs.check_no_traceback()
