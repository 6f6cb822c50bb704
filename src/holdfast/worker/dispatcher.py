"""The dispatcher: one loop a process, which alone claims and finishes.

A turn is one transaction: write the outcomes gathered since the last turn, do what maintenance is due, claim
as many jobs as can be started. So one fsync serves the whole batch, and a process is one writer instead of
many threads that fight for the lock. Between turns it sleeps until a handler ends, another process commits,
or a time it knows of has come. While idle it only looks; it writes when there is something to write.
"""

from __future__ import annotations

import os
import threading
import time
from collections import Counter, deque
from collections.abc import Collection, Sequence
from contextvars import Context
from typing import TYPE_CHECKING

from holdfast import events as e
from holdfast.context import LOST, Attempt
from holdfast.core.clock import lease_clock
from holdfast.core.job import Status
from holdfast.core.lifecycle import Errored, Released
from holdfast.errors import DatabaseReplaced, QueueClosed, StoreError
from holdfast.store.protocol import Claimed, StopRequest
from holdfast.store.scope import handler_of
from holdfast.worker.claiming import Claiming
from holdfast.worker.enforce import GRACE, Enforcer
from holdfast.worker.executors import Executor
from holdfast.worker.executors.loop import LoopExecutor
from holdfast.worker.executors.processes import ProcessExecutor
from holdfast.worker.executors.threads import ThreadExecutor
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.maintenance import Maintenance
from holdfast.worker.registration import describe_worker
from holdfast.worker.run import Ending, LetGo, describe, ending_despite_error
from holdfast.worker.settle import Ended
from holdfast.worker.slots import Slots
from holdfast.worker.statistics import Statistics
from holdfast.worker.turn import Turn

if TYPE_CHECKING:
    from holdfast.queue import Queue

