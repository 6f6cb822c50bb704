"""Start-up: `queuectl enqueue` from a cold start, and many jobs from a file, in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import time
import venv
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from benchmarks.bench import Bench, remove
from benchmarks.figures import Figure, at_most

EXPECTED = 2.5
"""Times the floor: a Python process that imports sqlite3 and json and makes one commit."""

EXPECTED_MIB = 32.0
"""More memory for a hundred times as many lines: SQLite's page cache, which is bounded."""

_ROOT = Path(__file__).resolve().parents[1]

_FLOOR = """
import sqlite3, json
connection = sqlite3.connect({path!r}, isolation_level=None)
connection.execute("INSERT INTO t (a) VALUES (1)")
connection.close()
"""

# Small itself: a process inherits the memory record of the one that starts it.
_MEASURED = """
import os, sys, time
began = time.perf_counter()
pid = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=[
    (os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
_, status, usage = os.wait4(pid, 0)
print(os.waitstatus_to_exitcode(status), time.perf_counter() - began, usage.ru_maxrss)
"""
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


def measure(bench: Bench) -> list[Figure]:
    environment = _make_environment(bench.folder / "environment")
    try:
        return [*_start(bench, environment), *_bulk(bench, environment)]
    finally:
        shutil.rmtree(environment.folder)


@dataclass(frozen=True)
class Environment:
    """A virtual environment that holds Holdfast and what it needs, installed as a user would."""

    folder: Path

    def program(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def variables(self) -> dict[str, str]:
        """Those of a user: bytecode is kept, nothing is found elsewhere, and the home is a folder of ours."""
        unwanted = ("PYTHON", "QUEUECTL", "VIRTUAL_ENV")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
        return {**kept, "QUEUECTL_HOME": str(self.folder / "home")}


def _make_environment(folder: Path) -> Environment:
    environment = Environment(folder)
    venv.create(folder, with_pip=True)
    subprocess.run(
        [environment.program("python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", _ROOT],
        env=environment.variables(),
        check=True,
    )
    return environment


def _start(bench: Bench, environment: Environment) -> list[Figure]:
    path = bench.new_file()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE t (a INTEGER)")
    floor_command = [environment.program("python"), "-c", _FLOOR.format(path=str(path))]
    enqueue_command = [environment.program("queuectl"), "enqueue", "--command", "true"]
    for command in (floor_command, enqueue_command):  # makes the database, fills the file cache
        _seconds(command, environment)
    floors, enqueues = [], []
    for _ in range(bench.sizes.starts):
        floors.append(_seconds(floor_command, environment))
        enqueues.append(_seconds(enqueue_command, environment))
    remove(path)
    ratio = median(enqueues) / median(floors)
    return [
        Figure(name="python: import sqlite3, json; one commit", value=median(floors) * 1000, unit="ms"),
        Figure(
            name="queuectl enqueue --command true",
            value=median(enqueues) * 1000,
            unit="ms",
            share=ratio,
            of="the floor",
            expectation=at_most(ratio, EXPECTED, "times the floor"),
        ),
    ]


def _seconds(command: list[str], environment: Environment) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment.variables(), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _bulk(bench: Bench, environment: Environment) -> list[Figure]:
    few, many = bench.sizes.bulk_lines
    _, few_mib = _enqueue_file(bench, environment, few)
    seconds, many_mib = _enqueue_file(bench, environment, many)
    more = many_mib - few_mib
    return [
        Figure(name=f"enqueue --file, {many:,} lines", value=seconds, unit="s"),
        Figure(name=f"peak memory, {few:,} lines", value=few_mib, unit="MiB"),
        Figure(
            name=f"peak memory, {many:,} lines",
            value=many_mib,
            unit="MiB",
            expectation=at_most(more, EXPECTED_MIB, "MiB more", "than for the few"),
        ),
    ]


def _enqueue_file(bench: Bench, environment: Environment, lines: int) -> tuple[float, float]:
    """Seconds, and the most memory the process held, in MiB."""
    path = bench.new_file()
    file = bench.folder / "jobs.jsonl"
    with file.open("w") as jobs:
        for number in range(lines):
            jobs.write(json.dumps({"type": "noop", "payload": {"number": number, "text": "x" * 100}}) + "\n")
    command = [environment.program("queuectl"), "enqueue", "--file", str(file)]
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", _MEASURED, *command, "--database", f"sqlite:///{path}"],
        env=environment.variables(),
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    code, seconds, most = done.stdout.split()
    if code != "0":
        raise RuntimeError(f"queuectl enqueue --file ended with status {code}")
    file.unlink()
    remove(path)
    return float(seconds), int(most) * _RSS_UNIT / 1024**2
