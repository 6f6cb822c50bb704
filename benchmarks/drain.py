"""Drain: no-op jobs through one worker process with threads, from the first claim to the last completion."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from benchmarks import floor
from benchmarks.bench import TYPE, Bench, make_queue, remove, settle, worker
from benchmarks.figures import Figure, at_least

EXPECTED = 0.3
_PATIENCE = 600.0


def measure(bench: Bench) -> list[Figure]:
    jobs = bench.sizes.drain
    floors, drains = [], []
    for _ in range(bench.sizes.rounds):
        floors.append(floor.batch_rates(bench, bench.sizes.floor_jobs)[1])
        path = bench.new_file()
        drains.append(drain(path, jobs))
        remove(path)
    share = median(drain / floor for drain, floor in zip(drains, floors, strict=True))
    return [
        Figure(
            name=f"drain of {jobs:,} no-op jobs",
            value=median(drains),
            unit="jobs/s",
            share=share,
            of="floor claim and finish",
            expectation=at_least(share, EXPECTED),
        )
    ]


def drain(path: Path, jobs: int) -> float:
    """Enqueue so many jobs, then let a worker process run them; jobs a second."""
    with make_queue(path) as queue:
        queue.enqueue_many(TYPE, [{"number": number} for number in range(jobs)])
    settle(path)
    # The database's own records say when: the clock of a watcher would add its own pauses.
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        first = connection.execute(
            "SELECT min(seq) FROM holdfast_jobs INDEXED BY holdfast_jobs_pending"
            " WHERE status = 'pending' AND type = ?",
            (TYPE,),
        ).fetchone()[0]
        with worker(path):
            wait_until_empty(connection)
        count, began, ended = span_of_drain(connection, first)
    if count != jobs:
        raise AssertionError(f"{count} of {jobs} jobs were completed")
    return jobs / (ended - began)


def span_of_drain(connection: sqlite3.Connection, first: int) -> tuple[int, float, float]:
    """How many jobs from that one on were completed, and from when to when, in seconds since 1970."""
    count, began, ended = connection.execute(
        "SELECT count(finished_at), min(started_at), max(finished_at) FROM holdfast_jobs"
        " WHERE type = ? AND seq >= ? AND status = 'completed'",
        (TYPE, first),
    ).fetchone()
    return count, began / 1e6, ended / 1e6


def wait_until_empty(connection: sqlite3.Connection) -> None:
    left = "SELECT pending + processing FROM holdfast_counts WHERE type = ?"
    deadline = time.monotonic() + _PATIENCE
    while connection.execute(left, (TYPE,)).fetchone()[0]:
        if time.monotonic() > deadline:
            raise TimeoutError("the drain did not end")
        time.sleep(0.05)
