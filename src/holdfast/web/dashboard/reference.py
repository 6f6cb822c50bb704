"""The page that documents the HTTP API, made from its OpenAPI document."""

from __future__ import annotations

import json
from collections.abc import Iterator
from shlex import quote
from typing import Any

from fastapi import APIRouter, Request, Response

from holdfast.web.backend import root_of
from holdfast.web.dashboard.page import page, scheme
from holdfast.web.openapi import example_of, make_document
from holdfast.web.responses import json_response

router = APIRouter(include_in_schema=False)
_DEEPEST = 4
"""How deep the fields of a body are listed."""


@router.get("/openapi.json")
async def openapi(request: Request) -> Response:
    return json_response(await make_document(request))


@router.get("/docs")
async def docs(request: Request) -> Response:
    document = await make_document(request)
    # Not request.base_url: below a mounted application it lacks the path that we are mounted at.
    base = f"{scheme(request)}://{request.headers['host']}{root_of(request)}"
    return page(request, "docs.html", document=document, sections=_sections(document, base))


def _sections(document: dict[str, Any], base: str) -> list[dict[str, Any]]:
    """The operations by their tag, each with what a reader asks: how to call it, and what comes back."""
    schemas = document["components"]["schemas"]
    sections: dict[str, list[dict[str, Any]]] = {"tasks": []}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            content = _json(operation.get("requestBody", {}))
            bodies = _bodies(content, schemas)
            sections.setdefault(operation["tags"][0], []).append(
                {
                    "method": method.upper(),
                    "path": path,
                    "anchor": operation["operationId"],
                    "summary": operation["summary"],
                    "description": operation.get("description", ""),
                    "parameters": operation.get("parameters", []),
                    "fields": _fields(_choices(content.get("schema"))[-1], schemas),
                    "bodies": bodies,
                    "curl": _curl(method, f"{base}{path}", bodies, operation, document),
                    "responses": _responses(operation, schemas),
                }
            )
    return [{"name": name, "operations": found} for name, found in sections.items()]


def _json(part: dict[str, Any]) -> dict[str, Any]:
    """The JSON of a body or an answer: its schema and examples; empty if it has none."""
    found: dict[str, Any] = part.get("content", {}).get("application/json", {})
    return found


def _choices(schema: Any) -> list[Any]:
    """The variants of a body, one for each job type and the last for all; itself, if it has none."""
    choices = schema.get("anyOf", []) if isinstance(schema, dict) else []
    return choices if choices and all("$ref" in choice for choice in choices) else [schema]


def _fields(schema: Any, schemas: dict[str, Any], prefix: str = "", depth: int = 0) -> list[dict[str, Any]]:
    """The fields of a body, those inside others under their whole names; of variants, all that they have."""
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return []
    found: dict[str, dict[str, Any]] = {}
    for part in _variants(schema, schemas):
        for name, field in part.get("properties", {}).items():
            whole = f"{prefix}{name}"
            text = _text_of(field, schemas)
            known = found.setdefault(whole, {"name": whole, "kind": _kind(field, schemas), "text": text})
            known["text"] = known["text"] or text
            known["required"] = name in part.get("required", []) and known.get("required", True)
            for inner in _fields(field, schemas, f"{whole}.", depth + 1):
                found.setdefault(inner["name"], inner)
        if part.get("type") == "array":
            for inner in _fields(part.get("items"), schemas, f"{prefix.rstrip('.')}[].", depth + 1):
                found.setdefault(inner["name"], inner)
    return list(found.values())


def _variants(schema: Any, schemas: dict[str, Any], depth: int = 0) -> Iterator[dict[str, Any]]:
    """What a schema may stand for: itself, what it refers to, each of its choices."""
    if not isinstance(schema, dict) or depth > _DEEPEST:  # a schema may refer to itself
        return
    if isinstance(schema.get("$ref"), str):
        yield from _variants(schemas.get(schema["$ref"].rpartition("/")[2]), schemas, depth + 1)
        return
    for key in ("anyOf", "oneOf", "allOf"):
        choices = schema.get(key)
        for choice in choices if isinstance(choices, list) else ():
            yield from _variants(choice, schemas, depth + 1)
    yield schema


def _text_of(field: Any, schemas: dict[str, Any]) -> str:
    """What is said about a field, then what is said about its kind."""
    texts = [part["description"] for part in _variants(field, schemas) if part.get("description")]
    return "; ".join(dict.fromkeys(text.rstrip(".") for text in reversed(texts)))


def _kind(field: Any, schemas: dict[str, Any]) -> str:
    kinds = [
        repr(part["const"]) if "const" in part else part.get("type") for part in _variants(field, schemas)
    ]
    words = [kind if isinstance(kind, str) else " or ".join(kind) for kind in kinds if kind]
    return " or ".join(dict.fromkeys(word for word in words if word != "null"))


def _bodies(content: dict[str, Any], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    """Examples of a body; where there are several, each is a job type's, with the fields of its payload."""
    if not content:
        return []
    if "examples" not in content:
        return [{"name": "", "example": example_of(content["schema"], schemas), "fields": []}]
    return [
        {
            "name": name,
            "example": example["value"],
            "fields": [field for field in _fields(variant, schemas) if field["name"].startswith("payload.")],
        }
        for (name, example), variant in zip(
            content["examples"].items(), _choices(content["schema"]), strict=False
        )
    ]


def _curl(
    method: str, url: str, bodies: list[dict[str, Any]], operation: dict[str, Any], document: dict[str, Any]
) -> str:
    words = ["curl"]
    if method not in ("get", "post") or (method == "post" and not bodies):
        words.append(f"-X {method.upper()}")
    if "security" in document and operation.get("security") != []:
        words.append('-H "Authorization: Bearer $QUEUECTL_TOKEN"')
    for parameter in operation.get("parameters", []):
        if parameter["in"] == "path":
            url = url.replace(f"{{{parameter['name']}}}", str(parameter["schema"]["examples"][0]))
    needed = [
        f"{parameter['name']}={parameter['schema'].get('examples', ['…'])[0]}"
        for parameter in operation.get("parameters", [])
        if parameter["in"] == "query" and parameter.get("required")
    ]
    words.append(quote(url + ("?" + "&".join(needed) if needed else "")))
    if bodies:
        words.append(f"--json {quote(json.dumps(bodies[0]['example'], ensure_ascii=False))}")
    return " ".join(words)


def _responses(operation: dict[str, Any], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    answers = []
    for status, response in sorted(operation["responses"].items()):
        schema = _json(response).get("schema") if status.startswith("2") else None
        example = None if schema is None else example_of(schema, schemas, whole=True)
        answers.append({"status": status, "description": response["description"], "example": example})
    return answers
