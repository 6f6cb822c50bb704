"""Pages of jobs: where each ends and the next begins, what a brief one leaves unread; and jobs by id."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.job import RETRYING, Job, Status
from holdfast.core.lifecycle import Completed, Errored
from holdfast.store.protocol import Store
from holdfast.store.records import JobFilter, Place
from holdfast.testing import MovableClock
from tests.conformance.steps import claim, claim_one, ending, finish, finished, insert, job, run


def page(store: Store, **filters: Any) -> tuple[list[str], Place | None]:
    found, following = store.list_placed(JobFilter(**filters))
    return [placed.job.id for placed in found], following


def walk(store: Store, **filters: Any) -> list[list[str]]:
    """All pages of a filter, one after another."""
    ids, after = page(store, **filters)
    pages = [ids]
    while after is not None:
        assert len(pages) < 100, "the pages do not end"
        ids, after = page(store, after=after, **filters)
        pages.append(ids)
    return pages


def bare(found: Job) -> dict[str, Any]:
    """A job's fields but payload, result and history."""
    return {
        name: getattr(found, name)
        for name in found.__struct_fields__
        if name not in ("payload", "result", "errors")
    }


# Pages


def test_pages_one_after_another_hold_every_job_once(store: Store) -> None:
    insert(store, *"abcdefg")
    assert walk(store, limit=3) == [["g", "f", "e"], ["d", "c", "b"], ["a"]]


@pytest.mark.parametrize("jobs", [0, 1, 3])
def test_page_that_holds_all_has_none_after_it(store: Store, jobs: int) -> None:
    insert(store, *"abc"[:jobs])
    assert page(store, limit=3) == (list(reversed("abc"[:jobs])), None)


def test_last_page_may_be_full_and_is_still_the_last(store: Store) -> None:
    insert(store, *"abcdef")
    assert walk(store, limit=3) == [["f", "e", "d"], ["c", "b", "a"]]


def test_next_page_begins_after_the_last_job_shown(store: Store) -> None:
    insert(store, *"abcde")
    seqs = {claimed.id: claimed.seq for claimed in claim(store)}
    assert page(store, limit=2) == (["e", "d"], Place(0, seqs["d"]))


@pytest.mark.parametrize(
    ("filters", "pages"),
    [
        ({"type": "email"}, [["f", "d"], ["b"]]),
        ({"statuses": (Status.FAILED,)}, [["e", "d"], ["b", "a"]]),
        ({"statuses": (Status.FAILED,), "type": "email"}, [["d", "b"]]),
        ({"statuses": (RETRYING, Status.PENDING)}, [["f", "c"]]),
        ({"parent_id": "parent"}, [["f", "e"], ["c", "b"], ["a"]]),
    ],
)
def test_pages_of_a_filter_hold_what_it_finds(
    store: Store, filters: dict[str, Any], pages: list[list[str]]
) -> None:
    for number, id in enumerate("abcde"):
        claimed = run(
            store, id, type="email" if number % 2 else "crawl", parent_id="parent" if id != "d" else None
        )
        finish(store, claimed, Errored("boom", permanent=id != "c"))
    insert(store, "f", parent_id="parent")
    assert walk(store, limit=2, **filters) == pages


def test_page_by_offset_says_where_to_go_on(store: Store) -> None:
    insert(store, *"abcdef")
    ids, after = page(store, limit=2, offset=1)
    assert ids == ["e", "d"]
    assert after is not None
    assert page(store, limit=2, after=after) == (["c", "b"], Place(0, after.seq - 2))


def test_no_job_that_stays_is_missed_or_shown_twice_while_others_come_and_go(store: Store) -> None:
    insert(store, *"abcdef")
    first, place = page(store, limit=2)
    finish(store, claim_one(store))
    store.delete_job("a")
    store.cancel_job("e")
    store.cancel_job("d")
    store.delete_job("d")
    insert(store, "g", "h", priority=9)
    rest, after = page(store, limit=2, after=place)
    assert (first, rest, after) == (["f", "e"], ["c", "b"], None)


def test_place_of_a_deleted_job_is_still_a_place(store: Store) -> None:
    insert(store, *"abcd")
    _, after = page(store, limit=2)
    store.cancel_job("c")
    store.delete_job("c")
    assert page(store, limit=2, after=after) == (["b", "a"], None)


def test_running_jobs_are_paged_newest_first_though_their_leases_end_otherwise(
    store: Store, clock: MovableClock
) -> None:
    insert(store, *"abcde")
    leases = {"a": 50.0, "b": 10.0, "c": 40.0, "d": 20.0, "e": 30.0}
    for id in "abcde":
        assert claim_one(store, lease=leases[id]).id == id
    insert(store, "pending")
    insert(store, "other", type="crawl")
    claim(store, "crawl")
    running = (Status.PROCESSING,)
    assert walk(store, limit=2, statuses=running, type="email") == [["e", "d"], ["c", "b"], ["a"]]
    assert walk(store, limit=4, statuses=running) == [["other", "e", "d", "c"], ["b", "a"]]
    assert page(store, limit=2, statuses=running, parent_id="nobody") == ([], None)


