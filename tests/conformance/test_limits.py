"""Limits over all workers: starts a second, running at once, and caps that types share."""

from __future__ import annotations

import itertools
import random
from typing import Any

import pytest

from holdfast.core.clock import SECOND
from holdfast.core.lifecycle import Errored, Released
from holdfast.core.settings import Settings
from holdfast.core.starting import Room
from holdfast.store.protocol import Store
from holdfast.store.records import Claim, Claimed, Demand
from holdfast.testing import MovableClock
from tests.conformance.steps import LEASE, claim_one, demand, finish, insert, reap, settings_of, status


def take(
    store: Store, *demands: str | Demand, worker: str = "worker", limit: int = 100, **limits: Any
) -> Claimed:
    """Claim jobs of these types, or of `email`, under limits as `settings_of` takes them."""
    asked = [demand(each) if isinstance(each, str) else each for each in demands or ("email",)]
    settings = settings_of(store, **limits)
    return store.claim_jobs(worker, asked, settings, limit=limit, lease_seconds=LEASE)


def ids(claimed: Claimed) -> list[str]:
    return [found.id for found in claimed.claims]


def fill(store: Store, count: int, type: str = "email") -> None:
    insert(store, *(f"{type}-{n}" for n in range(count)), type=type)


# Rate


@pytest.mark.parametrize("rate", [0.3, 1.0, 2.5, 10.0])
def test_starts_in_any_window_stay_within_the_rate(store: Store, clock: MovableClock, rate: float) -> None:
    """Starts in any t seconds ≤ rate × t + max(1, rate), at whatever moments and in whatever bites."""
    chance = random.Random(f"rate {rate}")
    fill(store, 200)
    starts: list[int] = []
    while len(starts) < 150 and len(starts) < rate * 60:
        claimed = take(store, rate_limit=rate, limit=chance.choice([1, 3, 100]))
        starts += [store.now()] * len(claimed.claims)
        clock.advance(chance.choice([0, 0.001, 0.1, 1 / 3, 1, 7]))
    for first, last in itertools.combinations_with_replacement(range(len(starts)), 2):
        seconds = (starts[last] - starts[first]) / SECOND
        assert last - first + 1 <= rate * seconds + max(1, rate) + 1e-6


@pytest.mark.parametrize("rate", [0.3, 1.0, 2.5, 10.0])
def test_rate_is_used_to_the_full(store: Store, clock: MovableClock, rate: float) -> None:
    fill(store, 200)
    began = store.now()
    starts = 0
    while starts < 100:
        claimed = take(store, rate_limit=rate)
        starts += len(claimed.claims)
        assert claimed.wait is not None
        clock.advance(max(claimed.wait, 0.000001))
    seconds = (store.now() - began) / SECOND
    assert starts >= rate * seconds - 1


def test_wait_is_when_the_next_one_may_start(store: Store, clock: MovableClock) -> None:
    fill(store, 20)
    first = take(store, rate_limit=4)
    assert len(first.claims) == 4
    assert first.wait == pytest.approx(0.25)
    clock.advance(0.249)
    held = take(store, rate_limit=4)
    assert held.claims == []
    assert held.wait == pytest.approx(0.001)
    clock.advance(0.001)
    assert len(take(store, rate_limit=4).claims) == 1


def test_type_without_a_rate_has_nothing_to_wait_for(store: Store) -> None:
    fill(store, 50)
    claimed = take(store)
    assert len(claimed.claims) == 50
    assert claimed.wait is None


def test_rate_is_one_for_all_workers(store: Store, other: Store, clock: MovableClock) -> None:
    fill(store, 20)
    assert len(take(store, rate_limit=5, worker="w1").claims) == 5
    assert take(other, rate_limit=5, worker="w2").claims == []
    clock.advance(0.4)
    assert len(take(other, rate_limit=5, worker="w2", limit=1).claims) == 1
    assert len(take(store, rate_limit=5, worker="w1").claims) == 1


