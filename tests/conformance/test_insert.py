"""insert_jobs: what is stored, in which state, and one verdict a job."""

from __future__ import annotations

import json
from typing import Any

import pytest

from holdfast.core.clock import SECOND, microseconds, to_datetime
from holdfast.core.job import Status
from holdfast.core.settings import Depth
from holdfast.errors import CommitUncertain, DuplicateJob, QueueFull
from holdfast.store.protocol import Store
from holdfast.store.records import JobFilter, NewJob, Verdict
from holdfast.testing import MovableClock
from tests.conformance.steps import claim_one, everything, finish, insert, job, new_job, run, status


def insert_one(store: Store, new: NewJob) -> Verdict:
    [verdict] = store.insert_jobs([new])
    return verdict


def test_inserted_job_is_pending_with_what_was_given(store: Store, clock: MovableClock) -> None:
    insert(store, "a", type="email", payload='{"to": "x@y.z"}', priority=7, max_attempts=5, timeout=2.5)
    found = job(store, "a")
    assert (found.type, found.payload, found.status) == ("email", {"to": "x@y.z"}, Status.PENDING)
    assert (found.priority, found.max_attempts, found.timeout) == (7, 5, 2.5)
    assert (found.attempts, found.version, found.errors) == (0, 0, ())
    assert found.created_at == found.updated_at == clock.now


def test_what_is_left_open_stays_open(store: Store) -> None:
    insert(store, "a")
    found = job(store, "a")
    assert (found.max_attempts, found.timeout, found.run_at, found.key, found.parent_id) == (None,) * 5
    assert found.priority == 0


def test_verdict_tells_what_was_stored(store: Store) -> None:
    now = store.now()
    assert insert_one(store, new_job("a")) == Verdict(id="a", inserted=True, created_at=now)
    assert insert_one(store, new_job("b", delay=2.0)) == Verdict(
        id="b", inserted=True, status=Status.SCHEDULED, created_at=now, run_at=now + 2 * SECOND
    )


def test_future_run_at_is_scheduled_and_kept(store: Store) -> None:
    later = store.now() + 60 * SECOND
    insert(store, "a", run_at=later)
    assert status(store, "a") is Status.SCHEDULED
    assert job(store, "a").run_at == to_datetime(later)


def test_delay_counts_on_the_clock_of_the_store(store: Store) -> None:
    insert(store, "a", delay=90.5)
    assert status(store, "a") is Status.SCHEDULED
    assert job(store, "a").run_at == to_datetime(store.now() + microseconds(90.5))


@pytest.mark.parametrize("past", [0, 1, 3600])
def test_run_at_that_has_come_is_pending_and_kept(store: Store, past: int) -> None:
    when = store.now() - past * SECOND
    insert(store, "a", run_at=when)
    assert status(store, "a") is Status.PENDING
    assert job(store, "a").run_at == to_datetime(when)


def test_delay_of_zero_is_pending(store: Store) -> None:
    insert(store, "a", delay=0.0)
    assert status(store, "a") is Status.PENDING


def test_scheduled_job_is_not_waiting_for_a_retry(store: Store) -> None:
    insert(store, "a", delay=60)
    assert job(store, "a").next_retry_at is None


@pytest.mark.parametrize(
    "payload",
    [
        '{"big": 123456789012345678901234567890, "small": -9007199254740993}',
        '{"text": "žluťoučký 😀 \u2028 \x7f", "key with space": null}',
        '{"nested": [[[[{}]]]], "quote": "\\" \\\\ \'; DROP TABLE holdfast_jobs"}',
        '{"float": 0.1, "exponent": 1e308}',
    ],
)
def test_payload_is_kept_exactly(store: Store, payload: str) -> None:
    insert(store, "a", payload=payload)
    assert job(store, "a").payload == json.loads(payload)
    assert claim_one(store).payload == payload


def test_taken_id_is_refused_and_the_first_job_kept(store: Store) -> None:
    insert(store, "a", payload='{"n": 1}')
    before = everything(store)
    verdict = insert_one(store, new_job("a", payload='{"n": 2}'))
    assert not verdict.inserted
    assert isinstance(verdict.error, DuplicateJob)
    assert verdict.error.job_id == "a"
    assert everything(store) == before


def test_id_of_a_finished_job_stays_taken(store: Store) -> None:
    finish(store, run(store, "a"))
    assert isinstance(insert_one(store, new_job("a")).error, DuplicateJob)


def test_id_is_taken_whatever_the_type(store: Store) -> None:
    insert(store, "a", type="email")
    assert isinstance(insert_one(store, new_job("a", type="crawl")).error, DuplicateJob)


def test_deleted_id_is_free_again(store: Store) -> None:
    finish(store, run(store, "a"))
    store.delete_job("a")
    insert(store, "a")
    assert (job(store, "a").attempts, job(store, "a").version) == (0, 0)


def test_one_refused_job_does_not_touch_the_others(store: Store) -> None:
    insert(store, "b")
    verdicts = store.insert_jobs([new_job("a"), new_job("b"), new_job("c")])
    assert [verdict.inserted for verdict in verdicts] == [True, False, True]
    assert [found.id for found in everything(store)] == ["b", "a", "c"]


