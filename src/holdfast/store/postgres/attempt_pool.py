"""The sessions of ctx.transaction(): lent to one handler at a time, and reset in between.

Behind a pooler nothing is kept in a session, and no session is kept: that is what the pooler is for.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

import psycopg
from psycopg.pq.abc import PGresult

from holdfast.errors import QueueClosed, StoreUnavailable
from holdfast.store.postgres.connection import Connection, exchange, has_failed, roll_back, set_own
from holdfast.store.postgres.finish import COMPLETE_OR_FAIL, is_held
from holdfast.store.postgres.pool import Pool

if TYPE_CHECKING:
    from holdfast.store.postgres.database import Database

_FIRST_PAUSE = 0.05
_LONGEST_PAUSE = 1.0
_REFUSED = 0.25
"""Seconds after which the server is asked again for a connection that it had none of."""


class Prepared(NamedTuple):
    """A statement that each session has prepared, with its parameters and their types."""

    name: str
    types: Mapping[str, str]
    sql: str

    def preparation(self, text: Callable[[str], str]) -> str:
        numbers = {name: f"${number}" for number, name in enumerate(self.types, 1)}
        types = f"({', '.join(self.types.values())})" if self.types else ""
        return f"PREPARE {self.name}{types} AS {text(self.sql).format(**numbers)}"

    def execution(self, values: Mapping[str, str]) -> str:
        return f"EXECUTE {self.name} ({', '.join(values[name] for name in self.types)})"


_GUARD = {"seq": "bigint", "version": "bigint", "worker_id": "text"}

HOLD = Prepared(
    "holdfast_hold",
    _GUARD,
    f"SELECT 1 FROM holdfast_jobs AS j WHERE seq = {{seq}} AND {is_held('j', '{version}', '{worker_id}')}"
    " FOR UPDATE",
)
COMPLETE = Prepared("holdfast_complete", {**_GUARD, "now": "bigint", "result": "text"}, COMPLETE_OR_FAIL)
PROBE = Prepared("holdfast_probe", {}, "SELECT")
"""Fails where what we had prepared is gone. It changes nothing."""
_END_RESET = Prepared(
    "holdfast_end_reset",
    {"synchronous_commit": "text"},
    "SELECT (SELECT count(*) FROM pg_prepared_statements WHERE name NOT LIKE 'holdfast\\_%'),"
    f" pg_advisory_unlock_all(), {set_own('{synchronous_commit}')}",
)
"""Says how many statements of the handler's are left, and gives the session what RESET ALL has taken."""

# Together what DISCARD ALL does, but for DISCARD PLANS. Plans are seen by nobody, and without those that our
# triggers keep a completion would cost the server a third more.
_CLEAR = """
CLOSE ALL; SET SESSION AUTHORIZATION DEFAULT; RESET ALL; UNLISTEN *; DISCARD TEMP; DISCARD SEQUENCES
"""


def is_reset(results: list[PGresult]) -> bool:
    """Whether a message that ended with a reset has left nothing of the handler's in the session."""
    last = results[-1]
    return not has_failed(last) and last.nfields == 3 and last.get_value(0, 0) == b"0"


class AttemptPool(Pool):
    """A pool whose callers wait for a session, whatever the reason that none is available."""

    def __init__(self, database: Database, size: int) -> None:
        super().__init__(self._ask_for, size, after_fork=lambda: None)
        self._database = database
        self._refused_until = 0.0
        self._is_owed = False
        """Whether to close the next session that is returned."""

    def take_patiently(self, check_wait: Callable[[], None]) -> Connection:
        """Wait for a session until there is one, or `check_wait` raises."""
        pause = _FIRST_PAUSE
        while True:
            try:
                return self.take(patience=pause)
            except QueueClosed:
                raise
            except StoreUnavailable:
                check_wait()
            self.wait_for_change(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _ask_for(self) -> Connection:
        if time.monotonic() < self._refused_until:  # many wait, and one of them asks
            raise StoreUnavailable("the server had no free connection")
        try:
            connection = self._database.connect()
            connection.prepare_threshold = None
            if not self._database.is_pooled and not self.make_ready(connection):
                connection.close()
                raise StoreUnavailable("the connection was lost immediately")
        except StoreUnavailable:
            self._refused_until = time.monotonic() + _REFUSED
            raise
        self.know(connection)
        return connection

    def make_room(self) -> bool:
        """Let the server have a connection back, at once or when a block ends; False if we have none."""
        with self._changed:
            self._refused_until = time.monotonic() + _REFUSED
            spare = self._idle.pop(0)[0] if self._idle else None
            self._is_owed = spare is None and self._taken > 0
            has_any = self._is_owed or spare is not None
        if spare is not None:
            spare.close()
        return has_any

    def give(self, connection: Connection) -> None:
        if self._is_owed:
            self._is_owed = False
            connection.close()
        super().give(connection)

    @property
    def reset(self) -> str:
        """What takes a session from its handler, as statements of one message."""
        return f"{_CLEAR}; {self._end_of_reset}"

    @property
    def _end_of_reset(self) -> str:
        return _END_RESET.execution({"synchronous_commit": f"'{self._database.server.synchronous_commit}'"})

    def make_ready(self, connection: Connection) -> bool:
        """Bring a session, in whatever state, to where the next handler may have it; False if it can't be."""
        prepared = [each.preparation(self._database.text) for each in (HOLD, PROBE, COMPLETE, _END_RESET)]
        message = ";".join([_CLEAR, "DEALLOCATE ALL", *prepared, self._end_of_reset])
        roll_back(connection)
        try:
            with connection.lock:
                return is_reset(exchange(connection, message))
        except psycopg.Error:
            return False
