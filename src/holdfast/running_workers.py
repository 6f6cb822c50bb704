"""The workers that run on a queue's own connections, and so end before those are closed."""

from __future__ import annotations

import threading
from typing import Protocol

from holdfast.errors import HoldfastError


class Stoppable(Protocol):
    """What a queue knows of a worker."""

    def is_calling(self) -> bool:
        """Whether this code was called by it: a handler, or a subscriber to its events."""

    def ask_to_stop(self) -> None:
        """Stop in order, and do not wait for it."""

    def wait_until_stopped(self) -> None:
        """Wait for its end, however it ends."""


class RunningWorkers:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._workers: list[Stoppable] = []

    def add(self, worker: Stoppable) -> None:
        with self._lock:
            self._workers.append(worker)

    def remove(self, worker: Stoppable) -> None:
        with self._lock:
            self._workers.remove(worker)

    def stop(self) -> None:
        """Stop them all, side by side, as `worker.stop()` does."""
        with self._lock:
            workers = list(self._workers)
        if any(worker.is_calling() for worker in workers):
            raise HoldfastError(
                "a handler or subscriber can't close the queue of the worker that calls it",
                hint="it would wait for its own end; close the queue in another thread",
            )
        for worker in workers:
            worker.ask_to_stop()
        for worker in workers:
            worker.wait_until_stopped()
