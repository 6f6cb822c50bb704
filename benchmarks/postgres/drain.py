"""Drain: no-op jobs through 1, 2 and 4 worker processes, from the first claim to the last completion."""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from benchmarks.bench import TYPE, Bench, make_queue, wait_for_worker, worker
from benchmarks.figures import Figure, at_least
from benchmarks.postgres import floor
from benchmarks.postgres.place import connect, new_schema, settle

EXPECTED = 0.4
PROCESSES = (1, 2, 4)
_PATIENCE = 600.0

# A claim is one instant of the server's clock.
_SPAN = """
SELECT count(finished_at), count(DISTINCT started_at), max(finished_at) - min(started_at) FROM holdfast_jobs
WHERE type = %s AND status = 'completed'
"""
_LEFT = "SELECT pending + processing FROM holdfast_counts WHERE type = %s"


@dataclass(frozen=True)
class Drained:
    """How fast a queue was emptied, and how many jobs a worker took at a time."""

    rate: float
    batch: float


def measure(bench: Bench) -> list[Figure]:
    jobs = bench.sizes.postgres_drain
    floors: list[float] = []
    drains: dict[int, list[Drained]] = {processes: [] for processes in PROCESSES}
    for _ in range(bench.sizes.rounds):
        for processes in PROCESSES:
            drains[processes].append(drain(bench, jobs, processes))
        floors.append(floor.claim_rate(bench, jobs, round(drains[1][-1].batch)))
    batch = median(drained.batch for drained in drains[1])
    return [
        Figure(name="jobs that a worker takes at a time", value=batch, unit="jobs"),
        Figure(name="bare claim and finish, as many at a time", value=median(floors), unit="jobs/s"),
        *(_figure(processes, jobs, drains[processes], floors) for processes in PROCESSES),
    ]


def _figure(processes: int, jobs: int, drains: list[Drained], floors: list[float]) -> Figure:
    share = median(drained.rate / floor for drained, floor in zip(drains, floors, strict=True))
    several = "es" if processes > 1 else ""
    return Figure(
        name=f"drain of {jobs:,}, {processes} worker process{several}",
        value=median(drained.rate for drained in drains),
        unit="jobs/s",
        share=share,
        of="bare claim and finish",
        expectation=at_least(share, EXPECTED) if processes == 1 else None,
    )


def drain(bench: Bench, jobs: int, processes: int) -> Drained:
    """Enqueue so many jobs, then let worker processes that are up and idle run them."""
    with ExitStack() as stack:
        url = stack.enter_context(new_schema(bench))
        queue = stack.enter_context(make_queue(url))
        connection = stack.enter_context(connect(url))
        queue.pause()
        queue.enqueue_many(TYPE, [{"number": number} for number in range(jobs)])
        for _ in range(processes):
            stack.enter_context(worker(url))
        wait_for_worker(queue, processes)
        settle(connection, "holdfast_jobs")
        queue.resume()
        deadline = time.monotonic() + _PATIENCE
        while connection.execute(_LEFT, [TYPE]).fetchall() != [(0,)]:
            if time.monotonic() > deadline:
                raise TimeoutError("the drain did not end")
            time.sleep(0.05)
        [(count, claims, microseconds)] = connection.execute(_SPAN, [TYPE]).fetchall()
    if count != jobs:
        raise AssertionError(f"{count} of {jobs} jobs were completed")
    return Drained(rate=jobs / (microseconds / 1e6), batch=jobs / claims)
