"""The object that @queue.job makes of a function: callable, enqueueable, its arguments the payload."""

from __future__ import annotations

import functools
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
    with pytest.raises(TypeError, match="takes 2 arguments"):
        job.enqueue("a", "b", "c")


def test_an_argument_given_twice_is_a_type_error(queue: Queue) -> None:
    job: Any = queue.job(send)
    with pytest.raises(TypeError, match="several values for 'to'"):
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
        queue.job(max_tries=3)
    with pytest.raises(ConfigError, match="is not a value for concurrency"):
        queue.job(concurrency=0)
