"""The caller's own connection: whether a job can be enqueued through it, and inside what."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from holdfast.errors import ConfigError
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.unwrap import unwrap
from holdfast.store.unwrap import ONE_DATABASE, in_no_transaction

_LEGACY = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)  # the only mode before Python 3.12


LOCKED = (
    "begin with BEGIN IMMEDIATE, and give the connection a longer timeout;"
    " holdfast.sqlalchemy.configure(engine) does both"
)
"""A note to SQLite's own words, where a caller's transaction could not write."""


def checked(connection: Any, database: Database) -> sqlite3.Connection:
    """The sqlite3 connection beneath, inside a transaction, if it is one to the queue's own file.

    Only a bare sqlite3 connection may be in no transaction: its autocommit mode is chosen by hand.
    """
    found = unwrap(connection)
    own: sqlite3.Connection = found.connection
    path = _file_of(own)
    if not path or not os.path.exists(path) or not os.path.samefile(path, database.path):
        raise ConfigError(
            f"connection= goes to {path or 'a database in memory'}, the queue is in {database.path}",
            hint=ONE_DATABASE,
        )
    found.begin()
    _join_transaction(own)
    if found.begun_by is not None and not own.in_transaction:
        raise in_no_transaction(found.begun_by)
    return own


def _file_of(connection: sqlite3.Connection) -> str:
    try:
        cursor = connection.cursor()
        cursor.row_factory = None
        rows = cursor.execute("PRAGMA database_list").fetchall()
        cursor.close()
    except sqlite3.ProgrammingError as error:  # it is closed, or belongs to another thread
        raise ConfigError(f"connection= can't be used: {error}") from error
    return next((os.fsdecode(file) for _, name, file in rows if name in ("main", b"main")), "")


def _join_transaction(connection: sqlite3.Connection) -> None:
    """Begin what sqlite3 itself would begin before an INSERT: our savepoint alone would commit."""
    if connection.in_transaction or connection.isolation_level is None:
        return
    if getattr(connection, "autocommit", _LEGACY) == _LEGACY:
        connection.execute(f"BEGIN {connection.isolation_level}")
