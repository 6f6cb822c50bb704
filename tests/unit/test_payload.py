"""Payloads and results: what JSON can be stored, and whether a payload fits its handler's annotations."""

from __future__ import annotations

import json
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum, StrEnum
from types import MappingProxyType
from typing import Annotated, Any, Literal, NotRequired, TypedDict
from unittest.mock import MagicMock
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.payload import (
    MAX_DEPTH,
    PayloadSpec,
    decode,
    encode_payload,
    encode_result,
    same_json,
)
from holdfast.errors import ConfigError, InvalidPayload
from holdfast.handlers.handler import Handler

LIMIT = 1024 * 1024
NAIVE = datetime(2030, 1, 2, 3, 4, 5)  # noqa: DTZ001 -- naive on purpose


def nested(depth: int) -> dict[str, Any]:
    """An object with so many containers inside one another."""
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Word(StrEnum):
    YES = "yes"


@dataclass
class Address:
    street: str
    number: int = 1


@dataclass
class Person:
    name: str
    address: Address
    tags: list[str] = field(default_factory=list)


@dataclass
class Holder:
    value: Any


class Point(TypedDict):
    x: int
    y: NotRequired[int]


class Crawl(msgspec.Struct):
    url: str
    depth: int = 1


class User(pydantic.BaseModel):
    id: int
    email: str = ""


# What can't be stored, and where the message says it is.

REJECTED = {
    "NUL": ({"a": "x\x00y"}, "payload.a", "NUL"),
    "NUL in a key": ({"x\x00y": 1}, "payload['x\\x00y']", "NUL"),
    "lone surrogate": ({"a": ["\ud800"]}, "payload.a[0]", "surrogate"),
    "lone surrogate in a key": ({"b": {"\udfff": 1}}, "payload.b['\\udfff']", "surrogate"),
    "NaN": ({"a": {"b": [1, float("nan")]}}, "payload.a.b[1]", "nan is not JSON"),
    "Infinity": ({"a": float("inf")}, "payload.a", "inf is not JSON"),
    "minus Infinity": ({"a": float("-inf")}, "payload.a", "-inf is not JSON"),
    "naive datetime": ({"when": NAIVE}, "payload.when", "naive"),
    "naive datetime in a dataclass": ({"a": Holder(NAIVE)}, "payload.a.value", "naive"),
    "naive datetime in a model": (
        {"a": pydantic.create_model("M", at=(datetime, ...))(at=NAIVE)},
        "payload.a.at",
        "naive",
    ),
    "integer of thousands of digits": ({"n": 10**5000}, "payload.n", "more than 1024 bits"),
    "integer of 1025 bits": ({"n": 2**1024}, "payload.n", "more than 1024 bits"),
    "negative integer of 1025 bits": ({"n": -(2**1024)}, "payload.n", "more than 1024 bits"),
    "an object": ({"a": [object()]}, "payload.a[0]", "an object, which is not JSON"),
    "a complex number": ({"a": 1j}, "payload.a", "a complex, which is not JSON"),
    "a function": ({"a": len}, "payload.a", "which is not JSON"),
    "a number as key": ({"a": {1: 2}}, "payload.a", "keys must be text"),
    "None as key": ({None: 2}, "payload", "keys must be text"),
    "key with a dot": ({"a.b": float("nan")}, "payload['a.b']", "nan"),
    "a list": ([1], "payload", "must be a JSON object, not a list"),
    "a text": ("x", "payload", "must be a JSON object, not a str"),
    "a number": (5, "payload", "must be a JSON object, not an int"),
    "None": (None, "payload", "must be a JSON object"),
}


