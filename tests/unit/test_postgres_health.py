"""The check-up of a PostgreSQL queue: what is wrong with the server and its tables, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from holdfast.core.clock import system_clock
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore, health
from holdfast.store.records import Finding
from tests import postgres

CHECKS = {
    "PostgreSQL",
    "durability",
    "connections",
    "rights",
    "old transactions",
    "vacuum",
    "server's clock",
}


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with postgres.fresh_url() as url:
        yield url


@pytest.fixture
def store(address: str) -> Iterator[PostgresStore]:
    with closing(open_store(address, system_clock)) as store:
        assert isinstance(store, PostgresStore)
        yield store


@pytest.fixture
def server() -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres.server_url(), autocommit=True) as connection:
        yield connection


def pretend(monkeypatch: pytest.MonkeyPatch, store: PostgresStore, part: str, rows: list[Any]) -> None:
    """Let the server answer one question differently."""
    read = store.database.read
    monkeypatch.setattr(
        store.database, "read", lambda text, *values: rows if part in text else read(text, *values)
    )


def found(store: PostgresStore, check: str) -> Finding:
    [finding] = [finding for finding in store.examine() if finding.check == check]
    return finding


def test_every_check_is_made_and_what_is_not_ok_says_what_to_do(store: PostgresStore) -> None:
    findings = store.examine()
    assert {finding.check for finding in findings} >= CHECKS
    assert [f for f in findings if (f.level == "ok") is not (f.advice is None)] == []
    # The tests' own server is as fast as it can be.
    assert {f.check for f in findings if f.level != "ok"} <= {"durability"}


def test_role_without_any_right_but_to_the_tables_can_be_examined_and_measured(
    address: str, server: psycopg.Connection[Any]
) -> None:
    role, schema = f"r_{uuid4().hex[:12]}", address.rpartition("schema=")[2]
    open_store(address, system_clock).close()
    server.execute(f"CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA {schema} TO {role}")
    rights = sql.SQL("GRANT {} ON ALL TABLES IN SCHEMA " + schema + " TO " + role)
    try:
        server.execute(rights.format(sql.SQL("SELECT")))
        with closing(open_store(postgres.with_parameters(address, user=role), system_clock)) as store:
            assert isinstance(store, PostgresStore)
            lacking = found(store, "rights")
            assert (lacking.level, lacking.advice) == (
                "problem",
                f"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA {schema} TO {role}",
            )
            server.execute(rights.format(sql.SQL("INSERT, UPDATE, DELETE")))
            assert {f.check for f in store.examine() if f.level != "ok"} <= {"durability"}
            assert "pg_read_all_stats" in found(store, "old transactions").text
            assert store.measure()["connections"] >= 1
    finally:
        server.execute(f"DROP OWNED BY {role}; DROP ROLE {role}")


@pytest.mark.parametrize(
    ("values", "level"),
    [
        (("on", "on", "on"), "ok"),
        (("on", "on", "remote_apply"), "ok"),
        (("on", "on", "off"), "warning"),
        (("on", "off", "on"), "warning"),
        (("off", "on", "on"), "problem"),
    ],
)
def test_commits_that_a_power_cut_may_lose_are_named(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, values: tuple[str, ...], level: str
) -> None:
    pretend(monkeypatch, store, "full_page_writes", [values[:2]])
    server = store.database.server._replace(synchronous_commit=values[2])
    monkeypatch.setattr(store.database, "server", server)
    finding = found(store, "durability")
    assert finding.level == level
    assert all(value in finding.text for value in values)


def test_commits_that_the_address_makes_safe_are_all_right(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.with_parameters(address, options="-csynchronous_commit=off")
    with closing(open_store(url, system_clock)) as store:
        assert isinstance(store, PostgresStore)
        pretend(monkeypatch, store, "full_page_writes", [("on", "on")])
        assert found(store, "durability").level == "ok"


@pytest.mark.parametrize(("used", "level"), [(90, "ok"), (91, "warning")])
def test_few_connections_left_are_a_warning(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, used: int, level: str
) -> None:
    pretend(monkeypatch, store, "max_connections", [(used, 100)])
    assert found(store, "connections").level == level


def test_transaction_that_is_open_for_long_is_named(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "OLD_TRANSACTION", 0.0)
    with psycopg.connect(postgres.server_url(), application_name="slow") as connection:
        connection.execute("SELECT 1")
        pid = connection.info.backend_pid
        rows = store.database.read(health._OLD_TRANSACTIONS.replace("LIMIT 1", ""), [health.OLD_TRANSACTION])
        assert [row[2] for row in rows if "slow" in row[0]] == [f"SELECT pg_terminate_backend({pid})"]
        finding = found(store, "old transactions")
        assert finding.level == "warning"
        assert "pg_terminate_backend" in str(finding.advice)
        assert store.measure()["oldest_transaction_seconds"] > 0


def test_prepared_transaction_that_was_forgotten_is_named(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [("the prepared one 'x''y'", 7200.0, "ROLLBACK PREPARED 'x''y'")]
    pretend(monkeypatch, store, "pg_prepared_xacts", rows)
    finding = found(store, "old transactions")
    assert (finding.level, "120 min" in finding.text) == ("warning", True)
    assert "ROLLBACK PREPARED 'x''y'" in str(finding.advice)


@pytest.mark.parametrize(
    ("kept", "holds_rows", "warns"), [(10, False, False), (2**31, False, True), (10, True, True)]
)
def test_replication_slot_that_nobody_reads_is_a_warning(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, kept: int, holds_rows: bool, warns: bool
) -> None:
    assert store.database.read(health._SLOTS) == []
    pretend(monkeypatch, store, "pg_replication_slots", [("left", kept, holds_rows)])
    findings = [finding for finding in store.examine() if finding.check == "replication"]
    assert [finding.level for finding in findings] == ["warning"] * warns
    assert all("pg_drop_replication_slot('left')" in str(finding.advice) for finding in findings)


def test_table_that_is_not_vacuumed_is_a_problem(store: PostgresStore) -> None:
    database = store.database
    with store.transaction() as session:
        session.rows("ALTER TABLE holdfast_jobs SET (autovacuum_enabled = off)")
    try:
        assert found(store, "vacuum").level == "problem"
    finally:
        with store.transaction() as session:
            session.rows("ALTER TABLE holdfast_jobs RESET (autovacuum_enabled)")
    assert database.session is None
    assert found(store, "vacuum").level == "ok"


@pytest.mark.parametrize(
    ("live", "dead", "level"), [(10, 40_000, "ok"), (200_000, 60_000, "ok"), (10, 60_000, "warning")]
)
def test_more_dead_rows_than_living_are_a_warning(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, live: int, dead: int, level: str
) -> None:
    pretend(monkeypatch, store, "n_dead_tup", [(live, dead, True)])
    finding = found(store, "vacuum")
    assert finding.level == level
    assert str(dead) in finding.text


def test_transaction_numbers_that_run_out_are_a_problem(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pretend(monkeypatch, store, "datfrozenxid", [(1_900_000_000,)])
    assert found(store, "transaction numbers").level == "problem"


@pytest.mark.parametrize(("version", "level"), [(130022, "warning"), (990001, "ok")])
def test_version_without_corrections_is_a_warning(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, version: int, level: str
) -> None:
    monkeypatch.setattr(store.database, "server", store.database.server._replace(version=version))
    assert found(store, "PostgreSQL").level == level


@pytest.mark.parametrize(("seconds", "level"), [(0, "ok"), (3600, "warning"), (-3600, "warning")])
def test_clock_that_differs_from_the_servers_is_a_warning(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, seconds: int, level: str
) -> None:
    monkeypatch.setattr(health, "system_clock", lambda: system_clock() + seconds * 1_000_000)
    finding = found(store, "server's clock")
    assert finding.level == level
    assert f"{abs(seconds)}.0 s" in finding.text


def test_figures_have_names_that_metrics_may_have(store: PostgresStore) -> None:
    figures = store.measure()
    assert set(figures) >= {"table_bytes", "live_rows", "dead_rows", "connections"}
    for name, value in figures.items():
        assert re.fullmatch(r"[a-z][a-z_]*", name)
        assert isinstance(value, int | float)
        assert value >= 0
