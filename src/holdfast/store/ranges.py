"""Where jobs lie in order: ranges of indexes, by state, type and priority, and what bounds them.

No index holds all jobs by state: each claim and finish would have to keep it. But in every state the jobs of
one type and priority lie in some index in the order of their `seq`, and those that are over also by their
ends.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec import Struct

from holdfast.core.job import FINISHED, RETRYING, Status
from holdfast.store.protocol import CREATED, FINISHED_AT, PRIORITY, JobFilter, Place
from holdfast.store.reader import Reader

MOST_RANGES = 2000
"""Where jobs lie in more places than these, the table is read: right, but slow."""

KEYS = {CREATED: "0", FINISHED_AT: "finished_at", PRIORITY: "priority"}
"""What a list is sorted by before `seq`."""


class Lane(Struct, frozen=True):
    """The jobs of one state: an index that begins with the type, and what makes it usable."""

    index: str
    condition: str
    parameters: tuple[str, ...] = ()


# By type, priority and seq.
_LANES: dict[str, Lane] = {
    Status.PENDING: Lane("holdfast_jobs_pending", "status = 'pending'"),
    Status.SCHEDULED: Lane("holdfast_jobs_later", "status = 'scheduled'"),
    RETRYING: Lane("holdfast_jobs_retrying", "status = 'scheduled' AND attempts > 0"),
    **{s: Lane("holdfast_jobs_ended", f"finished_at IS NOT NULL AND status = '{s.value}'") for s in FINISHED},
}
# By type, end and seq.
_ENDS: dict[str, Lane] = {
    s: Lane("holdfast_jobs_finished", f"finished_at IS NOT NULL AND status = '{s.value}'") for s in FINISHED
}

RUNNING = "holdfast_jobs_leased"


class Range(Struct, frozen=True):
    """Jobs that lie in an index in the order of their `seq`, or of their ends."""

    index: str
    condition: str
    parameters: tuple[str | int, ...] = ()
    rank: int = 0
    """The priority that it is of; the other way round in a list that ascends."""


class Window(Struct, frozen=True):
    """The `seq` from and up to which jobs may be of interest."""

    start: int = 0
    stop: int = 2**63 - 1

    def after(self, place: Place | None, ascending: bool) -> Window:
        if place is None:
            return self
        if ascending:
            return Window(max(self.start, place.seq + 1), self.stop)
        return Window(self.start, min(self.stop, place.seq))


def words_of(filter: JobFilter) -> list[str]:
    """The states in which a job may be to be found, each job in one of them; none if that can't be."""
    words: set[str] = set(filter.statuses) or set(Status)
    if Status.SCHEDULED in words:
        words.discard(RETRYING)
    if filter.error is not None:
        words &= {Status.FAILED}
    if filter.sort == FINISHED_AT:
        words &= FINISHED
    return sorted(words)


def conditions(filter: JobFilter) -> tuple[str, list[Any]]:
    """A filter as a WHERE clause. States stand in it as literals, so that partial indexes are found."""
    parts: list[str] = []
    parameters: list[Any] = []
    if filter.statuses:
        parts.append(f"({' OR '.join(_of_status(status) for status in filter.statuses)})")
    if filter.error is not None:
        parts.append("status = 'failed'")
    moment = "created_at"
    if filter.sort == FINISHED_AT:
        parts.append("finished_at IS NOT NULL")
        moment = "finished_at"
    for condition, value in (
        ("type = ?", filter.type),
        ("parent_id = ?", filter.parent_id),
        ("error_group = ?", filter.error),
        (f"{moment} >= ?", filter.since),
        (f"{moment} < ?", filter.until),
    ):
        if value is not None:
            parts.append(condition)
            parameters.append(value)
    if filter.after is not None:
        condition, values = beyond(filter)
        parts.append(condition)
        parameters += values
    return f" WHERE {' AND '.join(parts)}" if parts else "", parameters


def _of_status(word: str) -> str:
    if word == RETRYING:
        return "(status = 'scheduled' AND attempts > 0)"
    return f"status = '{Status(word).value}'"


