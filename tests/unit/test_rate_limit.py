"""The token bucket: starts in any t seconds stay within rate × t + max(1, rate)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.rate_limit import Bucket, capacity, full

SLACK = 1e-6  # sums of fractions

rates = st.floats(0.01, 10_000)
# Microseconds until the next worker asks, and how many starts it would like.
asks = st.lists(st.tuples(st.integers(0, 5_000_000), st.integers(0, 20_000)), max_size=60)
steps = st.lists(st.tuples(st.integers(-5_000_000, 5_000_000), st.integers(0, 20_000)), max_size=60)


def start(rate: float, moves: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Ask as often as `moves` says; the instants and how many starts each was given."""
    now = 1_000_000_000
    bucket = full(rate, now)
    given = []
    for move, wanted in moves:
        now += move
        bucket = bucket.refill(rate, now)
        count = min(wanted, bucket.available())
        bucket = bucket.take(count)
        given.append((now, count))
    return given


@given(rates, asks)
def test_starts_in_any_window_stay_within_the_limit(rate: float, moves: list[tuple[int, int]]) -> None:
    given = start(rate, moves)
    for first in range(len(given)):
        total = 0
        for now, count in given[first:]:
            total += count
            seconds = (now - given[first][0]) / 1e6
            assert total <= rate * seconds + max(1, rate) + SLACK


@given(rates, steps)
def test_a_stepped_clock_allows_no_more_than_its_forward_moves(
    rate: float, moves: list[tuple[int, int]]
) -> None:
    given = start(rate, moves)
    forward = sum(max(0, move) for move, _ in moves) / 1e6
    assert sum(count for _, count in given) <= rate * forward + max(1, rate) + SLACK


@given(rates, st.integers(1, 10**12))
def test_a_clock_that_stepped_back_does_not_stop_the_queue(rate: float, step: int) -> None:
    bucket = full(rate, 10**13).take(math.floor(capacity(rate)))
    bucket = bucket.refill(rate, 10**13 - step)
    wait = math.ceil(bucket.seconds_until_next(rate) * 1e6) + 1
    assert bucket.refill(rate, 10**13 - step + wait).available() >= 1
    assert wait <= 1e6 / rate + 2


@given(rates, st.floats(0, 1))
def test_after_the_wait_it_names_the_next_start_is_allowed(rate: float, tokens: float) -> None:
    bucket = Bucket(tokens, 0)
    wait = math.ceil(bucket.seconds_until_next(rate) * 1e6)
    assert bucket.refill(rate, wait).available() >= 1


@given(rates)
def test_polling_often_loses_no_fraction_of_a_token(rate: float) -> None:
    bucket = full(rate, 0).take(math.floor(capacity(rate)))
    patient = bucket.refill(rate, 1_000_000)
    for now in range(0, 1_000_001, 10_000):
        bucket = bucket.refill(rate, now)
    assert bucket.tokens == pytest.approx(patient.tokens)


@pytest.mark.parametrize(("rate", "burst"), [(0.1, 1), (1, 1), (2.5, 2), (10, 10)])
def test_a_full_bucket_allows_one_second_of_starts_and_at_least_one(rate: float, burst: int) -> None:
    assert full(rate, 0).available() == burst


def test_a_long_pause_saves_up_no_more_than_a_full_bucket() -> None:
    assert full(5, 0).take(5).refill(5, 3_600_000_000).tokens == 5


def test_a_lowered_rate_shrinks_the_bucket_at_once() -> None:
    assert full(100, 0).refill(2, 0).available() == 2


def test_there_is_no_wait_while_a_token_is_left() -> None:
    assert full(3, 0).seconds_until_next(3) == 0


def test_tenths_that_add_up_to_one_are_one() -> None:
    bucket = Bucket(0.0, 0)
    for now in range(100_000, 1_000_001, 100_000):
        bucket = bucket.refill(1, now)
    assert bucket.available() == 1
