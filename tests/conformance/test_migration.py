"""From older schema versions to this one: the jobs of an older queue are all there, and work goes on."""

from __future__ import annotations

import json
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.clock import SECOND
from holdfast.core.error_group import error_group
from holdfast.errors import ForeignDatabase
from holdfast.store.migrate import VERSION_TABLE
from holdfast.store.open import open_store
from holdfast.store.protocol import Store
from holdfast.store.records import JobFilter, Minute, StopRequest, empty_minute
from holdfast.store.sqlite import open as opening
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.schema import ERROR_GROUP, MIGRATIONS
from holdfast.testing import MovableClock
from tests.conformance.steps import claim_one, everything, insert, status


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "queue.db"


@contextmanager
def opened(path: Path, clock: MovableClock) -> Iterator[Store]:
    with closing(open_store(f"sqlite:///{path}?synchronous=off", clock)) as store:
        yield store


class Release:
    """What an older release did: it knows the columns of its time, and nothing of what came later."""

    def __init__(self, path: Path, clock: MovableClock, number: int) -> None:
        self.number = number
        self._clock = clock
        self._connection = sqlite3.connect(path, isolation_level=None)

    def close(self) -> None:
        self._connection.close()

    def insert(self, *ids: str, type: str = "email", delay: float = 0, **options: Any) -> None:
        now = self._clock()
        status = "scheduled" if delay else "pending"
        for id in ids:
            given = {
                "id": id, "type": type, "status": status, "due_at": now + round(delay * SECOND),
                "created_at": now, "updated_at": now, "token": f"token-{id}", "payload": "{}", **options,
            }  # fmt: skip
            marks = ", ".join("?" * len(given))
            self.execute(f"INSERT INTO holdfast_jobs ({', '.join(given)}) VALUES ({marks})", *given.values())

    def claim(self, type: str = "email") -> str:
        """Take the first job of a type; its id."""
        now = self._clock()
        [(id,)] = self.execute(
            """UPDATE holdfast_jobs SET status = 'processing', attempts = attempts + 1, version = version + 1,
            max_attempts = coalesce(max_attempts, 3), worker_id = 'worker', lease_expires_at = ?,
            started_at = ?, updated_at = ?, due_at = due_at
            WHERE seq = (SELECT seq FROM holdfast_jobs INDEXED BY holdfast_jobs_pending
                WHERE status = 'pending' AND type = ? ORDER BY priority DESC, seq LIMIT 1) RETURNING id""",
            now + 30 * SECOND, now, now, type,
        )  # fmt: skip
        return str(id)

    def run(self, id: str, **options: Any) -> str:
        self.insert(id, **options)
        assert self.claim(options.get("type", "email")) == id
        return id

    def complete(self, id: str) -> None:
        now = self._clock()
        self._end(id, "completed", "finished_at = ?", now)

    def fail(self, id: str, error: str) -> None:
        """Let a running job fail for good."""
        now = self._clock()
        self._note(id, error)
        group = ", error_group = ?" if self.number >= 4 else ""
        known = [error_group(error)] if group else []
        self._end(id, "failed", f"error = ?, due_at = ?, finished_at = ?{group}", error, now, now, *known)

    def fail_later(self, id: str, error: str) -> None:
        """Let a running job fail, to be retried."""
        self._note(id, error)
        self._end(id, "scheduled", "error = ?, due_at = ?", error, self._clock() + 10 * SECOND)

    def cancel(self, id: str) -> None:
        now = self._clock()
        self.execute(
            "UPDATE holdfast_jobs SET status = 'cancelled', finished_at = ?, updated_at = ?, due_at = due_at"
            " WHERE id = ?",
            now, now, id,
        )  # fmt: skip

    def retry(self, id: str) -> None:
        group = ", error_group = NULL" if self.number >= 4 else ""
        now = self._clock()
        self.execute(
            "UPDATE holdfast_jobs SET status = 'pending', attempts = 0, due_at = ?, updated_at = ?,"
            f" finished_at = NULL{group} WHERE id = ?",
            now, now, id,
        )  # fmt: skip

    def delete(self, id: str) -> None:
        self.execute("DELETE FROM holdfast_jobs WHERE id = ?", id)

    def heartbeat(self) -> None:
        self.execute("UPDATE holdfast_workers SET heartbeat_at = ? WHERE id = 'w1'", self._clock())

    def _note(self, id: str, error: str) -> None:
        self.execute(
            "INSERT INTO holdfast_failures (seq, version, attempt, started_at, finished_at, worker_id, error)"
            " SELECT seq, version, attempts, started_at, ?, worker_id, ? FROM holdfast_jobs WHERE id = ?",
            self._clock(), error, id,
        )  # fmt: skip

    def _end(self, id: str, status: str, changes: str, *values: Any) -> None:
        if "due_at" not in changes:  # which counts it, since version 7
            changes += ", due_at = due_at"
        [_] = self.execute(
            f"UPDATE holdfast_jobs SET status = '{status}', {changes}, updated_at = ?, worker_id = NULL,"
            " lease_expires_at = NULL WHERE id = ? AND status = 'processing' RETURNING id",
            *values, self._clock(), id,
        )  # fmt: skip

    def execute(self, sql: str, *values: Any) -> list[Any]:
        return self._connection.execute(sql, values).fetchall()


