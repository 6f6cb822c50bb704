"""Numbered migrations: which apply, and what a database of another version is told. Engines run the SQL."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NoReturn

from msgspec import Struct

from holdfast.errors import ForeignDatabase, SchemaOutOfDate


class Migration(Struct, frozen=True):
    """One step of the schema. A step that has been released is never edited."""

    number: int
    name: str
    statements: tuple[str, ...]


def pending(migrations: Sequence[Migration], version: int) -> list[Migration]:
    """The steps that a database of this version lacks."""
    newest = migrations[-1].number
    if version > newest:
        raise SchemaOutOfDate(
            f"the database has schema version {version}; this Holdfast knows {newest}",
            hint="upgrade holdfast here, or use the newer version that made it",
        )
    return [m for m in migrations if m.number > version]


def refuse_foreign(tables: Sequence[str]) -> NoReturn:
    """The error for a database with tables of our names that are not ours."""
    raise ForeignDatabase(
        f"the database has a table {min(tables)!r} that Holdfast did not make",
        hint="rename that table, or use another database",
    )
