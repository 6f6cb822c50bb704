"""Applications that play a script of inserts and enqueues through a connection of each kind.

Run as a program, `python -m tests.conformance.connections KIND`, it reads lines of JSON, [file, script,
seconds or null]. It plays each script in a process of its own, which dies of the step `kill`, or is killed
so many seconds after its first commit, and prints how that ended: 0, or -9.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import django  # type: ignore[import-untyped]
import sqlalchemy as sa
from django.conf import settings  # type: ignore[import-untyped]
from django.db import connection as django_connection  # type: ignore[import-untyped]
from django.db import connections, models, transaction
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, scoped_session, sessionmaker

from holdfast import Queue

Step = str | Callable[[], object]
TYPE = "welcome"


class Application:
    """Plays scripts. A step is a word and names, as in `row eve` or `jobs a b`, or a function to call.

    Steps: row NAME, job ID, jobs NAME…; savepoint, release, undo (the last savepoint); commit, rollback;
    kill. A transaction that comes after another begins with `begins`.
    """

    begins = ""

    def __init__(self, path: Path, queue: Queue) -> None:
        self.path = path
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
    def open(self) -> None:
        self.connection = sqlite3.connect(self.path)

    def close(self) -> None:
        self.connection.close()

    def row(self, name: str) -> None:
        self.connection.execute("INSERT INTO users VALUES (?)", (name,))

    def savepoint(self) -> None:
        self.connection.execute("SAVEPOINT mine")

    def release(self) -> None:
        self.connection.execute("RELEASE mine")

    def undo(self) -> None:
        self.connection.execute("ROLLBACK TO mine")
        self.connection.execute("RELEASE mine")

    def commit(self) -> None:
        self.connection.commit()

    def rollback(self) -> None:
        self.connection.rollback()


# SQLAlchemy.


class Base(DeclarativeBase): ...


class User(Base):
    __tablename__ = "users"
    name: Mapped[str] = mapped_column(primary_key=True)


INSERT = sa.insert(User.__table__)  # type: ignore[arg-type]


class SqlalchemyConnection(Application):
    def open(self) -> None:
        self.engine = sa.create_engine(f"sqlite:///{self.path}")
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


class AsyncApplication(SqlalchemyConnection):
    """Plays its script on an event loop of its own."""

    def play(self, *steps: Step) -> None:
        asyncio.run(self._play(split(steps)))

    async def _play(self, steps: list[Step]) -> None:
        engine = create_async_engine(f"sqlite+aiosqlite:///{self.path}")
        self.nested = []
        try:
            async with self.kind(engine) as self.connection:
                for step in steps:
                    done = step() if callable(step) else self.do(*step.split())
                    if asyncio.iscoroutine(done):
                        await done
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


# Django.


def set_up_django() -> None:
    if not settings.configured:
        settings.configure(DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ""}})
        django.setup()


set_up_django()


class DjangoUser(models.Model):  # type: ignore[misc]
    name = models.TextField(primary_key=True)

    class Meta:
        app_label = "tests"
        db_table = "users"


class Undone(Exception):
    """Leaves an atomic block so that it rolls back."""


class Django(Application):
    begins = "savepoint, "  # the first atomic block is open from the start

    def open(self) -> None:
        self.connection = django_connection
        connections.databases["default"]["NAME"] = str(self.path)
        self.blocks: list[Any] = []
        self.savepoint()

    def close(self) -> None:
        while self.blocks:
            self.undo()
        connections["default"].close()
        del connections["default"]

    def row(self, name: str) -> None:
        DjangoUser.objects.create(name=name)

    def savepoint(self) -> None:
        self.blocks.append(transaction.atomic())
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


def prepare(path: Path) -> None:
    """Make the queue's tables and the application's."""
    with Queue(f"sqlite:///{path}") as queue:
        queue.open()
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE users (name TEXT PRIMARY KEY)")
    connection.close()


def play_in_child(kind: type[Application], path: Path, script: str, seconds: float | None) -> int:
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
        with Queue(f"sqlite:///{path}") as queue:
            kind(path, queue).play(first + commit, lambda: os.write(writing, b"!"), *filter(None, [rest[2:]]))
        status = 0
    finally:
        os._exit(status)


def main() -> None:
    kind = KINDS[sys.argv[1]]
    for line in sys.stdin:
        path, script, seconds = json.loads(line)
        status = play_in_child(kind, Path(path), script, seconds)
        os.write(1, f"{status}\n".encode())


if __name__ == "__main__":
    main()
