"""Searches: they read a bounded number of jobs, say how many, and their cursor leads to the rest."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.core.filter import MOST_SEARCHED, SORTS
from holdfast.core.lifecycle import Completed, Errored
from holdfast.errors import ConfigError
from holdfast.listing import pages as listing
from holdfast.store.protocol import Store
from tests.conformance.steps import claim, ending, finish, finished, insert, new_job, page, run, walk


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Searches that read 20 jobs, 6 at a time."""
    monkeypatch.setattr(listing, "MOST_SEARCHED", 20)
    monkeypatch.setattr(listing, "_READ", 6)
    monkeypatch.setattr(listing, "_PAYLOADS", 2)


def found(store: Store, search: str, **options: Any) -> list[str]:
    return [job.id for job in page(store, search=search, brief=True, **options).jobs]


def test_id_key_and_error_are_searched_whatever_the_case(store: Store) -> None:
    finished(store, "order-1", Errored("OSError: No Route", permanent=True))
    insert(store, "order-2", key="Invoice 7", type="crawl")
    finish(store, run(store, "other"), Errored("no route to host"))
    assert found(store, "ORDER") == ["order-2", "order-1"]
    assert found(store, "invoice") == ["order-2"]
    assert found(store, '"invoice 7" order') == ["order-2"]
    assert found(store, '"no route"') == ["other", "order-1"]
    assert found(store, "route order") == ["order-1"]
    assert found(store, "nothing") == []
    assert found(store, "%") == found(store, "_") == []


def test_field_of_the_payload_is_searched(store: Store) -> None:
    insert(store, "a", payload='{"user": {"id": 42}, "big": 12345678901234567890123}')
    insert(store, "b", payload='{"user": {"id": "42"}}')
    insert(store, "c", payload='{"user": {"id": 421}}')
    assert found(store, "payload.user.id:42") == ["b", "a"]
    assert found(store, "payload.user.id:42 a") == ["a"]
    assert found(store, "payload.big:12345678901234567890123") == ["a"]
    with pytest.raises(ConfigError, match="secret"):
        found(store, "payload.password:x")


def test_payloads_are_read_only_if_the_search_asks_for_them(store: Store, connection: Any) -> None:
    """They are made unreadable, so that whoever reads them fails."""
    insert(store, "a", "b", payload='{"n": 1}')
    connection.execute("UPDATE holdfast_jobs SET payload = 'no JSON' WHERE id = 'a'")
    assert found(store, "a") == ["a"]
    assert found(store, "b payload.n:1") == ["b"]
    with pytest.raises(ValueError, match="Expecting value"):
        found(store, "payload.n:1")


def test_matches_of_a_brief_search_carry_no_payloads(store: Store) -> None:
    finish(store, run(store, "a", payload='{"n": 1}'), Errored("boom"))
    [brief] = page(store, search="payload.n:1", brief=True).jobs
    [full] = page(store, search="payload.n:1").jobs
    assert (brief.payload, full.payload) == ({}, {"n": 1})
    assert brief.errors == full.errors == ()


def test_search_of_nothing_is_the_plain_list(store: Store) -> None:
    insert(store, "a", "b")
    for search in ("", "  ", '""'):
        one = page(store, search=search, limit=1)
        assert (one.examined, one.next is None) == (None, False)
        assert page(store, search=search, limit=1, cursor=one.next).previous is not None


