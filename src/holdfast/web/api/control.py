"""The queue as a whole over HTTP: pause, limits, settings, workers, types, the report, live events."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import APIRouter, Body, Path, Query, Request, Response
from starlette.responses import StreamingResponse

from holdfast.config import find_setting
from holdfast.core.check import printable_text
from holdfast.core.clock import to_datetime
from holdfast.core.job import base_type, parse_status
from holdfast.errors import ConfigError
from holdfast.jobs import BUILT_IN
from holdfast.observe import shapes
from holdfast.observe.overview import MOST_RUNNING
from holdfast.observe.overview import report as answer
from holdfast.queue import Queue
from holdfast.web import schema
from holdfast.web.answer import json_response, number
from holdfast.web.api.documented import BODY, errors
from holdfast.web.desk import Desk, desk_of
from holdfast.web.events import PAGE, Interest, present_state
from holdfast.web.payload_schema import usable
from holdfast.web.route import StrictRoute

flow = APIRouter(prefix="/api/tasks", tags=["control"], route_class=StrictRoute)
router = APIRouter(prefix="/api", route_class=StrictRoute)

MOST_FOLLOWED = 200
_STREAM = "text/event-stream"
_EVENT = {
    "type": "object",
    "required": ["event", "data"],
    "properties": {"event": {"enum": ["stats", "tasks"]}, "data": {"type": "string"}},
}
OfType = Annotated[schema.OfType | None, Body()]
TypeQuery = Annotated[str | None, Query(description="only for this type")]
Key = Annotated[str, Path(description="the setting", examples=["lease_seconds"])]


@flow.post("/pause", summary="Pause", response_model=schema.Paused, responses=errors(*BODY))
async def pause(request: Request, body: OfType = None, type: TypeQuery = None) -> Response:
    """Let no job start, or none of a type, in any process. Running jobs finish."""
    return await _set_paused(desk_of(request), True, _type(body, type))


@flow.post("/resume", summary="Resume", response_model=schema.Paused, responses=errors(*BODY))
async def resume(request: Request, body: OfType = None, type: TypeQuery = None) -> Response:
    """Undo pause with the same type."""
    return await _set_paused(desk_of(request), False, _type(body, type))


async def _set_paused(desk: Desk, paused: bool, type: str | None) -> Response:
    await desk.call(desk.queue.pause if paused else desk.queue.resume, type)
    return json_response({"paused": paused} | ({"type": type} if type else {}))


def _type(body: schema.OfType | schema.SettingValue | None, query: str | None) -> str | None:
    """A type may stand in the body or in the query."""
    named = None if body is None else body.type
    if None not in (named, query) and named != query:
        raise ConfigError("the type in the body and the one in the query differ")
    return query if named is None else named


@flow.post(
    "/rate-limit", summary="Limit the rate", response_model=schema.RateLimited, responses=errors(*BODY)
)
async def rate_limit(request: Request, body: schema.RateLimit, type: TypeQuery = None) -> Response:
    """Limit how many jobs start a second, or how many of a type, over all processes; 0 is unlimited."""
    desk, named = desk_of(request), _type(body, type)
    await desk.call(desk.queue.set_rate_limit, body.tasksPerSecond, named)
    return json_response({"tasksPerSecond": number(body.tasksPerSecond)} | ({"type": named} if named else {}))


@router.get(
    "/workers",
    tags=["control"],
    summary="List workers",
    response_model=list[schema.Worker],
    responses=errors(),
)
async def workers(request: Request) -> Response:
    """The running workers, when each was last heard of, and what each is running."""
    desk = desk_of(request)
    return json_response(await desk.call(_workers, desk.queue))


def _workers(queue: Queue) -> list[dict[str, Any]]:
    running = queue.store.list_running(MOST_RUNNING)
    now = to_datetime(queue.store.now())
    return [shapes.worker(worker, running, now) for worker in queue.workers(restarting=True)]


@router.get(
    "/types",
    tags=["control"],
    summary="List job types",
    response_model=list[schema.JobType],
    responses=errors(),
)
async def types(request: Request) -> Response:
    """The types that this server or some worker knows, with the JSON Schema of each payload."""
    desk = desk_of(request)
    return json_response(await desk.call(known_types, desk))


def known_types(desk: Desk) -> list[dict[str, Any]]:
    """Those of this process's handlers, and those that workers have published."""
    queue = desk.queue
    known: dict[str, tuple[str, dict[str, Any]]] = {
        record.type: (record.executor, usable(record.schema)) for record in queue.store.list_types()
    }
    for name in queue.registry.types():
        handler = queue.registry.require(name)
        known[name] = (handler.executor, handler.schema)
    alive = [worker.types for worker in queue.workers()]
    return [
        {
            "type": name,
            "executor": executor,
            "builtIn": base_type(name) in BUILT_IN,
            "enqueueable": desk.may_enqueue(name),
            "workers": sum(name in served for served in alive),
            "payloadSchema": payload,
        }
        for name, (executor, payload) in sorted(known.items())
    ]


