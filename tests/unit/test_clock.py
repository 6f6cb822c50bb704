"""Instants: whole microseconds, UTC, and back again without loss."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.clock import (
    from_datetime,
    microseconds,
    parse_instant,
    system_clock,
    to_datetime,
    to_iso,
)
from holdfast.errors import ConfigError

instants = st.integers(
    from_datetime(datetime(1, 1, 1, tzinfo=UTC)), from_datetime(datetime.max.replace(tzinfo=UTC))
)
zones = st.integers(-14, 14).map(lambda hours: timezone(timedelta(hours=hours)))


@given(instants)
def test_an_instant_survives_being_a_datetime(instant: int) -> None:
    assert from_datetime(to_datetime(instant)) == instant
    assert to_datetime(instant).tzinfo is UTC


@given(
    st.datetimes(min_value=datetime(1970, 1, 2), max_value=datetime(9000, 1, 1), timezones=zones)  # noqa: DTZ001
)
def test_a_datetime_of_any_zone_is_the_same_instant(moment: datetime) -> None:
    assert to_datetime(from_datetime(moment)) == moment


@given(instants)
def test_iso_text_ends_in_z_and_reads_back(instant: int) -> None:
    text = to_iso(instant)
    assert text.endswith("Z")
    assert from_datetime(datetime.fromisoformat(text)) == instant


def test_the_system_clock_counts_microseconds() -> None:
    before = time.time_ns() // 1000
    assert before <= system_clock() <= time.time_ns() // 1000


def test_seconds_become_the_nearest_microseconds() -> None:
    assert microseconds(0.1) == 100_000
    assert microseconds(1.0000004) == 1_000_000


# What people and programs write


@given(instants)
def test_iso_text_of_ours_is_parsed_as_the_same_instant(instant: int) -> None:
    assert from_datetime(parse_instant("runAfter", to_iso(instant))) == instant


@pytest.mark.parametrize(
    "text",
    [
        "2030-01-31T09:00:00Z",
        "2030-01-31T09:00:00+00:00",
        "2030-01-31T10:00:00+01:00",
        "2030-01-31T03:30:00-05:30",
        "2030-01-31 09:00:00Z",
        "20300131T090000Z",
        "2030-01-31T09:00Z",
        "2030-01-31T09:00:00.000Z",
    ],
)
def test_instant_of_any_zone_and_form_is_taken(text: str) -> None:
    moment = parse_instant("runAfter", text)
    assert moment == datetime(2030, 1, 31, 9, tzinfo=UTC)
    assert moment.utcoffset() is not None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "tomorrow",
        "2030-02-30T09:00:00Z",
        "2030-01-31T25:00:00Z",
        "2030-01-31T09:00:00+25:00",
        "2030-01-31T09:00:00Zulu",
        "1900000000",
        "99999-01-01T00:00:00Z",
        "\x00",
        "\ud800",
        1900000000,
        1.5,
        True,
        None,
        [],
        {"at": "2030-01-31T09:00:00Z"},
        b"2030-01-31T09:00:00Z",
        datetime(2030, 1, 31, tzinfo=UTC),
    ],
    ids=ascii,
)
def test_what_is_no_instant_is_refused_by_its_name_with_an_example(text: object) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_instant("runAfter", text)
    message = str(refused.value)
    assert message.startswith("runAfter must be an ISO 8601 time")
    assert "2030-01-31T09:00:00Z" in message
    assert message.isprintable()


@pytest.mark.parametrize("text", ["2030-01-31T09:00:00", "2030-01-31", "2030-01-31 09:00"])
def test_instant_without_a_time_zone_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"run-at '{text}' needs a time zone"):
        parse_instant("run-at", text)


def test_refusal_does_not_repeat_a_long_text() -> None:
    with pytest.raises(ConfigError) as refused:
        parse_instant("runAfter", "x" * 100_000)
    assert len(str(refused.value)) < 1000
