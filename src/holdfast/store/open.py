"""From an address, or a queue, to its store. Others register engines as `holdfast.stores` entry points."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, cast

from holdfast.config import sqlite_url
from holdfast.core.clock import Clock
from holdfast.errors import ConfigError
from holdfast.store.protocol import Store

Opener = Callable[[str, Clock], Store]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_PLAIN = re.compile(r"[\w ./-]*")
"""A path at most: nothing in it can be a password beside a name."""


def open_store(
    url: str, clock: Clock, *, create: bool = True, notify: bool = True, migrate: bool = False
) -> Store:
    """Open the database that `url` names, with the engine of its scheme.

    Without `create`, a database that holds no queue is left as it is, and QueueNotFound raised. Where it is
    an engine's choice, `notify` tells workers of new jobs, and `migrate` brings older tables up to date.
    """
    scheme = _scheme_of(url)
    if scheme == "sqlite":
        from holdfast.store.sqlite import open_store as open_sqlite

        return open_sqlite(url, clock, create=create)
    if scheme in ("postgresql", "postgres"):
        with needing_psycopg():
            from holdfast.store.postgres import open_store as open_postgres
        return open_postgres(url, clock, create=create, notify=notify, migrate=migrate)
    if scheme.startswith(("postgresql+", "postgres+")):
        raise ConfigError(f"{scheme}:// names a driver", hint="use postgresql://; it is always psycopg 3")
    return _find_engine(scheme)(url, clock)


class StoreOwner(Protocol):
    """A queue."""

    @property
    def _store(self) -> Store: ...


def store_of(queue: StoreOwner) -> Store:
    """The open store of a queue, for the engine: the import rules keep it from the surfaces."""
    return queue._store


def anchored(url: str) -> str:
    """The address that names the same file wherever the process goes later."""
    scheme, _, rest = url.partition(":///")
    path = rest.partition("?")[0]
    if scheme != "sqlite" or path in ("", ":memory:") or path.startswith(("/", "%2F", "%2f")):
        return url
    try:
        here = os.getcwd()
    except FileNotFoundError:
        raise ConfigError(
            f"{path} can't be found: the current folder was removed", hint="use the file's absolute path"
        ) from None
    return sqlite_url(os.path.join(here, "")) + rest


def _scheme_of(url: str) -> str:
    """The scheme, before `://`; raises ConfigError if there is none."""
    scheme, mark, _ = url.partition("://")
    if not mark or not _SCHEME.fullmatch(scheme):
        shown = repr(url) if _PLAIN.fullmatch(url) else "that"  # it may be a DSN with a password
        raise ConfigError(
            f"{shown} is not a database address; use sqlite:///queue.db or postgresql://host/database"
        )
    return scheme


@contextmanager
def needing_psycopg() -> Iterator[None]:
    """Around an import of the PostgreSQL engine."""
    try:
        yield
    except ImportError as error:
        raise ConfigError(
            "PostgreSQL requires psycopg, which is not installed",
            hint="pip install 'holdfast-queue[postgres]'",
        ) from error


def _find_engine(scheme: str) -> Opener:
    from importlib.metadata import entry_points

    found = {point.name: point for point in entry_points(group="holdfast.stores")}
    if scheme not in found:
        known = ", ".join(sorted({"sqlite", "postgresql", *found}))
        raise ConfigError(f"there is no engine for {scheme}:// addresses; installed: {known}")
    return cast(Opener, found[scheme].load())
