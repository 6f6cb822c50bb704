"""From an application's SQLAlchemy or Django connection to the driver's connection underneath.

Neither library is imported here: their objects are recognised by what they can do. What a driver's own
connection can do is up to its engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from holdfast.errors import ConfigError

ONE_DATABASE = "the job and your rows can only commit together in one database"


class Engine(NamedTuple):
    """What a queue's database is called: by both libraries, by people, and by the driver for it."""

    name: str
    title: str
    driver: str


class Unwrapped(NamedTuple):
    """The connection to insert with. `begin` asks its library for a transaction, if it has one.

    `adapted` is SQLAlchemy's own face of a driver that can only be awaited: what is called there waits, which
    works only inside run_sync, as everything in SQLAlchemy does.

    `begun_by` says how a transaction is begun where the library commits every statement by itself; None
    where that is the caller's own affair.
    """

    connection: Any
    adapted: Any = None
    begin: Callable[[], object] = lambda: None
    begun_by: str | None = None


def unwrap(connection: Any, engine: Engine) -> Unwrapped:
    """The driver's connection beneath. Nothing is begun yet, but what a Session begins when it is asked."""
    if _has(connection, "run_sync") or _has(connection, "aclose"):
        raise _only_awaited(connection)
    if _has(connection, "exec_driver_sql", "dialect"):
        return _from_sqlalchemy(connection, engine)
    if _has(connection, "get_bind", "connection"):  # a Session, or a scoped_session
        return _from_sqlalchemy(connection.connection(), engine)
    if _has(connection, "ensure_connection", "vendor"):
        return _from_django(connection, engine)
    raise refused(connection, engine)


def refused(connection: Any, engine: Engine) -> ConfigError:
    kind = type(connection)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return ConfigError(
        f"connection= must be {engine.driver}, or a SQLAlchemy or Django connection, not {name}",
        hint=ONE_DATABASE,
    )


def in_no_transaction(begun_by: str) -> ConfigError:
    return ConfigError(
        "connection= is not in a transaction: the job and your rows would be committed separately",
        hint=f"use {begun_by}",
    )


def _has(connection: Any, *names: str) -> bool:
    return all(hasattr(connection, name) for name in names)


def _only_awaited(connection: Any) -> ConfigError:
    hint = "await queue.enqueue_async(..., connection=...), or call this inside its run_sync"
    if not _has(connection, "run_sync"):  # an async_scoped_session
        hint = "call it, and pass the AsyncSession it returns to queue.enqueue_async"
    return ConfigError(f"connection= is an {type(connection).__name__}, which can only be awaited", hint=hint)


def _check_engine(name: str, engine: Engine) -> None:
    if name != engine.name:
        raise ConfigError(
            f"connection= is connected to {name}, but the queue is in {engine.title}", hint=ONE_DATABASE
        )


def _from_sqlalchemy(connection: Any, engine: Engine) -> Unwrapped:
    _check_engine(connection.dialect.name, engine)
    if connection.closed:
        raise ConfigError("connection= is closed")
    pooled = connection.connection

    def begin() -> None:
        # As its own execute() does. Without it, SQLAlchemy's commit() would find nothing to commit.
        if not connection.in_transaction():
            connection.begin()

    return Unwrapped(
        pooled.driver_connection,
        pooled.dbapi_connection if connection.dialect.is_async else None,
        begin,
        begun_by="an isolation level other than AUTOCOMMIT",
    )


def _from_django(connection: Any, engine: Engine) -> Unwrapped:
    """From a DatabaseWrapper, or the proxy that django.db.connection is."""
    _check_engine(connection.vendor, engine)
    if connection.closed_in_transaction:
        raise ConfigError("connection= was closed inside its atomic block")
    connection.cursor().close()  # opens it if need be, and refuses other threads and event loops
    connection.validate_no_broken_transaction()
    return Unwrapped(connection.connection, begun_by="transaction.atomic()")
