"""The database file: where its address leads, and whether that is still the file that was opened.

Nothing here opens it: closing a file that SQLite has open drops this process's locks.
"""

from __future__ import annotations

import os
import time

from holdfast.errors import DatabaseReplaced

CHECK_PAUSE = 1.0
"""Seconds between two checks where nothing is written."""


class DatabaseFile:
    """The file that an address names; `path` is its real location, next to which SQLite keeps the WAL."""

    def __init__(self, named: str) -> None:
        self.named = named
        self.path = os.path.realpath(named)
        self._opened: tuple[int, int] | None = None
        self._next_check = 0.0

    @property
    def uri(self) -> str:
        """For SQLite. Only the first connection may make the file."""
        quoted = self.path.replace("%", "%25").replace("?", "%3F").replace("#", "%23")
        return f"file://{quoted}?mode={'rwc' if self._opened is None else 'rw'}"

    def note_opened(self) -> None:
        """A connection was made: to the same file as those before it, or it is refused."""
        if self._opened is None:
            self._opened = self._present()
        else:
            self.check()

    def check(self) -> None:
        """Raise DatabaseReplaced if the address leads elsewhere now: what is written would be lost."""
        if self._opened is not None and self._present() != self._opened:
            raise DatabaseReplaced(self.named, removed=False)

    def check_now_and_then(self) -> None:
        """The same, at most once a second."""
        now = time.monotonic()
        if now >= self._next_check:
            self.check()
            self._next_check = now + CHECK_PAUSE

    def _present(self) -> tuple[int, int] | None:
        """What the address leads to now: as before, where this process may not look any more."""
        try:
            found = os.stat(self.named)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise DatabaseReplaced(self.named, removed=True) from error
        except OSError:
            return self._opened
        return found.st_dev, found.st_ino

    def wal_bytes(self) -> int:
        try:
            return os.stat(self.path + "-wal").st_size
        except OSError:
            return 0
