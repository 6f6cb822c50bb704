"""claim_jobs: which jobs are taken, in which order, and what a claim writes."""

from __future__ import annotations

import pytest

from holdfast.core.clock import SECOND, to_datetime
from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored, Released
from holdfast.store.protocol import Store
from holdfast.store.records import Claim, Claimed
from holdfast.testing import MovableClock
from tests.conformance.engines import where
from tests.conformance.steps import (
    BACK_OFF,
    LEASE,
    MAX_ATTEMPTS,
    claim,
    claim_one,
    demand,
    everything,
    finish,
    insert,
    job,
    reap,
    rolled_back,
    run,
    status,
)


def ids(claims: list[Claim]) -> list[str]:
    return [claimed.id for claimed in claims]


def test_claimed_job_is_processing_under_a_lease(store: Store, clock: MovableClock) -> None:
    insert(store, "a")
    clock.advance(5)
    claim(store, worker="w1", lease=12.5)
    found = job(store, "a")
    assert (found.status, found.worker_id) == (Status.PROCESSING, "w1")
    assert found.started_at == found.updated_at == clock.now
    assert found.lease_expires_at == to_datetime(clock() + round(12.5 * SECOND))


def test_claim_carries_what_the_worker_needs(store: Store, clock: MovableClock) -> None:
    now = store.now()
    insert(store, "a", type="crawl", payload='{"n": 1}', priority=2, max_attempts=5, timeout=1.5)
    clock.advance(1)
    claimed = claim_one(store, "crawl", "w1")
    assert (claimed.id, claimed.type, claimed.payload, claimed.priority) == ("a", "crawl", '{"n": 1}', 2)
    assert (claimed.attempts, claimed.max_attempts, claimed.version, claimed.timeout) == (1, 5, 1, 1.5)
    assert (claimed.created_at, claimed.due_at, claimed.worker_id) == (now, now, "w1")


def test_attempts_and_version_are_counted_at_the_claim(store: Store) -> None:
    insert(store, "a")
    assert (job(store, "a").attempts, job(store, "a").version) == (0, 0)
    claim_one(store)
    assert (job(store, "a").attempts, job(store, "a").version) == (1, 1)


def test_claimed_job_is_not_claimed_again(store: Store) -> None:
    run(store, "a")
    assert claim(store) == []


def test_first_come_first_served_within_a_priority(store: Store, clock: MovableClock) -> None:
    for id in "cab":
        insert(store, id)
        clock.advance(1)
    assert ids(claim(store)) == ["c", "a", "b"]


def test_order_is_that_of_insertion_when_the_clock_stands_still_or_steps_back(
    store: Store, clock: MovableClock
) -> None:
    insert(store, "a")
    insert(store, "b")
    clock.advance(-3600)
    insert(store, "c")
    assert ids(claim(store)) == ["a", "b", "c"]


def test_higher_priority_goes_first(store: Store) -> None:
    for priority in (0, -5, 10, 1):
        insert(store, f"p{priority}", priority=priority)
    assert ids(claim(store)) == ["p10", "p1", "p0", "p-5"]


def test_limit_takes_the_first_in_line(store: Store) -> None:
    insert(store, "a", "b")
    insert(store, "c", priority=1)
    assert ids(claim(store, limit=2)) == ["c", "a"]


def test_priority_goes_over_types(store: Store) -> None:
    insert(store, "low", type="email", priority=0)
    insert(store, "high", type="crawl", priority=5)
    assert ids(claim(store, "email", "crawl", limit=1)) == ["high"]


def test_types_of_one_priority_are_served_in_the_order_jobs_came(store: Store) -> None:
    for id, type in (("a", "email"), ("b", "crawl"), ("c", "email"), ("d", "crawl")):
        insert(store, id, type=type)
    assert ids(claim(store, "crawl", "email", limit=3)) == ["a", "b", "c"]


def test_many_jobs_of_one_type_do_not_hide_another_type(store: Store) -> None:
    insert(store, *(f"email-{n}" for n in range(50)), type="email")
    insert(store, "crawl", type="crawl")
    claimed = claim(store, "email", "crawl", limit=10)
    assert len(claimed) == 10
    assert ids(claim(store, "crawl", limit=1)) == ["crawl"]


