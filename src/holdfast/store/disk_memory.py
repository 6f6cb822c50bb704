"""State of a walk over very many jobs, kept on disk in a private temporary file."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Iterator
from typing import Self


class DiskMemory:
    """A set of texts, and a list of records by text, of any size. To be closed; one thread at a time."""

    def __init__(self) -> None:
        self._file = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = OFF",
            "PRAGMA synchronous = OFF",
            "PRAGMA cache_size = -4096",
            "CREATE TABLE seen (digest BLOB PRIMARY KEY) WITHOUT ROWID",
            "CREATE TABLE records (number INTEGER PRIMARY KEY, digest BLOB, record BLOB)",
            "CREATE INDEX records_digest ON records (digest)",
            "BEGIN",
        ):
            self._file.execute(statement)

    def add(self, text: str) -> bool:
        """Put a text into the set; False if it was there."""
        added = self._file.execute(
            "INSERT INTO seen (digest) VALUES (?) ON CONFLICT DO NOTHING", (_digest(text),)
        )
        return added.rowcount > 0

    def record(self, text: str, record: bytes) -> None:
        self._file.execute("INSERT INTO records (digest, record) VALUES (?, ?)", (_digest(text), record))

    def forget(self, text: str) -> int:
        """Drop the records of a text; returns how many there were."""
        return self._file.execute("DELETE FROM records WHERE digest = ?", (_digest(text),)).rowcount

    def records(self) -> Iterator[bytes]:
        """The records in the order they came."""
        for (record,) in self._file.execute("SELECT record FROM records ORDER BY number"):
            yield record

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()[:16]
