"""Compare: Holdfast, its floor and other queues on the same database, in turns, by what their users run.

In each round, every queue gets a new place, where a process of its own enqueues. Then workers, started by the
queue's command, drain what is there, and at last one idle worker is given single jobs.
In a short run, queues that no expectation names take part in the first round only, and another round begins
only while there is time for it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import median, quantiles

from benchmarks.arena import Arena, Engine, Entrant, Unavailable, Workers
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
    rounds: dict[str, list[float]] = field(default_factory=dict)
    waits: list[float] = field(default_factory=list)
    """Every pickup of all rounds, in milliseconds."""

    def add(self, measure: str, value: float | None) -> None:
        if value is not None:
            self.rounds.setdefault(measure, []).append(value)


def entrant(name: str, engine: Engine) -> Entrant:
    return next(each for each in ENTRANTS if (each.name, each.engine) == (name, engine))


def measure(bench: Bench, engine: Engine) -> list[Result]:
    arena = Arena(bench)
    taking_part = [Measured(each) for each in ENTRANTS if each.engine == engine]
    began = time.monotonic()
    for number in range(bench.sizes.rounds):
        since = time.monotonic()
        for measured in list(taking_part):
            if not number or measured.entrant.is_judged or bench.sizes.all_every_round:
                try:
                    _turn(bench, arena, measured, is_first=not number)
                except Unavailable as reason:
                    _leave_out(measured.entrant, reason)
                    taking_part.remove(measured)
        took, so_far = time.monotonic() - since, time.monotonic() - began
        if so_far + took / 2 > bench.sizes.seconds[engine]:
            break
    for measured in taking_part:
        if measured.waits:
            measured.add(P99, quantiles(measured.waits, n=100, method="inclusive")[98])
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


def _leave_out(entrant: Entrant, reason: Exception) -> None:
    if entrant.runtime == "ours":
        raise reason
    print(f"{entrant.name} is left out: {reason}", flush=True)


def _turn(bench: Bench, arena: Arena, measured: Measured, *, is_first: bool) -> None:
    note = _about(arena, measured.entrant) if is_first else None
    if measured.entrant.name != LIBRARY:  # which differs only in its worker
        _enqueue(bench, arena, measured)
    _drain(bench, arena, measured)
    if note is not None:
        bench.notes.append(note)


def _about(arena: Arena, entrant: Entrant) -> Note:
    with arena.place(entrant) as address:
        about = arena.run(entrant, address, "about")
    return Note(entrant.engine, entrant.name, about["version"], about["durability"], entrant.setup)


def _enqueue(bench: Bench, arena: Arena, measured: Measured) -> None:
    sizes, entrant = bench.sizes, measured.entrant
    with arena.place(entrant) as address:
        run = partial(arena.run, entrant, address)
        measured.add(ONE, sizes.one / run("one", sizes.one)["seconds"])
        if entrant.engine == "SQLite" and entrant.name in (OURS, BARE["SQLite"], "huey"):
            jobs = sizes.threads if entrant.name == OURS else sizes.threads // 8
            measured.add(THREADS, jobs / run("threads", jobs)["seconds"])
            arena.settle(entrant, address)  # the WAL begins anew
            measured.add(WAL, run("wal", 100)["bytes"] / 1024)
        if (seconds := run("bulk", sizes.bulk)["seconds"]) is not None:
            measured.add(BULK, sizes.bulk / seconds)


def _drain(bench: Bench, arena: Arena, measured: Measured) -> None:
    entrant = measured.entrant
    processes = PROCESSES if entrant.engine == "PostgreSQL" else 1
    with arena.place(entrant) as address:
        jobs = arena.fill(entrant, address, entrant.drain * bench.sizes.drain_factor)
        with arena.workers(entrant, address, processes) as workers:
            measured.add(DRAIN, workers.rate(jobs))
            if processes == 1 and entrant.name != LIBRARY:
                _pick_up(bench, arena, measured, address, workers)
        if processes > 1:
            with arena.workers(entrant, address) as workers:
                _pick_up(bench, arena, measured, address, workers)


def _pick_up(bench: Bench, arena: Arena, measured: Measured, address: str, workers: Workers) -> None:
    sizes = bench.sizes
    run = partial(arena.run, measured.entrant, address, "pickups", tally=workers.folder)
    # Those that its imports, connections and statements wait for.
    warm = run(_WARM_UP, sizes.pickup_seconds)["called"]
    workers.starts(len(warm))
    workers.forget()
    called = run(sizes.pickups, sizes.pickup_seconds)["called"]
    started = workers.starts(len(called))
    waits = [(started[number] - at) / 1e6 for number, at in enumerate(called)]
    measured.add(P50, median(waits))
    measured.waits += waits


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
