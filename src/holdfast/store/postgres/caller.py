"""The caller's own connection: whether a job can be enqueued through it, and inside what."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import psycopg

from holdfast.errors import ConfigError
from holdfast.store.moved import MOVED_STATE, error_of
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.insert import Statement, Steps, insert_jobs, run
from holdfast.store.postgres.notify import NOTIFY, channel
from holdfast.store.postgres.unwrap import AsyncPsycopg, State, unwrap
from holdfast.store.protocol import NewJob, Verdict
from holdfast.store.unwrap import ONE_DATABASE, in_no_transaction

_PLACE = """
SELECT to_regclass($1)::text, datname::text, oid::bigint FROM pg_database WHERE datname = current_database()
"""
_IDENTITY = "SELECT identity FROM holdfast_schema"
_FAILED_TRANSACTION = "25P02"


class Frame(NamedTuple):
    """What is around the insert, so that an error in it leaves the caller's transaction as it was."""

    begin: str
    end: str
    undo: tuple[str, ...]


_SAVEPOINT = Frame(
    "SAVEPOINT holdfast",
    "RELEASE SAVEPOINT holdfast",
    ("ROLLBACK TO SAVEPOINT holdfast", "RELEASE SAVEPOINT holdfast"),
)
_TRANSACTION = Frame("BEGIN", "COMMIT", ("ROLLBACK",))


def insert_with(connection: Any, jobs: Sequence[NewJob], database: Database) -> list[Verdict]:
    """Insert inside the caller's transaction; in autocommit mode chosen by hand, in one of its own."""
    driver, found = unwrap(connection)
    frame = _frame(driver.state(), found.begun_by)
    found.begin()
    return run(_steps(jobs, database, frame), lambda sql, given: driver.execute(database.text(sql), given))


async def insert_awaiting(connection: Any, jobs: Sequence[NewJob], database: Database) -> list[Verdict]:
    """The same with asyncio."""
    if not isinstance(connection, psycopg.AsyncConnection):
        return insert_with(connection, jobs, database)  # which says what connections it takes
    driver = AsyncPsycopg(connection)
    steps = _steps(jobs, database, _frame(await driver.state()))
    try:
        statement = next(steps)
        while True:
            try:
                rows = await driver.execute(database.text(statement[0]), statement[1])
            except BaseException as error:
                statement = steps.throw(error)
            else:
                statement = steps.send(rows)
    except StopIteration as end:
        verdicts: list[Verdict] = end.value
        return verdicts


def _frame(state: State, begun_by: str | None = None) -> Frame:
    if state.closed:
        raise ConfigError("connection= is closed")
    if state.begins or state.in_transaction:
        return _SAVEPOINT
    if begun_by is not None:
        raise in_no_transaction(begun_by)
    return _TRANSACTION


def _steps(jobs: Sequence[NewJob], database: Database, frame: Frame) -> Steps:
    try:
        yield frame.begin, ()
    except Exception as error:
        if _sqlstate(error) != _FAILED_TRANSACTION:
            raise
        raise ConfigError(
            "connection= is in a transaction that has failed", hint="roll it back first"
        ) from error
    try:
        yield from _check_place(database)
        verdicts = yield from insert_jobs(jobs, database.instant)
        is_refused = any(verdict.error is not None for verdict in verdicts)
        if database.notifies and not is_refused and any(verdict.inserted for verdict in verdicts):
            yield NOTIFY, [channel(database.identity)]
    except BaseException as error:
        with suppress(Exception):  # the connection may be gone; what went wrong first is what is told
            for sql in frame.undo:
                yield sql, ()
        _raise_if_moved(error)
        raise
    for sql in frame.undo if is_refused else (frame.end,):
        yield sql, ()
    return verdicts


def _check_place(database: Database) -> Generator[Statement, list[Any], None]:
    """The queue is known by its identity, whatever route leads to it, and a copy of it by its place."""
    [(table, name, place)] = yield _PLACE, [f"{database.schema}.holdfast_schema"]
    found = (yield _IDENTITY, ()) if table is not None else []
    if (place, [identity for (identity,) in found]) != (database.place, [database.identity]):
        raise ConfigError(
            f"connection= goes to a database {name} that is not the queue's, which is in {database.url}",
            hint=ONE_DATABASE,
        )


def _raise_if_moved(error: BaseException) -> None:
    if _sqlstate(error) == MOVED_STATE:
        moved = error_of(str(error.__cause__ or error))  # SQLAlchemy's own have asyncpg's as their cause
        if moved is not None:
            raise moved from error


def _sqlstate(error: BaseException) -> str | None:
    """The server's code of an error: the drivers agree on it, but not on where it is."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
