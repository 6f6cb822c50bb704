"""How long we wait for others, and how long the server lets our transactions run.

The process that began a transaction may be lost or frozen between any two statements. Its locks are released
when the server ends the transaction, after `idle` seconds of silence. No wait for a lock, no statement and no
transaction takes longer than the limits here.
"""

from __future__ import annotations

from typing import NamedTuple


def milliseconds(seconds: float) -> int:
    """As the server counts them, to 24 days."""
    return min(round(1000 * seconds), 2**31 - 1)


class Bounds(NamedTuple):
    """Seconds."""

    idle: float
    lock: float
    statement: float
    transaction: float
    """The whole of it; a server before PostgreSQL 17 knows no such bound."""

    def settings(self, *, whole: bool) -> dict[str, str]:
        """As the server takes them, for one transaction; with `whole`, one that bounds the whole of it."""
        seconds = {
            "idle_in_transaction_session_timeout": self.idle,
            "lock_timeout": self.lock,
            "statement_timeout": self.statement,
        }
        if whole:
            seconds["transaction_timeout"] = self.transaction
        return {name: f"{milliseconds(value)}ms" for name, value in seconds.items()}


SHORT = Bounds(idle=1.5, lock=5, statement=60, transaction=120)
"""A turn, a heartbeat, an enqueue, what people do to a job: others may wait for what it has locked."""

READ = Bounds(idle=15, lock=5, statement=60, transaction=300)
"""Reads that see one state of the database, and lock nothing."""

BULK = Bounds(idle=15, lock=5, statement=300, transaction=900)
"""Many new jobs in one commit: between two statements a process may have much to do by itself."""

LONG = Bounds(idle=60, lock=30, statement=86_400, transaction=86_400)
"""Migrations, moves, backups: how long they take depends on the queue's size."""

LONGEST_IDLE = 12.0
"""To which `idle` of a SHORT one grows in a process that was too slow for it, such as one whose handlers keep
the interpreter lock for seconds: it must get through in the end."""

LOCK_PATIENCE = 2.0
"""Seconds to wait for somebody's open transaction that has a job, or is about to insert its key or id."""

BRIEF = 0.01
"""The same where others would wait behind it."""
