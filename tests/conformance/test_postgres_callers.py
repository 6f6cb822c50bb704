"""An application's own connections to PostgreSQL, and the one that a handler's transaction gives it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import psycopg
import psycopg2  # type: ignore[import-untyped]
import psycopg2.extras  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa
from psycopg.pq import TransactionStatus
from psycopg.rows import dict_row, namedtuple_row, scalar_row
from sqlalchemy.dialects import postgresql

from holdfast import Context, Queue
from holdfast.core.job import Status
from holdfast.core.lifecycle import completion
from holdfast.errors import (
    ConfigError,
    DuplicateJob,
    HoldfastError,
    KeyTaken,
    QueueFull,
    QueueMoved,
    TransactionExpired,
    WrongState,
)
from holdfast.handlers.options import ManyOptions
from holdfast.store.open import open_store
from holdfast.store.protocol import Store
from holdfast.testing import MovableClock
from tests import postgres
from tests.conformance.connections import (
    POSTGRES_KINDS,
    TYPE,
    Application,
    AsyncApplication,
    application_url,
    connect,
    empty,
    prepare,
)
from tests.conformance.steps import (
    LEASE,
    claim_one,
    everything,
    finished,
    insert,
    job,
    new_job,
    reap,
    run,
    status,
)
from tests.support import wait_until
from tests.worker.support import PATIENCE, Gate

ONE_OF_EACH_DRIVER = [
    "psycopg",
    "psycopg-async",
    "psycopg2",
    "sqlalchemy-async-psycopg",
    "sqlalchemy-async-asyncpg",
]
each_driver = pytest.mark.parametrize("kind", ONE_OF_EACH_DRIVER)
INSERT = "INSERT INTO users VALUES ('eve')"


@pytest.fixture(scope="module")
def shared_url() -> Iterator[str]:
    """A queue and an application's table in a schema that the tests share: to make one takes its time."""
    with postgres.fresh_url() as url:
        prepare(url)
        schema = url.rpartition("schema=")[2]
        # Where handlers find the application's table.
        yield postgres.with_parameters(url, options=f"-csearch_path={schema}")


@pytest.fixture(scope="module")
def looking(shared_url: str) -> Iterator[Any]:
    """A connection that sees what is committed."""
    with closing(connect(shared_url)) as connection:
        yield connection


@pytest.fixture
def url(shared_url: str, looking: Any) -> Iterator[str]:
    yield shared_url
    empty(looking)


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock()


@pytest.fixture
def store(url: str, clock: MovableClock) -> Iterator[Store]:
    with closing(open_store(url, clock)) as store:
        yield store


Connect = Callable[..., Any]


@pytest.fixture
def connecting(url: str) -> Iterator[Connect]:
    """Makes psycopg connections of an application."""
    made: list[psycopg.Connection[Any]] = []

    def connecting(**options: Any) -> psycopg.Connection[Any]:
        made.append(psycopg.connect(application_url(url), **options))
        return made[-1]

    yield connecting
    for connection in made:
        connection.close()


@pytest.fixture
def app(kind: str, url: str, queue: Queue) -> Application:
    return POSTGRES_KINDS[kind](url, queue)


def rows(looking: Any) -> list[str]:
    return [name for (name,) in looking.execute("SELECT name FROM users ORDER BY name")]


def ids(looking: Any) -> list[str]:
    return [id for (id,) in looking.execute("SELECT id FROM holdfast_jobs ORDER BY seq")]


def enqueue(store: Store, connection: Any, *names: str, **options: Any) -> None:
    verdicts = store.insert_jobs_with(connection, [new_job(name, **options) for name in names])
    assert all(verdict.inserted for verdict in verdicts)


def step(app: Application, expected: type[Exception], match: str, id: str, **options: Any) -> Any:
    """A step that enqueues what is refused, and goes on."""

    def sync() -> None:
        with pytest.raises(expected, match=match) as refusal:
            app.queue.enqueue(TYPE, {"to": id}, id=id, connection=app.connection, **options)
        check(refusal.value)

    async def awaited() -> None:
        with pytest.raises(expected, match=match) as refusal:
            await app.queue.enqueue_async(TYPE, {"to": id}, id=id, connection=app.connection, **options)
        check(refusal.value)

    def check(error: Exception) -> None:
        assert not isinstance(error, HoldfastError) or "\n" not in str(error)

    return awaited if isinstance(app, AsyncApplication) else sync


