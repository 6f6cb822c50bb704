"""A database that does not exist: commands that only look say so and make none, the others make it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from holdfast import Queue
from holdfast.errors import QueueNotFound
from tests import postgres
from tests.surfaces.support import Cli

LOOKING = [
    "status",
    "status --watch",
    "status --json",
    "list",
    "show job1",
    "why job1",
    "logs job1",
    "report",
    "reconcile",
    "worker list",
    "config list",
    "config get max_attempts",
    "dlq list",
    "dlq retry --all",
    "dlq purge --older-than 1d",
    "cleanup --older-than 1d",
    "retry job1",
    "cancel job1",
    "delete job1",
    "backup {folder}/copy.db",
    "move --to sqlite:///{folder}/target.db",
]
MAKING = [
    "enqueue --command true",
    "migrate",
    "config set max_attempts 5",
    "config unset max_attempts",
    "pause",
    "resume",
    "rate-limit 10",
]


def test_command_that_looks_makes_no_database(bare_cli: Cli, home: Path, tmp_path: Path) -> None:
    hint = "(enqueueing a job or starting a worker creates one)"
    for line in LOOKING:
        ran = bare_cli(*line.format(folder=tmp_path).split())
        assert (ran.code, ran.out) == (1, ""), line
        assert ran.errors == [f"queuectl: there is no queue at {home}/queue.db {hint}"], line
        assert list(home.iterdir()) == [], line
        assert list(tmp_path.iterdir()) == [home], line


def test_doctor_calls_a_missing_queue_a_problem(bare_cli: Cli, home: Path) -> None:
    ran = bare_cli("doctor")
    assert (ran.code, ran.err) == (1, "")
    assert ran.out.startswith(f"problem\tdatabase\tthere is no queue at {home}/queue.db")
    assert list(home.iterdir()) == []


def test_stop_where_there_is_no_queue_has_nothing_to_stop(bare_cli: Cli, home: Path) -> None:
    ran = bare_cli("worker", "stop")
    assert (ran.code, ran.errors) == (0, ["queuectl: no worker is running on this machine"])
    assert bare_cli("worker", "stop", "w1").code == 1
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("line", MAKING)
def test_command_that_changes_the_queue_makes_it(bare_cli: Cli, home: Path, line: str) -> None:
    assert bare_cli(*line.split()).code == 0
    assert (home / "queue.db").exists()


def test_folder_that_does_not_exist_is_not_made_to_look_into_it(bare_cli: Cli, home: Path) -> None:
    home.rmdir()
    assert bare_cli("status").code == 1
    assert not home.exists()


def test_database_of_an_application_gets_no_tables_by_a_look(bare_cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "app.db"
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
    before = path.read_bytes()
    ran = bare_cli("status", "--database", f"sqlite:///{path}")
    assert (ran.code, ran.errors[0].startswith(f"queuectl: there is no queue at {path}")) == (1, True)
    assert path.read_bytes() == before


@pytest.fixture
def server_url() -> Iterator[str]:
    with postgres.fresh_url() as url:
        yield url


@pytest.mark.postgres
def test_server_gets_no_tables_by_a_look(bare_cli: Cli, server_url: str, tmp_path: Path) -> None:
    for line in ("status", f"move --to sqlite:///{tmp_path}/target.db"):
        ran = bare_cli("--database", server_url, *line.split())
        assert (ran.code, len(ran.errors)) == (1, 1)
        assert ran.errors[0].startswith("queuectl: there is no queue at postgresql://")
    assert bare_cli("--database", server_url, "migrate").code == 0
    assert bare_cli("--database", server_url, "status").code == 0


def test_queue_that_must_exist_is_opened_when_somebody_has_made_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/queue.db"
    with Queue(url, create=False) as queue:
        with pytest.raises(QueueNotFound):
            queue.stats()
        with Queue(url) as other:
            other.enqueue("crawl")
        assert queue.stats()["pending"] == 1
