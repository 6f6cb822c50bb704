"""Applications killed with -9 around their own commit: the row exists if and only if the job does."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.conformance.connections import KINDS, prepare
from tests.process.programs import ROOT

KILLED = -9
STEPS = ["row a", "job a", "jobs b c", "savepoint", "row d", "job d", "undo"]
STEPS += ["savepoint", "row e", "job e", "release", "commit"]
KILLS = 6

Play = Callable[..., int]


class Player:
    """A program that has loaded the libraries of a kind, and plays each script in a process of its own."""

    def __init__(self, kind: str) -> None:
        self._program = subprocess.Popen(
            [sys.executable, "-W", "error", "-m", "tests.conformance.connections", kind],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def play(self, path: Path, script: str, seconds: float | None = None) -> int:
        """Play a script on a file; return how that ended."""
        assert self._program.stdin is not None
        assert self._program.stdout is not None
        self._program.stdin.write(json.dumps([str(path), script, seconds]).encode() + b"\n")
        self._program.stdin.flush()
        return int(self._program.stdout.readline())

    def close(self) -> None:
        self._program.communicate(timeout=30)
        assert self._program.returncode == 0


@pytest.fixture(scope="module")
def players() -> Iterator[dict[str, Player]]:
    """The players by kind; started when they are needed, for most of a test's time would be that start."""
    players: dict[str, Player] = {}
    yield players
    for player in players.values():
        player.close()


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def play(kind: str, players: dict[str, Player]) -> Play:
    if kind not in players:
        players[kind] = Player(kind)
    return players[kind].play


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with the tables of queue and application, and nothing in them."""
    path = tmp_path_factory.mktemp("outbox") / "empty.db"
    prepare(path)
    return path


@pytest.fixture
def fresh(empty: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Makes copies of the empty database."""

    def fresh(name: str) -> Path:
        return Path(shutil.copy(empty, tmp_path / f"{name}.db"))

    return fresh


def column(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        return [value for (value,) in connection.execute(sql)]


def rows(path: Path) -> list[str]:
    return column(path, "SELECT name FROM users ORDER BY rowid")


def jobs(path: Path) -> list[str]:
    return column(path, "SELECT payload ->> '$.to' FROM holdfast_jobs ORDER BY seq")


@pytest.mark.parametrize("after", range(len(STEPS)), ids=lambda n: f"before-{STEPS[n].replace(' ', '-')}")
def test_crash_before_the_commit_keeps_neither_row_nor_job(
    play: Play, fresh: Callable[[str], Path], after: int
) -> None:
    path = fresh("crash")
    assert play(path, ", ".join([*STEPS[:after], "kill"])) == KILLED
    assert (rows(path), jobs(path)) == ([], [])


def test_crash_after_the_commit_keeps_row_and_job(play: Play, fresh: Callable[[str], Path]) -> None:
    path = fresh("crash")
    assert play(path, ", ".join([*STEPS, "kill"])) == KILLED
    assert (rows(path), jobs(path)) == (["a", "e"], ["a", "b", "c", "e"])


def test_crash_after_a_roll_back_keeps_neither_row_nor_job(play: Play, fresh: Callable[[str], Path]) -> None:
    path = fresh("crash")
    assert play(path, ", ".join([*STEPS[:-1], "rollback, kill"])) == KILLED
    assert (rows(path), jobs(path)) == ([], [])


def test_kill_at_any_instant_keeps_both_or_neither(
    kind: str, play: Play, fresh: Callable[[str], Path]
) -> None:
    """One application after another is killed on the same file, each amid hundreds of transactions."""
    path = fresh("storm")
    chance = random.Random(kind)
    begins = KINDS[kind].begins
    for number in range(KILLS):
        names = [f"{number}-{index}" for index in range(1000)]
        script = f", {begins}".join(f"row {name}, job {name}, commit" for name in names)
        assert play(path, script, chance.uniform(0, 0.1)) == KILLED
        assert rows(path) == jobs(path)
    assert {name.partition("-")[0] for name in rows(path)} == {str(number) for number in range(KILLS)}
