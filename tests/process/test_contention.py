"""Eight processes that enqueue in tight loops: every call is served, and no lease is lost for the lock."""

from __future__ import annotations

import time
from collections import Counter
from pathlib import Path

import pytest

from holdfast import Queue
from tests.process import oracle
from tests.process.oracle import Database
from tests.process.programs import Programs
from tests.support import wait_until

WRITERS = 8
SECONDS = 4.0


@pytest.mark.parametrize("defaults", [{"lease_seconds": 30, "heartbeat_interval": 0.3}])
def test_heartbeats_get_through_tight_loop_writers_and_no_caller_finds_the_database_locked(
    queue: Queue, programs: Programs, database: Database, tmp_path: Path
) -> None:
    long = queue.enqueue("hold", {"seconds": SECONDS + 2}).id
    worker = programs.worker()
    rival = programs.worker()
    wait_until(lambda: programs.log.starts(long), message="the long job runs")
    end = tmp_path / "end"
    writers = [programs.start("tight_loop", end=str(end)) for _ in range(WRITERS)]
    wait_until(lambda: all(writer.accepted() for writer in writers), message="all of them write")
    beats: set[tuple[str, int]] = set()

    def get_through() -> bool:
        beats.update(database.query("SELECT id, heartbeat_at FROM holdfast_workers"))
        counts = Counter(worker for worker, _ in beats).values()
        return len(counts) == 2 and min(counts) > 3

    began = time.monotonic()
    wait_until(lambda: get_through() and time.monotonic() > began + SECONDS, message="heartbeats")
    end.touch()
    assert [writer.wait() for writer in writers] == [0] * WRITERS
    assert [writer.refused() for writer in writers] == [[]] * WRITERS
    assert all(writer.accepted() for writer in writers)
    wait_until(lambda: database.jobs()[long].status == "completed", message="the long job is done")
    assert len(programs.log.starts(long)) == 1
    for trouble in ("job.reaped", "worker.lease_lost", "job.outcome_refused"):
        assert programs.log.events(trouble) == []
    worker.stop()
    rival.stop()
    oracle.check_nothing_lost(database, programs.accepted())
    oracle.check_file(database)
    programs.check_no_traceback()
