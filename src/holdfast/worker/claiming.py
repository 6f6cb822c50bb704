"""What to claim: which types this worker serves, and how many jobs of each under which limits."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from holdfast.context import Attempt, AttemptHost
from holdfast.core.job import base_type
from holdfast.core.settings import Settings
from holdfast.handler import Handler
from holdfast.registry import Registry
from holdfast.store.protocol import Activity, Claim, Demand, Store
from holdfast.worker.slots import Slots


class Claiming:
    """Makes the demands of a worker, and attempts of its claims."""

    def __init__(
        self, registry: Registry, host: AttemptHost, slots: Slots, types: Collection[str] | None
    ) -> None:
        self._registry = registry
        self._host = host
        self._slots = slots
        self._types = types
        self._handlers: dict[str, Handler] = {}

    def served(self, type: str) -> Handler | None:
        """The handler that runs a type here, if this worker serves it."""
        if self._types is not None and type not in self._types and base_type(type) not in self._types:
            return None
        return self._registry.find(type)

    def demands(self, active: Mapping[str, Activity], settings: Settings) -> list[Demand]:
        """What can be taken of the types that have pending jobs."""
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
            limit=self._slots.room(type, prefetch=unlimited),
            max_attempts=settings.get("max_attempts", type),
            pending=active[type].pending,
            timeout=settings.get("job_timeout", type),
            rate=rate.value,
            rate_name=rate.source,
            max_running=running.value,
            running_name=running.source,
            running_types=sharing,
        )

    def is_drained(self, store: Store) -> bool:
        """Whether no job of our types is pending, running or waiting for a retry; paused ones apart."""
        paused = store.list_paused()
        busy = store.list_busy_types()
        return "" in paused or not any(self.served(type) for type in busy if type not in paused)

    def attempt(self, claim: Claim) -> Attempt:
        """The attempt to run for a claim that was made on our demand."""
        return Attempt(claim, self._handlers[claim.type], self._host)
