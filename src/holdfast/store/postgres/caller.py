"""The caller's own connection: whether a job can be enqueued through it, and inside what."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.errors import ConfigError
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.insert import Steps, insert_all_or_none, run
from holdfast.store.postgres.notify import NOTIFY, channel
from holdfast.store.protocol import NewJob, Verdict

ONE_DATABASE = "the job and your rows commit together only in one database"
_IDENTITY = "SELECT identity FROM holdfast_schema"


def insert_with(connection: Any, jobs: Sequence[NewJob], database: Database) -> list[Verdict]:
    """Insert inside the caller's transaction; in autocommit mode, in one of its own."""
    if not isinstance(connection, psycopg.Connection):
        raise _refused(connection)
    _check_usable(connection)

    def execute(sql: str, parameters: Sequence[Any]) -> list[Any]:
        cursor = psycopg.RawCursor(connection, row_factory=psycopg.rows.tuple_row)
        cursor.execute(database.text(sql), parameters)
        return cursor.fetchall() if cursor.description is not None else []

    with connection.transaction():
        return run(_steps(jobs, database), execute)


async def insert_awaiting(connection: Any, jobs: Sequence[NewJob], database: Database) -> list[Verdict]:
    """The same with asyncio."""
    if not isinstance(connection, psycopg.AsyncConnection):
        raise _refused(connection)
    _check_usable(connection)
    steps = _steps(jobs, database)
    async with connection.transaction():
        try:
            sql, parameters = next(steps)
            while True:
                cursor = psycopg.AsyncRawCursor(connection, row_factory=psycopg.rows.tuple_row)
                await cursor.execute(database.text(sql), parameters)
                rows = await cursor.fetchall() if cursor.description is not None else []
                sql, parameters = steps.send(rows)
        except StopIteration as end:
            verdicts: list[Verdict] = end.value
            return verdicts


def _steps(jobs: Sequence[NewJob], database: Database) -> Steps:
    rows = yield "SELECT to_regclass($1)::text", [f"{database.schema}.holdfast_schema"]
    identity = (yield _IDENTITY, ()) if rows[0][0] is not None else []
    if identity != [(database.identity,)]:
        raise ConfigError(
            f"connection= goes to another database than the queue, which is in {database.url}",
            hint=ONE_DATABASE,
        )
    verdicts = yield from insert_all_or_none(jobs, database.instant)
    if database.notifies and any(verdict.inserted for verdict in verdicts):
        yield NOTIFY, [channel(database.identity)]
    return verdicts


def _check_usable(connection: Any) -> None:
    if connection.closed:
        raise ConfigError("connection= is closed")
    if connection.info.transaction_status == TransactionStatus.INERROR:
        raise ConfigError("connection= is in a transaction that has failed", hint="roll it back first")


def _refused(connection: Any) -> ConfigError:
    kind = type(connection)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return ConfigError(
        f"connection= takes a psycopg connection, or one of SQLAlchemy or Django, not {name}",
        hint=ONE_DATABASE,
    )
