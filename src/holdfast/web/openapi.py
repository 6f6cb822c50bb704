"""The OpenAPI document: what FastAPI makes of the endpoints, and the job types that are known now."""

from __future__ import annotations

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

_DESCRIPTION = """\
Enqueue jobs and operate the queue. Bodies and answers are JSON in UTF-8; instants are ISO 8601 in UTC.
Every error is `{"error": {"code": "…", "message": "…"}}`, in one line that says what was wrong.
"""


def make_document(app: FastAPI, types: Iterable[dict[str, Any]], *, with_token: bool) -> dict[str, Any]:
    """The document as it is now; `types` are those of GET /api/types."""
    document = deepcopy(_endpoints(app))
    if with_token:
        document["components"]["securitySchemes"] = {"token": {"type": "http", "scheme": "bearer"}}
        document["security"] = [{"token": []}]
        for path in ("/healthz", "/readyz"):
            document["paths"][path]["get"]["security"] = []
    _add_types(document, [type for type in types if type["enqueueable"]])
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
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema


def _add_types(document: dict[str, Any], types: list[dict[str, Any]]) -> None:
    """Beside NewTask, which takes any payload, one schema for each type that says which it takes."""
    schemas = document["components"]["schemas"]
    general = {"$ref": "#/components/schemas/NewTask"}
    examples: dict[str, Any] = {}
    variants = []
    for entry in types:
        name = entry["type"]
        payload_name = f"payload.{name.replace(':', '.')}"
        payload, definitions = _moved(entry["payloadSchema"], payload_name)
        schemas[payload_name] = payload
        schemas.update(definitions)
        variant = f"NewTask.{name.replace(':', '.')}"
        schemas[variant] = {
            "type": "object",
            "title": f"A {name} job",
            "required": ["type", "payload"],
            "properties": {
                "type": {"const": name},
                "payload": {"$ref": f"#/components/schemas/{payload_name}"},
                "options": {"$ref": "#/components/schemas/Options"},
            },
            "additionalProperties": False,
        }
        variants.append({"$ref": f"#/components/schemas/{variant}"})
        examples[name] = {"value": {"type": name, "payload": example_of(payload, schemas)}}
    content = document["paths"]["/api/tasks"]["post"]["requestBody"]["content"]["application/json"]
    content["schema"] = {"anyOf": [*variants, general]}
    if examples:
        content["examples"] = examples


def _moved(schema: dict[str, Any], name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """A payload's schema with its own definitions moved to the document's, under names of their own."""
    local = schema.get("$defs", {})

    def rewrite(part: Any) -> Any:
        if isinstance(part, dict):
            return {
                key: f"#/components/schemas/{name}.{value.rpartition('/')[2]}"
                if key == "$ref" and isinstance(value, str) and value.startswith("#/$defs/")
                else rewrite(value)
                for key, value in part.items()
                if key != "$defs"
            }
        return [rewrite(item) for item in part] if isinstance(part, list) else part

    return rewrite(schema), {f"{name}.{key}": rewrite(value) for key, value in local.items()}


_EXAMPLES: dict[str, Any] = {
    "string": "text",
    "integer": 1,
    "number": 1.5,
    "boolean": True,
    "array": [],
    "null": None,
}


def example_of(schema: dict[str, Any], schemas: dict[str, Any], depth: int = 0) -> Any:
    """A value that a schema might take: its own example or default, or one made of its parts."""
    if depth > 5:
        return {}
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("examples", "enum"):
        if schema.get(key):
            return schema[key][0]
    if "$ref" in schema:
        return example_of(schemas.get(schema["$ref"].rpartition("/")[2], {}), schemas, depth + 1)
    for key in ("anyOf", "oneOf", "allOf"):
        if schema.get(key):
            return example_of(schema[key][0], schemas, depth + 1)
    kind = schema.get("type")
    if isinstance(kind, list):
        kind = kind[0] if kind else None
    if kind == "object" or "properties" in schema:
        required = schema.get("required", [])
        return {
            name: example_of(part, schemas, depth + 1)
            for name, part in schema.get("properties", {}).items()
            if name in required
        }
    return _EXAMPLES.get(kind or "", {})
