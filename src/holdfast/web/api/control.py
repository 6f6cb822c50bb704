"""The queue as a whole over HTTP: pause, limits, settings, workers, types, the report, live events."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any

from fastapi import APIRouter, Path, Query, Request, Response
from msgspec import UNSET
from starlette.responses import StreamingResponse

from holdfast.config import find_setting
from holdfast.core.filter import Filter
from holdfast.core.job import base_type
from holdfast.errors import ConfigError
from holdfast.jobs import BUILT_IN
from holdfast.observe import shapes
from holdfast.observe.overview import report as answer_questions
from holdfast.queue import Queue
from holdfast.web.api.filters import FilterInQuery
from holdfast.web.api.messages import JobType, OfType, Paused, RateLimit, RateLimited, SettingValue
from holdfast.web.api.operation import errors, operation
from holdfast.web.backend import Backend, backend_of
from holdfast.web.events import PAGE, Interest, present_state
from holdfast.web.payload_schema import usable
from holdfast.web.responses import json_response, number
from holdfast.web.route import StrictRoute, read_body

flow = APIRouter(prefix="/api/tasks", tags=["control"], route_class=StrictRoute)
router = APIRouter(prefix="/api", route_class=StrictRoute)

MOST_FOLLOWED = 200
_STREAM = "text/event-stream"
_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {"event": {"enum": ["stats", "tasks"]}, "data": {"type": "string"}},
}
TypeQuery = Annotated[str | None, Query(description="only for this type")]
Key = Annotated[str, Path(description="name of the setting", examples=["lease_seconds"])]


@flow.post("/pause", summary="Pause", **operation(body=OfType, answer=Paused))
async def pause(request: Request, type: TypeQuery = None) -> Response:
    """Pause the queue, or one job type, on every worker. Running jobs finish."""
    return await _set_paused(request, True, type)


@flow.post("/resume", summary="Resume", **operation(body=OfType, answer=Paused))
async def resume(request: Request, type: TypeQuery = None) -> Response:
    """Undo a pause of the queue, or of one job type."""
    return await _set_paused(request, False, type)


async def _set_paused(request: Request, paused: bool, type: str | None) -> Response:
    named = _type(await read_body(request, OfType), type)
    await backend_of(request).call(Queue.pause if paused else Queue.resume, named)
    return json_response(Paused(paused=paused, type=named or UNSET))


def _type(body: OfType | SettingValue, query: str | None) -> str | None:
    """A type may stand in the body or in the query."""
    if None not in (body.type, query) and body.type != query:
        raise ConfigError("the type in the body differs from the one in the query")
    return query if body.type is None else body.type


@flow.post("/rate-limit", summary="Set a rate limit", **operation(body=RateLimit, answer=RateLimited))
async def rate_limit(request: Request, type: TypeQuery = None) -> Response:
    """Limit how many jobs start per second across all processes, in total or for one type; 0 is unlimited."""
    body = await read_body(request, RateLimit)
    named = _type(body, type)
    await backend_of(request).call(Queue.set_rate_limit, body.tasks_per_second, named)
    return json_response(RateLimited(tasks_per_second=number(body.tasks_per_second), type=named or UNSET))


@router.get("/workers", tags=["control"], summary="List workers", **operation(answer=list[shapes.Worker]))
async def workers(request: Request) -> Response:
    """The running workers, the age of each one's last heartbeat, and its running jobs."""
    return json_response(await backend_of(request).call(_workers))


def _workers(queue: Queue) -> list[dict[str, Any]]:
    running, now = queue.running(), queue.now()
    return [shapes.worker(worker, running, now) for worker in queue.workers(restarting=True)]


@router.get("/types", tags=["control"], summary="List job types", **operation(answer=list[JobType]))
async def types(request: Request) -> Response:
    """The job types handled by this server or by any worker, with the JSON Schema of each payload."""
    backend = backend_of(request)
    return json_response(await backend.call(known_types, backend.may_enqueue))