PROGRESS_PAUSE = 0.25
SETTINGS_PAUSE = 0.25
MAX_BACK_OFF = 5.0
HELD_UP_PAUSE = 1.0
"""Seconds after which an outcome that has to wait for somebody's transaction is offered again."""
MAX_CLAIM = 10_000


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
        drain: bool = False,
    ) -> None:
        self._queue = queue
        self._store = queue.store
        self._events = queue.events
        self._id = worker_id
        self._own_concurrency = concurrency
        self._types = types
        self._batch_size = batch_size
        self._recycle = recycle
        self._drain = drain
        self._settings = queue.refresh_settings()
        self._slots = Slots(concurrency or self._settings.get("concurrency"), self._cap)
        self._claiming = Claiming(queue.registry, queue, self._slots, types)
        statistics = Statistics(worker_id)
        self._maintenance = Maintenance(
            self._store, self._events, statistics, self._in_hand, lambda: self._heartbeat.is_steady()
        )
        self._turn = Turn(
            worker_id, self._store, self._events, self._claiming, self._slots, self._maintenance, statistics
        )
        clock = self._store.now
        context = Context()
        context.run(handler_of.set, worker_id)
        self._executors: dict[str, Executor] = {
            "thread": ThreadExecutor(clock, self._report, self._store, context=context),
            "async": LoopExecutor(clock, self._report, self._store, context),
            "process": ProcessExecutor(
                clock, self._report, self._store, url=queue.url, defaults=queue.defaults
            ),
        }
        # Filled by other threads, emptied by the loop.
        self._inbox: deque[Ended] = deque()
        self._progress: dict[int, tuple[int, int, float, str | None]] = {}
        self._progress_lock = threading.Lock()
        self._enforcer = Enforcer(worker_id, self._slots, self._executors, self._events, self._inbox)
        self._heartbeat = Heartbeat(
            worker_id,
            self._store,
            self._events,
            settings=lambda: self._settings,
            state=self._state,
            turn_age=lambda: time.monotonic() - self._stepped_at,
            held=self._leased,
            lost=self._lose,
            cancelled=self._cancel,
            forgotten=self._forget,
        )
        # The loop's own.
        self._stepped_at = time.monotonic()
        self._unwritten: list[Ended] = []
        self._held_up: list[Ended] = []
        self._held_up_until = 0.0
        self._registered = -1
        self._settings_at = self._progress_at = self._next_poll = 0.0
        self._rate_at: float | None = None
        self._back_off = self._pause = 0.0
        self._look = True
        self._settings_stale = True
        self.exhausted = False
        """Whether every slot, or every one of a type, is held by a handler that would not stop."""
        self._closed = False
        # Set by other threads.
        self.paused = False
        self._stop_at: float | None = None
        self.ready = threading.Event()
        self._watch = self._store.watch(for_work=True)

    # For other threads.

    @property
    def cut_short(self) -> int:
        return self._enforcer.cut_short

    def stop(self, timeout: float | None = None) -> None:
        """Stop claiming and finish what runs within `timeout` seconds; what is left then is released."""
        seconds = float(self._settings.get("shutdown_timeout")) if timeout is None else timeout
        deadline = time.monotonic() + seconds
        self._stop_at = deadline if self._stop_at is None else min(self._stop_at, deadline)
        self._watch.wake()

    def is_heartbeat_thread(self) -> bool:
        return self._heartbeat.is_current_thread()

    def set_paused(self, paused: bool) -> None:
        self.paused = paused
        self._look = True
        kind = e.WorkerPaused if paused else e.WorkerResumed
        self._events.emit(kind(worker_id=self._id))
        self._watch.wake()

    def _report(self, attempt: Attempt, ending: Ending) -> Attempt | None:
        """A handler has ended, in its own thread. Returns the attempt this thread may run next."""
        following = self._end(attempt, ending)
        if following is None or following.handler.executor == attempt.handler.executor:
            return following
        self._start([following])
        return None

    def _end(self, attempt: Attempt, ending: Ending) -> Attempt | None:
        """Returns the attempt to start in the slot that is free now."""
        if attempt.interrupted_at is not None:
            ending = ending_despite_error(attempt, ending)
        end = Ended(attempt, ending)
        if isinstance(ending, LetGo):
            self._enforcer.let_go.add((attempt.claim.seq, attempt.claim.version))
        elif not attempt.written_off:
            self._inbox.append(end)
        # What was given back says nothing of the pace of its type.
        following = self._slots.free(attempt, None if isinstance(ending, Released) else end.seconds)
        self._watch.wake()
        return following

    def _note_progress(self, attempt: Attempt, fraction: float, message: str | None) -> None:
        claim = attempt.claim
        with self._progress_lock:
            first = not self._progress
            self._progress[claim.seq] = (claim.seq, claim.version, fraction, message)
        if first:
            self._watch.wake()

    def _lose(self, attempts: Sequence[Attempt]) -> None:
        self._enforcer.lose(attempts)
        self._watch.wake()

    def _cancel(self, claims: Collection[tuple[int, int]]) -> None:
        self._enforcer.cancel(claims)
        self._watch.wake()

    def _forget(self) -> None:
        self._registered = -1
        self._look = True
        self._watch.wake()

    def _leased(self) -> list[Attempt]:
        """All attempts whose jobs the database says are ours."""
        # In the order that an attempt goes, so that one that moves on meanwhile is seen twice, not missed.
        held = self._slots.held()
        running = [attempt for attempt in self._slots.running() if not attempt.written_off]
        waiting = list(self._held_up)  # these go back, so they are looked at on both sides
        waiting += (*list(self._inbox), *list(self._unwritten), *list(self._held_up))
        ended = [end.attempt for end in waiting]
        return [
            attempt
            for attempt in (*held, *running, *ended)
            if not attempt.committed and attempt.stop_reason != LOST
        ]

    def _known(self) -> set[tuple[int, int]]:
        """The (seq, version) of all attempts that this process has taken into hand."""
        return self._enforcer.let_go | self._in_hand()

    def _in_hand(self) -> set[tuple[int, int]]:
        """The (seq, version) of all that it has not let go."""
        return {(attempt.claim.seq, attempt.claim.version) for attempt in self._leased()}

    def _state(self) -> str:
        return "stopping" if self._stop_at is not None else "paused" if self.paused else "running"

    def _cap(self, type: str) -> tuple[str, int]:
        found = self._settings.resolve("concurrency", type)
        return found.source, found.value if found.source else self._slots.concurrency

    # The loop.

    def run(self) -> None:
        """Work until stopped. Every job that this worker held is finished or released when it returns."""
        try:
            try:
                self._register()
            except StoreError as error:  # the lock is held, or the connection was lost: the loop does it
                self._trouble(error)
            self._heartbeat.start()
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
            self._heartbeat.stop()
            for executor in self._executors.values():
                executor.close()
            self._watch.close()
            self._store.close_thread()

    def _step(self) -> None:
        """One round: a turn if there is reason for one, then what can wait, and what ends from outside."""
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
                self._recovered()
            if changed:
                self._catch_up(now)
            self._follow_settings(now)
            if self._drain and self._stop_at is None and self._is_drained():
                self.stop()
        except StoreError as error:
            self._trouble(error)

    def _enforce(self, now: float) -> None:
        self._enforcer.enforce(now)
        self._enforcer.give_back_held(now, everything=self.paused)
        if self._stop_at is not None:
            if not self._enforcer.winding_down:
                self._heartbeat.hurry()  # tells the others that we are stopping
            self._enforcer.wind_down(now, self._stop_at)
            return
        stuck = self._enforcer.stuck()
        before, self.exhausted = self.exhausted, bool(stuck) and self._is_exhausted(stuck)
        if self.exhausted and not before:
            self._events.emit(e.WorkerExhausted(worker_id=self._id, stuck=len(stuck)))
            if self._recycle:
                self.stop()

    def _is_exhausted(self, stuck: Sequence[Attempt]) -> bool:
        """Whether handlers that would not stop hold every slot, or every slot of some type."""
        by_cap = Counter(attempt.cap for attempt in stuck)
        return len(stuck) >= self._slots.concurrency or any(
            by_cap[attempt.cap] >= self._cap(attempt.claim.type)[1] for attempt in stuck
        )

    def _catch_up(self, now: float) -> None:
        """Read what others may have changed beside the jobs that are ready."""
        self._next_poll = now + float(self._settings.get("poll_interval"))
        self._settings_stale = True
        self._maintenance.look()
        if self._slots.running():
            self._enforcer.cancel(self._store.list_cancelled(self._id))
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
            self._slots.concurrency = self._own_concurrency or int(settings.get("concurrency"))
            self._start_held()
            self._heartbeat.hurry()  # the lease may have become shorter
            self._look = True
        if self._registered != self._queue.registry.generation:
            self._register()

    def _turn_needed(self, now: float) -> bool:
        if self._unwritten or self._inbox or self._turn.uncertain or self._turn.goes_on:
            return True
        if self._held_up and now >= self._held_up_until:
            return True
        if self._progress and now >= self._progress_at:
            return True
        return self._maintenance.is_due()

    def _sees_work(self, now: float) -> bool:
        """A look without a write: whether there is anything that this worker could take now."""
        if self._rate_at is not None and now >= self._rate_at:
            self._rate_at = None
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
        while self._inbox:
            self._unwritten.append(self._inbox.popleft())
        began = time.monotonic()
        leased_until = lease_clock() + self._settings.vouched_seconds
        if self._held_up and began >= self._held_up_until:
            self._unwritten += self._held_up
            self._held_up = []
        with self._progress_lock:
            progress, self._progress = self._progress, {}
        try:
            claimed = self._turn.take(
                self._unwritten,
                progress.values(),
                self._settings,
                claim_limit=(self._batch_size or MAX_CLAIM) if self._may_claim() else 0,
                known=self._known,
                meanwhile=self._proceed,
            )
        except StoreError:
            with self._progress_lock:
                self._progress = {**progress, **self._progress}
            raise
        self._held_up += self._turn.held_up
        self._unwritten = []
        if self._turn.held_up:
            self._held_up_until = time.monotonic() + HELD_UP_PAUSE
        if progress:
            self._progress_at = time.monotonic() + PROGRESS_PAUSE
            with self._progress_lock:
                self._progress = {seq: progress[seq] for seq in self._turn.unreported} | self._progress
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
        self._look = self._look or len(claimed.claims) == self._batch_size
        if claimed.wait is not None:
            self._rate_at = time.monotonic() + claimed.wait
        attempts = [self._claiming.attempt(claim) for claim in claimed.claims]
        for attempt in attempts:
            attempt.claimed = claimed_at
            attempt.leased_until = leased_until
            attempt.on_progress = self._note_progress
        self._slots.hold(attempts)

    def _proceed(self) -> None:
        """Go on with what the last turn leaves to do here."""
        self._start_held()
        self._turn.count()

    def _start_held(self) -> None:
        """Start what can start. While stopping or paused it is given back instead."""
        if self._may_claim():
            self._start(self._slots.refill())

    def _start(self, attempts: Sequence[Attempt]) -> None:
        waiting = deque(attempts)
        while waiting:
            attempt = waiting.popleft()
            try:
                self._executors[attempt.handler.executor].start(attempt)
            except RuntimeError as error:  # no more threads to be had
                following = self._end(attempt, Errored(describe(error)))
                if following is not None:
                    waiting.append(following)

    # Beginning, ending, trouble.

    def _register(self) -> None:
        generation = self._queue.registry.generation
        worker, types = describe_worker(
            self._id,
            self._queue.registry,
            self._claiming,
            self._types,
            state=self._state(),
            concurrency=self._slots.concurrency,
        )
        self._store.register_worker(worker, types)
        self._registered = generation

    def _is_done(self) -> bool:
        if self._closed or self._stop_at is None:
            return self._closed
        now = time.monotonic()
        held_up = any(now < self._stop_at + _longest_wait(end) for end in self._held_up)
        busy = self._inbox or self._unwritten or held_up or self._slots.held()
        # What can't be written long after the deadline is left to its lease.
        given_up = now > self._stop_at + GRACE + float(self._settings.lease_seconds)
        return given_up or (self._enforcer.winding_down and not busy and self._enforcer.is_idle())

    def _is_drained(self) -> bool:
        """Whether nothing is left to do; what runs here finishes, though its type may be paused by now."""
        is_idle = self._enforcer.is_idle() and not self._inbox and not self._maintenance.prunes_on()
        return is_idle and self._claiming.is_drained(self._store)

    def _leave(self) -> None:
        try:
            self._turn.leave()
        except StoreError as error:
            self._tell_trouble(error, retry_in=0.0)
        self._events.emit(e.WorkerStopped(worker_id=self._id, released=self._enforcer.cut_short))

    def _trouble(self, error: StoreError) -> None:
        if isinstance(error, DatabaseReplaced):  # this does not pass, and no outcome can be written any more
            self._enforcer.lose(self._leased())
            self._enforcer.enforce(time.monotonic())
            raise error
        if isinstance(error, QueueClosed):
            self._closed = True
            self._enforcer.cut_short += len(self._leased())  # left to their leases
            return
        holds = bool(self._leased())
        longest = self._settings.lease_seconds / 6 if holds else MAX_BACK_OFF
        self._pause = min(longest, max(0.05, 2 * self._pause))
        self._back_off = time.monotonic() + self._pause
        self._look = True
        self._tell_trouble(error, retry_in=self._pause)

    def _tell_trouble(self, error: StoreError, *, retry_in: float) -> None:
        self._events.emit(
            e.StoreTrouble(worker_id=self._id, error=str(error), retry_in=retry_in, exception=error)
        )

    def _recovered(self) -> None:
        if self._pause:
            self._pause = self._back_off = 0.0
            self._events.emit(e.StoreRecovered(worker_id=self._id))

    def _is_pressed(self) -> bool:
        """Whether the next turn follows at once."""
        return bool(self._inbox) or self._turn.goes_on

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
            self._trouble(error)

    def _seconds_to_sleep(self, now: float) -> float:
        """Until the next moment that something is to be done without anybody waking us."""
        moments = [self._next_poll]
        if self._settings_stale:
            moments.append(self._settings_at + SETTINGS_PAUSE)
        if self._progress:
            moments.append(self._progress_at)
        if self._rate_at is not None:
            moments.append(self._rate_at)
        if self._held_up:
            moments.append(self._held_up_until)
        moments.extend(self._enforcer.moments())
        if self._stop_at is not None:
            moments.append(self._stop_at if now < self._stop_at else now + 0.1)
        due = now + self._maintenance.seconds_until_due()
        return max(0.0, min(*moments, due) - now)


def _longest_wait(held_up: Ended) -> float:
    """Seconds after the deadline of a shutdown that an outcome which has to wait is still offered.

    The transaction that a handler was in when it was stopped ends soon; that of an application may not.
    """
    decision = held_up.decision
    return 0.0 if decision is not None and decision.status is Status.COMPLETED else GRACE
