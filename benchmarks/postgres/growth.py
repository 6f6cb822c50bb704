"""Growth: a claim, and a turn of a worker, in an empty queue and in one with a million finished jobs."""

from __future__ import annotations

import time
from collections.abc import Sequence
from statistics import median

from benchmarks.bench import TYPE, Bench, make_queue
from benchmarks.figures import Figure, at_most
from benchmarks.postgres.place import connect, new_schema, settle
from holdfast import Queue
from holdfast.core.job import Status
from holdfast.core.lifecycle import Decision
from holdfast.store.open import store_of
from holdfast.store.records import Claim, Demand, Finish

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
                for address, queue in ((empty_url, empty), (url, full)):
                    _enqueue(address, queue, sizes.postgres_turns * (1 + _AT_A_TIME))
                claims = _times([empty, full], sizes.postgres_turns, 1)
                turns = _times([empty, full], sizes.postgres_turns, _AT_A_TIME)
                empty_times.append((claims[0], turns[0]))
                full_times.append((claims[1], turns[1]))
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


def _enqueue(url: str, queue: Queue, jobs: int) -> None:
    queue.enqueue_many(TYPE, [{"number": number} for number in range(jobs)])
    with connect(url) as connection:
        settle(connection, "holdfast_jobs")


def _times(queues: Sequence[Queue], turns: int, jobs: int) -> list[float]:
    """The median seconds of a turn in each queue, by turns: of a transaction that finishes what the last one
    took, and takes as many again. One job is finished before, so that only its claim is timed."""
    claims: list[list[Claim]] = [[] for _ in queues]
    times: list[list[float]] = [[] for _ in queues]
    for _ in range(turns):
        for place, queue in enumerate(queues):
            if jobs == 1:
                _finish(queue, claims[place])
                claims[place] = []
            began = time.perf_counter()
            with store_of(queue).transaction():
                _finish(queue, claims[place])
                claims[place] = _claim(queue, jobs)
            times[place].append(time.perf_counter() - began)
    for place, queue in enumerate(queues):
        _finish(queue, claims[place])
    return [median(each) for each in times]


def _claim(queue: Queue, jobs: int) -> list[Claim]:
    demand = Demand(type=TYPE, limit=jobs, max_attempts=3)
    claims = store_of(queue).claim_jobs("bench", [demand], limit=jobs, lease_seconds=30).claims
    if len(claims) != jobs:
        raise AssertionError(f"{len(claims)} of {jobs} jobs were claimed")
    return claims


def _finish(queue: Queue, claims: Sequence[Claim]) -> None:
    decision = Decision("complete", Status.COMPLETED, result="null")
    store_of(queue).finish_jobs(
        [
            Finish(
                seq=claim.seq,
                type=claim.type,
                version=claim.version,
                worker_id=claim.worker_id,
                attempt=claim.attempts,
                decision=decision,
                started_at=0,
            )
            for claim in claims
        ]
    )
