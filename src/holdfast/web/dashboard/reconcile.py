"""Whether the world is as the completed jobs left it: the last report, and a new one on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from fastapi import APIRouter, Request, Response
from msgspec import Struct

from holdfast.core.clock import to_datetime
from holdfast.queue import Queue
from holdfast.reconcile import Report, checkable_types
from holdfast.web.dashboard import words
from holdfast.web.dashboard.page import done, page, submitted
from holdfast.web.desk import desk_of
from holdfast.web.reconciler import Asked, latest_report

router = APIRouter(include_in_schema=False)

_SHORT_SECONDS = 0.5
"""How long a person is kept waiting for a report that may be there at once."""


@router.get("/reconcile")
async def reconcile(request: Request) -> Response:
    desk = desk_of(request)
    running = desk.reconciler.running  # before the report: one that ends meanwhile is in it
    view = await desk.call(_look, desk.queue, desk.reconciler.last)
    failure, report = desk.reconciler.failure, view["report"]
    if failure is not None and report is not None and report.started_at > failure.at:
        failure = None
    return page(request, "reconcile.html", events="limit=1", running=running, failure=failure, **view)


def _look(queue: Queue, own: Report | None) -> dict[str, Any]:
    report = latest_report(queue, own)
    return {
        "now": to_datetime(queue.store.now()),
        "report": report,
        "verdict": verdict(report, checkable_types(queue)),
        "left_out": 0 if report is None else report.differing + report.unchecked - len(report.discrepancies),
    }


@router.post("/reconcile")
async def start(request: Request) -> Response:
    await submitted(request)
    run = desk_of(request).reconciler.start(Asked())
    if run.asked != Asked():
        return done(request, "/reconcile", "Another check is under way; ask again when it is over.")
    if not await run.wait_briefly(_SHORT_SECONDS):
        return done(request, "/reconcile", "The check runs; its report comes here when it is over.")
    if run.outcome.exception() is not None:
        return done(request, "/reconcile", "The check has ended without a report.", is_problem=True)
    return done(request, "/reconcile", "The completed jobs were compared with the world.")


class Verdict(Struct, frozen=True):
    """A report in a word and a sentence. `level` is good, warning, problem or unknown."""

    level: str
    word: str
    text: str


def verdict(report: Report | None, checkable: Sequence[str]) -> Verdict:
    if report is None:
        return Verdict(
            "unknown", "Not checked yet", "Nobody has compared the completed jobs with the world so far."
        )
    if not report.jobs:
        types = f": {', '.join(checkable)}" if checkable else "; this server has no handler that can"
        return Verdict(
            "unknown", "Nothing to check", f"There was no completed job of a type that can be checked{types}."
        )
    told = differences(report.differing, report.unchecked)
    if report.differing:
        return Verdict("problem", "Differs", f"{told}.")
    if report.unchecked:
        return Verdict("warning", "Not all checked", f"{told}.")
    asked = f" Not asked about: {', '.join(report.left_out)}." if report.left_out else ""
    return Verdict("good", "As it should be", f"What the completed jobs have done is still there.{asked}")


def differences(differing: int, unchecked: int) -> str:
    """What a report has found, in half a sentence; empty if nothing."""
    if not differing:
        return f"{_completed(unchecked)} could not be checked" if unchecked else ""
    told = f"{_completed(differing)} {'differs' if differing == 1 else 'differ'} from the world"
    return f"{told}, and {unchecked:,} could not be checked" if unchecked else told


def _completed(count: int) -> str:
    return words.plural(count, "completed job")


class _Counts(Struct):
    """As much of a stored report as the overview reads."""

    differing: int
    unchecked: int


def last_differences(queue: Queue) -> str:
    """The differences of the last report."""
    text = queue.store.read_reconciliation()
    if text is None:
        return ""
    try:
        counts = msgspec.json.decode(text, type=_Counts)
    except msgspec.DecodeError:  # whoever can write to the database can write anything
        return ""
    return differences(counts.differing, counts.unchecked)
