"""What every page shares: templates, forms and their CSRF protection, and the notice after a change."""

from __future__ import annotations

import hmac
import json
import os
import re
from functools import cache
from typing import Any
from urllib.parse import parse_qs, quote, unquote

from fastapi import Request
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from msgspec import Struct
from starlette.responses import HTMLResponse, RedirectResponse, Response

from holdfast.core.clock import system_clock, to_datetime
from holdfast.core.job import Status
from holdfast.core.payload import decode_strictly
from holdfast.errors import InvalidPayload
from holdfast.observe import words
from holdfast.web.auth import Access, Right, outer_scheme
from holdfast.web.backend import root_of
from holdfast.web.dashboard.json_view import tree
from holdfast.web.errors import Refused, read_only

FORM_COOKIE = "holdfast_form"
NOTICE_COOKIE = "holdfast_notice"
FORM_FIELD = "form_token"
REFRESH = "holdfast-refresh"
"""A header of pages that are fetched again while they are open."""

_MOST_FIELDS = 2_000
_NOTICE_SECONDS = 30
_LONGEST_NOTICE = 300  # characters of up to 12 bytes in a cookie, which may have 4,096
_WORDS = "ago seconds bound percent number capped first_line plural sentence iso moment"
"""Wording shared with `queuectl`, as template filters."""

_TOKEN = re.compile(r"[0-9a-f]{32}")


