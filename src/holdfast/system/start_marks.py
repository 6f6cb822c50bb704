"""Which attempts a worker process has started, in a small file that survives its death by any signal.

The file is mapped into memory, so a mark costs less than a microsecond and no system call, and the page cache
keeps it however the process dies. It is only for processes on the same host, until that host restarts. No
path is ever read from a database.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import re
import stat
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress

from msgspec import Struct

_HEADER = struct.Struct("<8s64s?")
_MAGIC = b"holdfast"
_COMPLETE_AT = 72
"""Where the header's flag stands, after the magic word and the boot id."""
_PAIR = struct.Struct("<qq")
_pack_into = _PAIR.pack_into
_FIRST = 128
"""Where the marks begin: behind the header, at a multiple of their size."""
_SLOTS_AT_FIRST = 2048
"""Twice as many as a worker with default settings runs and holds; the file grows if that isn't enough."""
_MOST_BYTES = 64 << 20
"""How much of a file is read, should somebody have made a huge one: four million marks."""
_KEPT_SECONDS = 3 * 24 * 3600.0
"""Three days: whoever takes over the jobs of a dead worker does so within a few leases."""
_WORKER_ID = re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")

Name = tuple[int, int]
"""An attempt: the `seq` of its job and the `version` of its claim."""


class Started(Struct, frozen=True):
    """What a worker's file says. If it is not `complete`, an attempt it does not list may have started."""

    attempts: frozenset[Name]
    complete: bool

    def knows(self, attempt: Name) -> bool | None:
        """Whether an attempt has started; None if that is unknown."""
        return True if attempt in self.attempts else False if self.complete else None


class StartMarks:
    """The marks of this process's worker. `begin` and `end` may be called by any thread.

    `trouble` says why there is no file; then nothing is noted.
    """

    def __init__(self, worker_id: str) -> None:
        self.trouble: OSError | None = None
        self._growing = threading.Lock()
        self._map: mmap.mmap | None = None
        self._free: list[int] = []
        self._size = 0
        try:
            self._path = _path(worker_id)
            self._open()
        except OSError as error:
            self.trouble = error

    def begin(self, seq: int, version: int) -> int | None:
        """Note that the handler of an attempt is about to be called; return the place of the note, if any."""
        try:
            place = self._free.pop()
        except IndexError:
            found = self._grow()
            if found is None:
                return None
            place = found
        pages = self._map
        if pages is None:
            return None
        _pack_into(pages, place, seq, version)
        return place

    def end(self, places: Iterable[int | None]) -> None:
        """The database knows how these attempts have ended: their places are free."""
        self._free += [*filter(None, places)]

    def touch(self) -> None:
        """Keep `remove_old_marks` of other processes from taking the file for an old one."""
        if self._map is not None:
            with suppress(OSError):
                os.utime(self._path)

    def close(self, *, keep: bool) -> None:
        """Remove the file, unless it still has marks that a reaper may need, or `keep` says so."""
        found, self._map = self._map, None
        free, self._free = self._free, []
        is_unused = len(free) == (self._size - _FIRST) // _PAIR.size
        if found is not None and is_unused and not keep:
            with suppress(OSError):
                os.unlink(self._path)
        # The map stays open: an abandoned thread may still write to it.

    def _open(self) -> None:
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        try:
            # Filled, not sparse: on a full disk, writing into a hole of the map would kill the process.
            size = _FIRST + _SLOTS_AT_FIRST * _PAIR.size
            _fill(descriptor, 0, size)
            os.pwrite(descriptor, _HEADER.pack(_MAGIC, _boot(), True), 0)
            fcntl.flock(descriptor, fcntl.LOCK_SH)  # as long as the process lives, and its map
            self._map = mmap.mmap(descriptor, size)
        except (OSError, ValueError):
            os.unlink(self._path)
            raise
        finally:
            os.close(descriptor)
        self._size = size
        self._free = [*range(_FIRST, size, _PAIR.size)]

    def _grow(self) -> int | None:
        """A free slot in a larger file; None if there is no room for one, which is noted too."""
        with self._growing:
            with suppress(IndexError):
                return self._free.pop()
            if self._map is None:
                return None
            size = 2 * self._size
            try:
                descriptor = os.open(self._path, os.O_RDWR | os.O_NOFOLLOW)
                try:
                    _fill(descriptor, self._size, size)
                    fcntl.flock(descriptor, fcntl.LOCK_SH)  # the lock of the smaller map goes with it
                    self._map = mmap.mmap(descriptor, size)
                finally:
                    os.close(descriptor)
            except OSError:
                self._map[_COMPLETE_AT] = 0
                return None
            # Where it was full, the last place may be cut off.
            first = _FIRST + (self._size - _FIRST) // _PAIR.size * _PAIR.size
            self._size = first + (size - first) // _PAIR.size * _PAIR.size
            self._free += range(first + _PAIR.size, self._size, _PAIR.size)
            return first