def test_search_keeps_to_the_other_filters_and_their_order(store: Store) -> None:
    for number in range(6):
        finished(store, f"job-{number}", priority=number % 2)
    insert(store, "job-waits")
    assert found(store, "job", status="completed", sort="priority") == [
        f"job-{n}" for n in (5, 3, 1, 4, 2, 0)
    ]
    assert found(store, "job", sort="created", ascending=True, limit=2) == ["job-0", "job-1"]
    assert page(store, search="job", status="completed", type="nobody").examined == 0


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("ascending", [False, True])
@pytest.mark.parametrize("sort", SORTS)
@pytest.mark.parametrize("search", ["hit", "payload.hit:true", "hit payload.hit:true"])
def test_cursor_leads_through_all_jobs_and_finds_each_match_once(
    store: Store, sort: str, ascending: bool, search: str
) -> None:
    for number in range(55):
        is_hit = number % 9 == 4 or number in (0, 54)
        name, payload = (f"hit-{number}", '{"hit": true}') if is_hit else (f"job-{number}", "{}")
        insert(store, name, payload=payload, priority=number % 4)
    store.finish_jobs([ending(claimed, Completed()) for claimed in claim(store)])
    everything = [job.id for job in page(store, sort=sort, ascending=ascending, limit=100).jobs]
    for limit in (1, 2, 7, 100):
        matches: list[str] = []
        examined = 0
        cursor: str | None = None
        for _ in range(100):
            one = page(store, search=search, sort=sort, ascending=ascending, limit=limit, cursor=cursor)
            assert one.examined is not None
            assert one.previous is None
            assert one.examined <= 20
            assert len(one.jobs) <= limit
            assert one.examined == 20 or len(one.jobs) == limit or one.next is None
            matches += [job.id for job in one.jobs]
            examined += one.examined
            cursor = one.next
            if cursor is None:
                break
        assert cursor is None
        assert examined == 55
        assert matches == [id for id in everything if id.startswith("hit")]


def test_full_page_whose_last_match_is_the_last_job_is_the_last(store: Store) -> None:
    insert(store, "hit-1", "hit-2")
    one = page(store, search="hit", limit=2)
    assert (one.next, one.examined) == (None, 2)
    insert(store, "x", "hit-3")
    one = page(store, search="hit", limit=1)
    assert (one.next is None, one.examined) == (False, 1)


def test_search_stops_when_its_time_is_up_and_can_go_on(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each look at the clock is a second later."""
    insert(store, *(f"job-{number}" for number in range(35)), payload='{"n": 1}')
    ticks = iter(range(10_000))
    monkeypatch.setattr(listing, "time", SimpleNamespace(monotonic=lambda: float(next(ticks))))
    monkeypatch.setattr(listing, "_PAYLOADS", 5)
    matches: list[str] = []
    cursor: str | None = None
    for examined in (10, 10, 10, 5):
        one = page(store, search="payload.n:1", limit=100, cursor=cursor)
        assert one.examined == examined
        matches += [job.id for job in one.jobs]
        cursor = one.next
    assert cursor is None
    assert matches == [f"job-{number}" for number in reversed(range(35))]


def test_search_goes_forward_only_and_takes_no_offset(store: Store) -> None:
    with pytest.raises(ConfigError, match="offset"):
        page(store, search="x", offset=1)
    with pytest.raises(ConfigError, match="can't go backward"):
        page(store, search="x", cursor="<5")


def test_page_of_no_matches_reads_nothing(store: Store) -> None:
    insert(store, "a")
    one = page(store, search="a", limit=0)
    assert (one.jobs, one.next, one.examined) == ([], None, 0)


@pytest.mark.usefixtures("small")
def test_walk_of_a_search_keeps_to_the_first_jobs_of_the_list(store: Store) -> None:
    for number in range(30):
        insert(store, f"job-{number}")
    assert list(walk(store, search="job")) == [f"job-{number}" for number in reversed(range(10, 30))]
    assert list(walk(store, search="job-9")) == []


@pytest.mark.usefixtures("small")
def test_walk_of_a_search_goes_on_where_its_time_was_up(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SEARCH_SECONDS", 0.0)
    insert(store, *(f"job-{number}" for number in range(30)), payload='{"n": 1}')
    assert len(list(walk(store, search="payload.n:1 job"))) == 20


@pytest.fixture
def many(store: Store) -> Store:
    """More jobs than a search reads."""
    total = MOST_SEARCHED + 500
    store.insert_jobs([new_job(f"{'old' if n < 500 else 'job'}-{n}") for n in range(total)])
    return store


def test_search_reads_ten_thousand_jobs_and_its_cursor_leads_to_the_older_ones(
    many: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "SEARCH_SECONDS", 60.0)  # on a busy machine too
    first = page(many, search="old", brief=True)
    assert (first.jobs, first.examined) == ([], 10_000)
    second = page(many, search="old", brief=True, cursor=first.next)
    assert [job.id for job in second.jobs] == [f"old-{n}" for n in reversed(range(450, 500))]
    assert second.examined == 50
    rest = page(many, search="old", brief=True, cursor=second.next, limit=1000)
    assert (len(rest.jobs), rest.next, rest.examined) == (450, None, 450)
