"""The workbench: sizes, a folder on the disk that is measured, and worker processes."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import inf
from pathlib import Path

from holdfast import Queue

TYPE = "noop"
"""The type of job that is enqueued and drained; benchmarks/child.py handles it."""

POSTED = "posted"
"""The type of job that is enqueued over HTTP; no worker handles it."""

ROOT = Path(__file__).resolve().parents[1]


_SHORT = {"SQLite": 50.0, "PostgreSQL": 90.0, "Redis": 40.0}


@dataclass(frozen=True)
class Sizes:
    """How much is measured: the defaults are those of a short run."""

    rounds: int = 3
    seconds: Mapping[str, float] = field(default_factory=lambda: _SHORT)
    """Of the comparison on an engine: no further round begins when it would take longer."""
    all_every_round: bool = False
    few_rounds: int = 2
    """Of what takes long and varies little."""
    one: int = 1_000
    threads: int = 8_000
    bulk: int = 10_000
    drain_factor: int = 1
    """Times what an entrant drains in about a second."""
    pickups: int = 80
    pickup_seconds: int = 4
    effects: int = 2_000
    old_transaction: int = 40_000
    around: int = 300_000
    around_turns: int = 150
    finished: int = 10_000
    starts: int = 12
    memory: tuple[int, int] = (10_000, 100_000)
    bulk_lines: tuple[int, int] = (1_000, 100_000)
    drain: int = 100_000
    idle_seconds: float = 10.0
    growth_around: int = 1_000_000
    limits: int = 20_000
    posts: int = 4_800


FULL = Sizes(
    rounds=5,
    seconds=dict.fromkeys(_SHORT, inf),
    all_every_round=True,
    few_rounds=3,
    one=4_000,
    threads=20_000,
    bulk=50_000,
    drain_factor=4,
    pickups=500,
    pickup_seconds=30,
    effects=10_000,
    old_transaction=500_000,
    around=10_000_000,
    around_turns=500,
    finished=100_000,
    starts=20,
    memory=(10_000, 1_000_000),
)
QUICK = Sizes(
    rounds=1,
    few_rounds=1,
    one=100,
    threads=800,
    bulk=1_000,
    pickups=20,
    pickup_seconds=2,
    effects=300,
    old_transaction=5_000,
    around=30_000,
    around_turns=40,
    finished=2_000,
    starts=3,
    memory=(2_000, 6_000),
    bulk_lines=(1_000, 20_000),
    drain=20_000,
    idle_seconds=3.0,
    growth_around=50_000,
    limits=4_000,
    posts=1_600,
)
"""Enough to see that the benchmarks work, not to judge by."""


@dataclass(frozen=True)
class Note:
    """What a figure of a queue stands for."""

    engine: str
    name: str
    version: str
    durability: str
    setup: str


@dataclass(frozen=True)
class Bench:
    """Where and how much to measure."""

    folder: Path
    sizes: Sizes
    postgres: str | None = None
    """A server to use instead of one of our own."""
    servers: list[str] = field(default_factory=list)
    """The address of the PostgreSQL server, once there is one."""
    closing: ExitStack = field(default_factory=ExitStack)
    """What is to be ended with the bench."""
    notes: list[Note] = field(default_factory=list)
    """The queues that were measured, and as what."""
    ours: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """What was measured of Holdfast, by engine and measure."""
    _numbers: Iterator[int] = field(default_factory=count)

    def new_file(self) -> Path:
        """The path of a database that does not exist yet."""
        return self.folder / f"{next(self._numbers)}.db"


def url_of(place: Path | str) -> str:
    """The address of a queue: of a SQLite file, or what is one already."""
    return place if isinstance(place, str) else f"sqlite:///{place}"


def make_queue(place: Path | str) -> Queue:
    """A queue that knows the type, so that payloads are checked as in an application."""
    queue = Queue(url_of(place))

    @queue.job(name=TYPE)
    def noop(number: int) -> None:
        pass

    return queue


def settle(path: Path) -> None:
    """Move the WAL into the database and sync it, so that every run starts alike. Nobody else is there."""
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    with path.open("rb") as file:  # and all of it is in the file cache
        while file.read(1 << 24):
            pass


def remove(path: Path) -> None:
    for suffix in ("", "-wal", "-shm"):
        Path(f"{path}{suffix}").unlink(missing_ok=True)


@contextmanager
def worker(place: Path | str) -> Iterator[int]:
    """A worker process with threads, as `queue.run_worker()` starts it; gives its process id."""
    # Without bytecode files each start would compile all modules anew.
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.child", url_of(place)], cwd=ROOT, env=environment
    )
    try:
        yield process.pid
        process.send_signal(signal.SIGTERM)
        if process.wait(30) != 0:
            raise RuntimeError(f"the worker ended with status {process.returncode}")
    finally:
        process.kill()
        process.wait()


def wait_for_worker(queue: Queue, count: int = 1) -> None:
    deadline = time.monotonic() + 60
    while len(queue.workers()) < count:
        if time.monotonic() > deadline:
            raise TimeoutError("the worker did not start")
        time.sleep(0.01)