def execute(app: Application, sql: str, *, fails: bool = False) -> Any:
    """A step that runs some SQL of the application."""

    def sync() -> None:
        with suppress(Exception) if fails else closing(app.connection.cursor()):
            if hasattr(app.connection, "exec_driver_sql"):
                app.connection.exec_driver_sql(sql)
            else:
                app.connection.cursor().execute(sql)

    async def awaited() -> None:
        try:
            own = app.connection
            await (own.exec_driver_sql(sql) if hasattr(own, "exec_driver_sql") else own.execute(sql))
        except Exception:
            assert fails

    return awaited if isinstance(app, AsyncApplication) else sync


# What a connection may look like.


@pytest.mark.parametrize("row_factory", [dict_row, namedtuple_row, scalar_row])
@pytest.mark.parametrize("cursor_factory", [psycopg.ClientCursor, psycopg.RawCursor])
def test_factories_of_the_caller_do_not_matter(
    store: Store, connecting: Connect, looking: Any, row_factory: Any, cursor_factory: Any
) -> None:
    connection = connecting(row_factory=row_factory, cursor_factory=cursor_factory)
    enqueue(store, connection, "a", key="k", payload='{"n": "žluť"}', max_depth=100)
    [again] = store.insert_jobs_with(connection, [new_job("b", key="k", payload='{"n": "žluť"}')])
    assert (again.id, again.inserted, again.error, again.status) == ("a", False, None, Status.PENDING)
    [taken] = store.insert_jobs_with(connection, [new_job("c", key="k")])
    assert isinstance(taken.error, KeyTaken)
    [duplicate] = store.insert_jobs_with(connection, [new_job("a")])
    assert isinstance(duplicate.error, DuplicateJob)
    [full] = store.insert_jobs_with(connection, [new_job("d", max_depth=1)])
    assert isinstance(full.error, QueueFull)
    connection.commit()
    assert ids(looking) == ["a"]
    assert (connection.row_factory, connection.cursor_factory) == (row_factory, cursor_factory)


@pytest.mark.parametrize("factory", ["DictCursor", "RealDictCursor", "NamedTupleCursor"])
def test_cursor_factories_of_psycopg2_do_not_matter(
    store: Store, url: str, looking: Any, factory: str
) -> None:
    kind = getattr(psycopg2.extras, factory)
    with closing(psycopg2.connect(application_url(url), cursor_factory=kind)) as connection:
        enqueue(store, connection, "a", key="k")
        [taken] = store.insert_jobs_with(connection, [new_job("c", key="k", payload="[]")])
        assert isinstance(taken.error, KeyTaken)
        connection.commit()
    assert ids(looking) == ["a"]


@pytest.mark.parametrize("threshold", [None, 0])
def test_prepared_statements_are_as_the_caller_wants_them(
    store: Store, connecting: Connect, looking: Any, threshold: int | None
) -> None:
    connection = connecting(prepare_threshold=threshold)
    for number in range(8):
        enqueue(store, connection, f"job-{number}", key=f"k-{number}")
        [duplicate] = store.insert_jobs_with(connection, [new_job("job-0")])
        assert isinstance(duplicate.error, DuplicateJob)
    [(prepared,)] = connection.execute("SELECT count(*) FROM pg_prepared_statements").fetchall()
    assert (prepared > 0) is (threshold == 0)
    connection.commit()
    assert len(ids(looking)) == 8


def test_job_takes_its_place_in_a_pipeline(store: Store, connecting: Connect, looking: Any) -> None:
    insert(store, "taken")
    connection = connecting()
    with connection.pipeline():
        connection.execute(INSERT)
        enqueue(store, connection, "a", key="k")
        [duplicate] = store.insert_jobs_with(connection, [new_job("taken")])
        assert isinstance(duplicate.error, DuplicateJob)
        connection.execute("INSERT INTO users VALUES ('ada')")
        enqueue(store, connection, "b", "c")
        assert (rows(looking), ids(looking)) == ([], ["taken"])
        connection.commit()
    assert (rows(looking), ids(looking)) == (["ada", "eve"], ["taken", "a", "b", "c"])


