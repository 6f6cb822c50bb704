"""The steps of a job's life, one call each: the words that the conformance tests are written in."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from holdfast.core.backoff import Backoff
from holdfast.core.filter import parse_filter
from holdfast.core.job import Job, Status
from holdfast.core.lifecycle import (
    Completed,
    Errored,
    LeaseEnded,
    Outcome,
    Policy,
    Released,
    Stopped,
    decide,
)
from holdfast.core.settings import Depth, Settings
from holdfast.listing import pages as listing
from holdfast.listing.pages import Page
from holdfast.store.protocol import Store
from holdfast.store.records import Claim, Demand, Expired, Finish, JobFilter, NewJob

LEASE = 30.0
BACK_OFF = 10.0
MAX_ATTEMPTS = 3
"""What a claim fixes for a job that left max_attempts open."""

OUTCOMES: dict[str, Outcome] = {
    "completed": Completed('{"sent": true}'),
    "failed": Errored("OSError: no route"),
    "failed for good": Errored("OSError: no such user", permanent=True),
    "lease ended": LeaseEnded("WorkerLost: gone"),
    "released": Released(),
    "stopped": Stopped("Cancelled"),
}
"""One outcome of each kind, by name."""

_tokens = itertools.count(1)


def new_job(id: str = "job", type: str = "email", **options: Any) -> NewJob:
    if isinstance(depth := options.get("max_depth"), int):
        options["max_depth"] = Depth(depth, type)
    options = {"payload": "{}", "token": f"token-{next(_tokens)}", **options}
    return NewJob(id=id, type=type, **options)


def insert(store: Store, *ids: str, **options: Any) -> None:
    """Insert jobs that must be accepted."""
    verdicts = store.insert_jobs([new_job(id, **options) for id in ids])
    assert [(verdict.id, verdict.inserted, verdict.error) for verdict in verdicts] == [
        (id, True, None) for id in ids
    ]


def claim(
    store: Store,
    *types: str,
    worker: str = "worker",
    limit: int = 100,
    lease: float = LEASE,
    settings: Settings | None = None,
    alone: bool = False,
    **options: Any,
) -> list[Claim]:
    """Claim jobs of these types, or of `email`; `options` go into every demand."""
    demands = [demand(type, **options) for type in types or ("email",)]
    return store.claim_jobs(worker, demands, settings, limit=limit, lease_seconds=lease, alone=alone).claims


def settings_of(store: Store, **limits: Any) -> Settings:
    """Settings as a worker knows them: the pauses of the store, and limits that were not stored.

    Each limit is that of `email`, or a dict of them by type.
    """
    values = {
        (name, type): value
        for name, given in limits.items()
        for type, value in (given if isinstance(given, dict) else {"email": given}).items()
    }
    return Settings(values, paused=frozenset(store.list_paused()))


def demand(type: str = "email", **options: Any) -> Demand:
    return Demand(type=type, **{"limit": 1000, "max_attempts": MAX_ATTEMPTS, **options})


def claim_alone(store: Store, *types: str, worker: str = "worker") -> list[Claim]:
    """Claim as a worker does that has nothing else to run."""
    demands = [demand(type) for type in types or ("email",)]
    return store.claim_jobs(worker, demands, limit=100, lease_seconds=LEASE, alone=True).claims


def claim_one(store: Store, type: str = "email", worker: str = "worker", lease: float = LEASE) -> Claim:
    [claimed] = claim(store, type, worker=worker, limit=1, lease=lease)
    return claimed


def run(store: Store, id: str = "job", worker: str = "worker", **options: Any) -> Claim:
    """Insert a job and claim it."""
    insert(store, id, **options)
    claimed = claim_one(store, options.get("type", "email"), worker)
    assert claimed.id == id
    return claimed


def ending(claimed: Claim, outcome: Outcome, **options: Any) -> Finish:
    """The end of an attempt, decided as a worker decides it."""
    policy = Policy(claimed.max_attempts, Backoff(strategy="fixed", factor=BACK_OFF, jitter=0))
    return Finish(
        **{
            "seq": claimed.seq,
            "type": claimed.type,
            "version": claimed.version,
            "worker_id": claimed.worker_id,
            "attempt": claimed.attempts,
            "decision": decide(claimed.attempts, outcome, policy, 0.5),
            "started_at": claimed.due_at,
            **options,
        }
    )


def finish(store: Store, claimed: Claim, outcome: Outcome | None = None, **options: Any) -> Status | None:
    """End an attempt; the state it led to, or None if it was refused."""
    ended = store.finish_jobs([ending(claimed, outcome or Completed(), **options)])
    return ended.get((claimed.seq, claimed.version))


def finished(store: Store, id: str, outcome: Outcome | None = None, **options: Any) -> Job:
    """A job that was inserted, claimed and ended."""
    finish(store, run(store, id, **options), outcome)
    return job(store, id)


def reap(
    store: Store,
    expired: Sequence[Expired] | None = None,
    *,
    has_started: bool | None = True,
    back_off: float = 0.0,
) -> dict[str, Status]:
    """End the attempts whose leases ran out, as a worker's sweep does; the state of each, by id.

    Without a back-off, those with attempts left are promoted at once.
    """
    lost = store.list_expired() if expired is None else expired
    finishes = [reaping(attempt, has_started=has_started, back_off=back_off) for attempt in lost]
    ended = store.finish_jobs(finishes)
    if not back_off:
        store.promote_jobs(1000)
    return {x.id: ended[x.seq, x.version] for x in lost if (x.seq, x.version) in ended}


def reaping(
    lost: Expired,
    *,
    expired_only: bool = True,
    has_started: bool | None = True,
    back_off: float = 0.0,
) -> Finish:
    policy = Policy(lost.max_attempts, Backoff(strategy="fixed", factor=back_off, jitter=0))
    outcome = LeaseEnded(f"WorkerLost: {lost.worker_id}", has_started)
    return Finish(
        seq=lost.seq,
        type=lost.type,
        version=lost.version,
        worker_id=lost.worker_id,
        attempt=lost.attempts,
        decision=decide(lost.attempts, outcome, policy, 0.5),
        started_at=lost.started_at,
        expired_only=expired_only,
    )


def job(store: Store, id: str = "job") -> Job:
    found = store.get_job(id)
    assert found is not None, f"there is no job {id}"
    return found


def status(store: Store, id: str = "job") -> Status:
    return job(store, id).status


def everything(store: Store) -> list[Job]:
    """All jobs with their histories, oldest first: for tests that nothing has changed."""
    return [job(store, listed.id) for listed in reversed(store.list_jobs(JobFilter(limit=1000)))]


@contextmanager
def rolled_back(store: Store) -> Iterator[None]:
    """A transaction in which something goes wrong at the end."""
    with suppress(ZeroDivisionError), store.transaction():
        yield
        raise ZeroDivisionError


PAGING = ("limit", "offset", "cursor", "brief")


def page(store: Store, **asked: Any) -> Page:
    paging = {name: asked.pop(name) for name in PAGING if name in asked}
    return listing.page(store, parse_filter(**asked), **paging)


def walk(store: Store, **asked: Any) -> Iterator[str]:
    return listing.walk(store, parse_filter(**asked))
