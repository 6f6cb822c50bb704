"""What a store must do. Every engine implements `Store` and passes the same conformance suite.

Writes are plural and guarded: an attempt is named by its job's `seq`, the `version` of its claim and the
worker that holds it, and a write of an attempt that is over changes nothing. Instants are microseconds on
the store's own clock (`now`); delays and leases travel as durations in seconds.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import AbstractContextManager
from datetime import datetime
from enum import IntEnum
from typing import Any, Protocol

from msgspec import Struct

from holdfast.config import Value
from holdfast.core.job import Job, Status
from holdfast.core.lifecycle import Decision
from holdfast.errors import HoldfastError
from holdfast.store.prune import PrunePass


class NewJob(Struct, frozen=True, kw_only=True):
    """A job to be inserted. Waits for `delay` seconds, or until `run_at`, if either is given.

    `token` is random and tells our own row from another's when the outcome of a commit is unknown.
    """

    id: str
    type: str
    payload: str
    token: str
    priority: int = 0
    max_attempts: int | None = None
    key: str | None = None
    key_for: float | None = None
    run_at: int | None = None
    delay: float | None = None
    timeout: float | None = None
    parent_id: str | None = None
    max_depth: int | None = None
    has_new_id: bool = False
    """Whether its id was made for it just now, so that no other job can have it."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What became of one NewJob: inserted, found again by its key, or refused with an error."""

    id: str
    inserted: bool = False
    error: HoldfastError | None = None
    status: Status = Status.PENDING
    created_at: int = 0
    run_at: int | None = None


class Demand(Struct, frozen=True, kw_only=True):
    """How many jobs of a type a worker can take, and under which limits.

    A cap with the same name is shared: the types that name it are counted together.
    """

    type: str
    limit: int
    max_attempts: int
    pending: int = 0
    timeout: float | None = None
    rate: float = 0.0
    rate_name: str = ""
    max_running: int | None = None
    running_name: str = ""
    running_types: frozenset[str] = frozenset()


class Activity(Struct, frozen=True):
    """How many jobs of a type are pending and how many run, over all workers."""

    pending: int
    running: int


class Claim(Struct, frozen=True):
    """An attempt that a worker holds, with what it needs to run."""

    seq: int
    id: str
    type: str
    payload: str
    priority: int
    attempts: int
    max_attempts: int
    version: int
    timeout: float | None
    created_at: int
    due_at: int
    worker_id: str = ""


class Claimed(Struct, frozen=True):
    """The claims made, and in how many seconds a rate limit lets the next one through."""

    claims: list[Claim]
    wait: float | None = None
    limited: frozenset[str] = frozenset()
    """The types that had more to take, had a rate limit or max_running let it through."""


class Finish(Struct, frozen=True, kw_only=True):
    """The end of an attempt, to be written if the attempt still holds its job.

    `expired_only` is the reaper's guard: the lease must have run out as well. `may_be_locked` says that the
    attempt has been inside ctx.transaction(), and might still be.
    """

    seq: int
    version: int
    worker_id: str
    attempt: int
    decision: Decision
    started_at: int
    children: tuple[NewJob, ...] = ()
    expired_only: bool = False
    may_be_locked: bool = False


class Expired(Struct, frozen=True):
    """An attempt whose lease has run out."""

    seq: int
    id: str
    type: str
    version: int
    attempts: int
    max_attempts: int
    worker_id: str
    lease_expires_at: int
    started_at: int


class Beat(Struct, frozen=True):
    """What a heartbeat learned: the attempts that are no longer ours, and those to be cancelled.

    A worker that is not `registered` was silent for so long that the others forgot it.
    """

    lost: frozenset[tuple[int, int]]
    cancelled: frozenset[tuple[int, int]]
    registered: bool = True


RESTARTING = "restarting"
"""The state of a worker that has died and whose supervisor is about to start another."""


class WorkerRecord(Struct, frozen=True, kw_only=True):
    """A worker as the others see it. Its times are the database's to fill in.

    `slots` are those that its code gives a type, where that is fewer than its concurrency.
    """

    id: str
    host: str
    pid: int
    state: str
    concurrency: int
    types: tuple[str, ...]
    slots: dict[str, int] = {}
    started_at: datetime | None = None
    heartbeat_at: datetime | None = None
    turned_at: datetime | None = None
    """When its loop last came round: a heartbeat alone does not show that work goes on."""


