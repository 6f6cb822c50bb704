"""`tq`: the queue in one chained line, over the same engine.

tq.init("sqlite:///app.db")
tq("crawl").set_worker(handler).set_worker_count(3)
tq("crawl").add({"url": "https://example.com/1"}).add({"url": "https://example.com/2"})
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Unpack

from msgspec import Struct

from holdfast.core import check
from holdfast.core.payload import PayloadSpec, encode_payload
from holdfast.durations import Duration
from holdfast.errors import ConfigError
from holdfast.queue import Queue

if TYPE_CHECKING:
    from holdfast.handlers.options import EnqueueOptions, HandlerOptions
    from holdfast.worker import Worker

_START_PAUSE = 0.05


class TaskType(Struct, frozen=True):
    """One job type. Every method returns the same object, for chaining."""

    _owner: TaskQueue
    _type: str
    _payload_type: Any

    def add(self, payload: object = None, **options: Unpack[EnqueueOptions]) -> TaskType:
        """Enqueue a job.

        Options: id, priority, group, max_attempts, timeout, delay, run_at, key, key_for.
        """
        queue = self._owner.queue
        if self._payload_type is not None:
            limit = queue.settings().get("max_payload_bytes", self._type)
            PayloadSpec.of_whole(self._payload_type).bind(encode_payload(payload, limit)[0])
        queue.enqueue(self._type, payload, **options)
        return self

    def set_worker(self, handler: Callable[..., Any]) -> TaskType:
        """Run the jobs of this type with `handler(payload)`; the first call starts the background worker."""
        self._owner.queue.register(self._type, handler, payload_type=self._payload_type)
        self._owner.handler_added()
        return self

    def set_worker_count(self, count: int) -> TaskType:
        """Set how many jobs of this type run at a time in this process."""
        return self._declare(concurrency=count)

    def set_rate_limit(self, tasks_per_second: float) -> TaskType:
        """Limit how many jobs of this type start per second, across all processes; 0 means unlimited."""
        return self._declare(rate_limit=tasks_per_second)

    def set_timeout(self, seconds: Duration) -> TaskType:
        """Limit how long an attempt may run."""
        return self._declare(timeout=seconds)

    def _declare(self, **options: Unpack[HandlerOptions]) -> TaskType:
        self._owner.queue.registry.declare(self._type, **options)
        return self


class TaskQueue:
    """The object `tq`. It creates its Queue on first use, or with `init`."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._queue: Queue | None = None
        self._worker: Worker | None = None
        self._starting: threading.Timer | None = None
        self._enable_worker = True
        self._batch_size: int | None = None

    def init(
        self,
        database: str | None = None,
        *,
        poll_interval: Duration = 1.0,
        batch_size: int | None = None,
        task_timeout: Duration = 300,
        enable_worker: bool = True,
    ) -> Queue:
        """Choose the database and the worker's options. Call it first. `task_timeout` is the lease."""
        with self._lock:
            if self._queue is not None:
                raise ConfigError(
                    "tq.init() must be called first, and only once", hint="call tq.stop() to start over"
                )
            self._queue = Queue(
                database, defaults={"poll_interval": poll_interval, "lease_seconds": task_timeout}
            )
            self._batch_size = batch_size
            self._enable_worker = enable_worker
            return self._queue

    def __call__(self, type: str, payload_type: Any = None) -> TaskType:
        """The jobs of a type, whose payloads are checked against `payload_type` if one is given."""
        return TaskType(self, type, payload_type)

    @property
    def queue(self) -> Queue:
        """The Queue behind `tq`."""
        with self._lock:
            if self._queue is None:
                self.init()
            assert self._queue is not None
            return self._queue

    def start(self) -> None:
        """Start the background worker, if it is not running yet."""
        with self._lock:
            self._cancel_start()
            if self._worker is None or not self._worker.is_running:
                self._worker = self.queue.worker(batch_size=self._batch_size)
                self._worker.start()
                atexit.register(self.stop)

    def handler_added(self) -> None:
        """Start the background worker shortly: the rest of the chain may still set its limits."""
        with self._lock:
            if self._enable_worker and self._starting is None and self._worker is None:
                self._starting = threading.Timer(_START_PAUSE, self.start)
                self._starting.daemon = True
                self._starting.start()
                atexit.register(self.stop)

    def _cancel_start(self) -> None:
        if self._starting is not None:
            self._starting.cancel()
            self._starting = None

    def pause(self) -> None:
        """Pause the queue on every worker. Running jobs finish."""
        self.queue.pause()

    def resume(self) -> None:
        self.queue.resume()

    def stats(self) -> dict[str, Any]:
        """Job counts by state, in total and by type, and the number of workers."""
        return self.queue.stats()

    def stop(self, timeout: Duration | None = None) -> None:
        """Let running jobs finish, stop the worker and close the queue."""
        check.optional_duration("timeout", timeout)  # before anything is stopped
        with self._lock:
            self._cancel_start()
            worker, queue = self._worker, self._queue
            self._worker = self._queue = None
        atexit.unregister(self.stop)
        if worker is not None:
            worker.stop(timeout)
        if queue is not None:
            queue.close()


tq = TaskQueue()
