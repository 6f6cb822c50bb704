"""Jobs over HTTP: look, retry, cancel, delete; one or many."""

from __future__ import annotations

from datetime import datetime
from itertools import islice
from typing import Annotated, Any, Literal

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response

from holdfast.core.clock import parse_instant
from holdfast.core.job import RESERVED_IDS, Job
from holdfast.core.redact import redact
from holdfast.core.search import Search, parse_search
from holdfast.core.secret_reuse import restore_secrets
from holdfast.errors import ConfigError, JobNotFound
from holdfast.jobs.output_log import from_whole_character, output_of
from holdfast.listing import Page
from holdfast.observe import shapes
from holdfast.observe.overview import overview
from holdfast.operate import matching, operate
from holdfast.queue import Queue
from holdfast.store.protocol import Store
from holdfast.web import schema
from holdfast.web.answer import json_bytes, json_response
from holdfast.web.api.documented import BODY, errors
from holdfast.web.desk import Desk, desk_of
from holdfast.web.errors import Refused, refusal
from holdfast.web.route import StrictRoute

router = APIRouter(prefix="/api/tasks", tags=["tasks"], route_class=StrictRoute)

LARGEST_OFFSET = 2**31 - 1
MOST_IN_BULK = 100_000
LARGEST_PAGE = 8 * 1024 * 1024
"""Bytes of a page with payloads, results and errors; beyond that it ends early."""

JobId = Annotated[str, Path(description="the job's id", examples=["job1"])]


@router.get("", summary="List jobs", response_model=schema.TaskList, responses=errors())
async def list_tasks(
    request: Request,
    type: Annotated[str | None, Query(description="only this type")] = None,
    status: Annotated[
        list[str] | None, Query(description="only these states; may be repeated; retrying is one, too")
    ] = None,
    error: Annotated[
        str | None, Query(description="only failed jobs with this error, of which numbers do not count")
    ] = None,
    search: Annotated[
        str | None,
        Query(
            description='words and "phrases" in id, key or error, fields of the payload; reads 10,000 jobs',
            examples=["timeout payload.user.id:42"],
        ),
    ] = None,
    since: Annotated[
        str | None, Query(description="created at this instant or later", examples=["2026-01-15T10:00:00Z"])
    ] = None,
    until: Annotated[
        str | None, Query(description="created before this instant", examples=["2026-01-15T11:00:00Z"])
    ] = None,
    sort: Annotated[
        Literal["created", "finished", "priority"],
        Query(description="by what; finished has finished jobs only, and its since and until are their ends"),
    ] = "created",
    order: Annotated[
        Literal["asc", "desc"], Query(description="desc is the latest or highest first")
    ] = "desc",
    limit: Annotated[int, Query(ge=1, le=100, description="how many")] = 50,
    offset: Annotated[int, Query(ge=0, le=LARGEST_OFFSET, description="how many to pass over")] = 0,
    cursor: Annotated[
        str | None,
        Query(
            description="nextCursor of the page before, in the same order: however deep, it costs the same"
        ),
    ] = None,
    full: Annotated[bool, Query(description="with payload, result and errors")] = False,
) -> Response:
    """Jobs, newest first unless told otherwise."""
    if cursor is not None and offset:
        raise ConfigError("cursor and offset exclude each other")
    if cursor is not None and cursor.startswith("<"):  # these pages go forward only
        raise ConfigError("cursor must be the nextCursor of a page before")
    desk = desk_of(request)
    is_slow = search is not None or full or offset > shapes.COUNTED
    page = await desk.read(
        request,
        is_slow,
        _page,
        desk.queue,
        {
            "type": type,
            "status": status,
            "error": error,
            "since": None if since is None else _instant("since", since),
            "until": None if until is None else _instant("until", until),
            "sort": sort,
        },
        {"search": search, "ascending": order == "asc", "offset": offset, "cursor": cursor},
        limit=limit,
        full=full,
    )
    return Response(page, media_type="application/json")


