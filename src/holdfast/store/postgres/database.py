"""A PostgreSQL database: connections, transactions, and what its errors mean.

Connections are taken from a small pool for each transaction or read, and made in the thread that needs one,
so that whoever is kept waiting is told why. Nothing is kept in a session: no setting, no prepared statement
that must be there, no lock that outlives its transaction. So a pooler in between may hand each transaction
to another server process.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, NoReturn

import psycopg
from psycopg import RawCursor
from psycopg.pq import TransactionStatus

from holdfast.core.clock import Clock, system_clock
from holdfast.errors import (
    CommitUncertain,
    ConfigError,
    NestedWrite,
    QueueClosed,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from holdfast.store.moved import MOVED_STATE, error_of
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.arrays import literal
from holdfast.store.postgres.clock import NOW
from holdfast.store.postgres.notify import Notifier, Silence
from holdfast.store.postgres.schema import SEQ, qualified
from holdfast.store.scope import attempt_transaction

PATIENCE = 5.0
"""Seconds to wait for a connection, and to find out what became of a commit."""

LOCK_PATIENCE = 2.0
"""Seconds to wait for somebody's open transaction that has a job, or is about to insert its key or id."""

OLDEST_SERVER = 130000
_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
# What is read in one goes along an index, and stops when it has enough, whatever the statistics say.
_SNAPSHOT = """BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY;
SET LOCAL enable_bitmapscan = off; SET LOCAL enable_seqscan = off"""
_FRESH = 5.0
"""Seconds for which a connection that lies idle is taken for alive."""
_SURPLUS = 60.0
"""Seconds after which a connection that nobody has needed is closed."""
_CLOCK_KEPT, _CLOCK_RETRY = 30_000_000, 1_000_000
_TICKS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A clock that nobody sets, and that goes on while the machine sleeps."""

Connection = psycopg.Connection[tuple[Any, ...]]


class OwnConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that may go with the thread that was left with it, without a word."""

    def __del__(self, *_: object) -> None:
        """psycopg would warn; the socket is closed all the same."""


class ConnectionLost(StoreUnavailable):
    """The connection broke before the commit: nothing was written."""


class Answer:
    """The rows of a statement that goes out with the next one; there once that has been answered."""

    def __init__(self) -> None:
        self.rows: list[Any] = []


