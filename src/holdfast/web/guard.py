"""What every request must pass before the application sees it: host, client, origin, token, body.

A plain ASGI wrapper. A refused request is answered before its body is read.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import quote

from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.events import LOGGER
from holdfast.web.auth import COOKIE, READING, Access, Right, Session, is_loopback
from holdfast.web.backend import Backend
from holdfast.web.bodies import LOGOUT, OPEN, Bodies, Disconnected, announced_length, replay
from holdfast.web.errors import Refused, internal, read_only, unavailable
from holdfast.web.sending import STATIC, Answer, NotRead, Outbox

LINGER_SECONDS = 5.0
"""For how long the rest of a refused body is thrown away, so that its sender sees the answer."""

_ADDRESS_HEADERS = frozenset({b"x-forwarded-for", b"x-real-ip", b"x-client-ip", b"true-client-ip"})
"""Where proxies put the address that a request came from."""


class Guard:
    """Refuses requests that may not pass, and passes on the rest with the body read.

    What is known about a request is in its scope: `holdfast.right`, `holdfast.client` (its token or address),
    `holdfast.session` (its login), `holdfast.size` of its body, and `holdfast.head` for a GET whose response
    body nobody reads.
    """

    def __init__(
        self,
        app: ASGIApp,
        access: Access,
        backend: Backend,
        bodies: Bodies,
        answer_to: Callable[[Scope, Refused], Response],
    ) -> None:
        self._app = app
        self._access = access
        self._backend = backend
        self._bodies = bodies
        self._answer_to = answer_to
        self._outbox = Outbox()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        path = scope["path"].removeprefix(scope.get("root_path", "")) or "/"
        answer = Answer(scope, send, path, self._outbox)
        try:
            scope = await self._examine(scope, path)
            async with self._bodies.reading(scope, receive) as body:
                scope["holdfast.size"] = len(body)
                await self._pass_on(scope, replay(body, receive), answer)
        except Disconnected:
            return
        except Refused as refused:
            await self._refuse(refused, scope, receive, answer.send)

    async def _pass_on(self, scope: Scope, receive: Receive, answer: Answer) -> None:
        try:
            await self._app(scope, receive, answer.send)
        except asyncio.CancelledError:
            if answer.has_begun or not self._backend.broadcast.is_closed:
                raise
            await self._answer_to(scope, _cut_short(scope))(scope, receive, answer.send)
        except NotRead:
            return
        except Exception:
            logging.getLogger(LOGGER).exception("%s %s failed", scope["method"], scope["path"])
            if not answer.has_begun:
                await self._answer_to(scope, internal())(scope, receive, answer.send)

    async def _examine(self, scope: Scope, path: str) -> Scope:
        headers = dict(scope["headers"])
        if "\0" in path and path.startswith(STATIC):  # no file has such a name
            raise Refused(404, "not_found", "there is nothing at this path")
        root = scope.get("root_path", "")
        if root and path.startswith(f"{root}/"):
            raise Refused(404, "not_found", f"the path contains {root} twice; the proxy must strip it")
        if sum(name == b"host" for name, _ in scope["headers"]) != 1:
            raise Refused(403, "foreign_host", "a request must have exactly one Host header")
        if not self._access.is_host_allowed(headers[b"host"].decode("latin-1")):
            raise Refused(403, "foreign_host", "this Host is not allowed; allow it with --allow-host NAME")
        if self._access.is_for_this_machine and not _is_local(scope):
            raise Refused(403, "forbidden", "without a token, only clients on this machine have access")
        self._refuse_foreign(scope, headers)
        right, client, session = await self._identify(scope, headers)
        is_open = path in OPEN or path.startswith(STATIC)
        if session is not None and not is_open and await self._backend.sessions.is_over(session):
            right, session = Right.NOTHING, None
        if right is Right.NOTHING and not is_open:
            raise _unauthorized(scope, headers, path)
        if scope["method"] not in READING and right is Right.LOOK and not is_open and path != LOGOUT:
            raise read_only()
        is_head = scope["method"] == "HEAD"
        return {
            **scope,
            "method": "GET" if is_head else scope["method"],
            "holdfast.head": is_head,
            "holdfast.right": right,
            "holdfast.client": client,
            "holdfast.session": session,
        }

    def _refuse_foreign(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Another site's page may change nothing, and where no token is asked for it may not read either:
        it would not see the answer, but could keep us busy.

        It could do so by links as well, if it followed one after another before the first is answered. So a
        link leads to this refusal, which makes the browser ask again, now of its own accord.
        """
        if not self._access.is_foreign(headers):
            return
        if scope["method"] not in READING:
            raise Refused(403, "foreign_origin", "cross-site requests can't make changes")
        if self._access.is_for_this_machine:
            again = {"Refresh": "0"} if _is_followed_link(headers) else {}
            raise Refused(403, "foreign_origin", "other sites may link to this page, but not load it", again)

    async def _identify(
        self, scope: Scope, headers: dict[bytes, bytes]
    ) -> tuple[Right, bytes, Session | None]:
        """What the request may do, which client it comes from, and its login."""
        address = scope["client"][0].encode() if scope.get("client") else b""
        if not self._access.needs_token:
            return Right.CHANGE, address, None
        scheme, _, token = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":  # another scheme may be a proxy's
            right = self._access.right_of_token(token.strip())
            if right is Right.NOTHING:
                await self._backend.failed_logins.slow_down(address)
            return right, self._access.tokens.get(right, address), None
        for cookie in headers.get(b"cookie", b"").split(b";"):
            name, _, value = cookie.strip().partition(b"=")
            if name == COOKIE.encode() and (found := self._access.session_of(value.decode("latin-1"))):
                return found.right, self._access.tokens[found.right], found
        return Right.NOTHING, address, None

    async def _refuse(self, refused: Refused, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request whose body was not read, and close: who still sends would not see the answer if we
        closed at once, so what comes is thrown away for a while."""
        has_body = announced_length(scope["headers"]) != 0
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
        with suppress(TimeoutError):
            async with asyncio.timeout(LINGER_SECONDS):
                while (await receive()).get("more_body", False):
                    pass
        await send({"type": "http.response.body", "body": b""})


def _cut_short(scope: Scope) -> Refused:
    """The server is shutting down, and the response took too long."""
    if scope["method"] in READING:
        return unavailable("stopping", "the server is shutting down")
    return Refused(
        503, "stopping", "the server is shutting down; it is unknown whether the request was carried out"
    )


def _is_local(scope: Scope) -> bool:
    """Whether a request comes from this machine, and was not forwarded for another one."""
    client = scope.get("client")
    if client is None or not is_loopback(client[0]):
        return False
    for name, value in scope["headers"]:
        addresses = value.decode("latin-1").split(",") if name in _ADDRESS_HEADERS else ()
        if name == b"forwarded" or not all(is_loopback(address.strip()) for address in addresses):
            return False
    return True


def _is_followed_link(headers: dict[bytes, bytes]) -> bool:
    """Whether somebody followed a link here in a window of its own, and not a page by itself."""
    return (
        headers.get(b"sec-fetch-mode") == b"navigate"
        and headers.get(b"sec-fetch-dest") == b"document"
        and b"sec-purpose" not in headers  # a page that is only fetched in case
    )


def _unauthorized(scope: Scope, headers: dict[bytes, bytes], path: str) -> Refused:
    if scope["method"] in READING and b"text/html" in headers.get(b"accept", b""):
        query = scope.get("query_string", b"").decode("latin-1")
        wanted = quote(f"{path}?{query}" if query else path)
        target = f"{scope.get('root_path', '')}/login?next={wanted}"
        return Refused(303, "login", "log in first", {"Location": target})
    message = "authentication required: send Authorization: Bearer TOKEN"
    if b"authorization" in headers or b"cookie" in headers:
        message = "the token is invalid, or the login has expired"
    return Refused(401, "unauthorized", message, {"WWW-Authenticate": "Bearer"})
