"""Jobs over HTTP: list, inspect, retry, cancel and delete, one or many."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Annotated, Any

from fastapi import APIRouter, HTTPException, Path, Query, Request, Response
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import PlainTextResponse

from holdfast.core.filter import COUNTED, Filter, read_moment
from holdfast.core.job import RESERVED_IDS, Job
from holdfast.core.secret_reuse import restore_secrets
from holdfast.errors import ConfigError
from holdfast.jobs.output_log import from_whole_character, output_of
from holdfast.observe import shapes, words
from holdfast.observe.overview import overview
from holdfast.queue import Queue
from holdfast.web.api.filters import FilterInQuery, filter_from
from holdfast.web.api.messages import Bulk, BulkDone, Deleted, Log, Refusal, Retry
from holdfast.web.api.operation import operation
from holdfast.web.backend import backend_of
from holdfast.web.errors import Refused, refusal
from holdfast.web.responses import json_bytes, json_response
from holdfast.web.route import StrictRoute, read_body

router = APIRouter(prefix="/api/tasks", tags=["tasks"], route_class=StrictRoute)

LARGEST_OFFSET = 2**31 - 1
MOST_IN_BULK = 100_000
LARGEST_PAGE = 8 * 1024 * 1024
"""Bytes of a page with payloads, results and errors; beyond that it ends early."""

JobId = Annotated[str, Path(description="the job's id", examples=["job1"])]


@router.get("", summary="List jobs", **operation(answer=shapes.TaskList))
async def list_tasks(
    request: Request,
    filter: FilterInQuery,
    limit: Annotated[int, Query(ge=1, le=100, description="page size")] = 50,
    offset: Annotated[int, Query(ge=0, le=LARGEST_OFFSET, description="how many jobs to skip")] = 0,
    cursor: Annotated[
        str | None,
        Query(description="nextCursor of the previous page, with the same order; deep pages cost no more"),
    ] = None,
    full: Annotated[bool, Query(description="include payload, result and errors")] = False,
) -> Response:
    """Jobs, newest first by default."""
    is_slow = filter.search is not None or full or offset > COUNTED
    read = partial(_page, filter=filter, limit=limit, offset=offset, cursor=cursor, full=full)
    page = await backend_of(request).read(request, read, is_slow=is_slow)
    return Response(page, media_type="application/json")


def _page(queue: Queue, *, filter: Filter, limit: int, offset: int, cursor: str | None, full: bool) -> bytes:
    page = queue.page(filter, limit=limit, offset=offset, cursor=cursor, brief=True, with_total=True)
    tasks = _full(queue, page.jobs) if full else [shapes.task_item(job) for job in page.jobs]
    if len(tasks) < len(page.jobs):
        # They are large: fewer than asked for, and the next page begins where these end.
        shorter = queue.page(filter, limit=len(tasks), offset=offset, cursor=cursor, brief=True)
        page = replace(page, next=shorter.next)
    return json_bytes(shapes.task_list(tasks, page, limit=limit, offset=offset))


def _full(queue: Queue, jobs: list[Job]) -> list[dict[str, Any]]:
    """The jobs with all they have; of large ones no more than fit into an answer, but one."""
    whole = {job.id: job for job in queue.get_whole([job.id for job in jobs], LARGEST_PAGE)}
    while whole and jobs[-1].id not in whole:
        jobs = jobs[:-1]
    tasks: list[dict[str, Any]] = []
    size = 0
    for item in jobs:
        # One that was deleted just now is shown as it was.
        task = shapes.task(whole.get(item.id, item))
        size += len(json_bytes(task))
        if tasks and size > LARGEST_PAGE:
            break
        tasks.append(task)
    return tasks


@router.delete("", summary="Delete old jobs", **operation(answer=Deleted))
async def clean_up(
    request: Request,
    olderThan: Annotated[
        str,
        Query(
            description="delete jobs that finished before this time; 7d means 7 days ago",
            examples=["2026-01-15T10:00:00Z"],
        ),
    ],
    status: Annotated[
        str | None, Query(description="failed: delete failed jobs instead of completed and cancelled ones")
    ] = None,
) -> Response:
    """Delete completed and cancelled jobs that finished before a given time.

    Jobs that still hold their key are kept.
    """
    if status not in (None, "failed", "dead"):
        raise ConfigError(
            "status must be failed or omitted; if omitted, completed and cancelled jobs are deleted"
        )
    delete = Queue.cleanup if status is None else Queue.purge
    moment = read_moment("olderThan", olderThan)
    return json_response(Deleted(deleted=await backend_of(request).call_long(delete, moment)))


@router.get("/stats", summary="Count jobs", **operation(answer=shapes.Stats))
async def stats(request: Request) -> Response:
    """Jobs by state, in total and by type, and what needs attention."""
    return json_response(shapes.overview(await backend_of(request).call(overview)))


@router.post(
    "/bulk", summary="Retry, cancel or delete many jobs", **operation(409, body=Bulk, answer=BulkDone)
)
async def bulk(request: Request) -> Response:
    """Retry, cancel or delete the jobs listed, or all that match a filter.

    A job that can't be retried, cancelled or deleted is skipped and listed in `refusals`. A filter requires
    `expectedCount`: if the number of jobs differs, nothing is done.
    """
    order = await read_body(request, Bulk)
    if (order.ids is None) == (order.filter is None):
        raise ConfigError("pass either ids or filter")
    if order.filter is not None and order.expected_count is None:
        raise ConfigError("filter requires expectedCount: how many jobs you expect it to match")
    return json_response(await backend_of(request).call_long(_bulk, order))


def _bulk(queue: Queue, order: Bulk) -> BulkDone:
    if order.ids is not None:
        ids = list(dict.fromkeys(order.ids))
    else:
        assert order.filter is not None
        ids = list(islice(queue.ids(filter_from(order.filter)), MOST_IN_BULK + 1))
    if len(ids) > MOST_IN_BULK:
        raise ConfigError(f"the filter matches more than {MOST_IN_BULK} jobs; narrow it down")
    count = len(ids)
    if order.expected_count not in (None, count):
        found = words.plain_plural(count, "job")
        raise Refused(409, "count_differs", f"found {found}, not {order.expected_count}; nothing was done")
    # Those and no others, also if more come to fit while it goes on.
    made = queue.act(order.action, ids)
    return BulkDone(
        action=order.action,
        matched=count,
        done=made.done,
        refused=made.refused,
        refusals=[
            Refusal(id=r.job_id, code=refusal(r.error).code, message=str(r.error)) for r in made.refusals
        ],
    )


@router.get("/{id}", summary="Get a job", **operation(404, answer=shapes.Task))
async def get_task(request: Request, id: JobId) -> Response:
    """Everything about a job. Secret fields, recognised by their names, show [redacted]."""
    _refuse_reserved(id)
    return await backend_of(request).read_job(request, id, lambda job: json_response(shapes.task(job)))


def _refuse_reserved(id: str) -> None:
    """Reserved words are not ids: a request for one used the wrong method."""
    if id in RESERVED_IDS:
        raise HTTPException(405)


@router.delete("/{id}", summary="Delete a job", response_class=Response, **operation(404, status=204))
async def delete_task(request: Request, id: JobId) -> Response:
    """Delete a completed, failed or cancelled job and its history."""
    _refuse_reserved(id)
    await backend_of(request).call(Queue.delete, id)
    return Response(status_code=204)


@router.post("/{id}/retry", summary="Retry a job", **operation(404, 409, body=Retry, answer=shapes.Retried))
async def retry_task(request: Request, id: JobId) -> Response:
    """Run a failed, cancelled or retrying job again, from its first attempt."""
    body = await read_body(request, Retry)
    backend = backend_of(request)
    retried = await backend.call(retry_with, backend.require_enqueueable, id, body.payload)
    return json_response(shapes.retried(retried))


def retry_with(
    queue: Queue, require_enqueueable: Callable[[str], None], id: str, payload: dict[str, Any] | None
) -> Job:
    """Run a job again, with another payload if there is one; its [redacted] fields keep what is stored."""
    if payload is not None:
        stored = queue.require(id)
        # Another payload makes it another job, for which the same rules hold as for a new one.
        require_enqueueable(stored.type)
        payload = restore_secrets(payload, stored.payload)
    return queue.retry(id, payload)


@router.post("/{id}/cancel", summary="Cancel a job", **operation(404, answer=shapes.Cancelled))
async def cancel_task(request: Request, id: JobId) -> Response:
    """Cancel a waiting job at once, or ask a running one to stop."""
    return json_response(shapes.cancelled(await backend_of(request).call(Queue.cancel, id)))


@router.get("/{id}/why", summary="Why isn't a job running?", **operation(404, answer=shapes.Why))
async def why(request: Request, id: JobId) -> Response:
    """Why a job isn't running and when that will change; for a finished job, how it ended."""
    return json_response(await backend_of(request).call(_why, id))