@pytest.mark.parametrize(("value", "where", "problem"), REJECTED.values(), ids=REJECTED)
def test_what_cannot_be_stored_is_rejected_naming_the_place(value: object, where: str, problem: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        encode_payload(value, LIMIT)
    assert caught.value.where == where
    assert problem in caught.value.problem
    assert str(caught.value) == f"{where}: {caught.value.problem}"


def test_a_key_of_thousands_of_digits_is_rejected_like_any_other_number() -> None:
    with pytest.raises(InvalidPayload, match="keys must be text"):
        encode_payload({10**5000: 1}, LIMIT)


def test_a_list_that_holds_itself_is_rejected_as_too_deep() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(InvalidPayload, match=f"more than {MAX_DEPTH} levels deep"):
        encode_payload({"a": loop}, LIMIT)


def test_a_dataclass_that_holds_itself_is_rejected() -> None:
    loop = Holder(None)
    loop.value = loop
    with pytest.raises(InvalidPayload):
        encode_payload(loop, LIMIT)


def test_nesting_is_allowed_up_to_64() -> None:
    assert decode(encode_payload(nested(64), LIMIT)[1]) == nested(64)


def test_nesting_over_64_is_rejected_naming_the_place() -> None:
    with pytest.raises(InvalidPayload, match="more than 64 levels deep") as caught:
        encode_payload(nested(65), LIMIT)
    assert caught.value.where == "payload" + ".a" * 64


def test_a_payload_of_exactly_the_limit_is_taken_and_one_byte_more_is_not() -> None:
    value = {"a": "ä" * 10}
    size = len(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    assert encode_payload(value, size)
    with pytest.raises(InvalidPayload, match=f"is {size} bytes as JSON; max_payload_bytes is {size - 1}"):
        encode_payload(value, size - 1)


def test_the_message_about_a_strange_key_is_one_line() -> None:
    with pytest.raises(InvalidPayload) as caught:
        encode_payload({"a\nb\x1b[31m": float("nan")}, LIMIT)
    assert str(caught.value).isprintable()


# What is kept exactly.


@pytest.mark.parametrize(
    "value",
    [0, -1, 2**53 + 1, 2**63, 2**64, -(2**64), 10**30, 2**1024 - 1, -(2**1024 - 1)],
)
def test_integers_are_kept_to_the_last_digit(value: int) -> None:
    assert decode(encode_payload({"n": value}, LIMIT)[1]) == {"n": value}


@pytest.mark.parametrize("text", ["😀", "𐍈 \U0010ffff", "é\u0301", "\u2028", "\x1f\x7f", "\\ \" '", ""])
def test_text_is_kept_to_the_last_character(text: str) -> None:
    stored = encode_payload({text: text}, LIMIT)[1]
    assert decode(stored) == {text: text}


def test_four_byte_characters_are_stored_as_themselves() -> None:
    assert encode_payload({"a": "😀"}, LIMIT)[1] == '{"a":"😀"}'


def test_the_order_of_keys_is_kept() -> None:
    value = {"z": 1, "a": {"y": 1, "b": 2}, "m": 3}
    assert encode_payload(value, LIMIT)[1] == '{"z":1,"a":{"y":1,"b":2},"m":3}'


@pytest.mark.parametrize("value", [0.1, -0.0, 5e-324, 1.7976931348623157e308, 1e16, 0.30000000000000004])
def test_floats_are_kept_to_the_last_bit(value: float) -> None:
    assert repr(decode(encode_payload({"n": value}, LIMIT)[1])["n"]) == repr(value)


def test_a_whole_float_stays_a_float() -> None:
    assert encode_payload({"n": 1.0}, LIMIT)[1] == '{"n":1.0}'


json_values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**1024) + 1, 2**1024 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(
            st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), inner, max_size=5
        )
    ),
    max_leaves=20,
)
payloads = st.dictionaries(
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x00")), json_values, max_size=5
)


@given(payloads)
def test_every_json_object_comes_back_as_it_was(value: dict[str, Any]) -> None:
    plain, text = encode_payload(value, LIMIT)
    back = decode(text)
    assert repr(plain) == repr(back)
    assert repr(back) == repr(value)  # repr tells 1 from 1.0 and True, and shows the order of keys


@given(json_values)
def test_every_json_result_comes_back_as_it_was(value: Any) -> None:
    text = encode_result(value, LIMIT)
    assert (None if text is None else repr(decode(text))) == (None if value is None else repr(value))


@given(st.recursive(st.floats() | st.text() | st.binary(), lambda inner: st.lists(inner), max_leaves=10))
def test_any_value_is_stored_or_rejected_and_nothing_else(value: Any) -> None:
    with suppress(InvalidPayload):
        text = encode_payload({"value": value}, LIMIT)[1]
        text.encode()
        decode(text)


