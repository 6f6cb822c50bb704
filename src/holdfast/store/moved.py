"""What a database records about a move: its mark, and the messages with which its guards refuse writes."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from holdfast.errors import QueueArriving, QueueMoved, StoreUnavailable

MOVE_TABLE = "holdfast_move"
"""Exists only while a queue is being moved, and permanently in a database that it has left."""

MOVED_STATE = "HFMVD"
"""The SQLSTATE of what the guards refuse, where there are such."""

SOURCE, TARGET = "source", "target"
DRAINING, COPYING, MOVED, ARRIVING = "draining", "copying", "moved", "arriving"


class Mark(Struct, frozen=True):
    """The row of MOVE_TABLE. `pause` is when the move paused the queue; None if that was so before.

    `origin` tells, in a target, which database the queue came from, however that is addressed.
    """

    role: str
    state: str
    other: str
    origin: str
    token: str
    pause: int | None
    expired: bool = False

    def refuse(self) -> None:
        """Raise, if the database can't be opened as a queue."""
        if self.role == TARGET:
            raise QueueArriving(self.other)
        if self.state == MOVED:
            raise QueueMoved(self.other)


WORDS_OF_MOVING = "the queue is being moved to "
WORDS_OF_MOVED = "the queue was moved to "
WORDS_OF_ARRIVING = "a queue is being moved here from "
_ERRORS: dict[str, Callable[[str], StoreUnavailable]] = {
    WORDS_OF_MOVING: lambda to: QueueMoved(to, done=False),
    WORDS_OF_MOVED: QueueMoved,
    WORDS_OF_ARRIVING: QueueArriving,
}


def error_of(message: str) -> StoreUnavailable | None:
    """What a guard has said as one of our errors; None if none has."""
    line = message.partition("\n")[0]
    for words, error in _ERRORS.items():
        if line.startswith(words):
            return error(line.removeprefix(words))
    return None
