"""Logins that were ended before their time: over in every process of a server, and after a restart too.

A session is a signed cookie, which can't be taken back from whoever has copied it. So the sessions that are
over are kept, beside the settings in the database, until they would have ended by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable

from holdfast.errors import StoreError
from holdfast.queue import Queue
from holdfast.web.auth import Session

RECORD = "ended_session"
"""The name of such a record among the settings. In the place of a type it has the id of the session."""

_OLD_AFTER = 1.0

InThread = Callable[[Callable[[], None]], Awaitable[None]]


class EndedSessions:
    """Which sessions are over, as the database had it up to a second ago."""

    def __init__(self, queue: Queue, in_thread: InThread) -> None:
        self._queue = queue
        self._in_thread = in_thread
        self._ended: frozenset[str] = frozenset()
        self._read_at = float("-inf")

    async def is_over(self, session: Session) -> bool:
        if session.until <= time.time() or session.id in self._ended:
            return True
        if time.monotonic() - self._read_at > _OLD_AFTER:
            await self._in_thread(self._refresh)
        return session.id in self._ended

    async def end(self, session: Session) -> None:
        self._ended |= {session.id}
        await self._in_thread(lambda: self._record(session))

    def _refresh(self) -> None:
        self._read_at = time.monotonic()
        try:
            stored = self._stored()
        except StoreError:
            return  # what is known will do: nobody is logged out by a database in trouble
        self._ended |= frozenset(stored)

    def _record(self, session: Session) -> None:
        store = self._queue.store
        for id, until in self._stored().items():
            if until <= time.time():
                store.unset_setting(RECORD, id)
        store.set_setting(RECORD, session.id, session.until)

    def _stored(self) -> dict[str, int]:
        stored = self._queue.store.get_settings()
        return {id: int(until or 0) for (name, id), until in stored.items() if name == RECORD}
