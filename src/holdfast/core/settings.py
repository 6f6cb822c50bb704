"""Which value of a setting applies to a type: the order of precedence, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from msgspec import Struct

from holdfast.config import SETTINGS, Value
from holdfast.core.backoff import Backoff
from holdfast.core.job import names_of
from holdfast.core.lifecycle import Policy

BACKOFF = ("backoff_strategy", "backoff_base", "backoff_factor", "backoff_max", "backoff_jitter")

_MOST_CACHED = 10_000
"""Beyond so many types, what was looked up is forgotten."""

_MOST_OWNERS = 50_000
"""Likewise for whose settings a name has: more, as every lane that is named has an entry, and a small one."""


class Resolved(Struct, frozen=True):
    """A value and the name it was set for: a type, a lane, or "" for the whole queue."""

    value: Any
    source: str


class Limit(Struct, frozen=True):
    """A limit and whose it is: the types that have it from the same name share it."""

    name: str
    size: float


class Depth(Struct, frozen=True):
    """How many jobs may wait of all types that have this from the same name.

    `apart` are the names below it that have their own.
    """

    size: int
    name: str
    apart: tuple[str, ...] = ()

    def counts(self, type: str) -> bool:
        """Whether a type shares it."""
        for name in names_of(type):
            if name == self.name:
                return True
            if name in self.apart:
                return False
        return False


class Limits(Struct, frozen=True):
    """All that decides whether a job of a type may start, as far as settings say it.

    None stands for no limit. `slots` holds in each worker process, the others over all of them. `paused` are
    the names by whose pauses the type is held.
    """

    slots: Limit
    max_running: Limit | None
    rate: Limit | None
    group: Limit | None
    fair: bool
    paused: tuple[str, ...]

    @property
    def is_shared(self) -> bool:
        """Whether workers have to agree on who starts a job of it."""
        return self.max_running is not None or self.rate is not None or self.group is not None

    @property
    def may_be_held(self) -> bool:
        """Whether a worker may claim a job of it before it has a slot: that takes room from nobody else."""
        return self.max_running is None and self.rate is None


class Settings(Struct, eq=False):
    """All settings as they stand: what is stored, over what the code says, over the defaults; and the pauses.

    A value belongs to the name it was set for. For a lane these names are asked in turn: its own, that of its
    base type, and the whole queue; for each, first what is stored, then what the code says. (A job's own
    option comes before all.)
    """

    stored: Mapping[tuple[str, str], Value]
    declared: Callable[[str], Mapping[str, Value]] = lambda _: {}
    defaults: Mapping[str, Value] = {}
    paused: frozenset[str] = frozenset()
    version: int | None = None
    """Which change of the stored settings and pauses this is: after another, a claim by these is refused."""
    generation: int | None = None
    """Which change of the handlers the code's options are from."""
    _cache: dict[tuple[str, str], Resolved] = {}
    _limits: dict[str, Limits] = {}
    _limits_by_type: dict[str, Limits] = {}
    _owners: dict[str, str] = {}
    _named: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        self._named = frozenset(type for _, type in self.stored)

    def get(self, name: str, type: str = "") -> Any:
        return self.resolve(name, type).value

    def resolve(self, name: str, type: str = "") -> Resolved:
        return self._cache.get((name, type)) or self._resolve_of(name, self.owner(type))

    def _resolve_of(self, name: str, owner: str) -> Resolved:
        found = self._cache.get((name, owner))
        if found is None:
            found = self._cache[name, owner] = self._find(name, owner)
        return found

    def owner(self, type: str) -> str:
        """The name to ask for: the first of a type's names for which anything is set.

        So what is looked up grows with what is set, not with the types and lanes that ever were.
        """
        found = self._owners.get(type)
        if found is None:
            if len(self._owners) >= _MOST_OWNERS:
                self._owners.clear()
            found = next((name for name in names_of(type) if not name or self._has_own(name)), "")
            self._owners[type] = found
        return found

    def _has_own(self, name: str) -> bool:
        return name in self.paused or name in self._named or bool(self.declared(name))

    def _find(self, name: str, type: str) -> Resolved:
        for owner in names_of(type):
            if (name, owner) in self.stored:
                return Resolved(self.stored[name, owner], owner)
            declared = self.declared(owner) if owner else self.defaults
            if name in declared:
                return Resolved(declared[name], owner)
        return Resolved(SETTINGS[name].default, "")

    def limits(self, type: str) -> Limits:
        """What holds for a type, and with whom it shares it."""
        found = self._limits_by_type.get(type)
        if found is None:
            if len(self._limits_by_type) >= _MOST_OWNERS:
                self._limits_by_type.clear()
            found = self._limits_by_type[type] = self._limits_of(self.owner(type))
        return found

    def _limits_of(self, owner: str) -> Limits:
        found = self._limits.get(owner)
        if found is None:
            if len(self._limits) >= _MOST_CACHED:
                self._limits.clear()
                self._cache.clear()
            found = self._limits[owner] = Limits(
                slots=self._limit("concurrency", owner) or Limit("", 1),
                max_running=self._limit("max_running", owner),
                rate=self._limit("rate_limit", owner),
                group=self._limit("group_concurrency", owner),
                fair=bool(self.get("fair", owner)),
                paused=tuple(name for name in names_of(owner) if name in self.paused),
            )
        return found

    def _limit(self, name: str, type: str) -> Limit | None:
        found = self.resolve(name, type)
        return Limit(found.source, found.value) if found.value else None

    def depth(self, type: str, declaring: Callable[[str], Collection[str]]) -> Depth | None:
        """How many jobs may wait, if that is limited. `declaring` gives the names with an option."""
        found = self.resolve("max_depth", type)
        if found.value is None:
            return None
        own = {name for option, name in self.stored if option == "max_depth"} | {*declaring("max_depth")}
        apart = sorted(name for name in own if name != found.source and found.source in names_of(name))
        return Depth(found.value, found.source, tuple(apart))

    def backoff(self, type: str) -> Backoff:
        strategy, base, factor, maximum, jitter = (self.get(name, type) for name in BACKOFF)
        return Backoff(strategy=strategy, base=base, factor=factor, maximum=maximum, jitter=jitter)

    def as_said_by(self, code: Mapping[str, Mapping[str, Value]]) -> Settings:
        """These settings where other code declares what it says here, by name ("": for the whole queue)."""

        def declared(name: str) -> Mapping[str, Value]:
            return {**self.declared(name), **code.get(name, {})}

        return Settings(self.stored, declared, {**self.defaults, **code.get("", {})})

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
