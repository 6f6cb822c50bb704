"""Our SQL on a connection: statements that go out together, their rows, and values as they can be stored.

When a transaction begins and ends, and what its errors become, is the database's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg import RawCursor
from psycopg.errors import DeadlockDetected, LockNotAvailable

from holdfast.errors import NestedWrite, StoreBusy
from holdfast.store.postgres.arrays import literal
from holdfast.store.postgres.connection import Connection, pipelined

if TYPE_CHECKING:
    from holdfast.store.postgres.database import Database


class Reply:
    """What a statement gives that goes out with others; there once these have been answered."""

    def __init__(self) -> None:
        self._rows: list[Any] | None = None
        self.count = -1
        """How many rows it has changed."""
        self.tag: str | None = None
        """What the server says that it has done."""

    def arrive(self, cursor: RawCursor[tuple[Any, ...]]) -> None:
        self._rows = cursor.fetchall() if cursor.description is not None else []
        self.count = cursor.rowcount
        self.tag = cursor.statusmessage

    @property
    def has_arrived(self) -> bool:
        return self._rows is not None

    @property
    def rows(self) -> list[Any]:
        assert self._rows is not None, "the statement has not been sent"
        return self._rows


class Session:
    """A connection inside a transaction, and how our SQL is run on it."""

    def __init__(self, connection: Connection, database: Database, patience: float | None = None) -> None:
        self.connection = connection
        self.database = database
        self._patience = patience
        self.wakes = False
        """Whether workers should be notified once it is committed."""
        self.afterwards: list[Callable[[], None]] = []
        """What to do once it is committed."""
        self._beginning = 0
        """How many of the statements that are to go out only begin the transaction."""
        self.commits = False
        """Whether its end goes out with its last statements."""
        self.committed: Reply | None = None
        """The answer to its COMMIT then, if it needs one."""
        self._is_sending = False
        self._ahead: list[tuple[Reply, str, Sequence[Any]]] = []

    def ahead(self, sql: str, parameters: Sequence[Any] = ()) -> Reply:
        """Run a statement whose answer nobody needs before the next one's, in one round trip with it."""
        answer = Reply()
        self._ahead.append((answer, self.database.text(sql), [*map(storable, _sendable(parameters))]))
        return answer

    def begin_ahead(self, *statements: str) -> None:
        """Let the transaction begin in one round trip with its first statement."""
        for sql in statements:
            self.ahead(sql)
        self._beginning = len(statements)

    def commit_ahead(self) -> None:
        """Let the transaction end in one round trip with the statements before. Nothing else belongs to it.

        If it has not begun, they are all of it: to the server, what goes out together is one transaction.
        """
        self.commits = True
        if self._beginning and self.database.needs_no_begin:
            del self._ahead[: self._beginning]
        else:
            self.committed = self.ahead("COMMIT")

    def wait_at_most(self, seconds: float) -> None:
        """From now on, in this transaction: StoreBusy after so long a wait for a lock."""
        self.ahead(f"SET LOCAL lock_timeout = {round(1000 * seconds)}")

    def wait_as_usual(self) -> None:
        """As long as this transaction waits for locks where nothing else is said."""
        if self._patience is None:
            self.ahead("SET LOCAL lock_timeout = DEFAULT")
        else:
            self.wait_at_most(self._patience)

    @contextmanager
    def apart(self, patience: float) -> Iterator[None]:
        """Around what may wait for a lock: after so long it is StoreBusy, and the transaction as it was.

        What was to go out ahead of it still does, and all of it has to be answered within the block.
        """
        self.ahead("SAVEPOINT holdfast_apart")
        self.wait_at_most(patience)
        try:
            yield
        except BaseException as error:
            if self._undo_apart() and isinstance(error, LockNotAvailable | DeadlockDetected):
                raise StoreBusy(patience) from error
            raise
        self.wait_as_usual()
        self.ahead("RELEASE SAVEPOINT holdfast_apart")

    def _undo_apart(self) -> bool:
        """False where what went ahead has failed, or the connection is gone."""
        try:
            self.ahead("ROLLBACK TO SAVEPOINT holdfast_apart")
            self.ahead("RELEASE SAVEPOINT holdfast_apart")
            self.send()
        except psycopg.Error:
            return False
        return True

    @contextmanager
    def in_flight(self) -> Iterator[None]:
        """Send what was to go out ahead; the answers are there after the block.

        The block runs while the server is at it, and can run no statement of this thread.
        """
        ahead, self._ahead = self._ahead, []
        self._beginning = 0
        if not ahead:
            yield
            return
        self._is_sending = True
        try:
            with pipelined(self.connection) as send:
                sent = [RawCursor(self.connection).execute(sql, given) for _, sql, given in ahead]
                send()
                yield
        finally:
            self._is_sending = False
        for (answer, _, _), cursor in zip(ahead, sent, strict=True):
            answer.arrive(cursor)

    def send(self) -> None:
        """Send what was to go out ahead, and wait for the answers."""
        with self.in_flight():
            pass

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[Any]:
        return self._execute(sql, parameters).rows

    def count(self, sql: str, parameters: Sequence[Any] = ()) -> int:
        """How many rows a statement has changed."""
        return self._execute(sql, parameters).count

    def each(self, sql: str, rows: Sequence[Sequence[Any]]) -> None:
        """Run a statement with one row of parameters after another, all in one round trip."""
        for row in rows[:-1]:
            self.ahead(sql, row)
        for row in rows[-1:]:
            self.rows(sql, row)

    def _execute(self, sql: str, parameters: Sequence[Any]) -> Reply:
        if self.connection.lock.locked():
            raise NestedWrite(interrupted=True)  # by a signal handler, where psycopg would wait for itself
        if self._is_sending:  # a mistake in our code, which psycopg would answer with no rows
            raise AssertionError("nothing can be read on a connection whose pipeline is not answered")
        if self._ahead:
            answer = self.ahead(sql, parameters)
            self.send()
            return answer
        answer = Reply()
        text = self.database.text(sql)
        parameters = _sendable(parameters)
        try:
            answer.arrive(RawCursor(self.connection).execute(text, parameters))
        except (UnicodeEncodeError, psycopg.DataError) as error:
            if getattr(error, "sqlstate", None):
                raise
            # It was not sent: some text can't be stored as it is.
            answer.arrive(RawCursor(self.connection).execute(text, [*map(storable, parameters)]))
        return answer


def _sendable(parameters: Sequence[Any]) -> Sequence[Any]:
    return [literal(value) if isinstance(value, list) else value for value in parameters]


def storable(value: Any) -> Any:
    """A parameter as PostgreSQL can hold it: its texts have no NUL, and no half of a character."""
    return (
        value.replace("\0", "\ufffd").encode("utf-8", "replace").decode() if isinstance(value, str) else value
    )
