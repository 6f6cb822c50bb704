"""Worker processes that survive the terminal: starting them, waiting until they are up, and their log."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import msgspec

from holdfast.cli.command import DONE, GIVEN_DATABASE, WRONG_USAGE, Call
from holdfast.cli.output import print_json, print_line
from holdfast.config import home_folder, make_private_folder
from holdfast.errors import ConfigError, HoldfastError
from holdfast.jobs.process_group import MARKS

PYTHON = (sys.executable, "-P", "-m")
"""Runs one of our modules; not from the current folder, where a queue.py would hide the standard one."""

KEPT_LOGS = 20
LARGEST_LOG = 10 * 1024 * 1024
_START_PATIENCE = 60.0


def detach(call: Call, options: dict[str, Any]) -> int:
    """Start the supervisor in a session of its own and wait until it says that its workers are up."""
    arguments = call.arguments
    path = _log_file()
    words = ["--count", str(arguments.count), "--log-format", arguments.log_format or "text"]
    for name in ("app", "types", "concurrency"):
        if options[name] is not None:
            words += [f"--{name}", str(getattr(arguments, name))]
    words += [f"--{name}" for name in ("drain", "no-reconcile") if getattr(arguments, name.replace("-", "_"))]
    ready, theirs = os.pipe()
    with open(path, "ab", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        fcntl.flock(file, fcntl.LOCK_SH)  # held by all who inherit it: see _forget_old_logs
        process = subprocess.Popen(
            [*PYTHON, "holdfast.cli", "worker", "start", *words, "--ready-fd", str(theirs)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            env=clean_environment(arguments.database),
            pass_fds=(theirs,),
            start_new_session=True,
        )
    os.close(theirs)
    try:
        workers = _wait_until_ready(call, ready, process, path)
    except KeyboardInterrupt:
        process.terminate()
        raise
    if call.wants_json:
        print_json({"pid": process.pid, "workers": workers, "log": path})
    else:
        count = "1 worker" if len(workers) == 1 else f"{len(workers)} workers"
        print_line(f"{count} started, supervisor pid {process.pid}, log {path}")
    return DONE


def _wait_until_ready(call: Call, ready: int, process: subprocess.Popen[bytes], path: str) -> list[str]:
    from select import select

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
        raise HoldfastError(f"the workers were not up after {_START_PATIENCE:g} s", hint=f"see {path}")
    code = process.wait()
    with open(path, encoding="utf-8", errors="replace") as file:
        said = [line.strip() for line in file if line.startswith("queuectl: ")]
    if not said:
        call.queue.open()  # on a full disk the log could not be written, but the reason can be found again
        raise HoldfastError("the workers could not be started", hint=f"see {path}")
    os.unlink(path)  # all it holds is said here
    reason = said[-1].removeprefix("queuectl: ")
    raise (ConfigError if code == WRONG_USAGE else HoldfastError)(reason)


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
    folder = os.path.join(home_folder(), "logs", "workers")
    make_private_folder(folder)
    _forget_old_logs(folder)
    return os.path.join(folder, f"{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{os.getpid()}.log")


def _forget_old_logs(folder: str) -> None:
    """Keep the newest logs, and those that somebody still writes to."""
    for name in sorted(os.listdir(folder), reverse=True)[KEPT_LOGS:]:  # they begin with the time
        path = os.path.join(folder, name)
        with suppress(OSError), open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.unlink(path)


def rotation() -> Callable[[], None]:
    """Keeps a detached supervisor's log from growing for ever: what is old goes to a second file."""
    descriptor = sys.stdout.fileno()

    def rotate() -> None:
        if os.fstat(descriptor).st_size <= LARGEST_LOG:
            return
        path = os.readlink(f"/proc/self/fd/{descriptor}") if sys.platform == "linux" else None
        if path is not None:
            from shutil import copyfile

            with suppress(OSError):  # removed by somebody, or no room for a copy
                copyfile(path, path + ".1")
        os.ftruncate(descriptor, 0)  # all who write to it append

    return rotate


def clean_environment(database: str | None) -> dict[str, str]:
    """Ours without the marks of a job: workers that a command starts are not to end with it.

    A --database that was given is handed on in it: an address may hold a password, and everybody can read
    the command lines of processes.
    """
    kept = {name: value for name, value in os.environ.items() if name not in MARKS}
    return kept if database is None else {**kept, GIVEN_DATABASE: database}
