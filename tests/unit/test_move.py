"""Moving a queue: all of it arrives, whichever way it goes; and what the guards let through meanwhile."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Queue
from holdfast.core.clock import system_clock
from holdfast.core.lifecycle import Completed, Errored, Stopped
from holdfast.errors import ConfigError, MoveFailed, QueueArriving, QueueMoved, StoreBusy
from holdfast.store.move import Move, open_end
from holdfast.store.moved import MOVE_TABLE
from holdfast.store.open import open_store
from holdfast.store.postgres import transfer
from holdfast.store.postgres.address import parse_url
from holdfast.store.postgres.transfer import PostgresEnd
from holdfast.store.protocol import Store
from holdfast.store.records import JobFilter, LogTail, TypeRecord, WorkerRecord, empty_minute
from holdfast.store.sqlite.transfer import SqliteEnd
from holdfast.store.tables import COUNTS, TABLES, Table
from tests import postgres
from tests.conformance.steps import claim_one, demand, finish, insert, new_job, run, status
from tests.support import wait_until

WAYS = [("sqlite", "postgres"), ("postgres", "sqlite"), ("sqlite", "sqlite"), ("postgres", "postgres")]
NOT_MOVED = ("holdfast_schema", "holdfast_workers", "holdfast_tallies", "holdfast_error_tallies", MOVE_TABLE)
LEFT_OUT = ("holdfast_logs",)
"""What only one of the engines has."""
TYPE = TypeRecord(type="a", executor="thread", schema={})


class Places:
    """Addresses of databases that do not exist yet."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._stack = ExitStack()
        self._count = 0

    def __call__(self, engine: str) -> str:
        if engine == "postgres":
            return self._stack.enter_context(postgres.fresh_url())
        self._count += 1
        return f"sqlite:///{self._folder}/place{self._count}.db?synchronous=off"

    def close(self) -> None:
        self._stack.close()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Places]:
    with closing(Places(tmp_path)) as places:
        yield places


@pytest.fixture(params=["sqlite", "postgres"])
def engine(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


def opened(url: str) -> closing[Store]:
    return closing(open_store(url, system_clock))


def fill(store: Store) -> None:
    """A queue with something of everything."""
    huge = '{"text": "' + "x" * 1_000_000 + '"}'
    insert(store, "plain", payload='{"n": 9007199254740993, "t": "ünï \\u0000 🎉 \u2028 it\'s \\\\ \\t"}')
    insert(store, "huge", payload=huge, type="big", priority=7, group="customer:ü")
    insert(store, "later", delay=3600, key="k", key_for=60.5)
    insert(store, "keyed", key="held", max_attempts=9, timeout=1.25, priority=-5)
    done = run(store, "done", type="a", key="kept", key_for=3600)
    store.write_log_tail(done, LogTail("host", 3, b"\x00\xff\n"))
    child = new_job("child", "kid", parent_id="done")
    finish(store, done, Completed('{"r": [1, 2.5, null]}'), children=(child,))
    finish(store, run(store, "dead", type="b"), Errored("OSError: ü\nline", "Trace\x1b[31m", permanent=True))
    finish(store, run(store, "alike", type="b"), Errored("OSError: ü\nline", permanent=True))
    finish(store, run(store, "retrying", type="c"), Errored("boom"))
    finish(store, run(store, "stopped", type="d"), Stopped("Cancelled"))
    store.cancel_job("keyed")
    finish(store, run(store, "gone", type="g"))
    store.delete_job("gone")
    reporting = run(store, "reporting", type="f")
    store.write_progress("worker", [(reporting.seq, reporting.version, 0.25, "a quarter ¼")])
    finish(store, reporting)
    store.set_setting("max_attempts", "", 7)
    store.set_setting("rate_limit", "big", 2.5)
    store.set_paused("kid", True)
    store.write_reconciliation('{"text": "ü"}')
    minute = empty_minute(28_000_000, "a", "w1")
    minute.completed, minute.wait_seconds, minute.runs[3] = 5, 0.1 + 0.2, 4
    store.write_statistics([minute])


def fill_directly(url: str) -> None:
    """What needs a worker to come about: links, the state of a rate limit, types."""
    statements = (
        "INSERT INTO holdfast_links (parent_id, child_id) VALUES ('done', 'plain')",
        f"INSERT INTO holdfast_limits (name, tokens, refilled_at) VALUES ('{rate_name(url)}', 0.3, 12)",
        "UPDATE holdfast_jobs SET losses = 1 WHERE id = 'huge'",
        "INSERT INTO holdfast_types (type, executor, schema) VALUES ('a', 'thread', '{}')",
    )
    with closing(connected(url)) as connection:
        for statement in statements:
            connection.execute(statement)


def rate_name(url: str) -> str:
    return "rate big" if url.startswith("postgresql") else "big"


def connected(url: str) -> Any:
    if not url.startswith("postgresql"):
        return sqlite3.connect(url.removeprefix("sqlite:///").partition("?")[0], isolation_level=None)
    address = parse_url(url)
    return psycopg.connect(address.conninfo, autocommit=True, options=f"-csearch_path={address.schema}")


def contents(url: str) -> dict[str, list[tuple[Any, ...]]]:
    """Every row of every table, as the database's own driver gives it; in the columns of both engines."""
    with closing(connected(url)) as connection:
        return {name: _rows(connection, name) for name in sorted(_tables(connection))}


def _tables(connection: Any) -> set[str]:
    if isinstance(connection, sqlite3.Connection):
        found = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'holdfast%'"
        )
    else:
        found = connection.execute(
            "SELECT table_name FROM information_schema.tables WHERE table_schema = current_schema()"
        )
    return {row[0] for row in found.fetchall()} - {*NOT_MOVED, *LEFT_OUT}


