"""Forks one queuectl for each request: `python -m tests.process.forking_queuectl SOCKET {"loads": …}`.

It imports little: what it has imported, its children can't be interrupted in importing.
"""

from __future__ import annotations

import fcntl
import io
import json
import os
import signal
import socket
import sys
import termios

from holdfast.cli import main as queuectl_main

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, NoReturn

LONGEST_REQUEST = 200_000
MAIN = "holdfast.cli.main"


def serve(requests: socket.socket, *, loads: bool) -> None:
    if loads:
        _load()
    children: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(requests, LONGEST_REQUEST, 4)
        if not message:
            break
        request = json.loads(message)
        if "wait" in request:
            requests.send(str(os.waitstatus_to_exitcode(os.waitpid(request["wait"], 0)[1])).encode())
            children.discard(request["wait"])
            continue
        pid = os.fork()
        if pid == 0:
            requests.close()
            _become(descriptors, **request)
        children.add(pid)
        for descriptor in descriptors:
            os.close(descriptor)
        requests.send(str(pid).encode())
    for pid in children:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _load() -> None:
    """Import all commands, and what each imports when it is called."""
    from importlib import import_module

    main = import_module(MAIN)
    for name in main.COMMANDS:
        main.load(name)
    for module in ("store.sqlite.store", "store.sqlite.open", "store.sqlite.health", "observe.doctor"):
        import_module(f"holdfast.{module}")


def _become(
    descriptors: list[int],
    words: list[str],
    environment: dict[str, str],
    folder: str | None,
    streams: list[int],
    terminal: bool,
) -> NoReturn:
    os.environ.clear()
    os.environ.update(environment)
    if folder is not None:
        os.chdir(folder)
    at_main = descriptors[len(streams) :]
    for number in range(3):
        os.close(number)
    for number, descriptor in zip(streams, descriptors, strict=False):
        os.dup2(descriptor, number)
        os.close(descriptor)
    if terminal:
        os.setsid()
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)
    if at_main:
        sys.meta_path.insert(0, Border(at_main[0]))
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        setattr(sys, name, _stream(number) if number in streams else None)
    sys.argv = ["queuectl", *words]
    queuectl_main()


def _stream(number: int) -> Any:
    """A standard stream as the interpreter makes it in this environment."""
    unbuffered = number > 0 and bool(os.environ.get("PYTHONUNBUFFERED"))
    return io.TextIOWrapper(
        open(number, "wb" if number else "rb", buffering=0 if unbuffered else -1),
        encoding=os.environ.get("PYTHONIOENCODING") or "utf-8",
        errors="backslashreplace" if number == 2 else "strict",
        line_buffering=number == 2 or os.isatty(number),
        write_through=unbuffered,
    )


class Border:
    """Closes a descriptor when queuectl's own code is about to be imported."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name == MAIN:
            sys.meta_path.remove(self)
            os.close(self._descriptor)


if __name__ == "__main__":
    given = socket.socket(fileno=int(sys.argv[1]))
    given.set_inheritable(False)
    serve(given, **json.loads(sys.argv[2]))
