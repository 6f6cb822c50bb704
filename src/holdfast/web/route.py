"""Parsing requests: strict JSON; unknown parameters and fields are refused, and two values for one."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, TypeVar, get_args, get_origin
from urllib.parse import unquote_to_bytes

from fastapi import Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from msgspec import ValidationError, convert, inspect

from holdfast.core.payload import decode_strictly
from holdfast.text import shown
from holdfast.web.api.messages import Body
from holdfast.web.api.operation import is_required
from holdfast.web.errors import Refused

B = TypeVar("B", bound=Body)

LARGE_BODY = 64 * 1024
"""A body larger than this many bytes is parsed in a thread, off the event loop."""


class StrictRoute(APIRoute):
    """The route of every endpoint: takes the parameters that it names, each once, unless it is a list."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        is_list = dict(_parameters(self.dependant))
        allowed = sorted(is_list)

        async def handle_strictly(request: Request) -> Response:
            _check_encoding(request.scope["query_string"])
            seen = set()
            for name, _ in request.query_params.multi_items():
                if name not in is_list:
                    has = f"allowed: {', '.join(allowed)}" if allowed else "this endpoint has none"
                    raise _invalid(f"unknown parameter {shown(name)}; {has}")
                if name in seen and not is_list[name]:
                    raise _invalid(f"{name} was given more than once")
                seen.add(name)
            return await handle(request)

        return handle_strictly


def _parameters(dependant: Dependant) -> Iterator[tuple[str, bool]]:
    """Their names, and whether each takes several values."""
    for parameter in dependant.query_params:
        kind = parameter.field_info.annotation
        yield parameter.alias, list in (get_origin(kind), *map(get_origin, get_args(kind)))
    for inner in dependant.dependencies:
        yield from _parameters(inner)


def _check_encoding(query: bytes) -> None:
    """Starlette would read what isn't UTF-8 as another text, and the request would mean something else."""
    try:
        unquote_to_bytes(query.decode("ascii")).decode()
    except UnicodeDecodeError:
        raise _invalid("the query is not valid UTF-8") from None


async def read_body(request: Request, kind: type[B]) -> B:
    """The body: JSON that means one thing, in UTF-8 and with no key twice in an object."""
    body = await request.body()
    if body and not _is_json(request.headers.get("content-type", "")):
        raise _invalid("the body must be JSON, sent with Content-Type: application/json")
    try:
        # Others are not to wait for a large one.
        given = await asyncio.to_thread(_parse, body) if len(body) > LARGE_BODY else _parse(body)
    except UnicodeDecodeError:
        raise _invalid("the body is not UTF-8") from None
    except ValueError as error:
        raise _invalid(f"the body {error}") from None
    if given is None:
        if is_required(kind):
            raise _invalid("a JSON body is required")
        given = {}
    try:
        made = convert(given, kind)
        if b"\\u" in body:  # half of a surrogate pair can only come as an escape
            "".join(_texts(made)).encode()
        return made
    except ValidationError as error:
        raise _invalid(_describe(str(error), kind)) from None
    except UnicodeEncodeError:
        raise _invalid("the body: contains a lone surrogate") from None


def _is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json"))


def _parse(body: bytes) -> Any:
    return decode_strictly(body.decode()) if body else None


def _texts(part: Any) -> Iterator[str]:
    """The strings in a body, except those of payloads, which are validated separately."""
    if isinstance(part, str):
        yield part
    elif isinstance(part, list):
        for entry in part:
            yield from _texts(entry)
    elif isinstance(part, Body):
        for name in part.__struct_fields__:
            yield from _texts(getattr(part, name))


def _invalid(message: str) -> Refused:
    return Refused(400, "invalid_request", message)


# What is wrong with a body, in words: msgspec's own name Python's types.

_PLACED = re.compile(r"(?P<problem>.*?)(?: - at `\$(?P<path>[^`]*)`)?", re.DOTALL)
_MISSING = re.compile(r"Object missing required field `(\w+)`")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`", re.DOTALL)
_KINDS = re.compile(r"Expected `([^`]*)`, got .*")
_BOUND = re.compile(r"Expected `\w+` (>=|<=) (\S+)")
_LENGTH = re.compile(r"Expected `(\w+)` of length (>=|<=) (\d+)")
_NAMES = {"str": "string", "int": "integer", "float": "number", "array": "list", "bool": "boolean"}


def _describe(message: str, kind: type[Body]) -> str:
    """Where it is and what is wrong, as in `options.priority: must be …`."""
    match = _PLACED.fullmatch(message)
    assert match is not None
    problem = match["problem"]
    steps = [step for step in re.split(r"[.\[\]]+", match["path"] or "") if step]
    if missing := _MISSING.fullmatch(problem):
        return f"{'.'.join([*steps, missing[1]])}: is required"
    return f"{'.'.join(steps) or 'the body'}: {_worded(problem, kind, steps)}"


def _worded(problem: str, kind: type[Body], steps: Sequence[str]) -> str:
    if unknown := _UNKNOWN.fullmatch(problem):
        allowed = [field.encode_name for field in _type_at(kind, steps).fields]
        return f"unknown field {shown(unknown[1])}; allowed: {', '.join(allowed)}"
    if problem.startswith("Invalid enum value"):
        *most, last = [repr(value) for value in _type_at(kind, steps).values]
        return f"must be {', '.join(most)} or {last}"
    if found := _KINDS.fullmatch(problem):
        return f"must be {_alternatives(found[1].split(' | '))}"
    if found := _BOUND.fullmatch(problem):
        relation = "greater" if found[1] == ">=" else "less"
        return f"must be {relation} than or equal to {float(found[2]):.15g}"
    if found := _LENGTH.fullmatch(problem):
        part = "item" if found[1] == "array" else "character"
        limit = "at least" if found[2] == ">=" else "at most"
        return f"must have {limit} {found[3]} {part}{'' if found[3] == '1' else 's'}"
    if "matching regex" in problem:  # types alone have a pattern
        return "must be 1 to 255 characters from A-Z a-z 0-9 _ . : -"
    return "must be a valid number"


def _alternatives(kinds: Sequence[str]) -> str:
    names = [kind for kind in kinds if kind != "null" and not (kind == "int" and "float" in kinds)]
    if names == ["object"]:
        return "a JSON object"
    return f"a valid {' or '.join(_NAMES.get(name, name) for name in names)}"


def _type_at(kind: Any, steps: Sequence[str]) -> Any:
    """The value at a path in a body."""
    found: Any = inspect.type_info(kind)
    for step in steps:
        if isinstance(found, inspect.ListType):
            found = found.item_type
        else:
            found = next(field.type for field in found.fields if field.encode_name == step)
        while isinstance(found, inspect.Metadata | inspect.UnionType):
            types = found.types if isinstance(found, inspect.UnionType) else (found.type,)
            found = next(part for part in types if not isinstance(part, inspect.NoneType))
    return found
