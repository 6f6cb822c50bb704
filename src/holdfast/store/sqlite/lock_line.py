"""The threads of this process that wait for SQLite's write lock."""

from __future__ import annotations

import os
import threading
from collections import deque
from contextlib import suppress

_HANDED_ON_WITHIN = 0.025
"""Seconds after which a thread tries again, although the lock was with another thread of this process."""


class LockLine:
    """Threads that wait for each other stand in line: whoever frees the lock wakes the first.

    For another process there is no such signal, so a thread that waits for one tries again after a random
    pause. Being woken only shortens a pause: whatever becomes of the others, each thread tries by itself too.
    """

    def __init__(self) -> None:
        self._waiting: deque[threading.Lock] = deque()
        self._is_ours = False

    def pause(self, *, again: bool) -> None:
        """Return when it is time to try. Who comes `again` stands in front."""
        random = os.urandom(1)[0] / 255
        seconds = _HANDED_ON_WITHIN if self._is_ours else 0.0005 + 0.0025 * random
        turn = threading.Lock()
        turn.acquire()
        (self._waiting.appendleft if again else self._waiting.append)(turn)
        turn.acquire(timeout=seconds)
        with suppress(ValueError):  # it was woken
            self._waiting.remove(turn)

    def taken(self) -> None:
        self._is_ours = True

    def freed(self) -> None:
        self._is_ours = False
        with suppress(IndexError):
            self._waiting.popleft().release()
