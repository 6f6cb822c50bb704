"""The worker process that the benchmarks start: `python -m benchmarks.child sqlite:///path`."""

from __future__ import annotations

import sys
import time

from holdfast import Queue


def main() -> None:
    queue = Queue(sys.argv[1])

    @queue.job
    def noop(number: int) -> None:
        pass

    @queue.job
    def paused(number: int) -> None:
        raise AssertionError("a job of a paused type ran")

    @queue.job
    def note_start() -> int:
        return time.time_ns()

    queue.run_worker()


if __name__ == "__main__":
    main()
