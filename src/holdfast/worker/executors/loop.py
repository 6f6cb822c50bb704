"""Async handlers: tasks on one event loop, in its own thread. A cancelled task really ends."""

from __future__ import annotations

import asyncio
import logging
import threading
from contextvars import Context

from holdfast.context import Attempt
from holdfast.events import LOGGER
from holdfast.store.protocol import Store
from holdfast.worker.executors import Executor
from holdfast.worker.run import Ending, Report, begin_call, ending_of_error, ending_of_value


class LoopExecutor(Executor):
    """An event loop that is started with the first async job."""

    def __init__(self, report: Report, store: Store, context: Context | None = None) -> None:
        super().__init__(report, store, context)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._closing = False
        self._lock = threading.Lock()

    def start(self, attempt: Attempt) -> None:
        with self._lock:  # handlers' threads start attempts too
            if self._loop is None:
                loop = asyncio.new_event_loop()
                thread = threading.Thread(
                    target=self._run_loop, args=(loop,), name="holdfast-loop", daemon=True
                )
                try:
                    thread.start()
                except RuntimeError:  # no thread can be started
                    loop.close()
                    raise
                self._loop, self._thread = loop, thread
        self._loop.call_soon_threadsafe(self._spawn, attempt)

    def interrupt(self, attempt: Attempt) -> bool:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._cancel, attempt)
        return True

    def close(self) -> None:
        if self._loop is not None and self._thread is not None:
            self._closing = True
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join(1.0)  # a handler that blocks the loop is left behind, as a daemon

    def _spawn(self, attempt: Attempt) -> None:
        # By itself a task would take over the context of the job whose end has started it.
        context = self._context.copy()
        attempt.handle = asyncio.get_running_loop().create_task(self._run(attempt), context=context)

    def _cancel(self, attempt: Attempt) -> None:
        # A task that is cancelled before its first step would never report; this one looks for itself.
        if attempt.handle is not None and attempt.started:
            attempt.handle.cancel()

    async def _run(self, attempt: Attempt) -> None:
        attempt.start(self._store.now)
        following = self._report(attempt, await self._ending(attempt))
        if following is not None:
            self._spawn(following)

    async def _ending(self, attempt: Attempt) -> Ending:
        coroutine = begin_call(attempt)
        if isinstance(coroutine, Ending):
            return coroutine
        try:
            return ending_of_value(attempt, await coroutine)
        except BaseException as error:
            return ending_of_error(attempt, error)

    def _run_loop(self, loop: asyncio.AbstractEventLoop) -> None:
        asyncio.set_event_loop(loop)
        try:
            while not self._closing:
                try:
                    loop.run_forever()
                except (SystemExit, KeyboardInterrupt):
                    # Raised by a task of a handler's own, these end the loop; the other jobs go on.
                    logging.getLogger(LOGGER).exception("a task started by a handler tried to exit")
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.run_until_complete(loop.shutdown_default_executor())
            loop.close()
            self._store.close_thread()
