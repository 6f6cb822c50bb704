"""A command in its own session, and how it is ended together with everything it started."""

from __future__ import annotations

import math
import os
import select
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Self

from holdfast.system.lifeline import KERNEL_KILLS, Lifeline, kill_group_at_end

WORKER_MARK, RUN_MARK = "QUEUECTL_WORKER_ID", "QUEUECTL_RUN"
"""The environment variables that identify the worker and the job that started a process."""

MARKS = (WORKER_MARK, RUN_MARK, "QUEUECTL_JOB_ID", "QUEUECTL_ATTEMPT")
"""All that such a process finds in its environment. Workers that it starts are not its job's."""

KILL_AFTER = 2.0
"""Seconds between TERM and KILL."""

_CHUNK = 64 * 1024
_LAST_OUTPUT = 0.2
_PATIENCE = 2.0
_POLL_SECONDS = 0.02

# Waits for a line from the worker, so that nothing of the command runs before the worker's death would end
# it. The worker may be gone already: then the pipe ends without one.
_GATE = "read -r go || exit 125"
_BEGIN = 'exec </dev/null\nexec /bin/sh -c -- "$1"'
# Where the kernel can't watch the pipe for us (macOS), a process of the group does. It is put into the
# background twice, so that it is no child of the command's.
_GUARD = "exec 3<&0\n( { read -r gone <&3; kill -KILL 0; } </dev/null >/dev/null 2>&1 & )"


class ProcessGroup:
    """A running command. `run` waits for its end, `stop` may be called by any thread."""

    def __init__(
        self,
        command: str,
        *,
        cwd: str | None,
        environment: Mapping[str, str],
        mark: str,
        preparation: Sequence[str] = (),
    ) -> None:
        """`mark` names a variable of the environment whose value is this command's alone.

        `preparation` are lines of shell that come before it.
        """
        self.was_stopped = False
        self._pidfd: int | None = None
        self._mark = f"{mark}={environment[mark]}"
        self._stopping = threading.Lock()
        self._lifeline = Lifeline()
        self._wake_read, wake_write = os.pipe()
        os.set_blocking(wake_write, False)
        self._wake_write: int | None = wake_write
        lifeline = self._lifeline.theirs
        lines = [_GATE, *([] if KERNEL_KILLS else [_GUARD])]
        lines += [f"{line} || exit 125" for line in preparation]
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", "\n".join([*lines, _BEGIN]), "sh", command],
                stdin=subprocess.PIPE if KERNEL_KILLS else lifeline,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd=cwd,
                env=environment,
                pass_fds=(lifeline,) if KERNEL_KILLS else (),
                start_new_session=True,
                bufsize=0,
            )
        except BaseException:
            self._lifeline.let_go()
            self._lifeline.close()
            os.close(self._wake_read)
            os.close(wake_write)
            raise
        if KERNEL_KILLS:
            kill_group_at_end(lifeline, self._process.pid)
        self._lifeline.let_go()
        self._open_gate()

    def _open_gate(self) -> None:
        with suppress(BrokenPipeError):  # it is dead already, which `run` will find
            if self._process.stdin is not None:
                os.write(self._process.stdin.fileno(), b"\n")
                self._process.stdin.close()
            else:
                os.write(self._lifeline.ours, b"\n")

    def stop(self) -> None:
        """Make `run` end the command: TERM now, KILL after a grace."""
        with self._stopping:  # not while it is closed: the number may soon be another file's
            if self._wake_write is not None:
                with suppress(BlockingIOError):
                    os.write(self._wake_write, b"\n")

    def run(self, write: Callable[[bytes], None]) -> int:
        """Hand on the output until the command has ended, end what it left, and return its exit code."""
        assert self._process.stdout is not None
        output = self._process.stdout.fileno()
        os.set_blocking(output, False)
        if hasattr(os, "pidfd_open"):
            self._pidfd = os.pidfd_open(self._process.pid)
        poll = select.poll()
        for descriptor in (output, self._wake_read, self._pidfd):
            if descriptor is not None:
                poll.register(descriptor, select.POLLIN)
        kill_at = math.inf
        while not self._has_ended():
            # Where no descriptor tells of its end, we look for it every now and then.
            until = kill_at if self._pidfd is not None else min(kill_at, time.monotonic() + _POLL_SECONDS)
            left = until - time.monotonic()
            ready = dict(poll.poll(None if left == math.inf else max(0, round(1000 * left) + 1)))
            if output in ready and not _copy(output, write):
                poll.unregister(output)
            if self._wake_read in ready:
                poll.unregister(self._wake_read)
                self.was_stopped = True
                self._signal(signal.SIGTERM)
                kill_at = time.monotonic() + KILL_AFTER
            if time.monotonic() >= kill_at:
                self._signal(signal.SIGKILL)
                kill_at = time.monotonic() + _LAST_OUTPUT
        self._end_leftovers(output, write)
        return self._process.wait()

    def _has_ended(self) -> bool:
        """Whether the command has; where we can, it is not collected: until then its number is its own."""
        if hasattr(os, "waitid"):
            flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
            return os.waitid(os.P_PID, self._process.pid, flags) is not None
        return self._process.poll() is not None

    def _signal(self, number: signal.Signals) -> None:
        signal_group(self._process.pid, number)
        for pid in marked(self._mark):
            with suppress(ProcessLookupError, PermissionError):
                if os.getpgid(pid) != self._process.pid:  # a second TERM would interrupt its clean-up
                    os.kill(pid, number)

    def _end_leftovers(self, output: int, write: Callable[[bytes], None]) -> None:
        """The command is over, and so is what it left in the background, here or outside its group."""
        signal_group(self._process.pid, signal.SIGKILL)
        if self.was_stopped or not _copy_rest(output, write, _LAST_OUTPUT):
            end_marked(self._mark)
            _copy_rest(output, write, _LAST_OUTPUT)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing is left, however `run` went."""
        if self._process.returncode is None:
            self._signal(signal.SIGKILL)
            self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        with self._stopping:
            assert self._wake_write is not None
            os.close(self._wake_read)
            os.close(self._wake_write)
            self._wake_write = None
        if self._pidfd is not None:
            os.close(self._pidfd)
        self._lifeline.close()


def signal_group(group: int, number: signal.Signals) -> None:
    """Send a signal to every process of a group that there still is."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, number)


