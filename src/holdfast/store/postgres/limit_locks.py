"""Limits that workers share are locked, so that those who claim under one of them do it one after another."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from holdfast.errors import StoreBusy
from holdfast.store.postgres.session import Session

T = TypeVar("T")

_LIMIT_PATIENCE = 0.25
"""Seconds to wait for those who claim under the same limit."""
_STUCK_FOR = 2.0
"""Seconds for which a limit that somebody holds on to is not waited for again."""

_ENSURE_LIMITS = """
INSERT INTO holdfast_limits (name, tokens, refilled_at) SELECT name, 0, -1 FROM unnest($1::text[]) AS n (name)
WHERE NOT EXISTS (SELECT 1 FROM holdfast_limits AS l WHERE l.name = n.name)
ORDER BY name ON CONFLICT DO NOTHING
"""
# Held until the commit: those who share a limit claim one after another.
_LOCK_LIMITS = """
SELECT name FROM holdfast_limits WHERE name = ANY ($1::text[]) ORDER BY name FOR UPDATE
"""
_TRY_LIMITS = f"{_LOCK_LIMITS} SKIP LOCKED"


class LimitLocks:
    """The rows of the limits, which processes lock one after another.

    It waits once for a process that holds on to one. After that, it takes such rows only if they are free,
    for a while.
    """

    def __init__(self) -> None:
        self._stuck_until: dict[str, float] = {}

    def take(self, session: Session, names: set[str], read: Callable[[], T]) -> tuple[set[str], T]:
        """The limits that could be had, ours until the commit; and what `read` asks for, as of then.

        All of it is one round trip, unless somebody holds on to one of them.
        """
        now = time.monotonic()
        stuck = {name for name in names if now < self._stuck_until.get(name, 0.0)}
        if stuck == names:
            return _lock(session, set(), names, read)
        try:
            with session.apart(_LIMIT_PATIENCE):
                return _lock(session, names - stuck, stuck, read)
        except StoreBusy:
            locked, found = _lock(session, set(), names, read)
        self._stuck_until |= dict.fromkeys(names - locked, time.monotonic() + _STUCK_FOR)
        return locked, found


def _lock(
    session: Session, waited_for: set[str], tried: set[str], read: Callable[[], T]
) -> tuple[set[str], T]:
    answers = []
    if waited_for:
        session.ahead(_ENSURE_LIMITS, [sorted(waited_for)])
        answers.append(session.ahead(_LOCK_LIMITS, [sorted(waited_for)]))
    if tried:
        answers.append(session.ahead(_TRY_LIMITS, [sorted(tried)]))
    found = read()
    session.send()
    return {name for answer in answers for (name,) in answer.rows}, found
