"""Clients that send too much, too slowly, too often or nonsense: exact refusals, and the others are served.

Memory is the resident set of the server's process. It may grow by what an honest load of the same size would
need, never by what was sent: the bounds stand at each test.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from msgspec import Struct

from holdfast import Queue
from holdfast.web import create_app
from holdfast.web.bodies import BODY_SECONDS, LARGEST_BATCH
from holdfast.web.guard import LINGER_SECONDS
from holdfast.web.server import HEADER_SECONDS
from tests.support import wait_until
from tests.surfaces.live import Served, live
from tests.surfaces.raw import Answer, connect, exchange, read_answer

MIB = 1024 * 1024
FEW_FILES = 256


class Target(Struct, frozen=True):
    """A server process, and how many sockets it has while nobody is connected."""

    served: Served
    address: str
    pid: int
    idle_sockets: int


@contextmanager
def serving(home: Path, *words: str, files: int | None = None) -> Iterator[Target]:
    """A server process that may have only so many files open, and that must outlive what is done to it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        if files is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
        made = Served(home, "--workers", "0", *words)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    with made:
        address, pid = made.address, made.server_pid
        target = Target(made, address, pid, sockets(pid))
        for _ in range(20):  # its threads and connections to the database are there before we measure
            assert exchange(address, get("/api/tasks")).status == 200
        yield target
        assert made.server_pid == pid
        assert made.events("server.died") == []
        assert "Traceback" not in made.errors()
        assert made.stop() == 0


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with serving(tmp_path_factory.mktemp("served")) as made:
        yield made