def test_error_that_waits_in_a_pipeline_is_told(store: Store, connecting: Connect, looking: Any) -> None:
    connection = connecting()
    with connection.pipeline():
        connection.execute("INSERT INTO nowhere VALUES (1)")
        with pytest.raises(psycopg.errors.UndefinedTable):
            enqueue(store, connection, "a")
    assert ids(looking) == []


def test_job_takes_its_place_in_a_pipeline_of_asyncio(queue: Queue, url: str, looking: Any) -> None:
    async def main() -> None:
        async with (
            await psycopg.AsyncConnection.connect(application_url(url), row_factory=dict_row) as connection,
            connection.pipeline(),
        ):
            await connection.execute(INSERT)
            await queue.enqueue_async(TYPE, {}, id="a", connection=connection)
            with pytest.raises(DuplicateJob):
                await queue.enqueue_async(TYPE, {}, id="a", connection=connection)
            assert ids(looking) == []

    asyncio.run(main())
    assert (rows(looking), ids(looking)) == (["eve"], ["a"])


@pytest.mark.parametrize("level", psycopg.IsolationLevel)
def test_isolation_level_is_the_callers(
    store: Store, connecting: Connect, looking: Any, level: psycopg.IsolationLevel
) -> None:
    insert(store, "taken")
    connection = connecting()
    connection.isolation_level = level
    enqueue(store, connection, "a", "b")
    [duplicate] = store.insert_jobs_with(connection, [new_job("taken")])
    assert isinstance(duplicate.error, DuplicateJob)
    connection.commit()
    assert ids(looking) == ["taken", "a", "b"]


def test_route_to_the_database_does_not_matter(store: Store, looking: Any) -> None:
    """The application has a search path of its own, which leads past our tables."""
    with closing(psycopg.connect(postgres.server_url())) as connection:
        enqueue(store, connection, "a")
        connection.commit()
    assert ids(looking) == ["a"]


STRANGE = ["%s", "%(p1)s", "$1", "100 %", 'it\'s \\ "quoted"', "žluť 🐎", "{1,NULL}", "\\x00", "?"]


@each_driver
def test_job_is_stored_as_any_other(app: Application) -> None:
    """Whatever is in its texts, and with its gaps, in the driver's way to write parameters."""
    given: ManyOptions = {"priority": -3, "timeout": 1.5, "max_attempts": 7, "delay": 60}
    payload = {"to": STRANGE}
    made: list[Any] = []

    def keep(found: Any) -> None:
        made.append(found)

    def sync() -> None:
        for key in STRANGE:
            keep(app.queue.enqueue("a", payload, key=key, key_for=9, connection=app.connection, **given))

    async def awaited() -> None:
        own = app.connection
        for key in STRANGE:
            keep(await app.queue.enqueue_async("a", payload, key=key, key_for=9, connection=own, **given))

    app.play(awaited if isinstance(app, AsyncApplication) else sync, "job eve, commit")
    for key, found in zip(STRANGE, made, strict=True):
        plain = app.queue.enqueue("b", payload, key=key, key_for=9, **given)
        assert app.queue.get(found.id) == found
        differ = {"id", "type", "created_at", "updated_at", "run_at"}
        for name in set(plain.__struct_fields__) - differ:
            assert getattr(found, name) == getattr(plain, name), name


def test_gaps_in_a_batch_are_kept_by_each_driver(url: str, store: Store) -> None:
    options: list[dict[str, Any]] = [
        {"key": "k", "key_for": 5.0, "priority": 40_000, "max_attempts": 2, "parent_id": "p"},
        {"delay": 60.0, "timeout": 1.5, "priority": 3_000_000},
        {"run_at": 1_900_000_000_000_000, "max_attempts": 40_000},
        {},
    ]

    def batch(name: str) -> list[Any]:
        return [new_job(f"{name}-{n}", type=name, **given) for n, given in enumerate(options)]

    async def awaited() -> None:
        async with await psycopg.AsyncConnection.connect(application_url(url)) as connection:
            await store.insert_jobs_awaiting(connection, batch("async"))

    store.insert_jobs(batch("plain"))
    for name, driver in (("psycopg", psycopg), ("psycopg2", psycopg2)):
        with closing(driver.connect(application_url(url))) as connection:
            store.insert_jobs_with(connection, batch(name))
            connection.commit()
    asyncio.run(awaited())
    for number in range(len(options)):
        plain = job(store, f"plain-{number}")
        for name in ("psycopg", "psycopg2", "async"):
            found = job(store, f"{name}-{number}")
            for field in set(plain.__struct_fields__) - {"id", "type"}:
                assert getattr(found, field) == getattr(plain, field), (name, field)


