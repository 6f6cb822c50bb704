"""The worker process that the benchmarks start: `python -m benchmarks.child sqlite:///path`."""

from __future__ import annotations

import sys

from holdfast import Queue


def main() -> None:
    queue = Queue(sys.argv[1])

    @queue.job
    def noop(number: int) -> None:
        pass

    queue.run_worker()


if __name__ == "__main__":
    main()
