"""Webhooks against a real server on the loopback: what is sent, how answers end jobs, where none may go."""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import hashlib
import hmac
import json
import logging
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from msgspec import Struct

import holdfast
from holdfast import Job, Queue
from holdfast.core.payload import PayloadSpec
from holdfast.errors import ConfigError, InvalidPayload
from holdfast.events import JobReleased
from holdfast.jobs import (
    WEBHOOK,
    name_lookup,
    webhook,
    webhook_request,
    webhook_signature,
    webhook_target,
)
from tests.support import Recorder, wait_until
from tests.worker.support import PATIENCE, Gate, get, run_script, time_out

pytestmark = pytest.mark.slow

StartWorker = Callable[..., Any]


class Seen(Struct):
    """A request as the server got it. Names of headers are in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


class Receiver:
    """A server whose answers are scripted: each a status, a tuple, or a function that does what it likes.

    Without a script it answers 200.
    """

    def __init__(self, tls: ssl.SSLContext | None = None) -> None:
        self.script: list[Any] = []
        self.seen: list[Seen] = []
        self.broken = 0
        """Connections that the client has closed while its answer was on the way."""
        self.released = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except (ConnectionError, ssl.SSLError):
                    receiver.broken += 1
                    self.close_connection = True

            def answer(self) -> None:
                receiver.answer(self)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = answer

            def log_message(self, *_: object) -> None: ...

        class Server(ThreadingHTTPServer):
            def get_request(self) -> tuple[Any, Any]:
                connection, address = super().get_request()
                connection.settimeout(PATIENCE)
                if tls is not None:
                    connection = tls.wrap_socket(connection, server_side=True, do_handshake_on_connect=False)
                return connection, address

            def handle_error(self, *_: object) -> None:
                receiver.broken += 1

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()
        self.port: int = self._server.server_address[1]

    def url(self, path: str = "/hook", host: str = "127.0.0.1", scheme: str = "http") -> str:
        return f"{scheme}://{host}:{self.port}{path}"

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers.get("Content-Length", 0)))
        headers = {name.lower(): text for name, text in request.headers.items()}
        self.seen.append(Seen(request.command, request.path, headers, body))
        answer = self.script.pop(0) if self.script else 200
        if callable(answer):
            answer(request)
            return
        status, headers, body = answer if isinstance(answer, tuple) else (answer, {}, b"")
        request.send_response(status)
        for name, text in {"Content-Length": str(len(body)), **headers}.items():
            request.send_header(name, text)
        request.end_headers()
        if request.command != "HEAD":
            request.wfile.write(body)

    def hang(self, request: BaseHTTPRequestHandler) -> None:
        """Say nothing until the client has gone or the test has ended."""
        deadline = time.monotonic() + PATIENCE
        request.connection.settimeout(0.02)
        while not self.released.is_set() and time.monotonic() < deadline:
            try:
                if request.connection.recv(1) == b"":
                    self.broken += 1
                    return
            except TimeoutError:
                continue

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(PATIENCE)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    receiver = Receiver()
    yield receiver
    receiver.close()


@pytest.fixture
def other() -> Iterator[Receiver]:
    """A second server, which is another host for a redirect."""
    other = Receiver()
    yield other
    other.close()


@pytest.fixture(autouse=True)
def environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An environment in which the loopback may be called, and nothing else is said."""
    for name in [name for name in os.environ if name.startswith("QUEUECTL_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("QUEUECTL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv(webhook_target.ALLOW, "127.0.0.1")


class Names:
    """The names that there are, each with the addresses of its lookups; and which were looked up."""

    def __init__(self) -> None:
        self.known: dict[str, list[list[str]]] = {}
        self.looked_up: list[str] = []

    def __setitem__(self, name: str, addresses: list[str]) -> None:
        self.known[name] = [addresses]

    def lookup(self, host: str, port: int, *_: object, **__: object) -> list[Any]:
        self.looked_up.append(host)
        answers = self.known.get(host)
        if answers is None:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        addresses = answers.pop(0) if len(answers) > 1 else answers[0]
        return [
            (family, socket.SOCK_STREAM, 6, "", (address, port))
            for address in addresses
            for family in [socket.AF_INET6 if ":" in address else socket.AF_INET]
        ]


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> Names:
    """A resolver that knows what the test tells it, and never asks the network."""
    names = Names()
    monkeypatch.setattr(socket, "getaddrinfo", names.lookup)
    return names


@pytest.fixture
def queue(queue: Queue) -> Queue:
    queue.register(WEBHOOK, webhook.call)
    queue.set_config("max_attempts", 1)
    return queue


def deliver(queue: Queue, url: str, **payload: Any) -> Job:
    """Run one attempt of a webhook, here."""
    job = queue.enqueue(WEBHOOK, {"url": url, **payload})
    assert queue.drain(limit=1) == 1
    return get(queue, job.id)


# What is sent.


def test_answer_of_2xx_completes_with_status_headers_and_body(queue: Queue, receiver: Receiver) -> None:
    headers = {"Content-Type": "text/plain", "X-Request-Id": "r-7", "Set-Cookie": "a=b"}
    receiver.script = [(201, headers, "grüß".encode())]
    job = deliver(queue, receiver.url("/hook?q=1"), body={"order": 7})
    assert job.status == "completed", job.error
    assert job.result["headers"].pop("date")
    assert job.result == {
        "status": 201,
        "url": receiver.url("/hook?q=1"),
        "headers": {"content-type": "text/plain", "x-request-id": "r-7"},
        "body": "grüß",
    }
    assert [(seen.method, seen.path) for seen in receiver.seen] == [("POST", "/hook?q=1")]


@pytest.mark.parametrize("status", [200, 202, 204, 206, 299])
def test_any_2xx_completes(queue: Queue, receiver: Receiver, status: int) -> None:
    receiver.script = [status]
    assert deliver(queue, receiver.url()).status == "completed"


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "PATCH", "DELETE", "HEAD"])
def test_method_is_the_payloads(queue: Queue, receiver: Receiver, method: str) -> None:
    assert deliver(queue, receiver.url(), method=method).status == "completed"
    assert receiver.seen[0].method == method


