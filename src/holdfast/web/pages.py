"""The pages for people: the API's documentation, and the login. Made here, with nothing from elsewhere."""

from __future__ import annotations

import json
from functools import cache
from typing import Annotated, Any
from urllib.parse import parse_qs

from fastapi import APIRouter, Query, Request, Response
from jinja2 import Environment, PackageLoader
from starlette.responses import HTMLResponse, RedirectResponse

from holdfast.web.auth import COOKIE, SESSION_SECONDS, Access, Right
from holdfast.web.errors import Refused
from holdfast.web.openapi import example_of

router = APIRouter(include_in_schema=False)


@cache
def _templates() -> Environment:
    # Imported by name from this package alone; everything that is put into a page is escaped.
    environment = Environment(loader=PackageLoader("holdfast.web"), autoescape=True)
    environment.filters["pretty"] = lambda value: json.dumps(value, indent=2, ensure_ascii=False)
    return environment


def page(request: Request, name: str, status: int = 200, **values: Any) -> HTMLResponse:
    root = request.scope.get("root_path", "")
    text = _templates().get_template(name).render(root=root, **values)
    return HTMLResponse(text, status)


@router.get("/")
async def home(request: Request) -> Response:
    return RedirectResponse(f"{request.scope.get('root_path', '')}/docs", 303)


@router.get("/docs")
async def docs(request: Request) -> Response:
    document = await request.app.state.document()
    return page(request, "docs.html", document=document, sections=_sections(document))


def _sections(document: dict[str, Any]) -> list[dict[str, Any]]:
    """The operations by their tag, each with what a reader asks: how to call it, and what comes back."""
    schemas = document["components"]["schemas"]
    sections: dict[str, list[dict[str, Any]]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            sections.setdefault(operation["tags"][0], []).append(
                {
                    "method": method.upper(),
                    "path": path,
                    "anchor": operation["operationId"],
                    "summary": operation["summary"],
                    "description": operation.get("description", ""),
                    "parameters": operation.get("parameters", []),
                    "body": _body(operation, schemas),
                    "responses": _responses(operation, schemas),
                    "open": operation.get("security") == [],
                }
            )
    return [{"name": name, "operations": found} for name, found in sections.items()]


def _body(operation: dict[str, Any], schemas: dict[str, Any]) -> list[tuple[str, Any]]:
    """Examples of a body, by name."""
    content = operation.get("requestBody", {}).get("content", {}).get("application/json")
    if content is None:
        return []
    if "examples" in content:
        return [(name, example["value"]) for name, example in content["examples"].items()]
    parts = [
        part for part in content["schema"].get("anyOf", [content["schema"]]) if part.get("type") != "null"
    ]
    return [("", example_of(parts[0], schemas))]


def _responses(operation: dict[str, Any], schemas: dict[str, Any]) -> list[dict[str, Any]]:
    answers = []
    for status, response in sorted(operation["responses"].items()):
        content = response.get("content", {}).get("application/json", {})
        example = None
        if status.startswith("2") and "schema" in content:
            example = _whole_example(content["schema"], schemas)
        answers.append({"status": status, "description": response["description"], "example": example})
    return answers


def _whole_example(schema: dict[str, Any], schemas: dict[str, Any]) -> Any:
    """An answer as it looks, its lists with one entry."""
    if schema.get("type") == "array":
        return [_whole_example(schema["items"], schemas)]
    if "$ref" in schema:
        named = schemas[schema["$ref"].rpartition("/")[2]]
        if "properties" not in named:
            return example_of(named, schemas)
        return {name: _whole_example(part, schemas) for name, part in named["properties"].items()}
    return example_of(schema, schemas)


# The login.


@router.get("/login")
async def show_login(request: Request, next: Annotated[str, Query()] = "/") -> Response:
    access: Access = request.app.state.access
    if not access.needs_token:
        return RedirectResponse(f"{request.scope.get('root_path', '')}{_local(next)}", 303)
    return page(request, "login.html", next=_local(next), problem=None)


@router.post("/login")
async def log_in(request: Request) -> Response:
    access: Access = request.app.state.access
    form = _form(await request.body())
    target = _local(form.get("next", "/"))
    if not access.needs_token:
        return RedirectResponse(f"{request.scope.get('root_path', '')}{target}", 303)
    right = access.right_of_token(form.get("token", "").strip().encode("utf-8", "surrogateescape"))
    if right is Right.NOTHING:
        return page(request, "login.html", 401, next=target, problem="That is not the token.")
    root = request.scope.get("root_path", "")
    response = RedirectResponse(f"{root}{target}", 303)
    response.set_cookie(
        COOKIE,
        access.make_session(right),
        max_age=SESSION_SECONDS,
        path=root or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )
    return response


@router.post("/logout")
async def log_out(request: Request) -> Response:
    root = request.scope.get("root_path", "")
    response = RedirectResponse(f"{root}/login", 303)
    response.delete_cookie(COOKIE, path=root or "/", httponly=True, samesite="strict")
    return response


def _form(body: bytes) -> dict[str, str]:
    try:
        text = body.decode("ascii")
        return {name: values[0] for name, values in parse_qs(text, max_num_fields=10).items()}
    except ValueError:
        raise Refused(400, "invalid_request", "the form can't be read") from None


def _local(path: str) -> str:
    """A path on this server, never another site: no //host, no scheme, nothing but plain characters."""
    is_plain = path.isascii() and path.isprintable() and "\\" not in path
    return path if is_plain and path.startswith("/") and not path.startswith("//") else "/"
