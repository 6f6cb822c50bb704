"""The last hour: minutes, percentiles and pace, against a plain computation."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.observe.pulse import PACE_MINUTES, Percentiles, Pulse, pulse
from holdfast.store.records import BUCKETS, Minute, empty_minute

SIZE = len(BUCKETS) + 1
NOW = 10_000
BOUNDS: list[float | None] = [*BUCKETS, None]


def minute(number: int, **sums: Any) -> Minute:
    given = {"type": "email", "worker_id": "w1", "waits": [0] * SIZE, "runs": [0] * SIZE, **sums}
    return Minute(minute=number, **given)


def histogram(places: list[int]) -> list[int]:
    counts = [0] * SIZE
    for place in places:
        counts[place] += 1
    return counts


PLACES = st.lists(st.integers(0, SIZE - 1), max_size=20)
MINUTES = st.lists(
    st.builds(
        lambda number, type, completed, failed, waits, runs: minute(
            number,
            type=type,
            completed=completed,
            failed=failed,
            waits=histogram(waits),
            runs=histogram(runs),
        ),
        st.integers(NOW - 70, NOW + 2),
        st.sampled_from(["email", "crawl"]),
        st.integers(0, 1_000),
        st.integers(0, 1_000),
        PLACES,
        PLACES,
    ),
    max_size=20,
)


@given(MINUTES, st.floats(0, 59.999))
def test_pulse_is_what_a_plain_computation_finds(rows: list[Minute], second: float) -> None:
    found = pulse(rows, NOW, second)
    hour = [row for row in rows if NOW - 59 <= row.minute <= NOW]
    assert [tally.minute for tally in found.minutes] == list(range(NOW - 59, NOW + 1))
    for tally in found.minutes:
        mine = [row for row in hour if row.minute == tally.minute]
        assert tally.completed == sum(row.completed for row in mine)
        assert tally.failed == sum(row.failed for row in mine)
    assert found.completed == sum(row.completed for row in hour)
    assert found.failed == sum(row.failed for row in hour)
    assert found.waits == plain_percentiles([row.waits for row in hour])
    assert found.runs == plain_percentiles([row.runs for row in hour])
    assert found.retried == sum(row.retried for row in hour)
    lately = [row for row in hour if row.minute >= NOW - PACE_MINUTES and row.completed + row.failed]
    ended = sum(row.completed + row.failed for row in lately)
    seconds = (NOW - min((row.minute for row in lately), default=NOW)) * 60 + second
    assert math.isclose(found.pace, ended / max(10, seconds))


def plain_percentiles(histograms: list[list[int]]) -> Percentiles:
    """By sorting one bound for each value."""
    values = sorted(place for one in histograms for place, count in enumerate(one) for _ in range(count))
    if not values:
        return Percentiles(None, None, 0)
    at = [values[math.ceil(part * len(values)) - 1] for part in (0.5, 0.95)]
    return Percentiles(BOUNDS[at[0]], BOUNDS[at[1]], len(values))


def test_hour_is_sixty_minutes_with_the_present_one_last() -> None:
    found = pulse([], NOW, 30)
    assert found.minutes == [empty_minute(number, "", "") for number in range(NOW - 59, NOW + 1)]
    assert (found.pace, found.waits, found.runs) == (0.0, Percentiles(), Percentiles())


def test_attempt_that_is_tried_again_is_neither_completed_nor_failed() -> None:
    found = pulse([minute(NOW, retried=5, reaped=2)], NOW, 30)
    assert (found.completed, found.failed, found.retried, found.pace) == (0, 0, 5, 0.0)


def test_what_all_workers_and_types_did_is_added_up() -> None:
    rows = [minute(NOW - 1, completed=2), minute(NOW - 1, worker_id="w2", completed=3, failed=1)]
    found = pulse([*rows, minute(NOW - 1, type="crawl", failed=4)], NOW, 0)
    assert found.minutes[-2] == minute(NOW - 1, type="", worker_id="", completed=5, failed=5)


def test_pace_is_that_of_the_last_minutes_alone() -> None:
    long_ago = [minute(number, completed=10_000) for number in range(NOW - 59, NOW - PACE_MINUTES)]
    assert pulse(long_ago, NOW, 30).pace == 0
    assert pulse([minute(NOW - PACE_MINUTES, completed=330)], NOW, 30).pace == 1.0
    assert pulse([*long_ago, minute(NOW - PACE_MINUTES, completed=330)], NOW, 30).pace == 1.0


def test_pace_of_a_queue_that_has_just_begun_is_not_that_of_the_time_before() -> None:
    assert pulse([minute(NOW - 1, completed=90)], NOW, 30).pace == 1.0
    assert pulse([minute(NOW, completed=20)], NOW, 0.5).pace == 2.0


@pytest.mark.parametrize(
    ("pace", "waiting", "seconds"), [(0.0, 0, 0.0), (2.0, 0, 0.0), (2.0, 10, 5.0), (0.0, 1, None)]
)
def test_when_it_will_be_empty(pace: float, waiting: int, seconds: float | None) -> None:
    made = Pulse(minutes=[], waits=Percentiles(), runs=Percentiles(), pace=pace)
    assert made.seconds_until_empty(waiting) == seconds


def test_percentile_beyond_the_last_bound_is_none_and_still_counted() -> None:
    found = pulse([minute(NOW, runs=histogram([0] * 9 + [SIZE - 1]))], NOW, 0)
    assert found.runs == Percentiles(BUCKETS[0], None, 10)
