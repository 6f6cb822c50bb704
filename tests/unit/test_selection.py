"""Which jobs a list shows, as it stands in an address: everything comes back from there."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from itertools import permutations
from urllib.parse import parse_qsl

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from holdfast.core.filter import SORTS, Filter
from holdfast.errors import ConfigError
from holdfast.web.dashboard.page import Form
from holdfast.web.dashboard.selection import STATES, Selection, is_local_time, selection_from

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
STRIPPED = TEXT.map(str.strip)
SELECTIONS = st.builds(
    Selection,
    statuses=st.lists(st.sampled_from(STATES), unique=True).map(tuple),
    type=STRIPPED,
    group=TEXT,
    q=STRIPPED,
    since=STRIPPED,
    until=STRIPPED,
    error=TEXT,
    sort=st.sampled_from(SORTS),
    order=st.sampled_from(["asc", "desc"]),
)


def read(query: str) -> Selection:
    assert query == "" or query.startswith("?")
    return selection_from(Form.read(query[1:].encode("ascii")))


@given(SELECTIONS)
def test_selection_comes_back_from_its_address(selection: Selection) -> None:
    assert read(selection.query()) == selection


@given(SELECTIONS)
def test_selection_comes_back_from_the_fields_of_a_form(selection: Selection) -> None:
    fields: dict[str, list[str]] = {}
    for name, value in selection.pairs():
        fields.setdefault(name, []).append(value)
    assert selection_from(Form(fields)) == selection


@given(SELECTIONS, st.integers(1, 100), TEXT)
def test_what_stands_beside_a_selection_does_not_change_it(
    selection: Selection, size: int, cursor: str
) -> None:
    query = selection.query(size=size, cursor=cursor, action=None)
    assert read(query) == selection
    beside = dict(parse_qsl(query[1:], keep_blank_values=True))
    assert (beside["size"], beside["cursor"]) == (str(size), cursor)
    assert "action" not in beside


def test_plain_list_has_a_plain_address() -> None:
    assert Selection().query() == ""
    assert not Selection().is_narrowed
    assert not Selection(sort="priority", order="asc").is_narrowed


@given(SELECTIONS)
def test_each_chip_takes_away_one_filter_and_all_take_away_all(selection: Selection) -> None:
    chips = selection.chips()
    assert bool(chips) == selection.is_narrowed
    for _, less in chips:
        assert len(less.chips()) == len(chips) - 1
        assert (less.sort, less.order) == (selection.sort, selection.order)
    left = selection
    while left.chips():
        left = left.chips()[0][1]
    assert left == Selection(sort=selection.sort, order=selection.order)


def test_chips_say_the_filters_in_words() -> None:
    made = Selection(
        statuses=("failed", "retrying"),
        type="email",
        q="timeout",
        since="1h",
        until="2030-01-01",
        error="E #",
    )
    assert [text for text, _ in made.chips()] == [
        "status: failed or retrying",
        "type: email",
        "search: timeout",
        "created in the last 1h",
        "created before 2030-01-01",
        "error: E #",
    ]
    [text, _] = Selection(since="3600").chips()[0]  # a number alone is no duration here
    assert text == "created since 3600"
    [text, _] = Selection(since="2030-01-01", sort="finished").chips()[0]
    assert text == "finished since 2030-01-01"


@pytest.mark.parametrize(("first", "then"), list(permutations(SORTS, 2)))
def test_another_order_begins_with_the_latest_or_highest(first: str, then: str) -> None:
    made = Selection(q="x", sort=first, order="asc").sorted_by(then)
    assert made == Selection(q="x", sort=then)


@given(SELECTIONS)
def test_same_order_once_more_is_turned_round(selection: Selection) -> None:
    turned = selection.sorted_by(selection.sort)
    assert turned.ascending is not selection.ascending
    assert turned.sorted_by(selection.sort) == selection


@pytest.mark.parametrize(
    ("word", "status"),
    [("dead", "failed"), ("queued", "pending"), ("claimed", "processing"), ("done", "completed")]
    + [(state, state) for state in STATES],
)
def test_other_specifications_words_are_taken(word: str, status: str) -> None:
    assert read(f"?status={word}").statuses == (status,)


def test_status_named_twice_counts_once_and_an_empty_one_not() -> None:
    assert read("?status=dead&status=&status=failed&status=done").statuses == ("failed", "completed")


def test_fields_are_taken_without_the_space_around_them_but_for_an_error() -> None:
    made = read("?type=+email+&q=+a+b+&from=+1h&to=2h+&error=+e+")
    assert made == Selection(type="email", q="a b", since="1h", until="2h", error=" e ")


@pytest.mark.parametrize(
    ("query", "sentence"),
    [
        ("?status=asleep", "'asleep' is not a status; allowed: scheduled"),
        ("?sort=colour", "'colour' is not a sort order; allowed: created, finished, priority"),
        ("?order=up", "order must be asc or desc, not 'up'"),
    ],
)
def test_what_there_is_not_is_refused_with_what_is_allowed(query: str, sentence: str) -> None:
    selection = read(query)
    assert selection.query() == query  # it is kept as it was given
    with pytest.raises(ConfigError, match=sentence):
        selection.filter  # noqa: B018


INSTANTS = [
    ("2030-01-01T10:00", datetime(2030, 1, 1, 10, tzinfo=UTC)),
    ("2030-01-01T10:00:30", datetime(2030, 1, 1, 10, 0, 30, tzinfo=UTC)),
    ("2030-01-01T10:00:00Z", datetime(2030, 1, 1, 10, tzinfo=UTC)),
    ("2030-01-01T10:00:00+02:00", datetime(2030, 1, 1, 8, tzinfo=UTC)),
    ("2030-01-01", datetime(2030, 1, 1, tzinfo=UTC)),
    ("90s", NOW - timedelta(seconds=90)),
    ("15m", NOW - timedelta(minutes=15)),
    ("1.5h", NOW - timedelta(hours=1.5)),
    ("7d", NOW - timedelta(days=7)),
    ("2w", NOW - timedelta(weeks=2)),
]


@pytest.mark.parametrize(("text", "moment"), INSTANTS)
def test_time_range_in_each_form(text: str, moment: datetime) -> None:
    filter = Selection(since=text, until=text).filter.at(NOW)
    assert filter.since == filter.until == moment


@pytest.mark.parametrize("text", ["soon", "-1h", "90", "9999999d", "2030-13-01", "0001-01-01T00:00:00+14:00"])
@pytest.mark.parametrize("field", ["since", "until"])
def test_time_that_is_none_is_refused_by_its_name(field: str, text: str) -> None:
    selection = replace(Selection(), **{field: text})
    with pytest.raises(
        ConfigError, match=f"^{field} must be a time such as .* or a duration before now such as 1h"
    ):
        selection.filter  # noqa: B018


def test_filters_are_those_of_a_page() -> None:
    made = Selection(statuses=("failed",), type="email", q="x", error="E", sort="priority")
    assert made.filter == Filter(status="failed", type="email", search="x", error="E", sort="priority")
    assert Selection().filter == Filter()
    assert Selection(order="asc").filter == Filter(ascending=True)


def test_type_that_can_be_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="is not a valid job type"):
        Selection(type="a b").filter  # noqa: B018


@given(st.datetimes(timezones=st.just(timezone(timedelta(hours=5)))))
def test_every_instant_that_can_be_is_taken(moment: datetime) -> None:
    if moment - datetime(1, 1, 1, tzinfo=UTC) < timedelta(days=1):
        return
    assert Selection(since=moment.isoformat()).filter.since == moment


@given(
    SELECTIONS,
    st.sampled_from([text for text, _ in INSTANTS]),
    st.sampled_from(["", "7d", "2030-01-01T10:00"]),
)
def test_pinned_selection_stands_still_and_ends_now(selection: Selection, since: str, until: str) -> None:
    given = replace(selection, since=since, until=until, type="", group="", q="")
    pinned = read(given.pinned(NOW).query())
    later = NOW + timedelta(days=3)
    end = NOW + timedelta(microseconds=1)
    assert pinned.filter.at(later).since == given.filter.at(NOW).since
    assert replace(pinned, since=since, until=until) == given
    bound = pinned.filter.at(later).until
    asked = given.filter.at(NOW).until
    assert bound == (end if asked is None else min(asked, end))


@pytest.mark.parametrize(
    ("text", "is_local"),
    [
        ("", True),
        ("2030-01-01T10:00", True),
        ("2030-01-01T10:00:30", True),
        ("2030-01-01T10:00:30.123", True),
        ("2030-01-01T10:00:30.123456", False),
        ("2030-01-01T10:00Z", False),
        ("2030-01-01T10:00+02:00", False),
        ("2030-01-01", False),
        ("1h", False),
        ("Tuesday", False),
    ],
)
def test_field_for_date_and_time_is_used_for_what_a_browser_shows_there(text: str, is_local: bool) -> None:
    assert is_local_time(text) == is_local
