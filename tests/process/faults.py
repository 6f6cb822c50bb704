"""Faults at single system calls: strace kills a process at its n-th write, or makes that write fail.

Only calls that SQLite makes on its own files are touched (it writes with pwrite64; Python does not), so few
points remain and all can be tried. strace counts the calls of each thread by themselves; the scenarios write
in their main thread. It is attached to a process that was forked ready loaded: to load one anew for each of
hundreds of points would take ten times as long.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from holdfast.handlers.options import Defaults
from tests.process.app import DEFAULTS, LOG
from tests.process.oracle import Database
from tests.process.program import TRACED
from tests.process.programs import ROOT, Forked, Program

CALLS = ("pwrite64", "fdatasync", "fsync", "ftruncate", "unlink")
AT_ONCE = 3
KILLED = -9

_BETWEEN = re.compile(rb"strace: pid \d+: (entering|exiting), ptrace_syscall_info\.op == \d")


@contextmanager
def faults(program: Program, *expressions: str, trace: Path | None = None) -> Iterator[None]:
    """Make these faults happen in a running program, as in "inject=fdatasync:error=EIO:when=3+"."""
    command = ["strace", "-f", "-qq", "-o", str(trace or "/dev/null"), "-p", str(program.pid)]
    for expression in (
        f"trace=getppid,pread64,{','.join(CALLS)}",
        f"inject=getppid:retval={TRACED}",
        *expressions,
    ):
        command += ["-e", expression]
    tracer = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    try:
        yield
    finally:
        tracer.terminate()  # it lets go of the program, which goes on without faults
        _, errors = tracer.communicate()
    # What strace says when it comes or goes while a thread is inside a call; nothing went wrong then.
    said = [line for line in errors.splitlines() if not _BETWEEN.fullmatch(line)]
    assert not said, said


class Scenarios:
    """A process that has loaded what the scenarios need, and forks them in a moment each."""

    def __init__(self, folder: Path, defaults: Defaults) -> None:
        self._folder = folder
        self._numbers = count()
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.process.scenarios"],
            cwd=ROOT,
            env={**os.environ, LOG: str(folder / "handlers.log"), DEFAULTS: json.dumps(defaults)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    @contextmanager
    def forked(self, role: str, url: str, options: dict[str, Any]) -> Iterator[Forked]:
        """A role of program.py that waits for strace before it does anything; nothing is left of it."""
        program = self._fork(["traced", {"role": role, "url": url, "options": options}])
        try:
            yield program
        finally:
            program.signal(signal.SIGKILL)
            program.wait()

    def _fork(self, line: list[Any]) -> Forked:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with self._lock:
            number = next(self._numbers)
            output, errors = self._folder / f"{number}.out", self._folder / f"{number}.err"
            self._process.stdin.write(json.dumps([*line, str(output), str(errors)]).encode() + b"\n")
            self._process.stdin.flush()
            return Forked(int(self._process.stdout.readline()), output, errors)

    def close(self) -> None:
        self._process.communicate(timeout=30)
        assert self._process.returncode == 0


class Run(NamedTuple):
    """A scenario that ran on a copy of the database, and how it ended."""

    point: str
    program: Program
    database: Database
    status: int

    def __str__(self) -> str:
        return f"{self.point}: exit status {self.status}\n{self.program.output()}{self.program.errors()}"


class Scenario:
    """One role of program.py, run again and again on copies of the file `before`, or on none."""

    def __init__(
        self, scenarios: Scenarios, folder: Path, before: Path | None, role: str, **options: Any
    ) -> None:
        self._scenarios = scenarios
        self._folder = folder
        self._before = before
        self._role = role
        self._options = options

    def count_calls(self) -> Counter[str]:
        """How often each call is made when nothing goes wrong."""
        trace = self._folder / "trace"
        run = self._run("no fault", trace=trace)
        assert run.status == 0, run
        assert run.program.refused() == [], run
        names = (line.split()[1].partition("(")[0] for line in trace.read_text().splitlines())
        return Counter(name for name in names if name in CALLS)

    def kill_at_every_call(self, check: Callable[[Run], None]) -> int:
        """Kill the process at each of its calls, one run for each; return how many points there were."""
        counts = self.count_calls()
        points = [(call, n) for call, count in counts.items() for n in range(1, count + 1)]
        self._try([f"inject={call}:signal=KILL:when={n}" for call, n in points], KILLED, check)
        # One more than there are: the scenario passes.
        passing = [f"inject={call}:signal=KILL:when={count + 1}" for call, count in counts.items()]
        self._try(passing, 0, check)
        return len(points)

    def fail(self, expressions: Sequence[str], check: Callable[[Run], None]) -> None:
        """Run once with each fault. The program must cope: an error that is not ours is its end."""
        self._try(expressions, 0, check)

    def _try(self, expressions: Sequence[str], status: int, check: Callable[[Run], None]) -> None:
        def attempt(expression: str) -> None:
            run = self._run(expression, expression)
            assert run.status == status, run
            check(run)

        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(attempt, expressions))

    def _run(self, point: str, *expressions: str, trace: Path | None = None) -> Run:
        name = "".join(character if character.isalnum() else "-" for character in point)
        path = self._folder / f"{self._role}-{name}.db"
        if self._before is not None:
            shutil.copy(self._before, path)
        url = f"sqlite:///{path}"
        with (
            self._scenarios.forked(self._role, url, self._options) as program,
            faults(program, *expressions, trace=trace),
        ):
            status = program.wait()
        return Run(point, program, Database(path), status)
