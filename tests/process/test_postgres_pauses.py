"""A worker on PostgreSQL that stands still longer than its lease: what it does late is discarded."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast import Queue
from tests.process.oracle import Database
from tests.process.programs import Programs
from tests.process.test_pauses import Scene
from tests.support import wait_until


@pytest.fixture
def url(postgres_url: str) -> str:
    return postgres_url


def test_the_late_outcome_of_a_frozen_worker_is_discarded_and_its_jobs_ran_again(
    queue: Queue, programs: Programs, database: Database, tmp_path: Path
) -> None:
    scene = Scene(queue, programs, database, tmp_path, "late")
    scene.pause()
    wait_until(lambda: scene.taken_over() == scene.jobs, message="the other worker takes over")
    scene.resume()
    scene.let_late_attempts_write()
    scene.finish()
