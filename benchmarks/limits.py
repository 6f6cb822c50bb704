"""Limits: what lanes, groups and limits cost, and how long a small group waits behind a large one.

A rate is that of one worker process that drains no-op jobs, beside as many jobs of one type without limits,
in turns. The same on SQLite and on PostgreSQL (postgres/limits.py).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median, quantiles

from benchmarks.bench import TYPE, Bench, make_queue, remove, wait_for_worker, worker
from benchmarks.figures import Figure, at_least, at_most
from benchmarks.idle import processor_seconds
from holdfast import Queue
from holdfast.config import SettingName
from holdfast.handlers.options import EnqueueOptions
from holdfast.store.open import store_of

_LANES = 2_000
_MAX_RUNNING = 50
_MANY_SLOTS = 100
_MEASURED_FOR = 5.0
_PATIENCE = 600.0

_LEFT = """
SELECT seq FROM holdfast_jobs WHERE status = 'pending'
UNION ALL SELECT seq FROM holdfast_jobs WHERE status = 'processing' LIMIT 1
"""
_SPAN = "SELECT count(*), max(finished_at) - min(started_at) FROM holdfast_jobs WHERE status = 'completed'"
_SMALL = """SELECT started_at - created_at FROM holdfast_jobs WHERE "group" = 'small'"""

Place = Callable[[Bench], AbstractContextManager[Path | str]]


@dataclass(frozen=True)
class Load:
    """Jobs over lanes and groups, and what is set for them."""

    lanes: int = 0
    groups: int = 0
    settings: dict[SettingName, float | bool] = field(default_factory=dict)

    def fill(self, queue: Queue, jobs: int) -> None:
        for name, value in self.settings.items():
            queue.set_config(name, value)
        for start in range(0, jobs, 5_000):
            queue.enqueue_batch([self._job(number) for number in range(start, min(jobs, start + 5_000))])

    def _job(self, number: int) -> tuple[str, object, EnqueueOptions]:
        type = f"{TYPE}:{number % self.lanes}" if self.lanes else TYPE
        options: EnqueueOptions = {"group": f"group-{number % self.groups}"} if self.groups else {}
        return type, {"number": number}, options


@contextmanager
def new_file(bench: Bench) -> Iterator[Path | str]:
    path = bench.new_file()
    try:
        yield path
    finally:
        remove(path)


def measure(bench: Bench) -> list[Figure]:
    return measure_at(bench, new_file)


def measure_at(bench: Bench, place: Place) -> list[Figure]:
    jobs = bench.sizes.limits
    slots: dict[SettingName, float | bool] = {"concurrency": _MANY_SLOTS}
    return [
        *_compare(bench, place, "plain", f"{jobs:,} lanes of one job", Load(lanes=jobs), Load(), 0.5),
        *_compare(
            bench,
            place,
            "plain",
            f"{jobs // 10:,} fair groups × 10, one at a time",
            Load(groups=jobs // 10, settings={"fair": True, "group_concurrency": 1}),
            Load(),
            0.5,
        ),
        *_compare(
            bench,
            place,
            f"{_MANY_SLOTS} slots, {_LANES:,} lanes",
            f"the same, max_running={_MAX_RUNNING} for all",
            Load(lanes=_LANES, settings={**slots, "max_running": _MAX_RUNNING}),
            Load(lanes=_LANES, settings=slots),
            0.3,
        ),
        _small_group(bench, place),
        _at_limits(bench, place),
    ]


def _compare(
    bench: Bench, place: Place, of: str, name: str, load: Load, floor: Load, expected: float
) -> list[Figure]:
    rates: list[float] = []
    floors: list[float] = []
    for _ in range(bench.sizes.rounds):
        floors.append(_drain(bench, place, floor))
        rates.append(_drain(bench, place, load))
    share = median(rate / floor for rate, floor in zip(rates, floors, strict=True))
    return [
        Figure(name=of, value=median(floors), unit="jobs/s"),
        Figure(
            name=name,
            value=median(rates),
            unit="jobs/s",
            share=share,
            of=of,
            expectation=at_least(share, expected),
        ),
    ]


def _drain(bench: Bench, place: Place, load: Load) -> float:
    """Jobs a second, from the first claim to the last completion."""
    jobs = bench.sizes.limits
    with place(bench) as where, make_queue(where) as queue:
        queue.pause()
        load.fill(queue, jobs)
        with worker(where):
            wait_for_worker(queue)
            queue.resume()
            _wait_until_empty(queue)
        [(count, microseconds)] = store_of(queue).database.read(_SPAN)
    if count != jobs:
        raise AssertionError(f"{count} of {jobs} jobs were completed")
    return float(jobs / (microseconds / 1e6))


def _wait_until_empty(queue: Queue) -> None:
    deadline = time.monotonic() + _PATIENCE
    while store_of(queue).database.read(_LEFT):
        if time.monotonic() > deadline:
            raise TimeoutError("the drain did not end")
        time.sleep(0.05)


def _small_group(bench: Bench, place: Place) -> Figure:
    """How long jobs of a small group wait while a large one is drained, and alone."""
    large = Load(groups=1, settings={"fair": True})
    alone = _wait_of_small(bench, place, large, 0)
    behind = _wait_of_small(bench, place, large, 5 * bench.sizes.limits)
    return Figure(
        name=f"p99 wait of a small group behind {5 * bench.sizes.limits:,} jobs",
        value=behind,
        unit="ms",
        share=behind / alone,
        of="in an empty queue",
        expectation=at_most(behind / alone, 20, "times as long"),
    )


def _wait_of_small(bench: Bench, place: Place, load: Load, jobs: int) -> float:
    """The 99th percentile, in milliseconds."""
    with place(bench) as where, make_queue(where) as queue:
        load.fill(queue, jobs)
        with worker(where):
            wait_for_worker(queue)
            for number in range(bench.sizes.pickups):
                queue.enqueue(TYPE, {"number": number}, group="small")
                time.sleep(0.005)
            _wait_until_empty(queue)
        waits = [wait / 1e3 for (wait,) in store_of(queue).database.read(_SMALL)]
    return float(quantiles(waits, n=100)[98])


def _at_limits(bench: Bench, place: Place) -> Figure:
    """The processor time of a worker all of whose types are at a limit."""
    with place(bench) as where, make_queue(where) as queue:
        Load(lanes=_LANES, settings={"rate_limit": 1e-3}).fill(queue, bench.sizes.limits)
        with worker(where) as pid:
            wait_for_worker(queue)
            time.sleep(_MEASURED_FOR)
            began, used = time.monotonic(), processor_seconds(pid)
            time.sleep(_MEASURED_FOR)
            percent = 100 * (processor_seconds(pid) - used) / (time.monotonic() - began)
    return Figure(
        name="worker whose types are all at a limit",
        value=percent,
        unit="% a core",
        expectation=at_most(percent, 1.0, "% of a core"),
    )
