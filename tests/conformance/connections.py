"""Applications that play a script of inserts and enqueues through a connection of each kind."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sqlite3
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any

import asyncpg  # type: ignore[import-untyped]
import django  # type: ignore[import-untyped]
import psycopg
import psycopg2  # type: ignore[import-untyped]
import sqlalchemy as sa
from django.conf import settings  # type: ignore[import-untyped]
from django.db import connection as django_connection  # type: ignore[import-untyped]
from django.db import connections, models, transaction
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from holdfast import Queue

Step = str | Callable[[], object]
TYPE = "welcome"


def application_url(url: str) -> str:
    """The address of a queue's database as an application knows it, whose tables are in the same schema."""
    return re.sub(r"\bschema=(\w+)(&options=[^&\s]+)?", r"options=-csearch_path%3D\1", url)


def connect(url: str) -> Any:
    """A plain connection in autocommit mode to the database of a queue."""
    if is_postgres(url):
        return psycopg.connect(application_url(url), autocommit=True)
    return sqlite3.connect(file_of(url), isolation_level=None)


def is_postgres(url: str) -> bool:
    return url.startswith("postgresql:")


def file_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


class Application:
    """Plays scripts. A step is a word and names, as in `row eve` or `jobs a b`, or a function to call.

    Steps: row NAME, job ID, jobs NAME…; savepoint, release, undo (the last savepoint); commit, rollback;
    kill. A transaction that comes after another begins with `begins`.
    """

    begins = ""

    def __init__(self, url: str, queue: Queue) -> None:
        self.url = url
        self.queue = queue

    def play(self, *steps: Step) -> None:
        self.open()
        try:
            for step in split(steps):
                step() if callable(step) else self.do(*step.split())
        finally:
            self.close()

    def do(self, verb: str, *names: str) -> Any:
        if verb == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        return getattr(self, verb)(*names)

    def job(self, id: str, **options: Any) -> None:
        self.queue.enqueue(TYPE, {"to": id}, id=id, connection=self.connection, **options)

    def jobs(self, *names: str) -> None:
        self.queue.enqueue_many(TYPE, [{"to": name} for name in names], connection=self.connection)

    connection: Any

    def open(self) -> None: ...
    def close(self) -> None: ...
    def row(self, name: str) -> Any: ...
    def savepoint(self) -> Any: ...
    def release(self) -> Any: ...
    def undo(self) -> Any: ...
    def commit(self) -> Any: ...
    def rollback(self) -> Any: ...


def split(steps: Iterable[Step]) -> list[Step]:
    """The steps one by one: a text may hold several, with commas between them."""
    found: list[Step] = []
    for step in steps:
        found += [step] if callable(step) else [part.strip() for part in step.split(",")]
    return found


class Sqlite(Application):
    placeholder = "?"

    def open(self) -> None:
        self.connection = sqlite3.connect(file_of(self.url))

    def close(self) -> None:
        self.connection.close()

    def execute(self, sql: str, *parameters: Any) -> Any:
        with closing(self.connection.cursor()) as cursor:
            cursor.execute(sql, parameters)

    def row(self, name: str) -> Any:
        return self.execute(f"INSERT INTO users VALUES ({self.placeholder})", name)

    def savepoint(self) -> Any:
        return self.execute("SAVEPOINT mine")

    def release(self) -> Any:
        return self.execute("RELEASE SAVEPOINT mine")

    def undo(self) -> Any:
        self.execute("ROLLBACK TO mine")
        self.release()

    def commit(self) -> Any:
        return self.connection.commit()

    def rollback(self) -> Any:
        return self.connection.rollback()


class Psycopg(Sqlite):
    placeholder = "%s"

    def open(self) -> None:
        self.connection = psycopg.connect(application_url(self.url))


class Psycopg2(Psycopg):
    def open(self) -> None:
        self.connection = psycopg2.connect(application_url(self.url))


# SQLAlchemy.


class Base(DeclarativeBase): ...


class User(Base):
    __tablename__ = "users"
    name: Mapped[str] = mapped_column(primary_key=True)


INSERT = sa.insert(User.__table__)  # type: ignore[arg-type]


def make_engine(url: str, driver: str = "psycopg", **options: Any) -> sa.Engine:
    """An engine to the database of a queue."""
    if not is_postgres(url):
        return sa.create_engine(url, **options)
    connect = {"psycopg": psycopg.connect, "psycopg2": psycopg2.connect}[driver]
    address = application_url(url)
    return sa.create_engine(f"postgresql+{driver}://", creator=lambda: connect(address), **options)


def make_async_engine(url: str, driver: str = "asyncpg", **options: Any) -> AsyncEngine:
    if not is_postgres(url):
        return create_async_engine(f"sqlite+aiosqlite:///{file_of(url)}", **options)
    connect = {"asyncpg": asyncpg.connect, "psycopg": psycopg.AsyncConnection.connect}[driver]
    address = application_url(url)
    return create_async_engine(f"postgresql+{driver}://", async_creator=lambda: connect(address), **options)


