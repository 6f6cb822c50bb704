"""Lists of jobs: filters, orders, pages by cursor, and searches that read a bounded number of jobs."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import Struct
from msgspec.structs import asdict, replace

from holdfast.core.check import text, whole_number
from holdfast.core.clock import from_datetime, to_datetime
from holdfast.core.filter import COUNTED, CREATED, MOST_SEARCHED, PRIORITY, Filter
from holdfast.core.job import PRIORITIES, Job
from holdfast.core.search import Search
from holdfast.errors import ConfigError
from holdfast.store.protocol import Store
from holdfast.store.records import JobFilter, Place, Placed

SEARCH_SECONDS = 2.0
"""How long one search may take."""

AMOUNTS = range(2**31)
"""The maximum limit and offset."""

_READ = 500
_PAYLOADS = 10
"""How many payloads are in memory at once: each may be large."""

_PLACE = re.compile(r"(?:(-?[0-9]{1,18})\.)?([0-9]{1,18})")


class Page(Struct, frozen=True, kw_only=True):
    """Some jobs of a list, and the cursors of the pages after and before it, where there are any.

    `total` is how many jobs all pages hold, counted up to COUNTED + 1, where that was asked for; a search
    has none, but says how many jobs it has `examined`.
    """

    jobs: list[Job]
    next: str | None
    previous: str | None
    total: int | None = None
    examined: int | None = None


def page(
    store: Store,
    filter: Filter,
    *,
    limit: int = 50,
    offset: int = 0,
    cursor: str | None = None,
    brief: bool = False,
    with_total: bool = False,
) -> Page:
    """See Queue.page."""
    query = _query(
        store,
        filter,
        limit=whole_number("limit", limit, AMOUNTS),
        offset=whole_number("offset", offset, AMOUNTS),
        brief=brief,
    )
    wanted = filter.wanted
    is_backward = cursor is not None and text("cursor", cursor).startswith("<")
    if cursor is not None:
        if offset:
            raise ConfigError("cursor and offset are mutually exclusive")
        query = replace(query, after=_place(cursor.removeprefix("<"), query.sort))
    if wanted is not None:
        if offset:
            raise ConfigError("search and offset are mutually exclusive; continue a search with its cursor")
        if is_backward:
            raise ConfigError("a search can't go backward: cursor must be the nextCursor of an earlier page")
        return _searched(store, query, wanted)
    total = store.count_matching(replace(query, after=None), max(offset, COUNTED) + 1) if with_total else None
    if total is not None and offset >= total and cursor is None:
        return Page(jobs=[], next=None, previous=None, total=total)  # passed-over rows would have to be read
    return replace(_listed(store, query, is_backward=is_backward), total=total)


def count(store: Store, filter: Filter, cap: int) -> int:
    """See Queue.count."""
    most = whole_number("cap", cap, range(2**32))
    if filter.wanted is not None:
        return sum(1 for _ in islice(walk(store, filter), most))
    return store.count_matching(_query(store, filter), most)


def _query(store: Store, filter: Filter, **paging: Any) -> JobFilter:
    """A filter as the store is asked: with every field, so that none can be forgotten, but for the search."""
    if filter.is_relative:
        filter = filter.at(to_datetime(store.now()))
    fields = asdict(filter)
    del fields["search"]
    for name in ("since", "until"):
        fields[name] = None if fields[name] is None else from_datetime(fields[name])
    return JobFilter(statuses=fields.pop("status"), **fields, **paging)


# Cursors.


def _place(cursor: str, sort: str) -> Place:
    """What a cursor stands for."""
    found = _PLACE.fullmatch(cursor)
    if found is not None:
        key, seq = found.groups()
        if key is None and sort == CREATED:
            return Place(0, int(seq))
        # A priority and an instant are both numbers, but never the same ones.
        if key is not None and sort != CREATED and (int(key) in PRIORITIES) == (sort == PRIORITY):
            return Place(int(key), int(seq))
    raise ConfigError("cursor must be the nextCursor of an earlier page in the same order")


def _cursor(place: Place | None, sort: str) -> str | None:
    if place is None:
        return None
    return str(place.seq) if sort == CREATED else f"{place.key}.{place.seq}"


def _listed(store: Store, filter: JobFilter, *, is_backward: bool) -> Page:
    """The page after a place or, backward, the one that ends there: the same list the other way round."""
    found, beyond = store.list_placed(replace(filter, ascending=filter.ascending != is_backward))
    origin: Place | None = None
    if filter.after is not None or filter.offset:
        origin = found[0].place if found else _beside(filter, is_after=not is_backward)
    before, after = (beyond, origin) if is_backward else (origin, beyond)
    previous = _cursor(before, filter.sort)
    return Page(
        jobs=[placed.job for placed in (reversed(found) if is_backward else found)],
        next=_cursor(after, filter.sort),
        previous=None if previous is None else f"<{previous}",
    )


def _beside(filter: JobFilter, *, is_after: bool) -> Place | None:
    """The place next to the filter's own: a page that turns back there holds the job at it."""
    if filter.after is None:
        return None
    step = 1 if filter.ascending == is_after else -1
    return Place(filter.after.key, filter.after.seq + step)


