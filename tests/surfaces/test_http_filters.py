"""The list over HTTP by error, time, words and order, and bulk orders by the same filters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from holdfast import Queue
from holdfast.core.lifecycle import Errored
from holdfast.listing import pages as listing
from holdfast.store.open import store_of
from holdfast.testing import MovableClock
from holdfast.web.api import tasks as tasks_module
from tests.conformance.steps import claim_one, finish
from tests.support import both_engines, unsynced
from tests.surfaces.answers import NOW, at, got, refused

pytestmark = pytest.mark.slow

NO_ANSWER = "TimeoutError: no answer after # s"


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(NOW)


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    """The home's queue, on a clock that stands still."""
    with Queue(unsynced(url), clock=clock) as queue:
        yield queue


def fail(queue: Queue, id: str, error: str, type: str = "echo", **options: Any) -> None:
    """A job that failed for good, with this error."""
    queue.enqueue(type, options.pop("payload", {}), id=id, **options)
    finish(store_of(queue), claim_one(store_of(queue), type), Errored(error, permanent=True))
    job = queue.get(id)
    assert job is not None
    assert job.status == "failed"


@pytest.fixture
def varied(queue: Queue, clock: MovableClock) -> Queue:
    """A job a minute, from midnight on; they end in another order than they came in."""
    queue.enqueue("echo", {"user": {"id": 42}}, id="first", priority=-5)
    clock.advance(minutes=1)
    fail(queue, "slow-1", "TimeoutError: no answer after 30 s", payload={"user": {"id": 42}})
    clock.advance(minutes=1)
    fail(queue, "refused", "OSError: refused", key="order-7")
    clock.advance(minutes=1)
    fail(queue, "slow-2", "TimeoutError: no answer after 45.5 s", priority=7)
    clock.advance(minutes=1)
    fail(queue, "other", "TimeoutError: no answer after 9 s", type="other")
    clock.advance(minutes=1)
    queue.enqueue("echo", {"user": {"id": "42"}, "password": "sesame"}, id="last", priority=7)
    clock.advance(minutes=1)
    queue.cancel("first")
    return queue


def listed(api: httpx.Client, **query: Any) -> list[str]:
    return [job["id"] for job in got(api.get("/api/tasks", params=query))["tasks"]]


ALL = ["last", "other", "slow-2", "refused", "slow-1", "first"]

FOUND: list[tuple[dict[str, Any], list[str]]] = [
    ({"error": NO_ANSWER}, ["other", "slow-2", "slow-1"]),
    ({"error": NO_ANSWER, "type": "echo"}, ["slow-2", "slow-1"]),
    ({"error": NO_ANSWER, "status": "pending"}, []),
    ({"error": "OSError: refused", "status": ["failed", "cancelled"]}, ["refused"]),
    ({"error": "nothing like it"}, []),
    ({"error": ""}, []),
    ({"since": at(0, 3)}, ["last", "other", "slow-2"]),
    ({"until": at(0, 3)}, ["refused", "slow-1", "first"]),
    ({"since": at(0, 1), "until": at(0, 3)}, ["refused", "slow-1"]),
    ({"since": "2030-01-01T01:03:00+01:00", "status": "failed"}, ["other", "slow-2"]),
    ({"since": "0001-01-01T00:00:00Z", "until": "9999-12-31T23:59:59Z"}, ALL),
    ({"since": at(0, 3), "until": at(0, 3)}, []),
    ({"since": at(9), "until": at(1)}, []),
    ({"since": at(0, 1), "error": NO_ANSWER, "type": "echo", "until": at(0, 3)}, ["slow-1"]),
    ({"sort": "created"}, ALL),
    ({"sort": "created", "order": "desc"}, ALL),
    ({"order": "asc"}, ALL[::-1]),
    ({"sort": "priority"}, ["last", "slow-2", "other", "refused", "slow-1", "first"]),
    ({"sort": "priority", "order": "asc"}, ["first", "slow-1", "refused", "other", "slow-2", "last"]),
    ({"sort": "finished"}, ["first", "other", "slow-2", "refused", "slow-1"]),
    ({"sort": "finished", "order": "asc"}, ["slow-1", "refused", "slow-2", "other", "first"]),
    ({"sort": "finished", "since": at(0, 4)}, ["first", "other"]),
    ({"sort": "finished", "until": at(0, 2)}, ["slow-1"]),
    ({"sort": "finished", "status": "pending"}, []),
    ({"sort": "priority", "error": NO_ANSWER, "order": "asc"}, ["slow-1", "other", "slow-2"]),
    ({"sort": "finished", "error": NO_ANSWER, "type": "echo", "order": "asc"}, ["slow-1", "slow-2"]),
]