@contextmanager
def opened_as_version(number: int, path: Path, clock: MovableClock) -> Iterator[Release]:
    """A queue with the schema of a version, in the hands of the release of that time."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(opening, "MIGRATIONS", MIGRATIONS[:number])
        open_store(f"sqlite:///{path}?synchronous=off", clock).close()
    with closing(Release(path, clock, number)) as release:
        yield release


def query(path: Path, sql: str) -> list[Any]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql).fetchall()


def version(path: Path) -> int:
    [(number,)] = query(path, f"SELECT version FROM {VERSION_TABLE}")
    return int(number)


def schema(path: Path) -> list[Any]:
    return query(path, "SELECT type, name, sql FROM sqlite_master ORDER BY type, name")


def register_as_version_1(path: Path) -> None:
    """What the release of that time wrote about a worker."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "INSERT INTO holdfast_workers"
            " (id, host, pid, state, concurrency, types, started_at, heartbeat_at)"
            " VALUES ('w1', 'here', 1, 'running', 4, '[\"email\"]', 1, 1) ON CONFLICT (id) DO UPDATE SET"
            " state = excluded.state, concurrency = excluded.concurrency, types = excluded.types"
        )


def fill(old: Release) -> None:
    """A job of each state, and one that waits for a retry."""
    old.complete(old.run("done"))
    old.fail(old.run("dead", key="k", key_for=60.0), "boom")
    old.fail_later(old.run("retrying"), "boom")
    old.run("running")
    old.insert("later", delay=60)
    old.insert("cancelled")
    old.cancel("cancelled")
    old.insert("waiting")
    old.execute("INSERT INTO holdfast_settings (name, type, value) VALUES ('max_attempts', 'email', '7')")


NEW_COLUMNS = {
    2: [("holdfast_workers", "stop"), ("holdfast_workers", "slots")],
    3: [
        ("holdfast_counts", "enqueued"),
        ("holdfast_workers", "turned_at"),
        ("holdfast_statistics", "limited_seconds"),
    ],
    4: [("holdfast_jobs", "error_group"), ("holdfast_errors", "jobs")],
    5: [("holdfast_reconciliation", "report")],
    7: [("holdfast_jobs", "group"), ("holdfast_jobs", "losses"), (VERSION_TABLE, "settings_version")],
}
"""The columns that came with a version."""


Rows = list[dict[str, Any]]


def rows(path: Path) -> Rows:
    """All jobs as they are stored."""
    with closing(sqlite3.connect(path)) as connection:
        connection.row_factory = sqlite3.Row
        return [dict(row) for row in connection.execute("SELECT * FROM holdfast_jobs ORDER BY seq")]


def same(before: Rows, after: Rows) -> bool:
    """Whether nothing has changed of what was there before."""
    return len(before) == len(after) and all(
        old[name] == new[name] for old, new in zip(before, after, strict=True) for name in old
    )


def old_queue(path: Path, clock: MovableClock, number: int = 1) -> Rows:
    """Make a database of an older version with jobs in it."""
    with opened_as_version(number, path, clock) as old:
        fill(old)
        register_as_version_1(path)
    assert version(path) == number
    for since, columns in NEW_COLUMNS.items():
        for table, column in columns:
            names = [row[1] for row in query(path, f"PRAGMA table_info({table})")]
            assert (column in names) == (since <= number)
    return rows(path)