def test_the_same_id_twice_in_a_batch_is_inserted_once(store: Store) -> None:
    first, second = store.insert_jobs([new_job("a", payload='{"n": 1}'), new_job("a", payload='{"n": 2}')])
    assert first.inserted
    assert isinstance(second.error, DuplicateJob)
    assert job(store, "a").payload == {"n": 1}


def test_batch_keeps_its_order(store: Store) -> None:
    ids = [f"job-{n}" for n in range(500)]
    insert(store, *reversed(ids))
    assert [found.id for found in everything(store)] == list(reversed(ids))


def test_nothing_to_insert_is_no_error(store: Store) -> None:
    assert store.insert_jobs([]) == []


def test_enqueue_whose_commit_was_in_doubt_finds_its_own_row(store: Store) -> None:
    again = new_job("a", token="mine")
    assert insert_one(store, again).inserted
    verdict = insert_one(store, again)
    assert verdict.inserted
    assert verdict.error is None
    assert len(everything(store)) == 1


def test_enqueue_in_doubt_is_ours_even_when_the_job_is_done(store: Store) -> None:
    again = new_job("a", token="mine", key="k")
    assert insert_one(store, again).inserted
    finish(store, claim_one(store))
    assert insert_one(store, again).inserted
    assert status(store, "a") is Status.COMPLETED


def test_batch_in_doubt_is_ours_as_a_whole(store: Store) -> None:
    batch = [new_job("a", token="one"), new_job("b", token="two"), new_job("c", token="three", key="k")]
    store.insert_jobs(batch)
    assert all(verdict.inserted for verdict in store.insert_jobs(batch))
    assert len(everything(store)) == 3


def test_token_of_another_enqueue_does_not_make_the_row_ours(store: Store) -> None:
    insert_one(store, new_job("a", token="theirs"))
    assert isinstance(insert_one(store, new_job("a", token="mine")).error, DuplicateJob)


def test_holder_of_a_key_with_another_id_is_not_ours_though_neither_has_a_token(store: Store) -> None:
    assert insert_one(store, new_job("a", token="", has_new_id=True, key="k")).inserted
    verdict = insert_one(store, new_job("b", token="", has_new_id=True, key="k"))
    assert (verdict.id, verdict.inserted, verdict.error) == ("a", False, None)


def seq_of(store: Store, id: str) -> int:
    job = store.get_job(id)
    assert job is not None
    [placed], _ = store.list_placed(JobFilter(limit=1))
    assert placed.job.id == id
    return placed.place.seq


def test_number_of_a_deleted_job_is_never_given_to_another(store: Store) -> None:
    for count in (1, 3):  # one by one, and many at once
        insert(store, *(f"{count}-{n}" for n in range(count)))
        last = seq_of(store, f"{count}-{count - 1}")
        for _ in range(count):
            finish(store, claim_one(store))
        for n in reversed(range(count)):
            store.delete_job(f"{count}-{n}")
        assert everything(store) == []
        store.insert_jobs([new_job(f"{count}-next-{n}") for n in range(count)])
        assert seq_of(store, f"{count}-next-{count - 1}") >= last + count
        for n in range(count):
            finish(store, claim_one(store))
            store.delete_job(f"{count}-next-{n}")


def test_taken_ids_leave_no_number_to_be_given_twice(store: Store) -> None:
    insert(store, "first", "last")
    last = seq_of(store, "last")
    for _ in range(2):
        finish(store, claim_one(store))
    store.delete_job("last")
    store.insert_jobs([new_job("first"), new_job("again"), new_job("more")])
    assert seq_of(store, "more") >= last + 2


