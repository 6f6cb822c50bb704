"""`queuectl serve` as a program: how it starts, refuses, replaces what dies, and stops."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

from tests.process.programs import is_alive
from tests.support import both_engines, wait_until
from tests.surfaces.command_line import CommandLine, Running
from tests.surfaces.live import client, write_lock
from tests.surfaces.support import Cli, environment, start_queuectl, wait_until_read

pytestmark = pytest.mark.process

SOON = 60.0
"""Seconds that are plenty for whatever happens at once, on a machine that has other things to do."""

APP = """
from holdfast import Queue

queue = Queue()

@queue.job
def greet(name: str) -> str:
    return f"hello {name}"
"""


@pytest.fixture
def ctl(home: Path) -> Iterator[CommandLine]:
    ctl = CommandLine(home)
    yield ctl
    ctl.close()


def start_server(
    ctl: CommandLine, options: str = "--workers 0", *, cwd: Path | None = None
) -> tuple[Running, str]:
    """Type `serve` and wait until it serves; its address, too."""
    running = ctl.start(f"serve --port 0 --log-format json {options}", cwd=cwd)
    return running, running.wait_for("server.started")["address"]


def start_with_workers(
    ctl: CommandLine, count: int = 1, options: str = "", **where: Any
) -> tuple[Running, str]:
    running, address = start_server(ctl, f"--workers {count} {options}", **where)
    running.wait_for("worker.started", count)
    return running, address


def gated(gate: Path) -> str:
    """A command that says that it has started and ends when a file is there, or after a minute."""
    file = shlex.quote(str(gate))
    return f"echo started; n=0; while [ ! -e {file} ] && [ $n -lt 3000 ]; do sleep 0.02; n=$((n+1)); done"


class Request(threading.Thread):
    """An enqueue that is on its way; `status` and `body` when it is answered, `error` if it never is."""

    def __init__(self, address: str) -> None:
        super().__init__(daemon=True)
        self._address = address
        self.status: int | None = None
        self.body = ""
        self.error: httpx.HTTPError | None = None
        self._is_sent = threading.Event()
        self.start()

    def run(self) -> None:
        try:
            with client(self._address) as api:
                answer = api.post("/api/tasks", json={"type": "foreign"}, extensions={"trace": self._trace})
        except httpx.HTTPError as error:
            self.error = error
        else:
            self.status, self.body = answer.status_code, answer.text

    def _trace(self, name: str, _: object) -> None:
        if name == "http11.send_request_body.complete":
            self._is_sent.set()

    def wait_read(self) -> None:
        """Wait until the server has read it."""
        assert self._is_sent.wait(SOON)
        wait_until_read(self._address)

    @property
    def is_over(self) -> bool:
        return not self.is_alive()


def wait_refused(address: str) -> None:
    """New connections must be refused; one that is let in would wait for nobody."""
    place = urlsplit(address)

    def refused() -> bool:
        try:
            socket.create_connection((place.hostname or "", place.port or 0), timeout=SOON).close()
        except ConnectionRefusedError:
            return True
        return False

    wait_until(refused, SOON, f"{address} refuses connections")


def assert_one_line(text: str, *parts: str) -> None:
    lines = text.splitlines()
    assert len(lines) == 1, text
    for part in parts:
        assert part in lines[0]


# Starting.


@pytest.mark.parametrize("format", ["text", "json"])
def test_the_address_is_printed_when_it_answers(ctl: CommandLine, format: str) -> None:
    """Without workers it is ready and takes jobs, with the stop file and without.

    Where there is no terminal, the log is JSON.
    """
    options = ""
    if format == "text":
        options = "--log-format text"
        (ctl.home / ".stop_workers").touch()
    running = ctl.start(f"serve --port 0 --workers 0 {options}")
    wait_until(lambda: "http://127.0.0.1:" in running.output(), SOON, "the address is printed")
    found = re.search(r"http://127\.0\.0\.1:\d+", running.output())
    assert found is not None
    with client(found[0]) as api:
        assert api.get("/healthz").json() == {"status": "ok"}
        ready = api.get("/readyz")
        assert (ready.status_code, ready.json()) == (
            200,
            {"status": "ready", "database": "ok", "workers": 0},
        )
        accepted = api.post("/api/tasks", json={"type": "foreign"})
        assert accepted.status_code == 201
    assert running.stop() == 0
    assert running.errors() == ""
    assert ctl.job(accepted.json()["id"]).status == "pending"
    if format == "text":
        assert re.search(r"info +serving http://127\.0\.0\.1:\d+, pid \d+\n", running.output())
        assert "server stopping, 0 requests in progress\n" in running.output()
        assert "server stopped\n" in running.output()
        assert "{" not in running.output()
    else:
        [started] = running.events("server.started")
        assert started["address"] == found[0]
        assert running.events("server.stopped")[0]["cut_short"] == 0


@both_engines
def test_workers_run_beside_the_server_and_finish_their_jobs_when_it_refuses_connections(
    ctl: CommandLine,
) -> None:
    """Each is a process of its own."""
    running, address = start_with_workers(ctl, 2)
    server = running.events("server.started")[0]["pid"]
    assert len({running.pid, server, *running.pids()}) == 4
    gates = [ctl.home / f"gate{number}" for number in range(2)]
    ids = [ctl.queue.enqueue("shell", {"command": gated(gate)}).id for gate in gates]
    for id in ids:
        ctl.wait_started(id)
    with client(address) as api:
        assert api.get("/readyz").json() == {"status": "ready", "database": "ok", "workers": 2}
        listed = api.get("/api/workers").json()
        assert sorted(worker["pid"] for worker in listed) == sorted(running.pids())
        assert sorted(job["id"] for worker in listed for job in worker["running"]) == sorted(ids)
    untouched = ctl.queue.enqueue("shell", {"command": "true"}).id
    running.signal(signal.SIGTERM)
    running.wait_for("server.stopped")
    wait_refused(address)
    assert running.is_running
    assert [ctl.job(id).status for id in ids] == ["processing"] * 2
    for gate in gates:
        gate.touch()
    assert running.wait(SOON) == 0
    assert [(ctl.job(id).status, ctl.job(id).attempts) for id in ids] == [("completed", 1)] * 2
    assert (ctl.job(untouched).status, ctl.job(untouched).attempts) == ("pending", 0)
    assert running.errors() == ""
    ctl.wait_empty()


def test_the_handlers_of_an_application_check_payloads_and_file_jobs_have_no_root_unless_one_is_named(
    ctl: CommandLine, tmp_path: Path
) -> None:
    """Payloads are checked at admission and run. The folder that it is started in holds the code."""
    (tmp_path / "app.py").write_text(APP)
    options = "--app app:queue --allow-type create_file --allow-type claude_extraction:x --allow-type shell"
    running, address = start_with_workers(ctl, 1, options, cwd=tmp_path)
    with client(address) as api:
        for payload in ({"name": 5}, {}, {"name": "you", "age": 3}):
            refused = api.post("/api/tasks", json={"type": "greet", "payload": payload})
            assert refused.status_code == 400, payload
            assert refused.json()["error"]["code"] == "invalid_payload"
        accepted = api.post("/api/tasks", json={"type": "greet", "payload": {"name": "you"}})
        assert accepted.status_code == 201
        id = accepted.json()["id"]
        assert ctl.wait(id, "completed").result == "hello you"
        assert api.get(f"/api/tasks/{id}").json()["result"] == "hello you"
        [greet] = [type for type in api.get("/api/types").json() if type["type"] == "greet"]
        assert greet["payloadSchema"]["required"] == ["name"]
        assert api.get("/api/tasks/stats").json()["failed"] == 0
        file = {"path": str(tmp_path / "app.py"), "content": "raise SystemExit", "overwrite": True}
        id = api.post("/api/tasks", json={"type": "create_file", "payload": file}).json()["id"]
    error = ctl.wait(id, "failed").error
    assert error is not None
    assert error.endswith("this worker has no file roots; set QUEUECTL_FILE_ROOTS")
    assert (tmp_path / "app.py").read_text() == APP
    assert running.stop() == 0
    assert_one_line(running.errors(), "--allow-type claude_extraction, create_file: ", "QUEUECTL_FILE_ROOTS")


# Refusing.


def test_a_wrong_app_is_one_line_and_wrong_usage(ctl: CommandLine, tmp_path: Path) -> None:
    """What else may be wrong with one is shown with `worker start`, which loads it in the same way."""
    (tmp_path / "broken.py").write_text("raise RuntimeError('it broke')\n")
    running = ctl.start("serve --port 0 --app broken:queue", cwd=tmp_path)
    assert running.wait() == 2
    assert_one_line(running.errors(), "--app", "it broke")
    assert "server.started" not in running.output()


def test_a_port_in_use_is_one_line_and_a_failure(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        ran = cli("serve", "--port", str(port))
    assert ran.code == 1
    assert_one_line(ran.err, f"127.0.0.1:{port}", "ddress already in use")
    assert ran.out == ""


def test_a_database_that_cannot_be_opened_is_one_line_and_a_failure(bare_cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("this is no database" * 100)
    ran = bare_cli("serve", "--port", "0", "--database", f"sqlite:///{tmp_path / 'text'}")
    assert ran.code == 1
    assert_one_line(ran.err, str(tmp_path / "text"))
    assert (tmp_path / "text").read_text() == "this is no database" * 100


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--workers", "-1"], 2, "--workers"),
        (["--workers", "1001"], 2, "--workers"),
        (["--workers", "x"], 2, "--workers"),
        (["--port", "65536"], 2, "--port"),
        (["--port", "-1"], 2, "--port"),
        (["--enqueue-rate", "nan"], 2, "--enqueue-rate"),
        (["--enqueue-rate", "-1"], 2, "--enqueue-rate"),
        (["--root-path", "queue"], 2, "--root-path"),
        (["--allow-type", "a b"], 2, "type"),
        (["--log-format", "xml"], 2, "--log-format"),
        (["--log-level", "loud"], 2, "debug"),
        (["--host", "0.0.0.0"], 2, "QUEUECTL_TOKEN"),
        (["--host", "::"], 2, "QUEUECTL_TOKEN"),
        (["--host", ""], 2, "QUEUECTL_TOKEN"),
        (["--host", "192.0.2.1"], 2, "QUEUECTL_TOKEN"),
        (["--token", ""], 2, "token"),
        (["--host", "192.0.2.1", "--token", "correct-horse-battery"], 1, "192.0.2.1"),
        (["--host", "no.such.host.invalid", "--token", "correct-horse-battery"], 1, "no.such.host.invalid"),
        (["--host", "a..b", "--token", "correct-horse-battery"], 2, "a..b"),
        (["--host", "x" * 300, "--token", "correct-horse-battery"], 1, "xxx"),
        (["extra"], 2, "extra"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_what_cannot_be_served_is_refused_in_one_line(
    cli: Cli, words: list[str], code: int, said: str
) -> None:
    ran = cli("serve", *([] if "--port" in words else ["--port", "0"]), *words)
    assert ran.code == code, ran
    assert_one_line(ran.err, said)
    assert ran.out == ""


def test_without_the_web_extra_it_says_what_to_install(home: Path) -> None:
    modules = ["fastapi", "uvicorn", "jinja2", "prometheus_client"]
    program = f"""if True:
        import sys
        from holdfast.cli.main import run
        for module in {modules}:
            sys.modules[module] = None
            print(run(["serve", "--port", "0"]))
            del sys.modules[module]
    """
    done = subprocess.run(
        [sys.executable, "-c", program],
        env=environment(home),
        capture_output=True,
        text=True,
        timeout=SOON,
        check=True,
    )
    assert done.stdout == "1\n" * len(modules)
    for module, line in zip(modules, done.stderr.splitlines(), strict=True):
        assert_one_line(line, module, "pip install 'holdfast-queue[web]'")


# What dies is replaced.


def test_a_worker_that_is_killed_is_replaced_its_job_runs_again_and_ctrl_c_is_an_orderly_stop(
    ctl: CommandLine,
) -> None:
    """And the program's log is one JSON object a line."""
    running, address = start_with_workers(ctl)
    [victim] = running.pids()
    hold_once = 'echo started; test "$QUEUECTL_ATTEMPT" != 1 || sleep 600'
    id = ctl.queue.enqueue("shell", {"command": hold_once}).id
    ctl.wait_started(id)
    os.kill(victim, signal.SIGKILL)
    with client(address) as api:
        assert api.get("/healthz").status_code == 200
        started = running.wait_for("worker.started", 2)
        assert started["pid"] != victim
        assert ctl.wait(id, "completed").attempts == 2
        assert api.get("/readyz").json()["workers"] == 1
    assert running.events("worker.died", pid=victim, how="was killed by signal 9")
    assert len(running.events("server.started")) == 1
    running.signal(signal.SIGINT)
    assert running.wait(SOON) == 0
    assert running.errors() == ""
    lines = [json.loads(line) for line in running.output().splitlines()]
    assert {"time", "level", "event"} <= set.intersection(*(set(line) for line in lines))
    names = [line["event"] for line in lines]
    assert "worker.stopped" in names
    assert names.index("supervisor.stopping") < names.index("server.stopped")
    assert names.index("server.stopping") < names.index("server.stopped")


