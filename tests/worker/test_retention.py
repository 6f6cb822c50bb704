"""Retention: workers delete what has been over for long enough, from their start on, and when idle too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast import Queue
from holdfast.events import JobsPruned
from holdfast.worker import maintenance
from tests.support import Recorder, both_engines, wait_until
from tests.worker.support import PATIENCE

StartWorker = Callable[..., Any]


@pytest.fixture
def finished(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Queue:
    """A queue with 30 completed jobs that retention does not keep; five are deleted at a time."""
    monkeypatch.setattr(maintenance, "PRUNE_BATCH", 5)
    queue.set_config("lease_seconds", 60)
    queue.set_config("heartbeat_interval", 20)
    queue.register("work", lambda payload: None)
    queue.enqueue_many("work", [{}] * 30)
    queue.drain()
    queue.set_config("retention_completed", 0)
    return queue


@both_engines
def test_idle_worker_goes_on_deleting_without_waiting_for_its_next_sweep(
    finished: Queue, start_worker: StartWorker, recorder: Recorder
) -> None:
    start_worker()
    recorder.wait(JobsPruned, 6, timeout=60)
    assert finished.count() == 0


@both_engines
def test_draining_worker_deletes_before_it_ends(finished: Queue, start_worker: StartWorker) -> None:
    worker = start_worker(drain=True)
    wait_until(lambda: not worker.is_running, PATIENCE, "the worker did not end by itself")
    assert finished.count() == 0
