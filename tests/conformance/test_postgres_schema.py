"""Opening a PostgreSQL queue: whose schema it is in, what is made there, and what is refused untouched."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql

from holdfast.core.clock import system_clock
from holdfast.errors import ForeignDatabase, SchemaOutOfDate, StoreUnavailable
from holdfast.store.migrate import Migration
from holdfast.store.move import Move, open_end
from holdfast.store.open import open_store
from holdfast.store.postgres import open as opening
from holdfast.store.postgres.schema import MIGRATIONS
from holdfast.store.protocol import Store
from holdfast.store.records import JobFilter
from tests import postgres
from tests.conformance.steps import claim_one, finish, insert, new_job, status

NEWEST = MIGRATIONS[-1].number
NAMES = ["my queue", "Größe", "select", "user", 'a "quote"', "it's", "100%s?", "a.b; --", "holdfast_jobs"]


@pytest.fixture
def connection() -> Iterator[Any]:
    """Somebody else's connection to the server."""
    with closing(psycopg.connect(postgres.server_url(), autocommit=True)) as connection:
        connection.execute("SET client_min_messages = error")
        yield connection


@pytest.fixture
def schema(connection: Any) -> Iterator[str]:
    """A schema that is there, and empty."""
    name = postgres.new_schema()
    with made(connection, name):
        connection.execute(f"CREATE SCHEMA {name}")
        yield name


@contextmanager
def made(connection: Any, name: str) -> Iterator[str]:
    """The address of a queue in a schema of this name, which is not there before, and dropped in the end."""
    drop = sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name))
    connection.execute(drop)
    try:
        yield postgres.schema_url(name)
    finally:
        connection.execute(drop)


def opened(url: str, **options: bool) -> closing[Store]:
    return closing(open_store(url, system_clock, **options))


def with_option(url: str, name: str, value: str) -> str:
    """The address with a setting that the server is given for each connection."""
    return postgres.with_parameters(url, options=f"-c {name}={value}")


def relations(connection: Any, schema: str) -> list[tuple[str, int]]:
    rows: list[tuple[str, int]] = connection.execute(
        "SELECT relname, c.oid::bigint FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = relnamespace"
        " WHERE nspname = %s ORDER BY relname",
        [schema],
    ).fetchall()
    return rows


# Where it is


@pytest.mark.parametrize("name", NAMES)
def test_queue_in_a_schema_of_any_name_is_backed_up_and_moved(
    connection: Any, name: str, tmp_path: Path
) -> None:
    with made(connection, f"{name} 1") as url, made(connection, f"{name} 2") as target:
        with opened(url) as store:
            insert(store, "job", priority=7)
            store.back_up(str(tmp_path / "copy.db"))
        with opened(f"sqlite:///{tmp_path}/copy.db") as copy:
            assert claim_one(copy).id == "job"
        with (
            closing(open_end(url)) as start,
            closing(open_end(target)) as end,
            closing(Move(start, end)) as move,
        ):
            move.start()
            assert move.freeze()
            move.copy()
            move.switch()
        with opened(target) as store:
            assert claim_one(store).priority == 7


@pytest.mark.parametrize("name", NAMES)
def test_schema_may_have_any_name(connection: Any, name: str) -> None:
    with made(connection, name) as url:
        for id in ("first", "second"):
            with opened(url) as store:
                insert(store, id)
                finish(store, claim_one(store))
                assert status(store, id) == "completed"
                assert store.measure()
                assert store.examine()
                store.insert_jobs_with(connection, [new_job(f"{id} by an application")])
                assert store.list_jobs(JobFilter(type="email"))[0].id == f"{id} by an application"
                store.cancel_job(f"{id} by an application")
        assert "holdfast_jobs" in dict(relations(connection, name))


def test_queues_in_two_schemas_do_not_see_each_other(connection: Any) -> None:
    with (
        made(connection, postgres.new_schema()) as one,
        made(connection, postgres.new_schema()) as two,
        opened(one) as first,
        opened(two) as second,
    ):
        insert(first, "a", key="k")
        insert(second, "a", key="k")
        insert(second, "b")
        first.set_paused("", True)
        finish(second, claim_one(second))
        assert (status(first, "a"), status(second, "a")) == ("pending", "completed")
        assert first.get_job("b") is None
        assert (first.count_enqueued(), second.count_enqueued()) == ({"email": 1}, {"email": 2})


def test_without_a_schema_it_is_the_first_of_the_search_path_that_exists(
    connection: Any, schema: str
) -> None:
    url = with_option(postgres.server_url(), "search_path", f"not_there,{schema},public")
    with opened(url) as store:
        insert(store, "a")
    assert "holdfast_jobs" in dict(relations(connection, schema))
    with opened(postgres.schema_url(schema)) as store:
        assert status(store, "a") == "pending"


