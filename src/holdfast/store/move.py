"""Moving a queue to another database: the steps that leave exactly one live queue.

1. `Move.start`: the target is closed to all, so that nobody begins a queue there meanwhile. The source
   starts no more jobs and takes no new ones; running ones end.
2. `Move.freeze`: when none runs any more, nothing can be written there.
3. `Move.copy`: everything goes to the target in one transaction, and is compared.
4. `Move.switch`: one guarded statement turns the source into a queue that has moved away. Only then is the
   target opened.

Whatever the source refuses, it refuses until an instant that the mover keeps pushing ahead. So a mover that
is killed leaves a queue that works again by itself, where it was, and one that was suspended for too long
finds the guard of step 4 closed. Killed after step 4, the same move run again does what is left.
"""

from __future__ import annotations

import secrets
import threading
from contextlib import suppress

from holdfast.core.clock import system_clock
from holdfast.errors import ConfigError, MoveFailed, StoreBusy, StoreError
from holdfast.store.moved import MOVED, TARGET
from holdfast.store.open import needing_psycopg, open_store
from holdfast.store.tables import COUNTS, JOBS, REPLACED, TABLES
from holdfast.store.transfer import Copied, End, Tell, copy_rows

GUARDED_SECONDS = 30.0
"""How long the source stays closed after the mover was last heard of."""

_TRIES = 5


def open_end(url: str, *, create: bool = True) -> End:
    """The database at an address, also where it is closed to others by a move."""
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from holdfast.store.sqlite.open import open_store as open_sqlite
        from holdfast.store.sqlite.transfer import SqliteEnd

        return SqliteEnd(open_sqlite(url, system_clock, create=create, for_move=True))
    if scheme in ("postgresql", "postgres"):
        with needing_psycopg():
            from holdfast.store.postgres.open import open_store as open_postgres
            from holdfast.store.postgres.transfer import PostgresEnd
        return PostgresEnd(open_postgres(url, system_clock, create=create, for_move=True))
    open_store(url, system_clock).close()  # says what is wrong with the address, if that is it
    raise ConfigError(f"a queue can't be moved from or to a third-party engine such as {scheme}")


class Move:
    """One move from a database to another. Closing it gives up what was not switched."""

    def __init__(self, source: End, target: End) -> None:
        self.source = source
        self.target = target
        self.token = secrets.token_hex(16)
        self._started = self._arrived = False
        self._ended = threading.Event()
        self._lost = False
        self._keeper = threading.Thread(target=self._keep, name="holdfast-move", daemon=True)

    def finish_earlier(self) -> bool:
        """Do what is left of a move that was killed after its decisive step; False if there is none."""
        mark = self.source.read_mark()
        if mark is None or mark.state != MOVED:
            return False
        arrived = self.target.read_mark()
        if arrived is None or arrived.token != mark.token:
            mark.refuse()
        self.target.end_arrival(mark.token)
        return True

    def start(self) -> None:
        """Refuse what can't be moved there; then close the source to producers and pause it."""
        if self.source.origin == self.target.origin:
            raise ConfigError(
                f"the queue is already in {self.source.address}", hint="choose another database"
            )
        mark = self.source.read_mark()
        if mark is not None:
            mark.refuse()
            if not mark.expired:
                raise MoveFailed(f"another process is moving the queue to {mark.other}")
            self.source.reopen(None)
        self._check_target()
        with self.target.receiving():
            self._check_target()
            self._clear_target()
            self.target.mark_arriving(self.source, self.token)
        self._arrived = True
        self.source.close_to_producers(self.target.address, self.token, GUARDED_SECONDS)
        self._started = True
        self._keeper.start()

    def _check_target(self) -> None:
        """Refuse a target that is not empty. What an earlier try has left of this same queue is nothing."""
        mark = self.target.read_mark()
        if mark is not None:
            if mark.role == TARGET and mark.origin == self.source.origin:
                return
            if mark.state == MOVED:
                raise MoveFailed(
                    f"{self.target.address} still has the jobs of a queue that was moved away",
                    hint="choose a new file or another schema",
                )
            mark.refuse()
            raise MoveFailed(f"{self.target.address} is itself being moved to {mark.other}")
        for table in TABLES:
            if table not in REPLACED and self.target.has(table) and self.target.count_rows(table):
                what = "jobs" if table in (JOBS, COUNTS) else table.name.removeprefix("holdfast_")
                raise MoveFailed(
                    f"{self.target.address} is not empty: it has or had {what} of its own",
                    hint="choose a new file or another schema",
                )

    def _clear_target(self) -> None:
        if self.target.read_mark() is not None:
            self.target.remove_mark(self.target.receiver)
            self.target.clear(TABLES)
        self.target.clear(REPLACED)

    def count_running(self) -> int:
        self._check_guard()
        return self.source.count_running()

    def freeze(self) -> bool:
        """Close the source to all writers; False if an attempt has not ended yet."""
        self._check_guard()
        return self.source.close_to_all(self.token)

    def copy(self, tell: Tell = lambda _done, _total: None) -> list[Copied]:
        """Copy and compare everything; what has arrived is closed until the switch."""
        with self.source.reading(), self.target.receiving():
            mark = self.target.read_mark()
            if mark is None or mark.token != self.token:
                raise MoveFailed(f"another process has started to use {self.target.address}")
            self._clear_target()
            copied = copy_rows(self.source, self.target, tell, self._check_guard)
            self.target.mark_arriving(self.source, self.token)
            self._check_guard()
        return copied

    def switch(self) -> None:
        """The decisive step, and the target's opening after it."""
        try:
            moved = self.source.mark_moved(self.target.address, self.token)
        except StoreError:
            if not self._is_moved():
                raise
            moved = True
        if not moved:
            self._lost = True
            self._check_guard()
        self._end()
        self._started = self._arrived = False  # from here on there is nothing to be undone
        self._open_target()

    def _open_target(self) -> None:
        for last in range(_TRIES):
            try:
                self.target.end_arrival(self.token)
                return
            except StoreError as error:
                if isinstance(error, StoreBusy) and last < _TRIES - 1:
                    continue  # those who wait there already keep looking
                raise MoveFailed(
                    f"the queue has moved, but {self.target.address} could not be opened: {error}",
                    hint="run the same command again to finish",
                ) from error

    def _is_moved(self) -> bool:
        mark = self.source.read_mark()
        return mark is not None and (mark.token, mark.state) == (self.token, MOVED)

    def close(self) -> None:
        """Undo what was not switched."""
        self._end()
        if self._started:
            self._started = False
            with suppress(StoreError):  # else the source opens by itself
                self.source.reopen(self.token)
        if self._arrived:
            self._arrived = False
            # Unless the source says that it has not moved, nobody can know which of the two is the queue.
            with suppress(StoreError):
                if not self._is_moved():
                    self.target.end_arrival(self.token, keep=False)

    def _end(self) -> None:
        self._ended.set()
        if self._keeper.is_alive():
            self._keeper.join()

    def _check_guard(self) -> None:
        if self._lost:
            raise MoveFailed(
                f"{self.source.address} was not updated in time and has opened again", hint="move it again"
            )

    def _keep(self) -> None:
        """Push the instant ahead until which the source is closed."""
        while not self._ended.wait(GUARDED_SECONDS / 6):
            with suppress(StoreError):  # there is time for more tries
                if not self.source.renew(self.token, GUARDED_SECONDS):
                    self._lost = True
                    return
        self.source.store.close_thread()
