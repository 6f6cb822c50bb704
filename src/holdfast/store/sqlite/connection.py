"""Our own connections: what a Session does, what some versions of Python get wrong, and rows as JSON."""

from __future__ import annotations

import re
import sqlite3
import sys
from collections.abc import Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec

from_json = msgspec.json.Decoder().decode
_encode = msgspec.json.Encoder().encode

_TAKES_NUMBERS_FOR_NAMES = (3, 12) <= sys.version_info < (3, 12, 4)
"""Whether '?1' with a sequence is a DeprecationWarning. It is none in later versions, which corrected it."""


def understood(sql: str, parameters: Any = ()) -> tuple[str, Any]:
    """The arguments of execute() as this Python takes them without a warning."""
    if not _TAKES_NUMBERS_FOR_NAMES or isinstance(parameters, dict):
        return sql, parameters
    named = _named(sql)
    if named is None:
        return sql, parameters
    return named, {f"p{number}": value for number, value in enumerate(parameters, 1)}


@lru_cache(256)
def _named(sql: str) -> str | None:
    return re.sub(r"\?(\d+)", r":p\1", sql) if re.search(r"\?\d", sql) else None


class OwnConnection(sqlite3.Connection):
    """See Session. Nobody needs to be notified: every waiter sees the file change."""

    wakes = False

    if _TAKES_NUMBERS_FOR_NAMES:

        def execute(self, *arguments: Any) -> sqlite3.Cursor:
            return super().execute(*understood(*arguments))

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return self.execute(sql, parameters).fetchall()

    def count(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        return self.execute(sql, parameters).rowcount

    def value(self, sql: str, *parameters: Any) -> Any:
        """The one JSON value that a query gives."""
        return from_json(self.execute(sql, parameters).fetchone()[0])

    def each(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        for row in rows:
            self.execute(sql, row)


def as_json(value: Any) -> str:
    """What json_each and `given` read."""
    return _encode(value).decode()


def given(parameter: str, *names: str) -> str:
    """Rows that a statement is given as one JSON array of arrays: a table with these columns."""
    columns = (f"json_extract(value, '$[{number}]') AS {name}" for number, name in enumerate(names))
    return f"(SELECT {', '.join(columns)} FROM json_each({parameter}))"


def rollback(connection: sqlite3.Connection) -> None:
    # Some errors (a full disk) have rolled back already; then there is nothing to do.
    if connection.in_transaction:
        with suppress(sqlite3.Error):
            sqlite3.Connection.rollback(connection)  # a handler's connection overrides its own
