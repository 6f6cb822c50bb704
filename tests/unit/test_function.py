"""The object that @queue.job makes of a function: callable, enqueueable, its arguments the payload."""

from __future__ import annotations

import asyncio
import functools
from enum import Enum
from typing import Any

import pytest

from holdfast import Context, Queue
from holdfast.errors import ConfigError, InvalidPayload


def send(to: str, subject: str = "Hi") -> str:
    """Send an e-mail."""
    return f"{to}: {subject}"


def test_it_is_still_the_function(queue: Queue) -> None:
    job = queue.job(send)
    assert job("a@b.c", subject="Yo") == "a@b.c: Yo"
    assert (job.__name__, job.__doc__, job.type) == ("send", "Send an e-mail.", "send")


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [((), {"to": "a", "subject": "b"}), (("a",), {"subject": "b"}), (("a", "b"), {})],
)
def test_positional_and_keyword_arguments_make_the_same_payload(
    queue: Queue, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> None:
    assert queue.job(send).enqueue(*args, **kwargs).payload == {"to": "a", "subject": "b"}


def test_a_default_is_not_stored_so_that_it_may_change(queue: Queue) -> None:
    assert queue.job(send).enqueue("a").payload == {"to": "a"}


def test_a_context_that_comes_first_takes_no_argument(queue: Queue) -> None:
    @queue.job
    def crawl(ctx: Context, url: str) -> None: ...

    assert crawl.enqueue("u").payload == {"url": "u"}


def test_too_many_arguments_are_a_type_error(queue: Queue) -> None:
    job: Any = queue.job(send)
    with pytest.raises(TypeError, match="takes 2 positional arguments, got"):
        job.enqueue("a", "b", "c")


def test_an_argument_given_twice_is_a_type_error(queue: Queue) -> None:
    job: Any = queue.job(send)
    with pytest.raises(TypeError, match="multiple values for 'to'"):
        job.enqueue("a", to="b")


def test_only_positional_parameters_take_positional_arguments(queue: Queue) -> None:
    def only(to: str, *, subject: str = "") -> None: ...
    def rest(to: str, **more: Any) -> None: ...

    for function in (only, rest):
        job: Any = queue.job(function)
        with pytest.raises(TypeError):
            job.enqueue("a", "b")


def test_a_wrong_argument_is_refused_and_nothing_is_stored(queue: Queue) -> None:
    job: Any = queue.job(send)
    with pytest.raises(InvalidPayload, match=r"payload\.to: expected str"):
        job.enqueue(to=1)
    with pytest.raises(InvalidPayload, match="unknown field tp"):
        job.enqueue(to="a", tp=1)
    with pytest.raises(InvalidPayload, match="missing required field to"):
        job.enqueue()
    assert queue.jobs() == []


def test_options_go_to_the_jobs_and_leave_the_function_alone(queue: Queue) -> None:
    job = queue.job(send)
    urgent = job.with_options(priority=5).with_options(key="welcome:42")
    made = urgent.enqueue("a")
    assert (made.priority, made.key) == (5, "welcome:42")
    assert job.enqueue("a").priority == 0


def test_many_jobs_are_made_from_many_payloads(queue: Queue) -> None:
    jobs = queue.job(send).with_options(priority=2).enqueue_many([{"to": "a"}, {"to": "b"}])
    assert [(job.payload["to"], job.priority) for job in jobs] == [("a", 2), ("b", 2)]


def test_a_job_may_have_another_name_than_its_function(queue: Queue) -> None:
    assert queue.job(name="mail.send")(send).enqueue("a").type == "mail.send"


def test_anything_that_can_be_called_may_be_a_job_if_it_is_given_a_name(queue: Queue) -> None:
    job: Any = queue.job(name="hello")(functools.partial(send, subject="Hello"))
    job.enqueue(to="a")
    assert queue.drain() == 1


def test_something_without_a_name_says_that_it_needs_one(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="name"):
        queue.job(functools.partial(send, subject="Hello"))


def test_a_bad_option_of_the_decorator_is_refused_where_it_is_written(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="there is no option 'max_tries'"):
        queue.job(max_tries=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="is not a valid value for concurrency"):
        queue.job(concurrency=0)


def test_a_lane_is_part_of_the_jobs_type_and_run_by_the_same_function(queue: Queue) -> None:
    job = queue.job(send)
    made = job.with_options(lane="eu", priority=2).enqueue("a")
    assert (made.type, made.priority) == ("send:eu", 2)
    assert job.with_options(lane="eu").enqueue_many([{"to": "b"}])[0].type == "send:eu"
    assert asyncio.run(job.with_options(lane="us").enqueue_async("c")).type == "send:us"
    assert job.enqueue("d").type == "send"
    assert queue.drain() == 4
    assert job.with_options(lane="eu").with_options(lane="us").type == "send:us"
    assert job.with_options(lane="eu").with_options(lane=None).type == "send"


class Region(str, Enum):  # noqa: UP042 -- prints its name, unlike a StrEnum
    EU = "eu"


def test_a_lane_may_be_a_member_of_an_enum(queue: Queue) -> None:
    assert queue.job(send).with_options(lane=Region.EU).type == "send:eu"


def test_a_child_may_be_of_a_lane(queue: Queue) -> None:
    sending = queue.job(send)

    @queue.job
    def parent(ctx: Context) -> None:
        ctx.enqueue(sending.with_options(lane="eu"), {"to": "a"})

    parent.enqueue()
    assert queue.drain() == 2
    assert [job.type for job in queue.jobs()] == ["send:eu", "parent"]


@pytest.mark.parametrize("lane", ["", " ", "a b", 5, "x" * 255])
def test_what_can_be_no_lane_is_refused(queue: Queue, lane: Any) -> None:
    with pytest.raises(ConfigError, match=r"lane must be non-empty text|is not a valid job type"):
        queue.job(send).with_options(lane=lane)


def test_a_function_that_serves_one_lane_has_no_lanes(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="'send:eu' is already a lane"):
        queue.job(name="send:eu")(send).with_options(lane="us")


def test_an_option_that_does_not_exist_is_refused_where_it_is_written(queue: Queue) -> None:
    job: Any = queue.job(send)
    with pytest.raises(ConfigError, match="there is no option 'prority'; allowed: id, priority"):
        job.with_options(prority=5)
    with pytest.raises(ConfigError, match="id and key each identify one job"):
        job.with_options(key="k").enqueue_many([{"to": "a"}])
