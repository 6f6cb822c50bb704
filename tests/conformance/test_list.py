"""Reading: get_job, list_jobs and count_ahead."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.core.filter import SORTS
from holdfast.core.job import RETRYING, Status
from holdfast.core.lifecycle import Errored
from holdfast.store.protocol import Store
from holdfast.store.records import Claim, GroupActivity, JobFilter, JobsAhead, Place
from tests.conformance.steps import claim, claim_one, finish, finished, insert, job, run


@pytest.fixture
def six(store: Store) -> Store:
    """A store with a job in every state, named after it, and one that waits for a retry."""
    finished(store, "completed")
    finished(store, "failed", Errored("boom", permanent=True))
    insert(store, "cancelled")
    store.cancel_job("cancelled")
    finish(store, run(store, "retrying"), Errored("boom"))
    run(store, "processing")
    insert(store, "pending")
    insert(store, "scheduled", delay=60)
    return store


def listed(store: Store, **filters: object) -> list[str]:
    return [found.id for found in store.list_jobs(JobFilter(**filters))]  # type: ignore[arg-type]


def test_unknown_job_is_none(store: Store) -> None:
    assert store.get_job("nobody") is None


def test_listed_job_is_the_job_without_its_history(six: Store) -> None:
    for found in six.list_jobs(JobFilter()):
        whole = job(six, found.id)
        assert found.errors == ()
        assert (found.id, found.status, found.payload) == (whole.id, whole.status, whole.payload)
        assert (found.error, found.attempts, found.version) == (whole.error, whole.attempts, whole.version)


def test_newest_come_first(store: Store) -> None:
    insert(store, "b", "a", "c")
    assert listed(store) == ["c", "a", "b"]


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.SCHEDULED])
def test_filter_by_one_state(six: Store, status: Status) -> None:
    assert listed(six, statuses=(status,)) == [status.value]


def test_retrying_is_scheduled_after_a_failed_attempt(six: Store) -> None:
    assert listed(six, statuses=(RETRYING,)) == ["retrying"]
    assert listed(six, statuses=(Status.SCHEDULED,)) == ["scheduled", "retrying"]


def test_filter_by_several_states(six: Store) -> None:
    assert listed(six, statuses=(Status.FAILED, RETRYING, Status.PENDING)) == [
        "pending",
        "retrying",
        "failed",
    ]


def test_filter_by_type(store: Store) -> None:
    insert(store, "a", type="email")
    insert(store, "b", type="crawl")
    insert(store, "c", type="email:fast")
    assert listed(store, type="email") == ["a"]
    assert listed(store, type="email", statuses=(Status.FAILED,)) == []


def test_filter_by_parent(store: Store) -> None:
    insert(store, "a", "b", parent_id="parent")
    insert(store, "c", parent_id="another")
    insert(store, "d")
    assert listed(store, parent_id="parent") == ["b", "a"]


def test_filter_by_group(store: Store) -> None:
    insert(store, "a", "b", group="customer:1")
    insert(store, "c", group="customer:1", type="crawl")
    insert(store, "d", group="customer:2")
    insert(store, "e")
    assert listed(store, group="customer:1") == ["c", "b", "a"]
    assert listed(store, group="customer:1", type="email", ascending=True) == ["a", "b"]
    assert listed(store, group="customer:1", statuses=(Status.FAILED,)) == []
    assert listed(store, group="customer:3") == []


def test_busiest_groups_come_first(store: Store) -> None:
    insert(store, *(f"a{n}" for n in range(5)), group="a")
    insert(store, *(f"b{n}" for n in range(3)), group="b")
    insert(store, *(f"c{n}" for n in range(4)), group="c", type="crawl", priority=3)
    insert(store, "lone")
    insert(store, "later", group="a", delay=60)
    finish(store, run(store, "done", group="d", priority=9))
    claim(store, limit=2)
    claim(store, "crawl", limit=1)
    assert store.busiest_groups(2) == [
        GroupActivity(type="email", group="a", waiting=3, running=2),
        GroupActivity(type="crawl", group="c", waiting=3, running=1),
    ]
    assert [found.group for found in store.busiest_groups(10)] == ["a", "c", "b"]


def test_limit_and_offset_make_pages(store: Store) -> None:
    insert(store, *"abcde")
    assert listed(store, limit=2) == ["e", "d"]
    assert listed(store, limit=2, offset=2) == ["c", "b"]
    assert listed(store, limit=2, offset=4) == ["a"]
    assert listed(store, limit=2, offset=6) == []


def test_before_goes_on_after_a_job(store: Store) -> None:
    insert(store, *"abcde")
    claims: dict[str, Claim] = {claimed.id: claimed for claimed in claim(store)}
    assert listed(store, after=Place(0, claims["c"].seq)) == ["b", "a"]
    insert(store, "f")
    assert listed(store, after=Place(0, claims["c"].seq), limit=1) == ["b"]


def test_line_counts_the_pending_jobs_of_the_type_that_go_first(store: Store) -> None:
    insert(store, "low", priority=-1)
    insert(store, "a", "b", "mine", "c")
    insert(store, "high", priority=1)
    insert(store, "other", type="crawl", priority=9)
    insert(store, "later", delay=60)
    assert store.count_ahead("mine", 10) == JobsAhead(3, False)
    assert store.count_ahead("high", 10) == JobsAhead(0, False)
    assert store.count_ahead("low", 10) == JobsAhead(5, False)


def test_running_jobs_are_not_in_line(store: Store) -> None:
    insert(store, "a", "b", "mine")
    claim_one(store)
    assert store.count_ahead("mine", 10) == JobsAhead(1, False)


def test_line_is_counted_to_a_cap(store: Store) -> None:
    insert(store, *"abcde", "mine")
    assert store.count_ahead("mine", 4) == JobsAhead(4, True)
    assert store.count_ahead("mine", 5) == JobsAhead(5, False)


def test_unknown_job_has_no_line(store: Store) -> None:
    insert(store, "a")
    assert store.count_ahead("nobody", 10) == JobsAhead(0, False)


def test_listing_sees_what_another_handle_committed(store: Store, other: Store) -> None:
    insert(other, "a")
    assert listed(store) == ["a"]


@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("sort", SORTS)
def test_pages_of_a_group_in_every_order_are_those_of_its_jobs(
    store: Store, sort: str, ascending: bool
) -> None:
    for number in range(30):
        options = {"group": f"g{number % 3}", "type": ("email", "crawl")[number % 2], "priority": number % 4}
        insert(store, f"job-{number}", **options)
    for number, claimed in enumerate(claim(store, "email", "crawl", limit=20)):
        finish(store, claimed, Errored("boom", permanent=True) if number % 2 else None)
    narrower: list[dict[str, Any]] = [{}, {"type": "email"}, {"statuses": (Status.FAILED, Status.PENDING)}]
    for more in narrower:
        asked = JobFilter(sort=sort, ascending=ascending, limit=1000, **more)
        expected = [found.id for found in store.list_jobs(asked) if found.group == "g1"]
        assert expected
        in_group = replace(asked, group="g1")
        assert store.count_matching(in_group, 100) == len(expected)
        found: list[str] = []
        after: Place | None = None
        while True:
            placed, after = store.list_placed(replace(in_group, limit=2, after=after))
            found += [each.job.id for each in placed]
            if after is None:
                break
        assert found == expected
