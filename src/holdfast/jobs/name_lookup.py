"""Looking up names for code on an event loop, in threads of their own.

The system's look-up can't be cancelled, and takes as long as its resolver likes. In the loop's own executor a
few slow names would hold up everything that needs a thread there. Here they hold up other names at most, and
a name that many ask for takes one thread.
"""

from __future__ import annotations

import socket
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from concurrent.futures import Future

    Answers = list[tuple[Any, ...]]
    Askers = list[Future[Answers]]

MOST_THREADS = 256
"""Enough for what requests leave behind when they give up: a resolver may take half a minute."""


class NameLookup:
    """Up to so many threads, each started when there is a name to look up, and ended when there is none."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._most = most
        self._threads = 0
        self._lock = threading.Lock()
        self._waiting: dict[tuple[str, int], Askers] = {}
        self._running: dict[tuple[str, int], Askers] = {}

    async def find(self, host: str, port: int) -> Answers:
        """What `socket.getaddrinfo` says. The caller limits the time: to cancel is to stop waiting."""
        import asyncio
        from concurrent.futures import Future

        answer: Future[Answers] = Future()
        name = (host, port)
        with self._lock:
            askers = self._running.get(name) or self._waiting.get(name)
            if askers is not None:
                askers.append(answer)
            else:
                self._start_thread()
                self._waiting[name] = [answer]
        return await asyncio.wrap_future(answer)

    def _start_thread(self) -> None:
        if self._threads == self._most:
            return
        try:
            # A daemon: the end of the process does not wait for a resolver.
            threading.Thread(target=self._work, name="holdfast-lookup", daemon=True).start()
        except RuntimeError:  # no more threads to be had: one of those that there are has to do
            if not self._threads:
                raise
        else:
            self._threads += 1

    def _work(self) -> None:
        while (name := self._next()) is not None:
            try:
                found, error = socket.getaddrinfo(*name, type=socket.SOCK_STREAM), None
            except Exception as problem:
                found, error = [], problem
            with self._lock:
                askers = self._running.pop(name)
            for answer in askers:
                if not answer.set_running_or_notify_cancel():
                    continue
                if error is None:
                    answer.set_result(found)
                else:
                    answer.set_exception(error)

    def _next(self) -> tuple[str, int] | None:
        """The name that somebody has waited for longest; None ends the thread."""
        with self._lock:
            while self._waiting:
                name = next(iter(self._waiting))
                askers = self._waiting.pop(name)
                if not all(answer.cancelled() for answer in askers):
                    self._running[name] = askers
                    return name
            self._threads -= 1
            return None


names = NameLookup()
"""Those of this process."""
