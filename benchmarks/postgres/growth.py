"""Growth: a claim, and a turn of a worker, in an empty queue and in one with a million finished jobs."""

from __future__ import annotations

import time
from statistics import median

from benchmarks.bench import TYPE, Bench, make_queue
from benchmarks.figures import Figure, at_most
from benchmarks.postgres.place import connect, new_schema, settle
from holdfast import Queue
from holdfast.core.job import Status
from holdfast.core.lifecycle import Decision
from holdfast.store.protocol import Claim, Demand, Finish

EXPECTED = 1.25
_AT_A_TIME = 200
_CHUNK = 100_000

# Ids like ours: they grow, and end at random.
_FILL = """
INSERT INTO holdfast_jobs (id, type, status, attempts, version, due_at, created_at, updated_at, started_at,
    finished_at, token, payload, result)
SELECT '01900000-' || lpad(to_hex(i), 8, '0') || '-' || right(gen_random_uuid()::text, 18), %(type)s,
    'completed', 1, 1, %(at)s + i, %(at)s + i, %(at)s + i, %(at)s + i, %(at)s + i, md5(i::text),
    '{"number":' || i || '}', 'null'
FROM generate_series(%(first)s, %(first)s + %(count)s - 1) AS i
"""


def measure(bench: Bench) -> list[Figure]:
    sizes = bench.sizes
    with new_schema(bench) as url, make_queue(url) as full:
        began = time.monotonic()
        _fill(url, full, sizes.growth_around)
        filling = time.monotonic() - began
        empty_times, full_times = [], []
        for _ in range(sizes.rounds):
            with new_schema(bench) as empty_url, make_queue(empty_url) as empty:
                empty_times.append(_times(empty_url, empty, sizes.postgres_turns))
            full_times.append(_times(url, full, sizes.postgres_turns))
    return [
        Figure(name="filling the queue", value=filling, unit="s"),
        *(
            figure
            for place, what in enumerate(("claim of 1 job", f"turn of {_AT_A_TIME} jobs"))
            for figure in _figures(
                what,
                sizes.growth_around,
                [times[place] for times in empty_times],
                [times[place] for times in full_times],
            )
        ),
    ]


def _figures(what: str, around: int, empty: list[float], full: list[float]) -> list[Figure]:
    ratio = median(f / e for f, e in zip(full, empty, strict=True))
    return [
        Figure(name=f"{what}, empty queue", value=median(empty) * 1000, unit="ms"),
        Figure(
            name=f"{what}, {around:,} finished",
            value=median(full) * 1000,
            unit="ms",
            share=ratio,
            of="the empty queue's",
            expectation=at_most(ratio, EXPECTED, "times the empty queue's"),
        ),
    ]


def _fill(url: str, queue: Queue, count: int) -> None:
    queue.open()
    day_ago = time.time_ns() // 1000 - 86_400_000_000
    with connect(url) as connection:
        connection.execute("SET synchronous_commit = off")
        chunk = min(_CHUNK, count)
        for first in range(0, count, chunk):
            connection.execute(_FILL, {"type": TYPE, "at": day_ago, "first": first, "count": chunk})


def _times(url: str, queue: Queue, turns: int) -> tuple[float, float]:
    """The median seconds of a claim of one job, and of a transaction that finishes what the last one took and
    takes as many again."""
    queue.enqueue_many(TYPE, [{"number": number} for number in range(turns * (1 + _AT_A_TIME))])
    with connect(url) as connection:
        settle(connection, "holdfast_jobs")
    turn_times, claims = _repeat(queue, turns, _AT_A_TIME)
    queue.store.finish_jobs([_finish(claim) for claim in claims])
    claim_times, claims = _repeat(queue, turns, 1)
    queue.store.finish_jobs([_finish(claim) for claim in claims])
    return median(claim_times), median(turn_times)


def _repeat(queue: Queue, turns: int, jobs: int) -> tuple[list[float], list[Claim]]:
    """The seconds of each turn, of which those with one job are timed without the finish; the last claims."""
    store, claims, times = queue.store, list[Claim](), []
    demand = Demand(type=TYPE, limit=jobs, max_attempts=3, pending=jobs)
    for _ in range(turns):
        if jobs == 1:
            store.finish_jobs([_finish(claim) for claim in claims])
            claims = []
        began = time.perf_counter()
        with store.transaction():
            store.finish_jobs([_finish(claim) for claim in claims])
            claims = store.claim_jobs("bench", [demand], limit=jobs, lease_seconds=30).claims
        times.append(time.perf_counter() - began)
        if len(claims) != jobs:
            raise AssertionError(f"{len(claims)} of {jobs} jobs were claimed")
    return times, claims


def _finish(claim: Claim) -> Finish:
    return Finish(
        seq=claim.seq,
        version=claim.version,
        worker_id=claim.worker_id,
        attempt=claim.attempts,
        decision=Decision("complete", Status.COMPLETED, result="null"),
        started_at=0,
    )
