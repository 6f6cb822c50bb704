"""One SQLite file: a connection per thread, patient transactions, and the guarded checkpoint.

Two things here differ from what sqlite3 does by itself, because of failures of real queues. Waiting for the
write lock is our own loop with short random pauses, because SQLite's busy handler can starve a heartbeat for
seconds. And only one checkpoint runs at a time, holding the write lock, because a checkpoint that races with
a reset of the WAL loses committed data in most SQLite versions in use (fixed in 3.51.3).
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

from holdfast.errors import (
    CommitUncertain,
    NestedWrite,
    QueueClosed,
    StoreBusy,
    StoreError,
    StoreUnavailable,
)
from holdfast.store.database import PATIENCE, Reader
from holdfast.store.own_files import DatabaseFiles
from holdfast.store.scope import is_inside
from holdfast.store.sqlite.connection import OwnConnection, rollback
from holdfast.store.sqlite.errors import is_locked, raise_translated
from holdfast.store.sqlite.file import DatabaseFile
from holdfast.store.sqlite.fork import ForkGate
from holdfast.store.sqlite.lock_line import LockLine
from holdfast.store.sqlite.parked import ParkedConnections

WAL_LIMIT = 8 * 1024 * 1024
"""Size of the WAL in bytes at which a commit is followed by a checkpoint."""

_WAL_KEPT = WAL_LIMIT - 512 * 1024
"""Size that its file is given once there is more than a little in it, and that it keeps after a checkpoint: a
commit that doesn't make the file longer takes two thirds of the time."""

_WAL_SMALL = 256 * 1024
"""Size up to which it is left as it is: most queues that are opened only for a moment need no more."""

_TENDING_PAUSE = 0.2
_CHECKPOINT_PATIENCE = 0.5

T = TypeVar("T")
C = TypeVar("C", bound=OwnConnection)


class _Local(threading.local):
    holder: _Holder | None = None
    depth: int = 0
    is_checkpointing: bool = False


def _close_quietly(connection: sqlite3.Connection) -> None:
    try:  # noqa: SIM105 -- of the interpreter's last moments only what is built in is left
        connection.close()
    except Exception:
        pass


class _Holder:
    """A thread's connection; closed when the thread is gone, or the queue."""

    _close_quietly = staticmethod(_close_quietly)

    def __init__(self, connection: OwnConnection) -> None:
        self.connection = connection
        self.closed = False
        # Which keeps it alive: a connection that the garbage collector came to before its holder would warn.
        weakref.finalize(self, _close_quietly, connection).atexit = False

    @property
    def in_transaction(self) -> bool:
        return not self.closed and self.connection.in_transaction

    def close(self) -> None:
        self.closed = True
        self.connection.close()

    def __del__(self) -> None:
        self._close_quietly(self.connection)


# Connections that could not be closed before a fork. Closing them in the child would break the parent's
# locks, so the child keeps them here, for ever.
_abandoned: list[object] = []


