"""Compare: Holdfast, its floor and other queues on the same database, in turns, by what their users run.

In each round every queue gets a new place, where a process of its own enqueues; then workers that were
started by the queue's command drain what is there, and at last one worker that has nothing to do is given
single jobs. Queues that no expectation names take part in the first round only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import quantiles
from typing import Any

from benchmarks.arena import About, Arena, Engine, Entrant, Unavailable
from benchmarks.bench import Bench, Note
from benchmarks.figures import OURS, Comparison, Entry, Result

BARE = {"SQLite": "bare sqlite3", "PostgreSQL": "bare psycopg"}
LIBRARY = "Holdfast, run_worker()"
PROCESSES = 2
"""Worker processes in a drain on PostgreSQL."""

_WARM_UP = 10

ENTRANTS = (
    Entrant(
        OURS,
        "holdfast",
        "SQLite",
        60_000,
        "`queuectl worker start`, 10 threads",
        "ours",
        is_judged=True,
        counts_processes=True,
    ),
    Entrant(LIBRARY, "holdfast_library", "SQLite", 60_000, "in a script of its own", "ours", is_judged=True),
    Entrant(
        BARE["SQLite"],
        "bare_sqlite3",
        "SQLite",
        60_000,
        "claims 100 at a time, one thread",
        "ours",
        is_judged=True,
    ),
    Entrant("huey", "huey", "SQLite", 1_500, "`huey_consumer -w 10`; by default 1 thread", is_judged=True),
    Entrant("litequeue", "litequeue", "SQLite", 4_000, "library only, a loop in one thread"),
    Entrant(
        "persist-queue", "persist_queue", "SQLite", 1_000, "library only, `SQLiteAckQueue` in one thread"
    ),
    Entrant(
        OURS,
        "holdfast",
        "PostgreSQL",
        60_000,
        "`queuectl worker start`, 10 threads",
        "ours",
        is_judged=True,
        counts_processes=True,
    ),
    Entrant(
        BARE["PostgreSQL"],
        "bare_psycopg",
        "PostgreSQL",
        60_000,
        "claims 100 at a time, one thread",
        "ours",
        is_judged=True,
    ),
    Entrant(
        "pgqueuer",
        "pgqueuer",
        "PostgreSQL",
        15_000,
        "`pgq run --batch-size 100`; by default 10; asyncpg",
        is_judged=True,
    ),
    Entrant(
        "procrastinate",
        "procrastinate",
        "PostgreSQL",
        1_000,
        "`procrastinate worker --concurrency 10`; by default 1",
    ),
    Entrant(
        "chancy",
        "chancy",
        "PostgreSQL",
        6_000,
        "`chancy worker start`, async jobs, 100 at a time (by default one a core), eager polling",
    ),
    Entrant(
        "graphile-worker",
        "graphile-worker",
        "PostgreSQL",
        6_000,
        "`graphile-worker -j 10`; by default 1",
        "node",
        is_judged=True,
    ),
    Entrant(
        "pg-boss",
        "pg-boss",
        "PostgreSQL",
        500,
        "library only, `work()` with batches of 100 and its shortest polling interval, 0.5 s",
        "node",
    ),
    Entrant("celery", "celery", "Redis", 1_500, "`celery worker`, one process for each core"),
    Entrant("dramatiq", "dramatiq", "Redis", 3_000, "`dramatiq`, one process for each core, 8 threads each"),
    Entrant("rq", "rq", "Redis", 40, "`rq worker`, a new process for each job"),
    Entrant("saq", "saq", "Redis", 3_000, "`saq`, 10 jobs at a time"),
    Entrant("taskiq", "taskiq", "Redis", 3_000, "`taskiq worker`, 2 processes, `RedisStreamBroker`"),
)


@dataclass
class Measured:
    """What was measured of a queue, by measure and round."""

    entrant: Entrant
    about: About
    rounds: dict[str, list[float]] = field(default_factory=dict)

    def add(self, measure: str, value: float | None) -> None:
        if value is not None:
            self.rounds.setdefault(measure, []).append(value)


def entrant(name: str, engine: Engine) -> Entrant:
    return next(each for each in ENTRANTS if (each.name, each.engine) == (name, engine))


def measure(bench: Bench, engine: Engine) -> list[Result]:
    arena = Arena(bench)
    taking_part = [
        measured
        for each in ENTRANTS
        if each.engine == engine and (measured := _introduce(bench, arena, each)) is not None
    ]
    for number in range(bench.sizes.rounds):
        for measured in list(taking_part):
            if number and not measured.entrant.is_judged:
                continue
            try:
                _turn(bench, arena, measured)
            except Unavailable as reason:
                _leave_out(measured.entrant, reason)
                taking_part.remove(measured)
    for measured in taking_part:
        if measured.entrant.name == OURS:
            bench.ours.update({(engine, name): values for name, values in measured.rounds.items()})
    return [
        comparison
        for name, unit, is_less in _MEASURES
        if (comparison := _comparison(bench, name, unit, is_less, engine, taking_part))
    ]


sqlite = partial(measure, engine="SQLite")
postgresql = partial(measure, engine="PostgreSQL")
redis = partial(measure, engine="Redis")


def _introduce(bench: Bench, arena: Arena, entrant: Entrant) -> Measured | None:
    try:
        about = arena.about(entrant)
    except Unavailable as reason:
        _leave_out(entrant, reason)
        return None
    bench.notes.append(Note(entrant.engine, entrant.name, about.version, about.durability, entrant.setup))
    return Measured(entrant, about)


def _leave_out(entrant: Entrant, reason: Exception) -> None:
    if entrant.runtime == "ours":
        raise reason
    print(f"{entrant.name} is left out: {reason}", flush=True)


def _turn(bench: Bench, arena: Arena, measured: Measured) -> None:
    sizes, entrant = bench.sizes, measured.entrant
    processes = PROCESSES if entrant.engine == "PostgreSQL" else 1
    is_whole = entrant.name != LIBRARY
    with arena.place(entrant) as address:
        run = partial(arena.run, entrant, address)
        enqueued = 0

        def enqueue(command: str, *numbers: int) -> dict[str, Any]:
            nonlocal enqueued
            done = run(command, *numbers)
            enqueued += done["enqueued"]
            return done

        if is_whole:
            measured.add(ONE, sizes.one / enqueue("one", sizes.one)["seconds"])
            if entrant.name in (OURS, BARE["SQLite"], "huey") and entrant.engine == "SQLite":
                jobs = sizes.threads if entrant.name == OURS else sizes.threads // 4
                measured.add(THREADS, jobs / enqueue("threads", jobs)["seconds"])
                arena.settle(entrant, address)  # a WAL that begins anew grows with what is written
                measured.add(WAL, _kilobytes(enqueue("wal", 100)["bytes"]))
        seconds = enqueue("bulk", sizes.bulk, entrant.drain * sizes.drain_factor)["seconds"]
        if is_whole and seconds:
            measured.add(BULK, sizes.bulk / seconds)
        arena.settle(entrant, address)
        with arena.workers(entrant, address, processes) as workers:
            measured.add(DRAIN, workers.rate(enqueued))
        if is_whole:
            _pick_up(bench, arena, measured, address)


def _pick_up(bench: Bench, arena: Arena, measured: Measured, address: str) -> None:
    sizes = bench.sizes
    with arena.workers(measured.entrant, address) as workers:
        run = partial(arena.run, measured.entrant, address, "pickups", tally=workers.folder)
        # Those that its imports, connections and statements wait for.
        warm = run(_WARM_UP, sizes.pickup_seconds)["called"]
        workers.starts(len(warm))
        workers.forget()
        called = run(sizes.pickups, sizes.pickup_seconds)["called"]
        started = workers.starts(len(called))
    waits = [(started[number] - at) / 1e6 for number, at in enumerate(called)]
    percentiles = quantiles(waits, n=100, method="inclusive")
    measured.add(P50, percentiles[49])
    measured.add(P99, percentiles[98])


def _kilobytes(value: float | None) -> float | None:
    return None if value is None else value / 1024


ONE = "enqueue, one at a time"
THREADS = "enqueue from 16 threads"
BULK = "enqueue many in one call"
DRAIN = "drain of no-op jobs"
P50 = "pickup p50, from the call of enqueue"
P99 = "pickup p99, from the call of enqueue"
WAL = "WAL of a single enqueue"

_MEASURES = (
    (ONE, "jobs/s", False),
    (THREADS, "jobs/s", False),
    (BULK, "jobs/s", False),
    (DRAIN, "jobs/s", False),
    (P50, "ms", True),
    (P99, "ms", True),
    (WAL, "KB", True),
)

_RATIOS: dict[tuple[str, str], dict[str, float]] = {
    (ONE, "SQLite"): {"huey": 1.0, BARE["SQLite"]: 0.6},
    (ONE, "PostgreSQL"): {"pgqueuer": 1.1, BARE["PostgreSQL"]: 0.75},
    (BULK, "SQLite"): {BARE["SQLite"]: 0.14},
    (BULK, "PostgreSQL"): {"pgqueuer": 1.1},
    (DRAIN, "SQLite"): {"huey": 10, LIBRARY: 0.9},
    (DRAIN, "PostgreSQL"): {"pgqueuer": 1.5, BARE["PostgreSQL"]: 0.7, "graphile-worker": 1.0},
    (P50, "PostgreSQL"): {"pgqueuer": 0.9},
}
_BOUNDS = {
    (P50, "SQLite"): 1.6,
    (P99, "SQLite"): 5.0,
    (P99, "PostgreSQL"): 8.0,
    (WAL, "SQLite"): 17.0,
}
_TIMES_ONE_THREAD = 4.0


def _comparison(
    bench: Bench, name: str, unit: str, is_less: bool, engine: Engine, taking_part: Sequence[Measured]
) -> Comparison | None:
    entries = [
        Entry(measured.entrant.name, measured.rounds[name])
        for measured in taking_part
        if name in measured.rounds
    ]
    if not entries:
        return None
    if engine == "Redis":  # no queue of ours is there: those of this run stand beside it
        entries[:0] = [
            Entry(f"{OURS} on {other}", bench.ours[other, name])
            for other in BARE
            if (other, name) in bench.ours
        ]
    if name == THREADS:
        entries += [
            Entry(ONE_THREAD, measured.rounds[ONE])
            for measured in taking_part
            if measured.entrant.name == OURS
        ]
    several = f", {PROCESSES} processes" if name == DRAIN and engine == "PostgreSQL" else ""
    comparison = Comparison(
        name=f"{name}{several}, {engine}",
        section=engine,
        unit=unit,
        entries=entries,
        less_is_better=is_less,
    )
    for who, bound in _RATIOS.get((name, engine), {}).items():
        comparison.expect_ratio(who, bound)
    if limit := _BOUNDS.get((name, engine)):
        comparison.expect(entries[0].value, limit)
    if name == THREADS:
        comparison.expect_ratio(ONE_THREAD, _TIMES_ONE_THREAD)
    return comparison


ONE_THREAD = "Holdfast, one thread"