def test_a_server_that_is_killed_or_that_somebody_else_stops_is_replaced_and_the_workers_work_on(
    ctl: CommandLine,
) -> None:
    running, address = start_with_workers(ctl)
    gate = ctl.home / "gate"
    id = ctl.queue.enqueue("shell", {"command": gated(gate)}).id
    ctl.wait_started(id)
    killed = running.events("server.started")[0]["pid"]
    os.kill(killed, signal.SIGKILL)
    again = running.wait_for("server.started", 2)
    assert again["pid"] != killed
    assert again["address"] == address
    died = running.events("server.died")[0]
    assert (died["pid"], died["how"], died["restart_in"]) == (killed, "was killed by signal 9", 1.0)
    os.kill(again["pid"], signal.SIGTERM)
    running.wait_for("server.stopped")
    assert running.wait_for("server.started", 3)["pid"] != again["pid"]
    with client(address) as api:
        assert api.get(f"/api/tasks/{id}").json()["status"] == "processing"
        gate.touch()
        wait_until(lambda: api.get(f"/api/tasks/{id}").json()["status"] == "completed", SOON)
    assert ctl.job(id).attempts == 1
    assert len(running.pids()) == 1
    assert not running.events("worker.died")
    assert running.stop() == 0


# Stopping the workers alone.


