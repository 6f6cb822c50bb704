"""What a server does over time: it is started again, is read slowly, and orders hold while others work."""

from __future__ import annotations

import socket
import threading
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from holdfast import Queue
from holdfast.web import create_app, server
from tests.surfaces.live import client, live


def test_an_application_serves_again_after_its_server_has_stopped(queue: Queue) -> None:
    app = create_app(queue)
    for count in (1, 2):
        with live(app) as address, client(address) as api:
            assert api.post("/api/tasks", json={"type": "mail"}).status_code == 201
            assert api.get("/api/tasks").json()["total"] == count
            with api.stream("GET", "/api/events") as stream:
                assert next(stream.iter_lines()) == "retry: 1000"


def test_a_client_that_reads_nothing_is_let_go(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = threading.Event()
    watch = server.PatientProtocol._watch_writing

    def watch_and_tell(protocol: server.PatientProtocol, before: int) -> None:
        watch(protocol, before)
        if protocol.transport.is_closing():
            gone.set()

    monkeypatch.setattr(server.PatientProtocol, "_watch_writing", watch_and_tell)
    monkeypatch.setattr(server, "WRITE_SECONDS", 0.2)
    for _ in range(8):
        queue.enqueue("mail", {"text": "x" * 900_000})
    with live(create_app(queue)) as address, socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        place = urlsplit(address)
        connection.connect((place.hostname, place.port))
        connection.settimeout(20.0)
        connection.sendall(b"GET /api/tasks?full=true HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert gone.wait(10.0)
        received = 0
        while part := connection.recv(1 << 20):
            received += len(part)
        assert received < 7_000_000


class Slow:
    """A transport whose client takes so much between two looks."""

    def __init__(self, *left: int) -> None:
        self._left = list(left)
        self.aborted = False

    def get_write_buffer_size(self) -> int:
        return self._left.pop(0)

    def abort(self) -> None:
        self.aborted = True


@pytest.mark.parametrize(
    ("left", "aborted"),
    [((900, 900, 500, 499, 100), False), ((900, 900, 500, 500), True), ((900, 900, 900), True)],
)
def test_a_client_that_reads_something_in_time_is_waited_for(left: tuple[int, ...], aborted: bool) -> None:
    due: list[tuple[Any, ...]] = []
    protocol: Any = object.__new__(server.PatientProtocol)
    protocol.transport = Slow(*left)
    protocol.flow = SimpleNamespace(pause_writing=lambda: None)
    protocol.loop = SimpleNamespace(call_later=lambda seconds, *call: due.append(call))
    protocol.pause_writing()
    for _ in range(len(left) - 2):
        look, before = due.pop()
        look(before)
    assert protocol.transport.aborted is aborted


def test_a_bulk_order_takes_those_it_counted_and_no_others(
    queue: Queue, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = [queue.enqueue("mail", {}).id for _ in range(300)]
    for id in [queue.enqueue("mail", {}).id for _ in range(300)]:
        queue.cancel(id)
    first = threading.Event()
    delete_job = queue.store.delete_job

    def delete(job_id: str) -> None:
        if not first.is_set():
            first.set()
            for id in older:  # come to fit while the order is carried out
                queue.store.cancel_job(id)
        delete_job(job_id)

    monkeypatch.setattr(queue.store, "delete_job", delete)
    order: dict[str, Any] = {"action": "delete", "filter": {"status": "cancelled"}, "expectedCount": 300}
    answer = api.post("/api/tasks/bulk", json=order).json()
    assert (answer["matched"], answer["done"], answer["refused"]) == (300, 300, 0)
    assert queue.count(status="cancelled") == 300
    assert queue.get(older[0]) is not None
