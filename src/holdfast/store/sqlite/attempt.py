"""ctx.transaction() on SQLite: the handler's own transaction, which completes its job as it commits.

It holds SQLite's only write lock, so it is short by contract. When its time is up it is rolled back and the
connection is shut to the handler: a rolled-back connection that still took statements would commit the
next INSERT by itself.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Sequence

from holdfast.core.lifecycle import Decision
from holdfast.errors import HoldfastError, LeaseLost, StoreBusy
from holdfast.store.attempt import ENDED, TimeLimit, commit_completion, completion_of
from holdfast.store.records import Claim, NewJob
from holdfast.store.sqlite.database import Database
from holdfast.store.sqlite.finish import finish_jobs
from holdfast.store.sqlite.handler_connection import HandlerConnection

LOCK_PATIENCE = 60.0
"""Seconds that a block waits for the lock: long for others, but it may be the handler's own connection that
holds it, which waiting does not end."""

_CHECK_PAUSE = 0.5
"""Seconds after which an attempt that should stop no longer waits."""

_EXPIRE_PATIENCE = 1.0
_INTERRUPT_PAUSE = 0.005

_CACHE = "PRAGMA cache_size = -2048"
"""SQLite's default: there may be as many as slots, and each keeps its pages while it is parked."""

_HELD = """
SELECT 1 FROM holdfast_jobs WHERE seq = ? AND status = 'processing' AND version = ? AND worker_id = ?
"""


class SqliteAttemptTransaction:
    """See AttemptTransaction in the protocol."""

    connection: HandlerConnection

    def __init__(self, database: Database, claim: Claim, seconds: float, clock: Callable[[], int]) -> None:
        self._database = database
        self._claim = claim
        self._seconds = seconds
        self._clock = clock
        self._time = TimeLimit(seconds, self._expire)
        self._is_over = False

    def begin(self, check_wait: Callable[[], None] = lambda: None) -> None:
        with self._database.using():
            connection = self._connect()
            self._database.open_attempts.add(connection)
        self.connection = connection
        try:
            self._take_lock(connection, check_wait)
            claim = self._claim
            if not connection.execute(_HELD, (claim.seq, claim.version, claim.worker_id)).fetchall():
                raise LeaseLost
            connection.open_block()
            self._time.start()
        except BaseException:
            self._close()
            raise

    def _connect(self) -> HandlerConnection:
        self._database.file.check()  # as a new connection does
        connection = self._database.parked.take()
        if connection is None:
            connection = self._database.connect_as(HandlerConnection)
            sqlite3.Connection.execute(connection, _CACHE)
        return connection

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
            if self._is_over:
                raise HoldfastError(ENDED)
            self.connection.check()

    def commit(
        self, decision: Decision, children: Sequence[NewJob], done: Callable[[], None] = lambda: None
    ) -> None:
        connection = self.connection
        with self._time.lifted(), connection.statement:  # another thread of the handler finds it over
            try:
                connection.check()
                connection.begin_completion()
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
        finish = completion_of(self._claim, decision, children)
        if not finish_jobs(self.connection, [finish], self._clock()):
            raise LeaseLost

    def _expire(self) -> None:
        connection = self.connection
        connection.expired_after = self._seconds
        # One that does not end in time, as in a function of the handler's own, rolls back when it ends.
        deadline = time.monotonic() + _EXPIRE_PATIENCE
        connection.interrupt()
        while not self._shut_unless_busy(connection) and time.monotonic() < deadline:
            connection.interrupt()

    def _shut_unless_busy(self, connection: HandlerConnection) -> bool:
        """Returns whether it is rolled back now."""
        if not connection.statement.acquire(timeout=_INTERRUPT_PAUSE):
            return False
        try:
            connection.shut()
        finally:
            connection.statement.release()
        if not connection.in_transaction:
            return True
        # The handler's thread is just dropping a cursor. We no longer find it, but its statement is still
        # open, so our ROLLBACK was interrupted too.
        time.sleep(_INTERRUPT_PAUSE)
        return False

    def _close(self) -> None:
        connection = self.connection
        del self.connection  # nobody but its handler may hold it for longer
        with connection.statement:
            connection.take_back()
            self._database.roll_back(connection)
            self._is_over = connection.over = True
        database = self._database
        if not database.parked.park(connection):
            sqlite3.Connection.close(connection)
        database.open_attempts.discard(connection)
        if database.is_closed:
            database.close_parked()
