"""Which jobs, and in which order: the filter that every surface parses into. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Literal, TypedDict

from msgspec import Struct
from msgspec.structs import force_setattr, replace

from holdfast.core import check
from holdfast.core.clock import read_iso, require_zone
from holdfast.core.error_group import error_group
from holdfast.core.job import Status, check_group, check_type, parse_status
from holdfast.core.search import Search, parse_search
from holdfast.durations import LONGEST_DURATION, parse_duration
from holdfast.errors import ConfigError
from holdfast.text import shown

CREATED = "created"
FINISHED_AT = "finished"
PRIORITY = "priority"
SORTS = (CREATED, FINISHED_AT, PRIORITY)

Sort = Literal["created", "finished", "priority"]
StatusWord = Status | Literal[
    "scheduled", "pending", "processing", "completed", "failed", "cancelled", "retrying",
    "dead", "queued", "claimed", "done",
]  # fmt: skip
"""The states, `retrying`, and the words that other specifications use for them."""

Moment = datetime | timedelta | str
"""An instant, or a duration before now such as '1h'."""

COUNTED = 10_000
"""Counts for people stop here: jobs of a list, running jobs, jobs ahead of one."""

MOST_SEARCHED = 10_000
"""How many jobs one search reads."""

_LONGEST = timedelta(seconds=LONGEST_DURATION)


class FilterWords(TypedDict, total=False):
    """A Filter's fields, where they are given as keyword arguments."""

    status: StatusWord | Iterable[StatusWord] | None
    type: str | None
    group: str | None
    parent_id: str | None
    error: str | None
    since: Moment | None
    until: Moment | None
    search: str | None
    sort: Sort
    ascending: bool


class Filter(Struct, frozen=True, kw_only=True):
    """Which jobs, and in which order. Raises ConfigError for invalid values.

    `error` matches failed jobs with similar errors: numbers are ignored. `since` and `until` apply to the
    creation time, or with `sort="finished"` to the finish time; each is an instant, or a duration before now.
    `search` finds words and "phrases" in id, key, group and error, and payload fields (`payload.user.id:42`).
    The latest or highest come first, unless `ascending`.
    """

    status: StatusWord | Iterable[StatusWord] | None = ()
    type: str | None = None
    group: str | None = None
    parent_id: str | None = None
    error: str | None = None
    since: Moment | None = None
    until: Moment | None = None
    search: str | None = None
    sort: Sort = "created"
    ascending: bool = False

    def __post_init__(self) -> None:
        if self.sort not in SORTS:
            raise ConfigError(f"{shown(self.sort)} is not a sort order; allowed: {', '.join(SORTS)}")
        if self.search is not None:
            parse_search(self.search)
        force_setattr(self, "status", _statuses(self.status))
        if not isinstance(self.ascending, bool):
            raise ConfigError(f"must be True or False, not {shown(self.ascending)}", option="ascending")
        if self.type is not None:
            force_setattr(self, "type", check_type(self.type))
        if self.group is not None:
            force_setattr(self, "group", check_group("group", self.group))
        if self.parent_id is not None:
            force_setattr(self, "parent_id", check.printable_text("parent_id", self.parent_id))
        if self.error is not None:  # a group's own group is itself
            force_setattr(self, "error", error_group(check.text("error", self.error)))
        for name in ("since", "until"):
            if getattr(self, name) is not None:
                force_setattr(self, name, read_moment(name, getattr(self, name)))

    @property
    def statuses(self) -> tuple[str, ...]:
        """The requested states, in our own terms; empty for all of them."""
        return self.status  # type: ignore[return-value] # since __post_init__

    @property
    def wanted(self) -> Search | None:
        """What is searched for, if anything is."""
        wanted = None if self.search is None else parse_search(self.search)
        return None if wanted == Search() else wanted

    @property
    def is_relative(self) -> bool:
        return isinstance(self.since, timedelta) or isinstance(self.until, timedelta)

    def at(self, now: datetime) -> Filter:
        """The same filter, with its durations converted to times before `now`."""
        return replace(self, since=_before(now, self.since), until=_before(now, self.until))


MEANINGS = {
    "status": "only these states, or retrying; repeatable",
    "type": "only this type",
    "group": "only jobs of this group",
    "parent_id": "only jobs that this job enqueued",
    "error": "only failed jobs with this error; numbers and ids in it are ignored",
    "since": "created at or after this time; 1h means an hour ago",
    "until": "created before this time; 1h means an hour ago",
    "search": f'words and "phrases" in id, key, group or error, or payload.FIELD:VALUE; reads up to'
    f" {MOST_SEARCHED:,} jobs",
    "sort": "sort key; finished lists only finished jobs, and since and until refer to that time",
}
"""What each field that a person can type means, for help texts and the OpenAPI document."""


def parse_filter(**words: Any) -> Filter:
    """A filter from text that a user entered, by field name."""
    unknown = [name for name in words if name not in Filter.__struct_fields__]
    if unknown:
        allowed = ", ".join(Filter.__struct_fields__)
        raise ConfigError(f"{unknown[0]} is not a filter field; allowed: {allowed}")
    return Filter(**words)


def as_filter(filter: Filter | None, words: FilterWords) -> Filter:
    """The filter that a caller gives: whole, or by its fields."""
    if filter is None:
        return parse_filter(**words)
    if words or type(filter) is not Filter:
        raise ConfigError("pass either a Filter or its fields as keyword arguments, not both")
    return filter


def _statuses(given: object) -> tuple[str, ...]:
    if given is None:
        return ()
    words = given if isinstance(given, Iterable) and not isinstance(given, str | bytes) else [given]
    return tuple(dict.fromkeys(parse_status(word) for word in words))


def read_moment(name: str, given: object) -> datetime | timedelta:
    """An instant, or a duration before now, from what somebody gave; raises ConfigError under its `name`."""
    try:
        moment = given if isinstance(given, datetime | timedelta) else _read_moment(given)
        if isinstance(moment, timedelta):
            if not timedelta() <= moment <= _LONGEST:
                raise ValueError
            return moment
        require_zone(name, moment, given)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{name} must be a time such as 2030-01-31T09:00:00Z, or a duration before now such as 1h,"
            f" not {shown(given)}"
        ) from None


def _read_moment(given: object) -> datetime | timedelta:
    """The time or duration that a text means. A bare number is neither: it might be a Unix timestamp."""
    if not isinstance(given, str) or given.strip().replace(".", "").isdecimal():
        raise ValueError
    try:
        return timedelta(seconds=parse_duration(given))
    except ValueError:
        return read_iso(given)


def _before(now: datetime, moment: Moment | None) -> datetime | None:
    if isinstance(moment, timedelta):
        return now - moment
    assert moment is None or isinstance(moment, datetime)  # since __post_init__
    return moment
