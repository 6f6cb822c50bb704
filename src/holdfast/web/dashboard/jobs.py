"""The list of jobs: filtered, sorted, page by page."""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from holdfast.core.job import FINISHED, Job, Status
from holdfast.core.lifecycle import sources
from holdfast.errors import ConfigError
from holdfast.listing.pages import Page
from holdfast.observe.timeline import duration
from holdfast.queue import Queue
from holdfast.web.backend import backend_of
from holdfast.web.dashboard.page import Form, page, query_of
from holdfast.web.dashboard.selection import STATES, Selection, is_local_time, selection_from

router = APIRouter(include_in_schema=False)

_SIZES = (25, 50, 100)
_QUICK_RANGES = (("15m", "15 min"), ("1h", "1 h"), ("24h", "24 h"), ("7d", "7 d"))


def actions_for(job: Job) -> list[str]:
    """The actions that are possible for a job now."""
    is_retryable = job.status in sources("retry") and (
        job.status is not Status.SCHEDULED or job.next_retry_at is not None
    )
    is_cancellable = job.status in sources("cancel") and not job.cancel_requested
    allowed = {"retry": is_retryable, "cancel": is_cancellable, "delete": job.status in FINISHED}
    return [action for action, is_allowed in allowed.items() if is_allowed]


@router.get("/jobs")
async def jobs(request: Request) -> Response:
    given = query_of(request)
    selection = selection_from(given)
    backend = backend_of(request)
    problem = None
    try:
        read = partial(_view_of, selection=selection, given=given)
        view = await backend.read(request, read, is_slow=bool(selection.q))
    except ConfigError as error:
        problem = str(error)
        view = await backend.call(_nothing, given)
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


def _view_of(queue: Queue, selection: Selection, given: Form) -> dict[str, Any]:
    cursor = given.get("cursor") or None
    found = queue.page(selection.filter, limit=_size(given), cursor=cursor, brief=True, with_total=True)
    return _nothing(queue, given) | {"now": queue.now(), "page": found}


def _nothing(queue: Queue, given: Form) -> dict[str, Any]:
    """A list without jobs: what the filters and the paging need all the same."""
    return {
        "page": Page(jobs=[], next=None, previous=None),
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
