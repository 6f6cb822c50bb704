"""Waking up when others commit: LISTEN where it works, else a look every few milliseconds.

Workers are told when there is something to do, or look whether there is. Who wants to see every change, such
as a page that shows jobs as they end, looks at the server's count of transactions: to tell of each would cost
all of them.
"""

from __future__ import annotations

import select
import time

import psycopg

from holdfast.errors import StoreError
from holdfast.store.postgres.connection import Connection
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.notify import channel
from holdfast.store.postgres.schema import STATUS
from holdfast.store.wake import Waker

_POLL_SECONDS = 0.02
_POLL_SECONDS_FOR_WORK = 0.05
_RECONNECT = (0.1, 5.0)

# Which transactions have ended: it changes with each one that writes, in the whole server.
_ENDED = "pg_current_snapshot()::text"

# What a worker acts upon. It is made only if somebody has written, which may have been anybody.
_TO_DO = f"""concat_ws(' ',
    (SELECT string_agg(concat_ws(' ', type, pending, scheduled), ' ' ORDER BY type) FROM holdfast_counts
        WHERE pending <> 0 OR scheduled <> 0),
    (SELECT string_agg(type, ' ' ORDER BY type) FROM holdfast_pauses),
    (SELECT string_agg(concat_ws(' ', name, type, value), ' ' ORDER BY name, type) FROM holdfast_settings),
    (SELECT sum(stop) FROM holdfast_workers),
    (SELECT count(*) FROM holdfast_jobs WHERE cancel_requested AND {STATUS} = 'processing'))"""

_LOOK_AT_ALL = f"SELECT ended, ended FROM (SELECT {_ENDED} AS ended) AS server"
_LOOK_AT_WORK = f"""
SELECT ended, CASE WHEN ended <> $1 THEN md5({_TO_DO}) ELSE $2 END FROM (SELECT {_ENDED} AS ended) AS server
"""


class PostgresWatch:
    """See Watch in the protocol."""

    def __init__(self, database: Database, *, for_work: bool) -> None:
        self._database = database
        self._listens = for_work and database.hears
        self._for_work = for_work
        self._pause = _POLL_SECONDS_FOR_WORK if for_work else _POLL_SECONDS
        self._ear: Connection | None = None
        self._deaf_until = 0.0
        self._back_off = _RECONNECT[0]
        self._waker = Waker()
        self._has_changed = False
        self._ended = self._seen = ""
        try:
            if self._listens:
                self._listen()
            else:
                self._look()
                self._has_changed = False
        except BaseException:
            self.close()
            raise

    def wait(self, timeout: float) -> None:
        deadline = time.monotonic() + timeout
        while not self._has_changed:
            left = deadline - time.monotonic()
            if self._wait_for_wake(max(0.0, min(left, self._longest_pause()))) or left <= 0:
                return
            if self._listens and self._ear is None:
                self._listen()
            elif not self._listens:
                self._look()

    def changed(self) -> bool:
        if self._listens:
            self._hear()
        else:
            self._look()
        changed, self._has_changed = self._has_changed, False
        return changed

    def wake(self) -> None:
        self._waker.wake()

    def close(self) -> None:
        self._waker.close()
        if self._ear is not None:
            self._ear.close()

    def _longest_pause(self) -> float:
        if not self._listens:
            return self._pause
        return 60.0 if self._ear is not None else max(0.0, self._deaf_until - time.monotonic())

    def _wait_for_wake(self, seconds: float) -> bool:
        poll = select.poll()
        poll.register(self._waker, select.POLLIN)
        if self._ear is not None:
            poll.register(self._ear.fileno(), select.POLLIN)
        woken = False
        for descriptor, _ in poll.poll(seconds * 1000):
            if descriptor == self._waker.fileno():
                self._waker.clear()
                woken = True
            else:
                self._hear()
        return woken

    # By being told.

    def _listen(self) -> None:
        """Begin to listen. What happened until then, nobody has told us."""
        if time.monotonic() < self._deaf_until:
            return
        try:
            self._ear = self._database.connect()
            self._ear.execute(f"LISTEN {channel(self._database.identity)}")
        except (StoreError, psycopg.Error):
            self._deafen()
            return
        self._has_changed = True
        self._back_off = _RECONNECT[0]
        if self._database.is_pooled:  # since we were started: it would hear nothing
            self._listens = False
            self._deafen()

    def _hear(self) -> None:
        if self._ear is None:
            return
        try:
            for _ in self._ear.notifies(timeout=0):
                self._has_changed = True
        except psycopg.Error:
            self._deafen()

    def _deafen(self) -> None:
        if self._ear is not None:
            self._ear.close()
            self._ear = None
        self._deaf_until = time.monotonic() + self._back_off
        self._back_off = min(_RECONNECT[1], 2 * self._back_off)
        self._has_changed = True  # the loop finds out by itself how the database is

    # By looking.

    def _look(self) -> None:
        if self._for_work:
            self._ended, seen = self._database.read_one(_LOOK_AT_WORK, [self._ended, self._seen])
        else:
            self._ended, seen = self._database.read_one(_LOOK_AT_ALL)
        if seen != self._seen:
            self._seen = seen
            self._has_changed = True
