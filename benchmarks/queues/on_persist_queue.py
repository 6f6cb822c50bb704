"""persist-queue: its SQLiteAckQueue with defaults. It has no worker of its own and waits for items of its own
process only, so an idle worker looks every millisecond.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager

from persistqueue import Empty, SQLiteAckQueue  # type: ignore[import-not-found]

from benchmarks.queues import tally
from benchmarks.queues.place import ADDRESS, Producer, sqlite_durability

PACKAGE = "persist-queue"
_POLL = 0.001


def _open() -> SQLiteAckQueue:
    return SQLiteAckQueue(f"{ADDRESS}.d", multithreading=True)


@contextmanager
def producer() -> Iterator[Producer]:
    with closing(_open()) as queue:
        yield Producer(queue.put, lambda number: queue.put(f"note {number}"))


def durability() -> str:
    with closing(_open()) as queue:
        return sqlite_durability(queue._putter)


def work() -> None:
    queue = _open()
    while True:
        try:
            item = queue.get(block=False)
        except Empty:
            time.sleep(_POLL)
            continue
        if isinstance(item, str):
            tally.note(int(item[5:]))
        else:
            tally.count()
        queue.ack(item)
