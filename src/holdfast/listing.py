"""Lists of jobs: filters, orders, pages by cursor, and searches that read a bounded number of jobs."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.check import printable_text, text, whole_number
from holdfast.core.clock import from_datetime, parse_instant
from holdfast.core.error_group import error_group
from holdfast.core.job import Job, parse_status
from holdfast.core.search import Search, parse_search
from holdfast.errors import ConfigError, shown
from holdfast.store.protocol import (
    CREATED,
    PRIORITY,
    SORTS,
    JobFilter,
    Place,
    Placed,
    Store,
)

MOST_SEARCHED = 10_000
"""Jobs that one search reads."""

SEARCH_SECONDS = 2.0
"""How long one search reads."""

AMOUNTS = range(2**31)
"""How many jobs may be asked for, or passed over."""

_READ = 500
_PAYLOADS = 10
"""Payloads that are in memory at once: each may be large."""

_PRIORITIES = range(-(2**31), 2**31)
_PLACE = re.compile(r"(?:(-?[0-9]{1,18})\.)?([0-9]{1,18})")


class Page(Struct, frozen=True, kw_only=True):
    """Some jobs of a list, and the cursors of the pages after and before it, where there are any.

    `examined` is how many jobs a search has read.
    """

    jobs: list[Job]
    next: str | None
    previous: str | None
    examined: int | None = None


def job_filter(
    *,
    status: str | Iterable[str] | None = None,
    type: str | None = None,
    parent_id: str | None = None,
    error: str | None = None,
    since: datetime | str | None = None,
    until: datetime | str | None = None,
    sort: str = CREATED,
    limit: int = 50,
    offset: int = 0,
    ascending: bool = False,
    brief: bool = False,
) -> JobFilter:
    """A filter from what callers say. Raises ConfigError for what it can't be."""
    if sort not in SORTS:
        raise ConfigError(f"{shown(sort)} is not a sort order; allowed: {', '.join(SORTS)}")
    return JobFilter(
        statuses=_statuses(status),
        type=None if type is None else printable_text("type", type),
        parent_id=None if parent_id is None else printable_text("parent_id", parent_id),
        # A group's own group is itself.
        error=None if error is None else error_group(text("error", error)),
        since=_instant("since", since),
        until=_instant("until", until),
        sort=sort,
        limit=whole_number("limit", limit, AMOUNTS),
        offset=whole_number("offset", offset, AMOUNTS),
        ascending=ascending,
        brief=brief,
    )


def _statuses(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    words = given if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]
    return tuple(dict.fromkeys(parse_status(word) for word in words))


def _instant(name: str, given: datetime | str | None) -> int | None:
    if given is None:
        return None
    if not isinstance(given, datetime):
        given = parse_instant(name, given)
    if given.utcoffset() is None:
        raise ConfigError(f"{name} is a naive datetime; give it a time zone")
    return from_datetime(given)


def page(
    store: Store,
    *,
    search: str | None = None,
    limit: int = 50,
    offset: int = 0,
    cursor: str | None = None,
    brief: bool = False,
    ascending: bool = False,
    **filters: Any,
) -> Page:
    """See Queue.page."""
    filter = job_filter(**filters, ascending=ascending, limit=limit, offset=offset, brief=brief)
    if cursor is not None and offset:
        raise ConfigError("cursor and offset exclude each other")
    wanted = None if search is None else parse_search(search)
    is_backward = cursor is not None and text("cursor", cursor).startswith("<")
    if cursor is not None:
        filter = replace(filter, after=_place(cursor.removeprefix("<"), filter.sort))
    if wanted is None or wanted == Search():
        return _backward(store, filter) if is_backward else _forward(store, filter)
    if offset:
        raise ConfigError("a search goes on by its cursor; it takes no offset")
    if is_backward:
        raise ConfigError("a search goes forward only: cursor must be the nextCursor of a page before")
    return _searched(store, filter, wanted)


def with_jobs(page: Page, change: Callable[[Job], Job]) -> Page:
    return replace(page, jobs=[change(job) for job in page.jobs])


# Cursors.


def _place(cursor: str, sort: str) -> Place:
    """What a cursor stands for."""
    found = _PLACE.fullmatch(cursor)
    if found is not None:
        key, seq = found.groups()
        if key is None and sort == CREATED:
            return Place(0, int(seq))
        # A priority and an instant are both numbers, but never the same ones.
        if key is not None and sort != CREATED and (int(key) in _PRIORITIES) == (sort == PRIORITY):
            return Place(int(key), int(seq))
    raise ConfigError("cursor must be the nextCursor of a page before, in the same order")


def _cursor(place: Place | None, sort: str) -> str | None:
    if place is None:
        return None
    return str(place.seq) if sort == CREATED else f"{place.key}.{place.seq}"


