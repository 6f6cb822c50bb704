"""The list of jobs: filtered, sorted, page by page."""

from __future__ import annotations

from datetime import datetime
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from holdfast.core.clock import to_datetime
from holdfast.core.job import FINISHED, Job, Status
from holdfast.core.lifecycle import sources
from holdfast.errors import ConfigError
from holdfast.listing import Page
from holdfast.queue import Queue
from holdfast.web.dashboard import words
from holdfast.web.dashboard.page import Form, page, query_of
from holdfast.web.dashboard.selection import STATES, Selection, is_local_time, selection_from
from holdfast.web.desk import desk_of

router = APIRouter(include_in_schema=False)

_SIZES = (25, 50, 100)
_QUICK_RANGES = (("15m", "15 min"), ("1h", "1 h"), ("24h", "24 h"), ("7d", "7 d"))


def actions_for(job: Job) -> list[str]:
    """What may be done to a job now."""
    is_retryable = job.status in sources("retry") and (
        job.status is not Status.SCHEDULED or job.next_retry_at is not None
    )
    is_cancellable = job.status in sources("cancel") and not job.cancel_requested
    allowed = {"retry": is_retryable, "cancel": is_cancellable, "delete": job.status in FINISHED}
    return [action for action, is_allowed in allowed.items() if is_allowed]


def duration(job: Job, now: datetime) -> float | None:
    """How long its last attempt took, or takes until now; None if that is not known.

    A job may be cancelled long after its last attempt has ended. A failed one knows when its handler began,
    which may be later than its claim, unless its history was not read.
    """
    if job.status is Status.FAILED and job.errors:
        last = job.errors[-1]
        return max(0.0, (last.finished_at - last.started_at).total_seconds())
    if job.started_at is None or job.status in (Status.PENDING, Status.SCHEDULED, Status.CANCELLED):
        return None
    end = now if job.status is Status.PROCESSING else job.finished_at
    return None if end is None else max(0.0, (end - job.started_at).total_seconds())


@router.get("/jobs")
async def jobs(request: Request) -> Response:
    given = query_of(request)
    selection = selection_from(given)
    desk = desk_of(request)
    problem = None
    try:
        view = await desk.read(request, bool(selection.q), _look, desk.queue, selection, given)
    except ConfigError as error:
        problem = str(error)
        view = await desk.call(_nothing, desk.queue, given)
    return page(
        request,
        "jobs.html",
        200 if problem is None else 400,
        selection=selection,
        problem=problem,
        filter_states=STATES,
        sizes=_SIZES,
        quick_ranges=_QUICK_RANGES,
        actions_for=actions_for,
        duration=duration,
        is_local_time=is_local_time,
        events=_events(selection, view),
        **view,
    )


def _look(queue: Queue, selection: Selection, given: Form) -> dict[str, Any]:
    now = to_datetime(queue.store.now())
    filters = selection.filters(now)
    found = queue.page(
        **filters, limit=_size(given), cursor=given.get("cursor") or None, brief=True
    )  # fmt: skip
    total = None
    if not selection.q:
        counted = {name: filters[name] for name in filters.keys() - {"search", "ascending"}}
        total = queue.count(**counted, cap=words.CAP + 1)
    return _nothing(queue, given) | {"now": now, "page": found, "total": total}


def _nothing(queue: Queue, given: Form) -> dict[str, Any]:
    """A list without jobs: what the filters and the paging need all the same."""
    return {
        "page": Page(jobs=[], next=None, previous=None),
        "total": None,
        "size": _size(given),
        "size_given": _size(given) if given.get("size") else None,
        "is_first": not given.get("cursor"),
        "types": list(queue.stats()["by_type"]),
    }


def _size(given: Form) -> int:
    return next((size for size in _SIZES if str(size) == given.get("size")), _SIZES[1])


def _events(selection: Selection, view: dict[str, Any]) -> str:
    """Which live events the list wants: those of its filter where they follow it, else of the jobs shown."""
    is_followed = selection == Selection(statuses=selection.statuses, type=selection.type)
    if is_followed and view["is_first"]:
        filters = [*(("status", status) for status in selection.statuses), ("limit", str(view["size"]))]
        return urlencode([*filters, ("type", selection.type)] if selection.type else filters)
    return "&".join(f"id={job.id}" for job in view["page"].jobs) or "limit=1"
