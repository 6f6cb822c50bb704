"""Stored JSON Schemas of payloads. Untrusted: anyone who can write to the database can set them."""

from __future__ import annotations

import json
from typing import Any

_DEEPEST = 50
_PARTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "patternProperties")
_PART = ("items", "additionalProperties", "not")
_KINDS = {
    **dict.fromkeys(("$ref", "title", "description", "format", "pattern"), str),
    **dict.fromkeys(("enum", "examples", *_PARTS), list),
    **dict.fromkeys(("discriminator", *_NAMED), dict),
}


def usable(schema: Any) -> dict[str, Any]:
    """The schema, if it is one; otherwise one that takes any payload."""
    if isinstance(schema, dict) and _is_schema(schema, 0) and _is_text(schema):
        return schema
    return {}


def _is_schema(schema: Any, depth: int) -> bool:
    if isinstance(schema, bool):
        return True
    if not isinstance(schema, dict) or depth > _DEEPEST:
        return False
    if not all(isinstance(schema[key], kind) for key, kind in _KINDS.items() if key in schema):
        return False
    types = schema.get("type", "object")
    mapping = schema.get("discriminator", {}).get("mapping", {})
    parts = [schema[key] for key in _PART if key in schema]
    parts += [part for key in _PARTS for part in schema.get(key, [])]
    parts += [part for key in _NAMED for part in schema.get(key, {}).values()]
    return (
        (isinstance(types, str) or _is_words(types))
        and _is_words(schema.get("required", []))
        and isinstance(mapping, dict)
        and _is_words(list(mapping.values()))
        and all(_is_schema(part, depth + 1) for part in parts)
    )


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_text(schema: dict[str, Any]) -> bool:
    """Whether it can be sent: half a surrogate pair can't."""
    try:
        json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return True
