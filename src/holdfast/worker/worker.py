"""A worker: the object around the dispatcher that applications start, pause and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self, Unpack

from msgspec.structs import replace

from holdfast import worker as package
from holdfast.config import parse_setting
from holdfast.core import check
from holdfast.core.ids import new_id
from holdfast.core.job import check_type
from holdfast.durations import Duration
from holdfast.errors import ConfigError, HoldfastError
from holdfast.events import WorkerCrashed
from holdfast.store.scope import handler_of
from holdfast.text import shown
from holdfast.worker.dispatcher import Dispatcher
from holdfast.worker.following import Options
from holdfast.worker.run import describe

if TYPE_CHECKING:
    from holdfast.handlers.options import WorkerOptions
    from holdfast.queue import Queue


class Worker:
    """Runs a queue's jobs in this process; as a context manager, for as long as the block lasts.

    `concurrency` is the number of slots (the setting by default), `types` restricts what it serves,
    `batch_size` how many jobs it claims at once. With `recycle`, it stops when stuck handlers leave it no
    usable slots, so that a supervisor can start a new process. With `drain`, it stops when no job of its
    types is pending, running anywhere or waiting for a retry; paused types and jobs scheduled for later
    don't count.
    """

    def __init__(self, queue: Queue, **options: Unpack[WorkerOptions]) -> None:
        given = Options(**options)
        types, batch_size = given.types, given.batch_size
        concurrency: Any = given.concurrency
        if concurrency is not None:
            _, concurrency = parse_setting("concurrency", concurrency)
        if batch_size is not None and not (type(batch_size) is int and batch_size > 0):
            raise ConfigError(f"batch_size must be a whole number of at least 1, not {shown(batch_size)}")
        self.id = new_id()
        self.on_registered: Callable[[], None] = lambda: None
        """Called before anybody else learns that it has started: its supervisor must know it first."""
        self._queue = queue
        served = None if types is None else frozenset(map(check_type, check.items("types", types, "types")))
        self._options = replace(given, concurrency=concurrency, types=served)
        self._lock = threading.Lock()
        self._dispatcher: Dispatcher | None = None
        self._thread: threading.Thread | None = None
        self._failure: BaseException | None = None
        self._paused = False

    @property
    def is_running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    @property
    def is_exhausted(self) -> bool:
        """Whether stuck handlers hold every slot, or all slots of a type: a new process is needed."""
        return self._dispatcher is not None and self._dispatcher.is_exhausted

    @property
    def is_paused(self) -> bool:
        return self._paused

    def start(self) -> Self:
        """Work in the background; returns once the worker is running."""
        if package.in_handler_process:
            raise HoldfastError(
                "a worker can't be started while a handler's process imports your module",
                hint="put the call under `if __name__ == '__main__':`",
            )
        with self._lock:
            if self.is_running:
                raise HoldfastError("the worker is already running")
            self._failure = None
            self.id = new_id()  # a fresh name for each start: an old one may still be held by jobs
            self._dispatcher = Dispatcher(self._queue, self.id, self._options)
            self._dispatcher.on_registered = self.on_registered
            self._dispatcher.paused = self._paused
            self._thread = threading.Thread(
                target=self._work, args=(self._dispatcher,), name="holdfast-dispatcher", daemon=True
            )
            self._queue.running_workers.append(self)
            try:
                self._thread.start()
            except RuntimeError:  # no more threads
                self._queue.running_workers.remove(self)
                self._dispatcher.close()
                self._dispatcher = self._thread = None
                raise
        self._dispatcher.ready.wait()
        self._raise_failure()
        return self

    def stop(self, timeout: Duration | None = None) -> bool:
        """Stop claiming, and let running jobs finish within `timeout` (shutdown_timeout by default).

        After that, handlers are stopped where possible, and their jobs released. Returns whether all jobs
        could finish.
        """
        seconds = check.optional_duration("timeout", timeout)
        dispatcher, thread = self._dispatcher, self._thread
        if dispatcher is None or thread is None:
            return True
        dispatcher.stop(seconds)
        if self._is_own_thread():
            raise HoldfastError(
                "a subscriber can't wait for the worker that calls it to stop",
                hint="the worker is stopping; call stop() in another thread",
            )
        thread.join()
        self._raise_failure()
        return dispatcher.cut_short == 0

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            self.stop()
        except Exception:
            if kind is None:  # else what the block raised is what its caller should see
                raise

    def is_calling(self) -> bool:
        """Whether this code was called by the worker: a handler, or a subscriber to its events."""
        return handler_of.get() == self.id or self._is_own_thread()

    def ask_to_stop(self) -> None:
        """Shut down gracefully, without waiting for it."""
        if self._dispatcher is not None and self.is_running:
            self._dispatcher.stop()

    def wait_until_stopped(self) -> None:
        """Wait until it has ended, however it ended."""
        if self._thread is not None:
            self._thread.join()

    def pause(self) -> None:
        """Start no more jobs in this worker; running ones finish. To pause every worker, pause the queue."""
        self._set_paused(True)

    def resume(self) -> None:
        self._set_paused(False)

    def run(self) -> bool:
        """Work until SIGINT or SIGTERM: the first shuts down gracefully, the second at once.

        Returns whether all running jobs could finish.
        """
        with self._signals() as signals:
            self.start()
            self._stop_for(signals)  # one may have come before there was anything to stop
            assert self._thread is not None
            assert self._dispatcher is not None
            while self._thread.is_alive():
                self._thread.join(1.0)
            self._raise_failure()
            return self._dispatcher.cut_short == 0

    def _work(self, dispatcher: Dispatcher) -> None:
        try:
            dispatcher.run()
        except BaseException as error:
            self._failure = error
            self._queue.events.emit(WorkerCrashed(worker_id=self.id, error=describe(error), exception=error))
        finally:
            self._queue.running_workers.remove(self)
            dispatcher.ready.set()

    def _is_own_thread(self) -> bool:
        """Whether its end waits for the end of this thread: that of its loop, or of its heartbeat."""
        heartbeat = None if self._dispatcher is None else self._dispatcher.heartbeat.thread
        return threading.current_thread() in (self._thread, heartbeat)

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def _set_paused(self, paused: bool) -> None:
        if paused != self._paused:
            self._paused = paused
            if self._dispatcher is not None and self.is_running:
                self._dispatcher.set_paused(paused)

    def _stop_for(self, signals: list[int]) -> None:
        if signals and self._dispatcher is not None:
            self._dispatcher.stop(None if len(signals) == 1 else 0.0)

    @contextmanager
    def _signals(self) -> Iterator[list[int]]:
        """Stop for signals, where we can have them; gives those that have come."""
        signals: list[int] = []

        def on_signal(number: int, _: object) -> None:
            signals.append(number)
            self._stop_for(signals)

        is_main = threading.current_thread() is threading.main_thread()
        ours = (signal.SIGINT, signal.SIGTERM) if is_main else ()
        before = {number: signal.signal(number, on_signal) for number in ours}
        try:
            yield signals
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
