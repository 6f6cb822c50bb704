"""Which value of a setting applies to a type: the order of precedence, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msgspec import Struct

from holdfast.config import SETTINGS, Value
from holdfast.core.backoff import Backoff
from holdfast.core.job import base_type
from holdfast.core.lifecycle import Policy


class Resolved(Struct, frozen=True):
    """A value and the level it was found at.

    `source` is the type, the base type of a lane, or "" for the whole queue: types that get a limit from the
    same source share it.
    """

    value: Any
    source: str


class Settings(Struct, eq=False):
    """All settings as they stand: what is stored, over what the code says, over the defaults.

    For a type the order is: stored for it, stored for the base type of a lane, the decorator's, stored for
    the whole queue, the queue's own defaults, the built-in default. (A job's own option comes before all.)
    """

    stored: Mapping[tuple[str, str], Value]
    declared: Callable[[str], Mapping[str, Value]] = lambda _: {}
    defaults: Mapping[str, Value] = {}
    _cache: dict[tuple[str, str], Resolved] = {}

    def get(self, name: str, type: str = "") -> Any:
        return self.resolve(name, type).value

    def resolve(self, name: str, type: str = "") -> Resolved:
        found = self._cache.get((name, type))
        if found is None:
            found = self._cache[name, type] = self._find(name, type)
        return found

    def _find(self, name: str, type: str) -> Resolved:
        stored = self.stored
        if type:
            base = base_type(type)
            if (name, type) in stored:
                return Resolved(stored[name, type], type)
            if (name, base) in stored:
                return Resolved(stored[name, base], base)
            declared = self.declared(type)
            if name in declared:
                return Resolved(declared[name], base)
        if (name, "") in stored:
            return Resolved(stored[name, ""], "")
        if name in self.defaults:
            return Resolved(self.defaults[name], "")
        return Resolved(SETTINGS[name].default, "")

    def backoff(self, type: str) -> Backoff:
        return Backoff(
            strategy=self.get("backoff_strategy", type),
            base=self.get("backoff_base", type),
            factor=self.get("backoff_factor", type),
            maximum=self.get("backoff_max", type),
            jitter=self.get("backoff_jitter", type),
        )

    @property
    def lease_seconds(self) -> float:
        return float(self.get("lease_seconds"))

    @property
    def vouched_seconds(self) -> float:
        """How long after a renewal a worker relies on its lease.

        A sixth less than it lasts, so that handlers have time to end before anybody else may begin.
        """
        return self.lease_seconds * 5 / 6

    @property
    def heartbeat_seconds(self) -> float:
        """At most a third of the lease, so that two heartbeats may be missed."""
        return min(float(self.get("heartbeat_interval")), self.lease_seconds / 3)

    @property
    def transaction_seconds(self) -> float:
        """At most a third of the lease: nobody can renew while the write lock is held."""
        return min(float(self.get("transaction_seconds")), self.lease_seconds / 3)

    def policy(self, type: str, max_attempts: int | None) -> Policy:
        """What decides about a failed attempt of a job whose own limit is `max_attempts`."""
        limit = self.get("max_attempts", type) if max_attempts is None else max_attempts
        return Policy(limit, self.backoff(type))
