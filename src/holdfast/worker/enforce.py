"""Ending attempts from outside: timeouts, cancellations, lost leases, shutdown.

Async handlers are cancelled and processes killed. A thread can only be asked: when its time is up, its
attempt is ended without it and its slot written off until the handler returns.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from holdfast import events as e
from holdfast.context import CANCELLED, LOST, STOPPING, TIMED_OUT, Attempt
from holdfast.core.lifecycle import Released, Stopped
from holdfast.worker.executors import Executor
from holdfast.worker.run import Committed, LetGo, ending_of_stop
from holdfast.worker.settle import Ended
from holdfast.worker.slots import LONGEST_HELD, Slots

GRACE = 5.0
"""Seconds that a handler has to end after it was really stopped, before its slot is written off."""


class Enforcer:
    """Used by the dispatcher's thread, but for `lose` and `cancel`, which take notes for it."""

    def __init__(
        self,
        worker_id: str,
        slots: Slots,
        executors: Mapping[str, Executor],
        events: e.Events,
        inbox: deque[Ended],
    ) -> None:
        self._worker_id = worker_id
        self._slots = slots
        self._executors = executors
        self._events = events
        self._inbox = inbox
        self._lost: deque[Attempt] = deque()
        self._cancelled: deque[tuple[int, int]] = deque()
        self.winding_down = False
        self.let_go: set[tuple[int, int]] = set()
        """Started attempts that were let go, as (seq, version): for the reaper to count, not to give back."""
        self.cut_short = 0
        """Attempts that the shutdown deadline ended."""

    def lose(self, attempts: Sequence[Attempt]) -> None:
        """These no longer own their jobs."""
        self._lost.extend(attempts)

    def cancel(self, claims: Collection[tuple[int, int]]) -> None:
        """The jobs of these (seq, version) are to be cancelled."""
        self._cancelled.extend(claims)

    def enforce(self, now: float) -> None:
        """Carry out what was noted and what the clock says."""
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
        """Release what was held ready and did not get its slot: another worker may have one."""
        since = self._slots.held_since()
        if since is not None and (everything or now >= since + LONGEST_HELD):
            late = self._slots.take_back(lambda held: everything or now >= held.claimed + LONGEST_HELD)
            self._inbox.extend(Ended(attempt, Released()) for attempt in late)

    def wind_down(self, now: float, deadline: float) -> None:
        """Give back what has not started, ask what runs, and at the deadline end what is left."""
        self._inbox.extend(Ended(attempt, Released()) for attempt in self._slots.take_back(lambda _: True))
        if not self.winding_down:
            self.winding_down = True
            running = self._slots.running()
            self._events.emit(e.WorkerStopping(worker_id=self._worker_id, running=len(running)))
            for attempt in running:
                if attempt.stop_reason is None:
                    attempt.stop_reason = STOPPING
                    self._executors[attempt.handler.executor].ask(attempt)
        if now >= deadline:
            for attempt in self._in_hand():
                if attempt.interrupted_at is None:
                    self.cut_short += 1
                    self._interrupt(attempt, attempt.stop_reason or STOPPING, now, last_call=True)

    def is_idle(self) -> bool:
        """Whether no handler is left whose end matters."""
        return not any(True for _ in self._in_hand())

    def stuck(self) -> list[Attempt]:
        """The attempts whose slots are written off."""
        return [attempt for attempt in self._slots.running() if attempt.written_off]

    def moments(self) -> Iterator[float]:
        """When `enforce` will have something to do."""
        since = self._slots.held_since()
        if since is not None:
            yield since + LONGEST_HELD
        for attempt in self._in_hand():
            if attempt.interrupted_at is not None:
                yield attempt.interrupted_at + GRACE
            elif attempt.deadline is not None:
                yield attempt.deadline

    def _in_hand(self) -> Iterator[Attempt]:
        return (attempt for attempt in self._slots.running() if not attempt.written_off)

    def _let_go(self, attempt: Attempt, now: float) -> None:
        if attempt.committed or self._slots.take_back(lambda held: held is attempt):
            return
        if any(running is attempt for running in self._in_hand()):
            self.let_go.add((attempt.claim.seq, attempt.claim.version))
            self._interrupt(attempt, LOST, now)

    def _stop_cancelled(self, claims: Collection[tuple[int, int]], now: float) -> None:
        def chosen(attempt: Attempt) -> bool:
            return (attempt.claim.seq, attempt.claim.version) in claims

        self._inbox.extend(Ended(attempt, Stopped()) for attempt in self._slots.take_back(chosen))
        for attempt in self._in_hand():
            if chosen(attempt) and attempt.stop_reason != CANCELLED:
                self._interrupt(attempt, CANCELLED, now)

    def _interrupt(self, attempt: Attempt, reason: str, now: float, *, last_call: bool = False) -> None:
        if attempt.written_off or attempt.interrupted_at is not None:
            return  # once is enough: its clean-up must not be interrupted again
        attempt.stop_reason = reason
        attempt.interrupted_at = now  # before it is: the handler may end at once
        if self._executors[attempt.handler.executor].interrupt(attempt):
            return
        attempt.interrupted_at = None
        if reason != CANCELLED or last_call:  # a cancelled thread goes on to its next ctx.check()
            self._write_off(attempt)
            self._executors[attempt.handler.executor].interrupt(attempt)  # it may be able to, by now

    def _write_off(self, attempt: Attempt) -> None:
        """End the attempt without its handler, which keeps the slot until it returns."""
        attempt.written_off = True
        ending = Committed() if attempt.committed else ending_of_stop(attempt)
        if not isinstance(ending, LetGo):
            self._inbox.append(Ended(attempt, ending))
        if attempt.stop_reason != STOPPING:
            self._events.emit(
                e.HandlerStuck(
                    job_id=attempt.claim.id,
                    type=attempt.claim.type,
                    worker_id=self._worker_id,
                    reason=attempt.stop_reason or "",
                )
            )
