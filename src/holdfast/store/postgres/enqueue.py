"""Inserting jobs on connections of our own, whatever becomes of those, and whatever others have open."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from random import uniform
from typing import TypeVar

from holdfast.errors import CommitUncertain, StoreBusy, StoreError
from holdfast.store.database import PATIENCE
from holdfast.store.postgres import insert
from holdfast.store.postgres.bounds import BRIEF, BULK, LOCK_PATIENCE, SHORT
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.errors import ConnectionLost
from holdfast.store.records import NewJob, Verdict

_FEW = 1000
"""New jobs that are made ready in no time worth mentioning."""

T = TypeVar("T")


def insert_jobs(
    database: Database, jobs: Sequence[NewJob], *, atomic: bool = False, wait: bool = True
) -> list[Verdict]:
    """See Store in the protocol."""
    how = insert.insert_all_or_none if atomic else insert.insert_jobs
    try:
        if atomic and len(jobs) > 1:
            return _despite_others(database, lambda patience: _insert(database, how, jobs, patience))
        patience = LOCK_PATIENCE if wait else BRIEF
        return _certainly(database, lambda: _insert(database, how, jobs, patience))
    except StoreBusy as error:
        # Somebody's open transaction has one of the keys; that is no reason to refuse the others.
        if atomic or database.in_transaction or all(map(_waits_for_nobody, jobs)):
            raise
        if len(jobs) == 1:
            return [Verdict(id=jobs[0].id, error=error)]
        return _insert_apart(database, jobs, wait)


def _waits_for_nobody(job: NewJob) -> bool:
    """Whether nobody else who enqueues can be in its way: it has no key, a new id, and no max_depth."""
    return insert.is_plain(job) and job.max_depth is None


def _insert(
    database: Database, how: Callable[..., insert.Steps], jobs: Sequence[NewJob], patience: float
) -> list[Verdict]:
    is_plain = all(map(_waits_for_nobody, jobs))
    if is_plain and how is insert.insert_jobs and database.commits_alone and insert.is_one(jobs):
        database.refuse_nested()
        verdicts = insert.run(how(jobs, database.instant), database.write)
        database.notifier.touch()
        return verdicts
    bounds = SHORT if len(jobs) <= _FEW else BULK
    with database.transaction(bounds=bounds) as session:
        if not is_plain:
            session.wait_at_most(patience)
        verdicts = insert.run(how(jobs, database.instant, alone=True), session.rows)
        session.wakes = True
        return verdicts


def _insert_apart(database: Database, jobs: Sequence[NewJob], wait: bool) -> list[Verdict]:
    """Those that wait for nobody in one commit, each of the others in one of its own."""
    plain = [job for job in jobs if insert.is_plain(job)]
    insert_plain = partial(_insert, database, insert.insert_jobs, plain, LOCK_PATIENCE)
    found = dict(zip(plain, _certainly(database, insert_plain), strict=True)) if plain else {}
    return [found.get(job) or insert_jobs(database, [job], wait=wait)[0] for job in jobs]


def _despite_others(database: Database, action: Callable[[float], T]) -> T:
    """Insert many keys at once, retrying on deadlock.

    A process that inserts the same keys in a different order may wait for us while we wait for it. One of
    them gives up first, after a random time, and tries again.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return _certainly(database, lambda: action(uniform(0.2, 0.5)))
        except StoreBusy:
            if time.monotonic() >= deadline:
                raise
        time.sleep(uniform(0.01, 0.1))


def _certainly(database: Database, action: Callable[[], T]) -> T:
    """Run an idempotent action, again if the connection breaks: a row that was stored is known by its token.

    Once the outcome of a commit is unknown, this only reports what became of it.
    """
    deadline = time.monotonic() + PATIENCE
    doubt: CommitUncertain | None = None
    trouble: StoreError | None = None
    pause = 0.02
    while True:
        try:
            return action()
        except (CommitUncertain, ConnectionLost) as error:
            trouble = error
            if isinstance(error, CommitUncertain):
                doubt = doubt or error
        except StoreError as error:
            was_here = doubt is not None or (trouble is not None and not isinstance(error, StoreBusy))
            if not was_here:  # the database was unavailable from the start
                raise
            trouble = error
        if database.in_transaction or time.monotonic() >= deadline:
            raise doubt or trouble
        time.sleep(pause)
        pause = min(2 * pause, 0.5)
