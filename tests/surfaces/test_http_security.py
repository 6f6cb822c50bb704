"""Safe by default: who is answered over HTTP, what a page of another site can't do, and what never leaks."""

from __future__ import annotations

import asyncio
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urljoin, urlsplit

import httpx
import msgspec
import pytest
from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route

import holdfast
from holdfast import Queue
from holdfast.errors import ConfigError
from holdfast.store.open import store_of
from holdfast.web import create_app
from tests.support import wait_until
from tests.surfaces.live import Served, client, live
from tests.surfaces.raw import Answer, exchange
from tests.surfaces.support import Cli

pytestmark = pytest.mark.slow

TOKEN, READ_TOKEN = "hunter2-schlüssel", "look-only-and-no-more"
BEARER: Any = {"Authorization": f"Bearer {TOKEN}".encode()}
READER = {"Authorization": f"Bearer {READ_TOKEN}"}
OPEN = ("/healthz", "/readyz")
READING = ("GET", "HEAD")


class Operation(msgspec.Struct, frozen=True):
    method: str
    path: str


def operations(made: httpx.Client) -> list[Operation]:
    """All that the OpenAPI document names, on a job and a setting."""
    paths = made.get("/openapi.json", headers=BEARER).json()["paths"]
    found = [
        Operation(method.upper(), path.replace("{id}", "job1").replace("{key}", "max_attempts"))
        for path, methods in paths.items()
        for method in methods
    ]
    assert len(found) >= 25
    return found


def changes(made: httpx.Client) -> list[Operation]:
    found = [operation for operation in operations(made) if operation.method not in READING]
    assert {operation.method for operation in found} == {"POST", "PUT", "DELETE"}
    return [*found, Operation("POST", "/login"), Operation("POST", "/logout")]


def code(response: httpx.Response) -> Any:
    return response.json()["error"]["code"]


