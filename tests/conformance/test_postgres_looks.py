"""A worker that is not told looks for changes of its queue; nothing else on the server wakes it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import psycopg
import pytest

from holdfast.core.clock import system_clock
from holdfast.core.lifecycle import Errored
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore
from holdfast.store.postgres.watch import PostgresWatch
from holdfast.store.records import StopRequest, WorkerRecord
from tests import postgres
from tests.conformance.steps import finished, insert, run


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    with postgres.fresh_url() as url, closing(open_store(url, system_clock, notify=False)) as store:
        assert isinstance(store, PostgresStore)
        yield store


@pytest.fixture
def watch(store: PostgresStore) -> Iterator[PostgresWatch]:
    """That of a worker, after a few jobs have come and gone."""
    run(store, "running")
    finished(store, "failed", Errored("boom", permanent=True), type="crawl")
    worker = WorkerRecord(id="worker", host="h", pid=1, state="running", concurrency=1, types=())
    store.register_worker(worker, [])
    with closing(store.watch(for_work=True)) as watch:
        watch.changed()
        yield watch


CHANGES: dict[str, Callable[[PostgresStore], object]] = {
    "a job comes": lambda store: insert(store, "new"),
    "a job is to come later": lambda store: insert(store, "new", delay=60),
    "a job is retried": lambda store: store.retry_job("failed", None),
    "a running job is cancelled": lambda store: store.cancel_job("running"),
    "a worker is asked to stop": lambda store: store.request_stop(["worker"], StopRequest.IN_ORDER),
    "a setting is made": lambda store: store.set_setting("concurrency", "", 3),
    "a type is paused": lambda store: store.set_paused("email", True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_what_a_worker_acts_upon_wakes_it_once(
    store: PostgresStore, watch: PostgresWatch, change: str
) -> None:
    assert not watch.changed()
    CHANGES[change](store)
    watch.wait(60)
    assert watch.changed()
    assert not watch.changed()


def test_commits_that_leave_a_worker_nothing_to_do_do_not_wake_it(
    store: PostgresStore, watch: PostgresWatch
) -> None:
    with psycopg.connect(postgres.server_url(), autocommit=True) as connection:
        connection.execute("SELECT pg_current_xact_id()")  # somebody else's
    store.heartbeat("worker", (), state="running", lease_seconds=30)
    store.write_reconciliation("{}")
    assert not watch.changed()
    insert(store, "new")
    assert watch.changed()