class StopRequest(IntEnum):
    """What a worker was asked to do."""

    NONE = 0
    IN_ORDER = 1
    AT_ONCE = 2


class Running(Struct, frozen=True, kw_only=True):
    """An attempt that a worker holds, as people see it."""

    id: str
    type: str
    worker_id: str
    attempt: int
    started_at: datetime
    lease_expires_at: datetime
    cancel_requested: bool = False


class Waiting(Struct, frozen=True, kw_only=True):
    """A pending job and since when it could have run."""

    id: str
    type: str
    since: datetime


class ReusedKey(Struct, frozen=True, kw_only=True):
    """A key that several jobs of a type were given, one after another."""

    type: str
    key: str
    jobs: int


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was examined: `level` is ok, warning or problem, `advice` what to do about it."""

    level: str
    check: str
    text: str
    advice: str | None = None


class TypeRecord(Struct, frozen=True, kw_only=True):
    """A type that some worker has handled: how it runs and the JSON Schema of its payload."""

    type: str
    executor: str
    schema: dict[str, Any]


class LogTail(Struct, frozen=True):
    """The end of a job's output: on which machine the whole is, how long that was, and its last bytes."""

    host: str
    length: int
    tail: bytes


class Minute(Struct, kw_only=True):
    """What one worker did of one type in one minute. `waits` and `runs` count by BUCKETS."""

    minute: int
    type: str
    worker_id: str
    completed: int = 0
    failed: int = 0
    retried: int = 0
    reaped: int = 0
    wait_seconds: float = 0.0
    run_seconds: float = 0.0
    limited_seconds: float = 0.0
    waits: list[int]
    runs: list[int]

    def add(self, part: Minute) -> None:
        """Add another one's figures to these."""
        for name in (
            "completed", "failed", "retried", "reaped", "wait_seconds", "run_seconds", "limited_seconds"
        ):  # fmt: skip
            setattr(self, name, getattr(self, name) + getattr(part, name))
        self.waits = [a + b for a, b in zip(self.waits, part.waits, strict=True)]
        self.runs = [a + b for a, b in zip(self.runs, part.runs, strict=True)]


BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds in seconds of the wait and run time histograms; a last bucket holds what is longer."""


def empty_minute(minute: int, type: str, worker_id: str) -> Minute:
    size = len(BUCKETS) + 1
    return Minute(minute=minute, type=type, worker_id=worker_id, waits=[0] * size, runs=[0] * size)


HOUR = 60
"""Minutes of an hour."""

LIFETIME = 0
"""The minute under which pruned statistics are added up."""


CREATED, FINISHED_AT, PRIORITY = "created", "finished", "priority"
SORTS = (CREATED, FINISHED_AT, PRIORITY)
"""What a list may be sorted by."""


class Place(Struct, frozen=True, order=True):
    """Where a job stands in a list: by what the list is sorted by, then by its `seq`.

    The key is the instant of its end, its priority, or 0 in a list by creation.
    """

    key: int
    seq: int


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs to list, and in which order: the latest or highest first, unless `ascending`.

    `statuses` may hold RETRYING. `error` is a grouping key, and finds failed jobs only. `since` and `until`
    bound the creation, [since, until), or the end in a list by that, which holds finished jobs only. `after`
    continues after a place. With `brief` the payloads are left empty and the results None, and large ones
    cost nothing.
    """

    statuses: tuple[str, ...] = ()
    type: str | None = None
    parent_id: str | None = None
    error: str | None = None
    since: int | None = None
    until: int | None = None
    sort: str = CREATED
    ascending: bool = False
    limit: int = 50
    offset: int = 0
    after: Place | None = None
    brief: bool = False


class Placed(Struct, frozen=True):
    """A job and where it stands in the list that it was found in."""

    place: Place
    job: Job


class ErrorGroup(Struct, frozen=True, kw_only=True):
    """Failed jobs of a type whose errors are alike; `error` is the grouping key."""

    type: str
    error: str
    jobs: int
    last_at: datetime


