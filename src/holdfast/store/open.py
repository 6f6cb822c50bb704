"""From an address to a store. Engines of others register under the entry point `holdfast.stores`."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from holdfast.core.clock import Clock
from holdfast.errors import ConfigError
from holdfast.store.address import scheme_of
from holdfast.store.protocol import Store

Opener = Callable[[str, Clock], Store]


def open_store(
    url: str, clock: Clock, *, create: bool = True, notify: bool = True, migrate: bool = False
) -> Store:
    """Open the database that `url` names, with the engine of its scheme.

    Without `create`, a database that holds no queue is left as it is, and QueueNotFound raised. Where it is
    an engine's choice, `notify` tells workers of new jobs, and `migrate` brings older tables up to date.
    """
    scheme = scheme_of(url)
    if scheme == "sqlite":
        from holdfast.store.sqlite import open_store as open_sqlite

        return open_sqlite(url, clock, create=create)
    if scheme in ("postgresql", "postgres"):
        return _open_postgres(url, clock, create=create, notify=notify, migrate=migrate)
    if scheme.startswith(("postgresql+", "postgres+")):
        raise ConfigError(f"{scheme}:// names a driver", hint="write postgresql://; it is always psycopg 3")
    return _find_engine(scheme)(url, clock)


def _open_postgres(url: str, clock: Clock, *, create: bool, notify: bool, migrate: bool) -> Store:
    try:
        from holdfast.store.postgres import open_store as open_postgres
    except ImportError as error:
        raise ConfigError(
            "PostgreSQL needs psycopg, which is not installed", hint="pip install 'holdfast[postgres]'"
        ) from error
    return open_postgres(url, clock, create=create, notify=notify, migrate=migrate)


def _find_engine(scheme: str) -> Opener:
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group="holdfast.stores")}
    if scheme not in found:
        known = ", ".join(sorted({"sqlite", "postgresql", *found}))
        raise ConfigError(f"there is no engine for {scheme}:// addresses; installed: {known}")
    return cast(Opener, found[scheme].load())
