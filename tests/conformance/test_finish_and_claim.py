"""finish_and_claim: the ends of attempts and the next claims in one go, as if one came after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from holdfast.core.job import Status
from holdfast.core.lifecycle import Completed, Errored
from holdfast.core.settings import Settings
from holdfast.store.protocol import Store
from holdfast.store.records import Claim, Claimed, Demand, Finish
from tests.conformance.steps import (
    LEASE,
    claim,
    claim_one,
    demand,
    ending,
    insert,
    job,
    new_job,
    rolled_back,
    run,
    settings_of,
    status,
)

Ended = dict[tuple[int, int], Status]


def take(
    store: Store,
    finishes: Sequence[Finish],
    demands: Sequence[Demand] | None = None,
    settings: Settings | None = None,
    *,
    limit: int = 100,
    meanwhile: Callable[[], Any] = lambda: None,
    is_whole: bool = False,
) -> tuple[Ended, Claimed]:
    asked = [demand()] if demands is None else demands
    with store.finish_and_claim(
        finishes, "worker", asked, settings, limit=limit, lease_seconds=LEASE, is_whole=is_whole
    ) as answer:
        meanwhile()
    return answer.ended, answer.claimed


def ids(claimed: Claimed) -> list[str]:
    return [each.id for each in claimed.claims]


def name(claimed: Claim) -> tuple[int, int]:
    return claimed.seq, claimed.version


def test_ends_are_written_and_the_next_are_taken(store: Store) -> None:
    insert(store, "a", "b", "c", "d")
    claims = claim(store, limit=2)
    ended, claimed = take(store, [ending(each, Completed('"done"')) for each in claims])
    assert ended == {name(each): Status.COMPLETED for each in claims}
    assert ids(claimed) == ["c", "d"]
    assert (job(store, "a").result, status(store, "c")) == ("done", Status.PROCESSING)


def test_end_of_an_attempt_that_is_over_is_left_out(store: Store) -> None:
    insert(store, "a", "b", "c")
    lost, own = claim(store, limit=2)
    store.finish_jobs([ending(lost, Completed())])
    ended, claimed = take(store, [ending(lost, Completed('"late"')), ending(own, Completed())])
    assert ended == {name(own): Status.COMPLETED}
    assert ids(claimed) == ["c"]
    assert job(store, "a").result is None


def test_failures_and_children_are_written_before_the_claim(store: Store) -> None:
    insert(store, "parent", "failing")
    parent, failing = claim(store, limit=2)
    child = new_job("child", parent_id="parent")
    ended, claimed = take(
        store, [ending(parent, Completed(), children=(child,)), ending(failing, Errored("boom"))]
    )
    assert ended == {name(parent): Status.COMPLETED, name(failing): Status.SCHEDULED}
    assert ids(claimed) == ["child"]
    assert job(store, "failing").error == "boom"


def test_ends_of_several_workers_are_written(store: Store) -> None:
    mine, other = run(store, "a"), run(store, "b", worker="other")
    ended, _ = take(store, [ending(mine, Completed()), ending(other, Completed())])
    assert set(ended) == {name(mine), name(other)}


def test_limits_hold(store: Store) -> None:
    insert(store, "a", "b", "c")
    running = claim_one(store)
    ended, claimed = take(store, [ending(running, Completed())], None, settings_of(store, max_running=1))
    assert (len(ended), ids(claimed)) == (1, ["b"])


def test_paused_type_is_left_alone(store: Store) -> None:
    insert(store, "a", "b")
    running = claim_one(store)
    store.set_paused("email", True)
    ended, claimed = take(store, [ending(running, Completed())])
    assert (len(ended), ids(claimed)) == (1, [])


@pytest.mark.parametrize("result", ['"quote \\" back \\\\ {,}"', '"é ☃"'])
def test_any_result_is_written(store: Store, result: str) -> None:
    insert(store, "a", "b")
    ended, claimed = take(store, [ending(claim_one(store), Completed(result))])
    assert (len(ended), ids(claimed)) == (1, ["b"])
    assert status(store, "a") is Status.COMPLETED


@pytest.mark.parametrize("finishes", [True, False])
@pytest.mark.parametrize("demands", [[demand()], []])
@pytest.mark.parametrize("limits", [{}, {"rate_limit": 5.0}])
@pytest.mark.parametrize("whole", [True, False])
def test_what_is_to_be_done_meanwhile_is_done_once(
    store: Store, finishes: bool, demands: list[Demand], limits: dict[str, Any], whole: bool
) -> None:
    insert(store, "a", "b")
    ends = [ending(claim_one(store), Completed())] if finishes else []
    calls: list[int] = []
    ended, claimed = take(
        store,
        ends,
        demands,
        settings_of(store, **limits),
        meanwhile=lambda: calls.append(1),
        is_whole=whole,
    )
    assert calls == [1]
    assert (len(ended), ids(claimed)) == (finishes, (["b"] if finishes else ["a", "b"]) if demands else [])
    assert status(store, "a") is (
        Status.COMPLETED if finishes else Status.PROCESSING if demands else Status.PENDING
    )


def test_claim_by_outdated_settings_takes_nothing_and_ends_what_has_ended(store: Store) -> None:
    insert(store, "a", "b")
    running = claim_one(store)
    stored = store.read_settings()
    before = Settings(stored.values, paused=stored.paused, version=stored.version)
    store.set_paused("other", True)
    ended, claimed = take(store, [ending(running, Completed())], None, before, is_whole=True)
    assert (len(ended), claimed.claims, claimed.is_stale) == (1, [], True)
    assert (status(store, "a"), status(store, "b")) == (Status.COMPLETED, Status.PENDING)


def test_nothing_is_written_if_what_is_done_meanwhile_fails(store: Store) -> None:
    def fail() -> None:
        raise RuntimeError("meanwhile")

    insert(store, "a", "b")
    running = claim_one(store)
    with pytest.raises(RuntimeError, match="meanwhile"):
        take(store, [ending(running, Completed())], meanwhile=fail)
    assert (status(store, "a"), status(store, "b")) == (Status.PROCESSING, Status.PENDING)
    assert len(take(store, [ending(running, Completed())])[0]) == 1


def test_it_is_one_transaction_with_what_is_around_it(store: Store) -> None:
    insert(store, "a", "b")
    running = claim_one(store)
    with rolled_back(store):
        ended, claimed = take(store, [ending(running, Completed())])
        assert (len(ended), ids(claimed)) == (1, ["b"])
    assert (status(store, "a"), status(store, "b")) == (Status.PROCESSING, Status.PENDING)
