"""What the engines' databases have in common: the same SQL, except for the fragments in which they differ.

Parameters are `?`, or `?1` where they are numbered.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

PATIENCE = 5.0
"""Seconds to wait for a lock or a connection before it is an error."""

BREATH = 0.002
"""Seconds to sleep between two long commits, so that other writers can get in between."""


class Reader(Protocol):
    """A database to read from, and its engine's SQL fragments."""

    among_numbers: str
    """Follows a column, and asks whether it is in a JSON array of numbers, which is the one parameter."""
    among_texts: str
    elements: str
    """A table with one column `value`: the texts of a JSON array, which is the one parameter."""
    clock: str
    """Follows WITH: a table `clock` with one column `now`, the present instant. Its parameter is `?1`: that
    instant, or None where the server's own clock decides."""
    seq_within: str
    """How `seq` stands in the indexes by type and priority."""
    orders_recursion: bool
    """Whether a recursive query may go on with the highest first, and stop when it has enough."""

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query."""

    def read_one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        rows = self.read(sql, parameters)
        return rows[0] if rows else None

    def snapshot(self) -> AbstractContextManager[None]:
        """A block of reads that see one snapshot; inside a transaction, that transaction's view."""

    def by_index(self, name: str | None) -> str:
        """Follows a table, and has it read along an index, or along none; empty where that can't be said."""

    def skip_locked(self, table: str, key: str) -> str:
        """Follows a query for rows of a table that are to be written: those that others have locked are left
        out, and the others locked in the order of a key."""


class Session(Protocol):
    """An open transaction that writes."""

    wakes: bool
    """Whether workers should be notified once it is committed."""

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """All rows that a statement gives."""

    def count(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """How many rows a statement has changed."""

    def each(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement with one row of parameters after another."""


class Database(Reader, Protocol):
    """A database that can also be written."""

    url: str

    def transaction(self, *, patience: float = PATIENCE) -> AbstractContextManager[Session]:
        """This thread's write transaction; nested use joins the open one."""

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside one."""

    def close(self) -> None: ...
