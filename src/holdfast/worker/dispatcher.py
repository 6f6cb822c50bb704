"""The dispatcher: one loop per process, the only code that claims and finishes jobs.

A turn is one transaction: write the outcomes gathered since the last turn, do the maintenance that is due,
claim as many jobs as can be started. So one fsync serves the whole batch, and a process is one writer instead
of many threads competing for the lock.

Between turns it sleeps until a handler ends, another process commits, or a known deadline arrives. While idle
it only reads; it writes when there is something to write.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from holdfast import events as e
from holdfast.core.clock import lease_clock
from holdfast.core.settings import Settings
from holdfast.errors import DatabaseReplaced, QueueClosed, StoreError
from holdfast.store.open import store_of
from holdfast.store.records import StopRequest
from holdfast.system.start_marks import StartMarks, remove_old_marks
from holdfast.worker.claiming import Claiming
from holdfast.worker.following import Following, Options
from holdfast.worker.heartbeat import Heartbeat
from holdfast.worker.outbox import Outbox
from holdfast.worker.runner import Runner
from holdfast.worker.slots import Slots
from holdfast.worker.suspects import Suspects
from holdfast.worker.trouble import LONGEST_PAUSE, Trouble
from holdfast.worker.turn import Taken, Turn
from holdfast.worker.work_search import WorkSearch

if TYPE_CHECKING:
    from holdfast.queue import Queue


class Dispatcher:
    """The loop of one worker process. `run` blocks; the other methods may be called by any thread."""

    def __init__(self, queue: Queue, worker_id: str, options: Options) -> None:
        self._queue = queue
        self._store = store_of(queue)
        self._events = queue.events
        self._id = worker_id
        self._options = options
        self._following = Following(queue, options)
        self._slots = Slots(self._following.concurrency, self._following.slots, self._following.prefetch)
        self._claiming = Claiming(queue, self._slots, options.types)
        self._search = WorkSearch(self._claiming)
        self._watch = self._store.watch(for_work=True)
        self._marks = StartMarks(worker_id)
        self._outbox = Outbox(self._marks)
        self.heartbeat = Heartbeat(worker_id, self._store, self._events, self)
        is_steady = self.heartbeat.is_steady
        self._runner = Runner(queue, worker_id, self._slots, self._outbox, self._watch.wake)
        self._turn = Turn(queue, worker_id, self._outbox, self._claiming, self._runner.in_hand, is_steady)
        self._maintenance = self._turn.maintenance
        self._suspects = Suspects(self._store, self._claiming)
        self.leased, self.lose, self.cancel = self._runner.leased, self._runner.lose, self._runner.cancel
        self.touch = self._marks.touch
        # The loop's own.
        self._stepped_at = time.monotonic()
        self._registered = -1
        self._next_poll = 0.0
        self._trouble = Trouble(worker_id, self._events)
        self._back_off = 0.0
        self._goes_on = False
        self._has_room = True
        self._closed = False
        # Set by other threads.
        self.on_registered: Callable[[], None] = lambda: None
        self.paused = False
        self._stop_at: float | None = None
        self.ready = threading.Event()

    # For other threads.

    @property
    def cut_short(self) -> int:
        return self._runner.cut_short

    @property
    def is_exhausted(self) -> bool:
        return self._runner.is_exhausted

    def stop(self, timeout: float | None = None) -> None:
        """Stop claiming, and let running jobs finish within `timeout` seconds; the rest are released."""
        seconds = float(self._following.settings.get("shutdown_timeout")) if timeout is None else timeout
        deadline = time.monotonic() + seconds
        self._stop_at = deadline if self._stop_at is None else min(self._stop_at, deadline)
        self._watch.wake()

    def set_paused(self, paused: bool) -> None:
        self.paused = paused
        self._search.hurry()
        kind = e.WorkerPaused if paused else e.WorkerResumed
        self._events.emit(kind(worker_id=self._id))
        self._watch.wake()

    # For the heartbeat.

    def lease_settings(self) -> Settings:
        return self._following.settings

    def state(self) -> str:
        return "stopping" if self._stop_at is not None else "paused" if self.paused else "running"

    def turn_age(self) -> float:
        return time.monotonic() - self._stepped_at

    def forget(self) -> None:
        self._registered = -1
        self._search.hurry()
        self._watch.wake()

    # The loop.

    def run(self) -> None:
        """Work until stopped. Every job that this worker held is finished or released when it returns."""
        try:
            try:
                self._register()
            except StoreError as error:  # the lock is held, or the connection was lost: the loop does it
                self._cope_with(error)
            self.on_registered()
            remove_old_marks()
            if self._marks.trouble is not None:
                self._events.emit(e.StartsUnmarked(worker_id=self._id, error=str(self._marks.trouble)))
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
        self._marks.close(keep=bool(self.leased()))

    def _step(self) -> None:
        """One iteration: a turn if needed, then deferred work, then timeouts and cancellations."""
        now = time.monotonic()
        if now >= self._back_off:
            self._work(now)
        self._enforce(now)
        self._stepped_at = time.monotonic()

    def _work(self, now: float) -> None:
        try:
            changed, polls = self._watch.changed(), now >= self._next_poll
            if changed or polls:
                self._search.look(now, is_certain=changed or self._store.is_shared)
            if self._registered != self._queue.registry.generation:
                self._follow_settings(now)
            self._make_room(now)
            if self._sees_work(now) or self._turn_needed(now):
                self._take_turn()
                self._trouble.recovered()
            if changed or polls:
                self._catch_up(now)
            if self._suspects.may_claim() and self._may_claim() and not self._outbox.attempts():
                self._run_one_alone(now)
            self._follow_settings(now)
            if self._options.drain and self._stop_at is None and self._is_drained():
                self.stop()
        except StoreError as error:
            self._cope_with(error)

    def _make_room(self, now: float) -> None:
        before = self._has_room
        self._has_room = not self._suspects.keep_room(now) and now >= self._runner.no_threads_until
        if self._runner.has_freed_slots() or (self._has_room and not before):
            self._search.hurry()

    def _run_one_alone(self, now: float) -> None:
        """Run a job that has to run alone: nothing here could be lost with it, not even an outcome."""
        leased_until = lease_clock() + self._following.settings.vouched_seconds
        taken = self._turn.take_alone(self._suspects, self._following.settings)
        self._hold(taken, now, leased_until)
        self._start_held()
        self._turn.announce(taken)
        self._make_room(now)

    def _enforce(self, now: float) -> None:
        self._runner.enforce(now)
        self._runner.give_back_held(now, everything=self.paused)
        if self._stop_at is not None:
            if not self._runner.winding_down:
                self.heartbeat.hurry()  # tells the others that we are stopping
            self._runner.wind_down(now, self._stop_at)
            return
        if self._runner.find_exhausted() and self._options.recycle:
            self.stop()

    def _catch_up(self, now: float) -> None:
        """Read what others may have changed, apart from pending jobs."""
        self._next_poll = now + float(self._following.settings.get("poll_interval"))
        self._following.expect_change()
        self._maintenance.read_next_due()
        self._suspects.refresh(now, self._following.settings)
        if self._slots.running():
            self._runner.cancel(self._store.list_cancelled(self._id))
        request = self._store.get_stop_request(self._id)
        if request is not StopRequest.NONE:
            self.stop(0.0 if request is StopRequest.AT_ONCE else None)

    def _follow_settings(self, now: float) -> None:
        if self._registered != self._queue.registry.generation:
            self._following.hurry()
        if self._following.refresh(now):
            self._slots.follow(self._following.concurrency)
            self._start_held()
            self.heartbeat.hurry()  # the lease may have become shorter
            self._search.hurry()
        if self._registered != self._queue.registry.generation:
            self._register()

    def _turn_needed(self, now: float) -> bool:
        is_due = self._outbox.is_due(now) or self._maintenance.is_due()
        return is_due or self._turn.uncertain or self._goes_on

    def _sees_work(self, now: float) -> bool:
        """Check, without writing, whether there is anything that this worker could claim now."""
        if self._may_claim_more():
            return self._search.finds_work(self._following.settings, now, writes=self._outbox.is_due(now))
        self._search.skip()
        return False

    def _may_claim(self) -> bool:
        return self._stop_at is None and not self.paused

    def _may_claim_more(self) -> bool:
        """Whether jobs may be claimed beside those that run."""
        return self._may_claim() and self._has_room

    def _take_turn(self) -> None:
        began = time.monotonic()
        leased_until = lease_clock() + self._following.settings.vouched_seconds
        with self._turn.take(
            self._following.settings,
            self._search.lines,
            claim_limit=self._following.claim_limit if self._may_claim_more() else 0,
            known=self._runner.known() if self._turn.uncertain else (),
        ) as taken:
            self._proceed()
        claimed, self._goes_on = taken.claimed, taken.goes_on
        self._search.note(claimed, taken.lines, self._options.batch_size)
        if claimed.is_stale:
            self._following.hurry()
        self._hold(taken, began, leased_until)
        # Where a server does the work, there is time to run while it is at the next turn.
        # But not while what was claimed keeps others from starting.
        if claimed.limited or not self._store.is_shared or not self._is_pressed():
            self._proceed()
        if self._turn.announce(taken) and not self._store.is_shared:
            self._search.hurry()  # what a subscriber enqueues in this thread, the watch does not see

    def _hold(self, taken: Taken, claimed_at: float, leased_until: float) -> None:
        """Hold ready what was claimed."""
        asked, claims = taken.asked, taken.claimed.claims
        attempts = [self._claiming.attempt(claim, asked, claimed_at, leased_until) for claim in claims]
        if taken.claimed.is_alone:
            self._suspects.runs(attempts[0])
        self._runner.hold(attempts, on_begin=self._marks.begin)

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
        self._registered = self._claiming.register(self._id, self.state())

    def _is_done(self) -> bool:
        if self._closed or self._stop_at is None:
            return self._closed
        return self._runner.is_done(self._stop_at, self._following.settings.lease_seconds)

    def _is_drained(self) -> bool:
        """Whether nothing is left to do; jobs running here finish, even if their type is paused by now."""
        is_busy = not self._runner.is_idle() or self._outbox.is_filling() or self._maintenance.goes_on()
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
            self._runner.abandon()
            return
        longest = self._following.settings.lease_seconds / 6 if self.leased() else LONGEST_PAUSE
        self._back_off = time.monotonic() + self._trouble.back_off(error, longest)
        self._search.hurry()

    def _is_pressed(self) -> bool:
        """Whether the next turn follows at once."""
        return self._outbox.is_filling() or self._goes_on

    def _sleep(self) -> None:
        now = time.monotonic()
        if now < self._back_off or not self._is_pressed():
            self._proceed()
        if now < self._back_off:
            time.sleep(min(self._back_off - now, 0.05))
            return
        try:
            at_once = self._search.is_due or self._is_pressed()
            self._watch.wait(0.0 if at_once else self._seconds_to_sleep(now))
        except StoreError as error:
            self._cope_with(error)

    def _seconds_to_sleep(self, now: float) -> float:
        """Seconds until something has to be done even if nothing wakes us."""
        moments = [self._next_poll, self._search.next_at, *self._outbox.moments(), *self._runner.moments()]
        moments += (*self._suspects.moments(now), *self._following.moments())
        if self._stop_at is not None:
            moments.append(self._stop_at if now < self._stop_at else now + 0.1)
        due = now + self._maintenance.seconds_until_due()
        return max(0.0, min(*moments, due) - now)
