"""The engines that the conformance suite runs over. A new engine joins by one more entry in ENGINES."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.core.clock import Clock
from holdfast.store.open import open_store
from holdfast.store.protocol import Store


@dataclass(frozen=True)
class Engine:
    """How to reach one kind of database.

    `open` gives a store on the test's own database, made by the first call; a second call is a second,
    independent handle on the same one. `connect` is an application's own connection to it, which runs plain
    SQL with `execute`. What is committed need not survive a power cut: that is tested elsewhere.
    """

    name: str
    open: Callable[[Path, Clock], Store]
    connect: Callable[[Path], Any]


def _open_sqlite(folder: Path, clock: Clock) -> Store:
    return open_store(f"sqlite:///{folder / 'queue.db'}?synchronous=off", clock)


def _connect_sqlite(folder: Path) -> sqlite3.Connection:
    return sqlite3.connect(folder / "queue.db", isolation_level=None)


ENGINES = [
    Engine("sqlite", _open_sqlite, _connect_sqlite),
]
