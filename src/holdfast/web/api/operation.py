"""What each endpoint contributes to the OpenAPI document: its body, its responses, and its errors."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

from msgspec import UNSET, Struct
from msgspec.json import schema_components
from msgspec.structs import fields

from holdfast.core.job import Failure, Job, Status
from holdfast.observe.shapes import WHOLE, Worker, shown_fields
from holdfast.store.records import Running
from holdfast.web.api.messages import Body, Error

JSON = "application/json"
_PLACE = "#/components/schemas/{name}"
_TEXTS = {
    400: "Invalid parameter, body, payload or setting, or the job's state does not allow it",
    401: "Missing or invalid token",
    403: "Host or Origin not allowed, read-only token, or built-in type not allowed",
    404: "No such job",
    408: "The body did not arrive in time",
    409: "Another job has the id or holds the key, or the number of jobs differs from expectedCount",
    413: "The body or the payload is too large",
    429: "The queue is full, or the client exceeds its rate limit; see Retry-After",
    503: "The database is unavailable; see Retry-After",
}
_ALWAYS = (400, 401, 403, 503)
_WITH_BODY = (408, 413)


def operation(
    *codes: int,
    body: type[Body] | None = None,
    answer: Any = None,
    status: int = 200,
    other: dict[int, tuple[Any, str]] | None = None,
    as_text: bool = False,
) -> dict[str, Any]:
    """The arguments of a route: its body, its responses, and the errors beyond the common ones."""
    responses = errors(*codes, *(_WITH_BODY if body else ()))
    if answer is not None:
        responses[status] = _response(answer)
    if as_text:
        responses[status]["content"]["text/plain"] = {}
    responses |= {code: _response(kind, text) for code, (kind, text) in (other or {}).items()}
    extra = None if body is None else {"requestBody": _body(body)}
    return {
        "status_code": status,
        "response_description": "Success",
        "response_model": None,
        "responses": responses,
        "openapi_extra": extra,
    }


def errors(*codes: int) -> dict[int | str, dict[str, Any]]:
    """The error answers of an endpoint: these, and those that every endpoint has."""
    return {code: _response(Error, _TEXTS[code]) for code in sorted({*_ALWAYS, *codes})}


@cache
def is_required(body: type[Body]) -> bool:
    """Whether a body is required: it is optional if all of its fields are."""
    return any(field.required for field in fields(body))


def _body(body: type[Body]) -> dict[str, Any]:
    [schema], components = schema_components([body], ref_template=_PLACE)
    for name, part in components.items():
        COMPONENTS.setdefault(name, part)
    if body.EXAMPLE is not None:
        COMPONENTS[body.__name__]["examples"] = [body.EXAMPLE]
    return {"content": {JSON: {"schema": schema}}, "required": is_required(body)}


def _response(answer: Any, text: str = "") -> dict[str, Any]:
    [schema], components = schema_components([answer], ref_template=_PLACE)
    for name, part in components.items():
        COMPONENTS.setdefault(name, _complete(part))
    named = COMPONENTS.get(schema.get("$ref", "").rpartition("/")[2], {})
    return {"content": {JSON: {"schema": schema}}, "description": text or named.get("description", "Success")}


def _complete(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an answer, which leaves out no field that has its default; described in one sentence."""
    parts = schema.get("properties", {})
    there = [name for name, part in parts.items() if part.pop("default", UNSET) is not UNSET]
    if text := schema.get("description"):
        schema["description"] = " ".join(text.partition("\n\n")[0].split())
    return schema | {"required": [*schema["required"], *there]} if parts else schema


def _records() -> dict[str, Any]:
    """The records that answers hold, without the fields that observe/shapes.py hides."""
    _, components = schema_components([Job, Running, Worker], ref_template=_PLACE)
    parts = {name: _complete(part) for name, part in components.items()}
    item = list(shown_fields(Job, WHOLE).values())

    def shown(name: str, record: type[Struct], names: Iterable[str] = (), **more: Any) -> dict[str, Any]:
        whole = parts[record.__name__]
        names = list(names or shown_fields(record).values())
        properties = {name: whole["properties"][name] for name in names}
        return whole | {"title": name, "properties": properties, "required": names} | more

    return {
        "Status": parts["Status"] | {"type": "string", "enum": list(Status)},
        "Progress": parts["Progress"],
        "Failure": shown("Failure", Failure),
        "Task": shown("Task", Job, [*item, *WHOLE], description="Everything about a job."),
        "TaskItem": shown("TaskItem", Job, item, description="A job as an item of a list."),
        "FullOrItem": shown(
            "FullOrItem",
            Job,
            [*item, *WHOLE],
            required=item,
            description="A job as an item of a list; with full=true, everything about it.",
        ),
        "RunningJob": shown("RunningJob", Running),
        "Worker": shown("Worker", Worker),
    }


COMPONENTS = _records()
"""The schemas of all bodies and answers, by their names."""