@both_engines
def test_list_takes_each_filter_and_all_together(varied: Queue, api: httpx.Client) -> None:
    for query, ids in FOUND:
        page = got(api.get("/api/tasks", params=query))
        assert [job["id"] for job in page["tasks"]] == ids, query
        assert (page["total"], page["totalIsCapped"], page["nextCursor"]) == (len(ids), False, None), query
        assert "examined" not in page


def test_offset_passes_over_in_every_order(varied: Queue, api: httpx.Client) -> None:
    for sort in ("created", "finished", "priority"):
        whole = listed(api, sort=sort, order="asc")
        page = got(api.get("/api/tasks", params={"sort": sort, "order": "asc", "offset": 2, "limit": 2}))
        assert [job["id"] for job in page["tasks"]] == whole[2:4]
        assert (page["total"], page["offset"]) == (len(whole), 2)


def test_instant_with_a_plus_that_was_not_escaped_is_taken(varied: Queue, api: httpx.Client) -> None:
    answer = got(api.get("/api/tasks?since=2030-01-01T02:03:00+02:00&until=2030-01-01T02:04:00+02:00"))
    assert [job["id"] for job in answer["tasks"]] == ["slow-2"]


def test_jobs_are_found_by_their_parent(queue: Queue, api: httpx.Client) -> None:
    queue.register("parent", lambda _, ctx: ctx.enqueue("child", id="child"))
    queue.enqueue("parent", id="parent")
    queue.drain(1)
    assert listed(api, parentId="parent") == ["child"]
    assert listed(api, parentId="child") == []
    order = {"action": "cancel", "filter": {"parentId": "parent"}, "expectedCount": 1}
    assert got(api.post("/api/tasks/bulk", json=order))["done"] == 1


def test_duration_with_a_space_is_taken_as_everywhere(varied: Queue, api: httpx.Client) -> None:
    assert listed(api, since="1 h") == listed(api, since="1h") == listed(api, since=" 1h ")


def test_error_may_be_given_as_a_job_shows_it(varied: Queue, api: httpx.Client) -> None:
    shown = got(api.get("/api/tasks/slow-1"))["error"]
    assert shown == "TimeoutError: no answer after 30 s"
    assert listed(api, error=shown) == listed(api, error=NO_ANSWER) == ["other", "slow-2", "slow-1"]


WRONG: dict[str, str] = {
    "since=yesterday": (
        "since must be a time such as 2030-01-31T09:00:00Z, or a duration before now such as 1h"
    ),
    "since=": "since must be a time such as",
    "until=1893456000h": "until must be a time such as",
    "until=1893456000": "until must be a time such as",
    "since=2030-01-01T00:00:00": "since '2030-01-01T00:00:00' needs a time zone",
    "type=a+b": "'a b' is not a valid job type",
    "type=": "'' is not a valid job type",
    "until=2030-01-01": "until '2030-01-01' needs a time zone",
    "until=2030-13-01T00:00:00Z": "until must be a time such as",
    "sort=age": "sort: must be 'created', 'finished' or 'priority'",
    "sort=": "sort: must be 'created', 'finished' or 'priority'",
    "sort=Created": "sort: must be 'created', 'finished' or 'priority'",
    "order=down": "order: must be 'asc' or 'desc'",
    "order=": "order: must be 'asc' or 'desc'",
    f"search={'a' * 501}": "a search may have at most 500 characters, not 501",
    f"search={'+'.join(f'w{n}' for n in range(21))}": "a search may have at most 20 words, not 21",
    "search=payload.password:sesame": "payload.password can't be searched: password is the name of a secret",
    "search=it&offset=1": "search and offset are mutually exclusive; continue a search with its cursor",
    "search=it&cursor=x": "cursor must be the nextCursor of an earlier page",
    "search=it&cursor=%3C3": "cursor must be the nextCursor of an earlier page",
    "sort=priority&cursor=3": "cursor must be the nextCursor of an earlier page in the same order",
    "sort=finished&cursor=3": "cursor must be the nextCursor of an earlier page in the same order",
    "sort=finished&cursor=7.3": "cursor must be the nextCursor of an earlier page in the same order",
    "sort=created&cursor=7.3": "cursor must be the nextCursor of an earlier page in the same order",
    "sort=priority&cursor=1893456000000000.3": "cursor must be the nextCursor of an earlier page",
    "group=a&group=b": "group was given more than once",
    "search=it&type=echo&search=that": "search was given more than once",
    "group=%ED%A0%80": "the query is not valid UTF-8",
    "search=%ff": "the query is not valid UTF-8",
    "q=it": "unknown parameter 'q'; allowed: cursor, error, full, group, limit, offset, order, parentId,"
    " search, since, sort, status, type, until",
}


