"""Numbered migrations: which ones apply, and the errors for other versions. Engines run the SQL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from holdfast.errors import ForeignDatabase, SchemaOutOfDate

VERSION_TABLE = "holdfast_schema"


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
            f"the database has schema version {version}; this version of Holdfast supports up to {newest}",
            hint="upgrade Holdfast here, or use the newer version that created it",
        )
    return [m for m in migrations if m.number > version]


def version_of(names: Mapping[str, str], read: Callable[[], Sequence[Sequence[object]]], place: str) -> int:
    """The version of the schema at a place, 0 if there is none; `read` gives the row of VERSION_TABLE.

    Refuses tables and views of our names that are not ours. Each name comes with its kind.
    """
    if not names:
        return 0
    if names.get(VERSION_TABLE) != "table" or "holdfast_jobs" not in names:
        raise ForeignDatabase(
            f"the database has a table {min(names)!r} that Holdfast did not create",
            hint="rename that table, or use another database",
        )
    rows = read()
    if len(rows) != 1 or not isinstance(rows[0][0], int):
        raise ForeignDatabase(f"{place}: the table {VERSION_TABLE} was not created by Holdfast")
    return rows[0][0]
