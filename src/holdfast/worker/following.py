"""What a worker goes by: its own options, and the settings as it last read them."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING

from msgspec import Struct

if TYPE_CHECKING:
    from holdfast.queue import Queue

SETTINGS_PAUSE = 0.25
"""Seconds between two reads of the settings."""

MAX_CLAIM = 10_000
"""As many slots as a worker may have."""


class Options(Struct, frozen=True, kw_only=True):
    """A worker's options: see Worker."""

    concurrency: int | None = None
    types: Collection[str] | None = None
    batch_size: int | None = None
    recycle: bool = False
    drain: bool = False


class Following:
    """Follows the settings. Read by any thread, refreshed by the dispatcher's."""

    def __init__(self, queue: Queue, options: Options) -> None:
        self._queue = queue
        self._options = options
        self._read_at = 0.0
        self.settings = queue.refresh_settings()
        self.concurrency = self._concurrency()
        self._may_have_changed = True

    @property
    def claim_limit(self) -> int:
        """How many jobs one claim may take."""
        return self._options.batch_size or MAX_CLAIM

    def slots(self, type: str) -> tuple[str, int]:
        """How many jobs of a type may run in this process, and whose limit that is."""
        limit = self.settings.limits(type).slots
        return (limit.name, int(limit.size)) if limit.name else ("", self.concurrency)

    def prefetch(self, type: str) -> tuple[str, int | None]:
        """How many jobs of a type may be held ready, and whose limit that is."""
        found = self.settings.resolve("prefetch", type)
        return found.source, found.value

    def moments(self) -> Iterator[float]:
        """When they are due to be read again."""
        if self._may_have_changed:
            yield self._read_at + SETTINGS_PAUSE

    def expect_change(self) -> None:
        """They may have changed: read them when SETTINGS_PAUSE has passed since the last read."""
        self._may_have_changed = True

    def hurry(self) -> None:
        """They have changed for sure: read them at the next opportunity."""
        self._may_have_changed, self._read_at = True, 0.0

    def refresh(self, now: float) -> bool:
        """Read them, if that is due. Returns whether they have changed."""
        if not self._may_have_changed or now < self._read_at + SETTINGS_PAUSE:
            return False
        self._may_have_changed, self._read_at = False, now
        before, self.settings = self.settings, self._queue.refresh_settings()
        self.concurrency = self._concurrency()
        return self.settings is not before

    def _concurrency(self) -> int:
        return self._options.concurrency or int(self.settings.get("concurrency"))
