"""Forgetting: what a worker does about thousands of names that were used once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Queue
from holdfast.store import names, statistics
from holdfast.store.open import store_of
from holdfast.store.postgres import tallies
from holdfast.store.records import LIFETIME, empty_minute
from tests.support import both_engines, wait_until
from tests.worker.support import PATIENCE

StartWorker = Callable[..., Any]

PORTIONS = (
    (names, "AT_ONCE"),
    (tallies, "FORGOTTEN_AT_ONCE"),
    (statistics, "PORTION"),
    (statistics, "NAMES_PORTION"),
)


LANES = [f"sync:{number}" for number in range(23)]


@pytest.fixture
def used_once(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue with the counts and old statistics of lanes that had one job; five are forgotten at a time."""
    for module, name in PORTIONS:
        monkeypatch.setattr(module, name, 5)
    queue.register("sync", lambda payload: None)
    for lane in LANES:
        queue.cancel(queue.enqueue(lane, {}).id)
    queue.cleanup(older_than=0)
    for minute in (100, 101, 170):
        rows = [empty_minute(minute, lane, "w") for lane in LANES]
        for row in rows:
            row.completed = 1
        store_of(queue).write_statistics(rows)
    return queue


def is_forgotten(queue: Queue) -> bool:
    kept = {row.type: row.completed for row in store_of(queue).list_statistics(LIFETIME)}
    return queue.enqueued() == {"sync": 23} and kept == {"sync": 3 * 23}


@both_engines
def test_idle_worker_forgets_many_names_without_waiting_a_minute(
    used_once: Queue, start_worker: StartWorker
) -> None:
    start_worker()
    wait_until(lambda: is_forgotten(used_once), PATIENCE, "the names are still there")


@both_engines
def test_draining_worker_forgets_before_it_ends(used_once: Queue, start_worker: StartWorker) -> None:
    """Where all workers drain, nobody else does."""
    worker = start_worker(drain=True)
    wait_until(lambda: not worker.is_running, PATIENCE, "the worker did not end by itself")
    assert is_forgotten(used_once)
