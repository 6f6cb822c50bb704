"""Which finished jobs a prune deletes: the oldest first, and a bounded number of them read at a time.

Jobs that still hold their keys are kept. No index tells them from the others, and there may be any number of
them before the next that can go: so a pass remembers how far it has read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

MOST_READ = 2000
"""Jobs that one call reads, with SQLite's write lock held: some two milliseconds."""

_AT_LEAST = 100

Lane = tuple[str, str]
"""A type and a state."""

Place = tuple[int, int]
"""When a job finished, and its seq."""

_START: Place = (-(2**63), 0)
_END: Place = (2**63 - 1, 0)

ReadOn = Callable[[str, str, Place, int], Sequence[tuple[int, int, bool]]]
"""The jobs of a type and state after a place, up to a number: when each finished, its seq, and whether it
still holds its key."""


class PrunePass:
    """How far finished jobs have been read; each call continues where the last one stopped.

    Jobs that were selected but not deleted, because the transaction failed, are left to the next pass.
    """

    def __init__(self) -> None:
        self._places: dict[Lane, Place] = {}
        self.is_over = False
        """Whether nothing is left to be read."""

    def choose(self, oldest: Iterable[tuple[str, str, int]], read_on: ReadOn, limit: int) -> list[int]:
        """The `seq` of the next jobs to delete. `oldest` says when the oldest of each lane finished."""
        chosen: list[int] = []
        left = MOST_READ
        for type, status in self._lanes(oldest):
            place = self._places.get((type, status), _START)
            while True:
                at_once = min(left, max(limit - len(chosen), _AT_LEAST))
                rows = read_on(type, status, place, at_once)
                for finished_at, seq, holds_key in rows:
                    place = self._places[type, status] = finished_at, seq
                    if not holds_key:
                        chosen.append(seq)
                    if len(chosen) == limit:
                        return chosen
                left -= len(rows)
                if left == 0:
                    return chosen
                if len(rows) < at_once:
                    break
            self._places[type, status] = _END
        self.is_over = True
        return chosen

    def _lanes(self, oldest: Iterable[tuple[str, str, int]]) -> list[Lane]:
        """Those that are not read through, by what is oldest in them: so none is always the last."""
        begins = {
            (type, status): max(finished_at, self._places.get((type, status), _START)[0])
            for type, status, finished_at in oldest
        }
        return sorted((lane for lane in begins if begins[lane] < _END[0]), key=lambda lane: begins[lane])
