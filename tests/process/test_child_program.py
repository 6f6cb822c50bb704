"""The program of a handler's process when its worker dies under it: it goes, silently."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.store.protocol import Claim
from holdfast.worker.executors.wire import Run, Setup

CLAIM = Claim(1, "job", "work", "{}", 0, 1, 3, 1, None, 0, 0, "worker")
SETUP = Setup("sqlite:///queue.db", {}, list(sys.path), None, None)
RUN = Run(CLAIM, 0.0, "work", "no_such_module", "work", False, {})


@pytest.mark.parametrize("last", ["a reply that nobody reads", "half a command"])
def test_child_of_a_dead_worker_ends_without_a_traceback(tmp_path: Path, last: str) -> None:
    commands, to_child = os.pipe()
    from_child, replies = os.pipe()
    lifeline, held = os.pipe()
    child = subprocess.Popen(
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
        cwd=tmp_path,
    )
    for descriptor in (commands, replies, lifeline):
        os.close(descriptor)
    run = msgspec.json.encode(RUN) + b"\n"
    os.write(to_child, msgspec.json.encode(SETUP) + b"\n")
    if last == "half a command":
        os.write(to_child, run[: len(run) // 2])
        os.close(to_child)
        _, errors = child.communicate(timeout=30)
        os.close(from_child)
    else:
        os.close(from_child)
        os.write(to_child, run)
        _, errors = child.communicate(timeout=30)
        os.close(to_child)
    os.close(held)
    assert (child.returncode, errors) == (-signal.SIGKILL, b"")