OLD = range(1, MIGRATIONS[-1].number)
"""The versions that are to be migrated."""


@pytest.mark.parametrize("number", OLD)
def test_jobs_and_all_else_are_there_after_the_migration(
    path: Path, clock: MovableClock, number: int, empty_database: Path
) -> None:
    before = old_queue(path, clock, number)
    with opened(path, clock) as store:
        assert same(before, rows(path))
        assert [job.id for job in everything(store)] == [row["id"] for row in before]
        assert [(job.group, job.attempts) for job in everything(store)] == [
            (None, row["attempts"]) for row in before
        ]
        assert store.count_jobs()["email"] == {
            "scheduled": 2,
            "pending": 1,
            "processing": 1,
            "completed": 1,
            "failed": 1,
            "cancelled": 1,
        }
        assert store.get_settings() == {("max_attempts", "email"): 7}
        [worker] = store.list_workers()
        assert (worker.id, worker.types, worker.slots) == ("w1", ("email",), {})
        assert store.read_reconciliation() is None
        store.write_reconciliation("{}")
        assert same(before, rows(path))
    with opened(path, clock) as store:
        assert store.read_reconciliation() == "{}"
    assert version(path) == MIGRATIONS[-1].number
    assert query(path, "PRAGMA integrity_check") == [("ok",)]
    assert schema(path) == schema(empty_database), "it has become that of a new queue"


@pytest.mark.parametrize("number", OLD)
def test_what_an_application_made_for_our_jobs_outlives_the_migration(
    path: Path, clock: MovableClock, number: int
) -> None:
    theirs = [
        "CREATE INDEX created ON holdfast_jobs (created_at)",
        "CREATE TRIGGER noted AFTER INSERT ON holdfast_jobs BEGIN INSERT INTO notes VALUES (NEW.id); END",
        "CREATE TRIGGER shouted AFTER INSERT ON Holdfast_Jobs BEGIN INSERT INTO notes VALUES ('!'); END",
        "CREATE INDEX holdfast_theirs ON holdfast_jobs (updated_at)",
        "CREATE VIEW emails AS SELECT id FROM holdfast_jobs WHERE type = 'email'",
    ]
    with opened_as_version(number, path, clock) as old:
        fill(old)
        old.execute("CREATE TABLE notes (id TEXT REFERENCES holdfast_jobs (id))")
        for sql in theirs:
            old.execute(sql)
    with opened(path, clock) as store:
        insert(store, "new")
    kept = {sql for (sql,) in query(path, "SELECT sql FROM sqlite_master")}
    assert set(theirs) <= kept
    assert sorted(query(path, "SELECT id FROM notes")) == [("!",), ("new",)]
    assert ("new",) in query(path, "SELECT id FROM emails")


def test_column_that_an_application_added_is_not_lost_but_named(path: Path, clock: MovableClock) -> None:
    with opened_as_version(7, path, clock) as old:
        old.insert("a")
        old.execute("ALTER TABLE holdfast_jobs ADD COLUMN tenant TEXT DEFAULT 'acme'")
    with pytest.raises(ForeignDatabase, match="column 'tenant'"), opened(path, clock):
        pass
    assert version(path) == 7
    assert query(path, "SELECT id, tenant FROM holdfast_jobs") == [("a", "acme")]


