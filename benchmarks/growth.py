"""Growth: the same drain on an empty queue and among a million scheduled, paused and finished jobs each."""

from __future__ import annotations

import sqlite3
import time
from contextlib import closing
from pathlib import Path
from statistics import median

from benchmarks.bench import TYPE, Bench, make_queue, remove
from benchmarks.drain import drain
from benchmarks.figures import Figure, at_least

EXPECTED = 0.8
_PAUSED = "paused"
_CHUNK = 100_000
_DAY = 86_400_000_000

# Ids like ours: they grow, and end at random. Those of the jobs to drain are younger.
_FILL = """
WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :first + :count)
INSERT INTO holdfast_jobs (id, type, status, attempts, version, run_at, due_at, created_at, updated_at,
    started_at, finished_at, token, payload, result)
SELECT printf('01900000-%04x-7%03x-8%03x-%s', i >> 24, (i >> 12) & 4095, i & 4095, lower(hex(randomblob(6)))),
    :type, :status, :attempts, :attempts, :run_at + i, coalesce(:run_at + i, :now), :now, :now,
    iif(:attempts, :now + i, NULL), iif(:attempts, :now + i, NULL),
    lower(hex(randomblob(12))), '{"number":' || i || '}', iif(:attempts, 'null', NULL)
FROM n
"""


def measure(bench: Bench) -> list[Figure]:
    sizes = bench.sizes
    full = bench.new_file()
    began = time.monotonic()
    _fill(full, sizes.growth_around)
    filling = time.monotonic() - began
    empty_rates, full_rates = [], []
    for _ in range(sizes.rounds):
        empty = bench.new_file()
        empty_rates.append(drain(empty, sizes.growth_drain))
        remove(empty)
        full_rates.append(drain(full, sizes.growth_drain))
    remove(full)
    share = median(f / e for f, e in zip(full_rates, empty_rates, strict=True))
    return [
        Figure(name="filling the queue", value=filling, unit="s"),
        Figure(
            name=f"drain of {sizes.growth_drain:,}, empty queue", value=median(empty_rates), unit="jobs/s"
        ),
        Figure(
            name=f"drain among 3 × {sizes.growth_around:,} jobs",
            value=median(full_rates),
            unit="jobs/s",
            share=share,
            of="the empty queue's",
            expectation=at_least(share, EXPECTED),
        ),
    ]


def _fill(path: Path, count: int) -> None:
    with make_queue(path) as queue:
        queue.pause(_PAUSED)
    now = time.time_ns() // 1000
    kinds = (
        {"type": TYPE, "status": "completed", "attempts": 1, "run_at": None, "now": now - _DAY},
        {"type": TYPE, "status": "scheduled", "attempts": 0, "run_at": now + _DAY, "now": now},
        {"type": _PAUSED, "status": "pending", "attempts": 0, "run_at": None, "now": now},
    )
    chunk = min(_CHUNK, count)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        connection.execute("PRAGMA cache_size = -262144")
        # The three kinds lie among each other, as they would after months of use.
        for number, first in enumerate(range(0, 3 * count, chunk)):
            connection.execute(_FILL, {**kinds[number % 3], "first": first, "count": chunk})
