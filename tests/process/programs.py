"""Starting, killing and collecting the real processes of a test, and what they left behind to read."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

from holdfast.handlers.options import Defaults
from tests.process.app import DEFAULTS, LOG
from tests.process.oracle import Log
from tests.support import wait_until

ROOT = Path(__file__).parents[2]


class Program:
    """One process, with its output in files."""

    def __init__(self, process: subprocess.Popen[bytes], output: Path, errors: Path) -> None:
        self.process = process
        self.pid = process.pid
        self._output = output
        self._errors = errors

    @property
    def is_running(self) -> bool:
        return self.process.poll() is None

    def wait(self, timeout: float = 60.0) -> int:
        """Wait for its end, without the naps of Popen.wait: hundreds of short programs are waited for."""
        if self.is_running:
            descriptor = os.pidfd_open(self.pid)
            try:
                ended, _, _ = select.select([descriptor], [], [], timeout)
            finally:
                os.close(descriptor)
            if ended:
                return self.process.wait(60)  # its tracer, if it has one, is told first
        return self.process.wait(0)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def stop(self, timeout: float = 30.0) -> None:
        """End a worker in order."""
        self.signal(signal.SIGTERM)
        assert self.wait(timeout) == 0, self.errors()

    def accepted(self) -> list[str]:
        """The ids whose acceptance this program has seen."""
        return [line.split()[1] for line in self._lines("accepted")]

    def refused(self) -> list[str]:
        """The errors that it was given in place of an acceptance."""
        return [line.partition(" ")[2] for line in self._lines("refused")]

    def in_doubt(self) -> list[str]:
        """The marks of jobs of which it was not told whether they were accepted."""
        return [line.split()[1] for line in self._lines("in_doubt")]

    def output(self) -> str:
        return self._output.read_text()

    def errors(self) -> str:
        """What it wrote to standard error: warnings of the worker, and tracebacks."""
        return self._errors.read_text()

    def forget_output(self) -> None:
        """Drop what a forked program has written so far; it goes on at the beginning of its file."""
        os.truncate(self._output, 0)

    def _lines(self, word: str) -> list[str]:
        return [line.strip() for line in self.output().splitlines() if line.strip().startswith(word)]


class Forked(Program):
    """A process that was forked, ready loaded, by the nursery; which leaves it to us to see how it ended."""

    def __init__(self, pid: int, output: Path, errors: Path) -> None:
        self.pid = pid
        self._output = output
        self._errors = errors
        self._descriptor = os.pidfd_open(pid)
        self._code: int | None = None

    @property
    def is_running(self) -> bool:
        return self._code is None and not select.select([self._descriptor], [], [], 0)[0]

    def wait(self, timeout: float = 60.0) -> int:
        if self._code is None:
            ended, _, _ = select.select([self._descriptor], [], [], timeout)
            assert ended, f"{self.pid} did not end within {timeout:g} s"
            os.close(self._descriptor)  # a storm has thousands
            status = int(Path(f"/proc/{self.pid}/stat").read_text().split()[-1])
            self._code = os.waitstatus_to_exitcode(status)
        return self._code

    def signal(self, number: signal.Signals) -> None:
        if self._code is None:
            signal.pidfd_send_signal(self._descriptor, number)


class Programs:
    """All processes of a test. `killed` tells when each pid was killed, on the wall clock."""

    def __init__(self, folder: Path, url: str, defaults: Defaults, bytecode: Path) -> None:
        self._folder = folder
        self._all: list[Program] = []
        self._nursery: subprocess.Popen[bytes] | None = None
        self._numbers = count()  # tests start programs from several threads
        self.killed: dict[int, float] = {}
        self.log = Log(folder / "handlers.log")
        self._environment = {
            **os.environ,
            "QUEUECTL_DATABASE_URL": url,
            "PYTHONPYCACHEPREFIX": str(bytecode),
            LOG: str(self.log.path),
            DEFAULTS: json.dumps(defaults),
        }
        # A process that compiles every module anew takes twice as long to start.
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)

    def start(
        self,
        role: str,
        *,
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> Program:
        """Start a role of program.py."""
        output, errors = self._files(role)
        environment = {**self._environment, **(environment or {})}
        command = [sys.executable, "-m", "tests.process.program", role, json.dumps(options)]
        with output.open("wb") as out, errors.open("wb") as err:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=err
            )
        program = Program(process, output, errors)
        self._all.append(program)
        return program

    def fork(self, role: str, **options: Any) -> Program:
        """Start a role in a process that need not load anything: where many are started, in a moment each."""
        if self._nursery is None:
            self._nursery = self._start_nursery()
        assert self._nursery.stdin is not None
        assert self._nursery.stdout is not None
        output, errors = self._files(role)
        for path in (output, errors):
            path.touch()  # a process that is killed at once can't
        line = json.dumps([role, options, str(output), str(errors)])
        self._nursery.stdin.write(line.encode() + b"\n")
        self._nursery.stdin.flush()
        program = Forked(int(self._nursery.stdout.readline()), output, errors)
        self._all.append(program)
        return program

    def _start_nursery(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "tests.process.program", "nursery", "{}"]
        return subprocess.Popen(
            command, cwd=ROOT, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )

    def _files(self, role: str) -> tuple[Path, Path]:
        number = next(self._numbers)
        return self._folder / f"{number}-{role}.out", self._folder / f"{number}-{role}.err"

    def worker(self, **options: Any) -> Program:
        """Start a worker and wait until it is up."""
        program = self.start("worker", **options)
        wait_until(
            lambda: self.log.events("worker.started", pid=program.pid) or not program.is_running,
            message="the worker's start",
        )
        assert program.is_running, program.errors()
        return program

    def kill(self, program: Program) -> None:
        """SIGKILL, and wait until the process is gone."""
        # Not unless it runs: a process that ended by itself was not killed.
        if program.is_running:
            self.killed[program.pid] = time.time()
            program.signal(signal.SIGKILL)
        program.wait()

    def accepted(self) -> set[str]:
        """All ids whose acceptance any program has seen."""
        return {id for program in self._all for id in program.accepted()}

    def refused(self) -> list[str]:
        """All errors that any program was given in place of an acceptance."""
        return [line for program in self._all for line in program.refused()]

    def start_over(self) -> None:
        """Forget those that have ended, and what was written: to be called when nothing is under way."""
        self.check_no_traceback()
        self._all = [program for program in self._all if program.is_running]
        for program in self._all:
            program.forget_output()
        self.killed.clear()
        os.truncate(self.log.path, 0)

    def check_no_traceback(self) -> None:
        """No program ended by, or logged, an error that is nobody's."""
        for program in self._all:
            assert "Traceback" not in program.errors(), program.errors()

    def close(self) -> None:
        """Kill and collect what is left, also what a program has left behind."""
        for program in self._all:
            if program.is_running:
                program.signal(signal.SIGKILL)
            program.wait()
        if self._nursery is not None:
            self._nursery.communicate(timeout=30)
        for pid in self._orphans():
            os.kill(pid, signal.SIGKILL)

    def _orphans(self) -> list[int]:
        """Living processes that have the log of this test in their environment."""
        mark = f"{LOG}={self.log.path}".encode()
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit() and int(entry.name) != os.getpid():
                try:
                    environment = (entry / "environ").read_bytes()
                except OSError:
                    continue
                if mark in environment.split(b"\0"):
                    found.append(int(entry.name))
        return found


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):  # it may end between the opening and the reading
        return False
    return stat.rpartition(")")[2].split()[0] not in ("Z", "X")
