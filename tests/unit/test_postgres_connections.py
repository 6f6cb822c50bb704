"""Connections to PostgreSQL: how many there are, and what happens when one is lost."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict

from holdfast import Queue
from holdfast.core.clock import SECOND, system_clock
from holdfast.errors import CommitUncertain, ConfigError, ForeignDatabase, QueueClosed, StoreUnavailable
from holdfast.store.open import open_store
from holdfast.store.postgres import PostgresStore, database, pool
from tests import postgres
from tests.support import wait_until

NAME = f"t{uuid4().hex[:12]}"
"""What the connections of these tests are called on the server."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with postgres.fresh_url() as url:
        yield postgres.with_parameters(url, application_name=NAME)


@pytest.fixture(scope="module")
def server() -> Iterator[psycopg.Connection[Any]]:
    """A look at the server from outside."""
    with psycopg.connect(postgres.server_url(), autocommit=True) as connection:
        yield connection


@pytest.fixture
def store(address: str) -> Iterator[PostgresStore]:
    with closing(opened(address)) as store:
        yield store


def opened(url: str, **options: Any) -> PostgresStore:
    store = open_store(url, system_clock, **options)
    assert isinstance(store, PostgresStore)
    return store


def backends(server: psycopg.Connection[Any]) -> set[int]:
    rows = server.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [NAME])
    return {pid for (pid,) in rows}


def wait_until_backends(server: psycopg.Connection[Any], count: int) -> None:
    """A backend ends a moment after its connection was closed, also after that of an earlier test."""
    wait_until(lambda: len(backends(server)) == count, message=f"{count} connections")


def cut(server: psycopg.Connection[Any]) -> None:
    """End all connections, as an administrator or a firewall would."""
    server.execute(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s", [NAME]
    )


def own_pid(store: PostgresStore) -> int:
    return int(store.database.read_one("SELECT pg_backend_pid()")[0])