def known_types(queue: Queue, may_enqueue: Callable[[str], bool]) -> list[JobType]:
    """The types of this process's handlers, and those that workers have published."""
    known: dict[str, tuple[str, dict[str, Any]]] = {
        record.type: (record.executor, usable(record.schema)) for record in queue.published_types()
    }
    for name in queue.registry.types():
        handler = queue.registry.require(name)
        known[name] = (handler.executor, handler.schema)
    alive = [worker.types for worker in queue.workers()]
    return [
        JobType(
            type=name,
            executor=executor,
            built_in=base_type(name) in BUILT_IN,
            enqueueable=may_enqueue(name),
            workers=sum(name in served for served in alive),
            payload_schema=payload,
        )
        for name, (executor, payload) in sorted(known.items())
    ]


@router.get(
    "/report",
    tags=["control"],
    summary="Summarise backlog, failures and durations",
    **operation(answer=shapes.Report),
)
async def report(request: Request) -> Response:
    """Unfinished jobs, failures by error, stuck jobs, durations, reused deduplication keys, and the jobs of
    the last hour."""
    return json_response(shapes.report(await backend_of(request).read(request, answer_questions)))


@router.get("/config", tags=["settings"], summary="List settings", **operation(answer=dict[str, Any]))
async def list_settings(request: Request, type: TypeQuery = None) -> Response:
    """The current value of every setting, and under `byType` the values stored for single types."""
    return json_response(await backend_of(request).call(_settings, type))


def _settings(queue: Queue, type: str | None) -> dict[str, Any]:
    return shapes.settings(queue.config(type), queue.settings().stored, type)


@router.get("/config/{key}", tags=["settings"], summary="Get a setting", **operation(answer=shapes.Setting))
async def get_setting(request: Request, key: Key, type: TypeQuery = None) -> Response:
    """The current value, for the whole queue or for one type."""
    return await _setting(backend_of(request), key, type)


@router.put(
    "/config/{key}",
    tags=["settings"],
    summary="Change a setting",
    **operation(body=SettingValue, answer=shapes.Setting),
)
async def set_setting(request: Request, key: Key, type: TypeQuery = None) -> Response:
    """Store a value; running workers apply it within a second."""
    body = await read_body(request, SettingValue)
    backend, named = backend_of(request), _type(body, type)
    await backend.call(Queue.set_config, find_setting(key).name, body.value, named)
    return await _setting(backend, key, named)


@router.delete(
    "/config/{key}", tags=["settings"], summary="Reset a setting", **operation(answer=shapes.Setting)
)
async def unset_setting(request: Request, key: Key, type: TypeQuery = None) -> Response:
    """Remove a stored value, so that the next level applies again; returns the value now in effect."""
    backend = backend_of(request)
    await backend.call(Queue.unset_config, find_setting(key).name, type)
    return await _setting(backend, key, type)


async def _setting(backend: Backend, key: str, type: str | None) -> Response:
    name = find_setting(key).name
    values = await backend.call(Queue.config, type)
    return json_response(shapes.setting(name, values[name], type))


@router.get(
    "/events",
    tags=["live"],
    summary="Stream live events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": _EVENT}}, "description": "Event stream"},
        **errors(),
    },
)
async def events(
    request: Request,
    filter: FilterInQuery,
    id: Annotated[
        list[str] | None, Query(max_length=MOST_FOLLOWED, description="jobs to follow; repeatable")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="length of the page to follow")] = PAGE,
    once: Annotated[bool, Query(description="end after the current state")] = False,
) -> Response:
    """Server-sent events: first the current state, then every change, from any process, at most four times
    per second.

    The jobs followed are those named by `id`, or else the first page of those that match the filter. A
    `stats` event has the counts by state and type, what is paused, and attempts per second by type. A
    `tasks` event has the jobs that are new or have changed, and under `ids` all jobs followed, in order.
    """
    if id and filter != Filter():
        raise ConfigError("id and a filter are mutually exclusive")
    if filter.wanted is not None:  # each round would search again
        raise ConfigError("search is not available for live events; list the jobs, then follow them by id")
    backend = backend_of(request)
    interest = Interest(tuple(id or ()), filter, limit)
    if once or request.scope["holdfast.head"]:
        return Response(await backend.call(present_state, interest), media_type=_STREAM)
    listener = backend.broadcast.join(interest)
    session = request.scope["holdfast.session"]

    async def stream() -> AsyncIterator[bytes]:
        try:
            async for message in listener.messages():
                if session is not None and await backend.sessions.is_over(session):
                    return
                yield message
        finally:
            backend.broadcast.leave(listener)

    return StreamingResponse(stream(), media_type=_STREAM, headers={"X-Accel-Buffering": "no"})
