"""Pages of jobs of some states, newest first, at a cost that does not grow with the queue.

No index holds all jobs by state: each claim and finish would have to keep it. But the jobs of one type and
state lie in some index in the order of their `seq`; those that are pending, of one type and priority. So a
page is merged from the ends of such ranges, of which only as much is read as the page may need.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import Struct

from holdfast.core.job import FINISHED, RETRYING, Status
from holdfast.store.protocol import JobFilter
from holdfast.store.sqlite.database import Database

DEEPEST = 10_000
"""Jobs that may be passed over by an offset; beyond that the table is read."""

MOST_RANGES = 2000
MOST_PRIORITIES = 50
_AT_ONCE = 400  # SQLite puts no more than 500 into one statement

# Where the jobs of one type and state lie in order.
_INDEXES: dict[str, tuple[str, str]] = {
    Status.SCHEDULED: ("holdfast_jobs_later", "status = 'scheduled'"),
    RETRYING: ("holdfast_jobs_retrying", "status = 'scheduled' AND attempts > 0"),
    **{
        status: ("holdfast_jobs_ended", f"finished_at IS NOT NULL AND status = '{status.value}'")
        for status in FINISHED
    },
}

_LEAP = """
SELECT priority FROM holdfast_jobs INDEXED BY holdfast_jobs_pending
WHERE status = 'pending' AND type = ? AND priority < ? ORDER BY priority DESC LIMIT 1
"""


class Range(Struct, frozen=True):
    """Jobs that lie in an index in the order of their `seq`."""

    index: str
    condition: str
    parameters: tuple[str | int, ...] = ()

    def of_type(self, type: str) -> Range:
        return Range(self.index, f"{self.condition} AND type = ?", (*self.parameters, type))


def newest_of_states(database: Database, filter: JobFilter) -> list[int] | None:
    """The `seq` of the jobs of a page, and of one more if there is one; None if the table is to be read."""
    depth = filter.offset + max(0, filter.limit) + 1
    if not filter.statuses or filter.parent_id is not None or depth > DEEPEST:
        return None
    ranges: list[Range] = []
    for status in filter.statuses:
        found = _ranges(database, status, filter.type)
        if found is None or len(ranges) + len(found) > MOST_RANGES:
            return None
        ranges += found
    seqs: set[int] = set()  # a job that waits for a retry may be found as scheduled, too
    for start in range(0, len(ranges), _AT_ONCE):
        seqs.update(_ends(database, ranges[start : start + _AT_ONCE], filter.before, depth))
    return sorted(seqs, reverse=True)[filter.offset : depth]


def _ranges(database: Database, status: str, type: str | None) -> list[Range] | None:
    """Where the jobs of a state lie; None if that is too many places."""
    if status == Status.PROCESSING:  # few run at a time: they are sorted
        running = Range("holdfast_jobs_leased", "status = 'processing'")
        return [running if type is None else running.of_type(type)]
    types = _types_with(database, status) if type is None else [type]
    if status == Status.PENDING:
        found = [_pending(database, name) for name in types]
        return None if None in found else [r for ranges in found if ranges for r in ranges]
    return [Range(*_INDEXES[status]).of_type(name) for name in types]


def _types_with(database: Database, status: str) -> list[str]:
    column = Status.SCHEDULED if status == RETRYING else Status(status)
    return [row[0] for row in database.read(f"SELECT type FROM holdfast_counts WHERE {column.value} > 0")]


def _pending(database: Database, type: str) -> list[Range] | None:
    """One range for each priority; those are found by leaps, not by reading all that wait."""
    ranges: list[Range] = []
    row = database.read_one(_LEAP, (type, 2**31))
    while row is not None:
        if len(ranges) == MOST_PRIORITIES:
            return None
        condition = "status = 'pending' AND type = ? AND priority = ?"
        ranges.append(Range("holdfast_jobs_pending", condition, (type, row[0])))
        row = database.read_one(_LEAP, (type, row[0]))
    return ranges


def _ends(database: Database, ranges: Sequence[Range], before: int | None, depth: int) -> Iterator[int]:
    selects = []
    parameters: list[str | int] = []
    for found in ranges:
        selects.append(
            f"SELECT seq FROM (SELECT seq FROM holdfast_jobs INDEXED BY {found.index}"
            f" WHERE {found.condition} AND seq < ? ORDER BY seq DESC LIMIT {depth})"
        )
        parameters += [*found.parameters, 2**63 - 1 if before is None else before]
    return (row[0] for row in database.read(" UNION ALL ".join(selects), parameters))
