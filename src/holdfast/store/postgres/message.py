"""Several statements as one message, in one round trip and without psycopg's cursors."""

from __future__ import annotations

from psycopg import generators
from psycopg.errors import error_from_result
from psycopg.pq import DiagnosticField, ExecStatus
from psycopg.pq.abc import PGresult

from holdfast.store.postgres.connection import Connection


def exchange(connection: Connection, statements: str) -> list[PGresult]:
    """The results, up to that of the first statement that failed, after which the server carries out no more.

    The caller holds the connection's lock.
    """
    connection.pgconn.send_query(statements.encode(connection.info.encoding))
    return connection.wait(generators.execute(connection.pgconn))


def raise_failure(results: list[PGresult]) -> None:
    """Raise the error of the last of them, if it is one."""
    if has_failed(results[-1]):
        raise error_from_result(results[-1])


def sqlstate(result: PGresult) -> bytes | None:
    return result.error_field(DiagnosticField.SQLSTATE)


def has_failed(result: PGresult) -> bool:
    return result.status == ExecStatus.FATAL_ERROR