def marked(mark: str) -> Iterator[int]:
    """The processes of this machine whose environment began with `NAME=value`. Linux; elsewhere none."""
    wanted = mark.encode() + b"\0"
    own = os.getpid()
    try:
        names = os.listdir("/proc")
    except OSError:
        return
    for name in names:
        if name.isdigit() and int(name) != own:
            try:
                with open(f"/proc/{name}/environ", "rb") as file:
                    environment = b"\0" + file.read() + b"\0"
            except OSError:
                continue  # it is gone, or another user's
            if b"\0" + wanted in environment:
                yield int(name)


def end_processes_of(worker_id: str) -> None:
    """Kill what the handlers of a dead worker started and marked."""
    end_marked(f"{WORKER_MARK}={worker_id}")


def end_marked(mark: str) -> None:
    """Kill every process that carries a mark, also those they start meanwhile."""
    deadline = time.monotonic() + _PATIENCE
    while time.monotonic() < deadline:
        found = False
        for pid in marked(mark):
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
                found = True
        if not found:
            return
        time.sleep(0.005)


def _copy(output: int, write: Callable[[bytes], None]) -> bool:
    """Hand on what is there; False at the end of the output."""
    try:
        data = os.read(output, _CHUNK)
    except BlockingIOError:
        return True
    if data:
        write(data)
    return bool(data)


def _copy_rest(output: int, write: Callable[[bytes], None], seconds: float) -> bool:
    """Hand on the last of the output; False if somebody keeps it open for longer."""
    deadline = time.monotonic() + seconds
    poll = select.poll()
    poll.register(output, select.POLLIN)
    while (left := deadline - time.monotonic()) > 0:
        if poll.poll(round(1000 * left)) and not _copy(output, write):
            return True
    return False