@pytest.mark.parametrize(
    ("body", "sent"),
    [
        ({"a": [1, None, "ü"]}, '{"a":[1,null,"ü"]}'),
        ([], "[]"),
        (False, "false"),
        (0, "0"),
        ({"n": 2**80}, f'{{"n":{2**80}}}'),
    ],
)
def test_body_of_json_is_sent_as_json(queue: Queue, receiver: Receiver, body: Any, sent: str) -> None:
    assert deliver(queue, receiver.url(), body=body).status == "completed"
    assert receiver.seen[0].body.decode() == sent
    assert receiver.seen[0].headers["content-type"] == "application/json"


def test_body_of_text_is_sent_as_it_is(queue: Queue, receiver: Receiver) -> None:
    deliver(queue, receiver.url(), body='{"a" : 1}\n')
    assert receiver.seen[0].body == b'{"a" : 1}\n'
    assert receiver.seen[0].headers["content-type"] == "text/plain; charset=utf-8"


def test_content_type_of_the_payload_wins(queue: Queue, receiver: Receiver) -> None:
    deliver(queue, receiver.url(), body={}, headers={"Content-Type": "application/cloudevents+json"})
    assert receiver.seen[0].headers["content-type"] == "application/cloudevents+json"


def test_request_without_a_body_has_no_content_type(queue: Queue, receiver: Receiver) -> None:
    deliver(queue, receiver.url())
    assert receiver.seen[0].body == b""
    assert "content-type" not in receiver.seen[0].headers


def test_headers_of_the_payload_and_ours_are_sent(queue: Queue, receiver: Receiver) -> None:
    job = deliver(
        queue, receiver.url(), headers={"X-Team": "ops é", "Authorization": "Bearer t", "X-Empty": ""}
    )
    assert job.status == "completed", job.error
    sent = receiver.seen[0].headers
    assert (sent["x-team"], sent["authorization"], sent["x-empty"]) == ("ops é", "Bearer t", "")
    assert sent["user-agent"] == f"holdfast/{holdfast.__version__}"
    assert sent["host"] == f"127.0.0.1:{receiver.port}"
    assert sent["accept-encoding"] == "identity"
    assert not [name for name in sent if name.startswith("webhook-") and name != "webhook-attempt"]


def test_key_is_the_same_in_every_attempt_and_the_attempts_are_counted(
    queue: Queue, receiver: Receiver, start_worker: StartWorker
) -> None:
    receiver.script = [500, 503, 200]
    start_worker()
    job = queue.enqueue(WEBHOOK, {"url": receiver.url()}, id="order:7", max_attempts=3)
    assert queue.wait(job.id, timeout=PATIENCE).status == "completed"
    keys = [(seen.headers["idempotency-key"], seen.headers["webhook-attempt"]) for seen in receiver.seen]
    assert keys == [("order:7", "1"), ("order:7", "2"), ("order:7", "3")]


# What is kept of an answer.


def test_first_4_kib_of_the_answer_are_kept(queue: Queue, receiver: Receiver) -> None:
    receiver.script = [(200, {}, b"a" * 4095 + "é".encode() + b"b" * 9000)]
    assert deliver(queue, receiver.url()).result["body"] == "a" * 4095


@pytest.mark.parametrize("status", [200, 404])
def test_answer_that_is_no_text_is_kept_as_far_as_it_is(
    queue: Queue, receiver: Receiver, status: int
) -> None:
    receiver.script = [(status, {"X-Request-Id": "é"}, b"a\0b\xff\xfec")]
    job = deliver(queue, receiver.url())
    kept = job.result["body"] if status == 200 else (job.errors[0].detail or {})["body"]
    assert kept == "a\ufffdb\ufffd\ufffdc"


def test_endless_answer_is_read_to_a_limit_only(queue: Queue, receiver: Receiver) -> None:
    written = 0

    def endless(request: BaseHTTPRequestHandler) -> None:
        nonlocal written
        request.send_response(200)
        request.end_headers()
        while not receiver.released.is_set():
            written += request.wfile.write(b"x" * 65536)

    receiver.script = [endless]
    job = deliver(queue, receiver.url(), timeout=5)
    assert (job.status, len(job.result["body"])) == ("completed", 4096)
    wait_until(lambda: receiver.broken, message="the client has hung up")
    assert written < 64 * 1024 * 1024


@pytest.mark.parametrize("status", [200, 400])
def test_answer_that_breaks_off_after_its_status_counts(
    queue: Queue, receiver: Receiver, status: int
) -> None:
    receiver.script = [(status, {"Content-Length": "1000"}, b"half")]
    job = deliver(queue, receiver.url())
    assert job.status == ("completed" if status == 200 else "failed")
    assert len(receiver.seen) == 1


def test_answer_whose_body_does_not_end_counts_when_the_time_is_up(queue: Queue, receiver: Receiver) -> None:
    def begin(request: BaseHTTPRequestHandler) -> None:
        request.send_response(200)
        request.end_headers()
        request.wfile.write(b"begun")
        receiver.hang(request)

    receiver.script = [begin]
    job = deliver(queue, receiver.url(), timeout=2)  # time enough to get there on a busy machine
    assert (job.status, job.result["body"]) == ("completed", "begun")


# How other answers end an attempt.


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503, 504, 599])
def test_answer_that_may_get_better_is_tried_again(
    queue: Queue, receiver: Receiver, start_worker: StartWorker, status: int
) -> None:
    receiver.script = [(status, {}, b"\n  try later \nsecond line"), 200]
    start_worker()
    job = queue.wait(queue.enqueue(WEBHOOK, {"url": receiver.url()}, max_attempts=2).id, timeout=PATIENCE)
    assert (job.status, job.attempts) == ("completed", 2)
    assert job.errors[0].error.startswith(f"Retry: {status}")
    assert job.errors[0].error.endswith(": try later")
    assert job.errors[0].detail == {"status": status, "body": "\n  try later \nsecond line"}


