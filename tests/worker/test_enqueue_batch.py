"""Enqueueing for other surfaces: `admit` says whether a job is new, `enqueue_batch` stores all or none."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Unpack

import pytest

from holdfast import Context, Queue
from holdfast.errors import (
    BatchRefused,
    ConfigError,
    DuplicateJob,
    HoldfastError,
    InvalidPayload,
    KeyTaken,
    NestedWrite,
    PayloadTooLarge,
    QueueFull,
    StoreUnavailable,
    UnknownType,
)
from holdfast.events import JobEnqueued
from holdfast.handlers.options import EnqueueOptions
from holdfast.store.open import store_of
from tests.support import Recorder, both_engines
from tests.worker.support import Spy, doubt_commit, get

Item = tuple[str, object, EnqueueOptions]


def job(number: int, **options: Unpack[EnqueueOptions]) -> Item:
    return "work", {"n": number}, {"id": f"job-{number}", **options}


def admit(queue: Queue, *args: Any, **options: Any) -> tuple[str, bool]:
    found, is_new = asyncio.run(queue.admit(*args, **options))
    return found.id, is_new


# admit


def test_job_that_was_admitted_is_durable_and_new(queue: Queue, other_queue: Queue) -> None:
    admitted, is_new = asyncio.run(queue.admit("work", {"n": 1}, priority=3, key="k", key_for=60))
    assert is_new
    found = get(other_queue, admitted.id)
    assert (found.payload, found.priority, found.key, found.key_for) == ({"n": 1}, 3, "k", 60)
    assert (admitted.status, admitted.created_at) == (found.status, found.created_at)
    assert admitted.max_attempts == queue.settings().get("max_attempts")


def test_job_that_holds_the_key_is_found_again_and_is_not_new(queue: Queue) -> None:
    recorder = Recorder(queue.events)
    assert admit(queue, "work", {"n": 1}, id="first", key="k") == ("first", True)
    assert admit(queue, "work", {"n": 1}, id="second", key="k") == ("first", False)
    assert admit(queue, "other", {"n": 1}, id="third", key="k") == ("third", True)
    assert [event.job_id for event in recorder.all(JobEnqueued)] == ["first", "third"]
    assert queue.count() == 2


def test_job_found_again_is_told_as_it_is_by_now(queue: Queue) -> None:
    queue.register("work", lambda payload: {"seen": payload["n"]})
    admit(queue, "work", {"n": 1}, id="first", key="k", key_for=3600)
    assert queue.drain() == 1
    found, is_new = asyncio.run(queue.admit("work", {"n": 1}, key="k"))
    assert (found.id, is_new, found.status, found.result) == ("first", False, "completed", {"seen": 1})


def test_admission_refuses_what_enqueue_refuses(queue: Queue) -> None:
    queue.enqueue("work", {"n": 1}, id="taken", key="k")
    queue.set_config("max_depth", 1, type="work")
    for error, type, payload, options in (
        (KeyTaken, "work", {"n": 2}, {"key": "k"}),
        (QueueFull, "work", {}, {}),
        (DuplicateJob, "other", {}, {"id": "taken"}),
        (ConfigError, "other", {}, {"nonsense": 1}),
        (InvalidPayload, "other", [1], {}),
    ):
        with pytest.raises(error):
            asyncio.run(queue.admit(type, payload, **options))
    assert queue.count() == 1


@both_engines
def test_of_concurrent_admissions_with_one_key_one_is_new(queue: Queue) -> None:
    async def main() -> list[tuple[str, bool]]:
        admitted = await asyncio.gather(*(queue.admit("work", {"n": 1}, key="k") for _ in range(40)))
        return [(found.id, is_new) for found, is_new in admitted]

    answers = asyncio.run(main())
    assert len({id for id, _ in answers}) == 1
    assert sorted(is_new for _, is_new in answers) == [False] * 39 + [True]
    assert queue.count() == 1


def test_concurrent_admissions_share_commits(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    insert, all_have_come = store_of(queue).insert_jobs, threading.Event()

    def insert_late(*given: Any, **options: Any) -> Any:
        assert all_have_come.wait(30)
        return insert(*given, **options)

    inserts = Spy(insert_late)
    monkeypatch.setattr(store_of(queue), "insert_jobs", inserts)

    async def main() -> list[bool]:
        calls = [asyncio.ensure_future(queue.admit("work", {"n": n})) for n in range(100)]
        for _ in range(3):
            await asyncio.sleep(0)
        all_have_come.set()
        return [is_new for _, is_new in await asyncio.gather(*calls)]

    assert asyncio.run(main()) == [True] * 100
    assert len(inserts.calls) <= 10
    assert queue.count() == 100


# enqueue_batch


@both_engines
def test_batch_is_stored_in_order_each_with_options_of_its_own(queue: Queue, other_queue: Queue) -> None:
    later = datetime(2040, 1, 1, tzinfo=UTC)
    batch: list[Item] = [
        ("mail", {"to": "a"}, {"id": "first", "priority": 5, "timeout": 30, "max_attempts": 7}),
        ("crawl:media", None, {"id": "second", "run_at": later}),
        ("mail", {"to": "b"}, {"key": "k", "key_for": 60}),
    ]
    stored = queue.enqueue_batch(batch)
    assert [is_new for _, is_new in stored] == [True] * 3
    assert [found.id for found in reversed(other_queue.jobs())] == [found.id for found, _ in stored]
    first, second, third = (get(other_queue, found.id) for found, _ in stored)
    assert (first.id, first.priority, first.timeout, first.max_attempts) == ("first", 5, 30, 7)
    assert (second.type, second.payload, second.status, second.run_at) == (
        "crawl:media",
        {},
        "scheduled",
        later,
    )
    assert (third.payload, third.key, third.key_for) == ({"to": "b"}, "k", 60)
    assert stored[1][0].max_attempts == queue.settings().get("max_attempts")
    assert stored[1][0].status == "scheduled"


def test_batch_is_one_commit(queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    database: Any = store_of(queue).database
    commits = Spy(database.commit)
    monkeypatch.setattr(database, "commit", commits)
    queue.enqueue_batch(job(n, key=f"key-{n}" if n % 2 else None) for n in range(100))
    assert len(commits.calls) == 1
    assert queue.count() == 100


def test_batch_of_nothing_stores_nothing(queue: Queue) -> None:
    assert queue.enqueue_batch([]) == []
    assert queue.count() == 0


def test_each_new_job_is_told_once_and_none_that_was_there(queue: Queue) -> None:
    queue.enqueue("work", {"n": 0}, id="old", key="k")
    recorder = Recorder(queue.events)
    queue.enqueue_batch([job(1), ("work", {"n": 0}, {"key": "k"}), job(2)])
    assert [event.job_id for event in recorder.all(JobEnqueued)] == ["job-1", "job-2"]


@both_engines
def test_keys_are_found_again_in_the_queue_and_in_the_batch_itself(queue: Queue) -> None:
    queue.enqueue("work", {"n": 0}, id="old", key="k")
    batch: list[Item] = [
        ("work", {"n": 1}, {"id": "new", "key": "l"}),
        ("work", {"n": 0}, {"id": "ignored", "key": "k"}),
        ("work", {"n": 1}, {"key": "l"}),
        ("other", {"n": 9}, {"id": "other", "key": "k"}),
    ]
    stored = [(found.id, is_new) for found, is_new in queue.enqueue_batch(batch)]
    assert stored == [("new", True), ("old", False), ("new", False), ("other", True)]
    assert [(found.id, is_new) for found, is_new in queue.enqueue_batch(batch)] == [
        ("new", False),
        ("old", False),
        ("new", False),
        ("other", False),
    ]
    assert queue.count() == 3


WRONG: dict[str, tuple[Item, type[HoldfastError]]] = {
    "id taken": (("work", {}, {"id": "taken"}), DuplicateJob),
    "id taken in the batch": (("work", {}, {"id": "job-0"}), DuplicateJob),
    "key taken": (("work", {"n": 2}, {"key": "k"}), KeyTaken),
    "queue full": (("full", {}, {}), QueueFull),
    "payload": (("work", [1], {}), InvalidPayload),
    "payload of the handler": (("known", {"to": 5}, {}), InvalidPayload),
    "payload too large": (("work", {"text": "x" * 3000}, {}), PayloadTooLarge),
    "type": (("no such type", {}, {}), ConfigError),
    "option": (("work", {}, {"nonsense": 1}), ConfigError),  # type: ignore[typeddict-unknown-key]
    "priority": (("work", {}, {"priority": "high"}), ConfigError),  # type: ignore[typeddict-item]
    "run_at and delay": (("work", {}, {"run_at": datetime(2030, 1, 1, tzinfo=UTC), "delay": 5}), ConfigError),
}


@pytest.mark.parametrize("place", [0, 1, 3])
@pytest.mark.parametrize("why", WRONG)
def test_one_refusal_names_its_place_and_nothing_is_stored(queue: Queue, why: str, place: int) -> None:
    wrong, error = WRONG[why]

    def known(to: str) -> None: ...

    queue.job(known)
    queue.set_config("max_payload_bytes", 2048)
    queue.set_config("max_depth", 1, type="full")
    queue.enqueue("full")
    queue.enqueue("work", {"n": 1}, id="taken", key="k")
    before = queue.stats()
    if why == "id taken in the batch" and place == 0:
        wrong = ("work", {}, {"id": "taken"})
    batch = [job(n) for n in range(3)]
    batch.insert(place, wrong)
    recorder = Recorder(queue.events)
    with pytest.raises(BatchRefused) as refused:
        queue.enqueue_batch(batch)
    assert refused.value.index == place
    assert isinstance(refused.value.error, error)
    assert str(refused.value).startswith(f"tasks[{place}]: ")
    assert str(refused.value.error) in str(refused.value)
    assert queue.stats() == before
    assert store_of(queue).count_enqueued() == {"full": 1, "work": 1}
    assert recorder.all(JobEnqueued) == []


def test_first_of_several_refusals_is_named(queue: Queue) -> None:
    queue.enqueue("work", id="taken")
    with pytest.raises(BatchRefused) as refused:
        queue.enqueue_batch([job(0), ("work", {}, {"id": "taken"}), ("work", {}, {"id": "taken"})])
    assert refused.value.index == 1


def test_batch_may_fill_the_queue_and_not_overfill_it(queue: Queue) -> None:
    queue.set_config("max_depth", 3, type="work")
    with pytest.raises(BatchRefused) as refused:
        queue.enqueue_batch([job(n) for n in range(4)])
    assert (refused.value.index, type(refused.value.error)) == (3, QueueFull)
    assert len(queue.enqueue_batch([job(n) for n in range(3)])) == 3


def test_unknown_type_is_refused_where_types_are_strict(url: str) -> None:
    with Queue(url, strict_types=True) as queue:
        queue.register("work", lambda payload: None)
        with pytest.raises(BatchRefused) as refused:
            queue.enqueue_batch([job(0), ("other", {}, {})])
        assert (refused.value.index, type(refused.value.error)) == (1, UnknownType)
        assert queue.count() == 0


def test_items_that_can_not_be_had_store_nothing(queue: Queue) -> None:
    def items() -> Iterator[Item]:
        yield job(0)
        raise LookupError("no more")

    with pytest.raises(LookupError):
        queue.enqueue_batch(items())
    assert queue.count() == 0


@both_engines
@pytest.mark.parametrize("happened", [False, True])
def test_commit_in_doubt_stores_the_batch_once(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, happened: bool
) -> None:
    doubt_commit(monkeypatch, queue, 1, happened=happened)
    recorder = Recorder(queue.events)
    stored = queue.enqueue_batch([job(0), job(1, key="k"), job(2)])
    assert [(found.id, is_new) for found, is_new in stored] == [(f"job-{n}", True) for n in range(3)]
    assert (queue.count(), len(recorder.all(JobEnqueued))) == (3, 3)


def test_trouble_with_the_database_is_no_refusal_of_a_job(
    queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserts = Spy(store_of(queue).insert_jobs)
    inserts.failures = [StoreUnavailable("the disk is full")]
    monkeypatch.setattr(store_of(queue), "insert_jobs", inserts)
    with pytest.raises(StoreUnavailable):
        queue.enqueue_batch([job(0)])
    assert queue.count() == 0


def test_batch_inside_a_handlers_transaction_is_refused_at_once(queue: Queue) -> None:
    """It would wait for a lock that its own caller holds."""
    refused: list[BaseException] = []

    @queue.job
    def work(ctx: Context) -> None:
        with ctx.transaction():
            try:
                queue.enqueue_batch([("other", {}, {})])
            except HoldfastError as error:
                refused.append(error)

    work.enqueue()
    assert queue.drain() == 1
    assert [type(error) for error in refused] == [NestedWrite]
    assert queue.count() == 1


# Reading many


def test_many_jobs_come_in_the_order_asked_for_without_what_is_large(queue: Queue) -> None:
    queue.register("work", lambda payload: {"large": "x" * 100})
    queue.enqueue_batch([job(n) for n in range(4)])
    queue.drain(limit=2)
    found = queue.get_many(["job-3", "job-0", "nobody", "job-1", "job-3"])
    assert [one.id for one in found] == ["job-3", "job-0", "job-1"]
    assert [one.status for one in found] == ["pending", "completed", "completed"]
    assert [(one.payload, one.result, one.errors) for one in found] == [({}, None, ())] * 3
    assert found[0].max_attempts == queue.settings().get("max_attempts")
    assert queue.get_many([]) == []


@both_engines
def test_pages_of_the_queue_go_on_where_the_last_one_ended(queue: Queue) -> None:
    queue.enqueue_batch([job(n) for n in range(5)])
    queue.enqueue("other", id="other")
    first = queue.page(type="work", limit=3)
    second = queue.page(type="work", limit=3, cursor=first.next)
    assert [one.id for one in (*first.jobs, *second.jobs)] == [f"job-{n}" for n in (4, 3, 2, 1, 0)]
    assert second.next is None
    assert first.jobs[0].payload == {"n": 4}
    assert first.jobs[0].max_attempts == queue.settings().get("max_attempts")


def test_page_takes_the_words_that_a_list_takes(queue: Queue) -> None:
    queue.enqueue_batch([job(n) for n in range(3)])
    queue.cancel("job-1")
    assert [one.id for one in queue.page(status="queued", brief=True).jobs] == ["job-2", "job-0"]
    both = queue.page(status=["queued", "cancelled"], offset=1).jobs
    assert [one.id for one in both] == ["job-1", "job-0"]
    assert queue.page(status=[]).jobs == queue.jobs()
    with pytest.raises(ConfigError, match="retrying"):
        queue.page(status="nonsense")  # type: ignore[arg-type]


def test_brief_page_has_no_payloads(queue: Queue) -> None:
    queue.enqueue_batch([job(1)])
    [brief] = queue.page(brief=True).jobs
    assert (brief.id, brief.payload, brief.result) == ("job-1", {}, None)
