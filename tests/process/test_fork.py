"""A queue that was used before os.fork() works afterwards, in the parent and in the child."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.process import oracle
from tests.process.oracle import Database
from tests.process.programs import Programs
from tests.support import wait_until


@pytest.mark.parametrize(
    ("role", "jobs"),
    [
        ("fork_and_enqueue", 5),
        ("fork_and_enqueue_async", 3),
    ],
)
def test_a_queue_used_before_a_fork_works_in_parent_and_child(
    programs: Programs, database: Database, role: str, jobs: int
) -> None:
    program = programs.start(role)
    assert program.wait(timeout=60) == 0, program.errors()
    assert len(set(program.accepted())) == jobs
    oracle.check_nothing_lost(database, program.accepted())
    oracle.check_file(database)


def test_a_child_forked_while_another_thread_enqueued_can_enqueue(
    programs: Programs, database: Database, tmp_path: Path
) -> None:
    program = programs.start("fork_during_enqueue", locked=str(tmp_path / "locked"))
    wait_until(program.accepted, message="the queue was used")
    with closing(sqlite3.connect(database.path, isolation_level=None, timeout=10)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        (tmp_path / "locked").touch()
        time.sleep(1)  # the other thread waits for this lock; the fork comes meanwhile
        connection.execute("ROLLBACK")
    assert program.wait(timeout=60) == 0, program.errors()
    assert len(set(program.accepted())) == 3
    oracle.check_nothing_lost(database, program.accepted())


def test_what_a_child_enqueues_is_durable_though_its_parent_has_closed_the_queue(
    programs: Programs, database: Database
) -> None:
    program = programs.start("fork_and_close_first")
    assert program.wait(timeout=60) == 0, program.errors()
    assert len(set(program.accepted())) == 3
    oracle.check_nothing_lost(database, program.accepted())
    oracle.check_file(database)
