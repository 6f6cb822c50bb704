"""A pytest fixture for applications: a queue of its own for each test, with a clock that can be moved."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from holdfast.queue import Queue
    from holdfast.testing import MovableClock


@pytest.fixture
def holdfast_clock() -> MovableClock:
    """The clock of `holdfast_queue`; it stands still until you move it."""
    from holdfast.testing import MovableClock

    return MovableClock()


@pytest.fixture
def holdfast_queue(tmp_path: Path, holdfast_clock: MovableClock) -> Iterator[Queue]:
    """An empty queue in the test's own folder."""
    from holdfast.queue import Queue

    with Queue(f"sqlite:///{tmp_path / 'holdfast.db'}", clock=holdfast_clock) as queue:
        yield queue
