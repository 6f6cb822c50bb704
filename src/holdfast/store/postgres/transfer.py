"""A PostgreSQL queue as one end of a move: its guards, and its rows; and a copy of it in a file.

How long the guards hold is in a sequence, whose value everybody sees as it is now. In a row, a transaction
of an application that is REPEATABLE READ would see what that was when it began.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from urllib.parse import quote

import psycopg

from holdfast.core.clock import microseconds, system_clock
from holdfast.errors import StoreBusy, StoreError, StoreUnavailable
from holdfast.store.backup import make_copy
from holdfast.store.database import PATIENCE
from holdfast.store.database import Session as AnySession
from holdfast.store.moved import MOVE_TABLE, MOVED_STATE, SOURCE, WORDS_OF_MOVING, Mark
from holdfast.store.postgres.bounds import LONG
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import translated
from holdfast.store.postgres.schema import STATUSES
from holdfast.store.postgres.server_clock import NOW
from holdfast.store.postgres.session import Session
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.usage import rate_row
from holdfast.store.rows import quoted
from holdfast.store.tables import (
    COUNTS,
    ERRORS,
    JOBS,
    LIMITS,
    PAUSES,
    TABLES,
    Row,
    Table,
    converter,
    unmovable,
)
from holdfast.store.transfer import End, copy_rows

_LOCK_PATIENCE = "SET LOCAL lock_timeout = '500ms'"
"""Shorter than the server looks for deadlocks, so that it is the mover who steps back."""

_AT_ONCE = 100
"""Rows of a page; a payload may be large."""
_STORED = [table for table in TABLES if table not in (ERRORS, COUNTS)]
_LOCK = f"LOCK TABLE {', '.join(table.name for table in _STORED)}, holdfast_workers IN"
_NO_WRITERS, _NOBODY = f"{_LOCK} SHARE ROW EXCLUSIVE MODE", f"{_LOCK} ACCESS EXCLUSIVE MODE"
"""To create and drop triggers: taking more locks later could deadlock."""
_TALLIES = ("holdfast_tallies", "holdfast_error_tallies")
_RATE = rate_row("")


def _is_undefined(error: StoreError) -> bool:
    return isinstance(error.__cause__, psycopg.errors.UndefinedTable)


class PostgresEnd(End):
    """See End."""

    tables = _STORED
    present = NOW

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.database: Database = store.database
        self.address = store.url
        self.origin = self.database.identity
        schema = self.database.schema
        self.table = f"{schema}.{MOVE_TABLE}"
        self._jobs = f"{schema}.{JOBS.name}"
        self._until = f"{schema}.{MOVE_TABLE}_until"
        self._refuse = f"{schema}.{MOVE_TABLE}_refuse()"
        self._expire = f"{schema}.{MOVE_TABLE}_expire()"
        self._closed = f"(SELECT last_value FROM {self._until}) > {NOW}"
        self._margin = 0

    # The mark and the guards.

    def read_mark(self) -> Mark | None:
        if not self.has_mark():
            return None
        try:
            rows = self.database.read(
                f"SELECT role, state, other, origin, token, pause, NOT ({self._closed}) FROM {self.table}"
            )
        except StoreUnavailable as error:
            if _is_undefined(error):  # it is gone since
                return None
            raise
        return Mark(*rows[0]) if rows else None

    def has_mark(self) -> bool:
        [(found,)] = self.database.read("SELECT to_regclass(?)::text", [self.table])
        return found is not None

    @property
    def held(self) -> str:
        return f"(SELECT last_value - {self._margin} FROM {self._until}) > {NOW}"

    @contextmanager
    def alone(self, *, readers: bool = True) -> Iterator[Session]:
        """See End. Nor does anybody claim who has not seen what it changes: a claim takes its lock before it
        looks."""
        deadline = time.monotonic() + PATIENCE
        locked = False
        while not locked:
            try:
                with self.database.transaction(bounds=LONG) as session:
                    session.rows(_LOCK_PATIENCE)
                    if not readers and self.has_mark():
                        # Who opens the queue reads the mark, then the tables: taken in another order, each
                        # would wait for the other.
                        session.rows(f"LOCK TABLE {self.table} IN ACCESS EXCLUSIVE MODE")
                    session.rows(_NO_WRITERS if readers else _NOBODY)
                    locked = True
                    yield session
            except StoreError as error:
                is_passing = isinstance(error, StoreBusy) or _is_undefined(error)  # the mark is gone since
                if locked or not is_passing or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # for those who were waiting behind us

    def write_mark(self, session: AnySession, mark: Mark, seconds: float) -> None:
        session.rows(
            f"CREATE TABLE {self.table} (role text NOT NULL, state text NOT NULL, other text NOT NULL,"
            " origin text NOT NULL, token text NOT NULL, pause bigint)"
        )
        session.rows(f"CREATE SEQUENCE {self._until} MINVALUE 0")
        # Whoever opens the queue is to be told; what is in it is no secret.
        session.rows(f"GRANT SELECT ON {self.table}, {self._until} TO PUBLIC")
        session.rows(
            f"INSERT INTO {self.table} VALUES (?, ?, ?, ?, ?, ?)",
            [mark.role, mark.state, mark.other, mark.origin, mark.token, mark.pause],
        )
        if mark.role == SOURCE:
            self._margin = microseconds(seconds) // 6
            self._push(session, seconds)

    def _push(self, session: AnySession, seconds: float) -> None:
        # The guards hold a little longer than the mover relies on them.
        session.rows(
            f"SELECT setval(?::regclass, {NOW} + ?)", [self._until, microseconds(seconds) + self._margin]
        )

    def guard_producers(self, session: AnySession, mark: Mark) -> None:
        self._make_refusal(session, WORDS_OF_MOVING + mark.other, self._closed)
        session.rows(
            f"CREATE TRIGGER {MOVE_TABLE}_new BEFORE INSERT ON holdfast_jobs FOR EACH ROW"
            f" WHEN (NEW.parent_id IS NULL) EXECUTE FUNCTION {self._refuse}"
        )
        self._guard(session, PAUSES.name)
        # A worker that goes on after its mover was killed ends the pause by its own heartbeat.
        pause = "NULL" if mark.pause is None else str(mark.pause)
        self._make_function(
            session,
            self._expire,
            f"IF NOT ({self._closed}) THEN"
            f" DELETE FROM holdfast_pauses WHERE type = '' AND paused_at = {pause}; END IF; RETURN NULL;",
        )
        session.rows(
            f"CREATE TRIGGER {MOVE_TABLE}_expire AFTER UPDATE ON holdfast_workers"
            f" FOR EACH STATEMENT EXECUTE FUNCTION {self._expire}"
        )

    def guard_tables(self, session: AnySession, mark: Mark) -> None:  # noqa: ARG002 -- its words are there
        for table in _STORED:
            if table is not PAUSES:
                self._guard(session, table.name)

    def guard_for_good(self, session: AnySession, words: str, *, moved: bool) -> None:
        self._make_refusal(session, words, "true")
        for name in ["holdfast_workers"] if moved else [table.name for table in _STORED]:
            self._guard(session, name)

    def _make_refusal(self, session: AnySession, words: str, condition: str) -> None:
        # In hexadecimal, so that nothing in an address is taken for SQL.
        message = f"convert_from(decode('{words.encode().hex()}', 'hex'), 'UTF8')"
        self._make_function(
            session,
            self._refuse,
            f"IF {condition} THEN RAISE EXCEPTION USING ERRCODE = '{MOVED_STATE}', MESSAGE = {message};"
            " END IF; IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW;",
        )

    def _make_function(self, session: AnySession, name: str, body: str) -> None:
        session.rows(
            f"CREATE OR REPLACE FUNCTION {name} RETURNS trigger LANGUAGE plpgsql"
            # An application's role may have no right to look at a move.
            " SECURITY DEFINER SET search_path = pg_catalog"
            f" AS $holdfast$ BEGIN {body} END $holdfast$"
        )

    def _guard(self, session: AnySession, table: str) -> None:
        session.rows(
            f"CREATE TRIGGER {MOVE_TABLE}_refuse BEFORE INSERT OR UPDATE OR DELETE ON {table}"
            f" FOR EACH ROW EXECUTE FUNCTION {self._refuse}"
        )

    def remove_mark(self, session: AnySession) -> None:
        session.rows("SET LOCAL client_min_messages = warning")
        session.rows(f"DROP FUNCTION IF EXISTS {self._refuse}, {self._expire} CASCADE")
        session.rows(f"DROP SEQUENCE {self._until}")
        session.rows(f"DROP TABLE {self.table}")

    def renew(self, token: str, seconds: float) -> bool:
        with self.database.transaction() as session:
            if self.read_mark() is None:
                return False
            held = session.rows(
                f"SELECT 1 FROM {self.table} WHERE token = ? AND {self.held} FOR UPDATE", [token]
            )
            if held:
                self._push(session, seconds)
            return bool(held)

    # The rows.

    def reading(self) -> AbstractContextManager[None]:
        return self.database.snapshot(LONG)

    def rows(self, table: Table) -> Iterator[Row]:
        session = self.database.session
        assert session is not None
        with (
            translated(self.database.url),
            session.connection.cursor(f"{MOVE_TABLE}_rows") as cursor,
        ):
            cursor.itersize = _AT_ONCE
            cursor.execute(self.database.text(self.select(table)))
            yield from map(converter(table), cursor)

    def select(self, table: Table) -> str:
        if table is ERRORS:
            return super().select(table).replace('"last_at"', "coalesce(last_at, 0)", 1)
        if table is LIMITS:
            return (
                f"SELECT substr(name, {len(_RATE) + 1}) AS name, tokens, refilled_at FROM {LIMITS.name}"
                f" WHERE name LIKE '{_RATE}%' AND refilled_at >= 0 ORDER BY name"
            )
        return super().select(table)

    def last_seq(self) -> int:
        [(name,)] = self.database.read("SELECT pg_get_serial_sequence(?, 'seq')", [self._jobs])
        [(last, is_called)] = self.database.read(f"SELECT last_value, is_called FROM {name}")
        return int(last) if is_called else int(last) - 1

    def clear(self, tables: Sequence[Table]) -> None:
        super().clear(tables)
        if COUNTS in tables:
            for name in _TALLIES:
                self.receiver.rows(f"DELETE FROM {name}")

    def write(self, table: Table, rows: Iterable[Row]) -> None:
        try:
            if table is COUNTS:
                self._write_counts(dict(rows))
            elif table is ERRORS:
                self._copy("holdfast_error_tallies", table.names, rows)
            elif table is LIMITS:
                self._copy(table.name, table.names, ((_RATE + name, *rest) for name, *rest in rows))
            else:
                self._copy(table.name, table.names, rows)
        except (psycopg.DataError, psycopg.IntegrityError, UnicodeEncodeError) as error:
            raise unmovable(table, error) from error

    def _copy(self, name: str, columns: Sequence[str], rows: Iterable[Row]) -> None:
        session = self.receiver
        assert isinstance(session, Session)
        into = self.database.text(f"COPY {name} ({quoted(columns)}) FROM STDIN")
        with session.connection.cursor() as cursor, cursor.copy(into) as copy:
            for row in rows:
                copy.write_row(row)

    def _write_counts(self, enqueued: dict[str, int]) -> None:
        """The jobs themselves have been counted by their triggers."""
        there = dict(self.receiver.rows("SELECT type, enqueued FROM holdfast_counts"))
        names, zeros = ", ".join(STATUSES), ", ".join("0" for _ in STATUSES)
        for type, count in enqueued.items():
            self.receiver.rows(
                f"INSERT INTO holdfast_tallies (type, {names}, enqueued) VALUES (?, {zeros}, ?)",
                [type, count - there.get(type, 0)],
            )

    def set_last_seq(self, seq: int) -> None:
        self.receiver.rows(
            "SELECT setval(pg_get_serial_sequence(?, 'seq'), ?::bigint, ?)",
            [self._jobs, max(1, seq), seq > 0],
        )


def back_up(store: PostgresStore, path: str) -> None:
    """Copy the queue, as one snapshot shows it, into a SQLite file, which is made whole or not at all."""
    make_copy(path, lambda part: _fill(store, part))


def _fill(store: PostgresStore, part: str) -> None:
    from holdfast.store.sqlite import open_store
    from holdfast.store.sqlite.transfer import SqliteEnd

    source = PostgresEnd(store)
    # Closing the last connection leaves all in the one file, which is synced as a whole.
    target = SqliteEnd(open_store(f"sqlite:///{quote(part)}?synchronous=off&network=allow", system_clock))
    try:
        with source.reading(), target.receiving():
            copy_rows(source, target)
    finally:
        target.close()
