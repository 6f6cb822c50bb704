"""Instants: whole microseconds, UTC, and back again without loss."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.clock import from_datetime, microseconds, system_clock, to_datetime, to_iso

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
