"""Running queuectl for the tests: inside this process, as a real program, and on a pseudo-terminal."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tests.support import wait_until

ROOT = Path(__file__).parents[2]

QUEUECTL = (sys.executable, "-m", "holdfast.cli")
"""The words that start the program, whether it is installed or only on the path."""

ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


class Ran:
    """What came of one command line."""

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code = code
        self.out = out
        self.err = err

    def __repr__(self) -> str:
        return f"exit code {self.code}\n--- stdout\n{self.out}--- stderr\n{self.err}---"

    @property
    def lines(self) -> list[str]:
        return self.out.splitlines()

    @property
    def rows(self) -> list[list[str]]:
        """The lines of standard output, split at their tabs."""
        return [line.split("\t") for line in self.lines]

    @property
    def errors(self) -> list[str]:
        return self.err.splitlines()

    @property
    def json(self) -> Any:
        """Standard output as the one JSON document it must be."""
        return json.loads(self.out)

    @property
    def text(self) -> str:
        """Standard output without escape sequences."""
        return plain(self.out)


def plain(shown: str) -> str:
    """What a terminal was sent, without colours and cursor movements."""
    return ESCAPE.sub("", shown).replace("\r\n", "\n")


def environment(home: Path | str, **variables: str | None) -> dict[str, str]:
    """The environment of a queuectl program that knows only this home. A variable of None is taken out."""
    # The address is there only where a test has one that is not in its home.
    made = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("QUEUECTL_") or name == "QUEUECTL_DATABASE_URL"
    }
    # A terminal's own habits are not inherited from whoever runs the tests.
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES", "PYTHONDONTWRITEBYTECODE"):
        made.pop(name, None)
    made["QUEUECTL_HOME"] = str(home)
    # The program imports the holdfast that the tests import.
    import holdfast

    paths = [str(Path(holdfast.__file__).parents[1]), *made.get("PYTHONPATH", "").split(os.pathsep)]
    made["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(filter(None, paths)))
    for name, value in variables.items():
        if value is None:
            made.pop(name, None)
        else:
            made[name] = value
    return made


def queuectl(
    home: Path | str,
    *words: str,
    input: str | bytes | None = None,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | str | None = None,
    timeout: float = 60.0,
) -> Ran:
    """Run the real program to its end, with this QUEUECTL_HOME and standard input."""
    data = input.encode() if isinstance(input, str) else input
    done = subprocess.run(
        [*QUEUECTL, *words],
        input=b"" if data is None else data,
        capture_output=True,
        env=environment(home, **(env or {})),
        cwd=cwd,
        timeout=timeout,
        check=False,
    )
    return Ran(done.returncode, done.stdout.decode(), done.stderr.decode())


def start_queuectl(
    home: Path | str,
    *words: str,
    env: Mapping[str, str | None] | None = None,
    cwd: Path | str | None = None,
    stdin: int = subprocess.DEVNULL,
    stdout: int = subprocess.PIPE,
    stderr: int = subprocess.PIPE,
    start_new_session: bool = False,
) -> subprocess.Popen[bytes]:
    """Start the real program and return at once; who calls it waits for it and closes its pipes."""
    return subprocess.Popen(
        [*QUEUECTL, *words],
        stdin=stdin,
        stdout=stdout,
        stderr=stderr,
        env=environment(home, **(env or {})),
        cwd=cwd,
        start_new_session=start_new_session,
    )


Cli = Callable[..., Ran]
"""The fixture `cli`: the words of a command line, to what came of it."""


_TAKE_TERMINAL = """\
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A program on a pseudo-terminal that it controls: keys are signals, and closing it hangs up."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], width: int, height: int) -> None:
        self.shown = ""
        self.code: int | None = None
        self._bytes = bytearray()
        self._master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))
        self._process = subprocess.Popen(
            [sys.executable, "-ISc", _TAKE_TERMINAL, *words],
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=dict(env),
            start_new_session=True,
        )
        os.close(slave)

    @property
    def pid(self) -> int:
        return self._process.pid

    def type(self, text: str) -> None:
        """Press keys; \\x03 is Ctrl-C."""
        os.write(self._master, text.encode())

    def read_until(self, part: str, timeout: float = 30.0) -> str:
        """Read until a text was shown (colours aside); returns all that was shown so far."""
        deadline = time.monotonic() + timeout
        while part not in plain(self.shown):
            left = deadline - time.monotonic()
            assert left > 0, f"{part!r} was not shown within {timeout:g} s: {self.shown!r}"
            assert self._read(left), f"{part!r} was not shown before the end: {self.shown!r}"
        return self.shown

    def finish(self, timeout: float = 60.0) -> Ran:
        """Read to the program's end."""
        deadline = time.monotonic() + timeout
        while self._read(max(0.0, deadline - time.monotonic())):
            assert time.monotonic() < deadline, f"not at its end within {timeout:g} s: {self.shown!r}"
        self.code = self._process.wait(60)
        self.close()
        return Ran(self.code, self.shown, "")

    def hang_up(self) -> None:
        """Close the terminal, as a closed window does: the programs in front get SIGHUP."""
        if self._master >= 0:
            os.close(self._master)
            self._master = -1

    def close(self) -> None:
        """Close the terminal; a program that is still there is killed."""
        self.hang_up()
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait(60)

    def _read(self, timeout: float) -> bool:
        """Read what is there or comes in time; False at the end."""
        ready, _, _ = select.select([self._master], [], [], timeout)
        if not ready:
            return True
        try:
            data = os.read(self._master, 65_536)
        except OSError:  # the last program has closed its side (Linux)
            return False
        self._bytes += data
        self.shown = self._bytes.decode(errors="replace")
        return bool(data)


def terminal(
    home: Path | str,
    *words: str,
    width: int = 80,
    height: int = 24,
    env: Mapping[str, str | None] | None = None,
) -> Terminal:
    """Start queuectl on a pseudo-terminal of this size. Who calls it calls finish() or close()."""
    variables = environment(home, **{"TERM": "xterm-256color", **(env or {})})
    return Terminal([*QUEUECTL, *words], variables, width, height)


def on_terminal(
    home: Path | str,
    *words: str,
    width: int = 80,
    height: int = 24,
    env: Mapping[str, str | None] | None = None,
    timeout: float = 60.0,
) -> Ran:
    """Run queuectl to its end on a pseudo-terminal; `out` is all that was shown there, escapes included."""
    started = terminal(home, *words, width=width, height=height, env=env)
    try:
        return started.finish(timeout)
    finally:
        started.close()


def wait_until_read(address: str) -> None:
    """Wait until a server has accepted all its connections, and read all that was sent on them."""
    port = f":{urlsplit(address).port or 0:04X}"
    established = "01"

    def is_read() -> bool:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
        theirs = [row for row in rows if row[1].endswith(port) and row[3] == established]
        # An inode of 0: nobody has accepted it yet. Behind the colon is what waits to be read.
        return bool(theirs) and all(row[9] != "0" and row[4].endswith(":00000000") for row in theirs)

    wait_until(is_read, 60.0, f"{address} has read what it was sent")
