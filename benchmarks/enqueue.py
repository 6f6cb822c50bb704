"""Enqueue: one by one, from 16 threads at a time, and many in one call."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median

from benchmarks import floor
from benchmarks.bench import TYPE, Bench, make_queue, remove
from benchmarks.figures import Figure
from holdfast import Queue

THREADS = 16


def measure(bench: Bench) -> list[Figure]:
    sizes = bench.sizes
    inserts, commits, singly, threads, many = [], [], [], [], []
    for _ in range(sizes.rounds):
        inserts.append(floor.batch_rates(bench, sizes.floor_jobs)[0])
        commits.append(1 / floor.commit_seconds(bench, sizes.commits))
        singly.append(_rate(bench, sizes.enqueue_one_by_one, _one_by_one))
        threads.append(_rate(bench, sizes.enqueue_threads, _from_threads))
        many.append(_rate(bench, sizes.enqueue_many, _many))

    def figure(name: str, rates: list[float], floors: list[float], of: str) -> Figure:
        share = median(rate / floor for rate, floor in zip(rates, floors, strict=True))
        return Figure(name=name, value=median(rates), unit="jobs/s", share=share, of=of)

    return [
        figure("enqueue, one by one", singly, commits, "bare single commits"),
        figure("enqueue, one by one", singly, inserts, "floor insert"),
        figure(f"enqueue, from {THREADS} threads", threads, inserts, "floor insert"),
        figure(f"enqueue_many, {sizes.enqueue_many:,} jobs", many, inserts, "floor insert"),
    ]


def _rate(bench: Bench, jobs: int, enqueue: Callable[[Queue, int], None]) -> float:
    path = bench.new_file()
    with make_queue(path) as queue:
        queue.enqueue(TYPE, {"number": 0})  # opens the database
        began = time.perf_counter()
        enqueue(queue, jobs)
        rate = jobs / (time.perf_counter() - began)
    remove(path)
    return rate


def _one_by_one(queue: Queue, jobs: int) -> None:
    for number in range(jobs):
        queue.enqueue(TYPE, {"number": number})


def _from_threads(queue: Queue, jobs: int) -> None:
    with ThreadPoolExecutor(THREADS) as pool:
        for done in [pool.submit(_one_by_one, queue, jobs // THREADS) for _ in range(THREADS)]:
            done.result()


def _many(queue: Queue, jobs: int) -> None:
    queue.enqueue_many(TYPE, [{"number": number} for number in range(jobs)])
