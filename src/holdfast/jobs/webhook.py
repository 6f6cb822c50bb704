"""The type `webhook`: one HTTP request, signed if there is a secret.

It may be sent more than once: `Idempotency-Key` is the job's id, the same in every attempt, so that the
receiver can detect a repeat. A host name is resolved once, every address is checked, and the connection goes
to a checked address, so later DNS changes have no effect.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from holdfast.context import Context
from holdfast.errors import Fail, Retry
from holdfast.jobs.webhook_target import LONGEST_URL, Allowed, parse_url
from holdfast.text import shown

DEFAULT_TIMEOUT = 30.0

KEPT_HEADERS = ("content-type", "date", "etag", "location", "retry-after", "x-request-id")
"""The response headers that are kept in the result."""

OURS = frozenset(
    {
        *("idempotency-key", "user-agent", "webhook-attempt"),
        *("webhook-id", "webhook-timestamp", "webhook-signature"),
        *("accept-encoding", "connection", "content-length", "expect", "host", "keep-alive"),
        *("proxy-authorization", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"),
    }
)
"""Headers that a payload can't set, because we or the connection set them."""

_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_HEADER_VALUE = re.compile(r"(?:[!-~\u00a0-\u00ff](?:[\t -~\u00a0-\u00ff]*[!-~\u00a0-\u00ff])?)?")


class Call(Struct, rename="camel", forbid_unknown_fields=True):
    """The payload of a webhook. A string `body` is sent as text, any other value as JSON."""

    url: Annotated[str, Meta(min_length=1, max_length=LONGEST_URL)]
    method: Literal["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"] = "POST"
    headers: dict[str, str] | None = None
    body: Any = None
    timeout: Annotated[float, Meta(gt=0, le=3600)] | None = None

    def __post_init__(self) -> None:
        parse_url(self.url)
        _check_headers(self.headers or {})
        if self.body is not None and self.method in ("GET", "HEAD"):
            raise ValueError(f"body: a {self.method} request can't have a body")


async def call(payload: Call, ctx: Context) -> dict[str, Any]:
    """Send the request. A 2xx response completes the job; its status, headers and body are the result."""
    from holdfast.jobs.webhook_request import Request, follow, retry_after
    from holdfast.jobs.webhook_signature import signature

    body, kind = _content(payload.body)
    given = {name.lower(): text for name, text in (payload.headers or {}).items()}
    headers = {**_own_headers(ctx), **kind, **given}
    signed = signature(ctx.idempotency_key, body)
    request = Request(payload.method, headers, signed, body, payload.timeout or DEFAULT_TIMEOUT)
    target, answer = await follow(request, parse_url(payload.url), Allowed.from_environment(), ctx)
    if 200 <= answer.status < 300:
        kept = {name: answer.headers[name] for name in KEPT_HEADERS if name in answer.headers}
        return {"status": answer.status, "url": target.url, "headers": kept, "body": answer.text}
    if answer.status in (408, 429) or 500 <= answer.status < 600:
        raise Retry(answer.summary(), delay=retry_after(answer.headers.get("retry-after", "")))
    raise Fail(answer.summary())


def _check_headers(headers: Mapping[str, str]) -> None:
    seen: set[str] = set()
    for name, text in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            raise ValueError(f"headers: {shown(name)} is not a valid header name")
        if name.lower() in OURS:
            raise ValueError(f"headers: {name} is set by the worker")
        if name.lower() in seen:
            raise ValueError(f"headers: duplicate header {name}")
        if not _HEADER_VALUE.fullmatch(text):
            raise ValueError(
                f"headers: {name} contains a line break or another invalid character, "
                "or begins or ends with a space"
            )
        seen.add(name.lower())


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


def _content(body: Any) -> tuple[bytes | None, dict[str, str]]:
    """A body as it is sent, and the header that tells its kind."""
    import json

    if body is None:
        return None, {}
    if isinstance(body, str):
        return body.encode(), {"content-type": "text/plain; charset=utf-8"}
    text = json.dumps(body, ensure_ascii=False, separators=(",", ":"))
    return text.encode(), {"content-type": "application/json"}
