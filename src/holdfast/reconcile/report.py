"""The report of a reconciliation; the last one is stored in the database."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING

from msgspec import DecodeError, Struct, json

from holdfast.errors import StoreError
from holdfast.events import ReconciliationFailed
from holdfast.store.open import store_of

if TYPE_CHECKING:
    from holdfast.queue import Queue

KEPT = 1000
"""Discrepancies that a report lists; it counts them all."""


class Discrepancy(Struct, frozen=True, kw_only=True, rename="camel"):
    """A completed job whose effect is missing or changed, or could not be checked."""

    job_id: str
    type: str
    subject: str
    problem: str
    completed_at: datetime
    is_checked: bool


class Covered(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a report can speak of: the completed jobs of a type that are still kept, from the first on.

    `removed` is how many jobs of the type are no longer kept, in whichever state they ended.
    """

    type: str
    completed: int
    since: datetime | None
    removed: int


class Report(Struct, kw_only=True, rename="camel"):
    """What came of a reconciliation.

    `left_out` are types with completed jobs that were not asked about. Of the `jobs` read, `checked` were
    compared with the world. `superseded` were followed by a later job for the same thing; `unsettled`
    differed, but a job for the same thing is at work.
    """

    started_at: datetime
    finished_at: datetime
    covered: list[Covered]
    left_out: list[str] = []
    jobs: int = 0
    checked: int = 0
    superseded: int = 0
    unsettled: int = 0
    differing: int = 0
    unchecked: int = 0
    discrepancies: list[Discrepancy] = []

    @property
    def is_clean(self) -> bool:
        return not self.differing and not self.unchecked


def keep(queue: Queue, report: Report) -> None:
    """Store a report as the last one; if that fails, announce it and carry on."""
    try:
        store_of(queue).write_reconciliation(json.encode(report).decode())
    except StoreError as error:
        queue.events.emit(
            ReconciliationFailed(error=f"the report could not be stored: {error}", exception=error)
        )


def last_report(queue: Queue) -> Report | None:
    """The last reconciliation report, from any process; None if there is none that we can read."""
    text = store_of(queue).read_reconciliation()
    try:
        return None if text is None else json.decode(text, type=Report)
    except DecodeError:
        return None
