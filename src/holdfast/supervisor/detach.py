"""Worker processes that survive the terminal: starting them, waiting until they are up, and their log."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from select import select
from shutil import copyfile
from typing import NamedTuple

import msgspec

from holdfast.config import home_folder, make_private_folder
from holdfast.errors import HoldfastError

KEPT_LOGS = 20
LARGEST_LOG = 10 * 1024 * 1024
_START_PATIENCE = 60.0
_PREFIX = "queuectl: "
"""What a line of its log begins with that says why it could not start."""


class Detached(NamedTuple):
    """A supervisor that was started, with the ids of its workers and the path of its log."""

    pid: int
    workers: list[str]
    log: str


class NotDetached(HoldfastError):
    """The workers could not be started. `said` is what the supervisor has said about it, if anything."""

    def __init__(self, path: str, exit_code: int, said: str | None) -> None:
        super().__init__(said or "the workers could not be started", hint=None if said else f"see {path}")
        self.exit_code = exit_code
        self.said = said


def start_detached(command: Sequence[str], environment: Mapping[str, str]) -> Detached:
    """Start a supervisor in a session of its own and wait until it says that its workers are up.

    Its last argument is the number of the descriptor for `tell_ready`. Raises NotDetached if it ends.
    """
    path = _log_file()
    ready, theirs = os.pipe()
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # held by all who inherit it: see _log_file
        process = subprocess.Popen(
            [*command, str(theirs)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=environment,
            pass_fds=(theirs,),
            start_new_session=True,
        )
    os.close(theirs)
    try:
        return Detached(process.pid, _wait_until_ready(ready, process, path), path)
    except KeyboardInterrupt:
        process.terminate()
        raise


def _wait_until_ready(ready: int, process: subprocess.Popen[bytes], path: str) -> list[str]:
    deadline = time.monotonic() + _START_PATIENCE
    text = b""
    while not text.endswith(b"\n"):
        readable, _, _ = select([ready], [], [], max(0.0, deadline - time.monotonic()))
        part = os.read(ready, 65_536) if readable else b""
        if not part:
            break
        text += part
    os.close(ready)
    if text.endswith(b"\n"):
        ids: list[str] = msgspec.json.decode(text)
        return ids
    if process.poll() is None and time.monotonic() >= deadline:
        process.terminate()
        raise HoldfastError(f"the workers were not running after {_START_PATIENCE:g} s", hint=f"see {path}")
    code = process.wait()
    with open(path, encoding="utf-8", errors="replace") as file:
        said = [line.strip() for line in file if line.startswith(_PREFIX)]
    if said:
        os.unlink(path)  # all it holds is said here
    raise NotDetached(path, code, said[-1].removeprefix(_PREFIX) if said else None)


def tell_ready(descriptor: int | None, ids: list[str]) -> bool:
    """Tell who waits that the workers are up; False if nobody does any more, as after a Ctrl-C."""
    if descriptor is None:
        return True
    try:
        os.write(descriptor, msgspec.json.encode(ids) + b"\n")
    except BrokenPipeError:
        return False
    finally:
        os.close(descriptor)
    return True


def _log_file() -> str:
    """A new one; of the old, the newest are kept, and those that somebody still writes to."""
    folder = os.path.join(home_folder(), "logs", "workers")
    make_private_folder(folder)
    for name in sorted(os.listdir(folder), reverse=True)[KEPT_LOGS:]:  # they begin with the time
        path = os.path.join(folder, name)
        with suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)
    return os.path.join(folder, f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.log")


def rotate_log() -> None:
    """Keep a detached supervisor's log from growing forever: old lines go to a second file."""
    descriptor = sys.stdout.fileno()
    if os.fstat(descriptor).st_size <= LARGEST_LOG:
        return
    if sys.platform == "linux":
        with suppress(OSError):  # removed by somebody, or no room for a copy
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            copyfile(path, path + ".1")
    os.ftruncate(descriptor, 0)  # all who write to it append