@pytest.mark.parametrize("status", [400, 401, 403, 404, 405, 409, 410, 413, 422, 451, 300, 304, 305])
def test_other_answers_fail_for_good(queue: Queue, receiver: Receiver, status: int) -> None:
    receiver.script = [(status, {"Retry-After": "5"}, b"" if status == 304 else b"no such order\nmore")]
    queue.set_config("max_attempts", 3)
    job = deliver(queue, receiver.url())
    assert (job.status, job.attempts) == ("failed", 1)
    assert (job.error or "").startswith(f"Fail: {status}")
    assert status == 304 or (job.error or "").endswith(": no such order")
    assert (job.errors[0].detail or {})["status"] == status


def test_first_line_of_an_answer_is_shortened_and_made_printable(queue: Queue, receiver: Receiver) -> None:
    receiver.script = [(400, {}, b"\x1b[31mred" + b"x" * 1000)]
    error = deliver(queue, receiver.url()).error or ""
    assert error.startswith("Fail: 400 Bad Request: \\x1b[31mred")
    assert len(error) < 300


def pause(job: Job) -> float:
    """Seconds from the end of the failed attempt to the next."""
    assert job.status == "scheduled", job.error
    assert job.next_retry_at is not None
    return (job.next_retry_at - job.errors[-1].finished_at).total_seconds()


@pytest.mark.parametrize(
    ("status", "said", "expected"), [(429, "120", 120), (503, "7200", 3600), (500, "0" * 20 + "5", 3600)]
)
def test_retry_after_in_seconds_is_honoured_up_to_an_hour(
    queue: Queue, receiver: Receiver, status: int, said: str, expected: float
) -> None:
    receiver.script = [(status, {"Retry-After": said}, b"")]
    queue.set_config("max_attempts", 2)
    assert pause(deliver(queue, receiver.url())) == pytest.approx(expected, abs=2)


def test_retry_after_as_a_date_is_honoured(queue: Queue, receiver: Receiver) -> None:
    at = dt.datetime.now(dt.UTC) + dt.timedelta(minutes=10)
    receiver.script = [(429, {"Retry-After": format_datetime(at, usegmt=True)}, b"")]
    queue.set_config("max_attempts", 2)
    assert pause(deliver(queue, receiver.url())) == pytest.approx(600, abs=5)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("0", 0),
        ("9" * 5000, 3600),
        ("Sun, 06 Nov 1994 08:49:37 GMT", 0),
        ("Sunday, 06-Nov-94 08:49:37 GMT", 0),
        ("Fri, 31 Dec 9999 23:59:59 GMT", 3600),
    ],
)
def test_retry_after_stays_within_its_bounds(text: str, expected: float) -> None:
    assert webhook_request.retry_after(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "soon", "-5", "1.5", "1e3", "\u0663", "Mon, 99 Foo 2030 99:99:99 GMT", "1 Jan 999999 0:0:0 GMT"],
)
def test_retry_after_that_means_nothing_is_passed_over(text: str) -> None:
    assert webhook_request.retry_after(text) is None


# The network.


def refused_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


def test_connection_refused_is_tried_again(queue: Queue) -> None:
    queue.set_config("max_attempts", 2)
    job = deliver(queue, f"http://127.0.0.1:{refused_port()}/")
    assert job.status == "scheduled"
    assert (job.errors[0].error or "").startswith("Retry: 127.0.0.1: ConnectError")


def test_name_that_is_unknown_is_tried_again(queue: Queue, names: Names) -> None:
    queue.set_config("max_attempts", 2)
    job = deliver(queue, "http://nowhere.example/")
    assert job.status == "scheduled"
    assert "nowhere.example: gaierror: " in job.errors[0].error
    assert names.looked_up == ["nowhere.example"]


def hang_up(request: BaseHTTPRequestHandler) -> None:
    request.connection.shutdown(socket.SHUT_RDWR)


def talk_nonsense(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"SSH-2.0-OpenSSH\r\n\r\n")
    request.close_connection = True


def talk_without_end(request: BaseHTTPRequestHandler) -> None:
    request.wfile.write(b"HTTP/1.1 200 OK\r\n" + b"A: b\r\n" * 200_000)
    request.close_connection = True


@pytest.mark.parametrize("behaviour", [hang_up, talk_nonsense, talk_without_end])
def test_server_that_does_not_answer_properly_is_tried_again(
    queue: Queue, receiver: Receiver, behaviour: Callable[..., None]
) -> None:
    receiver.script = [behaviour]
    queue.set_config("max_attempts", 2)
    job = deliver(queue, receiver.url())
    assert job.status == "scheduled"
    assert "ProtocolError" in job.errors[0].error or "ReadError" in job.errors[0].error


def test_request_without_an_answer_ends_at_its_timeout(queue: Queue, receiver: Receiver) -> None:
    receiver.script = [receiver.hang]
    queue.set_config("max_attempts", 2)
    job = deliver(queue, receiver.url(), timeout=1)  # time enough to get there on a busy machine
    assert job.status == "scheduled"
    assert job.errors[0].error == "Retry: 127.0.0.1: no response within 1 s"
    wait_until(lambda: receiver.broken, message="the client has hung up")


def test_timeout_is_for_the_whole_request(queue: Queue, receiver: Receiver) -> None:
    """A server that sends a little now and then does not gain time by it."""

    def drip(request: BaseHTTPRequestHandler) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nA: ")
        deadline = time.monotonic() + 3
        while time.monotonic() < deadline and not receiver.released.wait(0.02):
            request.wfile.write(b"x")
        request.wfile.write(b"\r\n\r\n")

    receiver.script = [drip]
    job = deliver(queue, receiver.url(), timeout=0.3)
    assert job.error == "Retry: 127.0.0.1: no response within 0.3 s"


def test_timeout_covers_the_lookup_of_the_name(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, start_worker: StartWorker, gate: Gate
) -> None:
    def lookup(*_: object, **__: object) -> list[Any]:
        gate.enter()
        return []

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    start_worker()
    job = queue.enqueue(WEBHOOK, {"url": "http://slow.example/", "timeout": 0.2})
    assert queue.wait(job.id, timeout=PATIENCE).error == "Retry: slow.example: no response within 0.2 s"
    assert gate.entered == 1


