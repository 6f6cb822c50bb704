"""The heartbeat: renews the leases of what a worker holds, from a thread of its own.

It depends on no handler, no event loop and not on the dispatcher. When it can't renew in time it fences
its own worker: at the deadline (last renewal + lease − margin) the handlers still running are stopped and
their jobs let go, because after it somebody else may take them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from holdfast import events as e
from holdfast.context import Attempt
from holdfast.core.settings import Settings
from holdfast.errors import QueueClosed
from holdfast.store.protocol import Store


class Heartbeat:
    """Renews until stopped. `held` gives what to renew; the other callbacks are told what was learned."""

    def __init__(
        self,
        worker_id: str,
        store: Store,
        events: e.Events,
        *,
        settings: Callable[[], Settings],
        state: Callable[[], str],
        turn_age: Callable[[], float] = lambda: 0.0,
        held: Callable[[], Sequence[Attempt]],
        lost: Callable[[Sequence[Attempt]], None],
        cancelled: Callable[[frozenset[tuple[int, int]]], None],
        forgotten: Callable[[], None],
    ) -> None:
        self._worker_id = worker_id
        self._store = store
        self._events = events
        self._settings = settings
        self._state = state
        self._turn_age = turn_age
        self._held = held
        self._lost = lost
        self._cancelled = cancelled
        self._forgotten = forgotten
        self._stopping = False
        self._hurry = threading.Event()
        self._thread = threading.Thread(target=self._run, name="holdfast-heartbeat", daemon=True)
        self._trouble = False

    def start(self) -> None:
        self._thread.start()

    def hurry(self) -> None:
        """Renew now: what the next time was reckoned from has changed."""
        self._hurry.set()

    def stop(self) -> None:
        self._stopping = True
        self._hurry.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        pause = self._settings().heartbeat_seconds
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
        settings = self._settings()
        attempts = self._held()
        began = time.monotonic()
        try:
            beat = self._store.heartbeat(
                self._worker_id,
                [(attempt.claim.seq, attempt.claim.version) for attempt in attempts],
                state=self._state(),
                lease_seconds=settings.lease_seconds,
                turn_age=self._turn_age(),
            )
        except QueueClosed:
            raise
        except Exception as error:  # whatever it is: leases go on, or are given up in time
            return self._failed(error, attempts, settings)
        for attempt in attempts:
            attempt.leased = began
        if self._trouble:
            self._trouble = False
            self._events.emit(e.StoreRecovered(worker_id=self._worker_id))
        if beat.lost:
            # An outcome that was just written is no longer ours either, and no loss.
            gone = [a for a in attempts if (a.claim.seq, a.claim.version) in beat.lost]
            self._lost(gone)
        if beat.cancelled:
            self._cancelled(beat.cancelled)
        if not beat.registered:
            self._forgotten()
        return max(0.0, settings.heartbeat_seconds - (time.monotonic() - began))

    def _failed(self, error: Exception, attempts: Sequence[Attempt], settings: Settings) -> float:
        lease = settings.lease_seconds
        pause = lease / 12
        self._trouble = True
        self._events.emit(
            e.StoreTrouble(worker_id=self._worker_id, error=str(error), retry_in=pause, exception=error)
        )
        now = time.monotonic()
        late = [a for a in attempts if now >= a.leased + lease - lease / 6 - pause]
        if late:
            self._events.emit(e.LeaseLostByWorker(worker_id=self._worker_id, jobs=len(late)))
            self._lost(late)
        return pause
