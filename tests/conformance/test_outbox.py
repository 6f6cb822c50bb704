"""queue.enqueue(connection=) with every kind of connection: the application's row and the job, or neither."""

from __future__ import annotations

import asyncio
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Any, Self

import psycopg
import pytest
import sqlalchemy as sa
from django.db import connection as django_connection  # type: ignore[import-untyped]
from django.db import connections, transaction
from django.db.transaction import TransactionManagementError  # type: ignore[import-untyped]
from sqlalchemy.ext.asyncio import (
    AsyncConnection,
    AsyncSession,
    async_scoped_session,
    async_sessionmaker,
)
from sqlalchemy.orm import Session

from holdfast import Queue
from holdfast.errors import ConfigError, DuplicateJob, InvalidPayload, KeyTaken
from tests import postgres
from tests.conformance.connections import (
    KINDS,
    POSTGRES_KINDS,
    TYPE,
    Application,
    AsyncApplication,
    AsyncPsycopg,
    SqlalchemyWithBegin,
    address_of,
    application_url,
    connect,
    empty,
    file_of,
    forget_django,
    is_postgres,
    lead_django_to,
    make_async_engine,
    make_engine,
    prepare,
)

pytestmark = pytest.mark.slow

ALL = {f"sqlite-{name}": kind for name, kind in KINDS.items()} | {
    f"postgres-{name}": kind for name, kind in POSTGRES_KINDS.items()
}
MANY_AT_ONCE = [name for name, kind in ALL.items() if kind is not AsyncPsycopg]
"""The kinds that take enqueue_many."""
WITH_WORKERS = [f"sqlite-{name}" for name in KINDS]
WITH_WORKERS += [f"postgres-{name}" for name in ("psycopg", "psycopg-async", "psycopg2", "django-psycopg")]
WITH_WORKERS += ["postgres-sqlalchemy-async-asyncpg"]
AT_ONCE = 30.0
"""Seconds within which a worker starts a job, generous for a busy machine; it polls every 60."""

_LOOKING: dict[str, Any] = {}
"""The connections by which tests look at what is committed, where they are worth keeping."""


@pytest.fixture(scope="module")
def schema_url() -> Iterator[str]:
    """A queue and an application's table in a schema that the tests share: to make one takes its time."""
    with postgres.fresh_url() as url:
        prepare(url)
        with closing(connect(url)) as _LOOKING[url]:
            yield url
        del _LOOKING[url]


@pytest.fixture(scope="module")
def prepared_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in a file, to be copied."""
    path = tmp_path_factory.mktemp("outbox") / "queue.db"
    prepare(path)
    return path


@pytest.fixture
def engine_name(request: pytest.FixtureRequest) -> str:
    """Which engine a test is about; that of its application, if it has one."""
    if "app_name" in request.fixturenames:
        return str(request.getfixturevalue("app_name")).partition("-")[0]
    return "sqlite"


@pytest.fixture
def url(engine_name: str, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of an empty queue beside an empty table of an application."""
    if engine_name == "sqlite":
        yield address_of(shutil.copy(request.getfixturevalue("prepared_file"), tmp_path / "queue.db"))
        return
    url = request.getfixturevalue("schema_url")
    yield url
    empty(_LOOKING[url])