# Autocommit.


def test_autocommit_chosen_by_hand_commits_at_once(store: Store, connecting: Connect, looking: Any) -> None:
    connection = connecting(autocommit=True)
    enqueue(store, connection, "a", "b")
    assert connection.info.transaction_status == TransactionStatus.IDLE
    assert ids(looking) == ["a", "b"]
    verdicts = store.insert_jobs_with(connection, [new_job("c"), new_job("a")])
    assert isinstance(verdicts[1].error, DuplicateJob)
    assert connection.info.transaction_status == TransactionStatus.IDLE
    assert ids(looking) == ["a", "b"]


def test_autocommit_of_psycopg2_commits_at_once(store: Store, url: str, looking: Any) -> None:
    with closing(psycopg2.connect(application_url(url))) as connection:
        connection.autocommit = True
        enqueue(store, connection, "a", "b")
        assert ids(looking) == ["a", "b"]
        assert connection.get_transaction_status() == TransactionStatus.IDLE


def test_autocommit_commits_at_once_in_asyncio(queue: Queue, url: str, looking: Any) -> None:
    async def main() -> None:
        options: dict[str, Any] = {"autocommit": True, "row_factory": dict_row}
        async with await psycopg.AsyncConnection.connect(application_url(url), **options) as connection:
            await queue.enqueue_async(TYPE, {}, id="a", connection=connection)
            assert ids(looking) == ["a"]
            async with connection.transaction(force_rollback=True):
                await queue.enqueue_async(TYPE, {}, id="b", connection=connection)
            async with connection.pipeline():
                await queue.enqueue_async(TYPE, {}, id="c", connection=connection)

    asyncio.run(main())
    assert ids(looking) == ["a", "c"]


def test_block_of_psycopg_commits_or_rolls_back_the_job(
    store: Store, connecting: Connect, looking: Any
) -> None:
    connection = connecting(autocommit=True)
    with connection.transaction():
        enqueue(store, connection, "a")
        with connection.transaction(force_rollback=True):
            enqueue(store, connection, "b")
        assert ids(looking) == []
    with suppress(ZeroDivisionError), connection.transaction():
        enqueue(store, connection, "c")
        raise ZeroDivisionError
    connection.execute("BEGIN")
    enqueue(store, connection, "d")
    connection.execute("ROLLBACK")
    assert ids(looking) == ["a"]


# Telling workers.


@contextmanager
def hearing(store: Store, url: str) -> Iterator[Callable[[], list[str]]]:
    """What was told to the queue's workers so far, by payloads."""
    heard: list[str] = []

    def listen() -> list[str]:
        heard.extend(told.payload for told in ear.notifies(timeout=0))
        return heard

    with closing(psycopg.connect(application_url(url), autocommit=True)) as ear:
        [(identity,)] = ear.execute("SELECT identity FROM holdfast_schema").fetchall()
        ear.execute(f"LISTEN holdfast_{identity}")
        yield listen


def test_workers_are_told_once_by_the_callers_commit(store: Store, url: str, connecting: Connect) -> None:
    with hearing(store, url) as told:
        connection = connecting()
        enqueue(store, connection, "a", "b")
        enqueue(store, connection, "c")
        assert told() == []
        connection.commit()
        wait_until(told)
        assert told() == [""]


