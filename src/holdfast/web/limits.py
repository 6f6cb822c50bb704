"""How many connections a server may have."""

from __future__ import annotations

import resource

SPARE_DESCRIPTORS = 128
"""Files that a server needs beside its connections, and for those that it is about to close."""

BACKLOG = 2048
"""Clients that may wait to be accepted."""

_FEWEST = 64


def most_connections() -> int:
    """As many as the process may have files open, but for some."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_FEWEST, soft - SPARE_DESCRIPTORS)
