"""Handlers that must be killable or burn CPU: warm child processes, each lent to one attempt at a time.

A thread of the worker waits for each running child, so a process handler is to the rest of the worker just
a handler that takes its time. Children are started anew (`python -m …`, never forked), import the
application, and find the handler by its name. They die with their worker: the end of their pipe tells them.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import BinaryIO

import msgspec

from holdfast.config import Value
from holdfast.context import Attempt
from holdfast.core.clock import Clock
from holdfast.core.lifecycle import Errored
from holdfast.errors import ProcessDied
from holdfast.lifeline import Lifeline
from holdfast.store.protocol import Store
from holdfast.worker.executors.threads import ThreadExecutor
from holdfast.worker.executors.wire import (
    Ask,
    End,
    FromChild,
    JobCompleted,
    Lease,
    LineReader,
    Overdue,
    Progress,
    Run,
    Setup,
    Started,
    send,
)
from holdfast.worker.run import (
    Committed,
    Ending,
    Report,
    describe,
    ending_of_stop,
    ending_unstarted,
    may_start,
)

KILL_AFTER = 2.0
"""Seconds between SIGTERM and SIGKILL."""


START_ALLOWANCE = 60.0
"""Seconds a new child has to import the application before the attempt's own timeout begins."""


class ProcessExecutor:
    """Runs each attempt in a child, through a thread that waits for it."""

    def __init__(
        self, clock: Clock, report: Report, store: Store, *, url: str, defaults: Mapping[str, Value]
    ) -> None:
        self._clock = clock
        self._threads = ThreadExecutor(clock, report, store, self._run)
        self._setup = Setup(url, defaults, list(sys.path), *_main_program())
        self._lock = threading.Lock()
        self._idle: list[Child] = []
        self._closed = False

    def start(self, attempt: Attempt) -> None:
        self._threads.start(attempt)

    def ask(self, attempt: Attempt) -> None:
        child = attempt.handle
        if child is not None and attempt.stop_reason is not None:
            child.ask(attempt.stop_reason)

    def interrupt(self, attempt: Attempt) -> bool:
        child = attempt.handle
        if child is not None:
            child.kill()
        return True  # one that has no child yet sees its stop_reason before it gets one

    def close(self) -> None:
        with self._lock:
            self._closed = True
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()
        self._threads.close()

    def _run(self, attempt: Attempt) -> Ending:
        if attempt.deadline is not None:
            attempt.deadline += START_ALLOWANCE
        try:
            child = self._borrow()
        except OSError as error:
            return Errored(f"the handler's process could not be started: {error}")
        attempt.handle = child
        ending = child.run(attempt, self._clock) if may_start(attempt) else ending_unstarted(attempt)
        attempt.handle = None
        if child.is_alive:
            self._give_back(child)
        else:
            child.close()
        return ending

    def _borrow(self) -> Child:
        with self._lock:
            while self._idle:
                child = self._idle.pop()
                if child.is_alive:
                    return child
                child.close()
        return Child(self._setup)

    def _give_back(self, child: Child) -> None:
        with self._lock:
            if not self._closed:
                self._idle.append(child)
                return
        child.close()


class Child:
    """A handler's process, seen from its worker."""

    def __init__(self, setup: Setup) -> None:
        commands_read, commands_write = os.pipe()
        replies_read, replies_write = os.pipe()
        self._lifeline = Lifeline()
        theirs = (commands_read, replies_write, self._lifeline.theirs)
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "holdfast.worker.executors.child", *map(str, theirs)],
                pass_fds=theirs,
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # its own group: it can be killed with all it started
            )
        except BaseException:
            for descriptor in (commands_write, replies_read):
                os.close(descriptor)
            self._lifeline.close()
            raise
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        self._commands: BinaryIO = os.fdopen(commands_write, "wb")
        self._replies = replies_read
        self._lines = LineReader(replies_read, lambda: self._process.poll() is not None)
        self._closed = False
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # a lock of its own: a full pipe must not hold up a kill
        self._killer: threading.Timer | None = None
        self._decode = msgspec.json.Decoder(FromChild).decode
        self._send(setup)

    @property
    def is_alive(self) -> bool:
        return self._killer is None and not self._closed and self._process.poll() is None

    def run(self, attempt: Attempt, clock: Clock) -> Ending:
        """Run an attempt and wait for its end, or the child's."""
        handler = attempt.handler
        module, name = handler.address()
        self._send(
            Run(
                attempt.claim,
                attempt.leased_until,
                handler.type,
                module,
                name,
                handler.whole,
                handler.options,
                attempt.result_limit,
            )
        )
        while (line := self._lines.read_line()) is not None:
            message = self._decode(line)
            if isinstance(message, Started):
                attempt.start(clock)
            elif isinstance(message, Overdue):
                self._send(Lease(attempt.leased_until))
            elif isinstance(message, JobCompleted):
                attempt.committed = True
            elif isinstance(message, Progress):
                if attempt.on_progress is not None:
                    attempt.on_progress(attempt, message.fraction, message.message)
            elif isinstance(message, End):
                attempt.children = message.children
                return message.ending
        self.close()
        if attempt.stop_reason is not None:
            return Committed() if attempt.committed else ending_of_stop(attempt)
        attempt.exception = ProcessDied(self._process.returncode)
        error = describe(attempt.exception)
        return Committed(error) if attempt.committed else Errored(error)

    def ask(self, reason: str) -> None:
        self._send(Ask(reason))

    def kill(self) -> None:
        """SIGTERM to the child and all it started, SIGKILL after the grace."""
        with self._lock:
            if self._killer is not None or self._closed:
                return
            self._killer = threading.Timer(KILL_AFTER, self._signal, (signal.SIGKILL,))
            self._killer.daemon = True
            self._killer.start()
        self._signal(signal.SIGTERM)

    def close(self) -> None:
        """End the child and all it started; its exit status is collected once."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        self._signal(signal.SIGKILL)
        if hasattr(os, "waitid"):
            # Until its status is collected, the process keeps its number, and with it the group's.
            with suppress(ChildProcessError):  # collected already
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._killer is not None:
            self._killer.cancel()
        with suppress(OSError):
            self._commands.close()
        os.close(self._replies)
        self._lifeline.close()

    def _send(self, message: object) -> None:
        with self._sending, suppress(OSError, ValueError):  # a dead child is found when its replies end
            send(self._commands, message)

    def _signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError, PermissionError):
            if self._process.returncode is None:
                os.killpg(self._process.pid, number)


def _main_program() -> tuple[str | None, str | None]:
    """How this process's main program can be imported again: its module name, or its file."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return spec.name, None
    file = getattr(main, "__file__", None)
    return None, os.path.abspath(file) if file else None
