"""The folders that file jobs may touch, and how a path below them is opened without leaving them.

A path is never checked as text and then opened: in between, a folder could become a link. Its root is opened,
and from there each component relative to the previous one, refusing links. The queue's own files are refused
wherever they are, before they are opened.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

from holdfast.config import home_folder
from holdfast.errors import Fail, HoldfastError, InvalidPayload
from holdfast.store import own_files

VARIABLE = "QUEUECTL_FILE_ROOTS"
LONGEST_NAME = 255
LONGEST_PATH = 4095

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


class MissingFolder(FileNotFoundError):
    """A folder on the path to a file is missing."""


class FileRefused(Fail):
    """The file may not be touched."""


class NoFile(FileRefused):
    """Something other than a file has this name."""


class OwnFile(FileRefused):
    """The file belongs to the queue itself."""

    def __init__(self, path: str) -> None:
        super().__init__(f"{path!r} belongs to the queue itself; file jobs can't access the queue's files")


def whole_path(path: str, field: str = "path") -> str:
    """The path as it is stored with a job: absolute, without `.`, `..` and double slashes."""
    where = f"payload.{field}"
    if not path:
        raise InvalidPayload(where, "must not be empty")
    if "\0" in path:
        raise InvalidPayload(where, "contains a NUL character")
    if path.endswith(("/", "/.", "/..")) or path in (".", ".."):
        raise InvalidPayload(where, "names a folder, not a file")
    if path.split("/", 1)[0].startswith("~"):
        raise InvalidPayload(where, "begins with ~, which only a shell expands; write the full path")
    try:
        whole = "/" + os.path.abspath(path).lstrip("/")  # abspath keeps two leading slashes
    except FileNotFoundError:
        raise InvalidPayload(where, "is relative, but the current folder no longer exists") from None
    if any(len(os.fsencode(name)) > LONGEST_NAME for name in whole.split("/")):
        raise InvalidPayload(where, f"contains a name longer than {LONGEST_NAME} bytes")
    if len(os.fsencode(whole)) > LONGEST_PATH:
        raise InvalidPayload(where, f"is longer than {LONGEST_PATH} bytes")
    return whole


def roots() -> list[str]:
    """The folders below which this process may touch files.

    By default its current folder, but not one that a home lies in, nor one in QUEUECTL_HOME.
    """
    said = os.environ.get(VARIABLE)
    try:
        if said is not None:
            return [os.path.abspath(folder) for folder in said.split(os.pathsep) if folder]
        current = os.getcwd()
    except FileNotFoundError:
        raise HoldfastError(
            f"this worker's current folder no longer exists; restart the worker, or set {VARIABLE}"
        ) from None
    homes = _homes(os.path.expanduser("~"))
    if any(_is_inside(home, current) for home in homes):
        return []
    return [] if _is_inside(current, _resolved(home_folder())) else [current]


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or bool(_names_below(folder, path))


_resolved = lru_cache(maxsize=8)(os.path.realpath)


@lru_cache(maxsize=8)
def _homes(own: str) -> list[str]:
    homes = [own]
    with suppress(KeyError):  # a container's user may have no entry
        homes.append(pwd.getpwuid(os.getuid()).pw_dir)
    return [os.path.realpath(home) for home in homes if os.path.isabs(home)]


@contextmanager
def open_folder(path: str, *, make: bool = False, again: bool = False) -> Iterator[tuple[int, str]]:
    """The open folder of a file below a root, and the file's name in it.

    With `make`, missing folders are made; `again` is for a second attempt, since the first may have made some
    and died before they were on disk. Raises Fail for a path outside the roots, through a link or in
    a folder of the queue's own, and MissingFolder where one is missing.
    """
    root, names = _below_root(path)
    try:
        # Opened for each job, because a root may be mounted later. The path to the root itself is trusted.
        folder = os.open(root, _FOLDER)
    except FileNotFoundError:
        raise HoldfastError(f"the file root {root} does not exist") from None
    try:
        _refuse_own(folder, path)
        for name in names[:-1]:
            if own_files.is_own(os.fstat(folder), name, None):  # before a folder is made in its place
                raise OwnFile(path)
            inner = _step(folder, name, path, make=make, again=again)
            os.close(folder)
            folder = inner
            _refuse_own(folder, path)
        yield folder, names[-1]
    finally:
        os.close(folder)


def _refuse_own(folder: int, path: str) -> None:
    if own_files.is_own_folder(folder):
        raise OwnFile(path)


def real_path(path: str) -> str:
    """The canonical spelling of a path below the roots."""
    try:
        root, names = _below_root(path)
    except Fail:
        return whole_path(path)
    return os.path.join(os.path.realpath(root), *names)


def refuse_unless_file(folder: int | None, name: str, path: str) -> os.stat_result | None:
    """What is there under the name: nothing, or a file. Anything else is refused, and so is an own file.

    Without a folder, the name is an absolute path.
    """
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        found = None
    parent = os.stat(os.path.dirname(name)) if folder is None else os.fstat(folder)
    if own_files.is_own(parent, os.path.basename(name), found):
        raise OwnFile(path)
    if found is not None:
        _require_file(found, path)
    return found


def open_file(folder: int | None, name: str, found: os.stat_result, path: str) -> int:
    """Open a file to read it that was found there; what has taken its place since is held to the same."""
    try:
        file = os.open(name, _READ, dir_fd=folder)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.ENXIO):  # a link, a socket
            raise NoFile(f"{path!r} is not a file") from None
        raise
    opened = os.fstat(file)
    if not os.path.samestat(opened, found) and own_files.keep_if_own(file):
        raise OwnFile(path)
    try:
        _require_file(opened, path)
    except BaseException:
        os.close(file)
        raise
    return file


def _require_file(found: os.stat_result, path: str) -> None:
    if not stat.S_ISREG(found.st_mode):
        raise NoFile(f"{path!r} is {_kind(found.st_mode)}, not a file")


def _below_root(path: str) -> tuple[str, list[str]]:
    allowed = roots()
    whole = whole_path(path)
    for root in sorted(allowed, key=len, reverse=True):  # the innermost may be behind a link of an outer one
        names = _names_below(root, whole) or _names_below(os.path.realpath(root), whole)
        if names:
            return root, names
    if not allowed:
        advice = "" if VARIABLE in os.environ else "start it outside a home folder, or "
        raise Fail(f"{path!r} is not allowed: this worker has no file roots; {advice}set {VARIABLE}")
    raise Fail(f"{path!r} is outside the file roots, {os.pathsep.join(allowed)} ({VARIABLE})")


def _names_below(folder: str, path: str) -> list[str]:
    inside = folder.rstrip("/") + "/"
    return path[len(inside) :].split("/") if path.startswith(inside) else []


def _step(folder: int, name: str, path: str, *, make: bool, again: bool) -> int:
    if make:
        try:
            os.mkdir(name, dir_fd=folder)
            again = True
        except FileExistsError:
            pass
        if again:
            os.fsync(folder)
    try:
        return os.open(name, _FOLDER | os.O_NOFOLLOW, dir_fd=folder)
    except FileNotFoundError:
        raise MissingFolder(errno.ENOENT, "no such folder", path) from None
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
        raise Fail(f"{path!r} goes through {name!r}, which is {_kind(found.st_mode)}") from None


def _kind(mode: int) -> str:
    if stat.S_ISREG(mode):
        return "a file"
    if stat.S_ISLNK(mode):
        return "a symbolic link"
    return "a folder" if stat.S_ISDIR(mode) else "a device or socket"
