"""For monitoring: is the process up, can it work, and how is it doing."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from holdfast.web.api.messages import Health, Readiness
from holdfast.web.api.operation import errors, operation
from holdfast.web.auth import Right
from holdfast.web.backend import backend_of
from holdfast.web.responses import json_response
from holdfast.web.route import StrictRoute

router = APIRouter(tags=["health"], route_class=StrictRoute)


@router.get("/healthz", summary="Check liveness", **operation(answer=Health))
async def healthz() -> Response:
    """Returns 200 as long as the process responds; checks nothing else."""
    return json_response(Health(status="ok"))


@router.get(
    "/readyz",
    summary="Check readiness",
    **operation(answer=Readiness, other={503: (Readiness, "Not ready")}),
)
async def readyz(request: Request) -> Response:
    """Whether the database responds and a worker is alive. A server that was started without workers
    requires none."""
    backend = backend_of(request)
    database, workers = await backend.check_health()
    if database != "ok" and request.scope["holdfast.right"] is Right.NOTHING:
        database = "unavailable"  # the reason may name files, which are not everybody's business
    ready = database == "ok" and (workers > 0 or not backend.needs_workers)
    state = Readiness(status="ready" if ready else "not ready", database=database, workers=workers)
    return json_response(state, 200 if ready else 503, {} if ready else {"Retry-After": "1"})


@router.get(
    "/metrics",
    summary="Get Prometheus metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Prometheus text format"}, **errors()},
)
async def metrics(request: Request) -> Response:
    """Queue depth, ages, totals, histograms and workers. Cheap, however long the queue is."""
    from holdfast.observe.metrics import CONTENT_TYPE, render

    return Response(await backend_of(request).call(render), headers={"Content-Type": CONTENT_TYPE})