class SqlalchemyConnection(Application):
    driver = "psycopg"

    def open(self) -> None:
        self.engine = make_engine(self.url, self.driver)
        self.nested: list[Any] = []
        self.connection = self.connect()

    def connect(self) -> Any:
        return self.engine.connect()

    def close(self) -> None:
        self.connection.close()
        self.engine.dispose()

    def row(self, name: str) -> Any:
        self.connection.execute(INSERT.values(name=name))

    def savepoint(self) -> Any:
        self.nested.append(self.connection.begin_nested())

    def release(self) -> Any:
        return self.nested.pop().commit()

    def undo(self) -> Any:
        return self.nested.pop().rollback()

    def commit(self) -> Any:
        return self.connection.commit()

    def rollback(self) -> Any:
        return self.connection.rollback()


class SqlalchemyWithBegin(SqlalchemyConnection):
    """With the recipe of SQLAlchemy's documentation for savepoints: it emits BEGIN, not the driver."""

    def connect(self) -> Any:
        emit_begin(self.engine)
        return super().connect()


def emit_begin(engine: sa.Engine) -> None:
    @sa.event.listens_for(engine, "connect")
    def leave_it_to_us(connection: Any, record: Any) -> None:
        connection.isolation_level = None

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        connection.exec_driver_sql("BEGIN")


class SqlalchemySession(SqlalchemyConnection):
    def connect(self) -> Any:
        return Session(self.engine)

    def row(self, name: str) -> Any:
        self.connection.add(User(name=name))


class SqlalchemyScopedSession(SqlalchemySession):
    def connect(self) -> Any:
        return scoped_session(sessionmaker(self.engine))

    def close(self) -> None:
        self.connection.remove()
        self.engine.dispose()


class SqlalchemyPsycopg2(SqlalchemyConnection):
    driver = "psycopg2"


class SqlalchemyScopedSessionPsycopg2(SqlalchemyScopedSession):
    driver = "psycopg2"


class AsyncApplication(SqlalchemyConnection):
    """Plays its script on an event loop of its own."""

    driver = "asyncpg"

    def play(self, *steps: Step) -> None:
        asyncio.run(self._play(split(steps)))

    async def _play(self, steps: list[Step]) -> None:
        self.nested = []
        async with self.opened() as self.connection:
            for step in steps:
                done = step() if callable(step) else self.do(*step.split())
                if asyncio.iscoroutine(done):
                    await done

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        engine = make_async_engine(self.url, self.driver)
        try:
            async with self.kind(engine) as connection:
                yield connection
        finally:
            await engine.dispose()

    kind: type[AsyncConnection | AsyncSession]

    async def job(self, id: str, **options: Any) -> None:  # type: ignore[override]
        await self.queue.enqueue_async(TYPE, {"to": id}, id=id, connection=self.connection, **options)

    async def jobs(self, *names: str) -> None:  # type: ignore[override]
        payloads = [{"to": name} for name in names]
        await self.connection.run_sync(
            lambda within: self.queue.enqueue_many(TYPE, payloads, connection=within)
        )

    async def row(self, name: str) -> None:
        await self.connection.execute(INSERT.values(name=name))

    async def savepoint(self) -> None:
        self.nested.append(await self.connection.begin_nested())


class SqlalchemyAsyncConnection(AsyncApplication):
    kind = AsyncConnection


class SqlalchemyAsyncSession(AsyncApplication):
    kind = AsyncSession

    async def row(self, name: str) -> None:
        self.connection.add(User(name=name))


class SqlalchemyAsyncConnectionPsycopg(SqlalchemyAsyncConnection):
    driver = "psycopg"


class AsyncPsycopg(AsyncApplication):
    """psycopg's own asyncio connection: there is no run_sync, so its jobs are enqueued one by one."""

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[Any]:
        connection = await psycopg.AsyncConnection.connect(application_url(self.url))
        try:
            yield connection
        finally:
            await connection.close()

    async def jobs(self, *names: str) -> None:  # type: ignore[override]
        for name in names:
            await self.queue.enqueue_async(TYPE, {"to": name}, connection=self.connection)

    async def row(self, name: str) -> None:
        await self.connection.execute("INSERT INTO users VALUES (%s)", (name,))

    async def savepoint(self) -> None:
        await self.connection.execute("SAVEPOINT mine")

    async def release(self) -> None:
        await self.connection.execute("RELEASE SAVEPOINT mine")

    async def undo(self) -> None:
        await self.connection.execute("ROLLBACK TO mine")
        await self.release()


# Django.


