"""The dispatcher: one loop a process, which alone claims and finishes.

A turn is one transaction: write the outcomes gathered since the last turn, do what maintenance is due, claim
as many jobs as can be started. So one fsync serves the whole batch, and a process is one writer instead of
many threads that fight for the lock. Between turns it sleeps until a handler ends, another process commits,
or a time it knows of has come. While idle it only looks; it writes when there is something to write.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from holdfast import events as e
from holdfast.context import CANCELLED, LOST, STOPPING, TIMED_OUT, Attempt
from holdfast.core.lifecycle import RELEASE, Released, Stopped
from holdfast.core.settings import Settings
from holdfast.errors import CommitUncertain, StoreError
from holdfast.store.protocol import Claimed, Finish, TypeRecord, WorkerRecord
from holdfast.worker.claiming import Claiming
from holdfast.worker.executors import Executor
from holdfast.worker.executors.loop import LoopExecutor
from holdfast.worker.executors.processes import ProcessExecutor
from holdfast.worker.executors.threads import ThreadExecutor
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.maintenance import Maintenance
from holdfast.worker.run import Committed, Ending, LetGo, timed_out
from holdfast.worker.settle import Ended, Settler
from holdfast.worker.slots import Slots
from holdfast.worker.statistics import Statistics

if TYPE_CHECKING:
    from holdfast.queue import Queue

PROGRESS_PAUSE = 0.25
SETTINGS_PAUSE = 0.25
STOP_GRACE = 5.0
"""Seconds that a handler has to end after it was really stopped, before its slot is written off."""

MAX_BACK_OFF = 30.0


class Dispatcher:
    """The loop of one worker process. `run` blocks; the other methods may be called by any thread."""

    def __init__(
        self,
        queue: Queue,
        worker_id: str,
        *,
        concurrency: int | None = None,
        types: Collection[str] | None = None,
        batch_size: int | None = None,
        recycle: bool = False,
    ) -> None:
        self._queue = queue
        self._store = queue.store
        self._events = queue.events
        self._id = worker_id
        self._own_concurrency = concurrency
        self._types = types
        self._batch_size = batch_size
        self._recycle = recycle
        self._settings = queue.refresh_settings()
        self._slots = Slots(concurrency or self._settings.get("concurrency"), self._cap)
        self._claiming = Claiming(queue.registry, queue, self._slots, types)
        self._statistics = Statistics(worker_id)
        self._settler = Settler(worker_id, self._store, self._events, self._statistics)
        self._maintenance = Maintenance(self._store, self._events, self._statistics)
        clock = self._store.now
        self._executors: dict[str, Executor] = {
            "thread": ThreadExecutor(clock, self._report, self._store),
            "async": LoopExecutor(clock, self._report, self._store),
            "process": ProcessExecutor(
                clock, self._report, self._store, url=queue.url, defaults=queue.defaults
            ),
        }
        self._heartbeat = Heartbeat(
            worker_id,
            self._store,
            self._events,
            settings=lambda: self._settings,
            state=self._state,
            held=self._leased,
            lost=self._note_lost,
            cancelled=self._note_cancelled,
        )
        # Filled by other threads, emptied by the loop.
        self._inbox: deque[Ended] = deque()
        self._lost: deque[Attempt] = deque()
        self._cancelled: deque[tuple[int, int]] = deque()
        self._progress: dict[int, tuple[int, int, float, str | None]] = {}
        self._progress_lock = threading.Lock()
        # The loop's own.
        self._unwritten: list[Ended] = []
        self._uncertain = False
        self._registered = -1
        self._settings_at = self._progress_at = self._next_poll = 0.0
        self._rate_at: float | None = None
        self._back_off = 0.0
        self._look = True
        self._announced_stop = False
        self._exhausted = False
        # Set by other threads.
        self.paused = False
        self._stop_at: float | None = None
        self.cut_short = 0
        self.ready = threading.Event()
        self._watch = self._store.watch()

    # For other threads.

    def stop(self, timeout: float | None = None) -> None:
        """Stop claiming and finish what runs within `timeout` seconds; what is left then is released."""
        seconds = float(self._settings.get("shutdown_timeout")) if timeout is None else timeout
        deadline = time.monotonic() + seconds
        self._stop_at = deadline if self._stop_at is None else min(self._stop_at, deadline)
        self._watch.wake()

    def set_paused(self, paused: bool) -> None:
        self.paused = paused
        self._look = True
        kind = e.WorkerPaused if paused else e.WorkerResumed
        self._events.emit(kind(worker_id=self._id))
        self._watch.wake()

    def _report(self, attempt: Attempt, ending: Ending) -> Attempt | None:
        """A handler has ended, in its own thread. Returns the attempt this thread may run next."""
        end = Ended(attempt, ending)
        if not attempt.written_off:
            self._inbox.append(end)
        following = self._slots.free(attempt, end.seconds)
        self._watch.wake()
        if following is None:
            return None
        if following.handler.executor == attempt.handler.executor:
            return following
        self._executors[following.handler.executor].start(following)
        return None

    def _note_progress(self, attempt: Attempt, fraction: float, message: str | None) -> None:
        claim = attempt.claim
        with self._progress_lock:
            first = not self._progress
            self._progress[claim.seq] = (claim.seq, claim.version, fraction, message)
        if first:
            self._watch.wake()

    def _note_lost(self, attempts: Sequence[Attempt]) -> None:
        self._lost.extend(attempts)
        self._watch.wake()

    def _note_cancelled(self, claims: Collection[tuple[int, int]]) -> None:
        self._cancelled.extend(claims)
        self._watch.wake()

    def _leased(self) -> list[Attempt]:
        """All attempts whose jobs the database says are ours."""
        running = [a for a in self._slots.running() if not a.written_off and not a.committed]
        ended = [end.attempt for end in (*list(self._unwritten), *list(self._inbox))]
        return [*running, *self._slots.held(), *(a for a in ended if not a.committed)]

    def _state(self) -> str:
        return "stopping" if self._stop_at is not None else "paused" if self.paused else "running"

    def _cap(self, type: str) -> int:
        found = self._settings.resolve("concurrency", type)
        return int(found.value or 1) if found.source else self._slots.concurrency

    # The loop.

    def run(self) -> None:
        """Work until stopped. Every job that this worker held is finished or released when it returns."""
        try:
            self._register()
            self._heartbeat.start()
            self._events.emit(
                e.WorkerStarted(worker_id=self._id, pid=os.getpid(), concurrency=self._slots.concurrency)
            )
            self.ready.set()
            self._step()
            while not self._is_done():
                self._watch.wait(self._seconds_to_sleep())
                self._step()
            self._leave()
        finally:
            self.ready.set()
            self._heartbeat.stop()
            for executor in self._executors.values():
                executor.close()
            self._watch.close()
            self._store.close_thread()

    def _step(self) -> None:
        """One round: what others asked for, what the clock says, then a turn if there is reason for one."""
        now = time.monotonic()
        if now < self._back_off:
            self._enforce(now)
            return
        try:
            self._refresh(now)
            self._enforce(now)
            if self._turn_needed(now):
                self._turn()
                self._recovered()
        except StoreError as error:
            self._trouble(error)

    def _refresh(self, now: float) -> None:
        """Follow what others changed, at most as often as it can matter."""
        changed = self._watch.changed()
        if not (changed or now >= self._next_poll or self._look):
            return
        self._next_poll = now + float(self._settings.get("poll_interval"))
        self._look = True
        self._maintenance.look()
        if self._slots.running():
            self._cancelled.extend(self._store.list_cancelled(self._id))
        if now >= self._settings_at + SETTINGS_PAUSE:
            self._settings_at = now
            self._follow(self._queue.refresh_settings())

    def _follow(self, settings: Settings) -> None:
        self._settings = settings
        self._slots.concurrency = self._own_concurrency or int(settings.get("concurrency"))
        if self._registered != self._queue.registry.generation:
            self._register()
        self._start(self._slots.refill())

    def _turn_needed(self, now: float) -> bool:
        if self._unwritten or self._inbox or self._uncertain:
            return True
        if self._progress and now >= self._progress_at:
            return True
        if self._maintenance.promotion_due() or self._maintenance.sweep_due():
            return True
        if self._rate_at is not None and now >= self._rate_at:
            self._rate_at = None
            self._look = True
        look, self._look = self._look, False
        return look and self._may_claim() and self._anything_ready()

    def _anything_ready(self) -> bool:
        """A look without a write: is there a job that this worker could take now?"""
        demands = self._claiming.demands(self._store.list_active_types(), self._settings)
        if not demands:
            return False
        paused = self._store.list_paused()
        return "" not in paused and any(demand.type not in paused for demand in demands)

    def _may_claim(self) -> bool:
        return self._stop_at is None and not self.paused and not self._exhausted

    # The turn.

    def _turn(self) -> None:
        self._slots.measure()
        while self._inbox:
            self._unwritten.append(self._inbox.popleft())
        ended = self._unwritten
        with self._progress_lock:
            progress, self._progress = self._progress, {}
        settings = self._settings
        claimed_at = time.monotonic()
        try:
            with self._store.transaction():
                if self._uncertain:
                    self._release_unknown()
                # Finish before claiming: an outcome is durable before anything new is taken.
                accepted = self._settler.write(ended, settings)
                if progress:
                    self._store.write_progress(self._id, progress.values())
                self._maintenance.run(settings)
                minutes = self._statistics.changed()
                if minutes:
                    self._store.write_statistics(minutes)
                claimed = self._claim(settings) if self._may_claim() else Claimed([])
        except CommitUncertain:
            self._uncertain = True
            raise
        self._uncertain = False
        self._unwritten = []
        if progress:
            self._progress_at = time.monotonic() + PROGRESS_PAUSE
        if minutes:
            self._statistics.written(self._store.now())
        self._begin(claimed, claimed_at)
        self._settler.announce(ended, accepted)
        self._maintenance.announce()
        self._announce_claims(claimed)

    def _claim(self, settings: Settings) -> Claimed:
        limit = self._slots.total_room()
        if self._batch_size is not None:
            limit = min(limit, self._batch_size)
        if limit <= 0:
            return Claimed([])
        demands = self._claiming.demands(self._store.list_active_types(), settings)
        return self._store.claim_jobs(self._id, demands, limit=limit, lease_seconds=settings.lease_seconds)

    def _begin(self, claimed: Claimed, claimed_at: float) -> None:
        """Start what was claimed, or hold it ready."""
        if claimed.wait is not None:
            self._rate_at = time.monotonic() + claimed.wait
        if not claimed.claims:
            return
        attempts = []
        for claim in claimed.claims:
            attempt = self._claiming.attempt(claim)
            attempt.leased = claimed_at
            attempt.on_progress = self._note_progress
            attempts.append(attempt)
        self._start(self._slots.hold(attempts))

    def _announce_claims(self, claimed: Claimed) -> None:
        if claimed.claims and self._events.wanted(e.JobClaimed):
            for claim in claimed.claims:
                self._events.emit(
                    e.JobClaimed(job_id=claim.id, type=claim.type, attempt=claim.attempts, worker_id=self._id)
                )

    def _start(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            self._executors[attempt.handler.executor].start(attempt)

    def _release_unknown(self) -> None:
        """After a commit in doubt: give back what the database says is ours and we know nothing of."""
        known = {(a.claim.seq, a.claim.version) for a in self._leased()}
        unknown = [h for h in self._store.list_held(self._id) if (h.seq, h.version) not in known]
        self._store.finish_jobs(
            [
                Finish(
                    seq=held.seq,
                    version=held.version,
                    worker_id=self._id,
                    attempt=held.attempts,
                    decision=RELEASE,
                    started_at=held.started_at,
                )
                for held in unknown
            ]
        )

    # Stopping attempts.

    def _enforce(self, now: float) -> None:
        """Timeouts, cancellations, lost leases, shutdown: whatever ends an attempt from outside."""
        while self._lost:
            self._let_go(self._lost.popleft())
        if self._cancelled:
            self._cancel({self._cancelled.popleft() for _ in range(len(self._cancelled))})
        for attempt in self._slots.running():
            if attempt.written_off:
                continue
            if attempt.deadline is not None and now >= attempt.deadline:
                self._interrupt(attempt, TIMED_OUT, now)
            if attempt.interrupted_at is not None and now >= attempt.interrupted_at + STOP_GRACE:
                self._write_off(attempt)
        if self._stop_at is not None:
            self._wind_down(now, self._stop_at)

    def _interrupt(self, attempt: Attempt, reason: str, now: float, *, last_call: bool = False) -> None:
        if attempt.written_off or (attempt.interrupted_at is not None and attempt.stop_reason == reason):
            return
        attempt.stop_reason = reason
        if self._executors[attempt.handler.executor].interrupt(attempt):
            attempt.interrupted_at = attempt.interrupted_at or now
        elif reason != CANCELLED or last_call:  # a cancelled thread goes on to its next ctx.check()
            self._write_off(attempt)

    def _write_off(self, attempt: Attempt) -> None:
        """End the attempt without its handler, which keeps the slot until it returns."""
        attempt.written_off = True
        reason = attempt.stop_reason or STOPPING
        ending: Ending
        if attempt.committed:
            ending = Committed()
        elif reason == TIMED_OUT:
            ending = timed_out(attempt)
        elif reason == LOST:
            ending = LetGo()
        else:
            ending = Stopped() if reason == CANCELLED else Released()
        self._inbox.append(Ended(attempt, ending))
        claim = attempt.claim
        if reason != STOPPING:
            self._events.emit(
                e.HandlerStuck(job_id=claim.id, type=claim.type, worker_id=self._id, reason=reason)
            )
        stuck = sum(a.written_off for a in self._slots.running())
        if stuck >= self._slots.concurrency and not self._exhausted and self._stop_at is None:
            self._exhausted = True
            self._events.emit(e.WorkerExhausted(worker_id=self._id, stuck=stuck))
            if self._recycle:
                self.stop()

    def _let_go(self, attempt: Attempt) -> None:
        if attempt.committed or self._slots.take_back(lambda held: held is attempt):
            return
        if any(running is attempt for running in self._slots.running()):
            self._interrupt(attempt, LOST, time.monotonic())

    def _cancel(self, claims: Collection[tuple[int, int]]) -> None:
        def chosen(attempt: Attempt) -> bool:
            return (attempt.claim.seq, attempt.claim.version) in claims

        self._inbox.extend(Ended(attempt, Stopped()) for attempt in self._slots.take_back(chosen))
        for attempt in self._slots.running():
            if chosen(attempt) and attempt.stop_reason != CANCELLED:
                self._interrupt(attempt, CANCELLED, time.monotonic())

    def _wind_down(self, now: float, deadline: float) -> None:
        if not self._announced_stop:
            self._announced_stop = True
            running = self._slots.running()
            self._events.emit(e.WorkerStopping(worker_id=self._id, running=len(running)))
            for attempt in running:
                if attempt.stop_reason is None:
                    attempt.stop_reason = STOPPING
                    self._executors[attempt.handler.executor].ask(attempt)
        # Held but not started: given back at once, nothing was begun.
        self._inbox.extend(Ended(attempt, Released()) for attempt in self._slots.take_back(lambda _: True))
        if now >= deadline:
            for attempt in self._slots.running():
                if attempt.interrupted_at is None and not attempt.written_off:
                    self.cut_short += 1
                    self._interrupt(attempt, attempt.stop_reason or STOPPING, now, last_call=True)

    # Beginning, ending, trouble.

    def _register(self) -> None:
        generation = self._queue.registry.generation
        handlers = [h for h in self._queue.registry.handlers() if self._claiming.served(h.type)]
        served = {handler.type for handler in handlers} | (set(self._types or ()) if self._types else set())
        record = WorkerRecord(
            id=self._id,
            host=socket.gethostname(),
            pid=os.getpid(),
            state=self._state(),
            concurrency=self._slots.concurrency,
            types=tuple(sorted(served)),
        )
        types = [TypeRecord(type=h.type, executor=h.executor, schema=h.spec.schema()) for h in handlers]
        self._store.register_worker(record, types)
        self._registered = generation

    def _is_done(self) -> bool:
        busy = self._inbox or self._unwritten or self._slots.held()
        working = any(not attempt.written_off for attempt in self._slots.running())
        if self._stop_at is None:
            return False
        # What can't be written long after the deadline is left to its lease.
        given_up = time.monotonic() > self._stop_at + STOP_GRACE + float(self._settings.lease_seconds)
        return given_up or (self._announced_stop and not busy and not working)

    def _leave(self) -> None:
        minutes = self._statistics.changed()
        try:
            with self._store.transaction():
                if minutes:
                    self._store.write_statistics(minutes)
                self._store.remove_workers([self._id])
        except StoreError as error:
            self._events.emit(e.StoreTrouble(worker_id=self._id, error=str(error), retry_in=0.0))
        self._events.emit(e.WorkerStopped(worker_id=self._id, released=self.cut_short))

    def _trouble(self, error: StoreError) -> None:
        holds = bool(self._leased())
        longest = self._settings.lease_seconds / 6 if holds else MAX_BACK_OFF
        self._pause = min(longest, max(0.05, 2 * self._pause))
        self._back_off = time.monotonic() + self._pause
        self._look = True
        self._events.emit(e.StoreTrouble(worker_id=self._id, error=str(error), retry_in=self._pause))

    _pause = 0.0

    def _recovered(self) -> None:
        if self._pause:
            self._pause = self._back_off = 0.0
            self._events.emit(e.StoreRecovered(worker_id=self._id))

    def _seconds_to_sleep(self) -> float:
        """Until the next moment that something is to be done without anybody waking us."""
        now = time.monotonic()
        if now < self._back_off:
            return min(self._back_off - now, 0.25)
        moments = [self._next_poll]
        if self._progress:
            moments.append(self._progress_at)
        if self._rate_at is not None:
            moments.append(self._rate_at)
        for attempt in self._slots.running():
            if attempt.written_off:
                continue
            if attempt.deadline is not None and attempt.stop_reason != TIMED_OUT:
                moments.append(attempt.deadline)
            if attempt.interrupted_at is not None:
                moments.append(attempt.interrupted_at + STOP_GRACE)
        if self._stop_at is not None:
            moments.append(self._stop_at if now < self._stop_at else now + 0.1)
        due = now + self._maintenance.seconds_until_due()
        return max(0.0, min(*moments, due) - now)