# Searches.


def _searched(store: Store, filter: JobFilter, wanted: Search) -> Page:
    """Read on from the filter's place, until its limit is found, or it was enough or took long enough."""
    deadline = time.monotonic() + SEARCH_SECONDS
    matches: list[Placed] = []
    following: Place | None = None
    examined = 0
    for part, fitting, following in _parts(store, filter, wanted) if filter.limit else ():
        missing = filter.limit - len(matches)
        matches += fitting[:missing]
        if len(fitting) >= missing:
            last = fitting[missing - 1]
            examined += part.index(last) + 1
            following = last.place if following is not None or last is not part[-1] else None
            break
        examined += len(part)
        if time.monotonic() >= deadline:
            break
    jobs = [placed.job for placed in matches]
    if not filter.brief:
        whole = store.get_whole_jobs([job.id for job in jobs], sys.maxsize)
        jobs = [replace(job, errors=()) for job in whole]
    return Page(jobs=jobs, next=_cursor(following, filter.sort), previous=None, examined=examined)


def _parts(
    store: Store, filter: JobFilter, wanted: Search
) -> Iterator[tuple[list[Placed], list[Placed], Place | None]]:
    """The jobs from the filter's place on, up to MOST_SEARCHED, some at a time: all of these, those of them
    that a search finds, and where it goes on after them."""
    at_once = _PAYLOADS if wanted.fields else _READ
    left = MOST_SEARCHED
    while left > 0:
        rows, following = store.list_placed(replace(filter, limit=min(_READ, left), brief=True))
        for start in range(0, len(rows), at_once):
            part = rows[start : start + at_once]
            is_last = start + len(part) == len(rows)
            yield part, _fitting(store, part, wanted), following if is_last else part[-1].place
        if following is None:
            return
        left -= len(rows)
        filter = replace(filter, after=following)


def _fitting(store: Store, rows: Sequence[Placed], wanted: Search) -> list[Placed]:
    """The rows that match a search; payloads are read only if the search needs them."""
    found = [row for row in rows if wanted.finds(row.job.id, row.job.key, row.job.group, row.job.error)]
    if not wanted.fields or not found:
        return found
    payloads = store.list_payloads([row.job.id for row in found])
    return [row for row in found if row.job.id in payloads and wanted.finds_in(payloads[row.job.id])]


# All of them.


def walk(store: Store, filter: Filter) -> Iterator[str]:
    """The ids of the jobs that match a filter, in its order: those that exist now, not later ones.

    With a search they are those among the first MOST_SEARCHED jobs.
    """
    query = _query(store, filter, limit=_READ, brief=True)
    wanted = filter.wanted
    if wanted is not None:
        return iter([placed.job.id for _, fitting, _ in _parts(store, query, wanted) for placed in fitting])
    newest, _ = store.list_placed(JobFilter(limit=1, brief=True))
    return _walk_up_to(store, query, newest[0].place.seq if newest else 0)


def _walk_up_to(store: Store, query: JobFilter, last: int) -> Iterator[str]:
    while True:
        rows, following = store.list_placed(query)
        yield from (placed.job.id for placed in rows if placed.place.seq <= last)
        if following is None:
            return
        query = replace(query, after=following)
