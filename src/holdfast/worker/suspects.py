"""Jobs that have lost two workers in a row run alone, so that they take no neighbour with them.

A worker with nothing else to run takes one. A busy worker makes room for it now and then: it claims nothing
for a few seconds, until its running and held jobs have ended.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from holdfast.context import Attempt
from holdfast.core.settings import Settings
from holdfast.store.protocol import Store
from holdfast.store.records import Claimed
from holdfast.worker.claiming import Asked, Claiming

LOOK_PAUSE = 1.0
"""Seconds between two looks for such jobs."""

MAKING_ROOM = 5.0
"""Seconds for which a busy worker claims nothing else."""

ROOM_PAUSE = 60.0
"""Seconds until it tries again, if that was not enough."""

OTHERS_SHARE = 4
"""For how many times as long as one has kept others waiting these run before room is made for the next."""


class Suspects:
    """Which such jobs there are, and the one that runs here. Used only by the dispatcher's thread."""

    def __init__(self, store: Store, claiming: Claiming) -> None:
        self._store = store
        self._claiming = claiming
        self._slots = claiming.slots
        self._types: set[str] = set()
        self._look_at = 0.0
        self._next_try = 0.0
        self._room_until = -math.inf
        self._began = -math.inf
        """When the worker began to make room, or took one without that."""
        self._running: Attempt | None = None

    def refresh(self, now: float, settings: Settings) -> None:
        """Read which types have one that could run here; at most once per LOOK_PAUSE."""
        if now >= self._look_at:
            self._look_at = now + LOOK_PAUSE
            found = self._store.list_suspect_types()
            self._types = {t for t in found if self._claiming.served(t) and not settings.limits(t).paused}

    def keep_room(self, now: float) -> bool:
        """Whether nothing else may be claimed: one runs here, or we are trying to become idle for one."""
        if self._running is not None:
            in_hand = (*self._slots.running(), *self._slots.held())
            if not self._running.written_off and any(each is self._running for each in in_hand):
                return True
            self._running = None
            self._room_until = -math.inf
            self._next_try = now + OTHERS_SHARE * (now - self._began)
        if not self._types:
            return False
        if now >= self._next_try:
            self._began = now
            self._room_until = now + MAKING_ROOM
            self._next_try = self._room_until + ROOM_PAUSE
        return now < self._room_until

    def may_claim(self) -> bool:
        """Whether there is one to claim, and nothing here that a crash would take with it."""
        return bool(self._types) and self._slots.is_idle()

    def claim(self, worker_id: str, settings: Settings) -> tuple[Asked, Claimed]:
        """Claim one, if one may start."""
        asked = self._claiming.ask_for_one(self._types, settings)
        claimed = self._store.claim_jobs(
            worker_id,
            asked.demands,
            settings,
            limit=1,
            lease_seconds=settings.lease_seconds,
            alone=True,
        )
        if not claimed.is_alone:
            self._types = set()
        return asked, claimed

    def runs(self, attempt: Attempt) -> None:
        """This one was claimed: it has the worker to itself."""
        self._running = attempt
        if attempt.claimed >= self._room_until:
            self._began = attempt.claimed

    def moments(self, now: float) -> Iterator[float]:
        """When `keep_room` changes by itself."""
        if self._types:
            yield from (moment for moment in (self._room_until, self._next_try) if moment > now)