def test_slow_lookups_take_no_thread_that_others_need(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, start_worker: StartWorker, gate: Gate
) -> None:
    """The executor of an event loop has 4 threads and one for each core."""
    count = min(20, name_lookup.MOST_THREADS, 6 + (os.cpu_count() or 1))

    def lookup(*_: object, **__: object) -> list[Any]:
        gate.enter()
        return []

    async def ask(payload: dict[str, Any]) -> str:
        return await asyncio.to_thread(lambda: "answered")

    monkeypatch.setattr(socket, "getaddrinfo", lookup)
    queue.register("ask", ask)
    for number in range(count):
        queue.enqueue(WEBHOOK, {"url": f"http://slow-{number}.example/", "timeout": 60})
    start_worker(concurrency=count + 1)
    wait_until(lambda: gate.entered == count, timeout=PATIENCE, message="not all were looked up")
    assert queue.wait(queue.enqueue("ask", {}).id, timeout=PATIENCE).result == "answered"


def test_timeout_covers_all_redirects(
    queue: Queue, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is waited for on the way has the same deadline."""
    deadlines: list[float | None] = []
    timeout_at = asyncio.timeout_at

    def note(when: float | None) -> asyncio.Timeout:
        deadlines.append(when)
        return timeout_at(when)

    monkeypatch.setattr(asyncio, "timeout_at", note)
    receiver.script = [(307, {"Location": "/again"}, b"")] * 3
    assert deliver(queue, receiver.url(), timeout=60).status == "completed"
    assert len(receiver.seen) == 4
    assert len(deadlines) >= 4
    assert len(set(deadlines)) == 1


def test_next_address_of_a_name_is_tried(
    queue: Queue, receiver: Receiver, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nobody listens at ::1 there: the server has 127.0.0.1 alone.
    names["hook.example"] = ["::1", "127.0.0.1"]
    monkeypatch.setenv(webhook_target.ALLOW, "hook.example")
    job = deliver(queue, receiver.url(host="hook.example"), body="once")
    assert job.status == "completed", job.error
    assert [seen.body for seen in receiver.seen] == [b"once"]


def test_request_that_was_sent_goes_to_no_other_address(
    queue: Queue, receiver: Receiver, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    names["hook.example"] = ["127.0.0.1", "::ffff:127.0.0.1"]
    monkeypatch.setenv(webhook_target.ALLOW, "hook.example")
    receiver.script = [hang_up]
    assert deliver(queue, receiver.url(host="hook.example")).status == "failed"
    assert len(receiver.seen) == 1


# Ending a request that hangs.


@pytest.fixture
def hanging(queue: Queue, receiver: Receiver, start_worker: StartWorker) -> Callable[..., tuple[Job, Any]]:
    """Starts a job whose server does not answer; the job and its worker."""

    def start(**options: Any) -> tuple[Job, Any]:
        receiver.script = [receiver.hang]
        worker = start_worker()
        job = queue.enqueue(WEBHOOK, {"url": receiver.url()}, **options)
        wait_until(lambda: receiver.seen, message="the request has come")
        return job, worker

    return start


def test_timeout_of_the_job_ends_a_hanging_request(
    queue: Queue, receiver: Receiver, hanging: Callable[..., tuple[Job, Any]]
) -> None:
    job, worker = hanging(timeout=600)
    time_out(worker, job.id)
    ended = queue.wait(job.id, timeout=PATIENCE)
    assert (ended.error or "").startswith("TimedOut: ")
    wait_until(lambda: receiver.broken, message="the client has hung up")


def test_cancelling_ends_a_hanging_request(
    queue: Queue, receiver: Receiver, hanging: Callable[..., tuple[Job, Any]]
) -> None:
    queue.set_config("heartbeat_interval", 0.1)
    job, _ = hanging()
    queue.cancel(job.id)
    assert queue.wait(job.id, timeout=PATIENCE).status == "cancelled"
    wait_until(lambda: receiver.broken, message="the client has hung up")


def test_shutdown_gives_a_hanging_request_back(
    queue: Queue, receiver: Receiver, recorder: Recorder, hanging: Callable[..., tuple[Job, Any]]
) -> None:
    job, worker = hanging()
    worker.stop(timeout=0.1)
    recorder.wait(JobReleased, job_id=job.id)
    given_back = get(queue, job.id)
    assert (given_back.status, given_back.attempts) == ("pending", 0)
    wait_until(lambda: receiver.broken, message="the client has hung up")


# Signatures.

SECRET = "a secret that is nowhere to be read"


def signatures(seen: Seen, *keys: bytes) -> str:
    """The header that a request must have if it was signed with these keys."""
    content = f"{seen.headers['webhook-id']}.{seen.headers['webhook-timestamp']}.".encode() + seen.body
    made = [base64.b64encode(hmac.new(key, content, hashlib.sha256).digest()).decode() for key in keys]
    return " ".join(f"v1,{signature}" for signature in made)


def test_request_is_signed_with_the_secret(
    queue: Queue, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(webhook_signature.SECRET, SECRET)
    job = deliver(queue, receiver.url(), body={"order": "ü"})
    assert job.status == "completed", job.error
    seen = receiver.seen[0]
    assert seen.headers["webhook-id"] == job.id
    assert abs(int(seen.headers["webhook-timestamp"]) - time.time()) < 60
    assert seen.headers["webhook-signature"] == signatures(seen, SECRET.encode())


def test_signature_is_that_of_the_published_example(monkeypatch: pytest.MonkeyPatch) -> None:
    """The values are those that the libraries of Standard Webhooks are tested with."""
    monkeypatch.setenv(webhook_signature.SECRET, "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    monkeypatch.setattr(time, "time", lambda: 1614265330.0)
    made = webhook_signature.signature("msg_p5jXN8AQM9LWM0D4loKWxJek", b'{"test": 2432232314}')
    assert made["webhook-signature"] == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_request_without_a_body_is_signed(
    queue: Queue, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(webhook_signature.SECRET, SECRET)
    deliver(queue, receiver.url(), method="DELETE")
    assert receiver.seen[0].headers["webhook-signature"] == signatures(receiver.seen[0], SECRET.encode())


def test_file_may_hold_secrets_old_and_new(
    queue: Queue, receiver: Receiver, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "secret"
    file.write_text(f"{SECRET}\nwhsec_{base64.b64encode(b'new').decode()}\n")
    monkeypatch.setenv(webhook_signature.SECRET_FILE, str(file))
    deliver(queue, receiver.url(), body="x")
    file.write_text("next")
    deliver(queue, receiver.url(), body="x")
    first, second = receiver.seen
    assert first.headers["webhook-signature"] == signatures(first, SECRET.encode(), b"new")
    assert second.headers["webhook-signature"] == signatures(second, b"next")


@pytest.mark.parametrize(
    "variables",
    [
        {webhook_signature.SECRET_FILE: "missing"},
        {webhook_signature.SECRET_FILE: "empty"},
        {webhook_signature.SECRET_FILE: "binary"},
        {webhook_signature.SECRET_FILE: "good", webhook_signature.SECRET: SECRET},
        {webhook_signature.SECRET: f"whsec_{SECRET}!"},
        {webhook_signature.SECRET: "whsec_"},
    ],
    ids=lambda variables: "-".join(variables.values()),
)
def test_nothing_is_sent_unsigned_when_the_secret_can_not_be_had(
    queue: Queue,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    variables: dict[str, str],
) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / "good").write_text("good")
    monkeypatch.chdir(tmp_path)
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    queue.set_config("max_attempts", 2)
    job = deliver(queue, receiver.url())
    assert (job.status, receiver.seen) == ("scheduled", [])  # it can be put right, and is tried again
    assert job.errors[0].error.startswith("ConfigError: QUEUECTL_WEBHOOK_SECRET")
    assert SECRET not in repr(job)


def test_secret_is_neither_stored_nor_logged(
    queue: Queue,
    receiver: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv(webhook_signature.SECRET, SECRET)
    caplog.set_level(logging.DEBUG)
    receiver.script = [200, 500, 404, hang_up]
    jobs = [deliver(queue, receiver.url(), body="x") for _ in range(4)]
    assert len(receiver.seen) == 4
    assert SECRET not in repr(jobs)
    assert SECRET not in caplog.text
    stored = b"".join(path.read_bytes() for path in tmp_path.iterdir() if path.name.startswith("queue.db"))
    assert jobs[0].id.encode() in stored
    assert SECRET.encode() not in stored


# Payloads.


check = PayloadSpec.of_whole(webhook.Call).bind
"""What is done to a payload at enqueue, and again before its handler is called."""


@pytest.mark.parametrize(
    "wrong",
    [
        "",
        "example.com/hook",
        "//example.com/hook",
        "ftp://example.com/",
        "file:///etc/passwd",
        "gopher://example.com/",
        "javascript:alert(1)",
        "http://",
        "http:///path",
        "http:example.com",
        "http://:80/",
        "http://user@example.com/",
        "http://user:password@example.com/",
        "http://@example.com/",
        "http://example.com:0/",
        "http://example.com:65536/",
        "http://example.com:http/",
        "http://exa mple.com/",
        "http://example.com/a b",
        "http://example.com/\r\nX: y",
        "http://example.com/\t",
        " http://example.com/",
        "http://example.com\\@127.0.0.1/",
        "http://bücher.example/",
        "http://example.com/ü",
        "http://exam%70le.com/",
        "http://-example.com/",
        "http://example..com/",
        "http://.example.com/",
        "http://" + "a" * 64 + ".com/",
        "http://" + "a." * 127 + "com/",
        "http://[::1/",
        "http://::1/",
        "http://[::1]x/",
        "http://x[::1]/",
        "http://[::zz]/",
        "http://[v1.x]/",
        "http://[fe80::1%25eth0]/",
        "http://[127.0.0.1]/",
        "http://2130706433/",
        "http://0x7f000001/",
        "http://0x7f.0.0.1/",
        "http://0x/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://127.0.0.1.5/",
        "http://127.0.0.01/",
        "http://256.0.0.1/",
        "http://example.com/" + "x" * 2000,
    ],
)
def test_url_that_may_not_be_called_is_refused(wrong: str) -> None:
    with pytest.raises(InvalidPayload, match="url") as refused:
        check({"url": wrong})
    assert "password@" not in str(refused.value)


def test_wrong_payload_is_refused_at_enqueue(queue: Queue) -> None:
    for wrong in ({"url": "ftp://example.com/"}, {"url": "http://example.com/", "headers": {"Host": "x"}}):
        with pytest.raises(InvalidPayload):
            queue.enqueue(WEBHOOK, wrong)
    assert queue.stats()["pending"] == 0


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("http://example.com", ("http", "example.com", 80, "/")),
        ("HTTPS://Example.COM./a?b=c#d", ("https", "example.com", 443, "/a?b=c")),
        ("https://example.com:8443/?", ("https", "example.com", 8443, "/")),
        ("http://[2606:2800::0001]:81/x", ("http", "2606:2800::1", 81, "/x")),
        ("http://93.184.216.34/", ("http", "93.184.216.34", 80, "/")),
        ("http://my_host/", ("http", "my_host", 80, "/")),
        ("http://4you.example/", ("http", "4you.example", 80, "/")),
        ("http://xn--bcher-kva.example/%20", ("http", "xn--bcher-kva.example", 80, "/%20")),
        ("http://example.com/" + "x" * 1981, ("http", "example.com", 80, "/" + "x" * 1981)),
    ],
)
def test_url_is_read_into_its_parts(text: str, parts: tuple[str, str, int, str]) -> None:
    target = webhook_target.parse_url(text)
    assert (target.scheme, target.host, target.port, target.path) == parts


@pytest.mark.parametrize(
    "headers",
    [
        {"": "x"},
        {"X Y": "x"},
        {"X:": "x"},
        {"Größe": "x"},
        {"X\r\nY": "x"},
        {"X\n": "x"},
        {"X-A": "b\r\nX-B: c"},
        {"X-A": "b\n"},
        {"X-A": "b\r"},
        {"X-A": "\x7f"},
        {"X-A": "\x1b[0m"},
        {"X-A": "漢"},
        {"X-A": " b"},
        {"X-A": "b\t"},
        {"X-A": "b", "x-a": "c"},
        {"X-A": 1},
        {"X-A": None},
        *({name: "x"} for name in ["Idempotency-Key", "user-agent", "Webhook-Attempt", "Webhook-Id"]),
        *({name: "x"} for name in ["WEBHOOK-TIMESTAMP", "webhook-signature", "Host", "Content-Length"]),
        *({name: "x"} for name in ["Transfer-Encoding", "Connection", "Accept-Encoding", "Expect", "TE"]),
        *({name: "x"} for name in ["Proxy-Authorization", "Upgrade", "Trailer"]),
    ],
    ids=repr,
)
def test_header_that_may_not_be_sent_is_refused(headers: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload, match="headers"):
        check({"url": "http://example.com/", "headers": headers})


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": 5},
        {"url": None},
        {"method": "post"},
        {"method": "TRACE"},
        {"method": "CONNECT"},
        {"method": "GET", "body": ""},
        {"method": "HEAD", "body": {"a": 1}},
        {"timeout": 0},
        {"timeout": -1},
        {"timeout": 3601},
        {"timeout": "30"},
        {"timeout": True},
        {"headers": ["X"]},
        {"header": {}},
        {"secret": "x"},
    ],
    ids=repr,
)
def test_payload_that_is_wrong_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(InvalidPayload):
        check({"url": "http://example.com/", **wrong})


@pytest.mark.process
def test_payload_is_checked_where_httpx_is_not_installed(tmp_path: Path) -> None:
    source = """
import sys
sys.modules["httpx"] = sys.modules["httpcore"] = None
from holdfast import Queue
from holdfast.errors import InvalidPayload
from holdfast.jobs import webhook
with Queue("sqlite:///queue.db") as queue:
    queue.register("webhook", webhook.call)
    queue.enqueue("webhook", {"url": "https://example.com/", "body": {}})
    try:
        queue.enqueue("webhook", {"url": "ftp://example.com/"})
    except InvalidPayload as error:
        print(error)
    assert not {"asyncio", "ssl"} & set(sys.modules)
"""
    done = run_script(tmp_path, source)
    assert done.stdout == "payload: url: must begin with http:// or https://\n", done.stderr


# Where nothing may go.


def address(number: int) -> str:
    return str(ip_address(number))


NOT_PUBLIC = [
    "0.0.0.0",
    "127.0.0.1",
    "127.255.255.254",
    address(0x0A000001),  # of the network 10/8
    "100.64.0.1",
    "100.100.100.200",
    "168.63.129.16",
    "169.254.169.254",
    "172.16.0.1",
    "172.31.255.255",
    "192.0.0.1",
    "192.0.0.8",
    "192.0.0.192",
    "192.0.2.1",
    "192.31.196.1",
    "192.52.193.1",
    "192.88.99.1",
    address(0xC0A80001),  # of the network 192.168/16
    "192.175.48.1",
    "198.18.0.1",
    "198.51.100.1",
    "203.0.113.1",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "::",
    "::1",
    "::127.0.0.1",
    "::ffff:127.0.0.1",
    "::ffff:169.254.169.254",
    "::ffff:192.0.0.192",
    "::ffff:0:127.0.0.1",
    "64:ff9b::127.0.0.1",
    "64:ff9b::a9fe:a9fe",
    "64:ff9b:1::1",
    "64:ff9b:1::5db8:d822",
    "64:ff9b::c000:c0",
    "100::1",
    "100:0:0:1::1",
    "2001::1",
    "2001:2::1",
    "2001:20::1",
    "2001:0:4136:e378:8000:63bf:3fff:fdd2",
    "2001:db8::1",
    "2002:7f00:1::",
    "2002:a9fe:a9fe::1",
    "2002:ac10:1::1",
    "2620:4f:8000::1",
    "3fff::1",
    "4000::1",
    "5f00::1",
    "fc00::1",
    "fd00:ec2::254",
    "fe80::1",
    "fe80::1%1",
    "fec0::1",
    "ff02::1",
    "ff0e::1",
]

PUBLIC = [
    "1.1.1.1",
    "93.184.216.34",
    "172.32.0.1",
    "100.128.0.1",
    "2606:2800:220:1:248:1893:25c8:1946",
    "::ffff:93.184.216.34",
    "64:ff9b::93.184.216.34",
    "2002:5db8:d822::1",
]


@pytest.mark.parametrize("target", NOT_PUBLIC)
def test_address_that_is_not_public_is_permitted_only_where_all_are(target: str) -> None:
    assert not webhook_target.Allowed().permits("hook.example", ip_address(target))
    assert webhook_target.Allowed(everything=True).permits("hook.example", ip_address(target))


def test_what_python_takes_for_public_has_no_say(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has been another set in each of its releases."""
    for kind in (IPv4Address, IPv6Address):
        monkeypatch.setattr(kind, "is_global", property(lambda _: True))
        monkeypatch.setattr(kind, "is_multicast", property(lambda _: False))
        monkeypatch.setattr(kind, "is_reserved", property(lambda _: False))
    permits = webhook_target.Allowed().permits
    assert [target for target in NOT_PUBLIC if permits("hook.example", ip_address(target))] == []


@pytest.mark.parametrize("target", ["169.254.169.254", "::ffff:127.0.0.1", "fd00:ec2::254", "ff02::1"])
def test_name_that_is_also_at_an_address_that_is_not_public_is_refused(
    queue: Queue, names: Names, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    def connect(*_: object) -> None:
        raise AssertionError("it was called")

    monkeypatch.delenv(webhook_target.ALLOW)
    monkeypatch.setattr(webhook_request, "_send_to", connect)
    names["hook.example"] = ["93.184.216.34", target]
    queue.set_config("max_attempts", 3)
    job = deliver(queue, "http://hook.example/")
    assert (job.status, job.attempts) == ("failed", 1)
    shown = ip_address(target)
    assert (job.error or "").startswith(
        f"Fail: hook.example resolves to {shown}, which is not a public address"
    )


@pytest.mark.parametrize("target", PUBLIC)
def test_public_address_is_permitted(target: str) -> None:
    assert webhook_target.Allowed().permits("hook.example", ip_address(target))


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "[::ffff:127.0.0.1]", "[::ffff:7f00:1]", "localhost"])
def test_loopback_is_refused_unless_it_is_allowed(
    queue: Queue, receiver: Receiver, names: Names, monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.delenv(webhook_target.ALLOW)
    names["localhost"] = ["127.0.0.1"]
    job = deliver(queue, receiver.url(host=host))
    assert (job.error or "").endswith("or QUEUECTL_WEBHOOK_ALLOW_PRIVATE in the worker's environment")
    assert receiver.seen == []


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        (webhook_target.ALLOW_PRIVATE, "1"),
        (webhook_target.ALLOW, "127.0.0.0/8"),
        (webhook_target.ALLOW, "fd00::/8, 127.0.0.1"),
        (webhook_target.ALLOW, "other.example\nHook.Example."),
    ],
)
def test_private_target_is_called_where_it_is_allowed(
    queue: Queue,
    receiver: Receiver,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    text: str,
) -> None:
    monkeypatch.delenv(webhook_target.ALLOW)
    monkeypatch.setenv(variable, text)
    names["hook.example"] = ["127.0.0.1"]
    assert deliver(queue, receiver.url(host="hook.example")).status == "completed"


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        (webhook_target.ALLOW_PRIVATE, "0"),
        (webhook_target.ALLOW_PRIVATE, ""),
        (webhook_target.ALLOW, ""),
        (webhook_target.ALLOW, "example"),
        (webhook_target.ALLOW, "hook.example.org, sub.hook.example"),
        (webhook_target.ALLOW, "127.0.0.2, 128.0.0.0/8, ::1"),
    ],
)
def test_private_target_is_not_called_where_another_is_allowed(
    queue: Queue,
    receiver: Receiver,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
    variable: str,
    text: str,
) -> None:
    monkeypatch.delenv(webhook_target.ALLOW)
    monkeypatch.setenv(variable, text)
    names["hook.example"] = ["127.0.0.1"]
    assert deliver(queue, receiver.url(host="hook.example")).status == "failed"
    assert receiver.seen == []


