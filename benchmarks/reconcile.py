"""Reconcile: completed file jobs against their files, by the library and by `queuectl reconcile`.

Each run is a process of its own. The floor is bare Python that reads the same files in the same order.
"""

from __future__ import annotations

import hashlib
import json
import os
import pty
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

from benchmarks.bench import Bench, remove, settle, url_of
from benchmarks.figures import Figure, at_most
from holdfast import Queue
from holdfast.jobs import CREATE_FILE

FEW = 10_000
"""Jobs enough to fill the page cache of the queue's own database."""

EXPECTED_MIB = 6.0
"""More memory for ten times as many jobs: SQLite's bounded page cache for what the walk remembers."""

_PER_FOLDER = 100
_CHUNK = 10_000
_TEXT = "What a job has written. " * 40
_PATIENCE = 600.0

_COMPLETE = """
UPDATE holdfast_jobs SET status = 'completed', attempts = 1, version = 1, started_at = :now + seq,
    finished_at = :now + seq, updated_at = :now + seq, result = written(payload)
"""

# The arguments: a list of digests and paths.
_FLOOR = """
import hashlib, sys, time
began = time.perf_counter()
same = 0
with open(sys.argv[1]) as files:
    for line in files:
        digest, path = line[:-1].split(" ", 1)
        with open(path, "rb") as file:
            same += hashlib.sha256(file.read()).hexdigest() == digest
print(time.perf_counter() - began, same, 0)
"""

_IMPORT = """
import sys, time
from holdfast import Queue
from holdfast.jobs import install
from holdfast.reconcile import reconcile
queue = Queue(sys.argv[1])
install(queue)
"""
_RECONCILE = f"""{_IMPORT}
began = time.perf_counter()
report = reconcile(queue)
print(time.perf_counter() - began, report.checked, report.differing + report.unchecked)
queue.close()
"""
_IMPORT_COMMAND = f"{_IMPORT}import holdfast.cli.reconcile, rich.console, rich.progress\n"

# Small itself: a process inherits the memory record of the one that starts it.
_MEASURED = """
import os, sys, time
out, command = int(sys.argv[1]), sys.argv[2:]
began = time.perf_counter()
pid = os.posix_spawn(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_CLOSE, out)])
_, status, usage = os.wait4(pid, 0)
seconds = time.perf_counter() - began
os.write(out, f"{os.waitstatus_to_exitcode(status)} {seconds} {usage.ru_maxrss}".encode())
"""
_RSS_UNIT = 1 if sys.platform == "darwin" else 1024


@dataclass(frozen=True)
class World:
    """A queue of completed jobs, and the files that they have written."""

    jobs: int
    database: Path
    files: Path

    @property
    def listing(self) -> Path:
        """The digests and paths of the files, in the order in which they are checked."""
        return self.database.with_suffix(".list")


@dataclass(frozen=True)
class Ran:
    """What a process has printed, how long it took and the most memory it held."""

    printed: str
    seconds: float
    mib: float


@dataclass
class Runs:
    """Seconds and MiB, by round."""

    floors: list[float] = field(default_factory=list)
    library: list[float] = field(default_factory=list)
    command: list[float] = field(default_factory=list)
    library_mib: list[float] = field(default_factory=list)
    command_mib: list[float] = field(default_factory=list)


def measure(bench: Bench) -> list[Figure]:
    few, many = FEW, bench.sizes.drain
    figures, runs = [], {}
    for jobs in (few, many):
        with _made(bench, jobs) as world:
            runs[jobs] = _check(world, bench.sizes.rounds)
            changed = _check_changed(world)
        figures += _speed(jobs, runs[jobs], changed)
    idle = _python(bench.folder, _IMPORT, "sqlite:///none.db").mib
    figures += _memory("reconcile()", idle, {jobs: max(runs[jobs].library_mib) for jobs in (few, many)})
    idle = _python(bench.folder, _IMPORT_COMMAND, "sqlite:///none.db").mib
    figures += _memory("queuectl", idle, {jobs: max(runs[jobs].command_mib) for jobs in (few, many)})
    return figures


