"""What readers and operators of a queue are given: checked here, with the same words on every engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from holdfast import Queue
from holdfast.errors import ConfigError, JobNotFound
from tests.support import both_engines

NUL, HALF_A_PAIR = "a\x00b", "\ud800"
NO_TEXT = (None, 5, 1.5, True, b"x", ["job"])
NO_IDS = ("", "a b", NUL, HALF_A_PAIR, "x" * 5000)
NO_AMOUNTS = (-1, 1.5, "5", True, None, 2**31, 2**70)
NO_WORDS = (5, b"a", NUL, HALF_A_PAIR, ["a"])

Call = Callable[[Queue, Any], object]

BY_ID: dict[str, Call] = {
    "get": lambda queue, id: queue.get(id),
    "get_many": lambda queue, id: queue.get_many([id]),
    "children": lambda queue, id: queue.children(id),
    "why": lambda queue, id: queue.why(id),
    "wait": lambda queue, id: queue.wait(id, 0),
    "retry": lambda queue, id: queue.retry(id),
    "retry with a payload": lambda queue, id: queue.retry(id, {}),
    "cancel": lambda queue, id: queue.cancel(id),
    "delete": lambda queue, id: queue.delete(id),
}
READERS = ("get", "get_many", "children")

REFUSED: list[tuple[str, tuple[Any, ...], Call]] = [
    ("limit must be a whole number from 0", NO_AMOUNTS, lambda queue, n: queue.jobs(limit=n)),
    ("limit must be a whole number from 0", NO_AMOUNTS, lambda queue, n: queue.page(limit=n)),
    ("limit must be a whole number from 0", NO_AMOUNTS, lambda queue, n: queue.error_groups(n)),
    ("limit must be a whole number from 0", NO_AMOUNTS[:4], lambda queue, n: queue.retry_all(limit=n)),
    ("limit must be a whole number from 0", NO_AMOUNTS[:4], lambda queue, n: queue.cancel_all(limit=n)),
    ("limit must be a whole number from 0", NO_AMOUNTS[:4], lambda queue, n: queue.drain(n)),
    ("offset must be a whole number from 0", NO_AMOUNTS, lambda queue, n: queue.jobs(offset=n)),
    ("offset must be a whole number from 0", NO_AMOUNTS, lambda queue, n: queue.page(offset=n)),
    ("cap must be a whole number from 0", (-1, 1.5, "5", None, 2**70), lambda queue, n: queue.count(cap=n)),
    ("type must be printable text", NO_WORDS, lambda queue, word: queue.jobs(type=word)),
    ("type must be printable text", NO_WORDS, lambda queue, word: queue.page(type=word)),
    ("type must be printable text", NO_WORDS, lambda queue, word: queue.count(type=word)),
    ("type must be printable text", NO_WORDS, lambda queue, word: queue.retry_all(word)),
    ("is not a sort order", ("newest", None), lambda queue, word: queue.retry_all(sort=word)),
    ("is not a sort order", ("newest", None), lambda queue, word: queue.cancel_all(sort=word)),
    ("type must be printable text", NO_WORDS, lambda queue, word: queue.cancel_all(word)),
    ("parent_id must be printable text", NO_WORDS, lambda queue, word: queue.jobs(parent_id=word)),
    ("is not a status; allowed", (5, b"failed", NUL, [[]], [None]), lambda queue, s: queue.count(status=s)),
    ("error must be text", (5, b"x"), lambda queue, error: queue.page(error=error)),
    ("cursor must be", (5, b"5", NUL, "<"), lambda queue, cursor: queue.page(cursor=cursor)),
    ("job_ids must be a list of ids", (None, 5, "job", b"job"), lambda queue, ids: queue.get_many(ids)),
    ("timeout must be a duration", (-1, "x", float("nan"), b""), lambda queue, t: queue.wait("job", t)),
    ("there is no setting", (5, b"x", None, NUL), lambda queue, key: queue.set_config(key, 1)),
]
"""What is said, of which values, by which call."""


@both_engines
def test_what_can_not_be_an_id_is_the_id_of_no_job(queue: Queue) -> None:
    queue.enqueue("work", id="job")
    for name, call in BY_ID.items():
        for id in NO_IDS:
            if name in READERS:
                assert not call(queue, id), (name, id)
            else:
                with pytest.raises(JobNotFound):
                    call(queue, id)


@both_engines
def test_what_is_no_text_is_refused_where_an_id_is_asked_for(queue: Queue) -> None:
    for call in BY_ID.values():
        for value in NO_TEXT:
            with pytest.raises(ConfigError, match="job_id must be text, not "):
                call(queue, value)


@both_engines
def test_every_other_argument_is_checked_before_the_database_sees_it(queue: Queue) -> None:
    queue.enqueue("work", id="job")
    for problem, values, call in REFUSED:
        for value in values:
            with pytest.raises(ConfigError) as caught:
                call(queue, value)
            assert problem in str(caught.value), value


@both_engines
def test_filters_that_fit_nothing_are_no_error(queue: Queue) -> None:
    queue.enqueue("work")
    assert queue.jobs(limit=0) == queue.jobs(type="a b") == queue.jobs(parent_id="nobody") == []
    assert (
        queue.jobs(offset=2**31 - 1) == queue.page(error=NUL).jobs == queue.page(error=HALF_A_PAIR).jobs == []
    )
    assert queue.count(type="ünknown") == 0


@pytest.mark.parametrize("timeout", [0, "0s", "10ms", timedelta(milliseconds=10)])
def test_wait_takes_its_timeout_as_any_duration(queue: Queue, timeout: Any) -> None:
    queue.enqueue("work", id="job")
    with pytest.raises(TimeoutError, match="job 'job' is pending after 0"):
        queue.wait("job", timeout)