# Python's own values, and what they become.


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        (datetime(2030, 1, 2, tzinfo=UTC), "2030-01-02T00:00:00+00:00"),
        (datetime(2030, 1, 2, tzinfo=timezone(timedelta(hours=2))), "2030-01-02T00:00:00+02:00"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.10"), "1.10"),
        (Colour.RED, "red"),
        (Level.LOW, 1),
        (Word.YES, "yes"),
        ((1, 2), [1, 2]),
        (MappingProxyType({"a": 1}), {"a": 1}),
        (OrderedDict(b=1, a=2), {"b": 1, "a": 2}),
        (
            Person("Ada", Address("Main St")),
            {"name": "Ada", "address": {"street": "Main St", "number": 1}, "tags": []},
        ),
        (Crawl("https://example.com"), {"url": "https://example.com", "depth": 1}),
        (User(id=1), {"id": 1, "email": ""}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_common_values_become_json(value: object, stored: object) -> None:
    plain, text = encode_payload({"value": value}, LIMIT)
    assert plain == decode(text) == {"value": stored}


@pytest.mark.parametrize("value", [Address("Main St"), Crawl("https://example.com"), User(id=1)])
def test_a_whole_payload_may_be_an_object_with_fields(value: object) -> None:
    assert isinstance(decode(encode_payload(value, LIMIT)[1]), dict)


def test_a_model_inside_a_dataclass_is_stored_too() -> None:
    assert encode_payload(Holder(User(id=1)), LIMIT)[1] == '{"value":{"id":1,"email":""}}'


def test_a_number_as_key_is_rejected_inside_a_dataclass_too() -> None:
    with pytest.raises(InvalidPayload, match="keys must be text"):
        encode_payload(Holder({1: 2}), LIMIT)


# Results.


def test_no_result_is_stored_as_none() -> None:
    assert encode_result(None, LIMIT) is None


@pytest.mark.parametrize("value", [0, "", [], False, {"a": 1}, 1.5])
def test_a_result_may_be_any_json(value: object) -> None:
    assert decode(encode_result(value, LIMIT) or "") == value


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ({"a": [float("nan")]}, "result.a[0]: nan is not JSON"),
        (object(), "result: is an object, which is not JSON"),
        ("\x00", "result: contains a NUL"),
        (nested(65), "is nested more than 64 levels deep"),
        ("x" * 100, "it is 102 bytes as JSON; max_result_bytes is 80"),
    ],
)
def test_a_result_that_cannot_be_stored_becomes_a_marker_that_says_why(value: object, problem: str) -> None:
    marker = decode(encode_result(value, 80) or "")
    assert marker["holdfast"] == "the result could not be stored"
    assert problem in marker["problem"]


class Broken:
    """Says it is a model, and fails."""

    def model_dump(self) -> Any:
        raise RuntimeError("no database session")


@pytest.mark.parametrize(
    "value", [{10**5000: 1}, Broken(), MagicMock()], ids=["a key of 5000 digits", "a broken model", "a mock"]
)
def test_no_result_whatever_it_is_undoes_a_finished_job(value: object) -> None:
    marker = decode(encode_result(value, LIMIT) or "")
    assert marker["holdfast"] == "the result could not be stored"


def test_the_same_json_in_another_order_is_the_same() -> None:
    assert same_json('{"a":1,"b":[{"c":1,"d":2}]}', '{"b":[{"d":2,"c":1}],"a":1}')


@pytest.mark.parametrize(
    "other", ['{"a":2}', '{"a":1.0}', '{"a":true}', '{"a":"1"}', '{"a":1,"b":null}', "{}"]
)
def test_another_value_is_not_the_same_json(other: str) -> None:
    assert not same_json('{"a":1}', other)


# Payloads and annotations.


def spec_of(function: Any, *, whole: bool = False) -> PayloadSpec:
    return Handler("a", function, whole=whole).spec


def builtins(
    text: str,
    number: int,
    ratio: float,
    flag: bool,
    items: list[int],
    table: dict[str, float],
    either: int | str,
    kind: Literal["a", "b"],
    maybe: str | None,
    when: datetime,
) -> None: ...


GOOD: dict[str, Any] = {
    "text": "x",
    "number": 1,
    "ratio": 1,
    "flag": True,
    "items": [1],
    "table": {"a": 1.5},
    "either": "x",
    "kind": "a",
    "maybe": None,
    "when": "2030-01-02T00:00:00Z",
}


def test_a_payload_that_fits_is_bound_to_the_arguments() -> None:
    bound = spec_of(builtins).bind(GOOD)
    assert bound == {**GOOD, "when": datetime(2030, 1, 2, tzinfo=UTC)}
    assert isinstance(bound["ratio"], float)


@pytest.mark.parametrize(
    ("name", "value", "where"),
    [
        ("text", 1, "payload.text"),
        ("number", "1", "payload.number"),
        ("number", 1.5, "payload.number"),
        ("number", True, "payload.number"),
        ("ratio", "x", "payload.ratio"),
        ("flag", 1, "payload.flag"),
        ("items", [1, "x"], "payload.items[1]"),
        ("items", {}, "payload.items"),
        ("table", {"a": "x"}, "payload.table[...]"),
        ("either", [], "payload.either"),
        ("kind", "c", "payload.kind"),
        ("maybe", 1, "payload.maybe"),
        ("when", "tomorrow", "payload.when"),
    ],
)
def test_a_payload_that_does_not_fit_is_rejected_naming_the_place(
    name: str, value: object, where: str
) -> None:
    with pytest.raises(InvalidPayload) as caught:
        spec_of(builtins).bind({**GOOD, name: value})
    assert caught.value.where == where


