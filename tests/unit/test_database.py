"""One SQLite file: patient transactions, a connection per thread, and a WAL that stays small."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast import Queue
from holdfast.errors import (
    CommitUncertain,
    ForeignDatabase,
    NestedWrite,
    StoreBusy,
    StoreUnavailable,
)
from holdfast.store.scope import Scope
from holdfast.store.sqlite import database as module
from holdfast.store.sqlite import lock_line
from holdfast.store.sqlite.database import Database

MIB = 1024 * 1024


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A file in WAL mode with a table of notes."""
    path = str(tmp_path / "queue.db")
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("CREATE TABLE notes (text TEXT)")
    connection.close()
    return path


@pytest.fixture
def database(path: str) -> Iterator[Database]:
    database = Database(path, url=f"sqlite:///{path}")
    yield database
    database.close()


@pytest.fixture
def other(path: str) -> Iterator[sqlite3.Connection]:
    """Somebody else's connection to the same file."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    yield connection
    connection.close()


def notes(database: Database) -> list[str]:
    return [text for (text,) in database.read("SELECT text FROM notes ORDER BY rowid")]


def add(database: Database, text: str) -> None:
    with database.transaction() as connection:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))


def add_and_fail(database: Database, text: str) -> None:
    with database.transaction() as connection:
        connection.execute("INSERT INTO notes VALUES (?)", (text,))
        raise KeyError


def on_pause(monkeypatch: pytest.MonkeyPatch, action: Callable[[], object]) -> list[float]:
    """Let `action` happen whenever the database pauses before another try; returns the pauses."""
    pauses: list[float] = []

    class Turn:
        def acquire(self, timeout: float | None = None) -> None:
            if timeout is not None:
                pauses.append(timeout)
                action()

    monkeypatch.setattr(lock_line, "threading", SimpleNamespace(Lock=Turn))
    return pauses


def in_thread(action: Callable[[], Any]) -> Any:
    """Do it in another thread; its value, or its error raised here."""
    done: list[Any] = []

    def run() -> None:
        try:
            done.append((action(), None))
        except BaseException as error:
            done.append((None, error))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    ((value, error),) = done
    if error is not None:
        raise error
    return value


# Settings of a connection.


@pytest.mark.parametrize(
    ("pragma", "value"),
    [("synchronous", 2), ("wal_autocheckpoint", 0), ("busy_timeout", 0), ("mmap_size", 0)],
)
def test_every_connection_is_durable_and_leaves_checkpoints_to_us(
    database: Database, pragma: str, value: int
) -> None:
    for connection in (database.connection(), database.connect()):
        assert connection.execute(f"PRAGMA {pragma}").fetchone() == (value,)
        assert connection.isolation_level is None
    connection.close()


def test_a_reset_wal_is_cut_to_less_than_the_limit(database: Database) -> None:
    """Else every commit would be followed by a checkpoint."""
    [limit] = database.connection().execute("PRAGMA journal_size_limit").fetchone()
    assert limit == module._WAL_KEPT < module.WAL_LIMIT


def test_weaker_durability_is_an_explicit_choice(path: str) -> None:
    weaker = Database(path, url=f"sqlite:///{path}", synchronous="NORMAL")
    assert weaker.connection().execute("PRAGMA synchronous").fetchone() == (1,)
    weaker.close()


# Transactions.


def test_a_transaction_commits_when_it_is_left(database: Database) -> None:
    add(database, "a")
    assert in_thread(lambda: notes(database)) == ["a"]


def test_a_transaction_that_raises_leaves_nothing(database: Database) -> None:
    with pytest.raises(KeyError):
        add_and_fail(database, "a")
    assert notes(database) == []
    add(database, "b")
    assert notes(database) == ["b"]


def test_a_nested_transaction_is_part_of_the_outer_one(database: Database) -> None:
    with database.transaction() as outer:
        add(database, "inner")
        assert outer.in_transaction
        assert in_thread(lambda: notes(database)) == []
    assert notes(database) == ["inner"]


def test_an_error_in_a_nested_transaction_takes_the_outer_one_with_it(database: Database) -> None:
    def nest() -> None:
        with database.transaction():
            add(database, "outer")
            add_and_fail(database, "inner")

    with pytest.raises(KeyError):
        nest()
    assert notes(database) == []


def test_inside_a_handlers_own_transaction_a_write_is_refused_at_once(database: Database) -> None:
    scope = Scope.enter(database.url)
    try:
        with pytest.raises(NestedWrite, match=r"ctx\.enqueue"), database.transaction():
            pass
    finally:
        scope.leave()


def test_a_mistake_in_sql_stays_what_it_is(database: Database) -> None:
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        database.read("SELECT * FROM nowhere")
    with pytest.raises(sqlite3.OperationalError, match="no such table"), database.transaction() as connection:
        connection.execute("INSERT INTO nowhere VALUES (1)")
    assert not database.connection().in_transaction


def test_a_commit_that_fails_is_reported_as_uncertain(database: Database) -> None:
    with database.using():
        connection = database.connect()
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("CREATE TABLE parents (id INTEGER PRIMARY KEY)")
        connection.execute(
            "CREATE TABLE children (parent INTEGER REFERENCES parents (id) DEFERRABLE INITIALLY DEFERRED)"
        )
        database.begin(connection)
        connection.execute("INSERT INTO children VALUES (1)")
        with pytest.raises(CommitUncertain, match="the commit failed: FOREIGN KEY"):
            database.commit(connection)
        assert not connection.in_transaction
        connection.close()


# Waiting for the lock.


def test_a_writer_waits_with_short_random_pauses_until_the_lock_is_free(
    database: Database, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    tries: list[int] = []

    def release_at_the_third() -> None:
        tries.append(1)
        if len(tries) == 3:
            other.execute("COMMIT")

    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO notes VALUES ('theirs')")
    pauses = on_pause(monkeypatch, release_at_the_third)
    add(database, "ours")
    assert notes(database) == ["theirs", "ours"]
    assert len(pauses) == 3
    assert all(0.0005 <= pause <= 0.003 for pause in pauses)


def test_a_lock_that_is_never_released_ends_as_busy_with_the_way_out(
    database: Database, other: sqlite3.Connection
) -> None:
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy) as caught, database.transaction(patience=0.01):
        pytest.fail("the lock is taken")
    assert "stayed locked for 0.01 s" in str(caught.value)
    assert caught.value.hint is not None
    assert "connection=" in caught.value.hint
    assert caught.value.__cause__ is not None


def test_after_a_busy_error_the_same_thread_can_write_again(
    database: Database, other: sqlite3.Connection
) -> None:
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreBusy), database.transaction(patience=0.01):
        pass
    other.execute("ROLLBACK")
    add(database, "a")
    assert notes(database) == ["a"]


def test_a_reader_does_not_wait_for_a_writer(
    database: Database, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    other.execute("BEGIN IMMEDIATE")
    other.execute("INSERT INTO notes VALUES ('theirs')")
    pauses = on_pause(monkeypatch, lambda: None)
    assert notes(database) == []
    assert pauses == []


def test_a_new_connection_waits_for_the_lock_too(
    database: Database, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As when the last connection of another process closes, or repairs the WAL after a crash.
    other.execute("PRAGMA locking_mode = EXCLUSIVE")
    other.execute("INSERT INTO notes VALUES ('theirs')")
    pauses = on_pause(monkeypatch, other.close)
    assert notes(database) == ["theirs"]
    assert len(pauses) == 1


# Connections.


def test_a_thread_has_one_connection_and_another_thread_another(database: Database) -> None:
    mine = database.connection()
    assert database.connection() is mine
    assert in_thread(database.connection) is not mine


def test_a_connection_goes_with_its_thread(database: Database) -> None:
    theirs = in_thread(database.connection)
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        theirs.execute("SELECT 1")


def test_a_thread_may_close_its_connection_and_go_on(database: Database) -> None:
    first = database.connection()
    database.close_thread()
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        first.execute("SELECT 1")
    assert notes(database) == []


def in_fork(action: Callable[[], bool]) -> bool:
    """Whether an action succeeds in a forked child."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            status = 0 if action() else 1
        finally:
            os._exit(status)  # nothing of pytest's must run here
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