def test_commit_in_doubt_that_got_through_is_acknowledged(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit_in_doubt(store, monkeypatch, got_through=True)
    assert insert_one(store, new_job("a")).inserted
    assert [found.id for found in everything(store)] == ["a"]


def test_commit_in_doubt_that_was_lost_is_made_again(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    commit_in_doubt(store, monkeypatch, got_through=False)
    assert insert_one(store, new_job("a")).inserted
    assert [found.id for found in everything(store)] == ["a"]


def commit_in_doubt(store: Store, monkeypatch: pytest.MonkeyPatch, *, got_through: bool) -> None:
    """Make the next commit end in CommitUncertain, with or without its effect."""
    database: Any = store.database
    commit = database.commit

    def doubtful(connection: object) -> None:
        monkeypatch.setattr(database, "commit", commit)
        if got_through:
            commit(connection)
        else:
            connection.rollback()  # type: ignore[attr-defined]
        raise CommitUncertain

    monkeypatch.setattr(database, "commit", doubtful)


# All or none


def test_atomic_batch_with_one_refusal_inserts_nothing(store: Store) -> None:
    insert(store, "b")
    before = everything(store)
    verdicts = store.insert_jobs([new_job("a"), new_job("b"), new_job("c", key="k")], atomic=True)
    assert isinstance(verdicts[1].error, DuplicateJob)
    assert [verdict.error for verdict in (verdicts[0], verdicts[2])] == [None, None]
    assert everything(store) == before


def test_atomic_batch_without_a_refusal_is_inserted(store: Store) -> None:
    verdicts = store.insert_jobs([new_job("a"), new_job("b", key="k"), new_job("c")], atomic=True)
    assert all(verdict.inserted for verdict in verdicts)
    assert [found.id for found in everything(store)] == ["a", "b", "c"]


def test_job_found_again_by_its_key_is_no_refusal(store: Store) -> None:
    insert(store, "a", key="k")
    verdicts = store.insert_jobs([new_job("b", key="k"), new_job("c")], atomic=True)
    assert [(verdict.id, verdict.inserted) for verdict in verdicts] == [("a", False), ("c", True)]
    assert [found.id for found in everything(store)] == ["a", "c"]


def test_atomic_batch_that_does_not_fit_inserts_nothing(store: Store) -> None:
    verdicts = store.insert_jobs([new_job(id, max_depth=2) for id in "abc"], atomic=True)
    assert isinstance(verdicts[2].error, QueueFull)
    assert everything(store) == []


# max_depth


def test_depth_beyond_max_depth_is_refused(store: Store) -> None:
    insert(store, "a", "b", max_depth=2)
    verdict = insert_one(store, new_job("c", max_depth=2))
    assert isinstance(verdict.error, QueueFull)
    assert (verdict.error.type, verdict.error.max_depth) == ("email", 2)
    assert store.get_job("c") is None


def test_depth_counts_scheduled_and_pending_but_not_running_and_finished(store: Store) -> None:
    finish(store, run(store, "finished"))
    run(store, "running")
    insert(store, "pending", max_depth=2)
    insert(store, "scheduled", delay=60, max_depth=2)
    assert isinstance(insert_one(store, new_job("more", max_depth=2)).error, QueueFull)


def test_depth_is_counted_by_type(store: Store) -> None:
    insert(store, "a", type="email", max_depth=1)
    insert(store, "b", type="crawl", max_depth=1)


def refused(store: Store, *types: str, depth: Depth) -> list[bool]:
    """Which of new jobs of these types are refused, in one batch."""
    jobs = [new_job(f"{type}-{store.now()}-{n}", type=type, max_depth=depth) for n, type in enumerate(types)]
    return [verdict.error is not None for verdict in store.insert_jobs(jobs)]


def test_depth_that_lanes_inherit_is_one(store: Store) -> None:
    shared = Depth(3, "mail", ("mail:own",))
    insert(store, "a", type="mail")
    insert(store, "b", type="mail:eu", delay=60)
    insert(store, "c", "d", type="mail:own")
    insert(store, "e", type="mailer")
    insert(store, "f", type="mai")
    assert refused(store, "mail:us", "mail", "mail:eu", depth=shared) == [False, True, True]
    claim_one(store, "mail")
    assert refused(store, "mail", "mail:eu", depth=shared) == [False, True]


def test_depth_of_the_whole_queue_counts_all_types_that_have_none_of_their_own(store: Store) -> None:
    shared = Depth(3, "", ("mail", "crawl:big"))
    insert(store, "a", "b", "c", type="mail")
    insert(store, "d", type="mail:eu")
    insert(store, "e", type="crawl:big")
    insert(store, "f", type="crawl")
    assert refused(store, "report", "crawl", "report", depth=shared) == [False, False, True]
    [verdict] = store.insert_jobs([new_job("more", type="report", max_depth=shared)])
    assert "the queue has 3 waiting jobs" in str(verdict.error)


def test_depth_of_a_lane_is_its_own(store: Store) -> None:
    insert(store, "a", "b", type="mail")
    insert(store, "c", type="mail:eu")
    assert refused(store, "mail:eu", "mail:eu", depth=Depth(2, "mail:eu")) == [False, True]


def test_batch_is_taken_up_to_max_depth(store: Store) -> None:
    verdicts = store.insert_jobs([new_job(id, max_depth=2) for id in "abcd"])
    assert [verdict.inserted for verdict in verdicts] == [True, True, False, False]


def test_room_is_made_by_a_claim(store: Store) -> None:
    insert(store, "a", max_depth=1)
    claim_one(store)
    insert(store, "b", max_depth=1)


def test_full_queue_still_finds_the_job_of_a_key(store: Store) -> None:
    insert(store, "a", key="k", max_depth=1)
    verdict = insert_one(store, new_job("b", key="k", max_depth=1))
    assert (verdict.id, verdict.inserted, verdict.error) == ("a", False, None)


def test_full_queue_does_not_find_the_job_of_a_key_that_has_run_out(
    store: Store, clock: MovableClock
) -> None:
    finish(store, run(store, "old", key="k", key_for=10))
    clock.advance(10)
    insert(store, "waiting")
    verdict = insert_one(store, new_job("new", key="k", max_depth=1))
    assert isinstance(verdict.error, QueueFull)


def test_enqueue_in_doubt_that_took_the_last_place_is_ours(store: Store) -> None:
    again = new_job("a", token="mine", max_depth=1)
    assert insert_one(store, again).inserted
    verdict = insert_one(store, again)
    assert verdict.inserted
    assert verdict.error is None
