"""Peers: procrastinate, pgqueuer and chancy beside Holdfast, in turns, on the same server.

Each is used as its documentation says (benchmarks/peers has the code), in a database of its own, after
VACUUM ANALYZE. A peer's drain is timed from its first handler to its last, so what it writes after that is
not counted; ours ends with the last completion on the disk.
"""

from __future__ import annotations

import os
import subprocess
import threading
import venv
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import IO

from benchmarks.bench import ROOT, Bench
from benchmarks.figures import Figure
from benchmarks.postgres.drain import drain
from benchmarks.postgres.enqueue import many_at_once, one_by_one, rate
from benchmarks.postgres.pickup import percentiles, pickups
from benchmarks.postgres.place import connect, new_database, settle

PEERS = {
    "procrastinate": ("procrastinate==3.10.0", "psycopg[binary,pool]"),
    "pgqueuer": ("pgqueuer[asyncpg]==1.6.0",),
    "chancy": ("chancy==0.26.0", "psycopg[binary,pool]"),
}
_PATIENCE = 300.0
_WARM_UP = 10

Rates = dict[str, float]
"""What was measured in a round, by its name: jobs a second, or milliseconds."""

_ONE_BY_ONE, _BULK, _DRAIN = "enqueue, one by one", "enqueue, many", "drain, 1 worker process"
_P50, _P95 = "pickup p50", "pickup p95"


def measure(bench: Bench) -> list[Figure]:
    python = _make_environment(bench.folder / "peers")
    runs: dict[str, Callable[[], Rates]] = {"Holdfast": partial(_holdfast, bench)}
    for name in PEERS:
        if _can_install(python, name):
            runs[name] = partial(_peer, bench, name, python)
    rounds: dict[str, list[Rates]] = {name: [] for name in runs}
    for _ in range(bench.sizes.rounds):
        for name in list(runs):
            try:
                rounds[name].append(runs[name]())
            except (subprocess.SubprocessError, ValueError) as error:
                if name == "Holdfast":
                    raise
                print(f"{name} did not run: {error}", flush=True)
                del runs[name], rounds[name]
    return [
        _figure(what, name, rounds) for what in (_ONE_BY_ONE, _BULK, _DRAIN, _P50, _P95) for name in rounds
    ]


def _figure(what: str, name: str, rounds: dict[str, list[Rates]]) -> Figure:
    values = [measured[what] for measured in rounds[name]]
    ours = [measured[what] for measured in rounds["Holdfast"]]
    is_time = what in (_P50, _P95)
    return Figure(
        name=f"{what}: {name}",
        value=median(values),
        unit="ms" if is_time else "jobs/s",
        share=None if name == "Holdfast" else median(v / o for v, o in zip(values, ours, strict=True)),
        of="Holdfast's",
    )


def _holdfast(bench: Bench) -> Rates:
    sizes = bench.sizes
    p50, p95 = percentiles(pickups(bench, sizes.peer_pickups)[1])
    return {
        _ONE_BY_ONE: rate(bench, sizes.peer_singly, one_by_one),
        _BULK: rate(bench, sizes.postgres_many, many_at_once),
        _DRAIN: drain(bench, sizes.postgres_drain, 1).rate,
        _P50: p50,
        _P95: p95,
    }


def _make_environment(folder: Path) -> str:
    """The Python of an environment for the peers."""
    venv.create(folder, with_pip=True)
    return str(folder / "bin" / "python")


def _can_install(python: str, name: str) -> bool:
    """Install a peer; if that can't be done, say why."""
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *PEERS[name]]
    try:
        subprocess.run(
            command, env=_variables(), check=True, capture_output=True, text=True, timeout=_PATIENCE
        )
    except subprocess.SubprocessError as error:
        reason = (getattr(error, "stderr", "") or str(error)).strip().splitlines()[-1]
        print(f"{name} can't be installed here: {reason}", flush=True)
        return False
    return True


def _variables() -> dict[str, str]:
    unwanted = ("PYTHON", "VIRTUAL_ENV", "PGQUEUER")
    return {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}


def _peer(bench: Bench, name: str, python: str) -> Rates:
    sizes = bench.sizes

    def run(url: str, command: str, *count: int) -> str:
        done = subprocess.run(
            _command(python, name, command, url, *count),
            cwd=ROOT,
            env=_variables(),
            stdout=subprocess.PIPE,
            check=True,
            text=True,
            timeout=_PATIENCE,
        )
        return done.stdout

    def new(jobs: int, how: str) -> float:
        with new_database(bench) as url, connect(url) as connection:
            run(url, "prepare")
            connection.execute("CHECKPOINT")
            return jobs / float(run(url, how, jobs))

    with new_database(bench) as url, connect(url) as connection:
        run(url, "prepare")
        run(url, "bulk", sizes.peer_drain)
        settle(connection)
        drained = sizes.peer_drain / float(run(url, "work", sizes.peer_drain))
    with new_database(bench) as url:
        run(url, "prepare")
        with _serving(_command(python, name, "serve", url)) as server:
            run(url, "pickups", _WARM_UP)
            _starts(server, _WARM_UP)
            returned = run(url, "pickups", sizes.peer_pickups).splitlines()
            started = _starts(server, sizes.peer_pickups)
    returns = dict(map(_numbered, returned))
    p50, p95 = percentiles([(started[number] - at) / 1e6 for number, at in returns.items()])
    return {
        _ONE_BY_ONE: new(sizes.peer_singly, "singly"),
        _BULK: new(sizes.postgres_many, "bulk"),
        _DRAIN: drained,
        _P50: p50,
        _P95: p95,
    }


def _command(python: str, name: str, command: str, url: str, *count: int) -> list[str]:
    return [python, "-m", "benchmarks.peers.run", name, command, url, *map(str, count)]


@contextmanager
def _serving(command: list[str]) -> Iterator[IO[str]]:
    """A worker process; gives what it prints."""
    process = subprocess.Popen(command, cwd=ROOT, env=_variables(), stdout=subprocess.PIPE, text=True)
    overdue = threading.Timer(_PATIENCE, process.kill)
    overdue.start()
    try:
        assert process.stdout is not None
        with process.stdout as printed:
            yield printed
    finally:
        overdue.cancel()
        process.kill()
        process.wait()


def _starts(printed: IO[str], jobs: int) -> dict[int, int]:
    """When each of so many jobs, and the one that a producer begins with, has started."""
    lines = [printed.readline() for _ in range(jobs + 1)]
    return dict(_numbered(line) for line in lines)


def _numbered(line: str) -> tuple[int, int]:
    number, at = line.split()
    return int(number), int(at)
