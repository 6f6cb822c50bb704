"""Maintenance that every worker does for the whole queue: promote, reap, prune, fold statistics.

Each duty runs inside the dispatcher's turn when it is due, so there is no extra writer. Any worker can do it;
two at once are harmless, because every write is guarded.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any

from holdfast import events as e
from holdfast.core.clock import SECOND, microseconds, to_datetime
from holdfast.core.job import Status
from holdfast.core.lifecycle import Decision, LeaseEnded, decide
from holdfast.core.settings import Settings
from holdfast.errors import WorkerLost
from holdfast.store.open import store_of
from holdfast.store.protocol import Store
from holdfast.store.prune import PrunePass
from holdfast.store.records import Expired, Finish
from holdfast.system.start_marks import Started, read_started, remove_marks
from holdfast.worker.folding import Folder
from holdfast.worker.statistics import Statistics

if TYPE_CHECKING:
    from holdfast.queue import Queue

PROMOTE_BATCH = 1000
PRUNE_BATCH = 500
_CLOCK_ERROR = 0.005
"""Seconds by which our reading of the database's clock may be ahead of it."""

_PRUNE_EVERY = 60.0

_RETENTIONS = {
    "retention_completed": (Status.COMPLETED, Status.CANCELLED),
    "retention_failed": (Status.FAILED,),
}


class Maintenance:
    """The duties of one worker. `run` belongs inside a turn's transaction, `announce` after its commit."""

    def __init__(
        self,
        store: Store,
        events: e.Events,
        statistics: Statistics,
        held: Callable[[], Collection[tuple[int, int]]],
        is_steady: Callable[[], bool],
    ) -> None:
        self._store = store
        self._events = events
        self._is_steady = is_steady
        self._statistics = statistics
        self._reaper = Reaper(store, held)
        self._pruner = Pruner(store)
        self._folder = Folder(store)
        self._next_sweep = 0.0
        self._next_due_at: int | None = 0
        self._promote_from = 0.0
        self._done: list[e.Event] = []
        self._forgotten: list[str] = []

    def promotion_due(self) -> bool:
        """Whether a scheduled job is due, by what was last read."""
        if self._next_due_at is None or time.monotonic() < self._promote_from:
            return False
        return self._next_due_at <= self._store.now()

    def sweep_due(self) -> bool:
        return time.monotonic() >= self._next_sweep

    def is_due(self) -> bool:
        """Whether `run` has anything to do."""
        return self.promotion_due() or self.sweep_due() or self._pruner.is_due() or self._folder.is_due()

    def goes_on(self) -> bool:
        """Whether a prune or a fold has begun that is not at its end, or none has yet."""
        return self._pruner.goes_on or self._folder.goes_on

    def read_next_due(self) -> None:
        """Read when the next scheduled job is due: somebody may have changed it."""
        self._next_due_at = self._store.next_due_at()

    def seconds_until_due(self) -> float:
        """How long nothing here needs to be done."""
        waits = [min(self._next_sweep, self._pruner.next_at, self._folder.next_at) - time.monotonic()]
        if self._next_due_at is not None:
            due_in = (self._next_due_at - self._store.now()) / SECOND
            waits.append(max(due_in, self._promote_from - time.monotonic()))
        return max(0.0, min(waits))

    def run(self, settings: Settings) -> None:
        """Do what is due."""
        self._done = []
        if self.promotion_due():
            promoted = self._store.promote_jobs(PROMOTE_BATCH)
            self._done += [e.JobPromoted(job_id=id, type=type) for id, type in promoted]
            self.read_next_due()
            if not promoted:  # the database's own clock may not have come to it
                self._promote_from = time.monotonic() + _CLOCK_ERROR
        if self.sweep_due():
            self._sweep(settings)
        if self._pruner.is_due():
            pruned = self._pruner.prune(settings)
            if pruned:
                self._done.append(e.JobsPruned(count=len(pruned), job_ids=pruned))
        if self._folder.is_due():
            self._folder.fold()

    def forget(self) -> None:
        """The last `run` was not committed."""
        self._done, self._forgotten = [], []
        self._next_due_at = 0
        self._promote_from = 0.0
        self._reaper.forget()
        self._folder.forget()

    def announce(self) -> bool:
        """Tell what was committed. Returns whether there was anything to tell."""
        self._reaper.looked()
        while self._forgotten:
            remove_marks(self._forgotten.pop())
        done, self._done = self._done, []
        for event in done:
            if isinstance(event, e.JobReaped):
                count_loss(self._statistics, event.type, Status(event.status), self._store.now())
            self._events.emit(event)
        return bool(done)

    def _sweep(self, settings: Settings) -> None:
        heartbeat = settings.heartbeat_seconds
        self._next_sweep = time.monotonic() + heartbeat
        self._store.redate_leases(settings.lease_seconds)
        # The same lock may have kept the living from renewing: they come first.
        if self._is_steady():
            reaped = self._reaper.sweep(heartbeat, settings)
            for lost, status in reaped:
                self._done += events_of_loss(lost, status)
            if reaped:
                self.read_next_due()  # some of them wait
        self._forgotten += self._store.remove_silent_workers(max(60.0, 3 * settings.lease_seconds))