def test_who_opens_a_file_that_another_process_is_migrating_waits(
    path: Path, clock: MovableClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    with opened_as_version(7, path, clock) as old:
        fill(old)
    monkeypatch.setattr(Database.transaction.__wrapped__, "__kwdefaults__", {"patience": 0.01})  # type: ignore[attr-defined]
    with closing(sqlite3.connect(path, isolation_level=None, check_same_thread=False)) as migrating:
        migrating.execute("BEGIN IMMEDIATE")
        ending = threading.Timer(0.5, migrating.execute, ["COMMIT"])
        ending.start()
        with opened(path, clock):
            pass
        ending.join()
    assert version(path) == MIGRATIONS[-1].number


def test_number_of_a_job_that_was_deleted_before_the_migration_is_not_given_again(
    path: Path, clock: MovableClock
) -> None:
    with opened_as_version(7, path, clock) as old:
        old.insert("a", "b", "gone")
        old.delete("gone")
    with opened(path, clock) as store:
        insert(store, "new")
    assert query(path, "SELECT seq FROM holdfast_jobs WHERE id = 'new'") == [(4,)]


def test_what_is_new_works_on_what_is_old(path: Path, clock: MovableClock) -> None:
    old_queue(path, clock)
    with opened(path, clock) as store:
        assert store.get_stop_request("w1") is StopRequest.NONE
        store.request_stop(["w1"], StopRequest.IN_ORDER)
        assert store.get_stop_request("w1") is StopRequest.IN_ORDER
        assert store.count_retrying() == {"email": 1}
        assert [found.id for found in store.list_running(10)] == ["running"]
        assert claim_one(store).id == "waiting"


@pytest.mark.parametrize("number", [1, 2])
def test_jobs_that_are_there_count_as_enqueued_and_new_ones_are_added(
    path: Path, clock: MovableClock, number: int
) -> None:
    """For those deleted before, nobody knows."""
    with opened_as_version(number, path, clock) as old:
        fill(old)
        old.insert("crawl", type="crawl")
        old.complete(old.run("gone", type="brief"))
        old.delete("gone")
    with opened(path, clock) as store:
        assert store.count_enqueued() == {"brief": 0, "crawl": 1, "email": 7}
        store.delete_job("done")
        store.delete_job("dead")
        insert(store, "new", type="brief")
        insert(store, "newer", "newest")
        assert store.count_enqueued() == {"brief": 1, "crawl": 1, "email": 9}
    with opened(path, clock) as store:
        assert store.count_enqueued() == {"brief": 1, "crawl": 1, "email": 9}


def write_statistics_as_version_2(path: Path, minute: int) -> Minute:
    """What the release of that time wrote about a minute, replacing its own row."""
    written = empty_minute(minute, "email", "w1")
    written.completed, written.wait_seconds, written.waits[2] = 3, 0.5, 3
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute(
            "REPLACE INTO holdfast_statistics (minute, type, worker_id, completed, failed, retried, reaped,"
            " wait_seconds, run_seconds, waits, runs) VALUES (?, 'email', 'w1', 3, 0, 0, 0, 0.5, 0, ?, ?)",
            (minute, json.dumps(written.waits), json.dumps(written.runs)),
        )
    return written


def test_statistics_of_before_are_kept_and_nothing_in_them_was_limited(
    path: Path, clock: MovableClock
) -> None:
    old_queue(path, clock, 2)
    old = write_statistics_as_version_2(path, 100)
    with opened(path, clock) as store:
        assert store.list_statistics(0) == [old]
        newer = empty_minute(101, "email", "w1")
        newer.limited_seconds = 1.5
        store.write_statistics([newer])
        store.fold_statistics(hours_before=102, lifetime_before=102)
        [folded] = store.list_statistics(0)
        assert (folded.completed, folded.waits, folded.limited_seconds) == (3, old.waits, 1.5)


def test_worker_of_before_has_shown_no_turn_until_its_next_heartbeat(path: Path, clock: MovableClock) -> None:
    old_queue(path, clock, 2)
    with opened(path, clock) as store:
        assert [worker.turned_at for worker in store.list_workers()] == [None]
        store.heartbeat("w1", [], state="running", lease_seconds=30, turn_age=2)
        assert [worker.turned_at for worker in store.list_workers()] == [clock.now - timedelta(seconds=2)]


def test_release_of_version_2_that_still_has_it_open_goes_on(path: Path, clock: MovableClock) -> None:
    """Its inserts are counted by the new trigger, and what it writes beside the jobs fits."""
    with opened_as_version(2, path, clock) as old:
        old.run("a")
        with opened(path, clock) as new:
            old.insert("b")
            old.complete("a")
            assert old.claim() == "b"
            register_as_version_1(path)
            written = write_statistics_as_version_2(path, 100)
            assert new.count_enqueued() == {"email": 2}
            assert new.list_statistics(0) == [written]
            assert [worker.id for worker in new.list_workers()] == ["w1"]


def fail(old: Release, id: str, error: str, **options: Any) -> None:
    old.fail(old.run(id, **options), error)


def groups(store: Store) -> dict[tuple[str, str], int]:
    return {(group.type, group.error): group.jobs for group in store.list_error_groups(100)}


@pytest.mark.parametrize("number", [1, 2, 3])
def test_jobs_that_had_failed_are_grouped_by_their_errors(
    path: Path, clock: MovableClock, number: int
) -> None:
    with opened_as_version(number, path, clock) as old:
        for n in range(3):
            clock.advance(1)
            fail(old, f"late-{n}", f"Timeout: after {n} s\nwith more")
        last = clock.now
        clock.advance(1)
        fail(old, "other", "Timeout: after 7 s", type="crawl")
        fail(old, "silent", "")
        old.complete(old.run("done"))
        fail(old, "retried", "Timeout: after 9 s")
        old.retry("retried")
    with opened(path, clock) as store:
        assert groups(store) == {
            ("email", "Timeout: after # s"): 3,
            ("crawl", "Timeout: after # s"): 1,
            ("email", "(no message)"): 1,
        }
        assert store.list_error_groups(1)[0].last_at == last
        alike = JobFilter(error="Timeout: after # s")
        assert [job.id for job in store.list_jobs(alike)] == ["other", "late-2", "late-1", "late-0"]
        store.retry_job("late-1", None)
        store.delete_job("silent")
        assert groups(store) == {("email", "Timeout: after # s"): 2, ("crawl", "Timeout: after # s"): 1}
    assert (
        query(path, "SELECT id FROM holdfast_jobs WHERE error_group IS NOT NULL AND status <> 'failed'") == []
    )


def test_error_that_is_no_text_does_not_keep_a_queue_from_being_opened(
    path: Path, clock: MovableClock
) -> None:
    with opened_as_version(3, path, clock) as old:
        fail(old, "a", "boom")
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("UPDATE holdfast_jobs SET error = CAST(x'626164ff' AS TEXT)")
    with opened(path, clock) as store:
        assert groups(store) == {("email", "bad\N{REPLACEMENT CHARACTER}"): 1}


@pytest.mark.parametrize("number", OLD)
def test_lists_in_every_order_work_on_what_is_old(path: Path, clock: MovableClock, number: int) -> None:
    with opened_as_version(number, path, clock) as old:
        for n, priority in enumerate((0, 5, -1)):
            clock.advance(1)
            fail(old, f"job-{n}", "boom", priority=priority)
    with opened(path, clock) as store:
        for sort, ids in (
            ("created", ["job-2", "job-1", "job-0"]),
            ("finished", ["job-2", "job-1", "job-0"]),
            ("priority", ["job-1", "job-0", "job-2"]),
        ):
            filter = JobFilter(statuses=("failed",), sort=sort)
            assert [job.id for job in store.list_jobs(filter)] == ids
            assert [job.id for job in store.list_jobs(replace(filter, ascending=True))] == ids[::-1]


def test_release_of_version_3_that_still_has_it_open_goes_on(path: Path, clock: MovableClock) -> None:
    """What it fails meanwhile has no group; what has one is counted right, whoever retries or deletes it."""
    with opened_as_version(3, path, clock) as old:
        fail(old, "a", "boom")
        fail(old, "b", "boom")
        old.run("c")
        with opened(path, clock) as new:
            assert groups(new) == {("email", "boom"): 2}
            old.fail("c", "boom")
            old.retry("a")
            assert groups(new) == {("email", "boom"): 1}
            old.delete("b")
            assert groups(new) == {}
            old.retry("c")
            assert [old.claim(), old.claim()] == ["a", "c"]
            for index in ("ended", "later", "retrying", "finished"):  # it asks for them by name
                assert query(path, f"SELECT 1 FROM sqlite_master WHERE name = 'holdfast_jobs_{index}'")


def test_there_is_one_report_whoever_writes(path: Path, clock: MovableClock) -> None:
    with opened(path, clock) as store:
        store.write_reconciliation("{}")
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as connection,
        pytest.raises(sqlite3.IntegrityError),
    ):
        connection.execute("INSERT INTO holdfast_reconciliation (number, report) VALUES (2, '{}')")