@router.get(
    "/report",
    tags=["control"],
    summary="Answer the standing questions",
    response_model=schema.Report,
    responses=errors(),
)
async def report(request: Request) -> Response:
    """What is outstanding? What failed and why? Is anything stuck? How long do jobs take? Are there
    duplicates? What ran in the last hour?"""
    desk = desk_of(request)
    return json_response(shapes.report(await desk.read_slowly(request, answer, desk.queue)))


@router.get(
    "/config", tags=["settings"], summary="List settings", response_model=dict[str, Any], responses=errors()
)
async def list_settings(request: Request, type: TypeQuery = None) -> Response:
    """Every setting's value in force, and under byType what is stored for single types."""
    desk = desk_of(request)
    return json_response(await desk.call(_settings, desk.queue, type))


def _settings(queue: Queue, type: str | None) -> dict[str, Any]:
    return shapes.settings(queue.config(type), queue.settings().stored, type)


@router.get(
    "/config/{key}",
    tags=["settings"],
    summary="Get a setting",
    response_model=schema.Setting,
    responses=errors(),
)
async def get_setting(request: Request, key: Key, type: TypeQuery = None) -> Response:
    """The value in force, for the whole queue or for a type."""
    return await _setting(desk_of(request), key, type)


@router.put(
    "/config/{key}",
    tags=["settings"],
    summary="Set a setting",
    response_model=schema.Setting,
    responses=errors(*BODY),
)
async def set_setting(
    request: Request, key: Key, body: schema.SettingValue, type: TypeQuery = None
) -> Response:
    """Store a value; running workers follow within a second."""
    desk, named = desk_of(request), _type(body, type)
    await desk.call(desk.queue.set_config, key, body.value, named)
    return await _setting(desk, key, named)


@router.delete(
    "/config/{key}",
    tags=["settings"],
    summary="Forget a setting",
    response_model=schema.Setting,
    responses=errors(),
)
async def unset_setting(request: Request, key: Key, type: TypeQuery = None) -> Response:
    """Forget a stored value, so that the next level down holds again; the answer is what holds now."""
    desk = desk_of(request)
    await desk.call(desk.queue.unset_config, key, type)
    return await _setting(desk, key, type)


async def _setting(desk: Desk, key: str, type: str | None) -> Response:
    name = find_setting(key).name
    values = await desk.call(desk.queue.config, type)
    return json_response(shapes.setting(name, values[name], type))


@router.get(
    "/events",
    tags=["live"],
    summary="Live events",
    response_class=StreamingResponse,
    responses={
        200: {"content": {"text/event-stream": {"schema": _EVENT}}, "description": "A stream"},
        **errors(),
    },
)
async def events(
    request: Request,
    id: Annotated[
        list[str] | None, Query(max_length=MOST_FOLLOWED, description="jobs to follow; may be repeated")
    ] = None,
    status: Annotated[list[str] | None, Query(description="or else the first page of these states")] = None,
    type: Annotated[str | None, Query(description="and of this type")] = None,
    limit: Annotated[int, Query(ge=1, le=100, description="how long that page is")] = PAGE,
    once: Annotated[bool, Query(description="end after the present state")] = False,
) -> Response:
    """Server-sent events: first the present state, then what changes, whichever process changed it, at most
    four times a second.

    An event `stats` has the counts by state and type, what is paused, and the rates a second by type. An
    event `tasks` has the jobs whose state is new to you, and under `ids` all that are followed, in order.
    """
    if id and (status or type):
        raise ConfigError("id and a filter exclude each other")
    statuses = tuple(parse_status(word) for word in status or ())
    if type is not None:
        printable_text("type", type)
    desk = desk_of(request)
    interest = Interest(tuple(id or ()), statuses, type, limit)
    if once or request.scope["holdfast.head"]:
        return Response(await desk.call(present_state, desk.queue, interest), media_type=_STREAM)
    listener = desk.broadcast.join(interest)
    session = request.scope["holdfast.session"]

    async def stream() -> AsyncIterator[bytes]:
        try:
            async for message in listener.messages():
                if session is not None and await desk.sessions.is_over(session):
                    return
                yield message
        finally:
            desk.broadcast.leave(listener)

    return StreamingResponse(stream(), media_type=_STREAM, headers={"X-Accel-Buffering": "no"})
