"""What readers and operators of a queue are given: checked here, with the same words on every engine."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast import Queue
from holdfast.errors import BatchRefused, ConfigError, JobNotFound
from tests.support import both_engines

NUL, HALF_A_PAIR = "a\x00b", "\ud800"
NO_TEXT = (None, 5, 1.5, True, b"x", ["job"])
NO_IDS = ("", "a b", NUL, HALF_A_PAIR, "x" * 5000)
NO_AMOUNTS = (-1, 1.5, "5", True, None, 2**31, 2**70)
NO_NUMBERS = (-1, 1.5, "5", True, None, 2**70)
NAIVE = datetime(2030, 1, 1)  # noqa: DTZ001 -- naive on purpose
NO_WORDS = (5, b"a", NUL, HALF_A_PAIR, ["a"])
NO_TYPES = (*NO_WORDS, "", "a b", "ü", "x" * 256)

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
    ("is not a valid job type", NO_TYPES, lambda queue, word: queue.jobs(type=word)),
    ("is not a valid job type", NO_TYPES, lambda queue, word: queue.page(type=word)),
    ("is not a valid job type", NO_TYPES, lambda queue, word: queue.count(type=word)),
    ("is not a valid job type", NO_TYPES, lambda queue, word: queue.retry_all(type=word)),
    ("is not a sort order", ("newest", None), lambda queue, word: queue.retry_all(sort=word)),
    ("is not a sort order", ("newest", None), lambda queue, word: queue.cancel_all(sort=word)),
    ("is not a valid job type", NO_TYPES, lambda queue, word: queue.cancel_all(type=word)),
    ("parent_id must be printable text", NO_WORDS, lambda queue, word: queue.jobs(parent_id=word)),
    ("is not a status; allowed", (5, b"failed", NUL, [[]], [None]), lambda queue, s: queue.count(status=s)),
    ("error must be text", (5, b"x"), lambda queue, error: queue.page(error=error)),
    ("cursor must be", (5, b"5", NUL, "<"), lambda queue, cursor: queue.page(cursor=cursor)),
    ("job_ids must be a list of ids", (None, 5, "job", b"job"), lambda queue, ids: queue.get_many(ids)),
    ("job_ids must be a list of ids", (None, 5, "job", b"job"), lambda queue, ids: queue.get_whole(ids)),
    ("job_ids must be a list of ids", (None, 5, "job"), lambda queue, ids: queue.act("retry", ids)),
    ("is not an action", (None, 5, [], "erase"), lambda queue, action: queue.act(action, ["job"])),
    ("kept must be a whole number", NO_AMOUNTS, lambda queue, n: queue.act("retry", ["job"], kept=n)),
    ("most must be a whole number", NO_NUMBERS, lambda queue, n: queue.get_whole(["job"], n)),
    ("limit must be a whole number from 0", NO_AMOUNTS, lambda queue, n: queue.reused_keys(n)),
    ("minutes must be a whole number from 0", NO_AMOUNTS[:4], lambda queue, n: queue.statistics(n)),
    ("moment must be a datetime", (None, 5, "1h", []), lambda queue, moment: queue.finished_since(moment)),
    ("moment is a naive datetime", (NAIVE,), lambda queue, moment: queue.finished_since(moment)),
    ("needs a time zone", (NAIVE,), lambda queue, moment: queue.cleanup(moment)),
    ("worker_ids must be a list of ids", (None, 5, "w"), lambda queue, ids: queue.stop_workers(ids)),
    ("worker_id must be printable text", NO_WORDS, lambda queue, id: queue.stop_workers([id])),
    ("job_id must be text", NO_TEXT, lambda queue, id: queue.shared_output(id)),
    ("payloads must be a list of", (None, 5, "a"), lambda queue, given: queue.enqueue_many("t", given)),
    ("items must be a list of", (None, 5, "a"), lambda queue, items: queue.enqueue_batch(items)),
    ("types must be a list of types", (5, "a", b"a"), lambda queue, types: queue.worker(types=types)),
    ("type must be text", (None, 5, []), lambda queue, type: queue.unregister(type)),
    ("url must be text", (5, ["a"]), lambda _, url: Queue(url)),
    ("defaults must be a dict", (5, [("a", 1)], "a"), lambda queue, d: Queue(queue.url, defaults=d)),
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
@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (5, "a job must be given as"),
        (("work", {}), "a job must be given as"),
        (("work", {}, None), "options must be a dict, not None"),
        (("work", {}, {5: 1, "x": 2}), "there is no option 5"),
    ],
)
def test_what_is_no_job_of_a_batch_is_refused_at_its_place(queue: Queue, item: Any, problem: str) -> None:
    with pytest.raises(BatchRefused, match=problem) as caught:
        queue.enqueue_batch([("work", {}, {}), item])
    assert caught.value.index == 1


@both_engines
def test_filters_that_fit_nothing_are_no_error(queue: Queue) -> None:
    queue.enqueue("work")
    assert queue.jobs(limit=0) == queue.jobs(type="nothing") == queue.jobs(parent_id="nobody") == []
    assert (
        queue.jobs(offset=2**31 - 1) == queue.page(error=NUL).jobs == queue.page(error=HALF_A_PAIR).jobs == []
    )


@pytest.mark.parametrize("timeout", [0, "0s", "10ms", timedelta(milliseconds=10)])
def test_wait_takes_its_timeout_as_any_duration(queue: Queue, timeout: Any) -> None:
    queue.enqueue("work", id="job")
    with pytest.raises(TimeoutError, match="job 'job' is still pending after 0"):
        queue.wait("job", timeout)
