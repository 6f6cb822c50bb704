"""The heartbeat: renews the leases of everything a worker holds, in its own thread.

It doesn't depend on handlers, the event loop or the dispatcher. If it can't renew in time, it fences its own
worker: at the deadline (last renewal + lease − margin), the running handlers are stopped and their jobs given
up, because after that another worker may take them. The exception is when a lock keeps us from writing, and a
read shows that nobody has begun to take them.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Collection, Sequence
from typing import Protocol

from holdfast import events as e
from holdfast.context import Attempt
from holdfast.core.clock import lease_clock
from holdfast.core.job import Status
from holdfast.core.settings import Settings
from holdfast.errors import QueueClosed, StoreBusy, StoreError
from holdfast.store.protocol import Store
from holdfast.worker.trouble import Trouble


class Holder(Protocol):
    """Whose leases are renewed. Its methods are called in the heartbeat's thread."""

    def lease_settings(self) -> Settings: ...
    def state(self) -> str: ...
    def turn_age(self) -> float:
        """Seconds since its last dispatch loop."""

    def leased(self) -> Sequence[Attempt]:
        """All attempts whose jobs the database says are its own."""

    def lose(self, attempts: Sequence[Attempt]) -> None:
        """These no longer own their jobs."""

    def cancel(self, claims: Collection[tuple[int, int]]) -> None:
        """The jobs of these (seq, version) should be cancelled."""

    def forget(self) -> None:
        """The database no longer knows the worker."""

    def touch(self) -> None:
        """A heartbeat was written."""


class Heartbeat:
    """Renews the leases of a holder until stopped."""

    def __init__(self, worker_id: str, store: Store, events: e.Events, holder: Holder) -> None:
        self._worker_id = worker_id
        self._store = store
        self._events = events
        self._holder = holder
        self._stopping = False
        self._hurry = threading.Event()
        self.thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)
        self._trouble = Trouble(worker_id, events)
        self._renewed_at = time.monotonic()
        self._steady_since = -math.inf

    def start(self) -> None:
        self.thread.start()

    def is_steady(self) -> bool:
        """Whether this heartbeat, and so those of others, could write throughout the recent past.

        A worker that was kept from writing for half a lease first gives the others one heartbeat to renew.
        """
        settings, now = self._holder.lease_settings(), time.monotonic()
        is_on_time = now - self._renewed_at <= settings.lease_seconds / 2
        return is_on_time and now - self._steady_since >= settings.heartbeat_seconds

    def hurry(self) -> None:
        """Renew now: the settings that determined the next renewal have changed."""
        self._hurry.set()

    def stop(self) -> None:
        self._stopping = True
        self._hurry.set()
        if self.thread.ident is not None:
            self.thread.join()

    def _run(self) -> None:
        pause = self._holder.lease_settings().heartbeat_seconds
        try:
            while True:
                self._hurry.wait(pause)
                self._hurry.clear()
                if self._stopping:
                    break
                pause = self.beat()
        except QueueClosed:
            pass  # the dispatcher finds out too, and ends
        finally:
            self._store.close_thread()

    def beat(self) -> float:
        """Renew once; return the seconds until the next time."""
        settings = self._holder.lease_settings()
        attempts = self._holder.leased()
        began, leased_until = time.monotonic(), lease_clock() + settings.vouched_seconds
        try:
            beat = self._store.heartbeat(
                self._worker_id,
                [attempt.name for attempt in attempts],
                started={attempt.name for attempt in attempts if attempt.has_begun},
                state=self._holder.state(),
                lease_seconds=settings.lease_seconds,
                turn_age=self._holder.turn_age(),
                patience=self._patience(attempts, settings),
            )
            ended = self._store.list_ended(beat.lost) if beat.lost else {}
        except QueueClosed:
            raise
        except Exception as error:  # whatever it is: leases go on, or are given up in time
            return self._failed(error, attempts, settings)
        before, self._renewed_at = self._renewed_at, time.monotonic()
        if self._renewed_at - before > settings.lease_seconds / 2:
            self._steady_since = self._renewed_at
        lost, is_overdue = [], False
        for attempt in attempts:
            if ended.get(attempt.name) is Status.COMPLETED:
                # By this very attempt: its own ctx.transaction() has committed, and nobody has told us yet.
                attempt.committed = True
            elif attempt.name in beat.lost:
                lost.append(attempt)
            elif attempt.name in beat.skipped:
                is_overdue = is_overdue or not attempt.is_leased()
            else:
                attempt.leased_until = leased_until
        self._trouble.recovered()
        self._holder.touch()
        if lost:
            self._holder.lose(lost)  # an outcome that was just written is no longer ours either, and no loss
        if beat.cancelled:
            self._holder.cancel(beat.cancelled)
        if not beat.registered:
            self._holder.forget()
        if is_overdue:  # while its lock comes and goes, a reaper may get in between
            return settings.heartbeat_seconds / 8
        return max(0.0, settings.heartbeat_seconds - (time.monotonic() - began))

    def _failed(self, error: Exception, attempts: Sequence[Attempt], settings: Settings) -> float:
        pause = settings.lease_seconds / 12
        next_time = lease_clock() + pause
        # Of those whose end is decided, nothing is left to stop: their outcomes are offered all the same.
        late = [a for a in attempts if next_time >= a.leased_until and not a.is_settled]
        if late and isinstance(error, StoreBusy):
            pause = min(pause, settings.heartbeat_seconds / 8)
            late = self._endangered(late, pause)
        self._trouble.tell(error, retry_in=pause)
        if late:
            self._events.emit(e.LeaseLostByWorker(worker_id=self._worker_id, jobs=len(late)))
            self._holder.lose(late)
        return pause

    def _patience(self, attempts: Sequence[Attempt], settings: Settings) -> float:
        """How long to wait for a lock: for overdue leases, a part of how long a reaper waits to take them.

        A quarter: where there is a server, two statements may wait, one after the other.
        """
        is_overdue = not all(attempt.is_leased() for attempt in attempts)
        return settings.heartbeat_seconds / 4 if is_overdue else math.inf

    def _endangered(self, late: Sequence[Attempt], patience: float) -> list[Attempt]:
        """Those that somebody else may take before we look again, though we can't write now.

        A reaper marks what it sees expired, and takes it a heartbeat later at the soonest. What bears no mark
        now is safe for that long, and we look again sooner. An answer that took its time is too old for that.
        """
        names = {attempt.name: attempt for attempt in late}
        asked_at = time.monotonic()
        try:
            safe = self._store.list_unsuspected(self._worker_id, list(names), patience=patience)
        except StoreError:
            safe = set()
        if time.monotonic() - asked_at > 2 * patience:
            safe = set()
        return [attempt for name, attempt in names.items() if name not in safe]
