"""What the guards of a move say: the words in their triggers, and the errors that these become."""

from __future__ import annotations

from holdfast.errors import QueueArriving, QueueMoved, StoreUnavailable

MOVE_TABLE = "holdfast_move"
"""Is there only while a queue is moved, and for ever in a database that it has left."""

MOVED_STATE = "HFMVD"
"""The SQLSTATE of what the guards refuse, where there are such."""

_MOVING = "the queue is being moved to "
_MOVED = "the queue was moved to "
_ARRIVING = "a queue is being moved here from "


def words_of_moving(to: str) -> str:
    return _MOVING + to


def words_of_moved(to: str) -> str:
    return _MOVED + to


def words_of_arriving(source: str) -> str:
    return _ARRIVING + source


def error_of(message: str) -> StoreUnavailable | None:
    """What a guard has said as one of our errors; None if none has."""
    words = message.partition("\n")[0]
    if words.startswith(_MOVING):
        return QueueMoved(words.removeprefix(_MOVING), done=False)
    if words.startswith(_MOVED):
        return QueueMoved(words.removeprefix(_MOVED))
    if words.startswith(_ARRIVING):
        return QueueArriving(words.removeprefix(_ARRIVING))
    return None
