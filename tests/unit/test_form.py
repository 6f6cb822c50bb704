"""The form of a payload: the fields a schema gives, and the payload that the submitted texts mean."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from decimal import Decimal
from enum import Enum, IntEnum
from itertools import product
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Meta

from holdfast.core.payload import PayloadSpec, encode_payload
from holdfast.errors import InvalidPayload
from holdfast.handlers.handler import Handler
from holdfast.jobs.shell import Command
from holdfast.web.dashboard.form import fields_of, problem_at, read_form
from holdfast.web.dashboard.form_outline import MAX_FIELDS, Field

ID = "12345678-1234-5678-1234-567812345678"


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


@dataclass
class Address:
    street: str
    number: int = 7
    tags: list[str] = field(default_factory=list)


class Limits(TypedDict):
    cpu: int
    memory: NotRequired[int]


class Circle(msgspec.Struct, tag=True):
    radius: float


class Square(msgspec.Struct, tag=True):
    side: float


class Tree(msgspec.Struct):
    value: int
    left: Tree | None = None


class Deep3(msgspec.Struct):
    leaf: int


class Deep2(msgspec.Struct):
    three: Deep3
    name: str = ""


class Deep1(msgspec.Struct):
    two: Deep2


class Switch(msgspec.Struct):
    on: bool
    colour: Colour


class Person(pydantic.BaseModel):
    name: Annotated[str, pydantic.Field(min_length=1, max_length=20)]
    age: Annotated[int, pydantic.Field(ge=0, lt=150, description="Years.")] = 30
    born: date | None = None
    home: Address | None = None
    nick: str | None = None
    friend: Person | None = None


class Open(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    a: int


Whole = Annotated[int, Meta(ge=1, le=10)]
Above = Annotated[int, Meta(gt=1, lt=10)]
Fives = Annotated[int, Meta(multiple_of=5)]
Halves = Annotated[float, Meta(multiple_of=0.5)]
Short = Annotated[str, Meta(min_length=2, max_length=3)]
Code = Annotated[str, Meta(pattern="^[A-Z]{2}$")]
Instant = Annotated[datetime, Meta(tz=True)]


def spec_of(annotation: Any, *, required: bool = True, extra: bool = False) -> PayloadSpec:
    """What a handler with the one parameter `v` takes."""

    def needs(v): ...

    def offers(v=None): ...

    def needs_and_more(v, **more): ...

    function: Callable[..., Any] = needs_and_more if extra else needs if required else offers
    function.__annotations__ = {"v": annotation}
    return Handler("t", function, whole=False).spec


def schema_of(annotation: Any, *, required: bool = True) -> dict[str, Any]:
    schema: dict[str, Any] = json.loads(json.dumps(spec_of(annotation, required=required).schema()))
    return schema


def only_field(annotation: Any, *, required: bool = True) -> Field:
    (made,) = fields_of(schema_of(annotation, required=required))
    return made


def is_taken(spec: PayloadSpec, payload: Mapping[str, Any]) -> bool:
    try:
        spec.bind(encode_payload(payload, 1_000_000)[0])
    except InvalidPayload:
        return False
    return True


TAKEN = [
    (int, "12", 12),
    (int, " -3 ", -3),
    (int, "12345678901234567890", 12345678901234567890),
    (int, "9" * 300, int("9" * 300)),
    (float, "1.5", 1.5),
    (float, "3", 3),
    (float, "-1e3", -1000.0),
    (bool, "true", True),
    (bool, "false", False),
    (str, "", ""),
    (str, " spaces stay ", " spaces stay "),
    (str, "one\r\ntwo\r\n", "one\ntwo\n"),
    (str, "a lone \r stays", "a lone \r stays"),
    (str, "null", "null"),
    (Literal["a", "b"], "b", "b"),
    (Literal["", "b"], "", ""),
    (Literal[1, 2], "2", 2),
    (Literal[1, "1"], "1", 1),
    (Literal[1, "1"], '"1"', "1"),
    (Literal[1, "a"] | None, "a", "a"),
    (Literal[1, "a"] | None, "", None),
    (Colour, "red", "red"),
    (Level, "2", 2),
    (int | None, "", None),
    (int | None, "4", 4),
    (str | None, "", None),
    (None, "", None),
    (int | str, "4", 4),
    (int | str, '"4"', "4"),
    (int | str | None, "", None),
    (datetime, "2026-01-15T10:00:00Z", "2026-01-15T10:00:00Z"),
    (Instant, "2026-01-15T10:00:00Z", "2026-01-15T10:00:00Z"),
    (Instant, "2026-01-15t10:00:00z", "2026-01-15t10:00:00z"),
    (Instant, "2026-01-15 10:00:00.123456789+01:00", "2026-01-15 10:00:00.123456789+01:00"),
    (date, "2026-01-15", "2026-01-15"),
    (UUID, ID, ID),
    (UUID, ID.replace("-", ""), ID.replace("-", "")),
    (Decimal, "12.50", "12.50"),
    (bytes, "aGk=", "aGk="),
    (list[str], '["a", "b"]', ["a", "b"]),
    (list[int], "[]", []),
    (dict[str, int], '{"a": 1}', {"a": 1}),
    (Circle | Square, '{"type": "Circle", "radius": 2}', {"type": "Circle", "radius": 2}),
    (Any, "null", None),
    (Any, "12345678901234567890", 12345678901234567890),
    (dict, "{}", {}),
    (Whole, "1", 1),
    (Whole, "10", 10),
    (Above, "9", 9),
    (Fives, "-15", -15),
    (Halves, "2.5", 2.5),
    (Short, "é\U0001f600", "é\U0001f600"),
    (Code, "AB", "AB"),
]

REFUSED = [
    (int, "1e3", "1e3", "must be a whole number"),
    (int, "1.0", 1.5, "must be a whole number"),
    (int, "1_000", "1_000", "must be a whole number"),
    (int, "\u0663", "\u0663", "must be a whole number"),
    (int, "", "", "is required"),
    (int, "   ", "   ", "is required"),
    (float, "NaN", "NaN", "must be a number"),
    (float, "Infinity", "Infinity", "must be a number"),
    (float, "1e999", "1e999", "must be a number"),
    (float, "1,5", "1,5", "must be a number"),
    (float, "0x10", "0x10", "must be a number"),
    (bool, "yes", "yes", "must be one of: true, false"),
    (bool, "", "", "is required"),
    (Literal["a", "b"], "c", "c", "must be one of: a, b"),
    (Level, "3", 3, "must be one of: 1, 2"),
    (Instant, "tomorrow", "tomorrow", "must be a date and time such as 2026-01-15T10:00:00Z"),
    (date, "2026-02-30", "2026-02-30", "must be a date such as 2026-01-15"),
    (date, "", "", "is required"),
    (UUID, "123", "123", f"must be a UUID such as {ID}"),
    (list[str], '{"a": 1}', {"a": 1}, 'must be a JSON array such as ["a", "b"]'),
    (dict[str, int], "[1]", [1], 'must be a JSON object such as {"a": 1}'),
    (Whole, "0", 0, "must be a whole number from 1 to 10"),
    (Whole, "11", 11, "must be a whole number from 1 to 10"),
    (Above, "1", 1, "must be a whole number that is more than 1 and less than 10"),
    (Above, "10", 10, "must be a whole number that is more than 1 and less than 10"),
    (Fives, "7", 7, "must be a whole number, a multiple of 5"),
    (Halves, "0.3", 0.3, "must be a number, a multiple of 0.5"),
    (Short, "", "", "is required"),
    (Short, "a", "a", "must be text of 2 to 3 characters"),
    (Short, "abcd", "abcd", "must be text of 2 to 3 characters"),
    (Code, "abc", "abc", "must be text that matches ^[A-Z]{2}$"),
]


@pytest.mark.parametrize(("annotation", "text", "value"), TAKEN)
def test_the_handler_takes_what_the_form_reads(annotation: Any, text: str, value: Any) -> None:
    spec = spec_of(annotation)
    payload, problems = read_form(spec.schema(), {"payload.v": text})
    assert (payload, problems) == ({"v": value}, {})
    assert type(payload["v"]) is type(value)
    assert is_taken(spec, payload)


@pytest.mark.parametrize(("annotation", "text", "value"), TAKEN)
def test_a_pydantic_handler_takes_what_the_form_reads(annotation: Any, text: str, value: Any) -> None:
    if annotation == Circle | Square:
        annotation = dict[str, Any]  # pydantic knows no structs
    if annotation is Decimal:
        text = f'"{text}"'  # to pydantic a number or a text, so it is written as JSON
    spec = PayloadSpec.of_whole(pydantic.create_model("Payload", v=(annotation, ...)))
    payload, problems = read_form(spec.schema(), {"payload.v": text})
    assert (payload, problems) == ({"v": value}, {})
    assert is_taken(spec, payload)


@pytest.mark.parametrize(("annotation", "text", "value", "problem"), REFUSED)
def test_what_the_form_refuses_the_handler_refuses(
    annotation: Any, text: str, value: Any, problem: str
) -> None:
    spec = spec_of(annotation)
    assert read_form(spec.schema(), {"payload.v": text}) == ({}, {"payload.v": problem})
    assert not is_taken(spec, {"v": value})


@pytest.mark.parametrize("annotation", [row[0] for row in TAKEN] + [row[0] for row in REFUSED])
def test_an_optional_field_that_is_empty_is_left_out(annotation: Any) -> None:
    spec = spec_of(annotation, required=False)
    assert read_form(spec.schema(), {"payload.v": ""}) == ({}, {})
    assert read_form(spec.schema(), {}) == ({}, {})
    assert is_taken(spec, {})
    assert not only_field(annotation, required=False).required


def test_a_required_text_that_was_not_sent_is_a_problem() -> None:
    assert read_form(schema_of(str), {}) == ({}, {"payload.v": "is required"})


# Objects inside the payload.


def test_objects_become_fields_with_dotted_names() -> None:
    fields = fields_of(schema_of(Address))
    assert [(made.name, made.label, made.kind) for made in fields] == [
        ("payload.v.street", "v.street", "text"),
        ("payload.v.number", "v.number", "number"),
        ("payload.v.tags", "v.tags", "json"),
    ]
    assert [made.required for made in fields] == [True, False, False]
    assert [made.initial for made in fields] == ["", "7", ""]


def test_an_object_is_read_from_its_fields() -> None:
    spec = spec_of(Address)
    values = {"payload.v.street": "High St", "payload.v.number": "", "payload.v.tags": '["a"]'}
    payload, problems = read_form(spec.schema(), values)
    assert (payload, problems) == ({"v": {"street": "High St", "tags": ["a"]}}, {})
    assert is_taken(spec, payload)


def test_a_problem_inside_an_object_names_its_field() -> None:
    values = {"payload.v.cpu": "", "payload.v.memory": "much"}
    _, problems = read_form(schema_of(Limits), values)
    assert problems == {"payload.v.cpu": "is required", "payload.v.memory": "must be a whole number"}


@pytest.mark.parametrize("annotation", [Limits, Limits | None])
def test_an_optional_object_without_texts_is_left_out(annotation: Any) -> None:
    spec = spec_of(annotation, required=False)
    assert read_form(spec.schema(), {"payload.v.cpu": " ", "payload.v.memory": ""}) == ({}, {})
    assert is_taken(spec, {})


def test_a_required_object_that_may_be_null_is_null_without_texts() -> None:
    spec = spec_of(Limits | None)
    assert read_form(spec.schema(), {"payload.v.cpu": ""}) == ({"v": None}, {})
    assert is_taken(spec, {"v": None})


def test_one_text_makes_an_optional_object_and_its_required_fields_count() -> None:
    schema = schema_of(Limits | None, required=False)
    assert read_form(schema, {"payload.v.cpu": "", "payload.v.memory": "1"})[1] == {
        "payload.v.cpu": "is required"
    }
    assert read_form(schema, {"payload.v.cpu": "2"}) == ({"v": {"cpu": 2}}, {})


def test_nothing_inside_an_optional_object_is_required_or_filled_in() -> None:
    street, number, _ = fields_of(schema_of(Address, required=False))
    assert not street.required
    assert number.initial == ""
    assert number.help == "a whole number; default 7"


def test_choices_inside_an_optional_object_may_be_left_out() -> None:
    on, colour = fields_of(schema_of(Switch | None, required=False))
    assert on.choices == ("", "true", "false")
    assert set(colour.choices) == {"", "red", "blue"}
    on, colour = fields_of(schema_of(Switch))
    assert on.choices == ("true", "false")
    assert set(colour.choices) == {"red", "blue"}


def test_an_object_whose_fields_are_all_optional_is_empty_if_it_is_required() -> None:
    class Options(msgspec.Struct):
        a: int = 1

    assert read_form(schema_of(Options), {"payload.v.a": ""}) == ({"v": {}}, {})


def test_the_fourth_level_is_json() -> None:
    fields = fields_of(PayloadSpec.of_keywords({"one": (Deep1, True)}, extra=False).schema())
    assert [(made.name, made.kind) for made in fields] == [
        ("payload.one.two.three", "json"),
        ("payload.one.two.name", "text"),
    ]


def test_a_deep_object_is_read_as_json() -> None:
    spec = PayloadSpec.of_keywords({"one": (Deep1, True)}, extra=False)
    payload, problems = read_form(spec.schema(), {"payload.one.two.three": '{"leaf": 1}'})
    assert problems == {}
    assert payload == {"one": {"two": {"three": {"leaf": 1}}}}
    assert is_taken(spec, payload)


def test_a_recursive_object_is_json_where_it_begins_again() -> None:
    spec = spec_of(Tree)
    assert [(made.name, made.kind) for made in fields_of(spec.schema())] == [
        ("payload.v.value", "number"),
        ("payload.v.left", "json"),
    ]
    payload, problems = read_form(spec.schema(), {"payload.v.value": "1", "payload.v.left": '{"value": 2}'})
    assert problems == {}
    assert is_taken(spec, payload)


def test_two_fields_of_one_type_are_both_expanded() -> None:
    spec = PayloadSpec.of_keywords({"a": (Deep3, True), "b": (Deep3, True)}, extra=False)
    assert [made.name for made in fields_of(spec.schema())] == ["payload.a.leaf", "payload.b.leaf"]


def test_a_pydantic_model_is_shown_and_read_like_the_others() -> None:
    spec = PayloadSpec.of_whole(Person)
    fields = {made.label: made for made in fields_of(spec.schema())}
    assert fields["name"].help == "text of 1 to 20 characters"
    assert fields["age"].help == "Years; a whole number that is at least 0 and less than 150"
    assert fields["age"].initial == "30"
    assert fields["friend"].kind == "json"
    assert not fields["home.street"].required
    values = {"payload.name": "Ann", "payload.age": "", "payload.born": "2000-02-29", "payload.nick": ""}
    payload, problems = read_form(spec.schema(), values)
    assert (payload, problems) == ({"name": "Ann", "born": "2000-02-29"}, {})
    assert is_taken(spec, payload)


def test_keyword_handlers_with_pydantic_models_are_shown_too() -> None:
    spec = spec_of(Open)
    assert [made.name for made in fields_of(spec.schema())] == ["payload.v.a", "payload.v"]
    payload, problems = read_form(spec.schema(), {"payload.v.a": "1", "payload.v": '{"b": 2}'})
    assert (payload, problems) == ({"v": {"a": 1, "b": 2}}, {})
    assert is_taken(spec, payload)


def test_the_form_of_a_shell_job() -> None:
    spec = PayloadSpec.of_whole(Command)
    fields = {made.label: made for made in fields_of(spec.schema())}
    assert list(fields) == [
        "command",
        "cwd",
        "env",
        "limits.memoryBytes",
        "limits.cpuSeconds",
        "limits.openFiles",
        "limits.processes",
    ]
    assert fields["command"].kind == "long"
    payload, problems = read_form(
        spec.schema(), {"payload.command": "ls\r\nid", "payload.limits.openFiles": "9"}
    )
    assert (payload, problems) == ({"command": "ls\nid", "limits": {"openFiles": 9}}, {})
    assert is_taken(spec, payload)


# What has no field of its own.


@pytest.mark.parametrize(
    "schema", [{}, {"type": "object"}, {"anyOf": [{"type": "object"}, {"type": "array"}]}]
)
def test_a_schema_without_properties_has_one_field_for_the_payload(schema: dict[str, Any]) -> None:
    (made,) = fields_of(schema)
    assert (made.name, made.label, made.kind, made.required) == ("payload", "payload", "json", False)
    assert read_form(schema, {"payload": '{"a": [1]}'}) == ({"a": [1]}, {})
    assert read_form(schema, {"payload": ""}) == ({}, {})
    assert read_form(schema, {"payload": "[1]"}) == (
        {},
        {"payload": 'must be a JSON object such as {"a": 1}'},
    )


def test_a_handler_without_parameters_has_no_fields() -> None:
    schema = PayloadSpec.of_keywords({}, extra=False).schema()
    assert fields_of(schema) == []
    assert read_form(schema, {"payload": '{"a": 1}'}) == ({}, {})


def test_other_fields_are_merged_in() -> None:
    spec = spec_of(int, extra=True)
    *_, last = fields_of(spec.schema())
    assert (last.name, last.label, last.kind) == ("payload", "other fields", "json")
    payload, problems = read_form(spec.schema(), {"payload.v": "1", "payload": '{"w": 2}'})
    assert (payload, problems) == ({"v": 1, "w": 2}, {})
    assert is_taken(spec, payload)


def test_a_name_that_both_give_is_a_problem() -> None:
    schema = spec_of(int, extra=True).schema()
    payload, problems = read_form(schema, {"payload.v": "1", "payload": '{"v": 2}'})
    assert payload == {"v": 1}
    assert problems == {"payload": "must not contain v, which has its own field"}


def test_other_fields_may_give_a_field_that_was_left_empty() -> None:
    schema = {"properties": {"v": {"type": "string"}}}
    assert read_form(schema, {"payload.v": "", "payload": '{"v": ""}'}) == ({"v": ""}, {})


# JSON fields.


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("hello", 'must be JSON such as 1, "text" or {"a": 1} (expecting value: line 1, column 1)'),
        (
            '{"a": 1, "a": 2}',
            'must be JSON such as 1, "text" or {"a": 1} (duplicate key \'a\')',
        ),
        ("[NaN]", "must be valid JSON, without NaN or Infinity"),
        ("[1e999]", "must be valid JSON, without NaN or Infinity"),
        ("[" * 100_000, "is nested too deeply"),
        ("\n ", "is required"),
    ],
)
def test_json_that_does_not_mean_one_thing_is_refused(text: str, problem: str) -> None:
    assert read_form(schema_of(Any), {"payload.v": text}) == ({}, {"payload.v": problem})


def test_a_number_of_thousands_of_digits_is_refused_in_plain_words() -> None:
    _, problems = read_form(schema_of(Any), {"payload.v": "9" * 5000})
    assert "digits" in problems["payload.v"]
    assert "sys." not in problems["payload.v"]
    assert read_form(schema_of(int), {"payload.v": "9" * 5000})[1] == {"payload.v": "must be a whole number"}
    assert "1024 bits" in read_form(schema_of(int), {"payload.v": "9" * 350})[1]["payload.v"]


# What the page shows.


@pytest.mark.parametrize(
    ("annotation", "kind", "help"),
    [
        (int, "number", "a whole number"),
        (float, "number", "a number"),
        (Whole, "number", "a whole number from 1 to 10"),
        (Annotated[float, Meta(gt=0)], "number", "a number that is more than 0"),
        (str, "text", ""),
        (Annotated[str, Meta(min_length=1)], "text", "text of at least 1 character"),
        (Annotated[str, Meta(max_length=5000)], "long", "text of at most 5000 characters"),
        (Annotated[str, Meta(description="The\n subject.")], "text", "The subject"),
        (Annotated[int, Meta(description="How many")], "number", "How many; a whole number"),
        (Instant, "text", "a date and time such as 2026-01-15T10:00:00Z"),
        (UUID, "text", f"a UUID such as {ID}"),
        (Decimal, "text", "a decimal number such as 12.50"),
        (bytes, "text", "base64-encoded bytes"),
        (bool, "choice", ""),
        (list[str], "json", 'a JSON array such as ["a", "b"]'),
        (set[int], "json", "a JSON array such as [1, 2]"),
        (tuple[int, str], "json", "a JSON array such as [1, 2]"),
        (int | str, "json", 'JSON such as 1, "text" or {"a": 1}'),
        (Circle | Square, "json", 'JSON such as 1, "text" or {"a": 1}'),
    ],
)
def test_help_says_what_is_allowed(annotation: Any, kind: str, help: str) -> None:
    made = only_field(annotation)
    assert (made.kind, made.help) == (kind, help)


def test_texts_that_may_have_lines_get_a_textarea() -> None:
    text = {"type": "string"}
    schema = {"properties": {"body": text, "mail_body": text, "bodyguard": text, "to": text}}
    kinds = {made.label: made.kind for made in fields_of(schema)}
    assert kinds == {
        "body": "long",
        "mail_body": "long",
        "bodyguard": "text",
        "to": "text",
        "other fields": "json",
    }


@pytest.mark.parametrize(
    ("rule", "initial"),
    [
        ({"type": "integer", "default": 3}, "3"),
        ({"type": "number", "default": 1.5}, "1.5"),
        ({"type": "boolean", "default": False}, "false"),
        ({"type": "string", "default": "x y"}, "x y"),
        ({"type": "string", "default": "two\nlines"}, "two\nlines"),
        ({"enum": ["a", "b"], "default": "b"}, "b"),
        ({"enum": [1, "1"], "default": "1"}, '"1"'),
        ({"type": "array", "default": ["é"]}, '["é"]'),
        ({"default": None}, ""),
        ({"type": "integer", "default": "three"}, ""),
        ({"type": "integer", "default": True}, ""),
        ({"type": "integer", "maximum": 2, "default": 3}, ""),
        ({"type": "string", "default": 5}, ""),
        ({"type": "string", "default": "a\r\nb"}, ""),
        ({"type": "string", "default": "nul\0"}, ""),
        ({"type": "string", "default": "\ud800"}, ""),
        ({"enum": ["a"], "default": "z"}, ""),
        ({"default": float("nan")}, ""),
    ],
)
def test_the_default_is_filled_in_if_it_can_be_sent_back(rule: dict[str, Any], initial: str) -> None:
    schema = {"properties": {"v": rule}, "additionalProperties": False}
    (made,) = fields_of(schema)
    assert made.initial == initial
    assert "\n" not in made.initial or made.kind == "long"
    expected = {"v": rule["default"]} if initial else {}
    assert read_form(schema, {"payload.v": made.initial}) == (expected, {})


@pytest.mark.parametrize(
    ("rule", "choices"),
    [
        ({"enum": ["a", "b"]}, ("", "a", "b")),
        ({"const": 3}, ("", "3")),
        ({"const": None}, ("",)),
        ({"enum": ["", "a"]}, ("", '""', '"a"')),
        ({"enum": ["a\nb"]}, ("", '"a\\nb"')),
        ({"enum": ["\ud800"]}, ("", '"\\ud800"')),
        ({"enum": [True, "true", 1, 1.0]}, ("", "true", '"true"', "1", "1.0")),
        ({"enum": ["a", "a", None]}, ("", "a")),
        ({"enum": [[1], {"b": 2}]}, ("", "[1]", '{"b": 2}')),
        ({"enum": [float("nan"), "a"]}, ("", "a")),
    ],
)
def test_choices_never_look_the_same(rule: dict[str, Any], choices: tuple[str, ...]) -> None:
    schema = {"properties": {"v": rule}, "additionalProperties": False}
    (made,) = fields_of(schema)
    assert made.choices == choices
    read = [read_form(schema, {"payload.v": text}) for text in choices]
    assert all(problems == {} for _, problems in read)
    assert len({json.dumps(payload) for payload, _ in read}) == len(choices)


@pytest.mark.parametrize(
    "rule",
    [
        {"type": ["integer", "null"]},
        {"anyOf": [{"type": "null"}, {"type": "integer"}]},
        {"oneOf": [{"type": "integer"}, {"const": None}]},
        {"allOf": [{"$ref": "#/$defs/a~1b%20c"}]},
    ],
)
def test_other_ways_to_write_an_optional_number(rule: dict[str, Any]) -> None:
    schema = {
        "properties": {"v": rule},
        "additionalProperties": False,
        "$defs": {"a/b c": {"type": ["null", "integer"]}},
    }
    (made,) = fields_of(schema)
    assert made.kind == "number"
    assert read_form(schema, {"payload.v": "3"}) == ({"v": 3}, {})


def test_what_stands_beside_a_reference_adds_to_it() -> None:
    schema = {
        "properties": {"v": {"$ref": "#/$defs/C", "default": "a", "description": "Which"}},
        "$defs": {"C": {"enum": ["a", "b"], "description": "A colour"}},
    }
    made = fields_of(schema)[0]
    assert (made.kind, made.initial, made.help) == ("choice", "a", "Which")


# Names.

names = (
    st.text(max_size=5)
    | st.sampled_from(["", ".", "..", "~", "~1", "~0", "~;", "~ua;", "a", "b", "a.b", "[0]", "'", '"'])
    | st.sampled_from(["__proto__", "payload", "\n", "\r\n", "\0", "\x01", ".;", "\ud800", "x" * 300])
)


def object_of(paths: list[tuple[str, ...]]) -> dict[str, Any]:
    """A closed schema with a number at each path."""
    schema: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}
    for path in paths:
        place = schema
        for step in path[:-1]:
            place = place["properties"].setdefault(step, {"type": "object", "properties": {}})
        place["properties"][path[-1]] = {"type": "integer"}
    return schema


@given(
    st.lists(names, min_size=1, max_size=6, unique=True), st.lists(names, min_size=1, max_size=6, unique=True)
)
def test_every_name_has_a_field_of_its_own_and_comes_back(outer: list[str], inner: list[str]) -> None:
    paths = [*((step,) for step in inner), *product(outer, inner)]
    paths = [path for path in paths if len(path) == 2 or path[0] not in outer]
    schema = object_of(paths)
    fields = fields_of(schema)
    assert len({made.name for made in fields}) == len(fields) == len(paths)
    assert all(made.name.isprintable() and made.label.isprintable() and made.label.strip() for made in fields)
    payload, problems = read_form(schema, {made.name: str(n) for n, made in enumerate(fields)})
    assert problems == {}
    found = [payload[path[0]] if len(path) == 1 else payload[path[0]][path[1]] for path in paths]
    assert sorted(found) == list(range(len(paths)))


def test_a_dot_in_a_name_is_not_a_level() -> None:
    schema = object_of([("a.b",), ("a", "b"), ("a~1b",)])
    assert [made.name for made in fields_of(schema)] == ["payload.a~1b", "payload.a.b", "payload.a~01b"]


# Where a problem belongs.


@pytest.mark.parametrize(
    ("where", "name"),
    [
        ("payload", "payload"),
        ("payload.user", "payload.user.name"),
        ("payload.user.name", "payload.user.name"),
        ("payload.user.tags[2]", "payload.user.tags"),
        ("payload.user.tags[2].x", "payload.user.tags"),
        ("payload.user.unknown", "payload.user.name"),
        ("payload.username", "payload.username"),
        ("payload.users", "payload"),
        ("payload.free['a b'].c", "payload.free"),
        ("payload.free[...]", "payload.free"),
        ("payload['x.y']", "payload.x~1y"),
        ("payload.x.y", "payload.x~1y"),
        ("payload.x.y[0]", "payload.x~1y"),
        ("payload.x[0]", "payload.x"),
        ("payload.", "payload."),
        ("", "payload"),
        ("result.user", "payload"),
    ],
)
def test_a_place_in_the_payload_belongs_to_the_nearest_field(where: str, name: str) -> None:
    user = {"properties": {"name": {"type": "string"}, "tags": {"type": "array"}}}
    properties = {"user": user, "username": {}, "free": {"type": "object"}, "x.y": {}, "x": {}, "": {}}
    assert problem_at({"properties": properties}, where) == name


class Dotted(msgspec.Struct, rename={"first": "x.y", "second": ""}):
    first: list[int]
    second: list[int]


@pytest.mark.parametrize(
    ("spec", "payload", "name"),
    [
        (spec_of(Address), {"v": {"street": "a", "tags": ["a", 1]}}, "payload.v.tags"),
        (spec_of(dict[str, int]), {"v": {"a.b": "c"}}, "payload.v"),
        (spec_of(int | str), {"v": []}, "payload.v"),
        (PayloadSpec.of_whole(Dotted), {"x.y": ["a"], "": []}, "payload.x~1y"),
        (PayloadSpec.of_whole(Dotted), {"x.y": [], "": ["a"]}, "payload."),
        (
            PayloadSpec.of_whole(Person),
            {"name": "A", "home": {"street": "a", "tags": [1]}},
            "payload.home.tags",
        ),
        (PayloadSpec.of_whole(Person), {"name": "A", "friend": {"name": ""}}, "payload.friend"),
        (spec_of(Open), {"v": {"a": "x"}}, "payload.v.a"),
    ],
)
def test_the_handlers_own_problem_is_shown_at_its_field(
    spec: PayloadSpec, payload: dict[str, Any], name: str
) -> None:
    with pytest.raises(InvalidPayload) as caught:
        spec.bind(payload)
    assert problem_at(spec.schema(), caught.value.where) == name


@given(names, st.sampled_from(["\0", "\ud800"]))
def test_what_can_not_be_stored_is_shown_at_its_field(name: str, text: str) -> None:
    schema = {"properties": {name: {"type": "string"}, "other": {"type": "string"}}}
    made = fields_of(schema)[0]
    payload, problems = read_form(schema, {made.name: text})
    assert problems == {}
    with pytest.raises(InvalidPayload) as caught:
        encode_payload(payload, 1000)
    assert problem_at(schema, caught.value.where) in (made.name, "payload")


# Schemas that nobody checked.

words = (
    st.sampled_from(
        ["type", "properties", "required", "enum", "const", "default", "description", "a", "b", ""]
    )
    | st.sampled_from(["anyOf", "oneOf", "allOf", "$ref", "$defs", "items", "additionalProperties", "a.b"])
    | st.sampled_from(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "format"])
    | st.sampled_from(["minLength", "maxLength", "pattern", "contentEncoding"])
)
scraps = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=5)
    | st.sampled_from(["object", "string", "integer", "number", "boolean", "array", "null", "date", "uuid"])
    | st.sampled_from(["date-time", "#", "#/", "#/$defs/a", "#/$defs/b", "#/properties/a", "(", "[[a]", "^a"])
    | st.sampled_from([10**400, 1e308, 5e-324])
)
wild = st.recursive(
    scraps,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=4),
    max_leaves=8,
)
rules = st.dictionaries(words, wild, max_size=5)
objects = st.fixed_dictionaries(
    {"properties": st.dictionaries(st.sampled_from(["a", "b", "a.b", ""]), rules | wild, max_size=3)},
    optional={"required": st.just(["a", "b"]), "$defs": st.fixed_dictionaries({"a": rules, "b": rules})},
)
texts = st.sampled_from(
    ["", "1", "-0.5", "true", '"a"', "{}", '{"a": 1}', "[1]", "aaaa", "2026-01-15", "1e308"]
)


@settings(max_examples=100)
@given(schema=objects | rules, data=st.data())
def test_no_schema_breaks_the_form(schema: dict[str, Any], data: st.DataObject) -> None:
    fields = fields_of(schema)
    assert len({made.name for made in fields}) == len(fields)
    for made in fields:
        assert made.kind in ("text", "long", "number", "choice", "json")
        assert (made.help + made.label + "".join(made.choices)).isprintable()
        made.initial.encode()
        assert not made.choices or made.initial in ("", *made.choices)
    values = {made.name: data.draw(texts | st.sampled_from((*made.choices, made.initial))) for made in fields}
    payload, problems = read_form(schema, values)
    assert set(problems) <= {made.name for made in fields}
    assert all(problem.startswith(("must ", "is ")) for problem in problems.values())
    json.dumps(payload, allow_nan=False)
    assert problem_at(schema, data.draw(st.sampled_from(["payload.a", "payload.a.b[1]", "payload"])))


@pytest.mark.parametrize("schema", [None, [], "object", 3, True, {1: 2}, {"properties": {3: {}}}])
def test_what_is_no_schema_takes_any_payload(schema: Any) -> None:
    assert [made.name for made in fields_of(schema)] == ["payload"]
    assert read_form(schema, {"payload": '{"a": 1}'}) == ({"a": 1}, {})


def test_references_without_end_are_json() -> None:
    schema = {
        "properties": {"a": {"$ref": "#/$defs/a"}, "b": {"$ref": "#"}, "c": {"$ref": "#/$defs/none"}},
        "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"anyOf": [{"$ref": "#/$defs/a"}, {"type": "null"}]}},
        "additionalProperties": False,
    }
    assert [made.kind for made in fields_of(schema)] == ["json", "json", "json"]


def test_a_small_schema_can_not_stand_for_a_million_fields() -> None:
    def wide(ref: str) -> dict[str, Any]:
        return {"type": "object", "properties": {f"p{n}": {"$ref": f"#/$defs/{ref}"} for n in range(100)}}

    schema = {**wide("a"), "$defs": {"a": wide("b"), "b": wide("c"), "c": {"type": "integer"}}}
    assert 100 < len(fields_of(schema)) <= MAX_FIELDS + 1


def test_a_payload_of_too_many_fields_is_one_of_json() -> None:
    schema = object_of([(f"p{n}",) for n in range(MAX_FIELDS + 1)])
    assert [made.name for made in fields_of(schema)] == ["payload"]


def test_a_schema_nested_without_end_is_no_more_than_json() -> None:
    rule: dict[str, Any] = {}
    for _ in range(5000):
        rule = {"anyOf": [rule], "default": [rule]}
    fields = fields_of({"properties": {"v": rule}})
    assert [made.kind for made in fields] == ["json", "json"]


def test_a_schema_that_holds_itself_is_no_more_than_json() -> None:
    rule: dict[str, Any] = {}
    rule["anyOf"] = [rule]
    assert [made.kind for made in fields_of({"properties": {"v": rule}})] == ["json", "json"]


@pytest.mark.parametrize(
    ("rule", "text", "value"),
    [
        ({"type": "integer", "minimum": True, "maximum": "5", "exclusiveMinimum": False}, "0", 0),
        ({"type": "number", "minimum": float("nan"), "maximum": float("-inf")}, "0.5", 0.5),
        ({"type": "integer", "maximum": -(10**5000)}, "1", 1),
        ({"type": "integer", "multipleOf": 0}, "3", 3),
        ({"type": "integer", "multipleOf": -2}, "3", 3),
        ({"type": "number", "multipleOf": 5e-324}, "1e308", 1e308),
        ({"type": "number", "multipleOf": 0.5}, "9" * 308, int("9" * 308)),
        ({"type": "string", "minLength": 2.5, "maxLength": -1, "pattern": 3, "format": []}, "a", "a"),
        ({"type": "string", "enum": "abc", "description": 3, "default": {}}, "z", "z"),
        ({"type": {}, "enum": {}, "anyOf": {}, "$ref": 3}, "1", 1),
    ],
)
def test_rules_that_mean_nothing_are_not_checked(rule: dict[str, Any], text: str, value: Any) -> None:
    schema = {"properties": {"v": rule}, "required": [["v"], {}], "additionalProperties": False}
    assert [made.name for made in fields_of(schema)] == ["payload.v"]
    assert read_form(schema, {"payload.v": text}) == ({"v": value}, {})


@pytest.mark.parametrize(
    ("text", "is_taken"), [("xaby", True), ("xy", False), ("x" * 1000, False), ("x" * 1001, True)]
)
def test_a_pattern_is_searched_in_texts_that_are_not_too_long(text: str, is_taken: bool) -> None:
    schema = {"properties": {"v": {"type": "string", "pattern": "ab"}}, "additionalProperties": False}
    _, problems = read_form(schema, {"payload.v": text})
    assert problems == ({} if is_taken else {"payload.v": "must be text that matches ab"})


@pytest.mark.parametrize(
    "pattern",
    [
        "(a+)+$",
        "(a|a)*b",
        "^(a|aa)+$",
        "a*a*a*a*a*b",
        "a?" * 40 + "a" * 40,
        "(a|a)" * 30 + "b",
        "(?x)(a+) +b",
        "(a+)(?#)+b",
        r"^(\w+\s?)*$",
        ".*.*=.*b",
        "a{0,900}a{0,900}a{0,900}b",
    ],
)
@pytest.mark.parametrize("length", [25, 100, 200, 1000, 100_000])
def test_no_pattern_takes_long(pattern: str, length: int) -> None:
    schema = {"properties": {"v": {"type": "string", "pattern": pattern}}, "additionalProperties": False}
    began = time.process_time()
    read_form(schema, {"payload.v": "a" * length})
    assert time.process_time() - began < 5


@pytest.mark.parametrize("pattern", [r"\p{L}+", "[[:alpha:]]", "(", "a{99999999999}", "x" * 201, ""])
def test_a_pattern_that_python_does_not_take_is_left_to_the_handler(pattern: str) -> None:
    schema = {"properties": {"v": {"type": "string", "pattern": pattern}}, "additionalProperties": False}
    assert read_form(schema, {"payload.v": "é1"}) == ({"v": "é1"}, {})
