"""Pickup: how long a job that one process enqueued waits for its handler to start in another, idle one."""

from __future__ import annotations

import random
import time
from statistics import median, quantiles

from benchmarks import floor
from benchmarks.bench import Bench, make_queue, remove, wait_for_worker, worker
from benchmarks.figures import Figure, at_most

EXPECTED_MS = 1.0
"""And two bare commits, from the moment that the job is there (enqueue has returned) to its start."""

_PAUSE = (0.005, 0.03)
"""Seconds between two jobs."""

_IN_A_ROW = 5


def measure(bench: Bench) -> list[Figure]:
    path = bench.new_file()
    rested, in_a_row, from_call, from_return = [], [], [], []
    with (
        floor.bare_database(bench.new_file()) as bare,
        make_queue(path) as queue,
        worker(path),
    ):
        wait_for_worker(queue)
        queue.wait(queue.enqueue("note_start").id, timeout=30)  # loads what is loaded lazily
        for _ in range(bench.sizes.pickups):
            time.sleep(random.uniform(*_PAUSE))
            called = time.time_ns()
            job = queue.enqueue("note_start")
            returned = time.time_ns()
            started = queue.wait(job.id, timeout=30).result
            from_call.append((started - called) / 1e6)
            from_return.append((started - returned) / 1e6)
            # A commit after a rest takes twice as long as one in a row, and a pickup is made of the former;
            # the expectation takes the shorter ones all the same.
            time.sleep(random.uniform(*_PAUSE))
            rested += floor.time_commits(bare, 1)
            in_a_row += floor.time_commits(bare, _IN_A_ROW)
    remove(path)
    commit = median(in_a_row) * 1000
    p50, p95 = _percentiles(from_return)
    call50, call95 = _percentiles(from_call)
    bound = EXPECTED_MS + 2 * commit
    return [
        Figure(name="one bare commit, in a row", value=commit, unit="ms"),
        Figure(name="one bare commit, after the same pause", value=median(rested) * 1000, unit="ms"),
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


def _percentiles(times: list[float]) -> tuple[float, float]:
    return median(times), quantiles(times, n=20)[-1]