class Pruner:
    """Deletes finished jobs whose retention is over.

    In small batches, which take at most a tenth of the time until a pass is complete, so that others can
    write in between.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._passes: dict[str, PrunePass] = {}
        self.next_at = 0.0
        self.goes_on = True
        """Whether a pass has to be continued, or the first one started."""

    def is_due(self) -> bool:
        return time.monotonic() >= self.next_at

    def prune(self, settings: Settings) -> list[str]:
        """Delete one small batch; return the ids of the deleted jobs."""
        began = time.monotonic()
        pruned: list[str] = []
        if not self._passes:
            self._passes = {name: PrunePass() for name in _RETENTIONS}
        for name, prune_pass in list(self._passes.items()):
            keep = settings.get(name)
            if keep is not None:
                pruned += self._store.prune_jobs(
                    finished_before=self._store.now() - microseconds(keep),
                    statuses=_RETENTIONS[name],
                    limit=PRUNE_BATCH,
                    prune_pass=prune_pass,
                )
            if keep is None or prune_pass.is_over:
                del self._passes[name]
        self.goes_on = bool(self._passes)
        now = time.monotonic()
        self.next_at = now + (min(1.0, 10 * (now - began)) if self.goes_on else _PRUNE_EVERY)
        return pruned


_Lease = tuple[int, int, int]
"""The lease of an attempt, until it is renewed: seq, version, and when it ends."""


class Reaper:
    """Takes jobs from workers that are gone.

    It looks twice. An expired lease is taken only if the same lease was seen expired at least one heartbeat
    earlier, on this process's own monotonic clock. So a suspended laptop, a clock that was changed or an
    application's long transaction doesn't take jobs from live workers: they renew in between. The first look
    leaves a mark, for an owner that can read but not write, and counts from its commit; where it could leave
    none, it doesn't count. Jobs that this worker
    holds itself (`held`) are left out: a worker that sweeps is alive.
    """

    def __init__(
        self, store: Store, held: Callable[[], Collection[tuple[int, int]]] = frozenset[tuple[int, int]]
    ) -> None:
        self._store = store
        self._held = held
        self._suspects: dict[_Lease, float] = {}
        self._fresh: list[_Lease] = []

    def sweep(self, patience: float, settings: Settings) -> list[tuple[Expired, Status]]:
        now = time.monotonic()
        expired = {(x.seq, x.version, x.lease_expires_at): x for x in self._store.list_expired()}
        if expired:
            held = self._held()
            expired = {lease: x for lease, x in expired.items() if lease[:2] not in held}
        self._suspects = {lease: seen for lease, seen in self._suspects.items() if lease in expired}
        self._fresh = [lease for lease in expired if lease not in self._suspects]
        if self._fresh:
            marked = self._store.suspect_jobs([lease[:2] for lease in self._fresh])
            self._fresh = [lease for lease in self._fresh if lease[:2] in marked]
        proven = [expired[lease] for lease, seen in self._suspects.items() if now - seen >= patience]
        return reap(self._store, proven, settings, expired_only=True)

    def looked(self) -> None:
        """The last look was committed: from now on its owner can see it."""
        if self._fresh:
            self._suspects.update(dict.fromkeys(self._fresh, time.monotonic()))
            self._fresh = []

    def forget(self) -> None:
        """The last look was not committed."""
        self._fresh = []


def reap(
    store: Store, attempts: Sequence[Expired], settings: Settings, *, expired_only: bool
) -> list[tuple[Expired, Status]]:
    """End attempts of lost workers; return those that still belonged to them, with the state of each job.

    Attempts that had not started aren't counted. For workers of this host, their start marks tell which those
    are; for others, their last heartbeats do.
    """
    finishes = []
    worker_ids = {lost.worker_id for lost in attempts}
    started = {worker_id: read_started(worker_id) for worker_id in worker_ids}
    theirs = _settings_of(store, worker_ids, settings)
    for lost in attempts:
        last_seen = to_datetime(lost.lease_expires_at - microseconds(settings.lease_seconds))
        evidence = WorkerLost(lost.worker_id, f"{last_seen:%Y-%m-%d %H:%M:%S} UTC")
        policy = theirs.get(lost.worker_id, settings).policy(lost.type, lost.max_attempts)
        ending = LeaseEnded(f"WorkerLost: {evidence}", _has_started(lost, started[lost.worker_id]))
        decision = decide(lost.attempts, ending, policy, random.random())
        finishes.append(finish_held(lost, decision, expired_only=expired_only))
    ended = store.finish_jobs(finishes)
    freed = {name: status for name, status in ended.items() if status is not Status.PROCESSING}
    return [(x, freed[x.seq, x.version]) for x in attempts if (x.seq, x.version) in freed]


def _settings_of(store: Store, worker_ids: Collection[str], ours: Settings) -> dict[str, Settings]:
    """What the lost workers' own code says of the back-off, which we may not have loaded."""
    workers = store.list_workers() if worker_ids else []
    return {each.id: ours.as_said_by(each.backoffs) for each in workers if each.id in worker_ids}


