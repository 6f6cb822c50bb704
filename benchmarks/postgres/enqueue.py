"""Enqueue: one by one, from 8 threads at a time, and many in one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from benchmarks.bench import TYPE, Bench, make_queue
from benchmarks.figures import Figure
from benchmarks.postgres import floor
from benchmarks.postgres.place import connect, new_schema
from holdfast import Queue

THREADS = 8


def measure(bench: Bench) -> list[Figure]:
    sizes = bench.sizes
    commits, copies, singly, threads, many = [], [], [], [], []
    for _ in range(sizes.rounds):
        commits.append(floor.commit_rate(bench, sizes.postgres_singly))
        singly.append(rate(bench, sizes.postgres_singly, one_by_one))
        threads.append(rate(bench, sizes.postgres_threads, _from_threads))
        copies.append(floor.copy_rate(bench, sizes.postgres_many))
        many.append(rate(bench, sizes.postgres_many, many_at_once))

    def figure(name: str, rates: list[float], floors: list[float], of: str) -> Figure:
        share = median(rate / floor for rate, floor in zip(rates, floors, strict=True))
        return Figure(name=name, value=median(rates), unit="jobs/s", share=share, of=of)

    return [
        Figure(name="bare INSERT and COMMIT, one by one", value=median(commits), unit="jobs/s"),
        Figure(name=f"bare COPY, {floor.BULK:,} a commit", value=median(copies), unit="jobs/s"),
        figure("enqueue, one by one", singly, commits, "bare single commits"),
        figure(f"enqueue, from {THREADS} threads", threads, commits, "bare single commits"),
        figure(f"enqueue_many, {sizes.postgres_many:,} jobs", many, copies, "bare COPY"),
    ]


def rate(bench: Bench, jobs: int, enqueue: Callable[[Queue, int], None]) -> float:
    """Jobs enqueued a second into a new queue."""
    with new_schema(bench) as url, make_queue(url) as queue, connect(url) as connection:
        _from_threads(queue, THREADS)  # makes the tables and the connections
        connection.execute("CHECKPOINT")
        began = time.perf_counter()
        enqueue(queue, jobs)
        return jobs / (time.perf_counter() - began)


def one_by_one(queue: Queue, jobs: int) -> None:
    for number in range(jobs):
        queue.enqueue(TYPE, {"number": number})


def many_at_once(queue: Queue, jobs: int) -> None:
    queue.enqueue_many(TYPE, [{"number": number} for number in range(jobs)])


def _from_threads(queue: Queue, jobs: int) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(one_by_one, queue, jobs // THREADS) for _ in range(THREADS)]:
            done.result()
