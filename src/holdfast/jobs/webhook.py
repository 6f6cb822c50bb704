"""The type `webhook`: one HTTP request to somebody's server, signed if there is a secret.

It may be sent more than once: `Idempotency-Key` is the job's id, the same in every attempt, so that the
receiver can tell. A name is looked up once, every address of it is checked, and the connection goes to a
checked address itself: what the name means a moment later has no say.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from msgspec import Meta, Struct

from holdfast.context import Context
from holdfast.errors import ConfigError, Fail, Retry, one_line, shown
from holdfast.jobs.webhook_target import LONGEST_URL, Allowed, Target, checked_addresses, parse_url

if TYPE_CHECKING:
    import ssl

    import httpx

    from holdfast.jobs.public_address import Address

SECRET = "QUEUECTL_WEBHOOK_SECRET"
SECRET_FILE = "QUEUECTL_WEBHOOK_SECRET_FILE"
"""The variables of a worker's environment that say how to sign."""

LONGEST_RETRY_AFTER = 3600.0
DEFAULT_TIMEOUT = 30.0
CONNECT_TIMEOUT = 10.0
MAX_REDIRECTS = 5
MAX_READ = 64 * 1024
MAX_KEPT = 4 * 1024

KEPT_HEADERS = ("content-type", "date", "etag", "location", "retry-after", "x-request-id")
"""The headers of an answer that the result shows."""

OURS = frozenset(
    {
        *("idempotency-key", "user-agent", "webhook-attempt"),
        *("webhook-id", "webhook-timestamp", "webhook-signature"),
        *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive"),
        *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that a payload can't set: they are ours, or the connection's."""

HARMLESS = frozenset({"accept", "accept-language", "content-language", "content-type"})
"""Headers of a payload that a redirect takes along to another host; any other may be a credential."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[!-~\u00a0-\u00ff](?:[\t -~\u00a0-\u00ff]*[!-~\u00a0-\u00ff])?)?")


class Call(Struct, rename="camel", forbid_unknown_fields=True):
    """The payload of a webhook. A `body` of text is sent as it is, any other as JSON."""

    url: Annotated[str, Meta(min_length=1, max_length=LONGEST_URL)]
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] = "POST"
    headers: dict[str, str] | None = None
    body: Any = None
    timeout: Annotated[float, Meta(gt=0, le=3600)] | None = None

    def __post_init__(self) -> None:
        parse_url(self.url)
        _check_headers(self.headers or {})
        if self.body is not None and self.method in ("GET", "HEAD"):
            raise ValueError(f"body: a {self.method} request has none")


class Answer(Struct, frozen=True):
    """What came back. `body` is its beginning."""

    status: int
    reason: str
    headers: dict[str, str]
    body: bytes

    @property
    def text(self) -> str:
        """The body as it can be stored, up to MAX_KEPT bytes of it."""
        import codecs

        decoder = codecs.getincrementaldecoder("utf-8")("replace")  # a character that is cut is left out
        return decoder.decode(self.body[:MAX_KEPT]).replace("\0", "\ufffd")

    def summary(self) -> str:
        """The status and the first line of the body."""
        status = one_line(f"{self.status} {self.reason}".strip())[:80]
        line = next((line.strip() for line in self.text.splitlines() if line.strip()), "")
        return f"{status}: {one_line(line)[:200]}" if line else status


async def call(payload: Call, ctx: Context) -> dict[str, Any]:
    """Send the request. An answer of 2xx completes the job; status, headers and body are the result."""
    body = _body(payload)
    headers = {**_own_headers(ctx), **_content_type(payload), **_lower(payload.headers or {})}
    signature = _signature(ctx.idempotency_key, body)
    request = _Request(payload.method, headers, signature, body, payload.timeout or DEFAULT_TIMEOUT)
    target, answer = await _follow(request, parse_url(payload.url), Allowed.from_environment(), ctx)
    if 200 <= answer.status < 300:
        kept = {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers}
        return {"status": answer.status, "url": target.url, "headers": kept, "body": answer.text}
    if answer.status in (408, 429) or 500 <= answer.status < 600:
        raise Retry(answer.summary(), delay=_retry_after(answer.headers.get("retry-after")))
    raise Fail(answer.summary())


class _Request(Struct, frozen=True):
    """What is sent, whatever the target. `timeout` is for all of it, redirects included."""

    method: str
    headers: Mapping[str, str]
    signature: Mapping[str, str]
    body: bytes | None
    timeout: float

    def at_another_host(self) -> _Request:
        """The request without what might be a credential."""
        kept = {name: text for name, text in self.headers.items() if name in HARMLESS or name in OURS}
        return _Request(self.method, kept, {}, self.body, self.timeout)


async def _follow(request: _Request, target: Target, allowed: Allowed, ctx: Context) -> tuple[Target, Answer]:
    """Send the request, and again to where it is redirected; the last target and its answer."""
    import asyncio

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
    raise Fail(f"{MAX_REDIRECTS} redirects were followed, and the answer is another: {answer.summary()}")


async def _send(request: _Request, target: Target, allowed: Allowed, deadline: float) -> Answer:
    """Send the request to the first address of its target that can be reached."""
    import asyncio

    import httpx

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
        raise Retry(f"{target.host}: no answer within {request.timeout:g} s") from None
    except (httpx.HTTPError, httpx.InvalidURL, OSError) as error:
        problem = one_line(f"{type(error).__name__}: {error}" if str(error) else type(error).__name__)
        raise Retry(f"{target.host}: {problem[:300]}") from None
    raise Retry(f"{target.host}: the name has no address")


