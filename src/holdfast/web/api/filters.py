"""The filter of a list as query parameters, which follow from its one declaration."""

from __future__ import annotations

from inspect import Parameter, Signature
from typing import Annotated, Any

from fastapi import Depends, Query
from msgspec import Struct
from msgspec.structs import asdict

from holdfast.core.filter import MEANINGS, Filter, Sort, parse_filter
from holdfast.web.api.messages import ORDER, Order

_EXAMPLES = {
    "search": ["timeout payload.user.id:42"],
    "since": ["2026-01-15T10:00:00Z"],
    "until": ["2026-01-15T11:00:00Z"],
}


def filter_from(given: Struct | dict[str, Any]) -> Filter:
    """The filter that a body or query parameters stand for, under the names of its fields."""
    words = asdict(given) if isinstance(given, Struct) else dict(given)
    return parse_filter(ascending=words.pop("order") == "asc", **words)


def camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.title() for word in rest)


_PARAMETERS = {camel(name): name for name in MEANINGS} | {"order": "order"}


async def _filter_in_query(**given: Any) -> Filter:
    return filter_from({_PARAMETERS[name]: value for name, value in given.items()})


def _parameter(name: str, kind: Any, default: Any = None) -> Parameter:
    meaning = MEANINGS.get(name, ORDER)
    annotation = Annotated[kind, Query(description=meaning, examples=_EXAMPLES.get(name))]
    return Parameter(camel(name), Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


_KINDS: dict[str, tuple[Any, Any]] = {"status": (list[str] | None, None), "sort": (Sort, "created")}
_filter_in_query.__signature__ = Signature(  # type: ignore[attr-defined] # which is what FastAPI reads
    [
        *(_parameter(name, *_KINDS.get(name, (str | None, None))) for name in MEANINGS),
        _parameter("order", Order, "desc"),
    ]
)

FilterInQuery = Annotated[Filter, Depends(_filter_in_query)]
