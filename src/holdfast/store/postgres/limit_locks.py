"""Limits that workers share are locked, so that those who claim under one of them do it one after another."""

from __future__ import annotations

import time
from typing import Any

from holdfast.errors import StoreBusy
from holdfast.store.postgres.session import Session

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
SELECT name, tokens, refilled_at FROM holdfast_limits WHERE name = ANY ($1::text[]) ORDER BY name FOR UPDATE
"""
_TRY_LIMITS = f"{_LOCK_LIMITS} SKIP LOCKED"


class LimitLocks:
    """The rows of the limits, which processes lock one after another.

    It waits once for a process that holds on to one. After that, it takes such rows only if they are free,
    for a while.
    """

    def __init__(self) -> None:
        self._stuck_until: dict[str, float] = {}

    def take(self, session: Session, names: set[str]) -> set[str]:
        """The limits that could be had; until the commit they are ours."""
        now = time.monotonic()
        stuck = {name for name in names if now < self._stuck_until.get(name, 0.0)}
        rows = self._wait_for(session, sorted(names - stuck)) if names > stuck else []
        if rows is None:
            rows = session.rows(_TRY_LIMITS, [sorted(names)])
            taken = names.difference(name for name, _, _ in rows)
            self._stuck_until |= dict.fromkeys(taken, time.monotonic() + _STUCK_FOR)
        elif stuck:
            rows += session.rows(_TRY_LIMITS, [sorted(stuck)])
        return {name for name, _, _ in rows}

    def _wait_for(self, session: Session, names: list[str]) -> list[Any] | None:
        try:
            with session.apart(_LIMIT_PATIENCE):
                session.ahead(_ENSURE_LIMITS, [names])
                return session.rows(_LOCK_LIMITS, [names])
        except StoreBusy:
            return None
