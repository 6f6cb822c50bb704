"""list_error_groups: failed jobs by type and error, counted as they come and go."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from holdfast.core.error_group import error_group
from holdfast.core.job import Status
from holdfast.core.lifecycle import Completed, Errored, LeaseEnded, Outcome, Stopped
from holdfast.store.protocol import Store
from holdfast.store.records import JobFilter
from holdfast.testing import MovableClock
from tests.conformance.steps import (
    BACK_OFF,
    LEASE,
    claim,
    ending,
    finish,
    finished,
    insert,
    reap,
    rolled_back,
    run,
)


def fail(store: Store, id: str, error: str = "boom", **options: str) -> None:
    finished(store, id, Errored(error, permanent=True), **options)


def groups(store: Store) -> list[tuple[str, str, int]]:
    return [(group.type, group.error, group.jobs) for group in store.list_error_groups(100)]


def test_failed_jobs_are_grouped_by_type_and_error_the_largest_first(store: Store) -> None:
    for n in range(3):
        fail(store, f"late-{n}", f"Timeout: after {n} s\nTraceback of {n}")
    fail(store, "crawl", "Timeout: after 7 s", type="crawl")
    fail(store, "a", "KeyError: 'a'")
    fail(store, "again", "KeyError: 'a'")
    assert groups(store) == [
        ("email", "Timeout: after # s", 3),
        ("email", "KeyError: 'a'", 2),
        ("crawl", "Timeout: after # s", 1),
    ]
    assert len(store.list_error_groups(2)) == 2
    assert store.list_error_groups(0) == store.list_error_groups(-1) == []


def test_group_tells_when_it_last_happened_and_the_newer_one_goes_first(
    store: Store, clock: MovableClock
) -> None:
    fail(store, "a", "old")
    clock.advance(5)
    fail(store, "b", "new")
    assert [(g.error, g.last_at) for g in store.list_error_groups(9)] == [
        ("new", clock.now),
        ("old", store.list_error_groups(9)[1].last_at),
    ]
    clock.advance(5)
    fail(store, "c", "old")
    assert store.list_error_groups(1)[0].last_at == clock.now


def test_attempt_that_will_be_retried_is_in_no_group(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a", max_attempts=2)
    finish(store, claimed, Errored("boom"))
    assert groups(store) == []
    clock.advance(BACK_OFF)
    store.promote_jobs(10)
    finish(store, claim(store)[0], Errored("boom"))
    assert groups(store) == [("email", "boom", 1)]


def test_retried_and_deleted_and_pruned_jobs_leave_their_group(store: Store, clock: MovableClock) -> None:
    for id in "abcd":
        fail(store, id)
    store.retry_job("a", None)
    assert groups(store) == [("email", "boom", 3)]
    store.delete_job("b")
    assert groups(store) == [("email", "boom", 2)]
    clock.advance(1)
    store.prune_jobs(finished_before=store.now(), statuses=(Status.FAILED,), limit=1)
    assert groups(store) == [("email", "boom", 1)]
    store.retry_failed_jobs(None, after=0, limit=10)
    assert groups(store) == []


def test_job_that_fails_again_goes_to_the_group_of_its_new_error(store: Store) -> None:
    fail(store, "a", "first")
    store.retry_job("a", None)
    finish(store, claim(store)[0], Errored("second", permanent=True))
    assert groups(store) == [("email", "second", 1)]
    assert store.list_jobs(JobFilter(error="first")) == []
    assert [job.id for job in store.list_jobs(JobFilter(error="second"))] == ["a"]


def test_job_that_was_cancelled_instead_is_in_no_group(store: Store, connection: Any) -> None:
    claimed = run(store, "a")
    store.cancel_job("a")
    assert finish(store, claimed, Errored("boom", permanent=True)) == "cancelled"
    insert(store, "b")
    store.cancel_job("b")
    assert groups(store) == []
    assert store.list_jobs(JobFilter(error="boom")) == []
    assert connection.execute("SELECT DISTINCT error_group FROM holdfast_jobs").fetchall() == [(None,)]


def test_job_whose_worker_died_too_often_is_grouped_by_that(store: Store, clock: MovableClock) -> None:
    run(store, "a", worker="w-12", max_attempts=1)
    clock.advance(LEASE + 1)
    assert reap(store) == {"a": "failed"}
    assert groups(store) == [("email", "WorkerLost: w-#", 1)]


def test_late_outcome_is_not_counted(store: Store, clock: MovableClock) -> None:
    claimed = run(store, "a", max_attempts=1)
    clock.advance(LEASE + 1)
    reap(store)
    assert finish(store, claimed, Errored("late", permanent=True)) is None
    assert groups(store) == [("email", "WorkerLost: worker", 1)]


def test_what_is_rolled_back_was_not_counted(store: Store) -> None:
    fail(store, "a")
    with rolled_back(store):
        fail(store, "b")
        store.retry_job("a", None)
    assert groups(store) == [("email", "boom", 1)]


def test_batch_of_which_one_is_refused_counts_the_others_once(store: Store) -> None:
    insert(store, *"abc")
    claims = claim(store)
    finish(store, claims[1])
    store.finish_jobs([ending(claimed, Errored("boom", permanent=True)) for claimed in claims])
    assert groups(store) == [("email", "boom", 2)]


def test_failure_without_a_message_has_a_group_too(store: Store) -> None:
    fail(store, "a", "")
    fail(store, "b", "\n \n")
    assert groups(store) == [("email", "(no message)", 2)]
    assert [job.id for job in store.list_jobs(JobFilter(error="(no message)"))] == ["b", "a"]


def test_error_filter_finds_failed_jobs_of_exactly_that_key(store: Store) -> None:
    fail(store, "a", "boom 1")
    fail(store, "b", "boom 2")
    fail(store, "c", "boom 3 times")
    finish(store, run(store, "retrying"), Errored("boom 4"))
    finished(store, "done")
    for error, ids in (("boom #", ["b", "a"]), ("boom", []), ("BOOM #", []), ("boom 1", []), ("", [])):
        for statuses in ((), ("failed",), ("failed", "pending")):
            filter = JobFilter(error=error, statuses=statuses)
            assert [job.id for job in store.list_jobs(filter)] == ids
            assert store.count_matching(filter, 100) == len(ids)
        assert store.list_jobs(JobFilter(error=error, statuses=("completed", "retrying"))) == []
        assert store.count_matching(JobFilter(error=error, statuses=("completed",)), 9) == 0


def test_counts_are_those_of_the_failed_jobs_after_anything(store: Store, clock: MovableClock) -> None:
    chance = random.Random(5)
    errors = ("boom 1", "boom 22", "KeyError: 'x'", "")
    most = 0
    for number in range(150):
        insert(
            store, f"job-{number}", type=chance.choice(("email", "crawl")), max_attempts=chance.choice((1, 2))
        )
        for claimed in claim(store, "email", "crawl", limit=chance.randrange(3)):
            error = chance.choice(errors)
            ends: list[Outcome] = [
                Errored(error), Errored(error, permanent=True), Completed(), LeaseEnded(error), Stopped()
            ]  # fmt: skip
            outcome = chance.choice(ends)
            if chance.random() < 0.9:
                finish(store, claimed, outcome)
            elif chance.random() < 0.5:
                store.cancel_job(claimed.id)
        failed = store.list_jobs(JobFilter(statuses=("failed",), limit=1000))
        if failed and chance.random() < 0.3:
            job_id = chance.choice(failed).id
            chance.choice((lambda id: store.retry_job(id, None), store.delete_job))(job_id)
        if number % 20 == 0:
            clock.advance(LEASE)
            reap(store)
            store.promote_jobs(5)
            store.prune_jobs(finished_before=store.now(), statuses=(Status.FAILED,), limit=2)
        if number % 45 == 44:
            store.retry_failed_jobs(chance.choice((None, "crawl")), after=0, limit=2)
        expected = Counter(
            (job.type, error_group(job.error or ""))
            for job in store.list_jobs(JobFilter(limit=1000))
            if job.status == "failed"
        )
        assert {(type, error): jobs for type, error, jobs in groups(store)} == expected
        most = max(most, len(expected))
    assert most >= 4
