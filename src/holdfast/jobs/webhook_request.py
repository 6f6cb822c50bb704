"""Sending a webhook: to checked addresses, following redirects, within one overall timeout."""

from __future__ import annotations

import asyncio
import codecs
import ssl
import time
from collections.abc import Mapping
from contextlib import suppress
from email.utils import mktime_tz, parsedate_tz
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import quote, urljoin

import httpx
from msgspec import Struct

from holdfast.context import Context
from holdfast.errors import Fail, Retry
from holdfast.jobs.webhook import OURS
from holdfast.jobs.webhook_target import Allowed, Target, checked_addresses, parse_url
from holdfast.text import one_line

if TYPE_CHECKING:
    from holdfast.jobs.public_address import Address

LONGEST_RETRY_AFTER = 3600.0
CONNECT_TIMEOUT = 10.0
MAX_REDIRECTS = 5
MAX_READ = 64 * 1024
MAX_KEPT = 4 * 1024

HARMLESS = frozenset({"accept", "accept-language", "content-language", "content-type"})
"""Headers of a payload that a redirect takes along to another host; any other may be a credential."""


class Answer(Struct, frozen=True):
    """What came back. `body` is its beginning."""

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as it can be stored, up to MAX_KEPT bytes of it."""
        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character that is cut is left out
        return decoder.decode(self.body[:MAX_KEPT]).replace("\0", "\ufffd")

    def summary(self) -> str:
        """The status and the first line of the body."""
        status = one_line(f"{self.status} {self.reason}".strip())[:80]
        line = next((line.strip() for line in self.text.splitlines() if line.strip()), "")
        return f"{status}: {one_line(line)[:200]}" if line else status


class Request(Struct, frozen=True):
    """What is sent, whatever the target. `timeout` covers all of it, including redirects."""

    method: str
    headers: Mapping[str, str]
    signature: Mapping[str, str]
    body: bytes | None
    timeout: float

    def at_another_host(self) -> Request:
        """The request without anything that might be a credential."""
        kept = {name: text for name, text in self.headers.items() if name in HARMLESS or name in OURS}
        return Request(self.method, kept, {}, self.body, self.timeout)


async def follow(request: Request, target: Target, allowed: Allowed, ctx: Context) -> tuple[Target, Answer]:
    """Send the request, and again to where it is redirected; the last target and its answer."""
    deadline = asyncio.get_running_loop().time() + request.timeout
    for _ in range(MAX_REDIRECTS + 1):
        answer = await _send(request, target, allowed, deadline)
        ctx.detail(status=answer.status, body=answer.text)
        following = _redirect(request.method, target, answer)
        if following is None:
            return target, answer
        if not _is_same_host(target, following):
            request = request.at_another_host()
        target = following
    raise Fail(f"too many redirects: followed {MAX_REDIRECTS}, then got {answer.summary()}")


async def _send(request: Request, target: Target, allowed: Allowed, deadline: float) -> Answer:
    """Send the request to the first address of its target that can be reached."""
    try:
        async with asyncio.timeout_at(deadline):
            addresses = await checked_addresses(target, allowed)
        for place, address in enumerate(addresses, 1):
            try:
                return await _send_to(address, request, target, deadline)
            except (httpx.ConnectError, httpx.ConnectTimeout):
                if place == len(addresses):
                    raise
    except TimeoutError:
        raise Retry(f"{target.host}: no response within {request.timeout:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        problem = one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        raise Retry(f"{target.host}: {problem[:300]}") from None
    raise Retry(f"{target.host}: the host has no IP address")


async def _send_to(address: Address, request: Request, target: Target, deadline: float) -> Answer:
    """Send the request to an address. Host, and with TLS the name that is verified, are the target's own."""
    literal = f"[{address}]" if address.version == 6 else str(address)
    headers = {**request.headers, **request.signature, "host": target.authority}
    sent = httpx.Request(
        request.method,
        f"{target.scheme}://{literal}:{target.port}{target.path}",
        headers=[(name.encode("ascii"), text.encode("latin-1")) for name, text in headers.items()],
        content=request.body,
        extensions={
            "sni_hostname": target.host,
            "timeout": httpx.Timeout(None, connect=CONNECT_TIMEOUT).as_dict(),
        },
    )
    # Not by a client, which looks at the environment for proxies, and into redirects even if it follows none.
    async with httpx.AsyncHTTPTransport(verify=_tls(), trust_env=False) as transport:
        async with asyncio.timeout_at(deadline):
            response = await transport.handle_async_request(sent)
        try:
            return Answer(
                response.status_code,
                response.reason_phrase,
                {name.lower(): text.replace("\0", "\ufffd") for name, text in response.headers.items()},
                await _beginning(response, deadline),
            )
        finally:
            await response.aclose()


async def _beginning(response: httpx.Response, deadline: float) -> bytes:
    """The first MAX_READ bytes of the body, as they were sent.

    The status has told already what became of the request, so that a body which breaks off or comes too
    slowly does not undo it: it is cut there.
    """
    read = bytearray()
    with suppress(httpx.HTTPError, OSError):  # a TimeoutError is an OSError
        async with asyncio.timeout_at(deadline):
            async for chunk in response.aiter_raw():
                read += chunk
                if len(read) >= MAX_READ:
                    break
    return bytes(read[:MAX_READ])


def _redirect(method: str, target: Target, answer: Answer) -> Target | None:
    """The redirect target; None unless it is a redirect that may be followed."""
    location = answer.headers.get("location")
    may_follow = answer.status in (307, 308) or (
        answer.status in (301, 302, 303) and method in ("GET", "HEAD")
    )
    if location is None or not may_follow:
        return None
    everything = "".join(map(chr, range(0x21, 0x7F)))
    try:
        following = parse_url(urljoin(target.url, quote(location, safe=everything)))
    except ValueError as error:
        raise Fail(f"{answer.status} redirect to an invalid URL: {error}") from None
    if (target.scheme, following.scheme) == ("https", "http"):
        raise Fail(f"{answer.status} redirect from https to http is not followed")
    return following


def _is_same_host(target: Target, following: Target) -> bool:
    """Whether a redirect stays where it was, or only changes from http to https there."""
    if following.host != target.host:
        return False
    before, after = (target.scheme, target.port), (following.scheme, following.port)
    return before == after or (before, after) == (("http", 80), ("https", 443))


def retry_after(text: str) -> float | None:
    """Seconds until the next attempt, at most an hour; None if the response doesn't say."""
    if text.isascii() and text.isdigit():
        return LONGEST_RETRY_AFTER if len(text) > 9 else min(float(text), LONGEST_RETRY_AFTER)
    date = parsedate_tz(text)
    with suppress(ValueError, OverflowError):
        return None if date is None else min(max(mktime_tz(date) - time.time(), 0.0), LONGEST_RETRY_AFTER)
    return None


@cache
def _tls() -> ssl.SSLContext:
    """How certificates are verified; created once, because it takes about 20 ms."""
    return httpx.create_ssl_context()