async def _send_to(address: Address, request: _Request, target: Target, deadline: float) -> Answer:
    """Send the request to an address. Host, and with TLS the name that is verified, are the target's own."""
    import asyncio

    import httpx

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
    import asyncio

    import httpx

    read = bytearray()
    try:
        async with asyncio.timeout_at(deadline):
            async for chunk in response.aiter_raw():
                read += chunk
                if len(read) >= MAX_READ:
                    break
    except (httpx.HTTPError, OSError):  # a TimeoutError is an OSError
        pass
    return bytes(read[:MAX_READ])


def _redirect(method: str, target: Target, answer: Answer) -> Target | None:
    """Where the answer leads; None if it is no redirect that may be followed."""
    from urllib.parse import quote, urljoin

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
        raise Fail(f"{answer.status} leads to a place that can't be called: {error}") from None
    if (target.scheme, following.scheme) == ("https", "http"):
        raise Fail(f"{answer.status} leads from https to http")
    return following


def _is_same_host(target: Target, following: Target) -> bool:
    """Whether a redirect stays where it was, or only changes from http to https there."""
    if following.host != target.host:
        return False
    before, after = (target.scheme, target.port), (following.scheme, following.port)
    return before == after or (before, after) == (("http", 80), ("https", 443))


def _check_headers(headers: Mapping[str, str]) -> None:
    seen: set[str] = set()
    for name, text in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"headers: {shown(name)} can't be the name of a header")
        if name.lower() in OURS:
            raise ValueError(f"headers: {name} is set by the worker")
        if name.lower() in seen:
            raise ValueError(f"headers: {name} stands there twice")
        if not _HEADER_VALUE.fullmatch(text):
            raise ValueError(
                f"headers: {name} holds a line end or another character that can't be in a header, "
                "or a space at its beginning or end"
            )
        seen.add(name.lower())


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): text for name, text in headers.items()}


def _own_headers(ctx: Context) -> dict[str, str]:
    package = sys.modules["holdfast"]  # not imported: its public names come from layers above this one
    return {
        "user-agent": f"holdfast/{package.__version__}",
        "idempotency-key": ctx.idempotency_key,
        "webhook-attempt": str(ctx.attempt),
        "accept": "*/*",
        "accept-encoding": "identity",  # a small answer can't unpack into a large one
        "connection": "close",
    }


def _body(payload: Call) -> bytes | None:
    import json

    if payload.body is None:
        return None
    if isinstance(payload.body, str):
        return payload.body.encode()
    return json.dumps(payload.body, ensure_ascii=False, separators=(",", ":")).encode()


def _content_type(payload: Call) -> dict[str, str]:
    if payload.body is None:
        return {}
    is_text = isinstance(payload.body, str)
    return {"content-type": "text/plain; charset=utf-8" if is_text else "application/json"}


def _signature(message_id: str, body: bytes | None) -> dict[str, str]:
    """The headers of Standard Webhooks, one signature for each secret; none without a secret."""
    import base64
    import hmac
    import time

    keys = _keys()
    if not keys:
        return {}
    sent_at = str(int(time.time()))
    content = f"{message_id}.{sent_at}.".encode() + (body or b"")
    made = [base64.b64encode(hmac.digest(key, content, "sha256")).decode() for key in keys]
    return {
        "webhook-id": message_id,
        "webhook-timestamp": sent_at,
        "webhook-signature": " ".join(f"v1,{signature}" for signature in made),
    }


def _keys() -> list[bytes]:
    """The keys to sign with: several while one is replaced by the next."""
    path = os.environ.get(SECRET_FILE)
    if not path:
        secret = os.environ.get(SECRET, "")
        return [_key(secret, SECRET)] if secret else []
    if os.environ.get(SECRET):
        raise ConfigError(f"{SECRET} and {SECRET_FILE} are both set; unset one")
    try:
        with open(path, encoding="utf-8") as file:
            secrets = [line.strip() for line in file if line.strip()]
    except (OSError, ValueError) as error:
        raise ConfigError(f"{SECRET_FILE} can't be read: {type(error).__name__}") from None
    if not secrets:
        raise ConfigError(f"{SECRET_FILE} names a file without a secret")
    return [_key(secret, SECRET_FILE) for secret in secrets]


def _key(secret: str, source: str) -> bytes:
    import base64

    if not secret.startswith("whsec_"):
        return secret.encode()
    try:
        key = base64.b64decode(secret.removeprefix("whsec_"), validate=True)
    except ValueError:
        key = b""
    if not key:
        raise ConfigError(f"{source}: what follows whsec_ is not base64")
    return key


def _retry_after(text: str | None) -> float | None:
    """Seconds until the next attempt, at most an hour; None where the answer does not tell."""
    import time
    from email.utils import mktime_tz, parsedate_tz

    if text is None:
        return None
    if text.isascii() and text.isdigit():
        return LONGEST_RETRY_AFTER if len(text) > 9 else min(float(text), LONGEST_RETRY_AFTER)
    date = parsedate_tz(text)
    if date is None:
        return None
    try:
        seconds = mktime_tz(date) - time.time()
    except (ValueError, OverflowError):
        return None
    return min(max(seconds, 0.0), LONGEST_RETRY_AFTER)


@cache
def _tls() -> ssl.SSLContext:
    """How certificates are verified; made once, since it takes some 20 ms."""
    import httpx

    return httpx.create_ssl_context()
