"""A PostgreSQL database: its reads and its transactions.

Nothing that a transaction needs is kept in a session: no setting, no prepared statement that must be there,
no lock that outlives it. So a pooler in between may hand each transaction to another server process. How long
it may take travels with its BEGIN.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import count
from typing import Any, NoReturn
from weakref import WeakKeyDictionary

import psycopg
from psycopg import RawCursor
from psycopg.pq import TransactionStatus

from holdfast.core.clock import Clock, system_clock
from holdfast.errors import CommitUncertain, NestedWrite, StoreUnavailable
from holdfast.store.database import PATIENCE, Reader
from holdfast.store.postgres.address import Address
from holdfast.store.postgres.attempt_pool import AttemptPool
from holdfast.store.postgres.bounds import LONGEST_IDLE, READ, SHORT, Bounds
from holdfast.store.postgres.connection import (
    TCP,
    Connection,
    Greeting,
    OwnConnection,
    greet,
    roll_back,
    run_often,
)
from holdfast.store.postgres.doubt import Doubt
from holdfast.store.postgres.errors import (
    ConnectionLost,
    ConnectionsExhausted,
    means_lost,
    means_read_only,
    means_too_slow,
    raise_translated,
    translated,
)
from holdfast.store.postgres.notify import Notifier
from holdfast.store.postgres.pool import Pool
from holdfast.store.postgres.schema import SEQ, qualified
from holdfast.store.postgres.server_clock import CLOCK, NOW, ServerClock, ticks
from holdfast.store.postgres.session import Session
from holdfast.store.scope import is_inside

_BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED"
# What is read in one goes along an index, and stops when it has enough, whatever the statistics say. A small
# table without one is read whole all the same, and is not as dear as the planner then takes it to be: it is
# not worth compiling anything.
_SNAPSHOT = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
_ALONG_INDEXES = {"enable_bitmapscan": "off", "enable_seqscan": "off", "jit": "off"}


class _Local(threading.local):
    session: Session | None = None


class Database(Reader):
    """The database and this process's connections to it."""

    among_numbers = "= ANY (ARRAY(SELECT value::bigint FROM jsonb_array_elements_text(?::jsonb)))"
    among_texts = "= ANY (ARRAY(SELECT value FROM jsonb_array_elements_text(?::jsonb)))"
    elements = "jsonb_array_elements_text(?::jsonb)"
    clock = CLOCK
    orders_recursion = False
    seq_within = SEQ

    server: Greeting
    """What the server said of itself when a connection was last made."""

    def __init__(self, address: Address, clock: Clock, *, notify: bool = True) -> None:
        self.url = address.shown
        self.notifies = notify
        self._address = address
        self._clock = None if clock is system_clock else clock
        self.schema = ""
        """The schema's name as it stands in SQL; known once a connection was made."""
        self.identity = ""
        self.is_pooled = False
        """Whether a pooler stands in between, which gives each transaction to any server process."""
        self._idle = SHORT.idle
        self._texts: dict[str, str] = {}
        self.server_clock = ServerClock(lambda: self.read_one(f"SELECT {NOW}")[0])
        self.doubt = Doubt()
        """The commits on connections that were lost."""
        self._processes = WeakKeyDictionary[Connection, int]()
        """The server process of each connection, which says so no more once it is lost."""
        self._reset()
        self.pool = Pool(self._connect_before_handlers, address.pool, after_fork=self._reset)
        self.attempts = AttemptPool(self, address.pool)
        """The sessions of ctx.transaction()."""

    def _reset(self) -> None:
        self._local = _Local()
        self.notifier = Notifier(self)

    @property
    def hears(self) -> bool:
        """Whether workers can be told that there is something to do."""
        return self.notifies and not self.is_pooled

    # SQL.

    def by_index(self, _name: str | None) -> str:
        return ""

    def skip_locked(self, table: str, key: str) -> str:
        order = SEQ.replace("seq", f"{table}.seq") if key == "seq" else f"{table}.{key}"
        return f"ORDER BY {order} FOR UPDATE OF {table} SKIP LOCKED"

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
        """The server's clock, by what was last read of it.

        Inside a transaction it is not read again: other statements may be on their way there, and on a second
        connection the transaction would wait for the pool.
        """
        if self._clock is not None:
            return self._clock()
        return self.server_clock.now(may_ask=self.session is None)

    # Connections.

    def connect(self) -> Connection:
        """A new connection, which is the caller's to close."""
        try:
            with translated(self.url, connecting=True):
                connection: Connection = OwnConnection.connect(
                    self._address.conninfo,
                    autocommit=True,
                    prepare_threshold=None if self.is_pooled else 5,
                )
        except ValueError as error:  # such as a host's name that can't be one
            raise StoreUnavailable(f"{self.url}: {error}") from error
        self.pool.know(connection)
        try:
            with translated(self.url):
                self._greet(connection)
            if not self.is_pooled:
                self._processes[connection] = connection.info.backend_pid
        except BaseException:
            connection.close()
            raise
        return connection

    def _connect_before_handlers(self) -> Connection:
        """A connection for the queue's own needs: if the server has none, handlers make room."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self.connect()
            except ConnectionsExhausted:
                if time.monotonic() > deadline or not self.attempts.make_room():
                    raise
            self.attempts.wait_for_change(0.1)

    def _greet(self, connection: Connection) -> None:
        before = ticks()
        self.server = greet(connection, self._address.schema, self._address.synchronous_commit)
        self.server_clock.set(self.server.now, before)
        self.server.refuse_unfit(self.url)
        self.schema = self.schema or self.server.schema
        if not self.server.is_own:
            self.is_pooled = True
            connection.prepare_threshold = None

    def close(self) -> None:
        self.notifier.close()
        self.pool.close()
        self.attempts.close()

    def close_idle(self) -> None:
        self.pool.forget_idle()
        self.attempts.forget_idle()

    # Reading.

    def read(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """All rows of a query."""
        if self.session is not None:
            with translated(self.url):
                return self.session.rows(sql, parameters)
        try:
            return self._read(sql, parameters)
        except ConnectionLost:  # perhaps it only lay idle for too long
            return self._read(sql, parameters, fresh=True)

    def _read(self, sql: str, parameters: Sequence[Any], *, fresh: bool = False) -> list[Any]:
        connection = self.pool.take(fresh=fresh)
        try:
            with translated(self.url):
                return Session(connection, self).rows(sql, parameters)
        finally:
            self.pool.give(connection)

    @property
    def session(self) -> Session | None:
        """This thread's open transaction."""
        return self._local.session

    @property
    def in_transaction(self) -> bool:
        return self._local.session is not None

    @contextmanager
    def snapshot(self, bounds: Bounds = READ) -> Iterator[None]:
        """Around reads that must see one state of the database; inside a transaction, what that sees."""
        if self.session is not None:
            yield
            return
        settings = _ALONG_INDEXES | self._settings(bounds)
        with self._opened(_with_settings(_SNAPSHOT, settings), bounds) as session:
            try:
                yield
            finally:
                with suppress(psycopg.Error):  # what was read is read
                    # At a ROLLBACK psycopg forgets what it has prepared.
                    RawCursor(session.connection).execute("COMMIT")

    # Writing.

    def write(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        """A statement that is a transaction by itself; only where `commits_alone`."""
        may_be_often = not any(isinstance(value, list) for value in parameters)
        connection = self.pool.take()
        try:
            rows = run_often(connection, self.text(sql), parameters) if may_be_often else None
            return Session(connection, self).rows(sql, parameters) if rows is None else rows
        except psycopg.Error as error:
            self._raise(error, connection, committing=True)
        finally:
            self.pool.give(connection)

    @property
    def commits_alone(self) -> bool:
        """Whether a single statement commits as our transactions do, and is not part of one."""
        return self.session is None and not self.is_pooled and self.server.is_plain

    @property
    def needs_no_begin(self) -> bool:
        """Whether what goes out together without a BEGIN runs, is bounded and commits as our transactions."""
        return not self.is_pooled and self.server.is_plain and self.server.is_unbounded

    def refuse_nested(self) -> None:
        if is_inside(self.url):
            raise NestedWrite

    @contextmanager
    def transaction(
        self, *, may_fail: bool = False, bounds: Bounds = SHORT, patience: float = PATIENCE
    ) -> Iterator[Session]:
        """A write transaction of this thread; entered again inside, it is the same one.

        It begins together with its first statement if it `may_fail`: then a connection that broke since it
        was last used is found too late for another one to be taken.
        """
        self.refuse_nested()
        if self.session is not None:
            yield self.session
            return
        if bounds is SHORT:
            bounds = bounds._replace(idle=self._idle, lock=patience)
        settings = self._settings(bounds)
        begins_later = may_fail and not self.is_pooled
        with self._opened(None if begins_later else _with_settings(_BEGIN, settings), bounds) as session:
            if begins_later:
                session.begin_ahead(_BEGIN, _set_locally(settings))
            try:
                yield session
            except BaseException as error:
                roll_back(session.connection)
                try:
                    if isinstance(error, psycopg.Error):
                        self._raise(error, session.connection, committing=session.commits)
                    raise
                finally:
                    # psycopg may believe to be prepared what the server never came to. One that is lost stays
                    # as it is: the pool draws its conclusions.
                    if session.commits and not session.connection.closed:
                        session.connection.close()
            if session.committed is not None:
                self._check_committed(session.committed.tag)
            elif (
                session.connection.info.transaction_status != TransactionStatus.IDLE
            ):  # else nothing has begun
                self.commit(session.connection)
        if session.wakes:
            self.notifier.touch()
        for action in session.afterwards:
            action()

    def _settings(self, bounds: Bounds | None = None) -> dict[str, str]:
        """What a transaction has to say of itself."""
        settings = {} if bounds is None else bounds.settings(whole=self.server.bounds_whole)
        if self.is_pooled:  # elsewhere each session has it, see greet
            settings["synchronous_commit"] = self.server.synchronous_commit
        return settings

    def _raise(self, error: psycopg.Error, connection: Connection, *, committing: bool = False) -> NoReturn:
        """Raise what a transaction has failed with as one of our errors, and let the next one do better."""
        if means_too_slow(error):
            # The server ends what is idle before it has read a COMMIT: nothing is uncertain about it.
            self._idle = min(LONGEST_IDLE, 2 * self._idle)
        elif committing and (connection.broken or means_lost(error)):
            if connection in self._processes:
                self.doubt.add(self._processes[connection])
            raise CommitUncertain(f"{self.url}: the connection was lost during the commit") from error
        if means_read_only(error):  # connections to a primary that has become a standby would go on failing
            connection.close()
            self.pool.forget_idle()
        raise_translated(error, self.url)

    @contextmanager
    def _opened(self, begin: str | None, bounds: Bounds) -> Iterator[Session]:
        try:
            connection = self._take_begun(begin)
        except ConnectionLost:  # nothing has begun; the server was restarted since it was last used
            connection = self._take_begun(begin, fresh=True)
        session = self._local.session = Session(connection, self, bounds.lock)
        try:
            yield session
        finally:
            self._local.session = None
            self.pool.give(connection)

    def _take_begun(self, begin: str | None, *, fresh: bool = False) -> Connection:
        connection = self.pool.take(fresh=fresh)
        try:
            if begin is not None:
                with translated(self.url):
                    RawCursor(connection).execute(begin)
        except BaseException:
            connection.close()
            self.pool.give(connection)
            self.pool.forget_idle()
            raise
        return connection

    @property
    def begin_sql(self) -> str:
        """How a transaction begins whose bounds are its owner's business."""
        return _with_settings(_BEGIN, {**self._settings(), **TCP} if self.is_pooled else {})

    def commit(self, connection: Connection) -> None:
        try:
            done = RawCursor(connection).execute("COMMIT")
        except psycopg.Error as error:
            self._raise(error, connection, committing=True)
        self._check_committed(done.statusmessage)

    def _check_committed(self, tag: str | None) -> None:
        if tag != "COMMIT":
            raise StoreUnavailable(f"{self.url}: a statement failed, so the transaction was rolled back")


def _with_settings(begin: str, settings: dict[str, str]) -> str:
    """A BEGIN and what follows it, in one message."""
    return "; ".join([begin, *(f"SET LOCAL {name} = '{value}'" for name, value in settings.items())])


def _set_locally(settings: dict[str, str]) -> str:
    """The same in one statement, for a pipeline, where each is a message and this one is soon prepared."""
    calls = (f"set_config('{name}', '{value}', true)" for name, value in settings.items())
    return f"SELECT {', '.join(calls)}"


_PLACES = re.compile(r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|\?(\d*)""")
"""A `?` or `?1` of ours, or something quoted, such as a schema's name, in which there may be one as well."""


@lru_cache(4096)
def _numbered(sql: str) -> str:
    numbers = count(1)
    return _PLACES.sub(lambda found: found[0] if found[1] is None else f"${found[1] or next(numbers)}", sql)
