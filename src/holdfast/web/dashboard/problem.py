"""What went wrong, as a page for people and as JSON for programs."""

from __future__ import annotations

import logging
from http import HTTPStatus

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from holdfast.events import LOGGER
from holdfast.text import one_line
from holdfast.web.dashboard.page import page
from holdfast.web.errors import Refused, error_response, methods_at, refusal


def answer_to(scope: Scope, refused: Refused) -> Response:
    request = Request(scope)
    if not _is_for_people(request) or refused.status_code == HTTPStatus.SEE_OTHER:
        return error_response(refused)
    try:
        response = page(
            request,
            "problem.html",
            refused.status_code,
            title=HTTPStatus(refused.status_code).phrase,
            message=one_line(str(refused.detail)),
            code=refused.code,
        )
    except Exception:
        logging.getLogger(LOGGER).exception("the error page failed")
        return error_response(refused)
    response.headers.update(refused.headers or {})
    return response


def _is_for_people(request: Request) -> bool:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return "text/html" in request.headers.get("accept", "") and not path.startswith("/api/")


async def on_error(request: Request, error: Exception) -> Response:
    refused = refusal(error)
    if refused.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        refused.headers = {"Allow": ", ".join(sorted(methods_at(request)))}
    return answer_to(request.scope, refused)
