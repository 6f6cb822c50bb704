"""The tables of a queue as a move or a backup copies them, the same on every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from holdfast.errors import HoldfastError, MoveFailed
from holdfast.store.rows import FAILURE, LOG_TAIL, MINUTE, TYPE, job_kinds

Row = tuple[Any, ...]


class Table(Struct, frozen=True):
    """A table as it is copied: its columns, each with its kind, and by which of them its rows are ordered.

    Kinds are those of Python: i, f, s, b(ool) and x for bytes.
    """

    name: str
    columns: Mapping[str, str]
    key: str
    optional: bool = False
    """Whether an engine may do without it."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.columns)


JOBS = Table("holdfast_jobs", job_kinds(), "seq")
SETTINGS = Table("holdfast_settings", {"name": "s", "type": "s", "value": "s"}, "name, type")
PAUSES = Table("holdfast_pauses", {"type": "s", "paused_at": "i"}, "type")
LIMITS = Table("holdfast_limits", {"name": "s", "tokens": "f", "refilled_at": "i"}, "name")
ERRORS = Table(
    "holdfast_errors", {"type": "s", "error_group": "s", "jobs": "i", "last_at": "i"}, "type, error_group"
)
COUNTS = Table("holdfast_counts", {"type": "s", "enqueued": "i"}, "type")
"""How many jobs of each type there ever were; the other counts follow from the jobs."""

TYPES = Table("holdfast_types", TYPE.kinds, "type")
TABLES = (
    JOBS,
    Table("holdfast_failures", {"seq": "i", "version": "i", **FAILURE.kinds}, "seq, version"),
    Table("holdfast_links", {"parent_id": "s", "child_id": "s"}, "parent_id, child_id"),
    Table("holdfast_logs", {"seq": "i", **LOG_TAIL.kinds}, "seq", optional=True),
    SETTINGS,
    PAUSES,
    LIMITS,
    TYPES,
    Table("holdfast_statistics", MINUTE.kinds, "minute, type, worker_id"),
    Table("holdfast_reconciliation", {"number": "i", "report": "s"}, "number"),
    ERRORS,
    COUNTS,
)
"""All that is copied. Workers are not: they belong to the database that they have open."""

REPLACED = (LIMITS, TYPES)
"""What workers that only wait leave in an empty queue."""


def converter(table: Table) -> Callable[[Sequence[Any]], Row]:
    """From what an engine gives for a row of a table to what it is on every engine."""
    kinds = [_KINDS[kind] for kind in table.columns.values()]

    def convert(row: Sequence[Any]) -> Row:
        return tuple(None if value is None else kind(value) for kind, value in zip(kinds, row, strict=True))

    return convert


def _text(value: Any) -> str:
    """As every engine can hold it: without NUL, and without halves of characters."""
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
    return text.replace("\0", "\ufffd") if "\0" in text else text


_KINDS: dict[str, Callable[[Any], Any]] = {"i": int, "f": float, "s": _text, "b": bool, "x": bytes}


def unmovable(table: Table, error: Exception) -> HoldfastError:
    """The error for a row that the other engine can't hold."""
    return MoveFailed(f"{table.name}: a row can't be stored there: {str(error).partition(chr(10))[0]}")
