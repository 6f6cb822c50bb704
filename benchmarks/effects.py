"""Effects: jobs that write a row in the transaction that completes them, beside bare SQL that does the same.

One worker process each. The floor claims 100 jobs at a time, and then commits one job after another.
"""

from __future__ import annotations

from benchmarks.arena import Arena, Engine
from benchmarks.bench import Bench
from benchmarks.compare import BARE, entrant
from benchmarks.figures import OURS, Comparison, Entry, Result

EXPECTED = 0.7
_TASK = "effect"


def measure(bench: Bench) -> list[Result]:
    arena = Arena(bench)
    return [_compare(bench, arena, "SQLite"), _compare(bench, arena, "PostgreSQL")]


def _compare(bench: Bench, arena: Arena, engine: Engine) -> Comparison:
    entries = [Entry(OURS, []), Entry(BARE[engine], [])]
    for _ in range(bench.sizes.few_rounds):
        for entry in entries:
            entry.values.append(_rate(bench, arena, entry.who, engine))
    comparison = Comparison(
        name=f"ctx.transaction(), a commit for each job, {engine}",
        section=engine,
        unit="jobs/s",
        entries=entries,
    )
    comparison.expect_ratio(BARE[engine], EXPECTED)
    return comparison


def _rate(bench: Bench, arena: Arena, who: str, engine: Engine) -> float:
    queue = entrant(who, engine)
    with arena.place(queue) as address:
        jobs = arena.fill(queue, address, bench.sizes.effects, _TASK)
        with arena.workers(queue, address, task=_TASK) as workers:
            return workers.rate(jobs)
