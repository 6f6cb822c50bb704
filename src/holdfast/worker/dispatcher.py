"""The dispatcher: one loop per process, the only code that claims and finishes jobs.

A turn is one transaction: write the outcomes gathered since the last turn, do the maintenance that is due,
claim as many jobs as can be started. So one fsync serves the whole batch, and a process is one writer instead
of many threads competing for the lock.

Between turns it sleeps until a handler ends, another process commits, or a known deadline arrives. While idle
it only reads; it writes when there is something to write.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from msgspec import Struct

from holdfast import events as e
from holdfast.context import LOST, Attempt
from holdfast.core.clock import lease_clock
from holdfast.core.settings import Settings
from holdfast.errors import DatabaseReplaced, QueueClosed, StoreError
from holdfast.store.records import Claimed, StopRequest
from holdfast.worker.claiming import Claiming
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.outbox import Outbox
from holdfast.worker.runner import GRACE, Runner
from holdfast.worker.slots import Slots
from holdfast.worker.trouble import Trouble
from holdfast.worker.turn import Turn

if TYPE_CHECKING:
    from holdfast.queue import Queue

SETTINGS_PAUSE = 0.25
MAX_BACK_OFF = 5.0
MAX_CLAIM = 10_000


class Options(Struct, frozen=True, kw_only=True):
    """A worker's options: see Worker."""

    concurrency: int | None = None
    types: Collection[str] | None = None
    batch_size: int | None = None
    recycle: bool = False
    drain: bool = False