def _speed(jobs: int, runs: Runs, changed: float) -> list[Figure]:
    def rates(name: str, seconds: list[float]) -> list[Figure]:
        share = median(floor / took for floor, took in zip(runs.floors, seconds, strict=True))
        rate = jobs / median(seconds)
        return [
            Figure(name=name, value=median(seconds), unit="s"),
            Figure(name=name, value=rate, unit="jobs/s", share=share, of="bare reading"),
        ]

    return [
        Figure(name=f"bare reading of {jobs:,} files", value=jobs / median(runs.floors), unit="files/s"),
        *rates(f"reconcile(), {jobs:,} jobs", runs.library),
        *rates(f"queuectl reconcile, {jobs:,} jobs", runs.command),
        Figure(name="the same, a file changed: exit code 1", value=changed, unit="s"),
    ]


def _memory(what: str, idle: float, peaks: dict[int, float]) -> list[Figure]:
    """Peaks, and what of them is above that of a process which has only imported the same."""
    (few, few_mib), (many, many_mib) = sorted(peaks.items())
    of = f"that with {few:,}"
    return [
        Figure(name=f"{what}, import alone: peak memory", value=idle, unit="MiB"),
        Figure(name=f"{what}, {few:,} jobs: peak memory", value=few_mib, unit="MiB"),
        Figure(
            name=f"{what}, {many:,} jobs: peak memory",
            value=many_mib,
            unit="MiB",
            share=many_mib / few_mib,
            of=of,
            expectation=at_most(many_mib - few_mib, EXPECTED_MIB, "MiB more", "than for the few"),
        ),
        Figure(name=f"{what}, {few:,} jobs: above import", value=few_mib - idle, unit="MiB"),
        Figure(
            name=f"{what}, {many:,} jobs: above import",
            value=many_mib - idle,
            unit="MiB",
            share=(many_mib - idle) / (few_mib - idle),
            of=of,
        ),
    ]


@contextmanager
def _made(bench: Bench, jobs: int) -> Iterator[World]:
    path = bench.new_file()
    world = World(jobs, path, path.with_suffix(".files"))
    try:
        _write(world)
        yield world
    finally:
        shutil.rmtree(world.files, ignore_errors=True)
        world.listing.unlink(missing_ok=True)
        remove(path)


