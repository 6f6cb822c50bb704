"""Comparing the wanted state of a resource with what the service reports."""

from __future__ import annotations

import json
from typing import Any

RESERVED = "aws:"
"""Tags with this prefix belong to the service: never compared, never removed."""


def same(wanted: Any, found: Any) -> bool:
    """Whether all values of a config were found.

    Keys that an object in the config omits are ignored; lists must match. Numbers and booleans equal their
    text, and JSON inside a string equals its value: services return `"30"` for 30 and reformat policies.
    """
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(same(value, found.get(name)) for name, value in wanted.items())
    return equal(wanted, found)


def equal(wanted: Any, found: Any) -> bool:
    """Whether the config's value and no other was found."""
    wanted, found = _opened(wanted), _opened(found)
    if _is_empty(wanted) or _is_empty(found):
        return _is_empty(wanted) and _is_empty(found)
    if isinstance(wanted, dict) and isinstance(found, dict):
        return all(equal(wanted.get(name), found.get(name)) for name in wanted.keys() | found.keys())
    if isinstance(wanted, list) and isinstance(found, list):
        wanted, found = _in_order(wanted), _in_order(found)
        return len(wanted) == len(found) and all(map(equal, wanted, found))
    return as_text(wanted) == as_text(found)


def difference(wanted: dict[str, Any], found: dict[str, Any]) -> dict[str, Any]:
    """The wanted entries that differ from what was found."""
    return {name: value for name, value in wanted.items() if not same(value, found.get(name))}


def as_text(value: Any) -> str:
    """A value as services take it in a map of texts."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def tag_map(tags: list[dict[str, str]]) -> dict[str, str]:
    """A list of Key and Value as a dict, without those of the service itself."""
    return {tag["Key"]: tag.get("Value", "") for tag in tags if not tag["Key"].startswith(RESERVED)}


def tag_list(tags: dict[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def key_as_named(found: str | None, wanted: str | None) -> str | None:
    """The name of an encryption key, as in the config if the service returns the ARN of the same key."""
    return wanted if found and wanted and found.endswith(f"/{wanted}") else found


def _opened(value: Any) -> Any:
    """What a text says that is JSON of an object or a list."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value


def _in_order(values: list[Any]) -> list[Any]:
    """A list of named things by their names, where the service keeps no order; other lists as they are."""
    for name in ("Key", "IndexName", "AttributeName"):
        if all(isinstance(value, dict) and name in value and "KeyType" not in value for value in values):
            return sorted(
                (value for value in values if not str(value[name]).startswith(RESERVED)),
                key=lambda value: str(value[name]),
            )
    return values


def _is_empty(value: Any) -> bool:
    if isinstance(value, dict):
        return all(map(_is_empty, value.values()))
    return value is None or value == "" or value == []
