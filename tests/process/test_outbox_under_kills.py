"""Applications killed with -9 around their own commit: the row exists if and only if the job does."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.conformance.connections import KINDS, POSTGRES_KINDS, connect, empty, prepare
from tests.postgres import fresh_url
from tests.process.oracle import Database
from tests.process.postgres_database import PostgresDatabase, own_url
from tests.process.programs import ROOT
from tests.support import wait_until

KILLED = -9
ALL_KINDS = {**KINDS, **POSTGRES_KINDS}
STEPS = ["row a", "job a", "jobs b c", "savepoint", "row d", "job d", "undo"]
STEPS += ["savepoint", "row e", "job e", "release", "commit"]
# What was committed too early is still there just before the commit: most kinds are tried there alone.
CRASHES = [(kind, after) for kind in ("sqlite3", "psycopg") for after in range(len(STEPS) - 1)]
CRASHES += [(kind, len(STEPS) - 1) for kind in ALL_KINDS]
KILLS = 2


class Player:
    """A program that has loaded the libraries of all kinds, and plays each script in a process of its own."""

    def __init__(self) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.process.player"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def play(self, kind: str, address: str, script: str, seconds: float | None) -> int:
        """Play a script on a database; return how that ended."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps([kind, address, script, seconds]).encode() + b"\n")
        self._program.stdin.flush()
        return int(self._program.stdout.readline())

    def close(self) -> None:
        self._program.communicate(timeout=30)
        assert self._program.returncode == 0


class Stage(NamedTuple):
    """A database with the tables of queue and application, and who plays on it."""

    player: Player
    kind: str
    address: str
    database: Database

    def play(self, *steps: str, seconds: float | None = None) -> int:
        status = self.player.play(self.kind, self.address, ", ".join(steps), seconds)
        if isinstance(self.database, PostgresDatabase):
            # The server may still be at a commit that it was sent.
            wait_until(partial(_is_left, self.database), message="the server knows of the end")
        return status

    def rows(self) -> list[str]:
        self.database.check_sound()
        return [name for (name,) in self.database.query("SELECT name FROM users ORDER BY rowid")]

    def jobs(self) -> list[str]:
        return [json.loads(job.payload)["to"] for job in self.database.jobs().values()]


def _is_left(database: PostgresDatabase) -> bool:
    return not database.backends()


@pytest.fixture(scope="module")
def player() -> Iterator[Player]:
    with closing(Player()) as player:
        yield player


@pytest.fixture(scope="module")
def empty_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file of SQLite's with the tables of queue and application, and nothing in them."""
    path = tmp_path_factory.mktemp("outbox") / "empty.db"
    prepare(path)
    return path


@pytest.fixture(scope="module")
def schema() -> Iterator[tuple[str, PostgresDatabase, Any]]:
    """A schema of PostgreSQL's with these tables: to make one takes its time."""
    with fresh_url() as url:
        address = own_url(url, "applications")
        prepare(address)
        with closing(connect(url)) as connection, closing(PostgresDatabase(address)) as database:
            # SQLite numbers rows by itself.
            database.write("ALTER TABLE users ADD COLUMN rowid bigserial")
            yield address, database, connection


@pytest.fixture(params=ALL_KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def stage(kind: str, player: Player, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Stage]:
    if kind in POSTGRES_KINDS:
        address, database, connection = request.getfixturevalue("schema")
        yield Stage(player, kind, address, database)
        empty(connection)
    else:
        path = shutil.copy(request.getfixturevalue("empty_file"), tmp_path / "queue.db")
        yield Stage(player, kind, str(path), Database(Path(path)))


@pytest.mark.parametrize(
    ("kind", "after"), CRASHES, ids=[f"{kind}-before-{STEPS[n].replace(' ', '-')}" for kind, n in CRASHES]
)
def test_crash_before_the_commit_keeps_neither_row_nor_job(stage: Stage, after: int) -> None:
    assert stage.play(*STEPS[:after], "kill") == KILLED
    assert (stage.rows(), stage.jobs()) == ([], [])


def test_crash_after_the_commit_keeps_row_and_job(stage: Stage) -> None:
    assert stage.play(*STEPS, "kill") == KILLED
    assert (stage.rows(), stage.jobs()) == (["a", "e"], ["a", "b", "c", "e"])


def test_crash_after_a_roll_back_keeps_neither_row_nor_job(stage: Stage) -> None:
    assert stage.play(*STEPS[:-1], "rollback", "kill") == KILLED
    assert (stage.rows(), stage.jobs()) == ([], [])


def test_kill_at_any_instant_keeps_both_or_neither(stage: Stage) -> None:
    """One application after another is killed on the same database, each amid many transactions."""
    chance = random.Random(stage.kind)
    begins = ALL_KINDS[stage.kind].begins
    for number in range(KILLS):
        names = [f"{number}-{index}" for index in range(1000)]
        script = f", {begins}".join(f"row {name}, job {name}, commit" for name in names)
        assert stage.play(script, seconds=chance.uniform(0, 0.03)) == KILLED
        assert stage.rows() == stage.jobs()
    assert {name.partition("-")[0] for name in stage.rows()} == {str(number) for number in range(KILLS)}
