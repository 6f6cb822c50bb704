"""Around: what users and workers do in a queue full of scheduled, finished and paused jobs, a third each, and
in an empty one, in turns: claim a job, enqueue one, list a page, show the overview.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from statistics import median
from typing import Any

from benchmarks.bench import TYPE, Bench, make_queue, remove
from benchmarks.figures import OURS, Comparison, Entry, Result
from benchmarks.postgres.place import connect, new_schema, settle
from holdfast import Queue
from holdfast.core.job import Status
from holdfast.core.lifecycle import Decision
from holdfast.observe.overview import overview
from holdfast.store.open import store_of
from holdfast.store.records import Claim, Demand, Finish

EXPECTED = 0.9
_EMPTY = "in an empty queue"
_PAUSED = "paused"
_CHUNK = 100_000
_DAY = 86_400_000_000

_COLUMNS = (
    "id, type, status, attempts, version, run_at, due_at, created_at, updated_at, started_at, finished_at,"
    " token, payload, result"
)
# Ids like ours: they grow, and end at random. Those of the jobs that come later are younger.
_FILL_SQLITE = f"""
WITH RECURSIVE n (i) AS (SELECT :first UNION ALL SELECT i + 1 FROM n WHERE i + 1 < :first + :count)
INSERT INTO holdfast_jobs ({_COLUMNS})
SELECT printf('01900000-%04x-7%03x-8%03x-%s', i >> 24, (i >> 12) & 4095, i & 4095, lower(hex(randomblob(6)))),
    :type, :status, :attempts, :attempts, :run_at + i, coalesce(:run_at + i, :now), :now, :now,
    iif(:attempts, :now + i, NULL), iif(:attempts, :now + i, NULL),
    lower(hex(randomblob(12))), '{{"number":' || i || '}}', iif(:attempts, 'null', NULL)
FROM n
"""
_FILL_POSTGRES = f"""
INSERT INTO holdfast_jobs ({_COLUMNS})
SELECT '01900000-' || lpad(to_hex(i), 8, '0') || '-' || right(gen_random_uuid()::text, 18), %(type)s,
    %(status)s, %(attempts)s, %(attempts)s, %(run_at)s::bigint + i, coalesce(%(run_at)s::bigint + i, %(now)s),
    %(now)s, %(now)s, CASE %(attempts)s WHEN 1 THEN %(now)s + i END,
    CASE %(attempts)s WHEN 1 THEN %(now)s + i END, md5(i::text), '{{"number":' || i || '}}',
    CASE %(attempts)s WHEN 1 THEN 'null' END
