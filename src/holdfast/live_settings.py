"""The settings as they stand in the database, read again when they may be old."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from holdfast.config import SETTINGS, Value
from holdfast.core.settings import Settings
from holdfast.errors import StoreError
from holdfast.registry import Registry
from holdfast.store.protocol import Store
from holdfast.store.scope import is_inside

_OLD_AFTER = 0.5


class LiveSettings:
    """Settings that follow the database and the handlers' own options."""

    def __init__(
        self, store: Callable[[], Store], registry: Registry, defaults: Callable[[], Mapping[str, Value]]
    ) -> None:
        self._store = store
        self._registry = registry
        self._defaults = defaults
        self._known: tuple[float, int, Settings] | None = None

    def get(self) -> Settings:
        """As read half a second ago or, in trouble, when that was last possible.

        Inside ctx.transaction() what is known will do: who is in the block must not wait for a connection,
        and those who wait for this one would wait for him.
        """
        known = self._known
        if known is None:
            return self.refresh()
        read_at, generation, settings = known
        is_old = time.monotonic() - read_at > _OLD_AFTER or generation != self._registry.generation
        if is_old and not is_inside(self._store().url):
            try:
                return self.refresh()
            except StoreError:  # what is known will do: a handler's work must not fail for it
                self._known = time.monotonic(), generation, settings
        return settings

    def refresh(self) -> Settings:
        """As they are now."""
        generation = self._registry.generation
        found = self._store().get_settings()
        # Others are of a newer release, or no settings at all.
        stored = {(name, type): value for (name, type), value in found.items() if name in SETTINGS}
        known = self._known
        if known is not None and known[1] == generation and known[2].stored == stored:
            settings = known[2]  # with all that it has looked up already
        else:
            settings = Settings(stored, declared=self._registry.declared, defaults=self._defaults())
        self._known = (time.monotonic(), generation, settings)
        return settings

    def forget(self) -> None:
        self._known = None