@pytest.mark.process
def test_no_connection_is_open_across_a_fork_and_both_sides_go_on(database: Database) -> None:
    before = database.connection()
    add(database, "before")
    assert in_fork(lambda: notes(database) == ["before"])
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        before.execute("SELECT 1")
    add(database, "after")
    assert notes(database) == ["before", "after"]


@pytest.mark.process
def test_a_fork_inside_a_transaction_loses_nothing_and_the_child_is_refused(database: Database) -> None:
    def is_refused() -> bool:
        with pytest.raises(StoreUnavailable, match="was forked while the queue was in use"):
            notes(database)
        return True

    with database.transaction() as connection:
        connection.execute("INSERT INTO notes VALUES ('a')")
        assert in_fork(is_refused)
    assert notes(database) == ["a"]


@pytest.mark.process
def test_threads_may_fork_at_once_while_others_read(database: Database) -> None:
    add(database, "a")
    done = threading.Event()
    barrier = threading.Barrier(3)
    findings: list[bool] = []

    def read() -> None:
        while not done.is_set():
            notes(database)

    def child_can_read() -> bool:
        signal.alarm(20)  # a gate that stays shut in the child would hold it for ever
        return notes(database) == ["a"]

    def fork() -> None:
        for _ in range(15):
            barrier.wait(60)
            findings.append(in_fork(child_can_read))

    readers = [threading.Thread(target=read) for _ in range(2)]
    forkers = [threading.Thread(target=fork) for _ in range(3)]
    for thread in (*readers, *forkers):
        thread.start()
    for thread in forkers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    assert findings == [True] * 45
    add(database, "b")
    assert notes(database) == ["a", "b"]


