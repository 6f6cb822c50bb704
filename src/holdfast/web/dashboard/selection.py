"""Which jobs a list shows, and how that stands in its address: every filter is in the URL."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

from msgspec import Struct
from msgspec.structs import replace

from holdfast.core.job import RETRYING, Status, check_type, parse_status
from holdfast.durations import parse_duration
from holdfast.errors import ConfigError, shown
from holdfast.web.dashboard.page import Form

STATES = (*(status.value for status in Status), RETRYING)
SORTS = ("created", "finished", "priority")
_ORDERS = ("desc", "asc")
_LONGEST_AGO = 10 * 365 * 86_400.0
_LOCAL_TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d{1,3})?)?")


class Selection(Struct, frozen=True, kw_only=True):
    """The filters of a list and its order, as they were given; `filters` says whether they can be."""

    statuses: tuple[str, ...] = ()
    type: str = ""
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
        return bool(self.statuses or self.type or self.q or self.since or self.until or self.error)

    @property
    def event(self) -> str:
        """What a time range is about."""
        return "finished" if self.sort == "finished" else "created"

    def filters(self, now: datetime) -> dict[str, Any]:
        """As `Queue.page` takes them. Raises ConfigError for what can't be."""
        if self.sort not in SORTS:
            raise ConfigError(f"{shown(self.sort)} is not an order; allowed: {', '.join(SORTS)}")
        if self.order not in _ORDERS:
            raise ConfigError(f"order must be asc or desc, not {shown(self.order)}")
        return {
            "status": list(self.statuses) or None,
            "type": check_type(self.type) if self.type else None,
            "search": self.q or None,
            "since": _instant("from", self.since, now),
            "until": _instant("to", self.until, now),
            "error": self.error or None,
            "sort": self.sort,
            "ascending": self.ascending,
        }

    def pinned(self, now: datetime) -> Selection:
        """The same, but for what comes later: its time range stands still and ends now."""
        since, until = _instant("from", self.since, now), _instant("to", self.until, now)
        end = now + timedelta(microseconds=1)
        return replace(
            self,
            since="" if since is None else since.isoformat(),
            until=(end if until is None else min(until, end)).isoformat(),
        )

    def pairs(self) -> list[tuple[str, str]]:
        """What differs from the plain list, as fields of a form or an address."""
        named = (
            ("type", self.type),
            ("q", self.q),
            ("from", self.since),
            ("to", self.until),
            ("error", self.error),
            ("sort", "" if self.sort == "created" else self.sort),
            ("order", "" if self.order == "desc" else self.order),
        )
        return [*(("status", word) for word in self.statuses), *(pair for pair in named if pair[1])]

    def query(self, **more: str | int | None) -> str:
        """An address's query, with what it says beside the selection."""
        pairs = [*self.pairs(), *((name, str(value)) for name, value in more.items() if value is not None)]
        return "?" + urlencode(pairs) if pairs else ""

    def without(self, name: str) -> Selection:
        """The same with one filter less."""
        return replace(self, **{name: () if name == "statuses" else ""})

    def sorted_by(self, sort: str) -> Selection:
        """The same in another order; asked for once more, turned round."""
        return replace(self, sort=sort, order="asc" if sort == self.sort and not self.ascending else "desc")

    def chips(self) -> list[tuple[str, Selection]]:
        """The filters in words, each with the selection that is left without it."""
        texts = {
            "statuses": "status: " + " or ".join(self.statuses),
            "type": f"type: {self.type}",
            "q": f"search: {self.q}",
            "since": f"{self.event} {_since_words(self.since)}",
            "until": f"{self.event} {_until_words(self.until)}",
            "error": f"error: {self.error}",
        }
        return [(text, self.without(name)) for name, text in texts.items() if getattr(self, name)]


def selection_from(given: Form) -> Selection:
    """From an address or a form."""
    return Selection(
        statuses=tuple(dict.fromkeys(_status(word) for word in given.list("status") if word)),
        type=given.get("type").strip(),
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


def _since_words(since: str) -> str:
    return f"in the last {since}" if _is_duration(since) else f"since {since}"


def _until_words(until: str) -> str:
    return f"more than {until} ago" if _is_duration(until) else f"before {until}"


def _is_duration(text: str) -> bool:
    try:
        return 0 <= parse_duration(text) <= _LONGEST_AGO
    except ValueError:
        return False


def _instant(name: str, text: str, now: datetime) -> datetime | None:
    """An instant, in UTC where it does not say otherwise, as a browser's date field; or so long ago."""
    if not text:
        return None
    if _is_duration(text):
        return now - timedelta(seconds=parse_duration(text))
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise ConfigError(
            f"{name} must be an instant such as 2026-01-15T10:00 or a duration such as 1h, not {shown(text)}"
        ) from None
