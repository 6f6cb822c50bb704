"""What a process of a queue is told by the one that started it, and what a producer is."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable, Iterable
from dataclasses import dataclass

ADDRESS = os.environ.get("BENCH_ADDRESS", "")
"""The path of a SQLite file, or the URL of a database or of a Redis server."""

TASK = os.environ.get("BENCH_TASK", "noop")
"""What is enqueued: `noop`, or `effect`, which writes a row in the transaction that completes the job."""

CONCURRENCY = 10
"""Jobs at a time where a queue's own default is one: as many as Holdfast runs by default."""


@dataclass(frozen=True)
class Producer:
    """Ways to enqueue a job with a number: a no-op, several no-ops in one call, one that notes its start."""

    enqueue: Callable[[int], object]
    note: Callable[[int], object]
    enqueue_many: Callable[[Iterable[int]], object] | None = None


def sqlite_durability(connection: sqlite3.Connection) -> str:
    """The settings of a SQLite connection that decide what survives a power cut."""
    mode = connection.execute("PRAGMA journal_mode").fetchone()[0]
    level = connection.execute("PRAGMA synchronous").fetchone()[0]
    return f"journal_mode={mode}, synchronous={('OFF', 'NORMAL', 'FULL', 'EXTRA')[level]}"


SERVER_SETTINGS = (
    "SELECT 'fsync=' || current_setting('fsync') || ', synchronous_commit=' ||"
    " current_setting('synchronous_commit')"
)
"""The same of a connection to PostgreSQL."""


def redis_durability() -> str:
    """What the Redis server writes to disk, and when."""
    import redis  # type: ignore[import-not-found]

    with redis.Redis.from_url(ADDRESS) as client:
        settings = client.config_get("*")
    if settings["appendonly"] == "yes":
        return f"append-only file, fsync {settings['appendfsync']}"
    return f"none for each job; snapshots by save {settings['save']!r}"