def test_search_path_that_leads_nowhere_is_told() -> None:
    url = with_option(postgres.server_url(), "search_path", "not_there")
    with pytest.raises(StoreUnavailable, match="no schema of the search path exists"):
        open_store(url, system_clock)


def test_tables_of_an_application_live_beside_ours(connection: Any, schema: str) -> None:
    connection.execute(f"CREATE TABLE {schema}.jobs (n integer)")
    connection.execute(f"CREATE TABLE {schema}.holdfasting (n integer)")
    with opened(postgres.schema_url(schema)) as store:
        insert(store, "a")
    assert {"jobs", "holdfasting", "holdfast_jobs"} <= set(dict(relations(connection, schema)))


# What is refused


@pytest.mark.parametrize(
    "statement",
    [
        "CREATE TABLE {}.holdfast_jobs (n integer)",
        "CREATE TABLE {}.holdfast_notes (n integer)",
        "CREATE VIEW {}.holdfast_jobs AS SELECT 1 AS n",
        "CREATE TABLE {}.holdfast_schema (version integer NOT NULL, identity text NOT NULL)",
        "CREATE TABLE {0}.holdfast_jobs (n integer); CREATE TABLE {0}.holdfast_schema (n integer)",
        "CREATE TABLE {0}.holdfast_jobs (); CREATE VIEW {0}.holdfast_schema AS SELECT '' version, 0 identity",
    ],
    ids=range(6),
)
def test_foreign_table_of_our_name_is_refused_untouched(connection: Any, schema: str, statement: str) -> None:
    connection.execute(statement.format(schema))
    before = relations(connection, schema)
    with pytest.raises(ForeignDatabase, match="holdfast_"):
        open_store(postgres.schema_url(schema), system_clock)
    assert relations(connection, schema) == before


def test_newer_schema_is_refused_with_what_to_do(connection: Any, schema: str) -> None:
    url = postgres.schema_url(schema)
    open_store(url, system_clock).close()
    connection.execute(f"UPDATE {schema}.holdfast_schema SET version = 999")
    for migrate in (False, True):
        with pytest.raises(SchemaOutOfDate, match=r"999.*upgrade Holdfast"):
            open_store(url, system_clock, migrate=migrate)


def newer_release(monkeypatch: pytest.MonkeyPatch, *statements: str) -> None:
    step = Migration(NEWEST + 1, "the next", statements)
    monkeypatch.setattr(opening, "MIGRATIONS", (*MIGRATIONS, step))


ADD = "ALTER TABLE holdfast_types ADD COLUMN note text"