class Database(Reader):
    """The file and this process's connections to it."""

    def __init__(self, path: str, *, url: str, synchronous: str = "FULL") -> None:
        self.file = DatabaseFile(path)
        self.path = self.file.path
        self.url = url
        self._files = DatabaseFiles(path)
        self._synchronous = synchronous
        self._local = _Local()
        # Weak: a thread's connection goes with the thread.
        self._holders: weakref.WeakSet[_Holder] = weakref.WeakSet()
        self._lock = threading.RLock()
        self._line = LockLine()
        self._tending = threading.Lock()
        self._next_tending = 0.0
        self.is_closed = False
        self.open_attempts: set[sqlite3.Connection] = set()
        """The connections inside ctx.transaction(): a fork can't close these."""
        self.parked = ParkedConnections()
        self._gate = ForkGate(
            lambda: not self.open_attempts, self._close_connections, self._abandon_connections
        )

    def connect(self) -> OwnConnection:
        """A new connection with our settings. Closing it is the caller's business, inside `using`."""
        return self.connect_as(OwnConnection)

    def connect_as(self, factory: type[C]) -> C:
        """A new connection of this class."""
        self._refuse_forked_child()
        try:
            connection = sqlite3.connect(
                self.file.uri,
                uri=True,
                timeout=0,
                isolation_level=None,
                check_same_thread=False,
                cached_statements=256,
                factory=factory,
            )
        except sqlite3.Error as error:
            self._raise_translated(error)
        try:
            self._files.note_opened()
            self.file.note_opened()
            for pragma in (
                f"synchronous = {self._synchronous}",
                "wal_autocheckpoint = 0",
                f"journal_size_limit = {_WAL_KEPT}",
                "fullfsync = ON",  # macOS: an fsync alone does not reach the disk there
                "checkpoint_fullfsync = ON",
                "cache_size = -16384",
                "temp_store = MEMORY",
            ):
                self.patiently(partial(connection.execute, f"PRAGMA {pragma}"))
        except BaseException:
            sqlite3.Connection.close(connection)
            raise
        return connection

    def _refuse_forked_child(self) -> None:
        if self._gate.refused:
            raise StoreUnavailable(
                "this process was forked while the queue was in use, and can't use it",
                hint="fork before using the queue, or start new processes instead (spawn)",
            )

    @contextmanager
    def using(self) -> Iterator[None]:
        """Wraps every use of a connection: a fork waits until it ends."""
        self._gate.enter()
        try:
            yield
        finally:
            self._gate.leave()

    def connection(self) -> OwnConnection:
        """This thread's connection, to be used inside `using`."""
        self._refuse_forked_child()
        if self.is_closed:
            raise QueueClosed("the queue is closed")
        holder = self._local.holder
        if holder is None or holder.closed:
            holder = _Holder(self.connect())
            self._local.holder = holder
            self._local.depth = 0
            with self._lock:
                self._holders.add(holder)
        return holder.connection

    def close(self) -> None:
        """Close every connection of this process; one that stays in use is left to its thread."""
        self.is_closed = True
        self._gate.alone(self._close_for_good)

    def _close_for_good(self) -> None:
        self._close_connections()
        if not self.open_attempts:
            self._files.forget()

    def _close_connections(self) -> None:
        with self._lock:
            holders = list(self._holders)
        for holder in holders:
            holder.close()
        self.close_parked()

    def close_parked(self) -> None:
        for connection in self.parked.take_all():
            sqlite3.Connection.close(connection)

    def _abandon_connections(self) -> None:
        _abandoned.extend([*self._holders, *self.open_attempts, *self.parked.take_all()])

    among_numbers = among_texts = "IN (SELECT value FROM json_each(?))"
    elements = "json_each(?)"
    clock = "clock AS MATERIALIZED (SELECT ?1 AS now)"
    orders_recursion = True
    seq_within = "seq"

    def by_index(self, name: str | None) -> str:
        return "NOT INDEXED" if name is None else f"INDEXED BY {name}"

    def skip_locked(self, _table: str, _key: str) -> str:
        return ""  # nobody else writes meanwhile

    def close_thread(self) -> None:
        """Close this thread's connection, for threads that end before the queue does."""
        holder = self._local.holder
        if holder is not None:
            self._local.holder = None
            holder.close()

    def read(self, sql: str, parameters: Any = ()) -> list[Any]:
        """All rows of a query, read at once so that no reader ever holds the WAL back."""
        self._gate.enter()
        try:
            connection = self.connection()
            self.file.check_now_and_then()
            return self.patiently(lambda: connection.execute(sql, parameters).fetchall())
        finally:
            self._gate.leave()

    @contextmanager
    def snapshot(self) -> Iterator[None]:
        """Around reads that must see one state of the database; inside a transaction, what that sees."""
        self._gate.enter()
        try:
            connection = self.connection()
            if connection.in_transaction:
                yield
                return
            self.patiently(lambda: connection.execute("BEGIN"))
            try:
                yield
            finally:
                rollback(connection)
        finally:
            self._gate.leave()

    @contextmanager
    def transaction(self, *, patience: float = PATIENCE) -> Iterator[OwnConnection]:
        """A write transaction on this thread's connection; entered again inside, it is the same one."""
        if is_inside(self.url):
            raise NestedWrite
        self._gate.enter()
        try:
            connection = self.connection()
            local = self._local
            if local.depth:
                yield connection
                return
            self.begin(connection, patience)
            local.depth = 1
            try:
                yield connection
            except sqlite3.Error as error:
                self.roll_back(connection)
                self._raise_translated(error)
            except BaseException:
                self.roll_back(connection)
                raise
            else:
                self.commit(connection)
            finally:
                local.depth = 0
            self.tend_wal()
        finally:
            self._gate.leave()

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside a transaction, or about to begin or end one.

        A checkpoint counts: its guard holds the write lock, on a connection of its own.
        """
        local = self._local
        is_open = local.holder is not None and local.holder.in_transaction
        return local.depth > 0 or local.is_checkpointing or is_open

    def begin(self, connection: sqlite3.Connection, patience: float = PATIENCE) -> None:
        """BEGIN IMMEDIATE, waiting for the lock. Once begun, nothing inside can find the database locked."""
        self.patiently(lambda: connection.execute("BEGIN IMMEDIATE"), patience)
        self._line.taken()

    def commit(self, connection: sqlite3.Connection) -> None:
        def try_to_commit() -> None:
            try:
                sqlite3.Connection.commit(connection)  # a handler's connection overrides its own
            except sqlite3.Error as error:
                # Before the file has a WAL, readers keep a commit out. Then it has not begun, and can wait.
                if is_locked(error):
                    raise
                raise CommitUncertain(f"{self.path}: the commit failed: {error}") from error

        try:
            self.patiently(try_to_commit)
        finally:
            self.roll_back(connection)  # unless it has been committed
        self.file.check()  # only now is it known that what was committed can be found again

    def roll_back(self, connection: sqlite3.Connection) -> None:
        """End what `begin` has begun."""
        rollback(connection)
        self._line.freed()

    def patiently(self, action: Callable[[], T], patience: float = PATIENCE) -> T:
        """Run it, retrying with random pauses while another connection holds the lock."""
        deadline, waits = 0.0, False
        while True:
            try:
                return action()
            except sqlite3.Error as error:
                if not is_locked(error):
                    self._raise_translated(error)
                now = time.monotonic()
                deadline = deadline or now + patience
                if now >= deadline:
                    raise StoreBusy(patience) from error
            self._line.pause(again=waits)
            waits = True

    def _raise_translated(self, error: sqlite3.Error) -> NoReturn:
        self.file.check()  # where the file is gone, SQLite calls it an I/O error, or a missing table
        raise_translated(error, self.path)

    def tend_wal(self) -> None:
        """After a commit: give the WAL its length, or copy a large one into the database."""
        size = self.file.wal_bytes()
        is_short = _WAL_SMALL < size < _WAL_KEPT
        if not is_short and size <= WAL_LIMIT:
            self._next_tending = 0.0
        elif size > 2 * WAL_LIMIT or time.monotonic() >= self._next_tending:
            self._alone_with_wal(self._lengthen_wal if is_short else self.checkpoint)
            self._next_tending = time.monotonic() + _TENDING_PAUSE

    def _alone_with_wal(self, action: Callable[[], None]) -> None:
        """Run it, unless another thread is tending the WAL."""
        if not self._tending.acquire(blocking=False):
            return
        try:
            with self.using():
                action()
        except (OSError, StoreError):
            pass  # Somebody holds the lock or the disk is in trouble; a later commit tries again.
        finally:
            self._tending.release()

    def checkpoint(self) -> None:
        """Copy the WAL into the database, while a second connection keeps every other writer out."""
        with closing(self.connect()) as checkpointer, self._guarding(_CHECKPOINT_PATIENCE):
            self.patiently(lambda: checkpointer.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchall(), 0)

    def _lengthen_wal(self) -> None:
        """Append zeros, while nobody else can write: SQLite reads the WAL only as far as the last commit.

        SQLite has no locks on this file, so closing it drops none.
        """
        with self._guarding(0):
            descriptor = os.open(f"{self.path}-wal", os.O_WRONLY | os.O_APPEND)
            try:
                missing = _WAL_KEPT - self.file.wal_bytes()
                zeros = memoryview(bytes(_WAL_SMALL))
                while missing > 0:
                    missing -= os.write(descriptor, zeros[:missing])
            finally:
                os.close(descriptor)

    @contextmanager
    def _guarding(self, patience: float) -> Iterator[None]:
        """Keep every other writer out."""
        with closing(self.connect()) as guard:
            self._local.is_checkpointing = True
            try:
                self.begin(guard, patience)
                yield
            finally:
                self.roll_back(guard)
                self._local.is_checkpointing = False
