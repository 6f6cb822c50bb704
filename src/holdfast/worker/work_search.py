"""Searching for work without writing: what the last search has found, and when the next one is due."""

from __future__ import annotations

import math
import time

from holdfast.core.settings import Settings
from holdfast.core.starting import Lines
from holdfast.store.records import Claimed
from holdfast.worker.claiming import Claiming


class WorkSearch:
    """The dispatcher's own: nothing here is for other threads, except `hurry`."""

    def __init__(self, claiming: Claiming) -> None:
        self._claiming = claiming
        self.lines: Lines | None = None
        """Where the types' lines begin, while there is as much in them as can be taken."""
        self.is_due = True
        """Whether something may have changed since the last search."""
        self.next_at = math.inf
        """When a limit lets something start that nobody else tells us of."""

    def hurry(self) -> None:
        """Something may have changed."""
        self.is_due = True

    def finds_work(self, settings: Settings, now: float) -> bool:
        """Search, if that is due. Returns whether there is anything that this worker could claim now."""
        if now >= self.next_at:
            self.next_at = math.inf
            self.is_due = True
        if not self.is_due:
            return False
        self.is_due = False
        if not self.lines or now >= self.lines.fresh_until or self.lines.settings is not settings:
            self.lines = self._claiming.read_lines(settings)
        else:  # what has come since is searched for once that is worth it
            self.next_at = min(self.next_at, self.lines.fresh_until)
        asked = self._claiming.ask(self.lines, 1, self._claiming.usage(self.lines))
        self._come_back(asked.wait)
        return bool(asked.demands)

    def skip(self) -> None:
        """Nothing may be claimed now."""
        self.is_due = False

    def note(self, claimed: Claimed, lines: Lines | None, batch_size: int | None) -> None:
        """Go on from what a claim has found and left."""
        self.lines = None if claimed.is_stale else lines
        if self.lines and time.monotonic() >= self.lines.fresh_until:
            self.lines = None
        # A batch that came back full may have left more that could start.
        self.is_due = self.is_due or claimed.is_stale or len(claimed.claims) == batch_size
        self._come_back(claimed.wait)

    def _come_back(self, wait: float | None) -> None:
        if wait is not None:
            self.next_at = min(self.next_at, time.monotonic() + wait)