def beyond(filter: JobFilter) -> tuple[str, list[int]]:
    """What comes after the filter's place."""
    assert filter.after is not None
    sign = ">" if filter.ascending else "<"
    if filter.sort == CREATED:
        return f"seq {sign} ?", [filter.after.seq]
    return f"({KEYS[filter.sort]}, seq) {sign} (?, ?)", [filter.after.key, filter.after.seq]


def within(window: Window, seq: str = "seq") -> tuple[str, list[int]]:
    return ("", []) if window == Window() else (f" AND {seq} >= ? AND {seq} < ?", [window.start, window.stop])


# Where the jobs of a time lie.


def window_of(reader: Reader, filter: JobFilter) -> Window:
    """The `seq` of the jobs that were created between a filter's instants.

    The instants of creation have no index, but they rise with `seq`, so their bounds are found by bisection.
    After the clock was set back they do not: then jobs of the time it went through twice may be missed.
    None is shown that does not belong: each one's own instant is looked at in the end.
    """
    if filter.sort == FINISHED_AT or (filter.since is None and filter.until is None):
        return Window()
    first, last = reader.read_one(
        "SELECT (SELECT min(seq) FROM holdfast_jobs), (SELECT max(seq) FROM holdfast_jobs)"
    )
    if first is None:
        return Window()
    start = 0 if filter.since is None else _first_since(reader, filter.since, first, last + 1)
    stop = 2**63 - 1 if filter.until is None else _first_since(reader, filter.until, first, last + 1)
    return Window(start, stop)


def _first_since(reader: Reader, instant: int, low: int, high: int) -> int:
    """The lowest `seq` that was given at the instant or later; `high` if there is none."""
    while low < high:
        middle = (low + high) // 2
        row = reader.read_one(
            f"SELECT seq, created_at FROM holdfast_jobs {reader.by_index(None)}"
            " WHERE seq >= ? ORDER BY seq LIMIT 1",
            (middle,),
        )
        if row is None or row[1] >= instant:
            high = middle
        else:
            low = row[0] + 1
    return low


# The ranges.


def all_ranges(reader: Reader, filter: JobFilter) -> list[Range] | None:
    """Where the jobs of a filter lie, but for those that run; None if that is too many places."""
    if filter.sort != FINISHED_AT:
        found = _all_levels(reader, filter)
        return None if found is None or len(found) > MOST_RANGES else found
    ranges = [
        part
        for word in words_of(filter)
        for type in _types_with(reader, filter, word)
        for part in _by_end(filter, _lane(filter, word), type)
    ]
    return None if len(ranges) > MOST_RANGES else ranges


def _by_end(filter: JobFilter, lane: Lane, type: str) -> list[Range]:
    """What ended in the filter's time, after its place; at that very instant many may have, in a range of
    its own. Of two bounds on one side SQLite might follow the wider, so there is but one."""
    condition, parameters = f"{lane.condition} AND type = ?", (*lane.parameters, type)
    start = -(2**63) if filter.since is None else filter.since
    stop = 2**63 - 1 if filter.until is None else filter.until
    ranges = []
    if filter.after is not None:
        key, seq = filter.after.key, filter.after.seq
        if start <= key < stop:
            sign = ">" if filter.ascending else "<"
            at_once = f"{condition} AND finished_at = ? AND seq {sign} ?"
            ranges.append(Range(lane.index, at_once, (*parameters, key, seq)))
        start, stop = (max(start, key + 1), stop) if filter.ascending else (start, min(stop, key))
    bounds = f"{condition} AND finished_at >= ? AND finished_at < ?"
    return [*ranges, Range(lane.index, bounds, (*parameters, start, stop))]


def _lane(filter: JobFilter, word: str) -> Lane:
    if filter.error is not None:
        index = "holdfast_jobs_alike_finished" if filter.sort == FINISHED_AT else "holdfast_jobs_alike"
        return Lane(index, "status = 'failed' AND error_group = ?", (filter.error,))
    return (_ENDS if filter.sort == FINISHED_AT else _LANES)[word]


def _types_with(reader: Reader, filter: JobFilter, word: str) -> list[str]:
    if filter.type is not None:
        return [filter.type]
    column = Status.SCHEDULED if word == RETRYING else Status(word)
    return [row[0] for row in reader.read(f"SELECT type FROM holdfast_counts WHERE {column.value} > 0")]