def test_release_of_version_4_that_still_has_it_open_goes_on(path: Path, clock: MovableClock) -> None:
    with opened_as_version(4, path, clock) as old:
        old.run("a")
        with opened(path, clock) as new:
            new.write_reconciliation("{}")
            old.complete("a")
            fail(old, "b", "boom")
            assert groups(new) == {("email", "boom"): 1}
            old.insert("c")
            assert old.claim() == "c"
            old.delete("a")
            assert new.read_reconciliation() == "{}"


def test_function_of_the_migration_is_gone_afterwards(path: Path, clock: MovableClock) -> None:
    with (
        opened(path, clock) as store,
        store.transaction() as connection,
        pytest.raises(sqlite3.OperationalError, match="no such function"),
    ):
        connection.execute(f"SELECT {ERROR_GROUP}('x')")


def test_second_opening_migrates_nothing(path: Path, clock: MovableClock) -> None:
    old_queue(path, clock)
    with opened(path, clock) as store:
        store.request_stop(["w1"], StopRequest.AT_ONCE)
    before = schema(path)
    with opened(path, clock) as store:
        assert store.get_stop_request("w1") is StopRequest.AT_ONCE
    assert schema(path) == before


def test_older_release_that_still_has_it_open_goes_on(path: Path, clock: MovableClock) -> None:
    """A rolling upgrade: its workers finish what they run, and take more."""
    with opened_as_version(1, path, clock) as old:
        old.run("a")
        old.insert("b")
        register_as_version_1(path)
        with opened(path, clock) as new:
            new.request_stop(["w1"], StopRequest.IN_ORDER)
            old.complete("a")
            old.heartbeat()
            register_as_version_1(path)
            assert new.get_stop_request("w1") is StopRequest.IN_ORDER
            assert old.claim() == "b"
            old.insert("c")
            assert status(new, "c") == "pending"
            assert claim_one(new).id == "c"


