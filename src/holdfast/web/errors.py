"""Errors over HTTP: a status, a code and one line, from one table."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast import errors as e
from holdfast.core.job import RESERVED_IDS
from holdfast.events import LOGGER
from holdfast.text import one_line
from holdfast.web.responses import json_response

_TABLE: tuple[tuple[type[e.HoldfastError], int, str], ...] = (
    # The first that fits counts: subclasses stand before what they are made of.
    (e.PayloadTooLarge, 413, "too_large"),
    (e.InvalidPayload, 400, "invalid_payload"),
    (e.UnknownType, 400, "unknown_type"),
    (e.ConfigError, 400, "invalid_request"),
    (e.WrongState, 400, "wrong_state"),
    (e.JobNotFound, 404, "not_found"),
    (e.NoOutput, 404, "not_found"),
    (e.KeyTaken, 409, "key_taken"),
    (e.DuplicateJob, 409, "id_taken"),
    (e.QueueFull, 429, "queue_full"),
    (e.StoreError, 503, "database_unavailable"),
    (e.ForeignDatabase, 503, "database_unavailable"),
    (e.SchemaOutOfDate, 503, "database_unavailable"),
)
_BUSY = (429, 503)
RETRY_AFTER = 1
"""Retry-After, in seconds, for a full queue or a database in trouble."""


class Refused(HTTPException):
    """A request that is refused before the queue is asked."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail=message, headers=dict(headers or {}))
        self.code = code


def refusal(error: Exception) -> Refused:
    """An error as an HTTP response: the queue's errors by the table, the framework's in our own words."""
    if isinstance(error, HTTPException):
        return error if isinstance(error, Refused) else _worded(error)
    if isinstance(error, RequestValidationError):
        return Refused(400, "invalid_request", _describe(error.errors()[0]))
    cause = error.error if isinstance(error, e.BatchRefused) else error
    for kind, status, code in _TABLE:
        if isinstance(cause, kind):
            headers = {"Retry-After": str(RETRY_AFTER)} if status in _BUSY else {}
            return Refused(status, code, str(error), headers)
    logging.getLogger(LOGGER).error("%s: %s", type(cause).__name__, cause)
    return internal()


def internal() -> Refused:
    """A bug in Holdfast, which has been logged."""
    return Refused(500, "internal", "internal error; see the server's log")


def read_only() -> Refused:
    return Refused(403, "read_only", "a read-only token can't make changes")


def too_many(message: str, seconds: float) -> Refused:
    return Refused(429, "rate_limited", message, {"Retry-After": str(max(1, math.ceil(seconds)))})


def unavailable(code: str, message: str, seconds: int = RETRY_AFTER) -> Refused:
    """Not now: it may be asked again after so many seconds."""
    return Refused(503, code, message, {"Retry-After": str(seconds)})


def error_response(refused: Refused) -> Response:
    message = one_line(str(refused.detail))
    return json_response(
        {"error": {"code": refused.code, "message": message}}, refused.status_code, refused.headers
    )


def methods_at(request: Request) -> set[str]:
    """The methods that a path takes, whichever of its endpoints has them."""
    methods: set[str] = set()
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    for route in request.app.state.routes:
        is_word = path.rpartition("/")[2] in RESERVED_IDS and "{id}" in route.path
        if route.path_regex.match(path) and not is_word:
            methods |= route.methods or set()
    return methods | ({"HEAD"} if "GET" in methods else set()) or {"GET", "HEAD"}  # the last: static files


def _worded(error: HTTPException) -> Refused:
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_").replace("-", "_")
    message = {404: "there is nothing at this path", 405: "this path does not support this method"}.get(
        error.status_code, str(error.detail)
    )
    return Refused(error.status_code, code, message, error.headers)


def _describe(problem: Mapping[str, Any]) -> str:
    """Which parameter, and what is wrong with it, as in `limit: must be …`."""
    message = str(problem["msg"]).replace("Input should be", "must be")
    message = "is required" if problem["type"] == "missing" else message[:1].lower() + message[1:]
    return f"{problem['loc'][-1]}: {message}"
