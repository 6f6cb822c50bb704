"""`python -m benchmarks [NAME …]`, or `make bench ARGS="NAME …"`: run the benchmarks, all or those named.

How to read it. Figures of a disk and a machine say little by themselves, so each is also given as a share
of a floor that was measured beside it, in turns, in the same run: bare sqlite3 writing the same rows with
the same indexes in batches of 500 (floor.py says what exactly). Everything is written with
synchronous=FULL: whatever was counted had reached the disk. Each figure is the median of three rounds,
each share the median of the rounds' shares.

    floor     inserts, claims with finishes, and single commits, without Holdfast
    enqueue   one by one; from 16 threads, which share commits; and many in one call
    drain     no-op jobs in one worker process with threads. Expected: 0.3 of the floor
    pickup    from the return of enqueue, when the job is durable, to the start of its handler in another,
              idle process. Expected: 1 ms and two bare commits, at the median. The figures from the call of
              enqueue, which hold its own commit too, stand beside it
    idle      the processor time of a worker with nothing to do. Expected: 1 % of a core
    growth    the drain among a million scheduled, a million paused and a million finished jobs, as a share
              of the drain on an empty queue. Expected: 0.8
    limits    20,000 lanes of one job, 2,000 fair groups with group_concurrency=1, and a max_running for 2,000
              lanes together, each against the same jobs without. Expected: 0.5, 0.5 and 0.3 of them. How long
              a small group waits behind a large one (at most 20 times as long as alone), and the processor
              time of a worker whose types are all at a limit. Expected: 1 % of a core
    start_up  `queuectl enqueue --command true` from a cold start, in an environment that holds Holdfast
              alone, against a Python process that imports sqlite3 and json and commits one row; medians of
              20 runs of each, in turns. Expected: 2.5 times as long. And 100,000 lines by `enqueue --file`:
              how long they take, and that their memory stays where it is with 1,000
    http      POST /api/tasks over 16 connections, against the same server whose store makes up its answers,
              in turns. Expected: 0.5 of it. And how long 99 of 100 take while a worker process drains 100,000
              no-op jobs, against that with the jobs there and no worker. Expected: at most 5 times as long.
              Server, load and worker are processes of their own: with two cores they compete for them
    dashboard every page of the dashboard with 1,000,000 jobs and with 1,000, in two queues of the same shape,
              each with a server of its own; medians of 33 views of each, in turns, with a commit before each.
              A line says what it took with 1,000,000, and how many times that with 1,000. Expected: at most 3
              times as long, for the worst. Searches stand there too, without an expectation: they read 10,000
              jobs, and no more
    reconcile 100,000 and 10,000 completed create_file jobs against their files, by the library and by
              `queuectl reconcile` on a terminal, in a process of its own each time, against bare Python that
              reads the same files in the same order and compares their SHA-256. And that its memory stays
              where it is with 10,000

    postgres  all of the following, on a PostgreSQL server of their own with its default settings, so fsync is
              on. --postgres or QUEUECTL_TEST_POSTGRES names another
    postgres.floor    bare psycopg: INSERT and COMMIT one by one; COPY; claims with finishes in batches
                      (postgres/floor.py says what exactly)
    postgres.enqueue  one by one; from 8 threads; and many in one call
    postgres.drain    no-op jobs with 1, 2 and 4 worker processes, against bare psycopg that claims and
                      finishes as many at a time as the one worker took. Expected: 0.4 of it, for one process
    postgres.pickup   as above. Expected: 2 ms and two bare commits, at the median
    postgres.growth   a claim of one job, and a turn of 200, among a million finished jobs, against those in
                      an empty queue. Expected: at most 1.25 times as long
    postgres.limits   as above, with a server
    postgres.peers    procrastinate, pgqueuer and chancy beside Holdfast, in turns. They are installed from
                      PyPI into an environment of their own; who can't be is left out, with the reason

After each benchmark stands how much of the machine others used meanwhile. Where that is more than a few
hundredths of a core, the figures say less, and those of pickup and idle next to nothing. The files lie in
a temporary folder below the current one, so that this disk is measured (--folder chooses another); all of
it takes about ten minutes and 2 GB. With --quick the sizes are small and there is one round: enough to
see that the benchmarks work, not to judge by. Exit status 1 if an expectation was not met.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Self

from benchmarks import (
    dashboard,
    drain,
    enqueue,
    floor,
    growth,
    http,
    idle,
    limits,
    pickup,
    reconcile,
    start_up,
)
from benchmarks.bench import QUICK, Bench, Sizes
from benchmarks.figures import Figure, expectations, table
from benchmarks.postgres import drain as postgres_drain
from benchmarks.postgres import enqueue as postgres_enqueue
from benchmarks.postgres import floor as postgres_floor
from benchmarks.postgres import growth as postgres_growth
from benchmarks.postgres import limits as postgres_limits
from benchmarks.postgres import peers as postgres_peers
from benchmarks.postgres import pickup as postgres_pickup

BENCHMARKS: dict[str, Callable[[Bench], list[Figure]]] = {
    module.__name__.removeprefix("benchmarks."): module.measure
    for module in (
        floor,
        enqueue,
        drain,
        pickup,
        idle,
        growth,
        limits,
        start_up,
        http,
        dashboard,
        reconcile,
        postgres_floor,
        postgres_enqueue,
        postgres_drain,
        postgres_pickup,
        postgres_growth,
        postgres_limits,
        postgres_peers,
    )
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    # Ended by a signal, it leaves no server and no folder behind either.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    results: dict[str, list[Figure]] = {}
    others: dict[str, float | None] = {}
    print(_machine())
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as folder:
        bench = Bench(Path(folder).resolve(), QUICK if options.quick else Sizes(), options.postgres)
        with bench.closing:
            for name in options.names or BENCHMARKS:
                with _Neighbours() as neighbours:
                    results[name] = BENCHMARKS[name](bench)
                others[name] = neighbours.cores
                _print(name, results[name], neighbours.cores)
    figures = [figure for group in results.values() for figure in group]
    if lines := list(expectations(figures)):
        print("\nexpectations", *lines, sep="\n")
    if options.json:
        options.json.write_text(json.dumps(_record(results, others), indent=2) + "\n")
    return int(any(figure.expectation and not figure.expectation.met for figure in figures))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--quick", action="store_true", help="small sizes, one round")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the databases are made")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--postgres", metavar="URL", help="a PostgreSQL server to use instead of our own")
    options = parser.parse_args(arguments)
    for name in options.names:
        if not _named(name):
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    options.names = [known for name in options.names for known in _named(name)]
    return options


def _named(name: str) -> list[str]:
    """The benchmark of a name, or all those whose names begin with it and a dot."""
    return [known for known in BENCHMARKS if known == name or known.startswith(f"{name}.")]


def _machine() -> str:
    return (
        f"Python {platform.python_version()}, SQLite {sqlite3.sqlite_version}, {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}"
    )


def _print(name: str, figures: Sequence[Figure], others: float | None) -> None:
    beside = "" if others is None else f"  (others used {others:.2f} cores meanwhile)"
    print(f"\n{name}{beside}", *table(figures), sep="\n", flush=True)


def _record(results: dict[str, list[Figure]], others: dict[str, float | None]) -> dict[str, object]:
    return {
        "machine": _machine(),
        "benchmarks": {
            name: {"cores_used_by_others": others[name], "figures": [asdict(figure) for figure in figures]}
            for name, figures in results.items()
        },
    }


class _Neighbours:
    """How many cores all but this process and its children used; None if that can't be told."""

    cores: float | None = None

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        self._used = _used_by_others()
        return self

    def __exit__(self, *_: object) -> None:
        used = _used_by_others()
        if used is not None and self._used is not None:
            self.cores = max(0.0, (used - self._used) / (time.monotonic() - self._began))


def _used_by_others() -> float | None:
    """Processor seconds since the machine started; the children that still run are taken for others."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _waiting, *interrupts = ticks
    ours = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    busy = (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")
    return busy - sum(usage.ru_utime + usage.ru_stime for usage in ours)


if __name__ == "__main__":
    sys.exit(main())
