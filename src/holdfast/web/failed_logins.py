"""Delays the responses to wrong tokens: the more mistakes, the longer the delay.

The right token is never delayed, whatever its address, so guessing can't lock the owner out.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable

from msgspec import Struct

from holdfast.web.errors import too_many
from holdfast.web.limits import most_connections

LONGEST_SECONDS = 2.0
_FIRST_SECONDS = 0.1
_FREE = 5
"""Free mistakes per address: people mistype."""

_FREE_IN_ALL = 100
"""The same for all addresses together: a guesser may have many."""

_HALF_LIFE = 60.0
"""Half-life of a mistake, in seconds."""

_ADDRESSES_REMEMBERED = 10_000


class _Mistakes(Struct):
    count: float = 0.0
    at: float = 0.0

    def add(self, now: float) -> float:
        """How many there were recently, including this one."""
        self.count = self.count * 0.5 ** ((now - self.at) / _HALF_LIFE) + 1
        self.at = now
        return self.count


class FailedLogins:
    """Recent mistakes, by address and in total. Kept in this process only."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._in_all = _Mistakes()
        self._of: OrderedDict[bytes, _Mistakes] = OrderedDict()
        self._waiting = 0

    async def slow_down(self, address: bytes) -> None:
        """Wait before a wrong token is answered. Where too many wait already, it is refused at once."""
        seconds = self.count(address)
        if not seconds:
            return
        if self._waiting >= most_connections() // 4:
            raise too_many("too many wrong tokens", LONGEST_SECONDS)
        self._waiting += 1
        try:
            await asyncio.sleep(seconds)
        finally:
            self._waiting -= 1

    def count(self, address: bytes) -> float:
        """Count a mistake, and return how many seconds to delay the response."""
        now = self._clock()
        own = self._of.setdefault(address, _Mistakes())
        self._of.move_to_end(address)
        if len(self._of) > _ADDRESSES_REMEMBERED:
            self._of.popitem(last=False)
        excess = max(own.add(now) - _FREE, self._in_all.add(now) - _FREE_IN_ALL)
        return min(LONGEST_SECONDS, _FIRST_SECONDS * 2.0 ** min(excess, 10.0)) if excess > 0 else 0.0