FROM generate_series(%(first)s::bigint, %(first)s + %(count)s - 1) AS i
"""


def measure(bench: Bench) -> list[Result]:
    with _new_file(bench) as empty, _new_file(bench) as full:
        results = _compare(bench, "SQLite", empty, full)
    with new_schema(bench) as empty, new_schema(bench) as full:
        return [*results, *_compare(bench, "PostgreSQL", empty, full)]


@contextmanager
def _new_file(bench: Bench) -> Iterator[str]:
    path = bench.new_file()
    try:
        yield f"sqlite:///{path}"
    finally:
        remove(path)


def _compare(bench: Bench, engine: str, empty_url: str, full_url: str) -> list[Result]:
    sizes = bench.sizes
    with make_queue(empty_url) as empty, make_queue(full_url) as full:
        for queue in (empty, full):
            queue.pause(_PAUSED)
        _fill(full_url, sizes.around)
        for queue in (empty, full):
            queue.enqueue_many(TYPE, [{"number": n} for n in range(sizes.rounds * (sizes.around_turns + 1))])
        _settle(engine, empty_url, full_url)
        results: list[Result] = []
        rounds: dict[str, list[tuple[float, float]]] = {}
        for _ in range(sizes.rounds):
            for name, act in _ACTS.items():
                rounds.setdefault(name, []).append(_times(empty, full, act, sizes.around_turns))
    for name, pairs in rounds.items():
        comparison = Comparison(
            name=f"{name} among {sizes.around:,} other jobs, {engine}",
            section="Growth",
            unit="calls/s",
            entries=[
                Entry(OURS, [1 / among for _, among in pairs]),
                Entry(_EMPTY, [1 / alone for alone, _ in pairs]),
            ],
        )
        comparison.expect_ratio(_EMPTY, EXPECTED)
        results.append(comparison)
    return results


def _times(empty: Queue, full: Queue, act: Act, turns: int) -> tuple[float, float]:
    """The median seconds of an act in each queue, in turns."""
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(turns + 1):
        for queue, seconds in zip((empty, full), times, strict=True):
            took = act(queue)
            if turn:  # the first one prepares statements
                seconds.append(took)
    return median(times[0]), median(times[1])


Act = Callable[[Queue], float]
"""Does something, and gives the seconds that it took."""


def _timed(act: Callable[[Queue], Any]) -> Act:
    def run(queue: Queue) -> float:
        began = time.perf_counter()
        act(queue)
        return time.perf_counter() - began

    return run


def _claim(queue: Queue) -> float:
    """The claim alone: what is claimed is finished after it."""
    store, demand = store_of(queue), Demand(type=TYPE, limit=1, max_attempts=3)
    began = time.perf_counter()
    with store.transaction():
        claims = store.claim_jobs("bench", [demand], limit=1, lease_seconds=30).claims
    seconds = time.perf_counter() - began
    if len(claims) != 1:
        raise AssertionError("no job was claimed")
    with store.transaction():
        store.finish_jobs([_finish(claim) for claim in claims])
    return seconds


def _finish(claim: Claim) -> Finish:
    return Finish(
        seq=claim.seq,
        type=claim.type,
        version=claim.version,
        worker_id=claim.worker_id,
        attempt=claim.attempts,
        decision=Decision("complete", Status.COMPLETED, result="null"),
        started_at=0,
    )


_ACTS: dict[str, Act] = {
    "claim": _claim,
    "enqueue": _timed(lambda queue: queue.enqueue(TYPE, {"number": 0})),
    "page of 50 jobs": _timed(lambda queue: queue.page(limit=50, brief=True)),
    "overview": _timed(overview),
}


def _fill(url: str, count: int) -> None:
    now = time.time_ns() // 1000
    kinds: tuple[dict[str, Any], ...] = (
        {"type": TYPE, "status": "completed", "attempts": 1, "run_at": None, "now": now - _DAY},
        {"type": TYPE, "status": "scheduled", "attempts": 0, "run_at": now + _DAY, "now": now},
        {"type": _PAUSED, "status": "pending", "attempts": 0, "run_at": None, "now": now},
    )
    chunk = min(_CHUNK, count // len(kinds))
    with _filler(url) as insert:
        # The three kinds lie among each other, as they would after months of use.
        for number, first in enumerate(range(0, count, chunk)):
            insert({**kinds[number % 3], "first": first, "count": min(chunk, count - first)})


@contextmanager
def _filler(url: str) -> Iterator[Callable[[dict[str, Any]], object]]:
    if url.startswith("sqlite:"):
        path = url.removeprefix("sqlite:///")
        with closing(sqlite3.connect(path, isolation_level=None)) as file:
            file.execute("PRAGMA synchronous = OFF")
            file.execute("PRAGMA cache_size = -262144")
            yield lambda values: file.execute(_FILL_SQLITE, values)
    else:
        with connect(url) as server:
            server.execute("SET synchronous_commit = off")
            yield lambda values: server.execute(_FILL_POSTGRES, values)


def _settle(engine: str, *urls: str) -> None:
    for url in urls:
        if engine == "PostgreSQL":
            with connect(url) as connection:
                settle(connection, "holdfast_jobs")
        else:
            with closing(sqlite3.connect(url.removeprefix("sqlite:///"))) as file:
                file.execute("PRAGMA wal_checkpoint(TRUNCATE)")
