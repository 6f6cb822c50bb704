"""What a form asks for: a payload's JSON Schema as fields, and objects of fields.

A schema comes from the database and may hold anything, so what can't be understood is left out or written
as JSON.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import unquote

from msgspec import Struct, structs

from holdfast.text import one_line
from holdfast.web.dashboard.form_value import (
    UNIONS,
    Wrong,
    allowed,
    described,
    is_union,
    json_text,
    read_text,
    short,
    sound,
)

MAX_LEVELS = 3
"""Names in a dotted label; an object that would need more is written as JSON."""

MAX_FIELDS = 200
"""A small schema can refer to itself so often that it stands for millions of fields."""


class Field(Struct, frozen=True, kw_only=True):
    """A field of the form, and how its text is read.

    `required` says that the payload must have it, `needed` that the object around it must. A required text
    may be empty all the same, so a page marks such a field but does not use the browser's own check.
    """

    path: tuple[str, ...]
    label: str
    kind: str
    """text, long (a textarea), number, choice or json."""
    rule: Mapping[str, Any]
    required: bool = False
    needed: bool = False
    nullable: bool = False
    values: Mapping[str, Any] = {}
    """The allowed values of a choice by their texts."""
    choices: tuple[str, ...] = ()
    """Those texts; a choice that may be left out begins with an empty one."""
    help: str = ""
    initial: str = ""
    """The default. Empty inside an object that may be left out: a text there would mean that it is not."""

    @property
    def name(self) -> str:
        return ".".join(("payload", *(_escaped(step) for step in self.path)))

    @property
    def is_text(self) -> bool:
        return self.kind in ("text", "long")

    def is_filled(self, text: str) -> bool:
        return bool(text if self.is_text else text.strip())


class Group(Struct, frozen=True, kw_only=True):
    """An object whose properties have fields of their own; `rest` takes the ones that have none."""

    path: tuple[str, ...]
    members: tuple[Field | Group, ...]
    needed: bool
    nullable: bool
    rest: Field | None


def fields_in(group: Group) -> Iterator[Field]:
    for member in group.members:
        if isinstance(member, Group):
            yield from fields_in(member)
        else:
            yield member
    if group.rest is not None:
        yield group.rest


# The outline: a schema as groups and fields.


def outline(schema: object) -> Group:
    return _Outline(schema).top()


class _Settled(Struct, frozen=True):
    """A schema without references, and with null taken out of it. `refs`: what it stands inside of."""

    rule: Mapping[str, Any]
    nullable: bool
    refs: frozenset[str]


class _Outline:
    """Makes the groups and fields of one schema."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._fields_left = MAX_FIELDS

    def top(self) -> Group:
        settled = self._settle(self._root, frozenset({"#"})) or _Settled({}, False, frozenset())
        properties = _properties(settled.rule)
        is_closed = "properties" in settled.rule and settled.rule.get("additionalProperties") is False
        if properties is None or len(properties) > self._fields_left:
            properties, is_closed = {}, False
        members = self._members(properties, settled, (), firm=True)
        rest = None if is_closed else _rest((), "other fields" if members else "payload")
        return Group(path=(), members=members, needed=True, nullable=False, rest=rest)

    def _members(
        self, properties: Mapping[str, Any], settled: _Settled, path: tuple[str, ...], *, firm: bool
    ) -> tuple[Field | Group, ...]:
        self._fields_left -= len(properties)
        required = settled.rule.get("required", ())
        members = (
            self._member(schema, settled.refs, (*path, name), needed=name in required, firm=firm)
            for name, schema in properties.items()
        )
        return tuple(member for member in members if member is not None)

    def _member(
        self, schema: object, refs: frozenset[str], path: tuple[str, ...], *, needed: bool, firm: bool
    ) -> Field | Group | None:
        """`firm`: every object around it must be there."""
        settled = self._settle(schema, refs)
        if settled is None:
            return None
        rule, nullable = settled.rule, settled.nullable
        properties = _properties(rule)
        if properties and len(path) < MAX_LEVELS and len(properties) <= self._fields_left:
            members = self._members(properties, settled, path, firm=firm and needed and not nullable)
            # Records say nothing of other properties and ignore them: a field for those is only in the way.
            is_open = rule.get("additionalProperties") not in (None, False)
            rest = _rest(path, f"{label_of(path)}: other fields") if is_open else None
            if members:
                return Group(path=path, members=members, needed=needed, nullable=nullable, rest=rest)
        return _field(rule, path, needed=needed, nullable=nullable, firm=firm)

    def _settle(self, schema: object, refs: frozenset[str]) -> _Settled | None:
        if not isinstance(schema, Mapping):
            return _Settled({}, False, refs) if schema is True else None
        rule: dict[str, Any] | None = sound(schema)
        nullable = False
        for _ in range(20):
            assert rule is not None
            if "$ref" in rule:
                ref = rule["$ref"]
                rule = _merged(self._target(ref), rule, "$ref")
                if ref in refs:
                    parts = ("$ref", "properties", *UNIONS)
                    rest = {name: value for name, value in rule.items() if name not in parts}
                    return _Settled(rest, nullable, refs)
                refs |= {ref}
                continue
            inner, has_null = _unwrapped(rule)
            nullable = nullable or has_null
            if inner is None:
                return _Settled(rule, nullable, refs)
            rule = inner
        return _Settled({}, nullable, refs)

    def _target(self, ref: str) -> object:
        target: object = self._root if ref.startswith("#") else {}
        for step in ref.split("/")[1:]:
            name = unquote(step).replace("~1", "/").replace("~0", "~")
            target = target.get(name) if isinstance(target, Mapping) else None
        return target


