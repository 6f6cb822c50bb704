"""A pause waits for the claims that may not have seen it, and claims wait for nobody."""

from __future__ import annotations

import time

from holdfast.errors import StoreBusy
from holdfast.store.database import PATIENCE
from holdfast.store.postgres.bounds import LONGEST_IDLE
from holdfast.store.postgres.database import Database

# Taken before the statement that reads the pauses, and by nobody alone: who has paused finds by it the claims
# that may not have seen the pause, and waits for them, while others claim.
CLAIMING = "SELECT pg_advisory_xact_lock_shared(1751346273, hashtext($1))"
_CLAIMS_UNDER_WAY = """
SELECT virtualtransaction FROM pg_locks
WHERE locktype = 'advisory' AND classid = 1751346273 AND objid = hashtext($1)::oid AND objsubid = 2
    AND database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
_LOOK_AGAIN = 0.005, 0.1


def outlast_claims(database: Database) -> None:
    """Wait for the claims that were in progress when a pause was committed: they may not have seen it.

    If a worker is lost or frozen, the server ends its claim. Raises StoreBusy if one takes longer than that.
    """
    patience = LONGEST_IDLE + PATIENCE
    deadline = time.monotonic() + patience
    pause, longest = _LOOK_AGAIN
    before = under_way = set(database.read(_CLAIMS_UNDER_WAY, [database.schema]))
    while under_way:
        if time.monotonic() > deadline:
            raise StoreBusy(patience)
        time.sleep(pause)
        pause = min(2 * pause, longest)
        under_way = before.intersection(database.read(_CLAIMS_UNDER_WAY, [database.schema]))