@pytest.mark.parametrize(
    ("variable", "text"),
    [
        (webhook_target.ALLOW_PRIVATE, "yes"),
        (webhook_target.ALLOW, "*.example"),
        (webhook_target.ALLOW, "127.0.0.0/33"),
    ],
)
def test_allowance_that_means_nothing_is_an_error(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str
) -> None:
    monkeypatch.setenv(variable, text)
    with pytest.raises(ConfigError, match=variable):
        webhook_target.Allowed.from_environment()


def test_name_is_looked_up_once_and_the_checked_address_called(
    queue: Queue, receiver: Receiver, other: Receiver, names: Names
) -> None:
    """A name that means something else a moment later leads nowhere else."""
    names.known["hook.example"] = [["127.0.0.1"], ["169.254.169.254"]]
    job = deliver(queue, receiver.url(host="hook.example"))
    assert job.status == "completed", job.error
    assert names.looked_up == ["hook.example"]
    assert receiver.seen[0].headers["host"] == f"hook.example:{receiver.port}"


def test_proxy_of_the_environment_is_not_used(
    queue: Queue, receiver: Receiver, other: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, other.url("/"))
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    assert deliver(queue, receiver.url()).status == "completed"
    assert (len(receiver.seen), len(other.seen)) == (1, 0)