class Session:
    """A connection inside a transaction, and how our SQL is run on it."""

    def __init__(self, connection: Connection, database: Database) -> None:
        self.connection = connection
        self.database = database
        self.wakes = False
        """Whether workers are to be told of it once it is committed."""
        self.meanwhile: Callable[[], None] | None = None
        """What to do once, while the server is at statements that go out together."""
        self._ahead: list[tuple[Answer, str, Sequence[Any]]] = []

    @property
    def has_begun(self) -> bool:
        """Whether there is anything to commit."""
        return not self._ahead

    def ahead(self, sql: str, parameters: Sequence[Any] = ()) -> Answer:
        """Run a statement whose answer nobody needs before the next one's, in one round trip with it."""
        answer = Answer()
        self._ahead.append((answer, self.database.text(sql), [*map(storable, _sendable(parameters))]))
        return answer

    def wait_at_most(self, seconds: float) -> None:
        """From now on, in this transaction: StoreBusy after so long a wait for a lock."""
        self.ahead(f"SET LOCAL lock_timeout = {round(1000 * seconds)}")

    def do_meanwhile(self) -> None:
        meanwhile, self.meanwhile = self.meanwhile, None
        if meanwhile is not None:
            meanwhile()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return _rows(self._execute(sql, parameters))

    def count(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """How many rows a statement has changed."""
        return self._execute(sql, parameters).rowcount

    def _execute(self, sql: str, parameters: Sequence[Any]) -> RawCursor[tuple[Any, ...]]:
        text = self.database.text(sql)
        parameters = _sendable(parameters)
        try:
            return self._send(text, parameters)
        except (UnicodeEncodeError, psycopg.DataError) as error:
            if getattr(error, "sqlstate", None):
                raise
            # It was not sent: some text can't be stored as it is.
            return self._send(text, [storable(value) for value in parameters])

    def _send(self, text: str, parameters: Sequence[Any]) -> RawCursor[tuple[Any, ...]]:
        cursor = RawCursor(self.connection)
        if not self._ahead:
            return cursor.execute(text, parameters)
        ahead, self._ahead = self._ahead, []
        with self.connection.pipeline():
            sent = [RawCursor(self.connection).execute(before, given) for _, before, given in ahead]
            cursor.execute(text, [*map(storable, parameters)])
            self.do_meanwhile()
        for (answer, _, _), done in zip(ahead, sent, strict=True):
            answer.rows = _rows(done)
        return cursor


def _sendable(parameters: Sequence[Any]) -> Sequence[Any]:
    return [literal(value) if isinstance(value, list) else value for value in parameters]


def _rows(cursor: RawCursor[tuple[Any, ...]]) -> list[Any]:
    return cursor.fetchall() if cursor.description is not None else []


class _Local(threading.local):
    session: Session | None = None


class Database:
    """The database and this process's connections to it."""

    among_numbers = "= ANY (ARRAY(SELECT value::bigint FROM jsonb_array_elements_text(?::jsonb)))"
    among_texts = "= ANY (ARRAY(SELECT value FROM jsonb_array_elements_text(?::jsonb)))"
    elements = "jsonb_array_elements_text(?::jsonb)"
    reads_whole_types = False
    orders_recursion = False
    seq_within = SEQ

    def __init__(self, address: Address, clock: Clock, *, notify: bool = True) -> None:
        self.url = address.shown
        self.notifies = notify
        self._address = address
        self._clock = None if clock is system_clock else clock
        self.schema = ""
        """The schema's name as it stands in SQL; known once a connection was made."""
        self.identity = ""
        self.place = 0
        """The database's number on its server: a copy of it has the same identity, but another place."""
        self.is_pooled = False
        """Whether a pooler stands in between, which gives each transaction to any server process."""
        self.server_version = 0
        self._begin = _BEGIN
        self._is_plain = False
        """Whether a statement without a BEGIN runs as it would after ours."""
        self.synchronous_commit: str | None = None
        """What our transactions say of it, if anything."""
        self._texts: dict[str, str] = {}
        self._closed = False
        self._offset = system_clock() - _ticks()
        self._clock_due = 0
        self._reset()
        _databases.add(self)

    def _reset(self) -> None:
        self._local = _Local()
        self._changed = threading.Condition()
        self._known: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._idle: list[tuple[Connection, float]] = []
        self._taken = 0
        self.notifier = Notifier(self) if self.notifies else Silence()

    @property
    def hears(self) -> bool:
        """Whether workers can be told that there is something to do."""
        return self.notifies and not self.is_pooled

    # SQL.

    def by_index(self, _name: str | None) -> str:
        return ""

    def text(self, sql: str) -> str:
        """Our SQL as the server takes it: `?` numbered, and our tables in their schema."""
        found = self._texts.get(sql)
        if found is None:
            if len(self._texts) > 2000:  # lists are made of ever new parts
                self._texts.clear()
            found = self._texts[sql] = qualified(_numbered(sql), self.schema)
        return found

    # The clock.

    @property
    def instant(self) -> int | None:
        """The present instant as a parameter: None lets the server's own clock decide."""
        return None if self._clock is None else self._clock()

    def now(self) -> int:
        """The server's clock, by what was last read of it."""
        if self._clock is not None:
            return self._clock()
        before = _ticks()
        if before >= self._clock_due:
            self._clock_due = before + _CLOCK_RETRY  # without a server the last known has to do
            with suppress(StoreError):
                [(now,)] = self.read(f"SELECT {NOW}")
                self._set_clock(now, before)
        return _ticks() + self._offset

    def _set_clock(self, now: int, before: int) -> None:
        after = _ticks()
        self._offset = now - (before + after) // 2
        self._clock_due = after + _CLOCK_KEPT

    # Connections.

    def connect(self, kind: type[Connection] = OwnConnection) -> Connection:
        """A new connection, which is the caller's to close."""
        try:
            connection = kind.connect(
                self._address.conninfo,
                autocommit=True,
                prepare_threshold=None if self.is_pooled else 5,
            )
        except psycopg.Error as error:
            raise_translated(error, self.url, connecting=True)
        except ValueError as error:  # such as a host's name that can't be one
            raise StoreUnavailable(f"{self.url}: {error}") from error
        self._known.add(connection)
        try:
            self._greet(connection)
        except psycopg.Error as error:
            connection.close()
            raise_translated(error, self.url)
        except BaseException:
            connection.close()
            raise
        return connection

    def _greet(self, connection: Connection) -> None:
        before = _ticks()
        [(schema, self.place, pid, version, synchronous, in_recovery, encoding, is_plain, now)] = (
            RawCursor(connection)
            .execute(
                "SELECT quote_ident(coalesce($1, current_schema())),"
                " (SELECT oid::bigint FROM pg_database WHERE datname = current_database()), pg_backend_pid(),"
                " current_setting('server_version_num')::integer, current_setting('synchronous_commit'),"
                " pg_is_in_recovery(), current_setting('server_encoding'),"
                " current_setting('default_transaction_isolation') = 'read committed'"
                f" AND current_setting('default_transaction_read_only') = 'off', {NOW}",
                [self._address.schema],
            )
            .fetchall()
        )
        self._set_clock(now, before)
        if in_recovery:
            raise StoreUnavailable(
                f"{self.url} is a standby, which can't be written", hint="name the primary in the address"
            )
        if schema is None:
            raise StoreUnavailable(
                f"{self.url}: no schema of the search path exists", hint="say ?schema=name in the address"
            )
        if version < OLDEST_SERVER:
            needed = OLDEST_SERVER // 10000
            raise StoreUnavailable(f"PostgreSQL {version // 10000} is too old; {needed} or newer is needed")
        if encoding != "UTF8":
            raise StoreUnavailable(
                f"{self.url}: the database is in {encoding}, which can't hold every text",
                hint="make one in UTF8: createdb -E UTF8 -T template0",
            )
        self.schema = self.schema or schema
        self.server_version = version
        self._is_plain = is_plain
        wanted = self._address.synchronous_commit
        if wanted is None and synchronous in ("off", "local"):
            wanted = "on"  # weaker is an explicit choice, which was not made for us
        if wanted is not None and wanted != synchronous:
            self.synchronous_commit = wanted
            self._begin = f"{_BEGIN}; SET LOCAL synchronous_commit = {wanted}"
        if pid != connection.info.backend_pid:
            self.is_pooled = True
            connection.prepare_threshold = None

    def _take(self, *, fresh: bool = False) -> Connection:
        deadline = time.monotonic() + PATIENCE
        with self._changed:
            while not self._closed and self._taken >= self._address.pool:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise StoreUnavailable(
                        f"all {self._address.pool} connections were in use for {PATIENCE:g} s",
                        hint="say ?pool= in the address for more",
                    )
            if self._closed:
                raise QueueClosed("the queue is closed")
            self._taken += 1
            found = None if fresh or not self._idle else self._idle.pop()
        try:
            if found is not None:
                connection, since = found
                if time.monotonic() - since < _FRESH or _answers(connection):
                    return connection
                connection.close()
                self._forget_idle()
            return self.connect()
        except BaseException:
            self._leave()
            raise

    def _give(self, connection: Connection) -> None:
        is_usable = not connection.closed and connection.info.transaction_status == TransactionStatus.IDLE
        is_broken = connection.broken
        with self._changed:
            if connection not in self._known:
                return  # taken before this process was forked
            now = time.monotonic()
            surplus = 0  # those that were not needed for long are at the bottom
            while surplus < len(self._idle) and now - self._idle[surplus][1] > _SURPLUS:
                surplus += 1
            leaving = [idle for idle, _ in self._idle[:surplus]]
            del self._idle[:surplus]
            if is_usable and not self._closed:
                self._idle.append((connection, now))
            else:
                leaving.append(connection)
            self._taken -= 1
            self._changed.notify()
        for gone in leaving:
            gone.close()
        if is_broken:  # the others will not be better
            self._forget_idle()

    def _give_up(self, connection: Connection, error: psycopg.Error) -> None:
        """Close what would go on failing: connections to a primary that has become a standby."""
        if error.sqlstate in _READ_ONLY:
            connection.close()
            self._forget_idle()

    def _leave(self) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify()

    def _forget_idle(self) -> None:
        with self._changed:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def leave_to_parent(self) -> None:
        """In a forked child: what the parent has open is the parent's.

        Nothing may be said on those connections from here, and they must not stay open here when the parent
        has died: the server would hold its locks for as long as this process lives.
        """
        inherited = list(self._known)
        _inherited.extend(inherited)
        self._reset()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for connection in inherited:
            with suppress(psycopg.Error):  # closed
                os.dup2(nowhere, connection.fileno(), inheritable=False)
        os.close(nowhere)

    def close(self) -> None:
        self.notifier.close()
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._forget_idle()

    # Reading.

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query."""
        session = self.session
        if session is not None:
            try:
                return session.rows(sql, parameters)
            except psycopg.Error as error:
                raise_translated(error, self.url)
        try:
            return self._read(sql, parameters)
        except ConnectionLost:  # perhaps it only lay idle for too long
            return self._read(sql, parameters, fresh=True)

    def _read(self, sql: str, parameters: Sequence[Any], *, fresh: bool = False) -> list[Any]:
        connection = self._take(fresh=fresh)
        try:
            return Session(connection, self).rows(sql, parameters)
        except psycopg.Error as error:
            raise_translated(error, self.url)
        finally:
            self._give(connection)

    def read_one(self, sql: str, parameters: Sequence[Any] = ()) -> Any:
        """The first row, or None."""
        rows = self.read(sql, parameters)
        return rows[0] if rows else None

    @property
    def session(self) -> Session | None:
        """This thread's open transaction."""
        return self._local.session

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Around reads that must see one state of the database; inside a transaction, what that sees."""
        if self.session is not None:
            yield
            return
        with self._opened(_SNAPSHOT) as session:
            try:
                yield
            except BaseException:
                roll_back(session.connection)
                raise
            with suppress(StoreError):  # what was read is read
                self.commit(session.connection)  # psycopg forgets what it has prepared at a ROLLBACK

    # Writing.

    def write(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """A statement that is a transaction by itself; only where `commits_alone`."""
        connection = self._take()
        try:
            return Session(connection, self).rows(sql, parameters)
        except psycopg.Error as error:
            if connection.broken or _means_lost(error):
                raise CommitUncertain(f"{self.url}: the connection broke at the commit") from error
            self._give_up(connection, error)
            raise_translated(error, self.url)
        finally:
            self._give(connection)

    @property
    def commits_alone(self) -> bool:
        """Whether a single statement commits as our transactions do, and is not part of one."""
        return self.session is None and self.synchronous_commit is None and self._is_plain

    def refuse_nested(self) -> None:
        if attempt_transaction.get() == self.url:
            raise NestedWrite

    @contextmanager
    def transaction(self, *, may_fail: bool = False) -> Iterator[Session]:
        """A write transaction of this thread; entered again inside, it is the same one.

        It begins together with its first statement if it `may_fail`: then a connection that broke since it
        was last used is found too late for another one to be taken.
        """
        self.refuse_nested()
        if self.session is not None:
            yield self.session
            return
        begins_later = may_fail and not self.is_pooled
        with self._opened(None if begins_later else self._begin) as session:
            if begins_later:
                for statement in self._begin.split(";"):
                    session.ahead(statement)
            try:
                yield session
            except psycopg.Error as error:
                roll_back(session.connection)
                self._give_up(session.connection, error)
                raise_translated(error, self.url)
            except BaseException:
                roll_back(session.connection)
                raise
            if session.has_begun:
                self.commit(session.connection)
        if session.wakes:
            self.notifier.touch()

    @contextmanager
    def _opened(self, begin: str | None) -> Iterator[Session]:
        try:
            connection = self._take_begun(begin)
        except ConnectionLost:  # nothing has begun; the server was restarted since it was last used
            connection = self._take_begun(begin, fresh=True)
        session = self._local.session = Session(connection, self)
        try:
            yield session
        finally:
            self._local.session = None
            self._give(connection)

    def _take_begun(self, begin: str | None, *, fresh: bool = False) -> Connection:
        connection = self._take(fresh=fresh)
        try:
            if begin is not None:
                self.begin(connection, begin)
        except BaseException:
            connection.close()
            self._give(connection)
            self._forget_idle()
            raise
        return connection

    def begin(self, connection: Connection, begin: str | None = None) -> None:
        try:
            RawCursor(connection).execute(begin or self._begin)
        except psycopg.Error as error:
            raise_translated(error, self.url)

    def commit(self, connection: Connection) -> None:
        try:
            done = RawCursor(connection).execute("COMMIT")
        except psycopg.Error as error:
            if connection.broken or _means_lost(error):
                raise CommitUncertain(f"{self.url}: the connection broke at the commit") from error
            raise_translated(error, self.url)
        if done.statusmessage != "COMMIT":
            raise StoreUnavailable(f"{self.url}: a statement had failed, so all of it was rolled back")


_databases: weakref.WeakSet[Database] = weakref.WeakSet()
_inherited: list[Connection] = []
"""Connections of parent processes. Kept: whoever collected one as garbage would be warned of it."""


def _leave_to_parent() -> None:
    for database in list(_databases):
        database.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


def _ticks() -> int:
    return time.clock_gettime_ns(_TICKS) // 1000


@lru_cache(4096)
def _numbered(sql: str) -> str:
    first, *rest = sql.split("?")
    return first + "".join(f"${number}{part}" for number, part in enumerate(rest, 1))


def _answers(connection: Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True


def roll_back(connection: Connection) -> None:
    with suppress(psycopg.Error):
        if connection.info.transaction_status != TransactionStatus.IDLE:
            RawCursor(connection).execute("ROLLBACK")


_READ_ONLY = ("25006", "0A000")
_BUSY = ("55P03", "40P01", "40001")
_ANOTHER_VERSION = "the queue's tables are of another version: queuectl migrate, and start anew"
_HINTS = {
    "42703": _ANOTHER_VERSION,
    "42883": _ANOTHER_VERSION,
    "0A000": "the server can't be written now: a standby, or default_transaction_read_only?",
    "25006": "the server can't be written now: a standby, or default_transaction_read_only?",
    "42501": "let the role own the schema, or grant it what it needs",
    "42P01": "the queue's tables are gone; queuectl migrate makes them",
    "53100": "the server's disk is full: free some space; work goes on by itself",
}

# libpq tells of a connection that was refused in words alone.
_REFUSALS = {
    "authentication failed": "check the user and the password in the address, or in ~/.pgpass",
    "no password supplied": "say it in the address, in ~/.pgpass or in PGPASSWORD",
    "pg_hba.conf": "let the server's pg_hba.conf allow this role and machine",
    'database ".*" does not exist': "make it with createdb, or name another in the address",
    'role ".*" does not exist': "make it with createuser, or name another in the address",
    "startup parameter": "a pooler does not know it: leave it out of the address, or let PgBouncer's"
    " ignore_startup_parameters name it",
    "too many|connection slots|no more connections": "raise max_connections there, or lower ?pool= here",
    "refused|No such file|timeout expired": "is the server running there?",
}


def raise_translated(error: psycopg.Error, url: str, *, connecting: bool = False) -> NoReturn:
    """Raise the driver's error as one of ours. What can only be a mistake in SQL stays as it is."""
    state = error.sqlstate or ""
    if state in _BUSY:
        raise StoreBusy(PATIENCE) from error
    raise_if_moved(error)
    if state[:2] in ("22", "23", "42") and state not in _HINTS:
        raise error
    reason = str(error).strip().partition("\n")[0]
    if not state and not isinstance(error, psycopg.OperationalError | psycopg.InterfaceError):
        if connecting:
            raise ConfigError(f"{url}: {reason}") from error
        raise error
    hint = _HINTS.get(state, _HINTS.get(state[:2]))
    if connecting:
        hint = next((advice for words, advice in _REFUSALS.items() if re.search(words, reason)), hint)
    kind = ConnectionLost if not connecting and _means_lost(error) else StoreUnavailable
    raise kind(f"{url}: {reason}", hint=hint) from error


def _means_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone: without a word, or with the server's last."""
    return not error.sqlstate or error.sqlstate.startswith(("57P", "08", "25P03", "25P04"))


def raise_if_moved(error: psycopg.Error) -> None:
    """Raise what a guard of a move has refused as one of our errors."""
    moved = error_of(str(error)) if error.sqlstate == MOVED_STATE else None
    if moved is not None:
        raise moved from error


def storable(value: Any) -> Any:
    """A parameter as PostgreSQL can hold it: its texts have no NUL, and no half of a character."""
    return (
        value.replace("\0", "\ufffd").encode("utf-8", "replace").decode() if isinstance(value, str) else value
    )