def test_older_schema_is_migrated_only_when_asked(
    connection: Any, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.schema_url(schema)
    with opened(url) as store:
        insert(store, "a")
    newer_release(monkeypatch, ADD)
    with pytest.raises(SchemaOutOfDate, match="queuectl migrate"):
        open_store(url, system_clock)
    assert version(connection, schema) == NEWEST
    with opened(url, migrate=True) as store:
        assert status(store, "a") == "pending"
    assert version(connection, schema) == NEWEST + 1
    open_store(url, system_clock).close()


def test_queue_of_version_7_is_migrated_with_all_its_jobs_in_their_places(
    connection: Any, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.schema_url(schema)
    with monkeypatch.context() as older:
        older.setattr(opening, "MIGRATIONS", [step for step in MIGRATIONS if step.number <= 7])
        with opened(url) as store:
            insert(store, "came back", "ran", "done", "waits", "urgent")
            insert(store, "later", delay=3600)
    table = f"{schema}.holdfast_jobs"
    connection.execute(f"UPDATE {table} SET priority = 1 WHERE id = 'urgent'")
    connection.execute(f"UPDATE {table} SET version = 1, attempts = 1 WHERE id = 'came back'")
    connection.execute(
        f"UPDATE {table} SET status = 'processing', version = 1, attempts = 1, worker_id = 'w',"
        " started_at = 1, lease_expires_at = 1, cancel_requested = true WHERE id = 'ran'"
    )
    connection.execute(f"UPDATE {table} SET status = 'completed', finished_at = 2 WHERE id = 'done'")
    with opened(url, migrate=True) as store:
        assert [(head.type, head.seq) for head in store.list_heads()] == [("email", 5)]
        assert store.list_cancelled("w") == {(2, 1)}
        assert [claim_one(store).id for _ in range(3)] == ["urgent", "came back", "waits"]
        assert store.count_jobs()["email"] == {
            "scheduled": 1, "pending": 0, "processing": 4, "completed": 1, "failed": 0, "cancelled": 0,
        }  # fmt: skip
        insert(store, "new")
        assert claim_one(store).id == "new"


def test_migration_that_fails_leaves_the_older_schema_whole(
    connection: Any, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.schema_url(schema)
    open_store(url, system_clock).close()
    before = relations(connection, schema)
    newer_release(monkeypatch, ADD, "CREATE INDEX holdfast_new ON holdfast_types (note)", "SELECT 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        open_store(url, system_clock, migrate=True)
    assert relations(connection, schema) == before
    assert version(connection, schema) == NEWEST


def test_first_opening_that_fails_leaves_nothing(
    connection: Any, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer_release(monkeypatch, "SELECT 1 / 0")
    with pytest.raises(psycopg.errors.DivisionByZero):
        open_store(postgres.schema_url(schema), system_clock)
    assert relations(connection, schema) == []


def version(connection: Any, schema: str) -> int:
    [(number,)] = connection.execute(f"SELECT version FROM {schema}.holdfast_schema").fetchall()
    return int(number)


# At once


def open_at_once(url: str, count: int, **options: bool) -> list[BaseException]:
    """Open a queue in so many threads at the same moment; what went wrong."""
    together = threading.Barrier(count)
    problems: list[BaseException] = []

    def open_it(number: int) -> None:
        try:
            together.wait(30)
            with opened(url, **options) as store:
                insert(store, f"job-{number}")
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=open_it, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return problems


def test_many_who_open_an_empty_database_at_once_share_one_queue(connection: Any) -> None:
    with made(connection, postgres.new_schema()) as url:
        assert open_at_once(url, 8) == []
        with opened(url) as store:
            assert store.count_enqueued() == {"email": 8}


def test_many_who_migrate_at_once_do_it_once(
    connection: Any, schema: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.schema_url(schema)
    open_store(url, system_clock).close()
    newer_release(monkeypatch, ADD)
    assert open_at_once(url, 4, migrate=True) == []
    assert version(connection, schema) == NEWEST + 1


# Rights


@pytest.fixture
def role(connection: Any) -> Iterator[str]:
    """A role that may do nothing."""
    name = postgres.new_schema()
    connection.execute(f"CREATE ROLE {name}")
    yield name
    connection.execute(f"DROP OWNED BY {name}")
    connection.execute(f"DROP ROLE {name}")


def refused(url: str, match: str) -> None:
    """Opening fails with one line that says what to do."""
    with pytest.raises(StoreUnavailable, match=match) as caught:
        open_store(url, system_clock)
    error = caught.value
    assert "\n" not in str(error)
    assert error.hint


def test_role_that_may_not_make_the_schema_is_told(connection: Any, role: str) -> None:
    with made(connection, postgres.new_schema()) as url:
        refused(with_option(url, "role", role), "permission denied for database")


def test_role_that_may_not_make_tables_is_told(connection: Any, schema: str, role: str) -> None:
    refused(with_option(postgres.schema_url(schema), "role", role), "permission denied for schema")
    assert relations(connection, schema) == []


def test_role_that_may_not_use_the_queue_is_told(connection: Any, schema: str, role: str) -> None:
    open_store(postgres.schema_url(schema), system_clock).close()
    url = with_option(postgres.schema_url(schema), "role", role)
    refused(url, "permission denied for schema")
    connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    refused(url, "permission denied for table")


def test_role_needs_no_more_than_rights_to_the_tables(connection: Any, schema: str, role: str) -> None:
    open_store(postgres.schema_url(schema), system_clock).close()
    connection.execute(f"GRANT USAGE ON SCHEMA {schema} TO {role}")
    connection.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}")
    with opened(with_option(postgres.schema_url(schema), "role", role)) as store:
        insert(store, "a")
        finish(store, claim_one(store))
        store.delete_job("a")
        store.list_heads()
        assert store.examine()


@pytest.mark.parametrize("is_new", [True, False])
def test_database_that_is_read_only_is_refused(connection: Any, schema: str, is_new: bool) -> None:
    url = postgres.schema_url(schema)
    if not is_new:
        open_store(url, system_clock).close()
    before = relations(connection, schema)
    read_only = with_option(url, "default_transaction_read_only", "on")
    with pytest.raises(StoreUnavailable, match="read-only") as caught, opened(read_only) as store:
        insert(store, "a")
    assert caught.value.hint
    assert relations(connection, schema) == before


def test_address_may_hold_other_settings_of_the_server(schema: str) -> None:
    with opened(with_option(postgres.schema_url(schema), "statement_timeout", "60s")) as store:
        insert(store, "a")
