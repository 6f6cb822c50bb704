"""What every request passes before the application sees it: host, client, origin, token, and its body.

A plain ASGI wrapper. Bodies are read here, under a limit that holds while they arrive, under a deadline, and
under a common limit for all that are on their way; so nothing a client sends can fill the memory.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.events import LOGGER
from holdfast.web.auth import COOKIE, READING, Access, Right, is_loopback
from holdfast.web.errors import Refused, internal

OPEN = frozenset({"/healthz", "/readyz", "/login"})
"""Paths that want no token; so do those of static files."""

STATIC = "/static/"
LOGOUT = "/logout"
BODY_SECONDS = 30.0
"""How long a body may take to arrive; a large one a second more for every 64 KiB."""

_SLOWEST = 64 * 1024
LINGER_SECONDS = 5.0
MOST_BUFFERED = 32 * 1024 * 1024
"""Bytes of all bodies that are on their way or worked on; as JSON values they are many times that."""

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


class Guard:
    """Refuses what may not pass, and hands the rest on with its body read.

    What was found out about a request is in its scope: `holdfast.right`, `holdfast.client` (the token or
    address that it comes from), `holdfast.size` of its body, and `holdfast.head` for a GET whose answer
    nobody reads.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        largest_body: Callable[[str], int],
        is_stopping: Callable[[], bool],
        answer_to: Callable[[Scope, Refused], Response],
    ) -> None:
        self._app = app
        self._access = access
        self._is_stopping = is_stopping
        self._largest_body = largest_body
        self._answer_to = answer_to
        self._buffered = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        answer = _Answer(send, path, without_body=scope["method"] == "HEAD")
        send = answer.send
        taken = 0
        try:
            scope = self._examine(scope, path)
            body, taken = await self._read(scope, path, receive)
        except _Disconnected:
            return
        except Refused as refused:
            await self._refuse(refused, scope, receive, send)
            return
        scope["holdfast.size"] = len(body)
        try:
            await self._app(scope, _replay(body, receive), send)
        except asyncio.CancelledError:
            if answer.has_begun or not self._is_stopping():
                raise
            await self._answer_to(scope, _cut_short(scope))(scope, receive, send)
        except Exception:
            logging.getLogger(LOGGER).exception("%s %s failed", scope["method"], path)
            if not answer.has_begun:
                await self._answer_to(scope, internal())(scope, receive, send)
        finally:
            self._buffered -= taken

    def _examine(self, scope: Scope, path: str) -> Scope:
        headers = dict(scope["headers"])
        if "\0" in path and path.startswith(STATIC):  # no file has such a name
            raise Refused(404, "not_found", "there is nothing at this path")
        root = scope.get("root_path", "")
        if root and path.startswith(f"{root}/"):
            raise Refused(404, "not_found", f"the proxy must take {root} off the path, which has it twice")
        if sum(name == b"host" for name, _ in scope["headers"]) != 1:
            raise Refused(403, "foreign_host", "a request must name one Host")
        if not self._access.is_host_allowed(headers[b"host"].decode("latin-1")):
            raise Refused(
                403, "foreign_host", "this Host is not served here; --allow-host NAME lets another one in"
            )
        if not self._access.needs_token and not self._access.outer and not _is_local(scope, headers):
            raise Refused(403, "forbidden", "without a token only clients on this machine are answered")
        if scope["method"] not in READING and self._access.is_foreign(headers):
            raise Refused(403, "foreign_origin", "another site's page may not change anything here")
        right, client = self._identify(scope, headers)
        is_open = path in OPEN or path.startswith(STATIC)
        if right is Right.NOTHING and not is_open:
            raise _unauthorized(scope, headers, path)
        if scope["method"] not in READING and right is Right.LOOK and not is_open and path != LOGOUT:
            raise Refused(403, "read_only", "this token may only look")
        is_head = scope["method"] == "HEAD"
        method = "GET" if is_head else scope["method"]
        return {
            **scope,
            "method": method,
            "holdfast.head": is_head,
            "holdfast.right": right,
            "holdfast.client": client,
            "holdfast.size": 0,
        }

    def _identify(self, scope: Scope, headers: dict[bytes, bytes]) -> tuple[Right, bytes]:
        """What the request may do, and whom it comes from."""
        address = scope["client"][0].encode() if scope.get("client") else b""
        if not self._access.needs_token:
            return Right.CHANGE, address
        given = headers.get(b"authorization")
        scheme, _, token = (given or b"").partition(b" ")
        if scheme.lower() == b"bearer":  # another scheme may be a proxy's
            right = self._access.right_of_token(token.strip())
            return right, self._access.tokens.get(right, address)
        for cookie in headers.get(b"cookie", b"").split(b";"):
            name, _, value = cookie.strip().partition(b"=")
            if name == COOKIE.encode():
                right = self._access.right_of_session(value.decode("latin-1"))
                return right, self._access.tokens.get(right, address)
        return Right.NOTHING, address

    async def _read(self, scope: Scope, path: str, receive: Receive) -> tuple[bytes, int]:
        """The whole body, and how much of the common limit it takes."""
        length = _content_length(scope["headers"])
        if length == 0:
            return b"", 0
        limit = self._largest_body(path)
        if length is not None and length > limit:
            raise _too_large(limit)
        seconds = BODY_SECONDS + limit / _SLOWEST
        body = bytearray()
        taken = 0
        try:
            async with asyncio.timeout(seconds):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        raise _Disconnected
                    part = message.get("body", b"")
                    taken += len(part)
                    self._buffered += len(part)
                    if taken > limit:
                        raise _too_large(limit)
                    if self._buffered > max(MOST_BUFFERED, limit):
                        raise Refused(503, "busy", "too many requests are on their way", {"Retry-After": "1"})
                    body += part
                    more = message.get("more_body", False)
        except TimeoutError:
            self._buffered -= taken
            raise Refused(408, "too_slow", f"the body did not arrive within {seconds:.0f} s") from None
        except BaseException:
            self._buffered -= taken
            raise
        return bytes(body), taken

    async def _refuse(self, refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose body was not read, and close: who still sends would not see the answer if we
        closed at once, so what comes is thrown away for a while."""
        has_body = _announces_body(scope["headers"])
        if has_body:
            refused.headers = {**(refused.headers or {}), "Connection": "close"}
        answer = self._answer_to(scope, refused)
        if not has_body or any(name == b"expect" for name, _ in scope["headers"]):
            await answer(scope, receive, send)
            return
        await send(
            {"type": "http.response.start", "status": answer.status_code, "headers": answer.raw_headers}
        )
        await send({"type": "http.response.body", "body": answer.body, "more_body": True})
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        except TimeoutError:
            pass
        await send({"type": "http.response.body", "body": b""})


def _cut_short(scope: Scope) -> Refused:
    """The server stops and has waited long enough for the answer."""
    if scope["method"] in READING:
        return Refused(503, "stopping", "the server is stopping", {"Retry-After": "1"})
    return Refused(503, "stopping", "the server is stopping; whether this was done is not known")


class _Disconnected(Exception):
    """The client went away while it sent its body."""


def _is_local(scope: Scope, headers: dict[bytes, bytes]) -> bool:
    """Whether a request comes from this machine, and was not passed on for somebody elsewhere."""
    client = scope.get("client")
    if client is None or not is_loopback(client[0]) or b"forwarded" in headers:
        return False
    passed_on = headers.get(b"x-forwarded-for", b"127.0.0.1").decode("latin-1")
    return all(is_loopback(address.strip()) for address in passed_on.split(","))


def _unauthorized(scope: Scope, headers: dict[bytes, bytes], path: str) -> Refused:
    if scope["method"] in READING and b"text/html" in headers.get(b"accept", b""):
        query = scope.get("query_string", b"").decode("latin-1")
        wanted = quote(f"{path}?{query}" if query else path)
        target = f"{scope.get('root_path', '')}/login?next={wanted}"
        return Refused(303, "login", "log in first", {"Location": target})
    message = "a token is wanted: Authorization: Bearer TOKEN"
    if b"authorization" in headers or b"cookie" in headers:
        message = "the token is wrong, or the login has ended"
    return Refused(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})


def _announces_body(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    return any(
        name == b"transfer-encoding" or (name == b"content-length" and value.strip() != b"0")
        for name, value in headers
    )


def _content_length(headers: Iterable[tuple[bytes, bytes]]) -> int | None:
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


def _too_large(limit: int) -> Refused:
    return Refused(413, "too_large", f"the body is larger than {limit} bytes")


def _replay(body: bytes, receive: Receive) -> Receive:
    """The body as one message; after it whatever the server says, such as that the client went away."""
    is_read = False

    async def replay() -> Message:
        nonlocal is_read
        if is_read:
            return await receive()
        is_read = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay


class _Answer:
    """What is sent: with headers that say what a browser may do with it, and for a HEAD without a body."""

    def __init__(self, send: Send, path: str, *, without_body: bool) -> None:
        self._send = send
        self._cache = b"no-cache" if path.startswith(STATIC) else b"no-store"
        self._without_body = without_body
        self.has_begun = False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.has_begun = True
            headers = [*message["headers"], *SECURITY_HEADERS, (b"cache-control", self._cache)]
            message = {**message, "headers": headers}
        elif self._without_body and message["type"] == "http.response.body":
            message = {**message, "body": b""}
        await self._send(message)
