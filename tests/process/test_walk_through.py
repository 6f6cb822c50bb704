"""The walk-through of docs/side-effects.md: pasted into a terminal, it shows what the page says."""

from __future__ import annotations

import ast
import os
import pty
import re
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from fcntl import ioctl
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support import wait_until

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/side-effects.md"
BLOCK = re.compile(r"^```sh\n(.*?)^```$(?:\n\n```text\n(.*?)^```$)?", re.MULTILINE | re.DOTALL)
HANDLER = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PORT = "5055"
"""Of the page's stand-in for AWS. The test takes one that is free."""

COLUMNS = 132
LONGEST = 100.0
MARK = "\x1e"
CURSOR = re.compile(r"\x1b\[\?25[hl]")
ERASED = re.compile(r"[^\n]*(?:\n\r?\x1b\[1A)?\x1b\[2K")
CONTROL = re.compile(r"\r|\x1b\[[0-9;?]*[A-Za-z]")

ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")

# Every shell has its own words for the end of what it started, and a worker reconciles beside its jobs.
UNCERTAIN = re.compile(r"\b(?:Killed|Terminated)\b|completed jobs? reconciled")

# What else differs from run to run.
VARYING = {
    r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d UTC \((?:just now|\d+ s ago)\)": "TIME",
    r"\.holdfast-[0-9a-f]{20}-": ".holdfast-JOB-",
    r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:\.\d+)?Z?": "TIME",
    r"\d\d:\d\d:\d\d\.\d+": "TIME",
    r"\b\d+(?:\.\d+)? (?:ms|s)\b": "DURATION",
    r"\bpid \d+": "pid N",
    r"/tmp/tmp\.\w+": "FOLDER",
    r"[ \t]+": " ",
    r"(\d/\d DURATION .{10}).*…": r"\1…",  # how much of a cell is shown depends on the others
}


def blocks() -> list[tuple[str, str]]:
    """The commands of the page, and what it says is seen; nothing if it says nothing."""
    return BLOCK.findall(PAGE.read_text(encoding="utf-8"))


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder as the reader's: with the examples in it. No process that was started there is left.

    Its path is short, as the reader's is: tables are laid out by the lengths of what is in them.
    """
    with TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name)
        shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))
        yield folder
        for pid in started_in(folder):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        wait_until(lambda: started_in(folder) == [], message="the end of what was killed")


def started_in(folder: Path) -> list[int]:
    """Living processes of the walk-through, whoever their parent is."""
    mark = f"TMPDIR={folder}".encode()
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                environment = (entry / "environ").read_bytes()
            except OSError:
                continue
            if mark in environment.split(b"\0"):
                found.append(int(entry.name))
    return found


def free_port() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return str(server.getsockname()[1])


def shown(commands: list[str], folder: Path) -> list[str]:
    """What a terminal shows for each of the commands, which one shell runs, until one fails."""
    script = folder / "script.sh"
    script.write_text("".join(f"printf '\\036\\n'\n{command}" for command in commands), encoding="utf-8")
    path = os.pathsep.join([os.path.dirname(sys.executable), os.environ["PATH"]])
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("QUEUECTL_", "AWS_"))}
    kept.pop("PYTHONDONTWRITEBYTECODE", None)  # who compiles every module anew takes twice as long to start
    environment = {
        **kept,
        "PATH": path,
        "TMPDIR": str(folder),
        "NO_COLOR": "1",
        "TERM": "xterm",
        "COLUMNS": str(COLUMNS),  # who runs the tests may have others
        "LINES": "50",
    }
    master, terminal = pty.openpty()
    try:
        ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, COLUMNS, 0, 0))
        try:
            shell = subprocess.Popen(
                ["/bin/sh", "-eu", str(script)],
                cwd=folder,
                env=environment,
                stdin=terminal,
                stdout=terminal,
                stderr=terminal,
                start_new_session=True,
            )
        finally:
            os.close(terminal)
        with shell:
            printed = read_all(master, shell)
    finally:
        os.close(master)
    text = printed.decode("utf-8", "replace").replace("\r\n", "\n")
    text = CONTROL.sub("", ERASED.sub("", CURSOR.sub("", text))).replace(str(folder), "/tmp")
    assert shell.returncode == 0, f"exit code {shell.returncode} after:\n{text}"
    return text.split(f"{MARK}\n")[1:]


def read_all(master: int, shell: subprocess.Popen[bytes]) -> bytes:
    """All that is printed until the shell ends."""
    printed = bytearray()
    deadline = time.monotonic() + LONGEST
    while True:
        is_over = shell.poll() is not None
        ready, _, _ = select.select([master], [], [], 0 if is_over else 0.1)
        if ready:
            try:
                data = os.read(master, 65536)
            except OSError:  # nobody has the terminal open any more
                data = b""
            if data:
                printed += data
                continue
        if is_over:
            return bytes(printed)
        if time.monotonic() > deadline:
            shell.kill()
            raise AssertionError(f"not over after {LONGEST:g} s:\n{printed.decode('utf-8', 'replace')}")


class Reader:
    """Reads what is seen, or what the page says is seen, without what differs from run to run.

    An id is known again by the number it is given, so that a child is known to be that of its parent.
    """

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}

    def lines(self, command: str, text: str) -> list[str]:
        is_log = command.startswith("queuectl worker start") and ">" not in command
        # In a log the jobs that run side by side come in any order.
        text = ID.sub("ID" if is_log else self._number, text)
        for pattern, word in VARYING.items():
            text = re.sub(pattern, word, text)
        lines = [line.strip() for line in text.splitlines() if not UNCERTAIN.search(line)]
        return sorted(lines) if is_log else lines

    def _number(self, match: re.Match[str]) -> str:
        return f"ID {self._numbers.setdefault(match[0], len(self._numbers) + 1)}"


def test_the_walk_through_shows_what_its_page_says(folder: Path) -> None:
    page, port = blocks(), free_port()
    seen = shown([command.replace(PORT, port) for command, _ in page], folder)
    assert len(seen) == len(page)
    said, found = Reader(), Reader()
    for (command, expected), printed in zip(page, seen, strict=True):
        here = f"{command}\nshowed\n{printed}"
        assert found.lines(command, printed.replace(port, PORT)) == said.lines(command, expected), here
    wait_until(lambda: started_in(folder) == [], message="the end of all that the page starts")
    marks = f"holdfast-{os.getuid()}"  # of starts: those of a worker that was killed stay for a while
    assert {path.name for path in folder.iterdir()} == {"examples", "script.sh", marks}


def test_the_handler_on_the_page_is_that_of_the_application() -> None:
    told = ast.parse(HANDLER.findall(PAGE.read_text(encoding="utf-8"))[0]).body[0]
    source = ast.parse((ROOT / "examples/requirements_app.py").read_text(encoding="utf-8"))
    real = next(each for each in source.body if getattr(each, "name", None) == "create_requirement")
    assert isinstance(real, ast.FunctionDef)
    assert ast.get_docstring(real)
    del real.body[0]
    assert ast.unparse(told) == ast.unparse(real)
