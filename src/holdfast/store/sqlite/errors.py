"""What SQLite's errors mean: which of ours each one becomes, and what to do about it."""

from __future__ import annotations

import os
import sqlite3
from contextlib import suppress
from typing import NoReturn

from holdfast.errors import ForeignDatabase, StoreBusy, StoreUnavailable
from holdfast.store.database import PATIENCE
from holdfast.store.moved import error_of

_ROOM_NEEDED = 256 * 1024
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def is_locked(error: sqlite3.Error) -> bool:
    return (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF in _LOCKED


def raise_translated(error: sqlite3.Error, path: str) -> NoReturn:
    """Raise the driver's error as one of ours. What can only be a mistake in SQL stays as it is."""
    code = (getattr(error, "sqlite_errorcode", 0) or 0) & 0xFF
    if code in _LOCKED:
        raise StoreBusy(PATIENCE) from error
    if code == sqlite3.SQLITE_NOTADB:
        raise ForeignDatabase(f"{path} is not a SQLite database") from error
    raise_if_moved(error)
    if isinstance(error, sqlite3.ProgrammingError | sqlite3.IntegrityError) or code == sqlite3.SQLITE_ERROR:
        raise error
    raise StoreUnavailable(f"{path}: {error}", hint=_hint(code, path)) from error


def raise_if_moved(error: sqlite3.Error) -> None:
    """Raise what a guard of a move has refused as one of our errors."""
    moved = error_of(str(error)) if isinstance(error, sqlite3.IntegrityError) else None
    if moved is not None:
        raise moved from error


def _hint(code: int, path: str) -> str | None:
    # Where not even the shared memory of the WAL finds room, SQLite calls it an I/O error.
    if code == sqlite3.SQLITE_IOERR:
        with suppress(OSError):
            space = os.statvfs(os.path.dirname(path))
            if space.f_bavail * space.f_frsize < _ROOM_NEEDED:
                code = sqlite3.SQLITE_FULL
    return _HINTS.get(code)


_HINTS = {
    sqlite3.SQLITE_CORRUPT: "check the disk, then the file with PRAGMA integrity_check",
    sqlite3.SQLITE_READONLY: "the file and its folder must be writable",
    sqlite3.SQLITE_CANTOPEN: "does its folder exist, and is it writable?",
    sqlite3.SQLITE_FULL: "the disk is full: free some space, and work resumes by itself",
}
