"""Pickup: how long a job that one process enqueued waits for its handler to start in another, idle one."""

from __future__ import annotations

import random
import time
from statistics import median, quantiles

from benchmarks.bench import Bench, make_queue, wait_for_worker, worker
from benchmarks.figures import Figure, at_most
from benchmarks.peers.run import PAUSE
from benchmarks.postgres import floor
from benchmarks.postgres.place import new_schema

EXPECTED_MS = 2.0
"""And two bare commits, from the moment that the job is there (enqueue has returned) to its start."""

_IN_A_ROW = 5


def measure(bench: Bench) -> list[Figure]:
    commit, from_return, from_call = pickups(bench, bench.sizes.pickups)
    p50, p95 = percentiles(from_return)
    call50, call95 = percentiles(from_call)
    bound = EXPECTED_MS + 2 * commit
    return [
        Figure(name="one bare commit, in a row", value=commit, unit="ms"),
        Figure(
            name="pickup p50, from the return of enqueue",
            value=p50,
            unit="ms",
            expectation=at_most(p50, bound, "ms", f"{EXPECTED_MS:g} ms and two bare commits"),
        ),
        Figure(name="pickup p95, from the return of enqueue", value=p95, unit="ms"),
        Figure(name="pickup p50, from the call of enqueue", value=call50, unit="ms"),
        Figure(name="pickup p95, from the call of enqueue", value=call95, unit="ms"),
    ]


def pickups(bench: Bench, count: int) -> tuple[float, list[float], list[float]]:
    """Milliseconds: a bare commit; from the return and from the call of enqueue to the handler's start."""
    commits, from_return, from_call = [], [], []
    with (
        floor.bare_table(bench) as bare,
        new_schema(bench) as url,
        make_queue(url) as queue,
        worker(url),
    ):
        wait_for_worker(queue)
        for _ in range(10):  # loads what is loaded lazily, and prepares the statements
            queue.wait(queue.enqueue("note_start").id, timeout=30)
        for _ in range(count):
            time.sleep(random.uniform(*PAUSE))
            called = time.time_ns()
            job = queue.enqueue("note_start")
            returned = time.time_ns()
            time.sleep(random.uniform(*PAUSE))  # who waits for it would disturb it
            started = queue.wait(job.id, timeout=30).result
            from_return.append((started - returned) / 1e6)
            from_call.append((started - called) / 1e6)
            commits += floor.time_commits(bare, _IN_A_ROW)
    return median(commits) * 1000, from_return, from_call


def percentiles(times: list[float]) -> tuple[float, float]:
    """The median, and what 19 of 20 stay below."""
    return median(times), quantiles(times, n=20)[-1]
