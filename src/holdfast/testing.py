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
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from os import PathLike, fspath
from typing import Any

from holdfast.config import sqlite_url
from holdfast.core import check
from holdfast.core.clock import microseconds, system_clock, to_datetime
from holdfast.core.job import Job
from holdfast.durations import Duration
from holdfast.queue import Queue
from holdfast.store.open import anchored

_LISTED = 1000


class MovableClock:
    """A clock for `Queue(clock=…)` that stands still until you move it."""

    def __init__(self, start: datetime | None = None) -> None:
        self._now = system_clock()
        if start is not None:
            self.move_to(start)

    def __call__(self) -> int:
        return self._now

    @property
    def now(self) -> datetime:
        return to_datetime(self._now).astimezone(UTC)

    def advance(self, by: Duration = 0, **parts: float) -> None:
        """Move by a duration, or by parts of a timedelta: minutes=5, hours=2, days=1. Negative moves back."""
        if isinstance(by, int | float) and by < 0:
            seconds = -check.duration("by", -by)
        else:
            seconds = check.duration("by", by)
        self._now += microseconds(seconds + timedelta(**parts).total_seconds())

    def move_to(self, moment: datetime) -> None:
        """Move to an instant, forward or back."""
        self._now = check.instant("moment", moment)


@contextmanager
def isolated(queue: Queue, place: str | PathLike[str]) -> Iterator[MovableClock]:
    """Temporarily point an application's own queue, with its handlers, at another database.

    `place` is a folder, in which an empty database is created, or the address of a database: the one that
    holds the application's own tables during the test, for jobs enqueued with connection=.
    Yields the clock, which stands still until you move it.
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
    """The address as an absolute path, so that a later chdir doesn't change it."""
    return anchored(place) if "://" in place else sqlite_url(os.path.abspath(f"{place}/holdfast.db"))


def drain(queue: Queue, limit: int | None = None, *, raise_errors: bool = False) -> int:
    """Run the pending jobs in this thread and return how many ran."""
    return queue.drain(limit, raise_errors=raise_errors)


def enqueued(queue: Queue, type: str | None = None, **filters: Any) -> list[Job]:
    """The newest 1000 jobs of a queue, oldest first; filters such as `status` apply."""
    return list(reversed(queue.jobs(type=type, limit=_LISTED, **filters)))


def assert_enqueued(
    queue: Queue,
    type: str,
    payload: Mapping[str, Any] | None = None,
    *,
    count: int | None = None,
    **fields: Any,
) -> list[Job]:
    """Assert that a job of the type was enqueued; return those that match, oldest first.

    `payload` gives the payload fields that must be equal; there may be others. `fields` are fields of the
    job, such as priority=5 or key="welcome:42". With `count`, exactly that many must match.
    """
    jobs = enqueued(queue, type)
    fitting = [job for job in jobs if _fits(job, payload or {}, fields)]
    if len(fitting) == count or (count is None and fitting):
        return fitting
    wanted = {**({"payload": dict(payload)} if payload else {}), **fields}
    found = "\n".join(f"  {_shown(job, fields)}" for job in jobs[-10:]) or "  none"
    expected = "a job" if count is None else f"{count} jobs"
    raise AssertionError(
        f"expected {expected} of type {type!r} with {wanted}, found {len(fitting)};"
        f" jobs of this type:\n{found}"
    )


def _shown(job: Job, fields: Iterable[str]) -> str:
    """A job's payload, and the fields that were compared."""
    return ", ".join([str(job.payload), *(f"{name}={getattr(job, name)!r}" for name in fields)])


def _fits(job: Job, payload: Mapping[str, Any], fields: Mapping[str, Any]) -> bool:
    missing = object()
    return all(job.payload.get(name, missing) == value for name, value in payload.items()) and all(
        getattr(job, name) == value for name, value in fields.items()
    )
