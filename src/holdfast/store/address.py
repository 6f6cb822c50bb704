"""Addresses of databases, before an engine reads them: where a relative one leads, and what may be shown."""

from __future__ import annotations

import os
import re

from holdfast.config import sqlite_url
from holdfast.errors import ConfigError

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*")
_PLAIN = re.compile(r"[\w ./-]*")
"""A path at most: nothing in it can be a password beside a name."""


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
            f"{path} can't be found: the current folder was removed", hint="name the file by its whole path"
        ) from None
    return sqlite_url(os.path.join(here, "")) + rest


def scheme_of(url: str) -> str:
    """What stands before `://`; raises ConfigError where there is no such thing."""
    scheme, mark, _ = url.partition("://")
    if not mark or not _SCHEME.fullmatch(scheme):
        shown = repr(url) if _PLAIN.fullmatch(url) else "that"  # it may be a DSN with a password
        raise ConfigError(
            f"{shown} is not a database address; write sqlite:///queue.db, or postgresql://host/database"
        )
    return scheme
