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
from msgspec.structs import replace

from holdfast.core.filter import CREATED, FINISHED_AT, PRIORITY
from holdfast.core.job import FINISHED, RETRYING, Status
from holdfast.store.database import Reader
from holdfast.store.records import JobFilter, Place

MOST_RANGES = 2000
"""Where jobs lie in more places than these, the table is read."""

KEYS = {CREATED: "0", FINISHED_AT: "finished_at", PRIORITY: "priority"}
"""What a list is sorted by before `seq`."""


class Range(Struct, frozen=True):
    """Jobs that lie in an index in the order of their `seq`, or of their ends."""

    index: str
    condition: str
    parameters: tuple[str | int, ...] = ()
    rank: int = 0
    """The priority that it is of; the other way round in a list that ascends."""

    def narrowed(self, condition: str, *parameters: str | int) -> Range:
        both = f"{self.condition} AND {condition}"
        return Range(self.index, both, (*self.parameters, *parameters), self.rank)


# The jobs of one state, by type, priority and seq.
_LANES: dict[str, Range] = {
    Status.PENDING: Range("holdfast_jobs_pending", "status = 'pending'"),
    Status.SCHEDULED: Range("holdfast_jobs_later", "status = 'scheduled'"),
    RETRYING: Range("holdfast_jobs_retrying", "status = 'scheduled' AND attempts > 0"),
    **{
        s: Range("holdfast_jobs_ended", f"finished_at IS NOT NULL AND status = '{s.value}'") for s in FINISHED
    },
}
# The same by type, end and seq.
_ENDS: dict[str, Range] = {
    s: Range("holdfast_jobs_finished", f"finished_at IS NOT NULL AND status = '{s.value}'") for s in FINISHED
}

RUNNING = "holdfast_jobs_leased"

_HIGHEST = 2**31


class TooManyRanges(Exception):
    """The table has to be read instead: correct, but slow."""


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
        ('"group" = ?', filter.group),
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


class Query:
    """A filter on a database, inside a snapshot of it: where the jobs lie that it may find."""

    def __init__(self, reader: Reader, filter: JobFilter) -> None:
        self.reader = reader
        self.filter = filter
        self.words = words_of(filter)
        self.window = _window_of(reader, filter)
        self.sign = -1 if filter.ascending else 1
        """What ranks priorities, so that the first in the list rank highest."""
        is_of_group = filter.group is not None and filter.parent_id is None
        self.seq = reader.seq_within if is_of_group else "seq"
        """How `seq` stands in the index along which the table itself is read."""

    def all_ranges(self) -> list[Range]:
        """Where the jobs lie. Raises TooManyRanges."""
        if self.filter.sort == FINISHED_AT:
            ranges = [
                part
                for word in self.words
                for type in self._types_with(word)
                for part in self._by_end(word, type)
            ]
        else:
            ranges, _ = self.highest_ranges(MOST_RANGES)
        if len(ranges) > MOST_RANGES:
            raise TooManyRanges
        return ranges

    def highest_ranges(self, depth: int) -> tuple[list[Range], int | None]:
        """A range for each state, type and priority that a page may need, and the rank down to which some
        may be missing. Raises TooManyRanges."""
        ranges: list[Range] = []
        floor: int | None = None
        for word in self.words:
            if word == Status.PROCESSING:
                ranges.append(self._running())
                continue
            types = self._types_with(word)
            if len(types) > MOST_RANGES:
                raise TooManyRanges
            # Each range holds a job, but for those of the priority where the page before it ended.
            most = max(MOST_RANGES // 4, 2 * len(types) + depth + 1)
            found = self._leaps(word, types, most)
            if len(found) == most:
                floor = found[-1].rank if floor is None else max(floor, found[-1].rank)
            ranges += found
        return ranges, floor

    def _running(self) -> Range:
        """Those that run, of all priorities: few do at a time, and they are sorted."""
        filter = self.filter
        running = Range(RUNNING, "status = 'processing'", rank=_HIGHEST)
        if filter.type is not None:
            running = running.narrowed("type = ?", filter.type)
        if filter.sort == PRIORITY and filter.after is not None:
            condition, values = beyond(filter)
            running = running.narrowed(condition, *values)
        return running

    def _by_end(self, word: str, type: str) -> list[Range]:
        """What ended in the filter's time, after its place; at that very instant many may have, in a range of
        its own. Of two bounds on one side SQLite might follow the wider, so there is but one."""
        filter = self.filter
        ended = self._lane(word).narrowed("type = ?", type)
        start = -(2**63) if filter.since is None else filter.since
        stop = 2**63 - 1 if filter.until is None else filter.until
        ranges = []
        if filter.after is not None:
            key, seq = filter.after.key, filter.after.seq
            if start <= key < stop:
                sign = ">" if filter.ascending else "<"
                ranges.append(ended.narrowed(f"finished_at = ? AND seq {sign} ?", key, seq))
            start, stop = (max(start, key + 1), stop) if filter.ascending else (start, min(stop, key))
        return [*ranges, ended.narrowed("finished_at >= ? AND finished_at < ?", start, stop)]

    def _leaps(self, word: str, types: Sequence[str], most: int) -> list[Range]:
        """A range for each type and priority, from the filter's place on, in the order of the list."""
        lane, filter, reader = self._lane(word), self.filter, self.reader
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
        first = self.sign * _HIGHEST
        if filter.sort == PRIORITY and filter.after is not None:
            first = filter.after.key
        rows = reader.read(sql, (*lane.parameters, first, json.dumps(types), *lane.parameters, most))
        return [
            replace(lane, rank=rank).narrowed("type = ? AND priority = ?", type, self.sign * rank)
            for type, rank in rows
        ]

    def _lane(self, word: str) -> Range:
        is_by_end = self.filter.sort == FINISHED_AT
        if self.filter.error is not None:
            index = "holdfast_jobs_alike_finished" if is_by_end else "holdfast_jobs_alike"
            return Range(index, "status = 'failed' AND error_group = ?", (self.filter.error,))
        return (_ENDS if is_by_end else _LANES)[word]

    def _types_with(self, word: str) -> list[str]:
        if self.filter.type is not None:
            return [self.filter.type]
        column = Status.SCHEDULED if word == RETRYING else Status(word)
        rows = self.reader.read(f"SELECT type FROM holdfast_counts WHERE {column.value} > 0")
        return [row[0] for row in rows]

    def bounded(self, part: Range) -> tuple[str, tuple[str | int, ...]]:
        """The condition of a range, within the filter's times and after its place."""
        sort, after = self.filter.sort, self.filter.after
        if sort == FINISHED_AT:
            return part.condition, part.parameters
        is_started = after is not None and (sort == CREATED or self.sign * after.key == part.rank)
        window = self.window.after(after if is_started else None, self.filter.ascending)
        bounds, limits = within(window, self.reader.seq_within)
        return part.condition + bounds, (*part.parameters, *limits)

    def order(self, part: Range | None = None) -> str:
        """The order of the list, or of a range in it: of one priority there is only one.

        What runs is sorted, not looked for along all jobs in the order of `seq`.
        """
        sort, direction = self.filter.sort, "ASC" if self.filter.ascending else "DESC"
        is_of_one = part is not None and (part.index != RUNNING or sort == CREATED)
        if is_of_one and sort != FINISHED_AT:
            return f"{self.reader.seq_within} {direction}"
        return f"{self.seq} {direction}" if sort == CREATED else f"{KEYS[sort]} {direction}, seq {direction}"


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


def _window_of(reader: Reader, filter: JobFilter) -> Window:
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
