"""What runs, and what is left of rate limits, as of one moment."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.core.rate_limit import Bucket
from holdfast.core.starting import Usage
from holdfast.store.postgres.database import Database

# By one read of what runs: it has many entries that are over, which the first to come by clears away.
USAGE = """
SELECT 'running', type, "group", count(*)::double precision, NULL::bigint FROM holdfast_jobs
WHERE status = 'processing' GROUP BY type, "group"
UNION ALL
SELECT 'bucket', name, NULL, tokens, refilled_at FROM holdfast_limits WHERE refilled_at >= 0
"""


def rate_row(name: str) -> str:
    """The name of a rate limit in the table, which also contains the locks of the other limits."""
    return f"rate {name}"


def usage_from(rows: Sequence[Any]) -> Usage:
    """The answer of USAGE."""
    rate = rate_row("")
    running: dict[str, int] = {}
    groups: dict[tuple[str, str], int] = {}
    buckets: dict[str, Bucket] = {}
    for kind, name, group, count, at in rows:
        if kind == "bucket":
            if name.startswith(rate):
                buckets[name.removeprefix(rate)] = Bucket(count, at)
            continue
        running[name] = running.get(name, 0) + int(count)
        if group is not None:
            groups[name, group] = int(count)
    return Usage(running, groups, buckets)


def read_usage(database: Database) -> Usage:
    """What runs, as of one moment."""
    return usage_from(database.read(USAGE))
