"""The connection that a handler gets in ctx.transaction(): a plain one that can't end the transaction."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache
from typing import Any, NoReturn
from weakref import WeakSet, getweakrefcount

from holdfast.errors import HoldfastError
from holdfast.store.attempt import Guarded
from holdfast.store.sqlite.connection import OwnConnection, rollback, understood


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


def _close_of(opened: sqlite3.Cursor | sqlite3.Blob) -> Callable[[Any], None]:
    return sqlite3.Cursor.close if isinstance(opened, sqlite3.Cursor) else sqlite3.Blob.close


class _Authorizer:
    """Is asked about each statement before it is compiled; one in the connection's cache was compiled before.

    So none of our own may be there that a handler must not use: BEGIN fails inside a transaction, and COMMIT
    and ROLLBACK are not executed as statements.
    """

    is_inside = False
    """Whether the handler has the connection."""
    has_seen_lasting = False
    """Whether it has set something that holds for longer than its transaction."""

    def __call__(self, action: int, _: object, __: object, database: str | None, *___: object) -> int:
        if self.is_inside:
            if action == sqlite3.SQLITE_TRANSACTION:  # COMMIT and the like; its own savepoints are fine
                return sqlite3.SQLITE_DENY
            if action in _LASTING or database == "temp":  # where what lives as long as the connection is kept
                self.has_seen_lasting = True
        return sqlite3.SQLITE_OK


_LASTING = {sqlite3.SQLITE_ATTACH, sqlite3.SQLITE_DETACH, sqlite3.SQLITE_PRAGMA}


def _cut_short() -> int:
    return 1


_LEGACY = getattr(sqlite3, "LEGACY_TRANSACTION_CONTROL", -1)  # new in Python 3.12
_ATTRIBUTES = {"statement", "_authorizer", "_opened", "begun", "over", "is_completing", "_changes_before"}
"""Those of a connection that nobody has given others, and that has not expired."""


class HandlerConnection(Guarded, OwnConnection):
    """The connection a handler gets: a plain one, except that it refuses to end the transaction early."""

    how_it_ends = "SQLite itself rolls back at ON CONFLICT ROLLBACK, and when the disk is full"
    is_completing = False
    """Whether the statements are ours, no longer the handler's."""
    _changes_before = 0
    """Rows changed in the blocks before."""
    is_altered = False
    """Whether the handler has set what holds for longer than its transaction."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.statement = threading.RLock()
        self._authorizer = _Authorizer()
        sqlite3.Connection.set_authorizer(self, self._authorizer)
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

    def open_block(self) -> None:
        """From here on the handler has it, inside a transaction."""
        self.begun = self._authorizer.is_inside = True

    def begin_completion(self) -> None:
        """From here on the statements are ours."""
        self.take_back()
        self.is_completing = True

    def take_back(self) -> None:
        """End what the handler has left open, and let the transaction be ended.

        A cursor in the middle of its rows keeps a snapshot, even the whole transaction, beyond a close.
        """
        for opened in self._opened:
            with suppress(sqlite3.Error):
                _close_of(opened)(opened)  # its own may be the handler's
        self._authorizer.is_inside = False

    @property
    def is_like_new(self) -> bool:
        """Whether the next handler finds it as this one did."""
        is_altered = self.is_altered or self._authorizer.has_seen_lasting or vars(self).keys() - _ATTRIBUTES
        has_own_mode = self.isolation_level is not None or getattr(self, "autocommit", _LEGACY) != _LEGACY
        return not (is_altered or has_own_mode or self.in_transaction or getweakrefcount(self))

    @property
    def total_changes(self) -> int:
        return super().total_changes - self._changes_before

    def rest(self) -> None:
        """Until it is renewed, every statement is cut short, even one that goes past our cursors."""
        sqlite3.Connection.set_progress_handler(self, _cut_short, 1)

    def renew(self) -> None:
        sqlite3.Connection.set_progress_handler(self, None, 0)
        self.begun = self.over = self.is_completing = False
        self.row_factory, self.text_factory = None, str
        self._changes_before = super().total_changes

    def shut(self) -> None:
        """Roll back, and let nothing be written any more, not even past our cursors.

        Once a connection was interrupted, everything on it is, our ROLLBACK too, until no statement is open.
        """
        self.take_back()
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


def _altering(name: str) -> Callable[..., Any]:
    def alter(self: HandlerConnection, *args: Any, **kwargs: Any) -> Any:
        self.is_altered = True
        return getattr(sqlite3.Connection, name)(self, *args, **kwargs)

    return alter


for _name in (
    "create_aggregate",
    "create_collation",
    "create_function",
    "create_window_function",
    "deserialize",
    "enable_load_extension",
    "load_extension",
    "set_authorizer",
    "set_progress_handler",
    "set_trace_callback",
    "setconfig",
    "setlimit",
):
    if hasattr(sqlite3.Connection, _name):
        setattr(HandlerConnection, _name, _altering(_name))
