"""Fixtures of the worker tests."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from holdfast import Queue
from holdfast.worker import runner
from holdfast.worker.slots import Slots
from tests.support import Recorder
from tests.worker.support import Gate


@pytest.fixture
def recorder(queue: Queue) -> Recorder:
    """Records the events of `queue`."""
    return Recorder(queue.events)


@pytest.fixture
def gate(start_worker: Callable[..., Any]) -> Iterator[Gate]:
    """A gate that is opened before the workers are stopped."""
    gate = Gate()
    yield gate
    gate.open()


@pytest.fixture
def other_queue(queue: Queue) -> Iterator[Queue]:
    """A second Queue on the same database, as another process would have it.

    Ask for it before start_worker, which stops its workers.
    """
    with Queue(queue.url) as other:
        other.defaults = queue.defaults
        yield other


@pytest.fixture
def holds_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers hold ten jobs ready beyond their slots, whatever their pace and for as long as it takes."""

    def room(slots: Slots, *_: object, **__: object) -> int:
        return max(0, slots.concurrency + 10 - len(slots.running()) - len(slots.held()))

    monkeypatch.setattr(Slots, "room", room)
    monkeypatch.setattr(Slots, "total_room", lambda slots: (room(slots), room(slots)))
    monkeypatch.setattr(runner, "LONGEST_HELD", math.inf)


@pytest.fixture
def short_heartbeat(queue: Queue) -> None:
    """Heartbeats and sweeps every tenth of a second, for tests of leases."""
    queue.set_config("heartbeat_interval", 0.1)
