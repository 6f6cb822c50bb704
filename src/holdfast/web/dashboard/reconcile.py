"""Whether the effects of completed jobs still exist: the last report, and a new one on demand."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response

from holdfast.observe import words
from holdfast.queue import Queue
from holdfast.reconcile import Report, checkable_types, last_report
from holdfast.web.backend import backend_of
from holdfast.web.dashboard.page import Headline, done, page, submitted
from holdfast.web.reconciler import Asked, latest_report

router = APIRouter(include_in_schema=False)

_SHORT_SECONDS = 0.5
"""How long a request waits for a report before the page is shown without it."""


@router.get("/reconcile")
async def reconcile(request: Request) -> Response:
    backend = backend_of(request)
    running = backend.reconciler.running  # before the report: one that ends meanwhile is in it
    view = await backend.call(_view_of, backend.reconciler.last)
    failure, report = backend.reconciler.failure, view["report"]
    if failure is not None and report is not None and report.started_at > failure.at:
        failure = None
    return page(request, "reconcile.html", events="limit=1", running=running, failure=failure, **view)


def _view_of(queue: Queue, own: Report | None) -> dict[str, Any]:
    report = latest_report(queue, own)
    return {
        "now": queue.now(),
        "report": report,
        "verdict": verdict(report, checkable_types(queue)),
        "left_out": 0 if report is None else report.differing + report.unchecked - len(report.discrepancies),
    }


@router.post("/reconcile")
async def start(request: Request) -> Response:
    await submitted(request)
    run = backend_of(request).reconciler.start(Asked())
    if run.asked != Asked():
        return done(request, "/reconcile", "Another check is running; try again when it is done.")
    if not await run.wait_briefly(_SHORT_SECONDS):
        return done(request, "/reconcile", "The check is running; its report will appear here.")
    if run.outcome.exception() is not None:
        return done(request, "/reconcile", "The check failed.", is_problem=True)
    return done(request, "/reconcile", "The check is complete.")


def verdict(report: Report | None, checkable: Sequence[str]) -> Headline:
    """A report in a word and a sentence."""
    if report is None:
        return Headline(
            "unknown", "Not checked yet", "The effects of completed jobs have not been checked yet."
        )
    if not report.jobs:
        types = f" ({', '.join(checkable)})" if checkable else "; this server has no handler for such a type"
        return Headline(
            "unknown", "Nothing to check", f"No completed job is of a type that can be checked{types}."
        )
    told = differences(report.differing, report.unchecked)
    if report.differing:
        return Headline("problem", "Differences found", f"{told}.")
    if report.unchecked:
        return Headline("warning", "Partly checked", f"{told}.")
    skipped = f" Not covered: {', '.join(report.left_out)}." if report.left_out else ""
    return Headline("good", "No differences", f"The effects of the completed jobs still exist.{skipped}")


def differences(differing: int, unchecked: int) -> str:
    """What a report found, as part of a sentence; empty if nothing."""
    if not differing:
        return f"{_completed(unchecked)} could not be checked" if unchecked else ""
    effects = (
        "The effect of 1 completed job is"
        if differing == 1
        else f"The effects of {_completed(differing)} are"
    )
    told = f"{effects} missing or changed"
    return f"{told}; {unchecked:,} could not be checked" if unchecked else told


def _completed(count: int) -> str:
    return words.plural(count, "completed job")


def last_differences(queue: Queue) -> str:
    """The differences of the last report."""
    report = last_report(queue)
    return "" if report is None else differences(report.differing, report.unchecked)