def test_slow_rate_lets_one_through_at_first(store: Store, clock: MovableClock) -> None:
    fill(store, 5)
    assert len(take(store, rate_limit=0.1).claims) == 1
    clock.advance(9.9)
    assert take(store, rate_limit=0.1).claims == []
    clock.advance(0.1)
    assert len(take(store, rate_limit=0.1).claims) == 1


def test_rest_does_not_save_up_more_than_a_second_of_the_rate(store: Store, clock: MovableClock) -> None:
    fill(store, 100)
    take(store, rate_limit=5)
    clock.advance(hours=1)
    assert len(take(store, rate_limit=5).claims) == 5


def test_lowered_rate_holds_at_once(store: Store, clock: MovableClock) -> None:
    fill(store, 100)
    take(store, rate_limit=50, limit=1)
    clock.advance(10)
    assert len(take(store, rate_limit=2).claims) == 2


def test_clock_that_steps_back_lets_nothing_extra_through(store: Store, clock: MovableClock) -> None:
    fill(store, 100)
    take(store, rate_limit=5)
    clock.advance(-3600)
    assert take(store, rate_limit=5).claims == []
    clock.advance(0.2)
    assert len(take(store, rate_limit=5).claims) == 1


def test_limited_type_does_not_hold_up_another(store: Store) -> None:
    fill(store, 5, "email")
    fill(store, 5, "crawl")
    claimed = take(store, "email", "crawl", rate_limit=1)
    assert ids(claimed) == ["email-0", *(f"crawl-{n}" for n in range(5))]


def test_types_that_name_one_rate_share_it(store: Store) -> None:
    fill(store, 5, "email")
    fill(store, 5, "crawl")
    assert ids(take(store, "crawl", "email", rate_limit={"": 3})) == ["email-0", "email-1", "email-2"]
    assert take(store, "crawl", "email", rate_limit={"": 3}).claims == []


def test_types_with_rates_of_their_own_do_not_share(store: Store) -> None:
    fill(store, 5, "email")
    fill(store, 5, "crawl")
    claimed = take(store, "email", "crawl", rate_limit={"email": 2, "crawl": 3})
    assert ids(claimed) == ["email-0", "email-1", "crawl-0", "crawl-1", "crawl-2"]


def test_paused_type_uses_up_no_rate(store: Store) -> None:
    fill(store, 5)
    store.set_paused("email", True)
    assert take(store, rate_limit=1).claims == []
    store.set_paused("email", False)
    assert len(take(store, rate_limit=1).claims) == 1


def test_claim_that_is_undone_uses_up_no_rate(store: Store) -> None:
    fill(store, 5)
    with pytest.raises(KeyboardInterrupt):
        interrupted_take(store)
    assert len(take(store, rate_limit=1).claims) == 1


def interrupted_take(store: Store) -> None:
    with store.transaction():
        assert len(take(store, rate_limit=1).claims) == 1
        raise KeyboardInterrupt


def test_rate_wait_can_be_asked_for(store: Store, clock: MovableClock) -> None:
    fill(store, 5)
    assert rate_wait(store) is None
    take(store, rate_limit=4)
    assert rate_wait(store) == pytest.approx(0.25)
    clock.advance(0.1)
    assert rate_wait(store) == pytest.approx(0.15)
    clock.advance(60)
    assert rate_wait(store) is None


def rate_wait(store: Store) -> float | None:
    """What `why` would say of a job under a rate limit of 4/s."""
    settings = Settings({("rate_limit", "email"): 4.0})
    holds = Room(settings, store.read_usage(), store.now()).holds("email", None)
    return next((hold.wait for hold in holds if hold.kind == "rate_limit"), None)


# Running at once


def test_no_more_run_than_max_running(store: Store, other: Store) -> None:
    fill(store, 10)
    assert len(take(store, max_running=3, worker="w1", limit=2).claims) == 2
    assert len(take(other, max_running=3, worker="w2").claims) == 1
    assert take(store, max_running=3, worker="w1").claims == []


def end_finished(store: Store, running: Claim, clock: MovableClock) -> None:
    finish(store, running)