def _forward(store: Store, filter: JobFilter) -> Page:
    found, following = store.list_placed(filter)
    before: Place | None = None
    if filter.after is not None or filter.offset:
        before = found[0].place if found else _beside(filter, is_after=True)
    previous = _cursor(before, filter.sort)
    return Page(
        jobs=[placed.job for placed in found],
        next=_cursor(following, filter.sort),
        previous=None if previous is None else f"<{previous}",
    )


def _backward(store: Store, filter: JobFilter) -> Page:
    """The page that ends just before a place: the same list the other way round."""
    found, preceding = store.list_placed(replace(filter, ascending=not filter.ascending))
    last = found[0].place if found else _beside(filter, is_after=False)
    previous = _cursor(preceding, filter.sort)
    return Page(
        jobs=[placed.job for placed in reversed(found)],
        next=_cursor(last, filter.sort),
        previous=None if previous is None else f"<{previous}",
    )


def _beside(filter: JobFilter, *, is_after: bool) -> Place | None:
    """The place next to the filter's own: a page that turns back there holds the job at it."""
    if filter.after is None:
        return None
    step = 1 if filter.ascending == is_after else -1
    return Place(filter.after.key, filter.after.seq + step)


# Searches.


class Found(Struct, frozen=True):
    """What a search has found, where it would go on, and how many jobs it has read."""

    matches: list[Placed]
    following: Place | None
    examined: int


def _searched(store: Store, filter: JobFilter, wanted: Search) -> Page:
    found = _search(store, filter, wanted, MOST_SEARCHED)
    jobs = [placed.job for placed in found.matches]
    if not filter.brief:
        jobs = [replace(job, errors=()) for job in (store.get_job(job.id) for job in jobs) if job]
    return Page(jobs=jobs, next=_cursor(found.following, filter.sort), previous=None, examined=found.examined)


def _search(store: Store, filter: JobFilter, wanted: Search, most: int) -> Found:
    """Read on from the filter's place, until its limit is found, or it was enough or took long enough."""
    if filter.limit <= 0:
        return Found([], None, 0)
    deadline = time.monotonic() + SEARCH_SECONDS
    at_once = _PAYLOADS if wanted.fields else _READ
    matches: list[Placed] = []
    examined = 0
    while True:
        size = min(_READ, most - examined)
        rows, following = store.list_placed(replace(filter, limit=size, brief=True))
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            for number, placed in _fitting(store, part, wanted):
                matches.append(placed)
                if len(matches) == filter.limit:
                    end = start + number + 1
                    is_last = end == len(rows) and following is None
                    return Found(matches, None if is_last else placed.place, examined + end)
            end = start + len(part)
            if time.monotonic() >= deadline and end < len(rows):
                return Found(matches, part[-1].place, examined + end)
        examined += len(rows)
        if following is None or examined >= most or time.monotonic() >= deadline:
            return Found(matches, following, examined)
        filter = replace(filter, after=following)


def _fitting(store: Store, rows: Sequence[Placed], wanted: Search) -> list[tuple[int, Placed]]:
    """Those of the rows that a search finds, by their numbers; payloads are read only if it asks for them."""
    found = [
        (number, placed)
        for number, placed in enumerate(rows)
        if wanted.finds(placed.job.id, placed.job.key, placed.job.error)
    ]
    if not wanted.fields or not found:
        return found
    payloads = store.list_payloads([placed.job.id for _, placed in found])
    return [
        (number, placed)
        for number, placed in found
        if placed.job.id in payloads and wanted.finds_in(payloads[placed.job.id])
    ]


# All of them.


def walk(store: Store, *, search: str | None = None, at_once: int = 200, **filters: Any) -> Iterator[str]:
    """The ids of the jobs that a filter finds, in its order: those there now, not those that come.

    With a search they are those among the first MOST_SEARCHED jobs.
    """
    filter = job_filter(**filters, limit=at_once, brief=True)
    wanted = None if search is None else parse_search(search)
    if wanted is not None and wanted != Search():
        yield from _all_found(store, replace(filter, limit=MOST_SEARCHED), wanted)
        return
    newest, _ = store.list_placed(JobFilter(limit=1, brief=True))
    last = newest[0].place.seq if newest else 0
    while True:
        rows, following = store.list_placed(filter)
        yield from (placed.job.id for placed in rows if placed.place.seq <= last)
        if following is None:
            return
        filter = replace(filter, after=following)


def _all_found(store: Store, filter: JobFilter, wanted: Search) -> list[str]:
    ids: list[str] = []
    left = MOST_SEARCHED
    while left > 0:
        found = _search(store, filter, wanted, left)
        ids += [placed.job.id for placed in found.matches]
        if found.following is None:
            break
        left -= found.examined
        filter = replace(filter, after=found.following)
    return ids
