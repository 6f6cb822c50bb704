"""JSON as a tree: what is shown is the value, digit by digit, and never anything else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.web.dashboard.json_view import LONGEST_TEXT, MOST_NODES, tree
from tests.surfaces.html_page import Element, Page

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(st.text(max_size=8), inner, max_size=5),
    max_leaves=30,
)


def shown(value: Any) -> Element:
    page = Page(f"<div>{tree(value)}</div>")
    assert page.problems() == []
    return page.root.one("div")


def read(element: Element) -> Any:
    """The value that a tree shows."""
    [part] = [
        child for child in element.children if isinstance(child, Element) and child.get("class") != "name"
    ]
    if part.tag == "span":
        return json.loads(part.raw)
    summary = _child(part, "summary")
    entries = [child for child in _child(part, "ul").children if isinstance(child, Element)]
    names = [_child(entry, "span").raw for entry in entries]
    values = [read(entry) for entry in entries]
    assert f"{len(entries):,} " in summary.text
    if summary.text.startswith("{"):
        return dict(zip([json.loads(name) for name in names], values, strict=True))
    assert names == [str(place) for place in range(len(entries))]
    return values


def _child(element: Element, tag: str) -> Element:
    return next(child for child in element.children if isinstance(child, Element) and child.tag == tag)


@given(JSON)
def test_tree_shows_exactly_the_value(value: Any) -> None:
    found = read(shown(value))
    assert found == value
    assert json.dumps(found) == json.dumps(value)  # True is not 1, and 1.0 is not 1


@pytest.mark.parametrize("value", [2**200, -(2**200), 2**53 + 1, 2**1023, 1e-7, 1.5e300, 0.1, -0.0, 1.0])
def test_numbers_keep_all_their_digits(value: float) -> None:
    assert shown({"n": value}).one("span", "figure").raw == json.dumps(value)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        ("a", "text"),
        (1, "figure"),
        (1.5, "figure"),
        (True, "word"),
        (None, "word"),
        ({}, "word"),
        ([], "word"),
    ],
)
def test_kinds_differ_in_class(value: Any, kind: str) -> None:
    assert shown({"x": value}).one("li").all("span")[-1].classes == {kind}


@pytest.mark.parametrize("text", ["<b>", "</details>", '"><script>', "&amp;", "'", "\u2028", "\x00"])
def test_texts_and_names_are_escaped(text: str) -> None:
    found = shown({text: [text]})
    assert read(found) == {text: [text]}
    assert not found.has("b")
    assert not found.has("script")


def test_counts_of_fields_and_entries_are_worded() -> None:
    def summary(value: Any) -> str:
        return shown(value).all("summary")[0].text

    assert summary({"a": 1}) == "{ 1 field }"
    assert summary({"a": 1, "b": 2}) == "{ 2 fields }"
    assert summary([1]) == "[ 1 entry ]"
    assert summary(list(range(1_500))) == "[ 1,500 entries ]"


def test_large_parts_begin_closed_but_for_the_outermost() -> None:
    found = shown({"small": [1, 2], "large": list(range(100))})
    outer, small, large = found.all("details")
    assert ["open" in part.attributes for part in (outer, small, large)] == [True, True, False]
    assert "open" in shown(list(range(1_500))).one("details").attributes


def test_whole_value_just_below_the_limit_is_a_tree() -> None:
    assert shown(list(range(MOST_NODES - 1))).has("details")
    assert not shown(list(range(MOST_NODES))).has("details")


@pytest.mark.parametrize(
    "value",
    [
        list(range(100_000)),
        {f"k{n}": n for n in range(100_000)},
        {"text": "x" * 1_000_000},
        {"x" * 1_000_000: 1},
        [[[n] for n in range(50)] for _ in range(2_000)],
    ],
    ids=["list", "object", "text", "name", "nested"],
)
def test_very_large_value_is_text_that_says_where_it_is_cut(value: Any) -> None:
    whole = json.dumps(value, indent=2, ensure_ascii=False)
    found = shown(value)
    assert not found.has("details")
    assert found.one("pre").raw == whole[:LONGEST_TEXT]
    if len(whole) > LONGEST_TEXT:
        assert found.one("p").text == f"Truncated: the first {LONGEST_TEXT:,} of {len(whole):,} characters."


def test_large_value_that_fits_as_text_is_not_called_cut() -> None:
    value = [n % 10 for n in range(MOST_NODES * 2)]
    found = shown(value)
    assert json.loads(found.one("pre").raw) == value
    assert not found.has("p")


def test_deepest_value_that_a_payload_may_have_is_a_tree() -> None:
    value: Any = 1
    for _ in range(64):
        value = [value]
    assert read(shown(value)) == value