def end_failed(store: Store, running: Claim, clock: MovableClock) -> None:
    finish(store, running, Errored("boom"))


def end_released(store: Store, running: Claim, clock: MovableClock) -> None:
    finish(store, running, Released())


def end_reaped(store: Store, running: Claim, clock: MovableClock) -> None:
    clock.advance(LEASE)
    reap(store)


@pytest.mark.parametrize("end", [end_finished, end_failed, end_released, end_reaped])
def test_attempt_that_ends_makes_room(store: Store, clock: MovableClock, end: Any) -> None:
    fill(store, 3)
    [running] = take(store, max_running=1).claims
    assert take(store, max_running=1).claims == []
    end(store, running, clock)
    assert len(take(store, max_running=1).claims) == 1


def test_running_job_that_is_to_be_cancelled_still_counts(store: Store) -> None:
    fill(store, 2)
    take(store, max_running=1)
    store.cancel_job("email-0")
    assert take(store, max_running=1).claims == []


def test_waiting_jobs_do_not_count_as_running(store: Store) -> None:
    fill(store, 5)
    insert(store, "later", delay=60)
    assert len(take(store, max_running=2).claims) == 2


def test_types_that_name_one_cap_are_counted_together(store: Store) -> None:
    fill(store, 2, "email")
    fill(store, 5, "crawl")
    first = take(store, "crawl", "email", max_running={"": 3})
    assert ids(first) == ["email-0", "email-1", "crawl-0"]
    assert take(store, "crawl", "email", max_running={"": 3}).claims == []
    finish(store, first.claims[0])
    assert ids(take(store, "crawl", "email", max_running={"": 3})) == ["crawl-1"]


def test_types_that_are_not_asked_for_count_in_a_shared_cap(store: Store) -> None:
    fill(store, 2, "email")
    fill(store, 2, "crawl")
    claim_one(store, "email", worker="another")
    assert ids(take(store, "crawl", max_running={"": 2})) == ["crawl-0"]


def test_types_with_caps_of_their_own_do_not_share(store: Store) -> None:
    fill(store, 3, "email")
    fill(store, 3, "crawl")
    claimed = take(store, "email", "crawl", max_running={"email": 1, "crawl": 2})
    assert ids(claimed) == ["email-0", "crawl-0", "crawl-1"]


def test_full_type_does_not_hold_up_another(store: Store) -> None:
    fill(store, 2, "email")
    fill(store, 2, "crawl")
    take(store, max_running=1, limit=1)
    claimed = take(store, "email", "crawl", max_running=1)
    assert ids(claimed) == ["crawl-0", "crawl-1"]


def test_lower_cap_stops_new_starts_and_ends_nothing(store: Store) -> None:
    fill(store, 5)
    take(store, max_running=3)
    assert take(store, max_running=1).claims == []
    assert [status(store, f"email-{n}") for n in range(5)] == ["processing"] * 3 + ["pending"] * 2


def test_rate_is_not_used_up_by_what_max_running_holds_back(store: Store) -> None:
    fill(store, 5)
    [running] = take(store, rate_limit=2, max_running=1).claims
    assert take(store, rate_limit=2, max_running=1).claims == []
    finish(store, running)
    assert len(take(store, rate_limit=2, max_running=1).claims) == 1


def test_priority_decides_who_gets_the_last_place_of_a_shared_cap(store: Store) -> None:
    insert(store, "low", type="email")
    insert(store, "high", type="crawl", priority=1)
    assert ids(take(store, "email", "crawl", max_running={"": 1})) == ["high"]


# What a limit holds back


def held_back(store: Store, *demands: str | Demand, **options: Any) -> set[str]:
    return set(take(store, *demands, **options).limited)


def test_type_whose_rate_is_used_up_is_held_back_until_it_refills(store: Store, clock: MovableClock) -> None:
    fill(store, 5)
    claimed = take(store, rate_limit=2)
    assert (len(claimed.claims), claimed.limited) == (2, frozenset({"email"}))
    assert held_back(store, rate_limit=2) == {"email"}
    clock.advance(10)
    assert held_back(store, rate_limit=2) == {"email"}
    clock.advance(10)
    claimed = take(store, rate_limit=2)
    assert (len(claimed.claims), claimed.limited) == (1, frozenset())


