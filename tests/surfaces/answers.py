"""What the HTTP API answers, written out: the shapes that its tests compare with."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import httpx

NOW = datetime(2030, 1, 1, tzinfo=UTC)
"""Where the clock of these tests stands until a test moves it."""

STATES = ("scheduled", "pending", "processing", "completed", "failed", "cancelled")


def at(hours: int = 0, minutes: int = 0, seconds: int = 0) -> str:
    """An instant of that day as the API writes it."""
    return f"2030-01-01T{hours:02}:{minutes:02}:{seconds:02}Z"


def item(id: str, type: str = "echo", status: str = "pending", **fields: Any) -> dict[str, Any]:
    """A job as an item of a list, as it is when it was just enqueued, but for these fields."""
    untouched = {
        "id": id,
        "type": type,
        "status": status,
        "priority": 0,
        "group": None,
        "attempts": 0,
        "maxAttempts": 3,
        "version": 0,
        "idempotencyKey": None,
        "keyFor": None,
        "runAfter": None,
        "nextRetryAt": None,
        "timeout": None,
        "error": None,
        "progress": None,
        "parentId": None,
        "cancelRequested": False,
        "workerId": None,
        "leaseExpiresAt": None,
        "createdAt": at(),
        "updatedAt": at(),
        "lastAttemptAt": None,
        "completedAt": None,
    }
    assert fields.keys() <= untouched.keys()
    return {**untouched, **fields}


def task(id: str, type: str = "echo", status: str = "pending", **fields: Any) -> dict[str, Any]:
    """Everything about a job, as it is when it was just enqueued, but for these fields."""
    whole = {name: fields.pop(name, value) for name, value in NOTHING_YET.items()}
    return {**item(id, type, status, **fields), **whole}


NOTHING_YET: dict[str, Any] = {"payload": {}, "result": None, "errors": []}


def counts(**given: int) -> dict[str, int]:
    """All six states, with these numbers and else 0."""
    return {**dict.fromkeys(STATES, 0), **given}


def refused(answer: httpx.Response, status: int, code: str) -> str:
    """The message of a refusal, which must have this status, this code and no other fields."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert body.keys() == {"error"}
    assert body["error"].keys() == {"code", "message"}
    assert body["error"]["code"] == code
    message = body["error"]["message"]
    assert isinstance(message, str)
    assert message
    assert message.isprintable()
    return message


def got(answer: httpx.Response, status: int = 200) -> Any:
    """The JSON of an answer that must have this status."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    return answer.json()
