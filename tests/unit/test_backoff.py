"""Back-off: min(factor * base ** attempts, maximum) seconds, ± jitter."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.backoff import Backoff

backoffs = st.builds(
    Backoff,
    strategy=st.sampled_from(["exponential", "linear", "fixed"]),
    base=st.floats(0, 1e12),
    factor=st.floats(0, 1e12),
    maximum=st.floats(0, 1e12),
    jitter=st.floats(0, 1),
)
many_attempts = st.integers(1, 2**31 - 1)
chances = st.floats(0, 1)


@pytest.mark.parametrize(
    ("strategy", "seconds"),
    [("exponential", [6, 12, 24, 48]), ("linear", [3, 6, 9, 12]), ("fixed", [3, 3, 3, 3])],
)
def test_each_strategy_follows_its_formula(strategy: str, seconds: list[float]) -> None:
    backoff = Backoff(strategy=strategy, base=2, factor=3, jitter=0)
    assert [backoff.delay(attempts, 0.5) for attempts in (1, 2, 3, 4)] == seconds


def test_the_defaults_are_two_four_eight_seconds_up_to_six_hours() -> None:
    backoff = Backoff()
    assert [backoff.delay(attempts, 0.5) for attempts in (1, 2, 3)] == [2, 4, 8]
    assert backoff.delay(100, 0.5) == 21_600


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 8.0), (0.25, 9.0), (0.5, 10.0), (1.0, 12.0)])
def test_chance_picks_the_point_within_the_jitter(chance: float, seconds: float) -> None:
    assert Backoff(strategy="fixed", factor=10, jitter=0.2).delay(1, chance) == pytest.approx(seconds)


@given(backoffs, many_attempts, chances)
@example(Backoff(factor=0.0), 5000, 0.5)
@example(Backoff(base=1e12, factor=1e12, maximum=1e12, jitter=1.0), 2**31 - 1, 1.0)
def test_a_delay_is_finite_not_negative_and_never_over_the_maximum(
    backoff: Backoff, attempts: int, chance: float
) -> None:
    seconds = backoff.delay(attempts, chance)
    assert math.isfinite(seconds)
    assert 0 <= seconds <= backoff.maximum


@given(
    st.sampled_from(["exponential", "linear", "fixed"]),
    st.floats(0.01, 100),
    st.integers(1, 10),
    st.floats(0, 1),
    chances,
)
def test_jitter_stays_within_its_share(
    strategy: str, factor: float, attempts: int, jitter: float, chance: float
) -> None:
    plain = Backoff(strategy=strategy, factor=factor, maximum=1e12, jitter=0).delay(attempts, 0.5)
    seconds = Backoff(strategy=strategy, factor=factor, maximum=1e12, jitter=jitter).delay(attempts, chance)
    assert plain * (1 - jitter) - 1e-9 <= seconds <= plain * (1 + jitter) + 1e-9


@given(st.floats(1, 10), st.floats(0.001, 10), st.integers(1, 2000))
def test_with_a_base_from_one_a_later_attempt_never_waits_less(
    base: float, factor: float, attempts: int
) -> None:
    backoff = Backoff(base=base, factor=factor, jitter=0)
    assert backoff.delay(attempts, 0.5) <= backoff.delay(attempts + 1, 0.5)


def test_a_power_too_large_for_a_number_is_the_maximum() -> None:
    assert Backoff(base=10.0, maximum=60.0, jitter=0).delay(100_000, 0.5) == 60


@pytest.mark.parametrize("attempts", [1, 10, 5000, 2**31 - 1])
def test_a_factor_of_zero_never_waits(attempts: int) -> None:
    assert Backoff(factor=0).delay(attempts, 0.5) == 0
