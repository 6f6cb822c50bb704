"""What engines have in common to those who only read: lists, counts and figures are the same SQL on each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class Reader(Protocol):
    """A database to be read. Parameters are `?`, and the words below are those in which engines differ."""

    among_numbers: str
    """Follows a column, and asks whether it is in a JSON array of numbers, which is the one parameter."""
    among_texts: str
    elements: str
    """A table with one column `value`: the texts of a JSON array, which is the one parameter."""
    reads_whole_types: bool
    """Whether there is an index of all jobs by type, whatever their state."""

    seq_within: str
    """How `seq` stands in the indexes by type and priority."""
    orders_recursion: bool
    """Whether a recursive query may go on with the highest first, and stop when it has enough."""

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query."""

    def read_one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first row, or None."""

    def snapshot(self) -> AbstractContextManager[None]:
        """Around reads that must see one state of the database; inside a transaction, what that sees."""

    def by_index(self, name: str | None) -> str:
        """Follows a table, and has it read along an index, or along none; empty where that can't be said."""