def test_a_closed_database_says_so_in_every_thread(database: Database) -> None:
    notes(database)  # this thread has had a connection, the other has not
    database.close()
    with pytest.raises(StoreUnavailable, match="the queue is closed"):
        notes(database)
    with pytest.raises(StoreUnavailable, match="the queue is closed"):
        in_thread(lambda: notes(database))
    with pytest.raises(StoreUnavailable, match="the queue is closed"):
        add(database, "a")


def test_a_file_that_is_no_database_is_named(tmp_path: Path) -> None:
    path = tmp_path / "letter.txt"
    path.write_text("Dear Ada, " * 100)
    database = Database(str(path), url=f"sqlite:///{path}")
    with pytest.raises(ForeignDatabase, match=r"letter\.txt is not a SQLite database"):
        database.read("SELECT * FROM sqlite_master")
    database.close()


def test_a_folder_that_does_not_exist_is_unavailable_with_a_hint(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "queue.db"
    database = Database(str(path), url=f"sqlite:///{path}")
    with pytest.raises(StoreUnavailable, match="does its folder exist"):
        database.connection()


# The WAL.


def write(database: Database, mib: int) -> int:
    """Commit so many MiB in pieces of one; the largest size that the WAL was seen to have."""
    largest = 0
    for _ in range(mib):
        with database.transaction() as connection:
            connection.execute("INSERT INTO notes VALUES (zeroblob(?))", (MIB,))
        largest = max(largest, database.file.wal_bytes())
    return largest


@pytest.mark.slow
def test_the_wal_stays_under_64_mib_over_many_commits(database: Database) -> None:
    assert write(database, 100) < 64 * MIB


def test_the_wal_stays_bounded_however_fast_the_disk(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a disk without end to its speed, all commits happen at one instant.
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: 1000.0, sleep=lambda _: None))
    database._next_tending = 0.0
    assert write(database, 100) < 64 * MIB


def test_a_small_wal_is_left_alone(database: Database) -> None:
    add(database, "a")
    assert 0 < database.file.wal_bytes() < module.WAL_LIMIT