def test_each_wrong_value_is_told_what_is_allowed(varied: Queue, api: httpx.Client) -> None:
    for query, words in WRONG.items():
        assert words in refused(api.get(f"/api/tasks?{query}"), 400, "invalid_request"), query


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/api/events?once=true&group=a&group=b"),
        ("GET", "/api/tasks/job1/logs?tail=1&tail=2"),
        ("DELETE", "/api/tasks?olderThan=1d&olderThan=1s"),
        ("POST", "/api/tasks/pause?type=a&type=b"),
        ("DELETE", "/api/config/fair?type=a&type=b"),
    ],
)
def test_a_parameter_with_two_values_is_refused_everywhere(api: httpx.Client, method: str, path: str) -> None:
    assert "was given more than once" in refused(api.request(method, path), 400, "invalid_request")


@pytest.mark.parametrize("query", ["status=failed&status=pending", "status=failed&status=failed"])
def test_a_parameter_that_takes_several_values_takes_them(
    varied: Queue, api: httpx.Client, query: str
) -> None:
    assert api.get(f"/api/tasks?{query}").status_code == 200


# Search


@pytest.mark.parametrize(
    ("search", "ids"),
    [
        ("slow", ["slow-2", "slow-1"]),
        ("SLOW", ["slow-2", "slow-1"]),
        ("order-7", ["refused"]),
        ("answer slow", ["slow-2", "slow-1"]),
        ('"answer after 9"', ["other"]),
        ('"after answer"', []),
        ("payload.user.id:42", ["last", "slow-1", "first"]),
        ("payload.user.id:42 slow", ["slow-1"]),
        ("payload.nothing:42", []),
        ("sesame", []),
        ("%", []),
        ("ü\N{PILE OF POO}\N{RIGHT-TO-LEFT OVERRIDE}", []),
    ],
)
def test_search_finds_words_and_fields(varied: Queue, api: httpx.Client, search: str, ids: list[str]) -> None:
    page = got(api.get("/api/tasks", params={"search": search}))
    assert [job["id"] for job in page["tasks"]] == ids
    found = {"total": len(ids), "totalIsCapped": False, "limit": 50, "offset": 0, "nextCursor": None}
    assert {name: page[name] for name in page if name != "tasks"} == {**found, "examined": 6}


@pytest.mark.parametrize("search", ["", "  ", '""', '" '])
def test_search_for_nothing_is_a_list(varied: Queue, api: httpx.Client, search: str) -> None:
    page = got(api.get("/api/tasks", params={"search": search, "limit": 2, "offset": 1}))
    assert [job["id"] for job in page["tasks"]] == ALL[1:3]
    assert (page["total"], page["totalIsCapped"], page["nextCursor"] is None) == (6, False, False)
    assert "examined" not in page


def test_search_keeps_to_the_other_filters_and_the_order(varied: Queue, api: httpx.Client) -> None:
    query: dict[str, Any] = {"search": "answer", "sort": "priority", "order": "asc"}
    assert listed(api, **query) == ["slow-1", "other", "slow-2"]
    assert listed(api, **query, type="echo", since=at(0, 2)) == ["slow-2"]
    page = got(api.get("/api/tasks", params={**query, "status": "failed", "error": NO_ANSWER}))
    assert ([job["id"] for job in page["tasks"]], page["examined"]) == (["slow-1", "other", "slow-2"], 3)


def test_search_that_may_find_more_says_so_and_goes_on(varied: Queue, api: httpx.Client) -> None:
    query: dict[str, Any] = {"search": "slow", "limit": 1}
    first = got(api.get("/api/tasks", params=query))
    assert [job["id"] for job in first["tasks"]] == ["slow-2"]
    assert (first["total"], first["totalIsCapped"], first["examined"]) == (1, True, 3)
    second = got(api.get("/api/tasks", params={**query, "cursor": first["nextCursor"]}))
    assert [job["id"] for job in second["tasks"]] == ["slow-1"]
    assert (second["total"], second["totalIsCapped"], second["examined"]) == (1, True, 2)
    last = got(api.get("/api/tasks", params={**query, "cursor": second["nextCursor"]}))
    assert (last["tasks"], last["total"], last["totalIsCapped"]) == ([], 0, False)
    assert (last["nextCursor"], last["examined"]) == (None, 1)


