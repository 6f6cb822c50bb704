"""The folders that file jobs may touch, and how a path below them is reached without leaving them.

A path is never checked as text and then opened: between the two a folder can become a link. Its root is
opened, and from there each step is opened relative to the one before, refusing links.
"""

from __future__ import annotations

import errno
import os
import pwd
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache

from holdfast.errors import Fail, HoldfastError, InvalidPayload

VARIABLE = "QUEUECTL_FILE_ROOTS"
LONGEST_NAME = 255
LONGEST_PATH = 4095

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class MissingFolder(FileNotFoundError):
    """A folder on the way to a file is not there."""


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
        raise InvalidPayload(where, "begins with ~, which only a shell replaces; write the folder out")
    try:
        whole = "/" + os.path.abspath(path).lstrip("/")  # abspath keeps two leading slashes
    except FileNotFoundError:
        raise InvalidPayload(where, "is relative, and the current folder is gone") from None
    if any(len(os.fsencode(name)) > LONGEST_NAME for name in whole.split("/")):
        raise InvalidPayload(where, f"has a name of more than {LONGEST_NAME} bytes")
    if len(os.fsencode(whole)) > LONGEST_PATH:
        raise InvalidPayload(where, f"is longer than {LONGEST_PATH} bytes")
    return whole


def roots() -> list[str]:
    """The folders below which this process may touch files.

    By default its current folder, but not one that a home lies in.
    """
    said = os.environ.get(VARIABLE)
    try:
        if said is not None:
            return [os.path.abspath(folder) for folder in said.split(os.pathsep) if folder]
        current = os.getcwd()
    except FileNotFoundError:
        raise HoldfastError(
            f"the current folder of this worker is gone; start it anew, or set {VARIABLE}"
        ) from None
    homes = _homes(os.path.expanduser("~"))
    return [] if any(os.path.commonpath([current, home]) == current for home in homes) else [current]


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
    and died before they were on disk. Raises Fail for a path outside the roots or through a link, and
    MissingFolder where one is missing.
    """
    root, names = _below_root(path)
    try:
        # Anew for each job, since a root may be mounted later. The way to the root itself is trusted.
        folder = os.open(root, _FOLDER)
    except FileNotFoundError:
        raise HoldfastError(f"the folder for files {root} is not there") from None
    try:
        for name in names[:-1]:
            inner = _step(folder, name, path, make=make, again=again)
            os.close(folder)
            folder = inner
        yield folder, names[-1]
    finally:
        os.close(folder)


def real_path(path: str) -> str:
    """One spelling for every way to name a file below the roots."""
    try:
        root, names = _below_root(path)
    except Fail:
        return whole_path(path)
    return os.path.join(os.path.realpath(root), *names)


def refuse_unless_file(folder: int, name: str, path: str) -> os.stat_result | None:
    """What is there under the name: nothing, or a file. Anything else is refused."""
    try:
        found = os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    if stat.S_ISREG(found.st_mode):
        return found
    raise Fail(f"{path!r} is {_kind(found.st_mode)}, not a file")


def _below_root(path: str) -> tuple[str, list[str]]:
    allowed = roots()
    whole = whole_path(path)
    for root in sorted(allowed, key=len, reverse=True):  # the innermost may be behind a link of an outer one
        for spelling in dict.fromkeys((root, os.path.realpath(root))):
            inside = spelling.rstrip("/") + "/"
            if whole.startswith(inside):
                return root, whole[len(inside) :].split("/")
    if not allowed:
        raise Fail(
            f"{path!r} can't be touched: this worker has no folder for files; "
            f"start it in a folder that is not a home, or set {VARIABLE}"
        )
    raise Fail(f"{path!r} is outside the folders for files, {os.pathsep.join(allowed)} ({VARIABLE})")


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
        return "a link"
    return "a folder" if stat.S_ISDIR(mode) else "a device or socket"