# Redirects.


def to(url: str, status: int = 307) -> tuple[int, dict[str, str], bytes]:
    return status, {"Location": url}, b"moved\n"


@pytest.mark.parametrize(
    ("method", "status"),
    [
        *(("GET", status) for status in (301, 302, 303, 307, 308)),
        ("HEAD", 302),
        *((method, status) for method in ("POST", "PUT", "PATCH", "DELETE") for status in (307, 308)),
    ],
)
def test_redirect_is_followed_with_the_same_request(
    queue: Queue, receiver: Receiver, method: str, status: int
) -> None:
    receiver.script = [to("/next?a=b", status)]
    body = {} if method in ("GET", "HEAD") else {"body": {"order": 7}}
    job = deliver(queue, receiver.url("/first"), method=method, **body)
    assert (job.status, job.result["url"]) == ("completed", receiver.url("/next?a=b"))
    first, second = receiver.seen
    assert second == Seen(method, "/next?a=b", first.headers, first.body)


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE"])
@pytest.mark.parametrize("status", [301, 302, 303])
def test_redirect_that_would_change_the_request_fails_for_good(
    queue: Queue, receiver: Receiver, method: str, status: int
) -> None:
    receiver.script = [to("/next", status)]
    queue.set_config("max_attempts", 3)
    job = deliver(queue, receiver.url(), method=method)
    assert (job.status, job.attempts, len(receiver.seen)) == ("failed", 1, 1)
    assert (job.error or "").startswith(f"Fail: {status}")