@cache
def _templates() -> Environment:
    # Imported by name from this package alone; everything that is put into a page is escaped.
    environment = Environment(
        loader=PackageLoader("holdfast.web.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        auto_reload=False,  # a release that is being installed must not mix with the one that runs
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        pretty=lambda value: json.dumps(value, indent=2, ensure_ascii=False),
        marked=_marked,
        tree=tree,
        number_text=words.setting,
        **{name: getattr(words, name) for name in _WORDS.split()},
    )
    environment.globals.update(states=[status.value for status in Status])
    return environment


def _marked(text: str) -> Markup:
    """Plain text with what stands between backticks as code."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>%s</code>") % part if place % 2 else part for place, part in enumerate(parts)
    )


class Html(HTMLResponse):
    """A page. What the database holds may be text that can't be sent as it is."""

    def render(self, content: Any) -> bytes:
        return str(content).encode("utf-8", "replace")


def page(
    request: Request, name: str, status: int = 200, *, address: str | None = None, **values: Any
) -> HTMLResponse:
    """Render a template as a response.

    `address` is the page's own URL, if it differs from the requested one. `now` is the time that ages are
    relative to: the database's, if given.
    """
    access: Access = request.app.state.access
    form_token = request.cookies.get(FORM_COOKIE, "")
    is_new = not _TOKEN.fullmatch(form_token)
    if is_new:
        form_token = os.urandom(16).hex()
    # A page that is open and fetched again leaves a notice to the one that it is meant for.
    notice = None if REFRESH in request.headers else request.cookies.get(NOTICE_COOKIE)
    right = request.scope.get("holdfast.right", Right.NOTHING)
    path = request.scope["path"].removeprefix(root_of(request)) or "/"
    query = request.scope["query_string"].decode("latin-1")
    common: dict[str, Any] = {
        "root": root_of(request),
        "path": path,
        "here": address or (f"{path}?{query}" if query else path),
        "form_token": form_token,
        "notice": None if notice is None else _notice(notice),
        "may_look": right >= Right.LOOK,
        "may_change": right is Right.CHANGE,
        "has_login": access.needs_token,
        "now": to_datetime(system_clock()),
        "events": None,
    }
    response = Html(_templates().get_template(name).render(common | values), status)
    if is_new and right is Right.CHANGE:
        set_cookie(request, response, FORM_COOKIE, form_token)
    if notice is not None:
        delete_cookie(request, response, NOTICE_COOKIE)
    return response


def done(request: Request, path: str, notice: str, *, is_problem: bool = False) -> Response:
    """The answer to a change: to a page, on which a notice is shown once."""
    response = redirect(request, path)
    value = quote(("!" if is_problem else ".") + words.first_line(notice, _LONGEST_NOTICE), safe="")
    set_cookie(request, response, NOTICE_COOKIE, value, _NOTICE_SECONDS)
    return response


def redirect(request: Request, path: str) -> Response:
    """Redirect to one of our pages, whatever the path contains."""
    return RedirectResponse(f"{root_of(request)}{local_path(path)}", 303)


def _notice(value: str) -> dict[str, Any]:
    text = unquote(value)
    return {"text": text[1:], "is_problem": text.startswith("!")}


def set_cookie(
    request: Request, response: Response, name: str, value: str, seconds: int | None = None
) -> None:
    response.set_cookie(
        name,
        value,
        max_age=seconds,
        path=root_of(request) or "/",
        secure=scheme(request) == "https",
        httponly=True,
        samesite="strict",
    )


def delete_cookie(request: Request, response: Response, name: str) -> None:
    response.delete_cookie(name, path=root_of(request) or "/", httponly=True, samesite="strict")


def scheme(request: Request) -> str:
    """The one that the browser uses; a proxy that ends TLS says so."""
    own: str = request.scope["scheme"]
    return "https" if outer_scheme(dict(request.scope["headers"])) == "https" else own


def local_path(path: str) -> str:
    """A path on this server, never another site: no //host, no scheme, only plain characters."""
    is_plain = path.isascii() and path.isprintable() and "\\" not in path
    return path if is_plain and path.startswith("/") and not path.startswith("//") else "/"


class Headline(Struct, frozen=True):
    """A state, as a word and a sentence. `level` is good, busy, warning, problem or unknown."""

    level: str
    word: str
    text: str


class Form:
    """The fields of a submitted form."""

    def __init__(self, values: dict[str, list[str]]) -> None:
        self._values = values

    @classmethod
    def read(cls, body: bytes, *, most: int = _MOST_FIELDS, errors: str = "strict") -> Form:
        try:
            text = body.decode("ascii")
            values = parse_qs(
                text, keep_blank_values=True, max_num_fields=most, encoding="utf-8", errors=errors
            )
        except ValueError:
            raise Refused(400, "invalid_request", "the form or the URL can't be parsed") from None
        return cls(values)

    def get(self, name: str, default: str = "") -> str:
        return self._values.get(name, [default])[0]

    def list(self, name: str) -> list[str]:
        return self._values.get(name, [])

    def first_values(self) -> dict[str, str]:
        return {name: values[0] for name, values in self._values.items()}


def query_of(request: Request) -> Form:
    """The query parameters of a URL."""
    return Form.read(request.scope["query_string"])


async def submitted(request: Request) -> Form:
    """The form of a change, which must have been made here: it repeats what our cookie says.

    Another site's page can neither read the cookie nor have it sent along. The guard has looked at Origin and
    Sec-Fetch-Site already; this holds for browsers that send neither.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/x-www-form-urlencoded":
        raise Refused(400, "invalid_request", "a form must be sent as application/x-www-form-urlencoded")
    form = Form.read(await request.body())
    expected = request.cookies.get(FORM_COOKIE, "")
    if not _TOKEN.fullmatch(expected) or not hmac.compare_digest(
        expected.encode(), form.get(FORM_FIELD).encode("utf-8", "replace")
    ):
        raise Refused(403, "stale_form", "the form has expired or was sent from elsewhere; reload the page")
    return form


def payload_from(text: str) -> dict[str, Any]:
    """A payload that somebody has written as JSON."""
    try:
        payload = decode_strictly(text)
    except ValueError as error:
        raise InvalidPayload("payload", str(error)) from None
    if not isinstance(payload, dict):
        raise InvalidPayload("payload", "must be a JSON object")
    return payload


def require_change(request: Request) -> None:
    """For pages that only lead to a change: with a read token there is nothing behind them."""
    if request.scope["holdfast.right"] is not Right.CHANGE:
        raise read_only()
