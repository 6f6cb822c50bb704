"""Servers for the tests: an application on a socket of this process, and `queuectl serve` as a program."""

from __future__ import annotations

import asyncio
import json
import socket
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self

import httpx
import uvicorn.server
from fastapi import FastAPI

from holdfast.events import Events
from holdfast.web.backend import Backend
from holdfast.web.server import make_server
from tests.support import wait_until
from tests.surfaces.support import QUEUECTL, environment

TIMEOUT = 20.0


class _BriskAsyncio:
    """asyncio, with short sleeps.

    uvicorn looks ten times a second whether it should stop, and then sleeps as long again: for hundreds of
    servers that is minutes.
    """

    def __getattr__(self, name: str) -> Any:
        return getattr(asyncio, name)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(min(seconds, 0.01))


uvicorn.server.asyncio = _BriskAsyncio()  # type: ignore[assignment, attr-defined]


@contextmanager
def live(app: FastAPI, root_path: str = "", *, shutdown_seconds: float = 5.0) -> Iterator[str]:
    """Serve an application from a thread; gives its address."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    address = f"http://127.0.0.1:{listener.getsockname()[1]}"
    started = threading.Event()
    server = make_server(
        app,
        root_path=root_path,
        events=Events(),
        shutdown_seconds=shutdown_seconds,
        on_started=started.set,
    )
    loops: list[asyncio.AbstractEventLoop] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve(sockets=[listener])

    thread = threading.Thread(target=asyncio.run, args=(serve(),), name="live-server")
    thread.start()
    try:
        assert started.wait(TIMEOUT)
        yield address
    finally:
        loops[0].call_soon_threadsafe(server.stop)
        thread.join(TIMEOUT)
        assert not thread.is_alive()
        listener.close()


@contextmanager
def standing(app: FastAPI) -> Iterator[str]:
    """Serve it for many tests. All threads for its calls are there, so that none is new in a test."""
    with live(app) as address:
        backend: Backend = app.state.backend
        for pool in (
            backend._short,
            backend._long,
            backend._slow._threads,
            backend.check_health._thread,
        ):
            _start_all_threads(pool)
        yield address


def _start_all_threads(pool: ThreadPoolExecutor) -> None:
    together = threading.Barrier(pool._max_workers)
    for call in [pool.submit(together.wait, TIMEOUT) for _ in range(pool._max_workers)]:
        call.result()


@contextmanager
def client(address: str, **options: Any) -> Iterator[httpx.Client]:
    """A client of a live server."""
    # Nothing is encrypted here: to read the certificates of the world's authorities takes 20 ms.
    with httpx.Client(base_url=address, timeout=TIMEOUT, trust_env=False, verify=False, **options) as made:
        yield made


@contextmanager
def write_lock(database: Path) -> Iterator[Callable[[], object]]:
    """Hold a database's write lock, so that no change is answered; gives what lets it go early."""
    with closing(sqlite3.connect(database, isolation_level=None, timeout=TIMEOUT)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield lambda: connection.execute("ROLLBACK")


class Served:
    """`queuectl serve` as a program of its own, with its log in a file."""

    def __init__(self, home: Path, *words: str, **variables: str) -> None:
        self._log = home / "serve.log"
        self._errors = home / "serve.err"
        with self._log.open("wb") as out, self._errors.open("wb") as err:
            self.process = subprocess.Popen(
                [*QUEUECTL, "serve", "--port", "0", "--log-format", "json", *words],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment(home) | variables,
            )

    def events(self, name: str) -> list[dict[str, Any]]:
        """The log's lines of an event; a line in the making is left out."""
        lines = [json.loads(line) for line in self._log.read_text().split("\n")[:-1]]
        return [line for line in lines if line["event"] == name]

    def errors(self) -> str:
        return self._errors.read_text()

    @property
    def address(self) -> str:
        """Where it serves, once it does."""
        wait_until(lambda: self.events("server.started") or self.process.poll() is not None, timeout=TIMEOUT)
        assert self.process.poll() is None, self.errors()
        return str(self.events("server.started")[0]["address"])

    @property
    def server_pid(self) -> int:
        """The process of the server that was started last; the program itself is its supervisor."""
        return int(self.events("server.started")[-1]["pid"])

    def stop(self) -> int:
        """Ask it to stop, in order; returns the exit code."""
        self.process.terminate()
        return self.process.wait(TIMEOUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