def test_openers_at_once_migrate_it_once(path: Path, clock: MovableClock) -> None:
    before = old_queue(path, clock)
    barrier = threading.Barrier(4)
    problems: list[BaseException] = []

    def open_it() -> None:
        try:
            barrier.wait(30)
            with opened(path, clock) as store:
                assert store.count_retrying() == {"email": 1}
        except BaseException as problem:
            problems.append(problem)

    threads = [threading.Thread(target=open_it) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert problems == []
    assert same(before, rows(path))


KILLED_AT = """
import os, signal, sqlite3, sys
from holdfast.core.clock import system_clock
from holdfast.store.sqlite import open as opening
from holdfast.store.sqlite.database import Database

class Connection(sqlite3.Connection):
    inside = None

    def execute(self, sql, *parameters):
        cursor = super().execute(sql, *parameters)
        if sql.startswith("BEGIN"):
            self.inside = 0
        elif self.inside is not None and sql.startswith(("ALTER", "CREATE", "DROP", "INSERT", "UPDATE")):
            self.inside += 1
            if self.inside > part:  # of the process that was forked for it
                os.kill(os.getpid(), signal.SIGKILL)
        return cursor

connect_as = Database.connect_as
Database.connect_as = lambda self, kind: connect_as(self, Connection)
for part, path in enumerate(sys.argv[1:]):
    child = os.fork()
    if not child:
        opening.open_store(f"sqlite:///{path}", system_clock).close()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def parts(number: int) -> int:
    """The statements between an older version and this one; each ends with its version's number."""
    return sum(len(step.statements) + 1 for step in MIGRATIONS[number:])


@pytest.mark.process
@pytest.mark.parametrize("number", OLD)
def test_migration_killed_anywhere_leaves_the_old_version_whole(
    path: Path, clock: MovableClock, number: int
) -> None:
    """The last part is the new version's number, written and not yet committed."""
    before, old_schema = old_queue(path, clock, number), schema(path)
    copies = [path.with_name(f"{part}.db") for part in range(parts(number))]
    for copy in copies:
        shutil.copy(path, copy)
    killed = subprocess.run(
        [sys.executable, "-c", KILLED_AT, *copies],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (killed.stdout.split(), killed.stderr) == ([str(-signal.SIGKILL)] * len(copies), "")
    for copy in copies:
        assert (version(copy), schema(copy)) == (number, old_schema)
        with opened(copy, clock) as store:
            assert same(before, rows(copy))
            assert store.get_stop_request("w1") is StopRequest.NONE
            assert store.count_enqueued() == {"email": len(before)}
        assert version(copy) == MIGRATIONS[-1].number
