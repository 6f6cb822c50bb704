"""Limits on PostgreSQL: how many round trips they take, and what becomes of a job that another has taken."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import psycopg
import pytest

from holdfast.core.clock import system_clock
from holdfast.core.job import Status
from holdfast.core.lifecycle import Completed
from holdfast.core.starting import Head
from holdfast.errors import CommitUncertain
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore, tallies
from holdfast.store.postgres import claim as postgres_claim
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.session import Session
from holdfast.store.records import Claim
from tests import postgres
from tests.conformance.steps import (
    LEASE,
    claim,
    claim_one,
    demand,
    ending,
    insert,
    new_job,
    settings_of,
    status,
)


@pytest.fixture
def store() -> Iterator[PostgresStore]:
    with postgres.fresh_url() as url, closing(open_store(url, system_clock)) as store:
        assert isinstance(store, PostgresStore)
        yield store


class RoundTrips:
    """Counts what a store sends and waits for."""

    def __init__(self) -> None:
        self.count = 0

    @contextmanager
    def counted(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        in_flight, execute, commit = Session.in_flight, Session._execute, Database.commit

        @contextmanager
        def counting_flight(session: Session) -> Iterator[None]:
            self.count += bool(session._ahead)
            with in_flight(session):
                yield

        def counting_execute(session: Session, sql: str, parameters: Sequence[Any]) -> Any:
            self.count += not session._ahead
            return execute(session, sql, parameters)

        def counting_commit(database: Database, connection: Any) -> None:
            self.count += 1
            commit(database, connection)

        with monkeypatch.context() as patch:
            patch.setattr(Session, "in_flight", counting_flight)
            patch.setattr(Session, "_execute", counting_execute)
            patch.setattr(Database, "commit", counting_commit)
            yield


LIMITS: dict[str, dict[str, Any]] = {
    "none": {},
    "max_running": {"max_running": 8},
    "rate": {"rate_limit": 100.0},
    "group": {"group_concurrency": 1},
    "fair group": {"group_concurrency": 1, "fair": True},
}
MOST = {"none": 2}
"""Under limits: what has ended; the locks, what runs and what waits; the claim; the commit."""


@pytest.mark.parametrize("limits", LIMITS)
def test_turn_takes_few_round_trips(
    store: PostgresStore, limits: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.insert_jobs([new_job(f"job-{n}", group=f"group-{n}") for n in range(40)])
    settings = settings_of(store, **LIMITS[limits])
    ends = [ending(each, Completed()) for each in claim(store, limit=4, settings=settings)]
    monkeypatch.setattr(tallies, "_FOLD_EVERY", 3600.0)
    store.list_heads()  # which keeps the counts: a turn does so every now and then
    trips = RoundTrips()
    with (
        trips.counted(monkeypatch),
        store.transaction(),
        store.finish_and_claim(
            ends, "worker", [demand(limit=4)], settings, limit=4, lease_seconds=LEASE
        ) as answer,
    ):
        pass
    assert len(answer.claimed.claims) == len(answer.ended) == 4
    assert trips.count <= MOST.get(limits, 4)


@pytest.mark.parametrize("most", [4, 0])
def test_turn_that_only_finishes_and_claims_is_one_round_trip(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    store.insert_jobs([new_job(f"job-{n}") for n in range(8)])
    ends = [ending(each, Completed()) for each in claim(store, limit=4)]
    settings = settings_of(store)
    monkeypatch.setattr(tallies, "_FOLD_EVERY", 3600.0)
    store.list_heads()
    trips = RoundTrips()
    with (
        trips.counted(monkeypatch),
        store.finish_and_claim(
            ends, "worker", [demand()], settings, limit=most, lease_seconds=LEASE, is_whole=True
        ) as answer,
    ):
        pass
    assert (len(answer.claimed.claims), len(answer.ended)) == (most, 4)
    assert trips.count == 1


def test_turn_that_is_under_way_when_its_worker_freezes_holds_nobody_up(store: PostgresStore) -> None:
    insert(store, "a", "b")
    ends = [ending(claim_one(store), Completed())]
    settings = settings_of(store)
    with (
        store.finish_and_claim(
            ends, "worker", [demand()], settings, limit=1, lease_seconds=LEASE, is_whole=True
        ),
        psycopg.connect(postgres.server_url()) as other,
    ):
        other.execute(f"SELECT 1 FROM {store.database.schema}.holdfast_jobs FOR UPDATE")
    assert status(store, "b") is Status.PROCESSING


def test_turn_whose_connection_is_lost_under_way_is_in_doubt(store: PostgresStore) -> None:
    insert(store, "a")
    settings = settings_of(store)
    with psycopg.connect(postgres.server_url(), autocommit=True) as other:

        def turn() -> None:
            with store.finish_and_claim(
                [], "worker", [demand()], settings, limit=1, lease_seconds=LEASE, is_whole=True
            ):
                assert store.database.session is not None
                pid = store.database.session.connection.info.backend_pid
                other.execute("SELECT pg_terminate_backend(%s)", [pid])

        with other.transaction():
            other.execute(f"LOCK TABLE {store.database.schema}.holdfast_jobs")
            with pytest.raises(CommitUncertain):
                turn()
    assert status(store, "a") is Status.PENDING


def test_job_that_somebody_has_locked_uses_up_no_rate(store: PostgresStore) -> None:
    insert(store, "a", "b", "c")
    settings = settings_of(store, rate_limit=0.001)
    with psycopg.connect(postgres.server_url()) as other:
        other.execute(f"SELECT 1 FROM {store.database.schema}.holdfast_jobs WHERE id = 'a' FOR UPDATE")
        assert _ids(claim(store, limit=1, settings=settings)) == []
    assert _ids(claim(store, limit=1, settings=settings)) == ["a"]
    assert _ids(claim(store, limit=1, settings=settings)) == []


def _ids(claims: Sequence[Claim]) -> list[str]:
    return [each.id for each in claims]


def test_line_begins_at_a_job_that_somebody_else_is_about_to_take(store: PostgresStore) -> None:
    """If he doesn't after all, it is asked for again."""
    insert(store, "a", "b", "c", "d")
    settings = settings_of(store, max_running=3)
    [(place,)] = store.database.read("SELECT seq FROM holdfast_jobs WHERE id = 'b'")
    with psycopg.connect(postgres.server_url()) as other:
        other.execute(f"SELECT 1 FROM {store.database.schema}.holdfast_jobs WHERE id = 'b' FOR UPDATE")
        claimed = store.claim_jobs("worker", [demand(limit=3)], settings, limit=3, lease_seconds=LEASE)
    assert _ids(claimed.claims) == ["a", "c"]
    assert claimed.heads == {"email": Head("email", 0, place)}


def test_where_lines_begin_that_were_read_is_not_asked_again(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    types = [f"email:{number}" for number in range(3)]
    for type in types:
        insert(store, *(f"{type}-{number}" for number in range(3)), type=type)
    settings = settings_of(store, max_running=2)
    monkeypatch.setattr(postgres_claim, "HEADS_OF", "SELECT 1 / 0 FROM unnest($1::text[])")
    claimed = store.claim_jobs("worker", [*map(demand, types)], settings, limit=2, lease_seconds=LEASE)
    rows = store.database.read(
        "SELECT type, priority, min(seq) FROM holdfast_jobs WHERE status = 'pending' GROUP BY 1, 2"
    )
    assert len(claimed.claims) == 2
    assert claimed.heads == {row[0]: Head(*row) for row in rows}
