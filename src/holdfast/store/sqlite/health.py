"""Health checks of a SQLite queue's file and its environment."""

from __future__ import annotations

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import suppress
from shlex import quote

from holdfast.store.records import Finding
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.open import NETWORK_FILE_SYSTEMS, file_system

MIB = 1024 * 1024
LARGE_WAL = 64 * MIB
LITTLE_SPACE, TOO_LITTLE_SPACE = 1024 * MIB, 100 * MIB
_IN_MEMORY = ("tmpfs", "ramfs")


def examine(database: Database) -> list[Finding]:
    path = os.path.realpath(database.path)
    folder = os.path.dirname(path)
    return [
        _version(database),
        _settings(database),
        _file_system(folder, path),
        _space(folder),
        _wal(database),
        _files(database),
        *_names(database),
        _content(database),
    ]


def has_wal_reset_bug(version: tuple[int, ...]) -> bool:
    """Whether a checkpoint that races a reset of the WAL can lose commits: 3.7.0 to 3.51.2."""
    if version[:2] == (3, 44):
        return version < (3, 44, 6)
    if version[:2] == (3, 50):
        return version < (3, 50, 7)
    return (3, 7, 0) <= version < (3, 51, 3)


def _version(database: Database) -> Finding:
    version = sqlite3.sqlite_version
    if not has_wal_reset_bug(sqlite3.sqlite_version_info):
        return Finding.ok("SQLite", f"{version}, no known bugs that affect the queue")
    text = f"{version} has the WAL-reset bug (fixed in 3.51.3); Holdfast checkpoints in a way that avoids it"
    foreign = database.read_one(
        "SELECT count(*) FROM sqlite_master WHERE type = 'table'"
        " AND name NOT LIKE 'holdfast\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'"
    )[0]
    if not foreign:
        return Finding.ok("SQLite", text)
    return Finding.warning(
        "SQLite",
        f"{text}, but {foreign} tables in the file belong to an application",
        "run PRAGMA wal_autocheckpoint = 0 on its connections (with SQLAlchemy:"
        " holdfast.sqlalchemy.configure), or upgrade SQLite",
    )


def _settings(database: Database) -> Finding:
    mode = database.read_one("PRAGMA journal_mode")[0]
    synchronous = ("OFF", "NORMAL", "FULL", "EXTRA")[database.read_one("PRAGMA synchronous")[0]]
    text = f"journal_mode {mode}, synchronous {synchronous}"
    if mode != "wal":
        advice = "something has turned off the write-ahead log; close other programs and reopen the queue"
        return Finding.problem("durability", text, advice)
    if synchronous in ("OFF", "NORMAL"):
        advice = "a power failure can lose the last commits; to be safe, remove synchronous= from the address"
        return Finding.warning("durability", text, advice)
    return Finding.ok("durability", text)


def _file_system(folder: str, path: str) -> Finding:
    kind = file_system(path) or "an unknown file system"
    text = f"{folder} is on {kind}"
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        advice = "SQLite's locks often fail there: move the file to a local disk, or use PostgreSQL"
        return Finding.problem("file system", text, advice)
    if kind in _IN_MEMORY:
        advice = "it is lost when the machine restarts: move the file to a disk"
        return Finding.warning("file system", text, advice)
    return Finding.ok("file system", text)


def _space(folder: str) -> Finding:
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    text, advice = f"{free // MIB} MiB", "on a full disk, no job can be enqueued or finished: free some space"
    if free < TOO_LITTLE_SPACE:
        return Finding.problem("free space", text, advice)
    if free < LITTLE_SPACE:
        return Finding.warning("free space", text, advice)
    return Finding.ok("free space", text)


def _wal(database: Database) -> Finding:
    size = database.file.wal_bytes()
    text = f"{size / MIB:.1f} MiB"
    if size > LARGE_WAL:
        return Finding.warning("WAL", text, "a program is holding an old read transaction open: end it")
    return Finding.ok("WAL", text)


def _files(database: Database) -> Finding:
    problems = []
    exposed = []
    beside = (f"{database.path}-wal", f"{database.path}-shm")
    for path in (database.path, *beside, os.path.dirname(database.path)):
        with suppress(FileNotFoundError):
            mode = os.stat(path).st_mode
            if not os.access(path, os.R_OK | os.W_OK):
                problems.append(f"{path} is not writable by this user")
            if mode & stat.S_IWOTH and not mode & stat.S_ISVTX:
                problems.append(f"{path} is writable by everyone")
            elif mode & stat.S_IROTH and stat.S_ISREG(mode) and _is_reachable(path):
                exposed.append(path)
    if problems:
        advice = "the files should belong to the user that runs queuectl and the workers, with mode 600"
        return Finding.problem("permissions", "; ".join(problems), advice)
    if exposed:
        text = f"everyone can read {exposed[0]}, including payloads"
        return Finding.warning("permissions", text, f"chmod 600 {quote(exposed[0])}")
    return Finding.ok("permissions", "the files belong to this user, and nobody else can access them")


def _is_reachable(path: str) -> bool:
    """Whether everybody may enter the file's folder."""
    return bool(os.stat(os.path.dirname(path)).st_mode & stat.S_IXOTH)


def _names(database: Database) -> Iterator[Finding]:
    """Whether everybody who uses a file of this name uses the same file, and by the same name."""
    left_behind = sorted(_processes_with(f"{database.path} (deleted)"))
    if left_behind:
        yield Finding.problem(
            "file",
            f"{database.path} was replaced; still using the old file: pid {_listed(left_behind)}",
            "restart those processes: anything they write is lost",
        )
    links = os.stat(database.path).st_nlink
    if links > 1:
        yield Finding.problem(
            "file",
            f"{database.path} has {links} hard links",
            "remove all names but one: under another name, SQLite uses a different write-ahead log",
        )
    if not left_behind and links == 1:
        yield Finding.ok("file", database.path)


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


def _content(database: Database) -> Finding:
    found = database.read_one("PRAGMA quick_check(1)")[0]
    if found == "ok":
        return Finding.ok("integrity", "quick_check found nothing wrong")
    advice = "stop the workers, check the disk, and restore the last backup"
    return Finding.problem("integrity", str(found), advice)
