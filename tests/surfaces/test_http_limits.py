"""What one client may take from the others: bodies, answers that it does not read, and slow reads."""

from __future__ import annotations

import asyncio
import shutil
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from starlette.routing import Route

from holdfast import Filter, Queue
from holdfast.web import app as app_module
from holdfast.web import create_app
from holdfast.web.bodies import BATCH, LARGEST_BATCH, NEARLY_NOTHING, SMALL, WITH_PAYLOAD
from holdfast.web.sending import Outbox
from holdfast.web.server import PatientProtocol
from holdfast.web.threads import SlowReads
from tests.support import wait_until
from tests.surfaces.live import client, live
from tests.surfaces.raw import connect, exchange, read_answer

pytestmark = pytest.mark.slow

TOKEN, READ_TOKEN = "a token for changes", "a token for looking"
MIB = 1024 * 1024
PAYLOAD = SMALL + 4 * MIB


def post(path: str, length: int, token: str | None = None, method: str = "POST") -> bytes:
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: localhost",
        f"Content-Length: {length}",
        "Expect: 100-continue",
    ]
    if token is not None:
        lines.append(f"Authorization: Bearer {token}")
    return "\r\n".join([*lines, "", ""]).encode()


@pytest.fixture
def address(queue: Queue) -> Iterator[str]:
    with live(create_app(queue, TOKEN, READ_TOKEN)) as made:
        yield made


# Bodies.


def refusal(address: str, data: bytes) -> tuple[int, str]:
    answer = exchange(address, data)
    return answer.status, answer.code


def is_asked_for(address: str, data: bytes) -> bool:
    """Whether the server wants the body, which it has been told the length of."""
    with connect(address) as connection:
        connection.sendall(data)
        return connection.recv(1000).startswith(b"HTTP/1.1 100 ")


OPEN = ("/static/x/retry", "/static/api/tasks/batch", "/static/enqueue", "/healthz", "/readyz", "/login")


def test_path_that_requires_no_token_takes_nearly_no_body(address: str) -> None:
    for path in OPEN:
        for method in ("POST", "PUT", "GET"):
            refused = refusal(address, post(path, NEARLY_NOTHING + 1, method=method))
            assert refused == (413, "too_large"), (method, path)
            assert is_asked_for(address, post(path, NEARLY_NOTHING, method=method)), (method, path)


def test_body_of_who_may_not_send_it_is_not_read(address: str) -> None:
    for path in ("/api/tasks", "/api/tasks/batch", "/nowhere/retry", "/jobs/x/retry"):
        assert refusal(address, post(path, 10)) == (401, "unauthorized"), path
        assert refusal(address, post(path, 10, READ_TOKEN)) == (403, "read_only"), path


LIMITS = [
    ("POST", "/api/tasks", PAYLOAD),
    ("POST", "/api/tasks/x/retry", PAYLOAD),
    ("POST", "/jobs/x/retry", PAYLOAD),
    ("POST", "/enqueue", PAYLOAD),
    ("POST", "/api/tasks/batch", LARGEST_BATCH),
    ("POST", "/api/tasks/x/cancel", SMALL),
    ("PUT", "/api/config/max_attempts", SMALL),
    ("POST", "/api/tasks/x/y/retry", NEARLY_NOTHING),
    ("POST", "/nowhere/retry", NEARLY_NOTHING),
    ("POST", "/api/tasks/batch/", NEARLY_NOTHING),
    ("PUT", "/api/tasks/batch", NEARLY_NOTHING),
    ("GET", "/api/tasks/batch", NEARLY_NOTHING),
    ("GET", "/enqueue", NEARLY_NOTHING),
    ("POST", "/logout", NEARLY_NOTHING),
]


@pytest.mark.parametrize("prefix", ["", "/ops/retry"])
def test_limit_of_a_body_is_that_of_the_endpoint_which_takes_it(queue: Queue, prefix: str) -> None:
    with live(create_app(queue, TOKEN), prefix) as address:
        for method, path, limit in LIMITS:
            refused = refusal(address, post(path, limit + 1, TOKEN, method))
            assert refused == (413, "too_large"), (method, path)
            assert is_asked_for(address, post(path, limit, TOKEN, method)), (method, path)


