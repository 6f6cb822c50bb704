"""One job: its data, its history, why it isn't running, and what can be done about it."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response

from holdfast.core.job import Job
from holdfast.core.redact import redact
from holdfast.errors import InvalidPayload, NoOutput
from holdfast.observe.timeline import duration, timeline
from holdfast.queue import Queue
from holdfast.web.api.tasks import Output, log, read_output, retry_with
from holdfast.web.backend import Backend, backend_of
from holdfast.web.dashboard.jobs import actions_for
from holdfast.web.dashboard.page import (
    done,
    local_path,
    page,
    payload_from,
    query_of,
    require_change,
    submitted,
)

router = APIRouter(include_in_schema=False)

MOST_CHILDREN = 50
LARGEST_OUTPUT = 64 * 1024
_LONGEST_EDITED = 200_000
"""Characters of a payload that are put into a form."""


@router.get("/jobs/{id}")
async def job(request: Request, id: str) -> Response:
    return await _show(request, id)


async def _show(
    request: Request, id: str, status: int = 200, *, edited: str | None = None, problem: str | None = None
) -> Response:
    backend = backend_of(request)

    def show(found: Job) -> Response:
        view = _view_of(backend, found)
        if edited is not None:
            view["editable"] = edited
        return page(
            request, "job.html", status, address=f"/jobs/{id}", events=f"id={id}", problem=problem, **view
        )

    return await backend.read_job(request, id, show)


def _view_of(backend: Backend, found: Job) -> dict[str, Any]:
    queue = backend.queue
    children = queue.children(found.id)
    now = queue.now()
    payload = redact(found.payload)
    text = json.dumps(payload, indent=2, ensure_ascii=False)
    is_too_large = len(text) > _LONGEST_EDITED
    actions = actions_for(found)
    takes_another = "retry" in actions and backend.may_enqueue(found.type)
    return {
        "now": now,
        "job": found,
        "actions": actions,
        "reasons": queue.why(found),
        "steps": timeline(found),
        "payload": payload,
        "result": redact(found.result),
        "is_too_large": is_too_large,
        "editable": text if takes_another and not is_too_large else None,
        "children": queue.get_many(children[:MOST_CHILDREN]),
        "child_count": len(children),
        "parent": next(iter(queue.get_many([found.parent_id] if found.parent_id else [])), None),
        "output": _output(found, queue),
        "workers": {worker.id: f"{worker.host} (pid {worker.pid})" for worker in queue.known_workers()},
        "seconds": duration(found, now),
    }


def _output(job: Job, queue: Queue) -> Output | None:
    """The end of what a command has printed; None if the job has no output."""
    try:
        return read_output(queue, job, LARGEST_OUTPUT)
    except (NoOutput, OSError):
        return None


@router.get("/jobs/{id}/output")
async def output(request: Request, id: str) -> Response:
    """A command's complete output, as text."""
    return await backend_of(request).read(request, partial(log, id=id, is_text=True))


# Changes.


@router.post("/jobs/{id}/retry")
async def retry(request: Request, id: str) -> Response:
    form = await submitted(request)
    backend = backend_of(request)
    text = form.get("payload").replace("\r\n", "\n") if form.list("payload") else None
    try:
        payload = None if text is None else payload_from(text)
        await backend.call(retry_with, backend.require_enqueueable, id, payload)
    except InvalidPayload as error:
        return await _show(request, id, 400, edited=text, problem=str(error))
    return done(request, form.get("back") or f"/jobs/{id}", f"Job {id} will run again.")


@router.post("/jobs/{id}/cancel")
async def cancel(request: Request, id: str) -> Response:
    form = await submitted(request)
    cancelled = await backend_of(request).call(Queue.cancel, id)
    text = f"Job {id} cancelled." if cancelled.is_finished else f"Job {id} was asked to stop."
    return done(request, form.get("back") or f"/jobs/{id}", text)


@router.get("/jobs/{id}/delete")
async def confirm_delete(request: Request, id: str) -> Response:
    """The confirmation page. Changes nothing."""
    require_change(request)
    found = await backend_of(request).call(Queue.require_brief, id)
    back = local_path(query_of(request).get("back") or f"/jobs/{id}")
    return page(request, "delete.html", job=found, back=back)


@router.post("/jobs/{id}/delete")
async def delete(request: Request, id: str) -> Response:
    form = await submitted(request)
    await backend_of(request).call(Queue.delete, id)
    back = form.get("back")
    is_gone = back == f"/jobs/{id}"
    return done(request, "/jobs" if is_gone or not back else back, f"Job {id} deleted.")
