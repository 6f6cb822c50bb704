"""For machines that watch machines: is the process up, can it work, and how is it doing."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from holdfast.web import schema
from holdfast.web.answer import json_response
from holdfast.web.api.documented import errors
from holdfast.web.auth import Right
from holdfast.web.desk import desk_of
from holdfast.web.route import StrictRoute

router = APIRouter(tags=["health"], route_class=StrictRoute)


@router.get("/healthz", summary="Is the process up?", response_model=schema.Health, responses=errors())
async def healthz() -> Response:
    """Answers as long as the process does; touches nothing else."""
    return json_response({"status": "ok"})


@router.get(
    "/readyz",
    summary="Can it work?",
    response_model=schema.Readiness,
    responses={**errors(), 503: {"model": schema.Readiness, "description": "Not ready"}},
)
async def readyz(request: Request) -> Response:
    """Whether the database answers and workers are alive; where none belong to this server, only the
    former."""
    desk = desk_of(request)
    database, workers = await desk.check_health()
    if database != "ok" and request.scope["holdfast.right"] is Right.NOTHING:
        database = "unavailable"  # the reason may name files, which are not everybody's business
    ready = database == "ok" and (workers > 0 or not desk.needs_workers)
    body = {"status": "ready" if ready else "not ready", "database": database, "workers": workers}
    return json_response(body, 200 if ready else 503, {} if ready else {"Retry-After": "1"})


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}, "description": "Text in Prometheus' format"}, **errors()},
)
async def metrics(request: Request) -> Response:
    """Depth, ages, totals, histograms, workers: read from few rows, however long the queue is."""
    from holdfast.observe.metrics import CONTENT_TYPE, render

    desk = desk_of(request)
    return Response(await desk.call(render, desk.queue), headers={"Content-Type": CONTENT_TYPE})