def test_nobody_is_told_of_what_is_rolled_back_or_refused(
    store: Store, url: str, connecting: Connect
) -> None:
    insert(store, "taken")
    connection = connecting()
    with hearing(store, url) as told:
        enqueue(store, connection, "a")
        connection.rollback()
        store.insert_jobs_with(connection, [new_job("b"), new_job("taken")])
        connection.commit()
        with pytest.raises(psycopg.errors.UndefinedTable):
            connection.execute("SELECT * FROM nowhere")
        connection.rollback()
        assert told() == []


def test_queue_without_notify_tells_nobody(url: str, connecting: Connect) -> None:
    connection = connecting()
    with Queue(url, notify=False) as queue, hearing(queue, url) as told:  # type: ignore[arg-type]
        queue.enqueue(TYPE, {}, connection=connection)
        connection.commit()
        assert told() == []


# What it costs.


def test_enqueue_is_one_statement(queue: Queue, connecting: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    queue.enqueue(TYPE, {}, key="taken")
    connection = connecting()
    execute, statements = psycopg.RawCursor.execute, []

    def spy(self: Any, query: Any, *arguments: Any, **options: Any) -> Any:
        if self.connection is connection:
            statements.append(str(query).split()[0])
        return execute(self, query, *arguments, **options)

    def sent(**options: Any) -> list[str]:
        statements.clear()
        queue.enqueue(TYPE, {}, connection=connection, **options)
        return list(statements)

    monkeypatch.setattr(psycopg.RawCursor, "execute", spy)
    assert sent() == ["SELECT", "WITH"], "a connection that is new here is looked at"
    assert sent() == ["WITH"]
    assert sent(key="k") == ["SAVEPOINT", "WITH", "RELEASE"], "in one round trip"
    assert sent(key="taken") == ["SAVEPOINT", "WITH", "RELEASE", "SELECT"], "in two"


@each_driver
def test_jobs_without_a_key_are_in_no_subtransaction(app: Application, looking: Any) -> None:
    app.play("row eve, jobs a, jobs b, jobs c, commit")
    transactions = looking.execute(
        "SELECT xmin::text FROM users UNION SELECT xmin::text FROM holdfast_jobs"
    ).fetchall()
    assert len(ids(looking)) == 3
    assert len(transactions) == 1


def test_key_and_its_expired_holder_go_in_one_statement(
    store: Store, connecting: Connect, looking: Any, clock: MovableClock
) -> None:
    finished(store, "old", key="k", key_for=1.0)
    connection = connecting()
    enqueue(store, connection, "other")
    clock.advance(2)
    enqueue(store, connection, "new", key="k")
    connection.commit()
    assert ids(looking) == ["old", "other", "new"]


# Errors leave the transaction as it was.


@each_driver
def test_error_of_the_database_spares_the_transaction(app: Application, looking: Any, url: str) -> None:
    """Another transaction is about to insert the same id, and the application does not want to wait."""
    with closing(psycopg.connect(application_url(url))) as other:
        app.queue.enqueue(TYPE, {}, id="held", connection=other)
        app.play(
            execute(app, "SET LOCAL lock_timeout = 1"),
            "row eve",
            step(app, Exception, "lock timeout", "held"),
            execute(app, "SET LOCAL lock_timeout = 0"),  # commits that notify wait for each other
            "row ada, job ada, commit",
        )
        other.rollback()
    assert (rows(looking), ids(looking)) == (["ada", "eve"], ["ada"])


@pytest.mark.parametrize("kind", [*ONE_OF_EACH_DRIVER, "sqlalchemy-psycopg", "django-psycopg"])
def test_transaction_that_has_failed_is_refused_in_one_line(app: Application, looking: Any) -> None:
    refused = step(app, ConfigError, "in a transaction that has failed.*roll it back", "a")
    app.play(execute(app, "SELECT * FROM nowhere", fails=True), refused, refused, "rollback")
    assert ids(looking) == []
    app.play("row eve, job b, commit")
    assert ids(looking) == ["b"]


@pytest.mark.parametrize("kind", ["psycopg", "psycopg-async", "psycopg2"])
def test_closed_connection_is_refused_in_one_line(app: Application, looking: Any) -> None:
    app.play(lambda: app.connection.close(), step(app, ConfigError, "connection= is closed", "a"))
    assert ids(looking) == []


@each_driver
def test_connection_that_breaks_says_so_in_its_drivers_words(app: Application, looking: Any) -> None:
    def cut() -> None:
        looking.execute(
            "SELECT pg_terminate_backend(pid, 30000) FROM pg_locks"
            " WHERE relation = 'users'::regclass AND pid <> pg_backend_pid()"
        ).fetchall()

    app.play("row ada, commit")
    met: list[str] = []
    broken = step(app, Exception, "terminat|closed|connection", "a")
    with suppress(Exception):  # of leaving a transaction that is gone
        app.play("row eve", cut, broken, lambda: met.append("the error"), "commit")
    assert met
    assert (rows(looking), ids(looking)) == (["ada"], [])


@each_driver
def test_queue_that_was_moved_says_where_to(app: Application, looking: Any) -> None:
    looking.execute("""
        CREATE FUNCTION moved() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'the queue was moved to postgresql://elsewhere' USING ERRCODE = 'HFMVD';
        END $$;
        CREATE TRIGGER moved BEFORE INSERT ON holdfast_jobs EXECUTE FUNCTION moved()
    """)
    try:
        app.play("row eve", step(app, QueueMoved, "postgresql://elsewhere", "a"), "row ada, commit")
    finally:
        looking.execute("DROP FUNCTION moved() CASCADE")
    assert rows(looking) == ["ada", "eve"]


# What is refused.


@pytest.mark.parametrize("wrong", [None, "postgresql://", object()])
def test_what_is_no_connection_is_refused(store: Store, wrong: object) -> None:
    with pytest.raises(ConfigError, match=f"must be a psycopg connection.* not {type(wrong).__name__}"):
        store.insert_jobs_with(wrong, [new_job("a")])


def test_queue_that_was_made_anew_is_another(queue: Queue, connecting: Connect, looking: Any) -> None:
    queue.open()
    connection = connecting()
    connection.execute("UPDATE holdfast_schema SET identity = 'another'")
    with pytest.raises(ConfigError, match="which is not the queue's database"):
        queue.enqueue(TYPE, {}, connection=connection)
    connection.execute("ALTER TABLE holdfast_schema RENAME TO gone")
    with pytest.raises(ConfigError, match="which is not the queue's database"):
        queue.enqueue(TYPE, {}, connection=connection)
    connection.rollback()
    queue.enqueue(TYPE, {}, id="a", connection=connection)
    connection.commit()
    assert ids(looking) == ["a"]


def test_connection_of_another_engine_is_refused(queue: Queue, tmp_path: Path) -> None:
    engine = sa.create_engine(f"sqlite:///{tmp_path / 'app.db'}")
    with (
        engine.connect() as connection,
        pytest.raises(ConfigError, match=r"is connected to sqlite, .*PostgreSQL"),
    ):
        queue.enqueue(TYPE, {}, connection=connection)
    engine.dispose()


def test_asyncio_connection_is_refused_where_nothing_can_be_awaited(queue: Queue, url: str) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(application_url(url)) as connection:
            with pytest.raises(ConfigError, match=r"an AsyncConnection.*enqueue_async"):
                queue.enqueue(TYPE, {}, connection=connection)
        bare = await asyncpg.connect(application_url(url))
        with pytest.raises(ConfigError, match=r"must be a psycopg connection.* not asyncpg"):
            await queue.enqueue_async(TYPE, {}, connection=bare)
        await bare.close()

    asyncio.run(main())


# asyncio.


@pytest.mark.parametrize("ticks", range(0, 24, 3))
def test_cancelled_enqueue_leaves_a_transaction_that_can_go_on(
    queue: Queue, url: str, looking: Any, ticks: int
) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(application_url(url)) as connection:
            await connection.execute(INSERT)
            task = asyncio.ensure_future(queue.enqueue_async(TYPE, {}, id="cut", connection=connection))
            for _ in range(ticks):
                await asyncio.sleep(0)
            task.cancel()
            await asyncio.wait([task])
            await queue.enqueue_async(TYPE, {}, id="a", connection=connection)
            assert ids(looking) == []

    asyncio.run(main())
    assert rows(looking) == ["eve"]
    assert ids(looking) in (["a"], ["cut", "a"])


@pytest.mark.parametrize("refused", [0, 1])
def test_cancelled_enqueue_waits_no_longer_for_somebody_elses_transaction(
    queue: Queue, url: str, looking: Any, monkeypatch: pytest.MonkeyPatch, refused: int
) -> None:
    connect, cancel = psycopg.AsyncConnection.connect, psycopg.AsyncConnection.cancel_safe
    refusals = [psycopg.OperationalError("too many clients")] * refused

    async def cancel_if_let(connection: Any) -> None:
        if refusals:
            raise refusals.pop()
        await cancel(connection)

    monkeypatch.setattr(psycopg.AsyncConnection, "cancel_safe", cancel_if_let)

    async def main() -> None:
        async with await connect(application_url(url)) as other, await connect(application_url(url)) as own:
            await queue.enqueue_async(TYPE, {}, id="holder", key="k", connection=other)
            await own.execute(INSERT)
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.5):
                    await queue.enqueue_async(TYPE, {}, id="cut", key="k", connection=own)
            await queue.enqueue_async(TYPE, {}, id="a", connection=own)

    asyncio.run(main())
    assert rows(looking) == ["eve"]
    assert sorted(ids(looking)) == ["a", "holder"]


