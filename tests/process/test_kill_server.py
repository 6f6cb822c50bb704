"""kill -9 of `queuectl serve`, its server and its supervisor, in the middle of requests."""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.process import oracle
from tests.process.oracle import Database
from tests.process.programs import is_alive
from tests.support import wait_until
from tests.surfaces.command_line import PATIENT, CommandLine, Running
from tests.surfaces.live import client, write_lock
from tests.surfaces.support import wait_until_read

SOON = 60.0
ANSWERED, OPEN = 50, 200
"""Requests that are answered before the server is killed, and that wait for their answer then."""


@pytest.fixture
def ctl(tmp_path: Path) -> Iterator[CommandLine]:
    ctl = CommandLine(tmp_path / "home")
    yield ctl
    ctl.close()


@pytest.fixture
def database(ctl: CommandLine) -> Database:
    return Database(ctl.home / "queue.db")


def start_server(ctl: CommandLine, options: str = "--workers 0") -> tuple[Running, str]:
    running = ctl.start(f"serve --port 0 --log-format json {options}")
    return running, running.wait_for("server.started")["address"]


def body_of(key: str) -> dict[str, Any]:
    return {"type": "foreign", "payload": {"key": key}}


class Caller:
    """A connection with one POST on it, and what came back."""

    def __init__(self, address: str, key: str) -> None:
        self.key = key
        self.status: int | None = None
        self.id = ""
        self._received = b""
        place = urlsplit(address)
        self._socket = socket.create_connection((place.hostname or "", place.port or 0), timeout=SOON)
        body = json.dumps(body_of(key)).encode()
        head = (
            f"POST /api/tasks HTTP/1.1\r\nHost: {place.netloc}\r\nIdempotency-Key: {key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._socket.sendall(head.encode() + body)

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def is_answered(self) -> bool:
        return self.status is not None

    def read(self) -> None:
        """Take what has come; an answer counts when it is whole. A dead server's connection is closed."""
        try:
            data = self._socket.recv(65_536)
        except ConnectionResetError:
            data = b""
        if not data:
            self.close()
            return
        self._received += data
        head, _, body = self._received.partition(b"\r\n\r\n")
        lengths = [line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")]
        if lengths and len(body) == int(lengths[0].split(b":")[1]):
            self.status = int(head.split()[1])
            self.id = json.loads(body)["id"] if self.status in (200, 201) else ""

    def close(self) -> None:
        self._socket.close()

    @property
    def is_closed(self) -> bool:
        return self._socket.fileno() < 0


def wait_for_answers(callers: Sequence[Caller], count: int) -> None:
    """Read until so many of them are answered."""
    deadline = time.monotonic() + SOON
    while sum(caller.is_answered for caller in callers) < count:
        waiting = [caller for caller in callers if not caller.is_answered and not caller.is_closed]
        assert waiting, "their connections are closed"
        assert time.monotonic() < deadline, "the answers did not come"
        poll(waiting, 0.1)


def poll(callers: Sequence[Caller], timeout: float) -> None:
    """Read whatever is there; a poll, since select() has no room for many descriptors."""
    polled = select.poll()
    by_descriptor = {caller.fileno(): caller for caller in callers}
    for descriptor in by_descriptor:
        polled.register(descriptor, select.POLLIN)
    for descriptor, _ in polled.poll(timeout * 1000):
        by_descriptor[descriptor].read()


def read_to_the_end(callers: Sequence[Caller]) -> None:
    """Read what a dead server had still sent."""
    deadline = time.monotonic() + SOON
    while waiting := [caller for caller in callers if not caller.is_answered and not caller.is_closed]:
        assert time.monotonic() < deadline, f"{len(waiting)} connections of a dead server are open"
        poll(waiting, 0.1)


def keys_in(database: Database) -> list[str]:
    return [key for (key,) in database.query("SELECT json_extract(payload, '$.key') FROM holdfast_jobs")]


@pytest.mark.parametrize("answers", [None, 1, 50])
def test_no_answered_job_is_lost_and_none_is_there_twice_when_the_server_is_killed(
    ctl: CommandLine, database: Database, answers: int | None
) -> None:
    """Those that are open wait for the lock; the kill comes before any commit, or after so many answers."""
    running, address = start_server(ctl)
    pid = running.events("server.started")[0]["pid"]
    answered = [Caller(address, f"answered-{number}") for number in range(ANSWERED)]
    wait_for_answers(answered, ANSWERED)
    assert {caller.status for caller in answered} == {201}

    with write_lock(database.path) as release:
        opened = [Caller(address, f"open-{number}") for number in range(OPEN)]
        with client(address) as api:
            assert api.get("/healthz").status_code == 200
        poll(opened, 0.2)
        assert not any(caller.is_answered for caller in opened), "answered before it was durable"
        if answers is not None:
            release()
            wait_for_answers(opened, answers)
        os.kill(pid, signal.SIGKILL)
    wait_until(lambda: not is_alive(pid), SOON, "the server is dead")
    read_to_the_end(opened)
    callers = answered + opened
    # How many more are answered before the kill comes is up to the machine.
    assert sum(caller.is_answered for caller in opened) >= (answers or 0)
    assert answers is not None or not any(caller.is_answered for caller in opened)

    accepted = {caller.key: caller.id for caller in callers if caller.is_answered}
    assert len(set(accepted.values())) == len(accepted)
    oracle.check_nothing_lost(database, accepted.values())
    stored = keys_in(database)
    assert len(stored) == len(set(stored))
    if answers is None:
        assert len(stored) == ANSWERED

    # The same again, while another server is on its way: who connects meanwhile is served by it.
    again = [Caller(address, caller.key) for caller in callers]
    wait_for_answers(again, len(again))
    assert running.wait_for("server.started", 2)["address"] == address
    for caller in again:
        assert caller.status == (200 if caller.key in stored else 201), caller.key
        assert caller.id == accepted.get(caller.key, caller.id)
    for caller in (*callers, *again):
        caller.close()
    assert sorted(keys_in(database)) == sorted(caller.key for caller in callers)
    assert database.jobs().keys() == {caller.id for caller in again}
    oracle.check_file(database)
    assert running.stop() == 0
    assert running.errors() == ""


def test_a_server_that_dies_again_and_again_is_replaced_each_time(
    ctl: CommandLine, database: Database
) -> None:
    """Whoever waits at the socket is served, after pauses that grow."""
    running, address = start_server(ctl)
    ids = []
    for number, pause in ((1, 1.0), (2, 2.0)):
        os.kill(running.events("server.started")[-1]["pid"], signal.SIGKILL)
        assert running.wait_for("server.died", number)["restart_in"] == pause
        with client(address) as api:
            answer = api.post("/api/tasks", json=body_of(str(number)))
        assert answer.status_code == 201
        ids.append(answer.json()["id"])
        running.wait_for("server.started", number + 1)
    assert list(database.jobs()) == ids
    assert running.stop() == 0


def test_a_supervisor_that_waits_to_replace_its_server_stops_at_once(ctl: CommandLine) -> None:
    running = ctl.start("serve --port 0 --log-format json --workers 0", program=PATIENT)
    address = running.wait_for("server.started")["address"]
    os.kill(running.events("server.started")[0]["pid"], signal.SIGKILL)
    running.wait_for("server.died")
    assert running.stop() == 0
    assert len(running.events("server.started")) == 1
    assert is_refused(address)


def is_refused(address: str) -> bool:
    try:
        httpx.get(f"{address}/healthz", timeout=SOON, trust_env=False)
    except httpx.ConnectError:
        return True
    return False


def test_a_killed_supervisor_takes_server_and_workers_with_it(ctl: CommandLine, database: Database) -> None:
    """In order: the request that waits is answered, and the job that runs is finished."""
    running, address = start_server(ctl, "--workers 2")
    running.wait_for("worker.started", 2)
    pids = [running.events("server.started")[0]["pid"], *running.pids()]
    gate = ctl.home / "gate"
    until_then = f"n=0; while [ ! -e '{gate}' ] && [ $n -lt 1000 ]; do sleep 0.02; n=$((n+1)); done"
    job = ctl.queue.enqueue("shell", {"command": f"echo started; {until_then}"}).id
    ctl.wait_started(job)
    with write_lock(database.path) as release:
        caller = Caller(address, "open")
        wait_until_read(address)
        running.signal(signal.SIGKILL)
        assert running.wait(SOON) == -signal.SIGKILL
        wait_until(lambda: running.events("server.stopping"), SOON, "the server notices")
        release()
    wait_for_answers([caller], 1)
    caller.close()
    assert caller.status == 201
    wait_until(lambda: not is_alive(pids[0]), SOON, "the server ends")
    assert is_refused(address)
    gate.touch()
    wait_until(lambda: not any(map(is_alive, pids)), SOON, "the workers end")
    assert ctl.job(job).status == "completed"
    assert ctl.job(caller.id).status == "pending"
    ctl.wait_empty()
    assert running.errors() == ""
