"""One connection: its kinds, and what the server says of itself when it is made."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import suppress
from types import TracebackType
from typing import Any, NamedTuple, Self

import psycopg
from psycopg import RawCursor
from psycopg.generators import send
from psycopg.pq import TransactionStatus

from holdfast.errors import StoreUnavailable
from holdfast.store.postgres.bounds import SHORT
from holdfast.store.postgres.clock import NOW

OLDEST_SERVER = 130000

Connection = psycopg.Connection[tuple[Any, ...]]


class OwnConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that may go with the thread that was left with it, without a word."""

    def __del__(self, *_: object) -> None:
        """psycopg would warn; the socket is closed all the same."""


class Greeting(NamedTuple):
    """What a server has said of itself."""

    schema: str
    """As it stands in SQL; empty if there is none."""
    place: int
    is_own: bool
    """Whether the session is this connection's alone: no pooler stands in between."""
    version: int
    synchronous_commit: str
    """What it is for us."""
    in_recovery: bool
    encoding: str
    is_plain: bool
    """Whether a statement without a BEGIN runs as it would after ours."""
    bounds_whole: bool
    """Whether it knows a bound for a whole transaction."""
    now: int

    def refuse_unfit(self, url: str) -> None:
        """Raise if no queue can be kept there."""
        if self.in_recovery:
            raise StoreUnavailable(
                f"{url} is a standby, which can't be written", hint="name the primary in the address"
            )
        if not self.schema:
            raise StoreUnavailable(
                f"{url}: no schema of the search path exists", hint="say ?schema=name in the address"
            )
        if self.version < OLDEST_SERVER:
            needed = OLDEST_SERVER // 10000
            raise StoreUnavailable(
                f"PostgreSQL {self.version // 10000} is too old; {needed} or newer is needed"
            )
        if self.encoding != "UTF8":
            raise StoreUnavailable(
                f"{url}: the database is in {self.encoding}, which can't hold every text",
                hint="make one in UTF8: createdb -E UTF8 -T template0",
            )


_SYNCHRONOUS = """coalesce($2, CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') THEN 'on'
    ELSE current_setting('synchronous_commit') END)"""
"""Weaker is an explicit choice, which the server's configuration has not made for us."""

TCP = {
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "3",
    "tcp_keepalives_count": "3",
    "tcp_user_timeout": "15000",
}
"""By which the server finds out when we are gone, also in the middle of an answer."""


def _set(settings: dict[str, str]) -> str:
    return ", ".join(f"set_config('{name}', {value}, false)" for name, value in settings.items())


def set_own(synchronous_commit: str) -> str:
    """SQL that gives a session of ours what each of them has; what it is given is SQL, too.

    No reload of the configuration makes commits weaker under us.
    """
    tcp = {name: f"'{value}'" for name, value in TCP.items()}
    return f"concat({_set({'synchronous_commit': synchronous_commit, **tcp})})"


def _unless_set(name: str, seconds: float) -> str:
    set_already = f"nullif(current_setting('{name}'), '0')"
    return f"coalesce({set_already}, '{round(1000 * seconds)}ms')"


_BOUNDS = {
    "lock_timeout": _unless_set("lock_timeout", SHORT.lock),
    "statement_timeout": _unless_set("statement_timeout", SHORT.statement),
}
"""For statements that are transactions by themselves. Others carry their own."""

_GREET = f"""
SELECT coalesce(quote_ident(coalesce($1, current_schema())), ''),
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()), pg_backend_pid() = $3,
    current_setting('server_version_num')::integer, {_SYNCHRONOUS},
    pg_is_in_recovery(), current_setting('server_encoding'),
    current_setting('default_transaction_isolation') = 'read committed'
        AND current_setting('default_transaction_read_only') = 'off',
    current_setting('transaction_timeout', true) IS NOT NULL, {NOW},
    CASE WHEN pg_backend_pid() = $3 THEN concat({set_own(_SYNCHRONOUS)}, {_set(_BOUNDS)}) END
"""


def greet(connection: Connection, schema: str | None, synchronous_commit: str | None) -> Greeting:
    """Ask the server, and set up the session if it is our own.

    `schema` is the one of the address, None for the first of the search path. What the address says of
    synchronous_commit holds; else what the server says, but never less than `on`.
    """
    given = [schema, synchronous_commit, connection.info.backend_pid]
    [row] = RawCursor(connection).execute(_GREET, given).fetchall()
    return Greeting(*row[:-1])


class Pipeline:
    """Statements that go out together: psycopg's pipeline, but for how it ends.

    psycopg sends a Sync and a Flush when the block ends. Until that Sync, and again after the Flush, the
    server does not count how long it is left alone, and would never end the transaction of a process that is
    lost or frozen there. So the Sync is sent by `send`, or at the end, and nothing after it.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._block = connection.pipeline()
        self._is_sent = False

    def __enter__(self) -> Self:
        self._statements = self._block.__enter__()
        self._statements._exit_gen = self._end  # type: ignore[method-assign]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._block.__exit__(kind, error, traceback)

    def send(self) -> None:
        """Send what was run so far, all of it; leaving the block waits for the answers."""
        with self._connection.lock:
            self._connection.wait(self._send())

    def _send(self) -> Generator[Any, Any, None]:
        self._is_sent = True
        self._statements._enqueue_sync()
        try:
            yield from self._statements._communicate_gen()
        finally:
            yield from send(self._connection.pgconn)  # the rest of what did not fit into the socket at once

    def _end(self) -> Generator[Any, Any, None]:
        try:
            if not self._is_sent:
                yield from self._send()
        finally:
            yield from self._statements._fetch_gen(flush=False)


def roll_back(connection: Connection) -> None:
    with suppress(psycopg.Error):
        if connection.info.transaction_status != TransactionStatus.IDLE:
            RawCursor(connection).execute("ROLLBACK")
