"""Enqueueing: every option, shared commits, many at once, and what is refused before anything is stored."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any, TypedDict
from unittest.mock import Mock
from uuid import UUID

import msgspec
import psycopg
import pydantic
import pytest

from holdfast import Context, Queue
from holdfast.enqueueing import enqueuer as enqueue_module
from holdfast.errors import (
    ConfigError,
    DuplicateJob,
    HoldfastError,
    InvalidPayload,
    KeyTaken,
    QueueFull,
    UnknownType,
)
from holdfast.handlers.options import EnqueueOptions, ManyOptions
from holdfast.store.open import store_of
from holdfast.store.postgres.address import parse_url
from holdfast.testing import MovableClock
from tests.support import both_engines
from tests.worker.support import PATIENCE, Spy, get, path_of


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0


class Address(TypedDict):
    street: str


class Wheel(msgspec.Struct):
    spokes: int


class Model(pydantic.BaseModel):
    n: int


class Color(Enum):
    RED = "red"


# Every option.


@both_engines
def test_job_with_nothing_said_has_the_defaults(queue: Queue) -> None:
    job = queue.enqueue("work")
    assert UUID(job.id).version == 7
    assert (job.type, job.payload, job.status) == ("work", {}, "pending")
    assert (job.priority, job.attempts, job.version) == (0, 0, 0)
    assert [job.key, job.key_for, job.run_at, job.timeout, job.result, job.error] == [None] * 6
    assert job.created_at == job.updated_at
    assert job.max_attempts == 3
    assert job == get(queue, job.id)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"id": "job1"}, {"id": "job1"}),
        ({"id": "A.b_c:d-9"}, {"id": "A.b_c:d-9"}),
        ({"id": "x" * 128}, {"id": "x" * 128}),
        ({"priority": -(2**31)}, {"priority": -(2**31)}),
        ({"priority": 2**31 - 1}, {"priority": 2**31 - 1}),
        ({"max_attempts": 1}, {"max_attempts": 1}),
        ({"timeout": 0.5}, {"timeout": 0.5}),
        ({"timeout": timedelta(minutes=1)}, {"timeout": 60.0}),
        ({"key": "welcome:42"}, {"key": "welcome:42", "key_for": None}),
        ({"key": "k", "key_for": 60}, {"key": "k", "key_for": 60.0}),
        ({"key": "k", "key_for": timedelta(days=1)}, {"key": "k", "key_for": 86_400.0}),
        ({"key": "k" * 512}, {"key": "k" * 512}),
        ({"delay": 3600}, {"status": "scheduled"}),
        ({"delay": timedelta(hours=1)}, {"status": "scheduled"}),
        ({"delay": 0}, {"status": "pending"}),
        ({"run_at": datetime(2999, 1, 1, tzinfo=UTC)}, {"run_at": datetime(2999, 1, 1, tzinfo=UTC)}),
        ({"run_at": datetime(1999, 1, 1, tzinfo=UTC)}, {"status": "pending"}),
    ],
)
def test_option_is_stored_with_the_job(
    queue: Queue, options: dict[str, Any], expected: dict[str, Any]
) -> None:
    job = queue.enqueue("work", **options)
    stored = get(queue, job.id)
    for name, value in expected.items():
        assert getattr(job, name) == getattr(stored, name) == value


@both_engines
def test_delay_counts_from_the_database_clock(url: str) -> None:
    clock = MovableClock()
    with Queue(url, clock=clock) as queue:
        job = queue.enqueue("work", delay=90)
        assert job.run_at == get(queue, job.id).run_at == clock.now + timedelta(seconds=90)


def test_run_at_in_another_time_zone_is_the_same_instant(queue: Queue) -> None:
    when = datetime(2999, 1, 1, 12, tzinfo=timezone(timedelta(hours=5, minutes=30)))
    assert queue.enqueue("work", run_at=when).run_at == when


@both_engines
@pytest.mark.parametrize(
    ("payload", "stored"),
    [
        ({"n": 2**80}, {"n": 2**80}),
        ({"text": "𝄞 ü \u2028 \x1b"}, {"text": "𝄞 ü \u2028 \x1b"}),
        ({"": {"a": [None, True, 1.5, []]}}, {"": {"a": [None, True, 1.5, []]}}),
        ({"t": (1, 2)}, {"t": [1, 2]}),
        ({"c": Color.RED}, {"c": "red"}),
        ({"u": UUID(int=7)}, {"u": str(UUID(int=7))}),
        ({"d": Decimal("1.50")}, {"d": "1.50"}),
        ({"at": datetime(2030, 1, 1, tzinfo=UTC)}, {"at": "2030-01-01T00:00:00+00:00"}),
        (Point(1), {"x": 1, "y": 0}),
        (Wheel(32), {"spokes": 32}),
        (Model(n=1), {"n": 1}),
        (None, {}),
    ],
)
def test_payload_is_stored_exactly(queue: Queue, payload: object, stored: dict[str, Any]) -> None:
    job = queue.enqueue("work", payload)
    assert job.payload == get(queue, job.id).payload == stored


def test_payload_of_exactly_the_limit_and_depth_is_taken(queue: Queue) -> None:
    queue.set_config("max_payload_bytes", 20)
    queue.enqueue("work", {"a": "x" * 12})
    queue.unset_config("max_payload_bytes")
    nested: Any = {}
    for _ in range(63):
        nested = {"a": nested}
    assert get(queue, queue.enqueue("work", nested).id).payload == nested


# What is refused: nothing is stored, and the message says what and where.


class Naive(tzinfo):
    """A time zone that does not know its offset, which makes a datetime naive all the same."""

    def utcoffset(self, dt: datetime | None) -> None:
        return None

    def dst(self, dt: datetime | None) -> None:
        return None

    def tzname(self, dt: datetime | None) -> str:
        return "nowhere"


def cycle() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["self"] = [value]
    return value


def deep(levels: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(levels):
        value = {"a": value}
    return value


class Endless:
    """An object that claims to be a pydantic model and is none."""

    def model_dump(self) -> Endless:
        return self


BAD_PAYLOADS: dict[str, tuple[object, str]] = {
    "a list": ([1], "payload: must be a JSON object, not a list"),
    "a text": ("text", "payload: must be a JSON object, not a str"),
    "a number": (7, "payload: must be a JSON object, not an int"),
    "true": (True, "payload: must be a JSON object, not a bool"),
    "JSON text": ('{"a": 1}', "payload: must be a JSON object, not a str"),
    "bytes": (b"{}", "payload"),
    "an object": (object(), "payload"),
    "a set": ({1, 2}, "payload"),
    "a generator": ((n for n in range(3)), "payload"),
    "a class": (Point, "payload"),
    "a model class": ({"m": Model}, "payload.m"),
    "a function": ({"f": len}, "payload.f"),
    "an object inside": ({"a": {"b": object()}}, "payload.a.b"),
    "complex": ({"a": [0, 1j]}, r"payload.a\[1\]"),
    "an exception": ({"e": ValueError("x")}, "payload.e"),
    "a mock": ({"m": Mock()}, "payload.m"),
    "an endless model": ({"m": Endless()}, "payload.m"),
    "NaN": ({"a": math.nan}, "payload.a: nan is not JSON"),
    "Infinity": ({"a": [math.inf]}, r"payload.a\[0\]: inf is not JSON"),
    "-Infinity": ({"a b": -math.inf}, r"payload\['a b'\]: -inf is not JSON"),
    "NaN in a dataclass": ({"p": Point(math.nan)}, "payload.p"),  # type: ignore[arg-type]
    "NUL": ({"a": "x\x00y"}, "payload.a: contains a NUL"),
    "NUL in a key": ({"x\x00": 1}, "NUL"),
    "a lone surrogate": ({"a": "\ud83d"}, "payload.a: contains a lone surrogate"),
    "a lone surrogate in a key": ({"\ud83d": 1}, "lone surrogate"),
    "a key that is a number": ({1: 2}, "payload: has the key 1; keys must be text"),
    "a key that is None": ({"a": {None: 1}}, "payload.a: has the key None; keys must be text"),
    "a key that is a tuple": ({(1, 2): 3}, "keys must be text"),
    "too deep": (deep(64), "nested more than 64 levels deep"),
    "far too deep": (deep(900), "nested more than 64 levels deep"),
    "a cycle": (cycle(), "nested more than 64 levels deep"),
    "too large": (
        {"a": "x" * (1024 * 1024)},
        "payload: is 1048584 bytes as JSON; max_payload_bytes is 1048576",
    ),
    "too large in UTF-8": ({"a": "ü" * (600 * 1024)}, "max_payload_bytes is 1048576"),
    "an integer of thousands of digits": ({"n": 10**5000}, "payload.n: is an integer of more than 1024 bits"),
    "a naive datetime": ({"at": datetime(2030, 1, 1)}, "payload.at: is a naive datetime"),  # noqa: DTZ001
    "a naive datetime in a dataclass": (
        {"p": Point(datetime(2030, 1, 1))},  # type: ignore[arg-type] # noqa: DTZ001
        "payload.p.x: is a naive datetime",
    ),
    "a datetime of an unknown offset": ({"at": datetime(2030, 1, 1, tzinfo=Naive())}, "payload.at"),
}

BAD_OPTIONS: dict[str, tuple[dict[str, Any], str]] = {
    "an empty id": ({"id": ""}, "'' is not a valid job id"),
    "an id with a space": ({"id": "a b"}, "'a b' is not a valid job id"),
    "an id with a slash": ({"id": "../etc"}, "is not a valid job id"),
    "an id that begins with a dash": ({"id": "-x"}, "is not a valid job id"),
    "an id with a line feed": ({"id": "x\n"}, "is not a valid job id"),
    "an id that is not ASCII": ({"id": "ü"}, "is not a valid job id"),
    "an id that is too long": ({"id": "x" * 129}, "1 to 128"),
    "an id that is a number": ({"id": 7}, "7 is not a valid job id"),
    **{
        f"the reserved id {word}": ({"id": word}, "are reserved")
        for word in ("stats", "batch", "bulk", "pause", "resume", "rate-limit")
    },
    "a priority that is a text": ({"priority": "high"}, "priority must be a whole number"),
    "a priority that is a fraction": ({"priority": 1.5}, "priority must be a whole number"),
    "a priority that is true": ({"priority": True}, "priority must be a whole number"),
    "a priority that is None": ({"priority": None}, "priority must be a whole number"),
    "a priority beyond 32 bits": ({"priority": 2**31}, "priority must be a whole number"),
    "no attempts": ({"max_attempts": 0}, "max_attempts must be a whole number from 1"),
    "attempts below zero": ({"max_attempts": -1}, "max_attempts must be a whole number from 1"),
    "attempts as text": ({"max_attempts": "3"}, "max_attempts must be a whole number from 1"),
    "attempts that are true": ({"max_attempts": True}, "max_attempts"),
    "a timeout of zero": ({"timeout": 0}, "timeout must be a duration greater than 0"),
    "a timeout below zero": ({"timeout": -1}, "timeout must be"),
    "a timeout that is NaN": ({"timeout": math.nan}, "timeout must be"),
    "a timeout that is endless": ({"timeout": math.inf}, "timeout must be"),
    "a timeout that is no number": ({"timeout": "soon"}, "timeout must be"),
    "a timeout that is true": ({"timeout": True}, "timeout must be"),
    "a timeout of hundreds of digits": ({"timeout": 10**400}, "timeout must be"),
    "a delay below zero": ({"delay": -0.001}, "delay must be"),
    "a delay below zero as timedelta": ({"delay": timedelta(seconds=-1)}, "delay must be"),
    "a delay that is NaN": ({"delay": math.nan}, "delay must be"),
    "a delay beyond all calendars": ({"delay": 1e300}, "delay must be"),
    "a delay of hundreds of digits": ({"delay": 10**400}, "delay must be"),
    "a delay that is a list": ({"delay": [1]}, "delay must be"),
    "run_at as text": ({"run_at": "2030-01-01"}, "run_at must be a datetime"),
    "run_at as number": ({"run_at": 1e9}, "run_at must be a datetime"),
    "a naive run_at": ({"run_at": datetime(2030, 1, 1)}, "run_at is a naive datetime"),  # noqa: DTZ001
    "a run_at of an unknown offset": ({"run_at": datetime(2030, 1, 1, tzinfo=Naive())}, "run_at"),
    "a run_at after the last day in UTC": (
        {"run_at": datetime.max.replace(tzinfo=timezone(timedelta(hours=-12)))},
        "run_at",
    ),
    "a run_at before the first day in UTC": (
        {"run_at": datetime.min.replace(tzinfo=timezone(timedelta(hours=12)))},
        "run_at",
    ),
    "run_at and delay": (
        {"run_at": datetime.now(UTC), "delay": 1},
        "run_at and delay are mutually exclusive",
    ),
    "an empty key": ({"key": ""}, "key must be 1 to 512 printable characters"),
    "a key that is too long": ({"key": "k" * 513}, "key must be 1 to 512 printable characters"),
    "a key with NUL": ({"key": "a\x00"}, "key must be"),
    "a key with a line feed": ({"key": "a\nb"}, "key must be"),
    "a key with a lone surrogate": ({"key": "\ud800"}, "key must be"),
    "a key that is a number": ({"key": 7}, "key must be"),
    "key_for without a key": ({"key_for": 60}, "key_for needs a key"),
    "key_for below zero": ({"key": "k", "key_for": -1}, "key_for must be"),
    "key_for that is no number": ({"key": "k", "key_for": "long"}, "key_for must be"),
    "an unknown option": ({"prioritiy": 5}, "there is no option 'prioritiy'; allowed: id, priority"),
    "an option of another system": ({"countdown": 5}, "there is no option 'countdown'"),
}

BAD_TYPES: list[Any] = [
    "",
    "no spaces",
    "x" * 256,
    "semi;colon",
    "new\nline",
    "\x00",
    "ü",
    None,
    7,
    b"work",
    ["work"],
]


def assert_empty(queue: Queue) -> None:
    assert queue.stats()["by_type"] == {}


def test_payload_is_refused_where_it_is_enqueued(queue: Queue) -> None:
    for payload, message in BAD_PAYLOADS.values():
        with pytest.raises(InvalidPayload, match=message) as caught:
            queue.enqueue("work", payload)
        assert caught.value.where.startswith("payload")
    assert_empty(queue)


@pytest.mark.parametrize("name", ["a list", "NaN", "NUL", "too deep", "a mock"])
@pytest.mark.parametrize("way", ["many", "async"])
def test_payload_is_refused_the_same_way_by_the_other_ways_in(queue: Queue, name: str, way: str) -> None:
    payload, message = BAD_PAYLOADS[name]

    def enqueue() -> None:
        if way == "many":
            queue.enqueue_many("work", [{}, payload])
        else:
            asyncio.run(queue.enqueue_async("work", payload))

    with pytest.raises(InvalidPayload, match=message):
        enqueue()
    assert_empty(queue)


def test_option_is_refused_where_it_is_given(queue: Queue) -> None:
    for options, message in BAD_OPTIONS.values():
        with pytest.raises(ConfigError, match=message.replace("(", r"\(")):
            queue.enqueue("work", {}, **options)
    assert_empty(queue)


def test_type_is_refused_where_it_is_given(queue: Queue) -> None:
    for type in BAD_TYPES:
        with pytest.raises(ConfigError, match="is not a valid job type"):
            queue.enqueue(type)
    assert_empty(queue)


def test_corpus_of_what_is_refused_is_large_enough() -> None:
    assert len(BAD_PAYLOADS) + len(BAD_OPTIONS) + len(BAD_TYPES) >= 90


# Payloads against the handler's annotations.


def test_payload_is_checked_against_the_handlers_annotations(queue: Queue) -> None:
    @queue.job
    def work(point: Point, address: Address, wheel: Wheel, count: int = 1) -> None: ...

    good: dict[str, Any] = {"point": {"x": 1}, "address": {"street": "s"}, "wheel": {"spokes": 3}}
    queue.enqueue("work", good)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"point": {"x": "1"}}, "payload.point.x"),
        ({"address": {}}, "payload.address"),
        ({"wheel": 7}, "payload.wheel"),
        ({"count": None}, "payload.count"),
        ({"more": 1}, "payload"),
    ]
    for change, where in changes:
        with pytest.raises(InvalidPayload) as caught:
            queue.enqueue("work", {**good, **change})
        assert caught.value.where == where
    with pytest.raises(InvalidPayload, match="missing required field point"):
        queue.enqueue("work", {})
    assert len(queue.jobs()) == 1


def test_payload_is_checked_by_pydantic_where_a_model_is_annotated(queue: Queue) -> None:
    queue.register("work", lambda payload: payload.n, payload_type=Model)
    job = queue.enqueue("work", {"n": 5})
    with pytest.raises(InvalidPayload) as caught:
        queue.enqueue("work", {"n": "many"})
    assert caught.value.where == "payload.n"
    queue.drain()
    assert get(queue, job.id).result == 5


def test_lane_is_checked_by_the_handler_of_its_base(queue: Queue) -> None:
    @queue.job
    def shell(command: str) -> None: ...

    with pytest.raises(InvalidPayload, match=r"payload\.command"):
        queue.enqueue("shell:media", {"command": 7})


def test_strict_types_refuses_what_has_no_handler_here(url: str) -> None:
    with Queue(url, strict_types=True) as queue:
        queue.register("known", lambda payload: None)
        queue.enqueue("known")
        queue.enqueue("known:lane")
        with pytest.raises(
            UnknownType, match="no handler is registered for type 'unknown'; registered: known"
        ):
            queue.enqueue("unknown")
        assert len(queue.jobs()) == 2


# The function's own way in.


def test_job_function_enqueues_its_arguments(queue: Queue) -> None:
    @queue.job
    def mail(to: str, subject: str, body: str = "") -> None: ...

    assert mail.enqueue("a", subject="Hi").payload == {"to": "a", "subject": "Hi"}
    assert asyncio.run(mail.enqueue_async(to="a", subject="Hi")).type == "mail"
    jobs = mail.with_options(priority=5).enqueue_many([{"to": "a", "subject": "1"}] * 2)
    assert [job.priority for job in jobs] == [5, 5]


def test_context_is_no_argument_of_enqueue(queue: Queue) -> None:
    @queue.job
    def work(ctx: Context, n: int) -> int:
        return n

    assert work.enqueue(3).payload == {"n": 3}


def test_arguments_that_do_not_fit_are_refused(queue: Queue) -> None:
    @queue.job
    def mail(to: str) -> None: ...

    with pytest.raises(TypeError, match="takes 1 positional argument, got 2"):
        mail.enqueue("a", "b")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="multiple values for 'to'"):
        mail.enqueue("a", to="b")  # type: ignore[misc]
    with pytest.raises(InvalidPayload):
        mail.enqueue()  # type: ignore[call-arg]
    assert_empty(queue)


def test_options_are_added_to_those_given_before(queue: Queue) -> None:
    @queue.job
    def work() -> None: ...

    job = work.with_options(priority=1, delay=60).with_options(priority=2).enqueue()
    assert (job.priority, job.status) == (2, "scheduled")
    assert work.enqueue().priority == 0


# Ids and keys.


class Kind(str, Enum):  # noqa: UP042 -- prints its name, unlike a StrEnum
    MAIL = "send_mail"


class Few(IntEnum):
    TWO = 2


@both_engines
@pytest.mark.parametrize("way", ["enqueue", "enqueue_many", "enqueue_batch", "bulk", "a child"])
def test_members_of_enums_are_stored_as_their_values(queue: Queue, way: str) -> None:
    options: ManyOptions = {"priority": Few.TWO, "max_attempts": Few.TWO}
    named: EnqueueOptions = {"priority": Few.TWO, "max_attempts": Few.TWO, "id": Kind.MAIL, "key": Kind.MAIL}
    if way == "enqueue":
        id = queue.enqueue(Kind.MAIL, {}, **named).id
    elif way == "enqueue_many":
        id = queue.enqueue_many(Kind.MAIL, [{}], **options)[0].id
    elif way == "enqueue_batch":
        id = queue.enqueue_batch([(Kind.MAIL, {}, named)])[0][0].id
    elif way == "bulk":
        with queue.bulk() as bulk:
            bulk.add(1, Kind.MAIL, {}, named)
            [id] = bulk.store()
    else:
        queue.register("parent", lambda _, ctx: ctx.enqueue(Kind.MAIL, {}, **named))
        queue.enqueue("parent")
        assert queue.drain(1, raise_errors=True) == 1
        id = "send_mail"
    job = queue.require(id)
    assert (job.type, job.priority, job.max_attempts) == ("send_mail", 2, 2)
    if way != "enqueue_many":
        assert (job.id, job.key) == ("send_mail", "send_mail")
    assert [job.id for job in queue.jobs(type=Kind.MAIL)] == [job.id]


@both_engines
def test_id_that_is_taken_is_an_error_and_overwrites_nothing(queue: Queue) -> None:
    queue.enqueue("work", {"n": 1}, id="job1")
    with pytest.raises(DuplicateJob, match="a job with the id 'job1' already exists") as caught:
        queue.enqueue("other", {"n": 2}, id="job1")
    assert caught.value.job_id == "job1"
    assert get(queue, "job1").payload == {"n": 1}


@both_engines
def test_same_key_and_payload_returns_the_job_that_holds_it(queue: Queue) -> None:
    first = queue.enqueue("work", {"a": 1, "b": 2}, key="k")
    again = queue.enqueue("work", {"b": 2, "a": 1}, key="k")
    assert again == get(queue, first.id)
    assert len(queue.jobs()) == 1


@both_engines
def test_same_key_with_another_payload_is_an_error_that_names_the_job(queue: Queue) -> None:
    first = queue.enqueue("work", {"n": 1}, key="k")
    with pytest.raises(KeyTaken, match=first.id) as caught:
        queue.enqueue("work", {"n": 2}, key="k")
    assert (caught.value.job_id, caught.value.key) == (first.id, "k")


def test_same_key_of_another_type_is_another_key(queue: Queue) -> None:
    assert queue.enqueue("a", key="k").id != queue.enqueue("b", key="k").id


def test_key_is_free_when_its_job_has_finished(queue: Queue) -> None:
    queue.register("work", lambda payload: None)
    first = queue.enqueue("work", {"n": 1}, key="k")
    queue.drain()
    assert queue.enqueue("work", {"n": 2}, key="k").id != first.id


@both_engines
def test_key_is_held_for_as_long_as_it_was_asked_for(url: str) -> None:
    clock = MovableClock()
    with Queue(url, clock=clock) as queue:
        queue.register("work", lambda payload: None)
        first = queue.enqueue("work", key="k", key_for=60)
        queue.drain()
        clock.advance(59)
        assert queue.enqueue("work", key="k").id == first.id
        clock.advance(1)
        assert queue.enqueue("work", key="k").id != first.id


@both_engines
def test_depth_of_a_type_is_kept(queue: Queue) -> None:
    queue.set_config("max_depth", 2, type="work")
    queue.enqueue("work")
    queue.enqueue("work", delay=60)
    with pytest.raises(QueueFull, match="'work' has 2 waiting jobs"):
        queue.enqueue("work")
    queue.enqueue("other")


# Many at once.


def test_many_jobs_are_one_commit(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    inserts = Spy(store_of(queue).insert_jobs)
    monkeypatch.setattr(store_of(queue), "insert_jobs", inserts)
    jobs = queue.enqueue_many("work", ({"n": n} for n in range(1000)), priority=1)
    assert [job.payload["n"] for job in jobs] == list(range(1000))
    assert {job.priority for job in jobs} == {1}
    assert len(inserts.calls) == 1
    assert queue.stats()["pending"] == 1000


def test_more_than_a_batch_is_several_commits(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert enqueue_module.BATCH == 10_000
    monkeypatch.setattr(enqueue_module, "BATCH", 100)
    inserts = Spy(store_of(queue).insert_jobs)
    monkeypatch.setattr(store_of(queue), "insert_jobs", inserts)
    assert len(queue.enqueue_many("work", [{}] * 201)) == 201
    assert [len(call[0]) for call in inserts.calls] == [100, 100, 1]


def test_atomic_is_one_commit_whatever_the_size(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(enqueue_module, "BATCH", 100)
    inserts = Spy(store_of(queue).insert_jobs)
    monkeypatch.setattr(store_of(queue), "insert_jobs", inserts)
    queue.enqueue_many("work", [{}] * 201, atomic=True)
    assert [len(call[0]) for call in inserts.calls] == [201]


def test_no_jobs_are_no_commit(queue: Queue) -> None:
    assert queue.enqueue_many("work", []) == []


@both_engines
def test_one_bad_payload_stores_none_of_many(queue: Queue) -> None:
    with pytest.raises(InvalidPayload, match="nan"):
        queue.enqueue_many("work", [{}, {}, {"n": math.nan}])
    assert_empty(queue)


def test_error_of_the_iterator_stores_none_of_many(queue: Queue) -> None:
    def payloads() -> Iterator[dict[str, int]]:
        yield {}
        raise RuntimeError("source")

    with pytest.raises(RuntimeError, match="source"):
        queue.enqueue_many("work", payloads())
    assert_empty(queue)


def test_error_of_the_database_stores_none_of_many(queue: Queue) -> None:
    queue.set_config("max_depth", 5, type="work")
    with pytest.raises(QueueFull):
        queue.enqueue_many("work", [{}] * 6)
    assert_empty(queue)
    assert len(queue.enqueue_many("work", [{}] * 5)) == 5


@pytest.mark.parametrize("options", [{"id": "x"}, {"key": "k"}])
def test_id_and_key_are_refused_for_many(queue: Queue, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="each identify one job"):
        queue.enqueue_many("work", [{}], **options)


# In the caller's own transaction.


@contextmanager
def connected(queue: Queue) -> Iterator[Any]:
    """A connection of the application's own to the queue's database, committed at the end."""
    if queue.url.startswith("sqlite:"):
        with closing(sqlite3.connect(path_of(queue))) as theirs, theirs:
            yield theirs
    else:
        with psycopg.connect(parse_url(queue.url).conninfo) as connection:
            yield connection


@both_engines
@pytest.mark.parametrize("is_theirs", [False, True], ids=["our connection", "their connection"])
def test_job_that_enqueue_returns_is_the_one_that_is_read(queue: Queue, is_theirs: bool) -> None:
    options: dict[str, Any] = {"priority": 3, "max_attempts": 4, "timeout": 30, "key": "k", "key_for": 60}
    queue.open()
    with connected(queue) if is_theirs else nullcontext() as connection:
        later = datetime(2100, 1, 1, tzinfo=UTC)
        jobs = [
            queue.enqueue("plain", connection=connection),
            queue.enqueue("delayed", {"n": 1}, delay="1h", id="named", connection=connection, **options),
            queue.enqueue("timed", run_at=later, connection=connection),
        ]
    for job in jobs:
        assert job == queue.get(job.id)


@pytest.fixture
def application(queue: Queue) -> Iterator[sqlite3.Connection]:
    queue.stats()
    with closing(sqlite3.connect(path_of(queue))) as connection:
        connection.execute("CREATE TABLE users (name TEXT)")
        connection.commit()
        yield connection


def test_job_exists_if_and_only_if_the_callers_row_does(
    queue: Queue, application: sqlite3.Connection
) -> None:
    with application:
        application.execute("INSERT INTO users VALUES ('a')")
        job = queue.enqueue("mail", {"to": "a"}, connection=application)
        assert queue.get(job.id) is None
    assert get(queue, job.id).payload == {"to": "a"}

    def fail() -> None:
        with application:
            application.execute("INSERT INTO users VALUES ('b')")
            queue.enqueue_many("mail", [{"to": "b"}] * 3, connection=application)
            raise RuntimeError("changed my mind")

    with pytest.raises(RuntimeError, match="changed my mind"):
        fail()
    assert len(queue.jobs()) == 1
    assert application.execute("SELECT name FROM users").fetchall() == [("a",)]


def test_duplicate_in_the_callers_transaction_does_not_abort_it(
    queue: Queue, application: sqlite3.Connection
) -> None:
    queue.enqueue("mail", id="taken")
    with application:
        application.execute("INSERT INTO users VALUES ('a')")
        with pytest.raises(DuplicateJob):
            queue.enqueue("mail", id="taken", connection=application)
    assert application.execute("SELECT name FROM users").fetchall() == [("a",)]


def test_connection_to_another_database_is_refused(queue: Queue) -> None:
    queue.stats()
    with (
        closing(sqlite3.connect(":memory:")) as connection,
        pytest.raises(ConfigError, match="a database in memory"),
    ):
        queue.enqueue("mail", connection=connection)
    for wrong in ("text", object()):
        with pytest.raises(ConfigError, match=r"sqlite3\.Connection"):
            queue.enqueue("mail", connection=wrong)


def test_every_refusal_is_one_of_our_errors() -> None:
    refusals: list[Callable[..., Exception]] = [
        ConfigError,
        InvalidPayload,
        DuplicateJob,
        QueueFull,
        UnknownType,
    ]
    assert all(issubclass(error, HoldfastError) for error in refusals)  # type: ignore[arg-type]


def test_options_of_a_handler_registered_late_hold_for_the_next_claim(
    queue: Queue, start_worker: Callable[..., Any]
) -> None:
    queue.register("marker", lambda payload: None)
    start_worker()
    early = queue.enqueue("work")
    queue.wait(queue.enqueue("marker").id, timeout=PATIENCE)  # the worker has looked, and seen them both
    queue.register("work", lambda payload: None, max_attempts=10, timeout=7)
    late = queue.enqueue("work")
    for job in (early, late):
        done = queue.wait(job.id, timeout=PATIENCE)
        assert (done.max_attempts, done.timeout) == (10, 7)


def test_options_of_a_handler_registered_as_the_worker_looks_hold(
    queue: Queue, start_worker: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look that finds the handler, and settings that were read before it."""
    job = queue.enqueue("work")
    read = store_of(queue).list_heads

    def registering(*given: Any) -> Any:
        if queue.registry.find("work") is None:
            queue.register("work", lambda payload: None, max_attempts=10, timeout=7)
        return read(*given)

    monkeypatch.setattr(store_of(queue), "list_heads", registering)
    start_worker()
    done = queue.wait(job.id, timeout=PATIENCE)
    assert (done.max_attempts, done.timeout) == (10, 7)
