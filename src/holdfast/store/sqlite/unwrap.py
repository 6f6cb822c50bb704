"""The sqlite3 connection beneath the one an application has."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from typing import Any, Self, cast

from holdfast.store.unwrap import Engine, Unwrapped, refused
from holdfast.store.unwrap import unwrap as unwrap_library

SQLITE = Engine("sqlite", "SQLite", "a sqlite3.Connection")


def unwrap(connection: Any) -> Unwrapped:
    """The same with a sqlite3.Connection, or what can do as much of it as an insert needs."""
    if isinstance(connection, sqlite3.Connection):
        return Unwrapped(connection)
    found = unwrap_library(connection, SQLITE)
    if isinstance(found.connection, sqlite3.Connection):
        return found
    if found.adapted is None:
        raise refused(found.connection, SQLITE)
    return found._replace(connection=_Adapted(found.adapted, found.connection))


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

    def cursor(self) -> _AdaptedCursor:
        return _AdaptedCursor(self._adapted.cursor())

    def execute(self, sql: str) -> None:
        cursor = self.cursor()
        try:
            cursor.execute(sql)
        finally:
            cursor.close()


class _AdaptedCursor:
    """The same for a cursor: execute() returns the cursor, and there is a row_factory to set."""

    row_factory: Any = None  # SQLAlchemy needs rows that are sequences, so that is what comes

    def __init__(self, adapted: Any) -> None:
        self._adapted = adapted
        self.fetchone = adapted.fetchone
        self.fetchall = adapted.fetchall
        self.close = adapted.close

    @property
    def rowcount(self) -> int:
        return int(self._adapted.rowcount)

    def execute(self, sql: str, parameters: Sequence[Any] = ()) -> Self:
        self._adapted.execute(sql, parameters)
        return self

    def executemany(self, sql: str, rows: Iterable[Sequence[Any]]) -> Self:
        self._adapted.executemany(sql, rows)
        return self
