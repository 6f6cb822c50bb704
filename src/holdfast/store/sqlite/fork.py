"""Forks: none of our connections is open while this process forks.

SQLite keeps a process's locks in that process's memory, which a forked child inherits and wrongly trusts: the
parent could then delete the write-ahead log while the child uses it. So before a fork every connection is
closed, after waiting for those in use, and each side opens new ones. Where one can't be closed (a handler
that forks inside ctx.transaction(), a statement that takes too long), the child can't use the queue.
"""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable

LONGEST_WAIT = 5.0
"""Seconds to wait for connections in use before a fork."""


class ForkGate:
    """Counts the uses of connections. A fork shuts it, waits until nobody is inside, and calls `close`."""

    def __init__(
        self, can_close: Callable[[], bool], close: Callable[[], None], abandon: Callable[[], None]
    ) -> None:
        self._can_close = can_close
        self._close = close
        self._abandon = abandon
        self._child_refused = False
        self.refused = False
        """Whether this process is a child that may not use the database."""
        self._open()
        _gates.add(self)

    def _open(self) -> None:
        self._condition = threading.Condition()
        self._local = threading.local()
        self._inside = 0
        self._shut_by = 0

    def enter(self) -> None:
        """Begin to use a connection; entered again by the same thread, it is the same use."""
        depth = getattr(self._local, "depth", 0)
        self._local.depth = depth + 1
        if depth:
            return
        with self._condition:
            while self._shut_by:
                self._condition.wait()
            self._inside += 1

    def leave(self) -> None:
        self._local.depth -= 1
        if self._local.depth:
            return
        with self._condition:
            self._inside -= 1
            if self._shut_by:
                self._condition.notify_all()

    def _shut(self) -> bool:
        """Let nobody in, and wait until nobody is inside; False if that takes too long."""
        mine = 1 if getattr(self._local, "depth", 0) else 0
        with self._condition:
            self._shut_by += 1
            return self._condition.wait_for(lambda: self._inside == mine, LONGEST_WAIT) and not mine

    def _reopen(self) -> None:
        with self._condition:
            self._shut_by -= 1
            self._condition.notify_all()

    def alone(self, action: Callable[[], None]) -> None:
        """Run it while nobody uses a connection; skip it if somebody doesn't stop using one."""
        if self._shut():
            action()
        self._reopen()

    def before_fork(self) -> None:
        if self._shut() and self._can_close():
            self._close()
        else:
            self._child_refused = True
            self._abandon()

    def after_in_parent(self) -> None:
        self._child_refused = False
        self._reopen()

    def after_in_child(self) -> None:
        self.refused = self._child_refused
        self._open()  # the old locks belong to threads that are not here


_gates: weakref.WeakSet[ForkGate] = weakref.WeakSet()
_one_fork = threading.Lock()
"""Held from before a fork to after it: two threads may fork at once."""
_forking: list[ForkGate] = []


def _before() -> None:
    _one_fork.acquire()
    _forking[:] = list(_gates)
    for gate in _forking:
        gate.before_fork()


def _after(reopen: Callable[[ForkGate], None]) -> None:
    for gate in _forking:
        reopen(gate)
    _forking.clear()
    _one_fork.release()


os.register_at_fork(
    before=_before,
    after_in_parent=lambda: _after(ForkGate.after_in_parent),
    after_in_child=lambda: _after(ForkGate.after_in_child),
)
