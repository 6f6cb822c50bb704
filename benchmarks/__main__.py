"""`python -m benchmarks [NAME …]`, or `make bench ARGS="NAME …"`: run the report, or the benchmarks named.

How to read it. Figures of a disk and a machine say little by themselves, so each stands beside a floor and
beside other queues, measured in turns, in the same run. A figure is the median of the rounds; a share, such
as "Holdfast: 1.20×", is the median of the rounds' shares, and so says how many times the other's figure ours
is. At the end stand the expectations, met or not.

The report takes less than five minutes where the other queues are installed already (.bench_cache keeps
them; installing them takes about a minute, once). --full takes larger sizes, 10 million jobs among them,
five rounds, and the benchmarks below the line, too: over an hour and 15 GB.

    queues.sqlite      enqueue, drain and pickup on SQLite: Holdfast, bare sqlite3 with a minimal row (floor),
                       huey, litequeue, persist-queue
    queues.postgresql  the same on PostgreSQL: Holdfast, bare psycopg (floor), procrastinate, pgqueuer,
                       chancy, and where node is, graphile-worker and pg-boss
    queues.redis       celery, dramatiq, rq, saq and taskiq, where a redis-server is
    effects            jobs that write in ctx.transaction(), against bare SQL with a commit for each job
    old_transaction    a drain on PostgreSQL while another session holds an old transaction
    around             claim, enqueue, list and overview among many other jobs, against an empty queue
    disk               what a finished job takes
    start_up           `queuectl enqueue` from a cold start, in an environment that holds Holdfast alone
    memory             what a worker holds after many jobs
    ---
    idle               the processor time of a worker with nothing to do. Expected: 1 % of a core
    enqueue_file       100,000 lines by `queuectl enqueue --file`, and the memory they take
    limits, postgres.limits
                       lanes, fair groups with group_concurrency=1, and max_running, against the same jobs
                       without. Expected: 0.5, 0.5 and 0.3 of them. How long a small group waits behind a
                       large one (at most 20 times as long as alone), and the processor time of a worker
                       whose types are all at a limit. Expected: 1 % of a core
    http               POST /api/tasks over 16 connections, against the same server whose store makes up its
                       answers. Expected: 0.5 of it. And the p99 while a worker drains 100,000 jobs.
                       Expected: at most 5 times as long as without the worker
    dashboard          every page with 1,000,000 jobs and with 1,000, in turns. Expected: at most 3 times as
                       long, for the worst
    reconcile          100,000 and 10,000 completed create_file jobs against their files

What a drain measures. The workers are those that users start: `queuectl worker start`, `huey_consumer`,
`procrastinate worker` and so on (benchmarks/queues says which; a queue without a command is run by its
library). Handlers count themselves in shared memory and do nothing else. A drain is timed from the moment
when each worker process has begun to the end of the last handler. The jobs are there before the workers
start.

PostgreSQL is a server of our own with its default settings, so fsync is on; --postgres or
QUEUECTL_TEST_POSTGRES names another. Beside each benchmark stands how much of the machine others used just
before and just after it: where that is more than a few hundredths of a core, the figures say less, and those
of pickup next to nothing. The files lie in a temporary folder below the current one, so that this disk is
measured (--folder chooses another). With --quick everything is tiny: enough to see that the benchmarks work,
not to judge by. Exit status 1 if an expectation was not met.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks import (
    around,
    compare,
    dashboard,
    disk,
    effects,
    http,
    idle,
    limits,
    memory,
    old_transaction,
    reconcile,
    start_up,
)
from benchmarks.arena import program_versions
from benchmarks.bench import FULL, QUICK, ROOT, Bench, Note, Sizes
from benchmarks.figures import Comparison, Entry, Expectation, Figure, Result, expectations, table
from benchmarks.postgres import limits as postgres_limits
from benchmarks.postgres.place import server_version
from benchmarks.report import Report, write

_LOOK = 0.4
"""Seconds for which the machine is looked at before and after each benchmark."""

Benchmark = Callable[[Bench], Sequence[Result]]

REPORT: dict[str, Benchmark] = {
    "queues.sqlite": compare.sqlite,
    "queues.postgresql": compare.postgresql,
    "queues.redis": compare.redis,
    "effects": effects.measure,
    "old_transaction": old_transaction.measure,
    "around": around.measure,
    "disk": disk.measure,
    "start_up": start_up.measure,
    "memory": memory.measure,
}
BENCHMARKS: dict[str, Benchmark] = {
    **REPORT,
    "idle": idle.measure,
    "enqueue_file": start_up.measure_bulk,
    "limits": limits.measure,
    "postgres.limits": postgres_limits.measure,
    "http": http.measure,
    "dashboard": dashboard.measure,
    "reconcile": reconcile.measure,
}


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parse(arguments)
    # Ended by a signal, it leaves no server and no folder behind either.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    report = _load(options.read) if options.read else _run(options)
    if lines := list(expectations(report.results)):
        print("\nexpectations")
        for name, expectation in lines:
            print(f"  {'met    ' if expectation.met else 'NOT met'}  {name}: {expectation.words}")
    if options.json:
        options.json.write_text(json.dumps(_record(report), indent=2) + "\n")
    if options.write:
        for path in write(report, options.write):
            print(f"wrote {path}")
    return int(any(not expectation.met for _, expectation in lines))


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    size = parser.add_mutually_exclusive_group()
    size.add_argument("--full", action="store_true", help="large sizes, five rounds, and all benchmarks")
    size.add_argument("--quick", action="store_true", help="tiny sizes, one round")
    parser.add_argument("--folder", type=Path, default=Path(), help="where the databases are made")
    parser.add_argument("--postgres", metavar="URL", help="a PostgreSQL server to use instead of our own")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument(
        "--read", type=Path, metavar="FILE", help="take the figures from there, measure nothing"
    )
    parser.add_argument(
        "--write",
        type=Path,
        nargs="?",
        const=ROOT / "docs",
        metavar="FOLDER",
        help="write the report and its plots into performance.md and images there (default: docs)",
    )
    options = parser.parse_args(arguments)
    for name in options.names:
        if not _named(name):
            parser.error(f"there is no benchmark {name!r}; there are {', '.join(BENCHMARKS)}")
    if options.write and options.names:
        parser.error("--write takes the whole report, without names")
    options.names = [known for name in options.names for known in _named(name)]
    return options


def _named(name: str) -> list[str]:
    """The benchmark of a name, or all those whose names begin with it and a dot."""
    return [known for known in BENCHMARKS if known == name or known.startswith(f"{name}.")]


def _run(options: argparse.Namespace) -> Report:
    began = time.monotonic()
    results: list[Result] = []
    sizes = FULL if options.full else QUICK if options.quick else Sizes()
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=options.folder) as folder:
        bench = Bench(Path(folder).resolve(), sizes, options.postgres)
        with bench.closing:
            machine = _machine(bench)
            print(machine, flush=True)
            for name in options.names or (BENCHMARKS if options.full else REPORT):
                since, shown = time.monotonic(), len(bench.notes)
                before = _used_by_others()
                measured = BENCHMARKS[name](bench)
                seconds = time.monotonic() - since
                results += measured
                _print(name, measured, bench.notes[shown:], (before, _used_by_others()), seconds)
    print(f"\nmeasured in {time.monotonic() - began:.0f} s")
    return Report(machine, results, bench.notes)


def _machine(bench: Bench) -> str:
    programs = {**program_versions(), "PostgreSQL": server_version(bench)}
    versions = ", ".join(f"{name} {version}" for name, version in programs.items())
    return (
        f"Python {platform.python_version()}, {versions}; {os.cpu_count()} cores, "
        f"{platform.system()} {platform.machine()}"
    )


def _print(
    name: str,
    results: Sequence[Result],
    notes: Sequence[Note],
    others: tuple[float | None, float | None],
    seconds: float,
) -> None:
    before, after = ("?" if cores is None else f"{cores:.2f}" for cores in others)
    print(f"\n{name} ({seconds:.0f} s; others used {before} cores just before, {after} just after)")
    print(*table(results), sep="\n")
    for note in notes:
        print(f"  {note.name} {note.version}: {note.setup}. Durability: {note.durability}")
    sys.stdout.flush()


def _record(report: Report) -> dict[str, Any]:
    return {
        "machine": report.machine,
        "results": [{"kind": type(result).__name__, **asdict(result)} for result in report.results],
        "queues": [asdict(note) for note in report.notes],
    }


def _load(path: Path) -> Report:
    record = json.loads(path.read_text())
    return Report(
        record["machine"], [_result(**each) for each in record["results"]], _notes(record["queues"])
    )


def _notes(records: Sequence[dict[str, str]]) -> list[Note]:
    return [Note(**record) for record in records]


def _result(kind: str, **values: Any) -> Result:
    if kind == "Comparison":
        values["entries"] = [Entry(**entry) for entry in values["entries"]]
        values["expectations"] = [Expectation(**each) for each in values["expectations"]]
        return Comparison(**values)
    if values["expectation"]:
        values["expectation"] = Expectation(**values["expectation"])
    return Figure(**values)


def _used_by_others() -> float | None:
    """How many cores are in use while this process waits; None if that can't be told."""
    before = _processor_seconds()
    began = time.monotonic()
    time.sleep(_LOOK)
    after = _processor_seconds()
    if before is None or after is None:
        return None
    return (after - before) / (time.monotonic() - began)


def _processor_seconds() -> float | None:
    """What all processes of the machine have used since it started."""
    try:
        with open("/proc/stat") as file:
            ticks = [int(word) for word in file.readline().split()[1:9]]
    except (OSError, ValueError):
        return None
    user, nice, system, _idle, _waiting, *interrupts = ticks
    return (user + nice + system + sum(interrupts)) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    sys.exit(main())
