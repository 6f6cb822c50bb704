"""A SQLite queue as one end of a move: its guards, and its rows."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

from holdfast.core.clock import Clock, microseconds
from holdfast.errors import MoveFailed
from holdfast.store.move import (
    ARRIVING,
    COPYING,
    COUNTS,
    DRAINING,
    JOBS,
    MOVED,
    SOURCE,
    TABLES,
    TARGET,
    End,
    Mark,
    Row,
    Table,
    converter,
    unmovable,
)
from holdfast.store.moved import MOVE_TABLE, words_of_arriving, words_of_moved, words_of_moving
from holdfast.store.sqlite.database import Database, rollback
from holdfast.store.sqlite.open import open_store
from holdfast.store.sqlite.store import SqliteStore

_NOW = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
_MAKE = f"""CREATE TABLE {MOVE_TABLE} (
    role TEXT NOT NULL, state TEXT NOT NULL, other TEXT NOT NULL, origin TEXT NOT NULL, token TEXT NOT NULL,
    pause INTEGER, until INTEGER NOT NULL)"""
_CLOSED = f"(SELECT until FROM {MOVE_TABLE}) > {_NOW}"
_HELD = f"token = ? AND state = '{COPYING}' AND until > {_NOW}"
_CHANGES = ("INSERT", "UPDATE", "DELETE")

# A worker that goes on after its mover was killed ends the pause by its own heartbeat.
_EXPIRE = f"""CREATE TRIGGER {MOVE_TABLE}_expire AFTER UPDATE ON holdfast_workers WHEN NOT {_CLOSED} BEGIN
    DELETE FROM holdfast_pauses
    WHERE type = '' AND paused_at = (SELECT pause FROM {MOVE_TABLE} WHERE state <> '{MOVED}');
