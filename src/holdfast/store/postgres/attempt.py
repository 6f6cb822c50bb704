"""ctx.transaction() on PostgreSQL: the handler's own transaction, which completes its job as it commits.

It holds a lock on its job's row, and nothing else of the queue's: other jobs go on. Whoever renews leases or
takes jobs from lost workers passes over a row that is locked. When its time is up it is rolled back, and its
connection shut to the handler; should this process be gone, the server itself ends it.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.core.job import Status
from holdfast.core.lifecycle import Decision
from holdfast.errors import HoldfastError, LeaseLost, StoreBusy, StoreUnavailable
from holdfast.store.attempt import Guarded, TimeLimit, commit_completion, completion_of
from holdfast.store.postgres.connection import OwnConnection, roll_back
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import raise_translated
from holdfast.store.postgres.finish import finish_jobs
from holdfast.store.postgres.patience import LOCK_PATIENCE, PATIENCE
from holdfast.store.postgres.session import Session
from holdfast.store.protocol import Claim, NewJob

_HELD = """
SELECT 1 FROM holdfast_jobs WHERE seq = $1 AND status = 'processing' AND version = $2 AND worker_id = $3
FOR UPDATE
"""

# The server ends what its client has left alone for so long, and finds out when the client is gone.
_BOUNDED = """
SELECT set_config('idle_in_transaction_session_timeout', $1, true),
    set_config('tcp_keepalives_idle', '5', true), set_config('tcp_keepalives_interval', '3', true),
    set_config('tcp_keepalives_count', '3', true)
"""
_MARGIN = 1.0

_QUOTED = re.compile(
    r"--[^\n]*|/\*.*?\*/|(?<!\w)[eE]'(?:[^'\\]|''|\\.)*'|'(?:[^']|'')*'"
    r"|\"[^\"]*\"|\$(\w*)\$.*?\$\1\$",
    re.DOTALL,
)
_ENDS_IT = re.compile(
    r"(?:^|;)\s*(?:commit|end|abort|begin|start\s+transaction|prepare\s+transaction"
    r"|rollback(?!\s+(?:\w+\s+)?to\b))\b",
    re.IGNORECASE,
)


class HandlerCursor(psycopg.Cursor[Any]):
    """A cursor that stops working when its transaction is over."""

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        with self._guarded(query):
            return super().execute(query, *args, **kwargs)

    def executemany(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        with self._guarded(query):
            return super().executemany(query, *args, **kwargs)

    def stream(self, query: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with self._guarded(query):
            yield from super().stream(query, *args, **kwargs)

    @contextmanager
    def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with self._guarded(statement), super().copy(statement, *args, **kwargs) as copy:
            yield copy

    @contextmanager
    def _guarded(self, query: Any) -> Iterator[None]:
        connection = self.connection
        assert isinstance(connection, HandlerConnection)
        connection.check()
        text = query.as_string(connection) if hasattr(query, "as_string") else query
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        if _ENDS_IT.search(_QUOTED.sub(" ", text)):
            raise HoldfastError(
                "leaving the block ends the transaction", hint="connection.transaction() makes a savepoint"
            )
        try:
            yield
        finally:
            connection.check()  # a statement that was cut short says why


class HandlerConnection(Guarded, OwnConnection):
    """The connection a handler gets: a plain one, but for what would end the transaction early."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.cursor_factory = HandlerCursor

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        self.check()
        return super().cursor(*args, **kwargs)

    def close(self) -> None:
        if not self.over:
            raise HoldfastError("leaving the block closes the connection")
        super().close()


class PostgresAttemptTransaction:
    """See AttemptTransaction in the protocol."""

    connection: HandlerConnection

    def __init__(self, database: Database, claim: Claim, seconds: float) -> None:
        self._database = database
        self._claim = claim
        self._seconds = seconds
        self._time = TimeLimit(seconds, self._expire)

    def begin(self, check_wait: Callable[[], None] = lambda: None) -> None:
        connection = self._connect(check_wait)
        assert isinstance(connection, HandlerConnection)
        self.connection = connection
        self._session = Session(connection, self._database)
        claim = self._claim
        try:
            self._database.begin(connection)
            milliseconds = round(1000 * (self._seconds + _MARGIN))
            self._session.rows(_BOUNDED, [str(milliseconds)])
            if not self._session.rows(_HELD, [claim.seq, claim.version, claim.worker_id]):
                raise LeaseLost
        except psycopg.Error as error:
            self._close()
            raise_translated(error, self._database.url)
        except BaseException:
            self._close()
            raise
        self._time.start()

    def _connect(self, check_wait: Callable[[], None]) -> psycopg.Connection[Any]:
        """As patient as SQLite is with its lock: a server that is just starting costs no attempt."""
        deadline = time.monotonic() + PATIENCE
        while True:
            try:
                return self._database.connect(HandlerConnection)
            except StoreUnavailable:
                if time.monotonic() > deadline:
                    raise
            check_wait()
            time.sleep(0.1)

    def hold(self) -> None:
        with self._time.lifted():
            self.connection.check()
            try:
                self._session.rows("SELECT set_config('idle_in_transaction_session_timeout', '0', true)")
            except psycopg.Error as error:
                raise_translated(error, self._database.url)

    def commit(
        self, decision: Decision, children: Sequence[NewJob], done: Callable[[], None] = lambda: None
    ) -> None:
        with self._time.lifted():
            try:
                self.connection.check()
                self._check_open()
                self._finish(decision, children)
                commit_completion(self._database, self.connection, self._claim)
                done()
            finally:
                self._close()
        if children:
            self._database.notifier.touch()

    def rollback(self) -> None:
        with self._time.lifted():
            self._close()

    def _check_open(self) -> None:
        status = self.connection.info.transaction_status
        if status == TransactionStatus.INERROR:
            raise HoldfastError(
                "a statement inside ctx.transaction() failed, so nothing of it can be committed",
                hint="try what may fail inside connection.transaction(), which makes a savepoint",
            )
        if status == TransactionStatus.IDLE:
            raise HoldfastError("some SQL inside ctx.transaction() has ended the transaction")

    def _finish(self, decision: Decision, children: Sequence[NewJob]) -> None:
        finish = completion_of(self._claim, decision, children)
        try:
            accepted = finish_jobs(
                self._session, [finish], self._database.instant, child_patience=LOCK_PATIENCE
            )
        except psycopg.Error as error:
            raise_translated(error, self._database.url)
        if not accepted:
            raise LeaseLost
        if Status.PROCESSING in accepted.values():
            raise StoreBusy(LOCK_PATIENCE)

    def _expire(self) -> None:
        connection = self.connection
        connection.expired_after = self._seconds
        with suppress(psycopg.Error):
            connection.cancel()
        with suppress(psycopg.Error):  # waits until the handler's statement has ended
            # A statement that is on its way already finds a transaction that can't write.
            psycopg.RawCursor(connection).execute("ROLLBACK; BEGIN READ ONLY")

    def _close(self) -> None:
        connection = self.connection
        connection.over = True
        roll_back(connection)  # or the server would find out a moment after we have gone on
        connection.close()
