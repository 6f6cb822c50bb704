"""`tq`: the queue in one chained line, over the same engine.

tq.init("sqlite:///app.db")
tq("crawl").set_worker(handler).set_worker_count(3)
tq("crawl").add({"url": "https://example.com/1"}).add({"url": "https://example.com/2"})
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from holdfast.core.payload import PayloadSpec, decode, encode_payload
from holdfast.errors import ConfigError
from holdfast.queue import Queue

if TYPE_CHECKING:
    from holdfast.worker import Worker

_START_PAUSE = 0.05


class TaskType:
    """One type of jobs. Every method returns it again."""

    def __init__(self, owner: TaskQueue, type: str, payload_type: Any) -> None:
        self._owner = owner
        self._type = type
        self._payload_type = payload_type

    def add(self, payload: object = None, **options: Any) -> TaskType:
        """Enqueue a job. Options: id, priority, max_attempts, timeout, delay, run_at, key, key_for."""
        queue = self._owner.queue
        if self._payload_type is not None:
            limit = queue.settings().get("max_payload_bytes", self._type)
            PayloadSpec.of_whole(self._payload_type).bind(decode(encode_payload(payload, limit)))
        queue.enqueue(self._type, payload, **options)
        return self

    def set_worker(self, handler: Callable[..., Any]) -> TaskType:
        """Let `handler(payload)` run the jobs of this type; the first call starts the background worker."""
        self._owner.queue.register(self._type, handler, payload_type=self._payload_type)
        self._owner.handler_added()
        return self

    def set_worker_count(self, count: int) -> TaskType:
        """How many jobs of this type run at a time in this process."""
        return self._declare(concurrency=count)

    def set_rate_limit(self, tasks_per_second: float) -> TaskType:
        """How many jobs of this type start in a second, over all processes; 0 is unlimited."""
        return self._declare(rate_limit=tasks_per_second)

    def set_timeout(self, seconds: float) -> TaskType:
        """How long an attempt may run."""
        return self._declare(timeout=seconds)

    def _declare(self, **options: Any) -> TaskType:
        self._owner.queue.registry.declare(self._type, **options)
        return self


class TaskQueue:
    """The object `tq`. It makes its Queue when it is first needed, or with `init`."""

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
        poll_interval: float = 1.0,
        batch_size: int | None = None,
        task_timeout: float = 300,
        enable_worker: bool = True,
    ) -> Queue:
        """Choose the database and the worker's options, before anything else. `task_timeout` is the lease."""
        with self._lock:
            if self._queue is not None:
                raise ConfigError("tq.init() comes first, once", hint="tq.stop() lets you begin anew")
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
        """The queue behind it all."""
        with self._lock:
            if self._queue is None:
                self.init()
            assert self._queue is not None
            return self._queue

    def start(self) -> None:
        """Start the background worker, if it does not run yet."""
        with self._lock:
            self._cancel_start()
            if self._worker is None or not self._worker.is_running:
                self._worker = self.queue.worker(batch_size=self._batch_size)
                self._worker.start()
                atexit.register(self.stop)

    def handler_added(self) -> None:
        """Start the background worker in a moment: the chain may go on to say with which limits."""
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
        """Let no job start, over all processes."""
        self.queue.pause()

    def resume(self) -> None:
        self.queue.resume()

    def stats(self) -> dict[str, Any]:
        """Jobs by state, in all and by type, and how many workers there are."""
        return self.queue.stats()

    def stop(self, timeout: float | None = None) -> None:
        """Let running jobs finish, stop the worker and close the queue."""
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
