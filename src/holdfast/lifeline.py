"""A pipe by which processes learn that the one that started them is gone: its end closes with its holder."""

from __future__ import annotations

import fcntl
import os
import signal

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


def kill_group_at_end(theirs: int, group: int) -> None:
    """Let the kernel kill a process group as soon as the holder of the other end is gone."""
    fcntl.fcntl(theirs, fcntl.F_SETOWN, -group)
    fcntl.fcntl(theirs, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(theirs, fcntl.F_SETFL, fcntl.fcntl(theirs, fcntl.F_GETFL) | os.O_ASYNC)


def _forget() -> None:
    """What a handler forks must not hold on to the lives of others."""
    for descriptor in _held:
        os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_forget)
