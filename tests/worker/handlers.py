"""Handlers for executor="process", whose processes import this module and find them by name."""

from __future__ import annotations

import asyncio
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from holdfast import Context, Fail, Retry
from holdfast.errors import HoldfastError


def where() -> dict[str, int]:
    return {"pid": os.getpid(), "group": os.getpgid(0)}


def touch(path: str) -> None:
    Path(path).touch()


async def touch_async(path: str) -> None:
    touch(path)


async def where_async() -> dict[str, int]:
    return where()


def add(a: int, b: int = 1) -> int:
    return a + b


def whole(payload: dict[str, Any]) -> dict[str, Any]:
    return payload


def whole_with_context(payload: dict[str, Any], ctx: Context) -> dict[str, Any]:
    return {"payload": payload, "attempt": ctx.attempt, "id": ctx.job.id}


def name_of_payload_type(payload: Any) -> str:
    return type(payload).__name__


class Toolbox:
    @staticmethod
    def hammer() -> str:
        return "bang"


def fail_for_good() -> None:
    raise Fail("no use")


def retry_later() -> None:
    raise Retry("busy", delay=3600)


def exit_in_order() -> None:
    sys.exit(3)


def exit_at_once() -> None:
    os._exit(3)


def die(ctx: Context) -> None:
    """Be killed at first, and exit at the second attempt."""
    if ctx.attempt == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    exit_at_once()


def wait_for_file(started: str, path: str) -> str:
    Path(started).touch()
    _wait_for(path)
    return "done"


def sleep_with_grandchild(pids: str) -> None:
    grandchild = subprocess.Popen(["sleep", "600"])
    _publish(pids, f"{os.getpid()} {grandchild.pid}")
    time.sleep(600)


def ignore_termination(pids: str) -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    grandchild = subprocess.Popen(["sh", "-c", "trap '' TERM; while :; do sleep 0.05; done"])
    _publish(pids, f"{os.getpid()} {grandchild.pid}")
    time.sleep(600)


def check_for_ever(started: str, ctx: Context) -> None:
    Path(started).touch()
    while True:
        ctx.check()
        time.sleep(0.005)


def report_progress(path: str, ctx: Context) -> None:
    ctx.progress(0.5, "half")
    _wait_for(path)


def report_number(ctx: Context) -> None:
    ctx.progress(0.5, 7)  # type: ignore[arg-type]


class Word(str):  # noqa: SLOT000
    """Text of a class of its own, which msgspec does not encode."""


def use_words(ctx: Context) -> str:
    ctx.progress(0.5, Word("half"))
    return ctx.enqueue(Word("child"), id=Word("c1"), key=Word("k"))


def retry_oddly() -> None:
    error = Retry("later")
    error.delay = object()  # type: ignore[assignment]
    raise error


def large(size: int) -> str:
    return "x" * size


def have_children(ctx: Context) -> str:
    return ctx.enqueue("child", {"n": 1})


def store(connection: Any, value: str) -> None:
    """Write a row, with a parameter as the engine's driver marks it."""
    mark = "?" if isinstance(connection, sqlite3.Connection) else "%s"
    connection.execute(f"INSERT INTO app (value) VALUES ({mark})", (value,))


def insert(value: str, ctx: Context) -> None:
    with ctx.transaction() as connection:
        store(connection, value)
        ctx.enqueue("child", {"value": value})
        ctx.result = {"stored": value}


async def insert_async(value: str, ctx: Context) -> None:
    async with ctx.transaction() as connection:
        store(connection, value)
        ctx.result = {"stored": value}


def insert_and_raise_inside(value: str, ctx: Context) -> None:
    with ctx.transaction() as connection:
        store(connection, value)
        raise RuntimeError("inside")


def insert_and_raise_after(value: str, ctx: Context) -> None:
    insert(value, ctx)
    raise RuntimeError("after")


def insert_and_return(value: str, answer: Any, ctx: Context) -> Any:
    insert(value, ctx)
    return answer


async def insert_and_wait_async(value: str, until: str, done: str, ctx: Context) -> None:
    await insert_async(value, ctx)
    await asyncio.to_thread(_wait_for, until)
    touch(done)


def insert_and_die(value: str, ctx: Context) -> None:
    insert(value, ctx)
    os._exit(7)


def insert_and_go_on(value: str, beats: int, done: str, ctx: Context) -> None:
    """Go on for some heartbeats after the job is completed, and leave a file at the end."""
    insert(value, ctx)
    time.sleep(beats)
    Path(done).touch()


def insert_and_wait(value: str, until: str, done: str, ctx: Context) -> None:
    """Go on after the job is completed until a file exists, and leave another at the end."""
    insert(value, ctx)
    while not os.path.exists(until):
        ctx.check()
        time.sleep(0.005)
    Path(done).touch()


def insert_and_never_tell(value: str, ctx: Context) -> None:
    """Its process ends in the instant after the commit, before it can tell anybody."""
    ctx._attempt.on_commit = lambda: os._exit(1)
    insert(value, ctx)


def commit_by_hand(ctx: Context) -> str:
    with ctx.transaction() as connection:
        try:
            connection.commit()
        except HoldfastError as error:
            ctx.result = str(error)
    return "unused"


def _wait_for(path: str) -> None:
    while not os.path.exists(path):
        time.sleep(0.005)


def _publish(path: str, text: str) -> None:
    """Write a file so that whoever sees it sees all of it."""
    part = Path(path + ".part")
    part.write_text(text, encoding="ascii")
    part.rename(path)


_tenant: ContextVar[int | None] = ContextVar("tenant", default=None)


def remember(n: int) -> int | None:
    """Return what an earlier job has left in the context, and leave something there."""
    found = _tenant.get()
    _tenant.set(n)
    return found


def fail_on_termination(started: str) -> None:
    """Clean up as some libraries do: an error of one's own from a signal handler."""

    def fail(number: int, _: object) -> None:
        raise RuntimeError("connection lost")

    signal.signal(signal.SIGTERM, fail)
    Path(started).touch()
    time.sleep(600)


def wrap_interruption(started: str, ctx: Context) -> None:
    """Run to a safe point, and answer what ends the attempt there with an error of one's own."""
    Path(started).touch()
    try:
        while True:
            time.sleep(0.005)
            ctx.check()
    except BaseException as error:
        raise RuntimeError("import stopped halfway") from error
