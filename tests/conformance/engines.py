"""The engines that the conformance suite runs over. A new engine joins by one more entry in ENGINES."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast.core.clock import Clock
from holdfast.store.open import open_store
from holdfast.store.protocol import Store
from tests import postgres


@dataclass(frozen=True)
class Engine:
    """How to reach one kind of database.

    `open` gives a store on the test's own database, empty at the first call; a second call is a second,
    independent handle on the same one. `connect` is an application's own connection to it, which runs plain
    SQL with `execute`. `drop` removes it when the test is over. What is committed need not survive a power
    cut: that is tested elsewhere. The rest is what engines do not have in common.
    """

    name: str
    open: Callable[[Path, Clock], Store]
    connect: Callable[[Path], Any]
    drop: Callable[[Path], None] = lambda folder: None
    is_a_file: bool = False
    """Whether the queue is a file, and a copy of it is a file of the same kind with all that is in it."""
    outlives_errors: bool = False
    """Whether a transaction goes on after a statement that failed."""
    knows_its_own: bool = False
    """Whether a watch tells what others commit to this queue from whatever else is written."""
    counts: str = "tallies"
    """The table in which jobs are counted."""


def where(holds: Callable[[Engine], bool]) -> pytest.MarkDecorator:
    """For a test of what only some engines promise."""
    engines = [engine for engine in ENGINES if holds(engine)]
    return pytest.mark.parametrize("engine", engines, indirect=True, ids=[engine.name for engine in engines])


def _open_sqlite(folder: Path, clock: Clock) -> Store:
    return open_store(f"sqlite:///{folder / 'queue.db'}?synchronous=off", clock)


def _connect_sqlite(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "queue.db", isolation_level=None)


def _open_postgres(folder: Path, clock: Clock) -> Store:
    schema = _schema(folder)
    url = postgres.with_parameters(postgres.schema_url(schema), options=f"-csearch_path={schema}")
    return open_store(url, clock)


def _connect_postgres(folder: Path) -> Any:
    connection = psycopg.connect(postgres.server_url(), autocommit=True)
    connection.execute(f"SET search_path TO {_schema(folder)}")
    return connection


_schemas: dict[Path, str] = {}


def _schema(folder: Path) -> str:
    """The schema that belongs to a test's folder."""
    if folder not in _schemas:
        _schemas[folder] = postgres.take_schema()
    return _schemas[folder]


def _drop_postgres(folder: Path) -> None:
    postgres.give_schema(_schemas.pop(folder))


ENGINES = [
    Engine(
        "sqlite",
        _open_sqlite,
        _connect_sqlite,
        is_a_file=True,
        outlives_errors=True,
        knows_its_own=True,
        counts="counts",
    ),
    Engine("postgres", _open_postgres, _connect_postgres, _drop_postgres),
]
