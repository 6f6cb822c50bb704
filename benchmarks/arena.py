"""Where queues compete: an environment for each kind, a new place for each turn, processes, and the clock.

The others are installed once, into .bench_cache, and found there by later runs. A queue that can't be
installed or fails is left out, with the reason printed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

from benchmarks.bench import ROOT, Bench, remove, settle
from benchmarks.postgres.place import connect, new_database
from benchmarks.postgres.place import settle as settle_server
from benchmarks.queues.tally import NOTES, counted, noted

CACHE = ROOT / ".bench_cache"
PACKAGES = (
    "huey==3.5.4",
    "litequeue==0.9",
    "persist-queue==1.1.0",
    "procrastinate==3.10.0",
    "pgqueuer[asyncpg]==1.6.0",
    "chancy==0.26.0",
    "psycopg[binary,pool]",
    "celery[redis]==5.7.0",
    "dramatiq[redis]==2.2.1",
    "rq==2.12.0",
    "saq[redis]==0.26.4",
    "taskiq<0.13",
    "taskiq-redis==1.2.2",
    "typer<0.21",  # with a newer one, `pgq run` of pgqueuer 1.6.0 fails
)
NODE_PACKAGES = ("graphile-worker", "pg-boss")
"""Without a version: npm chooses the newest that the installed node can run."""

_PATIENCE = 300.0
_STALLED = 60.0
_POLL = 0.002
LOG = "log"
_LOG_BYTES = 1 << 22
_UNWANTED = ("PYTHON", "VIRTUAL_ENV", "QUEUECTL", "PGQUEUER", "PROCRASTINATE", "DATABASE_URL", "HOLDFAST")

Engine = Literal["SQLite", "PostgreSQL", "Redis"]


class Unavailable(Exception):
    """A queue can't take part; says why."""


@dataclass(frozen=True)
class Entrant:
    """A queue that takes part."""

    name: str
    module: str
    engine: Engine
    drain: int
    """How many jobs it drains in a short run: about a second's work."""
    setup: str
    """What is not the default, and how its worker is started."""
    runtime: Literal["ours", "python", "node"] = "python"
    is_judged: bool = False
    """Whether an expectation names it, so that it takes part in every round."""
    counts_processes: bool = False
    """Whether one command starts several processes."""


