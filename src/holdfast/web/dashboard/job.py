"""One job: what it is, what became of it, why it does not run, and what can be done about it."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from holdfast.core.clock import to_datetime
from holdfast.core.job import Job, Status
from holdfast.core.payload import decode_strictly
from holdfast.core.redact import redact
from holdfast.errors import InvalidPayload, NoOutput
from holdfast.jobs.output_log import from_whole_character, output_of
from holdfast.store.protocol import Store
from holdfast.web.api.tasks import known_job, retry_with, whole_output
from holdfast.web.dashboard.jobs import actions_for, duration
from holdfast.web.dashboard.page import done, local_path, page, query_of, require_change, submitted
from holdfast.web.desk import Desk, desk_of

router = APIRouter(include_in_schema=False)

MOST_CHILDREN = 50
LARGEST_OUTPUT = 64 * 1024
_LONGEST_EDITED = 200_000
"""Characters of a payload that are put into a form."""


class Step(Struct, frozen=True, kw_only=True):
    """One entry of a job's timeline. `look` is a state's name, for its colour."""

    look: str
    title: str
    at: datetime | None = None
    until: datetime | None = None
    worker: str | None = None
    error: str | None = None
    traceback: str | None = None
    detail: dict[str, Any] | None = None

    @property
    def seconds(self) -> float | None:
        return None if self.at is None or self.until is None else (self.until - self.at).total_seconds()


def timeline(job: Job) -> list[Step]:
    """What has happened to a job, as far as it is kept: every failed attempt, and the present one."""
    steps = [Step(look="created", title="Created", at=job.created_at)]
    for failure in job.errors:
        steps.append(
            Step(
                look="failed",
                title=f"Attempt {failure.attempt} failed",
                at=failure.started_at,
                until=failure.finished_at,
                worker=failure.worker_id,
                error=failure.error,
                traceback=failure.traceback,
                detail=redact(failure.detail),
            )
        )
    match job.status:
        case Status.PROCESSING:
            title = f"Attempt {job.attempts} runs" + (
                ", and was asked to stop" if job.cancel_requested else ""
            )
            steps.append(Step(look="processing", title=title, at=job.started_at, worker=job.worker_id))
        case Status.COMPLETED:
            title = f"Attempt {job.attempts} completed"
            steps.append(Step(look="completed", title=title, at=job.started_at, until=job.finished_at))
        case Status.SCHEDULED:
            steps.append(Step(look="scheduled", title="Runs", at=job.next_retry_at or job.run_at))
        case Status.PENDING:
            steps.append(Step(look="pending", title="Waits for a worker"))
        case Status.CANCELLED:
            steps.append(Step(look="cancelled", title="Cancelled", at=job.finished_at))
        case Status.FAILED:
            steps.append(Step(look="failed", title="Failed for good", at=job.finished_at))
    return steps


@router.get("/jobs/{id}")
async def job(request: Request, id: str) -> Response:
    return await _show(request, id)


async def _show(
    request: Request, id: str, status: int = 200, *, edited: str | None = None, problem: str | None = None
) -> Response:
    desk = desk_of(request)

    def show(found: Job) -> Response:
        view = _look(desk, found)
        if edited is not None:
            view["editable"] = edited
        return page(
            request, "job.html", status, address=f"/jobs/{id}", events=f"id={id}", problem=problem, **view
        )

    return await desk.read_job(request, id, show)


def _look(desk: Desk, found: Job) -> dict[str, Any]:
    queue = desk.queue
    children = queue.children(found.id)
    now = to_datetime(queue.store.now())
    payload = redact(found.payload)
    text = json.dumps(payload, indent=2, ensure_ascii=False)
    is_too_large = len(text) > _LONGEST_EDITED
    return {
        "now": now,
        "job": found,
        "actions": actions_for(found),
        "reasons": queue.why(found.id),
        "steps": timeline(found),
        "payload": payload,
        "result": redact(found.result),
        "is_too_large": is_too_large,
        "editable": text if not is_too_large and _may_edit(desk, found) else None,
        "children": queue.get_many(children[:MOST_CHILDREN]),
        "child_count": len(children),
        "parent": next(iter(queue.get_many([found.parent_id] if found.parent_id else [])), None),
        "output": _output(found, queue.store),
        "workers": {worker.id: f"{worker.host} {worker.pid}" for worker in queue.store.list_workers()},
        "seconds": duration(found, now),
    }


def _may_edit(desk: Desk, job: Job) -> bool:
    """Whether another payload is taken for a retry."""
    return "retry" in actions_for(job) and desk.may_enqueue(job.type)


def _output(job: Job, store: Store) -> dict[str, Any] | None:
    """The end of what a command has printed; None if the job has no output."""
    try:
        with output_of(job, store) as file:
            size = file.seek(0, 2)
            begin = max(0, size - LARGEST_OUTPUT)
            file.seek(begin)
            data = file.read(LARGEST_OUTPUT)
    except (NoOutput, OSError):
        return None
    text = (from_whole_character(data) if begin else data).decode("utf-8", "replace")
    return {"text": text, "size": size, "is_cut": begin > 0}


@router.get("/jobs/{id}/output")
async def output(request: Request, id: str) -> Response:
    """All that a command has printed, as text."""
    desk = desk_of(request)
    found = await known_job(desk, id)
    text = await desk.read_slowly(request, whole_output, found, desk.queue.store, None)
    return Response(text, media_type="text/plain; charset=utf-8")


# Changes.


@router.post("/jobs/{id}/retry")
async def retry(request: Request, id: str) -> Response:
    form = await submitted(request)
    desk = desk_of(request)
    text = form.get("payload").replace("\r\n", "\n") if form.list("payload") else None
    try:
        payload = None if text is None else _parse(text)
        await desk.call(retry_with, desk, id, payload)
    except InvalidPayload as error:
        return await _show(request, id, 400, edited=text, problem=str(error))
    return done(request, form.get("back") or f"/jobs/{id}", f"Job {id} runs again.")


def _parse(text: str) -> dict[str, Any]:
    try:
        payload = decode_strictly(text)
    except RecursionError:
        raise InvalidPayload("payload", "is nested too deeply") from None
    except ValueError as error:
        raise InvalidPayload("payload", f"is not valid JSON: {error}") from None
    if not isinstance(payload, dict):
        raise InvalidPayload("payload", "must be a JSON object")
    return payload


@router.post("/jobs/{id}/cancel")
async def cancel(request: Request, id: str) -> Response:
    form = await submitted(request)
    desk = desk_of(request)
    cancelled = await desk.call(desk.queue.cancel, id)
    text = f"Job {id} is cancelled." if cancelled.is_finished else f"Job {id} was asked to stop."
    return done(request, form.get("back") or f"/jobs/{id}", text)


@router.get("/jobs/{id}/delete")
async def confirm_delete(request: Request, id: str) -> Response:
    """Asks first: nothing is changed yet."""
    require_change(request)
    desk = desk_of(request)
    found = await known_job(desk, id)
    back = local_path(query_of(request).get("back") or f"/jobs/{id}")
    return page(request, "delete.html", job=found, back=back)


@router.post("/jobs/{id}/delete")
async def delete(request: Request, id: str) -> Response:
    form = await submitted(request)
    desk = desk_of(request)
    await desk.call(desk.queue.delete, id)
    back = form.get("back")
    is_gone = back == f"/jobs/{id}"
    return done(request, "/jobs" if is_gone or not back else back, f"Job {id} is deleted.")
