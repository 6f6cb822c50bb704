"""One connection: its kinds, and what the server says of itself when it is made."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import RawCursor
from psycopg.pq import TransactionStatus

from holdfast.errors import StoreUnavailable
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
    pid: int
    version: int
    synchronous_commit: str
    in_recovery: bool
    encoding: str
    is_plain: bool
    """Whether a statement without a BEGIN runs as it would after ours."""
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


def greet(connection: Connection, schema: str | None) -> Greeting:
    """Ask the server; `schema` is the one of the address, None for the first of the search path."""
    rows = RawCursor(connection).execute(
        "SELECT coalesce(quote_ident(coalesce($1, current_schema())), ''),"
        " (SELECT oid::bigint FROM pg_database WHERE datname = current_database()), pg_backend_pid(),"
        " current_setting('server_version_num')::integer, current_setting('synchronous_commit'),"
        " pg_is_in_recovery(), current_setting('server_encoding'),"
        " current_setting('default_transaction_isolation') = 'read committed'"
        f" AND current_setting('default_transaction_read_only') = 'off', {NOW}",
        [schema],
    )
    [row] = rows.fetchall()
    return Greeting(*row)


def roll_back(connection: Connection) -> None:
    with suppress(psycopg.Error):
        if connection.info.transaction_status != TransactionStatus.IDLE:
            RawCursor(connection).execute("ROLLBACK")
