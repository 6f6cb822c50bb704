"""Growth: a turn of a worker in an empty queue, and in one with a million jobs that have ended."""

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
        empty_turns, full_turns = [], []
        for _ in range(sizes.rounds):
            with new_schema(bench) as empty_url, make_queue(empty_url) as empty:
                empty_turns.append(_turn(empty_url, empty, sizes.postgres_turns))
            full_turns.append(_turn(url, full, sizes.postgres_turns))
    times = median(f / e for f, e in zip(full_turns, empty_turns, strict=True))
    return [
        Figure(name="filling the queue", value=filling, unit="s"),
        Figure(name=f"turn of {_AT_A_TIME} jobs, empty queue", value=median(empty_turns) * 1000, unit="ms"),
        Figure(
            name=f"turn among {sizes.growth_around:,} finished jobs",
            value=median(full_turns) * 1000,
            unit="ms",
            share=times,
            of="the empty queue's",
            expectation=at_most(times, EXPECTED, "times the empty queue's"),
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


def _turn(url: str, queue: Queue, turns: int) -> float:
    """The median seconds of a transaction that finishes what the last one took, and takes as many again."""
    queue.enqueue_many(TYPE, [{"number": number} for number in range(turns * _AT_A_TIME)])
    with connect(url) as connection:
        settle(connection, "holdfast_jobs")
    store, claims, times = queue.store, list[Claim](), []
    demand = Demand(type=TYPE, limit=_AT_A_TIME, max_attempts=3, pending=_AT_A_TIME)
    for _ in range(turns):
        began = time.perf_counter()
        with store.transaction():
            store.finish_jobs([_finish(claim) for claim in claims])
            claims = store.claim_jobs("bench", [demand], limit=_AT_A_TIME, lease_seconds=30).claims
        times.append(time.perf_counter() - began)
        if len(claims) != _AT_A_TIME:
            raise AssertionError(f"{len(claims)} jobs were claimed")
    store.finish_jobs([_finish(claim) for claim in claims])
    return median(times)


def _finish(claim: Claim) -> Finish:
    return Finish(
        seq=claim.seq,
        version=claim.version,
        worker_id=claim.worker_id,
        attempt=claim.attempts,
        decision=Decision("complete", Status.COMPLETED, result="null"),
        started_at=0,
    )
