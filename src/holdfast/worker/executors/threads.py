"""Sync handlers: a thread for each, created when needed. Threads can't be killed, only asked to stop."""

from __future__ import annotations

import logging
import queue
import threading
from contextvars import Context

from holdfast.context import Attempt
from holdfast.core.lifecycle import Errored
from holdfast.events import LOGGER
from holdfast.store.protocol import Store
from holdfast.worker.executors import Executor
from holdfast.worker.run import Ending, Report, describe, run_here


class ThreadExecutor(Executor):
    """A pool of daemon threads that grows to the number of concurrent jobs."""

    def __init__(self, report: Report, store: Store, context: Context | None = None) -> None:
        super().__init__(report, store, context)
        self._inbox: queue.SimpleQueue[Attempt | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._idle = 0
        self._threads = 0

    def start(self, attempt: Attempt) -> None:
        with self._lock:
            if self._idle > 0:
                self._idle -= 1
            else:
                name = f"holdfast-handler-{self._threads + 1}"
                threading.Thread(target=self._work, name=name, daemon=True).start()
                self._threads += 1
        self._inbox.put(attempt)

    def interrupt(self, attempt: Attempt) -> bool:
        if attempt.on_interrupt is None:
            return False
        try:
            attempt.on_interrupt()
        except Exception:
            # The handler's own function, called by the loop that all jobs of this worker need.
            logging.getLogger(LOGGER).exception("on_interrupt of job %s failed", attempt.claim.id)
            return False
        return True

    def close(self) -> None:
        for _ in range(self._threads):
            self._inbox.put(None)

    def _work(self) -> None:
        try:
            while (attempt := self._inbox.get()) is not None:
                following: Attempt | None = attempt
                while following is not None:
                    following.start(self._store.now)
                    following = self._report(following, self._ending(following))
                with self._lock:
                    self._idle += 1
        finally:
            self._store.close_thread()

    def _run(self, attempt: Attempt) -> Ending:
        return run_here(attempt)

    def _ending(self, attempt: Attempt) -> Ending:
        try:
            return self._context.copy().run(self._run, attempt)  # what a handler sets there ends with it
        except BaseException as error:  # a mistake of ours must not cost the slot and hide the job
            return Errored(describe(error))