class Dispatcher:
    """The loop of one worker process. `run` blocks; the other methods may be called by any thread."""

    def __init__(self, queue: Queue, worker_id: str, options: Options) -> None:
        self._queue = queue
        self._store = queue.store
        self._events = queue.events
        self._id = worker_id
        self._options = options
        self._settings = queue.refresh_settings()
        self._slots = Slots(options.concurrency or self._settings.get("concurrency"), self._cap)
        self._claiming = Claiming(queue, self._slots, options.types)
        self._watch = self._store.watch(for_work=True)
        self._outbox = Outbox()
        self.heartbeat = Heartbeat(worker_id, self._store, self._events, self)
        is_steady = self.heartbeat.is_steady
        self._turn = Turn(queue, worker_id, self._outbox, self._claiming, self._in_hand, is_steady)
        self._maintenance = self._turn.maintenance
        self._runner = Runner(queue, worker_id, self._slots, self._outbox, self._watch.wake)
        # The loop's own.
        self._stepped_at = time.monotonic()
        self._registered = -1
        self._settings_at = self._next_poll = 0.0
        self._rate_at = math.inf
        self._trouble = Trouble(worker_id, self._events)
        self._back_off = 0.0
        self._look = True
        self._settings_stale = True
        self.exhausted = False
        """Whether every slot, or every slot of a type, is held by a handler that would not stop."""
        self._closed = False
        # Set by other threads.
        self.paused = False
        self._stop_at: float | None = None
        self.ready = threading.Event()

    # For other threads.

    @property
    def cut_short(self) -> int:
        return self._runner.cut_short

    def stop(self, timeout: float | None = None) -> None:
        """Stop claiming, and let running jobs finish within `timeout` seconds; the rest are released."""
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

    def _note_progress(self, attempt: Attempt, fraction: float, message: str | None) -> None:
        if self._outbox.note_progress(attempt, fraction, message):
            self._watch.wake()

    def _known(self) -> set[tuple[int, int]]:
        """The (seq, version) of all attempts that this process has started or holds ready."""
        return self._runner.let_go | self._in_hand()

    def _in_hand(self) -> set[tuple[int, int]]:
        """The (seq, version) of all attempts that it has not given up."""
        return {attempt.name for attempt in self.leased()}

    def _cap(self, type: str) -> tuple[str, int]:
        found = self._settings.resolve("concurrency", type)
        return found.source, found.value if found.source else self._slots.concurrency

    # For the heartbeat.

    def lease_settings(self) -> Settings:
        return self._settings

    def state(self) -> str:
        return "stopping" if self._stop_at is not None else "paused" if self.paused else "running"

    def turn_age(self) -> float:
        return time.monotonic() - self._stepped_at

    def leased(self) -> list[Attempt]:
        # In the order that an attempt goes, so that one that moves on meanwhile is seen twice, not missed.
        held = self._slots.held()
        running = [attempt for attempt in self._slots.running() if not attempt.written_off]
        return [
            attempt
            for attempt in (*held, *running, *self._outbox.attempts())
            if not attempt.committed and attempt.stop_reason != LOST
        ]

    def lose(self, attempts: Sequence[Attempt]) -> None:
        self._runner.lose(attempts)
        self._watch.wake()

    def cancel(self, claims: Collection[tuple[int, int]]) -> None:
        self._runner.cancel(claims)
        self._watch.wake()

    def forget(self) -> None:
        self._registered = -1
        self._look = True
        self._watch.wake()

    # The loop.

    def run(self) -> None:
        """Work until stopped. Every job that this worker held is finished or released when it returns."""
        try:
            try:
                self._register()
            except StoreError as error:  # the lock is held, or the connection was lost: the loop does it
                self._cope_with(error)
            self.heartbeat.start()
            self._events.emit(
                e.WorkerStarted(worker_id=self._id, pid=os.getpid(), concurrency=self._slots.concurrency)
            )
            self.ready.set()
            self._step()
            while not self._is_done():
                self._sleep()
                self._step()
            self._leave()
        finally:
            self.heartbeat.stop()
            self.close()
            self._store.close_thread()

    def close(self) -> None:
        """Release the loop's resources."""
        self._runner.close()
        self._watch.close()

    def _step(self) -> None:
        """One iteration: a turn if needed, then deferred work, then timeouts and cancellations."""
        now = time.monotonic()
        if now >= self._back_off:
            self._work(now)
        self._enforce(now)
        self._stepped_at = time.monotonic()

    def _work(self, now: float) -> None:
        try:
            changed = self._watch.changed() or now >= self._next_poll
            self._look = self._look or changed
            if self._registered != self._queue.registry.generation:
                self._settings_stale = True
                self._settings_at = 0.0
                self._follow_settings(now)
            if self._sees_work(now) or self._turn_needed(now):
                self._take_turn()
                self._trouble.recovered()
            if changed:
                self._catch_up(now)
            self._follow_settings(now)
            if self._options.drain and self._stop_at is None and self._is_drained():
                self.stop()
        except StoreError as error:
            self._cope_with(error)

    def _enforce(self, now: float) -> None:
        self._runner.enforce(now)
        self._runner.give_back_held(now, everything=self.paused)
        if self._stop_at is not None:
            if not self._runner.winding_down:
                self.heartbeat.hurry()  # tells the others that we are stopping
            self._runner.wind_down(now, self._stop_at)
            return
        stuck = self._runner.stuck()
        before, self.exhausted = self.exhausted, bool(stuck) and self._slots.are_used_up_by(stuck)
        if self.exhausted and not before:
            self._events.emit(e.WorkerExhausted(worker_id=self._id, stuck=len(stuck)))
            if self._options.recycle:
                self.stop()

    def _catch_up(self, now: float) -> None:
        """Read what others may have changed, apart from pending jobs."""
        self._next_poll = now + float(self._settings.get("poll_interval"))
        self._settings_stale = True
        self._maintenance.look()
        if self._slots.running():
            self._runner.cancel(self._store.list_cancelled(self._id))
        request = self._store.get_stop_request(self._id)
        if request is not StopRequest.NONE:
            self.stop(0.0 if request is StopRequest.AT_ONCE else None)

    def _follow_settings(self, now: float) -> None:
        if not self._settings_stale or now < self._settings_at + SETTINGS_PAUSE:
            return
        self._settings_stale = False
        self._settings_at = now
        settings = self._queue.refresh_settings()
        if settings is not self._settings:
            self._settings = settings
            self._slots.concurrency = self._options.concurrency or int(settings.get("concurrency"))
            self._start_held()
            self.heartbeat.hurry()  # the lease may have become shorter
            self._look = True
        if self._registered != self._queue.registry.generation:
            self._register()

    def _turn_needed(self, now: float) -> bool:
        turn = self._turn
        return self._outbox.is_due(now) or turn.uncertain or turn.goes_on or self._maintenance.is_due()

    def _sees_work(self, now: float) -> bool:
        """Check, without writing, whether there is anything that this worker could claim now."""
        if now >= self._rate_at:
            self._rate_at = math.inf
            self._look = True
        if not self._look:
            return False
        self._look = False
        if not self._may_claim():
            return False
        self._turn.seen = self._store.list_active_types(unpaused=True)
        return bool(self._claiming.demands(self._turn.seen, self._settings))

    def _may_claim(self) -> bool:
        return self._stop_at is None and not self.paused

    def _take_turn(self) -> None:
        began = time.monotonic()
        leased_until = lease_clock() + self._settings.vouched_seconds
        claimed = self._turn.take(
            self._settings,
            claim_limit=(self._options.batch_size or MAX_CLAIM) if self._may_claim() else 0,
            known=self._known,
            meanwhile=self._proceed,
        )
        self._hold(claimed, began, leased_until)
        # Where a server does the work, there is time to run while it is at the next turn.
        if not self._store.is_shared or not self._is_pressed():
            self._proceed()
        self._turn.announce(claimed)
        if not self._store.is_shared:
            self._turn.seen = None  # what a subscriber enqueues in this thread, the watch does not see

    def _hold(self, claimed: Claimed, claimed_at: float, leased_until: float) -> None:
        """Hold ready what was claimed."""
        # A batch that came back full may have left more that could start.
        self._look = self._look or len(claimed.claims) == self._options.batch_size
        if claimed.wait is not None:
            self._rate_at = time.monotonic() + claimed.wait
        attempts = [
            self._claiming.attempt(claim, leased_until, self._note_progress) for claim in claimed.claims
        ]
        for attempt in attempts:
            attempt.claimed = claimed_at
        self._slots.hold(attempts)

    def _proceed(self) -> None:
        """Continue with the work that the last turn left for this process."""
        self._start_held()
        self._turn.count()

    def _start_held(self) -> None:
        """Start held jobs that have a free slot. While stopping or paused, release them instead."""
        if self._may_claim():
            self._runner.start_held()

    # Beginning, ending, trouble.

    def _register(self) -> None:
        generation = self._queue.registry.generation
        worker, types = self._claiming.describe_worker(self._id, self.state())
        self._store.register_worker(worker, types)
        self._registered = generation

    def _is_done(self) -> bool:
        if self._closed or self._stop_at is None:
            return self._closed
        # What can't be written long after the deadline is left to its lease.
        if time.monotonic() > self._stop_at + GRACE + float(self._settings.lease_seconds):
            return True
        is_written = self._outbox.is_done(self._stop_at, GRACE) and not self._slots.held()
        return is_written and self._runner.winding_down and self._runner.is_idle()

    def _is_drained(self) -> bool:
        """Whether nothing is left to do; jobs running here finish, even if their type is paused by now."""
        is_busy = not self._runner.is_idle() or self._outbox.is_filling() or self._maintenance.prunes_on()
        return not is_busy and self._claiming.is_drained()

    def _leave(self) -> None:
        try:
            self._turn.leave()
        except StoreError as error:
            self._trouble.tell(error, retry_in=0.0)
        self._events.emit(e.WorkerStopped(worker_id=self._id, released=self._runner.cut_short))

    def _cope_with(self, error: StoreError) -> None:
        if isinstance(error, DatabaseReplaced):  # this does not pass, and no outcome can be written any more
            self._runner.lose(self.leased())
            self._runner.enforce(time.monotonic())
            raise error
        if isinstance(error, QueueClosed):
            self._closed = True
            self._runner.cut_short += len(self.leased())  # left to their leases
            return
        longest = self._settings.lease_seconds / 6 if self.leased() else MAX_BACK_OFF
        self._back_off = time.monotonic() + self._trouble.back_off(error, longest)
        self._look = True

    def _is_pressed(self) -> bool:
        """Whether the next turn follows at once."""
        return self._outbox.is_filling() or self._turn.goes_on

    def _sleep(self) -> None:
        now = time.monotonic()
        if now < self._back_off or not self._is_pressed():
            self._proceed()
        if now < self._back_off:
            time.sleep(min(self._back_off - now, 0.05))
            return
        try:
            at_once = self._look or self._is_pressed()
            self._watch.wait(0.0 if at_once else self._seconds_to_sleep(now))
        except StoreError as error:
            self._cope_with(error)

    def _seconds_to_sleep(self, now: float) -> float:
        """Seconds until something has to be done even if nothing wakes us."""
        moments = [self._next_poll, self._rate_at, *self._outbox.moments(), *self._runner.moments()]
        if self._settings_stale:
            moments.append(self._settings_at + SETTINGS_PAUSE)
        if self._stop_at is not None:
            moments.append(self._stop_at if now < self._stop_at else now + 0.1)
        due = now + self._maintenance.seconds_until_due()
        return max(0.0, min(*moments, due) - now)
