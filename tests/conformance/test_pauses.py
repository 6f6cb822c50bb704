"""Pauses: two flags, all and per type; a type runs when neither is set."""

from __future__ import annotations

import pytest

from holdfast.core.job import Status
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.steps import claim, finish, insert, run


def claimed(store: Store, *types: str) -> list[str]:
    return [found.id for found in claim(store, *types)]


def test_nothing_is_paused_at_first(store: Store) -> None:
    assert store.list_paused() == {}


def test_paused_type_is_left_alone_and_others_run(store: Store) -> None:
    insert(store, "a", type="email", priority=9)
    insert(store, "b", type="crawl")
    store.set_paused("email", True)
    assert claimed(store, "email", "crawl") == ["b"]


def test_pause_of_all_holds_every_type(store: Store) -> None:
    insert(store, "a", type="email")
    insert(store, "b", type="crawl")
    store.set_paused("", True)
    assert claimed(store, "email", "crawl") == []


@pytest.mark.parametrize("paused", ["", "email"])
def test_resumed_type_runs_again(store: Store, paused: str) -> None:
    insert(store, "a")
    store.set_paused(paused, True)
    store.set_paused(paused, False)
    assert store.list_paused() == {}
    assert claimed(store) == ["a"]


@pytest.mark.parametrize(("resumed", "still"), [("", "email"), ("email", "")])
def test_type_runs_only_when_neither_flag_is_set(store: Store, resumed: str, still: str) -> None:
    insert(store, "a")
    store.set_paused("", True)
    store.set_paused("email", True)
    store.set_paused(resumed, False)
    assert claimed(store) == []
    store.set_paused(still, False)
    assert claimed(store) == ["a"]


def test_pause_of_a_type_holds_its_lanes_and_that_of_a_lane_no_other(store: Store) -> None:
    insert(store, "a", type="shell:media")
    insert(store, "b", type="shell:mail")
    insert(store, "c", type="shell")
    types = "shell", "shell:mail", "shell:media"
    store.set_paused("shell", True)
    assert claimed(store, *types) == []
    store.set_paused("shell", False)
    store.set_paused("shell:media", True)
    assert claimed(store, *types) == ["b", "c"]


def test_running_job_finishes_in_a_pause(store: Store) -> None:
    running = run(store, "a")
    store.set_paused("", True)
    assert finish(store, running) is Status.COMPLETED


def test_pause_is_seen_by_every_handle(store: Store, other: Store) -> None:
    insert(store, "a")
    store.set_paused("email", True)
    assert claimed(other) == []
    other.set_paused("email", False)
    assert claimed(store) == ["a"]


def test_pause_tells_since_when(store: Store, clock: MovableClock) -> None:
    first = store.now()
    store.set_paused("email", True)
    clock.advance(60)
    store.set_paused("email", True)
    store.set_paused("", True)
    assert store.list_paused() == {"email": first, "": store.now()}


def test_resuming_what_is_not_paused_is_no_error(store: Store) -> None:
    store.set_paused("email", False)
    assert store.list_paused() == {}


def test_jobs_are_taken_in_a_pause(store: Store) -> None:
    store.set_paused("", True)
    insert(store, "a")
    assert store.count_jobs()["email"][Status.PENDING] == 1
