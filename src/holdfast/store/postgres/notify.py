"""Notifying workers of new jobs: NOTIFY, at most once every few milliseconds per process.

A NOTIFY makes commits wait for one another, across the whole server, so it is never part of our own commits:
it follows them, in a transaction that writes nothing else. A worker that misses one polls every
poll_interval.
"""

from __future__ import annotations

import threading
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from holdfast.errors import StoreError

if TYPE_CHECKING:
    from holdfast.store.postgres.database import Database

PAUSE = 0.005
"""Seconds between two."""

NOTIFY = "SELECT pg_notify($1, '')"


def channel(identity: str) -> str:
    """The channel of a queue."""
    return f"holdfast_{identity}"


class Notifier:
    """Sends the first at once, in the thread that has something to tell; one timer sends for all who come
    in the pause after it."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._lock = threading.RLock()
        self._next = 0.0
        self._timer: threading.Timer | None = None
        """The one that is going to send."""
        self._late: set[threading.Thread] = set()
        """The timers that have not sent yet, those that are at it among them."""

    def touch(self) -> None:
        with self._lock:
            if self._timer is not None or not self._database.notifies:
                return
            now = time.monotonic()
            wait = self._next - now
            if wait > 0 and self._start_timer(wait):
                return
            self._next = now + PAUSE
        self._send()

    def _start_timer(self, wait: float) -> bool:
        timer = threading.Timer(wait, self._send_late)
        timer.name = "holdfast-notify"
        timer.daemon = False  # a process that ends meanwhile waits for it
        try:
            timer.start()
        except RuntimeError:  # no thread can be started, or the interpreter is exiting
            return False
        self._timer = timer
        self._late.add(timer)
        return True

    def close(self) -> None:
        """Wait until the last one is sent."""
        with self._lock:
            late = self._late - {threading.current_thread()}
        for timer in late:
            timer.join(1.0)

    def _send_late(self) -> None:
        with self._lock:
            self._timer = None
            self._next = time.monotonic() + PAUSE
        self._send()
        with self._lock:
            self._late.discard(threading.current_thread())

    def _send(self) -> None:
        with suppress(StoreError):
            self._database.read(NOTIFY, [channel(self._database.identity)])
