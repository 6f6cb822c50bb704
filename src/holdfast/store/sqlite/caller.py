"""The caller's own sqlite3 connection: whether a job can be enqueued through it, and inside what."""

from __future__ import annotations

import os
import sqlite3
from typing import Any

from holdfast.errors import ConfigError
from holdfast.store.sqlite.database import Database

_LEGACY = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)  # the only mode before Python 3.12


def checked(connection: Any, database: Database) -> sqlite3.Connection:
    """The connection, if it is one to the queue's own file."""
    if not isinstance(connection, sqlite3.Connection):
        raise ConfigError(
            f"connection= takes a sqlite3.Connection here, not {type(connection).__name__}",
            hint="the job and your rows commit together only on the queue's own database",
        )
    cursor = connection.cursor()
    cursor.row_factory = None
    rows = cursor.execute("PRAGMA database_list").fetchall()
    cursor.close()
    path = next((os.fsdecode(file) for _, name, file in rows if name in ("main", b"main")), "")
    if not path or not os.path.exists(path) or not os.path.samefile(path, database.path):
        raise ConfigError(
            f"connection= goes to {path or 'a database in memory'}, the queue is in {database.path}",
            hint="the job and your rows commit together only in one database",
        )
    _join_transaction(connection)
    return connection


def _join_transaction(connection: sqlite3.Connection) -> None:
    """Begin what sqlite3 itself would begin before an INSERT: our savepoint alone would commit."""
    manual = getattr(connection, "autocommit", _LEGACY) is not _LEGACY
    if not manual and connection.isolation_level is not None and not connection.in_transaction:
        connection.execute(f"BEGIN {connection.isolation_level}")
