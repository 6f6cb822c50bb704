"""What to claim: which types a worker serves, how many jobs of each, and under which limits."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.context import Attempt
from holdfast.core.job import base_type
from holdfast.core.settings import BACKOFF, Settings
from holdfast.core.starting import Lines, Room, Usage
from holdfast.handlers.handler import Handler
from holdfast.store.open import store_of
from holdfast.store.records import Claim, Demand, TypeRecord, WorkerRecord
from holdfast.worker.slots import Slots

if TYPE_CHECKING:
    from holdfast.queue import Queue


LIMITED_PAUSE = 0.1
"""Seconds after which a worker looks again whether max_running or a group lets it start more."""

LOOK_SHARE = 20
"""What a look has found is good for this many times as long as it took."""

NOTHING_RUNS = Usage()


class Asked(NamedTuple):
    """What a worker asks for, and the handlers that will run it: a type may lose its own meanwhile.

    And what it does not ask for, as limits keep it, with when to look at that again.
    """

    demands: list[Demand]
    handlers: Mapping[str, Handler] = {}
    limited: frozenset[str] = frozenset()
    wait: float | None = None


class Claiming:
    """Builds a worker's demands, and attempts from its claims."""

    def __init__(self, queue: Queue, slots: Slots, types: Collection[str] | None) -> None:
        self._queue = queue
        self._store = store_of(queue)
        self._registry = queue.registry
        self.slots = slots
        self._types = types
        self.looked_for = 0.0
        """How many seconds the last look took."""

    def served(self, type: str) -> Handler | None:
        """The handler that runs a type here, if this worker serves it."""
        if self._types is not None and type not in self._types and base_type(type) not in self._types:
            return None
        return self._registry.find(type)

    def read_lines(self, settings: Settings) -> Lines:
        """The lines of the types that this worker serves."""
        began = time.monotonic()
        heads = [head for head in self._store.list_heads(settings.paused) if self.served(head.type)]
        lines = Lines(heads, settings)
        looked = time.monotonic()
        self.looked_for = looked - began
        lines.fresh_until = looked + LOOK_SHARE * self.looked_for
        return lines

    def ask(self, lines: Lines, limit: int, usage: Usage = NOTHING_RUNS) -> Asked:
        """What to ask for, for up to `limit` jobs of the types whose jobs come first.

        What may start beside what runs elsewhere, the claim decides; by the usage given it need not be asked.
        """
        settings = lines.settings
        free = self._free(settings)
        room = Room(settings, usage, self._store.now())
        types = lines.first(limit, room, free)
        handlers = self._handlers_of(types, settings)
        if handlers is None:
            return Asked([])
        demands = [_demand(type, free(type), settings) for type in handlers]
        wait = self.until_next(room.wait(), room.limited, settings)
        return Asked(demands, handlers, frozenset(room.limited), wait)

    def ask_for_one(self, types: Collection[str], settings: Settings) -> Asked:
        """What to ask for, for one job that has to run alone."""
        free = [type for type in sorted(types) if self.slots.has_free(type)]
        handlers = self._handlers_of(free, settings) or {}
        return Asked([_demand(type, 1, settings) for type in handlers], handlers)

    def _handlers_of(self, types: Collection[str], settings: Settings) -> dict[str, Handler] | None:
        """The handlers of the types that this worker serves; None if the settings, which are then read again,
        lack the options of the handlers just found."""
        served = {type: self.served(type) for type in types}
        if settings.generation is not None and settings.generation != self._registry.generation:
            return None
        return {type: handler for type, handler in served.items() if handler is not None}

    def until_next(self, wait: float | None, limited: Collection[str], settings: Settings) -> float | None:
        """In how many seconds to look again for jobs that limits keep, where the first rate limit lets one
        start after `wait`. Of jobs that end in other processes nobody is told, where they share a server."""
        if not self._store.is_shared:
            return wait
        limits = [settings.limits(type) for type in limited]
        if not any(each.max_running is not None or each.group is not None for each in limits):
            return wait
        return LIMITED_PAUSE if wait is None else min(wait, LIMITED_PAUSE)

    def usage(self, lines: Lines) -> Usage:
        """What runs in all processes, if any of these types has a limit for that."""
        return self._store.read_usage() if lines.is_shared else NOTHING_RUNS

    def _free(self, settings: Settings) -> Callable[[str], int]:
        """How many jobs of a type there is room for, asked once for all that share what decides that."""
        known: dict[tuple[str, ...], int] = {}

        def free(type: str) -> int:
            limits = settings.limits(type)
            alike: tuple[str, ...] = (limits.slots.name,)
            if limits.may_be_held:
                alike = (*alike, self.slots.kind(type), settings.resolve("prefetch", type).source)
            found = known.get(alike)
            if found is None:
                found = known[alike] = self.slots.room(type, prefetch=limits.may_be_held)
            return found

        return free

    def register(self, worker_id: str, state: str) -> int:
        """Publish the worker and its types; returns the generation of the handlers that these are of."""
        generation = self._registry.generation
        self._store.register_worker(*self.describe_worker(worker_id, state))
        return generation

    def describe_worker(self, worker_id: str, state: str) -> tuple[WorkerRecord, list[TypeRecord]]:
        """What this worker publishes about itself and its types: those named, or all with a handler."""
        named = {type for type in self._types or () if self.served(type)}
        bases = {base_type(type) for type in named}
        handlers = [h for h in self._registry.handlers() if h.type in bases or self.served(h.type)]
        record = WorkerRecord(
            id=worker_id,
            host=socket.gethostname(),
            pid=os.getpid(),
            state=state,
            concurrency=self.slots.concurrency,
            types=tuple(sorted(named or {handler.type for handler in handlers})),
            slots={
                handler.type: slots
                for handler in handlers
                if isinstance(slots := self._registry.declared(handler.type).get("concurrency"), int)
            },
            backoffs=self._backoffs(),
        )
        return record, [TypeRecord(type=h.type, executor=h.executor, schema=h.schema) for h in handlers]

    def _backoffs(self) -> dict[str, dict[str, Any]]:
        """The back-off that the code sets, by the names it is set for."""
        names = set[str]().union(*map(self._registry.names_with, BACKOFF))
        said = {"": self._queue.defaults, **{name: self._registry.declared(name) for name in names}}
        chosen = {name: {key: said[name][key] for key in BACKOFF if key in said[name]} for name in said}
        return {name: values for name, values in chosen.items() if values}

    def is_drained(self) -> bool:
        """Whether no job of our types is pending, running or waiting for a retry; paused ones apart."""
        settings = self._queue.refresh_settings()
        busy = self._store.list_busy_types()
        return not any(self.served(type) for type in busy if not settings.limits(type).paused)

    def attempt(self, claim: Claim, asked: Asked, claimed_at: float, leased_until: float) -> Attempt:
        """The attempt to run for a claim of what was asked for."""
        attempt = Attempt(claim, asked.handlers[claim.type], self._queue)
        attempt.claimed = claimed_at
        attempt.leased_until = leased_until
        return attempt


def _demand(type: str, limit: int, settings: Settings) -> Demand:
    return Demand(
        type=type,
        limit=limit,
        max_attempts=settings.get("max_attempts", type),
        timeout=settings.get("job_timeout", type),
    )
