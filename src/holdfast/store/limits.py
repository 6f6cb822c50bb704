"""The limits that workers share, as seen during a claim: tokens left, and running jobs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from holdfast.core.rate_limit import Bucket, full
from holdfast.store.database import Session
from holdfast.store.records import Demand


class Limits:
    """What the demands of a claim may still take. `buckets` are the stored ones, by their names, and
    `running` the jobs that run, by their types."""

    def __init__(
        self, demands: Sequence[Demand], buckets: Mapping[str, Bucket], running: Mapping[str, int], now: int
    ) -> None:
        self.changed: set[str] = set()
        """The buckets to store."""
        self.held_back: set[str] = set()
        """The types whose jobs a limit kept from starting."""
        self._short: set[str] = set()
        self.buckets = {
            d.rate_name: self._refilled(d, buckets.get(d.rate_name), now) for d in demands if d.rate
        }
        self._rates = {d.rate_name: d.rate for d in demands if d.rate}
        self._may_run = {
            d.running_name: d.max_running
            - sum(count for type, count in running.items() if type in d.running_types)
            for d in demands
            if d.max_running
        }

    def _refilled(self, demand: Demand, stored: Bucket | None, now: int) -> Bucket:
        if stored is None:
            return full(demand.rate, now)
        if stored.at > now:  # the clock stepped back: from now on count from here
            self.changed.add(demand.rate_name)
        return stored.refill(demand.rate, now)

    def room(self, demand: Demand) -> int:
        room = demand.limit
        if demand.rate:
            available = self.buckets[demand.rate_name].available()
            if available < room:
                self._short.add(demand.rate_name)
            room = min(room, available)
        if demand.max_running:
            room = min(room, max(0, self._may_run[demand.running_name]))
        if room < min(demand.limit, demand.pending):
            self.held_back.add(demand.type)
        return room

    def take(self, demand: Demand) -> bool:
        bucket = self.buckets[demand.rate_name] if demand.rate else None
        if bucket is not None and not bucket.available():
            self._short.add(demand.rate_name)
            self.held_back.add(demand.type)
            return False
        if demand.max_running:
            if self._may_run[demand.running_name] <= 0:
                self.held_back.add(demand.type)
                return False
            self._may_run[demand.running_name] -= 1
        if bucket is not None:
            self.buckets[demand.rate_name] = bucket.take(1)
            self.changed.add(demand.rate_name)
        return True

    def held_back_unpaused(self, session: Session) -> frozenset[str]:
        """The types that were held back and are not paused: what is, no limit holds back."""
        if not self.held_back:
            return frozenset()
        paused = {row[0] for row in session.rows("SELECT type FROM holdfast_pauses")}
        return frozenset() if "" in paused else frozenset(self.held_back - paused)

    def wait(self) -> float | None:
        """Seconds until the first limit that held something back lets one through."""
        waits = [self.buckets[name].seconds_until_next(self._rates[name]) for name in self._short]
        return min(waits, default=None)
