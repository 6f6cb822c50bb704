"""Idle: the processor time of a worker process that has nothing to do."""

from __future__ import annotations

import os
import time
from pathlib import Path

from benchmarks.bench import TYPE, Bench, make_queue, remove, wait_for_worker, worker
from benchmarks.figures import Figure, at_most

EXPECTED_PERCENT = 1.0
_SETTLING = 2.0


def measure(bench: Bench) -> list[Figure]:
    path = bench.new_file()
    with make_queue(path) as queue, worker(path) as pid:
        wait_for_worker(queue)
        # It has worked once, so that its threads are there and its modules loaded.
        queue.wait(queue.enqueue(TYPE, {"number": 0}).id, timeout=30)
        time.sleep(_SETTLING)
        began, used = time.monotonic(), processor_seconds(pid)
        time.sleep(bench.sizes.idle_seconds)
        percent = 100 * (processor_seconds(pid) - used) / (time.monotonic() - began)
    remove(path)
    return [
        Figure(
            name="idle worker",
            value=percent,
            unit="% a core",
            expectation=at_most(percent, EXPECTED_PERCENT, "% of a core"),
        )
    ]


def processor_seconds(pid: int) -> float:
    """User and system time of a process and all its threads, to a hundredth of a second."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
