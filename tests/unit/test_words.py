"""Durations, ages, instants and counts in words, against tables; ages also by the rules of times.js."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import holdfast.web.dashboard
from holdfast.observe import words

NOW = datetime(2030, 1, 1, 12, 0, 0, tzinfo=UTC)
DAY = 86_400.0

DURATIONS = [
    (None, "–"),
    (-5.0, "0 s"),
    (0.0, "0 s"),
    (0.0008, "0.8 ms"),
    (0.001, "1 ms"),
    (0.042, "42 ms"),
    (0.9994, "999 ms"),
    (0.9995, "1.0 s"),
    (1.5, "1.5 s"),
    (9.94, "9.9 s"),
    (9.95, "10 s"),
    (42.4, "42 s"),
    (59.4, "59 s"),
    (59.6, "1 min"),
    (60.0, "1 min"),
    (200.0, "3 min 20 s"),
    (3599.6, "1 h"),
    (7500.0, "2 h 5 min"),
    (7230.0, "2 h"),
    (DAY - 0.4, "1 d"),
    (4 * DAY + 3 * 3600, "4 d 3 h"),
    (4 * DAY + 60, "4 d"),
    (400 * DAY, "400 d"),
]

AGES = [
    (0.0, "just now"),
    (0.9, "just now"),
    (-0.9, "now"),
    (1.0, "1 s ago"),
    (-1.0, "in 1 s"),
    (59.9, "59 s ago"),
    (60.0, "1 min ago"),
    (119.0, "1 min ago"),
    (3599.0, "59 min ago"),
    (3600.0, "1 h ago"),
    (-7200.0, "in 2 h"),
    (DAY - 1, "23 h ago"),
    (DAY, "1 d ago"),
    (-365 * DAY, "in 365 d"),
]


@pytest.mark.parametrize(("value", "text"), DURATIONS)
def test_duration_in_words(value: float | None, text: str) -> None:
    assert words.seconds(value) == text


@given(st.floats(0, 1e9), st.floats(0, 1e9))
def test_longer_duration_never_reads_shorter(one: float, other: float) -> None:
    short, long = sorted((one, other))
    assert _read(words.seconds(short)) <= _read(words.seconds(long))


def _read(text: str) -> float:
    sizes = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": DAY}
    parts = text.split(" ")
    return sum(float(n) * sizes[unit] for n, unit in zip(parts[::2], parts[1::2], strict=True))


@given(st.floats(0.001, 1e9))
def test_duration_in_words_is_near_the_duration(value: float) -> None:
    # Two units are shown, so the rest is below one of the smaller.
    assert math.isclose(_read(words.seconds(value)), value, rel_tol=0.5 if value < 0.01 else 0.06)


@pytest.mark.parametrize(("seconds", "text"), AGES)
def test_age_in_words(seconds: float, text: str) -> None:
    assert words.ago(NOW - timedelta(seconds=seconds), NOW) == text


def test_age_of_nothing_is_a_dash() -> None:
    assert words.ago(None, NOW) == "–"


@given(st.integers(-(10**9), 10**9))
def test_script_words_ages_by_the_same_units(milliseconds: int) -> None:
    distance = milliseconds / 1000
    assert _ago_of_the_script(distance) == words.ago(NOW - timedelta(milliseconds=milliseconds), NOW)


def _ago_of_the_script(distance: float) -> str:
    """What times.js does, with the units that stand in it."""
    whole = math.floor(abs(distance))
    if whole == 0:
        return "now" if distance < 0 else "just now"
    size, name = next((size, name) for size, name in _UNITS if whole >= size)
    text = f"{math.floor(whole / size)} {name}"
    return f"{text} ago" if distance > 0 else f"in {text}"


def _units_of_the_script() -> list[tuple[int, str]]:
    folder = Path(holdfast.web.dashboard.__file__).parent / "static"
    [found] = re.findall(r"const UNITS = (\[.*?\]);", (folder / "times.js").read_text(), re.DOTALL)
    return [(size, name) for size, name in json.loads(re.sub(r",\s*\]", "]", found))]


_UNITS = _units_of_the_script()


def test_instant_is_iso_with_milliseconds_and_z() -> None:
    assert words.iso(NOW + timedelta(microseconds=1_999)) == "2030-01-01T12:00:00.001Z"


def test_instant_for_reading_says_its_zone() -> None:
    assert words.moment(NOW) == "2030-01-01 12:00:00 UTC"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1_234_567, "1,234,567"),
        (2.0, "2"),
        (0.25, "0.25"),
        (9.876, "9.88"),
        (12.3, "12"),
        (12_345.6, "12,346"),
        (10**21, "1,000,000,000,000,000,000,000"),
    ],
)
def test_number_in_words(value: float, text: str) -> None:
    assert words.number(value) == text


@pytest.mark.parametrize("pace", [0.001, 0.004])
def test_small_pace_does_not_read_as_none(pace: float) -> None:
    assert float(words.number(pace)) > 0


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "none"),
        (3, "3"),
        (2.0, "2"),
        (0.2, "0.2"),
        (1e-7, "1e-07"),
        ("linear", "linear"),
        (21_600.0, "21600"),
        (0.1 + 0.2, "0.3"),
        (1_048_576, "1048576"),
    ],
)
def test_setting_in_words(value: object, text: str) -> None:
    assert words.setting(value) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0"), (9_999, "9,999"), (10_000, "10,000"), (10_001, "10,000+")]
)
def test_count_is_capped_and_says_so(count: int, text: str) -> None:
    assert words.capped(count) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 jobs"), (1, "1 job"), (2, "2 jobs"), (1_000, "1,000 jobs")]
)
def test_plural(count: int, text: str) -> None:
    assert words.plural(count) == text
    assert words.plural(count, "slot") == text.replace("job", "slot")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (None, ""),
        ("", ""),
        (" \n\t\n", ""),
        ("one\ntwo", "one"),
        ("\n  two  \nthree", "two"),
        ("x" * 900, "x" * 900),
    ],
)
def test_first_line_is_the_first_that_says_something(text: str | None, line: str) -> None:
    assert words.first_line(text) == line


def test_first_line_is_cut_where_asked() -> None:
    assert words.first_line("abcdef", 4) == "abc…"
