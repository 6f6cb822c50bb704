"""A copy of a queue in a new file that only its owner can read, written completely or not at all."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from secrets import token_hex

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
    try:
        _write(path, folder, fill)
    except OSError as error:
        raise StoreUnavailable(f"{path}: {error.strerror}") from error
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{path}: {error}") from error


def _write(path: str, folder: str, fill: Callable[[str], object]) -> None:
    part = f"{path}.{token_hex(8)}.part"  # known before the file exists, so that Ctrl-C leaves nothing
    try:
        os.close(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
        fill(part)
        _sync(part)
        os.link(part, path)  # unlike a rename, refuses a file that somebody made meanwhile
        _sync(folder)
    finally:
        for name in (part, f"{part}-wal", f"{part}-shm"):
            with suppress(FileNotFoundError):
                os.unlink(name)


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
