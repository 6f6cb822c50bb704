"""The program of a handler's process: reads attempts from a pipe, runs them, reports each outcome."""

from __future__ import annotations

import importlib
import os
import queue as queues
import runpy
import signal
import sys
import threading
from contextvars import copy_context
from typing import Any, BinaryIO

import msgspec

from holdfast import worker
from holdfast.context import Attempt
from holdfast.core.clock import lease_clock
from holdfast.core.lifecycle import Errored, Released
from holdfast.handlers.handler import Handler
from holdfast.queue import Queue
from holdfast.queue.function import JobFunction
from holdfast.system.lifeline import KERNEL_KILLS, kill_group_at_end
from holdfast.worker.executors import wire
from holdfast.worker.run import Ending, describe, run_here

MAIN = "__holdfast_main__"
"""The name under which the worker's main program is run here, so that its `if __name__` part does not."""


_KEPT = 1.0
"""Seconds for which a process without work keeps its connections."""


class ChildProgram:
    """Runs attempts in the main thread; a second thread reads the pipe and ends everything with it."""

    def __init__(self, commands: BinaryIO, replies: BinaryIO) -> None:
        self._commands = commands
        self._replies = replies
        self._lock = threading.Lock()
        self._runs: queues.SimpleQueue[wire.Run] = queues.SimpleQueue()
        self._answers: queues.SimpleQueue[wire.Go] = queues.SimpleQueue()
        self._attempt: Attempt | None = None
        self._asked: str | None = None
        self._main: dict[str, Any] | None = None
        self._setup: wire.Setup | None = None
        self._queue: Queue | None = None

    def serve(self) -> None:
        threading.Thread(target=self._read, name="holdfast-commands", daemon=True).start()
        while True:
            try:
                run = self._runs.get(timeout=_KEPT)
            except queues.Empty:
                self._close_idle()
                run = self._runs.get()
            self._run(run)

    def _close_idle(self) -> None:
        """Close idle connections, so that other processes can use them: the server may have none to spare."""
        if self._queue is not None:
            self._queue.close_idle()

    def _read(self) -> None:
        decode = msgspec.json.Decoder(wire.ToChild).decode
        for line in self._commands:
            if not line.endswith(b"\n"):
                break  # the worker died in the middle of it
            message = decode(line)
            if isinstance(message, wire.Setup):
                self._setup = message
                sys.path[:] = message.path
            elif isinstance(message, wire.Run):
                self._runs.put(message)
            elif isinstance(message, wire.Go):
                self._answers.put(message)
            elif isinstance(message, wire.Ask):
                self._asked = message.reason
                if self._attempt is not None:
                    self._attempt.stop_reason = message.reason
        _die_with_the_worker()

    def _run(self, message: wire.Run) -> None:
        children: list[Any] = []
        try:
            handler, queue = self._find(message)
        except BaseException as error:
            ending: Ending = Errored(f"the handler could not be imported: {describe(error)}")
        else:
            attempt = Attempt(message.claim, handler, queue, max_result_bytes=message.max_result_bytes)
            attempt.on_progress = self._progress
            attempt.on_wait = self._close_idle
            attempt.on_commit = lambda: self._reply(wire.JobCompleted())
            self._attempt = attempt
            attempt.stop_reason = self._asked  # it may have come while the handler was imported
            self._reply(wire.Ready())
            may_start = lease_clock() < self._answers.get().until
            ending = copy_context().run(run_here, attempt) if may_start else Released()
            self._attempt = self._asked = None
            children = attempt.children
        try:
            self._reply(wire.End(ending, children))
        except TypeError as error:  # it holds what can't be sent
            self._reply(wire.End(Errored(describe(error)), []))

    def _progress(self, _: Attempt, fraction: float, message: str | None) -> None:
        self._reply(wire.Progress(fraction, message))

    def _reply(self, message: object) -> None:
        with self._lock:
            try:
                wire.send(self._replies, message)
            except BrokenPipeError:
                _die_with_the_worker()

    def _find(self, message: wire.Run) -> tuple[Handler, Queue]:
        """The handler, and the queue it belongs to, pointed at the worker's database."""
        assert self._setup is not None
        found = self._resolve(message.module, message.name)
        if isinstance(found, JobFunction):
            queue = found.queue
            if queue is not self._queue:
                queue.close()
                queue.url = self._setup.url
                queue.defaults = dict(self._setup.defaults)
                self._queue = queue
            return found.handler, queue
        if self._queue is None:
            self._queue = Queue(self._setup.url)
            self._queue.defaults = dict(self._setup.defaults)
        return _registered(self._queue, found, message), self._queue

    def _resolve(self, module: str, name: str) -> Any:
        first, *rest = name.split(".")
        if module == "__main__":
            found = self._main_namespace()[first]
        else:
            found = getattr(importlib.import_module(module), first)
        for part in rest:
            found = getattr(found, part)
        return found

    def _main_namespace(self) -> dict[str, Any]:
        if self._main is None:
            assert self._setup is not None
            if self._setup.main_module is not None:
                self._main = runpy.run_module(self._setup.main_module, run_name=MAIN)
            elif self._setup.main_file is not None:
                self._main = runpy.run_path(self._setup.main_file, run_name=MAIN)
            else:
                raise ImportError("the worker's main program has no file to import")
        return self._main


def _die_with_the_worker() -> None:
    """The worker is gone, so nobody would ever stop this process or what its handler started: exit."""
    os.killpg(0, signal.SIGKILL)


def _registered(queue: Queue, function: Any, message: wire.Run) -> Handler:
    """The handler of a plain function, as the worker's program has registered it."""
    known = queue.registry.find(message.handler_type)
    if known is not None:
        if known.function is function:
            return known
        queue.unregister(message.handler_type)
    handler = Handler(
        message.handler_type, function, whole=message.whole, executor="process", options=message.options
    )
    queue.registry.add(handler)
    return handler


def main() -> None:
    worker.in_handler_process = True
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    commands, replies, lifeline = (int(argument) for argument in sys.argv[1:4])
    for descriptor in (commands, replies, lifeline):
        os.set_inheritable(descriptor, False)
    if KERNEL_KILLS:
        # The reading thread would do it too, but not while a handler holds the interpreter lock.
        kill_group_at_end(lifeline, os.getpgrp())
    ChildProgram(os.fdopen(commands, "rb"), os.fdopen(replies, "wb")).serve()


if __name__ == "__main__":
    main()