def _rows(connection: Any, name: str) -> list[tuple[Any, ...]]:
    cursor = connection.execute(f"SELECT * FROM {name}")
    places = {column[0]: place for place, column in enumerate(cursor.description)}
    columns = sorted(places.keys() - BEGINS_ANEW)
    rows = [tuple(_plain(row[places[column]]) for column in columns) for row in cursor.fetchall()]
    if name == "holdfast_limits" and not isinstance(connection, sqlite3.Connection):
        rows = [(name.removeprefix("rate "), *rest) for name, *rest in rows]
    return [tuple(columns), *sorted(rows, key=repr)]


def _plain(value: Any) -> Any:
    return int(value) if isinstance(value, bool) else value


BEGINS_ANEW = {"returned"}
"""What PostgreSQL's claims note for processes that have it open, and nobody has a queue open that arrives."""


@contextmanager
def moving(source: str, target: str) -> Iterator[Move]:
    """A move that is about to begin, and is undone in the end if it was not switched."""
    with ExitStack() as stack:
        start, end = (stack.enter_context(closing(open_end(url))) for url in (source, target))
        yield stack.enter_context(closing(Move(start, end)))


def moved(source: str, target: str) -> dict[str, int]:
    """Move a queue in which nothing runs; the numbers of rows."""
    with moving(source, target) as move:
        move.start()
        assert move.freeze()
        copied = move.copy()
        move.switch()
    return {table.name: table.rows for table in copied}


# All of it arrives


@pytest.mark.parametrize(("first", "second"), WAYS)
def test_everything_arrives_there_and_back(place: Places, first: str, second: str) -> None:
    urls = [place(first), place(second), place(first)]
    with opened(urls[0]) as store:
        fill(store)
    fill_directly(urls[0])
    before = contents(urls[0])
    rows = moved(urls[0], urls[1])
    assert rows["holdfast_jobs"] == 11
    assert all(rows[name] for name in rows), rows
    assert contents(urls[1]) == before
    moved(urls[1], urls[2])
    assert contents(urls[2]) == before


@pytest.mark.parametrize(("first", "second"), WAYS)
def test_queue_works_on_in_its_new_place(place: Places, first: str, second: str) -> None:
    source, target = place(first), place(second)
    with opened(source) as store:
        fill(store)
        last = claim_seq(store)
        before = (store.count_jobs(), store.count_enqueued(), store.list_error_groups(9), store.list_paused())
    moved(source, target)
    with opened(target) as store:
        assert before == (
            store.count_jobs(), store.count_enqueued(), store.list_error_groups(9), store.list_paused()
        )  # fmt: skip
        assert [job.id for job in store.list_jobs(JobFilter(group="customer:ü"))] == ["huge"]
        assert claim_seq(store) > last
        [verdict] = store.insert_jobs([new_job("again", "a", key="kept")])
        assert (verdict.id, verdict.inserted) == ("done", False)
        assert store.list_children("done") == ["child"]
        store.retry_job("dead", None)
        assert {group.error: group.jobs for group in store.list_error_groups(9)} == {"OSError: ü": 1}
        store.delete_job("alike")
        assert store.list_error_groups(9) == []


