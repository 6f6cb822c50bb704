"""Many jobs of any kind at once: all are checked first, then stored in one commit, or in chunks.

What was checked waits in a temporary file, so memory stays flat however many there are, and the lock is held
for the inserts alone.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from random import uniform
from typing import IO, Any, Self

import msgspec
from msgspec import Struct

from holdfast.core.settings import Settings
from holdfast.enqueue import Admission, make_options
from holdfast.errors import BulkRefused, CommitUncertain, NestedWrite, StoreBusy
from holdfast.store.protocol import NewJob, Store

_INSERTED_AT_ONCE = 1000
_BREATH = 0.002
_TRIES = 3


class Entry(Struct, frozen=True, array_like=True):
    """A checked job, and the line it came from."""

    line: int
    job: NewJob


class Bulk:
    """Collects jobs with `add`, stores them with `store`. To be closed."""

    def __init__(self, store: Store, admission: Admission, settings: Settings) -> None:
        self._store = store
        self._admission = admission
        self._settings = settings
        self._spool: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 -- closed by close()
        self._encode = msgspec.json.Encoder().encode
        self._has_begun = False
        self.count = 0

    def add(self, line: int, type: str, payload: object, options: Mapping[str, Any]) -> None:
        """Check one job, which came from a line; raises what is wrong with it."""
        job = self._admission.admit(type, payload, make_options(options), self._settings)
        self._spool.write(self._encode(Entry(line, job)) + b"\n")
        self.count += 1

    def store(
        self, chunk: int | None = None, progress: Callable[[int], None] = lambda _: None
    ) -> Iterator[str]:
        """Store the jobs, in one commit or in chunks, and give the id of each when it is durable.

        Raises BulkRefused for one that the database refuses, with nothing of its chunk stored.
        """
        if self._store.in_transaction:  # of a thread that a signal handler has interrupted
            raise NestedWrite(interrupted=True)
        self._spool.seek(0)
        stored = 0
        with tempfile.TemporaryFile("w+", encoding="ascii") as ids:
            while stored < self.count:
                if stored:
                    time.sleep(_BREATH)  # lets other writers in between two long commits
                stored += self._store_surely(chunk or self.count, stored, ids, progress)
                ids.seek(0)
                for line in ids:
                    yield line.rstrip("\n")

    def _store_surely(self, size: int, stored: int, ids: IO[str], progress: Callable[[int], None]) -> int:
        begin = self._spool.tell()
        for _ in range(_TRIES):
            try:
                return self._store_chunk(size, stored, ids, progress)
            except CommitUncertain:
                pass  # once more: rows of ours that did get through are known by their tokens
            except StoreBusy:
                if not self._has_begun:
                    raise
                # Somebody else has one of the keys, and perhaps waits for another of ours.
                time.sleep(uniform(0.1, 0.5))
            self._spool.seek(begin)
        return self._store_chunk(size, stored, ids, progress)

    def _store_chunk(self, size: int, stored: int, ids: IO[str], progress: Callable[[int], None]) -> int:
        count = 0
        self._has_begun = False
        ids.seek(0)
        ids.truncate()
        decode = msgspec.json.Decoder(Entry).decode
        with self._store.transaction():
            self._has_begun = True
            while count < size:
                lines = [
                    line
                    for _ in range(min(_INSERTED_AT_ONCE, size - count))
                    if (line := self._spool.readline())
                ]
                if not lines:
                    break
                entries = [decode(line) for line in lines]
                verdicts = self._store.insert_jobs([entry.job for entry in entries], atomic=True)
                for entry, verdict in zip(entries, verdicts, strict=True):
                    if verdict.error is not None:
                        raise BulkRefused(entry.line, verdict.error, stored)
                    ids.write(f"{verdict.id}\n")
                count += len(entries)
                progress(stored + count)
        return count

    def close(self) -> None:
        self._spool.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