@pytest.mark.parametrize("how", [".stop_workers", "worker stop"])
def test_workers_that_are_stopped_leave_the_api_serving(ctl: CommandLine, how: str) -> None:
    running, address = start_with_workers(ctl, 2)
    gate = ctl.home / "gate"
    id = ctl.queue.enqueue("shell", {"command": gated(gate)}).id
    ctl.wait_started(id)
    stopping: subprocess.Popen[bytes] | None = None
    if how == "worker stop":
        stopping = start_queuectl(ctl.home, "worker", "stop")
    else:
        (ctl.home / ".stop_workers").touch()
    running.wait_for("worker.stopping", 2)
    assert ctl.job(id).status == "processing"
    gate.touch()
    running.wait_for("worker.stopped", 2)
    wait_until(lambda: not any(map(is_alive, running.pids())), SOON, "the workers have ended")
    if stopping is not None:
        out, err = stopping.communicate(timeout=SOON)
        assert (stopping.returncode, err) == (0, b"")
        assert out.count(b" stopped\n") == 2
    assert ctl.job(id).status == "completed"
    with client(address) as api:
        assert api.get("/healthz").status_code == 200
        accepted = api.post("/api/tasks", json={"type": "foreign"})
        assert accepted.status_code == 201
        ready = api.get("/readyz")
        assert (ready.status_code, ready.json()["workers"]) == (503, 0)
    assert len(running.pids()) == 2
    assert not running.events("worker.died")
    assert running.stop() == 0
    assert running.events("server.stopped")
    assert running.events("supervisor.stopping")[-1]["reason"] == "SIGTERM"
    assert ctl.job(accepted.json()["id"]).status == "pending"


