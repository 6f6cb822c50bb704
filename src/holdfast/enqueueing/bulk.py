"""Many jobs of any kind at once: all are checked first, then stored in one commit, or in chunks.

What was checked waits in a temporary file, so memory stays flat however many there are, and the lock is held
for the inserts alone.
"""

from __future__ import annotations

import os
import tempfile
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice
from random import uniform
from typing import IO, TYPE_CHECKING, Self

import msgspec
from msgspec import Struct

from holdfast.core import check
from holdfast.core.settings import Settings
from holdfast.enqueueing.enqueuer import Admission
from holdfast.errors import BulkRefused, CommitUncertain, NestedWrite, StoreBusy
from holdfast.store.database import BREATH
from holdfast.store.protocol import Store
from holdfast.store.records import NewJob

if TYPE_CHECKING:
    from holdfast.handlers.options import EnqueueOptions

_INSERTED_AT_ONCE = 1000
_TRIES = 3
_SIZES = range(1, 2**31)
_LINES = range(2**63)


class Entry(Struct, frozen=True, array_like=True):
    """A validated job, and the line it came from."""

    line: int
    job: NewJob


class StoredIds:
    """The ids of the stored jobs, in a file rather than in memory, however many there are."""

    def __init__(self) -> None:
        self._file: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed with the last who asks
        weakref.finalize(self, self._file.close)
        self._count = 0
        self._end = 0

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[str]:
        place = 0
        while place < self._end:
            self._file.seek(place)  # each time: others may be at another place
            line = self._file.readline()
            place += len(line)
            yield line[:-1].decode()

    @contextmanager
    def adding(self) -> Iterator[Callable[[str], None]]:
        """Takes ids that are durable when the block ends, and none if it raises."""
        count, end = self._count, self._end
        self._file.seek(end)

        def add(id: str) -> None:
            nonlocal count, end
            count += 1
            end += self._file.write(f"{id}\n".encode())

        yield add
        self._count, self._end = count, end


class Bulk:
    """Collects jobs with `add` and stores them with `store`. Close it when done."""

    def __init__(self, store: Store, admission: Admission, settings: Settings) -> None:
        self._store = store
        self._admission = admission
        self._settings = settings
        self._spool: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by close()
        self._encode = msgspec.json.Encoder().encode
        self._has_begun = False
        self.count = 0
        self.stored: StoredIds | tuple[()] = ()
        """The ids of those that the last `store` has stored, also if it raised."""

    def add(self, line: int, type: str, payload: object, options: EnqueueOptions) -> None:
        """Check one job, which came from the given line; raises if it is invalid."""
        entry = Entry(
            check.whole_number("line", line, _LINES),
            self._admission.admit(type, payload, check.mapping("options", options), self._settings),
        )
        self._spool.write(self._encode(entry) + b"\n")
        self.count += 1

    def store(self, chunk: int | None = None, progress: Callable[[int], None] = lambda _: None) -> StoredIds:
        """Store the jobs, in one commit or in chunks; return the id of each, in the order they were added.

        Raises BulkRefused for one that the database refuses, with nothing of its chunk stored. The ids of
        the chunks before it are in `stored`.
        """
        if self._store.in_transaction:  # of a thread that a signal handler has interrupted
            raise NestedWrite(interrupted=True)
        size = self.count if chunk is None else check.whole_number("chunk", chunk, _SIZES)
        self._spool.seek(0)
        stored = self.stored = StoredIds()
        try:
            while len(stored) < self.count:
                if stored:
                    time.sleep(BREATH)
                self._store_surely(size, stored, progress)
            return stored
        finally:
            self._spool.seek(0, os.SEEK_END)  # where the next is added

    def _store_surely(self, size: int, stored: StoredIds, progress: Callable[[int], None]) -> None:
        begin = self._spool.tell()
        for _ in range(_TRIES):
            try:
                return self._store_chunk(size, stored, progress)
            except CommitUncertain:
                pass  # once more: rows of ours that did get through are known by their tokens
            except StoreBusy:
                if not self._has_begun:
                    raise
                # Somebody else has one of the keys, and perhaps waits for another of ours.
                time.sleep(uniform(0.1, 0.5))
            self._spool.seek(begin)
        return self._store_chunk(size, stored, progress)

    def _store_chunk(self, size: int, stored: StoredIds, progress: Callable[[int], None]) -> None:
        count = 0
        self._has_begun = False
        decode = msgspec.json.Decoder(Entry).decode
        with stored.adding() as add, self._store.transaction():
            self._has_begun = True
            while lines := list(islice(self._spool, min(_INSERTED_AT_ONCE, size - count))):
                entries = [decode(line) for line in lines]
                verdicts = self._store.insert_jobs([entry.job for entry in entries], atomic=True)
                for entry, verdict in zip(entries, verdicts, strict=True):
                    if verdict.error is not None:
                        raise BulkRefused(entry.line, verdict.error, len(stored))
                    add(verdict.id)
                count += len(entries)
                progress(len(stored) + count)

    def close(self) -> None:
        self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
