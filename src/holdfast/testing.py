"""For tests of applications: a clock that can be moved, and assertions about what was enqueued.

from holdfast.testing import MovableClock, assert_enqueued

clock = MovableClock()
queue = Queue(f"sqlite:///{tmp_path}/queue.db", clock=clock)
sign_up("a@b.c")
assert_enqueued(queue, "send_email", {"to": "a@b.c"})
assert queue.drain() == 1
clock.advance(hours=24)
assert queue.drain() == 1        # the reminder that was due a day later
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from typing import Any

from holdfast.config import sqlite_url
from holdfast.core.clock import from_datetime, system_clock, to_datetime
from holdfast.core.job import Job
from holdfast.queue import Queue
from holdfast.store.address import anchored

_LISTED = 1000


class MovableClock:
    """A clock for `Queue(clock=…)` that stands still until it is moved."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = system_clock() if start is None else from_datetime(start)

    def __call__(self) -> int:
        return self._now

    @property
    def now(self) -> datetime:
        return to_datetime(self._now).astimezone(UTC)

    def advance(self, seconds: float = 0, **parts: float) -> None:
        """Move forward by seconds, or by parts of a timedelta: minutes=5, hours=2, days=1."""
        self._now += round(timedelta(seconds=seconds, **parts) / timedelta(microseconds=1))

    def move_to(self, moment: datetime) -> None:
        self._now = from_datetime(moment)


@contextmanager
def isolated(queue: Queue, place: str | PathLike[str]) -> Iterator[MovableClock]:
    """Point an application's own queue, with its handlers, at another database for a while.

    `place` is a folder, where an empty one is made. Or it is the address of a database: the one that the
    application's own tables are in during the test, for jobs that are enqueued with connection=.
    Yields the clock, which stands still until it is moved.
    """
    before = queue.url, queue.clock
    movable = MovableClock()
    queue.close()
    queue.url, queue.clock = _address(fspath(place)), movable
    try:
        queue.open()  # a first enqueue inside the application's transaction could not make the tables
        yield movable
    finally:
        queue.close()
        queue.url, queue.clock = before


def _address(place: str) -> str:
    """Where that is, wherever the process goes meanwhile."""
    return anchored(place) if "://" in place else sqlite_url(os.path.abspath(f"{place}/holdfast.db"))


def drain(queue: Queue, limit: int | None = None, *, raise_errors: bool = False) -> int:
    """Run what is pending in this thread and return how many jobs ran."""
    return queue.drain(limit, raise_errors=raise_errors)


def enqueued(queue: Queue, type: str | None = None, **filters: Any) -> list[Job]:
    """The newest thousand jobs of a queue, oldest first, also by `status`."""
    return list(reversed(queue.jobs(type=type, limit=_LISTED, **filters)))


def assert_enqueued(
    queue: Queue,
    type: str,
    payload: Mapping[str, Any] | None = None,
    *,
    count: int | None = None,
    **fields: Any,
) -> list[Job]:
    """Assert that a job of the type was enqueued; return those that fit, oldest first.

    `payload` names the fields that must be equal, others may be there; `fields` are fields of the job, such
    as priority=5 or key="welcome:42". With `count`, exactly so many must fit.
    """
    jobs = enqueued(queue, type)
    fitting = [job for job in jobs if _fits(job, payload or {}, fields)]
    if len(fitting) == count or (count is None and fitting):
        return fitting
    wanted = {**({"payload": dict(payload)} if payload else {}), **fields}
    found = "\n".join(f"  {job.payload}" for job in jobs[-10:]) or "  none"
    expected = "a job" if count is None else f"{count} jobs"
    raise AssertionError(
        f"expected {expected} of type {type!r} with {wanted}, found {len(fitting)};"
        f" of this type there are:\n{found}"
    )


def _fits(job: Job, payload: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    missing = object()
    return all(job.payload.get(name, missing) == value for name, value in payload.items()) and all(
        getattr(job, name) == value for name, value in fields.items()
    )
