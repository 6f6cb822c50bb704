"""Live events: one thread watches the database for all listeners, and sends each what is new to it.

A listener is only ever sent the current state: anything that it has not read yet is replaced, not queued. So
a slow reader costs no memory, and after a gap it still gets everything it needs.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict

from holdfast.core.filter import Filter
from holdfast.errors import StoreError
from holdfast.events import LOGGER
from holdfast.observe import shapes
from holdfast.observe.overview import Rates, rates
from holdfast.queue import Queue
from holdfast.store.protocol import Watch
from holdfast.web.errors import unavailable
from holdfast.web.limits import most_connections
from holdfast.web.responses import json_bytes

MOST_LISTENERS = 200
PAGE = 50
_PAUSE = 0.25
"""Seconds between two rounds, so at most four per second."""

_POLL_SECONDS = 1.0
"""Seconds until a round without any change: rates fall by themselves."""

_KEEP_ALIVE = 15.0


class Interest(Struct, frozen=True):
    """Which jobs a listener follows: some by their ids, or the first page of a filter."""

    ids: tuple[str, ...] = ()
    filter: Filter = Filter()
    limit: int = PAGE


State = tuple[dict[str, Any], list[dict[str, Any]]]
"""The counts, and the jobs that somebody follows."""


class Listener:
    """One client: the last state that it was told. What it has not been sent of that, `messages` finds."""

    def __init__(self, interest: Interest, loop: asyncio.AbstractEventLoop) -> None:
        self.interest = interest
        self._loop = loop
        self._told: State | None = None
        # Used by the event loop alone.
        self._state: State | None = None
        self._news = asyncio.Event()
        self._ended = False

    def tell(self, counts: dict[str, Any], tasks: list[dict[str, Any]]) -> None:
        """The present state, from the watching thread; the same again is not passed on."""
        if self._told != (counts, tasks):
            self._told = (counts, tasks)
            self._call(self._offer, self._told)

    def end(self) -> None:
        self._call(self._finish)

    def _call(self, function: Any, *args: Any) -> None:
        with suppress(RuntimeError):  # its loop is closed: nobody listens any more
            self._loop.call_soon_threadsafe(function, *args)

    def _offer(self, state: State) -> None:
        self._state = state
        self._news.set()

    def _finish(self) -> None:
        self._ended = True
        self._news.set()

    async def messages(self) -> AsyncIterator[bytes]:
        """The stream as it is sent."""
        yield _RETRY
        sent: State | None = None
        while not self._ended:
            try:
                async with asyncio.timeout(_KEEP_ALIVE):
                    await self._news.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            self._news.clear()
            if (state := self._state) is not None:
                for message in _news(sent, state):
                    yield message
            sent = state
            await asyncio.sleep(_PAUSE)  # what comes meanwhile is put together


_RETRY = b"retry: 1000\n\n"


def _news(sent: State | None, state: State) -> Iterator[bytes]:
    """What is new in one state for a listener that was sent the other."""
    counts, tasks = state
    known_counts, known_tasks = sent or (None, None)
    if counts != known_counts:
        yield _message("stats", counts)
    if tasks != known_tasks:
        known = {task["id"]: task for task in known_tasks or ()}
        changed = [task for task in tasks if known.get(task["id"]) != task]
        yield _message("tasks", {"tasks": changed, "ids": [task["id"] for task in tasks]})


def _message(name: str, data: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + json_bytes(data) + b"\n\n"


def present_state(queue: Queue, interest: Interest) -> bytes:
    """What a stream begins with."""
    state = present_counts(queue), present_tasks(queue, interest)
    return _RETRY + b"".join(_news(None, state))


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
        """Accept listeners, also after a shutdown."""
        self.is_closed = False

    def join(self, interest: Interest) -> Listener:
        """A new listener, which is first sent the current state."""
        listener = Listener(interest, asyncio.get_running_loop())
        with self._lock:
            if self.is_closed:
                raise unavailable("stopping", "the server is shutting down")
            most = min(MOST_LISTENERS, most_connections() // 2)
            if len(self._listeners) >= most:
                raise unavailable("busy", f"too many listeners: {most} clients are already connected", 5)
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
        """Shut down, and wait until the thread has ended."""
        thread = self._thread
        self.end_streams()
        if thread is not None:
            thread.join(timeout=5.0)

    def _watch(self) -> None:
        """Rounds, until nobody listens. A new listener does not wait for the next change."""
        while self._still_needed():
            try:
                with self._queue.watch() as watch:
                    while self._still_needed():
                        self._wake.clear()
                        watch.changed()
                        self._round()
                        self._wait(watch)
            except Exception as error:
                if not isinstance(error, StoreError):  # that may pass; they keep what they have been told
                    logging.getLogger(LOGGER).exception("live events failed; restarting them")
                self._wake.wait(_POLL_SECONDS)
                self._wake.clear()

    def _wait(self, watch: Watch) -> None:
        """Wait until the database has changed, or a listener comes or goes; from _PAUSE to _POLL_SECONDS."""
        deadline = time.monotonic() + _POLL_SECONDS
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


class LiveCounts(shapes.QueueCounts):
    """What an event `stats` has."""

    paused: bool
    paused_types: list[str]
    rates: dict[str, Rates]


def present_counts(queue: Queue) -> dict[str, Any]:
    """Counts by state and type, what is paused, and how many attempts end a second, by type."""
    paused = queue.paused()
    measured = rates(queue.statistics(1), queue.now())
    return shapes.shape_of(
        LiveCounts(
            **queue.stats(),
            paused="" in paused,
            paused_types=[type for type in paused if type],
            rates={
                type: Rates(**{name: round(number, 2) for name, number in asdict(rate).items()})
                for type, rate in measured.items()
            },
        )
    )


def present_tasks(queue: Queue, interest: Interest) -> list[dict[str, Any]]:
    """The jobs that somebody follows, as items of a list."""
    if interest.ids:
        jobs = queue.get_many(interest.ids)
    else:
        jobs = queue.page(interest.filter, limit=interest.limit, brief=True).jobs
    return [shapes.task_item(job) for job in jobs]