def test_every_path_with_a_limit_of_its_own_is_one_of_a_route(queue: Queue) -> None:
    routes = create_app(queue).state.routes
    posts = {route.path for route in routes if isinstance(route, Route) and "POST" in (route.methods or ())}
    assert posts >= BATCH | WITH_PAYLOAD


def test_bodies_without_a_token_take_no_share_of_the_common_limit(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.web.bodies.MOST_BUFFERED", SMALL)
    head = f"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Length: {NEARLY_NOTHING}\r\n\r\n".encode()
    with ExitStack() as stack, client(address, headers={"Authorization": f"Bearer {TOKEN}"}) as made:
        for _ in range(SMALL // NEARLY_NOTHING):
            stack.enter_context(connect(address)).sendall(head + b"x" * (NEARLY_NOTHING - 1))
        assert exchange(address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n").status == 200
        body = b'{"type": "mail"}' + b" " * 1000
        answer = made.post("/api/tasks/resume", content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code == 200


# Answers.


def deaf(address: str, request: bytes) -> socket.socket:
    """A client that asks, and takes as little of the answer as a system lets it."""
    host, port = address.removeprefix("http://").split(":")
    made = socket.socket()
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG, 536)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1)
    made.settimeout(10)
    made.connect((host, int(port)))
    made.sendall(request)
    return made


@pytest.fixture
def let_go(monkeypatch: pytest.MonkeyPatch) -> list[PatientProtocol]:
    """The connections that servers have ended; their clients would only notice if they sent something."""
    ended: list[PatientProtocol] = []
    lose = PatientProtocol.connection_lost

    def lose_and_tell(connection: PatientProtocol, exc: Exception | None) -> None:
        lose(connection, exc)
        ended.append(connection)

    monkeypatch.setattr(PatientProtocol, "connection_lost", lose_and_tell)
    return ended


@contextmanager
def small_send_buffers() -> Iterator[None]:
    """Servers made here have sockets that take little, so that little has to be sent."""
    made = socket.create_server

    def create(*args: Any, **options: Any) -> socket.socket:
        listener = made(*args, **options)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
        return listener

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket, "create_server", create)
        yield


GET_LOGIN = b"GET /login HTTP/1.1\r\nHost: localhost\r\n\r\n"
LONG = b"GET /static/holdfast.css HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LONG_TWICE = LONG.replace(b"Connection: close\r\n", b"") + LONG
SEVERAL = 12
"""Answers that are more than the system takes, and less than makes a transport call its buffer full."""


@pytest.mark.parametrize("requests", [GET_LOGIN * SEVERAL, LONG_TWICE, LONG], ids=["many", "two", "closing"])
def test_client_that_does_not_read_a_short_answer_is_let_go(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, let_go: list[PatientProtocol], requests: bytes
) -> None:
    monkeypatch.setattr("holdfast.web.server.WRITE_SECONDS", 0.3)
    with small_send_buffers(), live(create_app(queue, TOKEN)) as address, deaf(address, requests):
        wait_until(lambda: let_go, timeout=30)


def test_client_that_reads_at_last_gets_all_its_answers(queue: Queue) -> None:
    with (
        small_send_buffers(),
        live(create_app(queue, TOKEN)) as address,
        deaf(address, GET_LOGIN * SEVERAL + LONG) as connection,
    ):
        answers = b"".join(iter(lambda: connection.recv(65_536), b""))
    assert answers.count(b"HTTP/1.1 200 OK") == answers.count(b"</html>") + 1 == SEVERAL + 1
    assert answers.endswith(b"}\n")


def test_connection_that_is_over_the_limit_takes_the_place_of_one_that_does_not_read(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, let_go: list[PatientProtocol]
) -> None:
    unread: list[PatientProtocol] = []
    pause = PatientProtocol.pause_writing

    def pause_and_tell(connection: PatientProtocol) -> None:
        pause(connection)
        unread.append(connection)

    monkeypatch.setattr(PatientProtocol, "pause_writing", pause_and_tell)
    monkeypatch.setattr("holdfast.web.server.most_connections", lambda: 8)
    with small_send_buffers(), live(create_app(queue, TOKEN)) as address, ExitStack() as stack:
        for _ in range(8):
            stack.enter_context(deaf(address, LONG))
        wait_until(lambda: len(unread) == 8, timeout=30)
        with ExitStack() as others:
            for _ in range(4):
                connection = others.enter_context(connect(address))
                connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
                assert read_answer(connection).status == 200
            assert len(let_go) == 4


def test_connection_that_is_over_the_limit_takes_the_place_of_one_that_runs_ahead(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_go_on = threading.Event()
    workers = queue.workers
    monkeypatch.setattr(queue, "workers", lambda: may_go_on.wait(60) and workers())
    monkeypatch.setattr("holdfast.web.server.most_connections", lambda: 8)
    app = create_app(queue, TOKEN, needs_workers=False)
    ready = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with live(app) as address, ExitStack() as stack:
        patient = stack.enter_context(deaf(address, ready))
        for _ in range(7):
            stack.enter_context(deaf(address, ready * 2))
        wait_until(lambda: app.state.backend.check_health._running is not None, timeout=30)
        for _ in range(4):
            assert exchange(address, GET_LOGIN).status == 200
        may_go_on.set()
        assert read_answer(patient).status == 200


def test_static_files_are_answered_from_memory(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(app_module._STATIC, tmp_path / "static")
    monkeypatch.setattr(app_module, "_STATIC", folder)
    with live(create_app(queue)) as address, client(address) as made:
        shutil.rmtree(folder)  # a file that is open for each unread answer would be one too many
        answer = made.get("/static/holdfast.css")
        assert (answer.status_code, answer.headers["content-type"]) == (200, "text/css; charset=utf-8")
        known = {"If-None-Match": f'"other", W/{answer.headers["etag"]}'}
        assert made.get("/static/holdfast.css", headers=known).status_code == 304
        assert (
            made.get("/static/holdfast.css", headers={"If-None-Match": '"other"'}).content == answer.content
        )
        assert made.get("/static/").status_code == made.get("/static/static/holdfast.css").status_code == 404
        assert made.post("/static/holdfast.css").status_code == 405


def test_large_answer_that_is_not_read_is_given_up(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, let_go: list[PatientProtocol]
) -> None:
    monkeypatch.setattr("holdfast.web.server.WRITE_SECONDS", 0.3)
    queue.enqueue_many("mail", [{"text": "x" * 900_000}] * 8)
    request = b"GET /api/tasks?full=true HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with live(create_app(queue)) as address, deaf(address, request) as connection:
        wait_until(lambda: let_go, timeout=30)
        received = sum(map(len, iter(lambda: connection.recv(65_536), b"")))
    assert received < 7_000_000


def test_unread_answers_have_a_common_limit(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, let_go: list[PatientProtocol]
) -> None:
    monkeypatch.setattr("holdfast.web.sending.MOST_UNREAD", 5 * MIB)
    queue.enqueue_many("mail", [{"text": "x" * 100_000}] * 20)
    request = b"GET /api/tasks?full=true HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with live(create_app(queue)) as address, ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(deaf(address, request))
        wait_until(lambda: let_go, timeout=30)
        answer = exchange(address, request)
        assert (answer.status, len(answer.body) > 2 * 1000 * 1000) == (200, True)


def test_oldest_of_the_unread_answers_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.web.sending.MOST_UNREAD", 25)

    async def check() -> None:
        outbox, all_begun = Outbox(), asyncio.Event()

        async def send() -> None:
            async with outbox.holding(10):
                await all_begun.wait()

        sending = [asyncio.create_task(send()) for _ in range(3)]
        await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
        all_begun.set()
        results = await asyncio.gather(*sending, return_exceptions=True)
        assert [type(result) for result in results] == [TimeoutError, type(None), type(None)]

    asyncio.run(check())


def test_answer_may_take_longer_the_larger_it_is_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.web.sending.WRITE_SECONDS", 0.01)

    async def send(size: int) -> None:
        async with Outbox().holding(size):
            await asyncio.sleep(0.05)

    with pytest.raises(TimeoutError):
        asyncio.run(send(1))
    asyncio.run(send(MIB))


# Slow reads.


@pytest.fixture
def searching(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Lists of jobs are not ready before this is set."""
    ready = threading.Event()
    page = queue.page

    def wait(filter: Filter, **options: Any) -> Any:
        if filter.search:
            assert ready.wait(60)
        return page(filter, **options)

    monkeypatch.setattr(queue, "page", wait)
    yield ready
    ready.set()


@pytest.fixture
def reading(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """The job `large`, which can't be read before this is set."""
    queue.enqueue("mail", {"numbers": list(range(10_000))}, id="large")
    ready = threading.Event()
    get = queue.get

    def wait(id: str) -> Any:
        assert id != "large" or ready.wait(60)
        return get(id)

    monkeypatch.setattr(queue, "get", wait)
    yield ready
    ready.set()


@contextmanager
def many_reads(address: str, path: str, go_on: threading.Event) -> Iterator[None]:
    """While 40 requests of a client for something slow run, wait, or have been refused."""
    statuses: list[int] = []

    def read() -> None:
        with client(address, headers={"Authorization": f"Bearer {READ_TOKEN}"}) as made:
            statuses.append(made.get(path).status_code)

    threads = [threading.Thread(target=read) for _ in range(40)]
    for thread in threads:
        thread.start()
    wait_until(lambda: statuses.count(503) == 24, timeout=30)  # 16 run or wait; more are refused
    yield
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert statuses.count(200) == 16


def require_short_calls(address: str) -> None:
    with client(address, headers={"Authorization": f"Bearer {TOKEN}"}) as made:
        assert made.get("/readyz").json()["database"] == "ok"
        assert made.post("/api/tasks", json={"type": "mail"}).status_code == 201
        assert made.get("/api/tasks").status_code == 200
        assert made.get("/api/tasks?full=true&limit=1").status_code == 200  # slow, and of another client


def test_searches_hold_up_no_short_call_and_no_health_check(
    address: str, queue: Queue, searching: threading.Event
) -> None:
    with many_reads(address, "/api/tasks?search=payload.a:1", searching):
        require_short_calls(address)


@pytest.mark.parametrize("path", ["/api/tasks/large", "/jobs/large"])
def test_large_jobs_hold_up_no_short_call_and_no_health_check(
    address: str, queue: Queue, reading: threading.Event, path: str
) -> None:
    with many_reads(address, path, reading):
        require_short_calls(address)
        with client(address, headers={"Authorization": f"Bearer {TOKEN}"}) as made:
            assert made.get("/api/tasks/large/why").json()["status"] == "pending"  # not read for this
            assert made.get("/jobs/large/delete").status_code == 200
            assert made.get("/api/tasks/nobody").status_code == 404


def test_health_checks_share_one_look_at_the_database(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    looks, is_looking, may_go_on = [], threading.Event(), threading.Event()
    workers = queue.workers

    def wait() -> Any:
        looks.append(1)
        is_looking.set()
        assert may_go_on.wait(60)
        return workers()

    monkeypatch.setattr(queue, "workers", wait)
    app = create_app(queue, needs_workers=False)

    async def check() -> list[int]:
        transport = httpx.ASGITransport(app, client=("127.0.0.1", 1))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as made:
            checks = [asyncio.create_task(made.get("/readyz")) for _ in range(50)]
            assert await asyncio.to_thread(is_looking.wait, 20)
            assert (await made.get("/healthz")).status_code == 200
            may_go_on.set()
            return [(await check).status_code for check in checks]

    assert asyncio.run(check()) == [200] * 50
    app.state.backend.close()
    assert len(looks) <= 2


def test_client_has_some_slow_reads_at_a_time_and_leaves_the_rest_to_others() -> None:
    running: list[bytes] = []
    three, may_go_on = threading.Barrier(4), threading.Event()

    def read(client: bytes) -> None:
        running.append(client)
        if len(running) <= 3:
            three.wait(60)
        assert may_go_on.wait(60)

    async def check() -> None:
        reads = SlowReads()
        greedy = [asyncio.create_task(reads.run(b"greedy", lambda: read(b"greedy"))) for _ in range(10)]
        modest = asyncio.create_task(reads.run(b"modest", lambda: read(b"modest")))
        await asyncio.to_thread(three.wait, 20)
        assert sorted(running) == [b"greedy", b"greedy", b"modest"]
        may_go_on.set()
        await asyncio.gather(*greedy, modest)
        reads.close()

    asyncio.run(check())
    assert len(running) == 11
