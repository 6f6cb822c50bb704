"""Waking a thread that waits in poll(), through a pipe."""

from __future__ import annotations

import os
import threading
from contextlib import suppress


class Waker:
    """To be registered with a poll. Any thread may `wake`; the others are for the one that waits."""

    def __init__(self) -> None:
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)
        self._woken = False
        self._closing = threading.Lock()  # a descriptor that is closed may soon be another file's
        self._closed = False

    def fileno(self) -> int:
        return self._read

    def wake(self) -> None:
        """End the wait, or the next one; nothing once it is closed."""
        if not self._woken:
            self._woken = True
            with self._closing, suppress(OSError):  # full: a wake-up is on its way
                if not self._closed:
                    os.write(self._write, b"w")

    def clear(self) -> None:
        """Forget that it was woken: who wakes from now on ends the next wait."""
        with suppress(BlockingIOError):
            os.read(self._read, 65_536)
        self._woken = False

    def close(self) -> None:
        with self._closing:
            self._closed = True
            os.close(self._read)
            os.close(self._write)
