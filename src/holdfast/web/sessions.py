"""Logins that were ended early: invalid in every process of a server, even after a restart.

A session is a signed cookie, which can't be revoked from someone who has copied it. So ended sessions are
recorded next to the settings in the database, until they would have expired anyway.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from holdfast.errors import StoreError
from holdfast.queue import Queue
from holdfast.web.auth import Session

RECORD = "ended_session"
"""The name of such a record among the settings. In the place of a type it has the id of the session."""

_OLD_AFTER = 1.0

InThread = Callable[[Callable[[Queue], None]], Awaitable[None]]


class EndedSessions:
    """Which sessions have ended, as of up to a second ago."""

    def __init__(self, in_thread: InThread) -> None:
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
        await self._in_thread(partial(_record, session))

    def _refresh(self, queue: Queue) -> None:
        self._read_at = time.monotonic()
        with suppress(StoreError):  # what is known will do: nobody is logged out by a database in trouble
            self._ended |= queue.records(RECORD).keys()


def _record(session: Session, queue: Queue) -> None:
    for id, until in queue.records(RECORD).items():
        if int(until or 0) <= time.time():
            queue.drop_record(RECORD, id)
    queue.keep_record(RECORD, session.id, session.until)
