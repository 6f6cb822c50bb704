"""The command line of one home folder: commands that end, workers that stay, and what they leave."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from holdfast import Job, Queue
from holdfast.system.process_group import marked
from tests.support import wait_until
from tests.surfaces.support import QUEUECTL, Ran, Terminal, environment, queuectl

PATIENT = (
    sys.executable,
    "-c",
    "from holdfast.cli import main; from holdfast.supervisor import process as p; p.FIRST_PAUSE = 60; main()",
)
"""A queuectl whose supervisor waits for so long that no test sees it replace a dead process."""


class Running:
    """A command that stays in the foreground, with its output in files."""

    def __init__(self, process: subprocess.Popen[bytes], out: Path, err: Path) -> None:
        self._process = process
        self._out = out
        self._err = err
        self.pid = process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    def wait(self, timeout: float = 30.0) -> int:
        """Its exit code."""
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"it runs on after {timeout:g} s: {self.output()}{self.errors()}") from None

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def stop(self) -> int:
        """Send the first signal; returns the exit code."""
        self.signal(signal.SIGTERM)
        return self.wait()

    def output(self) -> str:
        return self._out.read_text()

    def errors(self) -> str:
        return self._err.read_text()

    def events(self, name: str, **fields: object) -> list[dict[str, Any]]:
        """The JSON lines of its log with an event's name and fields; a line in the making is left out."""
        lines = [json.loads(line) for line in self.output().split("\n")[:-1]]
        return [line for line in lines if line["event"] == name and fields.items() <= line.items()]

    def pids(self) -> list[int]:
        """The worker processes that it has told of, in the order in which they came up."""
        return [event["pid"] for event in self.events("worker.started")]

    def wait_for(self, name: str, count: int = 1, timeout: float = 30.0, **fields: object) -> dict[str, Any]:
        """The count-th event of a name with these fields, waiting for it."""
        wait_until(
            lambda: len(self.events(name, **fields)) >= count or not self.is_running,
            timeout=timeout,
            message=f"{count} x {name} {fields}",
        )
        found = self.events(name, **fields)
        assert len(found) >= count, f"it ended without {name} {fields}: {self.output()}{self.errors()}"
        return found[count - 1]


class CommandLine:
    """The command line of one home folder. Calling it types a line and waits for its end."""

    def __init__(self, home: Path) -> None:
        home.mkdir(exist_ok=True)
        self.home = home
        self.queue = Queue(environment(home).get("QUEUECTL_DATABASE_URL", f"sqlite:///{home / 'queue.db'}"))
        """The queue as the test itself looks into it: a command for each look would be slow."""
        self._running: list[Running] = []

    def __call__(self, line: str, *, expect: int = 0, cwd: Path | None = None) -> Ran:
        """Type a line; its exit code must be the one expected, and never is there a traceback."""
        ran = self.run(*shlex.split(line), cwd=cwd or self.home)
        assert ran.code == expect, f"{line}: {ran}"
        assert "Traceback" not in ran.out + ran.err, f"{line}: {ran}"
        return ran

    def run(self, *words: str, cwd: Path) -> Ran:
        """Run a command to its end, in a folder."""
        return queuectl(self.home, *words, cwd=cwd)

    def json(self, line: str) -> Any:
        """What a line prints with --json."""
        return self(f"{line} --json").json

    def enqueue(self, command: str, options: str = "") -> str:
        """Queue a command of the shell; returns the id."""
        return self(f"enqueue --command {shlex.quote(command)} {options}").out.strip()

    def start(self, line: str, *, cwd: Path | None = None, program: Sequence[str] = QUEUECTL) -> Running:
        """Type a line that stays."""
        number = len(self._running)
        out, err = (self.home / f"typed-{number}.{end}" for end in ("out", "err"))
        with out.open("wb") as out_file, err.open("wb") as err_file:
            process = subprocess.Popen(
                [*program, *shlex.split(line)],
                stdin=subprocess.DEVNULL,
                stdout=out_file,
                stderr=err_file,
                env=environment(self.home),
                cwd=cwd or self.home,
            )
        self._running.append(Running(process, out, err))
        return self._running[-1]

    def workers(self, options: str = "", *, up: int = 1, cwd: Path | None = None) -> Running:
        """Type `worker start` and wait until so many processes are up."""
        started = self.start(f"worker start --log-format json {options}", cwd=cwd)
        started.wait_for("worker.started", up)
        return started

    def shell(self) -> Terminal:
        """A shell at a terminal, to type at. Who calls it closes it."""
        return Terminal(["/bin/sh", "-i"], environment(self.home, PS1="$ ", TERM="dumb"), 200, 24)

    def job(self, id: str) -> Job:
        job = self.queue.get(id)
        assert job is not None, f"there is no job {id}"
        return job

    def wait(self, id: str, status: str, timeout: float = 30.0) -> Job:
        """The job, when it is in a state."""
        wait_until(lambda: self.job(id).status == status, timeout, f"{id} is {status}")
        return self.job(id)

    def wait_started(self, id: str) -> None:
        """Wait until the job's command has printed that it has started."""
        log = self.home / "logs" / f"{id}.log"
        wait_until(lambda: log.exists() and "started" in log.read_text(), message=f"{id} has started")

    def processes(self) -> dict[int, str]:
        """Living processes of this home folder, with their command lines."""
        found = {}
        for pid in marked(f"QUEUECTL_HOME={self.home}"):
            with suppress(OSError):
                found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().decode().replace("\0", " ")
        return found

    def wait_empty(self, timeout: float = 30.0) -> None:
        """No process of this home is left."""
        wait_until(lambda: not self.processes(), timeout, f"processes left behind: {self.processes()}")

    def close(self) -> None:
        """Kill what the test left; it should have left nothing."""
        self.queue.close()
        left = [running for running in self._running if running.is_running]
        for running in left:
            running.signal(signal.SIGKILL)
            running.wait()
        deadline = time.monotonic() + 30.0
        while (found := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.02)
        for pid in found:
            os.kill(pid, signal.SIGKILL)
        assert not left, [running.output() + running.errors() for running in left]
        assert not found, found
