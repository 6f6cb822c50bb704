"""The connection pool: a connection is taken for one transaction or read, and then returned.

Connections are opened in the thread that needs one, so that a caller that has to wait gets the reason. A
process's connections are its own: a forked child starts with an empty pool, and sends nothing on its parent's
connections.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress

import psycopg
from psycopg.pq import TransactionStatus

from holdfast.errors import QueueClosed, StoreUnavailable
from holdfast.store.database import PATIENCE
from holdfast.store.postgres.connection import Connection

_FRESH = 5.0
"""Seconds for which a connection that lies idle is taken for alive."""
_SURPLUS = 60.0
"""Seconds after which a connection that nobody has needed is closed."""


class Pool:
    """At most `size` connections at a time, each from `make`. `after_fork` is called in a forked child."""

    def __init__(self, make: Callable[[], Connection], size: int, after_fork: Callable[[], None]) -> None:
        self._make = make
        self._size = size
        self._after_fork = after_fork
        self._closed = False
        self._reset()
        _pools.add(self)

    def _reset(self) -> None:
        self._changed = threading.Condition()
        self._known: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._idle: list[tuple[Connection, float]] = []
        self._taken = 0

    def take(self, *, fresh: bool = False, patience: float = PATIENCE) -> Connection:
        """A connection, to be given back. A `fresh` one is new."""
        deadline = time.monotonic() + patience
        with self._changed:
            while not self._closed and self._taken >= self._size:
                if not self._changed.wait(deadline - time.monotonic()):
                    raise StoreUnavailable(
                        f"all {self._size} connections were in use for {patience:g} s",
                        hint="raise ?pool= in the address",
                    )
            if self._closed:
                raise QueueClosed("the queue is closed")
            self._taken += 1
            found = None if fresh or not self._idle else self._idle.pop()
        try:
            if found is not None:
                connection, since = found
                if time.monotonic() - since < _FRESH or _answers(connection):
                    return connection
                connection.close()
                self.forget_idle()
            return self._make()
        except BaseException:
            self._leave()
            raise

    def wait_for_change(self, seconds: float) -> None:
        """Wait until a connection is given back, at most so long."""
        with self._changed:
            if not self._idle:
                self._changed.wait(seconds)

    def _leave(self) -> None:
        with self._changed:
            self._taken -= 1
            self._changed.notify()

    def give(self, connection: Connection) -> None:
        """Return a connection, in whatever state it is."""
        is_usable = connection.pgconn.transaction_status == TransactionStatus.IDLE  # nor is it closed
        is_broken = connection.broken
        with self._changed:
            if connection not in self._known:
                return  # taken before this process was forked
            now = time.monotonic()
            leaving = [idle for idle, since in self._idle if now - since > _SURPLUS]
            del self._idle[: len(leaving)]  # those that were not needed for long are at the bottom
            if is_usable and not self._closed:
                self._idle.append((connection, now))
            else:
                leaving.append(connection)
            self._taken -= 1
            self._changed.notify()
        for gone in leaving:
            gone.close()
        if is_broken:  # the others will not be better
            self.forget_idle()

    def forget_idle(self) -> None:
        with self._changed:
            idle, self._idle = self._idle, []
        for connection, _ in idle:
            connection.close()

    def close(self) -> None:
        """Close idle connections now, and the others when they are returned."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self.forget_idle()

    # Forks.

    def know(self, connection: Connection) -> None:
        """Any connection of this process, also one that is never given here: a child leaves it alone."""
        self._known.add(connection)

    def leave_to_parent(self) -> None:
        """In a forked child: what the parent has open is the parent's."""
        inherited = list(self._known)
        _inherited.extend(inherited)
        self._reset()
        self._after_fork()
        _shut(inherited)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_inherited: list[Connection] = []
"""Connections of parent processes, kept because collecting one as garbage would raise a warning."""


def _leave_to_parent() -> None:
    for pool in list(_pools):
        pool.leave_to_parent()


os.register_at_fork(after_in_child=_leave_to_parent)


def _shut(inherited: Iterable[Connection]) -> None:
    """Close their sockets without telling the server.

    They must not stay open here when the parent has died: the server would keep its locks for as long as this
    process lives.
    """
    nowhere = os.open(os.devnull, os.O_RDWR)
    for connection in inherited:
        with suppress(psycopg.Error):  # closed
            os.dup2(nowhere, connection.fileno(), inheritable=False)
    os.close(nowhere)


def _answers(connection: Connection) -> bool:
    try:
        connection.execute("SELECT 1")
    except psycopg.Error:
        return False
    return True
