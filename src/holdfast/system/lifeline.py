"""Processes that end with the one that started them: they notice when a pipe closes."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence

PYTHON = (sys.executable, "-P", "-m")
"""Runs one of our modules; not from the current folder, where a queue.py would hide the standard one."""

KERNEL_KILLS = hasattr(fcntl, "F_SETSIG")
"""Whether the kernel can send a signal of our choice when a pipe ends (Linux)."""

_held: set[int] = set()


class Lifeline:
    """The holder's side. `theirs` is for the process that depends on us: pass it on, then `let_go`."""

    def __init__(self) -> None:
        self.theirs, self.ours = os.pipe()
        _held.add(self.ours)

    def let_go(self) -> None:
        """Close their end here, once they have it."""
        os.close(self.theirs)

    def close(self) -> None:
        _held.discard(self.ours)
        os.close(self.ours)


def start_program(
    command: Sequence[str],
    theirs: Sequence[int],
    *,
    inherited: Sequence[int] = (),
    environment: Mapping[str, str] | None = None,
) -> tuple[subprocess.Popen[bytes], Lifeline]:
    """Start a program that ends with us, in a session of its own and without standard input.

    Its last arguments are the numbers of `theirs` and of its end of the lifeline, which are closed here,
    whether it could be started or not.
    """
    descriptors = [*theirs]
    try:
        lifeline = Lifeline()
        descriptors.append(lifeline.theirs)
        try:
            process = subprocess.Popen(
                [*command, *map(str, descriptors)],
                pass_fds=(*inherited, *descriptors),
                stdin=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # its own group: it can be killed with all it started
            )
        except BaseException:
            lifeline.close()
            raise
    finally:
        for descriptor in descriptors:
            os.close(descriptor)
    return process, lifeline


def kill_group_at_end(theirs: int, group: int) -> None:
    """Have the kernel kill a process group as soon as the holder of the other end is gone."""
    fcntl.fcntl(theirs, fcntl.F_SETOWN, -group)
    fcntl.fcntl(theirs, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(theirs, fcntl.F_SETFL, fcntl.fcntl(theirs, fcntl.F_GETFL) | os.O_ASYNC)


def _forget() -> None:
    """What a handler forks must not hold on to the lives of others."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
