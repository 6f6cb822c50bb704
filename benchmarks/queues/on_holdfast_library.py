"""Holdfast with its defaults, its worker started by the library instead of queuectl."""

from benchmarks.queues.on_holdfast import PACKAGE, durability, producer, queue, setup

__all__ = ["PACKAGE", "durability", "producer", "setup", "work"]


def work() -> None:
    queue.run_worker()
