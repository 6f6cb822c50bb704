"""What a caller may say about a job, and that the rest is refused before anything is stored."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from enum import Enum, IntEnum
from typing import Any

import pytest

from holdfast.core.job import MAX_GROUP_LENGTH
from holdfast.core.settings import Settings
from holdfast.enqueueing.enqueuer import Admission
from holdfast.enqueueing.options import MAX_KEY_LENGTH, OPTIONS, Option
from holdfast.errors import ConfigError, InvalidPayload, UnknownType
from holdfast.events import Events
from holdfast.handlers.handler import Handler
from holdfast.handlers.options import EnqueueOptions, ManyOptions
from holdfast.handlers.registry import Registry
from holdfast.store.records import NewJob

WHEN = datetime(2030, 1, 2, tzinfo=UTC)


def admit(
    payload: object = None,
    *,
    type: str = "crawl",
    registry: Registry | None = None,
    strict_types: bool = False,
    **options: Any,
) -> NewJob:
    admission = Admission(
        registry or Registry(Events()), strict_types=strict_types, built_in=lambda _type, _payload: None
    )
    return admission.admit(type, {} if payload is None else payload, options, Settings({}))


def registry_with(type: str, function: Any) -> Registry:
    registry = Registry(Events())
    registry.add(Handler(type, function, whole=False))
    return registry


def crawl(url: str, depth: int = 1) -> None: ...


def test_a_job_gets_an_id_of_its_own_or_a_token_beside_the_one_it_is_given() -> None:
    first, second = admit(), admit()
    assert first.id != second.id
    assert first.token == second.token == ""
    assert admit(id="job1").token != admit(id="job1").token != ""


def test_all_options_are_taken_over() -> None:
    new = admit(
        id="job1", group="c:42", priority=5, max_attempts=7, timeout=30, key="k", key_for=60, run_at=WHEN
    )
    assert (new.id, new.priority, new.max_attempts, new.timeout) == ("job1", 5, 7, 30)
    assert (new.key, new.key_for, new.group) == ("k", 60, "c:42")
    assert new.run_at == 1_893_542_400_000_000


def test_what_enqueue_leaves_open_stays_open() -> None:
    new = admit()
    assert (new.max_attempts, new.timeout, new.run_at, new.delay, new.key) == (None, None, None, None, None)


def test_type_checkers_know_the_options_of_the_table_and_no_others() -> None:
    assert EnqueueOptions.__annotations__.keys() == OPTIONS.keys()
    assert ManyOptions.__annotations__.keys() == {o.name for o in OPTIONS.values() if o.is_shared}
    assert OPTIONS.keys() <= set(NewJob.__struct_fields__)


@pytest.mark.parametrize("option", OPTIONS.values(), ids=OPTIONS)
def test_an_option_names_only_others_of_the_table(option: Option) -> None:
    assert {option.excludes, option.needs} <= {"", *OPTIONS}
    assert option.meaning[0].islower()
    assert not option.meaning.endswith(".")


@pytest.mark.parametrize("group", ["c", "x" * MAX_GROUP_LENGTH, "customer:42", "Kundé 7 \U0001f600"])
def test_any_printable_text_is_a_group(group: str) -> None:
    assert admit(group=group).group == group


class Word(str, Enum):  # noqa: UP042 -- prints its name, unlike a StrEnum
    MAIL = "mail"


class Number(IntEnum):
    FEW = 2


def test_members_of_enums_become_their_plain_values() -> None:
    new = admit(type=Word.MAIL, id=Word.MAIL, key=Word.MAIL, priority=Number.FEW, max_attempts=Number.FEW)
    given = (new.type, new.id, new.key, new.priority, new.max_attempts)
    assert given == ("mail", "mail", "mail", 2, 2)
    assert [type(value) for value in given] == [str, str, str, int, int]


class Counting(int):
    """A number that knows how often it was compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counting.compared += 1
        return int(self) == other

    __hash__ = int.__hash__


def test_number_of_a_class_of_its_own_is_not_looked_for_in_the_range() -> None:
    assert admit(priority=Counting(-(2**31) + 1000)).priority == -(2**31) + 1000
    assert Counting.compared < 10


@pytest.mark.parametrize("name", ["timeout", "delay", "key_for"])
@pytest.mark.parametrize(("value", "seconds"), [(90, 90), (1.5, 1.5), (timedelta(minutes=2), 120)])
def test_durations_are_seconds_or_a_timedelta(name: str, value: object, seconds: float) -> None:
    options: dict[str, Any] = {name: value, "key": "k"}
    assert getattr(admit(**options), name) == seconds


