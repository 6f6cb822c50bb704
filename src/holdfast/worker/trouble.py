"""Trouble with the database: announced when it starts and ends, and waited out with growing pauses."""

from __future__ import annotations

from holdfast import events as e

_FIRST_PAUSE = 0.05
LONGEST_PAUSE = 5.0
"""Seconds to wait at most, where nothing is held whose lease could run out."""


class Trouble:
    """The database trouble of one thread of a worker."""

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
        """Announce it, and return the seconds to wait: doubled each time, up to the maximum."""
        self._pause = min(longest, max(_FIRST_PAUSE, 2 * self._pause))
        self.tell(error, retry_in=self._pause)
        return self._pause

    def recovered(self) -> None:
        """Note that the database works again."""
        if self._is_told:
            self._is_told = False
            self._pause = 0.0
            self._events.emit(e.StoreRecovered(worker_id=self._worker_id))
