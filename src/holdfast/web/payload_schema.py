"""The JSON Schemas of payloads as they are stored: whoever can write to the database can write anything."""

from __future__ import annotations

import json
from typing import Any

_DEEPEST = 50
_TEXTS = ("$ref", "title", "description", "format", "pattern")
_LISTS = ("enum", "examples")
_PARTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_NAMED = ("properties", "$defs", "patternProperties")
_PART = ("items", "additionalProperties", "not")


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
    kind = schema.get("type", "object")
    required = schema.get("required", [])
    mapping = _dict(schema.get("discriminator", {})).get("mapping", {})
    return (
        all(isinstance(schema.get(key, ""), str) for key in _TEXTS)
        and all(isinstance(schema.get(key, []), list) for key in (*_LISTS, *_PARTS))
        and (isinstance(kind, str) or _is_words(kind))
        and _is_words(required)
        and all(isinstance(schema.get(key, {}), dict) for key in _NAMED)
        and isinstance(mapping, dict)
        and _is_words(list(mapping.values()))
        and all(_is_schema(part, depth + 1) for key in _NAMED for part in schema.get(key, {}).values())
        and all(_is_schema(part, depth + 1) for key in _PARTS for part in schema.get(key, []))
        and all(_is_schema(schema[key], depth + 1) for key in _PART if key in schema)
    )


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {"mapping": None}


def _is_words(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _is_text(schema: dict[str, Any]) -> bool:
    """Whether it can be sent: half a surrogate pair can't."""
    try:
        json.dumps(schema, ensure_ascii=False, allow_nan=False).encode()
    except (ValueError, RecursionError):
        return False
    return True
