"""Bulk actions and cleanup: each asks for confirmation, and says how many jobs it affects."""

from __future__ import annotations

from datetime import timedelta
from functools import partial
from itertools import islice
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec.structs import replace

from holdfast.core.filter import COUNTED, MOST_SEARCHED
from holdfast.core.job import FINISHED, RETRYING, UNFINISHED, Status
from holdfast.durations import LONGEST_DURATION, parse_duration
from holdfast.errors import ConfigError
from holdfast.listing.actions import Acted, Action
from holdfast.observe import words
from holdfast.queue import Queue
from holdfast.text import shown
from holdfast.web.backend import backend_of
from holdfast.web.dashboard.jobs import actions_for
from holdfast.web.dashboard.page import Form, done, page, query_of, require_change, submitted
from holdfast.web.dashboard.selection import Selection, selection_from

router = APIRouter(include_in_schema=False)

MOST_AT_ONCE = COUNTED
"""Jobs that one action on all that match takes, the first of the list: some seconds' work."""

_REASONS = 2
_DONE: dict[Action, str] = {"retry": "retried", "cancel": "cancelled", "delete": "deleted"}
_TAKES: dict[Action, tuple[str, ...]] = {
    "retry": (Status.FAILED, Status.CANCELLED, RETRYING),
    "cancel": UNFINISHED,
    "delete": (Status.COMPLETED, Status.FAILED, Status.CANCELLED),
}


@router.get("/jobs/bulk")
async def confirm(request: Request) -> Response:
    """The confirmation page: what would be done, and to how many jobs. Changes nothing."""
    require_change(request)
    given = query_of(request)
    action, selection, ids = _order(given)
    back = f"/jobs{selection.query()}"
    if not ids and not given.get("all"):
        return done(request, back, "Select some jobs first.", is_problem=True)
    is_search = bool(selection.q) and not ids
    read = partial(_view_of, action=action, selection=selection, ids=ids)
    look = await backend_of(request).read(request, read, is_slow=is_search)
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


def _view_of(queue: Queue, action: Action, selection: Selection, ids: list[str]) -> dict[str, Any]:
    """How many jobs match, and how many of them the action applies to."""
    if ids:
        able = [job.id for job in queue.get_many(ids) if action in actions_for(job)]
        return {"ids": able, "count": len(able), "total": len(ids), "pinned": selection}
    narrowed = reachable(selection, action)
    pinned = selection if narrowed is None else narrowed.pinned(queue.now())
    count = 0 if narrowed is None else queue.count(pinned.filter, cap=MOST_AT_ONCE + 1)
    total = queue.count(selection.filter, cap=MOST_AT_ONCE + 1)
    return {"ids": [], "count": count, "total": total, "pinned": pinned}


def reachable(selection: Selection, action: Action) -> Selection | None:
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


@router.post("/jobs/bulk")
async def change_many(request: Request) -> Response:
    """Do it: to the jobs named, or to as many as were stated of those that match."""
    form = await submitted(request)
    action, selection, ids = _order(form)
    back = form.get("back") or "/jobs"
    if not ids and not form.get("all"):
        return done(request, back, "Select some jobs first.", is_problem=True)
    most = _stated(form.get("count"))
    made = await backend_of(request).call_long(_change_many, action, selection, ids, most)
    return done(request, back, _outcome(action, made), is_problem=made.refused > 0)


def _order(given: Form) -> tuple[Action, Selection, list[str]]:
    """The requested action, and the list or the ids that it applies to."""
    for action in _DONE:
        if given.get("action") == action:
            return action, selection_from(given), [id for id in dict.fromkeys(given.list("id")) if id]
    raise ConfigError(f"{shown(given.get('action'))} is not an action; allowed: {', '.join(_DONE)}")


def _stated(count: str) -> int:
    if not (count.isascii() and count.isdigit() and len(count) < 10):
        raise ConfigError(f"count must be the number of jobs confirmed, not {shown(count)}")
    return min(int(count), MOST_AT_ONCE)


def _change_many(queue: Queue, action: Action, selection: Selection, ids: list[str], most: int) -> Acted:
    if not ids:
        narrowed = reachable(selection, action)
        if narrowed is None:
            return Acted()
        ids = list(islice(queue.ids(narrowed.filter), most))
    # Those and no others, also if more come to fit while it goes on.
    return queue.act(action, ids, kept=_REASONS)


def _outcome(action: Action, made: Acted) -> str:
    text = f"{words.plural(made.done)} {_DONE[action]}."
    if not made.refused:
        return text
    reasons = "; ".join(words.first_line(str(refusal.error), 120) for refusal in made.refusals)
    return f"{text} {words.plural(made.refused)} skipped: {reasons}"


# Clean-up.


@router.get("/cleanup")
async def confirm_cleanup(request: Request) -> Response:
    """The confirmation page: how many old jobs would be deleted. Changes nothing."""
    require_change(request)
    given = query_of(request)
    older_than = given.get("older_than") or "7d"
    statuses, age = _cleanup(given, older_than)
    count = await backend_of(request).call(
        Queue.count, status=statuses, until=age, sort="finished", cap=COUNTED + 1
    )
    return page(
        request, "cleanup.html", count=count, older_than=older_than, is_of_failed=Status.FAILED in statuses
    )


@router.post("/cleanup")
async def clean_up(request: Request) -> Response:
    form = await submitted(request)
    statuses, age = _cleanup(form, form.get("older_than"))
    delete = Queue.purge if Status.FAILED in statuses else Queue.cleanup
    count = await backend_of(request).call_long(delete, age)
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
