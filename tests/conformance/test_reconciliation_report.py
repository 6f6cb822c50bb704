"""The report of the last reconciliation: one text, kept until the next replaces it."""

from __future__ import annotations

import threading
from contextlib import closing
from pathlib import Path

import pytest

from holdfast.store.open import open_store
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests.conformance.engines import Engine
from tests.conformance.steps import everything, finished, insert, rolled_back, run


def test_there_is_none_at_first(store: Store) -> None:
    assert store.read_reconciliation() is None


@pytest.mark.parametrize(
    "report", ["{}", "", "ä \U0001f40c \n '", '{"quoted": "\\u0000"}', "x" * 3_000_000], ids=range(5)
)
def test_a_report_is_read_as_it_was_written(store: Store, report: str) -> None:
    store.write_reconciliation(report)
    assert store.read_reconciliation() == report


def test_the_next_report_replaces_it(store: Store) -> None:
    for number in range(3):
        store.write_reconciliation(f"{number}")
        assert store.read_reconciliation() == f"{number}"


def test_a_report_is_seen_by_every_handle(store: Store, other: Store) -> None:
    store.write_reconciliation("one")
    assert other.read_reconciliation() == "one"
    other.write_reconciliation("two")
    assert store.read_reconciliation() == "two"


def test_a_report_outlives_its_handle(
    store: Store, engine: Engine, tmp_path: Path, clock: MovableClock
) -> None:
    with closing(engine.open(tmp_path, clock)) as first:
        first.write_reconciliation("kept")
    with closing(engine.open(tmp_path, clock)) as second:
        assert second.read_reconciliation() == "kept"


def test_a_report_that_is_rolled_back_was_never_written(store: Store) -> None:
    store.write_reconciliation("before")
    with rolled_back(store):
        store.write_reconciliation("after")
    assert store.read_reconciliation() == "before"


def test_a_report_changes_no_job_and_no_job_changes_it(store: Store) -> None:
    finished(store, "done")
    run(store, "running")
    insert(store, "waiting")
    before, counts = everything(store), store.count_jobs()
    store.write_reconciliation("{}")
    assert (everything(store), store.count_jobs()) == (before, counts)
    store.delete_job("done")
    store.cancel_job("waiting")
    assert store.read_reconciliation() == "{}"


def test_reports_written_at_the_same_time_are_each_whole(store: Store, other: Store) -> None:
    """The last one is kept, whichever it is."""
    texts = [f"{number}" * 10_000 for number in range(4)]
    handles = [store, other] * 2
    together = threading.Barrier(4)

    def write(handle: Store, text: str) -> None:
        together.wait(30)
        handle.write_reconciliation(text)

    threads = [threading.Thread(target=write, args=pair) for pair in zip(handles, texts, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert store.read_reconciliation() in texts


def test_a_report_is_in_a_copy_of_the_queue(store: Store, tmp_path: Path, clock: MovableClock) -> None:
    store.write_reconciliation("kept")
    store.back_up(str(tmp_path / "copy.db"))
    with closing(open_store(f"sqlite:///{tmp_path}/copy.db?synchronous=off", clock)) as copy:
        assert copy.read_reconciliation() == "kept"
