"""Memory: what `queuectl worker start` holds after many jobs, beside what it held after ten thousand."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.arena import Arena, Engine
from benchmarks.bench import Bench
from benchmarks.compare import entrant
from benchmarks.figures import OURS, Comparison, Entry, Result

EXPECTED = 1.1
_PORTION = 10_000


def measure(bench: Bench) -> list[Result]:
    arena = Arena(bench)
    return [_compare(bench, arena, "SQLite"), _compare(bench, arena, "PostgreSQL")]


def _compare(bench: Bench, arena: Arena, engine: Engine) -> Comparison:
    few, many = bench.sizes.memory
    earlier = f"after {few:,}"
    early, late = _mebibytes(arena, engine, few, many)
    comparison = Comparison(
        name=f"memory of a worker after {many:,} jobs, {engine}",
        section="Growth",
        unit="MiB",
        entries=[Entry(OURS, [late]), Entry(earlier, [early])],
        less_is_better=True,
    )
    comparison.expect_ratio(earlier, EXPECTED)
    return comparison


def _mebibytes(arena: Arena, engine: Engine, few: int, many: int) -> tuple[float, float]:
    """What the worker's processes hold after few jobs, and after many."""
    queue = entrant(OURS, engine)
    early, enqueued = 0.0, 0
    with arena.place(queue) as address, arena.workers(queue, address) as workers:
        while enqueued < many:
            portion = min(_PORTION, few) if not enqueued else min(10 * _PORTION, many - enqueued)
            arena.run(queue, address, "fill", portion)
            enqueued += portion
            workers.rate(enqueued)
            if not early:
                early = sum(map(_resident, _tree(workers.pid)))
        return early, sum(map(_resident, _tree(workers.pid)))


def _tree(pid: int) -> Iterator[int]:
    """A process and all its descendants."""
    yield pid
    for thread in Path(f"/proc/{pid}/task").iterdir():
        for child in (thread / "children").read_text().split():
            yield from _tree(int(child))


def _resident(pid: int) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [kilobytes] = [line.split()[1] for line in lines if line.startswith("VmRSS:")]
    return int(kilobytes) / 1024
