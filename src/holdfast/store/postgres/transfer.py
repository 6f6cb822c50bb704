"""A PostgreSQL queue as one end of a move: its guards, and its rows; and a copy of it in a file.

How long the guards hold is in a sequence, whose value everybody sees as it is now. In a row, a transaction
of an application that is REPEATABLE READ would see what that was when it began.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from urllib.parse import quote

import psycopg

from holdfast.core.clock import Clock, microseconds, system_clock
from holdfast.errors import MoveFailed, StoreBusy, StoreUnavailable
from holdfast.store.backup import make_copy
from holdfast.store.move import (
    ARRIVING,
    COPYING,
    COUNTS,
    DRAINING,
    ERRORS,
    LIMITS,
    MOVED,
    PAUSES,
    SOURCE,
    TABLES,
    TARGET,
    End,
    Mark,
    Row,
    Table,
    converter,
    copy_rows,
    unmovable,
)
from holdfast.store.moved import MOVE_TABLE, MOVED_STATE, words_of_arriving, words_of_moved, words_of_moving
from holdfast.store.postgres.bounds import LONG
from holdfast.store.postgres.claim import rate_row
from holdfast.store.postgres.clock import NOW
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import raise_translated
from holdfast.store.postgres.open import open_store
from holdfast.store.postgres.patience import PATIENCE
from holdfast.store.postgres.schema import STATUSES
from holdfast.store.postgres.session import Session
from holdfast.store.postgres.store import PostgresStore

_LOCK_PATIENCE = "SET LOCAL lock_timeout = '500ms'"
"""Shorter than the server looks for deadlocks, so that it is the mover who steps back."""

_AT_ONCE = 100
"""Rows of a page; a payload may be large."""
_STORED = [table.name for table in TABLES if table not in (ERRORS, COUNTS)]
_LOCK = f"LOCK TABLE {', '.join(_STORED)}, holdfast_workers IN"
_NO_WRITERS, _NOBODY = f"{_LOCK} SHARE ROW EXCLUSIVE MODE", f"{_LOCK} ACCESS EXCLUSIVE MODE"
"""To make triggers, and to drop them: whoever takes more later may wait for one who waits for him."""
_TALLIES = ("holdfast_tallies", "holdfast_error_tallies")
_RATE = rate_row("")


def open_end(url: str, clock: Clock, *, create: bool = True) -> PostgresEnd:
    """Open a queue, also one that is closed to others by a move."""
    return PostgresEnd(open_store(url, clock, create=create, for_move=True))


def check_move(database: Database) -> None:
    """At an opening that has found our table: refuse what is not here, clean up after a dead mover."""
    end = PostgresEnd(PostgresStore(database))
    mark = end.read_mark()
    if mark is None:
        return
    mark.refuse()
    if mark.expired:
        # Who may not, or finds somebody writing, leaves it to the next: the guards have expired anyway.
        with suppress(StoreUnavailable, StoreBusy):
            end.reopen(None)


class PostgresEnd(End):
    """See End."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.database = store.database
        self.address = store.url
        self.origin = self.database.identity
        schema = self.database.schema
        self._jobs = f"{schema}.holdfast_jobs"
        self._table = f"{schema}.{MOVE_TABLE}"
        self._until = f"{schema}.{MOVE_TABLE}_until"
        self._refuse = f"{schema}.{MOVE_TABLE}_refuse()"
        self._expire = f"{schema}.{MOVE_TABLE}_expire()"
        self._margin = 0
        self._receiver: Session | None = None

    def close(self) -> None:
        self.store.close()

    def has(self, table: Table) -> bool:  # noqa: ARG002 -- all of them
        return True

    # The mark and the guards.

    def read_mark(self) -> Mark | None:
        [(found,)] = self.database.read("SELECT to_regclass(?)::text", [self._table])
        if found is None:
            return None
        try:
            rows = self.database.read(
                f"SELECT role, state, other, origin, token, pause, NOT ({self._closed}) FROM {self._table}"
            )
        except StoreUnavailable as error:
            if isinstance(error.__cause__, psycopg.errors.UndefinedTable):  # it is gone since
                return None
            raise
        return Mark(*rows[0]) if rows else None

    def close_to_producers(self, to: str, token: str, seconds: float) -> None:
        self._margin = microseconds(seconds) // 6
        with self._alone() as session:
            mark = self.read_mark()
            if mark is not None:
                mark.refuse()
                raise MoveFailed(f"the queue is being moved to {mark.other} by somebody else")
            [(now,)] = session.rows(f"SELECT {NOW}")
            paused = session.rows("SELECT 1 FROM holdfast_pauses WHERE type = ''")
            if not paused:
                session.rows("INSERT INTO holdfast_pauses (type, paused_at) VALUES ('', ?)", [now])
            self._mark(session, [SOURCE, DRAINING, to, "", token, None if paused else now])
            self._push(session, seconds)
            words = words_of_moving(to)
            self._make_refusal(session, words, self._closed)
            session.rows(
                f"CREATE TRIGGER {MOVE_TABLE}_new BEFORE INSERT ON holdfast_jobs FOR EACH ROW"
                f" WHEN (NEW.parent_id IS NULL) EXECUTE FUNCTION {self._refuse}"
            )
            self._guard(session, "holdfast_pauses")
            # A worker that goes on after its mover was killed ends the pause by its own heartbeat.
            pause = "NULL" if paused else str(now)
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

    @contextmanager
    def _alone(self, lock: str = _NO_WRITERS) -> Iterator[Session]:
        """A transaction in which nobody else writes, once those who do have committed.

        Nor does anybody claim who has not seen what it changes: a claim takes its lock before it looks.
        """
        deadline = time.monotonic() + PATIENCE
        locked = False
        while not locked:
            try:
                with self.database.transaction(bounds=LONG) as session:
                    session.rows(_LOCK_PATIENCE)
                    session.rows(lock)
                    locked = True
                    yield session
            except StoreBusy:
                if locked or time.monotonic() > deadline:
                    raise
                time.sleep(0.05)  # for those who were waiting behind us

    @property
    def _closed(self) -> str:
        return f"(SELECT last_value FROM {self._until}) > {NOW}"

    def _mark(self, session: Session, values: Sequence[str | int | None]) -> None:
        session.rows(
            f"CREATE TABLE {self._table} (role text NOT NULL, state text NOT NULL, other text NOT NULL,"
            " origin text NOT NULL, token text NOT NULL, pause bigint)"
        )
        session.rows(f"CREATE SEQUENCE {self._until} MINVALUE 0")
        # Whoever opens the queue is to be told; what is in it is no secret.
        session.rows(f"GRANT SELECT ON {self._table}, {self._until} TO PUBLIC")
        session.rows(f"INSERT INTO {self._table} VALUES ($1, $2, $3, $4, $5, $6)", values)

    def _push(self, session: Session, seconds: float) -> None:
        # The guards hold a little longer than the mover relies on them.
        session.rows(
            f"SELECT setval(?::regclass, {NOW} + ?)", [self._until, microseconds(seconds) + self._margin]
        )

    def _make_refusal(self, session: Session, words: str, condition: str) -> None:
        # In hexadecimal, so that nothing in an address is taken for SQL.
        message = f"convert_from(decode('{words.encode().hex()}', 'hex'), 'UTF8')"
        self._make_function(
            session,
            self._refuse,
            f"IF {condition} THEN RAISE EXCEPTION USING ERRCODE = '{MOVED_STATE}', MESSAGE = {message};"
            " END IF; IF TG_OP = 'DELETE' THEN RETURN OLD; END IF; RETURN NEW;",
        )

    def _make_function(self, session: Session, name: str, body: str) -> None:
        session.rows(
            f"CREATE OR REPLACE FUNCTION {name} RETURNS trigger LANGUAGE plpgsql"
            # An application's role may have no right to look at a move.
            " SECURITY DEFINER SET search_path = pg_catalog"
            f" AS $holdfast$ BEGIN {body} END $holdfast$"
        )

    def _guard(self, session: Session, table: str) -> None:
        session.rows(
            f"CREATE TRIGGER {MOVE_TABLE}_refuse BEFORE INSERT OR UPDATE OR DELETE ON {table}"
            f" FOR EACH ROW EXECUTE FUNCTION {self._refuse}"
        )

    def renew(self, token: str, seconds: float) -> bool:
        with self.database.transaction() as session:
            if self.read_mark() is None:
                return False
            held = session.rows(
                f"SELECT 1 FROM {self._table} WHERE token = ? AND {self._held} FOR UPDATE", [token]
            )
            if held:
                self._push(session, seconds)
            return bool(held)

    @property
    def _held(self) -> str:
        return f"(SELECT last_value - {self._margin} FROM {self._until}) > {NOW}"

    def close_to_all(self, to: str, token: str) -> bool:  # noqa: ARG002 -- the words are made already
        with self._alone() as session:
            if self.read_mark() is None or self.count_running():
                return False
            changed = session.count(
                f"UPDATE {self._table} SET state = '{COPYING}' WHERE token = ? AND {self._held}", [token]
            )
            if changed:
                for table in _STORED:
                    if table != PAUSES.name:
                        self._guard(session, table)
            return bool(changed)

    def mark_moved(self, to: str, token: str) -> bool:
        with self._alone() as session:
            if self.read_mark() is None:
                return False
            changed = session.count(
                f"UPDATE {self._table} SET state = '{MOVED}'"
                f" WHERE token = ? AND state = '{COPYING}' AND {self._held}",
                [token],
            )
            if changed:
                self._make_refusal(session, words_of_moved(to), "true")
                # Those who have it open still are told, too.
                self._guard(session, "holdfast_workers")
            return bool(changed)

    def reopen(self, token: str | None) -> None:
        with self._alone(_NOBODY) as session:
            mark = self.read_mark()
            if mark is None or mark.role != SOURCE or mark.state == MOVED:
                return
            if mark.token != token and (token is not None or not mark.expired):
                return
            self._unmark(session)
            session.rows(
                "DELETE FROM holdfast_pauses WHERE type = '' AND paused_at = ?::bigint", [mark.pause]
            )
            session.wakes = True

    def _unmark(self, session: Session) -> None:
        session.rows("SET LOCAL client_min_messages = warning")
        session.rows(f"DROP FUNCTION IF EXISTS {self._refuse}, {self._expire} CASCADE")
        session.rows(f"DROP SEQUENCE {self._until}")
        session.rows(f"DROP TABLE {self._table}")

    # The rows.

    def count_running(self) -> int:
        count: int = self.database.read_one("SELECT count(*) FROM holdfast_jobs WHERE status = 'processing'")[
            0
        ]
        return count

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self.database.snapshot(LONG):
            yield

    def rows(self, table: Table) -> Iterator[Row]:
        session = self.database.session
        assert session is not None
        try:
            with session.connection.cursor(f"{MOVE_TABLE}_rows") as cursor:
                cursor.itersize = _AT_ONCE
                cursor.execute(self.database.text(self._select(table)))
                yield from map(converter(table), cursor)
        except psycopg.Error as error:
            raise_translated(error, self.database.url)

    def _select(self, table: Table) -> str:
        names, where = ", ".join(table.names), ""
        if table is PAUSES:
            mark = self.read_mark()
            if mark is not None and mark.pause is not None:
                where = f"WHERE type <> '' OR paused_at <> {mark.pause}"
        elif table is COUNTS:
            where = "WHERE enqueued > 0"
        elif table is ERRORS:
            names = names.replace("last_at", "coalesce(last_at, 0)")
        elif table is LIMITS:
            names = names.replace("name", f"substr(name, {len(_RATE) + 1}) AS name", 1)
            where = f"WHERE name LIKE '{_RATE}%' AND refilled_at >= 0"
        return f"SELECT {names} FROM {table.name} {where} ORDER BY {table.key}"

    def count_rows(self, table: Table) -> int:
        count: int = self.database.read_one(f"SELECT count(*) FROM ({self._select(table)}) AS rows")[0]
        return count

    def last_seq(self) -> int:
        [(name,)] = self.database.read("SELECT pg_get_serial_sequence(?, 'seq')", [self._jobs])
        [(last, is_called)] = self.database.read(f"SELECT last_value, is_called FROM {name}")
        return int(last) if is_called else int(last) - 1

    @contextmanager
    def receiving(self) -> Iterator[None]:
        with self._alone(_NOBODY) as session:
            self._receiver = session
            session.wakes = True
            try:
                yield
            finally:
                self._receiver = None

    @property
    def _open(self) -> Session:
        assert self._receiver is not None
        return self._receiver

    def clear(self, tables: Sequence[Table]) -> None:
        for table in tables:
            if table.name in _STORED:
                self._open.rows(f"DELETE FROM {table.name}")
        if COUNTS in tables:
            for name in _TALLIES:
                self._open.rows(f"DELETE FROM {name}")

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
        into = self.database.text(f"COPY {name} ({', '.join(columns)}) FROM STDIN")
        with self._open.connection.cursor() as cursor, cursor.copy(into) as copy:
            for row in rows:
                copy.write_row(row)

    def _write_counts(self, enqueued: dict[str, int]) -> None:
        """The jobs themselves have been counted by their triggers."""
        there = dict(self._open.rows("SELECT type, enqueued FROM holdfast_counts"))
        names, zeros = ", ".join(STATUSES), ", ".join("0" for _ in STATUSES)
        for type, count in enqueued.items():
            self._open.rows(
                f"INSERT INTO holdfast_tallies (type, {names}, enqueued) VALUES (?, {zeros}, ?)",
                [type, count - there.get(type, 0)],
            )

    def set_last_seq(self, seq: int) -> None:
        self._open.rows(
            "SELECT setval(pg_get_serial_sequence(?, 'seq'), ?::bigint, ?)",
            [self._jobs, max(1, seq), seq > 0],
        )

    def mark_arriving(self, source: End, token: str) -> None:
        self._mark(self._open, [TARGET, ARRIVING, source.address, source.origin, token, None])
        self._make_refusal(self._open, words_of_arriving(source.address), "true")
        for table in _STORED:
            self._guard(self._open, table)

    def unmark(self) -> None:
        self._unmark(self._open)


def back_up(store: PostgresStore, path: str) -> None:
    """Copy the queue, as one snapshot shows it, into a SQLite file, which is made whole or not at all."""
    make_copy(path, lambda part: _fill(store, part))


def _fill(store: PostgresStore, part: str) -> None:
    from holdfast.store.sqlite.transfer import open_end as open_sqlite

    source = PostgresEnd(store)
    # Closing the last connection leaves all in the one file, which is synced as a whole.
    target = open_sqlite(f"sqlite:///{quote(part)}?synchronous=off&network=allow", system_clock)
    try:
        with source.reading(), target.receiving():
            copy_rows(source, target)
    finally:
        target.close()