def test_demand_of_a_type_is_not_exceeded(store: Store) -> None:
    insert(store, "a", "b", "c", type="email")
    insert(store, "d", type="crawl")
    claimed = store.claim_jobs(
        "w1", [demand("email", limit=2), demand("crawl")], limit=10, lease_seconds=LEASE
    )
    assert ids(claimed.claims) == ["a", "b", "d"]


def test_jobs_whose_type_is_not_asked_for_are_left_alone(store: Store) -> None:
    insert(store, "a", type="crawl")
    before = everything(store)
    assert claim(store, "email") == []
    assert everything(store) == before


def test_lane_is_a_type_of_its_own(store: Store) -> None:
    insert(store, "a", type="shell:media")
    assert claim(store, "shell") == []
    assert ids(claim(store, "shell:media")) == ["a"]


def test_scheduled_job_is_not_claimed_before_it_is_promoted(store: Store, clock: MovableClock) -> None:
    insert(store, "a", delay=10)
    clock.advance(60)
    assert claim(store) == []
    store.promote_jobs(10)
    assert ids(claim(store)) == ["a"]


@pytest.mark.parametrize("end", ["completed", "failed", "cancelled"])
def test_finished_job_is_not_claimed(store: Store, end: str) -> None:
    claimed = run(store, "a", max_attempts=1)
    if end == "cancelled":
        store.cancel_job("a")
    finish(store, claimed, None if end == "completed" else Errored("boom"))
    assert status(store, "a") == end
    assert claim(store) == []


def test_job_waiting_for_a_retry_is_not_claimed(store: Store) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    assert claim(store) == []


@pytest.mark.parametrize("paused", ["email", ""])
def test_paused_type_is_not_claimed(store: Store, paused: str) -> None:
    insert(store, "a")
    store.set_paused(paused, True)
    assert claim(store) == []
    assert job(store, "a").attempts == 0


def test_no_demand_and_no_room_claim_nothing(store: Store) -> None:
    insert(store, "a")
    assert store.claim_jobs("w1", [], limit=10, lease_seconds=LEASE) == Claimed([])
    assert store.claim_jobs("w1", [demand()], limit=0, lease_seconds=LEASE) == Claimed([])
    assert status(store, "a") is Status.PENDING


def test_first_claim_fixes_what_was_left_open(store: Store) -> None:
    insert(store, "a")
    [claimed] = claim(store, max_attempts=7, timeout=4.5)
    assert (claimed.max_attempts, claimed.timeout) == (7, 4.5)
    assert (job(store, "a").max_attempts, job(store, "a").timeout) == (7, 4.5)


def test_later_claim_does_not_change_what_the_first_fixed(store: Store) -> None:
    insert(store, "a")
    [first] = claim(store, max_attempts=7, timeout=4.5)
    finish(store, first, Released())
    [second] = claim(store, max_attempts=2, timeout=1.0)
    assert (second.max_attempts, second.timeout) == (7, 4.5)
    assert (job(store, "a").max_attempts, job(store, "a").timeout) == (7, 4.5)


def test_own_options_of_a_job_beat_those_of_the_demand(store: Store) -> None:
    insert(store, "a", max_attempts=1, timeout=9.0)
    [claimed] = claim(store, max_attempts=7, timeout=4.5)
    assert (claimed.max_attempts, claimed.timeout) == (1, 9.0)


def test_open_options_are_fixed_by_the_demand_of_their_own_type(store: Store) -> None:
    insert(store, "a", type="email")
    insert(store, "b", type="crawl")
    demands = [demand("email", max_attempts=1), demand("crawl", max_attempts=2)]
    claims = store.claim_jobs("w1", demands, limit=10, lease_seconds=LEASE).claims
    assert {claimed.id: claimed.max_attempts for claimed in claims} == {"a": 1, "b": 2}


def test_timeout_may_stay_open(store: Store) -> None:
    assert run(store, "a").timeout is None
    assert job(store, "a").timeout is None


def test_claim_does_not_change_run_at(store: Store, clock: MovableClock) -> None:
    when = store.now() + 10 * SECOND
    insert(store, "a", run_at=when)
    clock.advance(20)
    store.promote_jobs(10)
    assert claim_one(store).due_at == when
    assert job(store, "a").run_at == to_datetime(when)


