"""Checking that the effects of completed jobs still exist. Nothing is ever repaired."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from msgspec import convert

from holdfast.core.job import base_type
from holdfast.errors import ConfigError
from holdfast.events import DiscrepancyFound, Reconciled
from holdfast.reconcile.comparison import Progress, checks, compare
from holdfast.reconcile.report import KEPT, Covered, Discrepancy, Report, keep, last_report
from holdfast.text import shown

if TYPE_CHECKING:
    from holdfast.queue import Queue

__all__ = [
    "KEPT",
    "Covered",
    "Discrepancy",
    "Report",
    "checkable_types",
    "last_report",
    "reconcile",
    "require_checkable",
]


def reconcile(
    queue: Queue,
    *,
    types: Sequence[str] | None = None,
    on_start: bool = False,
    progress: Progress = lambda _done, _total: None,
) -> Report:
    """Compare the completed jobs with the world, and keep the report in the database.

    With `on_start` only the checks that are meant for it. What `progress` raises ends it.
    """
    started = time.monotonic()
    report = compare(queue, _wanted(queue, types, on_start=on_start), progress)
    for found in report.discrepancies:
        queue.events.emit(convert(found, DiscrepancyFound, from_attributes=True))
    keep(queue, report)
    queue.events.emit(
        Reconciled(
            jobs=report.jobs,
            checked=report.checked,
            differing=report.differing,
            unchecked=report.unchecked,
            seconds=time.monotonic() - started,
        )
    )
    return report


def checkable_types(queue: Queue) -> list[str]:
    """The types whose handlers here know how to check their effects."""
    return sorted(handler.type for handler in queue.registry.handlers() if handler.reconcile is not None)


def require_checkable(queue: Queue, types: Iterable[str]) -> None:
    """Raise ConfigError for a type whose handler here can't check its effects."""
    for type in types:
        handler = queue.registry.find(type)
        if handler is None or handler.reconcile is None:
            allowed = ", ".join(checkable_types(queue)) or "none"
            raise ConfigError(f"jobs of type {shown(type)} can't be checked; types that can: {allowed}")


def _wanted(queue: Queue, types: Sequence[str] | None, *, on_start: bool) -> set[str]:
    """The types to ask about."""
    if types is not None and not types:
        raise ConfigError("types= is empty; omit it to check all types")
    require_checkable(queue, types or ())
    return {
        type
        for type, how in checks(queue).items()
        if (types is None or type in types or base_type(type) in types) and (how.on_start or not on_start)
    }