def test_tasks_on_one_connection_do_not_undo_each_others_jobs(queue: Queue, url: str, looking: Any) -> None:
    async def main() -> None:
        async with await psycopg.AsyncConnection.connect(application_url(url)) as connection:
            ended = await asyncio.gather(
                *(queue.enqueue_async(TYPE, {}, id=id, connection=connection) for id in "abac"),
                return_exceptions=True,
            )
            assert [type(end).__name__ for end in ended] == ["Job", "Job", "DuplicateJob", "Job"]

    asyncio.run(main())
    assert ids(looking) == ["a", "b", "c"]


# Django with psycopg 2, which it takes only where it finds no psycopg 3.

PROGRAM = """
import sys
sys.modules["psycopg"] = None
import django.db.backends.postgresql.base
del sys.modules["psycopg"]
from holdfast import Queue
from holdfast.errors import ConfigError, DuplicateJob
from tests.conformance.connections import POSTGRES_KINDS
url = sys.argv[1]
with Queue(url) as queue:
    app = POSTGRES_KINDS["django-psycopg"](url, queue)
    app.play("job eve, row eve, savepoint, row mallory, job mallory, undo, jobs x y, commit")
    app.play("row ada, job ada, rollback")
    def refused():
        assert type(app.connection.connection).__module__.startswith("psycopg2")
        try:
            app.job("eve")
        except DuplicateJob:
            app.job("bob")
    app.play(refused, "commit")
"""


