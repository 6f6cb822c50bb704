"""The server's clock: in SQL, and as this process tracks it."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from holdfast.core.clock import SECOND, system_clock
from holdfast.errors import StoreError

NOW = "(extract(epoch FROM clock_timestamp()) * 1000000)::bigint"
PRESENT = f"coalesce($1::bigint, {NOW})"
"""The present instant: a parameter, or the server's own clock if that is null."""
CLOCK = f"clock AS MATERIALIZED (SELECT {PRESENT} AS now)"

_KEPT, _RETRY = 30 * SECOND, SECOND
_TICKS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
"""A monotonic clock that keeps counting while the machine is suspended."""


class ServerClock:
    """Estimates the server's current time; uses this machine's clock until the server has been asked."""

    def __init__(self, ask: Callable[[], int]) -> None:
        self._ask = ask
        self._offset = system_clock() - ticks()
        self._due = 0

    def now(self, *, may_ask: bool = True) -> int:
        """The current time in microseconds, based on the last reading of the server's clock."""
        before = ticks()
        if may_ask and before >= self._due:
            self._due = before + _RETRY  # without a server the last known has to do
            with suppress(StoreError):
                self.set(self._ask(), before)
        return ticks() + self._offset

    def set(self, now: int, before: int) -> None:
        """Update from the server's answer to a question asked at `before`, in ticks."""
        after = ticks()
        self._offset = now - (before + after) // 2
        self._due = after + _KEPT


def ticks() -> int:
    """Microseconds on a clock that nobody sets."""
    return time.clock_gettime_ns(_TICKS) // 1000
