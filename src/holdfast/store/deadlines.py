"""One thread per process that runs callbacks at their deadlines."""

from __future__ import annotations

import heapq
import itertools
import os
import threading
import time
from collections.abc import Callable

_LINGER = 0.25
"""Seconds after which the thread looks whether it is still needed."""


class Deadline:
    """Something to do at a given time, unless it is cancelled before then."""

    __slots__ = ("_number", "action", "at")

    def __init__(self, at: float, number: int, action: Callable[[], object]) -> None:
        self.at = at
        self._number = number
        self.action: Callable[[], object] | None = action

    def __lt__(self, other: Deadline) -> bool:
        return (self.at, self._number) < (other.at, other._number)


class Deadlines:
    """Begins what is due in a thread of its own: one that takes its time must not delay the next."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """In a forked child, which has not inherited the thread."""
        self._changed = threading.Condition()
        self._numbers = itertools.count()
        self._waiting: list[Deadline] = []
        self._is_running = False

    def add(self, seconds: float, action: Callable[[], object]) -> Deadline:
        """Raises RuntimeError if the thread is needed and can't be started."""
        deadline = Deadline(time.monotonic() + seconds, next(self._numbers), action)
        with self._changed:
            if not self._is_running:
                threading.Thread(target=self._run, name="holdfast-deadlines", daemon=True).start()
                self._is_running = True
            heapq.heappush(self._waiting, deadline)
            if self._waiting[0] is deadline:
                self._changed.notify()
        return deadline

    def call_off(self, deadline: Deadline) -> None:
        with self._changed:
            deadline.action = None  # it stays in the heap, where it costs less than to be searched for

    def _run(self) -> None:
        while (due := self._next()) is not None:
            for action in due:
                try:
                    threading.Thread(target=action, name="holdfast-expiry", daemon=True).start()
                except RuntimeError:  # out of threads
                    action()

    def _next(self) -> list[Callable[[], object]] | None:
        """Wait for what is due next; None when there is nothing to wait for any more."""
        with self._changed:
            while any(deadline.action for deadline in self._waiting):
                now = time.monotonic()
                due = []
                while self._waiting and self._waiting[0].at <= now:
                    action = heapq.heappop(self._waiting).action
                    if action is not None:
                        due.append(action)
                if due:
                    return due
                self._changed.wait(min(_LINGER, self._waiting[0].at - now))
            self._waiting.clear()
            self._is_running = False
            return None


DEADLINES = Deadlines()
os.register_at_fork(after_in_child=DEADLINES.reset)
