"""measure: figures of the engine itself, as metrics show them."""

from __future__ import annotations

import json
import re
from contextlib import closing
from pathlib import Path

from holdfast.store.protocol import Store
from holdfast.store.sqlite import open_store
from holdfast.testing import MovableClock
from tests.conformance.steps import insert


def test_figures_are_numbers_under_names_that_metrics_may_have(store: Store) -> None:
    for name, value in store.measure().items():
        assert re.fullmatch(r"[a-z][a-z_]*", name)
        assert value >= 0


def test_size_of_the_log_is_that_of_its_file_and_falls_to_nothing_without_one(
    tmp_path: Path, clock: MovableClock
) -> None:
    log = tmp_path / "queue.db-wal"
    with closing(open_store(f"sqlite:///{tmp_path / 'queue.db'}", clock)) as store:
        before = store.measure()["wal_bytes"]
        insert(store, "large", payload=json.dumps({"text": "x" * 100_000}))
        assert store.measure()["wal_bytes"] == log.stat().st_size >= before + 100_000
    assert not log.exists()
    assert store.measure()["wal_bytes"] == 0
