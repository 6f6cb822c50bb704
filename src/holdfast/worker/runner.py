"""Running a worker's jobs: attempts start as slots become free, and their outcomes go to the outbox.

Some are stopped from outside: by timeouts, cancellations, lost leases, shutdown. Async handlers are then
cancelled and processes killed. A thread can only be asked: when its time is up, its attempt ends without it,
and its slot is written off until the handler returns.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from contextvars import Context
from typing import TYPE_CHECKING

from holdfast import events as e
from holdfast.context import CANCELLED, LOST, STOPPING, TIMED_OUT, Attempt
from holdfast.core.lifecycle import Released, Stopped
from holdfast.store.open import store_of
from holdfast.store.scope import handler_of
from holdfast.worker.executors import Executor
from holdfast.worker.executors.loop import LoopExecutor
from holdfast.worker.executors.processes import ProcessExecutor
from holdfast.worker.executors.threads import ThreadExecutor
from holdfast.worker.outbox import Outbox
from holdfast.worker.run import Committed, Ending, LetGo, ending_despite_error, ending_of_stop
from holdfast.worker.settle import Ended
from holdfast.worker.slots import LONGEST_HELD, Slots

if TYPE_CHECKING:
    from holdfast.queue import Queue

NO_THREADS_PAUSE = 1.0
"""Seconds for which nothing is claimed after no thread or process could be started for a job."""

SHORTEST_LOOK = 0.05
"""Seconds between two looks at the time of a handler that has not begun."""

GRACE = 5.0
"""Seconds that a handler has to end after it was forcibly stopped, before its slot is written off."""


class Runner:
    """The executors of a worker, used by the dispatcher's thread; `lose` and `cancel` take notes for it.

    `wake` is called when an attempt has ended, in the handler's thread.
    """

    def __init__(
        self, queue: Queue, worker_id: str, slots: Slots, outbox: Outbox, wake: Callable[[], None]
    ) -> None:
        self._worker_id = worker_id
        self._events = queue.events
        self._slots = slots
        self._outbox = outbox
        self._wake = wake
        context = Context()
        context.run(handler_of.set, worker_id)
        self._executors: dict[str, Executor] = {
            "thread": ThreadExecutor(self._report, store_of(queue), context),
            "async": LoopExecutor(self._report, store_of(queue), context),
            "process": ProcessExecutor(
                self._report, store_of(queue), self._pause_claims, url=queue.url, defaults=queue.defaults
            ),
        }
        self.let_go: set[tuple[int, int]] = set()
        """Started attempts that were given up, as (seq, version): for the reaper to count, not to release."""
        self._lost: deque[Attempt] = deque()
        self._cancelled: deque[tuple[int, int]] = deque()
        self.winding_down = False
        self.is_exhausted = False
        self._has_freed = False
        self._ending = threading.Lock()
        self.no_threads_until = 0.0
        """Until when nothing should be claimed, because no thread or process could be started."""
        self.cut_short = 0
        """Attempts that were cut short at the shutdown deadline."""

    def hold(self, attempts: Sequence[Attempt], on_begin: Callable[[int, int], int | None]) -> None:
        """Hold attempts ready; `on_begin` is called by each when its handler is about to start."""
        on_progress = self._note_progress
        for attempt in attempts:
            attempt.on_progress = on_progress
            attempt.on_begin = on_begin
        self._slots.hold(attempts)

    def _note_progress(self, attempt: Attempt, fraction: float, message: str | None) -> None:
        if self._outbox.note_progress(attempt, fraction, message):
            self._wake()

    def start_held(self) -> None:
        """Start held attempts that have a free slot."""
        self._start(self._slots.refill())

    def leased(self) -> list[Attempt]:
        """All attempts whose jobs are this worker's: held ready, running, or ended and not yet written."""
        # In the order that an attempt goes, so that one that moves on meanwhile is seen twice, not missed.
        in_order = [*self._slots.held(), *self._in_hand()]
        in_order += self._outbox.attempts()
        return [a for a in in_order if not a.committed and a.stop_reason != LOST]

    def in_hand(self) -> set[tuple[int, int]]:
        """The (seq, version) of these."""
        return {attempt.name for attempt in self.leased()}

    def known(self) -> set[tuple[int, int]]:
        """The same, and those of all started attempts that were given up."""
        return self.let_go | self.in_hand()

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()

    def lose(self, attempts: Sequence[Attempt]) -> None:
        """These no longer own their jobs."""
        self._lost.extend(attempts)
        self._wake()

    def has_freed_slots(self) -> bool:
        """Whether slots have become free since it was last asked, without an outcome that brings a turn."""
        if not self._has_freed:
            return False
        self._has_freed = False
        return True

    def abandon(self) -> None:
        """Leave all jobs to their leases: nothing can be written any more."""
        self.cut_short += len(self.leased())

    def cancel(self, claims: Collection[tuple[int, int]]) -> None:
        """The jobs of these (seq, version) should be cancelled."""
        self._cancelled.extend(claims)
        self._wake()

    def enforce(self, now: float) -> None:
        """Apply the noted cancellations and lost leases, and enforce deadlines."""
        while self._lost:
            self._let_go(self._lost.popleft(), now)
        if self._cancelled:
            self._stop_cancelled({self._cancelled.popleft() for _ in range(len(self._cancelled))}, now)
        for attempt in self._in_hand():
            if attempt.deadline is not None and now >= attempt.deadline:
                self._interrupt(attempt, TIMED_OUT, now)
            if attempt.interrupted_at is not None and now >= attempt.interrupted_at + GRACE:
                self._write_off(attempt)

    def give_back_held(self, now: float, *, everything: bool) -> None:
        """Release held jobs that did not get a slot in time: another worker may have one."""
        since = self._slots.held_since()
        if since is not None and (everything or now >= since + LONGEST_HELD):
            late = self._slots.take_back(lambda held: everything or now >= held.claimed + LONGEST_HELD)
            self._end_unstarted(late, Released())

    def wind_down(self, now: float, deadline: float) -> None:
        """Release what has not started, ask running handlers to stop, and end them at the deadline."""
        self._end_unstarted(self._slots.take_back(lambda _: True), Released())
        if not self.winding_down:
            self.winding_down = True
            running = self._slots.running()
            self._events.emit(e.WorkerStopping(worker_id=self._worker_id, running=len(running)))
            for attempt in running:
                if attempt.stop_reason is None:
                    attempt.stop_reason = STOPPING
                    self._executor_of(attempt).ask(attempt)
        if now >= deadline:
            for attempt in self._in_hand():
                if attempt.interrupted_at is None:
                    self.cut_short += 1
                    self._interrupt(attempt, attempt.stop_reason or STOPPING, now, last_call=True)

    def is_idle(self) -> bool:
        """Whether no handler is left that the shutdown must wait for."""
        return not any(True for _ in self._in_hand())

    def is_done(self, deadline: float, lease_seconds: float) -> bool:
        """Whether nothing is left that a shutdown waits for."""
        # What can't be written long after the deadline is left to its lease.
        if time.monotonic() > deadline + GRACE + lease_seconds:
            return True
        is_written = self._outbox.is_done(deadline, GRACE) and not self._slots.held()
        return is_written and self.winding_down and self.is_idle()

    def find_exhausted(self) -> bool:
        """Whether all slots, or all of a type, have come to be held by handlers that would not stop."""
        stuck = [attempt for attempt in self._slots.running() if attempt.written_off]
        before, self.is_exhausted = self.is_exhausted, bool(stuck) and self._slots.are_used_up_by(stuck)
        is_new = self.is_exhausted and not before
        if is_new:
            self._events.emit(e.WorkerExhausted(worker_id=self._worker_id, stuck=len(stuck)))
        return is_new

    def moments(self) -> Iterator[float]:
        """When `enforce` will have something to do, or jobs may be claimed again."""
        if time.monotonic() < self.no_threads_until:
            yield self.no_threads_until
        since = self._slots.held_since()
        if since is not None:
            yield since + LONGEST_HELD
        for attempt in self._in_hand():
            if attempt.interrupted_at is not None:
                yield attempt.interrupted_at + GRACE
            elif attempt.has_begun and attempt.deadline is not None:
                yield attempt.deadline
            elif attempt.claim.timeout is not None:  # it may begin at any moment, in another thread
                yield time.monotonic() + max(attempt.claim.timeout, SHORTEST_LOOK)

    def _in_hand(self) -> Iterator[Attempt]:
        return (attempt for attempt in self._slots.running() if not attempt.written_off)

    def _executor_of(self, attempt: Attempt) -> Executor:
        return self._executors[attempt.handler.executor]

    def _start(self, attempts: Sequence[Attempt]) -> None:
        waiting = deque(attempts)
        while waiting:
            attempt = waiting.popleft()
            try:
                self._executor_of(attempt).start(attempt)
            except RuntimeError:  # no thread can be started: it has not begun, and others may have one
                self._pause_claims()
                following = self._end(attempt, Released())
                if following is not None:
                    waiting.append(following)

    def _pause_claims(self) -> None:
        self.no_threads_until = time.monotonic() + NO_THREADS_PAUSE

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
        is_ours = self._settle(attempt) and not isinstance(ending, LetGo)
        if is_ours:
            self._outbox.put(end)
        elif isinstance(ending, LetGo):
            self.let_go.add(attempt.name)
        # What was given back says nothing of the pace of its type.
        following = self._slots.free(attempt, None if isinstance(ending, Released) else end.seconds)
        if not is_ours:
            self._has_freed = True
        self._wake()
        return following

    def _end_unstarted(self, attempts: Sequence[Attempt], ending: Ending) -> None:
        for attempt in attempts:
            attempt.is_settled = True
            self._outbox.put(Ended(attempt, ending))

    def _let_go(self, attempt: Attempt, now: float) -> None:
        if attempt.committed or self._slots.take_back(lambda held: held is attempt):
            return
        if any(running is attempt for running in self._in_hand()):
            self.let_go.add(attempt.name)
            self._interrupt(attempt, LOST, now)

    def _stop_cancelled(self, claims: Collection[tuple[int, int]], now: float) -> None:
        def chosen(attempt: Attempt) -> bool:
            return attempt.name in claims

        self._end_unstarted(self._slots.take_back(chosen), Stopped())
        for attempt in self._in_hand():
            if chosen(attempt) and attempt.stop_reason != CANCELLED:
                self._interrupt(attempt, CANCELLED, now)

    def _interrupt(self, attempt: Attempt, reason: str, now: float, *, last_call: bool = False) -> None:
        if attempt.written_off or attempt.interrupted_at is not None:
            return  # once is enough: its clean-up must not be interrupted again
        attempt.stop_reason = reason
        attempt.interrupted_at = now  # before it is: the handler may end at once
        if self._executor_of(attempt).interrupt(attempt):
            return
        attempt.interrupted_at = None
        if reason != CANCELLED or last_call:  # a cancelled thread goes on to its next ctx.check()
            self._write_off(attempt)
            self._executor_of(attempt).interrupt(attempt)  # it may be able to, by now

    def _settle(self, attempt: Attempt) -> bool:
        """Whether this is how the attempt ends: its handler may return as it is written off."""
        with self._ending:
            is_first, attempt.is_settled = not attempt.is_settled, True
        return is_first

    def _write_off(self, attempt: Attempt) -> None:
        """End the attempt without its handler, which keeps the slot until it returns."""
        if not self._settle(attempt):
            return
        attempt.written_off = True
        ending = Committed() if attempt.committed else ending_of_stop(attempt)
        if not isinstance(ending, LetGo):
            self._outbox.put(Ended(attempt, ending))
        if attempt.stop_reason != STOPPING:
            self._events.emit(
                e.HandlerStuck(
                    job_id=attempt.claim.id,
                    type=attempt.claim.type,
                    worker_id=self._worker_id,
                    reason=attempt.stop_reason or "",
                )
            )
