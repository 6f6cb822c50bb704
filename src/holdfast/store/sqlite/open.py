"""Opening a SQLite queue: the address, what is refused untouched, and the schema."""

from __future__ import annotations

import os
import re
import sqlite3
from contextlib import suppress

from holdfast.config import home_folder, make_private_folder
from holdfast.core.clock import Clock
from holdfast.core.error_group import error_group
from holdfast.errors import ConfigError, ForeignDatabase, QueueNotFound, StoreUnavailable
from holdfast.store import migrate
from holdfast.store.migrate import VERSION_TABLE
from holdfast.store.moved import MOVE_TABLE
from holdfast.store.own_files import is_beside_database
from holdfast.store.rows import job_kinds
from holdfast.store.sqlite.connection import OwnConnection
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.schema import ERROR_GROUP, MIGRATIONS
from holdfast.store.sqlite.store import SqliteStore

OLDEST_SQLITE = (3, 35, 0)
_MIGRATION_PATIENCE = 600.0
"""Seconds to wait for the write lock: another process may be migrating a large file."""

NETWORK_FILE_SYSTEMS = ("nfs", "cifs", "smb", "fuse", "9p", "afs", "ceph", "glusterfs", "lustre")
_SYNCHRONOUS = ("full", "normal", "extra", "off")


def open_store(url: str, clock: Clock, *, create: bool = True, for_move: bool = False) -> SqliteStore:
    """Open `sqlite:///path`, making the file (unless told not to) and bringing its schema up to date.

    `?synchronous=normal` is faster and may lose the last commits at a power cut; `?network=allow` opens a
    file on a network file system, where SQLite's locks often fail. With `for_move`, a queue that a
    move has closed is opened all the same.
    """
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        needed = ".".join(map(str, OLDEST_SQLITE))
        raise StoreUnavailable(f"SQLite {sqlite3.sqlite_version} is too old; {needed} or newer is required")
    path, options = parse_url(url)
    _prepare_folder(path, create=create)
    if not (create or os.path.exists(path)):
        raise QueueNotFound(path)
    if options.get("network") != "allow":
        _refuse_network(path)
    _make_private(os.path.realpath(path))
    database = Database(
        path, url=f"sqlite:///{os.path.realpath(path)}", synchronous=options["synchronous"].upper()
    )
    try:
        _prepare(database, create=create, for_move=for_move)
    except BaseException:
        database.close()
        raise
    return SqliteStore(database, clock)


def parse_url(url: str) -> tuple[str, dict[str, str]]:
    """The file that an address names, and its options."""
    place, _, query = url.partition("?")
    shown = "that address" if "@" in place else repr(place)  # there is no password in one of ours
    path = place.removeprefix("sqlite://")
    if not path.startswith("/") or len(path) < 2 or path == "/:memory:":
        raise ConfigError(
            f"{shown} does not name a file; use sqlite:///queue.db or sqlite:////absolute/path/queue.db",
            hint="a queue in memory would lose its jobs",
        )
    options = {"synchronous": "full", "network": "refuse"}
    for key, _, value in (option.partition("=") for option in query.split("&") if option):
        if key not in options:
            raise ConfigError(f"{shown}: there is no option {key!r}; allowed: {', '.join(options)}")
        options[key] = value.lower()
    for key, allowed in (("synchronous", _SYNCHRONOUS), ("network", ("refuse", "allow"))):
        if options[key] not in allowed:
            raise ConfigError(f"{shown}: {key} must be one of {', '.join(allowed)}")
    path = _unquote(path[1:])
    if "\0" in path:
        raise ConfigError(f"{shown} does not name a file: it contains a NUL")
    return os.path.abspath(path), options


def _unquote(text: str) -> str:
    if "%" not in text:
        return text
    from urllib.parse import unquote

    return unquote(text)


def _prepare_folder(path: str, *, create: bool) -> None:
    folder = os.path.dirname(path)
    if folder == os.path.abspath(home_folder()):
        if create:
            _make_home(folder)
        elif _is_missing(folder):
            raise QueueNotFound(path)
    if not os.path.isdir(folder):
        raise StoreUnavailable(f"the folder {folder} does not exist", hint="create it, or choose another")
    if os.path.isdir(path):
        raise StoreUnavailable(f"{path} is a folder, not a file")
    if is_beside_database(path):
        raise ForeignDatabase(f"{path} is not a database but part of one that is open here")


def _make_home(folder: str) -> None:
    try:
        make_private_folder(folder)
    except OSError as error:
        raise StoreUnavailable(f"the folder {folder} can't be created: {error.strerror}") from error


