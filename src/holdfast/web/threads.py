"""Threads for blocking calls, so that slow ones hold up neither short ones nor other clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from msgspec import Struct, field

from holdfast.web.errors import unavailable

T = TypeVar("T")

_SLOW_READS = 4
_SLOW_READS_OF_A_CLIENT = 2
_LONGEST_LINE = 16
"""Slow reads of a client that run or wait."""


async def run_in(threads: ThreadPoolExecutor, call: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(threads, call)


class _Line(Struct):
    """The slow reads of one client."""

    length: int = 0
    turn: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(_SLOW_READS_OF_A_CLIENT))


class SlowReads:
    """Threads for calls that read many jobs. No client can take them all, or have a long line of them."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_SLOW_READS, thread_name_prefix="holdfast-web-slow")
        self._lines: dict[bytes, _Line] = {}

    async def run(self, client: bytes, call: Callable[[], T]) -> T:
        line = self._lines.setdefault(client, _Line())
        if line.length >= _LONGEST_LINE:
            raise unavailable("busy", "too many searches, long lists or large jobs in progress")
        line.length += 1
        try:
            async with line.turn:
                return await run_in(self._threads, call)
        finally:
            line.length -= 1
            if not line.length:
                del self._lines[client]

    def close(self) -> None:
        self._threads.shutdown(wait=False)


class SharedCall(Generic[T]):
    """A call in a thread of its own, whose answer all share who ask while it runs."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="holdfast-web-health")
        self._running: asyncio.Future[T] | None = None

    async def __call__(self) -> T:
        if self._running is None or self._running.done():
            self._running = asyncio.get_running_loop().run_in_executor(self._thread, self._call)
        return await asyncio.shield(self._running)

    def close(self) -> None:
        self._thread.shutdown(wait=False)