def _why(queue: Queue, id: str) -> dict[str, Any]:
    job = queue.require_brief(id)
    return shapes.reasons(job, queue.why(job))


@router.get(
    "/{id}/logs",
    summary="Get the output of a command",
    **operation(404, answer=Log, as_text=True),
)
async def logs(
    request: Request,
    id: JobId,
    tail: Annotated[int | None, Query(ge=1, le=2**31 - 1, description="only the last N bytes")] = None,
) -> Response:
    """The output of a shell job, with a heading for each attempt; as text with Accept: text/plain."""
    is_text = request.headers.get("accept", "").startswith("text/plain")
    return await backend_of(request).read(request, partial(log, id=id, tail=tail, is_text=is_text))


def log(queue: Queue, *, id: str, tail: int | None = None, is_text: bool) -> Response:
    text = read_output(queue, queue.require_brief(id), tail).text
    return PlainTextResponse(text) if is_text else json_response(Log(id=id, log=text))


class Output(Struct, frozen=True):
    """A command's output, or the end of it; `size` is the total number of bytes."""

    text: str
    size: int
    is_cut: bool


def read_output(queue: Queue, job: Job, tail: int | None = None) -> Output:
    with output_of(job, queue) as file:
        size = file.seek(0, 2)
        begin = 0 if tail is None else max(0, size - tail)
        file.seek(begin)
        data = file.read(tail if tail is not None else -1)
    text = (from_whole_character(data) if begin else data).decode("utf-8", "replace")
    return Output(text, size, begin > 0)
