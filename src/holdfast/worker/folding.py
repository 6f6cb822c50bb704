"""Folding: old statistics are added up, and names that nothing uses any more are forgotten.

Once a minute, in portions, each in a turn of its own. They take at most a tenth of the time, so that others
can write in between.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

from holdfast.core.clock import MINUTE
from holdfast.store.protocol import Store
from holdfast.store.records import HOUR
from holdfast.store.statistics import FIRST, Key

MINUTES_KEPT = HOUR
"""How long statistics are kept per minute and worker."""

HOURS_KEPT = 48 * HOUR
"""How many minutes they are kept per hour, before they are folded into the lifetime totals."""

_EVERY = 60.0
_WHOLE_EVERY = 3600.0
"""Seconds from one pass over the whole table to the next. The others begin where the last one ended."""


class Folder:
    """Goes through old statistics and unused names, a portion at a time."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pass: Iterator[None] | None = None
        self._folded_to: Key = FIRST
        self._next_whole = 0.0
        self.next_at = 0.0

    def is_due(self) -> bool:
        return time.monotonic() >= self.next_at

    @property
    def goes_on(self) -> bool:
        """Whether a pass has to be continued, or the first one started."""
        return self._pass is not None or self.next_at == 0.0

    def fold(self) -> None:
        """Do the next portion."""
        began = time.monotonic()
        self.next_at = began + _EVERY  # also if it fails: turns must not fail for this alone
        self._pass = self._pass or self._portions()
        for _ in self._pass:
            now = time.monotonic()
            self.next_at = now + min(1.0, 10 * (now - began))
            return
        self._pass = None

    def forget(self) -> None:
        """The last portion may not have been committed: the next pass goes through everything."""
        self._pass = None
        self._next_whole = 0.0

    def _portions(self) -> Iterator[None]:
        """One pass. Stops where there is more to do than one transaction should."""
        now = time.monotonic()
        is_whole = now >= self._next_whole
        if is_whole:
            self._next_whole = now + _WHOLE_EVERY
        while self._store.forget_names():
            yield
        yield from self._fold_statistics(FIRST if is_whole else self._folded_to)
        if is_whole:
            yield from self._forget_statistics()

    def _fold_statistics(self, begin: Key) -> Iterator[None]:
        minute = self._store.now() // MINUTE
        ages = {"hours_before": minute - MINUTES_KEPT, "lifetime_before": minute - HOURS_KEPT}
        following = self._store.fold_statistics(**ages, begin=begin)
        while following is not None:
            yield
            following = self._store.fold_statistics(**ages, begin=following)
        self._folded_to = (ages["hours_before"], "", "")

    def _forget_statistics(self) -> Iterator[None]:
        after = self._store.forget_statistics()
        while after is not None:
            yield
            after = self._store.forget_statistics(after)
