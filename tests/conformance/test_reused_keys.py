"""list_reused_keys: keys that several jobs of a type were given, one after another."""

from __future__ import annotations

from holdfast.store.protocol import Store
from holdfast.store.records import ReusedKey
from holdfast.testing import MovableClock
from tests.conformance.steps import finished, insert, new_job


def test_key_of_one_job_is_not_reused(store: Store) -> None:
    finished(store, "a", key="k")
    insert(store, "b", key="other")
    insert(store, "c", "d")
    assert store.list_reused_keys(10) == []


def test_key_is_reused_by_jobs_one_after_another(store: Store) -> None:
    for id in "abc":
        finished(store, id, key="k")
    insert(store, "d", key="k")
    assert store.list_reused_keys(10) == [ReusedKey(type="email", key="k", jobs=4)]


def test_job_found_again_by_its_key_is_one_job(store: Store) -> None:
    insert(store, "a", key="k")
    store.insert_jobs([new_job("b", key="k")])
    assert store.list_reused_keys(10) == []


def test_same_key_of_another_type_is_another_key(store: Store) -> None:
    finished(store, "a", key="k")
    finished(store, "b", key="k", type="crawl")
    assert store.list_reused_keys(10) == []


def test_key_whose_time_is_over_counts_as_reused(store: Store, clock: MovableClock) -> None:
    finished(store, "a", key="k", key_for=60)
    clock.advance(61)
    insert(store, "b", key="k")
    assert store.list_reused_keys(10) == [ReusedKey(type="email", key="k", jobs=2)]


def test_most_reused_come_first_and_the_limit_keeps_them(store: Store) -> None:
    for key, type, times in [("b", "email", 2), ("a", "email", 3), ("c", "email", 2), ("b", "crawl", 2)]:
        for n in range(times):
            finished(store, f"{type}-{key}-{n}", key=key, type=type)
    keys = [
        ReusedKey(type="email", key="a", jobs=3),
        ReusedKey(type="crawl", key="b", jobs=2),
        ReusedKey(type="email", key="b", jobs=2),
        ReusedKey(type="email", key="c", jobs=2),
    ]
    assert store.list_reused_keys(10) == keys
    assert store.list_reused_keys(2) == keys[:2]


def test_deleted_job_is_not_counted(store: Store) -> None:
    finished(store, "a", key="k")
    finished(store, "b", key="k")
    store.delete_job("a")
    assert store.list_reused_keys(10) == []
