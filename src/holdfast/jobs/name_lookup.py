"""Looking up names for code on an event loop, in threads of their own.

The system's look-up can't be cancelled, and takes as long as its resolver likes. In the loop's own executor a
few slow names would hold up everything that needs a thread there. Here they hold up other names at most, and
a name that many ask for takes one thread.
"""

from __future__ import annotations

import socket
import threading
from collections import Counter
from typing import TYPE_CHECKING, Any

from holdfast.system.threads import Threads

if TYPE_CHECKING:
    from concurrent.futures import Future

    Answers = list[tuple[Any, ...]]

MOST_THREADS = 256
"""Enough for what requests leave behind when they give up: a resolver may take half a minute."""


class NameLookup:
    """Looks up names; concurrent requests for the same name share one lookup."""

    def __init__(self, most: int = MOST_THREADS) -> None:
        self._threads = Threads("holdfast-lookup", most)
        self._lock = threading.Lock()
        self._lookups: dict[tuple[str, int], Future[Answers]] = {}
        self._askers: Counter[Future[Answers]] = Counter()

    async def find(self, host: str, port: int) -> Answers:
        """The result of `socket.getaddrinfo`. The caller sets the time limit: cancelling stops the wait."""
        import asyncio

        lookup = self._join((host, port))
        try:
            return await asyncio.shield(asyncio.wrap_future(lookup))
        finally:
            self._leave(lookup)

    def _join(self, name: tuple[str, int]) -> Future[Answers]:
        with self._lock:
            lookup = self._lookups.get(name)
            if lookup is None:
                lookup = self._threads.submit(lambda: socket.getaddrinfo(*name, type=socket.SOCK_STREAM))
                self._lookups[name] = lookup
                lookup.add_done_callback(lambda _: self._lookups.pop(name, None))
            self._askers[lookup] += 1
            return lookup

    def _leave(self, lookup: Future[Answers]) -> None:
        with self._lock:
            self._askers[lookup] -= 1
            if not self._askers[lookup]:
                del self._askers[lookup]
                lookup.cancel()  # it is still in line, or goes on for who asks next


names = NameLookup()
"""Those of this process."""
