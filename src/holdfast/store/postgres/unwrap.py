"""The driver's connection beneath the one an application has, and how our SQL is run on it.

Ours has parameters as `$1`, as the server itself does. Where a driver knows only `%(name)s`, it is rewritten.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from holdfast.errors import ConfigError
from holdfast.store.postgres.handler_connection import HandlerConnection
from holdfast.store.unwrap import Engine, Unwrapped, refused
from holdfast.store.unwrap import unwrap as unwrap_library

SAVEPOINT = "SAVEPOINT holdfast"
RELEASE = "RELEASE SAVEPOINT holdfast"
UNDO = ("ROLLBACK TO SAVEPOINT holdfast", RELEASE)

_SENT = 0.2
"""Seconds after which statements that go out together have been sent."""

POSTGRES = Engine("postgresql", "PostgreSQL", "a psycopg connection")


class State(NamedTuple):
    """How a connection is. One with `begins` begins a transaction by itself, before any statement."""

    closed: bool
    begins: bool
    in_transaction: bool


class Driver(Protocol):
    """A connection, whichever driver's it is."""

    def state(self) -> State: ...

    def execute(self, sql: str, parameters: Sequence[Any]) -> list[Any]: ...

    def execute_apart(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        """Inside a savepoint."""


class _InSavepoint:
    """What is the same for drivers that send one statement at a time."""

    def execute_apart(self: Driver, sql: str, parameters: Sequence[Any]) -> list[Any]:
        self.execute(SAVEPOINT, ())
        try:
            rows = self.execute(sql, parameters)
        except BaseException:
            undo(self)
            raise
        self.execute(RELEASE, ())
        return rows


def undo(driver: Driver) -> None:
    """Back to the savepoint. The connection may be gone; what went wrong first is what is told."""
    with suppress(Exception):
        for sql in UNDO:
            driver.execute(sql, ())


def unwrap(connection: Any) -> tuple[Driver, Unwrapped]:
    """What runs our SQL on the connection beneath."""
    if isinstance(connection, psycopg.AsyncConnection):
        raise ConfigError(
            "connection= is an AsyncConnection, which can only be awaited",
            hint="await queue.enqueue_async(..., connection=...)",
        )
    is_bare = isinstance(connection, psycopg.Connection) or _is_psycopg2(connection)
    found = Unwrapped(connection) if is_bare else unwrap_library(connection, POSTGRES)
    own = found.connection
    if found.adapted is not None:
        if isinstance(own, psycopg.AsyncConnection):
            return _Adapted(found.adapted, own), found
        if type(own).__module__.partition(".")[0] == "asyncpg":
            return _AdaptedAsyncpg(found.adapted, own), found
    elif isinstance(own, psycopg.Connection):
        return _Psycopg(own), found
    elif _is_psycopg2(own):
        return _Psycopg2(own), found
    raise refused(own, POSTGRES)


def _is_psycopg2(connection: Any) -> bool:
    psycopg2 = sys.modules.get("psycopg2.extensions")  # it is, where there is a connection of its
    return psycopg2 is not None and isinstance(connection, psycopg2.connection)


def psycopg_state(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> State:
    status = connection.info.transaction_status
    return State(
        closed=connection.closed,
        begins=not connection.autocommit,
        in_transaction=status != TransactionStatus.IDLE,
    )


class _Psycopg:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def state(self) -> State:
        self._check()
        if not self._connection.closed:
            with self._answered():
                pass
        return psycopg_state(self._connection)

    def execute(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        cursor = psycopg.RawCursor(self._connection, row_factory=tuple_row)
        try:
            with self._answered():
                cursor.execute(sql, parameters)
        finally:
            self._check()
        return cursor.fetchall() if cursor.description is not None else []

    def execute_apart(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        """All in one round trip."""
        cursor = psycopg.RawCursor(self._connection, row_factory=tuple_row)
        try:
            with self._connection.pipeline():
                psycopg.RawCursor(self._connection).execute(SAVEPOINT)
                cursor.execute(sql, parameters)
                psycopg.RawCursor(self._connection).execute(RELEASE)
        except BaseException:
            undo(self)
            raise
        finally:
            self._check()
        return cursor.fetchall()

    def _check(self) -> None:
        if isinstance(self._connection, HandlerConnection):
            self._connection.check()

    def _answered(self) -> AbstractContextManager[Any]:
        """In pipeline mode, what waits for the answers to all that was sent until the end of the block."""
        piped = self._connection.info.pipeline_status != PipelineStatus.OFF
        return self._connection.pipeline() if piped else nullcontext()


class AsyncPsycopg:
    """The same for a connection that can only be awaited."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def state(self) -> State:
        if not self._connection.closed:
            async with self._answered():
                pass
        return psycopg_state(self._connection)

    async def execute(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        return await _to_its_end(self._execute(sql, parameters))

    async def _execute(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        cursor = psycopg.AsyncRawCursor(self._connection, row_factory=tuple_row)
        async with self._answered():
            await cursor.execute(sql, parameters)
        return await cursor.fetchall() if cursor.description is not None else []

    async def execute_apart(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        running = asyncio.ensure_future(self._execute_apart(sql, parameters))
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            # Cut short while it is sent, it would fail the caller's transaction. What still goes on after a
            # while waits for somebody else's transaction: the server stops it, and the savepoint is undone.
            await asyncio.wait([running], timeout=_SENT)
            while not running.done():
                with suppress(psycopg.Error):  # the server may be gone, and then so is the statement
                    await self._connection.cancel_safe()
                await asyncio.wait([running], timeout=_SENT)
            running.exception()  # nobody else asks for it
            raise

    async def _execute_apart(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        cursor = psycopg.AsyncRawCursor(self._connection, row_factory=tuple_row)
        try:
            async with self._connection.pipeline():
                await psycopg.AsyncRawCursor(self._connection).execute(SAVEPOINT)
                await cursor.execute(sql, parameters)
                await psycopg.AsyncRawCursor(self._connection).execute(RELEASE)
        except BaseException:
            with suppress(Exception):  # the connection may be gone
                for undoing in UNDO:
                    await self.execute(undoing, ())
            raise
        return await cursor.fetchall()

    def _answered(self) -> AbstractAsyncContextManager[Any]:
        piped = self._connection.info.pipeline_status != PipelineStatus.OFF
        return self._connection.pipeline() if piped else nullcontext()


async def _to_its_end(statement: Coroutine[Any, Any, list[Any]]) -> list[Any]:
    """Run a statement also if the task is cancelled: cut short, it would fail the caller's transaction."""
    running = asyncio.ensure_future(statement)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        running.exception()  # nobody else asks for it
        raise


class _Psycopg2:
    def __init__(self, connection: Any) -> None:
        if connection.async_:
            raise ConfigError("connection= is asynchronous, which psycopg2 can't wait for")
        self._connection = connection
        self._cursor_factory = sys.modules["psycopg2.extensions"].cursor

    def state(self) -> State:
        own = self._connection
        closed = bool(own.closed)
        return State(
            closed=closed,
            begins=not own.autocommit,
            in_transaction=not closed and own.get_transaction_status() != TransactionStatus.IDLE,
        )

    def execute(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        with self._connection.cursor(cursor_factory=self._cursor_factory) as cursor:
            cursor.execute(*_by_name(sql, parameters))
            return cursor.fetchall() if cursor.description is not None else []

    def execute_apart(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        try:
            rows = self.execute(f"{SAVEPOINT}; {sql}", parameters)
        except BaseException:
            undo(self)
            raise
        self.execute(RELEASE, ())
        return rows


class _Adapted(_InSavepoint):
    """psycopg's AsyncConnection in SQLAlchemy's clothes. Each statement is awaited where run_sync was."""

    def __init__(self, adapted: Any, connection: Any) -> None:
        self._adapted = adapted
        self._connection = connection

    def state(self) -> State:
        return psycopg_state(self._connection)

    def execute(self, sql: str, parameters: Sequence[Any]) -> list[Any]:
        cursor = self._adapted.cursor()
        try:
            cursor.execute(*self._arguments(sql, parameters))
            return [tuple(row) for row in cursor.fetchall()] if cursor.description is not None else []
        finally:
            cursor.close()

    def _arguments(self, sql: str, parameters: Sequence[Any]) -> tuple[Any, ...]:
        return _by_name(sql, parameters)


class _AdaptedAsyncpg(_Adapted):
    def state(self) -> State:
        return State(
            closed=self._connection.is_closed(),
            begins=not self._adapted.autocommit,
            in_transaction=self._connection.is_in_transaction(),
        )

    def _arguments(self, sql: str, parameters: Sequence[Any]) -> tuple[Any, ...]:
        return sql, parameters


def _by_name(sql: str, parameters: Sequence[Any]) -> tuple[Any, ...]:
    """The arguments of execute() where parameters have names."""
    if not parameters:
        return (sql,)
    return _renamed(sql), {f"p{number}": value for number, value in enumerate(parameters, 1)}


@lru_cache(256)
def _renamed(sql: str) -> str:
    return re.sub(r"\$(\d+)", r"%(p\1)s", sql.replace("%", "%%"))