class Arena:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench
        self._used: set[str] = set()

    @contextmanager
    def place(self, entrant: Entrant) -> Iterator[str]:
        """The address of a place that is new to the queue; the first command there makes its tables."""
        with ExitStack() as stack:
            if entrant.engine == "SQLite":
                path = self._bench.new_file()
                stack.callback(shutil.rmtree, f"{path}.d", ignore_errors=True)
                stack.callback(remove, path)
                address = str(path)
            elif entrant.engine == "PostgreSQL":
                address = stack.enter_context(new_database(self._bench))
            else:
                address = stack.enter_context(_redis(self._bench.folder))
            yield address

    def run(
        self,
        entrant: Entrant,
        address: str,
        command: str,
        *numbers: int,
        task: str = "noop",
        tally: Path | None = None,
    ) -> dict[str, Any]:
        """Run a command of queues/run.py in a process of the queue."""
        variables = self._variables(address, task)
        if address not in self._used:
            self._used.add(address)
            variables["BENCH_NEW"] = "1"
        if tally is not None:
            variables["BENCH_TALLY"] = str(tally)
        try:
            done = subprocess.run(
                self._command(entrant, command, *numbers),
                cwd=self._bench.folder,
                env=variables,
                capture_output=True,
                text=True,
                timeout=_PATIENCE,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Unavailable(f"{command} did not end within {_PATIENCE:.0f} s") from error
        if done.returncode:
            raise Unavailable(f"{command} failed: {_last_line(done.stderr)}")
        return dict(json.loads(done.stdout.splitlines()[-1])) if done.stdout.strip() else {}

    @contextmanager
    def workers(
        self, entrant: Entrant, address: str, processes: int = 1, task: str = "noop"
    ) -> Iterator[Workers]:
        """Worker processes, started as a user would; what they log goes to a file in memory."""
        parent = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # no disk is written for the counting
        with (
            tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=parent) as folder,
            ExitStack() as stack,
        ):
            commands = 1 if entrant.counts_processes else processes
            started = [
                stack.enter_context(
                    _process(
                        self._command(entrant, "work", processes // commands),
                        self._bench.folder,
                        {**self._variables(address, task), "BENCH_TALLY": folder},
                        Path(folder, LOG),
                    )
                )
                for _ in range(commands)
            ]
            yield Workers(entrant, Path(folder), processes, started)

    def fill(self, entrant: Entrant, address: str, jobs: int, task: str = "noop") -> int:
        """Enqueue so many jobs, and let every drain start alike; how many were enqueued."""
        self.run(entrant, address, "fill", jobs, task=task)
        self.settle(entrant, address)
        return jobs

    def settle(self, entrant: Entrant, address: str) -> None:
        """Nothing is left to vacuum or to write at a checkpoint."""
        if entrant.engine == "SQLite" and Path(address).exists():
            settle(Path(address))
        elif entrant.engine == "PostgreSQL":
            with connect(address) as connection:
                settle_server(connection)

    def _command(self, entrant: Entrant, command: str, *numbers: int) -> list[str]:
        words = [entrant.module, command, *map(str, numbers)]
        if entrant.runtime == "node":
            return ["node", str(self._node / "run.mjs"), *words]
        python = sys.executable if entrant.runtime == "ours" else self._python
        return [python, "-m", "benchmarks.queues.run", *words]

    def _variables(self, address: str, task: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(_UNWANTED)}
        return {
            **kept,
            "BENCH_ADDRESS": address,
            "BENCH_TASK": task,
            "PYTHONPATH": str(ROOT),
            "QUEUECTL_HOME": str(self._bench.folder / "home"),
        }

    @cached_property
    def _python(self) -> str:
        """The Python of the environment for the others."""
        key = hashlib.sha256(repr((PACKAGES, sys.version_info[:2])).encode()).hexdigest()[:12]
        folder = CACHE / f"python-{key}"
        python = str(folder / "bin" / "python")
        if not (folder / "complete").exists():
            print("installing other queues from PyPI …", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder, with_pip=True)
            pip = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", "--retries", "1"]
            missing = []
            # Together they are quickest; if that fails, each by itself, so that only one is missing.
            if _install([*pip, *PACKAGES]):
                for package in PACKAGES:
                    if reason := _install([*pip, package]):
                        print(f"  {package} can't be installed here: {reason}", flush=True)
                        missing.append(package)
            if len(missing) < len(PACKAGES):
                (folder / "complete").touch()
        return python

    @cached_property
    def _node(self) -> Path:
        """The folder of the queues for node, with the programs that use them."""
        if not shutil.which("node") or not shutil.which("npm"):
            raise Unavailable("node and npm are not installed")
        version = subprocess.run(["node", "--version"], capture_output=True, text=True, check=True).stdout
        folder = CACHE / f"node-{version.strip()}"
        if not (folder / "complete").exists():
            print("installing other queues from npm …", flush=True)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            (folder / "package.json").write_text('{"private": true}\n')
            install = ["npm", "install", "--no-audit", "--no-fund", "--prefix", str(folder), *NODE_PACKAGES]
            if reason := _install(install):
                raise Unavailable(f"npm can't install it here: {reason}")
            (folder / "complete").touch()
        shutil.copytree(ROOT / "benchmarks" / "queues" / "node", folder, dirs_exist_ok=True)
        return folder


@dataclass(frozen=True)
class Workers:
    """The running workers of a queue, and what their handlers count."""

    _entrant: Entrant
    folder: Path
    """Where its handlers count and note."""
    _processes: int
    _started: Sequence[subprocess.Popen[bytes]]

    @property
    def pid(self) -> int:
        """The process that was started first."""
        return self._started[0].pid

    def rate(self, jobs: int) -> float:
        """Wait until so many jobs have run; jobs a second since each process had begun."""
        first = began = time.monotonic()
        at_first = at_beginning = last = 0
        changed = time.monotonic()
        while True:
            counts = [count for count in counted(self.folder).values() if count]
            done, now = sum(counts), time.monotonic()
            if done and not at_first:
                first, at_first = now, done
            if len(counts) >= self._processes and not at_beginning:
                began, at_beginning = now, done
            if done != last:
                last, changed = done, now
            if done >= jobs:
                if not at_beginning or at_beginning >= jobs:  # one was done before another was up
                    began, at_beginning = first, at_first
                return (jobs - at_beginning) / max(now - began, 1e-9)
            self._check(changed, f"{done} of {jobs} jobs ran")
            time.sleep(_POLL)

    def starts(self, jobs: int) -> dict[int, int]:
        """Wait until so many jobs have noted their start; when each did, in ns since 1970."""
        changed = time.monotonic()
        while len(starts := noted(self.folder)) < jobs:
            self._check(changed, f"{len(starts)} of {jobs} jobs started")
            time.sleep(0.02)
        return starts

    def forget(self) -> None:
        (self.folder / NOTES).unlink(missing_ok=True)

    def _check(self, since: float, what: str) -> None:
        log = self.folder / LOG
        if log.stat().st_size > _LOG_BYTES:  # it is in memory, and written to by appending
            os.truncate(log, 0)
        for process in self._started:
            if process.poll() is not None:
                raise Unavailable(f"its worker ended, {what}: {_last_line(log.read_text())}")
        if time.monotonic() - since > _STALLED:
            raise Unavailable(f"nothing happened for {_STALLED:.0f} s; {what}")


@contextmanager
def _process(
    command: list[str], folder: Path, variables: dict[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which is killed with all its children in the end."""
    with log.open("ab") as file:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):  # what it has not written yet, nobody will read
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


@contextmanager
def _redis(folder: Path) -> Iterator[str]:
    """The address of a Redis server with its own defaults."""
    if not shutil.which("redis-server"):
        raise Unavailable("redis-server is not installed")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with tempfile.TemporaryDirectory(dir=folder) as data:
        command = ["redis-server", "--port", str(port), "--bind", "127.0.0.1", "--dir", data]
        with _process(command, folder, dict(os.environ), Path(data, "log")):
            for _ in range(500):
                with suppress(OSError), closing(socket.create_connection(("127.0.0.1", port), 1)):
                    break
                time.sleep(0.01)
            yield f"redis://127.0.0.1:{port}/0"


def program_versions() -> dict[str, str]:
    """The versions of what the queues run on, where it is installed."""
    versions = {"SQLite": sqlite3.sqlite_version}
    for name in ("node", "redis-server"):
        if shutil.which(name):
            done = subprocess.run([name, "--version"], capture_output=True, text=True, check=False)
            words = [word.removeprefix("v").removeprefix("=") for word in done.stdout.split()]
            versions[name] = next((word for word in words if word[:1].isdigit()), "")
    return versions


def _install(command: list[str]) -> str:
    """Run it; the reason if it fails."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        done = subprocess.run(
            command, env=variables, capture_output=True, text=True, timeout=_PATIENCE, check=False
        )
    except subprocess.TimeoutExpired:
        return f"it took longer than {_PATIENCE:.0f} s"
    return _last_line(done.stderr) if done.returncode else ""


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"
