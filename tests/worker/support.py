"""Shared by the worker tests: gates for handlers, SQL beside the queue, scripts in fresh processes."""

from __future__ import annotations

import asyncio
import os
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest

from holdfast import Job, Queue
from holdfast.context import Attempt
from holdfast.errors import CommitUncertain
from holdfast.store.open import store_of
from holdfast.store.postgres.address import parse_url
from holdfast.worker import Worker
from tests.support import wait_until

PATIENCE = 30.0
"""Seconds to wait for what will certainly come; a test that passes never waits so long."""


class LeaseHolder:
    """Whoever a heartbeat renews the lease of one attempt for."""

    def __init__(self, queue: Queue, attempt: Attempt) -> None:
        self.lease_settings = queue.settings
        self._attempt = attempt
        self.lost: list[Attempt] = []

    def state(self) -> str:
        return "running"

    def turn_age(self) -> float:
        return 0.0

    def leased(self) -> list[Attempt]:
        return [self._attempt]

    def lose(self, attempts: Sequence[Attempt]) -> None:
        self.lost.extend(attempts)

    def cancel(self, claims: object) -> None: ...

    def touch(self) -> None: ...

    def forget(self) -> None: ...


class Gate:
    """Handlers enter it and wait there until the test opens it."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._open = False
        self.entered = 0

    @property
    def is_open(self) -> bool:
        return self._open

    def count(self) -> None:
        """Note that a handler came by, without waiting."""
        with self._changed:
            self.entered += 1
            self._changed.notify_all()

    def enter(self) -> None:
        self.count()
        self._wait_open()

    async def enter_async(self) -> None:
        self.count()
        await asyncio.to_thread(self._wait_open)

    def _wait_open(self) -> None:
        with self._changed:
            assert self._changed.wait_for(lambda: self._open, 2 * PATIENCE), "nobody opened the gate"

    def wait_entered(self, count: int = 1) -> None:
        with self._changed:
            came = self._changed.wait_for(lambda: self.entered >= count, PATIENCE)
        assert came, f"{self.entered} of {count} handlers entered within {PATIENCE:g} s"

    def open(self) -> None:
        with self._changed:
            self._open = True
            self._changed.notify_all()


class Spy:
    """Counts the calls of a method, and can fail some of them: `monkeypatch.setattr(store, name, spy)`."""

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self._changed = threading.Condition()
        self.calls: list[tuple[Any, ...]] = []
        self.failures: list[Exception] = []
        """Raised one after another, before the method is called again."""
        self.always: Exception | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._changed:
            self.calls.append(args)
            self._changed.notify_all()
            if self.always is not None:
                raise self.always
            if self.failures:
                raise self.failures.pop(0)
        return self._method(*args, **kwargs)

    def wait_called(self, more: int, *, after: int | None = None) -> None:
        """Wait for so many calls from now on, or after so many as there were before something was done."""
        with self._changed:
            wanted = more + (len(self.calls) if after is None else after)
            assert self._changed.wait_for(lambda: len(self.calls) >= wanted, PATIENCE)


def in_thread(action: Callable[[], object]) -> tuple[threading.Thread, list[object]]:
    """Does it in a thread; the list is what came of it: the value, or the error."""
    outcome: list[object] = []

    def run() -> None:
        try:
            outcome.append(action())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, outcome


def join(thread: threading.Thread) -> None:
    thread.join(PATIENCE)
    assert not thread.is_alive(), "it hangs for ever"


def time_out(worker: Worker, job_id: str) -> None:
    """Let the time of a job's attempt be up: now that it has come as far as the test needs it."""
    dispatcher: Any = worker._dispatcher

    def started() -> list[Attempt]:
        return [a for a in dispatcher.leased() if a.claim.id == job_id and a.deadline is not None]

    wait_until(started)  # a process handler tells of its start in its own time
    started()[0].deadline = time.monotonic()
    dispatcher._watch.wake()


def path_of(queue: Queue) -> str:
    return queue.url.removeprefix("sqlite:///")


def sql(queue: Queue, statement: str, *parameters: object) -> list[Any]:
    """Run a statement on a connection of the test's own. Its parameters are written as SQLite's."""
    if queue.url.startswith("postgresql:"):
        address = parse_url(queue.url)
        with psycopg.connect(address.conninfo, autocommit=True) as theirs:
            theirs.execute(f"SET search_path = {address.schema}".encode())
            done = theirs.execute(statement.replace("?", "%s").encode(), parameters or None)
            return done.fetchall() if done.description else []
    with closing(sqlite3.connect(path_of(queue), timeout=PATIENCE, isolation_level=None)) as connection:
        return connection.execute(statement, parameters).fetchall()


def supersede(queue: Queue, job_id: str) -> None:
    """Give a running job to another worker, as a reaper and a second claim would."""
    sql(
        queue,
        "UPDATE holdfast_jobs SET version = version + 1, attempts = attempts + 1, has_started = false,"
        " worker_id = 'another', lease_expires_at = lease_expires_at + 3600000000"
        " WHERE id = ? AND status = 'processing'",
        job_id,
    )


def get(queue: Queue, job_id: str) -> Job:
    """The job, which must be there."""
    job = queue.get(job_id)
    assert job is not None, f"there is no job {job_id}"
    return job


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that only waits to be collected does not."""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):  # the latter between opening and reading it
        pass
    if not sys.platform.startswith("linux"):
        with suppress(ProcessLookupError):
            os.kill(pid, 0)
            return True
    return False


def write_script(folder: Path, source: str, name: str = "script.py") -> Path:
    path = folder / name
    path.write_text(source, encoding="utf-8")
    return path


def run_script(
    folder: Path, source: str, *arguments: str, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run a program in a fresh process, in a folder of its own, with warnings as errors."""
    path = write_script(folder, source)
    return subprocess.run(
        [sys.executable, "-W", "error", str(path), *arguments],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def doubt_commit(monkeypatch: pytest.MonkeyPatch, queue: Queue, number: int, *, happened: bool) -> None:
    """Let one of the commits to come fail; it may have `happened` all the same."""
    database: Any = store_of(queue).database
    commit, commits = database.commit, []

    def doubtful(connection: sqlite3.Connection) -> None:
        commits.append(connection)
        if len(commits) == number:
            if happened:
                commit(connection)
            else:
                connection.rollback()
            raise CommitUncertain("the commit failed: disk I/O error")
        commit(connection)

    monkeypatch.setattr(database, "commit", doubtful)