def test_a_missing_field_is_named() -> None:
    with pytest.raises(InvalidPayload, match="missing required field text"):
        spec_of(builtins).bind({name: value for name, value in GOOD.items() if name != "text"})


def test_an_unknown_field_is_named() -> None:
    with pytest.raises(InvalidPayload, match="unknown field colour"):
        spec_of(builtins).bind({**GOOD, "colour": 1})


@pytest.mark.parametrize("name", ["a\nb", "\x1b[31m", "a`b"])
def test_an_unknown_field_with_a_strange_name_makes_no_second_line(name: str) -> None:
    with pytest.raises(InvalidPayload) as caught:
        spec_of(builtins).bind({**GOOD, name: 1})
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("value", [2**53 + 1, 2**64, 2**1024 - 1, -(2**1024 - 1)])
def test_big_integers_reach_the_handler_whole(value: int) -> None:
    def handle(n: int, items: list[int], anything: Any) -> None: ...

    payload = {"n": value, "items": [value], "anything": value}
    assert spec_of(handle).bind(payload) == payload


def test_a_default_is_left_to_the_function() -> None:
    def handle(a: int, b: int = 2, c: str | None = None) -> None: ...

    assert spec_of(handle).bind({"a": 1}) == {"a": 1}
    assert spec_of(handle).bind({"a": 1, "b": 3, "c": None}) == {"a": 1, "b": 3, "c": None}


def test_a_field_with_a_default_is_checked_when_it_is_given() -> None:
    def handle(a: int = 1) -> None: ...

    with pytest.raises(InvalidPayload) as caught:
        spec_of(handle).bind({"a": None})
    assert caught.value.where == "payload.a"


def test_parameters_without_annotations_take_anything() -> None:
    def handle(a, b=None): ...

    assert spec_of(handle).bind({"a": [1, {"x": None}]}) == {"a": [1, {"x": None}]}


def test_keywords_take_what_has_no_parameter() -> None:
    def handle(a: int, **rest: Any) -> None: ...

    assert spec_of(handle).bind({"a": 1, "b": 2}) == {"a": 1, "b": 2}


def test_the_context_is_no_part_of_the_payload() -> None:
    def handle(ctx: Any, a: int) -> None: ...

    assert spec_of(handle).bind({"a": 1}) == {"a": 1}
    with pytest.raises(InvalidPayload, match="unknown field ctx"):
        spec_of(handle).bind({"a": 1, "ctx": 1})


def test_constraints_are_checked() -> None:
    def handle(n: Annotated[int, msgspec.Meta(ge=1, le=5)]) -> None: ...

    assert spec_of(handle).bind({"n": 5}) == {"n": 5}
    with pytest.raises(InvalidPayload) as caught:
        spec_of(handle).bind({"n": 6})
    assert caught.value.where == "payload.n"


def of_dataclass(person: Person) -> None: ...
def of_typed_dict(point: Point) -> None: ...
def of_struct(crawl: Crawl) -> None: ...
def of_model(user: User) -> None: ...
def of_models(users: list[User], owner: User | None = None) -> None: ...


@pytest.mark.parametrize(
    ("function", "payload", "bound"),
    [
        (
            of_dataclass,
            {"person": {"name": "Ada", "address": {"street": "Main St"}}},
            {"person": Person("Ada", Address("Main St"))},
        ),
        (of_typed_dict, {"point": {"x": 1}}, {"point": {"x": 1}}),
        (of_struct, {"crawl": {"url": "u"}}, {"crawl": Crawl("u")}),
        (of_model, {"user": {"id": 1}}, {"user": User(id=1)}),
        (of_models, {"users": [{"id": 1}]}, {"users": [User(id=1)]}),
    ],
)
def test_structured_annotations_are_made_from_json(
    function: Any, payload: dict[str, Any], bound: dict[str, Any]
) -> None:
    assert spec_of(function).bind(payload) == bound


