"""The web application: the parts put together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection, Iterable
from contextlib import asynccontextmanager
from pathlib import Path

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException

from holdfast import __version__
from holdfast.core.job import check_type
from holdfast.errors import ConfigError, HoldfastError
from holdfast.queue import Queue
from holdfast.text import shown
from holdfast.web.api import control, enqueue, health, reconcile, tasks
from holdfast.web.auth import make_access
from holdfast.web.backend import Backend
from holdfast.web.bodies import Bodies
from holdfast.web.dashboard import bulk, controls, job, jobs, login, overview, problem, reference
from holdfast.web.dashboard import enqueue as enqueue_form
from holdfast.web.dashboard import reconcile as reconcile_page
from holdfast.web.guard import Guard
from holdfast.web.responses import StaticFiles

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

    Without a token, only clients on this machine have access. Pass auth="outer" if the outer application
    authenticates. `allowed_hosts` are accepted in the Host header in addition to loopback names. Built-in
    types are accepted only if `allow_types` names them. `enqueue_rate` limits how many jobs per second each
    token or address may enqueue. `needs_workers` says whether /readyz requires a live worker.
    """
    if isinstance(allow_types, str) or isinstance(allowed_hosts, str):
        raise ConfigError("allow_types and allowed_hosts must be lists")
    if not 0 <= enqueue_rate <= 1e9:
        raise ConfigError(f"enqueue_rate must be a number, 0 (unlimited) or more, not {shown(enqueue_rate)}")
    access = make_access(token, read_token, allowed_hosts, auth)
    backend = Backend(
        queue,
        allow_types=[check_type(type) for type in allow_types],
        enqueue_rate=enqueue_rate,
        needs_workers=needs_workers,
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        backend.open()
        try:
            yield
        except asyncio.CancelledError:
            return  # a server that stops at once waits for nothing, and has no error to log
        await asyncio.to_thread(backend.close)

    app = FastAPI(
        title="Holdfast",
        version=__version__,
        lifespan=lifespan,
        openapi_url=None,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=dict.fromkeys(
            (HoldfastError, HTTPException, RequestValidationError), problem.on_error
        ),
    )

    app.state.backend = backend
    app.state.access = access
    api = (control.flow, enqueue.router, tasks.router, control.router, reconcile.router, health.router)
    pages = (overview, bulk, jobs, job, enqueue_form, controls, reconcile_page, reference, login)
    routers = (*api, *(module.router for module in pages))
    app.state.routes = [route for router in routers for route in router.routes]
    app.router.routes.extend(app.state.routes)  # include_router() would rebuild each of them
    app.add_route("/static/{name:path}", StaticFiles(_STATIC).answer, include_in_schema=False)
    app.add_middleware(
        Guard,
        access=access,
        backend=backend,
        bodies=Bodies(app.state.routes, backend),
        answer_to=problem.answer_to,
    )
    return app
