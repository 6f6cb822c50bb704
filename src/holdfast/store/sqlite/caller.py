"""The caller's own connection: whether a job can be enqueued through it, and inside what.

Beneath one of SQLAlchemy or Django is a sqlite3 connection, or what can do as much of it as an insert needs.
"""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from typing import Any, cast

from holdfast.errors import ConfigError
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.insert import plain_cursor
from holdfast.store.unwrap import ONE_DATABASE, Engine, Unwrapped, in_no_transaction, refused, unwrap

_SQLITE = Engine("sqlite", "SQLite", "a sqlite3.Connection")

_LEGACY = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)  # the only mode before Python 3.12


LOCKED = (
    "start with BEGIN IMMEDIATE, and give the connection a longer timeout;"
    " holdfast.sqlalchemy.configure(engine) does both"
)
"""A note to SQLite's own words, where a caller's transaction could not write."""


def checked(connection: Any, database: Database) -> sqlite3.Connection:
    """The sqlite3 connection beneath, inside a transaction, if it is one to the queue's own file.

    Only a bare sqlite3 connection may be in no transaction: its autocommit mode is chosen by hand.
    """
    found = _unwrapped(connection)
    own: sqlite3.Connection = found.connection
    path = _file_of(own)
    if not path or not os.path.exists(path) or not os.path.samefile(path, database.path):
        raise ConfigError(
            f"connection= is connected to {path or 'a database in memory'},"
            f" but the queue is in {database.path}",
            hint=ONE_DATABASE,
        )
    found.begin()
    _join_transaction(own)
    if found.begun_by is not None and not own.in_transaction:
        raise in_no_transaction(found.begun_by)
    return own


def _unwrapped(connection: Any) -> Unwrapped:
    if isinstance(connection, sqlite3.Connection):
        return Unwrapped(connection)
    found = unwrap(connection, _SQLITE)
    if isinstance(found.connection, sqlite3.Connection):
        return found
    if found.adapted is None:
        raise refused(found.connection, _SQLITE)
    return found._replace(connection=_Adapted(found.adapted, found.connection))


def _file_of(connection: sqlite3.Connection) -> str:
    try:
        with closing(plain_cursor(connection)) as cursor:
            cursor.execute("PRAGMA database_list")
            rows = cursor.fetchall()
    except sqlite3.ProgrammingError as error:  # it is closed, or belongs to another thread
        raise ConfigError(f"connection= can't be used: {error}") from error
    return next((os.fsdecode(file) for _, name, file in rows if name in ("main", b"main")), "")


def _join_transaction(connection: sqlite3.Connection) -> None:
    """Begin what sqlite3 itself would begin before an INSERT: our savepoint alone would commit."""
    if connection.in_transaction or connection.isolation_level is None:
        return
    if getattr(connection, "autocommit", _LEGACY) == _LEGACY:
        connection.execute(f"BEGIN {connection.isolation_level}")


class _Adapted:
    """As much of a sqlite3.Connection as an insert needs, on an asyncio driver that SQLAlchemy has adapted.

    The driver owns a thread for the connection. Each statement goes there and the coroutine waits meanwhile,
    so this works only inside run_sync, as everything in SQLAlchemy does.
    """

    def __init__(self, adapted: Any, driver: Any) -> None:
        self._adapted = adapted
        self._driver = driver

    @property
    def autocommit(self) -> Any:
        # aiosqlite does not hand it on, and sqlite3 tells it only in the thread of the connection. Before
        # Python 3.12 there is none: an AttributeError, as on sqlite3's.
        return self._adapted.run_async(lambda driver: driver._execute(getattr, driver._conn, "autocommit"))

    @property
    def in_transaction(self) -> bool:
        return bool(self._driver.in_transaction)

    @property
    def isolation_level(self) -> str | None:
        return cast("str | None", self._driver.isolation_level)

    def cursor(self) -> Any:
        """One whose execute() returns nothing, and whose rows are tuples: SQLAlchemy needs them so."""
        return self._adapted.cursor()

    def execute(self, sql: str) -> None:
        with closing(self.cursor()) as cursor:
            cursor.execute(sql)