def test_while_the_stop_file_exists_nothing_is_served_that_has_workers(cli: Cli, home: Path) -> None:
    (home / ".stop_workers").touch()
    ran = cli("serve", "--port", "0")
    assert ran.code == 1
    assert_one_line(ran.err, ".stop_workers")


# Stopping.


def test_stopping_answers_the_requests_in_flight_and_ends_streams(ctl: CommandLine) -> None:
    running, address = start_server(ctl)
    with client(address) as api, api.stream("GET", "/api/events", timeout=SOON) as response:
        lines = response.iter_lines()
        assert next(line for line in lines if line == "event: stats")
        with write_lock(ctl.home / "queue.db") as release:
            request = Request(address)
            request.wait_read()
            running.signal(signal.SIGTERM)
            stopping = running.wait_for("server.stopping")
            assert stopping["requests"] >= 1
            wait_refused(address)
            list(lines)  # the stream ends in order, or this raises
            assert not request.is_over
            assert running.is_running
            release()
        request.join(SOON)
    assert request.error is None
    assert request.status == 201
    assert running.wait(SOON) == 0
    assert running.errors() == ""
    assert ctl.job(json.loads(request.body)["id"]).status == "pending"
    assert running.events("server.stopped")[0]["cut_short"] == 0


def test_a_job_longer_than_the_deadline_is_given_back_and_said_so(ctl: CommandLine) -> None:
    ctl.queue.set_config("shutdown_timeout", 1)
    running, _ = start_with_workers(ctl)
    id = ctl.queue.enqueue("shell", {"command": "echo started; sleep 600"}).id
    ctl.wait_started(id)
    running.signal(signal.SIGTERM)
    assert running.wait(SOON) == 1
    assert (ctl.job(id).status, ctl.job(id).attempts) == ("pending", 0)
    assert running.events("job.released", job_id=id)
    assert running.errors() == ""
    ctl.wait_empty()


