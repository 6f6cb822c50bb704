"""Threads that run blocking calls for coroutines."""

from __future__ import annotations

import os
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")

_LINGER = 0.25
"""Seconds that a thread waits for the next call before it ends; None for as long as it is not closed."""

_Call = tuple["Future[Any]", Callable[[], Any]]


class Threads:
    """Makes calls in threads of its own, at most `most` at a time; the others wait in line.

    Not asyncio's executor, which handlers may fill: a coroutine would wait for a thread that waits for the
    coroutine. They are daemons, so that none that waits for a database keeps the process from ending.
    """

    def __init__(self, name: str, most: int, *, linger: float | None = _LINGER) -> None:
        self._name = name
        self._most = most
        self._linger = linger
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._calls: deque[_Call] = deque()
        self._threads = self._idle = 0

    async def run(self, call: Callable[[], T]) -> T:
        """What the call returns. It belongs to the code that awaits it: to its ctx.transaction(), say."""
        import asyncio
        from contextvars import copy_context

        return await asyncio.wrap_future(self.submit(partial(copy_context().run, call)))

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Make the call as soon as a thread is free. Raises RuntimeError if there is none and can be none."""
        if self._pid != os.getpid():
            self._reset()  # a forked child has none of the threads
        from concurrent.futures import Future

        future: Future[T] = Future()
        with self._changed:
            self._calls.append((future, call))
            if len(self._calls) > self._idle and self._threads < self._most:
                self._start_thread()
            self._changed.notify()
        return future

    def close(self) -> None:
        """Let each thread end as soon as there is nothing left to do."""
        with self._changed:
            self._linger = 0.0
            self._changed.notify_all()

    def _start_thread(self) -> None:
        self._threads += 1
        try:
            threading.Thread(target=self._work, name=self._name, daemon=True).start()
        except RuntimeError:
            self._threads -= 1
            if not self._threads:
                self._calls.pop()
                raise

    def _work(self) -> None:
        while (waiting := self._next()) is not None:
            future, call = waiting
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(call())
                except BaseException as error:
                    future.set_exception(error)
            del waiting, future, call

    def _next(self) -> _Call | None:
        with self._changed:
            self._idle += 1
            self._changed.wait_for(lambda: self._calls or self._linger == 0, self._linger)
            self._idle -= 1
            if self._calls:
                return self._calls.popleft()
            self._threads -= 1
            return None
