"""Reconciliation over HTTP: run one, and get the last report."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response
from msgspec import convert

from holdfast.web.api.messages import OfTypes, Reconciliation, ReconciliationState, Reconciling
from holdfast.web.api.operation import operation
from holdfast.web.backend import backend_of
from holdfast.web.reconciler import latest_report
from holdfast.web.responses import json_response
from holdfast.web.route import StrictRoute, read_body

router = APIRouter(prefix="/api/reconcile", tags=["control"], route_class=StrictRoute)


@router.post(
    "",
    summary="Check the effects of completed jobs",
    **operation(body=OfTypes, answer=Reconciliation),
)
async def reconcile(request: Request) -> Response:
    """Check that the effects of completed jobs still exist, repair nothing, and return the report.

    With many jobs, this takes minutes. A server runs one reconciliation at a time: a second request for the
    same types gets the same report, a request for other types waits for its turn. The run continues if the
    client disconnects.
    """
    body = await read_body(request, OfTypes)
    report = await backend_of(request).reconciler.reconcile(body.types, request.is_disconnected)
    if report is None:
        return Response(status_code=204)  # nobody reads it
    return json_response(report)


@router.get("", summary="Get the last reconciliation", **operation(answer=ReconciliationState))
async def last(request: Request) -> Response:
    """The progress of the reconciliation now running in this server, if any, and the last report from any
    process."""
    backend = backend_of(request)
    run = backend.reconciler.running
    report = await backend.call(latest_report, backend.reconciler.last)
    running = None if run is None else convert(run, Reconciling, from_attributes=True)
    return json_response({"running": running, "report": report})
