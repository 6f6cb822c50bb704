"""Doing the same to many jobs: in commits of some hundred, each job by its own guarded statement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime
from itertools import islice
from typing import Protocol

from msgspec import Struct

from holdfast.core.job import require_possible_id
from holdfast.errors import ConfigError, HoldfastError, StoreBusy, StoreError, shown
from holdfast.events import Event, Events, JobCancelled, JobCancelRequested, JobDeleted, JobRetried
from holdfast.listing import walk
from holdfast.store.protocol import Store

_BATCH = 200
_BREATH = 0.002


class Operable(Protocol):
    """A Queue, as far as it is needed here."""

    events: Events

    @property
    def store(self) -> Store: ...


class Refusal(Struct, frozen=True):
    """A job that was left as it is, and why."""

    job_id: str
    error: HoldfastError


class Operated(Struct, kw_only=True):
    """What came of an operation on many jobs. Of the refusals only the first are kept."""

    done: int = 0
    refused: int = 0
    refusals: list[Refusal] = []


def operate(queue: Operable, action: str, job_ids: Iterator[str], *, kept: int = 100) -> Operated:
    """Retry, cancel or delete jobs; one that can't be is passed over and named."""
    apply = _ACTIONS.get(action)
    if apply is None:
        raise ConfigError(f"{shown(action)} is not an action; allowed: {', '.join(_ACTIONS)}")
    result = Operated()
    while batch := list(islice(job_ids, _BATCH)):
        events: list[Event] = []
        with queue.store.transaction():
            for job_id in batch:
                try:
                    require_possible_id(job_id)
                    events.append(apply(queue, job_id))
                except HoldfastError as error:
                    if isinstance(error, StoreError) and not isinstance(error, StoreBusy):
                        raise  # not about this one; the whole batch is rolled back
                    result.refused += 1
                    if len(result.refusals) < kept:
                        result.refusals.append(Refusal(job_id, error))
        result.done += len(events)
        for event in events:
            queue.events.emit(event)
        time.sleep(_BREATH)  # lets other writers in
    return result


def matching(
    queue: Operable,
    *,
    status: str | Iterable[str] | None = None,
    type: str | None = None,
    error: str | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    search: str | None = None,
    sort: str = "created",
    ascending: bool = False,
) -> Iterator[str]:
    """The ids of the jobs that a filter finds, in its order: those there now, not those that come.

    With a search they are those among the first jobs of the list, as many as a search reads.
    """
    return walk(
        queue.store, status=status, type=type, error=error, since=since, until=until, search=search,
        sort=sort, ascending=ascending, at_once=_BATCH,
    )  # fmt: skip


def _retry(queue: Operable, job_id: str) -> Event:
    job = queue.store.retry_job(job_id, None)
    return JobRetried(job_id=job.id, type=job.type)


def _cancel(queue: Operable, job_id: str) -> Event:
    job = queue.store.cancel_job(job_id)
    if job.cancel_requested and not job.is_finished:
        return JobCancelRequested(job_id=job.id, type=job.type)
    return JobCancelled(job_id=job.id, type=job.type)


def _delete(queue: Operable, job_id: str) -> Event:
    job = queue.store.get_job(job_id)
    queue.store.delete_job(job_id)
    assert job is not None  # or deleting it would have raised; the transaction is the same
    return JobDeleted(job_id=job.id, type=job.type)


_ACTIONS: dict[str, Callable[[Operable, str], Event]] = {
    "retry": _retry,
    "cancel": _cancel,
    "delete": _delete,
}
