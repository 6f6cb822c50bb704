"""Queue.bulk: every job is checked before the first is stored, and all of a chunk or none."""

from __future__ import annotations

import os
import sqlite3
import tracemalloc
from types import SimpleNamespace
from typing import Any, Unpack

import pytest

from holdfast import Queue
from holdfast.errors import (
    BulkRefused,
    CommitUncertain,
    ConfigError,
    DuplicateJob,
    HoldfastError,
    InvalidPayload,
    QueueFull,
    StoreUnavailable,
)
from holdfast.handlers.options import EnqueueOptions
from holdfast.store.open import store_of
from holdfast.store.sqlite import SqliteStore
from tests.support import both_engines, open_files
from tests.worker.support import Spy, get


def fill(queue: Queue, jobs: int, type: str = "work", **options: Unpack[EnqueueOptions]) -> list[str]:
    """Store so many jobs, numbered from line 1."""
    with queue.bulk() as bulk:
        for number in range(1, jobs + 1):
            bulk.add(number, type, {"number": number}, options)
        return list(bulk.store())


@pytest.fixture
def insert_fewer_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few hundred jobs are already more than are inserted at once."""
    monkeypatch.setattr("holdfast.enqueueing.bulk._INSERTED_AT_ONCE", 100)


@both_engines
def test_jobs_are_stored_in_order_and_their_ids_given_in_order(
    queue: Queue, insert_fewer_at_once: None
) -> None:
    ids = fill(queue, 250)
    assert len(set(ids)) == 250
    listed = queue.jobs(limit=250)
    assert [job.id for job in reversed(listed)] == ids
    assert [job.payload["number"] for job in reversed(listed)] == list(range(1, 251))


def test_jobs_may_have_types_and_options_of_their_own(queue: Queue) -> None:
    with queue.bulk() as bulk:
        bulk.add(1, "work", {"n": 1}, {"id": "job1", "priority": 5, "timeout": 30, "max_attempts": 7})
        bulk.add(2, "other:lane", {}, {"delay": 3600, "key": "k", "key_for": 60})
        assert bulk.count == 2
        ids = list(bulk.store())
    first, second = get(queue, "job1"), get(queue, ids[1])
    assert (first.priority, first.timeout, first.max_attempts, first.payload) == (5, 30, 7, {"n": 1})
    assert (second.type, second.status, second.key, second.key_for) == ("other:lane", "scheduled", "k", 60)


@pytest.mark.parametrize("text", ["ü 😀", "a\nb\r\n", '"quoted"', "\x01\x1f", "\u2028", "x" * 5000])
def test_payload_is_stored_as_enqueue_would_store_it(queue: Queue, text: str) -> None:
    payload = {text: [text, 1.5, None, True, 2**60]}
    with queue.bulk() as bulk:
        bulk.add(1, "work", payload, {})
        [id] = bulk.store()
    assert get(queue, id).payload == get(queue, queue.enqueue("work", payload).id).payload == payload


def test_bulk_of_nothing_stores_nothing(queue: Queue) -> None:
    with queue.bulk() as bulk:
        assert bulk.count == 0
        assert list(bulk.store()) == list(bulk.store(chunk=10)) == []
    assert queue.count() == 0


# One commit, or chunks


@both_engines
def test_all_appear_in_one_commit(queue: Queue, other_queue: Queue, insert_fewer_at_once: None) -> None:
    seen: list[tuple[int, int]] = []
    with queue.bulk() as bulk:
        for number in range(250):
            bulk.add(number, "work", {}, {})
        assert other_queue.count() == 0, "nothing is stored before store()"
        ids = bulk.store(progress=lambda done: seen.append((done, other_queue.count())))
        assert other_queue.count() == 250, "they are durable when it returns, whoever looks at the ids"
        assert len(ids) == len(set(ids)) == 250
    assert seen == [(100, 0), (200, 0), (250, 0)]


def test_chunks_are_committed_one_after_another(queue: Queue, other_queue: Queue) -> None:
    seen: list[tuple[int, int]] = []
    with queue.bulk() as bulk:
        for number in range(25):
            bulk.add(number, "work", {}, {})
        bulk.store(chunk=10, progress=lambda done: seen.append((done, other_queue.count())))
    assert seen == [(10, 0), (20, 10), (25, 20)]
    assert other_queue.count() == 25


def test_ids_are_given_as_often_as_one_asks_also_when_the_bulk_is_closed(queue: Queue) -> None:
    with queue.bulk() as bulk:
        for number in range(3):
            bulk.add(number, "work", {}, {"id": f"job-{number}"})
        assert list(bulk.stored) == []
        ids = bulk.store(chunk=2)
    assert list(zip(ids, ids, strict=True)) == [(f"job-{n}", f"job-{n}") for n in range(3)]
    assert list(bulk.stored) == list(ids)


def test_ids_of_the_chunks_before_a_refusal_are_known(queue: Queue) -> None:
    queue.enqueue("work", id="taken")
    with queue.bulk() as bulk:
        for id in ("a", "b", "c", "taken"):
            bulk.add(1, "work", {}, {"id": id})
        with pytest.raises(BulkRefused):
            bulk.store(chunk=2)
        assert list(bulk.stored) == ["a", "b"]


def test_lock_is_free_while_jobs_are_checked_and_between_chunks(
    queue: Queue, other_queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    breath = SimpleNamespace(sleep=lambda _: other_queue.enqueue("between"))
    monkeypatch.setattr("holdfast.enqueueing.bulk.time", breath)
    with queue.bulk() as bulk:
        for number in range(4):
            bulk.add(number, "work", {}, {})
            other_queue.enqueue("beside")
        bulk.store(chunk=1)
    assert queue.count(type="between") == 3
    assert queue.count() == 11


@pytest.mark.parametrize("chunk", [1, 3, 1000])
def test_chunk_of_any_size_stores_all_in_order(queue: Queue, chunk: int) -> None:
    with queue.bulk() as bulk:
        for number in range(7):
            bulk.add(number, "work", {}, {"id": f"job-{number}"})
        assert list(bulk.store(chunk=chunk)) == [f"job-{number}" for number in range(7)]
    assert queue.count() == 7


@pytest.mark.parametrize("chunk", [0, -1, float("nan"), 0.5, "5", True])
def test_chunk_that_is_no_number_of_jobs_is_refused(queue: Queue, chunk: Any) -> None:
    with queue.bulk() as bulk:
        bulk.add(1, "work", {}, {})
        with pytest.raises(ConfigError, match="chunk must be a whole number from 1"):
            bulk.store(chunk)


@pytest.mark.parametrize("line", [None, "3", -1, 1.0, 2**70])
def test_line_that_is_no_number_is_refused_where_it_is_given(queue: Queue, line: Any) -> None:
    with queue.bulk() as bulk:
        with pytest.raises(ConfigError, match="line must be a whole number from 0"):
            bulk.add(line, "work", {}, {})
        assert bulk.count == 0


# What is refused


def refused(queue: Queue, lines: list[tuple[int, EnqueueOptions]], **how: Any) -> BulkRefused:
    with queue.bulk() as bulk:
        for line, options in lines:
            bulk.add(line, "work", {"line": line}, options)
        with pytest.raises(BulkRefused) as refusal:
            bulk.store(**how)
    return refusal.value


def test_refusal_names_the_line_and_stores_nothing(queue: Queue) -> None:
    taken = queue.enqueue("work", id="taken")
    error = refused(queue, [(3, {}), (7, {"id": "taken"}), (9, {})])
    assert (error.line, error.stored) == (7, 0)
    assert isinstance(error.error, DuplicateJob)
    assert str(error).startswith("line 7: ")
    assert "nothing was stored" in str(error)
    assert [job.id for job in queue.jobs()] == [taken.id]


def test_refusal_far_down_takes_everything_back(queue: Queue, insert_fewer_at_once: None) -> None:
    queue.enqueue("work", id="taken")
    lines: list[tuple[int, EnqueueOptions]] = [(n, {}) for n in range(1, 150)]
    error = refused(queue, [*lines, (150, {"id": "taken"})])
    assert (error.line, queue.count()) == (150, 1)


@both_engines
def test_refusal_in_a_later_chunk_says_how_many_are_stored(queue: Queue) -> None:
    queue.enqueue("work", id="taken")
    lines: list[tuple[int, EnqueueOptions]] = [
        (1, {"id": "a"}),
        (2, {"id": "b"}),
        (3, {"id": "c"}),
        (4, {"id": "taken"}),
    ]
    error = refused(queue, lines, chunk=2)
    assert (error.line, error.stored) == (4, 2)
    assert "2 jobs from earlier chunks were stored" in str(error)
    assert sorted(job.id for job in queue.jobs()) == ["a", "b", "taken"]


def test_id_given_twice_is_refused_at_the_second(queue: Queue) -> None:
    assert refused(queue, [(1, {"id": "a"}), (2, {"id": "a"})]).line == 2
    assert queue.count() == 0


def test_key_finds_the_job_that_holds_it(queue: Queue) -> None:
    holder = queue.enqueue("work", {"n": 1}, key="k")
    with queue.bulk() as bulk:
        bulk.add(1, "work", {"n": 1}, {"key": "k"})
        bulk.add(2, "work", {"n": 2}, {})
        ids = list(bulk.store())
    assert ids[0] == holder.id
    assert queue.count() == 2


@both_engines
def test_key_given_twice_is_one_job(queue: Queue) -> None:
    with queue.bulk() as bulk:
        bulk.add(1, "work", {"n": 1}, {"key": "k"})
        bulk.add(2, "work", {"n": 1}, {"key": "k"})
        first, second = bulk.store()
    assert first == second
    assert queue.count() == 1


def test_key_with_another_payload_is_refused(queue: Queue) -> None:
    queue.enqueue("work", {"n": 1}, key="k")
    error = refused(queue, [(1, {}), (2, {"key": "k"})])
    assert error.line == 2
    assert queue.count() == 1


@both_engines
def test_max_depth_refuses_the_line_that_would_exceed_it(queue: Queue) -> None:
    queue.set_config("max_depth", 3)
    queue.enqueue("work")
    error = refused(queue, [(n, {}) for n in range(1, 5)])
    assert (error.line, isinstance(error.error, QueueFull)) == (3, True)
    assert queue.count() == 1
    queue.set_config("max_depth", 5)
    assert len(fill(queue, 4)) == 4


@pytest.mark.parametrize(
    ("type", "payload", "options", "problem"),
    [
        ("known", {"wrong": 1}, {}, InvalidPayload),
        ("work", [], {}, InvalidPayload),
        ("work", {}, {"priority": "high"}, ConfigError),
        ("work", {}, {"nonsense": 1}, ConfigError),
        ("work", {}, {"id": "no spaces"}, ConfigError),
        ("no type", {}, {}, ConfigError),
    ],
)
def test_wrong_job_is_refused_where_it_is_added_and_the_others_stay(
    queue: Queue, type: str, payload: Any, options: EnqueueOptions, problem: type[HoldfastError]
) -> None:
    @queue.job
    def known(number: int) -> None: ...

    with queue.bulk() as bulk:
        bulk.add(1, "known", {"number": 1}, {})
        with pytest.raises(problem):
            bulk.add(2, type, payload, options)
        bulk.add(3, "known", {"number": 3}, {})
        assert bulk.count == 2
        ids = list(bulk.store())
    assert [get(queue, id).payload["number"] for id in ids] == [1, 3]


def test_strict_queue_refuses_unknown_types(url: str) -> None:
    with Queue(url, strict_types=True) as queue, queue.bulk() as bulk, pytest.raises(HoldfastError):
        bulk.add(1, "unknown", {}, {})


# Trouble


def test_bulk_that_is_closed_without_being_stored_leaves_nothing(
    queue: Queue, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spool))
    queue.stats()
    before = open_files()
    with queue.bulk() as bulk:
        for number in range(100):
            bulk.add(number, "work", {"text": "x" * 1000}, {})
        assert [name for name in open_files() if name.startswith(str(spool))]
    assert queue.count() == 0
    assert not open_files() - before
    assert os.listdir(spool) == []


def test_error_while_storing_takes_the_chunk_back(
    queue: Queue, insert_fewer_at_once: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    inserting = Spy(store_of(queue).insert_jobs)
    with queue.bulk() as bulk:
        for number in range(250):
            bulk.add(number, "work", {}, {})

        def stop_at(done: int) -> None:
            if done == 200:
                inserting.always = StoreUnavailable("disk I/O error")

        monkeypatch.setattr(store_of(queue), "insert_jobs", inserting)
        with pytest.raises(StoreUnavailable):
            bulk.store(progress=stop_at)
        assert queue.count() == 0
        inserting.always = None
        assert len(bulk.store()) == 250, "and it can be stored after all"
    assert queue.count() == 250


@both_engines
@pytest.mark.parametrize("chunk", [None, 1])
def test_job_added_after_a_store_that_failed_comes_after_the_others(queue: Queue, chunk: int | None) -> None:
    queue.enqueue("work", id="taken")
    with queue.bulk() as bulk:
        for number, id in enumerate(("first", "taken", "third"), 1):
            bulk.add(number, "work", {}, {"id": id})
        with pytest.raises(BulkRefused):
            bulk.store(chunk)
        queue.cancel("taken")
        queue.delete("taken")
        bulk.add(4, "work", {}, {"id": "fourth"})
        assert list(bulk.store()) == ["first", "taken", "third", "fourth"]
    assert queue.count() == 4


@pytest.mark.parametrize("got_through", [True, False])
@pytest.mark.parametrize("chunk", [None, 3])
def test_commit_in_doubt_is_settled_and_no_job_is_stored_twice(
    queue: Queue, monkeypatch: pytest.MonkeyPatch, got_through: bool, chunk: int | None
) -> None:
    """As a single enqueue does it: a row that did get through is known by its token."""
    store = store_of(queue)
    assert isinstance(store, SqliteStore)
    database, commit = store.database, store.database.commit
    commits: list[str] = []

    def doubtful(connection: sqlite3.Connection) -> None:
        commits.append("commit")
        if len(commits) == (1 if chunk is None else 2):
            if got_through:
                commit(connection)
            else:
                connection.rollback()
            raise CommitUncertain("the commit failed: disk I/O error")
        commit(connection)

    with queue.bulk() as bulk:
        for number in range(5):
            bulk.add(number, "work", {"number": number}, {})
        monkeypatch.setattr(database, "commit", doubtful)
        ids = list(bulk.store(chunk=chunk))
    assert ids == [job.id for job in reversed(queue.jobs())]
    assert queue.count() == 5


@pytest.mark.slow
def test_memory_stays_flat_however_many_there_are(queue: Queue) -> None:
    fill(queue, 100)
    peaks = []
    for jobs in (2000, 4000):
        tracemalloc.start()
        try:
            with queue.bulk() as bulk:
                for number in range(jobs):
                    bulk.add(number, "work", {"text": "x" * 200}, {})
                for _ in bulk.store():
                    pass
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    small, large = peaks
    assert large < 1.2 * small + 100_000, f"{small} bytes for 2,000 jobs, {large} for 4,000"
