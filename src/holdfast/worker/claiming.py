"""What to claim: which types a worker serves, how many jobs of each, and under which limits."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING

from holdfast.context import Attempt
from holdfast.core.job import base_type
from holdfast.core.settings import Settings
from holdfast.handlers.handler import Handler
from holdfast.store.records import Activity, Claim, Demand, TypeRecord, WorkerRecord
from holdfast.worker.slots import Slots

if TYPE_CHECKING:
    from holdfast.queue import Queue


class Claiming:
    """Builds a worker's demands, and attempts from its claims."""

    def __init__(self, queue: Queue, slots: Slots, types: Collection[str] | None) -> None:
        self._queue = queue
        self._store = queue.store
        self._registry = queue.registry
        self.slots = slots
        self._types = types
        self._handlers: dict[str, Handler] = {}

    def served(self, type: str) -> Handler | None:
        """The handler that runs a type here, if this worker serves it."""
        if self._types is not None and type not in self._types and base_type(type) not in self._types:
            return None
        return self._registry.find(type)

    def demands(self, active: Mapping[str, Activity], settings: Settings) -> list[Demand]:
        """How many jobs of each type with pending jobs can be claimed."""
        demands = []
        for type, activity in active.items():
            handler = self.served(type) if activity.pending else None
            if handler is None:
                continue
            demand = self._demand(type, active, settings)
            if demand.limit > 0:
                self._handlers[type] = handler
                demands.append(demand)
        return demands

    def _demand(self, type: str, active: Mapping[str, Activity], settings: Settings) -> Demand:
        rate = settings.resolve("rate_limit", type)
        running = settings.resolve("max_running", type)
        sharing: frozenset[str] = frozenset()
        if running.value is not None:
            sharing = frozenset(
                t for t in active if settings.resolve("max_running", t).source == running.source
            )
        # Limits over all processes are kept by the database, so nothing is taken ahead of its start.
        unlimited = not rate.value and running.value is None
        return Demand(
            type=type,
            limit=self.slots.room(type, prefetch=unlimited),
            max_attempts=settings.get("max_attempts", type),
            pending=active[type].pending,
            timeout=settings.get("job_timeout", type),
            rate=rate.value,
            rate_name=rate.source,
            max_running=running.value,
            running_name=running.source,
            running_types=sharing,
        )

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
        )
        return record, [TypeRecord(type=h.type, executor=h.executor, schema=h.schema) for h in handlers]

    def is_drained(self) -> bool:
        """Whether no job of our types is pending, running or waiting for a retry; paused ones apart."""
        paused = self._store.list_paused()
        busy = self._store.list_busy_types()
        return "" in paused or not any(self.served(type) for type in busy if type not in paused)

    def attempt(
        self, claim: Claim, leased_until: float, on_progress: Callable[[Attempt, float, str | None], None]
    ) -> Attempt:
        """The attempt to run for a claim that was made on our demand."""
        attempt = Attempt(claim, self._handlers[claim.type], self._queue)
        attempt.leased_until = leased_until
        attempt.on_progress = on_progress
        return attempt