END"""

_FILLED = [table for table in TABLES if not table.optional]


def open_end(url: str, clock: Clock, *, create: bool = True) -> SqliteEnd:
    """Open a queue, also one that is closed to others by a move."""
    return SqliteEnd(open_store(url, clock, create=create, for_move=True))


def check_move(database: Database) -> None:
    """At an opening that has found our table: refuse what is not here, clean up after a dead mover."""
    end = SqliteEnd(SqliteStore(database, lambda: 0))
    mark = end.read_mark()
    if mark is None:
        return
    mark.refuse()
    if mark.expired:
        end.reopen(None)


class SqliteEnd(End):
    """See End."""

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.database = store.database
        self.address = store.url
        file = os.stat(self.database.path)
        self.origin = f"{os.path.realpath(self.database.path)} {file.st_dev}:{file.st_ino}"
        self._reader: sqlite3.Connection | None = None
        self._writer: sqlite3.Connection | None = None

    def close(self) -> None:
        self.store.close()

    def has(self, table: Table) -> bool:
        return not table.optional

    # The mark and the guards.

    def read_mark(self) -> Mark | None:
        if not self.database.read("SELECT 1 FROM sqlite_master WHERE name = ?", (MOVE_TABLE,)):
            return None
        try:
            rows = self.database.read(
                f"SELECT role, state, other, origin, token, pause, until <= {_NOW} FROM {MOVE_TABLE}"
            )
        except sqlite3.OperationalError:  # it is gone since
            return None
        if not rows:
            return None
        role, state, other, origin, token, pause, expired = rows[0]
        return Mark(role, state, other, origin, token, pause, bool(expired))

    def close_to_producers(self, to: str, token: str, seconds: float) -> None:
        with self.database.transaction() as connection:
            mark = self.read_mark()
            if mark is not None:
                mark.refuse()
                raise MoveFailed(f"the queue is being moved to {mark.other} by somebody else")
            connection.execute(_MAKE)
            [(now,)] = connection.execute(f"SELECT {_NOW}")
            paused = connection.execute("SELECT 1 FROM holdfast_pauses WHERE type = ''").fetchone()
            if not paused:
                connection.execute("INSERT INTO holdfast_pauses (type, paused_at) VALUES ('', ?)", (now,))
            connection.execute(
                f"INSERT INTO {MOVE_TABLE} VALUES ('{SOURCE}', '{DRAINING}', ?, '', ?, ?, ?)",
                (to, token, None if paused else now, now + microseconds(seconds)),
            )
            words = words_of_moving(to)
            self._guard(connection, "holdfast_jobs", "INSERT", words, f"NEW.parent_id IS NULL AND {_CLOSED}")
            for change in _CHANGES:
                self._guard(connection, "holdfast_pauses", change, words, _CLOSED)
            connection.execute(_EXPIRE)

    def _guard(
        self, connection: sqlite3.Connection, table: str, change: str, words: str, condition: str
    ) -> None:
        quoted = words.replace("'", "''")
        connection.execute(
            f"CREATE TRIGGER {MOVE_TABLE}_{table}_{change.lower()} BEFORE {change} ON {table}"
            f" WHEN {condition} BEGIN SELECT RAISE(ABORT, '{quoted}'); END"
        )

    def _unguard(self, connection: sqlite3.Connection) -> None:
        names = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name GLOB ?", (f"{MOVE_TABLE}_*",)
        ).fetchall()
        for (name,) in names:
            connection.execute(f"DROP TRIGGER {name}")

    def _guard_all(self, connection: sqlite3.Connection, words: str, condition: str) -> None:
        self._unguard(connection)
        for table in _FILLED:
            for change in _CHANGES:
                self._guard(connection, table.name, change, words, condition)

    def renew(self, token: str, seconds: float) -> bool:
        with self.database.transaction() as connection:
            try:
                return bool(
                    connection.execute(
                        f"UPDATE {MOVE_TABLE} SET until = {_NOW} + ? WHERE token = ? AND until > {_NOW}",
                        (microseconds(seconds), token),
                    ).rowcount
                )
            except sqlite3.OperationalError:
                return False  # another has cleaned up

    def close_to_all(self, to: str, token: str) -> bool:
        with self.database.transaction() as connection:
            if self.count_running():
                return False
            changed = connection.execute(
                f"UPDATE {MOVE_TABLE} SET state = '{COPYING}' WHERE token = ? AND until > {_NOW}", (token,)
            ).rowcount
            if changed:
                self._guard_all(connection, words_of_moving(to), _CLOSED)
                connection.execute(_EXPIRE)
            return bool(changed)

    def mark_moved(self, to: str, token: str) -> bool:
        with self.database.transaction() as connection:
            if self.read_mark() is None:
                return False
            changed = connection.execute(
                f"UPDATE {MOVE_TABLE} SET state = '{MOVED}' WHERE {_HELD}", (token,)
            ).rowcount
            if changed:
                words = words_of_moved(to)
                self._guard_all(connection, words, "1")
                # Those who have it open still are told, too.
                for change in _CHANGES:
                    self._guard(connection, "holdfast_workers", change, words, "1")
            return bool(changed)

    def reopen(self, token: str | None) -> None:
        with self.database.transaction() as connection:
            mark = self.read_mark()
            if mark is None or mark.role != SOURCE or mark.state == MOVED:
                return
            if mark.token != token and (token is not None or not mark.expired):
                return
            self._unguard(connection)
            connection.execute(f"DROP TABLE {MOVE_TABLE}")
            connection.execute("DELETE FROM holdfast_pauses WHERE type = '' AND paused_at = ?", (mark.pause,))

    # The rows.

    def count_running(self) -> int:
        count: int = self.database.read_one("SELECT count(*) FROM holdfast_jobs WHERE status = 'processing'")[
            0
        ]
        return count

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self.database.using():
            connection = self._reader = self.database.connect()
            connection.text_factory = _lenient
            try:
                connection.execute("BEGIN")
                yield
            finally:
                self._reader = None
                rollback(connection)
                connection.close()

    def rows(self, table: Table) -> Iterator[Row]:
        where = ""
        if table.name == "holdfast_pauses":
            mark = self.read_mark()
            if mark is not None and mark.pause is not None:
                where = f"WHERE type <> '' OR paused_at <> {mark.pause}"
        elif table is COUNTS:
            where = "WHERE enqueued > 0"
        connection = self._writer or self._reader
        assert connection is not None
        cursor = connection.execute(
            f"SELECT {', '.join(table.names)} FROM {table.name} {where} ORDER BY {table.key}"
        )
        return map(converter(table), cursor)

    def count_rows(self, table: Table) -> int:
        where = "WHERE enqueued > 0" if table is COUNTS else ""
        count: int = self.database.read_one(f"SELECT count(*) FROM {table.name} {where}")[0]
        return count

    def last_seq(self) -> int:
        row = self.database.read_one("SELECT seq FROM sqlite_sequence WHERE name = 'holdfast_jobs'")
        return 0 if row is None else int(row[0])

    @contextmanager
    def receiving(self) -> Iterator[None]:
        with self.database.transaction() as connection:
            self._writer = connection
            try:
                yield
            finally:
                self._writer = None

    @property
    def _open(self) -> sqlite3.Connection:
        assert self._writer is not None
        return self._writer

    def clear(self, tables: Sequence[Table]) -> None:
        for table in tables:
            if self.has(table):
                self._open.execute(f"DELETE FROM {table.name}")

    def write(self, table: Table, rows: Iterable[Row]) -> None:
        into = f"INSERT INTO {table.name} ({', '.join(table.names)})"
        values = f"VALUES ({', '.join('?' * len(table.names))})"
        # The jobs themselves have been counted by their triggers.
        extra = "ON CONFLICT (type) DO UPDATE SET enqueued = excluded.enqueued" if table is COUNTS else ""
        try:
            self._open.executemany(f"{into} {values} {extra}", rows)
        except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
            raise unmovable(table, error) from error

    def set_last_seq(self, seq: int) -> None:
        self._open.execute("DELETE FROM sqlite_sequence WHERE name = ?", (JOBS.name,))
        self._open.execute("INSERT INTO sqlite_sequence (name, seq) VALUES (?, ?)", (JOBS.name, seq))

    def mark_arriving(self, source: End, token: str) -> None:
        self._open.execute(_MAKE)
        self._open.execute(
            f"INSERT INTO {MOVE_TABLE} VALUES ('{TARGET}', '{ARRIVING}', ?, ?, ?, NULL, 0)",
            (source.address, source.origin, token),
        )
        self._guard_all(self._open, words_of_arriving(source.address), "1")

    def unmark(self) -> None:
        self._unguard(self._open)
        self._open.execute(f"DROP TABLE {MOVE_TABLE}")


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")
