"""Trouble with the database: told when it comes and when it has passed, and waited out in growing pauses."""

from __future__ import annotations

from holdfast import events as e

_FIRST_PAUSE = 0.05


class Trouble:
    """As one thread of a worker has it."""

    def __init__(self, worker_id: str, events: e.Events) -> None:
        self._worker_id = worker_id
        self._events = events
        self._is_told = False
        self._pause = 0.0

    def tell(self, error: Exception, *, retry_in: float) -> None:
        self._is_told = True
        self._events.emit(
            e.StoreTrouble(worker_id=self._worker_id, error=str(error), retry_in=retry_in, exception=error)
        )

    def back_off(self, error: Exception, longest: float) -> float:
        """Tell it, and return the seconds to wait: twice as long each time, up to the longest."""
        self._pause = min(longest, max(_FIRST_PAUSE, 2 * self._pause))
        self.tell(error, retry_in=self._pause)
        return self._pause

    def recovered(self) -> None:
        """The database has done what it was asked for."""
        if self._is_told:
            self._is_told = False
            self._pause = 0.0
            self._events.emit(e.StoreRecovered(worker_id=self._worker_id))
