"""Groups: how many jobs of one may run at a time, turns between them, and jobs that have to run alone."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from holdfast.store import candidates
from holdfast.store.protocol import Store
from holdfast.store.records import Claim
from tests.conformance.steps import claim, finish, insert, job, new_job, settings_of
from tests.support import wait_until

MANY = 5000


def fill(store: Store, group: str | None, count: int, **options: Any) -> None:
    """Jobs called after their group and number."""
    jobs = [new_job(f"{group}-{n}", group=group, **options) for n in range(count)]
    assert all(verdict.inserted for verdict in store.insert_jobs(jobs))


def take(
    store: Store, *types: str, limit: int = 100, alone: bool = False, worker: str = "worker", **limits: Any
) -> list[Claim]:
    settings = settings_of(store, **limits)
    return claim(store, *types, limit=limit, settings=settings, alone=alone, worker=worker)


def ids(claims: list[Claim]) -> list[str]:
    return [claimed.id for claimed in claims]


def groups(claims: list[Claim]) -> str:
    """The groups of claims, each by its first letter."""
    return "".join(claimed.id[0] for claimed in claims)


# How many of a group run.


def test_no_more_of_a_group_run_than_may(store: Store, other: Store) -> None:
    fill(store, "a", 5)
    fill(store, "b", 5)
    first = take(store, limit=3, group_concurrency=2)
    assert ids(first) == ["a-0", "a-1", "b-0"]
    assert ids(take(other, group_concurrency=2, worker="another")) == ["b-1"]
    assert take(store, group_concurrency=2) == []
    finish(store, first[0])
    assert ids(take(store, group_concurrency=2)) == ["a-2"]


def test_jobs_without_a_group_are_not_limited(store: Store) -> None:
    insert(store, "x", "y", "z")
    fill(store, "a", 2)
    assert ids(take(store, group_concurrency=1)) == ["x", "y", "z", "a-0"]


def test_group_is_limited_over_the_lanes_that_inherit(store: Store) -> None:
    for type in ("mail", "mail:eu", "mail:us", "crawl"):
        insert(store, f"{type}-1", f"{type}-2", type=type, group="a")
    types = ["mail", "mail:eu", "mail:us", "crawl"]
    limits = {"mail": 2, "mail:us": 1}
    assert ids(take(store, *types, group_concurrency=limits)) == [
        "mail-1",
        "mail-2",
        "mail:us-1",
        "crawl-1",
        "crawl-2",
    ]
    assert take(store, *types, group_concurrency=limits) == []


def test_group_of_the_whole_queue_is_one_for_all_types(store: Store) -> None:
    insert(store, "x", type="mail", group="a")
    insert(store, "y", type="crawl", group="a")
    insert(store, "z", type="crawl", group="b")
    assert ids(take(store, "crawl", "mail", group_concurrency={"": 1})) == ["x", "z"]


def test_stored_limit_of_a_group_holds(store: Store) -> None:
    fill(store, "a", 3)
    store.set_setting("group_concurrency", "email", 2)
    assert ids(claim(store)) == ["a-0", "a-1"]


@pytest.mark.parametrize("fair", [False, True])
def test_full_group_in_front_keeps_no_other_from_starting(store: Store, fair: bool) -> None:
    fill(store, "a", MANY)
    fill(store, "b", 3)
    insert(store, "lone")
    limits: dict[str, Any] = {"group_concurrency": 1, "fair": fair}
    assert set(ids(take(store, limit=10, **limits))) == {"a-0", "b-0", "lone"}
    assert take(store, limit=10, **limits) == []
    finish(store, next(c for c in claims_of(store) if c.id == "b-0"))
    assert ids(take(store, limit=10, **limits)) == ["b-1"]


def test_lone_jobs_behind_very_many_of_a_full_group_come_when_it_has_room(store: Store) -> None:
    """They are looked for among the first of the line only."""
    fill(store, "a", 2 * candidates._WINDOW)
    insert(store, "lone")
    done: list[str] = []
    for _ in range(2 * candidates._WINDOW + 1):
        claimed = take(store, limit=50, group_concurrency=50)
        done += ids(claimed)
        store.finish_jobs([])
        for each in claimed:
            finish(store, each)
        if not claimed:
            break
    assert Counter(done) == Counter({"lone": 1, **{f"a-{n}": 1 for n in range(2 * candidates._WINDOW)}})


def test_more_full_groups_than_a_claim_takes_keep_no_other_from_starting(store: Store) -> None:
    for number in range(30):
        fill(store, f"a{number:02}", 60)
    assert len(take(store, limit=30, group_concurrency=1)) == 30
    fill(store, "b", 1)
    for fair in (False, True):
        assert ids(take(store, limit=1, group_concurrency=1, fair=fair)) == ([] if fair else ["b-0"])


def test_most_urgent_go_first_whatever_their_group(store: Store) -> None:
    fill(store, "a", 3)
    fill(store, "b", 2, priority=5)
    assert ids(take(store, limit=3, group_concurrency=1)) == ["b-0", "a-0"]
    assert ids(take(store, limit=3, group_concurrency=2)) == ["b-1", "a-1"]


def claims_of(store: Store) -> list[Claim]:
    return [
        Claim(h.seq, h.id, h.type, "{}", 0, h.attempts, h.max_attempts, h.version, None, 0, 0, h.worker_id)
        for h in store.list_held("worker")
    ]


# Turns.


def served(store: Store, count: int, limit: int = 1, **limits: Any) -> str:
    """The groups of the jobs that one claim after another takes."""
    return "".join(groups(take(store, limit=limit, fair=True, **limits)) for _ in range(count))


def test_groups_take_turns(store: Store) -> None:
    fill(store, "a", 4)
    fill(store, "b", 2)
    fill(store, "c", 1)
    assert served(store, 7) == "abcabaa"


def test_group_with_one_job_waits_for_no_more_than_one_of_each_other(store: Store) -> None:
    fill(store, "b", MANY)
    fill(store, "a", 1)
    fill(store, "c", 1)
    found = served(store, 4)
    assert sorted(found[:3]) == ["a", "b", "c"]
    assert found[3] == "b"


@pytest.mark.parametrize("limit", [2, 3, 10])
def test_turns_go_on_from_claim_to_claim(store: Store, limit: int) -> None:
    for name in "abcde":
        fill(store, name, 20)
    counts = Counter(served(store, 30 // limit, limit))
    assert counts == dict.fromkeys("abcde", 6)


def test_turns_hold_within_a_priority(store: Store) -> None:
    fill(store, "a", 3)
    fill(store, "b", 2)
    fill(store, "c", 2, priority=1)
    fill(store, "d", 1, priority=1)
    fill(store, "e", 1, priority=-1)
    assert served(store, 9) == "cdcababae"


def test_one_claim_takes_in_turn_over_priorities(store: Store) -> None:
    fill(store, "a", 3)
    fill(store, "b", 2)
    fill(store, "c", 2, priority=1)
    claimed = take(store, limit=6, fair=True)
    assert sorted(groups(claimed)[:2]) == ["c", "c"]
    assert Counter(groups(claimed)) == {"c": 2, "a": 2, "b": 2}


def test_jobs_without_a_group_count_as_one_group(store: Store) -> None:
    fill(store, "a", 10)
    fill(store, None, 10)
    fill(store, "b", 10)
    assert Counter(groups(take(store, limit=12, fair=True))) == {"a": 4, "b": 4, "N": 4}


def test_jobs_without_a_group_have_their_turn(store: Store) -> None:
    fill(store, None, 9)
    fill(store, "a", 9)
    fill(store, "b", 9)
    found = served(store, 9)
    assert Counter(found) == {"a": 3, "b": 3, "N": 3}
    assert Counter(found[:3]) == Counter(found[3:6])


def test_jobs_without_a_group_are_found_again_after_a_look_in_vain(store: Store) -> None:
    fill(store, "a", MANY)
    assert len(take(store, limit=10, fair=True)) == 10
    insert(store, "lone")
    wait_until(lambda: "lone" in ids(take(store, limit=2, fair=True)), 10)


def test_fair_type_has_jobs_without_a_group_only(store: Store) -> None:
    fill(store, None, 5)
    assert ids(take(store, limit=3, fair=True)) == ["None-0", "None-1", "None-2"]


def test_fair_groups_are_limited_too(store: Store) -> None:
    fill(store, "a", 5)
    fill(store, "b", 5)
    assert Counter(groups(take(store, limit=9, fair=True, group_concurrency=2))) == {"a": 2, "b": 2}
    assert take(store, limit=9, fair=True, group_concurrency=2) == []


def test_fair_type_beside_one_that_is_not(store: Store) -> None:
    fill(store, "a", 3)
    fill(store, "c", 3, type="crawl")
    fill(store, "b", 3)
    claimed = take(store, "email", "crawl", limit=9, fair={"email": True})
    assert len(claimed) == 9
    assert [c.id for c in claimed if c.type == "crawl"] == ["c-0", "c-1", "c-2"]


def test_fair_type_is_drained_in_any_bites(store: Store) -> None:
    for number in range(40):
        fill(store, f"g{number}", 1 + number % 7, priority=number % 3)
    fill(store, None, 9)
    total = sum(1 + number % 7 for number in range(40)) + 9
    taken: list[str] = []
    for limit in [1, 2, 3, 5, 8, 13, 21, *[7] * 40]:
        taken += ids(take(store, limit=limit, fair=True))
    assert len(taken) == len(set(taken)) == total


# Jobs that have to run alone.


def suspect(store: Store, connection: Any, *names: str) -> None:
    """As if each had lost two workers in a row."""
    for name in names:
        connection.execute(f"UPDATE holdfast_jobs SET losses = 2 WHERE id = '{name}'")
        assert job(store, name).status == "pending"


PLACES: dict[str, dict[str, Any]] = {
    "in line": {},
    "limited": {"max_running": 50},
    "in groups": {"group_concurrency": 50},
    "fair": {"fair": True},
}


@pytest.mark.parametrize("kind", PLACES)
def test_suspect_is_passed_over_and_taken_alone(store: Store, connection: Any, kind: str) -> None:
    fill(store, "a", 3)
    fill(store, "b", 3)
    suspect(store, connection, "a-0", "b-1")
    taken = take(store, alone=False, **PLACES[kind])
    assert sorted(ids(taken)) == ["a-1", "a-2", "b-0", "b-2"]
    assert take(store, alone=False, **PLACES[kind]) == []
    assert ids(take(store, alone=True, **PLACES[kind])) == ["a-0"]
    assert ids(take(store, alone=True, **PLACES[kind])) == ["b-1"]
    assert take(store, alone=True, **PLACES[kind]) == []


def test_suspect_comes_first_in_a_claim_for_one_that_runs_alone(store: Store, connection: Any) -> None:
    fill(store, "a", 3, priority=5)
    insert(store, "x", "y")
    suspect(store, connection, "y")
    assert ids(take(store, alone=True)) == ["y"]
    assert ids(take(store, alone=True)) == ["a-0", "a-1", "a-2", "x"]


@pytest.mark.parametrize("kind", PLACES)
def test_suspects_of_one_type_keep_no_other_from_starting(store: Store, connection: Any, kind: str) -> None:
    """Nor those of one group, or one priority."""
    fill(store, "a", 1, priority=9)
    fill(store, "b", 1)
    insert(store, "later", type="crawl", priority=-1)
    insert(store, "same", group="c", priority=-2)
    suspect(store, connection, "a-0", "b-0")
    limits: dict[str, Any] = {name: {"": value} for name, value in PLACES[kind].items()}
    assert [head.priority for head in store.list_heads() if head.type == "email"] == [-2]
    assert ids(take(store, "email", "crawl", limit=2, **limits)) == ["later", "same"]


def test_suspect_under_a_full_limit_waits(store: Store, connection: Any) -> None:
    fill(store, "a", 2)
    suspect(store, connection, "a-1")
    store.set_setting("group_concurrency", "email", 1)
    assert ids(claim(store)) == ["a-0"]
    assert claim(store, alone=True) == []


def test_paused_suspect_waits(store: Store, connection: Any) -> None:
    insert(store, "x")
    suspect(store, connection, "x")
    store.set_paused("", True)
    assert claim(store, alone=True) == []
