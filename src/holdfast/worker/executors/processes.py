"""Handlers that must be killable or are CPU-bound: warm child processes, each running one attempt at a time.

A worker thread waits for each running child, so to the rest of the worker a process handler is just a slow
handler. Children are new processes (`python -m …`, never forks), import the application, and find the handler
by name. They die with their worker: they notice when their pipe closes.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack, suppress
from typing import BinaryIO

import msgspec

from holdfast.config import Value
from holdfast.context import Attempt
from holdfast.core.clock import Clock
from holdfast.core.lifecycle import Errored, Released
from holdfast.errors import ProcessDied
from holdfast.store.protocol import Store
from holdfast.system.lifeline import PYTHON, start_program
from holdfast.system.process_group import KILL_AFTER, signal_group
from holdfast.worker.executors import wire
from holdfast.worker.executors.threads import ThreadExecutor
from holdfast.worker.run import Committed, Ending, Report, describe, ending_of_stop, ending_unstarted

START_ALLOWANCE = 60.0
"""Seconds a new child has to import the application before the attempt's own timeout begins."""

_SHORTAGES = {errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE}
"""Why no process can be started for now: there are too many, or too little memory or descriptors are left."""


class ProcessExecutor(ThreadExecutor):
    """Runs each attempt in a child, through a thread that waits for it.

    `on_shortage` is called when no child can be started for now.
    """

    def __init__(
        self,
        report: Report,
        store: Store,
        on_shortage: Callable[[], None],
        *,
        url: str,
        defaults: Mapping[str, Value],
    ) -> None:
        super().__init__(report, store)
        self._on_shortage = on_shortage
        self._setup = wire.Setup(url, defaults, list(sys.path), *_main_program())
        self._children = threading.Lock()
        self._idle_children: list[Child] = []
        self._closed = False

    def ask(self, attempt: Attempt) -> None:
        child = attempt.handle
        if child is not None and attempt.stop_reason is not None:
            child.send(wire.Ask(attempt.stop_reason))

    def interrupt(self, attempt: Attempt) -> bool:
        child = attempt.handle
        if child is not None:
            child.kill(attempt)
        return True  # one that has no child yet sees its stop_reason before it gets one

    def close(self) -> None:
        with self._children:
            self._closed = True
            idle, self._idle_children = self._idle_children, []
        for child in idle:
            child.close()
        super().close()

    def _run(self, attempt: Attempt) -> Ending:
        if attempt.claim.timeout is not None:
            attempt.deadline = attempt.started + START_ALLOWANCE + attempt.claim.timeout
        try:
            child = self._borrow()
        except OSError as error:
            if error.errno in _SHORTAGES:  # it has not started, and others may have a process to spare
                self._on_shortage()
                return Released()
            return Errored(f"the handler's process could not be started: {error}")
        child.serve(attempt)
        attempt.handle = child
        ending = ending_unstarted(attempt) or child.run(attempt, self._store.now)
        attempt.handle = None
        child.serve(None)
        if child.is_alive:
            self._give_back(child)
        else:
            child.close()
        return ending

    def _borrow(self) -> Child:
        with self._children:
            while self._idle_children:
                child = self._idle_children.pop()
                if child.is_alive:
                    return child
                child.close()
        return Child(self._setup)

    def _give_back(self, child: Child) -> None:
        with self._children:
            if not self._closed:
                self._idle_children.append(child)
                return
        child.close()