def _merged(inner: object, outer: Mapping[str, Any], without: str) -> dict[str, Any]:
    """What stands beside a reference or a union of one (a default, a description) adds to it."""
    inside = sound(inner) if isinstance(inner, Mapping) else {}
    return inside | {name: value for name, value in outer.items() if name != without}


def _unwrapped(rule: Mapping[str, Any]) -> tuple[dict[str, Any] | None, bool]:
    """The one schema that a rule wraps, if it does, and whether null is beside it."""
    for word in UNIONS:
        if members := rule.get(word):
            others = [member for member in members if not _is_null(member)]
            has_null = len(others) < len(members) and word != "allOf"
            return (_merged(others[0], rule, word) if len(others) == 1 else None), has_null
    kinds = rule.get("type")
    if isinstance(kinds, list) and kinds:
        others = [kind for kind in kinds if kind != "null"]
        has_null = len(others) < len(kinds)
        return ({**rule, "type": others[0]} if len(others) == 1 else None), has_null
    return None, kinds == "null" or any(value is None for value in _enumerated(rule))


def _is_null(schema: object) -> bool:
    return isinstance(schema, Mapping) and (
        schema.get("type") == "null" or _enumerated(sound(schema)) == [None]
    )


def _properties(rule: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The properties of an object, if the rule names any or says that there are none."""
    return rule.get("properties") if rule.get("type", "object") == "object" else None


def _enumerated(rule: Mapping[str, Any]) -> list[Any]:
    return [rule["const"]] if "const" in rule else rule.get("enum", [])


# Fields.

_LONG_NAMES = {"body", "content", "html", "markdown", "message", "prompt", "script", "source", "text"}


def _rest(path: tuple[str, ...], label: str) -> Field:
    rule = {"type": "object"}
    return Field(path=path, label=label, kind="json", rule=rule, help=allowed(rule))


def _field(
    rule: Mapping[str, Any], path: tuple[str, ...], *, needed: bool, nullable: bool, firm: bool
) -> Field:
    required = firm and needed and not nullable
    values = _choices(rule, offers_blank=not required)
    field = Field(
        path=path,
        label=label_of(path),
        kind=_kind(rule, path[-1]) if values is None else "choice",
        rule=rule,
        required=required,
        needed=needed,
        nullable=nullable,
        values=values or {},
        choices=() if values is None else tuple(values) if required else ("", *values),
    )
    default = _default(field)
    words = [described(rule), "" if values is not None else allowed(rule)]
    if default and not firm:
        words.append(f"default {one_line(short(default))}")
    return structs.replace(field, help="; ".join(filter(None, words)), initial=default if firm else "")


# A dot parts two names, so one inside a name is "~1", and "~" itself "~0", as in a JSON Pointer. What a
# browser would change or can't send (line ends, NUL, lone surrogates) is its number: "~ua;" is a new line.
def _escaped(name: str) -> str:
    name = name.replace("~", "~0").replace(".", "~1")
    return "".join(c if c.isprintable() else f"~u{ord(c):x};" for c in name)


def label_of(path: tuple[str, ...]) -> str:
    return ".".join(one_line(step) if step.strip() else repr(step) for step in path)


def _choices(rule: Mapping[str, Any], *, offers_blank: bool) -> dict[str, Any] | None:
    """The allowed values by their texts; None if the rule does not list them. Null is left out."""
    if rule.get("type") == "null":
        return {}
    listed = _enumerated(rule)
    by_json = {json_text(value): value for value in listed if value is not None}
    by_json.pop("", None)
    if not by_json:
        if any(value is None for value in listed):
            return {}
        return {"true": True, "false": False} if rule.get("type") == "boolean" else None
    by_text = {value if isinstance(value, str) else text: value for text, value in by_json.items()}
    is_plain = all(text.isprintable() and (text or not offers_blank) for text in by_text)
    # The number 1 and the text "1" would look the same, as would an empty text and nothing: as JSON, then.
    return by_text if is_plain and len(by_text) == len(by_json) else by_json


def _kind(rule: Mapping[str, Any], name: str) -> str:
    kind = rule.get("type")
    if is_union(rule):
        return "json"
    if kind == "string":
        return "long" if _is_long(rule, name) else "text"
    return "number" if kind in ("integer", "number") else "json"


def _is_long(rule: Mapping[str, Any], name: str) -> bool:
    """Whether the text may well have more than one line."""
    default, longest = rule.get("default"), rule.get("maxLength", 100)
    if isinstance(default, str) and ("\n" in default or len(default) > 80):
        return True
    if "format" in rule or longest <= 80:
        return False
    return longest > 200 or re.split(r"[\W_]", name.lower())[-1] in _LONG_NAMES


def _default(field: Field) -> str:
    """The text that means the default; empty if there is none, as for one that breaks its own rules."""
    default = field.rule.get("default")
    if default is None:
        return ""
    in_json = json_text(default)
    text = default if field.is_text and isinstance(default, str) else in_json
    if field.kind == "choice":
        text = next((text for text, value in field.values.items() if json_text(value) == in_json), "")
    try:
        text.encode()
        is_same = "\0" not in text and json_text(meaning(field, with_line_ends(text))) == in_json
    except (Wrong, UnicodeEncodeError):
        return ""
    return text if is_same else ""


def with_line_ends(text: str) -> str:
    """Browsers send CRLF for the end of a line in a textarea."""
    return text.replace("\r\n", "\n")


def meaning(field: Field, text: str) -> Any:
    if field.kind != "choice":
        return read_text(field.rule, field.kind, text)
    if text not in field.values:
        raise Wrong(f"must be one of: {short(', '.join(field.values))}")
    return field.values[text]
