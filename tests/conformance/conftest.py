"""Fixtures of the conformance suite: a store of each engine, a second handle on it, and a clock to move."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.engines import ENGINES, Engine


@pytest.fixture(params=ENGINES, ids=lambda engine: engine.name)
def engine(request: pytest.FixtureRequest) -> Engine:
    found: Engine = request.param
    return found


@pytest.fixture
def clock() -> MovableClock:
    """The clock of every store of the test; it stands still until it is moved."""
    return MovableClock(datetime(2030, 1, 1, tzinfo=UTC))


@pytest.fixture
def store(engine: Engine, tmp_path: Path, clock: MovableClock, empty_database: Path) -> Iterator[Store]:
    """A store on an empty database."""
    if engine.is_a_file:
        shutil.copy(empty_database, tmp_path / "queue.db")
    try:
        with closing(engine.open(tmp_path, clock)) as store:
            yield store
    finally:
        engine.drop(tmp_path)


@pytest.fixture
def other(store: Store, engine: Engine, tmp_path: Path, clock: MovableClock) -> Iterator[Store]:
    """A second handle on the database of `store`, as another process would have."""
    with closing(engine.open(tmp_path, clock)) as other:
        yield other


@pytest.fixture
def connection(store: Store, engine: Engine, tmp_path: Path) -> Iterator[Any]:
    """An application's own connection to the database of `store`."""
    with closing(engine.connect(tmp_path)) as connection:
        yield connection
