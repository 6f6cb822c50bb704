"""How large a body may be. The endpoint that would read it decides, never the look of a path."""

from __future__ import annotations

import math
from collections.abc import Sequence

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Scope

from holdfast.config import MIB
from holdfast.errors import HoldfastError
from holdfast.queue import Queue
from holdfast.web.auth import READING
from holdfast.web.desk import Desk

OPEN = frozenset({"/healthz", "/readyz", "/login"})
"""Paths that require no token; neither do those of static files."""

LOGOUT = "/logout"

NEARLY_NOTHING = 4 * 1024
"""Bytes where no token is required, nothing is changed or nothing is found; no common limit counts them."""

SMALL = 64 * 1024
LARGEST_BATCH = 8 * MIB
_ESCAPED = 4
"""How much larger than the stored text a payload may be in a body, by escapes and white space."""

BATCH = frozenset({"/api/tasks/batch"})
WITH_PAYLOAD = frozenset({"/api/tasks", "/api/tasks/{id}/retry", "/enqueue", "/jobs/{id}/retry"})
"""Routes whose POST carries a payload."""


class BodyLimits:
    """The limit of each request to an application."""

    def __init__(self, routes: Sequence[BaseRoute], desk: Desk) -> None:
        self._routes = routes
        self._desk = desk

    async def limit(self, scope: Scope, announced: int | None) -> int:
        """Bytes that a body of the announced length, None for one of unknown length, may have."""
        longest = math.inf if announced is None else announced
        if longest <= NEARLY_NOTHING:  # allowed everywhere
            return NEARLY_NOTHING
        path = None if scope["method"] in READING else self._route_path(scope)
        if path is None or path in OPEN or path == LOGOUT:
            return NEARLY_NOTHING
        if path in BATCH:
            return LARGEST_BATCH
        if path in WITH_PAYLOAD and longest > SMALL:
            return SMALL + _ESCAPED * await self._desk.call(_largest_payload, self._desk.queue)
        return SMALL

    def _route_path(self, scope: Scope) -> str | None:
        """The path of the endpoint that takes the request, with its parameters by their names."""
        for route in self._routes:
            if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
                return route.path
        return None


def _largest_payload(queue: Queue) -> int:
    """What is allowed to the type that may have the largest."""
    try:
        settings = queue.settings()
    except HoldfastError:  # the endpoint will say so
        return MIB
    own = [value for (name, _), value in settings.stored.items() if name == "max_payload_bytes"]
    return max(int(value or 0) for value in (settings.get("max_payload_bytes"), *own))