def _write(world: World) -> None:
    lines = []
    with Queue(url_of(world.database)) as queue:
        for first in range(0, world.jobs, _CHUNK):
            payloads = []
            for number in range(first, min(first + _CHUNK, world.jobs)):
                file = world.files / f"{number // _PER_FOLDER:05}" / f"{number}.txt"
                if number % _PER_FOLDER == 0:
                    file.parent.mkdir(parents=True)
                content = f"{number}\n{_TEXT}"
                file.write_text(content)
                lines.append(f"{hashlib.sha256(content.encode()).hexdigest()} {file}\n")
                payloads.append({"path": str(file), "content": content})
            queue.enqueue_many(CREATE_FILE, payloads)
    with closing(sqlite3.connect(world.database, isolation_level=None)) as connection:
        connection.create_function("written", 1, _result)
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute(_COMPLETE, {"now": time.time_ns() // 1000})
    settle(world.database)
    world.listing.write_text("".join(reversed(lines)))  # the last job is checked first


def _result(payload: str) -> str:
    """What create_file returns."""
    job = json.loads(payload)
    data = job["content"].encode()
    digest = hashlib.sha256(data).hexdigest()
    return json.dumps({"path": job["path"], "bytes": len(data), "sha256": digest, "changed": True})


def _check(world: World, rounds: int) -> Runs:
    """Floor, library and command in turns. The first floor, which fills the file cache, does not count."""
    runs = Runs()
    _seconds(world, _python(world.files, _FLOOR, str(world.listing)))
    for _ in range(rounds):
        runs.floors.append(_seconds(world, _python(world.files, _FLOOR, str(world.listing))))
        ran = _python(world.files, _RECONCILE, url_of(world.database))
        runs.library.append(_seconds(world, ran))
        runs.library_mib.append(ran.mib)
        ran = _queuectl(world, 0, f"{world.jobs} effects checked: 0 differ, 0 could not be checked")
        runs.command.append(ran.seconds)
        runs.command_mib.append(ran.mib)
    return runs


def _check_changed(world: World) -> float:
    """Seconds of the command once one file has another content of the same length."""
    file = world.files / "00000" / f"{_PER_FOLDER // 2}.txt"
    file.write_text(file.read_text().swapcase())
    return _queuectl(world, 1, f"{world.jobs} effects checked: 1 differs, 0 could not be checked").seconds


def _seconds(world: World, ran: Ran) -> float:
    """How long it took by its own clock, without its start, if it found every file as it should be."""
    seconds, same, others = ran.printed.split()
    if (int(same), int(others)) != (world.jobs, 0):
        raise AssertionError(f"{same} of {world.jobs} files were checked, and {others} differ")
    return float(seconds)


def _queuectl(world: World, code: int, verdict: str) -> Ran:
    program = str(Path(sys.executable).with_name("queuectl"))
    words = [program, "reconcile", "--database", url_of(world.database)]
    ran = _run(words, world.files, code, on_terminal=True)
    for part in ("checking", f"{world.jobs}/{world.jobs}", verdict):
        if part not in ran.printed:
            raise AssertionError(f"queuectl reconcile did not show {part!r}: {ran.printed[-2000:]!r}")
    return ran


def _python(folder: Path, code: str, *words: str) -> Ran:
    return _run([sys.executable, "-c", code, *words], folder, 0)


def _run(words: Sequence[str], folder: Path, code: int, *, on_terminal: bool = False) -> Ran:
    """Run a program in a folder, below which it may touch files, and read all that it prints."""
    reader, writer = pty.openpty() if on_terminal else os.pipe()
    told, telling = os.pipe()
    with open(reader, "rb", buffering=0) as output, open(told, "rb") as report:
        if on_terminal:
            termios.tcsetwinsize(writer, (24, 100))
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _MEASURED, str(telling), *words],
                cwd=folder,
                env=_variables(folder),
                stdin=writer if on_terminal else subprocess.DEVNULL,
                stdout=writer,
                stderr=writer,
                pass_fds=[telling],
                start_new_session=True,
            )
        finally:
            os.close(writer)
            os.close(telling)
        try:
            printed = _read(output.fileno())
            process.wait(_PATIENCE)
            ended, seconds, most = report.read().split()
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if int(ended) != code:
        raise RuntimeError(f"{words[0]} ended with status {int(ended)}, not {code}: {printed[-2000:]}")
    return Ran(printed, float(seconds), int(most) * _RSS_UNIT / 1024**2)


def _variables(folder: Path) -> dict[str, str]:
    """Those of a user on a terminal. Without bytecode files each start would compile all modules anew."""
    unwanted = ("QUEUECTL", "PYTHONDONTWRITEBYTECODE", "COLUMNS", "LINES")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "QUEUECTL_HOME": str(folder.parent / "home"), "TERM": "xterm-256color"}


def _read(file: int) -> str:
    """All that is printed, until the last who could print has ended."""
    printed = bytearray()
    deadline = time.monotonic() + _PATIENCE
    while True:
        if not select.select([file], [], [], max(0.0, deadline - time.monotonic()))[0]:
            raise TimeoutError("the process did not end")
        try:
            data = os.read(file, 1 << 16)
        except OSError:  # how Linux says that a terminal is closed
            data = b""
        if not data:
            return printed.decode("utf-8", "replace")
        printed += data