def test_the_second_signal_gives_jobs_back_and_ends_at_once(ctl: CommandLine) -> None:
    ctl.queue.set_config("shutdown_timeout", 600)
    running, _ = start_with_workers(ctl)
    id = ctl.queue.enqueue("shell", {"command": "echo started; sleep 600"}).id
    ctl.wait_started(id)
    running.signal(signal.SIGTERM)
    running.wait_for("worker.stopping")
    running.signal(signal.SIGTERM)
    assert running.wait(SOON) == 1
    assert (ctl.job(id).status, ctl.job(id).attempts) == ("pending", 0)
    assert running.errors() == ""
    assert running.events("log") == []
    ctl.wait_empty()


def test_the_second_signal_does_not_wait_for_a_request(ctl: CommandLine) -> None:
    ctl.queue.set_config("shutdown_timeout", 600)
    running, address = start_server(ctl)
    with write_lock(ctl.home / "queue.db"):
        request = Request(address)
        request.wait_read()
        running.signal(signal.SIGTERM)
        running.wait_for("server.stopping")
        running.signal(signal.SIGINT)
        assert running.wait(SOON) == 1
        request.join(SOON)
    assert running.errors() == ""
    assert not running.events("server.died")
    assert request.status != 201


def test_a_request_longer_than_the_deadline_is_cut_short_without_a_traceback(ctl: CommandLine) -> None:
    ctl.queue.set_config("shutdown_timeout", 1)
    running, address = start_server(ctl)
    with write_lock(ctl.home / "queue.db"):
        request = Request(address)
        request.wait_read()
        running.signal(signal.SIGTERM)
        assert running.wait(SOON) == 1
        request.join(SOON)
    assert running.errors() == ""
    assert [event["cut_short"] for event in running.events("server.stopped")] == [1]
    assert request.status in (None, 503), "not 500: it is no mistake of ours"


def test_a_stream_that_is_not_read_does_not_keep_the_server_from_stopping(ctl: CommandLine) -> None:
    """Its buffers are full of counts by type, so that the end can't be sent."""
    ctl.queue.enqueue_batch([(f"{'x' * 240}{number}", {}, {}) for number in range(8000)])
    running, address = start_server(ctl)
    place = urlsplit(address)
    with socket.socket() as silent:
        silent.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
        silent.connect((place.hostname or "", place.port or 0))
        silent.sendall(b"GET /api/events HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        wait_until(lambda: silent.recv(1, socket.MSG_PEEK), SOON)
        with client(address) as api:
            assert api.get("/healthz").status_code == 200
        running.signal(signal.SIGTERM)
        assert running.wait(SOON) == 0
    assert running.errors() == ""


def test_a_signal_while_it_starts_is_an_orderly_stop(ctl: CommandLine) -> None:
    """Its processes may be too young to listen; none is left, and nothing is said on standard error."""
    running = ctl.start("serve --port 0 --log-format json")
    wait_until(lambda: len(ctl.processes()) >= 3, SOON, "its processes have been started")
    running.signal(signal.SIGTERM)
    assert running.wait(SOON) == 0
    assert running.errors() == ""
    ctl.wait_empty()