def send(made: httpx.Client, operation: Operation, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    query = "?once=true" if operation.path == "/api/events" else ""
    return made.request(operation.method, operation.path + query, headers=named)


def state(queue: Queue) -> tuple[object, ...]:
    """What a request could have changed."""
    return (
        [(job.id, job.status, job.version) for job in queue.jobs()],
        queue.config(),
        store_of(queue).list_paused(),
    )


@pytest.fixture
def guarded(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[httpx.Client]:
    """A client, still without a token, of a server that requires one and answers wrong ones at once."""
    monkeypatch.setattr("holdfast.web.failed_logins.LONGEST_SECONDS", 0.0)
    queue.enqueue("mail", {"to": "a@b.c"}, id="job1")
    with live(create_app(queue, TOKEN, READ_TOKEN)) as address, client(address) as made:
        yield made


# Host.

WRONG_HOSTS = [
    b"evil.example",
    b"evil.example:8000",
    b"localhost.evil.example",
    b"evil.example.localhost",
    b"localhost@evil.example",
    b"user@localhost",
    b"user:password@127.0.0.1",
    b"localhost/evil.example",
    b"localhost?evil.example",
    b"localhost#evil.example",
    b"localhost\\.evil.example",
    b"localhost:65536",
    b"localhost:80:80",
    b"localhost:http",
    b"localhost,evil.example",
    b"localhost evil.example",
    b"evil.example.",
    b"127.0.0.1.evil.example",
    b"127.1",
    b"2130706433",
    b"0x7f.1",
    b"0.0.0.0",
    b"203.0.113.1",
    b"[::]",
    b"[::2]:8000",
    b"[::1]evil.example",
    b"evil.example[::1]",
    b"::1",
    b"[fe80::1%25lo]",
    "löcalhost".encode(),
    "ⓛocalhost".encode(),
    b"\xff\xfe",
    b"",
    b":8000",
    b".",
    b"*",
]
RIGHT_HOSTS = [
    "localhost",
    "LOCALHOST",
    "localhost:1",
    "localhost.",
    "127.0.0.1",
    "127.0.0.2:80",
    "[::1]:8000",
]


def ask_as(address: str, host: bytes, path: bytes = b"/healthz") -> Answer:
    return exchange(address, b"GET %s HTTP/1.1\r\nHost: %s\r\nConnection: close\r\n\r\n" % (path, host))


def test_foreign_host_is_refused_on_every_path(api: httpx.Client) -> None:
    address = str(api.base_url)
    answers = {host: ask_as(address, host) for host in WRONG_HOSTS}
    assert {host: a.status for host, a in answers.items()} == dict.fromkeys(WRONG_HOSTS, 403)
    assert {a.code for a in answers.values()} == {"foreign_host"}
    for operation in operations(api):
        response = send(api, operation, Host="evil.example")
        assert (response.status_code, code(response)) == (403, "foreign_host"), operation
    for path in ("/", "/docs", "/login", "/static/holdfast.css", "/openapi.json", "/nowhere"):
        assert api.get(path, headers={"Host": "evil.example"}).status_code == 403, path


def test_loopback_names_are_served_with_any_port(api: httpx.Client) -> None:
    answers = {host: ask_as(str(api.base_url), host.encode()).status for host in RIGHT_HOSTS}
    assert answers == dict.fromkeys(RIGHT_HOSTS, 200)


def test_request_without_host_or_with_two_is_refused(api: httpx.Client, queue: Queue) -> None:
    address = str(api.base_url)
    old = exchange(address, b"GET /healthz HTTP/1.0\r\n\r\n")
    assert (old.status, old.code) == (403, "foreign_host")
    # HTTP/1.1 itself forbids these (RFC 9112, 3.2): they do not get as far as our rules.
    for lines in (
        b"",
        b"Host: localhost\r\nHost: localhost\r\n",
        b"Host: localhost\r\nHost: evil.example\r\n",
    ):
        answer = exchange(address, b"GET /healthz HTTP/1.1\r\n%s\r\n" % lines)
        assert (answer.status, answer.code) == (400, "invalid_request")

    # A server that lets them through meets our rules.
    hosts = [(b"host", b"localhost"), (b"host", b"localhost")]
    for headers in ([], hosts):
        assert asyncio.run(_call(create_app(queue), headers)) == 403


async def _call(app: FastAPI, headers: list[tuple[bytes, bytes]]) -> int:
    sent: list[Any] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def take(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/healthz",
        "raw_path": b"/healthz",
        "query_string": b"",
        "root_path": "",
        "headers": headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 2),
    }
    await app(scope, receive, take)
    return int(sent[0]["status"])


def test_allowed_hosts_are_served_beside_loopback_and_no_others(queue: Queue) -> None:
    with live(create_app(queue, TOKEN, allowed_hosts=["Queue.example.com", "[2001:db8::1]"])) as address:
        allowed = (b"queue.example.com", b"QUEUE.EXAMPLE.COM:444", b"[2001:db8::1]:8000", b"localhost")
        assert [ask_as(address, host).status for host in allowed] == [200] * 4
        foreign = (
            b"example.com",
            b"a.queue.example.com",
            b"queue.example.com.evil.example",
            b"[2001:db8::2]",
        )
        assert [ask_as(address, host).status for host in foreign] == [403] * 4


def test_star_allows_any_host_that_is_one(queue: Queue) -> None:
    with live(create_app(queue, TOKEN, allowed_hosts=["*"])) as address:
        assert ask_as(address, b"anything.example:9").status == 200
        assert ask_as(address, b"user@anything.example").status == 403
        assert ask_as(address, b"").status == 403


# Origin.

FOREIGN = [
    {"Origin": "https://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://localhost:1"},
    {"Sec_Fetch_Site": "cross-site"},
    {"Sec_Fetch_Site": "same-site"},
]


def test_another_site_s_page_can_change_nothing_by_any_method_on_any_path(
    api: httpx.Client, queue: Queue
) -> None:
    queue.enqueue("mail", id="job1")
    before = state(queue)
    for operation in changes(api):
        for headers in FOREIGN:
            response = send(api, operation, **headers)
            assert (response.status_code, code(response)) == (403, "foreign_origin"), (operation, headers)
    for method in ("OPTIONS", "PATCH", "TRACE", "QUERY"):
        response = api.request(method, "/api/tasks", headers={"Origin": "https://evil.example"})
        assert response.status_code == 403, method
    assert state(queue) == before


def test_foreign_origin_is_refused_before_the_token_is_asked(guarded: httpx.Client, queue: Queue) -> None:
    before = state(queue)
    for operation in changes(guarded):
        for headers in FOREIGN:
            named: Any = {name.replace("_", "-"): value for name, value in headers.items()}
            response = guarded.request(operation.method, operation.path, headers={**BEARER, **named})
            assert (response.status_code, code(response)) == (403, "foreign_origin"), (operation, headers)
    assert state(queue) == before


def test_own_page_and_programs_may_change_things(api: httpx.Client, queue: Queue) -> None:
    own = str(api.base_url)
    for headers in (
        {},
        {"Origin": own},
        {"Origin": own, "Sec-Fetch-Site": "same-origin"},
        {"Sec-Fetch-Site": "none"},
    ):
        response = api.post("/api/tasks", json={"type": "mail"}, headers=headers)
        assert response.status_code == 201, headers
    assert queue.count() == 4


LINK = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_link_of_a_foreign_page_makes_the_browser_ask_again_by_itself(api: httpx.Client, site: str) -> None:
    for path in ("/", "/docs", "/jobs?status=failed"):
        answer = api.get(path, headers={**LINK, "Sec-Fetch-Site": site})
        assert (answer.status_code, answer.headers.get("Refresh")) == (403, "0")
        assert api.get(path, headers={**LINK, "Sec-Fetch-Site": "same-origin"}).status_code == 200
    fetched = api.get("/", headers={"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors"})
    assert (fetched.status_code, fetched.headers.get("Refresh")) == (403, None)


@pytest.mark.parametrize(
    "headers",
    [
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors", "Sec-Fetch-Dest": "empty"},
        {"Sec-Fetch-Site": "cross-site", **LINK, "Sec-Fetch-Dest": "iframe"},
        {"Sec-Fetch-Site": "cross-site", **LINK, "Sec-Purpose": "prefetch"},
        {"Sec-Fetch-Site": "cross-site", **LINK},
        {"Sec-Fetch-Site": "cross-site"},
        {"Origin": "https://evil.example"},
    ],
)
def test_foreign_page_may_load_nothing_where_no_token_keeps_it_out(
    queue: Queue, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    app = create_app(queue)
    with live(app) as address, client(address) as made:
        monkeypatch.setattr(app.state.backend, "call", None)  # nothing is asked of the queue
        monkeypatch.setattr(app.state.backend, "read", None)
        for method in READING:
            for path in (
                "/",
                "/jobs?q=payload.a:1",
                "/api/tasks?search=payload.a:1",
                "/readyz",
                "/api/events",
            ):
                response = made.request(method, path, headers=headers)
                assert response.status_code == 403, path
        assert code(made.get("/api/tasks", headers=headers)) == "foreign_origin"


def test_where_a_token_or_an_outer_application_decides_a_foreign_page_is_none_of_our_business(
    guarded: httpx.Client, queue: Queue
) -> None:
    foreign: Any = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "cors", "Origin": "https://spa.example"}
    assert guarded.get("/api/tasks", headers={**BEARER, **foreign}).status_code == 200
    assert guarded.get("/api/tasks", headers=foreign).status_code == 401
    outer = from_address(create_app(queue, auth="outer"), "203.0.113.9", headers=foreign)
    assert outer.status_code == 200


def test_no_answer_opens_anything_to_other_origins(api: httpx.Client) -> None:
    asking = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    answers = [api.options(operation.path, headers=asking) for operation in operations(api)]
    answers += [send(api, operation, Origin="https://evil.example") for operation in operations(api)]
    answers += [api.options("/api/tasks", headers={"Origin": str(api.base_url)})]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")], answer


# Tokens.


def test_every_path_wants_the_token_but_those_of_health_login_and_static(
    guarded: httpx.Client, queue: Queue
) -> None:
    before = state(queue)
    for operation in operations(guarded):
        response = send(guarded, operation)
        if operation.path in OPEN:
            assert response.status_code in (200, 503), operation
            continue
        assert (response.status_code, code(response)) == (401, "unauthorized"), operation
        assert response.headers["WWW-Authenticate"] == "Bearer"
    for path in ("/", "/docs", "/openapi.json", "/metrics", "/nowhere", "/login/", "/healthz/x", "/static"):
        assert guarded.get(path).status_code == 401, path
        assert guarded.head(path).status_code == 401, path
    assert guarded.post("/logout").status_code == 401
    assert guarded.get("/login").status_code == 200
    assert guarded.get("/static/holdfast.css").status_code == 200
    assert state(queue) == before


def test_way_through_an_open_path_leads_nowhere(guarded: httpx.Client) -> None:
    for path in (
        "/static/../api/tasks",
        "/static/%2e%2e/api/tasks",
        "/static//api/tasks",
        "/static/../app.py",
        "/static/%2e%2e/auth.py",
        "/static/..%2f..%2fqueue.py",
        "/static//etc/passwd",
        "/static/%00",
        "/static/" + "x" * 5000,
    ):
        line = f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
        answer = exchange(str(guarded.base_url), line.encode())
        assert (answer.status, answer.code) == (404, "not_found"), path


WRONG_CREDENTIALS = [
    b"",
    b"Bearer",
    b"Bearer ",
    b"Bearer wrong",
    b"Bearer " + TOKEN[:-1].encode(),
    b"Bearer " + TOKEN.upper().encode(),
    b"Bearer " + TOKEN.encode("latin-1"),
    b"Bearer " + TOKEN.encode() + b" x",
    b"Bearer \xff\xfe\xfd",
    "Bearer ключ".encode(),
    b"Bearer " + b"x" * 20_000,
    b"Bearer: " + TOKEN.encode(),
    b"Basic " + TOKEN.encode(),
    b"Token " + TOKEN.encode(),
    b"Digest username=x",
    TOKEN.encode(),
    b", Bearer " + TOKEN.encode(),
]


def test_wrong_credentials_are_refused_whatever_their_bytes(guarded: httpx.Client, queue: Queue) -> None:
    before = state(queue)
    for given in WRONG_CREDENTIALS:
        for method in (b"GET", b"POST"):
            lines = [b"%s /api/tasks HTTP/1.1" % method, b"Host: localhost", b"Authorization: " + given]
            answer = exchange(str(guarded.base_url), b"\r\n".join([*lines, b"Connection: close", b"", b""]))
            assert (answer.status, answer.code) == (401, "unauthorized"), given
            assert TOKEN.encode() not in answer.body
    assert state(queue) == before


def test_token_in_the_query_or_another_header_is_none(guarded: httpx.Client) -> None:
    assert guarded.get("/api/tasks", params={"token": READ_TOKEN}).status_code == 401
    assert guarded.get("/api/tasks", headers={"X-Token": READ_TOKEN}).status_code == 401
    assert guarded.get("/api/tasks", headers={"Cookie": f"holdfast_session={READ_TOKEN}"}).status_code == 401


def test_right_token_lets_in_whatever_the_case_of_its_scheme(guarded: httpx.Client) -> None:
    for scheme in ("Bearer", "bearer", "BEARER"):
        headers: Any = {"Authorization": f"{scheme} {TOKEN}".encode()}
        assert guarded.get("/api/tasks", headers=headers).status_code == 200
        assert guarded.post("/api/tasks", json={"type": "mail"}, headers=headers).status_code == 201


def test_read_token_may_look_at_everything(guarded: httpx.Client) -> None:
    for operation in operations(guarded):
        if operation.method == "GET":
            response = send(guarded, operation, **READER)
            assert response.status_code not in (401, 403), operation
            assert response.status_code < 500 or operation.path == "/readyz"
    for path in ("/docs", "/openapi.json", "/"):
        assert guarded.get(path, headers=READER).status_code in (200, 303)


def test_read_token_may_change_nothing(guarded: httpx.Client, queue: Queue) -> None:
    before = state(queue)
    for operation in changes(guarded)[:-2]:
        response = send(guarded, operation, **READER)
        assert (response.status_code, code(response)) == (403, "read_only"), operation
    for method in ("OPTIONS", "PATCH", "TRACE", "QUERY"):
        assert guarded.request(method, "/api/tasks", headers=READER).status_code == 403, method
    assert state(queue) == before


def test_enqueue_rate_is_one_for_a_token_however_it_is_said(queue: Queue) -> None:
    with live(create_app(queue, TOKEN, enqueue_rate=0.01)) as address, client(address) as made:
        made.post("/login", data={"token": TOKEN})
        ways: list[dict[str, Any]] = [
            {"headers": BEARER},
            {"headers": {"Authorization": f"Bearer   {TOKEN}".encode()}},
            {"headers": {"Authorization": f"bearer {TOKEN}".encode()}},
            {"headers": {**BEARER, "X-Forwarded-For": "203.0.113.1"}},
            {},
        ]
        statuses = [made.post("/api/tasks", json={"type": "mail"}, **way).status_code for way in ways]
        made.post("/login", data={"token": TOKEN})
        statuses.append(made.post("/api/tasks", json={"type": "mail"}).status_code)
    assert statuses == [201, 429, 429, 429, 429, 429]


# The login.


def log_in(made: httpx.Client, token: str = TOKEN, **form: str) -> httpx.Response:
    return made.post("/login", data={"token": token, **form})


def cookie_of(response: httpx.Response) -> Any:
    return SimpleCookie(response.headers["Set-Cookie"])["holdfast_session"]


def test_login_gives_a_cookie_that_scripts_and_other_sites_do_not_get(guarded: httpx.Client) -> None:
    response = log_in(guarded)
    cookie = cookie_of(response)
    assert response.status_code == 303
    assert cookie["httponly"] is True
    assert cookie["samesite"].lower() == "strict"
    assert int(cookie["max-age"]) == 12 * 3600
    assert cookie["path"] == "/"
    assert cookie["domain"] == ""
    assert cookie["secure"] == ""
    assert TOKEN not in response.headers["Set-Cookie"]


def test_cookie_is_secure_where_the_proxy_speaks_https(guarded: httpx.Client) -> None:
    response = guarded.post("/login", data={"token": TOKEN}, headers={"X-Forwarded-Proto": "https"})
    assert cookie_of(response)["secure"] is True


def test_cookie_is_as_good_as_the_token_it_was_given_for(guarded: httpx.Client) -> None:
    log_in(guarded)
    assert guarded.get("/api/tasks").status_code == 200
    assert guarded.post("/api/tasks", json={"type": "mail"}).status_code == 201
    guarded.cookies.clear()
    log_in(guarded, READ_TOKEN)
    assert guarded.get("/api/tasks").status_code == 200
    response = guarded.post("/api/tasks", json={"type": "mail"})
    assert (response.status_code, code(response)) == (403, "read_only")


def test_cookie_does_not_excuse_a_foreign_origin(guarded: httpx.Client) -> None:
    log_in(guarded)
    response = guarded.post("/api/tasks", json={"type": "mail"}, headers={"Origin": "https://evil.example"})
    assert (response.status_code, code(response)) == (403, "foreign_origin")


def test_wrong_header_is_not_made_good_by_a_cookie(guarded: httpx.Client) -> None:
    log_in(guarded)
    assert guarded.get("/api/tasks", headers={"Authorization": "Bearer wrong"}).status_code == 401


def test_login_with_a_wrong_token_gives_no_cookie(guarded: httpx.Client) -> None:
    for token in ("", "wrong", "ключ", "\udcff", " ", "x" * 1000, "<script>"):
        quoted = "".join(f"%{byte:02x}" for byte in token.encode("utf-8", "surrogateescape"))
        response = guarded.post("/login", content=f"token={quoted}".encode())
        assert response.status_code == 401, token
        assert "Set-Cookie" not in response.headers
        assert "Wrong token" in response.text
        assert "<script>" not in response.text


def test_form_that_can_t_be_read_is_refused(guarded: httpx.Client) -> None:
    for form in (b"\xff\xfe", b"&".join([b"a=1"] * 100), "token=ключ".encode()):
        response = guarded.post("/login", content=form)
        assert (response.status_code, code(response)) == (400, "invalid_request"), form


def test_forged_expired_and_foreign_cookies_are_refused(
    guarded: httpx.Client, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    good = cookie_of(log_in(guarded)).value
    with live(create_app(queue, "another token, as long")) as address, client(address) as other:
        foreign = cookie_of(log_in(other, "another token, as long")).value
    guarded.cookies.clear()

    def status(value: str | bytes) -> int:
        raw = value if isinstance(value, bytes) else value.encode()
        headers: Any = {"Cookie": b"a=b; holdfast_session=" + raw}
        return guarded.get("/api/tasks", headers=headers).status_code

    assert status(good) == 200
    right, until, chance, signature = good.split(".")
    for forged in (
        "",
        "2",
        foreign,
        good[:-1],
        good + "0",
        f"1.{until}.{chance}.{signature}",
        f"{right}.{int(until) + 1}.{chance}.{signature}",
        f"{right}.{until}.{chance}.",
        f"{right}.{until}.{chance}.{'0' * 64}",
        b"\xff.\xff.\xff.\xff",
    ):
        assert status(forged) == 401, forged
    now = time.time()
    monkeypatch.setattr("holdfast.web.auth.time.time", lambda: now + 12 * 3600 - 60)
    assert status(good) == 200
    monkeypatch.setattr("holdfast.web.auth.time.time", lambda: now + 12 * 3600 + 60)
    assert status(good) == 401


@pytest.mark.parametrize("token", [TOKEN, READ_TOKEN])
def test_logout_takes_the_cookie_back(guarded: httpx.Client, token: str) -> None:
    log_in(guarded, token)
    assert guarded.cookies
    response = guarded.post("/logout")
    assert (response.status_code, response.headers["Location"]) == (303, "/login")
    assert not guarded.cookies
    assert guarded.get("/api/tasks").status_code == 401


def test_person_without_a_token_is_sent_to_the_login_and_back(guarded: httpx.Client) -> None:
    html = {"Accept": "text/html,*/*"}
    response = guarded.get("/docs", headers=html)
    assert (response.status_code, response.headers["Location"]) == (303, "/login?next=/docs")
    page = guarded.get(response.headers["Location"])
    assert 'name="next" value="/docs"' in page.text
    assert log_in(guarded, next="/docs").headers["Location"] == "/docs"
    assert guarded.get("/docs", headers=html).status_code == 200


ELSEWHERE = [
    "//evil.example",
    "///evil.example",
    "https://evil.example",
    "http:evil.example",
    "/\\evil.example",
    "\\\\evil.example",
    "/\t/evil.example",
    "\t//evil.example",
    " //evil.example",
    "/\r\nSet-Cookie: a=b",
    "/\x00//evil.example",
    "javascript:alert(1)",
    "data:text/html,x",
    "evil.example",
    "@evil.example",
    ".evil.example",
    "",
    "/ö",
]


def test_login_leads_to_no_other_site(guarded: httpx.Client) -> None:
    address = str(guarded.base_url)
    for target in ELSEWHERE:
        shown = guarded.get("/login", params={"next": target})
        hidden = re.search(r'name="next" value="([^"]*)"', shown.text)
        assert hidden is not None
        answer = log_in(guarded, next=target)
        for place in (hidden[1], answer.headers["Location"]):
            assert place.startswith("/"), target
            assert urlsplit(urljoin(address, place)).netloc == urlsplit(address).netloc, target
            assert not re.match(r"[/\\]{2}", place), target
        assert "a" not in SimpleCookie(answer.headers["Set-Cookie"])


def test_login_page_escapes_what_it_was_given(guarded: httpx.Client) -> None:
    for text in ('/"><script>alert(1)</script>', "/'onfocus='alert(1)", "/{{7*7}}"):
        page = guarded.get("/login", params={"next": text}).text
        assert "<script>" not in page
        assert "'onfocus='" not in page
        assert "49" not in page


def test_without_a_token_no_login_is_shown(api: httpx.Client) -> None:
    for response in (api.get("/login", params={"next": "/docs"}), log_in(api, next="/docs")):
        assert (response.status_code, response.headers["Location"]) == (303, "/docs")
        assert "Set-Cookie" not in response.headers
    for target in ELSEWHERE:
        assert api.get("/login", params={"next": target}).headers["Location"] == "/", target


# Clients of other machines.


def from_address(app: FastAPI, address: str, path: str = "/api/tasks", **options: Any) -> httpx.Response:
    """Ask an application as a client of this address does."""

    async def ask() -> httpx.Response:
        transport = httpx.ASGITransport(app, client=(address, 1234))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as made:
            return await made.request(options.pop("method", "GET"), path, **options)

    try:
        return asyncio.run(ask())
    finally:
        app.state.backend.close()


@pytest.mark.parametrize(
    "address", ["203.0.113.9", "198.51.100.1", "0.0.0.0", "2001:db8::1", "::ffff:203.0.113.9", "", "x"]
)
def test_without_a_token_clients_of_other_machines_are_refused(queue: Queue, address: str) -> None:
    spoofed = {"X-Forwarded-For": "127.0.0.1", "Forwarded": "for=127.0.0.1", "X-Real-IP": "127.0.0.1"}
    app = create_app(queue)
    for path in ("/api/tasks", "/healthz", "/docs", "/login", "/static/holdfast.css"):
        for headers in ({}, spoofed):
            response = from_address(app, address, path, headers=headers)
            assert (response.status_code, code(response)) == (403, "forbidden"), path


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.9.10", "::1", "::ffff:127.0.0.1"])
def test_without_a_token_clients_of_this_machine_are_answered(queue: Queue, address: str) -> None:
    assert from_address(create_app(queue), address).status_code == 200


def test_client_that_a_proxy_names_counts_as_of_another_machine(api: httpx.Client) -> None:
    response = api.get("/api/tasks", headers={"X-Forwarded-For": "203.0.113.9"})
    assert (response.status_code, code(response)) == (403, "forbidden")


@pytest.mark.parametrize(
    "headers",
    [
        {"X-Forwarded-For": "127.0.0.1, 203.0.113.9"},
        {"X-Forwarded-For": "203.0.113.9, 127.0.0.1"},
        {"X-Forwarded-For": "unknown"},
        {"Forwarded": "for=127.0.0.1"},
        {"X-Real-IP": "203.0.113.9"},
    ],
)
def test_client_that_names_this_machine_beside_its_own_is_not_believed(
    api: httpx.Client, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "*")
    response = api.get("/api/tasks", headers=headers)
    assert (response.status_code, code(response)) == (403, "forbidden")


@pytest.mark.parametrize("name", ["X-Forwarded-For", "X-Real-IP"])
def test_every_line_that_names_a_client_counts(api: httpx.Client, name: str) -> None:
    for addresses in (["203.0.113.9", "127.0.0.1"], ["127.0.0.1", "203.0.113.9"]):
        lines = "".join(f"{name}: {address}\r\n" for address in addresses)
        answer = exchange(
            str(api.base_url), f"GET /api/tasks HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n".encode()
        )
        assert (answer.status, answer.code) == (403, "forbidden")
    assert api.get("/api/tasks", headers={name: "127.0.0.1"}).status_code == 200


def test_enqueue_rate_is_not_evaded_by_naming_other_addresses(queue: Queue) -> None:
    with live(create_app(queue, enqueue_rate=0.01)) as address, client(address) as made:
        statuses = [
            made.post("/api/tasks", json={"type": "mail"}, headers={"X-Forwarded-For": f"127.0.0.{n}"})
            for n in range(2, 5)
        ]
    assert [response.status_code for response in statuses] == [201, 429, 429]


def test_basic_authentication_of_a_proxy_does_not_hide_the_cookie(guarded: httpx.Client) -> None:
    log_in(guarded)
    response = guarded.get("/api/tasks", headers={"Authorization": "Basic cHJveHk6c2VjcmV0"})
    assert response.status_code == 200


def test_login_leads_back_to_the_whole_address(guarded: httpx.Client) -> None:
    response = guarded.get("/docs?a=1&b=2", headers={"Accept": "text/html"})
    assert (response.status_code, response.headers["Location"]) == (303, "/login?next=/docs%3Fa%3D1%26b%3D2")


def test_with_a_token_clients_of_other_machines_are_answered(queue: Queue) -> None:
    assert from_address(create_app(queue, TOKEN), "203.0.113.9", headers=BEARER).status_code == 200
    assert from_address(create_app(queue, TOKEN), "203.0.113.9").status_code == 401


# Other applications.


def test_outer_application_authenticates_and_the_rest_of_the_rules_holds(queue: Queue) -> None:
    def ask(**options: Any) -> httpx.Response:
        return from_address(create_app(queue, auth="outer"), "203.0.113.9", **options)

    assert ask().status_code == 200
    assert ask(headers={"Host": "anything.example"}).status_code == 200
    assert ask(headers={"Host": "user@anything.example"}).status_code == 403
    assert ask(method="POST", json={"type": "mail"}).status_code == 201
    refused = ask(method="POST", json={"type": "mail"}, headers={"Origin": "https://evil.example"})
    assert (refused.status_code, code(refused)) == (403, "foreign_origin")
    shell = ask(method="POST", json={"type": "shell", "payload": {"command": "true"}})
    assert (shell.status_code, code(shell)) == (403, "type_not_allowed")
    assert ask(path="/login").status_code == 303


@pytest.mark.parametrize(
    "options",
    [
        {"auth": "outer", "token": TOKEN},
        {"auth": "none"},
        {"read_token": READ_TOKEN},
        {"token": ""},
        {"token": TOKEN, "read_token": TOKEN},
        {"token": "x" * 15},
        {"token": TOKEN, "read_token": "x" * 15},
        {"allowed_hosts": ["http://x"]},
        {"allowed_hosts": "localhost"},
        {"allow_types": "shell"},
        {"allow_types": ["no type"]},
        {"enqueue_rate": -1},
        {"enqueue_rate": float("nan")},
    ],
)
def test_unsafe_options_of_an_application_are_refused(queue: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        create_app(queue, **options)


def in_fastapi(inner: FastAPI, prefix: str) -> FastAPI:
    outer = FastAPI()
    outer.mount(prefix, inner)

    @outer.get("/healthz")
    def healthz() -> str:
        return "outer"

    return outer


def in_starlette(inner: FastAPI, prefix: str) -> Starlette:
    return Starlette(routes=[Mount(prefix, inner), Route("/healthz", lambda _: PlainTextResponse('"outer"'))])


@contextmanager
def mounted(wrap: Callable[[FastAPI, str], Any], inner: FastAPI, prefix: str) -> Iterator[httpx.Client]:
    outer = wrap(inner, prefix)
    outer.state.backend = inner.state.backend
    with live(outer) as address, client(address) as made:
        yield made
    inner.state.backend.close()


@pytest.mark.parametrize("wrap", [in_fastapi, in_starlette])
@pytest.mark.parametrize("prefix", ["/queue", "/tools/queue"])
def test_everything_works_under_the_prefix_of_another_application(
    queue: Queue, wrap: Callable[[FastAPI, str], Any], prefix: str
) -> None:
    inner = create_app(queue, TOKEN, READ_TOKEN)
    with mounted(wrap, inner, prefix) as made:
        assert made.get("/healthz").json() == "outer"
        assert made.get(f"{prefix}/healthz").json() == {"status": "ok"}
        assert made.get(f"{prefix}/healthz", headers={"Host": "evil.example"}).status_code == 403
        assert made.get(f"{prefix}/api/tasks").status_code == 401
        assert made.post(f"{prefix}/api/tasks", json={}, headers=READER).status_code == 403
        refused = made.post(f"{prefix}/api/tasks", json={}, headers={**BEARER, "Origin": "null"})
        assert refused.status_code == 403

        asked = made.get(f"{prefix}/docs", headers={"Accept": "text/html"})
        assert (asked.status_code, asked.headers["Location"]) == (303, f"{prefix}/login?next=/docs")
        login = made.get(asked.headers["Location"])
        assert f'action="{prefix}/login"' in login.text
        entered = made.post(f"{prefix}/login", data={"token": TOKEN, "next": "/docs"})
        assert (entered.status_code, entered.headers["Location"]) == (303, f"{prefix}/docs")
        assert cookie_of(entered)["path"] == prefix

        docs = made.get(f"{prefix}/docs")
        assert docs.status_code == 200
        links = re.findall(r'(?:href|src)="(/[^"]*)"', docs.text)
        assert f"{prefix}/static/holdfast.css" in links
        assert {made.get(link).status_code for link in links} == {200}
        assert f'href="{prefix}/docs"' in made.get(f"{prefix}/").text

        stored = made.post(f"{prefix}/api/tasks", json={"type": "mail"})
        assert stored.headers["Location"] == f"{prefix}/api/tasks/{stored.json()['id']}"
        assert made.get(stored.headers["Location"]).json()["id"] == stored.json()["id"]
        left = made.post(f"{prefix}/logout")
        assert left.headers["Location"] == f"{prefix}/login"
        assert made.get(f"{prefix}/api/tasks").status_code == 401


def test_behind_a_proxy_links_have_the_path_that_it_puts_before_ours(queue: Queue) -> None:
    with live(create_app(queue, TOKEN), root_path="/queue") as address, client(address) as made:
        assert made.get("/healthz").status_code == 200
        assert made.get("/api/tasks").status_code == 401
        asked = made.get("/docs", headers={"Accept": "text/html"})
        assert asked.headers["Location"] == "/queue/login?next=/docs"
        entered = made.post("/login", data={"token": TOKEN, "next": "/docs"})
        assert entered.headers["Location"] == "/queue/docs"
        assert cookie_of(entered)["path"] == "/queue"
        docs = made.get("/docs", headers=BEARER)
        assert 'href="/queue/static/holdfast.css"' in docs.text
        assert made.get("/static/holdfast.css").status_code == 200
        stored = made.post("/api/tasks", json={"type": "mail"}, headers=BEARER)
        assert stored.headers["Location"] == f"/queue/api/tasks/{stored.json()['id']}"


# Headers, pages, errors.

SECURITY = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def assert_safe(headers: Any, what: object) -> None:
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'", what
    assert policy["script-src"] == "'self'", what
    assert policy["style-src"] == "'self'", what
    assert policy["frame-ancestors"] == policy["base-uri"] == "'none'", what
    assert policy["form-action"] == "'self'", what
    assert "unsafe" not in headers["content-security-policy"], what
    assert {name: headers[name] for name in SECURITY} == SECURITY, what
    assert headers["cache-control"] in ("no-store", "no-cache"), what
    assert "server" not in headers, what


def test_every_answer_says_what_a_browser_may_do_with_it(
    guarded: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    for operation in operations(guarded):
        for headers in ({}, READER):
            assert_safe(send(guarded, operation, **headers).headers, operation)
    expected = {
        ("GET", "/"): 200,
        ("GET", "/docs"): 200,
        ("HEAD", "/docs"): 200,
        ("GET", "/login"): 200,
        ("GET", "/openapi.json"): 200,
        ("GET", "/static/holdfast.css"): 200,
        ("GET", "/static/nothing"): 404,
        ("GET", "/nowhere"): 404,
        ("PATCH", "/api/tasks"): 405,
        ("POST", "/api/tasks"): 400,
        ("GET", "/api/tasks?limit=0"): 400,
        ("GET", "/api/tasks/none"): 404,
    }
    for (method, path), status in expected.items():
        response = guarded.request(method, path, headers=BEARER)
        assert response.status_code == status, path
        assert_safe(response.headers, path)
    assert_safe(guarded.get("/docs", headers={"Host": "evil.example"}).headers, "403")
    assert_safe(guarded.get("/docs", headers={"Accept": "text/html"}).headers, "303")
    garbage = exchange(str(guarded.base_url), b"\x16\x03\x01\x02\x00\r\n\r\n")
    assert garbage.status == 400
    assert_safe(garbage.headers, "400")


def test_answer_after_a_mistake_of_ours_is_safe_and_tells_nothing(
    api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: Queue) -> None:
        raise RuntimeError("hunter2 in /etc/secret")

    monkeypatch.setattr("holdfast.web.api.control.answer_questions", fail)
    response = api.get("/api/report")
    assert (response.status_code, code(response)) == (500, "internal")
    assert "hunter2" not in response.text
    assert "Traceback" not in response.text
    assert_safe(response.headers, "500")


class Injected(msgspec.Struct):
    """<script>alert(1)</script><img src=x onerror=alert(1)>"""

    to: Literal["<script>alert(2)</script>"]


def test_pages_run_nothing_and_load_nothing_from_elsewhere(queue: Queue) -> None:
    def mail(payload: Injected) -> None: ...

    queue.register("mail", mail)
    with live(create_app(queue, TOKEN)) as address, client(address) as made:
        pages = [made.get(path, headers=BEARER).text for path in ("/docs", "/login")]
    for page in pages:
        assert not re.search(r"<script(?![^>]*\bsrc=)", page)
        assert not re.search(r"<style|<[^>]+\s(?:style|on\w+)=", page)
        assert not re.search(r"""(?:src|href|action)=["'](?!/|#)""", page)
        assert not re.search(r"""(?:src|href|action)=["']//""", page)
    assert "alert(2)" in pages[0]  # it is there, as text


def test_head_gets_the_headers_of_get_and_changes_nothing(guarded: httpx.Client) -> None:
    response = guarded.head("/docs", headers=BEARER)
    assert response.status_code == 200
    assert response.content == b""
    assert int(response.headers["Content-Length"]) > 1000


# Built-in types.

COMMAND = {"type": "shell", "payload": {"command": "touch hacked"}}


@pytest.mark.parametrize("type", ["shell", "shell:media", "shell:a:b"])
def test_built_in_type_is_refused_by_every_way_in(api: httpx.Client, queue: Queue, type: str) -> None:
    queue.enqueue(type, {"command": "true"}, id="old")
    queue.cancel("old")
    task = {**COMMAND, "type": type}
    for response in (
        api.post("/api/tasks", json=task),
        api.post("/api/tasks", json={**task, "options": {"idempotencyKey": "k"}}),
        api.post("/api/tasks/batch", json={"tasks": [{"type": "mail"}, task]}),
        api.post("/api/tasks/old/retry", json={"payload": {"command": "touch hacked"}}),
    ):
        assert (response.status_code, code(response)) == (403, "type_not_allowed")
        assert "--allow-type shell" in response.json()["error"]["message"]
    (job,) = queue.jobs()
    assert (job.id, job.status, job.payload) == ("old", "cancelled", {"command": "true"})


def test_built_in_job_may_be_operated_as_it_is(api: httpx.Client, queue: Queue) -> None:
    queue.enqueue("shell", {"command": "true"}, id="old")
    assert api.post("/api/tasks/old/cancel").status_code == 200
    assert api.post("/api/tasks/old/retry").status_code == 200
    assert api.post("/api/tasks/old/cancel").status_code == 200
    assert api.delete("/api/tasks/old").status_code == 204


def test_built_in_type_is_taken_where_it_is_allowed_by_name(queue: Queue) -> None:
    with live(create_app(queue, allow_types=["shell"])) as address, client(address) as made:
        assert made.post("/api/tasks", json=COMMAND).status_code == 201
        assert made.post("/api/tasks", json={**COMMAND, "type": "shell:media"}).status_code == 201
        assert made.post("/api/tasks/batch", json={"tasks": [COMMAND]}).status_code == 201
    with live(create_app(queue, allow_types=["shell:media"])) as address, client(address) as made:
        assert made.post("/api/tasks", json={**COMMAND, "type": "shell:media"}).status_code == 201
        assert made.post("/api/tasks", json={**COMMAND, "type": "shell:other"}).status_code == 403
        assert made.post("/api/tasks", json=COMMAND).status_code == 403


# Secrets in payloads.


def test_secrets_of_payloads_and_results_are_not_shown(api: httpx.Client, jobs: Queue) -> None:
    payload = {"to": "a@b.c", "smtp": {"password": "hunter2"}, "keys": [{"apiKey": "hunter2"}]}
    jobs.enqueue("echo", payload, id="job1")
    assert jobs.drain() == 1
    shown = api.get("/api/tasks/job1").json()
    expected = {"to": "a@b.c", "smtp": {"password": "[redacted]"}, "keys": [{"apiKey": "[redacted]"}]}
    assert shown["payload"] == shown["result"] == expected
    paths = ("/api/tasks", "/api/tasks?full=true", "/api/tasks/job1", "/api/tasks/job1/why", "/api/report")
    for path in (*paths, "/api/events?once=true", "/api/events?once=true&id=job1", "/metrics"):
        response = api.get(path)
        assert response.status_code == 200
        assert "hunter2" not in response.text, path


def test_secret_that_still_shows_as_redacted_keeps_its_value_on_retry(api: httpx.Client, jobs: Queue) -> None:
    jobs.enqueue("echo", {"to": "a@b.c", "password": "hunter2", "token": "t1"}, id="job1")
    jobs.cancel("job1")
    edited = {"to": "x@y.z", "password": "[redacted]", "token": "t2"}
    assert api.post("/api/tasks/job1/retry", json={"payload": edited}).status_code == 200
    job = jobs.get("job1")
    assert job is not None
    assert job.payload == {"to": "x@y.z", "password": "hunter2", "token": "t2"}


def test_marker_without_a_stored_secret_is_refused(api: httpx.Client, jobs: Queue) -> None:
    jobs.enqueue("echo", {"to": "a@b.c"}, id="job1")
    jobs.cancel("job1")
    response = api.post("/api/tasks/job1/retry", json={"payload": {"token": "[redacted]"}})
    assert (response.status_code, code(response)) == (400, "invalid_payload")
    job = jobs.get("job1")
    assert job is not None
    assert (job.status, job.payload) == ("cancelled", {"to": "a@b.c"})


# The program.


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--host", "0.0.0.0"], "requires a token"),
        (["--host", "::"], "requires a token"),
        (["--host", ""], "requires a token"),
        (["--host", "192.0.2.1"], "requires a token"),
        (["--host", "queue.example.com"], "requires a token"),
        (["--host", "127.0.0.1.evil.example"], "requires a token"),
        (["--host", "0.0.0.0", "--read-token", READ_TOKEN], "requires a token"),
        (["--host", "0.0.0.0", "--token", ""], "the token is too short"),
        (["--token", " "], "the token is too short"),
        (["--token", "a\nb"], "the token must be printable"),
        (["--token", "x" * 15], "the token is too short: at least 16 characters are required"),
        (["--token", TOKEN, "--read-token", ""], "the read-only token is too short"),
        (["--token", TOKEN, "--read-token", TOKEN], "must be different"),
        (["--read-token", READ_TOKEN], "requires a full-access token too"),
        (["--allow-host", "http://x"], "is not a host name"),
        (["--allow-host", ""], "is not a host name"),
        (["--allow-type", "no type"], "type"),
        (["--root-path", "queue"], "must be a path such as /queue"),
        (["--root-path", "//evil.example"], "must be a path such as /queue"),
        (["--root-path", "/a b"], "must be a path such as /queue"),
        (["--root-path", "/q?x"], "must be a path such as /queue"),
        (["--port", "65536"], "--port must be"),
        (["--port", "-1"], "--port must be"),
        (["--port", "http"], "--port"),
        (["--workers", "-1"], "--workers must be"),
        (["--workers", "100000"], "--workers must be"),
        (["--enqueue-rate", "-1"], "--enqueue-rate must be"),
        (["--enqueue-rate", "nan"], "--enqueue-rate must be"),
        (["--log-format", "xml"], "--log-format"),
        (["--tokens", "x"], "--tokens"),
        (["extra"], "extra"),
    ],
)
def test_serve_refuses_unsafe_and_wrong_options_in_one_line(cli: Cli, words: list[str], message: str) -> None:
    ran = cli("serve", "--port", "0", *words)
    assert ran.code == 2
    assert len(ran.errors) == 1
    assert message in ran.err
    assert ran.out == ""


@pytest.mark.parametrize("host", ["a..b", "b" * 70, "no.such.host.invalid"])
def test_serve_says_in_one_line_that_it_can_t_listen(cli: Cli, host: str) -> None:
    ran = cli("serve", "--port", "0", "--host", host, "--token", TOKEN)
    assert ran.code in (1, 2)
    assert len(ran.errors) == 1
    assert re.search(f"can't listen on {host}|{host}' is not a host name", ran.err)
    assert "internal error" not in ran.err


def test_empty_token_in_the_environment_does_not_count_as_one(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUECTL_TOKEN", "")
    ran = cli("serve", "--port", "0", "--host", "0.0.0.0")
    assert (ran.code, len(ran.errors)) == (2, 1)


APP = """\
import os
from pathlib import Path
from holdfast import Queue

with open(Path(os.environ["QUEUECTL_HOME"]) / "seen", "a") as file:
    file.write(repr(dict(os.environ)) + "\\n")
queue = Queue()
"""


@pytest.mark.process
def test_tokens_are_known_to_the_server_of_a_program_alone(home: Path) -> None:
    """One from the environment, and one from an argument."""
    (home / "shop_app.py").write_text(APP)
    paths = os.pathsep.join([str(home), str(Path(holdfast.__file__).parents[1])])
    words = ["--app", "shop_app:queue", "--allow-type", "shell", "--read-token", "from-the-argument"]
    with Served(home, *words, QUEUECTL_TOKEN="from-the-environment", PYTHONPATH=paths) as served:
        wait_until(lambda: served.events("worker.started"), timeout=30)
        assert served.address
        assert_both_tokens_are_taken_and_origins_of_other_ports_refused(served)
        assert_no_arguments_and_no_environment_but_the_server_s_have_them(served)
        assert_the_application_does_not_see_them(served)
        assert_no_log_has_them(served)
        assert served.stop() == 0


def children_of(pid: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            if parent == pid:
                found += [int(entry.name), *children_of(int(entry.name))]
    return found


def assert_no_arguments_and_no_environment_but_the_server_s_have_them(served: Served) -> None:
    headers = {"Authorization": "Bearer from-the-environment"}
    with client(served.address, headers=headers) as made:
        task = {"type": "shell", "payload": {"command": "env; tr '\\0' '\\n' </proc/$PPID/environ"}}
        id = made.post("/api/tasks", json=task).json()["id"]
        wait_until(lambda: made.get(f"/api/tasks/{id}").json()["status"] == "completed", timeout=30)
        output = made.get(f"/api/tasks/{id}/logs").json()["log"]
    assert "QUEUECTL_HOME=" in output
    assert "from-the-environment" not in output
    assert "from-the-argument" not in output

    children = children_of(served.process.pid)
    assert served.server_pid in children
    assert len(children) >= 2
    for pid in children:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert b"from-" not in arguments
        if pid != served.server_pid:
            assert b"from-" not in Path(f"/proc/{pid}/environ").read_bytes()
    assert b"from-the-environment" not in Path(f"/proc/{served.process.pid}/cmdline").read_bytes()


def assert_the_application_does_not_see_them(served: Served) -> None:
    seen = (served._log.parent / "seen").read_text()
    assert seen.count("\n") >= 2
    assert "QUEUECTL_HOME" in seen
    assert "from-the-environment" not in seen
    assert "from-the-argument" not in seen


def assert_no_log_has_them(served: Served) -> None:
    with client(served.address) as made:
        made.get("/api/tasks", headers={"Authorization": "Bearer from-the-environment"})
        made.get("/api/tasks", headers={"Authorization": "Bearer nearly-from-the-environment"})
        made.post("/login", data={"token": "from-the-argument"})
    assert "from-" not in served._log.read_text()
    assert "from-" not in served.errors()


def assert_both_tokens_are_taken_and_origins_of_other_ports_refused(served: Served) -> None:
    with client(served.address) as made:
        change = {"Authorization": "Bearer from-the-environment"}
        look = {"Authorization": "Bearer from-the-argument"}
        assert made.get("/api/tasks").status_code == 401
        assert made.get("/api/tasks", headers=look).status_code == 200
        assert made.post("/api/tasks/resume", headers=look).status_code == 403
        assert made.post("/api/tasks/resume", headers=change).status_code == 200
        for origin in ("http://127.0.0.1:1", "http://127.0.0.1", "https://127.0.0.1", "http://localhost:1"):
            response = made.post("/api/tasks/resume", headers={**change, "Origin": origin})
            assert (response.status_code, code(response)) == (403, "foreign_origin"), origin
        own = {**change, "Origin": served.address}
        assert made.post("/api/tasks/resume", headers=own).status_code == 200
