"""ctx.transaction() on SQLite: the handler's own transaction, which completes its job as it commits.

It holds SQLite's only write lock, so it is short by contract. When its time is up it is rolled back and the
connection is shut to the handler: a rolled-back connection that still took statements would commit the
next INSERT by itself.
"""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any, NoReturn
from weakref import WeakSet

from holdfast.core.lifecycle import Decision
from holdfast.errors import HoldfastError, LeaseLost, StoreBusy
from holdfast.store.attempt import Guarded, TimeLimit, commit_completion, completion_of
from holdfast.store.records import Claim, NewJob
from holdfast.store.sqlite.connection import OwnConnection, understood
from holdfast.store.sqlite.database import Database, rollback
from holdfast.store.sqlite.finish import finish_jobs

LOCK_PATIENCE = 60.0
"""Seconds that a block waits for the lock: long for others, but it may be the handler's own connection that
holds it, which waiting does not end."""

_CHECK_PAUSE = 0.5
"""Seconds after which an attempt that should stop no longer waits."""

_EXPIRE_PATIENCE = 1.0
_INTERRUPT_PAUSE = 0.005

_HELD = """
SELECT 1 FROM holdfast_jobs WHERE seq = ? AND status = 'processing' AND version = ? AND worker_id = ?
"""


class HandlerCursor(sqlite3.Cursor):
    """A cursor that stops working when its transaction is over."""

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        return self._guarded(super().execute, *args, **kwargs)

    def executemany(self, *args: Any, **kwargs: Any) -> Any:
        return self._guarded(super().executemany, *args, **kwargs)

    def fetchone(self) -> Any:
        return self._guarded(super().fetchone)

    def fetchmany(self, *args: Any, **kwargs: Any) -> Any:
        return self._guarded(super().fetchmany, *args, **kwargs)

    def fetchall(self) -> Any:
        return self._guarded(super().fetchall)

    def __next__(self) -> Any:
        return self._guarded(super().__next__)

    def executescript(self, *_: Any) -> NoReturn:
        raise HoldfastError("executescript() would commit the transaction; use execute()")

    def _guarded(self, action: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        connection = self.connection
        assert isinstance(connection, HandlerConnection)
        # One at a time: what another thread of the handler sends after an error that has rolled all back
        # must find that out, and not commit by itself.
        with connection.statement:
            connection.check()
            try:
                return action(*args, **kwargs)
            finally:
                # A statement that was cut short says why. It may even have seemed to end well: the error code
                # of a connection is overwritten by the rollback in the other thread.
                if connection.expired_after is not None:
                    connection.shut()
                connection.check_time()


@lru_cache
def _guarded_kind(kind: type[sqlite3.Cursor]) -> type[sqlite3.Cursor]:
    """A handler's own kind of cursor, which stops working when ours does."""
    return kind if issubclass(kind, HandlerCursor) else type(kind.__name__, (HandlerCursor, kind), {})


class HandlerConnection(Guarded, OwnConnection):
    """The connection a handler gets: a plain one, except that it refuses to end the transaction early."""

    how_it_ends = "SQLite itself rolls back at ON CONFLICT ROLLBACK, and when the disk is full"
    is_completing = False
    """Whether the statements are ours, no longer the handler's."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statement = threading.RLock()
        self._opened: WeakSet[Any] = WeakSet()
        """Cursors and blobs, of which any may be in the middle of a statement."""

    def is_in_transaction(self) -> bool:
        return self.in_transaction

    def check(self) -> None:
        if self.expired_after is not None and not self.over:
            with self.statement:
                self.shut()  # the expiry may have given up, or not come so far
        super().check()

    def cursor(self, factory: Any = HandlerCursor) -> Any:
        with self.statement:
            self.check()
            cursor = super().cursor(_guarded_kind(factory))
            self._opened.add(cursor)
            return cursor

    def execute(self, *args: Any, **kwargs: Any) -> Any:
        # A handler's statement reaches SQLite as it is written: a '?1' in it may be part of a literal.
        given = understood(*args) if self.is_completing else args
        return self.cursor().execute(*given, **kwargs)

    def executemany(self, *args: Any, **kwargs: Any) -> Any:
        return self.cursor().executemany(*args, **kwargs)

    def executescript(self, *_: Any) -> NoReturn:
        raise HoldfastError("executescript() would commit the transaction; use execute()")

    def shut(self) -> None:
        """Roll back, and let nothing be written any more, not even past our cursors.

        Once a connection was interrupted, everything on it is, our ROLLBACK too, until no statement is open.
        """
        for opened in self._opened:
            opened.close()
        self.set_authorizer(None)  # it would refuse our ROLLBACK too
        rollback(self)
        with suppress(sqlite3.Error):
            sqlite3.Cursor(self).execute("PRAGMA query_only = ON")

    def blobopen(self, *args: Any, **kwargs: Any) -> Any:
        with self.statement:
            self.check()
            blob = super().blobopen(*args, **kwargs)
            self._opened.add(blob)
            return blob

    def close(self) -> NoReturn:
        raise HoldfastError("leaving the block closes the connection")


def _no_transaction_words(action: int, *_: Any) -> int:
    # COMMIT and the like as SQL text; a handler's own savepoints are fine.
    return sqlite3.SQLITE_DENY if action == sqlite3.SQLITE_TRANSACTION else sqlite3.SQLITE_OK


class SqliteAttemptTransaction:
    """See AttemptTransaction in the protocol."""

    connection: HandlerConnection

    def __init__(self, database: Database, claim: Claim, seconds: float, clock: Callable[[], int]) -> None:
        self._database = database
        self._claim = claim
        self._seconds = seconds
        self._clock = clock
        self._time = TimeLimit(seconds, self._expire)

    def begin(self, check_wait: Callable[[], None] = lambda: None) -> None:
        with self._database.using():
            connection = self._database.connect(HandlerConnection)
            self._database.open_attempts.add(connection)
        assert isinstance(connection, HandlerConnection)
        self.connection = connection
        try:
            self._take_lock(connection, check_wait)
            connection.begun = True
            claim = self._claim
            if not connection.execute(_HELD, (claim.seq, claim.version, claim.worker_id)).fetchall():
                raise LeaseLost
            connection.set_authorizer(_no_transaction_words)
            self._time.start()
        except BaseException:
            self._close()
            raise

    def _take_lock(self, connection: HandlerConnection, check_wait: Callable[[], None]) -> None:
        deadline = time.monotonic() + LOCK_PATIENCE
        while True:
            try:
                return self._database.begin(connection, _CHECK_PAUSE)
            except StoreBusy as error:
                check_wait()  # an attempt that is to stop meanwhile has not failed
                if time.monotonic() >= deadline:
                    raise StoreBusy(LOCK_PATIENCE) from error

    def hold(self) -> None:
        with self._time.lifted():
            self.connection.check()

    def commit(
        self, decision: Decision, children: Sequence[NewJob], done: Callable[[], None] = lambda: None
    ) -> None:
        connection = self.connection
        with self._time.lifted():
            try:
                connection.check()
                connection.set_authorizer(None)
                self._finish(decision, children)
                commit_completion(self._database, lambda: self._database.commit(connection), self._claim)
                done()
            finally:
                self._close()
        self._database.tend_wal()

    def rollback(self) -> None:
        with self._time.lifted():
            self._close()

    def _finish(self, decision: Decision, children: Sequence[NewJob]) -> None:
        self.connection.is_completing = True
        finish = completion_of(self._claim, decision, children)
        if not finish_jobs(self.connection, [finish], self._clock()):
            raise LeaseLost

    def _expire(self) -> None:
        connection = self.connection
        connection.expired_after = self._seconds
        # One that does not end in time, as in a function of the handler's own, rolls back when it ends.
        deadline = time.monotonic() + _EXPIRE_PATIENCE
        connection.interrupt()
        while not connection.statement.acquire(timeout=_INTERRUPT_PAUSE):
            if time.monotonic() >= deadline:
                return
            connection.interrupt()
        try:
            connection.shut()
        finally:
            connection.statement.release()

    def _close(self) -> None:
        connection = self.connection
        connection.over = True
        rollback(connection)
        sqlite3.Connection.close(connection)
        self._database.open_attempts.discard(connection)