@pytest.fixture(scope="module")
def short_of_files(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with serving(tmp_path_factory.mktemp("short"), files=FEW_FILES) as made:
        yield made


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()


def post(path: str, *headers: str, host: str = "localhost") -> bytes:
    lines = [f"POST {path} HTTP/1.1", f"Host: {host}", "Content-Type: application/json", *headers]
    return "\r\n".join([*lines, "", ""]).encode()


def memory(pid: int) -> int:
    """Bytes that the server's process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the server is gone")


def sockets(pid: int) -> int:
    """How many sockets the server's process has open."""
    folder = f"/proc/{pid}/fd"
    count = 0
    for name in os.listdir(folder):
        try:
            count += os.readlink(f"{folder}/{name}").startswith("socket:")
        except FileNotFoundError:  # closed meanwhile
            continue
    return count


@contextmanager
def nothing_left(served: Target, growth: int) -> Iterator[None]:
    """The server has afterwards the sockets it had before, and not more memory than that on top."""

    def is_idle() -> bool:
        return sockets(served.pid) <= served.idle_sockets

    wait_until(is_idle, timeout=30, message="connections of a test before")
    held = memory(served.pid)
    yield
    wait_until(is_idle, timeout=30, message="sockets were left behind")
    grown = memory(served.pid) - held
    assert grown < growth, f"{grown / MIB:.1f} MiB more"


class Arrivals:
    """Lets no hostile client connect in the middle of a healthy one's arrival, which comes first.

    At its limit, the server closes the connection that has kept it waiting longest. It can't tell a client
    that has connected but was not given the processor to send its request from one that never will.
    """

    def __init__(self) -> None:
        self._one_at_a_time = threading.Lock()
        self._nobody_healthy = threading.Event()
        self._nobody_healthy.set()

    def ask(self, address: str, request: bytes) -> Answer:
        """Connect, send the request at once, and wait for the answer while others connect."""
        self._nobody_healthy.clear()
        with self._one_at_a_time:
            try:
                connection = connect(address)
                connection.sendall(request)
            finally:
                self._nobody_healthy.set()
        with connection:
            return read_answer(connection)

    def connect(self, address: str) -> socket.socket:
        """Connect as a hostile client."""
        while True:
            self._nobody_healthy.wait()
            with self._one_at_a_time:
                if self._nobody_healthy.is_set():
                    return connect(address)


ARRIVALS = Arrivals()


@contextmanager
def healthy_client(address: str) -> Iterator[list[float]]:
    """An honest client asks all the while, over a new connection each time; yields how long each answer took.

    None waits until a hostile client has used up its time. How fast answers are is for the benchmarks to say.
    """
    over = threading.Event()
    waits: list[float] = []
    failures: list[str] = []

    def ask() -> None:
        while not over.wait(0.02):
            began = time.monotonic()
            try:
                status = ARRIVALS.ask(address, get("/api/tasks")).status
                if status != 200:
                    failures.append(f"status {status}")
            except OSError as error:
                failures.append(repr(error))
            waits.append(time.monotonic() - began)

    thread = threading.Thread(target=ask, name="healthy-client")
    thread.start()
    try:
        wait_until(lambda: waits, timeout=30)
        yield waits
        asked = len(waits)
        wait_until(lambda: len(waits) >= asked + 3, timeout=45)
    finally:
        over.set()
        thread.join(30)
    assert failures == []
    assert max(waits) < min(BODY_SECONDS, HEADER_SECONDS, LINGER_SECONDS)


def send_endlessly(connection: socket.socket, piece: bytes, most: int) -> int:
    """Send the same again and again until there is an answer or the end; returns how many bytes went out."""
    sent = 0
    connection.setblocking(False)
    deadline = time.monotonic() + 20
    while sent < most and time.monotonic() < deadline:
        readable, writable, _ = select.select([connection], [connection], [], 5)
        if readable:
            break
        if writable:
            try:
                sent += connection.send(piece)
            except OSError:
                break
    connection.setblocking(True)
    connection.settimeout(10)
    return sent


# Too much.


@pytest.mark.parametrize(
    "path", ["/api/tasks", "/api/tasks/batch", "/api/tasks/pause", "/api/tasks/x/retry", "/login"]
)
def test_body_of_64_mib_is_refused_and_the_client_can_read_why(served: Target, path: str) -> None:
    piece = b"x" * MIB
    # It is never kept: there may be a few of the pieces of 256 KiB that arrive, and what Python holds back.
    with nothing_left(served, growth=16 * MIB), healthy_client(served.address):
        with connect(served.address) as connection:
            connection.sendall(post(path, f"Content-Length: {64 * MIB}"))
            for _ in range(64):
                connection.sendall(piece)
            answer = read_answer(connection)
        assert (answer.status, answer.code) == (413, "too_large")
        assert answer.headers["connection"] == "close"


@pytest.mark.parametrize(
    ("path", "limit"),
    [("/api/tasks", 5 * MIB), ("/api/tasks/batch", LARGEST_BATCH + MIB), ("/api/tasks/pause", 65 * 1024)],
)
def test_chunked_body_without_an_end_is_refused_at_the_limit(served: Target, path: str, limit: int) -> None:
    piece = b"x" * 65_536
    chunk = b"10000\r\n" + piece + b"\r\n"
    # Up to its limit a body is kept, and copied once when it is complete.
    with nothing_left(served, growth=2 * limit + 16 * MIB), healthy_client(served.address):
        with connect(served.address) as connection:
            connection.sendall(post(path, "Transfer-Encoding: chunked"))
            sent = send_endlessly(connection, chunk, most=limit + 32 * MIB)
            answer = read_answer(connection)
        assert (answer.status, answer.code) == (413, "too_large")
        assert sent < limit + 24 * MIB  # what is on its way in the system's buffers included


def test_client_that_asks_first_is_refused_before_it_sends_a_large_body(served: Target) -> None:
    with nothing_left(served, growth=8 * MIB):
        answer = exchange(
            served.address, post("/api/tasks", f"Content-Length: {64 * MIB}", "Expect: 100-continue")
        )
        assert (answer.status, answer.code) == (413, "too_large")


def can_send(connection: socket.socket, data: bytes) -> bool:
    try:
        connection.sendall(data)
    except OSError:
        return False
    return True


def test_refused_client_that_goes_on_sending_is_let_go(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.web.guard.LINGER_SECONDS", 0.2)
    with live(create_app(queue)) as address, connect(address) as connection:
        connection.sendall(post("/api/tasks", f"Content-Length: {10**12}"))
        answer = read_answer(connection)
        assert (answer.status, answer.code) == (413, "too_large")
        wait_until(lambda: not can_send(connection, b"x" * 65_536), timeout=30)


@pytest.mark.parametrize(
    "query",
    [
        "/api/tasks?limit=1000000000",
        "/api/tasks?limit=101",
        "/api/tasks?limit=0",
        "/api/tasks?limit=-1",
        "/api/tasks?limit=1e9",
        "/api/tasks?limit=" + "9" * 5000,
        "/api/tasks?limit=",
        "/api/tasks?offset=-1",
        "/api/tasks?offset=" + "9" * 30,
        "/api/tasks?cursor=" + "9" * 30,
        "/api/tasks?cursor=-1",
        "/api/tasks?" + "&".join(["status=nothing"] * 2000),
        "/api/events?limit=1000000000",
        "/api/events?" + "&".join(f"id=job{number}" for number in range(201)),
        "/api/tasks/x/logs?tail=" + "9" * 30,
    ],
)
def test_immoderate_wishes_are_refused(served: Target, query: str) -> None:
    answer = exchange(served.address, get(query))
    assert (answer.status, answer.code) == (400, "invalid_request")


@pytest.mark.parametrize(
    "head",
    [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X-Flood: " + b"x" * 120_000,
        b"GET / HTTP/1.1\r\nHost: localhost\r\n" + b"X: y\r\n" * 20_000,
        b"GET /" + b"x" * 120_000,
        b"x" * 120_000,
        post("/api/tasks", "Transfer-Encoding: chunked") + b"1;" + b"x" * 120_000,
    ],
    ids=["one header", "many headers", "path", "no line", "chunk extension"],
)
def test_flood_of_headers_is_refused(served: Target, head: bytes) -> None:
    with nothing_left(served, growth=8 * MIB), healthy_client(served.address):
        answer = exchange(served.address, head)
        assert (answer.status, answer.code) == (400, "invalid_request")


def test_endless_headers_are_cut_off(served: Target) -> None:
    with nothing_left(served, growth=8 * MIB), healthy_client(served.address):
        with connect(served.address) as connection:
            connection.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n")
            sent = send_endlessly(connection, b"X-Flood: y\r\n" * 4096, most=64 * MIB)
        assert sent < 16 * MIB  # what is on its way in the system's buffers included


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(range(256)),
    b"\x00" * 1000 + b"\r\n\r\n",
    b"\xff" * 1000 + b"\r\n\r\n",
    b"SSH-2.0-OpenSSH_9.9\r\n\r\n",
    b"\r\n\r\n",
    b"GET / HTTP/11\r\nHost: localhost\r\n\r\n",
    b"GET  /  HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX\x00: y\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nX : y\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\n: y\r\n\r\n",
    b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
    b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1e3\r\n\r\n",
    b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
    b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n",
    b"POST /api/tasks HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked, gzip\r\n\r\n",
    post("/api/tasks", "Transfer-Encoding: chunked") + b"zz\r\n\r\n",
    post("/api/tasks", "Transfer-Encoding: chunked") + b"-1\r\n\r\n",
    post("/api/tasks", "Transfer-Encoding: chunked") + b"fffffffffffffffffffff\r\n\r\n",
    post("/api/tasks", "Content-Length: 4") + b"\xff\xfe\x00{",
    post("/api/tasks", "Content-Length: 100") + b"[" * 100,
    post("/api/tasks", "Content-Length: 60000") + b"[" * 60_000,
    post("/api/tasks", "Content-Length: 60000") + b"9" * 60_000,
    post("/api/tasks", "Content-Length: 0"),
]


def test_garbage_is_answered_with_400_and_harms_nobody(served: Target) -> None:
    with nothing_left(served, growth=16 * MIB), healthy_client(served.address):
        for data in GARBAGE:
            answer = exchange(served.address, data)
            assert (answer.status, answer.code) == (400, "invalid_request"), data[:200]


def test_connections_that_break_off_leave_nothing(served: Target) -> None:
    beginnings = [b"", b"G", get("/api/tasks")[:-2], post("/api/tasks", "Content-Length: 10") + b"{"]
    with nothing_left(served, growth=16 * MIB), healthy_client(served.address):
        for number in range(400):
            with connect(served.address) as connection:
                connection.sendall(beginnings[number % 4])
                if number % 3 == 0:  # with a reset instead of an end
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")


def test_large_batch_does_not_hold_up_the_others(served: Target) -> None:
    task = b'{"type":"mail","payload":{"a":[' + b",".join([b"{}"] * 1000) + b"]}}"
    tasks = b",".join([task] * (LARGEST_BATCH // len(task) - 2))  # as large as may be, and as costly
    body = b'{"tasks":[' + tasks + b',{"type":5}]}'
    with healthy_client(served.address) as waits, connect(served.address, timeout=60) as connection:
        connection.sendall(post("/api/tasks/batch", f"Content-Length: {len(body)}") + body)
        sent = len(waits)
        answer = read_answer(connection)
        assert len(waits) > sent + 2, "others are answered while it is read"
    assert (answer.status, answer.code) == (400, "invalid_request")


# Too slow, too many.

SLOW = {
    "nothing": b"",
    "headers": b"GET /api/tasks HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
    "bodies": post("/api/tasks", "Content-Length: 60000") + b"{",
    "batches": post("/api/tasks/batch", "Transfer-Encoding: chunked") + b"ffff\r\n{",
    "refused bodies": post("/api/tasks", "Content-Length: 60000", host="evil.example") + b"{",
}


def trickle(connections: list[socket.socket]) -> None:
    for connection in connections:
        can_send(connection, b"x")  # or it was let go


def test_500_slow_connections_keep_nobody_waiting_and_leave_nothing(served: Target) -> None:
    kinds = [SLOW["nothing"], SLOW["headers"], SLOW["bodies"], SLOW["batches"]]
    # A connection may cost 64 KiB, which is what may be read of it before it is paused.
    with nothing_left(served, growth=500 * 64 * 1024), ExitStack() as stack:
        connections = [stack.enter_context(connect(served.address)) for _ in range(500)]
        for number, connection in enumerate(connections):
            connection.sendall(kinds[number % 4])
        wait_until(lambda: sockets(served.pid) > 500, timeout=30, message="500 connections at a time")
        with healthy_client(served.address):
            for _ in range(5):
                trickle(connections)
                assert exchange(served.address, get("/healthz")).status == 200
        assert sockets(served.pid) > 500


@pytest.mark.parametrize("kind", SLOW)
def test_healthy_client_is_served_while_there_are_more_slow_connections_than_files(
    short_of_files: Target, kind: str
) -> None:
    served = short_of_files
    with nothing_left(served, growth=FEW_FILES * 64 * 1024), ExitStack() as stack:
        with healthy_client(served.address):
            connections = [
                stack.enter_context(ARRIVALS.connect(served.address)) for _ in range(2 * FEW_FILES)
            ]
            for connection in connections:
                can_send(connection, SLOW[kind])  # or it was let go already
            for _ in range(5):
                trickle(connections)
                assert exchange(served.address, get("/healthz")).status == 200
        assert sockets(served.pid) < FEW_FILES
    assert "Too many open files" not in served.served.errors()


@contextmanager
def standing_still(pid: int) -> Iterator[None]:
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("kind", SLOW)
def test_request_that_has_arrived_is_served_however_many_connect_after_it(
    short_of_files: Target, kind: str
) -> None:
    """Even if the server finds all of them at once: what it has not read yet is no reason to let it go."""
    served = short_of_files
    with nothing_left(served, growth=FEW_FILES * 64 * 1024), ExitStack() as stack:
        with standing_still(served.pid):
            before = [stack.enter_context(connect(served.address)) for _ in range(FEW_FILES)]
            healthy = stack.enter_context(connect(served.address))
            healthy.sendall(get("/api/tasks"))
            after = [stack.enter_context(connect(served.address)) for _ in range(2 * FEW_FILES)]
            for connection in before + after:
                can_send(connection, SLOW[kind])
        assert read_answer(healthy).status == 200


def test_client_that_connects_and_keeps_silent_is_let_go_when_there_are_too_many(
    short_of_files: Target,
) -> None:
    served = short_of_files
    with nothing_left(served, growth=FEW_FILES * 64 * 1024), ExitStack() as stack:
        silent = stack.enter_context(connect(served.address))
        for _ in range(FEW_FILES):
            stack.enter_context(connect(served.address))
        assert silent.recv(1) == b""


def test_healthy_client_is_served_while_there_are_more_listeners_than_files(short_of_files: Target) -> None:
    served = short_of_files
    with nothing_left(served, growth=FEW_FILES * 64 * 1024), ExitStack() as stack:
        with healthy_client(served.address):
            for _ in range(2 * FEW_FILES):
                connection = stack.enter_context(ARRIVALS.connect(served.address))
                can_send(connection, b"GET /api/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
            for _ in range(5):
                assert exchange(served.address, get("/healthz")).status == 200
        assert sockets(served.pid) < FEW_FILES
    assert "Too many open files" not in served.served.errors()


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that waits for a fraction of a second where it waits for half a minute."""
    monkeypatch.setattr("holdfast.web.server.HEADER_SECONDS", 0.3)
    monkeypatch.setattr("holdfast.web.bodies.BODY_SECONDS", 0.3)
    monkeypatch.setattr("holdfast.web.bodies.SLOWEST", 10**12)
    monkeypatch.setattr("holdfast.web.guard.LINGER_SECONDS", 0.3)


def trickle_until_answered(connection: socket.socket, piece: bytes) -> Answer:
    for _ in range(500):
        if select.select([connection], [], [], 0.02)[0]:
            break
        connection.send(piece)
    return read_answer(connection)


@pytest.mark.parametrize("framing", ["Content-Length: 60000", "Transfer-Encoding: chunked"])
def test_slow_body_is_refused_when_its_time_is_over(queue: Queue, hasty: None, framing: str) -> None:
    piece = b"1\r\n \r\n" if "chunked" in framing else b" "
    with live(create_app(queue)) as address, connect(address) as connection:
        connection.sendall(post("/api/tasks", framing))
        began = time.monotonic()
        answer = trickle_until_answered(connection, piece)
        assert (answer.status, answer.code) == (408, "too_slow")
        assert answer.headers["connection"] == "close"
        assert time.monotonic() - began > 0.2
    assert queue.count() == 0


def test_body_that_never_comes_is_refused_when_its_time_is_over(queue: Queue, hasty: None) -> None:
    with live(create_app(queue)) as address:
        answer = exchange(address, post("/api/tasks", "Content-Length: 10"))
    assert (answer.status, answer.code) == (408, "too_slow")


def is_let_go(connection: socket.socket, piece: bytes) -> bool:
    """Whether the connection ends without an answer, though something is sent now and then."""
    for _ in range(500):
        if select.select([connection], [], [], 0.02)[0]:
            try:
                return connection.recv(1000) == b""
            except ConnectionResetError:
                return True
        if not can_send(connection, piece):
            return True
    return False


@pytest.mark.parametrize(
    ("beginning", "piece"),
    [(b"", b""), (b"G", b""), (b"GET / HTTP/1.1\r\nX: ", b"y")],
    ids=["silent", "stuck", "trickling"],
)
def test_connection_whose_request_does_not_come_is_let_go(
    queue: Queue, hasty: None, beginning: bytes, piece: bytes
) -> None:
    with live(create_app(queue)) as address, connect(address) as connection:
        connection.sendall(beginning)
        assert is_let_go(connection, piece)


def test_second_request_that_trickles_is_let_go_as_the_first_would_be(queue: Queue, hasty: None) -> None:
    with live(create_app(queue)) as address, connect(address) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert read_answer(connection).status == 200
        connection.sendall(b"GET /healthz HTTP/1.1\r\nX: ")
        assert is_let_go(connection, b"y")


def test_bodies_on_their_way_have_a_common_limit(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.web.bodies.MOST_BUFFERED", 100_000)
    path, body = "/api/tasks/resume", b'{"type": "mail"}' + b" " * 50_000
    complete = post(path, f"Content-Length: {len(body)}", "Connection: close") + body
    with live(create_app(queue)) as address:
        for _ in range(5):  # what was refused, broken off or answered is given back
            with connect(address) as first:
                first.sendall(post(path, "Content-Length: 60000") + b" " * 59_000)
                wait_until(lambda: exchange(address, complete).status == 503, timeout=30)
                answer = exchange(address, complete)
                assert (answer.status, answer.code) == (503, "busy")
                assert answer.headers["retry-after"] == "1"
                assert exchange(address, get("/healthz")).status == 200
            wait_until(lambda: exchange(address, complete).status == 200, timeout=30)
