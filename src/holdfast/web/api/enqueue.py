"""Enqueueing over HTTP: one job, or many at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated, Any

from fastapi import APIRouter, Header, Request, Response

from holdfast.core.clock import parse_instant
from holdfast.core.job import Job
from holdfast.errors import BatchRefused, ConfigError
from holdfast.observe import shapes
from holdfast.web import schema
from holdfast.web.answer import json_bytes, json_response
from holdfast.web.api.documented import BODY, errors
from holdfast.web.desk import Desk, desk_of, root_of
from holdfast.web.errors import Refused
from holdfast.web.route import LARGE_BODY, StrictRoute

router = APIRouter(prefix="/api/tasks", tags=["tasks"], route_class=StrictRoute)

KEY_SECONDS = 24 * 3600.0
"""How long an Idempotency-Key is held after its job has finished."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="Makes it safe to send the request again: for 24 h after the job has finished, the same "
        "key and payload answer 200 with the first job, another payload 409.",
    ),
]


@router.post(
    "",
    summary="Enqueue a job",
    status_code=201,
    response_model=schema.Accepted,
    responses={
        200: {"model": schema.Accepted, "description": "The job that this key named already"},
        **errors(*BODY, 409, 429),
    },
)
async def create_task(
    request: Request, new: schema.NewTask, idempotency_key: IdempotencyKey = None
) -> Response:
    """Store a job. It is durable when the answer is sent; requests that come together share a commit."""
    desk = desk_of(request)
    desk.require_enqueueable(new.type)
    options = options_from(new.options or schema.Options(), _as_sent(idempotency_key))
    desk.count_enqueues(request)
    with http_words():
        job, is_new = await _enqueue(desk, request, new, options)
    place = f"{root_of(request)}/api/tasks/{job.id}"
    return json_response(shapes.accepted(job), 201 if is_new else 200, {"Location": place})


async def _enqueue(
    desk: Desk, request: Request, new: schema.NewTask, options: dict[str, Any]
) -> tuple[Job, bool]:
    if request.scope["holdfast.size"] <= LARGE_BODY:
        return await desk.queue.admit(new.type, new.payload, **options)
    try:
        return (await desk.call(desk.queue.enqueue_batch, [(new.type, new.payload, options)]))[0]
    except BatchRefused as refused:
        raise refused.error from None


@router.post(
    "/batch",
    summary="Enqueue many jobs at once",
    status_code=201,
    response_model=schema.AcceptedTasks,
    responses={
        200: {"model": schema.AcceptedTasks, "description": "All of them were there already"},
        **errors(*BODY, 409, 429),
    },
)
async def create_tasks(
    request: Request, new: schema.NewTasks, idempotency_key: IdempotencyKey = None
) -> Response:
    """Store up to 10,000 jobs in one commit: all of them, or none.

    With an Idempotency-Key each task that has no key of its own gets one made of it and its place.
    """
    desk = desk_of(request)
    key = _as_sent(idempotency_key)
    desk.count_enqueues(request, len(new.tasks))
    with http_words():
        answer, is_new = await desk.call(_enqueue_batch, desk, new.tasks, key)
    return Response(answer, 201 if is_new else 200, media_type="application/json")


def _enqueue_batch(desk: Desk, tasks: list[schema.NewTask], key: str | None) -> tuple[bytes, bool]:
    """The answer, and whether any of the jobs is new."""
    items = []
    for place, task in enumerate(tasks):
        try:
            desk.require_enqueueable(task.type)
            options = task.options or schema.Options()
            own = None if key is None or options.idempotencyKey is not None else f"{key}#{place}"
            items.append((task.type, task.payload, options_from(options, own)))
        except ConfigError as error:
            raise BatchRefused(place, error) from None
        except Refused as refused:
            refused.detail = f"tasks[{place}]: {refused.detail}; nothing was stored"
            raise
    stored = desk.queue.enqueue_batch(items)
    answer = {"tasks": [shapes.accepted(job) for job, _ in stored], "count": len(stored)}
    return json_bytes(answer), any(is_new for _, is_new in stored)


def _as_sent(declared: str | None) -> str | None:
    """The Idempotency-Key, which clients send as UTF-8; frameworks take headers for Latin-1."""
    if declared is None:
        return None
    if not declared:
        raise ConfigError("the Idempotency-Key is empty")
    try:
        return declared.encode("latin-1").decode()
    except UnicodeError:
        return declared


@contextmanager
def http_words() -> Iterator[None]:
    """Errors about options by the names that these have over HTTP."""
    try:
        yield
    except BatchRefused as error:
        if isinstance(error.error, ConfigError):
            raise BatchRefused(error.index, ConfigError(_renamed(str(error.error)))) from None
        raise
    except ConfigError as error:
        raise ConfigError(_renamed(str(error))) from None


_HTTP_NAMES = {"max_attempts": "maxAttempts", "run_at": "runAfter", "key_for": "keyFor"}


def _renamed(text: str) -> str:
    for ours, theirs in _HTTP_NAMES.items():
        text = text.replace(ours, theirs)
    return text.replace(" or a timedelta", "")


def options_from(options: schema.Options, header_key: str | None) -> dict[str, Any]:
    """The options of `Queue.enqueue` that a body and its Idempotency-Key header stand for."""
    key, key_for = options.idempotencyKey, options.keyFor
    if header_key is not None:
        if key not in (None, header_key):
            raise ConfigError("options.idempotencyKey and the Idempotency-Key header differ")
        key, key_for = header_key, KEY_SECONDS if key_for is None else key_for
    made = {
        "id": options.id,
        "priority": options.priority,
        "max_attempts": options.maxAttempts,
        "timeout": options.timeout,
        "delay": options.delay,
        "run_at": None if options.runAfter is None else parse_instant("runAfter", options.runAfter),
        "key": key,
        "key_for": key_for,
    }
    return {name: value for name, value in made.items() if value is not None}
