"""Waking up when another process commits: inotify on the WAL where available, a short poll elsewhere.

inotify reports that the WAL was written, a moment before the commit is visible: the writer syncs the file and
then publishes the commit in shared memory, without an event. So a wake-up is followed by several checks of
`data_version`, with growing pauses. The watch itself opens nothing: opening and closing the database file in
this process would drop its locks.
"""

from __future__ import annotations

import os
import select
import sys
import time
from contextlib import suppress

from holdfast.store.sqlite.database import Database
from holdfast.store.wake import Waker

_IN_MODIFY = 0x00000002
_POLL = 0.005
# A few looks at once, as an fsync takes a fraction of a millisecond, then 0.1 ms to 0.2 s: 0.4 s in all.
_SETTLING = (*[0.00005] * 8, *(0.0001 * 2**step for step in range(12)))


class SqliteWatch:
    """See Watch in the protocol. `data_version` belongs to this thread's connection, so that what this
    thread commits itself is no change."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._version = self._peek()
        self._waker = Waker()
        self._poll = select.poll()
        self._poll.register(self._waker, select.POLLIN)
        self._inotify: int | None = None
        self._watched: int | None = None
        self._follow_file()
        # The first look may come between a writer's write and its publication.
        self._looks = list(reversed(_SETTLING))

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while True:
            left = deadline - time.monotonic()
            pause = _POLL if self._inotify is None else self._looks.pop() if self._looks else left
            pause = max(0.0, min(left, pause))
            if pause < 0.001:  # poll() counts whole milliseconds, rounded up
                time.sleep(pause)
                pause = 0.0
            if self._wait_for_wake(pause) or left <= 0 or self._peek() != self._version:
                return

    def changed(self) -> bool:
        version = self._peek()
        changed, self._version = version != self._version, version
        return changed

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        self._waker.close()
        if self._inotify is not None:
            os.close(self._inotify)

    def _wait_for_wake(self, seconds: float) -> bool:
        woken = False
        self._follow_file()
        for descriptor, _ in self._poll.poll(seconds * 1000):
            if descriptor == self._waker.fileno():
                self._waker.clear()
                woken = True
            else:
                with suppress(BlockingIOError):
                    os.read(descriptor, 65_536)
                self._looks = list(reversed(_SETTLING))
        return woken

    def _follow_file(self) -> None:
        """Watch the current WAL: if all connections were closed in the meantime, it is a different file."""
        try:
            present = os.stat(self._database.path + "-wal").st_ino
        except OSError:
            return
        if present == self._watched:
            return
        if self._inotify is not None:
            self._poll.unregister(self._inotify)
            os.close(self._inotify)
        self._watched = present
        self._inotify = _watch_file(self._database.path + "-wal")
        if self._inotify is not None:
            self._poll.register(self._inotify, select.POLLIN)

    def _peek(self) -> int:
        return int(self._database.read_one("PRAGMA data_version")[0])


def _watch_file(path: str) -> int | None:
    """An inotify descriptor that becomes readable when the file is written, or None where that can't be."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), ctypes.c_uint32(_IN_MODIFY)) < 0:
        os.close(descriptor)
        return None
    return descriptor