@pytest.fixture(params=ALL)
def app_name(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def app(app_name: str, url: str, queue: Queue) -> Application:
    """An application of each kind, which shares its database with the queue."""
    return ALL[app_name](url, queue)


@contextmanager
def looking(url: str) -> Iterator[Any]:
    if url in _LOOKING:
        yield _LOOKING[url]
    else:
        with closing(connect(url)) as connection:
            yield connection


def rows(url: str) -> list[str]:
    with looking(url) as connection:
        return [name for (name,) in connection.execute("SELECT name FROM users ORDER BY name")]


def jobs(url: str) -> list[str]:
    """To whom the jobs are, as another connection sees them."""
    to = "payload::json ->> 'to'" if is_postgres(url) else "payload ->> '$.to'"
    with looking(url) as connection:
        return [name for (name,) in connection.execute(f"SELECT {to} FROM holdfast_jobs ORDER BY seq")]


def both(url: str) -> tuple[list[str], list[str]]:
    return rows(url), jobs(url)


# Commit and roll back.


def test_row_and_job_commit_together(app: Application) -> None:
    app.play("row eve, job eve, commit")
    assert both(app.url) == (["eve"], ["eve"])


def test_nobody_sees_row_or_job_before_the_commit(app: Application) -> None:
    seen: list[object] = []
    app.play("row eve, job eve", lambda: seen.append(both(app.url)), "commit")
    assert seen == [([], [])]


def test_row_and_job_roll_back_together(app: Application) -> None:
    app.play("row eve, job eve, jobs a b, rollback")
    assert both(app.url) == ([], [])


def test_connection_closed_without_a_commit_keeps_neither(app: Application) -> None:
    app.play("row eve, job eve, jobs a b")
    assert both(app.url) == ([], [])


def test_enqueue_that_comes_first_is_in_the_same_transaction(app: Application) -> None:
    app.play("job eve, row eve, rollback")
    assert both(app.url) == ([], [])
    app.play("job eve, row eve, commit")
    assert both(app.url) == (["eve"], ["eve"])


def test_enqueue_alone_is_committed_by_the_application(app: Application) -> None:
    app.play("job eve")
    app.play("jobs a b")
    assert jobs(app.url) == []
    app.play("job eve, commit")
    app.play("jobs a b, commit")
    assert jobs(app.url) == ["eve", "a", "b"]


def test_one_transaction_after_another_on_one_connection(app: Application) -> None:
    begins = app.begins
    app.play(f"row a, job a, commit, {begins}row b, job b, rollback, {begins}row c, job c, commit")
    assert both(app.url) == (["a", "c"], ["a", "c"])


@pytest.mark.parametrize("app_name", MANY_AT_ONCE)
def test_many_jobs_are_one_commit_of_the_application(app: Application) -> None:
    names = [f"job-{number:04}" for number in range(200 if is_postgres(app.url) else 1500)]
    app.play("row eve", f"jobs {' '.join(names)}", "rollback")
    assert both(app.url) == ([], [])
    app.play("row eve", f"jobs {' '.join(names)}", "commit")
    assert both(app.url) == (["eve"], names)


# Savepoints.


def test_savepoint_that_is_rolled_back_takes_row_and_job_along(app: Application) -> None:
    app.play(
        "row eve, job eve, savepoint, row mallory, job mallory, jobs x y, undo, row ada, job ada, commit"
    )
    assert both(app.url) == (["ada", "eve"], ["eve", "ada"])


def test_savepoint_that_is_released_is_still_the_transactions(app: Application) -> None:
    app.play("row eve, job eve, savepoint, row ada, job ada, release, rollback")
    assert both(app.url) == ([], [])
    app.play("row eve, job eve, savepoint, row ada, job ada, release, commit")
    assert both(app.url) == (["ada", "eve"], ["eve", "ada"])


def test_savepoint_inside_a_savepoint_is_rolled_back_alone(app: Application) -> None:
    app.play("row a, savepoint, row b, job b, savepoint, row c, job c, undo, release, job a, commit")
    assert both(app.url) == (["a", "b"], ["b", "a"])


def test_savepoint_that_comes_first_is_in_a_transaction_with_the_recipe_of_sqlalchemy(
    url: str, queue: Queue
) -> None:
    app = SqlalchemyWithBegin(url, queue)
    app.play("savepoint, row eve, job eve, release, rollback")
    assert both(url) == ([], [])


@pytest.mark.parametrize("app_name", [name for name in ALL if name.startswith("postgres")])
def test_savepoint_that_comes_first_is_in_the_transaction(app: Application) -> None:
    app.play("savepoint, job eve, row eve, release, rollback")
    assert both(app.url) == ([], [])


# Errors leave the transaction as it was.


def playing(app: Application, enqueue: Callable[[Any], Any], *, awaited: Callable[[Any], Any]) -> Any:
    """A step that enqueues with the application's connection, from asyncio where it must."""
    return lambda: (awaited if isinstance(app, AsyncApplication) else enqueue)(app.connection)


def failing(app: Application, error: type[Exception], type: str, payload: object, **options: Any) -> Any:
    """A step that enqueues what is refused, and goes on."""

    def enqueue(connection: Any) -> None:
        with pytest.raises(error):
            app.queue.enqueue(type, payload, connection=connection, **options)

    async def enqueue_async(connection: Any) -> None:
        with pytest.raises(error):
            await app.queue.enqueue_async(type, payload, connection=connection, **options)

    return playing(app, enqueue, awaited=enqueue_async)


def test_refused_job_leaves_the_transaction_as_it_was(app: Application) -> None:
    app.queue.enqueue(TYPE, {"to": "old"}, id="taken", key="held")
    app.queue.register("typed", lambda payload: None, payload_type=dict[str, int])
    app.play(
        "row eve, job eve",
        failing(app, DuplicateJob, TYPE, {"to": "x"}, id="taken"),
        failing(app, KeyTaken, TYPE, {"to": "x"}, key="held"),
        failing(app, InvalidPayload, "typed", {"to": "x"}),
        failing(app, ConfigError, TYPE, {"to": "x"}, priority="high"),
        "row ada, job ada, commit",
    )
    assert both(app.url) == (["ada", "eve"], ["old", "eve", "ada"])


def test_refused_job_that_comes_first_does_not_stand_in_the_way(app: Application) -> None:
    app.queue.enqueue(TYPE, {"to": "old"}, id="taken")
    refused = failing(app, DuplicateJob, TYPE, {"to": "x"}, id="taken")
    app.play(refused, "row eve, job eve, commit")
    assert both(app.url) == (["eve"], ["old", "eve"])


@pytest.mark.parametrize("app_name", MANY_AT_ONCE)
def test_batch_with_one_job_too_many_stores_none_and_spares_the_rows(app: Application) -> None:
    app.queue.set_config("max_depth", 2, type=TYPE)
    payloads = [{"to": name} for name in "abc"]

    def many(connection: Any) -> None:
        with pytest.raises(Exception, match="max_depth"):
            app.queue.enqueue_many(TYPE, payloads, connection=connection)

    app.play("row eve", playing(app, many, awaited=lambda own: own.run_sync(many)), "jobs d e, commit")
    assert both(app.url) == (["eve"], ["d", "e"])


def test_error_of_the_application_after_the_enqueue_keeps_neither(app: Application) -> None:
    app.play("row eve, job eve, commit")
    with pytest.raises(Exception, match=r"UNIQUE constraint failed: users\.name|users_pkey"):
        app.play("row ada, job ada, row eve, job again, commit")
    assert both(app.url) == (["eve"], ["eve"])


def test_key_of_an_uncommitted_job_is_seen_inside_its_transaction(app: Application) -> None:
    found: list[str] = []

    def again(connection: Any) -> None:
        found.append(app.queue.enqueue(TYPE, {"to": "eve"}, key="k", connection=connection).id)

    async def again_async(connection: Any) -> None:
        job = await app.queue.enqueue_async(TYPE, {"to": "eve"}, key="k", connection=connection)
        found.append(job.id)

    step = playing(app, again, awaited=again_async)
    app.play("row eve", step, step, "commit")
    assert len(set(found)) == 1
    assert both(app.url) == (["eve"], ["eve"])


@pytest.mark.parametrize("app_name", [f"sqlite-{name}" for name in KINDS])
def test_locked_database_is_an_error_that_keeps_nothing(app: Application) -> None:
    """Whoever holds the lock, the application hears it from its own connection and may try again."""

    def hold() -> None:
        other.execute("BEGIN IMMEDIATE")

    with closing(connect(app.url)) as other:
        impatient = playing(
            app, lambda own: run_sql(own, "PRAGMA busy_timeout = 0"), awaited=lambda own: own.run_sync(
                lambda within: run_sql(within, "PRAGMA busy_timeout = 0")
            )
        )  # fmt: skip
        app.play(impatient, hold, failing(app, sqlite3.OperationalError, TYPE, {"to": "eve"}), "rollback")
        other.execute("ROLLBACK")
    assert both(app.url) == ([], [])


def run_sql(connection: Any, sql: str) -> None:
    if isinstance(connection, sqlite3.Connection):
        connection.execute(sql).fetchall()
    elif hasattr(connection, "exec_driver_sql") or hasattr(connection, "get_bind"):
        connection.execute(sa.text(sql))
    else:
        with connection.cursor() as cursor:
            cursor.execute(sql)


# What the caller gets, and how soon.


def test_job_is_returned_as_by_any_enqueue(app: Application) -> None:
    found: list[Any] = []

    def enqueue(connection: Any) -> None:
        options = {"priority": 4, "timeout": 1.5, "connection": connection}
        found.append(app.queue.enqueue(TYPE, {"n": 1}, **options))

    async def enqueue_async(connection: Any) -> None:
        options = {"priority": 4, "timeout": 1.5, "connection": connection}
        found.append(await app.queue.enqueue_async(TYPE, {"n": 1}, **options))

    app.play(playing(app, enqueue, awaited=enqueue_async), "commit")
    [job] = found
    assert app.queue.get(job.id) == job
    assert (job.priority, job.timeout, job.max_attempts) == (4, 1.5, 3)


def test_job_function_takes_the_connection_as_an_option(app: Application) -> None:
    @app.queue.job
    def greet(to: str) -> None: ...

    def enqueue(connection: Any) -> None:
        greet.with_options(connection=connection).enqueue(to="eve")

    async def enqueue_async(connection: Any) -> None:
        await greet.with_options(connection=connection).enqueue_async(to="eve")

    step = playing(app, enqueue, awaited=enqueue_async)
    app.play(step, "rollback")
    assert jobs(app.url) == []
    app.play(step, "commit")
    assert jobs(app.url) == ["eve"]


@pytest.mark.parametrize("app_name", WITH_WORKERS)
def test_worker_starts_the_job_at_once_after_the_commit_and_not_before(
    app: Application, start_worker: Callable[..., Any]
) -> None:
    app.queue.set_config("poll_interval", 60)
    started, at = threading.Event(), dict[str, float]()

    def welcome(payload: dict[str, str]) -> None:
        at["started"] = time.monotonic()
        started.set()

    app.queue.register(TYPE, welcome)
    start_worker()

    def about_to_commit() -> None:
        assert not started.wait(0.05)
        at["commit"] = time.monotonic()

    app.play("row eve, job eve", about_to_commit, "commit")
    assert started.wait(30)
    assert 0 < at["started"] - at["commit"] < AT_ONCE


# What is refused.


both_engines = pytest.mark.parametrize("engine_name", ["sqlite", "postgres"])


@pytest.fixture
def engine(url: str) -> Iterator[sa.Engine]:
    engine = make_engine(url)
    yield engine
    engine.dispose()


@pytest.fixture
def alias(url: str) -> Iterator[str]:
    """Django's name for the queue's database."""
    alias = lead_django_to(url)
    yield alias
    forget_django(alias)


@pytest.fixture
def on_django(alias: str) -> Any:
    """Django's connection to the queue's database, in no transaction."""
    return django_connection if alias == "default" else connections[alias]


@asynccontextmanager
async def asynchronous(url: str, kind: type[Any] = AsyncConnection, **options: Any) -> AsyncIterator[Any]:
    engine = make_async_engine(url, **options)
    try:
        async with kind(engine) as connection:
            yield connection
    finally:
        await engine.dispose()


def assert_refused(queue: Queue, connection: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match) as refusal:
        queue.enqueue(TYPE, {}, connection=connection)
    assert "\n" not in str(refusal.value)
    with pytest.raises(ConfigError, match=match):
        queue.enqueue_many(TYPE, [{}, {}], connection=connection)


@pytest.fixture(scope="module")
def another_database(schema_url: str) -> Iterator[str]:
    """The address of a queue in another database of the server, in a schema of the same name."""
    name = postgres.new_schema()
    url = re.sub(r"(?<=\w/)\w*(?=\?)|(?<=@/)\w*(?=\?)", name, schema_url, count=1)
    with closing(connect(schema_url)) as connection:
        connection.execute(f"CREATE DATABASE {name} TEMPLATE template0")
        prepare(url)
        with closing(connect(url)) as _LOOKING[url]:
            yield url
        del _LOOKING[url]
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def another(url: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of another queue, with a table of the application beside it."""
    if is_postgres(url):
        other = request.getfixturevalue("another_database")
        yield other
        empty(_LOOKING[other])
    else:
        prepare(tmp_path / "another.db")
        yield address_of(tmp_path / "another.db")


def test_another_database_is_refused_and_keeps_its_transaction(app: Application, another: str) -> None:
    own, app.url = app.url, another
    app.play("row eve", failing(app, ConfigError, TYPE, {"to": "eve"}), "row ada, commit")
    assert both(another) == (["ada", "eve"], [])
    assert both(own) == ([], [])


def test_copy_of_the_queue_is_refused(schema_url: str, another_database: str) -> None:
    """As CREATE DATABASE … TEMPLATE makes one, or a dump: its identity is the same."""
    copied = "SELECT identity FROM holdfast_schema"
    [(identity,)] = _LOOKING[schema_url].execute(copied).fetchall()
    [(own,)] = _LOOKING[another_database].execute(copied).fetchall()
    _LOOKING[another_database].execute("UPDATE holdfast_schema SET identity = %s", (identity,))
    with Queue(schema_url) as queue, closing(connect(another_database)) as connection:
        assert_refused(queue, connection, "is connected to t_.*, which is not the queue's database")
    assert jobs(another_database) == []
    _LOOKING[another_database].execute("UPDATE holdfast_schema SET identity = %s", (own,))


def test_message_names_both_databases(engine: sa.Engine, tmp_path: Path) -> None:
    with Queue(f"sqlite:///{tmp_path / 'other.db'}") as queue, engine.connect() as connection:
        assert_refused(queue, connection, r"is connected to .*/queue\.db, but the queue is in .*/other\.db")
        assert not connection.in_transaction()


def test_database_in_memory_is_refused(queue: Queue) -> None:
    engine = sa.create_engine("sqlite://")
    with engine.connect() as connection:
        assert_refused(queue, connection, "a database in memory")
    engine.dispose()


def test_closed_sqlite3_connection_is_refused(queue: Queue, url: str) -> None:
    connection = sqlite3.connect(file_of(url))
    connection.close()
    assert_refused(queue, connection, "can't be used: Cannot operate on a closed database")


def test_sqlite3_connection_of_another_thread_is_refused(queue: Queue, url: str) -> None:
    with closing(sqlite3.connect(file_of(url))) as connection:
        thread = threading.Thread(target=assert_refused, args=(queue, connection, "same thread"))
        thread.start()
        thread.join()
        assert not connection.in_transaction


@both_engines
def test_closed_sqlalchemy_connection_is_refused(queue: Queue, engine: sa.Engine) -> None:
    connection = engine.connect()
    connection.close()
    assert_refused(queue, connection, "connection= is closed")


@both_engines
def test_closed_async_connection_is_refused(queue: Queue, url: str) -> None:
    async def main() -> None:
        async with asynchronous(url) as connection:
            await connection.close()
            with pytest.raises(ConfigError, match="connection= is closed"):
                await queue.enqueue_async(TYPE, {}, connection=connection)

    asyncio.run(main())


@both_engines
def test_django_connection_closed_inside_its_block_is_refused(
    queue: Queue, alias: str, on_django: Any
) -> None:
    with transaction.atomic(using=alias):
        on_django.close()
        assert_refused(queue, on_django, "closed inside its atomic block")


def test_another_engine_of_sqlalchemy_is_refused(
    queue: Queue, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine.dialect, "name", "postgresql")
    with engine.connect() as connection:
        assert_refused(queue, connection, "is connected to postgresql, but the queue is in SQLite")
    with Session(engine) as session:
        assert_refused(queue, session, "is connected to postgresql, but the queue is in SQLite")


def test_another_engine_of_django_is_refused(
    queue: Queue, on_django: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "postgresql")
    assert_refused(queue, on_django, "is connected to postgresql, but the queue is in SQLite")


@both_engines
def test_another_driver_of_the_database_is_refused(
    queue: Queue, engine: sa.Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with engine.connect() as connection:
        monkeypatch.setattr(type(connection.connection), "driver_connection", object())
        assert_refused(queue, connection, "not object")


@both_engines
@pytest.mark.parametrize("kind", [AsyncConnection, AsyncSession])
def test_asyncio_connection_is_refused_where_nothing_can_be_awaited(
    queue: Queue, url: str, kind: type[Any]
) -> None:
    async def main() -> None:
        async with asynchronous(url, kind) as connection:
            assert_refused(queue, connection, f"an {kind.__name__}.*enqueue_async.*run_sync")

    asyncio.run(main())


@both_engines
def test_async_scoped_session_is_refused_with_what_to_pass(queue: Queue, url: str) -> None:
    async def main() -> None:
        engine = make_async_engine(url)
        scoped = async_scoped_session(async_sessionmaker(engine), scopefunc=asyncio.current_task)
        with pytest.raises(ConfigError, match="the AsyncSession it returns"):
            await queue.enqueue_async(TYPE, {}, connection=scoped)
        await queue.enqueue_async(TYPE, {"to": "eve"}, connection=scoped())
        await scoped.commit()
        await scoped.remove()
        await engine.dispose()

    asyncio.run(main())
    assert jobs(url) == ["eve"]


@both_engines
def test_engine_is_no_connection(queue: Queue, engine: sa.Engine) -> None:
    assert_refused(queue, engine, r"or a SQLAlchemy or Django connection, not sqlalchemy\.\S*Engine")


@both_engines
def test_sqlalchemy_in_autocommit_is_refused(queue: Queue, url: str, engine: sa.Engine) -> None:
    """There begin() and commit() do nothing, so that row and job could not be one commit."""
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        assert_refused(queue, connection, "not in a transaction.*other than AUTOCOMMIT")
    assert jobs(url) == []


@both_engines
def test_sqlalchemy_in_autocommit_is_taken_in_a_transaction_begun_by_hand(
    queue: Queue, url: str, engine: sa.Engine
) -> None:
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
        connection.exec_driver_sql("BEGIN")
        queue.enqueue(TYPE, {"to": "eve"}, connection=connection)
        assert jobs(url) == []
        connection.exec_driver_sql("COMMIT")
    assert jobs(url) == ["eve"]


@both_engines
def test_django_outside_of_atomic_is_refused(queue: Queue, url: str, on_django: Any) -> None:
    assert_refused(queue, on_django, r"not in a transaction.*transaction\.atomic\(\)")
    assert jobs(url) == []


@both_engines
def test_django_without_autocommit_is_always_in_a_transaction(
    queue: Queue, url: str, alias: str, on_django: Any
) -> None:
    transaction.set_autocommit(False, using=alias)
    queue.enqueue(TYPE, {"to": "eve"}, connection=on_django)
    assert jobs(url) == []
    transaction.rollback(using=alias)
    queue.enqueue(TYPE, {"to": "ada"}, connection=on_django)
    transaction.commit(using=alias)
    assert jobs(url) == ["ada"]


@both_engines
def test_django_transaction_that_is_to_roll_back_takes_no_job(
    queue: Queue, url: str, alias: str, on_django: Any
) -> None:
    with transaction.atomic(using=alias):
        transaction.set_rollback(True, using=alias)
        with pytest.raises(TransactionManagementError):
            queue.enqueue(TYPE, {}, connection=on_django)
    assert jobs(url) == []


def test_wrapper_behind_djangos_proxy_is_taken_too(queue: Queue, url: str, on_django: Any) -> None:
    with transaction.atomic():
        queue.enqueue(TYPE, {"to": "eve"}, connection=connections["default"])
    assert jobs(url) == ["eve"]


# From asyncio.


def driver_connection(url: str) -> Any:
    return psycopg.connect(application_url(url)) if is_postgres(url) else sqlite3.connect(file_of(url))


@both_engines
def test_sync_connection_is_taken_by_enqueue_async(queue: Queue, url: str, engine: sa.Engine) -> None:
    async def main() -> None:
        with engine.begin() as connection:
            await queue.enqueue_async(TYPE, {"to": "eve"}, connection=connection)
            assert jobs(url) == []
        with closing(driver_connection(url)) as own, own:
            await queue.enqueue_async(TYPE, {"to": "ada"}, connection=own)
            assert jobs(url) == ["eve"]

    asyncio.run(main())
    assert jobs(url) == ["eve", "ada"]


class WithoutNumbers(sqlite3.Cursor):
    """Python 3.12.0 to 3.12.3 takes `?1` for a name, and warns of values that have none."""

    def execute(self, sql: str, parameters: Any = ()) -> Self:
        assert not re.search(r"\?\d", sql), sql
        return super().execute(sql, parameters)


class ConnectionWithoutNumbers(sqlite3.Connection):
    def cursor(self, factory: Any = WithoutNumbers) -> Any:
        return super().cursor(factory)


def test_statements_on_a_connection_of_the_application_have_no_numbered_parameters(
    queue: Queue, url: str
) -> None:
    queue.set_config("max_depth", 5, type=TYPE)
    with closing(sqlite3.connect(file_of(url), factory=ConnectionWithoutNumbers)) as connection, connection:
        queue.enqueue(TYPE, {"to": "ada"}, key="ada", key_for=60, connection=connection)
        queue.enqueue(TYPE, {"to": "ada"}, key="ada", connection=connection)
        queue.enqueue_many(TYPE, [{"to": "bob"}, {"to": "eve"}], connection=connection)
        queue.enqueue("other", {"to": "eve"}, id="job", connection=connection)
    assert jobs(url) == ["ada", "bob", "eve", "eve"]


def test_statements_of_an_async_connection_run_in_the_thread_of_its_driver(queue: Queue, url: str) -> None:
    """sqlite3 itself refuses any other here, which SQLAlchemy usually tells it not to do."""

    async def main() -> None:
        engine = make_async_engine(url, connect_args={"check_same_thread": True})
        async with engine.connect() as connection:
            await queue.enqueue_async(TYPE, {"to": "eve"}, connection=connection)
            await connection.commit()
        await engine.dispose()

    asyncio.run(main())
    assert jobs(url) == ["eve"]


if sys.version_info >= (3, 12):  # sqlite3 has no such mode before

    def test_autocommit_mode_of_an_async_connection_is_seen(queue: Queue, url: str) -> None:
        async def enqueue(*, autocommit: bool) -> None:
            engine = make_async_engine(url, connect_args={"autocommit": autocommit})
            try:
                async with engine.connect() as connection:
                    await queue.enqueue_async(TYPE, {"to": "eve"}, connection=connection)
                    await connection.commit()
            finally:
                await engine.dispose()

        with pytest.raises(ConfigError, match="not in a transaction"):
            asyncio.run(enqueue(autocommit=True))
        asyncio.run(enqueue(autocommit=False))
        assert jobs(url) == ["eve"]


@both_engines
@pytest.mark.parametrize("ticks", range(0, 24, 2))
def test_cancelled_enqueue_leaves_a_transaction_that_can_go_on(queue: Queue, url: str, ticks: int) -> None:
    async def main() -> None:
        async with asynchronous(url) as connection:
            await connection.exec_driver_sql("INSERT INTO users VALUES ('eve')")
            task = asyncio.ensure_future(queue.enqueue_async(TYPE, {"to": "eve"}, connection=connection))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await queue.enqueue_async(TYPE, {"to": "ada"}, connection=connection)
            assert both(url) == ([], [])
            await connection.commit()

    asyncio.run(main())
    queue.enqueue(TYPE, {"to": "last"})
    assert rows(url) == ["eve"]
    assert jobs(url) in (["ada", "last"], ["eve", "ada", "last"])


# Optional parts stay optional.


@pytest.mark.process
def test_enqueueing_with_a_sqlite3_connection_loads_none_of_the_libraries(url: str) -> None:
    program = """
import sqlite3, sys
from holdfast import Queue
with Queue(sys.argv[1]).open() as queue:
    connection = sqlite3.connect(sys.argv[2])
    queue.enqueue("welcome", {"to": "eve"}, connection=connection)
    connection.commit()
    connection.close()
print(*{"aiosqlite", "asyncio", "django", "greenlet", "sqlalchemy"} & set(sys.modules))
"""
    command = [sys.executable, "-W", "error", "-c", program, url, file_of(url)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == ""
    assert jobs(url) == ["eve"]


@both_engines
@pytest.mark.parametrize("kind", [AsyncConnection, AsyncSession])
def test_tasks_on_one_connection_do_not_undo_each_others_jobs(
    queue: Queue, url: str, kind: type[Any]
) -> None:
    taken = queue.enqueue(TYPE, {"to": "first"}).id

    async def main() -> None:
        async with asynchronous(url, kind) as connection:
            ended = await asyncio.gather(
                *(
                    queue.enqueue_async(
                        TYPE, {"to": f"n{number}"}, id=taken if number == 2 else None, connection=connection
                    )
                    for number in range(5)
                ),
                return_exceptions=True,
            )
            assert [type(end).__name__ for end in ended] == ["Job", "Job", "DuplicateJob", "Job", "Job"]
            await connection.commit()

    asyncio.run(main())
    assert sorted(jobs(url)) == ["first", "n0", "n1", "n3", "n4"]