def claim_seq(store: Store) -> int:
    """The number of a new job that leaves no trace."""
    claimed = run(store, "probe", type="probe")
    finish(store, claimed)
    store.delete_job("probe")
    return claimed.seq


@pytest.mark.postgres
def test_number_of_a_deleted_job_is_not_given_again(place: Places) -> None:
    """Also where no job is left that had a higher one."""
    urls = [place("sqlite"), place("postgres"), place("sqlite")]
    with opened(urls[0]) as store:
        last = claim_seq(store)
    for source, target in pairwise(urls):
        moved(source, target)
        with closing(open_end(target)) as end:
            assert end.last_seq() == last
    with opened(urls[-1]) as store:
        assert claim_seq(store) == last + 1


@pytest.mark.postgres
def test_empty_queue_can_be_moved_and_used(place: Places) -> None:
    urls = [place("sqlite"), place("postgres"), place("sqlite")]
    for source, target in pairwise(urls):
        assert moved(source, target)["holdfast_jobs"] == 0
    with opened(urls[-1]) as store:
        assert claim_seq(store) == 1


@pytest.mark.postgres
def test_every_column_of_both_engines_is_moved(place: Places) -> None:
    ours = {table.name: set(table.names) for table in TABLES if table is not COUNTS}
    for engine in ("sqlite", "postgres"):
        url = place(engine)
        with opened(url), closing(connected(url)) as connection:
            for name in _tables(connection) - {"holdfast_counts"}:
                cursor = connection.execute(f"SELECT * FROM {name}")
                assert {column[0] for column in cursor.description} - BEGINS_ANEW == ours[name], name


@pytest.mark.postgres
def test_log_tails_go_from_postgres_to_postgres(place: Places) -> None:
    source, target = place("postgres"), place("postgres")
    with opened(source) as store:
        fill(store)
    moved(source, target)
    with opened(target) as store:
        assert store.read_log_tail("done") == LogTail("host", 3, b"\x00\xff\n")


@pytest.mark.postgres
def test_text_that_postgres_cannot_hold_arrives_with_a_mark(place: Places) -> None:
    source, target = place("sqlite"), place("postgres")
    with opened(source) as store:
        insert(store, "a", "b")
    with closing(connected(source)) as connection:
        connection.execute("UPDATE holdfast_jobs SET error = 'a' || char(0) || 'b' WHERE id = 'a'")
        connection.execute("UPDATE holdfast_jobs SET error = CAST(x'41ff42' AS TEXT) WHERE id = 'b'")
    moved(source, target)
    with closing(connected(target)) as connection:
        rows = connection.execute("SELECT error FROM holdfast_jobs ORDER BY id").fetchall()
    assert rows == [("a\ufffdb",), ("A\ufffdB",)]


@pytest.mark.postgres
def test_row_that_does_not_fit_is_named_and_nothing_is_moved(place: Places) -> None:
    source, target = place("sqlite"), place("postgres")
    with opened(source) as store:
        insert(store, "a")
    with closing(connected(source)) as connection:
        connection.execute("UPDATE holdfast_jobs SET priority = 1 << 40")
    with pytest.raises(MoveFailed, match="holdfast_jobs: a row can't be stored there"):
        moved(source, target)
    works(source)
    assert contents(target)["holdfast_jobs"][1:] == []
    works(target)