class Line(Struct, frozen=True):
    """The jobs that wait before one: of its own type, counted to a cap, and whether the cap was reached."""

    ahead: int
    capped: bool


class Watch(Protocol):
    """Waits for changes that others commit. Used by one thread; `wake` may be called by any."""

    def wait(self, timeout: float) -> None:
        """Return when something may have changed, when woken, or after `timeout` seconds."""

    def changed(self) -> bool:
        """Whether another connection has committed since the last call."""

    def wake(self) -> None: ...

    def close(self) -> None: ...


class AttemptTransaction(Protocol):
    """A transaction of the handler's own that completes its job when it commits."""

    connection: Any

    def begin(self, check_wait: Callable[[], None] = lambda: None) -> None:
        """Open it, holding the job. Raises LeaseLost if the attempt no longer owns it.

        As long as the database has no connection or no lock for it, it waits and calls `check_wait`, which
        may raise.
        """

    def hold(self) -> None:
        """Let it expire no more. Raises TransactionExpired if it has."""

    def commit(
        self, decision: Decision, children: Sequence[NewJob], done: Callable[[], None] = lambda: None
    ) -> None:
        """Complete the job and commit what was written, both or neither; calls `done` as soon as it is so."""

    def rollback(self) -> None: ...


class Store(Protocol):
    """A queue's database."""

    url: str
    is_shared: bool
    """Whether workers on other machines may share it."""

    def now(self) -> int: ...

    def close(self) -> None: ...

    def close_thread(self) -> None:
        """Close what belongs to this thread alone, for a thread that ends before the store does."""

    def close_idle(self) -> None:
        """Leave to others the connections that nobody uses at the moment."""

    def transaction(self) -> AbstractContextManager[Any]:
        """Run several writes of this thread in one commit; entered again inside, it is the same one."""

    @property
    def in_transaction(self) -> bool:
        """Whether this thread is inside one."""

    def watch(self, *, for_work: bool = False) -> Watch:
        """For every change that others commit; with `for_work`, those that give a worker something to do
        are enough."""

    # Enqueue.

    def insert_jobs(
        self, jobs: Sequence[NewJob], *, atomic: bool = False, wait: bool = True
    ) -> list[Verdict]:
        """Insert jobs in one commit, each with its own verdict: one refusal does not touch the others.

        With `atomic`, one refusal means that none of them is inserted. Without `wait`, a job whose key or id
        somebody's open transaction is about to take is refused at once, with StoreBusy.
        """

    def insert_jobs_with(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        """The same, atomic, inside the caller's own transaction, which neither commits nor aborts by it."""

    async def insert_jobs_awaiting(self, connection: Any, jobs: Sequence[NewJob]) -> list[Verdict]:
        """The same through a connection that can only be awaited."""

    # The turn.

    def list_busy_types(self) -> set[str]:
        """The types that have a job that is pending, running or waiting for a retry."""

    def list_active_types(self, *, unpaused: bool = False) -> dict[str, Activity]:
        """The types that have pending or running jobs; with `unpaused`, only those that may start."""

    def claim_jobs(
        self, worker_id: str, demands: Sequence[Demand], *, limit: int, lease_seconds: float
    ) -> Claimed:
        """Take pending jobs: by priority, then in the order they came, within every limit. Paused types
        are left alone."""

    def finish_jobs(self, finishes: Sequence[Finish]) -> dict[tuple[int, int], Status]:
        """Write the ends of attempts; return the state each accepted one led to, by (seq, version).

        An attempt that no longer holds its job is left out, not raised: another worker owns that job now. One
        that would have to wait for somebody's open transaction, for its job or for its children, stays
        PROCESSING: it is to be offered again.
        """

    def finish_and_claim(
        self,
        finishes: Sequence[Finish],
        worker_id: str,
        demands: Sequence[Demand],
        *,
        limit: int,
        lease_seconds: float,
        meanwhile: Callable[[], None],
    ) -> tuple[dict[tuple[int, int], Status], Claimed]:
        """Both, without a pause between them if the ends are plain completions.

        `meanwhile` is called once, where there is a server while it is at work.
        """

    def list_ended(self, attempts: Sequence[tuple[int, int]]) -> dict[tuple[int, int], Status]:
        """Which of the (seq, version) have ended, and in which state their jobs are since."""

    def write_progress(
        self, worker_id: str, reports: Iterable[tuple[int, int, float, str | None]]
    ) -> Collection[int]:
        """Note (seq, version, fraction, message) of attempts that still hold their jobs.

        Returns the seqs of those that would have to wait for an open transaction: to be offered again.
        """

    def write_log_tail(self, claim: Claim, tail: LogTail) -> None:
        """Keep the end of an attempt's output, if the attempt still holds its job and `is_shared`."""

    def promote_jobs(self, limit: int) -> list[tuple[str, str]]:
        """Make due jobs pending, the most urgent first; return their (id, type)."""

    def next_due_at(self) -> int | None:
        """When the first scheduled job is due."""

    def list_expired(self) -> list[Expired]: ...

    def list_held(self, worker_id: str) -> list[Expired]:
        """The attempts that the database says a worker holds."""

    def prune_jobs(
        self,
        *,
        finished_before: int,
        statuses: Sequence[Status],
        limit: int,
        prune_pass: PrunePass | None = None,
    ) -> list[str]:
        """Delete up to `limit` finished jobs, but none that still holds its key; return their ids.

        A bounded number of jobs is read, so fewer than `limit` may be found before the pass is over.
        """

    # Leases and workers.

    def heartbeat(
        self,
        worker_id: str,
        held: Sequence[tuple[int, int]],
        *,
        state: str,
        lease_seconds: float,
        turn_age: float = 0.0,
        patience: float = math.inf,
    ) -> Beat:
        """Renew the leases of the (seq, version) held, and show that the worker lives.

        Its loop last came round `turn_age` seconds ago. It waits for a lock as long as the lease allows, but
        not longer than `patience`.
        """

    def suspect_jobs(self, claims: Sequence[tuple[int, int]]) -> None:
        """Note that a reaper has seen the leases of these (seq, version) expired; a renewal clears it."""

    def list_unsuspected(self, worker_id: str, held: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        """Those of the (seq, version) held that are the worker's still, and that no reaper has noticed.

        It tells a worker that can't write, because somebody holds the only write lock, that nobody else can
        take its jobs. None where others can write meanwhile.
        """

    def redate_leases(self, lease_seconds: float) -> None:
        """Let leases and heartbeats from the future begin now: the clock has been set back since.

        The leases that are meant reach further ahead than `lease_seconds`, and their workers were last heard
        of (or, where those are forgotten, their claims were made) in the future. The living renew anyway.
        """

    def list_cancelled(self, worker_id: str) -> set[tuple[int, int]]:
        """The (seq, version) of a worker's running attempts that are to be cancelled."""

    def register_worker(self, worker: WorkerRecord, types: Sequence[TypeRecord]) -> None: ...

    def remove_workers(self, worker_ids: Sequence[str]) -> None: ...

    def remove_silent_workers(self, silent_seconds: float) -> list[str]:
        """Forget workers that were not heard of for so long and hold no job."""

    def list_workers(self) -> list[WorkerRecord]: ...

    def request_stop(self, worker_ids: Sequence[str], request: StopRequest) -> None:
        """Ask workers to stop, wherever they run; a stronger request is not taken back by a weaker one."""

    def get_stop_request(self, worker_id: str) -> StopRequest: ...

    def list_types(self) -> list[TypeRecord]: ...

    def begin_attempt_transaction(self, claim: Claim, seconds: float) -> AttemptTransaction:
        """A transaction for a handler, not yet begun, which expires after `seconds`."""

    # Operating.

    def cancel_job(self, job_id: str) -> Job:
        """Cancel a waiting job now, or ask the worker of a running one."""

    def retry_job(self, job_id: str, payload: str | None, key: str | None = None) -> Job:
        """Make a job pending again, with another payload and key if they are given."""

    def retry_failed_jobs(
        self, type: str | None, *, after: int, limit: int
    ) -> tuple[int, list[tuple[str, str]], int | None]:
        """Retry up to `limit` failed jobs whose `seq` is above `after`, but for those whose key is held.

        Returns how many were looked at, the (id, type) of those retried, and where to go on, or None.
        """

    def delete_job(self, job_id: str) -> None: ...

    # Reading.

    def get_job(self, job_id: str) -> Job | None: ...

    def job_size(self, job_id: str) -> int:
        """Characters of a job's payload, result and details of failures; 0 if there is no such job."""

    def read_log_tail(self, job_id: str) -> LogTail | None: ...

    def get_jobs(self, job_ids: Sequence[str]) -> list[Job]:
        """Those of the jobs that exist, brief and without their history, in no order."""

    def list_jobs(self, filter: JobFilter) -> list[Job]:
        """The jobs that a filter finds, without their history."""

    def list_page(self, filter: JobFilter) -> tuple[list[Job], Place | None]:
        """The same, and the `after` of the page after it; None if there is none.

        However deep, a page costs the same, and no job that stays where it is is missed or shown twice.
        """

    def list_placed(self, filter: JobFilter) -> tuple[list[Placed], Place | None]:
        """The same, each job with its place."""

    def list_payloads(self, job_ids: Sequence[str]) -> dict[str, Any]:
        """The payloads of those of the jobs that exist."""

    def list_error_groups(self, limit: int) -> list[ErrorGroup]:
        """The failed jobs by type and error, the largest group first; not counted at this moment."""

    def count_jobs(self) -> dict[str, dict[Status, int]]:
        """Jobs by type and state; exact, and not counted at this moment."""

    def count_enqueued(self) -> dict[str, int]:
        """How many jobs of each type were ever inserted; never falls."""

    def list_children(self, parent_id: str) -> list[str]:
        """The ids of the jobs that a job enqueued, or was linked to."""

    def line_before(self, job_id: str, cap: int) -> Line: ...

    def count_matching(self, filter: JobFilter, cap: int) -> int:
        """How many jobs a filter finds, whatever its limit and offset; stops counting at `cap`."""

    def count_retrying(self) -> dict[str, int]:
        """Jobs that wait for a retry, by type."""

    def count_finished(self, since: int) -> dict[str, dict[Status, int]]:
        """Jobs that finished since then, by type and state."""

    def list_running(self, limit: int) -> list[Running]:
        """The running attempts, those first whose lease ends first."""

    def oldest_waiting(self) -> Waiting | None:
        """The pending job that has been ready to run for longest."""

    def list_reused_keys(self, limit: int) -> list[ReusedKey]: ...

    # Care.

    def check_place(self) -> None:
        """Raise DatabaseReplaced if the address leads to another database than the one that is open."""

    def back_up(self, path: str) -> None:
        """Write a complete copy of the database as it is now to a new file."""

    def measure(self) -> dict[str, float]:
        """Figures of the engine itself, by the name they have in metrics."""

    def examine(self) -> list[Finding]:
        """What an operator should know about the database and where it lives."""

    def write_reconciliation(self, report: str) -> None:
        """Keep the report of the last reconciliation."""

    def read_reconciliation(self) -> str | None: ...

    # Settings, pauses, statistics.

    def get_settings(self) -> dict[tuple[str, str], Value]:
        """Stored values by (name, type); the type is "" for the whole queue."""

    def set_setting(self, name: str, type: str, value: Value) -> None: ...

    def unset_setting(self, name: str, type: str) -> bool: ...

    def list_paused(self) -> dict[str, int]:
        """The paused types and since when; "" stands for all."""

    def set_paused(self, type: str, paused: bool) -> None: ...

    def get_rate_wait(self, name: str, rate: float) -> float:
        """Seconds until a rate limit lets the next start through."""

    def write_statistics(self, minutes: Sequence[Minute]) -> None:
        """Replace a worker's own rows by their new sums."""

    def list_statistics(self, since_minute: int) -> list[Minute]: ...

    def fold_hours(self, before_minute: int) -> None:
        """Add older rows up into one row per type and hour, which stands at the hour's first minute."""

    def fold_statistics(self, before_minute: int) -> None:
        """Add older rows up into one lifetime row per type."""
