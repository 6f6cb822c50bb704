"""One supervised process and its replacements: how it starts, what it reports, how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Sequence

import msgspec
from msgspec import Struct

from holdfast.system.lifeline import Lifeline, start_program

EXIT_CUT_SHORT = 1
EXIT_NOT_STARTED = 2
EXIT_EXHAUSTED = 3
EXIT_CRASHED = 70

FIRST_PAUSE, LONGEST_PAUSE = 1.0, 30.0
"""Seconds before a dead worker is replaced: the first delay, doubled each time, up to the maximum."""

LONG_ENOUGH = 60.0
"""Seconds after which the delay starts over."""

RECONCILE = "QUEUECTL_RECONCILE"
"""Tells one of several processes to reconcile at startup."""

# Different ones: two equal signals that come together are one to the kernel. A worker takes them alike.
_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGKILL)


class Notice(Struct, frozen=True, omit_defaults=True):
    """What a process says: its name and database when it is up, or why it can't be, and how it ends.

    One that exits without the latter has died, whatever its exit code: a handler may have called exit.
    """

    worker_id: str | None = None
    database: str = ""
    failure: str | None = None
    wrong_usage: bool = False
    exit_code: int | None = None


class Process:
    """One process after another, each started a while after the last has ended.

    `descriptors` are inherited. The first one `reconciles` when it is up. One that is not a worker is a
    server, which holds no jobs.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str] | None,
        *,
        descriptors: Sequence[int] = (),
        is_worker: bool = True,
        reconciles: bool = False,
    ) -> None:
        self._command = command
        self._environment = environment
        self._descriptors = descriptors
        self._reconciles = reconciles
        self.is_worker = is_worker
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: Lifeline | None = None
        self._buffer = b""
        self._started = 0.0
        self._pause = 0.0
        self._told = 0
        self.notices = -1
        """The pipe that the process writes its notices to."""
        self.pid = 0
        self.worker: Notice | None = None
        """What the process said when it was up."""
        self.failure: Notice | None = None
        self.announced: int | None = None
        self.first: Notice | None = None
        """What the first process said when it was up."""
        self.dead_worker: Notice | None = None
        """The worker that has died and will be replaced."""
        self.start_at: float | None = None
        self.is_over = False

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def has_ended(self) -> bool:
        return self._process is not None and self._process.poll() is not None

    def start(self) -> None:
        """Start a process; raises OSError if that is impossible."""
        self.start_at = self.worker = self.failure = self.announced = None
        self._buffer = b""
        self._told = 0
        self._started = time.monotonic()
        self.notices, theirs = os.pipe()
        os.set_blocking(self.notices, False)
        environment = dict(os.environ if self._environment is None else self._environment)
        if self._reconciles:
            environment[RECONCILE] = "1"
            self._reconciles = False
        try:
            self._process, self._lifeline = start_program(
                self._command, [theirs], inherited=self._descriptors, environment=environment
            )
        except OSError:
            os.close(self.notices)
            raise
        self.pid = self._process.pid

    def hear(self) -> bool:
        """Take note of what the process has said since; False when it can say no more."""
        try:
            data = os.read(self.notices, 65_536)
        except BlockingIOError:
            return True
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            self._note(msgspec.json.decode(line, type=Notice))
        return bool(data)

    def _note(self, notice: Notice) -> None:
        if notice.exit_code is not None:
            self.announced = notice.exit_code
        elif notice.failure is not None:
            self.failure = notice
        else:
            self.worker = notice
            self.first = self.first or notice

    def tell(self, requests: int) -> None:
        """Make sure that the process has received this many stop requests, each stronger than the last."""
        while self._process is not None and self._told < requests:
            number = _SIGNALS[min(self._told, 2)]
            self._told += 1
            self._process.send_signal(number)

    def collect(self) -> int:
        """The exit code of a process that has ended or is about to end."""
        assert self._process is not None
        assert self._lifeline is not None
        code = self._process.wait()
        self._process = None
        os.close(self.notices)
        self._lifeline.close()
        return code

    def next_pause(self) -> float:
        """How long to wait before the next start: longer each time, unless this one has lived for long."""
        lived = time.monotonic() - self._started
        first = lived >= LONG_ENOUGH or not self._pause
        self._pause = FIRST_PAUSE if first else min(2 * self._pause, LONGEST_PAUSE)
        return self._pause
