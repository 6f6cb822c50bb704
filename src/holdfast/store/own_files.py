"""Which files are the queue's own: QUEUECTL_HOME, start marks, those of each SQLite queue that is open here.

SQLite's locks belong to the process. Closing any descriptor of a database drops all of them, even one that
was opened only to read, and other processes then checkpoint and delete a log that is still being written. So
a path that somebody else has chosen is checked here before it is opened. Files are identified by device and
inode, since a hard link or another spelling leads to the same file.
"""

from __future__ import annotations

import os
import weakref
from contextlib import suppress
from functools import lru_cache
from typing import NamedTuple

from holdfast.config import home_folder

_Identity = tuple[int, int]

_SIDE_FILES = ("-wal", "-shm", "-journal")


class _Place(NamedTuple):
    """Where a name leads: its folder, and the file there, if there is one. The name is folded."""

    folder: _Identity | None
    name: str
    file: _Identity | None


class DatabaseFiles:
    """The files of one SQLite database: own files until they are forgotten, or this object is."""

    def __init__(self, path: str) -> None:
        self._path = os.path.realpath(path)  # the others are beside the file, not beside a link to it
        self._folder, name = os.path.split(self._path)
        self._names = frozenset(_folded(name + suffix) for suffix in ("", *_SIDE_FILES))
        self._side_names = self._names - {_folded(name)}
        self._opened: set[_Identity] = set()
        _open_databases[id(self)] = self

    def note_opened(self) -> None:
        """Remember the file that was opened: its locks outlive its name."""
        _open_databases[id(self)] = self  # also after a close, which an attempt's transaction may outlast
        if identity := _find(self._path):
            self._opened.add(identity)

    def forget(self) -> None:
        """No connection is left whose locks could be lost."""
        _open_databases.pop(id(self), None)

    def include(self, place: _Place) -> bool:
        return place.file in self._opened or self._has_name(place, self._names) or self._is_log(place)

    def include_beside(self, place: _Place) -> bool:
        """Whether it is a file that SQLite keeps next to the database: the log, its index, or the journal."""
        return self._has_name(place, self._side_names) or self._is_log(place)

    def _has_name(self, place: _Place, names: frozenset[str]) -> bool:
        """Whether the place has such a name. There need be no file yet: SQLite would take one for its own."""
        return place.name in names and place.folder == _find(self._folder)

    def _is_log(self, place: _Place) -> bool:
        """Whether it is the log or its index, under any name."""
        return place.file is not None and place.file in (
            _find(f"{self._path}-wal"),
            _find(f"{self._path}-shm"),
        )


_open_databases: weakref.WeakValueDictionary[int, DatabaseFiles] = weakref.WeakValueDictionary()

_kept_open: list[int] = []


def is_own(folder: os.stat_result, name: str, found: os.stat_result | None) -> bool:
    """Whether a name in a folder, where this was found, is that of a file of an open database.

    So is the name of one of the queue's own folders, which may not be there yet.
    """
    place = _Place(_identity(folder), _folded(name), found and _identity(found))
    return _is_place_of_folder(place) or any(files.include(place) for files in _databases())


def is_own_path(path: str) -> bool:
    """The same for a path, links followed."""
    place = _place(path)
    return any(files.include(place) for files in _databases())


def is_beside_database(path: str) -> bool:
    """Whether a path, links followed, is that of an open database's log, of its index or of its journal."""
    place = _place(path)
    return any(files.include_beside(place) for files in _databases())


def keep_if_own(descriptor: int) -> bool:
    """Whether a file that was opened is one of an open database. Then its descriptor is never closed."""
    place = _Place(None, "", _identity(os.fstat(descriptor)))
    is_one = any(files.include(place) for files in _databases())
    if is_one:
        _kept_open.append(descriptor)
    return is_one


def is_own_folder(folder: int) -> bool:
    """Whether an open folder is QUEUECTL_HOME, or the one of the workers' start marks."""
    return _identity(os.fstat(folder)) in map(_find, _own_folders())


def _is_place_of_folder(place: _Place) -> bool:
    places = map(_split, _own_folders())
    return any(place.name == name and place.folder == _find(folder) for folder, name in places)


def _own_folders() -> list[str]:
    from holdfast.system.start_marks import marks_folder  # only file jobs need it

    folders = [home_folder()]
    with suppress(FileNotFoundError):  # there is no temporary folder
        folders.append(marks_folder())
    return folders


@lru_cache(maxsize=8)
def _split(path: str) -> tuple[str, str]:
    """The folder and the folded name of a path."""
    folder, name = os.path.split(path.rstrip("/"))
    return folder or ".", _folded(name)


def _databases() -> list[DatabaseFiles]:
    # Copied in one step of the interpreter: a lock might be held at the moment of a fork.
    found = [reference() for reference in _open_databases.valuerefs()]
    return [files for files in found if files is not None]


def _place(path: str) -> _Place:
    folder, name = os.path.split(os.path.realpath(path))
    return _Place(_find(folder), _folded(name), _find(os.path.join(folder, name)))


def _find(path: str) -> _Identity | None:
    with suppress(OSError):
        return _identity(os.stat(path))
    return None


def _identity(found: os.stat_result) -> _Identity:
    return found.st_dev, found.st_ino


def _folded(name: str) -> str:
    """A name as a file system compares it to which upper and lower case, or two ways to write ü, are one."""
    if name.isascii():
        return name.lower()
    from unicodedata import normalize

    return normalize("NFC", normalize("NFC", name).casefold())
