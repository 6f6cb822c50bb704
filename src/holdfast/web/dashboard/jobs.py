"""The list of jobs: filtered, sorted, page by page; and the same done to many of them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from holdfast.config import parse_duration
from holdfast.core.clock import to_datetime
from holdfast.core.job import Job, Status
from holdfast.core.lifecycle import sources
from holdfast.errors import LONGEST_DURATION, ConfigError, shown
from holdfast.listing import MOST_SEARCHED, Page
from holdfast.operate import Operated, matching, operate
from holdfast.queue import Queue
from holdfast.web.dashboard import words
from holdfast.web.dashboard.page import Form, done, page, query_of, require_change, submitted
from holdfast.web.dashboard.selection import SIZES, STATES, Selection, ids_from, page_size, selection_from
from holdfast.web.desk import desk_of

router = APIRouter(include_in_schema=False)

MOST_AT_ONCE = 100_000
"""Jobs that one action on all that match takes, the first of the list."""

_NAMED = 5
_DONE = {"retry": "retried", "cancel": "cancelled", "delete": "deleted"}
_QUICK_RANGES = (("15m", "15 min"), ("1h", "1 h"), ("24h", "24 h"), ("7d", "7 d"))
_PERMANENT = (Status.COMPLETED, Status.FAILED, Status.CANCELLED)


def actions_for(job: Job) -> list[str]:
    """What may be done to a job now."""
    is_retryable = job.status in sources("retry") and (
        job.status is not Status.SCHEDULED or job.next_retry_at is not None
    )
    is_cancellable = job.status in sources("cancel") and not job.cancel_requested
    allowed = {"retry": is_retryable, "cancel": is_cancellable, "delete": job.status in _PERMANENT}
    return [action for action, is_allowed in allowed.items() if is_allowed]


def duration(job: Job, now: datetime) -> float | None:
    """How long its last attempt took, or takes until now."""
    if job.started_at is None or job.status in (Status.PENDING, Status.SCHEDULED):
        return None
    end = now if job.status is Status.PROCESSING else job.finished_at
    return None if end is None else max(0.0, (end - job.started_at).total_seconds())


@router.get("/jobs")
async def jobs(request: Request) -> Response:
    given = query_of(request)
    desk = desk_of(request)
    selection, problem = Selection(), None
    try:
        selection = selection_from(given)
        view = await desk.call(_look, desk.queue, selection, given)
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
        sizes=SIZES,
        quick_ranges=_QUICK_RANGES,
        actions_for=actions_for,
        duration=duration,
        events=_events(selection, view),
        **view,
    )


def _look(queue: Queue, selection: Selection, given: Form) -> dict[str, Any]:
    now = to_datetime(queue.store.now())
    filters = selection.filters(now)
    size = page_size(given.get("size"))
    found = queue.page(
        **filters, ascending=selection.ascending, limit=size, cursor=given.get("cursor") or None, brief=True
    )
    total = None
    if not selection.q:
        counted = {name: value for name, value in filters.items() if name != "search"}
        total = queue.count(**counted, cap=words.CAP + 1)
    return _nothing(queue, given) | {"now": now, "page": found, "total": total}


def _nothing(queue: Queue, given: Form) -> dict[str, Any]:
    """A list without jobs: what the filters and the paging need all the same."""
    size = page_size(given.get("size"))
    return {
        "page": Page(jobs=[], next=None, previous=None),
        "total": None,
        "size": size,
        "size_given": size if given.get("size") else None,
        "is_first": not given.get("cursor"),
        "types": list(queue.stats()["by_type"]),
    }


def _events(selection: Selection, view: dict[str, Any]) -> str:
    """Which live events the list wants: those of its filter where they follow it, else of the jobs shown."""
    is_followed = selection == Selection(statuses=selection.statuses, type=selection.type)
    if is_followed and view["is_first"]:
        filters = [*(("status", status) for status in selection.statuses), ("limit", str(view["size"]))]
        return urlencode([*filters, ("type", selection.type)] if selection.type else filters)
    return "&".join(f"id={job.id}" for job in view["page"].jobs) or "limit=1"


# The same for many.


@router.get("/jobs/bulk")
async def confirm(request: Request) -> Response:
    """What would be done, and to how many: nothing is changed yet."""
    require_change(request)
    return await _confirmation(request, query_of(request))


async def _confirmation(request: Request, given: Form, problem: str | None = None) -> Response:
    action = _action(given)
    ids = ids_from(given.list("id"))
    selection = selection_from(given)
    if not ids and not given.get("all"):
        return done(request, f"/jobs{selection.query()}", "Select some jobs first.", is_problem=True)
    desk = desk_of(request)
    count, examined = len(ids), None
    if not ids:
        count, examined = await desk.call_long(_count, desk.queue, selection)
    return page(
        request,
        "confirm.html",
        200 if problem is None else 409,
        action=action,
        selection=selection,
        ids=ids,
        count=min(count, MOST_AT_ONCE),
        is_cut=count > MOST_AT_ONCE,
        examined=examined,
        problem=problem,
        back=f"/jobs{selection.query()}",
    )


@router.post("/jobs/bulk")
async def change_many(request: Request) -> Response:
    form = await submitted(request)
    action = _action(form)
    selection = selection_from(form)
    desk = desk_of(request)
    ids = ids_from(form.list("id"))
    if not ids:
        expected = form.get("count")
        count, _ = await desk.call_long(_count, desk.queue, selection)
        if expected != str(min(count, MOST_AT_ONCE)):
            problem = f"There are {count:,} such jobs now; nothing was done yet."
            return await _confirmation(request, form, problem)
    made = await desk.call_long(_change_many, desk.queue, action, selection, ids)
    return done(request, f"/jobs{selection.query()}", _outcome(action, made), is_problem=made.refused > 0)


def _action(given: Form) -> str:
    action = given.get("action")
    if action not in _DONE:
        raise ConfigError(f"{shown(action)} is not an action; allowed: {', '.join(_DONE)}")
    return action


def _count(queue: Queue, selection: Selection) -> tuple[int, int | None]:
    """How many jobs a selection finds, and how many a search has read to find them."""
    filters = selection.filters(to_datetime(queue.store.now()))
    search = filters.pop("search")
    if search is None:
        return queue.count(**filters, cap=MOST_AT_ONCE + 1), None
    return sum(1 for _ in matching(queue, **filters, search=search)), MOST_SEARCHED


def _change_many(queue: Queue, action: str, selection: Selection, ids: list[str]) -> Operated:
    if not ids:
        found = matching(queue, **selection.filters(to_datetime(queue.store.now())))
        ids = [id for id, _ in zip(found, range(MOST_AT_ONCE), strict=False)]
    # Those and no others, also if more come to fit while it goes on.
    return operate(queue, action, iter(ids), kept=_NAMED)


def _outcome(action: str, made: Operated) -> str:
    text = f"{words.plural(made.done)} {_DONE[action]}."
    if made.refused:
        reasons = "; ".join(str(refusal.error) for refusal in made.refusals)
        text += (
            f" {words.plural(made.refused)} left as {'it is' if made.refused == 1 else 'they are'}: {reasons}"
        )
    return text


# Clean-up.


@router.get("/cleanup")
async def confirm_cleanup(request: Request) -> Response:
    """How many old jobs would be deleted: nothing is changed yet."""
    require_change(request)
    given = query_of(request)
    statuses, age = _cleanup(given)
    desk = desk_of(request)
    count = await desk.call(_count_old, desk.queue, statuses, age)
    return page(
        request, "cleanup.html", count=count, older_than=given.get("older_than"), statuses=statuses,
        failed=given.get("failed"),
    )  # fmt: skip


@router.post("/cleanup")
async def clean_up(request: Request) -> Response:
    form = await submitted(request)
    statuses, age = _cleanup(form)
    desk = desk_of(request)
    delete = desk.queue.purge if Status.FAILED in statuses else desk.queue.cleanup
    count = await desk.call_long(delete, age)
    return done(request, "/", f"{words.plural(count)} deleted.")


def _cleanup(given: Form) -> tuple[tuple[Status, ...], timedelta]:
    text = given.get("older_than") or "7d"
    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_DURATION:
        raise ConfigError(f"the age must be a duration such as 12h or 7d, not {shown(text)}")
    statuses = (Status.FAILED,) if given.get("failed") else (Status.COMPLETED, Status.CANCELLED)
    return statuses, timedelta(seconds=seconds)


def _count_old(queue: Queue, statuses: tuple[Status, ...], age: timedelta) -> int:
    until = to_datetime(queue.store.now()) - age
    return queue.count(status=statuses, until=until, sort="finished", cap=words.CAP + 1)
