"""What a SQLAlchemy engine needs if the queue is in the same SQLite file as the application's tables.

from holdfast.sqlalchemy import configure

engine = configure(create_engine("sqlite:///app.db"))
"""

from __future__ import annotations

import gc
import os
import sqlite3
import time
from random import uniform
from typing import Any, TypeVar
from weakref import WeakSet

from sqlalchemy import Connection, Engine, event
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine

from holdfast.core import check
from holdfast.durations import Duration
from holdfast.errors import ConfigError
from holdfast.store.records import Finding
from holdfast.store.sqlite.health import has_wal_reset_bug
from holdfast.text import shown

E = TypeVar("E", bound=Engine | AsyncEngine)

BUSY_SECONDS = 30.0
"""Seconds that a transaction waits for the write lock."""
_LONGEST = 2**31 - 1
"""Milliseconds: SQLite takes a larger number for none at all."""


def configure(engine: E, *, busy_seconds: Duration = BUSY_SECONDS) -> E:
    """Make an engine's transactions wait for each other and the queue instead of failing; return the engine.

    Every transaction takes the write lock when it begins, with BEGIN IMMEDIATE, and waits up to
    `busy_seconds` for it. Connections with the isolation level AUTOCOMMIT are unaffected: use those for
    requests that only read.

    Call it right after create_engine() or create_async_engine(). Engines of other databases are returned
    unchanged.
    """
    given: object = engine
    if not isinstance(given, Engine | AsyncEngine):
        raise ConfigError(f"configure() takes a SQLAlchemy engine, not {shown(given)}")
    sync = engine.sync_engine if isinstance(engine, AsyncEngine) else engine
    milliseconds = min(round(1000 * check.duration("busy_seconds", busy_seconds)), _LONGEST)
    if sync.dialect.name == "sqlite" and sync not in _configured:
        _configured.add(sync)
        event.listen(sync, "connect", lambda connection, _: _prepare(connection, milliseconds))
        event.listen(sync, "begin", lambda connection: _begin(connection, milliseconds))
    return engine


_configured: WeakSet[Engine] = WeakSet()


def examine_engines(url: str) -> list[Finding]:
    """Whether the engines of this process that lead to the queue's own SQLite file are configured."""
    engines = [found for found in gc.get_objects() if type(found) is Engine and _leads_to(found, url)]
    bare = sum(engine not in _configured for engine in engines)
    if bare:
        text = (
            f"{bare} of the application's {len(engines)} engines for this file can fail under load"
            " with 'database is locked'"
        )
        advice = "engine = holdfast.sqlalchemy.configure(create_engine(...))"
        return [Finding.warning("SQLAlchemy", text, advice)]
    return [Finding.ok("SQLAlchemy", "the engines are configured")] if engines else []


def _leads_to(engine: Engine, url: str) -> bool:
    path, theirs = url.removeprefix("sqlite:///"), engine.url.database
    if engine.dialect.name != "sqlite" or path == url or not theirs:
        return False
    theirs = theirs.removeprefix("file:").partition("?")[0] if theirs.startswith("file:") else theirs
    return os.path.exists(theirs) and os.path.samefile(theirs, path)


def _prepare(connection: Any, milliseconds: int) -> None:
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {milliseconds}")
    if has_wal_reset_bug(sqlite3.sqlite_version_info):
        cursor.execute("PRAGMA wal_autocheckpoint = 0")  # the queue checkpoints in a way that is safe
    cursor.close()


def _begin(connection: Connection, milliseconds: int) -> None:
    if connection.get_execution_options().get("isolation_level") == "AUTOCOMMIT":
        return
    if getattr(connection.connection.driver_connection, "in_transaction", False):
        raise ConfigError(
            "the engine's connections are already in a transaction before it begins one",
            hint="remove autocommit=False from its connect_args",
        )
    # SQLite's own way to wait sleeps ever longer: whoever has waited for long finds the lock taken again by
    # those who have just come. So it is asked not to wait here.
    connection.exec_driver_sql("PRAGMA busy_timeout = 0")
    try:
        _take_lock(connection, time.monotonic() + milliseconds / 1000)
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")


def _take_lock(connection: Connection, deadline: float) -> None:
    while True:
        try:
            connection.exec_driver_sql("BEGIN IMMEDIATE")
            return
        except OperationalError as error:
            if time.monotonic() >= deadline or "locked" not in str(error.orig):
                raise
        _pause(connection, uniform(0.0005, 0.003))


def _pause(connection: Connection, seconds: float) -> None:
    if connection.dialect.is_async:
        import asyncio

        adapted: Any = connection.connection.dbapi_connection
        adapted.run_async(lambda _driver: asyncio.sleep(seconds))
    else:
        time.sleep(seconds)