def test_search_reads_so_many_jobs_and_leads_on_to_older_ones(
    queue: Queue, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_SEARCHED", 20)
    queue.enqueue("echo", id="needle")
    queue.enqueue_many("echo", [{}] * 45)
    cursor: dict[str, str] = {}
    answers = []
    for _ in range(5):
        page = got(api.get("/api/tasks", params={"search": "needle", **cursor}))
        answers.append((len(page["tasks"]), page["total"], page["totalIsCapped"], page["examined"]))
        if page["nextCursor"] is None:
            break
        cursor = {"cursor": page["nextCursor"]}
    assert answers == [(0, 0, True, 20), (0, 0, True, 20), (1, 1, False, 6)]


def test_full_search_has_everything_and_ends_early_where_jobs_are_large(
    queue: Queue, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_module, "LARGEST_PAGE", 10_000)
    for number in range(5):
        queue.enqueue("echo", {"x": "a" * 4000, "password": "sesame"}, id=f"big-{number}")
        queue.enqueue("echo", {}, id=f"small-{number}")
    pages: list[list[str]] = []
    cursor: dict[str, str] = {}
    for _ in range(5):
        page = got(api.get("/api/tasks", params={"search": "big", "full": "true", **cursor}))
        assert all(job["payload"]["password"] == "[redacted]" for job in page["tasks"])
        assert page["total"] == len(page["tasks"])
        pages.append([job["id"] for job in page["tasks"]])
        if page["nextCursor"] is None:
            break
        assert page["totalIsCapped"] is True
        cursor = {"cursor": page["nextCursor"]}
    assert pages == [["big-4", "big-3"], ["big-2", "big-1"], ["big-0"]]


# Pages in every order


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize(
    ("sort", "key"), [("created", "createdAt"), ("finished", "completedAt"), ("priority", "priority")]
)
@pytest.mark.parametrize("search", [None, "job"])
def test_cursor_shows_what_stays_once_in_every_order_though_jobs_come_and_go(
    queue: Queue, api: httpx.Client, clock: MovableClock, sort: str, key: str, order: str, search: str | None
) -> None:
    def end(number: int) -> str:
        """A finished job. Many share a priority, and some the instant of their end."""
        clock.advance(number % 3)
        id = queue.enqueue("echo", id=f"job-{number}", priority=number * 7 % 5 - 2).id
        queue.cancel(id)
        return id

    ids = [end(number) for number in range(60)]
    goes = ids[::3]
    query: dict[str, Any] = {"sort": sort, "order": order, "limit": 7}
    if search is not None:
        query["search"] = search
    seen: list[dict[str, Any]] = []
    coming = iter(range(60, 200))
    for _ in range(40):
        page = got(api.get("/api/tasks", params=query))
        seen += page["tasks"]
        # The last one that was shown goes if it may, and one that is still to come; others come.
        shown = [job["id"] for job in page["tasks"] if job["id"] in goes]
        for id in {*shown[-1:], *goes[:1]}:
            goes.remove(id)
            queue.delete(id)
        if page["nextCursor"] is None:
            break
        query["cursor"] = page["nextCursor"]
        if len(seen) < 70:  # an ascending list ends only when no more come
            end(next(coming))
    else:
        pytest.fail("it did not come to an end")
    names = [job["id"] for job in seen]
    assert len(names) == len(set(names))
    assert {id for place, id in enumerate(ids) if place % 3} <= set(names)
    places = [(job[key], int(job["id"].removeprefix("job-"))) for job in seen]
    assert places == sorted(places, reverse=order == "desc")


def test_count_is_capped_for_every_filter(queue: Queue, api: httpx.Client) -> None:
    queue.enqueue_many("echo", [{}] * 10_001)
    for query in ({"since": at()}, {"sort": "priority", "until": at(1)}, {"status": "retrying"}):
        page = got(api.get("/api/tasks", params={**query, "limit": 1}))
        expected = (0, False) if "status" in query else (10_000, True)
        assert (page["total"], page["totalIsCapped"]) == expected, query
    deep = got(api.get("/api/tasks", params={"since": at(), "offset": 10_000}))
    assert (len(deep["tasks"]), deep["total"], deep["totalIsCapped"]) == (1, 10_000, True)
    assert listed(api, since=at(), offset=10_001) == []


# Bulk


def bulk(api: httpx.Client, filter: dict[str, Any], count: int) -> httpx.Response:
    return api.post("/api/tasks/bulk", json={"action": "retry", "filter": filter, "expectedCount": count})


@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        ({"error": NO_ANSWER}, {"slow-1", "slow-2", "other"}),
        ({"error": NO_ANSWER, "type": "echo"}, {"slow-1", "slow-2"}),
        ({"status": "failed", "since": at(0, 2)}, {"refused", "slow-2", "other"}),
        ({"status": "failed", "until": "2030-01-01T01:02:00+01:00"}, {"slow-1"}),
        ({"status": "failed", "since": at(0, 2), "until": at(0, 4)}, {"refused", "slow-2"}),
        ({"search": "slow"}, {"slow-1", "slow-2"}),
        ({"status": "failed", "search": "payload.user.id:42"}, {"slow-1"}),
        ({"search": "nothing like it"}, set()),
        (
            {"status": ["failed", "cancelled"], "search": ""},
            {"slow-1", "slow-2", "other", "refused", "first"},
        ),
        (
            {
                "status": "dead",
                "type": "echo",
                "error": NO_ANSWER,
                "since": at(),
                "until": at(1),
                "search": "2",
            },
            {"slow-2"},
        ),
        (dict.fromkeys(("type", "error", "since", "until", "search")) | {"status": "cancelled"}, {"first"}),
    ],
)
def test_bulk_takes_the_filters_of_the_list(
    varied: Queue, api: httpx.Client, filter: dict[str, Any], ids: set[str]
) -> None:
    refused(bulk(api, filter, len(ids) + 1), 409, "count_differs")
    assert got(bulk(api, filter, len(ids)))["done"] == len(ids)
    assert set(listed(api, status="pending")) == ids | {"last"}


