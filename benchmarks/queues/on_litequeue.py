"""litequeue with its defaults. It has no worker of its own: a loop takes a message and marks it done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from litequeue import LiteQueue  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, Producer, sqlite_durability

PACKAGE = "litequeue"
_POLL = 0.001


@contextmanager
def producer() -> Iterator[Producer]:
    queue = LiteQueue(ADDRESS)
    yield Producer(lambda number: queue.put(str(number)), lambda number: queue.put(f"note {number}"))
    queue.close()


def durability() -> str:
    return sqlite_durability(LiteQueue(ADDRESS).conn)


def work() -> None:
    queue = LiteQueue(ADDRESS)
    while True:
        message = queue.pop()
        if message is None:
            time.sleep(_POLL)
            continue
        if message.data.startswith("note "):
            tally.note(int(message.data[5:]))
        else:
            tally.count()
        queue.done(message.message_id)
