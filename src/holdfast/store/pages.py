"""Pages of jobs, in every order, and how many there are: at a cost that does not grow with the queue.

A page is merged from the ends of ranges, of which only as much is read as it may need.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.filter import CREATED, FINISHED_AT, PRIORITY
from holdfast.core.job import RETRYING
from holdfast.store.database import Reader
from holdfast.store.ranges import KEYS, Query, Range, TooManyRanges, conditions, within, words_of
from holdfast.store.records import JobFilter, Place, Placed
from holdfast.store.rows import BRIEF_COLUMNS, JOB_COLUMNS, JOB_NAMES, job_from

MOST_PASSED_OVER = 10_000
"""Jobs that may be passed over by an offset; beyond that the table is read."""

_AT_ONCE = 400  # SQLite puts no more than 500 into one statement
_LEVELS_AT_ONCE = 16
_FEW = 8

Page = tuple[list[Placed], Place | None]


def list_placed(reader: Reader, filter: JobFilter) -> Page:
    if filter.limit <= 0 or not words_of(filter):
        return [], None
    depth = filter.offset + filter.limit + 1
    with reader.snapshot():
        query = Query(reader, filter)
        is_whole = _is_whole(query) and filter.sort == CREATED
        if is_whole or _is_of_few(filter) or depth > MOST_PASSED_OVER:
            return _from_table(query)
        try:
            if filter.sort == PRIORITY:
                found = _by_priority(query, depth)
            else:
                found = _merged(query, query.all_ranges(), depth)
        except TooManyRanges:
            return _from_table(query)
        return _from_places(query, _sorted(query, found)[filter.offset : depth])


def _from_table(query: Query) -> Page:
    filter = query.filter
    source, parameters = _table(query)
    rows = query.reader.read(
        f"SELECT {_columns(filter)} {source} ORDER BY {query.order()} LIMIT ? OFFSET ?",
        (*parameters, filter.limit + 1, filter.offset),
    )
    found = [_placed(row, filter) for row in rows[: filter.limit]]
    return found, found[-1].place if len(rows) > filter.limit else None


def _from_places(query: Query, places: Sequence[Place]) -> Page:
    """The jobs at the places, but for those that a clock which was set back has put among them."""
    reader, filter = query.reader, query.filter
    shown = places[: filter.limit]
    rows = reader.read(
        f"SELECT {_columns(filter)} FROM holdfast_jobs {reader.by_index(None)}"
        f" WHERE seq {reader.among_numbers}",
        (json.dumps([place.seq for place in shown]),),
    )
    found = [_placed(row, filter) for row in rows if _is_in_time(row, filter)]
    found.sort(key=lambda placed: placed.place, reverse=not filter.ascending)
    return found, shown[-1] if len(places) > filter.limit else None


def _columns(filter: JobFilter) -> str:
    return BRIEF_COLUMNS if filter.brief else JOB_COLUMNS


def _is_in_time(row: Sequence[Any], filter: JobFilter) -> bool:
    instant = row[JOB_NAMES.index("finished_at" if filter.sort == FINISHED_AT else "created_at")]
    is_late_enough = filter.since is None or instant >= filter.since
    return is_late_enough and (filter.until is None or instant < filter.until)


def _placed(row: Sequence[Any], filter: JobFilter) -> Placed:
    key = 0 if filter.sort == CREATED else row[JOB_NAMES.index(KEYS[filter.sort])]
    return Placed(Place(key, row[0]), job_from(row))


def _is_whole(query: Query) -> bool:
    """Whether all jobs are asked for: they lie in the table in order."""
    filter = query.filter
    return not filter.statuses and filter.error is None and filter.type is None


def _is_of_few(filter: JobFilter) -> bool:
    """Whether the jobs are to be found among those of one parent or one group, which an index holds."""
    return filter.parent_id is not None or filter.group is not None


def _table(query: Query, *, by_instants: bool = True) -> tuple[str, list[Any]]:
    """The table itself, read along the index that the filter is narrowest in, and the parameters of that."""
    filter, window, by_index = query.filter, query.window, query.reader.by_index
    if filter.sort == CREATED:  # of two bounds on one side SQLite might follow the wider
        window, filter = window.after(filter.after, filter.ascending), replace(filter, after=None)
    if not by_instants:
        filter = replace(filter, since=None, until=None)
    if filter.parent_id is not None:
        index = by_index("holdfast_jobs_parent")
    elif filter.group is not None:
        index = by_index("holdfast_jobs_group")
    else:
        index = by_index(None)
    where, parameters = conditions(filter)
    bounds, limits = within(window, query.seq)
    return f"FROM holdfast_jobs {index}{where or ' WHERE true'}{bounds}", [*parameters, *limits]


# The places of a page.


def _sorted(query: Query, places: Sequence[Place]) -> list[Place]:
    return sorted(places, reverse=not query.filter.ascending)


def _by_priority(query: Query, depth: int) -> list[Place]:
    """Down the priorities, until the page is full."""
    ranges, floor = query.highest_ranges(depth)
    ranges = sorted((r for r in ranges if floor is None or r.rank > floor), key=lambda r: -r.rank)
    found: list[Place] = []
    start = 0
    while start < len(ranges):
        stop = min(start + _LEVELS_AT_ONCE, len(ranges))
        while stop < len(ranges) and ranges[stop].rank == ranges[stop - 1].rank:
            stop += 1
        found += _merged(query, ranges[start:stop], depth)
        if sum(query.sign * place.key >= ranges[stop - 1].rank for place in found) >= depth:
            return found
        start = stop
    if floor is not None:
        raise TooManyRanges
    return found


def _merged(query: Query, ranges: Sequence[Range], depth: int) -> list[Place]:
    """Places of the ranges, with the first `depth` of them all among them.

    A little of each is read, and then the whole only of those whose part of the page may go on.
    """
    each = min(depth, max(_FEW, 2 * depth // max(1, len(ranges))))
    ends = _ends_of(query, ranges, each)
    if each < depth:
        found = _sorted(query, [place for end in ends for place in end])
        last = found[depth - 1] if len(found) >= depth else None
        longer = [
            number
            for number, end in enumerate(ends)
            if len(end) == each and (last is None or (end[-1] < last) == query.filter.ascending)
        ]
        whole = _ends_of(query, [ranges[number] for number in longer], depth)
        for number, end in zip(longer, whole, strict=True):
            ends[number] = end
    return [place for end in ends for place in end]


def _ends_of(query: Query, ranges: Sequence[Range], depth: int) -> list[list[Place]]:
    """The first places of each range."""
    ends: list[list[Place]] = [[] for _ in ranges]
    columns = f"{KEYS[query.filter.sort]}, seq"
    for start in range(0, len(ranges), _AT_ONCE):
        sql, parameters = _united(query, ranges[start : start + _AT_ONCE], columns, depth)
        for number, key, seq in query.reader.read(sql, parameters):
            ends[start + number].append(Place(key, seq))
    return ends


def _united(
    query: Query, ranges: Sequence[Range], columns: str, limit: int, *, ordered: bool = True
) -> tuple[str, list[str | int]]:
    """The first rows of each range, with its number before the columns."""
    selects = []
    parameters: list[str | int] = []
    for number, part in enumerate(ranges):
        condition, values = query.bounded(part)
        order = f" ORDER BY {query.order(part)}" if ordered else ""
        selects.append(
            f"SELECT {number}, * FROM (SELECT {columns}"
            f" FROM holdfast_jobs {query.reader.by_index(part.index)}"
            f" WHERE {condition}{order} LIMIT {limit}) AS part"
        )
        parameters += values
    return " UNION ALL ".join(selects), parameters


# How many.


def count_matching(reader: Reader, filter: JobFilter, cap: int) -> int:
    words = words_of(filter)
    if cap <= 0 or not words:
        return 0
    is_plain = not _is_of_few(filter) and (filter.since, filter.until, filter.after) == (None,) * 3
    if is_plain and filter.error is not None and filter.type is not None:
        sql = "SELECT jobs FROM holdfast_errors WHERE type = ? AND error_group = ?"
        row = reader.read_one(sql, (filter.type, filter.error))
        return min(row[0], cap) if row else 0
    if is_plain and filter.error is None and RETRYING not in words:
        where, parameters = ("", []) if filter.type is None else (" WHERE type = ?", [filter.type])
        row = reader.read_one(f"SELECT sum({' + '.join(words)}) FROM holdfast_counts{where}", parameters)
        return min(int(row[0] or 0), cap)
    with reader.snapshot():
        query = Query(reader, filter)
        is_whole = _is_whole(query) and filter.sort != FINISHED_AT
        if is_whole or _is_of_few(filter) or (filter.after and filter.sort != CREATED):
            return _count_in_table(query, cap)
        try:
            return _count_in_ranges(query, query.all_ranges(), cap)
        except TooManyRanges:
            return _count_in_table(query, cap)


def _count_in_table(query: Query, cap: int) -> int:
    # By the index alone, as below: a look at each row's instant would have to fetch the row.
    by_instants = query.filter.sort == FINISHED_AT or _is_of_few(query.filter)
    source, parameters = _table(query, by_instants=by_instants)
    sql = f"SELECT count(*) FROM (SELECT 1 {source} LIMIT ?) AS found"
    return int(query.reader.read_one(sql, (*parameters, cap))[0])


def _count_in_ranges(query: Query, ranges: Sequence[Range], cap: int) -> int:
    """By the indexes alone; after a clock was set back it may differ a little from what a list shows."""
    count = 0
    for start in range(0, len(ranges), _AT_ONCE):
        parts, parameters = _united(query, ranges[start : start + _AT_ONCE], "1", cap - count, ordered=False)
        sql = f"SELECT count(*) FROM ({parts} LIMIT ?) AS parts"
        count += int(query.reader.read_one(sql, (*parameters, cap - count))[0])
        if count >= cap:
            break
    return count
