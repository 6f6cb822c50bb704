"""One connection: its kinds, and what the server says of itself when it is made."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

import psycopg
from psycopg import RawCursor, generators
from psycopg.errors import error_from_result
from psycopg.generators import send
from psycopg.pq import DiagnosticField, ExecStatus, TransactionStatus
from psycopg.pq.abc import PGresult

from holdfast.errors import StoreUnavailable
from holdfast.store.postgres.bounds import SHORT
from holdfast.store.postgres.server_clock import NOW

OLDEST_SERVER = 130000

Connection = psycopg.Connection[tuple[Any, ...]]


class OwnConnection(psycopg.Connection[tuple[Any, ...]]):
    """A connection that may be dropped together with the thread that owned it, without a warning."""

    uses: dict[str, int]
    """How often a statement was run that goes by `run_often`."""

    def __del__(self, *_: object) -> None:
        """psycopg would warn; the socket is closed all the same."""


class Greeting(NamedTuple):
    """What a server has said of itself."""

    schema: str
    """As it stands in SQL; empty if there is none."""
    place: int
    """The database's number on its server: a copy of it has the same identity, but another place."""
    is_own: bool
    """Whether the session is this connection's alone: no pooler stands in between."""
    version: int
    synchronous_commit: str
    """How durable our commits are: as the address says, else never less than `on`."""
    in_recovery: bool
    encoding: str
    is_plain: bool
    """Whether a statement without a BEGIN runs as it would after ours."""
    is_unbounded: bool
    """Whether nobody has bounded its statements and its waits but us."""
    bounds_whole: bool
    """Whether it knows a bound for a whole transaction."""
    now: int

    def refuse_unfit(self, url: str) -> None:
        """Raise if no queue can be kept there."""
        if self.in_recovery:
            raise StoreUnavailable(
                f"{url} is a standby, which is read-only", hint="use the address of the primary"
            )
        if not self.schema:
            raise StoreUnavailable(
                f"{url}: no schema of the search path exists", hint="add ?schema=name to the address"
            )
        if self.version < OLDEST_SERVER:
            found, needed = self.version // 10000, OLDEST_SERVER // 10000
            raise StoreUnavailable(f"PostgreSQL {found} is too old; {needed} or newer is required")
        if self.encoding != "UTF8":
            raise StoreUnavailable(
                f"{url}: the database encoding is {self.encoding}, which can't store every text",
                hint="create one in UTF8: createdb -E UTF8 -T template0",
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


_ALONE = {
    "lock_timeout": _unless_set("lock_timeout", SHORT.lock),
    "statement_timeout": _unless_set("statement_timeout", SHORT.statement),
    # As it is: by it we have decided what needs no BEGIN, which no reload of the configuration changes.
    "default_transaction_isolation": "current_setting('default_transaction_isolation')",
}
"""For what runs without a BEGIN. Other transactions carry their own."""

_GREET = f"""
SELECT coalesce(quote_ident(coalesce($1, current_schema())), ''),
    (SELECT oid::bigint FROM pg_database WHERE datname = current_database()), pg_backend_pid() = $3,
    current_setting('server_version_num')::integer, {_SYNCHRONOUS},
    pg_is_in_recovery(), current_setting('server_encoding'),
    current_setting('default_transaction_isolation') = 'read committed'
        AND current_setting('default_transaction_read_only') = 'off',
    current_setting('lock_timeout') = '0' AND current_setting('statement_timeout') = '0'
        AND coalesce(current_setting('transaction_timeout', true), '0') = '0',
    current_setting('transaction_timeout', true) IS NOT NULL, {NOW},
    CASE WHEN pg_backend_pid() = $3 THEN concat({set_own(_SYNCHRONOUS)}, {_set(_ALONE)}) END
"""


def greet(connection: Connection, schema: str | None, synchronous_commit: str | None) -> Greeting:
    """Ask the server, and set up the session if it is our own.

    `schema` is the one of the address, None for the first of the search path. What the address says of
    synchronous_commit holds; else what the server says, but never less than `on`.
    """
    given = [schema, synchronous_commit, connection.info.backend_pid]
    [row] = RawCursor(connection).execute(_GREET, given).fetchall()
    return Greeting(*row[:-1])


@contextmanager
def pipelined(connection: Connection) -> Iterator[Callable[[], None]]:
    """Statements that go out together: psycopg's pipeline, but for how it ends.

    psycopg sends a Sync and a Flush when the block ends. Until that Sync, and again after the Flush, the
    server does not count how long it is left alone, and would never end the transaction of a process that is
    lost or frozen there. So the Sync is sent by what this gives, with all that was run so far, or at the end,
    and nothing after it. Leaving the block waits for the answers.
    """
    is_sent = False

    def send_all() -> Generator[Any, Any, None]:
        nonlocal is_sent
        is_sent = True
        statements._enqueue_sync()
        try:
            yield from statements._communicate_gen()
        finally:
            yield from send(connection.pgconn)  # the rest of what did not fit into the socket at once

    def end() -> Generator[Any, Any, None]:
        try:
            if not is_sent:
                yield from send_all()
        finally:
            yield from statements._fetch_gen(flush=False)

    def send_now() -> None:
        with connection.lock:
            connection.wait(send_all())

    with connection.pipeline() as statements:
        statements._exit_gen = end  # type: ignore[method-assign]
        yield send_now


def roll_back(connection: Connection) -> None:
    with suppress(psycopg.Error):
        if connection.info.transaction_status != TransactionStatus.IDLE:
            RawCursor(connection).execute("ROLLBACK")


# Several statements as one message, in one round trip and without psycopg's cursors.


def exchange(connection: Connection, statements: str) -> list[PGresult]:
    """The results, up to that of the first statement that failed, after which the server carries out no more.

    The caller holds the connection's lock.
    """
    connection.pgconn.send_query(statements.encode(connection.info.encoding))
    return connection.wait(generators.execute(connection.pgconn))


_OFTEN = 5
"""Times that a statement is run by psycopg before it is worth to be prepared."""

_NOT_PREPARED = b"26000"
_INTEGERS = frozenset({20, 21, 23})
"""The numbers of their types."""


def run_often(connection: Connection, sql: str, parameters: Sequence[Any]) -> list[Any] | None:
    """The rows of a statement that is a transaction by itself, of integers and texts; None until it was run
    so often that it is worth to be prepared. For a third of what psycopg's cursors cost.

    Parameters are texts, numbers, booleans and None; the SQL says by a cast what they are.
    """
    if not isinstance(connection, OwnConnection):
        return None
    uses = connection.__dict__.setdefault("uses", {})
    count = uses[sql] = uses.get(sql, 0) + 1
    if count <= _OFTEN:
        return None
    session = connection.pgconn
    given = [None if value is None else _sent(value) for value in parameters]
    name = b"holdfast_%d" % list(uses).index(sql)
    with connection.lock:
        results: list[PGresult] = []
        if count > _OFTEN + 1:
            session.send_query_prepared(name, given)
            results = connection.wait(generators.execute(session))
        if not results or sqlstate(results[-1]) == _NOT_PREPARED:  # psycopg deallocates all now and then
            session.send_prepare(name, sql.encode())
            raise_failure(connection.wait(generators.execute(session)))
            session.send_query_prepared(name, given)
            results = connection.wait(generators.execute(session))
    raise_failure(results)
    [result] = results
    readers = [int if result.ftype(column) in _INTEGERS else bytes.decode for column in range(result.nfields)]
    return [
        tuple(
            None if (value := result.get_value(row, column)) is None else read(value)
            for column, read in enumerate(readers)
        )
        for row in range(result.ntuples)
    ]


def _sent(value: str | float | bool) -> bytes:
    if isinstance(value, str):
        try:
            sent = value.encode()
        except UnicodeEncodeError:
            sent = value.encode("utf-8", "replace")
        return sent if b"\0" not in sent else sent.replace(b"\0", b"\xef\xbf\xbd")
    return str(value).lower().encode() if isinstance(value, bool) else repr(value).encode()


def raise_failure(results: list[PGresult]) -> None:
    """Raise the error of the last of them, if it is one."""
    if has_failed(results[-1]):
        raise error_from_result(results[-1])


def sqlstate(result: PGresult) -> bytes | None:
    return result.error_field(DiagnosticField.SQLSTATE)


def has_failed(result: PGresult) -> bool:
    return result.status == ExecStatus.FATAL_ERROR
