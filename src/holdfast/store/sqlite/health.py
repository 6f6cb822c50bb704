"""The state of a SQLite queue's file and of where it lives; and copies of it."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import suppress
from shlex import quote

from holdfast.store.backup import make_copy
from holdfast.store.protocol import Finding
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.open import NETWORK_FILE_SYSTEMS, file_system

MIB = 1024 * 1024
LARGE_WAL = 64 * MIB
LITTLE_SPACE, TOO_LITTLE_SPACE = 1024 * MIB, 100 * MIB
_IN_MEMORY = ("tmpfs", "ramfs")


def back_up(database: Database, path: str) -> None:
    """Copy with VACUUM INTO: opening the file itself, as cp does, would drop this process's locks on it."""
    make_copy(path, lambda part: database.read("VACUUM INTO ?", (part,)))


def examine(database: Database) -> list[Finding]:
    return [
        *_version(database),
        *_settings(database),
        *_place(database),
        *_files(database),
        *_names(database),
        *_content(database),
    ]


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Whether a checkpoint that races a reset of the WAL can lose commits: 3.7.0 to 3.51.2."""
    if version[:2] == (3, 44):
        return version < (3, 44, 6)
    if version[:2] == (3, 50):
        return version < (3, 50, 7)
    return (3, 7, 0) <= version < (3, 51, 3)


def _version(database: Database) -> Iterator[Finding]:
    version = sqlite3.sqlite_version
    if not has_wal_reset_bug(sqlite3.sqlite_version_info):
        yield Finding(level="ok", check="SQLite", text=f"{version}, no known bug that matters here")
        return
    text = f"{version} has the WAL-reset bug (fixed in 3.51.3); Holdfast checkpoints in a way that avoids it"
    foreign = database.read_one(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table'"
        " AND name NOT LIKE 'holdfast\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )[0]
    if foreign:
        yield Finding(
            level="warning",
            check="SQLite",
            text=f"{text}, but {foreign} tables in the file are an application's",
            advice="let it run PRAGMA wal_autocheckpoint = 0 on its connections (with SQLAlchemy:"
            " holdfast.sqlalchemy.configure), or upgrade SQLite",
        )
    else:
        yield Finding(level="ok", check="SQLite", text=text)


def _settings(database: Database) -> Iterator[Finding]:
    mode = database.read_one("PRAGMA journal_mode")[0]
    synchronous = ("OFF", "NORMAL", "FULL", "EXTRA")[database.read_one("PRAGMA synchronous")[0]]
    text = f"journal_mode {mode}, synchronous {synchronous}"
    if mode != "wal":
        advice = (
            "something has switched the write-ahead log off; close other programs and open the queue again"
        )
        yield Finding(level="problem", check="durability", text=text, advice=advice)
    elif synchronous in ("OFF", "NORMAL"):
        advice = "a power cut may lose the last commits; leave synchronous= out of the address to be safe"
        yield Finding(level="warning", check="durability", text=text, advice=advice)
    else:
        yield Finding(level="ok", check="durability", text=text)


def _place(database: Database) -> Iterator[Finding]:
    folder = os.path.dirname(os.path.realpath(database.path))
    kind = file_system(os.path.realpath(database.path)) or "of unknown kind"
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        advice = "SQLite's locks often do not hold there: move the file to a local disk, or use PostgreSQL"
        yield Finding(level="problem", check="file system", text=f"{folder} is on {kind}", advice=advice)
    elif kind in _IN_MEMORY:
        advice = "it is lost when the machine stops: move the file to a disk"
        yield Finding(level="warning", check="file system", text=f"{folder} is on {kind}", advice=advice)
    else:
        yield Finding(level="ok", check="file system", text=f"{folder} is on {kind}")
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    level = "problem" if free < TOO_LITTLE_SPACE else "warning" if free < LITTLE_SPACE else "ok"
    yield Finding(
        level=level,
        check="free space",
        text=f"{free // MIB} MiB",
        advice=None if level == "ok" else "on a full disk nothing can be enqueued or finished: make room",
    )
    wal = database.file.wal_bytes()
    large = wal > LARGE_WAL
    yield Finding(
        level="warning" if large else "ok",
        check="WAL",
        text=f"{wal / MIB:.1f} MiB",
        advice="some program keeps an old read transaction open: end it" if large else None,
    )


def _files(database: Database) -> Iterator[Finding]:
    problems = []
    exposed = []
    for path in (
        database.path,
        database.path + "-wal",
        database.path + "-shm",
        os.path.dirname(database.path),
    ):
        with suppress(FileNotFoundError):
            mode = os.stat(path).st_mode
            if not os.access(path, os.R_OK | os.W_OK):
                problems.append(f"{path} can't be written by this user")
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                problems.append(f"{path} can be written by everybody")
            elif mode & stat.S_IROTH and stat.S_ISREG(mode) and _is_reachable(path):
                exposed.append(path)
    if problems:
        yield Finding(
            level="problem",
            check="permissions",
            text="; ".join(problems),
            advice="let the files belong to the user that runs queuectl and the workers, mode 600",
        )
    elif exposed:
        yield Finding(
            level="warning",
            check="permissions",
            text=f"everybody can read {exposed[0]}, payloads included",
            advice=f"chmod 600 {quote(exposed[0])}",
        )
    else:
        yield Finding(level="ok", check="permissions", text="the files are ours, and closed to others")


def _is_reachable(path: str) -> bool:
    """Whether everybody may enter the file's folder."""
    return bool(os.stat(os.path.dirname(path)).st_mode & stat.S_IXOTH)


def _names(database: Database) -> Iterator[Finding]:
    """Whether everybody who uses a file of this name uses the same file, and by the same name."""
    left_behind = sorted(_processes_with(f"{database.path} (deleted)"))
    if left_behind:
        yield Finding(
            level="problem",
            check="file",
            text=f"{database.path} was replaced; still using the old file: pid {_listed(left_behind)}",
            advice="restart those processes: what they write is lost",
        )
    links = os.stat(database.path).st_nlink
    if links > 1:
        yield Finding(
            level="problem",
            check="file",
            text=f"{database.path} has {links} hard links",
            advice="remove all names but one: under another name SQLite uses another write-ahead log",
        )
    if not left_behind and links == 1:
        yield Finding(level="ok", check="file", text=database.path)


def _listed(pids: list[int]) -> str:
    return ", ".join(map(str, pids[:5])) + ("" if len(pids) <= 5 else f" and {len(pids) - 5} more")


def _processes_with(target: str) -> Iterator[int]:
    """The processes that have this file open, as far as this user may see; Linux only."""
    for pid in (int(name) for name in _entries("/proc") if name.isdigit()):
        folder = f"/proc/{pid}/fd"
        for descriptor in _entries(folder):
            with suppress(OSError):
                if os.readlink(f"{folder}/{descriptor}") == target:
                    yield pid
                    break


def _entries(folder: str) -> list[str]:
    with suppress(OSError):  # it is gone, or not ours to look at
        return os.listdir(folder)
    return []


def _content(database: Database) -> Iterator[Finding]:
    found = database.read_one("PRAGMA quick_check(1)")[0]
    if found == "ok":
        yield Finding(level="ok", check="integrity", text="quick_check found nothing wrong")
    else:
        advice = "stop the workers, check the disk, and restore the last backup"
        yield Finding(level="problem", check="integrity", text=str(found), advice=advice)