def _all_levels(reader: Reader, filter: JobFilter) -> list[Range] | None:
    """A range for each state, type and priority."""
    ranges: list[Range] = []
    for word in words_of(filter):
        if word != Status.PROCESSING:
            types = _types_with(reader, filter, word)
            if len(ranges) + len(types) > MOST_RANGES:
                return None
            ranges += _leaps(reader, filter, word, types, MOST_RANGES + len(types) + 1)
    return ranges


def highest_ranges(reader: Reader, filter: JobFilter, depth: int) -> tuple[list[Range], int | None] | None:
    """The ranges that a page by priority may need, and the rank down to which some may be missing."""
    ranges: list[Range] = []
    floor: int | None = None
    for word in words_of(filter):
        if word == Status.PROCESSING:
            continue
        types = _types_with(reader, filter, word)
        if len(types) > MOST_RANGES:
            return None
        # Each range holds a job, but for those of the priority where the page before it ended.
        most = max(MOST_RANGES // 4, 2 * len(types) + depth + 1)
        found = _leaps(reader, filter, word, types, most, filter.after)
        if len(found) == most:
            floor = found[-1].rank if floor is None else max(floor, found[-1].rank)
        ranges += found
    return ranges, floor


# Priorities are found by leaps, not by reading all that wait; by all types together, the highest first.
_LEAPS = """
WITH RECURSIVE leaps (type, rank) AS (
    SELECT types.value, (SELECT {sign}priority FROM holdfast_jobs AS j {by_index}
        WHERE {condition} AND j.type = types.value AND priority {beyond}= ? ORDER BY priority {order} LIMIT 1)
    FROM {elements} AS types
    UNION ALL
    SELECT leaps.type, (SELECT {sign}priority FROM holdfast_jobs AS j {by_index}
        WHERE {condition} AND j.type = leaps.type AND priority {beyond} {sign}leaps.rank
        ORDER BY priority {order} LIMIT 1)
    FROM leaps WHERE leaps.rank IS NOT NULL{most_of_leaps})
SELECT type, rank FROM leaps WHERE rank IS NOT NULL{most_in_all}
"""
_MOST = " ORDER BY 2 DESC LIMIT ?"


def _leaps(
    reader: Reader,
    filter: JobFilter,
    word: str,
    types: Sequence[str],
    most: int,
    after: Place | None = None,
) -> list[Range]:
    """A range for each type and priority, from that of a place on, in the order of the list."""
    lane = _lane(filter, word)
    sign = -1 if filter.ascending else 1
    sql = _LEAPS.format(
        by_index=reader.by_index(lane.index),
        most_of_leaps=_MOST if reader.orders_recursion else "",
        most_in_all="" if reader.orders_recursion else _MOST,
        elements=reader.elements,
        condition=lane.condition,
        sign="-" if filter.ascending else "",
        order="ASC" if filter.ascending else "DESC",
        beyond=">" if filter.ascending else "<",
    )
    first = sign * 2**31 if after is None else after.key
    rows = reader.read(sql, (*lane.parameters, first, json.dumps(types), *lane.parameters, most))
    condition = f"{lane.condition} AND type = ? AND priority = ?"
    return [Range(lane.index, condition, (*lane.parameters, type, sign * rank), rank) for type, rank in rows]


def bounded(reader: Reader, filter: JobFilter, window: Window, part: Range) -> tuple[str, list[str | int]]:
    """The condition of a range, within the filter's times and after its place."""
    if filter.sort == FINISHED_AT:
        return part.condition, [*part.parameters]
    is_started = filter.sort == CREATED or _rank(filter) == part.rank
    window = window.after(filter.after if is_started else None, filter.ascending)
    bounds, limits = within(window, "seq" if part.index == RUNNING else reader.seq_within)
    return part.condition + bounds, [*part.parameters, *limits]


def _rank(filter: JobFilter) -> int | None:
    """The rank of the priority where the page before ended."""
    if filter.after is None:
        return None
    return -filter.after.key if filter.ascending else filter.after.key


def running_condition(filter: JobFilter) -> tuple[str, list[Any]]:
    if filter.type is None:
        return "status = 'processing'", []
    return "status = 'processing' AND type = ?", [filter.type]
