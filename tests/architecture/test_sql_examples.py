"""The SQL of the docs runs: the rights that it grants are enough to work with, and to no more than that."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from holdfast import Context, Queue
from holdfast.errors import SchemaOutOfDate, StoreUnavailable
from holdfast.store.open import store_of
from holdfast.store.postgres import tallies
from holdfast.store.postgres.store import PostgresStore
from tests.postgres import drop_schema, new_schema, server_url, with_parameters

pytestmark = pytest.mark.postgres

DOCS = Path(__file__).parents[2] / "docs"
BLOCK = re.compile(r"^```sql\n(.*?)^```$", re.MULTILINE | re.DOTALL)

_SCHEMA = r"(?<=SCHEMA )jobs\b|(?<=TO )jobs\b|\bjobs(?=\.)"


def blocks(page: str) -> list[str]:
    return BLOCK.findall((DOCS / page).read_text(encoding="utf-8"))


class Roles(NamedTuple):
    """Names of this test's own in place of those on the page: roles belong to the whole server."""

    owner: str
    worker: str
    schema: str

    def adapt(self, statements: str) -> str:
        for name, ours in zip((r"\bqueue_owner\b", r"\bqueue_worker\b", _SCHEMA), self, strict=True):
            statements = re.sub(name, ours, statements)
        return statements

    def run(self, statements: str) -> None:
        with psycopg.connect(server_url(), autocommit=True) as connection:
            connection.execute(sql.SQL(self.adapt(statements)))

    def queue(self, role: str, password: str) -> Queue:
        return Queue(with_parameters(server_url(), schema=self.schema, user=role, password=password))

    def as_owner(self) -> Queue:
        return self.queue(self.owner, "change me")

    def as_worker(self) -> Queue:
        return self.queue(self.worker, "change me too")


@pytest.fixture
def roles() -> Iterator[Roles]:
    made = Roles(f"owner_{uuid4().hex[:12]}", f"worker_{uuid4().hex[:12]}", new_schema())
    try:
        yield made
    finally:
        drop_schema(made.schema)
        for role in made[:2]:
            drop_role(role)


def drop_role(name: str) -> None:
    role = sql.Identifier(name)
    with psycopg.connect(server_url(), autocommit=True) as connection:
        if connection.execute("SELECT 1 FROM pg_roles WHERE rolname = %s", [name]).fetchone():
            connection.execute(sql.SQL("DROP OWNED BY {0}; DROP ROLE {0}").format(role))


def work_with_everything(queue: Queue) -> None:
    @queue.job(max_attempts=1, rate_limit=1000)
    def fetch(n: int) -> None:
        if n == 3:
            raise ValueError("three")

    @queue.job
    def book(ctx: Context, n: int) -> None:
        with ctx.transaction():
            ctx.enqueue(fetch, {"n": 0})

    queue.set_config("max_running", 3, type="fetch")
    queue.pause("fetch")
    queue.resume("fetch")
    fetch.enqueue_many([{"n": n} for n in range(5)])
    fetch.with_options(key="once", delay=60).enqueue(n=9)
    book.enqueue(n=1)
    queue.drain()
    assert queue.stats()["completed"] == 6
    assert queue.retry_all()[0] == 1
    queue.drain()
    assert queue.cleanup(older_than=timedelta(0)) == 6
    store = store_of(queue)
    assert isinstance(store, PostgresStore)
    tallies.fold(store.database)
    assert not [finding for finding in store.examine() if "permission" in finding.text]


def test_the_rights_of_the_page_are_enough_to_work_and_to_enqueue(roles: Roles) -> None:
    grants, _ = blocks("how-to/postgresql.md")
    roles.run(grants)
    with roles.as_owner() as queue:
        queue.migrate()
    with roles.as_worker() as queue:
        work_with_everything(queue)


def test_who_may_work_can_neither_drop_nor_make_tables(roles: Roles) -> None:
    grants, _ = blocks("how-to/postgresql.md")
    roles.run(grants)
    with roles.as_worker() as queue, pytest.raises(StoreUnavailable, match="permission denied"):
        queue.open()
    with roles.as_owner() as queue:
        queue.migrate()
    with roles.as_worker() as queue:
        queue.open()
    conninfo = psycopg.conninfo.make_conninfo(server_url(), user=roles.worker, password="change me too")
    with psycopg.connect(conninfo, autocommit=True) as connection:
        for statement in ("DROP TABLE {}.holdfast_jobs", "ALTER TABLE {}.holdfast_jobs ADD x integer"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                connection.execute(sql.SQL(statement).format(sql.Identifier(roles.schema)))


def test_tables_that_were_there_before_are_granted_by_the_second_block(roles: Roles) -> None:
    grants, granted_later = blocks("how-to/postgresql.md")
    before_tables, default_privileges, _ = re.split(r"(?=ALTER DEFAULT)|(?<=queue_worker;)\n$", grants)
    roles.run(before_tables)
    with roles.as_owner() as queue:
        queue.migrate()
    roles.run(default_privileges)
    with roles.as_worker() as queue, pytest.raises(StoreUnavailable, match="permission denied"):
        queue.open()
    roles.run(granted_later)
    with roles.as_worker() as queue:
        queue.enqueue("fetch", {"n": 1})


def test_older_tables_are_refused_until_the_owner_migrates(roles: Roles) -> None:
    grants, _ = blocks("how-to/postgresql.md")
    roles.run(grants)
    with roles.as_owner() as queue:
        queue.migrate()
    roles.run("UPDATE jobs.holdfast_schema SET version = 4")
    for queue in (roles.as_owner(), roles.as_worker()):
        with queue, pytest.raises(SchemaOutOfDate, match="queuectl migrate"):
            queue.open()


def test_the_questions_of_the_schema_page_are_answered(roles: Roles) -> None:
    grants, _ = blocks("how-to/postgresql.md")
    roles.run(grants)
    with roles.as_owner() as queue:
        queue.enqueue("fetch", {"n": 1})
    [questions] = blocks("reference/schema.md")
    roles.run(questions)
