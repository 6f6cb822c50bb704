"""How many connections a server may have."""

from __future__ import annotations

import resource

SPARE_DESCRIPTORS = 128
"""File descriptors that a server needs besides its connections and those it is about to close."""

BACKLOG = 2048
"""Clients that may wait to be accepted."""

_FEWEST = 64


def most_connections() -> int:
    """As many as the process may have open files, minus a reserve."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_FEWEST, soft - SPARE_DESCRIPTORS)
