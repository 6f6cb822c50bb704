"""Reconciliation over HTTP: compare the completed jobs with the world, and the last report."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from holdfast.observe import shapes
from holdfast.queue import Queue
from holdfast.reconcile import Report, as_json
from holdfast.web import schema
from holdfast.web.answer import json_response
from holdfast.web.api.documented import BODY, errors
from holdfast.web.desk import desk_of
from holdfast.web.reconciler import Run, latest_report
from holdfast.web.route import StrictRoute

router = APIRouter(prefix="/api/reconcile", tags=["control"], route_class=StrictRoute)

OfTypes = Annotated[schema.OfTypes | None, Body()]


@router.post(
    "",
    summary="Compare completed jobs with the world",
    response_model=schema.Reconciliation,
    responses=errors(*BODY),
)
async def reconcile(request: Request, body: OfTypes = None) -> Response:
    """Look whether what completed jobs have done is still there, repair nothing, and answer with the report.

    It takes as long as it takes. A server runs one at a time: who asks for the same meanwhile gets the same
    report, who asks for other types waits. It goes on when the client leaves.
    """
    reconciler = desk_of(request).reconciler
    report = await reconciler.reconcile(None if body is None else body.types, request.is_disconnected)
    if report is None:
        return Response(status_code=204)  # nobody reads it
    return json_response(as_json(report))


@router.get(
    "",
    summary="The last reconciliation",
    response_model=schema.ReconciliationState,
    responses=errors(),
)
async def last(request: Request) -> Response:
    """How far the reconciliation is that runs in this server, if one does, and the report of the last one,
    whichever process made it."""
    desk = desk_of(request)
    running = desk.reconciler.running
    return json_response(
        {
            "running": running and _progress(running),
            "report": await desk.call(_last, desk.queue, desk.reconciler.last),
        }
    )


def _progress(run: Run) -> dict[str, Any]:
    return {"done": run.done, "total": run.total, "startedAt": shapes.instant(run.started_at)}


def _last(queue: Queue, own: Report | None) -> dict[str, Any] | None:
    report = latest_report(queue, own)
    return None if report is None else as_json(report)
