"""What every worker does for all: promote due jobs, reap expired leases, prune, fold statistics.

Each duty runs inside the dispatcher's turn when it is due, so there is no extra writer. Any worker does
them; two at once do no harm, because every write is guarded.
"""

from __future__ import annotations

import time
from collections.abc import Sequence

from holdfast import events as e
from holdfast.core.clock import SECOND, microseconds, to_iso
from holdfast.core.job import Status
from holdfast.core.lifecycle import LeaseEnded, decide
from holdfast.core.settings import Settings
from holdfast.errors import WorkerLost
from holdfast.store.protocol import HOUR, Expired, Finish, Store
from holdfast.worker.statistics import Statistics

PROMOTE_BATCH = 1000
PRUNE_BATCH = 500
MINUTES_KEPT = HOUR
"""How long statistics are kept by the minute and worker."""

HOURS_KEPT = 48 * HOUR
"""How many minutes of them are kept by the hour, before they are only part of the lifetime's."""

_PRUNE_EVERY = 60.0


class Maintenance:
    """The duties of one worker. `run` belongs inside a turn's transaction, `announce` after its commit."""

    def __init__(self, store: Store, events: e.Events, statistics: Statistics) -> None:
        self._store = store
        self._events = events
        self._statistics = statistics
        self._reaper = Reaper(store)
        self._next_sweep = 0.0
        self._next_prune = time.monotonic() + _PRUNE_EVERY
        self._next_due_at: int | None = 0
        self._done: list[e.Event] = []

    def promotion_due(self) -> bool:
        """Whether a scheduled job is due, by what was last read."""
        return self._next_due_at is not None and self._next_due_at <= self._store.now()

    def sweep_due(self) -> bool:
        return time.monotonic() >= self._next_sweep

    def is_due(self) -> bool:
        """Whether `run` has anything to do."""
        return self.promotion_due() or self.sweep_due() or time.monotonic() >= self._next_prune

    def look(self) -> None:
        """Read when the next scheduled job is due: somebody may have changed it."""
        self._next_due_at = self._store.next_due_at()

    def seconds_until_due(self) -> float:
        """How long nothing here needs to be done."""
        waits = [self._next_sweep - time.monotonic()]
        if self._next_due_at is not None:
            waits.append((self._next_due_at - self._store.now()) / SECOND)
        return max(0.0, min(waits))

    def run(self, settings: Settings) -> None:
        """Do what is due."""
        self._done = []
        if self.promotion_due():
            promoted = self._store.promote_jobs(PROMOTE_BATCH)
            self._done += [e.JobPromoted(job_id=id, type=type) for id, type in promoted]
            self.look()
        if self.sweep_due():
            self._sweep(settings)
        if time.monotonic() >= self._next_prune:
            self._prune(settings)

    def forget(self) -> None:
        """What was done last was not committed."""
        self._done = []
        self._next_due_at = 0

    def announce(self) -> None:
        done, self._done = self._done, []
        for event in done:
            if isinstance(event, e.JobReaped):
                count_loss(self._statistics, event.type, Status(event.status), self._store.now())
            self._events.emit(event)

    def _sweep(self, settings: Settings) -> None:
        heartbeat = settings.heartbeat_seconds
        self._next_sweep = time.monotonic() + heartbeat
        for reaped, status in self._reaper.sweep(heartbeat, settings):
            self._done += events_of_loss(reaped, status)
        self._store.remove_silent_workers(max(60.0, 3 * settings.lease_seconds))

    def _prune(self, settings: Settings) -> None:
        now = self._store.now()
        began = time.monotonic()
        full = False
        for name, statuses in (
            ("retention_completed", (Status.COMPLETED, Status.CANCELLED)),
            ("retention_failed", (Status.FAILED,)),
        ):
            keep = settings.get(name)
            if keep is not None:
                pruned = self._store.prune_jobs(
                    finished_before=now - microseconds(keep), statuses=statuses, limit=PRUNE_BATCH
                )
                full = full or len(pruned) == PRUNE_BATCH
                if pruned:
                    self._done.append(e.JobsPruned(count=len(pruned), job_ids=pruned))
        minute = now // (60 * SECOND)
        self._store.fold_hours(minute - MINUTES_KEPT)
        self._store.fold_statistics(minute - HOURS_KEPT)
        # While there is more to prune, in small bites, which take a tenth of the time.
        took = time.monotonic() - began
        self._next_prune = time.monotonic() + (min(1.0, 10 * took) if full else _PRUNE_EVERY)


class Reaper:
    """Takes jobs from workers that are gone. It looks twice.

    An expired lease is taken only if the same claim was seen expired at least a heartbeat before, on this
    process's own monotonic clock. So a suspended laptop, a stepped clock or a long transaction of an
    application does not take jobs from the living: they renew in between.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._suspects: dict[tuple[int, int], float] = {}

    def sweep(self, patience: float, settings: Settings) -> list[tuple[Expired, Status]]:
        now = time.monotonic()
        expired = {(x.seq, x.version): x for x in self._store.list_expired()}
        self._suspects = {claim: self._suspects.get(claim, now) for claim in expired}
        proven = [expired[claim] for claim, seen in self._suspects.items() if now - seen >= patience]
        return reap(self._store, proven, settings, expired_only=True)


def reap(
    store: Store, attempts: Sequence[Expired], settings: Settings, *, expired_only: bool
) -> list[tuple[Expired, Status]]:
    """End attempts of a lost worker; return those that were still its own, with the state of each job."""
    finishes = []
    for lost in attempts:
        last_seen = to_iso(lost.lease_expires_at - microseconds(settings.lease_seconds))
        evidence = WorkerLost(lost.worker_id, last_seen)
        policy = settings.policy(lost.type, lost.max_attempts)
        decision = decide(lost.attempts, LeaseEnded(f"WorkerLost: {evidence}"), policy, 0.0)
        finishes.append(
            Finish(
                seq=lost.seq,
                version=lost.version,
                worker_id=lost.worker_id,
                attempt=lost.attempts,
                decision=decision,
                started_at=lost.started_at,
                expired_only=expired_only,
            )
        )
    ended = store.finish_jobs(finishes)
    freed = {name: status for name, status in ended.items() if status is not Status.PROCESSING}
    return [(x, freed[x.seq, x.version]) for x in attempts if (x.seq, x.version) in freed]


def events_of_loss(lost: Expired, status: Status) -> list[e.Event]:
    """What is to be told of an attempt that was taken from a lost worker."""
    name = {"job_id": lost.id, "type": lost.type, "worker_id": lost.worker_id}
    told: list[e.Event] = [e.JobReaped(**name, attempt=lost.attempts, status=status)]
    if status is Status.FAILED:
        error = "WorkerLost: its worker died, and no attempts are left"
        told.append(e.JobFailed(**name, attempt=lost.attempts, error=error))
    return told


def count_loss(statistics: Statistics, type: str, status: Status, now: int) -> None:
    statistics.count(type, "reaped", now)
    if status is Status.FAILED:
        statistics.count(type, "failed", now)
