"""The application of the crash tests: a queue and handlers that log what they do, line by line.

The log is a file opened with O_APPEND, so that the lines of many processes do not mix and a line that was
written survives the death of its writer. The oracle reads it.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

from holdfast import Context, Queue
from tests.worker import handlers_slow_import

LOG = "HOLDFAST_TEST_LOG"
DEFAULTS = "HOLDFAST_TEST_DEFAULTS"

MAX_RUNNING = 3
RATE = 40.0

queue = Queue(defaults=json.loads(os.environ.get(DEFAULTS, "{}")))


@cache
def _log() -> int:
    return os.open(os.environ[LOG], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)


def note(what: str, **fields: object) -> None:
    """Write one line; a single write() is never torn by a kill."""
    now = {"at": time.time(), "tick": time.monotonic()}  # the machine's ticks are the same for all
    line = json.dumps({"what": what, "pid": os.getpid(), **now, **fields})
    os.write(_log(), line.encode() + b"\n")


@contextmanager
def noted(ctx: Context, *, worker: int | None = None) -> Iterator[None]:
    """Log the start and the end of an attempt. `worker` is the process whose death ends it."""
    attempt = {"job": ctx.idempotency_key, "attempt": ctx.attempt, "worker": worker or os.getpid()}
    note("start", **attempt)
    try:
        yield
    except BaseException as error:
        note("raised", error=type(error).__name__, **attempt)
        raise
    note("end", **attempt)


def _wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.01)


queue.job(executor="process")(handlers_slow_import.quick)


# Handlers whose first attempt takes its time; later ones end at once.


@queue.job
def hold(ctx: Context, seconds: float) -> None:
    with noted(ctx):
        time.sleep(seconds if ctx.attempt == 1 else 0)


@queue.job
def hold_until(ctx: Context, path: str) -> None:
    with noted(ctx):
        if ctx.attempt == 1:
            _wait_for(path)


@queue.job
async def hold_async(ctx: Context, seconds: float) -> None:
    with noted(ctx):
        await asyncio.sleep(seconds if ctx.attempt == 1 else 0)


@queue.job(executor="process")
def hold_in_process(ctx: Context, seconds: float) -> None:
    with noted(ctx, worker=os.getppid()):
        time.sleep(seconds if ctx.attempt == 1 else 0)


# Handlers that always take their time, which is short.


@queue.job
def work(ctx: Context, seconds: float = 0.0, mark: str = "") -> None:
    with noted(ctx):
        time.sleep(seconds)


@queue.job
async def work_async(ctx: Context, seconds: float = 0.0, mark: str = "") -> None:
    with noted(ctx):
        await asyncio.sleep(seconds)


@queue.job(executor="process")
def work_in_process(ctx: Context, seconds: float = 0.0, mark: str = "") -> None:
    with noted(ctx, worker=os.getppid()):
        time.sleep(seconds)


@queue.job(max_running=MAX_RUNNING)
def limited(ctx: Context, seconds: float = 0.0, mark: str = "") -> None:
    with noted(ctx):
        time.sleep(seconds)


@queue.job(rate_limit=RATE)
def rated(ctx: Context, seconds: float = 0.0, mark: str = "") -> None:
    with noted(ctx):
        time.sleep(seconds)


@queue.job
def fail_first(ctx: Context) -> None:
    with noted(ctx):
        if ctx.attempt == 1:
            raise ValueError("the first attempt fails")


# Handlers that kill, or should be killed.


@queue.job
def poison(ctx: Context, seconds: float = 0.0) -> None:
    with noted(ctx):
        time.sleep(seconds)
        os.kill(os.getpid(), signal.SIGKILL)


@queue.job(executor="process")
def family(ctx: Context) -> None:
    """Has a child of its own, and tells both pids."""
    with noted(ctx, worker=os.getppid()):
        child = subprocess.Popen(["sleep", "600"])
        note("family", pids=[os.getpid(), child.pid])
        child.wait()


@queue.job
def hog(ctx: Context, seconds: int) -> None:
    """Keeps Python's interpreter lock in one long C call."""
    with noted(ctx):
        ctypes.PyDLL(None).sleep(seconds if ctx.attempt == 1 else 0)


@queue.job(executor="process")
def hog_in_process(ctx: Context, seconds: int) -> None:
    with noted(ctx, worker=os.getppid()):
        note("family", pids=[os.getpid()])
        ctypes.PyDLL(None).sleep(seconds if ctx.attempt == 1 else 0)


# Handlers that write with the completion of their job.


def _insert(connection: Any, ctx: Context) -> None:
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    row = (ctx.idempotency_key, ctx.attempt)
    connection.execute(f"INSERT INTO rows VALUES ({mark}, {mark})", row)


@queue.job
def insert_row(ctx: Context, bombs: str | None = None, seconds: float = 0.0, mark: str = "") -> None:
    """Inserts a row. Whoever finds a bomb in the folder dies inside the block, after the insert."""
    with noted(ctx):
        time.sleep(seconds)
        with ctx.transaction() as connection:
            _insert(connection, ctx)
            if bombs is not None and _take_one(bombs):
                os.kill(os.getpid(), signal.SIGKILL)


@queue.job
def insert_row_slowly(ctx: Context, seconds: float = 0.0, mark: str = "") -> None:
    """Inserts a row, and takes its time inside the block: half before it and half after."""
    with noted(ctx), ctx.transaction() as connection:
        time.sleep(seconds / 2)
        _insert(connection, ctx)
        time.sleep(seconds / 2)


@queue.job
async def insert_row_async(ctx: Context, seconds: float = 0.0, mark: str = "") -> None:
    with noted(ctx):
        async with ctx.transaction() as connection:
            _insert(connection, ctx)
            await asyncio.sleep(seconds)


def _take_one(folder: str) -> bool:
    for name in os.listdir(folder):
        with suppress(FileNotFoundError):
            os.unlink(os.path.join(folder, name))
            return True
    return False


@queue.job
def parent(ctx: Context, seconds: float = 0.0, mark: str = "") -> None:
    with noted(ctx):
        time.sleep(seconds)
        ctx.enqueue(leaf, {"by": ctx.attempt})


@queue.job
def leaf(ctx: Context, by: int) -> None:
    with noted(ctx):
        pass


def _be_late(ctx: Context, row: bool, go: str, done: str) -> None:
    """The first attempt waits for `go`, one that took over reports progress first and waits for `done`."""
    if ctx.attempt > 1:
        ctx.progress(0.9, f"attempt {ctx.attempt}")
    _wait_for(go if ctx.attempt == 1 else done)
    if ctx.attempt == 1:
        ctx.progress(0.1, "attempt 1")
    ctx.enqueue(leaf, {"by": ctx.attempt})
    if row:
        with ctx.transaction() as connection:
            _insert(connection, ctx)


@queue.job
def late(ctx: Context, row: bool, go: str, done: str) -> None:
    with noted(ctx):
        _be_late(ctx, row, go, done)


@queue.job(executor="process")
def late_in_process(ctx: Context, row: bool, go: str, done: str) -> None:
    with noted(ctx, worker=os.getppid()):
        _be_late(ctx, row, go, done)