def set_up_django() -> None:
    if not settings.configured:
        engines = {"default": "sqlite3", "postgres": "postgresql"}
        databases = {
            alias: {"ENGINE": f"django.db.backends.{engine}", "NAME": ""} for alias, engine in engines.items()
        }
        settings.configure(DATABASES=databases)
        django.setup()


set_up_django()


class DjangoUser(models.Model):  # type: ignore[misc]
    name = models.TextField(primary_key=True)

    class Meta:
        app_label = "tests"
        db_table = "users"


class Undone(Exception):
    """Leaves an atomic block so that it rolls back."""


def lead_django_to(url: str) -> str:
    """Let Django's connection go to the database of a queue; return its alias."""
    if not is_postgres(url):
        connections.databases["default"]["NAME"] = file_of(url)
        return "default"
    found: dict[str, Any] = conninfo_to_dict(application_url(url))
    own = {"NAME": found.pop("dbname"), "USER": found.pop("user", ""), "HOST": found.pop("host", "")}
    connections.databases["postgres"].update(own, OPTIONS=found)
    return "postgres"


def forget_django(alias: str) -> None:
    connections[alias].close()
    del connections[alias]


class Django(Application):
    begins = "savepoint, "  # the first atomic block is open from the start

    def open(self) -> None:
        self.alias = lead_django_to(self.url)
        self.connection = django_connection if self.alias == "default" else connections[self.alias]
        self.blocks: list[Any] = []
        self.savepoint()

    def close(self) -> None:
        while self.blocks:
            self.undo()
        forget_django(self.alias)

    def row(self, name: str) -> None:
        DjangoUser.objects.using(self.alias).create(name=name)

    def savepoint(self) -> None:
        self.blocks.append(transaction.atomic(using=self.alias))
        self.blocks[-1].__enter__()

    def release(self) -> None:
        self.blocks.pop().__exit__(None, None, None)

    def undo(self) -> None:
        self.blocks.pop().__exit__(Undone, Undone(), None)

    commit = release
    rollback = undo


KINDS: dict[str, type[Application]] = {
    "sqlite3": Sqlite,
    "sqlalchemy-connection": SqlalchemyConnection,
    "sqlalchemy-with-begin": SqlalchemyWithBegin,
    "sqlalchemy-session": SqlalchemySession,
    "sqlalchemy-scoped-session": SqlalchemyScopedSession,
    "sqlalchemy-async-connection": SqlalchemyAsyncConnection,
    "sqlalchemy-async-session": SqlalchemyAsyncSession,
    "django": Django,
}


POSTGRES_KINDS: dict[str, type[Application]] = {
    "psycopg": Psycopg,
    "psycopg-async": AsyncPsycopg,
    "psycopg2": Psycopg2,
    "sqlalchemy-psycopg": SqlalchemyConnection,
    "sqlalchemy-psycopg2": SqlalchemyPsycopg2,
    "sqlalchemy-session-psycopg": SqlalchemySession,
    "sqlalchemy-scoped-session-psycopg2": SqlalchemyScopedSessionPsycopg2,
    "sqlalchemy-async-psycopg": SqlalchemyAsyncConnectionPsycopg,
    "sqlalchemy-async-asyncpg": SqlalchemyAsyncConnection,
    "sqlalchemy-async-session-asyncpg": SqlalchemyAsyncSession,
    "django-psycopg": Django,
}


def address_of(place: Path | str) -> str:
    """The address of a queue in a file, or the address that is given."""
    return str(place) if "://" in str(place) else f"sqlite:///{place}"


def prepare(place: Path | str) -> None:
    """Make the queue's tables and the application's."""
    url = address_of(place)
    with Queue(url) as queue:
        queue.open()
    with closing(connect(url)) as connection:
        connection.execute("CREATE TABLE users (name TEXT PRIMARY KEY)")


def empty(connection: Any) -> None:
    """Leave nothing in the tables of a schema of PostgreSQL, the queue's and the application's."""
    tables = connection.execute(
        "SELECT relname FROM pg_class WHERE relnamespace = current_schema()::regnamespace AND relkind = 'r'"
        " AND relname <> 'holdfast_schema' ORDER BY relname = 'holdfast_jobs' DESC"  # which is counted
    ).fetchall()
    connection.execute("; ".join(f"DELETE FROM {name}" for (name,) in tables))


def play_in_child(kind: type[Application], url: str, script: str, seconds: float | None) -> int:
    """Play a script in a process of its own; return its exit status, negative for a signal."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid:
        os.close(writing)
        with open(reading, "rb") as committed:
            if seconds is not None and committed.read(1):  # however long a busy machine takes to get there
                time.sleep(seconds)
                os.kill(pid, signal.SIGKILL)
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    status = 1
    try:
        first, commit, rest = script.partition("commit")
        with Queue(url) as queue:
            kind(url, queue).play(first + commit, lambda: os.write(writing, b"!"), *filter(None, [rest[2:]]))
        status = 0
    finally:
        os._exit(status)
