"""The filter that every surface parses into: what it takes, in each form, and what it refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from typing import Any, get_type_hints

import pytest

from holdfast import Filter
from holdfast.cli.list import FILTERS
from holdfast.core.filter import MEANINGS, SORTS, FilterWords, as_filter, parse_filter
from holdfast.errors import ConfigError
from holdfast.store.ranges import conditions
from holdfast.store.records import JobFilter, Place
from holdfast.web.api.messages import Filter as BodyFilter

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


def test_keyword_arguments_are_the_fields_of_a_filter() -> None:
    assert set(get_type_hints(FilterWords)) == set(Filter.__struct_fields__)
    hints = get_type_hints(Filter)
    for name, hint in get_type_hints(FilterWords).items():
        assert hint == hints[name], name


def test_each_field_that_a_person_can_type_is_explained_and_taken_everywhere() -> None:
    """Help texts, the OpenAPI document, query parameters and bodies follow from MEANINGS."""
    typed = set(Filter.__struct_fields__) - {"ascending"}  # each surface has its own word for this
    assert set(MEANINGS) == typed
    assert set(FILTERS) == typed - {"status", "sort"}  # beside options of their own
    assert set(BodyFilter.__struct_fields__) == typed | {"order"}


def test_no_field_of_a_filter_is_dropped_on_its_way_to_the_store() -> None:
    """One that was would make every list, count and bulk action reach more jobs than asked for."""
    asked = set(Filter.__struct_fields__) - {"search"}  # which the store knows nothing of
    paging = {"limit", "offset", "after", "brief"}
    assert set(JobFilter.__struct_fields__) == (asked - {"status"}) | {"statuses"} | paging
    other = {
        "statuses": ("failed",), "type": "a", "group": "g", "parent_id": "p", "error": "boom", "since": 1,
        "until": 2, "sort": "priority", "ascending": True, "after": Place(1, 1),
    }  # fmt: skip
    sql = {name: _sql(**{name: value}) for name, value in other.items()}
    assert set(sql) == set(JobFilter.__struct_fields__) - {"limit", "offset", "brief"}
    assert len({_sql(), *sql.values()}) == len(sql) + 1, "a field that changes no statement"


def _sql(**fields: Any) -> tuple[str, ...]:
    """What a filter asks of the database: its conditions, and the order that follows from the rest."""
    filter = JobFilter(**fields)
    where, parameters = conditions(filter)
    return where, str(parameters), filter.sort, str(filter.ascending)


@pytest.mark.parametrize(
    ("given", "statuses"),
    [
        (None, ()),
        ("failed", ("failed",)),
        ("dead", ("failed",)),
        (["queued", "pending", "retrying"], ("pending", "retrying")),
        ((), ()),
    ],
)
def test_states_in_each_form(given: Any, statuses: tuple[str, ...]) -> None:
    assert Filter(status=given).statuses == statuses


def test_filters_that_mean_the_same_are_equal() -> None:
    assert Filter(status="dead", error="no answer after 30 s") == Filter(
        status=["failed"], error="no answer after 5 s"
    )
    assert hash(Filter(status=["failed"])) == hash(Filter(status="failed"))
    east = NOW.astimezone(timezone(timedelta(hours=9)))
    assert Filter(since=east) == Filter(since=NOW) == Filter(since="2030-01-01T12:00:00Z")
    assert Filter(until="90m") == Filter(until=timedelta(hours=1.5))


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        ("1h", NOW - timedelta(hours=1)),
        ("0s", NOW),
        (timedelta(days=2), NOW - timedelta(days=2)),
        ("2030-01-01T10:00:00+02:00", datetime(2030, 1, 1, 8, tzinfo=UTC)),
        (None, None),
    ],
)
def test_durations_are_counted_back_when_it_is_used(given: Any, moment: datetime | None) -> None:
    filter = Filter(since=given, until=given)
    assert filter.is_relative is isinstance(filter.since, timedelta)
    assert (filter.at(NOW).since, filter.at(NOW).until) == (moment, moment)
    assert not filter.at(NOW).is_relative


@pytest.mark.parametrize(
    "given",
    ["yesterday", "", "-1h", "1893456000", "1.5", 90, -1.0, True, b"1h", "99999999999s",
     "2030-13-01T00:00:00Z", "0001-01-01T00:00:00+14:00", timedelta(seconds=-1), [], "\0"],
)  # fmt: skip
@pytest.mark.parametrize("name", ["since", "until"])
def test_what_is_no_moment_is_refused_by_its_name(name: str, given: object) -> None:
    with pytest.raises(
        ConfigError, match=f"^{name} must be a time such as .* or a duration before now such as 1h"
    ):
        parse_filter(**{name: given})


@pytest.mark.parametrize("given", ["2030-01-01T10:00:00", "2030-01-01", datetime(2030, 1, 1)])  # noqa: DTZ001
def test_instant_needs_a_time_zone(given: object) -> None:
    with pytest.raises(ConfigError, match=r"^since .* needs a time zone"):
        parse_filter(since=given)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ({"status": "asleep"}, "'asleep' is not a status; allowed: scheduled"),
        ({"type": "a b"}, "'a b' is not a valid job type: use 1 to 255 of A-Z a-z 0-9 _ . : -"),
        ({"ascending": "desc"}, "ascending must be True or False, not 'desc'"),
        ({"ascending": None}, "ascending must be True or False, not None"),
        ({"ascending": 1}, "ascending must be True or False, not 1"),
        ({"sort": "colour"}, f"'colour' is not a sort order; allowed: {', '.join(SORTS)}"),
        ({"search": "payload.password:x"}, "password is the name of a secret"),
        ({"search": 5}, "search must be text"),
        ({"type": "a\0b"}, "is not a valid job type"),
        ({"parent_id": "a\0b"}, "parent_id must be printable text"),
        ({"colour": "red"}, "colour is not a filter field; allowed: status, type"),
    ],
)
def test_each_wrong_field_is_refused_with_what_is_allowed(words: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError, match=sentence):
        parse_filter(**words)


def test_filter_is_given_whole_or_by_its_fields() -> None:
    assert as_filter(None, {"status": "failed"}) == as_filter(Filter(status="failed"), {})
    for filter, words in ((Filter(), {"type": "a"}), ("failed", {}), ({}, {})):
        with pytest.raises(ConfigError, match="either a Filter or its fields"):
            as_filter(filter, words)  # type: ignore[arg-type]


def test_search_of_nothing_is_no_search() -> None:
    assert Filter(search=" ").wanted is None is Filter().wanted
    wanted = Filter(search="a b").wanted
    assert wanted is not None
    assert wanted.words == ("a", "b")
