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
    Field,
    Group,
    fields_in,
    label_of,
    meaning,
    outline,
    with_line_ends,
)
from holdfast.web.dashboard.form_value import Wrong


def fields_of(schema: Mapping[str, Any]) -> list[Field]:
    """The fields of a form for this schema, in its order."""
    return list(fields_in(outline(schema)))


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
    around = [
        (len(place), name)
        for path, name in _places(outline(schema))
        for place in (_dotted(path), _bracketed(path))
        if where.startswith(place) and where[len(place) : len(place) + 1] in ("", ".", "[")
    ]
    return max(around, key=lambda found: found[0], default=(0, "payload"))[1]


def _places(group: Group) -> Iterator[tuple[tuple[str, ...], str]]:
    """Every path of the payload that is shown, and the name of its field: for an object, its first."""
    for member in group.members:
        if isinstance(member, Group):
            yield member.path, (member.rest or next(fields_in(member))).name
            yield from _places(member)
        else:
            yield member.path, member.name


# How msgspec writes a place, and how pydantic's and our own checks do (see core.payload).
def _dotted(path: tuple[str, ...]) -> str:
    return ".".join(("payload", *path))


def _bracketed(path: tuple[str, ...]) -> str:
    steps = (f".{step}" if re.fullmatch(r"\w+", step) else f"[{step!r}]" for step in path)
    return "payload" + "".join(steps)


# Reading.


def _read_group(group: Group, values: Mapping[str, str], problems: dict[str, str]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for member in group.members:
        value: Any = None if member.needed else UNSET
        if isinstance(member, Field):
            value = _read_field(member, values, problems)
        elif (member.needed and not member.nullable) or not _is_blank(member, values):
            value = _read_group(member, values, problems)
        if value is not UNSET:
            made[member.path[-1]] = value
    others = UNSET if group.rest is None else _read_field(group.rest, values, problems)
    if group.rest is not None and others is not UNSET:
        if twice := [name for name in others if name in made]:
            problems[group.rest.name] = f"must not contain {label_of((twice[0],))}, which has its own field"
        else:
            made.update(others)
    return made


def _is_blank(group: Group, values: Mapping[str, str]) -> bool:
    return not any(field.is_filled(values.get(field.name, "")) for field in fields_in(group))


def _read_field(field: Field, values: Mapping[str, str], problems: dict[str, str]) -> Any:
    """The value of a field's text; UNSET if it is left out of the payload, or invalid."""
    text = with_line_ends(values.get(field.name, ""))
    try:
        if field.is_filled(text):
            return meaning(field, text)
        if field.nullable or not field.needed:
            return None if field.needed else UNSET
        if field.name in values and (field.is_text or "" in field.values):
            with suppress(Wrong):
                return meaning(field, text)
        raise Wrong("is required")
    except Wrong as wrong:
        problems[field.name] = str(wrong)
        return UNSET
