"""From the connection an application has, SQLAlchemy's or Django's, to the sqlite3 connection beneath it.

Neither library is imported here: its objects are known by what they can do.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Self, cast

from holdfast.errors import ConfigError

ONE_DATABASE = "the job and your rows commit together only in one database"


class Unwrapped(NamedTuple):
    """The connection to insert with. `begin` tells its library that a transaction is wanted, if it has one.

    `begun_by` says how a transaction is begun where the library commits every statement by itself; None
    where that is the caller's own affair.
    """

    connection: sqlite3.Connection
    begin: Callable[[], object] = lambda: None
    begun_by: str | None = None


def unwrap(connection: Any) -> Unwrapped:
    """The sqlite3 connection beneath. Nothing is begun yet, but what a Session begins when it is asked."""
    if isinstance(connection, sqlite3.Connection):
        return Unwrapped(connection)
    if _has(connection, "run_sync") or _has(connection, "aclose"):
        raise _only_awaited(connection)
    if _has(connection, "exec_driver_sql", "dialect"):
        return _from_sqlalchemy(connection)
    if _has(connection, "get_bind", "connection"):  # a Session, or a scoped_session
        return _from_sqlalchemy(connection.connection())
    if _has(connection, "ensure_connection", "vendor"):
        return _from_django(connection)
    raise _refused(connection)


def _has(connection: Any, *names: str) -> bool:
    return all(hasattr(connection, name) for name in names)


def _only_awaited(connection: Any) -> ConfigError:
    hint = "await queue.enqueue_async(..., connection=...), or call this inside its run_sync"
    if not _has(connection, "run_sync"):  # an async_scoped_session
        hint = "pass the AsyncSession that calling it gives to queue.enqueue_async"
    return ConfigError(f"connection= is an {type(connection).__name__}, which can only be awaited", hint=hint)


def _refused(connection: Any) -> ConfigError:
    kind = type(connection)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return ConfigError(
        f"connection= takes a sqlite3.Connection, or one of SQLAlchemy or Django, not {name}",
        hint=ONE_DATABASE,
    )


def _check_engine(name: str) -> None:
    if name != "sqlite":
        raise ConfigError(f"connection= goes to {name}, the queue is in SQLite", hint=ONE_DATABASE)


# SQLAlchemy.


def _from_sqlalchemy(connection: Any) -> Unwrapped:
    _check_engine(connection.dialect.name)
    if connection.closed:
        raise ConfigError("connection= is closed")
    pooled = connection.connection
    own = pooled.driver_connection
    if not isinstance(own, sqlite3.Connection):
        if not connection.dialect.is_async:
            raise _refused(own)
        own = cast(sqlite3.Connection, _Adapted(pooled.dbapi_connection, own))

    def begin() -> None:
        # As its own execute() does. Without it, SQLAlchemy's commit() would find nothing to commit.
        if not connection.in_transaction():
            connection.begin()

    return Unwrapped(own, begin, begun_by="an isolation level other than AUTOCOMMIT")


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
        # aiosqlite does not hand it on. Before Python 3.12 there is none: an AttributeError, as on sqlite3's.
        return self._driver._conn.autocommit

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


# Django.


def _from_django(connection: Any) -> Unwrapped:
    """From a DatabaseWrapper, or the proxy that django.db.connection is."""
    _check_engine(connection.vendor)
    if connection.closed_in_transaction:
        raise ConfigError("connection= was closed inside its atomic block")
    connection.cursor().close()  # opens it if need be, and refuses other threads and event loops
    connection.validate_no_broken_transaction()
    own = connection.connection
    if not isinstance(own, sqlite3.Connection):
        raise _refused(own)
    return Unwrapped(own, begun_by="transaction.atomic()")
