"""Reconciliation in a server: one at a time, shared by everyone who requests it.

It runs in a thread of its own, not one of the backend's: it may take minutes, and a server that shuts down
does not wait for it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from datetime import datetime

from msgspec import Struct

from holdfast.core.clock import to_datetime
from holdfast.events import ReconciliationFailed
from holdfast.queue import Queue
from holdfast.reconcile import Report, last_report, reconcile, require_checkable
from holdfast.web.errors import Refused, unavailable

_LAST_SECONDS = 1.0
"""How long a run that was told to end may take to finish its current check."""


class Asked(Struct, frozen=True):
    """What a reconciliation is about. Two that are about the same may share one."""

    types: frozenset[str] | None = None
    on_start: bool = False


class Run:
    """A reconciliation in progress: how far it is, and finally its outcome."""

    def __init__(self, asked: Asked, started_at: datetime) -> None:
        self.asked = asked
        self.started_at = started_at
        self.done = 0
        self.total = 0
        self.outcome: Future[Report] = Future()

    async def wait(self) -> Report:
        """Wait for the report, or raise what went wrong. Cancelling the wait does not stop the run."""
        return await asyncio.shield(asyncio.wrap_future(self.outcome))

    async def wait_briefly(self, seconds: float) -> bool:
        """Whether it ends within this time, whatever the outcome."""
        with suppress(Exception):
            await asyncio.wait_for(self.wait(), seconds)
        return self.outcome.done()


class Failure(Struct, frozen=True):
    """Why the last reconciliation here has no report."""

    at: datetime
    text: str


class Reconciler:
    """One for each application, in its backend."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_closed = False
        self.running: Run | None = None
        self.failure: Failure | None = None
        self.last: Report | None = None

    def open(self) -> None:
        """Accept requests, also after a shutdown."""
        self._is_closed = False

    async def reconcile(
        self, types: Iterable[str] | None, has_left: Callable[[], Awaitable[bool]]
    ) -> Report | None:
        """The report of a reconciliation of these types, or of all.

        If one of the same is under way, that one's; after another its own. None if the client has left before
        its own could begin.
        """
        asked = Asked(None if types is None else frozenset(types))
        require_checkable(self._queue, sorted(asked.types or ()))  # before anybody waits for their turn
        while True:
            run = self.start(asked)
            if run.asked == asked:
                return await run.wait()
            with suppress(Exception):  # that is for whoever asked for it
                await run.wait()
            if await has_left():
                return None

    def start(self, asked: Asked) -> Run:
        """Begin a reconciliation, unless one is under way: then that one, whatever it is about."""
        with self._lock:
            if self._is_closed:
                raise _stopping()
            if self.running is None:
                run = Run(asked, to_datetime(self._queue.clock()))
                thread = threading.Thread(
                    target=self._work, args=(run,), name="holdfast-reconcile", daemon=True
                )
                thread.start()  # it waits for the lock before it ends
                self.running, self._thread = run, thread
            return self.running

    def close(self) -> None:
        """Accept no more requests and release those that wait. A running one ends after the current check."""
        with self._lock:
            self._is_closed = True
            run, self.running = self.running, None
            if run is not None:
                run.outcome.set_exception(_stopping())

    def join(self) -> None:
        """Wait a moment for its thread, which has been told to end."""
        if self._thread is not None:
            self._thread.join(_LAST_SECONDS)

    def _work(self, run: Run) -> None:
        def progress(done: int, total: int) -> None:
            run.done, run.total = done, total
            if run.outcome.done():
                raise _Ended

        asked = run.asked
        types = None if asked.types is None else sorted(asked.types)
        outcome: Report | Exception
        try:
            outcome = reconcile(self._queue, types=types, on_start=asked.on_start, progress=progress)
        except Exception as error:
            outcome = error
        self._queue.close_thread()
        self._finish(run, outcome)

    def _finish(self, run: Run, outcome: Report | Exception) -> None:
        failure = None
        if isinstance(outcome, Exception) and not run.outcome.done():
            failure = Failure(run.started_at, f"{type(outcome).__name__}: {outcome}")
            self._queue.events.emit(ReconciliationFailed(error=failure.text))
        with self._lock:
            if run.outcome.done():
                return  # the server stops; nobody waits
            self.running, self.failure = None, failure
            if isinstance(outcome, Report):
                self.last = outcome
                run.outcome.set_result(outcome)
            else:
                run.outcome.set_exception(outcome)


def latest_report(queue: Queue, own: Report | None) -> Report | None:
    """The last report: the one that is kept, or a later one of this server that could not be."""
    kept = last_report(queue)
    return own if own and (kept is None or kept.finished_at < own.finished_at) else kept


class _Ended(Exception):
    """The run was told to end."""


def _stopping() -> Refused:
    return unavailable("stopping", "the server is shutting down; the reconciliation was interrupted")
