"""What PostgreSQL's errors mean: which of ours each one becomes, and what to do about it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import psycopg

from holdfast.errors import ConfigError, StoreBusy, StoreUnavailable
from holdfast.store.database import PATIENCE
from holdfast.store.moved import MOVED_STATE, error_of

_BUSY = ("55P03", "40P01", "40001")
_READ_ONLY = "the server is read-only: is it a standby, or is default_transaction_read_only on?"
_ANOTHER_VERSION = "the queue's tables are from another version: run queuectl migrate, then restart"
_HINTS = {
    "42703": _ANOTHER_VERSION,
    "42883": _ANOTHER_VERSION,
    "0A000": _READ_ONLY,
    "25006": _READ_ONLY,
    "42501": "make the role the owner of the schema, or grant it the privileges it needs",
    "42P01": "the queue's tables are missing; queuectl migrate creates them",
    "57014": "the server is overloaded, or its tables are not vacuumed: run queuectl doctor",
    "53100": "the server's disk is full: free some space, and work resumes by itself",
}

_EXHAUSTED = "too many|connection slots|no more connections"

# libpq tells of a connection that was refused in words alone.
_REFUSALS = {
    "authentication failed": "check the user and the password in the address, or in ~/.pgpass",
    "no password supplied": "give it in the address, in ~/.pgpass or in PGPASSWORD",
    "pg_hba.conf": "allow this role and machine in the server's pg_hba.conf",
    'database ".*" does not exist': "create it with createdb, or use another in the address",
    'role ".*" does not exist': "create it with createuser, or use another in the address",
    "startup parameter": "a pooler does not accept it: remove it from the address, or add it to PgBouncer's"
    " ignore_startup_parameters",
    _EXHAUSTED: "raise max_connections on the server, or lower ?pool= in the address",
    "refused|No such file|timeout expired": "is the server running there?",
}


class ConnectionsExhausted(StoreUnavailable):
    """The server, or a pooler, has no free connection."""


class ConnectionLost(StoreUnavailable):
    """The connection was lost before the commit: nothing was written."""


@contextmanager
def translated(url: str, *, connecting: bool = False) -> Iterator[None]:
    """Wraps driver calls: the driver's errors become ours."""
    try:
        yield
    except psycopg.Error as error:
        raise_translated(error, url, connecting=connecting)


def raise_translated(error: psycopg.Error, url: str, *, connecting: bool = False) -> NoReturn:
    """Raise the driver's error as one of ours. What can only be a mistake in SQL stays as it is."""
    state = error.sqlstate or ""
    if state in _BUSY:
        raise StoreBusy(PATIENCE) from error
    raise_if_moved(error)
    if state[:2] in ("22", "23", "42") and state not in _HINTS:
        raise error
    reason = str(error).strip().partition("\n")[0]
    if not state and not _is_of_connection(error):
        if connecting:
            raise ConfigError(f"{url}: {reason}") from error
        raise error
    hint = _HINTS.get(state, _HINTS.get(state[:2]))
    kind: type[StoreUnavailable] = StoreUnavailable
    if connecting:
        hint = next((advice for words, advice in _REFUSALS.items() if re.search(words, reason)), hint)
        kind = ConnectionsExhausted if re.search(_EXHAUSTED, reason) else kind
    elif means_lost(error):
        kind = ConnectionLost
    raise kind(f"{url}: {reason}", hint=hint) from error


def _is_of_connection(error: psycopg.Error) -> bool:
    """Of an error without a state: whether libpq has raised it, and not psycopg for what it was asked.

    Answers that libpq makes up itself when the connection has ended come as the bare DatabaseError.
    """
    return isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) or (
        type(error) is psycopg.DatabaseError
    )


def raise_if_moved(error: BaseException) -> None:
    """Raise what a guard of a move has refused, whichever driver says so, as one of our errors."""
    if sqlstate_of(error) == MOVED_STATE:
        moved = error_of(str(error.__cause__ or error))  # SQLAlchemy's own have asyncpg's as their cause
        if moved is not None:
            raise moved from error


def sqlstate_of(error: BaseException) -> str | None:
    """The server's code of an error: the drivers agree on it, but not on where it is."""
    return getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)


def means_lost(error: psycopg.Error) -> bool:
    """Whether the connection is gone, with or without a final message from the server."""
    return not error.sqlstate or error.sqlstate.startswith(("57P", "08", "25P03", "25P04"))


def means_too_slow(error: psycopg.Error) -> bool:
    """Whether the server has ended a transaction that was idle for too long."""
    return error.sqlstate == "25P03"


def means_read_only(error: psycopg.Error) -> bool:
    """Whether the server can't be written, such as a primary that has become a standby."""
    return error.sqlstate in ("25006", "0A000")
