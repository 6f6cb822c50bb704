"""prepare=: a payload is completed, and gets options such as a key, where its job is enqueued."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast import Context, Job, Queue
from holdfast.errors import ConfigError, InvalidPayload, KeyHeld, KeyTaken, UnknownType
from tests.worker.support import get

Payload = dict[str, Any]


def keyed(payload: Payload) -> tuple[Payload, dict[str, Any]]:
    return {**payload, "month": payload["month"].strip()}, {"key": f"report:{payload['month'].strip()}"}


def write(payload: Payload) -> str:
    return str(payload["month"])


@pytest.fixture(autouse=True)
def report(queue: Queue) -> None:
    queue.register("report", write, prepare=keyed)


def test_prepared_payload_and_key_are_stored(queue: Queue) -> None:
    job = queue.enqueue("report", {"month": " may "})
    assert (job.payload, job.key) == ({"month": "may"}, "report:may")
    assert queue.enqueue("report", {"month": "may"}).id == job.id


def test_what_the_caller_says_holds(queue: Queue) -> None:
    assert queue.enqueue("report", {"month": "may"}, key="mine").key == "mine"


def test_children_lanes_and_batches_are_prepared(queue: Queue) -> None:
    @queue.job
    def parent(ctx: Context) -> None:
        ctx.enqueue("report:late", {"month": " june "})

    parent.enqueue()
    queue.drain(limit=1)
    assert [job.payload for job in queue.jobs(type="report:late")] == [{"month": "june"}]
    many = queue.enqueue_many("report", [{"month": " july "}, {"month": " august "}])
    (batched, _), *_ = queue.enqueue_batch([("report", {"month": " may "}, {})])
    assert [job.key for job in (*many, batched)] == ["report:july", "report:august", "report:may"]


def options_of(queue: Queue, defaults: dict[str, Any], **options: Any) -> Job:
    queue.register("other", write, prepare=lambda payload: (payload, defaults))
    return queue.enqueue("other", {"month": "may"}, **options)


def test_priority_that_is_said_to_be_0_is_0(queue: Queue) -> None:
    assert options_of(queue, {"priority": 5}, priority=0).priority == 0


def test_time_that_the_caller_says_takes_the_place_of_a_delay(queue: Queue) -> None:
    when = get(queue, queue.enqueue("report", {"month": "may"}).id).created_at + timedelta(days=1)
    assert options_of(queue, {"delay": 3600}, run_at=when).run_at == when


@pytest.mark.parametrize(
    "returned", [None, {"month": "may"}, ({"month": "may"},), ({"month": "may"}, None), "text"]
)
def test_prepare_that_returns_something_else_is_named(queue: Queue, returned: Any) -> None:
    queue.register("other", write, prepare=lambda _: returned)
    with pytest.raises(ConfigError, match="prepare= of 'other' must return a payload and a dict of options"):
        queue.enqueue("other", {"month": "may"})
    assert queue.jobs() == []


def test_option_that_there_is_not_is_named(queue: Queue) -> None:
    with pytest.raises(ConfigError, match="there is no option 'colour'"):
        options_of(queue, {"colour": "red"})


async def later(payload: Payload) -> tuple[Payload, dict[str, Any]]:
    return payload, {}


@pytest.mark.parametrize("wrong", [later, "text", 5])
def test_prepare_is_a_plain_function(queue: Queue, wrong: Any) -> None:
    with pytest.raises(ConfigError, match="prepare= must be a sync function that takes the payload"):
        queue.register("other", write, prepare=wrong)


def test_prepare_may_refuse(queue: Queue) -> None:
    def refuse(payload: Payload) -> tuple[Payload, dict[str, Any]]:
        raise InvalidPayload("payload.month", "is no month")

    queue.register("other", write, prepare=refuse)
    with pytest.raises(InvalidPayload, match="is no month"):
        queue.enqueue("other", {"month": "may"})


# A retry with another payload.


def cancelled(queue: Queue, month: str, **options: Any) -> Job:
    return queue.cancel(queue.enqueue("report", {"month": month}, **options).id)


def test_key_follows_the_payload_of_a_retry(queue: Queue) -> None:
    job = cancelled(queue, "may")
    again = queue.retry(job.id, {"month": "june"})
    assert (again.payload, again.key) == ({"month": "june"}, "report:june")
    assert queue.enqueue("report", {"month": "june"}).id == job.id
    assert queue.enqueue("report", {"month": "may"}).id != job.id


def test_key_of_the_caller_stays_at_a_retry(queue: Queue) -> None:
    job = cancelled(queue, "may", key="mine")
    assert queue.retry(job.id, {"month": "june"}).key == "mine"


def test_retry_is_refused_where_another_job_holds_the_new_key(queue: Queue) -> None:
    job, other = cancelled(queue, "may"), queue.enqueue("report", {"month": "june"})
    with pytest.raises(KeyHeld, match=other.id):
        queue.retry(job.id, {"month": "june"})
    left = get(queue, job.id)
    assert (left.status, left.payload, left.key) == ("cancelled", {"month": "may"}, "report:may")


def test_retry_without_a_payload_keeps_the_key(queue: Queue) -> None:
    assert queue.retry(cancelled(queue, "may").id).key == "report:may"


# Built-in types in a process that has no handlers for them.


@pytest.fixture
def bare(url: str) -> Queue:
    return Queue(url)


def test_path_is_made_whole_where_it_is_enqueued(
    bare: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with bare:
        job = bare.enqueue("create_file:reports", {"path": "a", "content": ""})
        assert job.payload["path"] == str(tmp_path / "a")


@pytest.mark.parametrize(
    "type", ["shell", "create_file", "delete_file", "webhook", "sync_aws", "claude_extraction"]
)
def test_wrong_payload_of_a_built_in_type_is_refused(bare: Queue, type: str) -> None:
    with bare, pytest.raises(InvalidPayload):
        bare.enqueue(type, {"nonsense": 1})


def test_extraction_is_recognised_by_requirement_and_prompt(bare: Queue) -> None:
    payload = {"prompt": "What?", "targetPath": "a", "requirementId": "R1"}
    with bare:
        first = bare.enqueue("claude_extraction", payload)
        assert bare.enqueue("claude_extraction", payload).id == first.id
        assert bare.enqueue("claude_extraction", {**payload, "prompt": "Why?"}).id != first.id
        with pytest.raises(KeyTaken):
            bare.enqueue("claude_extraction", {**payload, "targetPath": "b"})


@pytest.mark.parametrize("payload", [{"command": "true"}, {"command": "true", "cwd": "/"}])
def test_strict_queue_takes_a_built_in_type_only_with_its_handler(url: str, payload: Payload) -> None:
    with Queue(url, strict_types=True) as queue, pytest.raises(UnknownType):
        queue.enqueue("shell", payload)


def test_handler_of_the_application_beats_a_built_in_type(bare: Queue) -> None:
    with bare:
        bare.register("create_file", write)
        assert bare.enqueue("create_file", {"month": "may"}).payload == {"month": "may"}