def test_page_of_nothing_is_empty(store: Store) -> None:
    insert(store, *"abc")
    assert page(store, limit=0) == ([], None)
    assert store.list_jobs(JobFilter(limit=0)) == []


def test_list_is_the_page_without_its_end(store: Store) -> None:
    insert(store, *"abcde")
    for filter in (JobFilter(limit=2), JobFilter(limit=2, offset=3), JobFilter(limit=9, brief=True)):
        assert store.list_jobs(filter) == [placed.job for placed in store.list_placed(filter)[0]]


# Brief


def test_brief_page_has_everything_but_payload_result_and_history(store: Store) -> None:
    finished(store, "done", Completed('{"sent": true}'), payload='{"to": "a@b.c"}', key="k", key_for=60)
    finish(store, run(store, "retrying", priority=3, timeout=5), Errored("boom"))
    run(store, "running", parent_id="done", max_attempts=7)
    insert(store, "later", delay=60)
    placed, following = store.list_placed(JobFilter(brief=True))
    jobs = [found.job for found in placed]
    assert [found.id for found in jobs] == ["later", "running", "retrying", "done"]
    assert following is None
    for found in jobs:
        assert (found.payload, found.result, found.errors) == ({}, None, ())
        assert bare(found) == bare(job(store, found.id))


def test_brief_page_does_not_look_at_payloads_and_results(store: Store, connection: Any) -> None:
    """They are made unreadable, so that whoever reads them fails."""
    finished(store, "a")
    insert(store, "b")
    connection.execute("UPDATE holdfast_jobs SET payload = 'no JSON', result = 'none either'")
    assert page(store, brief=True, limit=1)[0] == ["b"]
    assert page(store, brief=True) == (["b", "a"], None)
    assert [found.id for found in store.get_jobs(["a"])] == ["a"]
    with pytest.raises(ValueError, match="Expecting value"):
        page(store)


# By id


def test_jobs_are_found_by_their_ids_brief_and_without_history(store: Store) -> None:
    finish(store, run(store, "a", payload='{"to": "a@b.c"}', key="k"), Errored("boom"))
    finished(store, "b", Completed('{"sent": true}'))
    insert(store, "c", "d", delay=60)
    found = {job.id: job for job in store.get_jobs(["d", "b", "a"])}
    assert found.keys() == {"a", "b", "d"}
    for id, one in found.items():
        assert (one.payload, one.result, one.errors) == ({}, None, ())
        assert bare(one) == bare(job(store, id))


def test_whole_jobs_are_found_with_their_histories_in_the_order_asked_for(store: Store) -> None:
    finish(store, run(store, "a", payload='{"to": "a@b.c"}', key="k"), Errored("boom"))
    finished(store, "b", Completed('{"sent": true}'))
    insert(store, "c", "d", delay=60)
    found = store.get_whole_jobs(["d", "nobody", "b", "a", "b"], 1000)
    assert found == [job(store, id) for id in ("d", "b", "a")]
    assert [len(one.errors) for one in found] == [0, 0, 1]
    assert store.get_whole_jobs([], 1000) == []


def test_large_jobs_end_a_read_of_whole_ones_early(store: Store) -> None:
    for id in ("a", "b", "c"):
        insert(store, id, payload='{"text": "%s"}' % ("x" * 100))
    assert [one.id for one in store.get_whole_jobs(["c", "a", "b"], 250)] == ["c", "a"]
    assert [one.id for one in store.get_whole_jobs(["nobody", "c", "a"], 10)] == ["c"]


def test_unknown_and_repeated_ids_are_no_error(store: Store) -> None:
    insert(store, "a", "b")
    assert store.get_jobs([]) == []
    assert store.get_jobs(["nobody"]) == []
    assert [found.id for found in store.get_jobs(["a", "nobody", "a"])] == ["a"]


def test_hundreds_of_ids_are_looked_up_at_once(store: Store) -> None:
    ids = [f"job-{n}" for n in range(500)]
    insert(store, *ids)
    assert {found.id for found in store.get_jobs(ids[:300])} == set(ids[:300])


@pytest.mark.parametrize("id", ["a' OR 1=1", '"', "ü", "%", "[1]", "\0", "\ud800"], ids=ascii)
def test_what_can_be_no_id_finds_nothing(store: Store, id: str) -> None:
    insert(store, "a")
    assert store.get_jobs([id]) == []


def test_jobs_by_id_are_as_another_handle_left_them(store: Store, other: Store, clock: MovableClock) -> None:
    insert(store, "a", "b")
    other.finish_jobs([ending(claim_one(other), Completed())])
    assert {found.id: found.status for found in store.get_jobs(["a", "b"])} == {
        "a": Status.COMPLETED,
        "b": Status.PENDING,
    }
