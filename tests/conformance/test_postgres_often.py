"""Enqueueing one job again and again on PostgreSQL: from the sixth time on without psycopg's cursors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest

from holdfast.core.clock import system_clock
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore
from tests import postgres
from tests.conformance.steps import new_job

OFTEN = 12

OPTIONS: list[dict[str, Any]] = [
    {},
    {"priority": -7, "max_attempts": 4, "timeout": 0.1, "delay": 2.5, "parent_id": 'a "parent"'},
    {"timeout": 1e-7, "delay": 1e9},
    {"timeout": 3, "run_at": 2**60, "group": "Größe \\ 'x', {1} \U0001f40e"},
    {"payload": '{"text": "\\u0000 \\n é \\\\"}', "type": "a:b.c-d_e"},
    {"group": "a\0b"},
    {"group": "half \ud83d"},
]


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    with postgres.fresh_url() as url, closing(open_store(url, system_clock)) as store:
        assert isinstance(store, PostgresStore)
        yield store


def enqueue(store: PostgresStore, id: str, **options: Any) -> None:
    [verdict] = store.insert_jobs([new_job(id, has_new_id=True, **options)])
    assert (verdict.inserted, verdict.error) == (True, None)


@pytest.mark.parametrize("options", OPTIONS)
def test_job_is_stored_alike_however_often_one_was_enqueued(
    store: PostgresStore, options: dict[str, Any]
) -> None:
    for n in range(OFTEN):
        enqueue(store, f"job-{n}", **options)
    columns = 'type, priority, max_attempts, timeout, parent_id, payload, "group", status, key_held'
    spans = "coalesce(run_at - created_at, 0) / 10000000, due_at >= created_at"
    if "run_at" in options:
        spans = "run_at, due_at"
    rows = store.database.read(f"SELECT DISTINCT {columns}, {spans} FROM holdfast_jobs")
    assert len(rows) == 1
    assert sum(store.count_enqueued().values()) == OFTEN


def test_verdict_is_the_same_however_often_one_was_enqueued(store: PostgresStore) -> None:
    verdicts = [
        store.insert_jobs([new_job(f"job-{n}", has_new_id=True, delay=60.0 * (n % 2))])[0]
        for n in range(OFTEN)
    ]
    kinds = {
        tuple(type(getattr(verdict, name)) for name in verdict.__struct_fields__)
        for verdict in verdicts[1::2]
    }
    assert len(kinds) == 1
    assert all(verdict.error is None for verdict in verdicts)


def test_enqueueing_goes_on_where_all_that_was_prepared_is_gone(store: PostgresStore) -> None:
    for n in range(OFTEN):
        enqueue(store, f"job-{n}")
    store.database.read("DEALLOCATE ALL")
    enqueue(store, "after")
    assert store.count_enqueued() == {"email": OFTEN + 1}


def test_id_that_exists_is_known_by_its_token_however_often_one_was_enqueued(store: PostgresStore) -> None:
    for n in range(OFTEN):
        enqueue(store, f"job-{n}")
    job = new_job("again", has_new_id=True)
    assert [store.insert_jobs([job])[0].inserted for _ in range(2)] == [True, True]
    assert store.count_enqueued() == {"email": OFTEN + 1}


def test_enqueueing_goes_on_after_its_connection_was_lost(store: PostgresStore) -> None:
    for n in range(OFTEN):
        enqueue(store, f"job-{n}")
    with psycopg.connect(postgres.server_url(), autocommit=True) as server:
        server.execute(
            "SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE query LIKE %s"
            " AND pid <> pg_backend_pid()",
            [f"%{store.database.schema}.holdfast_jobs%"],
        )
    for n in range(OFTEN):
        enqueue(store, f"more-{n}")
    assert store.count_enqueued() == {"email": 2 * OFTEN}


def test_error_of_the_server_is_told_however_often_one_was_enqueued(store: PostgresStore) -> None:
    for n in range(OFTEN):
        enqueue(store, f"job-{n}")
    with store.database.transaction() as session:
        session.rows("ALTER TABLE holdfast_jobs ADD CONSTRAINT no_more CHECK (id <> 'bad')")
    with pytest.raises(psycopg.errors.CheckViolation):
        enqueue(store, "bad")
    enqueue(store, "good")