def _is_missing(path: str) -> bool:
    """Whether nothing is there, where something could be made."""
    try:
        os.lstat(path)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _make_private(path: str) -> None:
    """Make a file that is not there yet for its owner alone: payloads may hold secrets."""
    with suppress(OSError):  # it is there, or SQLite says better what is wrong
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))


def _refuse_network(path: str) -> None:
    kind = file_system(os.path.realpath(path))
    if kind.startswith(NETWORK_FILE_SYSTEMS):
        raise StoreUnavailable(
            f"{path} is on a network file system ({kind}), where SQLite's locks often fail",
            hint="keep the file on a local disk, use PostgreSQL, or add ?network=allow at your own risk",
        )


def file_system(path: str) -> str:
    """The kind of file system a path is on; "" where that can't be told."""
    try:
        with open("/proc/self/mounts", encoding="utf-8", errors="surrogateescape") as mounts:
            entries = [line.split()[1:3] for line in mounts]
    except OSError:
        return ""
    best, kind = "", ""
    for raw, name in entries:
        point = raw.replace("\\040", " ")
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best):
            best, kind = point, name
    return kind


def _prepare(database: Database, *, create: bool, for_move: bool) -> None:
    """Refuse what is not ours before anything is written, then bring the schema up to date."""
    tables = _tables(database)
    version = _version(database, tables)
    if not (version or create):
        raise QueueNotFound(database.path)
    if MOVE_TABLE in tables and not for_move:
        from holdfast.store.sqlite.transfer import SqliteEnd

        SqliteEnd(SqliteStore(database, lambda: 0)).clean_up()
    if migrate.pending(MIGRATIONS, version):
        _migrate(database)
    mode = database.patiently(
        lambda: database.connection().execute("PRAGMA journal_mode = WAL").fetchone()[0]
    )
    if mode != "wal":
        raise StoreUnavailable(f"{database.path}: SQLite can't use a write-ahead log here (mode {mode})")


def _tables(database: Database) -> dict[str, str]:
    """The tables and views of our names."""
    return dict(
        database.read(
            "SELECT name, type FROM sqlite_master"
            " WHERE type IN ('table', 'view') AND name LIKE 'holdfast\\_%' ESCAPE '\\'"
        )
    )


def _version(database: Database, names: dict[str, str]) -> int:
    def read() -> list[tuple[object]]:
        try:
            return database.read(f"SELECT version FROM {VERSION_TABLE}")
        except sqlite3.OperationalError:  # it has no such column
            return []

    return migrate.version_of(names, read, database.path)


def _migrate(database: Database) -> None:
    """Apply the missing migrations in one transaction; the second process finds nothing left to do."""
    with database.transaction(patience=_MIGRATION_PATIENCE) as connection:
        connection.create_function(ERROR_GROUP, 1, _error_group, deterministic=True)
        # An application's views may name a table of ours, which is not there until its new form is renamed.
        connection.execute("PRAGMA legacy_alter_table = ON")
        _refuse_added_columns(connection)
        theirs = _made_by_others(connection)
        for step in migrate.pending(MIGRATIONS, _version(database, _tables(database))):
            for statement in step.statements:
                connection.execute(statement)
            connection.execute(f"UPDATE {VERSION_TABLE} SET version = ?", (step.number,))
        for name in theirs.keys() - _made_by_others(connection).keys():
            connection.execute(theirs[name])
    database.close_thread()  # and with it the function


def _made_by_others(connection: OwnConnection) -> dict[str, str]:
    """An application's own indexes and triggers on the table of jobs, dropped with it when it is rebuilt."""
    sql = """SELECT name, sql FROM sqlite_master WHERE type IN ('index', 'trigger')
    AND tbl_name = 'holdfast_jobs' COLLATE NOCASE AND sql IS NOT NULL"""
    ours = {
        name
        for step in MIGRATIONS
        for statement in step.statements
        for name in re.findall(r"^CREATE (?:UNIQUE )?(?:INDEX|TRIGGER) (\w+)", statement)
    }
    return {name: sql for name, sql in connection.execute(sql).fetchall() if name not in ours}


def _refuse_added_columns(connection: OwnConnection) -> None:
    """A rebuilt table would lose them."""
    columns = {row[1] for row in connection.execute("PRAGMA table_info(holdfast_jobs)").fetchall()}
    added = columns - {*job_kinds()}
    if added:
        raise ForeignDatabase(
            f"the table holdfast_jobs has a column {min(added)!r} that Holdfast did not create",
            hint="the upgrade would lose it: move it to a table of your own, and drop the column",
        )


def _error_group(error: bytes | None) -> str:
    """Of bytes: an error that is no text for Python must not keep a database from being opened."""
    return error_group((error or b"").decode("utf-8", "replace"))
