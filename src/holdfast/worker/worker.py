"""A worker: the object around the dispatcher that applications start, pause and stop."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Any

from holdfast import worker as package
from holdfast.config import parse_setting
from holdfast.core.ids import new_id
from holdfast.core.job import check_type
from holdfast.errors import ConfigError, HoldfastError, shown
from holdfast.events import WorkerCrashed
from holdfast.store.scope import handler_of
from holdfast.worker.dispatcher import Dispatcher
from holdfast.worker.run import describe

if TYPE_CHECKING:
    from holdfast.queue import Queue


class Worker:
    """Runs a queue's jobs in this process.

    `concurrency` is the number of slots (the setting by default), `types` restricts what it serves,
    `batch_size` how much it claims at once. With `recycle` it stops when stuck handlers have used it up, for
    a supervisor to start a new process. With `drain` it stops when no job of its types is pending, running
    anywhere or waiting for a retry; paused types and jobs of a later time are not waited for.
    """

    def __init__(
        self,
        queue: Queue,
        *,
        concurrency: int | None = None,
        types: Collection[str] | None = None,
        batch_size: int | None = None,
        recycle: bool = False,
        drain: bool = False,
    ) -> None:
        if concurrency is not None:
            parse_setting("concurrency", concurrency)
        if batch_size is not None and not (type(batch_size) is int and batch_size > 0):
            raise ConfigError(f"batch_size must be a whole number from 1, not {shown(batch_size)}")
        if isinstance(types, str):
            raise ConfigError("types takes a list of types, not one text")
        self.id = new_id()
        self._queue = queue
        self._options: dict[str, Any] = {
            "concurrency": concurrency,
            "types": None if types is None else frozenset(check_type(type) for type in types),
            "batch_size": batch_size,
            "recycle": recycle,
            "drain": drain,
        }
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
        """Whether handlers that would not stop hold every slot, or all of a type: a new process is needed."""
        return self._dispatcher is not None and self._dispatcher.exhausted

    @property
    def is_paused(self) -> bool:
        return self._paused

    def start(self) -> Worker:
        """Work in the background; returns when the worker is up."""
        if package.in_handler_process:
            raise HoldfastError(
                "a worker can't be started where a handler's process imports your module",
                hint="put the call under `if __name__ == '__main__':`",
            )
        with self._lock:
            if self.is_running:
                raise HoldfastError("the worker is running already")
            self._failure = None
            self.id = new_id()  # a fresh name for each start: an old one may still be held by jobs
            self._dispatcher = Dispatcher(self._queue, self.id, **self._options)
            self._dispatcher.paused = self._paused
            self._thread = threading.Thread(
                target=self._work, args=(self._dispatcher,), name="holdfast-dispatcher"
            )
            self._thread.daemon = True
            self._queue.running_workers.add(self)
            self._thread.start()
        self._dispatcher.ready.wait()
        self._raise_failure()
        return self

    def stop(self, timeout: float | None = None) -> bool:
        """Stop claiming, let running jobs finish within `timeout` seconds (shutdown_timeout by default).

        What still runs then is stopped as far as it can be, and its job given back. Returns whether all
        could finish.
        """
        dispatcher, thread = self._dispatcher, self._thread
        if dispatcher is None or thread is None:
            return True
        dispatcher.stop(timeout)
        if self._is_own_thread():
            raise HoldfastError(
                "a subscriber can't wait for the end of the worker that calls it",
                hint="the worker is stopping; call stop() in another thread",
            )
        thread.join()
        self._raise_failure()
        return dispatcher.cut_short == 0

    def is_calling(self) -> bool:
        """Whether this code was called by the worker: a handler, or a subscriber to its events."""
        return handler_of.get() == self.id or self._is_own_thread()

    def ask_to_stop(self) -> None:
        """Stop in order, and do not wait for it."""
        if self._dispatcher is not None and self.is_running:
            self._dispatcher.stop()

    def wait_until_stopped(self) -> None:
        """Wait for its end, however it ends."""
        if self._thread is not None:
            self._thread.join()

    def pause(self) -> None:
        """Start no more jobs in this worker; running ones finish. The queue's own pause is for all."""
        self._set_paused(True)

    def resume(self) -> None:
        self._set_paused(False)

    def run(self) -> bool:
        """Work until SIGINT or SIGTERM. The first stops in order, the second at once.

        Returns whether all running jobs could finish.
        """
        signals: list[int] = []
        restore = self._handle_signals(signals)
        try:
            self.start()
            self._stop_for(signals)  # one may have come before there was anything to stop
            assert self._thread is not None
            assert self._dispatcher is not None
            while self._thread.is_alive():
                self._thread.join(1.0)
            self._raise_failure()
            return self._dispatcher.cut_short == 0
        finally:
            restore()

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
        return threading.current_thread() is self._thread or (
            self._dispatcher is not None and self._dispatcher.is_heartbeat_thread()
        )

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

    def _handle_signals(self, signals: list[int]) -> Callable[[], None]:
        """Install our handlers where that is possible; returns what puts the old ones back."""
        if threading.current_thread() is not threading.main_thread():
            return lambda: None

        def on_signal(number: int, _: object) -> None:
            signals.append(number)
            self._stop_for(signals)

        before = {number: signal.signal(number, on_signal) for number in (signal.SIGINT, signal.SIGTERM)}

        def restore() -> None:
            for number, handler in before.items():
                signal.signal(number, handler)

        return restore
