"""The caller's own connection: whether a job can be enqueued through it, and inside what."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

import psycopg

from holdfast.errors import ConfigError
from holdfast.store.moved import MOVE_TABLE
from holdfast.store.outcomes import inserted
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import raise_if_moved, sqlstate_of
from holdfast.store.postgres.insert import (
    INSERT_HERE,
    INSERT_KEYED_HERE,
    Apart,
    Statement,
    Steps,
    find_known,
    insert_jobs,
    is_plain,
    refuse_if_full,
    run,
    values,
)
from holdfast.store.postgres.notify import NOTIFY, channel
from holdfast.store.postgres.unwrap import AsyncPsycopg, State, unwrap
from holdfast.store.records import NewJob, Verdict
from holdfast.store.unwrap import ONE_DATABASE, in_no_transaction

_PLACE = """
SELECT to_regclass($1)::text, datname::text, oid::bigint FROM pg_database WHERE datname = current_database()
"""
_IDENTITY = "SELECT identity FROM holdfast_schema"
_FAILED_TRANSACTION = "25P02"

_seen: WeakKeyDictionary[Any, tuple[str, int]] = WeakKeyDictionary()
"""The callers' connections that have been to a queue, and which: its identity, and its place."""


class Frame(NamedTuple):
    """What is around statements, so that an error in one leaves the caller's transaction as it was."""

    begin: Statement
    end: Statement
    undo: tuple[Statement, ...]


_RELEASE: Statement = "RELEASE SAVEPOINT holdfast", ()
_SAVEPOINT = Frame(("SAVEPOINT holdfast", ()), _RELEASE, (("ROLLBACK TO SAVEPOINT holdfast", ()), _RELEASE))
_TRANSACTION = Frame(("BEGIN", ()), ("COMMIT", ()), (("ROLLBACK", ()),))


def insert_with(connection: Any, jobs: Sequence[NewJob], database: Database) -> list[Verdict]:
    """Insert inside the caller's transaction; in autocommit mode chosen by hand, in one of its own."""
    driver, found = unwrap(connection)
    frame = _frame(driver.state(), found.begun_by)
    found.begin()

    def execute(sql: str, given: Sequence[Any]) -> list[Any]:
        return driver.execute((database.text(sql), given))

    def execute_apart(sql: str, given: Sequence[Any]) -> list[Any]:
        try:
            return driver.execute(_SAVEPOINT.begin, (database.text(sql), given), _SAVEPOINT.end)
        except BaseException:
            with suppress(Exception):  # the connection may be gone; what went wrong first is what is told
                driver.execute(*_SAVEPOINT.undo)
            raise

    return run(_steps(jobs, database, frame, found.connection), execute, execute_apart)


async def insert_awaiting(connection: Any, jobs: Sequence[NewJob], database: Database) -> list[Verdict]:
    """The same with asyncio."""
    if not isinstance(connection, psycopg.AsyncConnection):
        return insert_with(connection, jobs, database)  # which says what connections it takes
    driver = AsyncPsycopg(connection)
    steps = _steps(jobs, database, _frame(await driver.state()), connection)
    try:
        statement = next(steps)
        while True:
            try:
                here = database.text(statement[0]), statement[1]
                if isinstance(statement, Apart):
                    around = _SAVEPOINT
                    rows = await driver.execute(around.begin, here, around.end, undo=around.undo)
                else:
                    rows = await driver.execute(here)
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
    if state.joins:
        return _SAVEPOINT
    if begun_by is not None:
        raise in_no_transaction(begun_by)
    return _TRANSACTION


def _steps(jobs: Sequence[NewJob], database: Database, frame: Frame, connection: Any) -> Steps:
    try:
        if len(jobs) == 1:
            verdict = yield from _insert_one(jobs[0], database, frame, _was_seen(connection, database))
            if verdict is not None:
                _note(connection, database)
                return [verdict]
        verdicts = yield from _insert_carefully(jobs, database, frame)
    except Exception as error:
        raise_if_moved(error)
        if sqlstate_of(error) == _FAILED_TRANSACTION:
            raise ConfigError(
                "connection= is in a transaction that has failed", hint="roll it back first"
            ) from error
        raise
    _note(connection, database)
    return verdicts


def _insert_one(
    job: NewJob, database: Database, frame: Frame, was_seen: bool
) -> Generator[Statement, list[Any], Verdict | None]:
    """Insert a job by one statement; None if it has to be found out why that did not work.

    A savepoint is only for what may wait for somebody else's transaction, and fail by a timeout: each one is
    a subtransaction, and with many of those in one transaction the whole server becomes slow.
    """
    if not was_seen:
        yield from _find_table(database)
    full = yield from refuse_if_full(job, database.instant)
    if full is not None:
        return full
    told = channel(database.identity) if database.notifies else None
    here = [database.identity, database.server.place, f"{database.schema}.{MOVE_TABLE}", told]
    sql = INSERT_HERE if job.key is None else INSERT_KEYED_HERE
    statement: Statement = (sql, [database.instant, *values(job), *here])
    rows = yield Apart(*statement) if frame is _SAVEPOINT and not is_plain(job) else statement
    if not rows:
        return None
    [(id, *rest, _)] = rows
    return inserted(job, *rest) if id is not None else (yield from find_known(job))


def _insert_carefully(jobs: Sequence[NewJob], database: Database, frame: Frame) -> Steps:
    """Insert all of them or none, whatever stands in the way."""
    yield frame.begin
    try:
        yield from _check_place(database)
        verdicts = yield from insert_jobs(jobs, database.instant)
        is_refused = any(verdict.error is not None for verdict in verdicts)
        if database.notifies and not is_refused and any(verdict.inserted for verdict in verdicts):
            yield NOTIFY, [channel(database.identity)]
    except BaseException:
        with suppress(Exception):  # the connection may be gone; what went wrong first is what is told
            for sql, _ in frame.undo:
                yield sql, ()
        raise
    for sql, _ in frame.undo if is_refused else (frame.end,):
        yield sql, ()
    return verdicts


def _was_seen(connection: Any, database: Database) -> bool:
    try:
        return _seen.get(connection) == (database.identity, database.server.place)
    except TypeError:  # a driver whose connections have no weak references
        return False


def _note(connection: Any, database: Database) -> None:
    with suppress(TypeError):
        _seen[connection] = (database.identity, database.server.place)


def _find_table(database: Database) -> Generator[Statement, list[Any], str]:
    """Make sure that there is a queue: a statement that finds no table fails the transaction. The name of the
    database."""
    [(table, name, place)] = yield _PLACE, [f"{database.schema}.holdfast_schema"]
    if table is None or place != database.server.place:
        raise _elsewhere(name, database)
    return str(name)


def _check_place(database: Database) -> Generator[Statement, list[Any], None]:
    """The queue is known by its identity, whatever route leads to it, and a copy of it by its place."""
    name = yield from _find_table(database)
    if (yield _IDENTITY, ()) != [(database.identity,)]:
        raise _elsewhere(name, database)


def _elsewhere(name: str, database: Database) -> ConfigError:
    return ConfigError(
        f"connection= is connected to {name}, which is not the queue's database, {database.url}",
        hint=ONE_DATABASE,
    )