@pytest.mark.parametrize("second", ["sqlite", "postgres"])
def test_row_that_arrives_otherwise_is_noticed(
    place: Places, second: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = place("sqlite"), place(second)
    with opened(source) as store:
        insert(store, "a", "b")
    kind: Any = PostgresEnd if second == "postgres" else SqliteEnd
    write = kind.write

    def lossy(end: Any, table: Table, rows: Any) -> None:
        write(end, table, (row for row in list(rows) if row[1] != "b"))

    monkeypatch.setattr(kind, "write", lossy)
    with pytest.raises(MoveFailed, match="holdfast_jobs did not arrive as it was sent: 2 rows"):
        moved(source, target)
    works(source)
    assert contents(target)["holdfast_jobs"][1:] == []


def works(url: str) -> None:
    """A job goes through, and nothing of a move is left."""
    with opened(url) as store:
        claim_seq(store)
    with closing(open_end(url)) as end:
        assert end.read_mark() is None


# What is refused


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
@pytest.mark.parametrize("what", ["job", "setting", "pause", "history"])
def test_target_that_is_not_empty_is_refused_untouched(place: Places, engine: str, what: str) -> None:
    source, target = place("sqlite"), place(engine)
    with opened(source) as store:
        insert(store, "mine")
    with opened(target) as store:
        if what == "job":
            insert(store, "precious")
        elif what == "setting":
            store.set_setting("max_attempts", "", 7)
        elif what == "pause":
            store.set_paused("a", True)
        else:
            claim_seq(store)
    before = contents(target)
    with pytest.raises(MoveFailed, match="is not empty"):
        moved(source, target)
    assert contents(target) == before
    works(source)
    works(target)


def test_nobody_begins_a_queue_in_the_target_meanwhile(place: Places, engine: str) -> None:
    """Such as a producer that the source has sent there."""
    source, target = place("sqlite"), place(engine)
    with opened(target) as early, moving(source, target) as move:
        move.start()
        with pytest.raises(QueueArriving), opened(target):
            pass
        with pytest.raises(QueueArriving):
            insert(early, "too early")
        assert move.freeze()
        move.copy()
        move.switch()
        insert(early, "in time")
    works(target)


@pytest.mark.postgres
def test_same_place_is_refused_however_it_is_spelt(place: Places, tmp_path: Path) -> None:
    file, schema = place("sqlite"), place("postgres")
    path = Path(file.removeprefix("sqlite:///").partition("?")[0])
    for url in (file, schema):
        with opened(url) as store:
            insert(store, "a")
    (tmp_path / "link.db").symlink_to(path)
    for source, target in (
        (file, f"sqlite:///{tmp_path}/./{path.name}"),
        (file, f"sqlite:///{tmp_path}/link.db"),
        (
            schema,
            postgres.with_parameters(schema.replace("postgresql:", "postgres:"), application_name="other"),
        ),
    ):
        with pytest.raises(ConfigError, match="already"):
            moved(source, target)
    works(file)
    works(schema)


@pytest.mark.postgres
def test_two_moves_at_once_are_one(place: Places) -> None:
    for engine in ("sqlite", "postgres"):
        source, targets = place(engine), (place("sqlite"), place("sqlite"))
        with moving(source, targets[0]) as move:
            move.start()
            with pytest.raises(MoveFailed, match="another process is moving the queue"):
                moved(source, targets[1])
            assert move.freeze()
            move.copy()
            move.switch()
        with pytest.raises(QueueMoved):
            moved(source, targets[1])
        works(targets[0])


# What the guards let through


@pytest.fixture
def move(place: Places, engine: str) -> Iterator[Move]:
    """A move that is about to begin."""
    with moving(place(engine), place("sqlite")) as move:
        yield move


def url_of(move: Move) -> str:
    return move.source.address


def test_nothing_new_is_taken_and_nothing_started_while_jobs_end(move: Move) -> None:
    with opened(url_of(move)) as store:
        running = run(store, "running")
        insert(store, "waiting")
        move.start()
        with pytest.raises(QueueMoved, match="is being moved to") as caught:
            insert(store, "new")
        assert (caught.value.to, caught.value.done) == (move.target.address, False)
        with pytest.raises(QueueMoved):
            store.set_paused("", False)
        assert store.claim_jobs("w", [demand()], limit=5, lease_seconds=30).claims == []
        assert not move.freeze()
        assert finish(store, running, children=(new_job("child", parent_id="running"),)) == "completed"
        assert move.freeze()
        move.copy()
        move.switch()
    with opened(move.target.address) as store:
        assert [status(store, id) for id in ("running", "waiting", "child")] == [
            "completed", "pending", "pending"
        ]  # fmt: skip
        assert store.list_paused() == {}
        assert claim_one(store).id == "waiting"


def test_frozen_queue_takes_no_write_at_all(move: Move) -> None:
    with opened(url_of(move)) as store:
        insert(store, "a", "b")
        move.start()
        assert move.freeze()
        for write in (
            lambda: insert(store, "c"),
            lambda: store.cancel_job("a"),
            lambda: store.set_setting("max_attempts", "", 5),
            lambda: store.set_paused("a", True),
            lambda: store.write_reconciliation("{}"),
            lambda: store.write_statistics([empty_minute(1, "a", "w")]),
            lambda: store.register_worker(
                worker_record(), [TypeRecord(type="a", executor="thread", schema={})]
            ),
        ):
            with pytest.raises(QueueMoved):
                write()
        assert [job.id for job in store.list_jobs(JobFilter())] == ["b", "a"]


def worker_record() -> WorkerRecord:
    return WorkerRecord(id="w", host="h", pid=1, state="running", concurrency=1, types=("a",))


def test_moved_queue_is_closed_to_those_who_have_it_open_and_to_new_ones(move: Move) -> None:
    with opened(url_of(move)) as store:
        insert(store, "a")
        store.register_worker(worker_record(), [])
        move.start()
        assert move.freeze()
        move.copy()
        move.switch()
        with pytest.raises(QueueMoved, match=r"was moved to sqlite:.* \(use that address\)"):
            store.heartbeat("w", [], state="running", lease_seconds=30)
        with pytest.raises(QueueMoved):
            insert(store, "b")
        assert store.claim_jobs("w", [demand()], limit=5, lease_seconds=30).claims == []
    with pytest.raises(QueueMoved), opened(url_of(move)):
        pass
    with Queue(url_of(move)) as queue, pytest.raises(QueueMoved):
        queue.enqueue("email", {})


def test_what_arrives_is_closed_until_the_switch(place: Places, engine: str) -> None:
    """Also to workers that wait there already."""
    source, target = place("sqlite"), place(engine)
    with opened(source) as store:
        insert(store, "a")
    with opened(target) as early:
        early.register_worker(worker_record(), [TYPE])
        with moving(source, target) as move:
            move.start()
            assert move.freeze()
            move.copy()
            with pytest.raises(QueueArriving, match="moved here from"):
                claim_one(early)
            with pytest.raises(QueueArriving):
                insert(early, "b")
            with pytest.raises(QueueArriving), opened(target):
                pass
            move.switch()
        assert claim_one(early).id == "a"


def test_undone_move_leaves_no_trace(move: Move) -> None:
    with opened(url_of(move)) as store:
        insert(store, "a")
        before = contents(url_of(move))
        move.start()
        assert move.freeze()
        move.copy()
        move.close()
        assert contents(url_of(move)) == before
        claim_one(store)
    works(url_of(move))
    works(move.target.address)


def test_pause_of_before_stays_a_pause(move: Move) -> None:
    with opened(url_of(move)) as store:
        store.set_paused("", True)
        before = store.list_paused()
        move.start()
        move.close()
        assert store.list_paused() == before


def test_paused_queue_arrives_paused(move: Move) -> None:
    with opened(url_of(move)) as store:
        store.set_paused("", True)
        before = store.list_paused()
    move.start()
    assert move.freeze()
    move.copy()
    move.switch()
    with opened(move.target.address) as store:
        assert store.list_paused() == before


def test_guards_expire_when_nobody_renews_them(place: Places, engine: str) -> None:
    source = place(engine)
    with closing(open_end(source)) as end, opened(source) as store:
        end.close_to_producers("sqlite:///elsewhere.db", "token", 0.1)
        assert end.renew("token", 0.2)
        with pytest.raises(QueueMoved):
            insert(store, "refused")
        wait_until(lambda: (mark := end.read_mark()) is not None and mark.expired, 30)
        assert not end.renew("token", 60)
        assert not end.mark_moved("sqlite:///elsewhere.db", "token")
        insert(store, "taken")
    works(source)


@pytest.mark.postgres
def test_old_snapshot_does_not_slip_through(place: Places) -> None:
    source = place("postgres")
    with opened(source), closing(connected(source)) as connection, closing(open_end(source)) as end:
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        connection.execute("SELECT count(*) FROM holdfast_jobs").fetchall()
        end.close_to_producers("sqlite:///elsewhere.db", "token", 60)
        with pytest.raises(psycopg.Error, match="is being moved to"):
            connection.execute(
                "INSERT INTO holdfast_jobs (id, type, status, due_at, created_at, updated_at, token, payload)"
                " VALUES ('x', 'a', 'pending', 0, 0, 0, '', '{}')"
            )
        connection.execute("ROLLBACK")
        end.reopen("token")


@pytest.mark.postgres
def test_writer_in_flight_is_waited_for(place: Places, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a transaction of an application has written by then is copied, or the move does not go on."""
    source, target = place("postgres"), place("sqlite")
    with opened(source) as store:
        insert(store, "a")
    with (
        closing(open_end(source)) as start,
        closing(open_end(target)) as end,
        closing(Move(start, end)) as move,
    ):
        move.start()
        with closing(connected(source)) as connection, monkeypatch.context() as patched:
            patched.setattr(transfer, "PATIENCE", 0.0)
            connection.execute("BEGIN")
            connection.execute("UPDATE holdfast_jobs SET priority = 99")
            with pytest.raises(StoreBusy):
                move.freeze()
            connection.execute("COMMIT")
        assert move.freeze()
        move.copy()
        move.switch()
    with opened(target) as store:
        assert [job.priority for job in store.list_jobs(JobFilter())] == [99]


@pytest.mark.postgres
def test_who_opens_the_target_and_the_mover_do_not_wait_for_each_other(place: Places) -> None:
    """Opening a queue reads the mark, then the tables. So the mover takes them in that order, too."""
    source, target = place("sqlite"), place("postgres")
    with opened(source) as store:
        insert(store, "a")
    with (
        moving(source, target) as move,
        closing(connected(target)) as opening,
        closing(connected(target)) as looking,
    ):
        move.start()
        assert move.freeze()
        opening.execute("BEGIN")
        opening.execute(f"SELECT 1 FROM {MOVE_TABLE}")

        def open_the_rest() -> None:
            wait_until(lambda: looking.execute(waiting).fetchone(), message="the mover waits")
            opening.execute("SELECT 1 FROM holdfast_jobs")
            opening.execute("COMMIT")

        waiting = f"SELECT 1 FROM pg_locks WHERE NOT granted AND relation = '{MOVE_TABLE}'::regclass"
        thread = threading.Thread(target=open_the_rest)
        thread.start()
        move.copy()
        thread.join()
        move.switch()
    with opened(target) as store:
        assert status(store, "a") == "pending"


# The application's own transaction, and copies


def test_moving_queue_refuses_inside_a_callers_transaction_which_goes_on(move: Move) -> None:
    url = url_of(move)
    if url.startswith("sqlite"):
        url += "?synchronous=off"
    with Queue(url) as queue, closing(connected(url)) as connection:
        queue.open()
        connection.execute("CREATE TABLE users (name text)")
        move.start()
        connection.execute("BEGIN")
        connection.execute("INSERT INTO users VALUES ('eve')")
        with pytest.raises(QueueMoved, match="is being moved to"):
            queue.enqueue("email", {}, connection=connection)
        connection.execute("COMMIT")
        assert connection.execute("SELECT name FROM users").fetchall() == [("eve",)]


@pytest.mark.postgres
def test_backup_of_postgres_is_the_whole_queue_in_a_file(place: Places, tmp_path: Path) -> None:
    source = place("postgres")
    with opened(source) as store:
        fill(store)
        run(store, "running", type="z")
        fill_directly(source)
        store.back_up(str(tmp_path / "copy.db"))
    assert contents(f"sqlite:///{tmp_path}/copy.db") == contents(source)
    assert [path.name for path in tmp_path.iterdir()] == ["copy.db"]
    assert (tmp_path / "copy.db").stat().st_mode & 0o777 == 0o600
    works(f"sqlite:///{tmp_path}/copy.db")