def in_threads(count: int, action: Callable[[], object]) -> None:
    threads = [threading.Thread(target=action) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def use_at_once(store: PostgresStore, count: int) -> None:
    """Use so many connections at the same moment."""
    together = threading.Barrier(count, timeout=60)

    def use() -> None:
        with store.transaction():
            together.wait()

    in_threads(count, use)


# The pool


def test_one_thread_needs_one_connection(store: PostgresStore, server: psycopg.Connection[Any]) -> None:
    for _ in range(5):
        with store.transaction():
            store.count_jobs()
        store.get_settings()
    wait_until_backends(server, 1)


def test_closed_queue_keeps_no_connection(address: str, server: psycopg.Connection[Any]) -> None:
    with closing(opened(address)) as store:
        use_at_once(store, 4)
        wait_until_backends(server, 4)
    wait_until_backends(server, 0)


def test_connections_that_nobody_needs_are_closed(
    store: PostgresStore, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_at_once(store, 4)
    monkeypatch.setattr(pool, "_SURPLUS", 0.0)
    store.get_settings()
    wait_until(lambda: len(backends(server)) == 1, 30)
    store.get_settings()


def test_idle_connections_can_be_left_to_others_at_any_time(
    store: PostgresStore, server: psycopg.Connection[Any]
) -> None:
    use_at_once(store, 4)
    with store.transaction():
        store.close_idle()
        wait_until(lambda: len(backends(server)) == 1, 30)
    store.get_settings()


def test_there_are_never_more_connections_than_the_address_allows(address: str) -> None:
    most = []
    with closing(opened(postgres.with_parameters(address, pool="2"))) as store:

        def use() -> None:
            with store.transaction() as session:
                rows = session.rows("SELECT pid FROM pg_stat_activity WHERE application_name = $1", [NAME])
                most.append(len(rows))

        in_threads(8, use)
        assert len(most) == 8
        assert max(most) <= 2


def test_who_finds_all_connections_in_use_for_too_long_is_told(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    take: Any = pool.Pool.take
    monkeypatch.setitem(take.__kwdefaults__, "patience", 0.05)
    refused = []

    def use(store: PostgresStore) -> None:
        try:
            store.get_settings()
        except StoreUnavailable as error:
            refused.append(str(error))

    with closing(opened(postgres.with_parameters(address, pool="1"))) as store:
        with store.transaction():
            in_threads(1, lambda: use(store))
        assert len(refused) == 1
        assert "?pool=" in refused[0]
        store.get_settings()


def test_who_waits_for_a_connection_when_the_queue_is_closed_is_told_at_once(address: str) -> None:
    store = opened(postgres.with_parameters(address, pool="1"))
    refused: list[bool] = []

    def use() -> None:
        try:
            store.get_settings()
        except QueueClosed:
            refused.append(True)

    with store.transaction():
        waiting = threading.Thread(target=use)
        waiting.start()
        wait_until(lambda: store.database.pool._changed._waiters, 30)  # type: ignore[attr-defined]
        store.close()
        waiting.join(60)
    assert refused == [True], "it has waited for a connection in vain"


def test_transaction_that_is_open_when_the_queue_is_closed_commits_and_leaves_nothing(
    address: str, server: psycopg.Connection[Any]
) -> None:
    store = opened(address)
    with store.transaction():
        store.set_setting("poll_interval", "", 7)
        store.close()
    with closing(opened(address)) as again:
        assert again.get_settings()["poll_interval", ""] == 7
        again.unset_setting("poll_interval", "")
    wait_until(lambda: not backends(server), 30)


def test_closed_store_refuses(address: str) -> None:
    store = opened(address)
    store.close()
    store.close()
    with pytest.raises(QueueClosed):
        store.get_settings()
    with pytest.raises(QueueClosed):
        store.set_setting("poll_interval", "", 7)


def test_queue_that_can_not_be_opened_leaves_no_connection(server: psycopg.Connection[Any]) -> None:
    with postgres.fresh_url() as url:
        schema = url.rpartition("schema=")[2]
        server.execute(f"CREATE SCHEMA {schema}; CREATE TABLE {schema}.holdfast_jobs (n integer)")
        with pytest.raises(ForeignDatabase):
            opened(postgres.with_parameters(url, application_name=NAME))
        wait_until(lambda: not backends(server), 30)


# Losing connections


def test_connections_that_were_cut_are_made_anew_without_an_error(
    store: PostgresStore, server: psycopg.Connection[Any]
) -> None:
    use_at_once(store, 3)
    cut(server)
    store.get_settings()
    cut(server)
    with store.database.transaction():
        store.count_jobs()
    wait_until_backends(server, 1)


def test_connection_that_lay_idle_is_asked_before_it_is_used(
    store: PostgresStore, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    store.get_settings()
    monkeypatch.setattr(pool, "_FRESH", 0.0)
    cut(server)
    with store.transaction():
        store.count_jobs()


def test_transaction_whose_connection_is_cut_writes_nothing_and_says_so(
    store: PostgresStore, server: psycopg.Connection[Any]
) -> None:
    def write() -> None:
        with store.transaction():
            store.set_setting("poll_interval", "", 9)
            cut(server)
            store.set_setting("poll_interval", "", 8)

    with pytest.raises(StoreUnavailable):
        write()
    assert store.get_settings() == {}


def test_connection_that_breaks_at_the_commit_leaves_it_uncertain(
    store: PostgresStore, server: psycopg.Connection[Any]
) -> None:
    def write() -> None:
        with store.transaction():
            store.set_setting("poll_interval", "", 9)
            cut(server)

    with pytest.raises(CommitUncertain):
        write()
    assert store.get_settings() == {}


def test_commit_of_a_transaction_that_has_failed_is_an_error(store: PostgresStore) -> None:
    def write() -> None:
        with store.transaction() as session:
            store.set_setting("poll_interval", "", 9)
            with suppress(psycopg.DataError):
                session.rows("SELECT 1 / 0")

    with pytest.raises(StoreUnavailable, match="rolled back"):
        write()
    assert store.get_settings() == {}


def test_begin_that_is_refused_does_not_come_back_with_the_same_connection(
    store: PostgresStore, server: psycopg.Connection[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = own_pid(store)
    monkeypatch.setattr(database, "_BEGIN", "BEGIN; SELECT pg_read_file('nowhere')")
    with pytest.raises(StoreUnavailable), store.database.transaction():
        raise AssertionError("it has not begun")
    monkeypatch.undo()
    assert own_pid(store) != before


def test_connections_to_what_has_become_a_standby_are_given_up(store: PostgresStore) -> None:
    demoted = "DO $$ BEGIN RAISE EXCEPTION USING ERRCODE = '25006'; END $$"
    first = own_pid(store)
    with pytest.raises(StoreUnavailable, match="standby"):
        store.database.write(demoted)
    second = own_pid(store)
    with pytest.raises(StoreUnavailable, match="standby"), store.transaction() as session:
        session.rows(demoted)
    assert len({first, second, own_pid(store)}) == 3


def test_isolation_that_a_role_has_set_is_not_for_our_transactions(address: str) -> None:
    serializable = postgres.with_parameters(address, options="-cdefault_transaction_isolation=serializable")
    with closing(opened(serializable)) as store:
        assert not store.database.commits_alone
        with store.transaction() as session:
            assert session.rows("SHOW transaction_isolation") == [("read committed",)]
    with closing(opened(address)) as store:
        assert store.database.commits_alone


def test_interrupted_statement_leaves_the_pool_whole(address: str, server: psycopg.Connection[Any]) -> None:
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with closing(opened(postgres.with_parameters(address, pool="1"))) as store:
        before = signal.signal(signal.SIGALRM, interrupt)
        try:
            for action in (read_slowly, write_slowly) * 2:
                thread = threading.Thread(target=interrupt_sleeper, args=[server])
                with pytest.raises(KeyboardInterrupt):
                    run_beside(thread, action, store)
                thread.join()
        finally:
            signal.signal(signal.SIGALRM, before)
        assert store.get_settings() == {}
        wait_until_backends(server, 1)


def interrupt_sleeper(server: psycopg.Connection[Any]) -> None:
    """Interrupt this process when it waits for a slow statement."""

    def sleeps() -> bool:
        return (
            server.execute(
                "SELECT 1 FROM pg_stat_activity"
                " WHERE application_name = %s AND state = 'active' AND wait_event = 'PgSleep'",
                [NAME],
            ).fetchall()
            != []
        )

    wait_until(sleeps, 30)
    os.kill(os.getpid(), signal.SIGALRM)


def run_beside(
    thread: threading.Thread, action: Callable[[PostgresStore], None], store: PostgresStore
) -> None:
    thread.start()
    action(store)


def read_slowly(store: PostgresStore) -> None:
    store.database.read("SELECT pg_sleep(20)")


def write_slowly(store: PostgresStore) -> None:
    with store.transaction() as session:
        store.set_setting("poll_interval", "", 9)
        session.rows("SELECT pg_sleep(20)")


def test_server_that_is_not_there_is_one_line_and_no_wait(tmp_path: Path) -> None:
    with pytest.raises(StoreUnavailable, match="is the server running there") as caught:
        opened(f"postgresql://u:s3cret@/db?host={tmp_path}")
    assert "3cret" not in str(caught.value)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"dbname": "nowhere"}, "createdb"),
        ({"user": "nobody_known"}, "createuser"),
        ({"connect_timeout": "soon"}, "connect_timeout"),
        ({"sslmode": "sometimes"}, "sslmode"),
        ({"options": "-cnonsense=1"}, "nonsense"),
        ({"service": "nowhere"}, "nowhere"),
    ],
)
def test_refused_connection_says_what_to_do(parameters: dict[str, str], words: str) -> None:
    with pytest.raises((StoreUnavailable, ConfigError), match=words):
        opened(postgres.with_parameters(postgres.server_url(), **parameters))


@pytest.mark.parametrize("host", ["a" * 300, "x..y", "nowhere.invalid"])
def test_host_that_can_not_be_one_is_unavailable(host: str) -> None:
    with pytest.raises(StoreUnavailable):
        opened(f"postgresql://{host}/db")


def test_database_in_another_encoding_is_refused(server: psycopg.Connection[Any]) -> None:
    server.execute(f"CREATE DATABASE {NAME} ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0")
    try:
        with pytest.raises(StoreUnavailable, match="LATIN1"):
            opened(postgres.with_parameters(postgres.server_url(), dbname=NAME))
    finally:
        server.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


# Durability


def test_commit_waits_for_the_disk_though_the_role_would_not(address: str) -> None:
    with closing(opened(postgres.with_parameters(address, options="-csynchronous_commit=off"))) as store:
        for _ in range(8):  # more often than it takes to prepare a statement
            with store.transaction() as session:
                assert session.rows("SHOW synchronous_commit") == [("on",)]
        assert store.database.read("SHOW synchronous_commit") == [("on",)]


SOURCE = "SELECT setting, source FROM pg_settings WHERE name = 'synchronous_commit'"


def test_no_reload_of_the_servers_configuration_makes_commits_weaker(store: PostgresStore) -> None:
    # What the session itself has set, no file changes.
    assert store.database.read(SOURCE) == [("on", "session")]
    with store.transaction() as session:
        assert session.rows(SOURCE) == [("on", "session")]


def test_commit_waits_for_nothing_where_the_address_says_so(address: str) -> None:
    url = postgres.with_parameters(address, synchronous_commit="off")
    with closing(opened(url)) as store, store.transaction() as session:
        assert session.rows("SHOW synchronous_commit") == [("off",)]


# The clock


def test_present_is_the_servers_and_is_read_again_when_it_is_due(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_right() -> bool:
        return abs(store.now() - system_clock()) < 60 * SECOND

    assert is_right()
    monkeypatch.setattr(store.database.server_clock, "_offset", 0)
    assert not is_right()
    monkeypatch.setattr(store.database.server_clock, "_due", 0)
    assert is_right()


def test_clock_goes_on_without_a_server(address: str) -> None:
    store = opened(address)
    store.close()
    store.database.server_clock._due = 0
    assert abs(store.now() - system_clock()) < 60 * SECOND
    assert store.database.server_clock._due > 0  # not asked for again at once


# Forks


def run(program: str, url: str, *, timeout: float = 30) -> str:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(program), url],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_parent_and_child_of_a_fork_each_go_on_by_themselves(address: str) -> None:
    program = """
        import os, sys, threading
        from holdfast import Queue
        from holdfast.store.open import store_of

        queue = Queue(sys.argv[1])
        queue.enqueue("fork", {})
        queue.enqueue("fork", {})  # whose NOTIFY still waits
        database = store_of(queue).database
        inside, forked = threading.Event(), threading.Event()

        def hold():
            with store_of(queue).transaction():
                inside.set()
                forked.wait(20)
                store_of(queue).set_setting("poll_interval", "fork", 5)

        holder = threading.Thread(target=hold, daemon=True)
        holder.start()
        inside.wait(20)
        before = database.read_one("SELECT pg_backend_pid()")
        database.pool._changed.acquire()  # as another thread might have
        database.notifier._lock.acquire()
        child = os.fork()
        if child == 0:
            for _ in range(3):
                queue.enqueue("fork", {})
            assert database.read_one("SELECT pg_backend_pid()") != before
            queue.close()
            sys.exit(0)
        database.notifier._lock.release()
        database.pool._changed.release()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        forked.set()
        holder.join()
        queue.enqueue("fork", {})
        assert store_of(queue).get_settings()["poll_interval", "fork"] == 5
        store_of(queue).unset_setting("poll_interval", "fork")
        print(queue.count(type="fork"))
        queue.close()
    """
    assert run(program, address).split() == ["6"]


def test_child_forked_inside_a_transaction_can_not_commit_it(address: str) -> None:
    program = """
        import os, sys
        from holdfast import Queue
        from holdfast.errors import StoreUnavailable
        from holdfast.store.open import store_of

        queue = Queue(sys.argv[1]).open()
        child = None
        try:
            with store_of(queue).transaction():
                store_of(queue).set_setting("poll_interval", "fork", 5)
                child = os.fork()
                if child:
                    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
        except StoreUnavailable:
            store_of(queue).get_settings()
            os._exit(3 if store_of(queue).database.pool._taken == 0 else 4)
        print(child != 0 and store_of(queue).unset_setting("poll_interval", "fork"))
        queue.close()
    """
    assert run(program, address).split() == ["True"]


def test_transaction_of_a_dead_parent_ends_though_its_child_lives_on(
    address: str, server: psycopg.Connection[Any]
) -> None:
    program = """
        import os, signal, sys
        from holdfast import Queue
        from holdfast.store.open import store_of

        queue = Queue(sys.argv[1]).open()
        with store_of(queue).transaction():
            store_of(queue).set_setting("poll_interval", "fork", 5)
            if os.fork() == 0:
                os.write(1, b"up")
                os.read(0, 1)  # until the test is over
                os._exit(0)
            os.read(0, 1)
            os.kill(os.getpid(), signal.SIGKILL)
    """
    process = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(program), address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        assert process.stdout.read(2) == b"up"
        wait_until_backends(server, 1)
        process.kill()
        process.wait(60)
        wait_until_backends(server, 0)
    finally:
        process.stdin.close()
        assert process.stdout.read() == b""  # the child has ended, too
        process.stdout.close()


def test_two_threads_of_a_child_may_be_the_first(address: str) -> None:
    program = """
        import os, sys, threading
        from holdfast import Queue
        from holdfast.store.open import store_of

        queue = Queue(sys.argv[1]).open()
        child = os.fork()
        if child == 0:
            threads = [threading.Thread(target=queue.enqueue, args=("twins", {})) for _ in range(8)]
            for thread in threads: thread.start()
            for thread in threads: thread.join()
            database = store_of(queue).database
            queue.close()  # which waits for a NOTIFY that is on its way
            assert database.pool._taken == 0
            sys.exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        print(queue.count(type="twins"))
        queue.close()
    """
    assert run(program, postgres.with_parameters(address, pool="2")).split() == ["8"]


def test_queue_is_opened_again_after_it_was_closed(address: str, server: psycopg.Connection[Any]) -> None:
    queue = Queue(address)
    for _ in range(2):
        queue.enqueue("again", {})
        queue.close()
    with queue:
        assert queue.count(type="again") == 2
    wait_until(lambda: not backends(server), 30)


# Several servers


def test_standby_is_refused(schema: str, server: psycopg.Connection[Any]) -> None:
    server.execute(
        f"CREATE SCHEMA {schema}; CREATE FUNCTION {schema}.pg_is_in_recovery() RETURNS boolean"
        " LANGUAGE sql AS 'SELECT true'"
    )
    options = f"-csearch_path={schema},pg_catalog"
    with pytest.raises(StoreUnavailable, match="standby"):
        opened(postgres.with_parameters(postgres.schema_url(schema), options=options, application_name=NAME))
    wait_until(lambda: not backends(server), 30)


def test_host_that_is_gone_is_passed_over(schema: str, tmp_path: Path) -> None:
    known = conninfo_to_dict(postgres.server_url())
    port = known.get("port", 5432)
    url = postgres.with_parameters(
        postgres.schema_url(schema), host=f"{tmp_path},{known['host']}", port=f"{port},{port}"
    )
    with closing(opened(url)) as store:
        assert store.get_settings() == {}


@pytest.fixture
def schema() -> Iterator[str]:
    schema = postgres.new_schema()
    yield schema
    postgres.drop_schema(schema)
