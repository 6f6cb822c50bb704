"""What every endpoint says of itself in the OpenAPI document: which errors it answers."""

from __future__ import annotations

from typing import Any

from holdfast.web.schema import Error

_TEXTS = {
    400: "A wrong parameter, body, payload or setting, or a state that does not allow it",
    401: "No token, or a wrong one",
    403: "A foreign Host or Origin, a token that may only look, or a built-in type that was not let in",
    404: "There is no such job",
    408: "The body did not arrive in time",
    409: "The id or the key is taken by another job, or the number of jobs is not the expected one",
    413: "The body or the payload is too large",
    429: "The queue is full, or the client has enqueued too much; Retry-After says when to come again",
    503: "The database does not answer; Retry-After says when to come again",
}

_ALWAYS = (400, 401, 403, 503)
BODY = (408, 413)


def errors(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of an endpoint: these, and those that every endpoint has."""
    return {
        status: {"model": Error, "description": _TEXTS[status]} for status in sorted({*_ALWAYS, *statuses})
    }
