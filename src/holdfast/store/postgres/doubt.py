"""Connections that were lost while they committed: when it is certain what has become of that on the server.

The server goes on with what it has been sent, and finds out that nobody is there only when it has an answer.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from holdfast.errors import StoreBusy
from holdfast.store.database import PATIENCE
from holdfast.store.postgres.server_clock import ticks

_MOST = 100
"""Of which we keep account: what nobody has asked for in a long time has ended long ago."""
_LOOK_AGAIN = 0.005, 0.1

_LOOK_ANEW = "SELECT pg_stat_clear_snapshot()"
"""Within a transaction, the server shows the processes as they were when it was first asked."""
# A process that began later only has the same number.
_END = """
SELECT count(pg_terminate_backend(a.pid)) FROM unnest($1::integer[], $2::bigint[]) AS lost (pid, since)
JOIN pg_stat_activity AS a ON a.pid = lost.pid
WHERE a.datname = current_database() AND a.usename = session_user
    AND a.backend_start < clock_timestamp() - lost.since * interval '1 microsecond'
"""


class Doubt:
    """The server processes that may still commit what we don't know of."""

    def __init__(self) -> None:
        self._lost: deque[tuple[int, int]] = deque(maxlen=_MOST)

    def add(self, process: int) -> None:
        self._lost.append((process, ticks()))

    def end(self, read: Callable[[str, Sequence[Any]], list[Any]]) -> None:
        """End them: what they have not committed then never is. Raises StoreBusy if one goes on."""
        deadline = time.monotonic() + PATIENCE
        pause, longest = _LOOK_AGAIN
        lost = list(self._lost)
        while lost:
            now = ticks()
            [(count,)] = read(_END, [[process for process, _ in lost], [now - at for _, at in lost]])
            if not count:
                break
            if time.monotonic() > deadline:
                raise StoreBusy(PATIENCE)
            time.sleep(pause)
            read(_LOOK_ANEW, [])
            pause = min(2 * pause, longest)
        for each in lost:
            self._lost.remove(each)