def _page(queue: Queue, filter: dict[str, Any], paging: dict[str, Any], *, limit: int, full: bool) -> bytes:
    offset, search = paging["offset"], paging["search"]
    total = None
    if search is None or parse_search(search) == Search():
        total = queue.count(**filter, cap=max(offset, shapes.COUNTED) + 1)
    page = Page(jobs=[], next=None, previous=None)
    # Rows that are passed over have to be read.
    if total is None or offset < total or paging["cursor"] is not None:
        page = queue.page(**filter, **paging, limit=limit, brief=True)
    jobs = page.jobs
    tasks = _full(queue, jobs) if full else [shapes.task_item(job) for job in jobs]
    if len(tasks) < len(jobs):
        # They are large: fewer than asked for, and the next page begins where these end.
        page = queue.page(**filter, **paging, limit=len(tasks), brief=True)
    return json_bytes(
        shapes.task_list(
            tasks, total=total, limit=limit, offset=offset, following=page.next, examined=page.examined
        )
    )


def _full(queue: Queue, jobs: list[Job]) -> list[dict[str, Any]]:
    """The jobs with all they have; of large ones no more than fit into an answer, but one."""
    tasks: list[dict[str, Any]] = []
    size = 0
    for item in jobs:
        # One that was deleted just now is shown as it was.
        task = shapes.task(queue.get(item.id) or item, redact)
        size += len(json_bytes(task))
        if tasks and size > LARGEST_PAGE:
            break
        tasks.append(task)
    return tasks


@router.delete("", summary="Delete old jobs", response_model=schema.Deleted, responses=errors())
async def clean_up(
    request: Request,
    olderThan: Annotated[
        str, Query(description="finished before this instant", examples=["2026-01-15T10:00:00Z"])
    ],
    status: Annotated[
        str | None, Query(description="failed, to delete those instead of completed and cancelled ones")
    ] = None,
) -> Response:
    """Delete completed and cancelled jobs that finished before an instant."""
    if status not in (None, "failed", "dead"):
        raise ConfigError("status may be failed; left out, completed and cancelled jobs are deleted")
    desk = desk_of(request)
    delete = desk.queue.cleanup if status is None else desk.queue.purge
    return json_response({"deleted": await desk.call_long(delete, _instant("olderThan", olderThan))})


def _instant(name: str, text: str) -> datetime:
    return parse_instant(name, text.replace(" ", "+"))  # a + that was not escaped in a query is a space


@router.get("/stats", summary="Count jobs", response_model=schema.Stats, responses=errors())
async def stats(request: Request) -> Response:
    """Jobs by state, in all and by type, and what a person should know."""
    desk = desk_of(request)
    return json_response(shapes.overview(await desk.call(overview, desk.queue)))


@router.post(
    "/bulk", summary="Retry, cancel or delete many jobs", response_model=schema.BulkDone,
    responses=errors(*BODY, 409),
)  # fmt: skip
async def bulk(request: Request, order: schema.Bulk) -> Response:
    """Do the same to the jobs named, or to all that a filter finds.

    A job that can't be retried, cancelled or deleted is passed over and named. With a filter, expectedCount
    has to be said: if another number is found, nothing is done.
    """
    desk = desk_of(request)
    if (order.ids is None) == (order.filter is None):
        raise ConfigError("say either ids or filter")
    if order.filter is not None and order.expectedCount is None:
        raise ConfigError("filter needs expectedCount: how many jobs you expect it to find")
    return json_response(await desk.call_long(_bulk, desk.queue, order))


def _bulk(queue: Queue, order: schema.Bulk) -> dict[str, Any]:
    if order.ids is not None:
        ids = list(dict.fromkeys(order.ids))
    else:
        assert order.filter is not None
        ids = list(islice(matching(queue, **order.filter.model_dump()), MOST_IN_BULK + 1))
    if len(ids) > MOST_IN_BULK:
        raise ConfigError(f"a filter may find at most {MOST_IN_BULK} jobs here; narrow it")
    count = len(ids)
    if order.expectedCount not in (None, count):
        raise Refused(
            409, "count_differs", f"there are {count} such jobs, not {order.expectedCount}; nothing was done"
        )
    # Those and no others, also if more come to fit while it goes on.
    made = operate(queue, order.action, iter(ids))
    return {
        "action": order.action,
        "matched": count,
        "done": made.done,
        "refused": made.refused,
        "refusals": [
            {"id": r.job_id, "code": refusal(r.error).code, "message": str(r.error)} for r in made.refusals
        ],
    }


