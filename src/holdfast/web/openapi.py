"""The OpenAPI document: what FastAPI makes of the endpoints, and the job types that are known now."""

from __future__ import annotations

import re
from collections.abc import Container
from copy import deepcopy
from typing import Any

from fastapi import FastAPI, Request
from fastapi.openapi.utils import get_openapi

from holdfast.errors import HoldfastError
from holdfast.web.api.control import known_types
from holdfast.web.api.messages import JobType
from holdfast.web.api.operation import COMPONENTS
from holdfast.web.backend import backend_of, root_of

_DESCRIPTION = """\
Enqueue jobs and operate the queue. Requests and responses are JSON in UTF-8; times are ISO 8601 in UTC.
Every error is `{"error": {"code": "…", "message": "…"}}`: the code is for programs, the message for people.
"""


async def make_document(request: Request) -> dict[str, Any]:
    """The document as it is now, with the types of GET /api/types."""
    app, backend = request.app, backend_of(request)
    try:
        types = await backend.call(known_types, backend.may_enqueue)
    except HoldfastError:
        types = []  # the database is in trouble; the endpoints are what they are
    document = deepcopy(_endpoints(app))
    if root := root_of(request):
        document["servers"] = [{"url": root}]
    if app.state.access.needs_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        for path in ("/healthz", "/readyz"):
            document["paths"][path]["get"]["security"] = []
    _add_types(document, [type for type in types if type.enqueueable])
    return document


def _endpoints(app: FastAPI) -> dict[str, Any]:
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=_DESCRIPTION, routes=app.routes
        )
        # We answer 400 where FastAPI would answer 422.
        for operations in document["paths"].values():
            for operation in operations.values():
                operation["responses"].pop("422", None)
        document["components"] = {"schemas": dict(sorted(COMPONENTS.items()))}
        app.openapi_schema = document
    return app.openapi_schema


def _add_types(document: dict[str, Any], types: list[JobType]) -> None:
    """Beside NewTask, which takes any payload, one schema for each type that says which it takes."""
    schemas = document["components"]["schemas"]
    general = {"$ref": "#/components/schemas/NewTask"}
    examples: dict[str, Any] = {}
    variants = []
    for entry in types:
        name = entry.type
        payload = _add_payload(schemas, name, entry.payload_schema)
        variant = _free_name(f"NewTask.{name}", schemas)
        schemas[variant] = {
            "type": "object",
            "title": f"A {name} job",
            "required": ["type", "payload"],
            "properties": {
                "type": {"const": name},
                "payload": {"$ref": _reference(payload)},
                "options": {"$ref": _reference("Options")},
            },
            "additionalProperties": False,
        }
        variants.append({"$ref": _reference(variant)})
        examples[name] = {"value": {"type": name, "payload": example_of(schemas[payload], schemas)}}
    content = document["paths"]["/api/tasks"]["post"]["requestBody"]["content"]["application/json"]
    content["schema"] = {"anyOf": [*variants, general]}
    if examples:
        content["examples"] = examples


def _add_payload(schemas: dict[str, Any], type: str, schema: dict[str, Any]) -> str:
    """Put a payload's schema and its own definitions among the document's; returns the name it got."""
    own = schema.get("$defs", {})
    name = _free_name(f"payload.{type}", schemas)
    schemas[name] = {}
    moved = {"#": _reference(name)}
    places: dict[str, Any] = {}
    for key, part in own.items():
        place = _free_name(f"payload.{type}.{key}", schemas)
        schemas[place] = places[place] = part
        moved[f"#/$defs/{key.replace('~', '~0').replace('/', '~1')}"] = _reference(place)
    schemas.update({place: _rewritten(part, moved) for place, part in places.items()})
    schemas[name] = _rewritten({key: part for key, part in schema.items() if key != "$defs"}, moved)
    return name


def _reference(name: str) -> str:
    return f"#/components/schemas/{name}"


def _free_name(wanted: str, taken: Container[str]) -> str:
    """A name that OpenAPI allows and nobody has."""
    name = clean = re.sub(r"[^A-Za-z0-9._-]", "_", wanted)
    number = 2
    while name in taken:
        name = f"{clean}_{number}"
        number += 1
    return name


_NAMED = ("properties", "patternProperties", "dependentSchemas")
"""What holds schemas by the names of fields, which may be anything."""

_VALUES = ("const", "enum", "default", "example", "examples")
"""What holds values, in which nothing is a reference."""


def _rewritten(schema: Any, moved: dict[str, str]) -> Any:
    """A schema with its references, wherever they stand, to where the definitions are now."""
    if isinstance(schema, list):
        return [_rewritten(part, moved) for part in schema]
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for key, part in schema.items():
        if key == "$ref" and isinstance(part, str):
            made[key] = moved.get(part, part)
        elif key in _NAMED and isinstance(part, dict):
            made[key] = {name: _rewritten(field, moved) for name, field in part.items()}
        elif key == "discriminator" and isinstance(part, dict):
            mapping = {name: moved.get(place, place) for name, place in part.get("mapping", {}).items()}
            made[key] = {**part, "mapping": mapping} if mapping else part
        else:
            made[key] = part if key in _VALUES else _rewritten(part, moved)
    return made


_EXAMPLES: dict[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "null": None,
}


def example_of(schema: Any, schemas: dict[str, Any], depth: int = 0, *, whole: bool = False) -> Any:
    """A value that a schema might take: its own example or default, or one made of its parts.

    With `whole` all that it may have, its lists with one entry, rather than what it must have.
    """
    if depth > (15 if whole else 5) or not isinstance(schema, dict):  # true and false are schemas, too
        return {}
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if "$ref" in schema:
        named = schemas.get(schema["$ref"].rpartition("/")[2], {})
        return example_of(named, schemas, depth + 1, whole=whole)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example_of(schema[key][0], schemas, depth + 1, whole=whole)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "array" and whole:
        return [example_of(schema["items"], schemas, depth + 1, whole=True)]
    if kind == "object" or "properties" in schema:
        required = schema.get("required", [])
        return {
            name: example_of(part, schemas, depth + 1, whole=whole)
            for name, part in schema.get("properties", {}).items()
            if whole or name in required
        }
    return _EXAMPLES.get(kind or "", {})
