"""holdfast.sqlalchemy.configure: transactions of an application wait for their turn instead of failing."""

from __future__ import annotations

import asyncio
import sqlite3
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine
from sqlalchemy.orm import Session

from holdfast import Queue
from holdfast.errors import ConfigError
from holdfast.sqlalchemy import configure, examine_engines
from holdfast.store.open import store_of
from tests.worker.support import PATIENCE, in_thread, join, path_of

COUNT = sa.text("SELECT count(*) FROM users")
INSERT = sa.text("INSERT INTO users VALUES (:name)")


@pytest.fixture
def alchemy(queue: Queue) -> Iterator[sa.Engine]:
    engine = configure(sa.create_engine(f"sqlite:///{path_of(queue.open())}"))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE users (name TEXT)"))
    yield engine
    engine.dispose()


def sign_up(queue: Queue, alchemy: sa.Engine, name: str) -> None:
    with Session(alchemy) as session, session.begin():
        session.execute(COUNT).all()
        session.execute(INSERT, {"name": name})
        queue.enqueue("welcome", {"to": name}, connection=session)


def test_requests_that_read_and_then_write_all_succeed(queue: Queue, alchemy: sa.Engine) -> None:
    names = [str(number) for number in range(60)]
    with ThreadPoolExecutor(10) as pool:
        for done in [pool.submit(sign_up, queue, alchemy, name) for name in names]:
            done.result()
    assert queue.stats()["pending"] == 60


def test_tasks_that_read_and_then_write_all_succeed(queue: Queue, alchemy: sa.Engine) -> None:
    async def sign_up(engine: AsyncEngine, name: str) -> None:
        async with engine.begin() as connection:
            await connection.execute(COUNT)
            await connection.execute(INSERT, {"name": name})
            await queue.enqueue_async("welcome", {"to": name}, connection=connection)

    async def main() -> None:
        engine = configure(create_async_engine(f"sqlite+aiosqlite:///{path_of(queue)}"))
        await asyncio.gather(*(sign_up(engine, str(number)) for number in range(15)))
        await engine.dispose()

    asyncio.run(main())
    assert queue.stats()["pending"] == 15


def test_transaction_waits_for_another_that_has_only_read_so_far(queue: Queue, alchemy: sa.Engine) -> None:
    begun = threading.Event()

    def second() -> None:
        begun.set()
        sign_up(queue, alchemy, "second")

    with alchemy.begin() as connection:
        connection.execute(COUNT)
        thread, outcome = in_thread(second)
        assert begun.wait(PATIENCE)
        connection.execute(INSERT, {"name": "first"})
        queue.enqueue("welcome", {}, connection=connection)
    join(thread)
    assert outcome == [None]


def test_lock_that_stays_taken_is_an_error_after_which_all_goes_on(queue: Queue) -> None:
    engine = configure(sa.create_engine(f"sqlite:///{path_of(queue.open())}"), busy_seconds=0.05)
    with engine.begin():
        with pytest.raises(sa.exc.OperationalError, match="locked"), engine.begin():
            pass
        with pytest.raises(sa.exc.OperationalError, match="locked"), Session(engine) as session:
            session.execute(sa.text("SELECT 1"))
    with engine.begin() as connection:
        queue.enqueue("welcome", {}, connection=connection)
    assert queue.stats()["pending"] == 1
    engine.dispose()


def test_connections_with_autocommit_read_while_others_write(alchemy: sa.Engine) -> None:
    reading = alchemy.execution_options(isolation_level="AUTOCOMMIT")
    with alchemy.begin() as writer:
        writer.execute(INSERT, {"name": "ada"})
        with reading.connect() as reader:
            assert reader.scalar(COUNT) == 0
    with alchemy.begin() as writer, writer.begin_nested() as savepoint:
        writer.execute(INSERT, {"name": "eve"})
        savepoint.rollback()
    with reading.connect() as reader:
        assert reader.scalar(COUNT) == 1


def test_savepoint_that_comes_first_is_part_of_the_transaction(alchemy: sa.Engine) -> None:
    with alchemy.connect() as connection:
        with connection.begin_nested():
            connection.execute(INSERT, {"name": "eve"})
        connection.rollback()
        assert connection.scalar(COUNT) == 0


def test_engine_is_configured_once_and_returned(queue: Queue) -> None:
    engine = sa.create_engine(f"sqlite:///{path_of(queue.open())}")
    assert configure(configure(engine, busy_seconds=7)) is engine
    with engine.begin() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == 7000
    engine.dispose()


def test_engine_of_another_database_is_left_as_it_is() -> None:
    engine = sa.create_engine("postgresql+psycopg://nowhere/db")
    assert configure(engine) is engine


@pytest.mark.parametrize("wrong", [None, "sqlite:///app.db", object()])
def test_what_is_no_engine_is_refused_in_one_line(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="takes a SQLAlchemy engine"):
        configure(wrong)


if sys.version_info >= (3, 12):  # sqlite3 has no such mode before

    def test_engine_whose_driver_begins_by_itself_is_refused(queue: Queue) -> None:
        url = f"sqlite:///{path_of(queue.open())}"
        engine = configure(sa.create_engine(url, connect_args={"autocommit": False}))
        with pytest.raises(ConfigError, match="remove autocommit=False"), engine.begin():
            pass
        engine.dispose()


def test_doctor_finds_engines_of_this_file_that_are_not_configured(queue: Queue, tmp_path: Path) -> None:
    other = sa.create_engine(f"sqlite:///{tmp_path}/other.db")
    assert examine_engines(store_of(queue.open()).url) == []
    sync = sa.create_engine(f"sqlite:///{path_of(queue)}")
    asynchronous = create_async_engine(f"sqlite+aiosqlite:///file:{path_of(queue)}?uri=true")
    (found,) = examine_engines(store_of(queue).url)
    assert (found.level, found.text.partition(" can")[0]) == (
        "warning",
        "2 of the application's 2 engines for this file",
    )
    configure(sync)
    reading = sync.execution_options(isolation_level="AUTOCOMMIT")
    assert examine_engines(store_of(queue).url)[0].text.startswith("1 of the application's 2 engines")
    configure(asynchronous)
    assert [found.level for found in examine_engines(store_of(queue).url)] == ["ok"]
    assert reading is not sync
    assert other.dialect.name == "sqlite"


def test_lock_that_an_enqueue_does_not_get_says_what_to_do(queue: Queue) -> None:
    queue.open()
    other = sqlite3.connect(path_of(queue), timeout=0)
    own = sqlite3.connect(path_of(queue), timeout=0)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(sqlite3.OperationalError, match="locked") as caught:
        queue.enqueue("work", {}, connection=own)
    assert "holdfast.sqlalchemy.configure" in caught.value.__notes__[0]
    other.close()
    own.close()


@pytest.mark.parametrize(("busy_seconds", "milliseconds"), [(30, 30_000), ("30d", 2**31 - 1)])
def test_engine_can_be_configured_after_a_call_that_was_refused(
    queue: Queue, busy_seconds: int | str, milliseconds: int
) -> None:
    engine = sa.create_engine(f"sqlite:///{path_of(queue)}")
    with pytest.raises(ConfigError, match="busy_seconds must be a duration"):
        configure(engine, busy_seconds="soon")
    configure(engine, busy_seconds=busy_seconds)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA busy_timeout").scalar() == milliseconds
    engine.dispose()
