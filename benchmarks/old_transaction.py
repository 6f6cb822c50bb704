"""Old transaction: a drain on PostgreSQL while another session holds a transaction that began before the jobs
were enqueued, so that the server can't clean up any version of a row that the drain leaves behind.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

from benchmarks.arena import Arena
from benchmarks.bench import Bench
from benchmarks.compare import PROCESSES, entrant
from benchmarks.figures import OURS, Comparison, Entry, Result
from benchmarks.postgres.place import connect

EXPECTED = 0.8
_WITHOUT = "without it"


def measure(bench: Bench) -> list[Result]:
    arena = Arena(bench)
    held, free = Entry(OURS, []), Entry(_WITHOUT, [])
    for _ in range(bench.sizes.few_rounds):
        free.values.append(_rate(bench, arena, is_held=False))
        held.values.append(_rate(bench, arena, is_held=True))
    comparison = Comparison(
        name=f"drain of {bench.sizes.old_transaction:,} jobs beside an old transaction, PostgreSQL",
        section="PostgreSQL",
        unit="jobs/s",
        entries=[held, free],
    )
    comparison.expect_ratio(_WITHOUT, EXPECTED)
    return [comparison]


def _rate(bench: Bench, arena: Arena, *, is_held: bool) -> float:
    queue, jobs = entrant(OURS, "PostgreSQL"), bench.sizes.old_transaction
    with arena.place(queue) as address, _old_transaction(address) if is_held else nullcontext():
        arena.fill(queue, address, jobs)
        with arena.workers(queue, address, PROCESSES) as workers:
            return workers.rate(jobs)


@contextmanager
def _old_transaction(address: str) -> Iterator[None]:
    with connect(address) as connection:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM pg_class")  # takes its snapshot
        yield
        connection.execute("ROLLBACK")