def _has_started(lost: Expired, started: Started | None) -> bool | None:
    """Whether the handler had begun; None if nobody knows."""
    known = None if started is None else started.knows((lost.seq, lost.version))
    return (lost.has_started or None) if known is None else known


def finish_held(held: Expired, decision: Decision, *, expired_only: bool = False) -> Finish:
    """The end of an attempt that this process knows only from the database."""
    return Finish(
        seq=held.seq,
        type=held.type,
        version=held.version,
        worker_id=held.worker_id,
        attempt=held.attempts,
        decision=decision,
        started_at=held.started_at,
        expired_only=expired_only,
    )


def events_of_loss(lost: Expired, status: Status) -> list[e.Event]:
    """The event for an attempt that was taken from a lost worker."""
    name: dict[str, Any] = {"job_id": lost.id, "type": lost.type, "worker_id": lost.worker_id}
    told: list[e.Event] = [e.JobReaped(**name, attempt=lost.attempts, status=status)]
    if status is Status.FAILED:
        error = "WorkerLost: the worker died, and no attempts are left"
        told.append(e.JobFailed(**name, attempt=lost.attempts, error=error))
    return told


def count_loss(statistics: Statistics, type: str, status: Status, now: int) -> None:
    statistics.count(type, "reaped", now)
    if status is Status.FAILED:
        statistics.count(type, "failed", now)


def sweeper(queue: Queue) -> Callable[[], None]:
    """Maintenance for a queue without a worker: makes the jobs of dead workers available again."""
    reaper = Reaper(store_of(queue))

    def sweep() -> None:
        settings = queue.settings()
        reaper.sweep(settings.heartbeat_seconds, settings)
        reaper.looked()

    return sweep
