"""Which jobs a list shows, and how that is encoded in its URL: every filter is part of it."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

from msgspec import Struct, to_builtins
from msgspec.structs import replace

from holdfast.core.filter import Filter, parse_filter
from holdfast.core.job import RETRYING, Status, parse_status
from holdfast.errors import ConfigError
from holdfast.text import shown
from holdfast.web.dashboard.page import Form

STATES = (*(status.value for status in Status), RETRYING)
_ORDERS = ("desc", "asc")
_LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,3})?)?")


class Selection(
    Struct, frozen=True, kw_only=True, rename={"statuses": "status", "since": "from", "until": "to"}
):
    """The filters of a list and its order, as they were given; `filter` says whether they can be.

    Under its encoded names, each is a field of a form or an address.
    """

    statuses: tuple[str, ...] = ()
    type: str = ""
    group: str = ""
    q: str = ""
    since: str = ""
    until: str = ""
    error: str = ""
    sort: str = "created"
    order: str = "desc"

    @property
    def ascending(self) -> bool:
        return self.order == "asc"

    @property
    def is_narrowed(self) -> bool:
        return replace(self, sort="created", order="desc") != Selection()

    @property
    def event(self) -> str:
        """What a time range is about."""
        return "finished" if self.sort == "finished" else "created"

    @property
    def filter(self) -> Filter:
        """The selection as a Filter. Raises ConfigError if it is invalid."""
        if self.order not in _ORDERS:
            raise ConfigError(f"order must be asc or desc, not {shown(self.order)}")
        return parse_filter(
            status=self.statuses,
            type=self.type or None,
            group=self.group or None,
            search=self.q or None,
            since=_in_utc(self.since),
            until=_in_utc(self.until),
            error=self.error or None,
            sort=self.sort,
            ascending=self.ascending,
        )

    def pinned(self, now: datetime) -> Selection:
        """The same selection without later jobs: its time range is fixed and ends now."""
        fixed = self.filter.at(now)
        end = now + timedelta(microseconds=1)
        since, until = fixed.since, fixed.until
        return replace(
            self,
            since=since.isoformat() if isinstance(since, datetime) else "",
            until=(min(until, end) if isinstance(until, datetime) else end).isoformat(),
        )

    def pairs(self) -> list[tuple[str, str]]:
        """What differs from the unfiltered list, as form fields or query parameters."""
        plain = to_builtins(Selection())
        given = {name: value for name, value in to_builtins(self).items() if value != plain[name]}
        return [*(("status", word) for word in given.pop("status", ())), *given.items()]

    def query(self, **more: str | int | None) -> str:
        """The query string of a URL, with extra parameters besides the selection."""
        pairs = [*self.pairs(), *((name, str(value)) for name, value in more.items() if value is not None)]
        return "?" + urlencode(pairs) if pairs else ""

    def sorted_by(self, sort: str) -> Selection:
        """The same selection sorted by another column; by the same column, in reverse."""
        return replace(self, sort=sort, order="asc" if sort == self.sort and not self.ascending else "desc")

    def chips(self) -> list[tuple[str, Selection]]:
        """The filters in words, each with the selection that is left without it."""
        since, until, event = self.since, self.until, self.event
        texts = {
            "statuses": "status: " + " or ".join(self.statuses),
            "type": f"type: {self.type}",
            "group": f"group: {self.group}",
            "q": f"search: {self.q}",
            "since": f"{event} in the last {since}" if _is_duration(since) else f"{event} since {since}",
            "until": f"{event} more than {until} ago" if _is_duration(until) else f"{event} before {until}",
            "error": f"error: {self.error}",
        }
        plain = Selection()
        return [
            (text, replace(self, **{name: getattr(plain, name)}))
            for name, text in texts.items()
            if getattr(self, name)
        ]


def selection_from(given: Form) -> Selection:
    """From an address or a form."""
    return Selection(
        statuses=tuple(dict.fromkeys(_status(word) for word in given.list("status") if word)),
        type=given.get("type").strip(),
        group=given.get("group"),
        q=given.get("q").strip(),
        since=given.get("from").strip(),
        until=given.get("to").strip(),
        error=given.get("error"),
        sort=given.get("sort") or "created",
        order=given.get("order") or "desc",
    )


def _status(word: str) -> str:
    """In our own words, where it is one of them or another specification's."""
    try:
        return str(parse_status(word))
    except ConfigError:
        return word


def is_local_time(text: str) -> bool:
    """Whether a browser's field for date and time can show it."""
    return not text or bool(_LOCAL_TIME.fullmatch(text))


def _is_duration(text: str) -> bool:
    try:
        return parse_filter(since=text).is_relative
    except ConfigError:
        return False


def _in_utc(text: str) -> datetime | str | None:
    """A browser's date field knows no time zone: what it says is meant in UTC."""
    try:
        moment = datetime.fromisoformat(text) if "-" in text else None
    except ValueError:
        moment = None
    return moment.replace(tzinfo=UTC) if moment and moment.tzinfo is None else text or None