def test_a_wal_in_use_has_its_whole_length_and_keeps_it(database: Database) -> None:
    """A commit that makes a file longer takes half as long again as one that writes into it."""
    sizes = set()
    for number in range(300):
        add(database, f"{number}" * 40_000)
        sizes.add(database.file.wal_bytes() // MIB)
    assert sizes - {0} <= {7, 8}


@pytest.mark.process
def test_a_longer_wal_is_no_sign_of_more_commits(database: Database, tmp_path: Path) -> None:
    """Found as after a power cut: the last commit is the last, whatever the file's end holds."""
    texts = [f"{number} " + "x" * 4000 for number in range(100)]
    for text in texts:
        add(database, text)
    assert database.file.wal_bytes() == module._WAL_KEPT
    found = tmp_path / "found"
    found.mkdir()
    subprocess.run(["cp", database.path, f"{database.path}-wal", found], check=True)
    again = Database(str(found / "queue.db"), url="sqlite:///found")
    assert notes(again) == texts
    add(again, "more")
    assert notes(again) == [*texts, "more"]
    again.close()


def test_a_wal_to_which_somebody_writes_is_not_lengthened(
    database: Database, other: sqlite3.Connection
) -> None:
    add(database, "x" * 300_000)
    assert database.file.wal_bytes() == module._WAL_KEPT
    os.truncate(f"{database.path}-wal", 400_000)
    other.execute("BEGIN IMMEDIATE")
    database.tend_wal()
    assert database.file.wal_bytes() == 400_000
    other.execute("ROLLBACK")
    database._next_tending = 0.0
    database.tend_wal()
    assert database.file.wal_bytes() == module._WAL_KEPT


def test_a_checkpoint_moves_everything_into_the_database(database: Database, path: str) -> None:
    write(database, 2)
    size = os.stat(path).st_size
    database.checkpoint()
    assert os.stat(path).st_size >= size + 2 * MIB


def test_while_a_checkpoint_runs_nobody_else_can_write(
    database: Database, other: sqlite3.Connection, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(database, 2)
    refused: list[str] = []

    def patiently(action: Callable[[], Any], patience: float = 0) -> Any:
        result = action()
        with suppress(sqlite3.OperationalError):
            other.execute("BEGIN IMMEDIATE")
            other.execute("ROLLBACK")
            return result
        refused.append("refused")
        return result

    monkeypatch.setattr(database, "patiently", patiently)
    database.checkpoint()
    assert refused == ["refused", "refused"]  # after the guard began, and after the checkpoint
    other.execute("BEGIN IMMEDIATE")  # and then the lock is free again
    other.execute("ROLLBACK")


def test_a_commit_does_not_fail_when_the_checkpoint_cannot_run(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> None:
        raise StoreBusy(0.5)

    monkeypatch.setattr(module, "WAL_LIMIT", 0)
    monkeypatch.setattr(database, "checkpoint", refuse)
    add(database, "a")
    assert notes(database) == ["a"]


def is_pinned(path: str) -> bool:
    """Whether some connection still reads an old state, so that the WAL can't be emptied."""
    connection = sqlite3.connect(path, isolation_level=None, timeout=0)
    try:
        busy, _, _ = connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        return bool(busy)
    finally:
        connection.close()


def test_an_open_statement_would_be_noticed(database: Database, path: str) -> None:
    add(database, "a")
    add(database, "b")
    cursor = database.connection().execute("SELECT * FROM notes")
    cursor.fetchone()
    add_elsewhere = sqlite3.connect(path, isolation_level=None)
    add_elsewhere.execute("INSERT INTO notes VALUES ('c')")
    add_elsewhere.close()
    assert is_pinned(path)
    cursor.close()
    assert not is_pinned(path)


def test_reading_leaves_no_statement_open(database: Database, path: str) -> None:
    for text in "abc":
        add(database, text)
    database.read_one("SELECT * FROM notes")
    assert not is_pinned(path)


Operation = Callable[[Queue, str], object]


def in_turn(*operations: Operation) -> Operation:
    def all_of_them(queue: Queue, job_id: str) -> None:
        for operation in operations:
            operation(queue, job_id)

    return all_of_them


def cancel(queue: Queue, job_id: str) -> object:
    return queue.cancel(job_id)


def configure(queue: Queue, job_id: str) -> None:
    queue.set_config("max_attempts", 5)
    queue.set_rate_limit(5, "crawl")
    queue.unset_config("max_attempts")
    queue.config()


def pause_and_resume(queue: Queue, job_id: str) -> None:
    queue.pause()
    queue.resume()


def delete(queue: Queue, job_id: str) -> None:
    queue.cancel(job_id)
    queue.delete(job_id)


OPERATIONS: dict[str, Operation] = {
    "enqueue": lambda queue, job_id: queue.enqueue("crawl", {}),
    "enqueue with a key": lambda queue, job_id: [queue.enqueue("crawl", {}, key="k") for _ in range(2)],
    "enqueue_many": lambda queue, job_id: queue.enqueue_many("crawl", [{}, {}]),
    "get": lambda queue, job_id: queue.get(job_id),
    "jobs": lambda queue, job_id: queue.jobs(status="pending", limit=1),
    "children": lambda queue, job_id: queue.children(job_id),
    "stats": lambda queue, job_id: queue.stats(),
    "workers": lambda queue, job_id: queue.workers(),
    "why": lambda queue, job_id: queue.why(job_id),
    "wait": in_turn(cancel, lambda queue, job_id: queue.wait(job_id, 5)),
    "retry": in_turn(cancel, lambda queue, job_id: queue.retry(job_id)),
    "delete": delete,
    "cleanup": in_turn(cancel, lambda queue, job_id: queue.cleanup(0)),
    "configure": configure,
    "pause and resume": pause_and_resume,
    "drain": lambda queue, job_id: queue.drain(),
    "drain with a rate limit": in_turn(configure, lambda queue, job_id: queue.drain()),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_no_operation_leaves_a_statement_open_that_pins_the_wal(
    queue: Queue, tmp_path: Path, name: str
) -> None:
    queue.register("crawl", lambda payload: None)
    job = queue.enqueue("crawl", {})
    queue.enqueue_many("crawl", [{}, {}, {}])
    OPERATIONS[name](queue, job.id)
    touch = sqlite3.connect(tmp_path / "queue.db", isolation_level=None)
    touch.execute("CREATE TABLE touched (x)")  # a commit that a reader of the old state would not have seen
    touch.close()
    assert not is_pinned(str(tmp_path / "queue.db"))
