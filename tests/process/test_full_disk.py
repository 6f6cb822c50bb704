"""A full disk, a real one: the worker keeps going, nothing is lost, and it resumes by itself."""

from __future__ import annotations

import errno
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.errors import StoreUnavailable
from holdfast.store.open import store_of
from tests.process import oracle
from tests.process.conftest import DEFAULTS
from tests.process.oracle import Database
from tests.process.programs import Programs
from tests.support import wait_until

SIZE = "24m"
FILLS = 5
BULKY = {"note": "x" * 900_000}
LONG_FILL = 8.0
"""Seconds: longer than a lease and the sweeps that find it over."""


class Disk:
    """A small file system of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        with self._ballast.open("wb", buffering=0) as ballast:
            try:
                while ballast.write(b"\0" * 65_536):
                    pass
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise

    def free(self) -> None:
        self._ballast.unlink()


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Disk]:
    path = tmp_path / "disk"
    path.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", path], check=True)
    yield Disk(path)
    subprocess.run(["umount", "--lazy", path], check=True)


@pytest.fixture
def url(disk: Disk) -> str:
    return f"sqlite:///{disk.path / 'queue.db'}"


@pytest.mark.parametrize("defaults", [{**DEFAULTS, "lease_seconds": 15}])
def test_nothing_is_lost_however_often_the_disk_is_full(
    queue: Queue, programs: Programs, database: Database, disk: Disk
) -> None:
    store_of(queue).now()
    worker = programs.worker()
    accepted = []
    refused = 0
    for _ in range(FILLS):
        accepted += [queue.enqueue("work", {"seconds": 0.1}).id for _ in range(5)]
        disk.fill()
        for _ in range(3):
            try:  # more than the WAL has room for as it is
                accepted += [job.id for job in queue.enqueue_many("work", [BULKY] * 10)]
            except StoreUnavailable:
                refused += 1
            time.sleep(0.2)
        assert queue.stats()["workers"] == 1  # reads go on
        disk.free()
        accepted.append(queue.enqueue("work").id)
        wait_until(lambda: database.unfinished() == 0, message="it resumes by itself")
    assert refused >= FILLS
    assert worker.is_running
    worker.stop()
    assert {job.status for job in database.jobs().values()} == {"completed"}
    oracle.check_nothing_lost(database, accepted)
    assert sorted(start.job for start in programs.log.starts()) == sorted(database.jobs())
    oracle.check_file(database)
    programs.check_no_traceback()


def test_workers_resume_after_a_fill_longer_than_the_lease(
    queue: Queue, programs: Programs, database: Database, disk: Disk, tmp_path: Path
) -> None:
    """One worker holds a job whose lease it can't renew; another holds none when its jobs become due."""
    go = tmp_path / "go"
    held = queue.enqueue("hold_until", {"path": str(go)}).id
    holding = programs.worker(types=["hold_until"])
    waiting = programs.worker(types=["work"])
    wait_until(lambda: programs.log.starts(held), message="the handler runs")
    due = [queue.enqueue("work", delay=1).id for _ in range(5)]
    disk.fill()
    filled = time.time()
    # The handler must still run by then: an outcome that it reaches earlier is offered until it is written.
    wait_until(lambda: programs.log.events("handler.stuck", pid=holding.pid), message="it is given up")
    go.touch()
    time.sleep(max(0.0, filled + LONG_FILL - time.time()))
    assert queue.stats()["completed"] == 0  # reads go on
    disk.free()
    programs.killed[holding.pid] = filled  # it lost its lease, as a paused one does
    wait_until(lambda: database.unfinished() == 0, message="they resume by themselves")
    # The lease of the held job was over long before there was space: it is not renewed again.
    assert len(programs.log.starts(held)) == 2
    for worker in (holding, waiting):
        assert worker.is_running
        worker.stop()
    assert {job.status for job in database.jobs().values()} == {"completed"}
    oracle.check_all(database, programs.log, accepted=[held, *due], stopped=programs.killed)
    programs.check_no_traceback()
