"""From an address to a store. Engines of others register under the entry point `holdfast.stores`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from holdfast.core.clock import Clock
from holdfast.errors import ConfigError
from holdfast.store.protocol import Store

Opener = Callable[[str, Clock], Store]


def open_store(url: str, clock: Clock) -> Store:
    """Open the database that `url` names, with the engine of its scheme."""
    if "://" not in url:
        raise ConfigError(f"{url!r} is not a database address; write sqlite:///queue.db")
    scheme = url.partition("://")[0]
    if scheme == "sqlite":
        from holdfast.store.sqlite import open_store as open_sqlite

        return open_sqlite(url, clock)
    return _find_engine(scheme)(url, clock)


def _find_engine(scheme: str) -> Opener:
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group="holdfast.stores")}
    if scheme not in found:
        known = ", ".join(sorted({"sqlite", *found}))
        raise ConfigError(f"there is no engine for {scheme}:// addresses; installed: {known}")
    return cast(Opener, found[scheme].load())
