"""The class of our own connections: sqlite3's, but for what some versions of Python get wrong."""

from __future__ import annotations

import re
import sqlite3
import sys
from functools import lru_cache
from typing import Any

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


class _NamingConnection(sqlite3.Connection):
    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        return super().execute(*understood(*arguments))


OwnConnection = _NamingConnection if _TAKES_NUMBERS_FOR_NAMES else sqlite3.Connection
