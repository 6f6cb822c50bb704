"""Sending responses: with security headers, in parts, and only to clients that read them.

A large response is held here and passed to the server in parts, so that little waits in the server's buffers.
Unread responses of all clients share one limit; beyond it, the oldest one is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.types import Message, Scope, Send

PART = 64 * 1024
"""Bytes that are handed to the server at a time."""

WRITE_SECONDS = 30.0
"""How long a client may take to read a part, plus a second for every 16 KiB of a large response."""

_SLOWEST = 16 * 1024
MOST_UNREAD = 64 * 1024 * 1024
"""Bytes of all large answers that are being sent."""

ABORT = "holdfast.abort"
"""Where in a scope the server puts what ends the connection at once; another server than ours has none."""

STATIC = "/static/"

_CONTENT_SECURITY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = [
    (b"content-security-policy", _CONTENT_SECURITY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class NotRead(OSError):
    """The client did not read its response, which was dropped."""


class Outbox:
    """The large answers of an application that are being sent, in the order in which they began."""

    def __init__(self) -> None:
        self._sending: dict[asyncio.Timeout, int] = {}

    @asynccontextmanager
    async def holding(self, size: int) -> AsyncIterator[None]:
        """Send an answer of this size; TimeoutError when it takes too long or has to make room."""
        async with asyncio.timeout(WRITE_SECONDS + size / _SLOWEST) as deadline:
            self._sending[deadline] = size
            self._make_room()
            try:
                yield
            finally:
                self._sending.pop(deadline, None)

    def _make_room(self) -> None:
        """Give up those that have been unread for longest, but never the newest."""
        held = sum(self._sending.values())
        for deadline in list(self._sending)[:-1]:
            if held <= MOST_UNREAD:
                return
            held -= self._sending.pop(deadline)
            deadline.reschedule(0)


class Answer:
    """One answer: headers that say what a browser may do with it, and for a HEAD no body."""

    def __init__(self, scope: Scope, send: Send, path: str, outbox: Outbox) -> None:
        self._scope = scope
        self._send = send
        self._cache = b"no-cache" if path.startswith(STATIC) else b"no-store"
        self._without_body = scope["method"] == "HEAD"
        self._outbox = outbox
        self.has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = [*message["headers"], *SECURITY_HEADERS, (b"cache-control", self._cache)]
            await self._send({**message, "headers": headers})
        elif self._without_body:
            await self._send({**message, "body": b""})
        elif len(message.get("body", b"")) <= PART:
            await self._send(message)
        else:
            await self._send_large(message)

    async def _send_large(self, message: Message) -> None:
        body = memoryview(message["body"])
        try:
            async with self._outbox.holding(len(body)):
                for begin in range(0, len(body), PART):
                    part = bytes(body[begin : begin + PART])
                    more = begin + PART < len(body) or message.get("more_body", False)
                    await self._send({**message, "body": part, "more_body": more})
        except TimeoutError:
            if ABORT in self._scope:
                self._scope[ABORT]()
            raise NotRead("the client does not read the response") from None