class Child:
    """A handler's process, seen from its worker."""

    def __init__(self, setup: wire.Setup) -> None:
        with ExitStack() as ours:  # closed again if it can't be started
            commands_read, commands_write = os.pipe()
            ours.callback(os.close, commands_write)
            try:
                replies_read, replies_write = os.pipe()
            except OSError:
                os.close(commands_read)
                raise
            ours.callback(os.close, replies_read)
            self._process, self._lifeline = start_program(
                [*PYTHON, "holdfast.worker.executors.child"], [commands_read, replies_write]
            )
            ours.pop_all()
        self._commands: BinaryIO = os.fdopen(commands_write, "wb")
        self._replies = replies_read
        self._lines = wire.LineReader(replies_read, lambda: self._process.poll() is not None)
        self._closed = False
        self._lock = threading.Lock()
        self._sending = threading.Lock()  # a lock of its own: a full pipe must not hold up a kill
        self._killer: threading.Timer | None = None
        self._attempt: Attempt | None = None
        self._decode = msgspec.json.Decoder(wire.FromChild).decode
        self.send(setup)

    @property
    def is_alive(self) -> bool:
        return self._killer is None and not self._closed and self._process.poll() is None

    def run(self, attempt: Attempt, clock: Clock) -> Ending:
        """Run an attempt and wait for its end, or the child's. It begins when the child has the handler."""
        handler, limit = attempt.handler, attempt.result_limit
        address = handler.address()
        self.send(wire.Run(attempt.claim, handler.type, *address, handler.whole, handler.options, limit))
        refusal: Ending | None = None
        while (line := self._lines.read_line()) is not None:
            message = self._decode(line)
            if isinstance(message, wire.Ready):
                attempt.start(clock)
                refusal = ending_unstarted(attempt)
                if refusal is None:
                    attempt.begin()
                self.send(wire.Go(attempt.leased_until if refusal is None else 0.0))
            elif isinstance(message, wire.JobCompleted):
                attempt.committed = True
            elif isinstance(message, wire.Progress):
                if attempt.on_progress is not None:
                    attempt.on_progress(attempt, message.fraction, message.message)
            elif isinstance(message, wire.End):
                attempt.children = message.children
                return refusal or message.ending
        self.close()
        if attempt.stop_reason is not None:
            return Committed() if attempt.committed else ending_of_stop(attempt)
        attempt.exception = ProcessDied(self._process.returncode)
        error = describe(attempt.exception)
        return Committed(error) if attempt.committed else Errored(error)

    def serve(self, attempt: Attempt | None) -> None:
        """From now on it belongs to this attempt, and `kill` spares it for any other."""
        with self._lock:
            self._attempt = attempt

    def kill(self, attempt: Attempt) -> None:
        """SIGTERM to the child of this attempt and all it started, SIGKILL after the grace."""
        with self._lock:
            if self._attempt is not attempt or self._killer is not None or self._closed:
                return
            self._killer = threading.Timer(KILL_AFTER, self._signal, (signal.SIGKILL,))
            self._killer.daemon = True
            try:
                self._killer.start()
            except RuntimeError:  # no more threads: nobody could end it after the grace
                self._signal(signal.SIGKILL)
                return
        self._signal(signal.SIGTERM)

    def close(self) -> None:
        """End the child and everything it started; its exit status is collected once."""
        with self._lock:
            closed, self._closed = self._closed, True
        if closed:
            return
        self._signal(signal.SIGKILL)
        if hasattr(os, "waitid"):
            # Until its status is collected, the process keeps its number, and with it the group's.
            with suppress(ChildProcessError):  # collected already
                os.waitid(os.P_PID, self._process.pid, os.WEXITED | os.WNOWAIT)
        signal_group(self._process.pid, signal.SIGKILL)
        self._process.wait()
        if self._killer is not None:
            self._killer.cancel()
        with suppress(OSError):
            self._commands.close()
        os.close(self._replies)
        self._lifeline.close()

    def send(self, message: object) -> None:
        with self._sending, suppress(OSError, ValueError):  # a dead child is found when its replies end
            wire.send(self._commands, message)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.returncode is None:
            signal_group(self._process.pid, number)


def _main_program() -> tuple[str | None, str | None]:
    """How this process's main program can be imported again: its module name, or its file."""
    main = sys.modules.get("__main__")
    spec = getattr(main, "__spec__", None)
    if spec is not None and spec.name:
        return spec.name, None
    file = getattr(main, "__file__", None)
    return None, os.path.abspath(file) if file else None
