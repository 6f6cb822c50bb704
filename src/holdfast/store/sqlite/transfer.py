"""A SQLite queue as one end of a move: its guards, and its rows."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from holdfast.core.clock import microseconds
from holdfast.store.database import Session
from holdfast.store.migrate import VERSION_TABLE
from holdfast.store.moved import MOVE_TABLE, MOVED, WORDS_OF_MOVING, Mark
from holdfast.store.rows import quoted
from holdfast.store.sqlite.connection import OwnConnection, rollback
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.insert import LAST_SEQ
from holdfast.store.sqlite.store import SqliteStore
from holdfast.store.tables import COUNTS, JOBS, TABLES, Row, Table, converter, unmovable
from holdfast.store.transfer import End

_NOW = "CAST((julianday('now') - 2440587.5) * 86400000000 AS INTEGER)"
_MAKE = f"""CREATE TABLE {MOVE_TABLE} (
    role TEXT NOT NULL, state TEXT NOT NULL, other TEXT NOT NULL, origin TEXT NOT NULL, token TEXT NOT NULL,
    pause INTEGER, until INTEGER NOT NULL)"""
_CLOSED = f"(SELECT until FROM {MOVE_TABLE}) > {_NOW}"
_CHANGES = ("INSERT", "UPDATE", "DELETE")

# A worker that goes on after its mover was killed ends the pause by its own heartbeat.
_EXPIRE = f"""CREATE TRIGGER {MOVE_TABLE}_expire AFTER UPDATE ON holdfast_workers WHEN NOT {_CLOSED} BEGIN
    DELETE FROM holdfast_pauses
    WHERE type = '' AND paused_at = (SELECT pause FROM {MOVE_TABLE} WHERE state <> '{MOVED}');
END"""


class SqliteEnd(End):
    """See End."""

    tables = tuple(table for table in TABLES if not table.optional)
    present = _NOW
    held = f"until > {_NOW}"

    def __init__(self, store: SqliteStore) -> None:
        self.store = store
        self.database: Database = store.database
        self.address = store.url
        file = os.stat(self.database.path)
        self.origin = f"{os.path.realpath(self.database.path)} {file.st_dev}:{file.st_ino}"
        self._reader: OwnConnection | None = None

    def has(self, table: Table) -> bool:
        return table in self.tables

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
        return Mark(*rows[0]) if rows else None

    def alone(self, *, readers: bool = True) -> AbstractContextManager[OwnConnection]:  # noqa: ARG002
        return self.database.transaction()  # who reads sees what was there before

    def write_mark(self, session: Session, mark: Mark, seconds: float) -> None:
        session.rows(_MAKE)
        session.rows(
            f"INSERT INTO {MOVE_TABLE} VALUES (?, ?, ?, ?, ?, ?, {_NOW} + ?)",
            (mark.role, mark.state, mark.other, mark.origin, mark.token, mark.pause, microseconds(seconds)),
        )

    def guard_producers(self, session: Session, mark: Mark) -> None:
        words = WORDS_OF_MOVING + mark.other
        self._guard(session, JOBS.name, words, f"NEW.parent_id IS NULL AND {_CLOSED}", ("INSERT",))
        self._guard(session, "holdfast_pauses", words, _CLOSED)
        session.rows(_EXPIRE)

    def guard_tables(self, session: Session, mark: Mark) -> None:
        self._unguard(session)
        for table in self.tables:
            self._guard(session, table.name, WORDS_OF_MOVING + mark.other, _CLOSED)
        session.rows(_EXPIRE)

    def guard_for_good(self, session: Session, words: str, *, moved: bool) -> None:
        self._unguard(session)
        for name in [*(table.name for table in self.tables), *(["holdfast_workers"] if moved else [])]:
            self._guard(session, name, words, "1")

    def _guard(
        self, session: Session, table: str, words: str, condition: str, changes: Sequence[str] = _CHANGES
    ) -> None:
        quoted = words.replace("'", "''")
        for change in changes:
            session.rows(
                f"CREATE TRIGGER {MOVE_TABLE}_{table}_{change.lower()} BEFORE {change} ON {table}"
                f" WHEN {condition} BEGIN SELECT RAISE(ABORT, '{quoted}'); END"
            )

    def _unguard(self, session: Session) -> None:
        names = session.rows(
            "SELECT name FROM sqlite_master WHERE type = 'trigger' AND name GLOB ?", (f"{MOVE_TABLE}_*",)
        )
        for (name,) in names:
            session.rows(f"DROP TRIGGER {name}")

    def remove_mark(self, session: Session) -> None:
        self._unguard(session)
        session.rows(f"DROP TABLE {MOVE_TABLE}")

    def renew(self, token: str, seconds: float) -> bool:
        with self.database.transaction() as connection:
            try:
                sql = f"UPDATE {MOVE_TABLE} SET until = {_NOW} + ? WHERE token = ? AND {self.held}"
                return connection.count(sql, (microseconds(seconds), token)) > 0
            except sqlite3.OperationalError:
                return False  # another has cleaned up

    # The rows.

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
        connection = self._receiver or self._reader
        assert isinstance(connection, OwnConnection)
        return map(converter(table), connection.execute(self.select(table)))

    def last_seq(self) -> int:
        return int(self.database.read_one(LAST_SEQ)[0])

    def write(self, table: Table, rows: Iterable[Row]) -> None:
        connection = self.receiver
        assert isinstance(connection, OwnConnection)
        into = f"INSERT INTO {table.name} ({quoted(table.columns)})"
        values = f"VALUES ({', '.join('?' * len(table.names))})"
        # The jobs themselves have been counted by their triggers.
        extra = "ON CONFLICT (type) DO UPDATE SET enqueued = excluded.enqueued" if table is COUNTS else ""
        try:
            connection.executemany(f"{into} {values} {extra}", rows)
        except (sqlite3.IntegrityError, sqlite3.DataError, OverflowError) as error:
            raise unmovable(table, error) from error

    def set_last_seq(self, seq: int) -> None:
        self.receiver.rows(f"UPDATE {VERSION_TABLE} SET last_seq = ?", (seq,))


def _lenient(text: bytes) -> str:
    return text.decode("utf-8", "replace")
