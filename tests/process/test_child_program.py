"""The program of a handler's process: it goes silently with its worker, and needs no database to report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.core.lifecycle import Completed
from holdfast.store.records import Claim
from holdfast.worker.executors.wire import End, FromChild, Go, Ready, Run, Setup

CLAIM = Claim(1, "job", "work", "{}", 0, 1, 3, 1, None, 0, 0, "worker")
SETUP = Setup("sqlite:///queue.db", {}, list(sys.path), None, None)
LIMIT = 1000
NEVER = 1e12
"""On the lease clock."""
RUN = Run(CLAIM, "work", "no_such_module", "work", False, {}, LIMIT)


class Child:
    """The program, and the worker's ends of its pipes."""

    def __init__(self, folder: Path) -> None:
        commands, self.to_child = os.pipe()
        self.from_child, replies = os.pipe()
        lifeline, self.held = os.pipe()
        self.process = subprocess.Popen(
            [
                sys.executable,
                "-P",
                "-m",
                "holdfast.worker.executors.child",
                *map(str, (commands, replies, lifeline)),
            ],
            pass_fds=(commands, replies, lifeline),
            stderr=subprocess.PIPE,
            start_new_session=True,
            cwd=folder,
        )
        for descriptor in (commands, replies, lifeline):
            os.close(descriptor)

    def end(self) -> tuple[int, bytes]:
        """How it ended, and what it wrote of that."""
        _, errors = self.process.communicate(timeout=30)
        os.close(self.held)
        return self.process.returncode, errors


@pytest.mark.parametrize("last", ["a reply that nobody reads", "half a command"])
def test_child_of_a_dead_worker_ends_without_a_traceback(tmp_path: Path, last: str) -> None:
    child = Child(tmp_path)
    run = msgspec.json.encode(RUN) + b"\n"
    os.write(child.to_child, msgspec.json.encode(SETUP) + b"\n")
    if last == "half a command":
        os.write(child.to_child, run[: len(run) // 2])
        os.close(child.to_child)
        ended = child.end()
        os.close(child.from_child)
    else:
        os.close(child.from_child)
        os.write(child.to_child, run)
        ended = child.end()
        os.close(child.to_child)
    assert ended == (-signal.SIGKILL, b"")


def test_handler_that_is_done_has_completed_its_job_though_the_child_can_not_reach_the_database(
    tmp_path: Path,
) -> None:
    child = Child(tmp_path)
    setup = msgspec.structs.replace(SETUP, url=f"sqlite:///{tmp_path}/no/such/folder/queue.db")
    run = msgspec.structs.replace(RUN, module="operator", name="truth", whole=True)
    for message in (setup, run, Go(NEVER)):
        os.write(child.to_child, msgspec.json.encode(message) + b"\n")
    with open(child.from_child, "rb") as replies:
        assert msgspec.json.decode(replies.readline(), type=FromChild) == Ready()
        assert msgspec.json.decode(replies.readline(), type=FromChild) == End(Completed("false"), [])
        os.close(child.to_child)
        child.end()