def test_redirect_without_a_place_fails_for_good(queue: Queue, receiver: Receiver) -> None:
    receiver.script = [307]
    assert (deliver(queue, receiver.url()).error or "").startswith("Fail: 307")


def test_five_redirects_are_followed_and_no_sixth(queue: Queue, receiver: Receiver) -> None:
    receiver.script = [to("/again")] * 5
    assert deliver(queue, receiver.url()).status == "completed"
    receiver.script = [to("/again")] * 6
    receiver.seen.clear()
    job = deliver(queue, receiver.url())
    assert (job.error or "").startswith("Fail: too many redirects: followed 5, then got ")
    assert len(receiver.seen) == 6
    assert job.errors[0].detail == {"status": 307, "body": "moved\n"}


@pytest.mark.parametrize(
    "place",
    [
        "http://127.0.0.2/",
        "http://[::1]/",
        "http://[::ffff:127.0.0.2]/",
        "http://169.254.169.254/latest/meta-data/",
        "http://inside.example/",
        "//inside.example/",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "ftp://hook.example/",
        "file:///etc/passwd",
        "http://user:password@hook.example/",
        "http://hook.example:0/",
        "http://h\xfcbsch.example/",
        "http://[",
        "http://hook.example/" + "x" * 2000,
    ],
)
def test_redirect_to_a_place_that_may_not_be_called_fails_for_good(
    queue: Queue, receiver: Receiver, names: Names, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    names["hook.example"] = ["127.0.0.1"]
    names["inside.example"] = [address(0x0A000001)]
    receiver.script = [to(place)]
    queue.set_config("max_attempts", 3)
    job = deliver(queue, receiver.url(host="hook.example"), timeout=5)
    assert (job.status, job.attempts, len(receiver.seen)) == ("failed", 1, 1)
    assert (job.error or "").startswith("Fail: ")
    assert "password@" not in repr(job)


def test_place_beyond_ascii_is_followed_as_a_browser_would(queue: Queue, receiver: Receiver) -> None:
    receiver.script = [to("/gr\xfc\xdfe a")]
    assert deliver(queue, receiver.url()).status == "completed"
    assert receiver.seen[1].path == "/gr%C3%BC%C3%9Fe%20a"


CREDENTIALS = {"Authorization": "Bearer t", "Cookie": "a=b", "X-Api-Key": "k", "X-Anything": "else"}


@pytest.mark.parametrize("host", ["127.0.0.1", "other.example"])
def test_credentials_do_not_go_to_another_host(
    queue: Queue,
    receiver: Receiver,
    other: Receiver,
    names: Names,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
) -> None:
    names["other.example"] = ["127.0.0.1"]
    monkeypatch.setenv(webhook_signature.SECRET, SECRET)
    receiver.script = [to(other.url("/there", host=host))]
    other.script = [to(receiver.url("/back"))]
    headers = {**CREDENTIALS, "Accept": "text/plain"}
    job = deliver(queue, receiver.url(), headers=headers, body={"order": 7})
    assert job.status == "completed", job.error
    first, back, there = receiver.seen[0], receiver.seen[1], other.seen[0]
    assert {name.lower() for name in CREDENTIALS} < set(first.headers)
    assert first.headers["webhook-signature"] == signatures(first, SECRET.encode())
    for seen in (there, back):  # what was given up once does not come back
        assert set(seen.headers) == {
            *("host", "accept", "accept-encoding", "connection", "content-type", "content-length"),
            *("user-agent", "idempotency-key", "webhook-attempt"),
        }
        assert (seen.headers["accept"], seen.body) == ("text/plain", b'{"order":7}')
        assert seen.headers["idempotency-key"] == job.id


def test_credentials_stay_with_their_host(queue: Queue, receiver: Receiver) -> None:
    receiver.script = [to("/next")]
    deliver(queue, receiver.url(), headers=CREDENTIALS)
    assert receiver.seen[1].headers == receiver.seen[0].headers


@pytest.mark.parametrize(
    ("before", "after", "same"),
    [
        ("http://a.example/", "http://a.example/x", True),
        ("http://a.example/", "https://a.example/", True),
        ("http://a.example:8080/", "https://a.example/", False),
        ("http://a.example/", "http://a.example:8080/", False),
        ("https://a.example/", "https://b.a.example/", False),
    ],
)
def test_same_host_is_one_name_scheme_and_port(before: str, after: str, same: bool) -> None:
    assert (
        webhook_request._is_same_host(webhook_target.parse_url(before), webhook_target.parse_url(after))
        is same
    )


# TLS.


def certificate(folder: Path, name: str) -> tuple[Path, Path]:
    """A certificate for a name that it vouches for itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)])
    now = dt.datetime.now(dt.UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(days=1))
        .not_valid_after(now + dt.timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    paths = folder / "certificate.pem", folder / "key.pem"
    paths[0].write_bytes(made.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths


class Secure(Struct):
    """A server with TLS, and the names that its clients asked for."""

    receiver: Receiver
    asked_for: list[str | None]


@pytest.fixture
def secure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Secure]:
    """A server that is hook.example, to clients that trust it."""
    public, private = certificate(tmp_path, "hook.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(public, private)
    asked_for: list[str | None] = []
    context.sni_callback = lambda _, name, __: asked_for.append(name)
    monkeypatch.setenv("SSL_CERT_FILE", str(public))
    webhook_request._tls.cache_clear()
    receiver = Receiver(context)
    yield Secure(receiver, asked_for)
    receiver.close()
    webhook_request._tls.cache_clear()


def test_certificate_is_that_of_the_name_not_of_the_address(
    queue: Queue, secure: Secure, names: Names
) -> None:
    names["hook.example"] = ["127.0.0.1"]
    job = deliver(queue, secure.receiver.url(host="hook.example", scheme="https"), body={"order": 7})
    assert job.status == "completed", job.error
    assert secure.asked_for == ["hook.example"]
    assert secure.receiver.seen[0].headers["host"] == f"hook.example:{secure.receiver.port}"
    assert json.loads(secure.receiver.seen[0].body) == {"order": 7}


@pytest.mark.parametrize("host", ["other.example", "127.0.0.1"])
def test_certificate_of_another_name_is_not_taken(
    queue: Queue, secure: Secure, names: Names, host: str
) -> None:
    names["other.example"] = ["127.0.0.1"]
    queue.set_config("max_attempts", 2)
    job = deliver(queue, secure.receiver.url(host=host, scheme="https"), body="secret")
    assert job.status == "scheduled"
    assert "CERTIFICATE_VERIFY_FAILED" in job.errors[0].error
    assert secure.receiver.seen == []


def test_certificate_that_nobody_vouches_for_is_not_taken(
    queue: Queue, secure: Secure, names: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    names["hook.example"] = ["127.0.0.1"]
    monkeypatch.delenv("SSL_CERT_FILE")
    job = deliver(queue, secure.receiver.url(host="hook.example", scheme="https"))
    assert "CERTIFICATE_VERIFY_FAILED" in (job.error or "")


def test_redirect_from_https_to_http_fails_for_good(
    queue: Queue, secure: Secure, receiver: Receiver, names: Names
) -> None:
    names["hook.example"] = ["127.0.0.1"]
    secure.receiver.script = [to(receiver.url(host="hook.example"))]
    job = deliver(queue, secure.receiver.url(host="hook.example", scheme="https"))
    assert (job.error, receiver.seen) == ("Fail: 307 redirect from https to http is not followed", [])
