"""Stop requests: what a worker was asked to do, until it is gone."""

from __future__ import annotations

import itertools

import pytest

from holdfast.store.protocol import Store
from holdfast.store.records import StopRequest, WorkerRecord
from holdfast.testing import MovableClock
from tests.conformance.steps import rolled_back


def register(store: Store, *ids: str) -> None:
    for id in ids:
        store.register_worker(
            WorkerRecord(id=id, host="here", pid=1, state="running", concurrency=4, types=("email",)), []
        )


def test_worker_that_nobody_asked_goes_on(store: Store) -> None:
    register(store, "w1")
    assert store.get_stop_request("w1") is StopRequest.NONE


@pytest.mark.parametrize("request_", [StopRequest.IN_ORDER, StopRequest.AT_ONCE], ids=str)
def test_request_is_seen_by_the_others(store: Store, other: Store, request_: StopRequest) -> None:
    register(store, "w1")
    other.request_stop(["w1"], request_)
    assert store.get_stop_request("w1") is request_


def test_only_the_workers_named_are_asked(store: Store) -> None:
    register(store, "w1", "w2", "w3")
    store.request_stop(["w1", "w3"], StopRequest.IN_ORDER)
    asked = [store.get_stop_request(id) for id in ("w1", "w2", "w3")]
    assert asked == [StopRequest.IN_ORDER, StopRequest.NONE, StopRequest.IN_ORDER]


@pytest.mark.parametrize(
    "requests", list(itertools.product(StopRequest, repeat=2)), ids=lambda pair: "-".join(map(str, pair))
)
def test_stronger_request_is_not_taken_back(store: Store, requests: tuple[StopRequest, ...]) -> None:
    register(store, "w1")
    for asked in requests:
        store.request_stop(["w1"], asked)
    assert store.get_stop_request("w1") is max(requests)


def test_request_outlives_heartbeats_and_what_the_worker_says_anew(store: Store, clock: MovableClock) -> None:
    register(store, "w1")
    store.request_stop(["w1"], StopRequest.AT_ONCE)
    clock.advance(5)
    store.heartbeat("w1", [], state="running", lease_seconds=30)
    register(store, "w1")
    assert store.get_stop_request("w1") is StopRequest.AT_ONCE


def test_worker_that_is_gone_was_asked_nothing(store: Store) -> None:
    register(store, "w1")
    store.request_stop(["w1"], StopRequest.AT_ONCE)
    store.remove_workers(["w1"])
    assert store.get_stop_request("w1") is StopRequest.NONE


def test_new_worker_does_not_inherit_a_request_of_its_name(store: Store) -> None:
    register(store, "w1")
    store.request_stop(["w1"], StopRequest.AT_ONCE)
    store.remove_workers(["w1"])
    register(store, "w1")
    assert store.get_stop_request("w1") is StopRequest.NONE


def test_asking_nobody_or_somebody_unknown_does_nothing(store: Store) -> None:
    register(store, "w1")
    store.request_stop([], StopRequest.AT_ONCE)
    store.request_stop(["nobody"], StopRequest.AT_ONCE)
    assert store.get_stop_request("w1") is StopRequest.NONE
    assert [worker.id for worker in store.list_workers()] == ["w1"]


def test_request_that_is_rolled_back_was_never_made(store: Store) -> None:
    register(store, "w1")
    with rolled_back(store):
        store.request_stop(["w1"], StopRequest.AT_ONCE)
    assert store.get_stop_request("w1") is StopRequest.NONE
