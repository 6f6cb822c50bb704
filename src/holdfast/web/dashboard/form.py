"""A form made from a payload's JSON Schema: its fields, and the payload that the submitted texts mean.

Pure: pages show the fields. What is not checked here, the handler's own check finds.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from msgspec import UNSET

from holdfast.web.dashboard.form_outline import (
    MAX_FIELDS,
    Field,
    Group,
    Leaf,
    label_of,
    leaves,
    meaning,
    outline,
    with_line_ends,
)
from holdfast.web.dashboard.form_value import Wrong

__all__ = ["MAX_FIELDS", "Field", "fields_of", "problem_at", "read_form"]


def fields_of(schema: Mapping[str, Any]) -> list[Field]:
    """The fields of a form for this schema, in its order."""
    return [leaf.field for leaf in leaves(outline(schema))]


def read_form(schema: Mapping[str, Any], values: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, str]]:
    """The payload that the texts mean, and what is wrong with them by the field's name.

    A field that is left out is not in the payload, so that its default holds in the handler; one that
    must be there and may be null is null. An object that may be left out is, when all its fields are.
    """
    problems: dict[str, str] = {}
    payload = _read_group(outline(schema), values, problems)
    return payload, problems


def problem_at(schema: Mapping[str, Any], where: str) -> str:
    """The name of the field that an InvalidPayload's `where` belongs to; "payload" if it is none."""
    nearest, length = "payload", len("payload")
    for path, name in _places(outline(schema)):
        for place in {_dotted(path), _bracketed(path)}:
            if len(place) > length and _is_within(where, place):
                nearest, length = name, len(place)
    return nearest


def _places(group: Group) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every path of the payload that is shown, and the name of its field: for an object, its first."""
    for member in group.members:
        if isinstance(member, Group):
            own = member.rest or next(leaves(member))
            yield member.path, own.field.name
            yield from _places(member)
        else:
            yield member.path, member.field.name


# How msgspec writes a place, and how pydantic's and our own checks do (see core.payload).
def _dotted(path: tuple[str, ...]) -> str:
    return "payload" + "".join(f".{step}" for step in path)


def _bracketed(path: tuple[str, ...]) -> str:
    steps = (f".{step}" if re.fullmatch(r"\w+", step) else f"[{step!r}]" for step in path)
    return "payload" + "".join(steps)


def _is_within(where: str, place: str) -> bool:
    return where.startswith(place) and where[len(place) : len(place) + 1] in ("", ".", "[")


# Reading.


def _read_group(group: Group, values: Mapping[str, str], problems: dict[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for member in group.members:
        value: Any = UNSET
        if isinstance(member, Leaf):
            try:
                value = _read_leaf(member, values)
            except Wrong as wrong:
                problems[member.field.name] = str(wrong)
        elif (member.needed and not member.nullable) or not _is_blank(member, values):
            value = _read_group(member, values, problems)
        elif member.needed:
            value = None
        if value is not UNSET:
            made[member.path[-1]] = value
    if group.rest is not None:
        try:
            made |= _read_rest(group.rest, values, made)
        except Wrong as wrong:
            problems[group.rest.field.name] = str(wrong)
    return made


def _is_blank(group: Group, values: Mapping[str, str]) -> bool:
    texts = ((leaf.field.kind, values.get(leaf.field.name, "")) for leaf in leaves(group))
    return not any(text if kind in ("text", "long") else text.strip() for kind, text in texts)


def _read_rest(rest: Leaf, values: Mapping[str, str], made: Mapping[str, Any]) -> dict[str, Any]:
    others = _read_leaf(rest, values)
    if others is UNSET:
        return {}
    for name in others:
        if name in made:
            raise Wrong(f"must not give {label_of((name,))}, which has a field of its own")
    given: dict[str, Any] = others
    return given


def _read_leaf(leaf: Leaf, values: Mapping[str, str]) -> Any:
    """What the field's text means; UNSET if the payload is to be without it."""
    text = with_line_ends(values.get(leaf.field.name, ""))
    is_text = leaf.field.kind in ("text", "long")
    if text if is_text else text.strip():
        return meaning(leaf, text)
    if leaf.nullable or not leaf.needed:
        return None if leaf.needed else UNSET
    if leaf.field.name in values and (is_text or "" in leaf.values):
        with suppress(Wrong):
            return meaning(leaf, text)
    raise Wrong("is required")
