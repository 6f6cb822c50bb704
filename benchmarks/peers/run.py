"""A process of a peer: `python -m benchmarks.peers.run PEER COMMAND URL …`, in the peers' own environment.

prepare               makes the peer's tables
singly COUNT          enqueues one by one; prints how many seconds it took
bulk COUNT            enqueues in as few calls as the peer has them; prints how many seconds it took
work COUNT            works until so many handlers have run; prints the seconds from the first to the last
serve                 works; prints the number of each job, and when its handler began (ns since 1970)
pickups COUNT         enqueues one by one with pauses; prints the number of each job, and when that returned
"""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Callable
from importlib import import_module

PAUSE = (0.005, 0.03)
"""Seconds between two jobs that are picked up."""


def main() -> None:
    name, command, url, *rest = sys.argv[1:]
    peer = import_module(f"benchmarks.peers.on_{name}")
    count = int(rest[0]) if rest else 0
    if command == "prepare":
        peer.prepare(url)
    elif command == "work":
        peer.work(url, _until(count))
    elif command == "serve":
        peer.work(url, lambda number: print(number, time.time_ns(), flush=True))
    else:
        with peer.producer(url) as (enqueue, enqueue_many):
            enqueue(-1)  # opens the connection
            if command == "pickups":
                _pick_up(enqueue, count)
                return
            began = time.perf_counter()
            if command == "bulk":
                enqueue_many(range(count))
            else:
                for number in range(count):
                    enqueue(number)
            print(time.perf_counter() - began, flush=True)


def _until(count: int) -> Callable[[int], None]:
    """A handler that ends the process when it has run so often."""
    times: list[float] = []

    def handle(_: int) -> None:
        times.append(time.perf_counter())
        if len(times) == count:
            print(times[-1] - times[0], flush=True)
            os._exit(0)

    return handle


def _pick_up(enqueue: Callable[[int], None], count: int) -> None:
    for number in range(count):
        time.sleep(random.uniform(*PAUSE))
        enqueue(number)
        print(number, time.time_ns(), flush=True)


if __name__ == "__main__":
    main()
