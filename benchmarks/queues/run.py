"""A process of a queue: `python -m benchmarks.queues.run QUEUE COMMAND …`, in the queue's own environment.

about           its version and durability
one COUNT       enqueues one by one
threads COUNT   enqueues one by one, from 16 threads at a time
bulk COUNT      enqueues so many in one call, where the queue has one: the median of three calls
fill COUNT      enqueues so many in the quickest way
pickups COUNT SECONDS
                enqueues one by one, each after a pause when the one before has started, for at most so long:
                when each was called, in ns since 1970
wal COUNT       enqueues one by one: how many bytes each added to the WAL of a SQLite file
work PROCESSES  becomes the worker

With BENCH_NEW in its environment, it first makes the queue's tables. All but the worker print one line of
JSON with what was measured.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from statistics import median
from threading import Barrier
from types import ModuleType
from typing import Any

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, Producer

PAUSE = (0.005, 0.03)
"""Seconds between two jobs that are picked up."""

THREADS = 16
_WARM_UP = 20
_POLL = 0.005
_LATE = 10.0
_AT_ONCE = 10_000
_CALLS = 3


def main() -> None:
    name, command, *rest = sys.argv[1:]
    queue = import_module(f"benchmarks.queues.on_{name}")
    numbers = [int(word) for word in rest]
    if "BENCH_NEW" in os.environ and hasattr(queue, "setup"):
        queue.setup()
    if command == "work":
        _work(queue, *numbers)
    elif command == "about":
        _print(version=getattr(queue, "VERSION", "") or version(queue.PACKAGE), durability=queue.durability())
    else:
        with queue.producer() as producer:
            _print(**_COMMANDS[command](producer, *numbers))


def _work(queue: ModuleType, processes: int) -> None:
    if not hasattr(queue, "command"):
        queue.work()
        return
    program, *arguments = queue.command(processes)
    path = Path(sys.executable).with_name(program)
    os.execv(path, [str(path), *arguments])


def _print(**measured: Any) -> None:
    print(json.dumps(measured), flush=True)


def _one(producer: Producer, count: int) -> dict[str, Any]:
    _timed(producer.enqueue, _WARM_UP)
    return {"seconds": _timed(producer.enqueue, count)}


def _timed(enqueue: Callable[[int], object], count: int) -> float:
    began = time.perf_counter()
    for number in range(count):
        enqueue(number)
    return time.perf_counter() - began


def _threads(producer: Producer, count: int) -> dict[str, Any]:
    each = count // THREADS
    ready = Barrier(THREADS + 1)

    def enqueue() -> None:
        producer.enqueue(0)  # opens what the thread needs
        ready.wait()
        _timed(producer.enqueue, each)

    with ThreadPoolExecutor(THREADS) as pool:
        done = [pool.submit(enqueue) for _ in range(THREADS)]
        ready.wait()
        began = time.perf_counter()
        for each_done in done:
            each_done.result()
        seconds = time.perf_counter() - began
    return {"seconds": seconds}


def _bulk(producer: Producer, count: int) -> dict[str, Any]:
    if producer.enqueue_many is None:
        return {"seconds": None}
    producer.enqueue(0)
    times = []
    for _ in range(_CALLS):
        began = time.perf_counter()
        producer.enqueue_many(range(count))
        times.append(time.perf_counter() - began)
    return {"seconds": median(times)}


def _fill(producer: Producer, count: int) -> dict[str, Any]:
    if producer.enqueue_many is None:
        _timed(producer.enqueue, count)
    else:
        for first in range(0, count, _AT_ONCE):
            producer.enqueue_many(range(first, min(first + _AT_ONCE, count)))
    return {}


def _pickups(producer: Producer, count: int, seconds: int) -> dict[str, Any]:
    called: list[int] = []
    ends = time.monotonic() + seconds
    while len(called) < count and time.monotonic() < ends:
        time.sleep(random.uniform(*PAUSE))
        called.append(time.time_ns())
        producer.note(len(called) - 1)
        while tally.count_notes() < len(called) and time.monotonic() < ends + _LATE:
            time.sleep(_POLL)
    return {"called": called}


def _wal(producer: Producer, count: int) -> dict[str, Any]:
    _timed(producer.enqueue, _WARM_UP)
    before = _wal_bytes()
    _timed(producer.enqueue, count)
    return {"bytes": (_wal_bytes() - before) / count}


# The size of the WAL says nothing where a queue reserves it ahead, so this reads how many frames are in use,
# and the page size, from its index. In a process of its own: closing the file here would drop SQLite's locks.
_WAL_INDEX = """
import struct, sys
with open(sys.argv[1], "rb") as file:
    page, frames = struct.unpack_from("=HI", file.read(32), 14)
print(frames * ((65536 if page == 1 else page) + 24))
"""


def _wal_bytes() -> int:
    command = [sys.executable, "-I", "-S", "-c", _WAL_INDEX, f"{ADDRESS}-shm"]
    return int(subprocess.run(command, capture_output=True, check=True).stdout)


_COMMANDS: dict[str, Callable[..., dict[str, Any]]] = {
    "one": _one,
    "threads": _threads,
    "bulk": _bulk,
    "fill": _fill,
    "pickups": _pickups,
    "wal": _wal,
}


if __name__ == "__main__":
    main()
