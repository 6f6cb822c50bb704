"""What went wrong, as a page for people and as JSON for programs."""

from __future__ import annotations

import logging
from http import HTTPStatus

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Scope

from holdfast.errors import HoldfastError, one_line
from holdfast.events import LOGGER
from holdfast.web.dashboard.page import page
from holdfast.web.errors import Refused, error_response, invalid_request, methods_at, refusal, worded


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
        logging.getLogger(LOGGER).exception("the page of a problem failed")
        return error_response(refused)
    response.headers.update(refused.headers or {})
    return response


def _is_for_people(request: Request) -> bool:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    return "text/html" in request.headers.get("accept", "") and not path.startswith("/api/")


async def on_holdfast_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HoldfastError)
    return answer_to(request.scope, refusal(error))


async def on_refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        error.headers = {"Allow": ", ".join(sorted(methods_at(request)))}
    return answer_to(request.scope, worded(error))


async def on_invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    return answer_to(request.scope, invalid_request(error))
