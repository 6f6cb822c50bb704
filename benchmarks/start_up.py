"""Start-up: `queuectl enqueue` from a cold start, and many jobs from a file, in an environment of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.bench import Bench, remove
from benchmarks.figures import OURS, Comparison, Entry, Figure, Result, at_most

EXPECTED = 2.5
"""Times the floor: a Python process that imports sqlite3 and json."""

EXPECTED_MIB = 32.0
"""More memory for a hundred times as many lines: SQLite's page cache, which is bounded."""

_ROOT = Path(__file__).resolve().parents[1]

_FLOOR = "import sqlite3, json"
_BARE = "python -c 'import sqlite3, json'"

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


def measure(bench: Bench) -> list[Result]:
    """How long one cold enqueue takes."""
    with _new_environment(bench) as environment:
        return [_start(bench, environment)]


def measure_bulk(bench: Bench) -> list[Result]:
    """Many jobs from a file."""
    with _new_environment(bench) as environment:
        return _bulk(bench, environment)


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


@contextmanager
def _new_environment(bench: Bench) -> Iterator[Environment]:
    folder = bench.folder / "environment"
    environment = Environment(folder)
    venv.create(folder, with_pip=True)
    subprocess.run(
        [environment.program("python"), "-m", "pip", "install", "-q", "--disable-pip-version-check", _ROOT],
        env=environment.variables(),
        check=True,
        capture_output=True,
    )
    try:
        yield environment
    finally:
        shutil.rmtree(folder)


def _start(bench: Bench, environment: Environment) -> Comparison:
    floor_command = [environment.program("python"), "-c", _FLOOR]
    enqueue_command = [environment.program("queuectl"), "enqueue", "--command", "true"]
    for command in (floor_command, enqueue_command):  # makes the database, fills the file cache
        _seconds(command, environment)
    floors, enqueues = [], []
    for _ in range(bench.sizes.starts):
        floors.append(_seconds(floor_command, environment))
        enqueues.append(_seconds(enqueue_command, environment))
    comparison = Comparison(
        name="queuectl enqueue from a cold start",
        section="SQLite",
        unit="ms",
        entries=[
            Entry(OURS, [1000 * seconds for seconds in enqueues]),
            Entry(_BARE, [1000 * seconds for seconds in floors]),
        ],
        less_is_better=True,
    )
    comparison.expect_ratio(_BARE, EXPECTED)
    return comparison


def _seconds(command: list[str], environment: Environment) -> float:
    began = time.perf_counter()
    subprocess.run(command, env=environment.variables(), stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - began


def _bulk(bench: Bench, environment: Environment) -> list[Result]:
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
