"""Reading request bodies, within limits on size, time, and the total in progress.

So nothing that a client sends can fill the memory. How large a body may be is decided by the endpoint that
reads it, never by the path.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager

from starlette.routing import BaseRoute, Match, Route
from starlette.types import Message, Receive, Scope

from holdfast.config import MIB
from holdfast.errors import HoldfastError
from holdfast.queue import Queue
from holdfast.web.auth import READING
from holdfast.web.backend import Backend
from holdfast.web.errors import Refused, unavailable

BODY_SECONDS = 30.0
"""How long a body may take to arrive, plus a second for every 64 KiB of a large one."""

SLOWEST = 64 * 1024
MOST_BUFFERED = 32 * 1024 * 1024
"""Bytes of all bodies that are on their way or worked on; as JSON values they are many times that."""

OPEN = frozenset({"/healthz", "/readyz", "/login"})
"""Paths that require no token; neither do those of static files."""

LOGOUT = "/logout"

NEARLY_NOTHING = 4 * 1024
"""Bytes where no token is required, nothing is changed or nothing is found; no common limit counts them."""

SMALL = 64 * 1024
LARGEST_BATCH = 8 * MIB
_ESCAPED = 4
"""How much larger than its stored form a payload may be in a body, because of escapes and white space."""

BATCH = frozenset({"/api/tasks/batch"})
WITH_PAYLOAD = frozenset({"/api/tasks", "/api/tasks/{id}/retry", "/enqueue", "/jobs/{id}/retry"})
"""Routes whose POST carries a payload."""


class Disconnected(Exception):
    """The client disconnected while sending its body."""


class Bodies:
    """The bodies of all requests to an application that are being read or worked on."""

    def __init__(self, routes: Sequence[BaseRoute], backend: Backend) -> None:
        self._routes = routes
        self._backend = backend
        self._buffered = 0

    @asynccontextmanager
    async def reading(self, scope: Scope, receive: Receive) -> AsyncIterator[bytes]:
        """The whole body, which counts for the common limit until it has been worked on."""
        length = announced_length(scope["headers"])
        limit = await self._limit(scope, length)
        if length is not None and length > limit:
            raise _too_large(limit)
        received, body = bytearray(), b""
        try:
            if length != 0:
                await self._read(receive, limit, received)
            body = bytes(received)
            received.clear()
            yield body
        finally:
            self._count(-len(received) - len(body), limit)

    async def _read(self, receive: Receive, limit: int, body: bytearray) -> None:
        seconds = BODY_SECONDS + limit / SLOWEST
        try:
            async with asyncio.timeout(seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise Disconnected
                    part = message.get("body", b"")
                    more = message.get("more_body", False)
                    body += part
                    self._count(len(part), limit)
                    if len(body) > limit:
                        raise _too_large(limit)
                    if self._buffered > max(MOST_BUFFERED, limit) and limit > NEARLY_NOTHING:
                        raise unavailable("busy", "too many request bodies are in transit")
        except TimeoutError:
            raise Refused(408, "too_slow", f"the body did not arrive within {seconds:.0f} s") from None

    def _count(self, size: int, limit: int) -> None:
        if limit > NEARLY_NOTHING:
            self._buffered += size

    async def _limit(self, scope: Scope, announced: int | None) -> int:
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
            return SMALL + _ESCAPED * await self._backend.call(_largest_payload)
        return SMALL

    def _route_path(self, scope: Scope) -> str | None:
        """The path of the endpoint that takes the request, with its parameters by their names."""
        for route in self._routes:
            if isinstance(route, Route) and route.matches(scope)[0] is Match.FULL:
                return route.path
        return None


def _largest_payload(queue: Queue) -> int:
    """The largest payload that any type allows."""
    try:
        settings = queue.settings()
    except HoldfastError:  # the endpoint will say so
        return MIB
    own = [value for (name, _), value in settings.stored.items() if name == "max_payload_bytes"]
    return max(int(value or 0) for value in (settings.get("max_payload_bytes"), *own))


def announced_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """The announced length; None if the body is chunked, 0 if there is none."""
    length = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            try:
                length = int(value)
            except ValueError:
                raise Refused(400, "invalid_request", "Content-Length is not a number") from None
    return length


def _too_large(limit: int) -> Refused:
    return Refused(413, "too_large", f"the body is larger than {limit} bytes")


def replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message; after it whatever the server says, such as that the client went away."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed
