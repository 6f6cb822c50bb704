"""Bulk actions: a few hundred jobs per commit, each changed by its own guarded statement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Literal

from msgspec import Struct

from holdfast.core.job import require_possible_id
from holdfast.errors import ConfigError, HoldfastError, StoreBusy, StoreError
from holdfast.events import Event, Events, JobCancelled, JobCancelRequested, JobDeleted, JobRetried
from holdfast.store.database import BREATH
from holdfast.store.protocol import Store
from holdfast.text import shown

_BATCH = 200


Action = Literal["retry", "cancel", "delete"]


class Refusal(Struct, frozen=True):
    """A job that was skipped, and why."""

    job_id: str
    error: HoldfastError


class Acted(Struct, kw_only=True):
    """The outcome of a bulk action. Only the first refusals are kept."""

    done: int = 0
    refused: int = 0
    refusals: list[Refusal] = []


def act(store: Store, events: Events, action: object, job_ids: Iterator[str], *, kept: int) -> Acted:
    """See Queue.act."""
    apply = _ACTIONS.get(action) if isinstance(action, str) else None
    if apply is None:
        raise ConfigError(f"{shown(action)} is not an action; allowed: {', '.join(_ACTIONS)}")
    result = Acted()
    while batch := list(islice(job_ids, _BATCH)):
        news: list[Event] = []
        with store.transaction():
            for job_id in batch:
                try:
                    require_possible_id(job_id)
                    news.append(apply(store, job_id))
                except HoldfastError as error:
                    if isinstance(error, StoreError) and not isinstance(error, StoreBusy):
                        raise  # not about this one; the whole batch is rolled back
                    result.refused += 1
                    if len(result.refusals) < kept:
                        result.refusals.append(Refusal(job_id, error))
        result.done += len(news)
        for event in news:
            events.emit(event)
        time.sleep(BREATH)
    return result


def _retry(store: Store, job_id: str) -> Event:
    job = store.retry_job(job_id, None)
    return JobRetried(job_id=job.id, type=job.type)


def _cancel(store: Store, job_id: str) -> Event:
    job = store.cancel_job(job_id)
    event = JobCancelRequested if job.is_asked_to_stop else JobCancelled
    return event(job_id=job.id, type=job.type)


def _delete(store: Store, job_id: str) -> Event:
    job = store.get_job(job_id)
    store.delete_job(job_id)
    assert job is not None  # or deleting it would have raised; the transaction is the same
    return JobDeleted(job_id=job.id, type=job.type)


_ACTIONS: dict[str, Callable[[Store, str], Event]] = {
    "retry": _retry,
    "cancel": _cancel,
    "delete": _delete,
}
