"""The driver's connection beneath the one an application has, and how our SQL is run on it.

Ours has parameters as `$1`, as the server itself does. Where a driver knows only `%(name)s`, it is rewritten.
"""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

import psycopg
from psycopg.pq import PipelineStatus, TransactionStatus
from psycopg.rows import tuple_row

from holdfast.errors import ConfigError
from holdfast.store.postgres.handler_connection import HandlerConnection
from holdfast.store.postgres.insert import Statement
from holdfast.store.unwrap import Engine, Unwrapped, refused
from holdfast.store.unwrap import unwrap as unwrap_library

_SENT = 0.2
"""Seconds after which statements that go out together have been sent."""

POSTGRES = Engine("postgresql", "PostgreSQL", "a psycopg connection")


class State(NamedTuple):
    """How a connection is. One that `joins` is in a transaction, or begins one before any statement."""

    closed: bool
    joins: bool


class Driver(Protocol):
    """A connection, whichever driver's it is."""

    def state(self) -> State: ...

    def execute(self, *statements: Statement) -> list[Any]:
        """The rows that they give, in one round trip where the driver can."""


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
    is_idle = connection.info.transaction_status == TransactionStatus.IDLE
    return State(connection.closed, joins=not (connection.autocommit and is_idle))


def _answered(connection: Any, *, together: bool = False) -> Any:
    """In pipeline mode, what waits for the answers to all that was sent until the end of the block."""
    piped = together or connection.info.pipeline_status != PipelineStatus.OFF
    return connection.pipeline() if piped else nullcontext()


class _Psycopg:
    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def state(self) -> State:
        self._check()
        if not self._connection.closed:
            with _answered(self._connection):
                pass
        return psycopg_state(self._connection)

    def execute(self, *statements: Statement) -> list[Any]:
        cursors = [psycopg.RawCursor(self._connection, row_factory=tuple_row) for _ in statements]
        try:
            with _answered(self._connection, together=len(statements) > 1):
                for cursor, statement in zip(cursors, statements, strict=True):
                    cursor.execute(*statement)
        finally:
            self._check()
        return [row for cursor in cursors if cursor.description is not None for row in cursor.fetchall()]

    def _check(self) -> None:
        if isinstance(self._connection, HandlerConnection):
            self._connection.check()


class AsyncPsycopg:
    """The same for a connection that can only be awaited."""

    def __init__(self, connection: psycopg.AsyncConnection[Any]) -> None:
        self._connection = connection

    async def state(self) -> State:
        if not self._connection.closed:
            async with _answered(self._connection):
                pass
        return psycopg_state(self._connection)

    async def execute(self, *statements: Statement, undo: Sequence[Statement] = ()) -> list[Any]:
        """The rows that they give. What can be undone is, if it fails, and is stopped if it takes long after
        the task is cancelled."""
        return await _to_its_end(self._execute(statements, undo), self._connection if undo else None)

    async def _execute(self, statements: Sequence[Statement], undo: Sequence[Statement]) -> list[Any]:
        cursors = [psycopg.AsyncRawCursor(self._connection, row_factory=tuple_row) for _ in statements]
        try:
            async with _answered(self._connection, together=len(statements) > 1):
                for cursor, statement in zip(cursors, statements, strict=True):
                    await cursor.execute(*statement)
        except BaseException:
            if undo:
                with suppress(Exception):  # the connection may be gone
                    await self._execute(undo, ())
            raise
        return [
            row for cursor in cursors if cursor.description is not None for row in await cursor.fetchall()
        ]


async def _to_its_end(
    statement: Coroutine[Any, Any, list[Any]], stoppable: psycopg.AsyncConnection[Any] | None = None
) -> list[Any]:
    """Run a statement also if the task is cancelled: cut short while it is sent, it would fail the caller's
    transaction. What still goes on after a while waits for somebody else's transaction: on a `stoppable`
    connection, where a savepoint is around it, the server stops it."""
    running = asyncio.ensure_future(statement)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running], timeout=None if stoppable is None else _SENT)
        while stoppable is not None and not running.done():
            with suppress(psycopg.Error):  # the server may be gone, and then so is the statement
                await stoppable.cancel_safe()
            await asyncio.wait([running], timeout=_SENT)
        running.exception()  # nobody else asks for it
        raise


class _Psycopg2:
    def __init__(self, connection: Any) -> None:
        if connection.async_:
            raise ConfigError("connection= is an asynchronous psycopg2 connection, which can't be waited for")
        self._connection = connection
        self._cursor_factory = sys.modules["psycopg2.extensions"].cursor

    def state(self) -> State:
        own = self._connection
        closed = bool(own.closed)
        is_idle = closed or own.get_transaction_status() == TransactionStatus.IDLE
        return State(closed, joins=not (own.autocommit and is_idle))

    def execute(self, *statements: Statement) -> list[Any]:
        with self._connection.cursor(cursor_factory=self._cursor_factory) as cursor:
            return [row for each in _together(statements) for row in _rows(cursor, _by_name(each))]


def _together(statements: Sequence[Statement]) -> Iterator[Statement]:
    """What has no parameters goes along with what follows it: one round trip for both."""
    texts = []
    for sql, given in statements:
        texts.append(sql)
        if given:
            yield "; ".join(texts), given
            texts.clear()
    if texts:
        yield "; ".join(texts), ()


class _Adapted:
    """psycopg's AsyncConnection in SQLAlchemy's clothes. Each statement is awaited where run_sync was."""

    def __init__(self, adapted: Any, connection: Any) -> None:
        self._adapted = adapted
        self._connection = connection

    def state(self) -> State:
        return psycopg_state(self._connection)

    def execute(self, *statements: Statement) -> list[Any]:
        with closing(self._adapted.cursor()) as cursor:
            return [tuple(row) for each in statements for row in _rows(cursor, self._arguments(each))]

    def _arguments(self, statement: Statement) -> tuple[Any, ...]:
        return _by_name(statement)


class _AdaptedAsyncpg(_Adapted):
    def state(self) -> State:
        joins = not self._adapted.autocommit or self._connection.is_in_transaction()
        return State(self._connection.is_closed(), joins)

    def _arguments(self, statement: Statement) -> tuple[Any, ...]:
        return statement


def _rows(cursor: Any, arguments: tuple[Any, ...]) -> list[Any]:
    cursor.execute(*arguments)
    return list(cursor.fetchall()) if cursor.description is not None else []


def _by_name(statement: Statement) -> tuple[Any, ...]:
    """The arguments of execute() where parameters have names."""
    sql, parameters = statement
    if not parameters:
        return (sql,)
    return _renamed(sql), {f"p{number}": value for number, value in enumerate(parameters, 1)}


@lru_cache(256)
def _renamed(sql: str) -> str:
    return re.sub(r"\$(\d+)", r"%(p\1)s", sql.replace("%", "%%"))
