"""Searching for work without writing: what the last search has found, and when the next one is due."""

from __future__ import annotations

import math
import time

from holdfast.core.settings import Settings
from holdfast.core.starting import Lines
from holdfast.store.records import Claimed
from holdfast.worker.claiming import Claiming

_TRUSTED = 1000
"""While nobody tells of a change, lines are read again after this many times as long as that took."""


class WorkSearch:
    """The dispatcher's own: nothing here is for other threads, except `hurry`."""

    def __init__(self, claiming: Claiming) -> None:
        self._claiming = claiming
        self.lines: Lines | None = None
        """Where the types' lines begin, while there is as much in them as can be taken."""
        self.is_due = True
        """Whether something may have changed since the last search."""
        self._is_outdated = True
        """Whether jobs may have come since the lines were read."""
        self._trusted_until = 0.0
        """Until when a poll does not doubt that."""
        self.next_at = math.inf
        """When a limit lets something start that nobody else tells us of."""

    def hurry(self) -> None:
        """Something may have changed."""
        self.is_due = self._is_outdated = True

    def look(self, now: float, *, is_certain: bool) -> None:
        """Something has changed for certain, or nobody has told of it but time has passed."""
        self.is_due = True
        self._is_outdated = self._is_outdated or is_certain or now >= self._trusted_until

    def finds_work(self, settings: Settings, now: float, *, writes: bool) -> bool:
        """Search, if that is due. Returns whether there is anything that this worker could claim now.

        A turn that `writes` what has ended finds that out by itself, and has less to read for it.
        """
        if now >= self.next_at:
            self.next_at = math.inf
            self.hurry()
        if not self.is_due:
            return False
        self.is_due = False
        if self.lines is None or self.lines.settings is not settings or self._must_read(self.lines, now):
            self.lines = self._read(settings)
        elif self._is_outdated:  # what has come since is searched for once that is worth it
            self.next_at = min(self.next_at, self.lines.fresh_until)
        if writes:
            return False
        asked = self._claiming.ask(self.lines, 1, self._claiming.usage(self.lines))
        self._come_back(asked.wait)
        return bool(asked.demands)

    def _read(self, settings: Settings) -> Lines:
        self._is_outdated = False
        began = time.monotonic()
        lines = self._claiming.read_lines(settings)
        read = time.monotonic()
        self._trusted_until = read + _TRUSTED * (read - began)
        return lines

    def skip(self) -> None:
        """Nothing may be claimed now; when that ends, `hurry` says so."""
        self.is_due, self.next_at = False, math.inf

    def note(self, claimed: Claimed, lines: Lines | None, batch_size: int | None) -> None:
        """Go on from what a claim has found and left."""
        self.lines = None if claimed.is_stale else lines
        if self.lines is not None and self._must_read(self.lines, time.monotonic()):
            self.lines = None
        # A batch that came back full may have left more that could start.
        self.is_due = self.is_due or claimed.is_stale or len(claimed.claims) == batch_size
        self._come_back(claimed.wait)

    def _must_read(self, lines: Lines, now: float) -> bool:
        return self._is_outdated and (not lines or now >= lines.fresh_until)

    def _come_back(self, wait: float | None) -> None:
        if wait is not None:
            self.next_at = min(self.next_at, time.monotonic() + wait)