def test_django_with_psycopg_2_commits_row_and_job_together(url: str, looking: Any) -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-W", "error", "-c", PROGRAM, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, cwd=root, check=False)
    assert done.returncode == 0, done.stderr
    assert rows(looking) == ["eve"]
    assert [id for id in ids(looking) if len(id) == 3] == ["eve", "bob"]
    assert len(ids(looking)) == 4


# ctx.transaction().


@contextmanager
def attempting(store: Store, claimed: Any, seconds: float = 60.0) -> Iterator[Any]:
    own = store.begin_attempt_transaction(claimed, seconds)
    own.begin()
    try:
        yield own.connection
    except BaseException:
        own.rollback()
        raise
    own.commit(completion("1"), [])


def test_renewal_and_reaper_pass_over_a_job_in_its_transaction(
    store: Store, clock: MovableClock, looking: Any
) -> None:
    claimed, other = run(store, "a"), run(store, "b")
    with attempting(store, claimed) as own:
        own.execute(INSERT)
        held = [(each.seq, each.version) for each in (claimed, other)]
        assert not store.heartbeat("worker", held, state="running", lease_seconds=LEASE).lost
        clock.advance(10 * LEASE)
        reap(store)
        assert (status(store, "a"), status(store, "b")) == (Status.PROCESSING, Status.PENDING)
    assert status(store, "a") is Status.COMPLETED
    assert rows(looking) == ["eve"]


