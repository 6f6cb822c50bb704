"""A copy of a queue in a new file that only its owner can read, written completely or not at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from tempfile import mkstemp

from holdfast.errors import StoreUnavailable
from holdfast.store.own_files import is_own_path


def make_copy(path: str, fill: Callable[[str], object]) -> None:
    """Make the file out of an empty one, for us alone, which `fill` is given the name of."""
    path = os.path.abspath(path)
    folder = os.path.dirname(path)
    if os.path.lexists(path):
        raise StoreUnavailable(f"{path} already exists", hint="choose a file that does not exist")
    if not os.path.isdir(folder):
        raise StoreUnavailable(f"the folder {folder} does not exist", hint="make it first")
    if is_own_path(path):
        raise StoreUnavailable(
            f"{path} is a file name that SQLite uses for the queue itself", hint="use another name"
        )
    part = None
    try:
        descriptor, part = mkstemp(".part", f"{os.path.basename(path)}.", folder)
        os.close(descriptor)
        fill(part)
        _sync(part)
        os.link(part, path)  # unlike a rename, refuses a file that somebody made meanwhile
        _sync(folder)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{path}: {error}") from error
    finally:
        for name in () if part is None else (part, f"{part}-wal", f"{part}-shm"):
            with suppress(FileNotFoundError):
                os.unlink(name)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
