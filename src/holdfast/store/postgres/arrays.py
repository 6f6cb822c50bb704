"""Arrays as PostgreSQL writes them. psycopg would look at each item by itself, in Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


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