def test_claim_after_a_failure_counts_on(store: Store, clock: MovableClock) -> None:
    finish(store, run(store, "a"), Errored("boom"))
    clock.advance(BACK_OFF)
    store.promote_jobs(10)
    again = claim_one(store, worker="w2")
    assert (again.attempts, again.version, again.worker_id) == (2, 2, "w2")


def test_claim_clears_the_progress_of_the_attempt_before(store: Store, clock: MovableClock) -> None:
    first = run(store, "a")
    store.write_progress("worker", [(first.seq, first.version, 0.5, "half")])
    clock.advance(LEASE)
    reap(store)
    claim_one(store)
    assert job(store, "a").progress is None


def test_every_job_is_claimed_once(store: Store) -> None:
    insert(store, *(f"job-{n}" for n in range(500)))
    taken = [id for limit in (1, 7, 100, 500) for id in ids(claim(store, limit=limit))]
    taken += ids(claim(store, limit=500))
    taken += ids(claim(store, limit=500))
    assert sorted(taken) == sorted(f"job-{n}" for n in range(500))


def test_claim_inside_a_transaction_that_fails_is_undone(store: Store) -> None:
    insert(store, "a")
    before = everything(store)
    with rolled_back(store):
        assert len(claim(store)) == 1
    assert everything(store) == before


def test_finish_and_claim_share_a_transaction(store: Store, other: Store) -> None:
    first = run(store, "a")
    insert(store, "b")
    with store.transaction():
        finish(store, first)
        claim_one(store)
        assert status(other, "a") is Status.PROCESSING
        assert status(other, "b") is Status.PENDING
    assert status(other, "a") is Status.COMPLETED
    assert status(other, "b") is Status.PROCESSING


def heads(store: Store) -> dict[str, int]:
    return {head.type: head.priority for head in store.list_heads()}


def test_heads_are_the_first_waiting_jobs_of_the_types(store: Store) -> None:
    assert heads(store) == {}
    finish(store, run(store, "done", type="quiet"))
    insert(store, "later", type="quiet", delay=60)
    run(store, "running", type="email")
    assert heads(store) == {}
    insert(store, "a", type="email", priority=3)
    insert(store, "b", type="email", priority=5)
    insert(store, "c", type="email:lane", priority=-1)
    assert heads(store) == {"email": 5, "email:lane": -1}
    seqs = {head.type: head.seq for head in store.list_heads()}
    assert {(c.type, c.seq) for c in claim(store, "email", "email:lane", limit=3) if c.id != "a"} == {
        *seqs.items()
    }


def test_heads_beside_the_lanes_of_types_left_apart(store: Store) -> None:
    lanes = [f"email:{letter}" for letter in "-.09AZ_az"]
    others = ["email-x", "email.x", "email0", "emailer:lane", "emai", "email_x", "crawl:email"]
    for type in ("email", *lanes, *others):
        insert(store, f"of-{type}", type=type)
    found = {head.type for head in store.list_heads(["email", "email0"])}
    assert {*others} - {"email0"} <= found
    assert {head.type for head in store.list_heads(["crawl"])} >= {"email", *lanes, "emailer:lane"}


@where(lambda engine: engine.is_a_file)
def test_heads_of_a_paused_type_are_found_without_going_through_its_lanes(store: Store) -> None:
    for number in range(20):
        insert(store, f"lane-{number}", type=f"email:{number}")
    insert(store, "other", type="mail")
    assert len([head for head in store.list_heads(["email"]) if head.type.startswith("email")]) <= 1
    assert store.list_heads([""]) == []


def test_usage_is_what_runs_by_type_and_group(store: Store) -> None:
    insert(store, "a", "b", group="g")
    insert(store, "c", type="crawl", group="g")
    insert(store, "d", type="crawl")
    insert(store, "waiting", priority=-1)
    claim(store, "email", "crawl", limit=4)
    usage = store.read_usage()
    assert usage.running == {"email": 2, "crawl": 2}
    assert usage.groups == {("email", "g"): 2, ("crawl", "g"): 1}


def test_default_limit_of_attempts_is_that_of_the_demand(store: Store) -> None:
    assert run(store, "a").max_attempts == MAX_ATTEMPTS