def test_bulk_by_a_search_takes_what_it_finds_among_the_newest(
    queue: Queue, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_SEARCHED", 20)
    for number in range(30):
        queue.cancel(queue.enqueue("echo", id=f"job-{number}").id)
    assert got(bulk(api, {"search": "job"}, 20))["done"] == 20
    assert set(listed(api, status="pending")) == {f"job-{number}" for number in range(10, 30)}


def test_each_wrong_bulk_filter_is_refused_and_changes_nothing(varied: Queue, api: httpx.Client) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"since": "yesterday"}, "since must be a time such as"),
        ({"until": "2030-01-01T00:00:00"}, "needs a time zone"),
        ({"since": 5}, "filter.since: must be a valid string"),
        ({"until": None, "since": ["x"]}, "filter.since: must be a valid string"),
        ({"error": 5}, "filter.error: must be a valid string"),
        ({"search": {}}, "filter.search: must be a valid string"),
        ({"search": "a" * 501}, "a search may have at most 500 characters"),
        ({"search": "payload.password:x"}, "is the name of a secret"),
        ({"sort": "age"}, "filter.sort"),
        (
            {"ascending": True},
            "unknown field 'ascending'; allowed: status, type, group, parentId, error, since,",
        ),
    ]
    for filter, words in wrong:
        assert words in refused(bulk(api, filter, 0), 400, "invalid_request"), filter
    assert listed(api, status="pending") == ["last"]


# Report


@both_engines
def test_report_groups_failures_as_the_list_finds_them(varied: Queue, api: httpx.Client) -> None:
    groups = got(api.get("/api/report"))["failed"]["groups"]
    assert groups == [
        {"type": "echo", "error": NO_ANSWER, "jobs": 2, "lastAt": at(0, 3)},
        {"type": "other", "error": NO_ANSWER, "jobs": 1, "lastAt": at(0, 4)},
        {"type": "echo", "error": "OSError: refused", "jobs": 1, "lastAt": at(0, 2)},
    ]
    for group in groups:
        assert len(listed(api, type=group["type"], error=group["error"])) == group["jobs"]
    got(bulk(api, {"type": "echo", "error": NO_ANSWER}, 2))
    assert [group["jobs"] for group in got(api.get("/api/report"))["failed"]["groups"]] == [1, 1]
