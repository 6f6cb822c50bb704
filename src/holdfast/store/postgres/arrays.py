"""Arrays as PostgreSQL writes them. psycopg would look at each item by itself, in Python."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

MOST_TEXT = 32 * 1024 * 1024
"""Characters of one statement, about. The server takes no message of a gigabyte."""

T = TypeVar("T")


def parts(items: Sequence[T], size_of: Callable[[T], int]) -> Iterator[Sequence[T]]:
    """The items in parts that fit into one statement; one item always does."""
    start = size = 0
    for place, item in enumerate(items):
        size += size_of(item)
        if size > MOST_TEXT and place > start:
            yield items[start:place]
            start, size = place, size_of(item)
    if start < len(items):
        yield items[start:]


def transposed(rows: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Rows as the arrays of their columns; there must be one."""
    return [list(column) for column in zip(*rows, strict=True)]


def given(arrays: str) -> str:
    """Rows that a statement is given as arrays. That they are many is kept from the planner: it would rather
    read the whole table than look so many up."""
    return f"unnest({', '.join(f'(SELECT {array.strip()})' for array in arrays.split(','))})"


def literal(values: Sequence[Any]) -> str:
    """Texts, numbers, booleans and None as one text; the SQL says by a cast what they are."""
    kinds = set(map(type, values))
    if kinds == {int} or kinds == {float}:
        return f"{{{','.join(map(repr, values))}}}"
    if kinds == {str}:
        return f"{{{','.join(map(_quoted, values))}}}"
    return f"{{{','.join(map(_item, values))}}}"


def _item(value: Any) -> str:
    if value is None:
        return "NULL"
    return _quoted(value) if isinstance(value, str) else repr(value).lower()


def _quoted(text: str) -> str:
    if "\\" in text or '"' in text:
        text = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'
