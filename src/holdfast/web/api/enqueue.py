"""Enqueueing over HTTP: one job, or many at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Annotated, cast

from fastapi import APIRouter, Header, Request, Response
from msgspec.structs import asdict

from holdfast.core.clock import parse_instant
from holdfast.core.job import Job
from holdfast.enqueueing.options import OPTIONS
from holdfast.errors import BatchRefused, ConfigError
from holdfast.handlers.options import EnqueueOptions
from holdfast.observe import shapes
from holdfast.queue import Queue
from holdfast.web.api.filters import camel
from holdfast.web.api.messages import AcceptedTasks, NewTask, NewTasks, Options
from holdfast.web.api.operation import operation
from holdfast.web.backend import backend_of, root_of
from holdfast.web.errors import Refused
from holdfast.web.responses import json_bytes, json_response
from holdfast.web.route import LARGE_BODY, StrictRoute, read_body

router = APIRouter(prefix="/api/tasks", tags=["tasks"], route_class=StrictRoute)

KEY_SECONDS = 24 * 3600.0
"""How long an Idempotency-Key is held after its job has finished."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        description="Makes it safe to send the request again. Until 24 h after the job has finished, the "
        "same key and payload return the first job with 200; a different payload returns 409.",
    ),
]


@router.post(
    "",
    summary="Enqueue a job",
    **operation(
        409,
        429,
        body=NewTask,
        answer=shapes.Accepted,
        status=201,
        other={200: (shapes.Accepted, "A job with this key already exists")},
    ),
)
async def create_task(request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Store a job. It is durable when the response is sent; requests that arrive together share a commit."""
    new = await read_body(request, NewTask)
    backend = backend_of(request)
    backend.require_enqueueable(new.type)
    options = options_from(new.options or Options(), _as_sent(idempotency_key))
    backend.count_enqueues(request)
    with http_words():
        job, is_new = await _enqueue(request, new, options)
    place = f"{root_of(request)}/api/tasks/{job.id}"
    return json_response(shapes.accepted(job), 201 if is_new else 200, {"Location": place})


async def _enqueue(request: Request, new: NewTask, options: EnqueueOptions) -> tuple[Job, bool]:
    backend = backend_of(request)
    if request.scope["holdfast.size"] <= LARGE_BODY:
        return await backend.queue.admit(new.type, new.payload, **options)
    try:
        return (await backend.call(Queue.enqueue_batch, [(new.type, new.payload, options)]))[0]
    except BatchRefused as refused:
        raise refused.error from None


@router.post(
    "/batch",
    summary="Enqueue many jobs",
    **operation(
        409,
        429,
        body=NewTasks,
        answer=AcceptedTasks,
        status=201,
        other={200: (AcceptedTasks, "All of the jobs already existed")},
    ),
)
async def create_tasks(request: Request, idempotency_key: IdempotencyKey = None) -> Response:
    """Store up to 10,000 jobs in one commit: all of them, or none.

    With an Idempotency-Key, each task without a key gets one derived from the header and its position.
    """
    new = await read_body(request, NewTasks)
    backend = backend_of(request)
    key = _as_sent(idempotency_key)
    backend.count_enqueues(request, len(new.tasks))
    with http_words():
        answer, is_new = await backend.call(_enqueue_batch, backend.require_enqueueable, new.tasks, key)
    return Response(answer, 201 if is_new else 200, media_type="application/json")


def _enqueue_batch(
    queue: Queue, require_enqueueable: Callable[[str], None], tasks: list[NewTask], key: str | None
) -> tuple[bytes, bool]:
    """The answer, and whether any of the jobs is new."""
    items: list[tuple[str, object, EnqueueOptions]] = []
    for place, task in enumerate(tasks):
        try:
            require_enqueueable(task.type)
            options = task.options or Options()
            own = None if key is None or _has_key(options) else f"{key}#{place}"
            items.append((task.type, task.payload, options_from(options, own)))
        except ConfigError as error:
            raise BatchRefused(place, error) from None
        except Refused as refused:
            refused.detail = f"tasks[{place}]: {refused.detail}; nothing was stored"
            raise
    stored = queue.enqueue_batch(items)
    answer = {"tasks": [shapes.accepted(job) for job, _ in stored], "count": len(stored)}
    return json_bytes(answer), any(is_new for _, is_new in stored)


def _has_key(options: Options) -> bool:
    return asdict(options)["idempotency_key"] is not None


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
            raise BatchRefused(error.index, _renamed(error.error)) from None
        raise
    except ConfigError as error:
        raise _renamed(error) from None


_HTTP_NAMES = {option.name: camel(option.http_name or option.name) for option in OPTIONS.values()}


def _renamed(error: ConfigError) -> ConfigError:
    name = _HTTP_NAMES.get(error.option or "")
    return error if name is None else ConfigError(error.problem, option=name, hint=error.hint)


def options_from(options: Options, header_key: str | None) -> EnqueueOptions:
    """The options of `Queue.enqueue` that a body and its Idempotency-Key header stand for."""
    sent = asdict(options)
    made = {name: sent[option.http_name or name] for name, option in OPTIONS.items()}
    if header_key is not None:
        if made["key"] not in (None, header_key):
            raise ConfigError("options.idempotencyKey and the Idempotency-Key header differ")
        made["key"] = header_key
        if made["key_for"] is None:
            made["key_for"] = KEY_SECONDS
    given = {name: value for name, value in made.items() if value is not None}
    for name, value in given.items():
        if OPTIONS[name].kind == "instant":
            given[name] = parse_instant(_HTTP_NAMES[name], value)
    return cast(EnqueueOptions, given)