@router.get("/{id}", summary="Get a job", response_model=schema.Task, responses=errors(404))
async def get_task(request: Request, id: JobId) -> Response:
    """Everything about a job. Fields whose names say that they are secret show [redacted]."""
    _refuse_reserved(id)
    return Response(await desk_of(request).read_job(request, id, _whole), media_type="application/json")


def _whole(job: Job) -> bytes:
    return json_bytes(shapes.task(job, redact))


def _refuse_reserved(id: str) -> None:
    """Words that are paths of their own are no ids: whoever asks for one has taken the wrong method."""
    if id in RESERVED_IDS:
        raise HTTPException(405)


async def known_job(desk: Desk, id: str) -> Job:
    """The job, without what may be large."""
    found = await desk.call(desk.queue.get_many, [id])
    if not found:
        raise JobNotFound(id)
    return found[0]


@router.delete(
    "/{id}", summary="Delete a job", status_code=204, response_class=Response, responses=errors(404)
)
async def delete_task(request: Request, id: JobId) -> Response:
    """Delete a completed, failed or cancelled job and its history."""
    _refuse_reserved(id)
    desk = desk_of(request)
    await desk.call(desk.queue.delete, id)
    return Response(status_code=204)


@router.post(
    "/{id}/retry", summary="Retry a job", response_model=schema.Retried, responses=errors(*BODY, 404, 409)
)
async def retry_task(request: Request, id: JobId, body: schema.Retry | None = None) -> Response:
    """Run a failed, cancelled or waiting-for-retry job again from its first attempt."""
    desk = desk_of(request)
    retried = await desk.call(retry_with, desk, id, None if body is None else body.payload)
    return json_response(shapes.retried(retried))


def retry_with(desk: Desk, id: str, payload: dict[str, Any] | None) -> Job:
    """Run a job again, with another payload if there is one; its [redacted] fields keep what is stored."""
    if payload is not None:
        stored = desk.queue.get(id)
        if stored is None:
            raise JobNotFound(id)
        # Another payload makes it another job, for which the same rules hold as for a new one.
        desk.require_enqueueable(stored.type)
        payload = restore_secrets(payload, stored.payload)
    return desk.queue.retry(id, payload)


@router.post("/{id}/cancel", summary="Cancel a job", response_model=schema.Cancelled, responses=errors(404))
async def cancel_task(request: Request, id: JobId) -> Response:
    """Cancel a waiting job now, and ask a running one to stop."""
    desk = desk_of(request)
    return json_response(shapes.cancelled(await desk.call(desk.queue.cancel, id)))


@router.get(
    "/{id}/why", summary="Why is a job not running?", response_model=schema.Why, responses=errors(404)
)
async def why(request: Request, id: JobId) -> Response:
    """Why a job is not running (yet), and when that will change; for a finished one, how it ended."""
    desk = desk_of(request)
    job = await known_job(desk, id)
    return json_response(shapes.reasons(job, await desk.call(desk.queue.why, id)))


@router.get(
    "/{id}/logs",
    summary="The output of a command",
    response_model=schema.Log,
    responses={200: {"content": {"text/plain": {}}}, **errors(404)},
)
async def logs(
    request: Request,
    id: JobId,
    tail: Annotated[
        int | None, Query(ge=1, le=2**31 - 1, description="only so many bytes of its end")
    ] = None,
) -> Response:
    """What a shell job has printed, every attempt under its own heading; as text for Accept: text/plain."""
    desk = desk_of(request)
    job = await known_job(desk, id)
    text = await desk.read_slowly(request, whole_output, job, desk.queue.store, tail)
    if request.headers.get("accept", "").startswith("text/plain"):
        return Response(text, media_type="text/plain; charset=utf-8")
    return Response(await desk.call(json_bytes, {"id": job.id, "log": text}), media_type="application/json")


def whole_output(job: Job, store: Store, tail: int | None) -> str:
    with output_of(job, store) as file:
        begin = 0
        if tail is not None:
            begin = max(0, file.seek(0, 2) - tail)
            file.seek(begin)
        data = file.read()
        return (from_whole_character(data) if begin else data).decode("utf-8", "replace")
