"""How errors read over HTTP: a status, a code and one line, from one table."""

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
from holdfast.web.answer import json_response

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
"""Seconds after which a full queue or a database in trouble may be asked again."""


class Refused(HTTPException):
    """A request that is refused before the queue is asked."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(status, detail=message, headers=dict(headers or {}))
        self.code = code


def refusal(error: e.HoldfastError) -> Refused:
    """What an error of the queue means over HTTP."""
    cause = error.error if isinstance(error, e.BatchRefused) else error
    for kind, status, code in _TABLE:
        if isinstance(cause, kind):
            headers = {"Retry-After": str(RETRY_AFTER)} if status in _BUSY else {}
            return Refused(status, code, str(error), headers)
    logging.getLogger(LOGGER).error("%s: %s", type(cause).__name__, cause)
    return internal()


def internal() -> Refused:
    """A mistake of ours, which has been logged."""
    return Refused(500, "internal", "an error that should not happen; the server's log says more")


def too_many(message: str, seconds: float) -> Refused:
    return Refused(429, "rate_limited", message, {"Retry-After": str(max(1, math.ceil(seconds)))})


def error_response(refused: Refused) -> Response:
    message = e.one_line(str(refused.detail))
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


def worded(error: HTTPException) -> Refused:
    """The framework's own refusals in our words."""
    if isinstance(error, Refused):
        return error
    phrase = HTTPStatus(error.status_code).phrase
    code = phrase.lower().replace(" ", "_").replace("-", "_")
    message = {404: "there is nothing at this path", 405: "this path does not take this method"}.get(
        error.status_code, str(error.detail)
    )
    return Refused(error.status_code, code, message, error.headers)


def invalid_request(error: RequestValidationError) -> Refused:
    return Refused(400, "invalid_request", _describe(error.errors()[0]))


_BRANCHES = ("str", "constrained-str", "float", "int", "list[constrained-str]")
"""What pydantic puts at the end of a place, where a field may be one thing or another."""


def _describe(problem: Mapping[str, Any]) -> str:
    """Where it is and what is wrong, as in `options.priority: must be …`."""
    steps = [str(step) for step in problem["loc"][1:]]
    if steps and steps[-1] in _BRANCHES:
        steps.pop()
    where = ".".join(steps)
    kind, message = problem["type"], str(problem["msg"])
    if kind == "missing":
        message = "is required" if where else "a JSON body is required"
    elif kind in ("model_attributes_type", "model_type", "dict_type"):
        message = "must be a JSON object"
    elif kind == "string_pattern_mismatch":  # types alone have a pattern
        message = "must be 1 to 255 of A-Z a-z 0-9 _ . : -"
    else:
        message = message.replace("Input should be", "must be").replace("Value error, ", "")
        message = message[:1].lower() + message[1:]
    return f"{where or 'the body'}: {message}"
