"""Connections of blocks that have committed, for the blocks to come: a new one reads the whole schema first.

One is given again when nobody can tell: its handler has altered nothing that lasts, and holds neither it nor
a cursor of it any more.
"""

from __future__ import annotations

import sqlite3
import sys
import threading
import weakref
from collections.abc import Sequence
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.store.sqlite.handler_connection import HandlerConnection

MOST_PARKED = 16


def _references(held: Sequence[object], place: int) -> int:
    return sys.getrefcount(held[place])


@cache
def _references_of_nobody() -> int:
    """Those to a connection that only a list holds: it has some to itself."""
    held = [sqlite3.connect(":memory:")]
    try:
        return _references(held, 0)
    finally:
        held[0].close()


def _close_all(parked: list[HandlerConnection]) -> None:
    while parked:
        sqlite3.Connection.close(parked.pop())


class ParkedConnections:
    """Those of one database."""

    def __init__(self) -> None:
        self._parked: list[HandlerConnection] = []
        self._lock = threading.Lock()
        # Which keeps them alive: one that the garbage collector came to first would warn.
        weakref.finalize(self, _close_all, self._parked)

    def take(self) -> HandlerConnection | None:
        while (connection := self._take_unheld()) is not None:
            if connection.is_like_new:  # no longer, if its handler has altered it since
                connection.renew()
                return connection
            sqlite3.Connection.close(connection)
        return None

    def _take_unheld(self) -> HandlerConnection | None:
        parked = self._parked
        with self._lock:
            for place in range(len(parked)):
                if _references(parked, place) <= _references_of_nobody():
                    return parked.pop(place)
        return None

    def park(self, connection: HandlerConnection) -> bool:
        """Returns whether it was taken: there may be no room for it, or it is not like a new one."""
        if not connection.is_like_new:
            return False
        with self._lock:
            has_room = len(self._parked) < MOST_PARKED
            if has_room:
                connection.rest()
                self._parked.append(connection)
            return has_room

    def take_all(self) -> list[HandlerConnection]:
        with self._lock:
            parked = [*self._parked]
            self._parked.clear()
            return parked
