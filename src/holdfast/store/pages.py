"""Pages of jobs, in every order, and how many there are: at a cost that does not grow with the queue.

A page is merged from the ends of ranges, of which only as much is read as it may need.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.job import RETRYING, Status
from holdfast.store.protocol import CREATED, FINISHED_AT, PRIORITY, JobFilter, Place, Placed
from holdfast.store.ranges import (
    KEYS,
    RUNNING,
    Range,
    Window,
    all_ranges,
    beyond,
    bounded,
    conditions,
    highest_ranges,
    running_condition,
    window_of,
    within,
    words_of,
)
from holdfast.store.reader import Reader
from holdfast.store.rows import BRIEF_COLUMNS, JOB_COLUMNS, job_from

DEEPEST = 10_000
"""Jobs that may be passed over by an offset; beyond that the table is read."""

_AT_ONCE = 400  # SQLite puts no more than 500 into one statement
_LEVELS_AT_ONCE = 16
_FEW = 8
_COLUMNS = JOB_COLUMNS.split(", ")


def list_placed(reader: Reader, filter: JobFilter) -> tuple[list[Placed], Place | None]:
    if filter.limit <= 0 or not words_of(filter):
        return [], None
    with reader.snapshot():
        window = window_of(reader, filter)
        places = _places(reader, filter, window)
        if places is None:
            return _from_table(reader, filter, window)
        return _from_places(reader, filter, places)


def _from_table(reader: Reader, filter: JobFilter, window: Window) -> tuple[list[Placed], Place | None]:
    columns = BRIEF_COLUMNS if filter.brief else JOB_COLUMNS
    if filter.sort == CREATED:  # of two bounds on one side SQLite might follow the wider
        window, filter = window.after(filter.after, filter.ascending), replace(filter, after=None)
    where, parameters = conditions(filter)
    bounds, limits = within(window)
    rows = reader.read(
        f"SELECT {columns} FROM holdfast_jobs {_source(reader, filter)}{where or ' WHERE true'}{bounds}"
        f" ORDER BY {_order(filter)} LIMIT ? OFFSET ?",
        (*parameters, *limits, filter.limit + 1, filter.offset),
    )
    found = [_placed(row, filter) for row in rows[: filter.limit]]
    return found, found[-1].place if len(rows) > filter.limit else None


def _from_places(
    reader: Reader, filter: JobFilter, places: Sequence[Place]
) -> tuple[list[Placed], Place | None]:
    """The jobs at the places, but for those that a clock which was set back has put among them."""
    columns = BRIEF_COLUMNS if filter.brief else JOB_COLUMNS
    shown = places[: filter.limit]
    rows = reader.read(
        f"SELECT {columns} FROM holdfast_jobs {reader.by_index(None)} WHERE seq {reader.among_numbers}",
        (json.dumps([place.seq for place in shown]),),
    )
    found = [_placed(row, filter) for row in rows if _is_in_time(row, filter)]
    found.sort(key=lambda placed: placed.place, reverse=not filter.ascending)
    return found, shown[-1] if len(places) > filter.limit else None


def _is_in_time(row: Sequence[Any], filter: JobFilter) -> bool:
    instant = row[_COLUMNS.index("finished_at" if filter.sort == FINISHED_AT else "created_at")]
    is_late_enough = filter.since is None or instant >= filter.since
    return is_late_enough and (filter.until is None or instant < filter.until)


def _placed(row: Sequence[Any], filter: JobFilter) -> Placed:
    key = 0 if filter.sort == CREATED else row[_COLUMNS.index(KEYS[filter.sort])]
    return Placed(Place(key, row[0]), job_from(row))


def _source(reader: Reader, filter: JobFilter) -> str:
    """How the table itself is read: along the index that the filter is narrowest in."""
    if filter.parent_id is not None:
        return reader.by_index("holdfast_jobs_parent")
    return reader.by_index(None if filter.type is None else "holdfast_jobs_type")


def _is_whole(reader: Reader, filter: JobFilter) -> bool:
    """Whether the jobs of every state are asked for, and lie in one index together."""
    is_whole = not filter.statuses and filter.error is None
    return is_whole and (filter.type is None or reader.reads_whole_types)


def _order(filter: JobFilter) -> str:
    direction = "ASC" if filter.ascending else "DESC"
    if filter.sort == CREATED:
        return f"seq {direction}"
    return f"{KEYS[filter.sort]} {direction}, seq {direction}"


# The places of a page.


def _places(reader: Reader, filter: JobFilter, window: Window) -> list[Place] | None:
    """The places of a page, and one more if there is one; None if the table is to be read."""
    depth = filter.offset + filter.limit + 1
    is_whole = _is_whole(reader, filter) and filter.sort == CREATED
    if is_whole or filter.parent_id is not None or depth > DEEPEST:
        return None
    if filter.sort == PRIORITY:
        found = _by_priority(reader, filter, window, depth)
    else:
        found = _from_ranges(reader, filter, window, depth)
    if found is None:
        return None
    return sorted(found, reverse=not filter.ascending)[filter.offset : depth]


def _from_ranges(reader: Reader, filter: JobFilter, window: Window, depth: int) -> list[Place] | None:
    ranges = all_ranges(reader, filter)
    if ranges is None:
        return None
    return [
        *_running(reader, filter, window, depth),
        *_merged(reader, filter, window, ranges, depth),
    ]


def _by_priority(reader: Reader, filter: JobFilter, window: Window, depth: int) -> list[Place] | None:
    """Down the priorities, until the page is full."""
    levels = highest_ranges(reader, filter, depth)
    if levels is None:
        return None
    ranges, floor = levels
    ranges = sorted((r for r in ranges if floor is None or r.rank > floor), key=lambda r: -r.rank)
    sign = -1 if filter.ascending else 1
    found = _running(reader, filter, window, depth)
    start = 0
    while start < len(ranges):
        stop = min(start + _LEVELS_AT_ONCE, len(ranges))
        while stop < len(ranges) and ranges[stop].rank == ranges[stop - 1].rank:
            stop += 1
        found += _merged(reader, filter, window, ranges[start:stop], depth)
        if sum(sign * place.key >= ranges[stop - 1].rank for place in found) >= depth:
            return found
        start = stop
    return found if floor is None else None


def _running(reader: Reader, filter: JobFilter, window: Window, depth: int) -> list[Place]:
    """The places of running jobs; few run at a time, and they are sorted."""
    if Status.PROCESSING not in words_of(filter):
        return []
    condition, parameters = running_condition(filter)
    bounds, limits = within(window)
    if filter.after is not None:
        more, values = beyond(filter)
        condition, parameters = f"{condition} AND {more}", [*parameters, *values]
    rows = reader.read(
        f"SELECT {KEYS[filter.sort]}, seq FROM holdfast_jobs {reader.by_index(RUNNING)}"
        f" WHERE {condition}{bounds} ORDER BY {_order(filter)} LIMIT ?",
        (*parameters, *limits, depth),
    )
    return [Place(*row) for row in rows]


def _merged(
    reader: Reader, filter: JobFilter, window: Window, ranges: Sequence[Range], depth: int
) -> list[Place]:
    """Places of the ranges, with the first `depth` of them all among them.

    A little of each is read, and then the whole only of those whose part of the page may go on.
    """
    each = min(depth, max(_FEW, 2 * depth // max(1, len(ranges))))
    ends = _ends_of(reader, filter, window, ranges, each)
    if each < depth:
        found = sorted((place for end in ends for place in end), reverse=not filter.ascending)
        last = found[depth - 1] if len(found) >= depth else None
        longer = [
            number
            for number, end in enumerate(ends)
            if len(end) == each and (last is None or (end[-1] < last) == filter.ascending)
        ]
        whole = _ends_of(reader, filter, window, [ranges[number] for number in longer], depth)
        for number, end in zip(longer, whole, strict=True):
            ends[number] = end
    return [place for end in ends for place in end]


def _ends_of(
    reader: Reader, filter: JobFilter, window: Window, ranges: Sequence[Range], depth: int
) -> list[list[Place]]:
    """The first places of each range."""
    ends: list[list[Place]] = [[] for _ in ranges]
    for start in range(0, len(ranges), _AT_ONCE):
        selects = []
        parameters: list[str | int] = []
        for number, part in enumerate(ranges[start : start + _AT_ONCE], start):
            condition, values = bounded(reader, filter, window, part)
            selects.append(
                f"SELECT {number}, * FROM (SELECT {KEYS[filter.sort]}, seq"
                f" FROM holdfast_jobs {reader.by_index(part.index)}"
                f" WHERE {condition} ORDER BY {_order_within(reader, filter)} LIMIT {depth}) AS part"
            )
            parameters += values
        for number, key, seq in reader.read(" UNION ALL ".join(selects), parameters):
            ends[number].append(Place(key, seq))
    return ends


def _order_within(reader: Reader, filter: JobFilter) -> str:
    """The order of a range: of one priority there is only one."""
    direction = "ASC" if filter.ascending else "DESC"
    if filter.sort == FINISHED_AT:
        return f"finished_at {direction}, seq {direction}"
    return f"{reader.seq_within} {direction}"


# How many.


def count_matching(reader: Reader, filter: JobFilter, cap: int) -> int:
    words = words_of(filter)
    if cap <= 0 or not words:
        return 0
    is_plain = (filter.parent_id, filter.since, filter.until, filter.after) == (None,) * 4
    if is_plain and filter.error is not None and filter.type is not None:
        sql = "SELECT jobs FROM holdfast_errors WHERE type = ? AND error_group = ?"
        row = reader.read_one(sql, (filter.type, filter.error))
        return min(row[0], cap) if row else 0
    if is_plain and filter.error is None and RETRYING not in words:
        where, parameters = ("", []) if filter.type is None else (" WHERE type = ?", [filter.type])
        row = reader.read_one(f"SELECT sum({' + '.join(words)}) FROM holdfast_counts{where}", parameters)
        return min(int(row[0] or 0), cap)
    with reader.snapshot():
        window = window_of(reader, filter)
        is_whole = _is_whole(reader, filter) and filter.sort != FINISHED_AT
        if is_whole or filter.parent_id is not None or (filter.after and filter.sort != CREATED):
            return _count_in_table(reader, filter, window, cap)
        ranges = all_ranges(reader, filter)
        if ranges is None:
            return _count_in_table(reader, filter, window, cap)
        return _count_in_ranges(reader, filter, window, ranges, cap)


def _count_in_table(reader: Reader, filter: JobFilter, window: Window, cap: int) -> int:
    if filter.sort == CREATED:
        window, filter = window.after(filter.after, filter.ascending), replace(filter, after=None)
    if filter.sort != FINISHED_AT and filter.parent_id is None:
        # By the index alone, as below: a look at each row's instant would have to fetch the row.
        filter = replace(filter, since=None, until=None)
    where, parameters = conditions(filter)
    bounds, limits = within(window)
    row = reader.read_one(
        f"SELECT count(*) FROM (SELECT 1 FROM holdfast_jobs {_source(reader, filter)}"
        f"{where or ' WHERE true'}{bounds} LIMIT ?) AS found",
        (*parameters, *limits, cap),
    )
    return int(row[0])


def _count_in_ranges(
    reader: Reader, filter: JobFilter, window: Window, ranges: Sequence[Range], cap: int
) -> int:
    """By the indexes alone; after a clock was set back it may differ a little from what a list shows."""
    parts = list(ranges)
    if Status.PROCESSING in words_of(filter):
        condition, values = running_condition(filter)
        parts.append(Range(RUNNING, condition, tuple(values)))
    count = 0
    for start in range(0, len(parts), _AT_ONCE):
        selects = []
        parameters: list[str | int] = []
        for part in parts[start : start + _AT_ONCE]:
            condition, limits = bounded(reader, filter, window, part)
            order = "" if part.index == RUNNING else f" ORDER BY {_order_within(reader, filter)}"
            selects.append(
                f"SELECT 1 FROM (SELECT 1 FROM holdfast_jobs {reader.by_index(part.index)}"
                f" WHERE {condition}{order} LIMIT {cap - count}) AS part"
            )
            parameters += limits
        sql = f"SELECT count(*) FROM ({' UNION ALL '.join(selects)} LIMIT ?) AS parts"
        count += int(reader.read_one(sql, (*parameters, cap - count))[0])
        if count >= cap:
            return cap
    return count