def read_started(worker_id: str) -> Started | None:
    """What a worker of this host has started and not ended; None if nothing is known about it."""
    try:
        descriptor = os.open(_path(worker_id, make=False), os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    with open(descriptor, "rb") as file:
        if not _is_ours(os.fstat(descriptor), stat.S_ISREG):
            return None
        data = file.read(_MOST_BYTES)
    if len(data) < _FIRST:
        return None
    magic, boot, complete = _HEADER.unpack_from(data)
    if magic != _MAGIC or boot.rstrip(b"\0") != _boot():
        return None  # the host has restarted, so some marks may have been lost
    pairs = memoryview(data)[_FIRST : len(data) - (len(data) - _FIRST) % _PAIR.size]
    return Started(frozenset(_PAIR.iter_unpack(pairs)) - {(0, 0)}, complete)


def remove_marks(worker_id: str) -> None:
    """Remove the file of a dead worker, whose jobs have been taken over. That of a living one stays."""
    with suppress(OSError):
        _remove(_path(worker_id, make=False))


def remove_old_marks() -> None:
    """Remove the files of dead workers whose jobs nobody on this host took over."""
    with suppress(OSError):
        long_ago = time.time() - _KEPT_SECONDS
        with os.scandir(_folder(make=False)) as entries:
            for entry in entries:
                with suppress(OSError):
                    if entry.stat(follow_symlinks=False).st_mtime < long_ago:
                        _remove(entry.path)


def _remove(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)  # refused while its worker lives
        os.unlink(path)
    finally:
        os.close(descriptor)


def _path(worker_id: str, *, make: bool = True) -> str:
    if not _WORKER_ID.fullmatch(worker_id):  # it may come from a database that others write to
        raise FileNotFoundError(f"{worker_id!r} is not the id of a worker")
    return os.path.join(_folder(make=make), worker_id)


def marks_folder() -> str:
    """Where all workers of this user keep them. Raises FileNotFoundError without a temporary folder."""
    return os.path.join(tempfile.gettempdir(), f"holdfast-{os.getuid()}")


def _folder(*, make: bool) -> str:
    """This user's own folder, which others can't read."""
    path = marks_folder()
    if make:
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
    if not _is_ours(os.lstat(path), stat.S_ISDIR):
        raise PermissionError(f"{path} can be accessed by others")
    return path


def _is_ours(found: os.stat_result, is_kind: Callable[[int], bool]) -> bool:
    is_private = not stat.S_IMODE(found.st_mode) & 0o077
    return is_kind(found.st_mode) and found.st_uid == os.getuid() and is_private


def _fill(descriptor: int, start: int, end: int) -> None:
    """Write zeros, all of them: a single write may write fewer."""
    while start < end:
        start += os.pwrite(descriptor, bytes(end - start), start)


def _boot() -> bytes:
    """The host's boot id, which is new after every restart; empty where there is none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", "rb") as file:
            return file.read(64).strip()
    except OSError:
        return b""
