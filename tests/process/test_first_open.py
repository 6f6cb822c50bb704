"""A database that several processes open for the first time at once."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from tests.support import wait_until
from tests.surfaces.command_line import CommandLine

READER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN")
connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
print("reading", flush=True)
sys.stdin.read()
connection.close()
"""


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[CommandLine]:
    ctl = CommandLine(tmp_path / "home")
    yield ctl
    ctl.close()


def lets_nobody_in(path: Path) -> bool:
    """Whether a commit waits for its readers to leave: then no new one is let in."""
    with closing(sqlite3.connect(path, timeout=0)) as connection:
        try:
            connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        except sqlite3.OperationalError as error:
            return "locked" in str(error)
    return False


def test_making_the_tables_waits_for_another_process_that_looks(ctl: CommandLine) -> None:
    """Before the file has a write-ahead log, a reader keeps a commit waiting. The reader here is staged."""
    path = ctl.home / "queue.db"
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as reader:
        assert reader.stdout is not None
        assert reader.stdin is not None
        assert reader.stdout.readline() == b"reading\n"
        opening = ctl.start("enqueue --id job1 --command true")
        try:
            wait_until(lambda: lets_nobody_in(path) or not opening.is_running, message="the commit")
        finally:
            reader.stdin.close()
    assert (opening.wait(), opening.errors()) == (0, "")
    assert ctl.json("show job1")["status"] == "pending"
