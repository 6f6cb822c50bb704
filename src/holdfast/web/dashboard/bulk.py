"""The same done to many jobs, and clearing up old ones: each asks first and says how many it would be."""

from __future__ import annotations

from datetime import timedelta
from itertools import islice
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec.structs import replace

from holdfast.core.clock import to_datetime
from holdfast.core.job import FINISHED, RETRYING, Status
from holdfast.durations import LONGEST_DURATION, parse_duration
from holdfast.errors import ConfigError, shown
from holdfast.listing import MOST_SEARCHED
from holdfast.operate import Operated, matching, operate
from holdfast.queue import Queue
from holdfast.web.dashboard import words
from holdfast.web.dashboard.jobs import actions_for
from holdfast.web.dashboard.page import Form, done, page, query_of, require_change, submitted
from holdfast.web.dashboard.selection import Selection, selection_from
from holdfast.web.desk import desk_of

router = APIRouter(include_in_schema=False)

MOST_AT_ONCE = words.CAP
"""Jobs that one action on all that match takes, the first of the list: some seconds' work."""

_REASONS = 2
_DONE = {"retry": "retried", "cancel": "cancelled", "delete": "deleted"}
_TAKES: dict[str, tuple[str, ...]] = {
    "retry": (Status.FAILED, Status.CANCELLED, RETRYING),
    "cancel": (Status.SCHEDULED, Status.PENDING, Status.PROCESSING),
    "delete": (Status.COMPLETED, Status.FAILED, Status.CANCELLED),
}


@router.get("/jobs/bulk")
async def confirm(request: Request) -> Response:
    """What would be done, and to how many: nothing is changed yet."""
    require_change(request)
    given = query_of(request)
    action, selection = _action(given), selection_from(given)
    back = f"/jobs{selection.query()}"
    ids = [id for id in dict.fromkeys(given.list("id")) if id]
    if not ids and not given.get("all"):
        return done(request, back, "Select some jobs first.", is_problem=True)
    desk = desk_of(request)
    is_search = bool(selection.q) and not ids
    look = await desk.read(request, is_search, _look, desk.queue, action, selection, ids)
    return page(
        request,
        "confirm.html",
        action=action,
        done=_DONE[action],
        selection=selection,
        back=back,
        most=MOST_AT_ONCE,
        searched=MOST_SEARCHED,
        is_named=bool(ids),
        **look,
    )


def _look(queue: Queue, action: str, selection: Selection, ids: list[str]) -> dict[str, Any]:
    """How many there are, and how many of them the action can be done to."""
    if ids:
        able = [job.id for job in queue.get_many(ids) if action in actions_for(job)]
        return {"ids": able, "count": len(able), "total": len(ids), "pinned": selection}
    now = to_datetime(queue.store.now())
    pinned = reachable(selection, action)
    if pinned is not None:
        pinned = pinned.pinned(now)
    return {
        "ids": [],
        "count": 0 if pinned is None else _count(queue, pinned, MOST_AT_ONCE + 1),
        "total": _count(queue, selection, MOST_AT_ONCE + 1),
        "pinned": pinned or selection,
    }


def reachable(selection: Selection, action: str) -> Selection | None:
    """The selection without the states in which the action can't be done; None if none is left."""
    given = set(selection.statuses) or {*Status, RETRYING}
    if selection.error:
        given &= {Status.FAILED}
    states = [state for state in _TAKES[action] if state in given]
    if action == "retry" and Status.SCHEDULED in given and RETRYING not in states:
        states.append(RETRYING)
    if action == "cancel" and RETRYING in given and Status.SCHEDULED not in states:
        states.append(RETRYING)
    return replace(selection, statuses=tuple(str(state) for state in states)) if states else None


def _count(queue: Queue, selection: Selection, cap: int) -> int:
    filters = selection.filters(to_datetime(queue.store.now()))
    if selection.q:
        return sum(1 for _ in islice(matching(queue, **filters), cap))
    return queue.count(**{name: filters[name] for name in filters.keys() - {"search", "ascending"}}, cap=cap)


@router.post("/jobs/bulk")
async def change_many(request: Request) -> Response:
    """Do it: to the jobs named, or to as many as were stated of those that match."""
    form = await submitted(request)
    action, selection = _action(form), selection_from(form)
    back = form.get("back") or "/jobs"
    ids = [id for id in dict.fromkeys(form.list("id")) if id]
    if not ids and not form.get("all"):
        return done(request, back, "Select some jobs first.", is_problem=True)
    desk = desk_of(request)
    most = _stated(form.get("count"))
    made = await desk.call_long(_change_many, desk.queue, action, selection, ids, most)
    return done(request, back, _outcome(action, made), is_problem=made.refused > 0)


def _action(given: Form) -> str:
    action = given.get("action")
    if action not in _DONE:
        raise ConfigError(f"{shown(action)} is not an action; allowed: {', '.join(_DONE)}")
    return action


def _stated(count: str) -> int:
    if not (count.isascii() and count.isdigit() and len(count) < 10):
        raise ConfigError(f"count must be the number of jobs that was confirmed, not {shown(count)}")
    return min(int(count), MOST_AT_ONCE)


def _change_many(queue: Queue, action: str, selection: Selection, ids: list[str], most: int) -> Operated:
    if not ids:
        narrowed = reachable(selection, action)
        if narrowed is None:
            return Operated()
        filters = narrowed.filters(to_datetime(queue.store.now()))
        ids = list(islice(matching(queue, **filters), most))
    # Those and no others, also if more come to fit while it goes on.
    return operate(queue, action, iter(ids), kept=_REASONS)


def _outcome(action: str, made: Operated) -> str:
    text = f"{words.plural(made.done)} {_DONE[action]}."
    if made.refused:
        reasons = "; ".join(words.first_line(str(refusal.error), 120) for refusal in made.refusals)
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
    older_than = given.get("older_than") or "7d"
    statuses, age = _cleanup(given, older_than)
    desk = desk_of(request)
    count = await desk.call(_count_old, desk.queue, statuses, age)
    return page(
        request, "cleanup.html", count=count, older_than=older_than, is_of_failed=Status.FAILED in statuses
    )


@router.post("/cleanup")
async def clean_up(request: Request) -> Response:
    form = await submitted(request)
    statuses, age = _cleanup(form, form.get("older_than"))
    desk = desk_of(request)
    delete = desk.queue.purge if Status.FAILED in statuses else desk.queue.cleanup
    count = await desk.call_long(delete, age)
    return done(request, "/", f"{words.plural(count)} deleted.")


def _cleanup(given: Form, older_than: str) -> tuple[list[Status], timedelta]:
    """Which jobs, and how long ago they must have finished."""
    try:
        seconds = parse_duration(older_than)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST_DURATION:
        raise ConfigError(f"the age must be a duration such as 12h or 7d, not {shown(older_than)}")
    failed = {Status.FAILED}
    return sorted(failed if given.get("failed") else FINISHED - failed), timedelta(seconds=seconds)


def _count_old(queue: Queue, statuses: list[Status], age: timedelta) -> int:
    until = to_datetime(queue.store.now()) - age
    return queue.count(status=statuses, until=until, sort="finished", cap=words.CAP + 1)