@pytest.mark.parametrize(
    ("function", "payload", "where"),
    [
        (
            of_dataclass,
            {"person": {"name": "Ada", "address": {"street": 1}}},
            "payload.person.address.street",
        ),
        (of_typed_dict, {"point": {"x": "1"}}, "payload.point.x"),
        (of_struct, {"crawl": {"url": 1}}, "payload.crawl.url"),
        (of_model, {"user": {"id": "x"}}, "payload.user.id"),
        (of_models, {"users": [{"id": 1}, {"id": None}]}, "payload.users[1].id"),
        (of_models, {"users": [], "stranger": 1}, "payload.stranger"),
    ],
)
def test_structured_annotations_name_the_place_inside(
    function: Any, payload: dict[str, Any], where: str
) -> None:
    with pytest.raises(InvalidPayload) as caught:
        spec_of(function).bind(payload)
    assert caught.value.where == where
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("annotation", "payload", "bound"),
    [
        (Person, {"name": "Ada", "address": {"street": "s"}}, Person("Ada", Address("s"))),
        (Point, {"x": 1, "y": 2}, {"x": 1, "y": 2}),
        (Crawl, {"url": "u", "depth": 3}, Crawl("u", 3)),
        (User, {"id": 1}, User(id=1)),
        (dict[str, int], {"a": 1}, {"a": 1}),
        (dict, {"a": [None]}, {"a": [None]}),
        (Any, {"a": [None]}, {"a": [None]}),
    ],
)
def test_a_whole_payload_is_made_into_its_type(
    annotation: Any, payload: dict[str, Any], bound: object
) -> None:
    assert PayloadSpec.of_whole(annotation).bind(payload) == bound


@pytest.mark.parametrize("annotation", [Person, Point, Crawl, User, dict[str, int]])
def test_a_whole_payload_that_does_not_fit_is_rejected(annotation: Any) -> None:
    with pytest.raises(InvalidPayload) as caught:
        PayloadSpec.of_whole(annotation).bind({"name": [], "x": [], "url": [], "id": []})
    assert caught.value.where.startswith("payload")


def of_unsupported(connection: Broken) -> None: ...
def of_unsupported_inside(connections: dict[str, list[Broken]]) -> None: ...


@dataclass
class Wrapped:
    broken: Broken


def of_unsupported_dataclass(wrapped: Wrapped) -> None: ...


@pytest.mark.parametrize("function", [of_unsupported, of_unsupported_inside, of_unsupported_dataclass])
def test_an_annotation_that_json_cannot_make_is_refused_when_it_is_registered(function: Any) -> None:
    with pytest.raises(ConfigError, match="Broken can't be created from JSON"):
        Handler("a", function, whole=False)


@pytest.mark.parametrize("name", ["json", "copy", "schema", "dict", "_private", "model_config"])
def test_a_parameter_beside_a_model_may_have_any_name(name: str) -> None:
    spec = PayloadSpec.of_keywords({"user": (User, True), name: (str, True)}, extra=False)
    assert spec.bind({"user": {"id": 1}, name: "x"}) == {"user": User(id=1), name: "x"}


# Schemas.


def test_the_schema_of_keywords_names_fields_and_which_are_required() -> None:
    def handle(to: str, count: int = 1) -> None: ...

    schema = spec_of(handle).schema()
    assert schema["type"] == "object"
    assert {name: field["type"] for name, field in schema["properties"].items()} == {
        "to": "string",
        "count": "integer",
    }
    assert schema["required"] == ["to"]
    assert schema["additionalProperties"] is False


def test_the_schema_of_a_handler_with_keywords_allows_more() -> None:
    def handle(to: str, **rest: Any) -> None: ...

    assert spec_of(handle).schema().get("additionalProperties", True) is True


@pytest.mark.parametrize("function", [builtins, of_dataclass, of_typed_dict, of_struct, of_model, of_models])
def test_every_schema_is_json_and_describes_an_object(function: Any) -> None:
    schema = spec_of(function).schema()
    assert json.loads(json.dumps(schema)) == schema
    assert schema["type"] == "object"


@pytest.mark.parametrize("annotation", [Person, Point, Crawl, User, dict[str, int], dict, Any])
def test_the_schema_of_a_whole_payload_describes_an_object(annotation: Any) -> None:
    schema = PayloadSpec.of_whole(annotation).schema()
    top = schema
    if "$ref" in schema:
        top = schema["$defs"][schema["$ref"].rpartition("/")[2]]
    assert top["type"] == "object"


def test_the_schema_of_an_optional_field_beside_a_model_invents_no_default() -> None:
    def handle(user: User, count: int = 3) -> None: ...

    assert spec_of(handle).schema()["properties"]["count"].get("default", 3) == 3
