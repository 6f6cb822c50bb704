"""Starting queuectl in processes that load nothing: each is forked, in a moment, from one that has.

They are real in all but their start: streams, terminal, folder and environment are those they are given.
"""

from __future__ import annotations

import fcntl
import json
import os
import pty
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
from collections.abc import Collection, Mapping
from contextlib import ExitStack, suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import BinaryIO

from tests.surfaces.support import ROOT, Ran, environment

PATIENCE = 60.0

Variables = Mapping[str, str | None]


class Forked:
    """One queuectl, with its output in files that have no name."""

    def __init__(self, nursery: Nursery, pid: int, out: BinaryIO, err: BinaryIO) -> None:
        self._nursery = nursery
        self._out = out
        self._err = err
        self.pid = pid

    def signal(self, number: signal.Signals) -> None:
        os.kill(self.pid, number)  # until it was waited for, the pid is nobody else's

    def finish(self, encoding: str = "utf-8") -> Ran:
        """What came of it, when it has ended."""
        code = self._nursery.wait(self.pid)
        with self._out, self._err:
            texts = []
            for file in (self._out, self._err):
                file.seek(0)
                texts.append(file.read().decode(encoding))
        return Ran(code, *texts)


class Nursery:
    """The process that forks. It has loaded all that queuectl may need, or nothing of it.

    `prefix` are words before its command line, which decide what all its children may do.
    """

    def __init__(self, *prefix: str, loads: bool = True) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._socket.settimeout(PATIENCE)
        with theirs:
            options = [str(theirs.fileno()), json.dumps({"loads": loads})]
            self._process = subprocess.Popen(
                [*prefix, sys.executable, "-m", "tests.process.forking_queuectl", *options],
                cwd=ROOT,
                env=environment(ROOT),
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
            )

    def __call__(
        self,
        home: Path,
        *words: str,
        stdin: bytes = b"",
        env: Variables | None = None,
        cwd: Path | None = None,
    ) -> Ran:
        """Run a command line to its end."""
        return self.start(home, *words, stdin=stdin, env=env, cwd=cwd).finish()

    def start(
        self,
        home: Path,
        *words: str,
        stdin: bytes | int = b"",
        closed: Collection[int] = (),
        full: Collection[int] = (),
        env: Variables | None = None,
        cwd: Path | None = None,
        at_main: int | None = None,
    ) -> Forked:
        """Start one that reads these bytes, as many as a pipe holds, or from a descriptor.

        Its streams of some numbers are `closed`, or on a disk that is `full`. `at_main` is a descriptor that
        it closes when its own code begins.
        """
        out, err = TemporaryFile(), TemporaryFile()  # noqa: SIM115 -- closed when it has ended
        with ExitStack() as stack:
            reads = stdin if isinstance(stdin, int) else stack.enter_context(_pipe_with(stdin)).fileno()
            full_disk = stack.enter_context(open("/dev/full", "wb")).fileno()
            streams = {
                number: full_disk if number in full else descriptor
                for number, descriptor in enumerate((reads, out.fileno(), err.fileno()))
                if number not in closed
            }
            pid = self._fork(home, words, streams, env, cwd=cwd, at_main=at_main)
            return Forked(self, pid, out, err)

    def on_terminal(
        self, home: Path, *words: str, width: int, height: int, env: Variables | None = None
    ) -> Ran:
        """Run a command line to its end on a terminal of this size; `out` is all that was shown there."""
        master, slave = pty.openpty()
        try:
            fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
            variables = {"TERM": "xterm-256color", **(env or {})}
            pid = self._fork(home, words, dict.fromkeys(range(3), slave), variables, terminal=True)
            os.close(slave)
            shown = bytearray()
            with suppress(OSError):  # nobody has it open any more
                while select.select([master], [], [], PATIENCE)[0] and (data := os.read(master, 65_536)):
                    shown += data
            return Ran(self.wait(pid), shown.decode(errors="replace"), "")
        finally:
            os.close(master)

    def wait(self, pid: int) -> int:
        """The exit code of one, when it has ended."""
        self._socket.send(json.dumps({"wait": pid}).encode())
        return int(self._socket.recv(100))

    def close(self) -> None:
        """End the process that forks; whatever is left of the others is killed."""
        self._socket.close()
        try:
            assert self._process.wait(60) == 0
        finally:
            self._process.kill()

    def _fork(
        self,
        home: Path,
        words: tuple[str, ...],
        streams: Mapping[int, int],
        env: Variables | None,
        *,
        cwd: Path | None = None,
        terminal: bool = False,
        at_main: int | None = None,
    ) -> int:
        request = {
            "words": words,
            "environment": environment(home, **(env or {})),
            "folder": None if cwd is None else str(cwd),
            "streams": list(streams),
            "terminal": terminal,
        }
        descriptors = [*streams.values(), *([] if at_main is None else [at_main])]
        socket.send_fds(self._socket, [json.dumps(request).encode()], descriptors)
        return int(self._socket.recv(100))


def _pipe_with(data: bytes) -> BinaryIO:
    reader, writer = os.pipe()
    with open(writer, "wb") as pipe:
        pipe.write(data)
    return open(reader, "rb")
