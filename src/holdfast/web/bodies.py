"""Reading bodies: under a limit that holds while they arrive, under a deadline, and under a common limit for
all that are on their way. So nothing a client sends can fill the memory."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

from starlette.types import Message, Receive

from holdfast.web.body_limits import NEARLY_NOTHING
from holdfast.web.errors import Refused

BODY_SECONDS = 30.0
"""How long a body may take to arrive; a large one a second more for every 64 KiB."""

SLOWEST = 64 * 1024
MOST_BUFFERED = 32 * 1024 * 1024
"""Bytes of all bodies that are on their way or worked on; as JSON values they are many times that."""


class Disconnected(Exception):
    """The client went away while it sent its body."""


class Bodies:
    """The bodies of all requests to an application that are being read or worked on."""

    def __init__(self) -> None:
        self._buffered = 0

    async def read(self, receive: Receive, limit: int) -> tuple[bytes, int]:
        """The whole body, and how many bytes count for the common limit until they are released."""
        counted = 0
        try:
            body = bytearray()
            async with asyncio.timeout(BODY_SECONDS + limit / SLOWEST):
                more = True
                while more:
                    part, more = await _receive_part(receive)
                    body += part
                    if len(body) > limit:
                        raise too_large(limit)
                    if limit > NEARLY_NOTHING:
                        counted += len(part)
                        self._count(len(part), limit)
        except BaseException as error:
            self.release(counted)
            if isinstance(error, TimeoutError):
                raise _too_slow(limit) from None
            raise
        return bytes(body), counted

    def release(self, counted: int) -> None:
        self._buffered -= counted

    def _count(self, size: int, limit: int) -> None:
        self._buffered += size
        if self._buffered > max(MOST_BUFFERED, limit):
            raise Refused(503, "busy", "too many requests are on their way", {"Retry-After": "1"})


async def _receive_part(receive: Receive) -> tuple[bytes, bool]:
    """A part of the body, and whether more will come."""
    message = await receive()
    if message["type"] == "http.disconnect":
        raise Disconnected
    return message.get("body", b""), message.get("more_body", False)


def _too_slow(limit: int) -> Refused:
    seconds = BODY_SECONDS + limit / SLOWEST
    return Refused(408, "too_slow", f"the body did not arrive within {seconds:.0f} s")


def announced_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
    """What is announced; None if the body is chunked, 0 if there is none."""
    length: int | None = 0
    for name, value in headers:
        if name == b"transfer-encoding":
            return None
        if name == b"content-length":
            try:
                length = int(value)
            except ValueError:
                raise Refused(400, "invalid_request", "Content-Length is not a number") from None
    return length


def announces_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in headers
    )


def too_large(limit: int) -> Refused:
    return Refused(413, "too_large", f"the body is larger than {limit} bytes")


def replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message; after it whatever the server says, such as that the client went away."""
    is_read = False

    async def replayed() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
