"""Workers and types, as they show themselves to the others."""

from __future__ import annotations

from datetime import timedelta

from holdfast.core.lifecycle import Released
from holdfast.store.protocol import Store
from holdfast.store.records import TypeRecord, WorkerRecord
from holdfast.testing import MovableClock
from tests.conformance.steps import claim_one, finish, insert, run


def worker(id: str = "w1", **fields: object) -> WorkerRecord:
    record = {"host": "here", "pid": 1, "state": "running", "concurrency": 4, "types": ("email",), **fields}
    return WorkerRecord(id=id, **record)  # type: ignore[arg-type]


def register(store: Store, *ids: str) -> None:
    for id in ids:
        store.register_worker(worker(id), [])


def known(store: Store) -> list[str]:
    return [found.id for found in store.list_workers()]


def beat(store: Store, id: str, state: str = "running") -> None:
    store.heartbeat(id, [], state=state, lease_seconds=30)


def test_registered_worker_is_seen_by_the_others(store: Store, other: Store, clock: MovableClock) -> None:
    now = clock.now
    store.register_worker(worker(types=("email", "crawl")), [])
    assert other.list_workers() == [worker(types=("email", "crawl"), started_at=now, heartbeat_at=now)]


def test_workers_are_listed_in_the_order_they_started(store: Store, clock: MovableClock) -> None:
    for id in "bac":
        register(store, id)
        clock.advance(1)
    assert known(store) == ["b", "a", "c"]


def test_worker_may_say_something_new_about_itself(store: Store, clock: MovableClock) -> None:
    started_at = clock.now
    register(store, "w1")
    clock.advance(5)
    store.register_worker(worker(state="stopping", concurrency=8, types=("crawl",)), [])
    [found] = store.list_workers()
    assert (found.state, found.concurrency, found.types) == ("stopping", 8, ("crawl",))
    assert found.started_at == started_at


def test_heartbeat_shows_that_the_worker_lives(store: Store, clock: MovableClock) -> None:
    register(store, "w1", "w2")
    clock.advance(5)
    beat(store, "w1", "stopping")
    first, second = store.list_workers()
    assert (first.id, first.state, first.heartbeat_at) == ("w1", "stopping", clock.now)
    assert (second.state, second.heartbeat_at) == ("running", second.started_at)


def test_heartbeat_tells_when_the_loop_last_came_round(
    store: Store, other: Store, clock: MovableClock
) -> None:
    register(store, "w1", "w2")
    assert [found.turned_at for found in other.list_workers()] == [None, None]
    clock.advance(60)
    store.heartbeat("w1", [], state="running", lease_seconds=30, turn_age=12.5)
    store.heartbeat("w2", [], state="running", lease_seconds=30)
    first, second = other.list_workers()
    assert (first.heartbeat_at, first.turned_at) == (clock.now, clock.now - timedelta(seconds=12.5))
    assert second.turned_at == clock.now


def test_loop_that_stands_still_falls_behind_the_heartbeat(store: Store, clock: MovableClock) -> None:
    register(store, "w1")
    began = clock.now
    for age in (5, 10, 15):
        clock.advance(5)
        store.heartbeat("w1", [], state="running", lease_seconds=30, turn_age=age)
        [found] = store.list_workers()
        assert (found.heartbeat_at, found.turned_at) == (clock.now, began)


def test_registering_again_does_not_say_that_the_loop_came_round(store: Store, clock: MovableClock) -> None:
    register(store, "w1")
    beat(store, "w1")
    turned_at = clock.now
    clock.advance(5)
    register(store, "w1")
    assert [found.turned_at for found in store.list_workers()] == [turned_at]


def test_removed_workers_are_gone(store: Store) -> None:
    register(store, "w1", "w2", "w3")
    store.remove_workers(["w1", "w3", "never there"])
    assert known(store) == ["w2"]


def test_removing_a_worker_does_not_touch_what_it_holds(store: Store) -> None:
    register(store, "w1")
    run(store, "a", worker="w1")
    store.remove_workers(["w1"])
    assert [held.id for held in store.list_held("w1")] == ["a"]


def test_silent_worker_is_forgotten(store: Store, clock: MovableClock) -> None:
    register(store, "silent", "alive")
    clock.advance(61)
    beat(store, "alive")
    assert store.remove_silent_workers(60) == ["silent"]
    assert known(store) == ["alive"]


def test_worker_is_not_forgotten_before_its_time(store: Store, clock: MovableClock) -> None:
    register(store, "w1")
    clock.advance(60)
    assert store.remove_silent_workers(60) == []


def test_silent_worker_that_holds_a_job_is_remembered(store: Store, clock: MovableClock) -> None:
    register(store, "w1", "w2")
    insert(store, "a")
    claimed = claim_one(store, worker="w1")
    clock.advance(600)
    assert store.remove_silent_workers(60) == ["w2"]
    finish(store, claimed, Released())
    assert store.remove_silent_workers(60) == ["w1"]


def test_types_are_published_with_their_schemas(store: Store, other: Store) -> None:
    email = TypeRecord(type="email", executor="thread", schema={"type": "object", "required": ["to"]})
    crawl = TypeRecord(type="crawl", executor="async", schema={})
    store.register_worker(worker(), [email, crawl])
    assert other.list_types() == [crawl, email]


def test_type_is_published_as_its_last_worker_knows_it(store: Store) -> None:
    old = TypeRecord(type="email", executor="thread", schema={})
    new = TypeRecord(type="email", executor="process", schema={"type": "object"})
    store.register_worker(worker("w1"), [old])
    store.register_worker(worker("w2"), [new])
    assert store.list_types() == [new]


def test_type_is_known_after_its_workers_are_gone(store: Store) -> None:
    email = TypeRecord(type="email", executor="thread", schema={})
    store.register_worker(worker(), [email])
    store.remove_workers(["w1"])
    assert store.list_types() == [email]


def test_forgotten_worker_learns_of_it_by_its_next_heartbeat(store: Store, clock: MovableClock) -> None:
    register(store, "w1")
    assert store.heartbeat("w1", [], state="running", lease_seconds=30).registered
    clock.advance(61)
    store.remove_silent_workers(60)
    assert not store.heartbeat("w1", [], state="running", lease_seconds=30).registered
    register(store, "w1")
    assert known(store) == ["w1"]


def test_forgotten_worker_still_renews_what_it_holds(store: Store, clock: MovableClock) -> None:
    register(store, "w1")
    claimed = run(store, "a", worker="w1")
    store.remove_workers(["w1"])
    clock.advance(20)
    beat = store.heartbeat("w1", [(claimed.seq, claimed.version)], state="running", lease_seconds=30)
    assert beat.lost == frozenset()
    clock.advance(20)
    assert store.list_expired() == []
