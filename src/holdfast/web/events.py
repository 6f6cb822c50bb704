"""Live events: one thread watches the database for all who listen, and tells each what is new to it.

Whoever listens is never sent more than the present state: what it has not read yet is replaced, not queued.
So a slow reader costs no memory, and after a gap it has what it needs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import Any

from msgspec import Struct

from holdfast.core.clock import SECOND
from holdfast.errors import StoreError
from holdfast.events import LOGGER
from holdfast.observe import shapes
from holdfast.observe.overview import rates
from holdfast.queue import Queue
from holdfast.store.protocol import Watch
from holdfast.web.answer import json_bytes
from holdfast.web.errors import Refused
from holdfast.web.limits import most_connections

MOST_LISTENERS = 200
PAGE = 50
_PAUSE = 0.25
"""Seconds between two rounds: at most four a second."""

_LOOK = 1.0
"""Seconds until a round without any change: rates fall by themselves."""

_KEEP_ALIVE = 15.0
_MINUTE = 60 * SECOND


class Interest(Struct, frozen=True):
    """Which jobs a listener follows: some by their ids, or the first page of a filter."""

    ids: tuple[str, ...] = ()
    statuses: tuple[str, ...] = ()
    type: str | None = None
    limit: int = PAGE


class Listener:
    """One client: what it has been told, and what waits to be sent."""

    def __init__(self, interest: Interest, loop: asyncio.AbstractEventLoop) -> None:
        self.interest = interest
        self._loop = loop
        self._told_counts: Any = None
        self._told_tasks: dict[str, Any] = {}
        self._told_ids: list[str] | None = None
        # Used by the event loop alone.
        self._counts: bytes | None = None
        self._tasks: dict[str, Any] = {}
        self._ids: list[str] | None = None
        self._news = asyncio.Event()
        self._ended = False

    def tell(self, counts: dict[str, Any], tasks: Sequence[dict[str, Any]]) -> None:
        """The present state, from the watching thread; only what differs from the last one is passed on."""
        new_counts = None if counts == self._told_counts else json_bytes(counts)
        changed = {task["id"]: task for task in tasks if self._told_tasks.get(task["id"]) != task}
        new_ids = [task["id"] for task in tasks]
        ids = new_ids if changed or new_ids != self._told_ids else None
        self._told_counts, self._told_ids = counts, new_ids
        self._told_tasks = {task["id"]: task for task in tasks}
        if new_counts is not None or ids is not None:
            self._call(self._offer, new_counts, changed, ids)

    def end(self) -> None:
        self._call(self._finish)

    def _call(self, function: Any, *args: Any) -> None:
        with suppress(RuntimeError):  # its loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, *args)

    def _offer(self, counts: bytes | None, changed: dict[str, Any], ids: list[str] | None) -> None:
        self._counts = counts or self._counts
        if ids is not None:
            self._ids = ids
            self._tasks = {id: task for id, task in (self._tasks | changed).items() if id in set(ids)}
        self._news.set()

    def _finish(self) -> None:
        self._ended = True
        self._news.set()

    async def messages(self) -> AsyncIterator[bytes]:
        """The stream as it is sent."""
        yield _RETRY
        while not self._ended:
            try:
                async with asyncio.timeout(_KEEP_ALIVE):
                    await self._news.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            self._news.clear()
            counts, self._counts = self._counts, None
            ids, self._ids = self._ids, None
            tasks, self._tasks = self._tasks, {}
            if counts is not None:
                yield _message("stats", counts)
            if ids is not None:
                yield _message("tasks", json_bytes({"tasks": list(tasks.values()), "ids": ids}))
            await asyncio.sleep(_PAUSE)  # what comes meanwhile is put together


_RETRY = b"retry: 1000\n\n"


def _message(name: str, data: bytes) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + data + b"\n\n"


def present_state(queue: Queue, interest: Interest) -> bytes:
    """What a stream begins with."""
    tasks = present_tasks(queue, interest)
    ids = [task["id"] for task in tasks]
    return (
        _RETRY
        + _message("stats", json_bytes(present_counts(queue)))
        + _message("tasks", json_bytes({"tasks": tasks, "ids": ids}))
    )


class Broadcast:
    """The thread that watches, for as long as anybody listens."""

    def __init__(self, queue: Queue) -> None:
        self._queue = queue
        self._lock = threading.Lock()
        self._listeners: set[Listener] = set()
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self.is_closed = False

    def open(self) -> None:
        """Take listeners (again)."""
        self.is_closed = False

    def join(self, interest: Interest) -> Listener:
        """A new listener, which is told the present state first."""
        listener = Listener(interest, asyncio.get_running_loop())
        with self._lock:
            if self.is_closed:
                raise Refused(503, "stopping", "the server is stopping", {"Retry-After": "1"})
            most = min(MOST_LISTENERS, most_connections() // 2)
            if len(self._listeners) >= most:
                raise Refused(503, "busy", f"{most} clients listen already", {"Retry-After": "5"})
            if self._thread is None:
                thread = threading.Thread(target=self._watch, name="holdfast-events", daemon=True)
                thread.start()  # it waits for the lock
                self._thread = thread
            self._listeners.add(listener)
        self._wake.set()
        return listener

    def leave(self, listener: Listener) -> None:
        with self._lock:
            self._listeners.discard(listener)
        self._wake.set()

    def end_streams(self) -> None:
        """Take no more listeners, and end those there are: a server that stops waits for its answers."""
        with self._lock:
            self.is_closed = True
            listeners, self._listeners = self._listeners, set()
        for listener in listeners:
            listener.end()
        self._wake.set()

    def close(self) -> None:
        """The same, and wait until the thread has ended."""
        thread = self._thread
        self.end_streams()
        if thread is not None:
            thread.join(timeout=5.0)

    def _watch(self) -> None:
        """Rounds, until nobody listens. A new listener does not wait for the next change."""
        try:
            while self._still_needed():
                try:
                    self._watch_database()
                except StoreError:
                    self._rest()  # it may pass; meanwhile they keep what they have been told
                except Exception:
                    logging.getLogger(LOGGER).exception("live events failed, and begin again")
                    self._rest()
        finally:
            with self._lock:
                if self._thread is threading.current_thread():
                    self._thread = None

    def _rest(self) -> None:
        self._wake.wait(_LOOK)
        self._wake.clear()

    def _watch_database(self) -> None:
        store = self._queue.store
        watch = store.watch()
        try:
            while self._still_needed():
                self._wake.clear()
                watch.changed()
                self._round()
                self._wait(watch)
        finally:
            watch.close()
            store.close_thread()

    def _wait(self, watch: Watch) -> None:
        """Until the database has changed, or somebody comes or goes; from _PAUSE to _LOOK."""
        deadline = time.monotonic() + _LOOK
        self._wake.wait(_PAUSE)
        while not self._wake.is_set() and time.monotonic() < deadline and not watch.changed():
            watch.wait(_PAUSE)

    def _still_needed(self) -> bool:
        """Whether anybody listens, and this thread is still the one that serves them."""
        with self._lock:
            if self._thread is not threading.current_thread():
                return False
            if not self._listeners:
                self._thread = None
            return bool(self._listeners)

    def _round(self) -> None:
        with self._lock:
            listeners = list(self._listeners)
        counts = present_counts(self._queue)
        found: dict[Interest, list[dict[str, Any]]] = {}
        for listener in listeners:
            interest = listener.interest
            if interest not in found:
                found[interest] = present_tasks(self._queue, interest)
            listener.tell(counts, found[interest])


def present_counts(queue: Queue) -> dict[str, Any]:
    """Counts by state and type, what is paused, and how many attempts end a second, by type."""
    store = queue.store
    now = store.now()
    paused = store.list_paused()
    measured = rates(store.list_statistics(now // _MINUTE - 1), now)
    return {
        **shapes.stats(queue.stats()),
        "paused": "" in paused,
        "pausedTypes": sorted(type for type in paused if type),
        "rates": {
            type: {
                "completed": round(rate.completed, 2),
                "failed": round(rate.failed, 2),
                "retried": round(rate.retried, 2),
            }
            for type, rate in measured.items()
        },
    }


def present_tasks(queue: Queue, interest: Interest) -> list[dict[str, Any]]:
    """The jobs that somebody follows, as items of a list."""
    if interest.ids:
        jobs = queue.get_many(interest.ids)
    else:
        jobs = queue.page(status=interest.statuses, type=interest.type, limit=interest.limit, brief=True).jobs
    return [shapes.task_item(job) for job in jobs]
