"""Runs a file job again and again, each time in a process of its own that is killed at one of its steps.

A step is a call that changes a file, or the commit of a transaction. The n-th run is killed before its n-th
step, and another one after it, until one passes; each has its own folder, with a database and the files.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import signal
import sqlite3
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

from holdfast import Queue
from holdfast.jobs import CREATE_FILE, DELETE_FILE, files
from holdfast.jobs.roots import VARIABLE
from holdfast.store.open import store_of

JOB = "the-job"
MOST_STEPS = 60

CALLS = ("open", "mkdir", "fsync", "fchmod", "link", "rename", "unlink")


def opened(folder: Path) -> Queue:
    """The queue of a run, which can run file jobs."""
    queue = Queue(f"sqlite:///{folder / 'queue.db'}", defaults={"lease_seconds": 30, "backoff_factor": 0})
    queue.register(CREATE_FILE, files.create_file, prepare=files.with_whole_path)
    queue.register(DELETE_FILE, files.delete_file, prepare=files.with_whole_path)
    return queue


class Steps:
    """Counts the steps of this process, and kills it at one of them."""

    def __init__(self, when: str, number: int, log: Path) -> None:
        self._when = when
        self._number = number
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._count = 0

    def wrap(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def step(*args: Any, **kwargs: Any) -> Any:
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **kwargs)  # the heartbeat's
            self._count += 1
            mine = self._count == self._number
            os.write(self._log, f"{name}\n".encode())
            if mine and self._when == "before":
                os.kill(os.getpid(), signal.SIGKILL)
            try:
                return function(*args, **kwargs)
            finally:
                if mine and self._when == "after":
                    os.kill(os.getpid(), signal.SIGKILL)

        return step

    def wrap_all(self, queue: Queue) -> None:
        for name in CALLS:
            setattr(os, name, self.wrap(name, getattr(os, name)))
        database: Any = store_of(queue).database
        database.commit = self.wrap("commit", database.commit)
        steps = self

        class Halves(io.BufferedWriter):
            """A stream that is written in two halves, each of them a step."""

            def write(self, data: Any) -> int:
                half = len(data) // 2
                for part in (data[:half], data[half:]):
                    steps.wrap("write", self._through)(part)
                return len(data)

            def _through(self, part: bytes) -> None:
                super().write(part)
                self.flush()

        def open_in_halves(file: int, mode: str) -> Any:
            return Halves(io.FileIO(file, mode)) if "w" in mode else open(file, mode)

        files.open = open_in_halves  # type: ignore[attr-defined]


def run_once(folder: Path, when: str, number: int) -> None:
    """Run the job in this process, which may not survive it."""
    os.environ[VARIABLE] = str(folder / "files")
    queue = opened(folder)
    Steps(when, number, folder / "steps").wrap_all(queue)
    queue.drain()
    queue.close()


def run_in_child(folder: Path, when: str, number: int) -> bool:
    """Whether the job came to its end; otherwise its process was killed as planned."""
    child = os.fork()  # this process has no thread and no connection
    if child == 0:
        status = 1
        try:
            run_once(folder, when, number)
            status = 0
        finally:
            os._exit(status)
    _, ended = os.waitpid(child, 0)
    if os.WIFSIGNALED(ended):
        assert os.WTERMSIG(ended) == signal.SIGKILL, ended
        return False
    assert os.WEXITSTATUS(ended) == 0, ended
    return True


def copy(before: Path, folder: Path) -> None:
    """A folder like `before`, whose job has its path there."""
    shutil.copytree(before, folder)
    with closing(sqlite3.connect(folder / "queue.db", isolation_level=None)) as connection:
        connection.execute(
            "UPDATE holdfast_jobs SET payload = replace(payload, ?, ?)", (str(before), str(folder))
        )


def main(before: Path, runs: Path) -> None:
    """Try every step on copies of the folder `before`; say for each run whether it passed."""
    for when in ("before", "after"):
        for number in range(1, MOST_STEPS):
            folder = runs / f"{when}-{number:02}"
            copy(before, folder)
            passed = run_in_child(folder, when, number)
            sys.stdout.write(json.dumps({"folder": str(folder), "passed": passed}) + "\n")
            if passed:
                break


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
