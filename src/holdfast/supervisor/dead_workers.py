"""What has to be done in the database when a worker process has died, in a separate thread.

A locked or failing database must not keep the supervisor from handling signals and other deaths.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial

from holdfast import events as e
from holdfast.core.ids import new_id
from holdfast.errors import DatabaseReplaced, StoreError
from holdfast.queue import Queue
from holdfast.store.open import store_of
from holdfast.store.records import RESTARTING, StopRequest
from holdfast.supervisor.process import Notice
from holdfast.system.start_marks import remove_marks
from holdfast.worker.maintenance import count_loss, events_of_loss, reap
from holdfast.worker.statistics import Statistics

_BEAT = 1.0
_PAUSE = 0.25
_LAST_PATIENCE = 10.0


class DeadWorkers:
    """Frees the jobs of dead workers, and keeps their rows while they wait for a successor.

    The row tells that one will come, and it can be asked to stop like the worker itself.
    """

    def __init__(self, events: e.Events) -> None:
        self._events = events
        self._executor = ThreadPoolExecutor(1, "holdfast-dead-workers")
        self._queues: dict[str, Queue] = {}
        self._statistics = Statistics(new_id())
        self._next_beats: dict[str, float] = {}
        self._closing_at: float | None = None
        self.cut_short = 0
        """Jobs that were taken from workers that died while they were to stop."""
        self.asked_to_stop: set[str] = set()
        """Dead workers that were asked to stop before a successor came."""

    def free_jobs(self, worker: Notice, *, stopping: bool) -> None:
        """Give the jobs of a dead worker back. Its exit status was collected, so there is nobody to ask."""
        self._submit(partial(self._free, worker, stopping))

    def keep_row(self, worker: Notice) -> None:
        """Keep its row for now; to be called a few times a second."""
        worker_id = worker.worker_id or ""
        if time.monotonic() >= self._next_beats.get(worker_id, 0.0):
            self._next_beats[worker_id] = time.monotonic() + _BEAT
            self._submit(partial(self._stand_in_for, worker_id, worker.database))

    def remove_row(self, worker: Notice) -> None:
        """Remove its row; at worst, it is forgotten after a long silence."""
        worker_id = worker.worker_id or ""
        self._next_beats.pop(worker_id, None)
        self._submit(lambda: store_of(self._queue(worker.database)).remove_workers([worker_id]))

    def _submit(self, call: Callable[[], object]) -> None:
        with suppress(RuntimeError):  # no thread can be started: it stays in line until one can
            self._executor.submit(call)

    def close(self) -> None:
        """Finish the remaining work, within a time limit."""
        self._closing_at = time.monotonic() + _LAST_PATIENCE
        self._executor.shutdown()
        for queue in self._queues.values():
            queue.close()

    def _queue(self, database: str) -> Queue:
        if database not in self._queues:
            self._queues[database] = Queue(database)
        return self._queues[database]

    def _free(self, worker: Notice, stopping: bool) -> None:
        """Until it is done: the database may be in trouble, or still hold what the dead have left open."""
        worker_id, queue = worker.worker_id or "", self._queue(worker.database)
        lease_ends_at = math.inf
        while True:
            try:
                self._reap(worker_id, queue, stopping)
                if not store_of(queue).list_held(worker_id):
                    remove_marks(worker_id)
                    return
                lease_ends_at = min(lease_ends_at, time.monotonic() + queue.settings().lease_seconds)
            except DatabaseReplaced:
                queue.close()  # and open the one that is there now
            except StoreError:
                pass
            if time.monotonic() >= min(lease_ends_at, self._closing_at or math.inf):
                return  # their leases will run out
            time.sleep(_PAUSE)

    def _reap(self, worker_id: str, queue: Queue, stopping: bool) -> None:
        store = store_of(queue)
        with store.transaction():
            freed = reap(store, store.list_held(worker_id), queue.refresh_settings(), expired_only=False)
        now = store.now()
        for lost, status in freed:
            count_loss(self._statistics, lost.type, status, now)
        if freed:
            with suppress(StoreError):  # the next time, then
                store.write_statistics(self._statistics.portion())
                self._statistics.written(now)
        self.cut_short += len(freed) if stopping else 0
        for lost, status in freed:
            for event in events_of_loss(lost, status):
                self._events.emit(event)

    def _stand_in_for(self, worker_id: str, database: str) -> None:
        queue = self._queue(database)
        store_of(queue).heartbeat(
            worker_id, (), state=RESTARTING, lease_seconds=queue.settings().lease_seconds
        )
        if store_of(queue).get_stop_request(worker_id) is not StopRequest.NONE:
            self.asked_to_stop.add(worker_id)