def test_type_that_has_as_many_running_as_may_is_held_back(store: Store) -> None:
    fill(store, 4)
    assert held_back(store, max_running=2) == {"email"}
    [one, _] = store.list_held("worker")
    assert held_back(store, max_running=2) == {"email"}
    finish(store, next(claim for claim in claims_of(store) if claim.seq == one.seq))
    assert held_back(store, max_running=2) == {"email"}
    assert held_back(store, max_running=4) == set()


def claims_of(store: Store) -> list[Claim]:
    """The running attempts of the one worker, as claims to finish."""
    return [
        Claim(h.seq, h.id, h.type, "{}", 0, h.attempts, h.max_attempts, h.version, None, 0, 0, h.worker_id)
        for h in store.list_held("worker")
    ]


def test_limit_that_lets_all_through_holds_nothing_back(store: Store) -> None:
    fill(store, 4)
    assert held_back(store, rate_limit=4, max_running=4) == set()


def test_type_without_jobs_is_not_held_back(store: Store) -> None:
    fill(store, 1)
    assert held_back(store, rate_limit=1) == set()
    assert held_back(store, rate_limit=1) == set()
    fill(store, 1, "crawl")
    assert held_back(store, "crawl", max_running={"crawl": 1}) == set()
    assert held_back(store, "crawl", max_running={"crawl": 1}) == set()


def test_worker_without_enough_slots_is_not_held_back_by_a_limit(store: Store) -> None:
    """The limit would let as many through as it can take."""
    fill(store, 5)
    assert held_back(store, demand(limit=3), rate_limit=3) == set()


def test_type_without_a_limit_is_never_held_back(store: Store) -> None:
    fill(store, 5)
    assert held_back(store, demand(limit=2)) == set()


@pytest.mark.parametrize("cap", ["rate_limit", "max_running"])
def test_of_types_that_share_a_limit_those_that_came_too_late_are_held_back(store: Store, cap: str) -> None:
    for type in ("mail:a", "mail:b", "free"):
        fill(store, 1, type)
    types = ["mail:a", "mail:b"]
    shared: dict[str, Any] = {cap: {"mail": 1}}
    claimed = take(store, *types, "free", **shared)
    assert (sorted(ids(claimed)), claimed.limited) == (["free-0", "mail:a-0"], frozenset({"mail:b"}))
    assert held_back(store, "mail:b", **shared) == {"mail:b"}


@pytest.mark.parametrize("paused", ["email", ""])
@pytest.mark.parametrize("limits", [{"rate_limit": 1}, {"max_running": 1}], ids=["rate", "max_running"])
def test_paused_type_is_not_held_back_by_a_limit(store: Store, paused: str, limits: dict[str, Any]) -> None:
    """Without the limit it would not start either."""
    fill(store, 5)
    assert held_back(store, **limits) == {"email"}
    store.set_paused(paused, True)
    assert held_back(store, **limits) == set()
    store.set_paused(paused, False)
    assert held_back(store, **limits) == {"email"}


def test_claim_of_nothing_holds_nothing_back(store: Store) -> None:
    fill(store, 5)
    assert store.claim_jobs("worker", [], limit=9, lease_seconds=LEASE).limited == frozenset()
    assert held_back(store, max_running=1, limit=0) == set()


@pytest.mark.parametrize("other", [[], ["crawl"]])
def test_types_that_share_slots_get_no_more_together(store: Store, other: list[str]) -> None:
    for type in ("mail:a", "mail:b", "crawl"):
        fill(store, 9, type)
    demands = [demand(type, limit=3) for type in ("mail:a", "mail:b")]
    demands += [demand(type, limit=5) for type in other]
    claimed = take(store, *demands, concurrency={"mail": 3, "": 5}, limit=20)
    assert len([c for c in claimed.claims if c.type != "crawl"]) == 3
    assert len(claimed.claims) == 3 + 5 * len(other)