def test_an_instant_in_another_zone_is_the_same_instant() -> None:
    there = WHEN.astimezone(timezone(timedelta(hours=9)))
    assert admit(run_at=there).run_at == admit(run_at=WHEN).run_at


BAD: list[dict[str, Any]] = [
    {"id": ""},
    {"id": "a b"},
    {"id": "stats"},
    {"id": 7},
    {"id": 10**5000},
    {"priority": 1.5},
    {"priority": "high"},
    {"priority": True},
    {"priority": None},
    {"priority": 2**31},
    {"priority": -(2**31) - 1},
    {"priority": 10**5000},
    {"max_attempts": 0},
    {"max_attempts": True},
    {"max_attempts": 2**31},
    {"timeout": 0},
    {"timeout": -1},
    {"timeout": float("nan")},
    {"timeout": float("inf")},
    {"timeout": True},
    {"timeout": 10**400},
    {"timeout": "soon"},
    {"delay": -1},
    {"delay": 10**400},
    {"delay": 10**5000},
    {"delay": float("nan")},
    {"delay": timedelta(seconds=-1)},
    {"delay": timedelta.max},
    {"run_at": "2030-01-01"},
    {"run_at": 0},
    {"run_at": datetime(2030, 1, 1)},  # noqa: DTZ001 -- naive on purpose
    {"run_at": WHEN, "delay": 5},
    {"key": ""},
    {"key": 5},
    {"key": "x" * (MAX_KEY_LENGTH + 1)},
    {"key": "a\nb"},
    {"key": "a\x00b"},
    {"key": "\ud800"},
    {"key_for": 60},
    {"group": ""},
    {"group": 5},
    {"group": "x" * (MAX_GROUP_LENGTH + 1)},
    {"group": "a\nb"},
    {"group": "a\x00b"},
    {"group": "\ud800"},
    {"key": "k", "key_for": -1},
    {"colour": "red"},
    {"type": "x"},
]


@pytest.mark.parametrize("options", BAD, ids=lambda options: f"{[*options]}")
def test_a_bad_option_is_refused_in_one_line(options: dict[str, Any]) -> None:
    admission = Admission(Registry(Events()), strict_types=False, built_in=lambda _type, _payload: None)
    with pytest.raises(ConfigError) as caught:
        admission.admit("crawl", {}, options, Settings({}))
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1000


def test_an_unknown_option_lists_what_is_allowed() -> None:
    with pytest.raises(
        ConfigError, match="there is no option 'prority'; allowed: id, priority, group, max_attempts"
    ):
        admit(prority=1)


@pytest.mark.parametrize("moment", [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC)])
def test_any_aware_instant_is_taken(moment: datetime) -> None:
    assert isinstance(admit(run_at=moment).run_at, int)


def test_a_payload_is_checked_where_its_handler_is_known() -> None:
    with pytest.raises(InvalidPayload, match=r"payload\.url: expected str"):
        admit({"url": 1}, registry=registry_with("crawl", crawl))


def test_a_lanes_payload_is_checked_by_the_handler_of_its_base() -> None:
    with pytest.raises(InvalidPayload, match=r"payload\.url"):
        admit({"url": 1}, type="crawl:slow", registry=registry_with("crawl", crawl))


def test_a_payload_of_a_type_handled_elsewhere_is_taken() -> None:
    assert admit({"url": 1}).payload == '{"url":1}'


def test_strict_types_refuses_a_type_without_a_handler_and_lists_those_there_are() -> None:
    with pytest.raises(UnknownType, match="registered: crawl"):
        admit({}, type="crwl", registry=registry_with("crawl", crawl), strict_types=True)


def test_what_is_stored_is_what_was_given_not_what_the_handler_gets() -> None:
    assert admit({"url": "u"}, registry=registry_with("crawl", crawl)).payload == '{"url":"u"}'


def test_key_of_a_handler_may_be_kept_for_as_long_as_the_caller_says() -> None:
    registry = Registry(Events())
    handler = Handler("crawl", lambda payload: None, whole=True, prepare=lambda p: (p, {"key": p["url"]}))
    registry.add(handler)
    new = admit({"url": "a"}, registry=registry, key_for=60)
    assert (new.key, new.key_for) == ("a", 60)