def test_other_jobs_go_on_meanwhile(store: Store, looking: Any) -> None:
    with attempting(store, run(store, "a")) as own:
        own.execute(INSERT)
        with attempting(store, run(store, "b")) as second:
            second.execute("INSERT INTO users VALUES ('ada')")
        assert status(store, "b") is Status.COMPLETED
        insert(store, "c")
        assert claim_one(store).id == "c"
    assert [found.status for found in everything(store)] == ["completed", "completed", "processing"]
    assert rows(looking) == ["ada", "eve"]


def test_enqueue_through_an_expired_transaction_stores_nothing(store: Store, looking: Any) -> None:
    with suppress(TransactionExpired), attempting(store, run(store, "a"), 0.02) as own:
        wait_until(lambda: own.expired_after is not None)
        with pytest.raises(TransactionExpired):
            store.insert_jobs_with(own, [new_job("b")])
    assert ids(looking) == ["a"]


def test_enqueue_that_waits_when_time_is_up_is_cut_short(
    store: Store, connecting: Connect, looking: Any
) -> None:
    other = connecting()
    enqueue(store, other, "b")
    claimed = run(store, "a")
    with pytest.raises(TransactionExpired), attempting(store, claimed, 0.1) as own:
        store.insert_jobs_with(own, [new_job("b")])
    other.rollback()
    assert ids(looking) == ["a"]


@pytest.fixture
def work(queue: Queue, start_worker: Any) -> Callable[..., Any]:
    """Runs a handler to the end of its job."""

    def work(handler: Callable[..., Any], **options: Any) -> Any:
        queue.job(name="handler", max_attempts=1)(handler)
        start_worker()
        return queue.wait(queue.enqueue("handler", **options).id, timeout=PATIENCE)

    return work


def test_statement_that_failed_fails_the_attempt_and_keeps_nothing(work: Any, looking: Any) -> None:
    def handler(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(INSERT)
            with suppress(psycopg.errors.UndefinedTable):
                connection.execute("SELECT * FROM nowhere")

    done = work(handler)
    assert (done.status, rows(looking)) == ("failed", [])
    assert "a statement inside ctx.transaction() failed" in done.error


def test_what_may_fail_is_tried_in_a_savepoint(work: Any, looking: Any) -> None:
    async def handler(ctx: Context) -> None:
        async with ctx.transaction() as connection:
            connection.execute(INSERT)
            with suppress(psycopg.errors.UniqueViolation), connection.transaction():
                connection.execute(INSERT)

    assert work(handler).status == "completed"
    assert rows(looking) == ["eve"]


def test_statements_of_sqlalchemy_are_compiled_for_the_connection(work: Any, looking: Any) -> None:
    users = sa.table("users", sa.column("name"))
    dialect = postgresql.dialect(paramstyle="pyformat")

    def handler(ctx: Context) -> None:
        with ctx.transaction() as connection:
            compiled = sa.insert(users).values(name="100 % eve").compile(dialect=dialect)
            connection.execute(str(compiled), compiled.params)

    assert work(handler).status == "completed"
    assert rows(looking) == ["100 % eve"]


# The server is shared with other test processes, which have waiters of their own.
WAITS_FOR_USERS = """
SELECT 1 FROM pg_locks AS waiter WHERE NOT granted AND EXISTS (
    SELECT 1 FROM pg_locks AS holder
    WHERE holder.pid = ANY(pg_blocking_pids(waiter.pid)) AND holder.relation = 'users'::regclass)
"""


def test_cancellation_waits_for_the_transaction_and_comes_too_late(
    queue: Queue, start_worker: Any, looking: Any
) -> None:
    gate, ended = Gate(), list[str]()

    @queue.job
    def handler(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute(INSERT)
            gate.enter()

    def cancel() -> None:
        try:
            queue.cancel(made.id)
        except WrongState as error:
            ended.append(str(error))

    start_worker()
    made = handler.enqueue()
    gate.wait_entered()
    thread = threading.Thread(target=cancel)
    thread.start()
    wait_until(lambda: looking.execute(WAITS_FOR_USERS).fetchall(), message="a waiter")
    gate.open()
    thread.join(PATIENCE)
    assert len(ended) == 1
    assert queue.wait(made.id, timeout=PATIENCE).status == "completed"
    assert rows(looking) == ["eve"]
