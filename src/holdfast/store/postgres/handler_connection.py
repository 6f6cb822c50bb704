"""The connection that a handler has inside ctx.transaction(), for as long as the block is open.

A plain psycopg connection, except that it refuses whatever would end the transaction early.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.errors import HoldfastError
from holdfast.store.attempt import Guarded
from holdfast.store.postgres.connection import Connection, OwnConnection

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
_SETS_TRANSACTION = re.compile(r"\s*set\s+(?:local\s+)?transaction(?:\s|_isolation)[^;]*;?\s*", re.IGNORECASE)


class HandlerCursor(psycopg.Cursor[Any]):
    """A cursor that does not end its transaction."""

    def execute(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self._check(query)
        return super().execute(query, *args, **kwargs)

    def executemany(self, query: Any, *args: Any, **kwargs: Any) -> Any:
        self._check(query)
        return super().executemany(query, *args, **kwargs)

    def stream(self, query: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        self._check(query)
        yield from super().stream(query, *args, **kwargs)

    @contextmanager
    def copy(self, statement: Any, *args: Any, **kwargs: Any) -> Iterator[Any]:
        self._check(statement)
        with super().copy(statement, *args, **kwargs) as copy:
            yield copy

    def _check(self, query: Any) -> None:
        connection = self.connection
        assert isinstance(connection, HandlerConnection)
        text = query.as_string(connection) if hasattr(query, "as_string") else query
        text = text.decode(errors="replace") if isinstance(text, bytes) else text
        if _ENDS_IT.search(_QUOTED.sub(" ", text)):
            raise HoldfastError(
                "leaving the block ends the transaction", hint="connection.transaction() creates a savepoint"
            )
        if _SETS_TRANSACTION.fullmatch(text):
            connection.set_transaction(text)


class HandlerConnection(Guarded, OwnConnection):
    """A handler's own view of a session, with psycopg's state fresh and not that of the handler before.

    When the block is over the session serves the next handler: whatever was kept of this object, a cursor or
    a thread that waits for its turn, does not reach it any more.
    """

    how_it_ends = "leaving the block ends it"

    def __init__(self, session: Connection, restart: Callable[[str], None]) -> None:
        super().__init__(session.pgconn)
        self.cursor_factory = HandlerCursor
        self.lock = _Door(session.lock, self)  # type: ignore[assignment]
        self.is_used = False
        """Whether the handler has sent anything that a restart would undo."""
        self._restart = restart

    def is_in_transaction(self) -> bool:
        return self.pgconn.transaction_status != TransactionStatus.IDLE

    def set_transaction(self, statement: str) -> None:
        """As the first statement it comes before the query that holds the job, or it would be too late."""
        self.check()
        if not self.is_used:
            self._restart(statement)

    @property
    def closed(self) -> bool:
        return self.over or super().closed

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        self.check()
        return super().cursor(*args, **kwargs)

    def cancel(self) -> None:
        self.check()
        super().cancel()

    def cancel_safe(self, *, timeout: float = 30.0) -> None:
        self.check()
        super().cancel_safe(timeout=timeout)

    def close(self) -> None:
        if not self.over:
            raise HoldfastError("leaving the block closes the connection")


class _Door:
    """Stands for the lock that psycopg holds during every exchange with the server.

    A statement that has waited for it finds out here, and not on the session of the next handler, that the
    transaction is over.
    """

    def __init__(self, lock: threading.Lock, connection: HandlerConnection) -> None:
        self._lock = lock
        self._connection = connection

    def __enter__(self) -> None:
        self._lock.acquire()
        try:
            self._connection.check()
        except BaseException:
            self._lock.release()
            raise
        self._connection.is_used = True

    def __exit__(self, kind: object, *_: object) -> None:
        self._lock.release()
        if kind is not GeneratorExit:  # a stream() that nobody reads any more
            self._connection.check_time()  # a statement that was cut short says why
