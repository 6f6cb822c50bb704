"""What a worker has yet to write: outcomes and progress, on their way from handlers to the database."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence

from holdfast.context import Attempt
from holdfast.core.job import Status
from holdfast.system.start_marks import StartMarks
from holdfast.worker.settle import Ended

PROGRESS_PAUSE = 0.25
"""Seconds between two writes of progress."""

HELD_UP_PAUSE = 1.0
"""Seconds before an outcome that another open transaction blocks is offered again."""

ProgressReport = tuple[int, int, float, str | None]
"""A report of progress: seq, version, fraction, message."""


class Outbox:
    """`put` and `note_progress` are for any thread, the rest for the dispatcher's.

    What a turn gathers is offered again by the next one, until `written` says that the database has it.
    """

    def __init__(self, marks: StartMarks | None = None) -> None:
        self._marks = marks
        self._fresh: deque[Ended] = deque()
        self._offered: list[Ended] = []
        self._held_up: list[Ended] = []
        self._progress: dict[int, ProgressReport] = {}
        self._progress_lock = threading.Lock()
        self._held_up_until = self._progress_at = 0.0
        self.put = self._fresh.append

    def note_progress(self, attempt: Attempt, fraction: float, message: str | None) -> bool:
        """Replace the last report of an attempt. Returns whether it is the first of all to be written."""
        seq, version = attempt.name
        with self._progress_lock:
            is_first = not self._progress
            self._progress[seq] = (seq, version, fraction, message)
        return is_first

    def is_filling(self) -> bool:
        """Whether an attempt has ended since the last turn."""
        return bool(self._fresh)

    def is_due(self, now: float) -> bool:
        """Whether there is something to write now."""
        return (
            bool(self._offered or self._fresh)
            or (bool(self._held_up) and now >= self._held_up_until)
            or (bool(self._progress) and now >= self._progress_at)
        )

    def moments(self) -> Iterator[float]:
        """When `is_due` becomes true if nothing is added."""
        if self._progress:
            yield self._progress_at
        if self._held_up:
            yield self._held_up_until

    def attempts(self) -> list[Attempt]:
        """The attempts whose outcomes are not written yet. Safe to call from any thread."""
        waiting = list(self._held_up)  # these go back, so they are looked at on both sides
        waiting += (*list(self._fresh), *list(self._offered), *list(self._held_up))
        return [end.attempt for end in waiting]

    def is_done(self, deadline: float, grace: float) -> bool:
        """Whether nothing is left that a shutdown waits for: beyond its deadline, outcomes that are held up.

        The transaction that a handler was in when it was stopped ends soon; that of an application may not.
        """
        now = time.monotonic()
        if self._fresh or self._offered:
            return False
        return not any(now < deadline + (0.0 if _is_completed(end) else grace) for end in self._held_up)

    def gather(self) -> tuple[Sequence[Ended], Mapping[int, ProgressReport]]:
        """What to write now."""
        while self._fresh:
            self._offered.append(self._fresh.popleft())
        if self._held_up and time.monotonic() >= self._held_up_until:
            self._offered += self._held_up
            self._held_up = []
        with self._progress_lock:
            return self._offered, dict(self._progress)

    def written(
        self, held_up: Sequence[Ended], progress: Mapping[int, ProgressReport], unreported: Collection[int]
    ) -> None:
        """What was gathered is committed, except what somebody's open transaction stands in the way of."""
        self._held_up += held_up
        offered, self._offered = self._offered, []
        if self._marks is not None:
            self._marks.end([end.attempt.mark for end in offered if not held_up or end not in held_up])
        if held_up:
            self._held_up_until = time.monotonic() + HELD_UP_PAUSE
        if progress:
            self._progress_at = time.monotonic() + PROGRESS_PAUSE
            with self._progress_lock:
                for seq, report in progress.items():
                    if seq not in unreported and self._progress[seq] is report:  # else it was replaced
                        del self._progress[seq]


def _is_completed(end: Ended) -> bool:
    return end.decision is not None and end.decision.status is Status.COMPLETED
