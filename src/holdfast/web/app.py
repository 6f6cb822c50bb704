"""The web application: the parts put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from holdfast import __version__
from holdfast.core.job import check_type
from holdfast.errors import ConfigError, HoldfastError, shown
from holdfast.queue import Queue
from holdfast.web.answer import json_response
from holdfast.web.api import control, enqueue, health, reconcile, tasks
from holdfast.web.auth import make_access
from holdfast.web.body_limits import BodyLimits
from holdfast.web.dashboard import bulk, controls, job, jobs, login, overview, problem, reference
from holdfast.web.dashboard import enqueue as enqueue_form
from holdfast.web.dashboard import reconcile as reconcile_page
from holdfast.web.desk import Desk, root_of
from holdfast.web.guard import Guard
from holdfast.web.openapi import make_document
from holdfast.web.static_files import StaticFiles

_STATIC = Path(__file__).parent / "dashboard" / "static"


def create_app(
    queue: Queue,
    token: str | None = None,
    read_token: str | None = None,
    allowed_hosts: Iterable[str] | None = None,
    allow_types: Collection[str] = (),
    auth: str = "token",
    *,
    enqueue_rate: float = 0.0,
    needs_workers: bool = True,
) -> FastAPI:
    """An ASGI application that serves a queue: by itself, or mounted in another one.

    Without a token it answers only clients on this machine. An outer application that authenticates says
    auth="outer". `allowed_hosts` are taken in the Host header beside loopback's names. Built-in types are
    taken only if `allow_types` names them. `enqueue_rate` limits the jobs a second that each token or address
    may enqueue. `needs_workers` says whether /readyz wants a worker alive.
    """
    if isinstance(allow_types, str) or isinstance(allowed_hosts, str):
        raise ConfigError("allow_types and allowed_hosts are lists")
    if not 0 <= enqueue_rate <= 1e9:
        raise ConfigError(f"enqueue_rate must be a number from 0 (unlimited), not {shown(enqueue_rate)}")
    access = make_access(token, read_token, allowed_hosts, auth)
    desk = Desk(
        queue,
        allow_types=[check_type(type) for type in allow_types],
        enqueue_rate=enqueue_rate,
        needs_workers=needs_workers,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        desk.open()
        try:
            yield
        except asyncio.CancelledError:
            return  # a server that stops at once waits for nothing, and has no error to log
        await asyncio.to_thread(desk.close)

    app = FastAPI(
        title="Holdfast",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers={
            HoldfastError: problem.on_holdfast_error,
            HTTPException: problem.on_refused,
            RequestValidationError: problem.on_invalid_request,
        },
    )

    async def document(request: Request) -> dict[str, Any]:
        try:
            types = await desk.call(control.known_types, desk)
        except HoldfastError:
            types = []  # the database is in trouble; the endpoints are what they are
        return make_document(app, types, with_token=access.needs_token, root_path=root_of(request))

    async def openapi(request: Request) -> Response:
        return json_response(await document(request))

    app.state.desk = desk
    app.state.access = access
    app.state.document = document
    api = (control.flow, enqueue.router, tasks.router, control.router, reconcile.router, health.router)
    pages = (overview, bulk, jobs, job, enqueue_form, controls, reconcile_page, reference, login)
    routers = (*api, *(module.router for module in pages))
    app.state.routes = [route for router in routers for route in router.routes]
    app.router.routes.extend(app.state.routes)  # include_router() would make each of them anew
    app.add_route("/openapi.json", openapi, include_in_schema=False)
    app.add_route("/static/{name:path}", StaticFiles(_STATIC).answer, include_in_schema=False)
    app.add_middleware(
        Guard,
        access=access,
        limits=BodyLimits(app.state.routes, desk),
        sessions=desk.sessions,
        failed_logins=desk.failed_logins,
        is_stopping=lambda: desk.broadcast.is_closed,
        answer_to=problem.answer_to,
    )
    return app
