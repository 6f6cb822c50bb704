"""What the pages show: the overview, the list of jobs, a job, and problems; and that every link leads on."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import httpx
import pytest

from holdfast import Context, Job, Queue
from holdfast.core.clock import SECOND
from holdfast.core.filter import COUNTED, MOST_SEARCHED, Sort
from holdfast.core.lifecycle import Errored, Stopped
from holdfast.errors import HoldfastError
from holdfast.jobs.output_log import log_folder, log_path
from holdfast.listing import pages as listing
from holdfast.store.open import store_of
from holdfast.store.records import BUCKETS, Minute, WorkerRecord
from holdfast.store.sqlite.database import Database
from holdfast.testing import MovableClock
from holdfast.web import create_app
from tests.conformance.steps import OUTCOMES, claim, claim_one, finish, finished, insert, reap, run
from tests.support import both_engines, unsynced
from tests.surfaces.answers import NOW, STATES
from tests.surfaces.html_page import Element, Page, Reader, below, query
from tests.surfaces.live import client, live, write_lock

pytestmark = pytest.mark.slow

TOKEN, READ_TOKEN = "a token for changes", "a token for looking"
MINUTE = 60 * SECOND
NEXT, PREVIOUS, OLDER = "Next \u203a", "\u2039 Previous", "Search older jobs \u203a"


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(NOW)


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    """The home's queue, on a clock that stands still."""
    with Queue(unsynced(url), clock=clock) as queue:
        yield queue


@pytest.fixture
def web(api: httpx.Client) -> Reader:
    return Reader(api)


def stored(queue: Queue, id: str) -> Job:
    job = queue.get(id)
    assert job is not None
    return job


def failing(queue: Queue, id: str, error: str = "OSError: no route", **options: Any) -> Job:
    """A job that failed for good."""
    return finished(store_of(queue), id, Errored(error, permanent=True), **options)


def worker(queue: Queue, *types: str, id: str = "w1", slots: int = 4, host: str = "here") -> None:
    record = WorkerRecord(id=id, host=host, pid=17, state="running", concurrency=slots, types=types)
    store_of(queue).register_worker(record, [])


def one_of_each(queue: Queue) -> dict[str, str]:
    """A job in every state, by the state; `retrying` and `stopping` are two more."""
    finished(store_of(queue), "done")
    failing(queue, "broken")
    insert(store_of(queue), "gone")
    queue.cancel("gone")
    finished(store_of(queue), "again", OUTCOMES["failed"])
    run(store_of(queue), "ends")
    queue.cancel("ends")
    run(store_of(queue), "busy")
    queue.enqueue("email", {}, id="later", delay=3600)
    insert(store_of(queue), "ready")
    return {
        "scheduled": "later",
        "pending": "ready",
        "processing": "busy",
        "completed": "done",
        "failed": "broken",
        "cancelled": "gone",
        "retrying": "again",
        "stopping": "ends",
    }


# The overview


def test_cards_have_a_count_a_word_and_a_link_for_every_state(web: Reader, queue: Queue) -> None:
    one_of_each(queue)
    insert(store_of(queue), *(f"more{n}" for n in range(1_233)))
    cards = web.open("/").root.one("ul", "cards")
    counts = dict.fromkeys(STATES, "1") | {"scheduled": "2", "processing": "2", "pending": "1,234"}
    assert [card.text for card in cards.all("a", "card")] == [f"{state} {counts[state]}" for state in STATES]
    assert shown_ids(web.open(cards.one("a", "below")["href"])) == ["again"]
    assert cards.one("a", "below").text == "1 retrying"
    for card, state in zip(cards.all("a", "card"), STATES, strict=True):
        assert card["href"] == f"/jobs?status={state}"
        assert state in card.classes
        if state != "pending":
            assert len(shown_ids(web.open(card["href"]))) == int(counts[state])


def statistics(queue: Queue, ago: int, **sums: Any) -> Minute:
    given = {"type": "email", "worker_id": "w1", **sums}
    for name in ("waits", "runs"):
        given[name] = [given.get(name, {}).get(place, 0) for place in range(len(BUCKETS) + 1)]
    return Minute(minute=store_of(queue).now() // MINUTE - ago, **given)


@both_engines
def test_throughput_is_drawn_as_the_statistics_say(web: Reader, queue: Queue) -> None:
    store_of(queue).write_statistics(
        [
            statistics(queue, 0, completed=4),
            statistics(queue, 1, completed=30, failed=20),
            statistics(queue, 1, type="crawl", completed=10),
            statistics(queue, 59, failed=1),
            statistics(queue, 60, completed=1_000),
        ]
    )
    page = web.open("/")
    chart = page.root.one("svg", "chart")
    bars = chart.all("g")
    assert len(bars) == 60
    titles = [bar.one("title").text for bar in bars]
    assert titles[0] == "23:01 UTC: 0 completed, 1 failed"
    assert titles[-2:] == ["23:59 UTC: 40 completed, 20 failed", "00:00 UTC: 4 completed, 0 failed"]
    assert all(title.endswith("0 completed, 0 failed") for title in titles[1:-2])

    def height(bar: Element, kind: str) -> float:
        return sum(float(rect["height"]) for rect in bar.all("rect", kind))

    # The top of the scale is the next round number: 100 per minute are 120 high.
    assert (height(bars[-2], "completed"), height(bars[-2], "failed")) == (48, 24)
    assert (height(bars[-1], "completed"), height(bars[-1], "failed")) == (4.8, 0)
    assert (height(bars[0], "completed"), height(bars[0], "failed")) == (0, 1.5)
    figures = page.section("figures").pairs()
    assert (figures["Completed, last hour"], figures["Failed, last hour"]) == ("44", "21")
    assert chart["aria-label"].startswith("44 completed and 21 failed in the last hour")
    assert "top line: 100 per minute" in page.section("figures").text


def test_wait_and_run_times_are_percentiles(web: Reader, queue: Queue) -> None:
    figures = web.open("/").section("figures").pairs()
    assert (figures["Wait, p50 / p95"], figures["Run, p50 / p95"]) == ("–", "–")
    last = len(BUCKETS)
    store_of(queue).write_statistics(
        [statistics(queue, 3, completed=100, waits={0: 50, 5: 45, last: 5}, runs={7: 90, last: 10})]
    )
    figures = web.open("/").section("figures").pairs()
    assert figures["Wait, p50 / p95"] == "≤ 5 ms / ≤ 250 ms"
    assert figures["Run, p50 / p95"] == "≤ 1 s / longer"


def test_when_it_will_be_empty(web: Reader, queue: Queue) -> None:
    def told() -> str:
        return web.open("/").section("figures").pairs()["Time to drain"]

    assert told() == "no jobs waiting"
    insert(store_of(queue), *(f"j{n}" for n in range(10)))
    assert told() == "blocked: no workers"
    worker(queue, "email")
    assert told() == "no estimate yet"
    store_of(queue).write_statistics([statistics(queue, 5, completed=590, failed=10)])
    assert told() == "about 5.0 s at 2 jobs/s"
    queue.pause()
    assert told() == "blocked: queue paused"


def test_age_of_the_oldest_ready_job(web: Reader, queue: Queue, clock: MovableClock) -> None:
    def told() -> str:
        return web.open("/").section("figures").pairs()["Oldest ready job"]

    assert told() == "none"
    queue.enqueue("crawl", {}, id="later", delay=3600)
    assert told() == "none"
    insert(store_of(queue), "first")
    clock.advance(seconds=90)
    insert(store_of(queue), "second")
    assert told() == "1 min 30 s email"
    assert web.open("/").section("figures").one("a")["href"] == "/jobs/first"


def headline(web: Reader) -> tuple[set[str], str, str]:
    state = web.open("/").section("state")
    return state.classes - {"headline"}, state.one("h1").text, state.one("p").text


@both_engines
def test_headline_tells_the_states_apart(web: Reader, queue: Queue) -> None:
    seen = [headline(web)]
    assert seen[-1] == ({"warning"}, "No workers", "No worker is running, and no jobs are waiting.")
    insert(store_of(queue), "a", "b")
    seen.append(headline(web))
    assert seen[-1][:2] == ({"problem"}, "No workers")
    worker(queue, "crawl")
    seen.append(headline(web))
    assert seen[-1] == (
        {"problem"},
        "No worker for email",
        "2 jobs waiting.",
    )
    worker(queue, "email", id="w2", slots=1)
    seen.append(headline(web))
    assert seen[-1] == ({"busy"}, "Working", "0 of 5 slots in use; 2 jobs waiting.")
    store_of(queue).remove_workers(["w1"])
    first = claim_one(store_of(queue), worker="w2")
    seen.append(headline(web))
    assert seen[-1] == ({"busy"}, "Busy", "The only slot is in use; 1 job waiting.")
    queue.pause()
    seen.append(headline(web))
    assert seen[-1] == ({"warning"}, "Paused", "No jobs start until the queue is resumed; 1 job waiting.")
    queue.resume()
    finish(store_of(queue), first)
    second = claim_one(store_of(queue), worker="w2")
    seen.append(headline(web))
    assert seen[-1] == ({"good"}, "Working", "1 of 1 slot in use; no jobs waiting.")
    finish(store_of(queue), second)
    seen.append(headline(web))
    assert seen[-1] == ({"good"}, "Idle", "No jobs are waiting or running.")
    assert len({(word, *level) for level, word, _ in seen}) == len(seen)


@both_engines
def test_what_needs_attention_is_listed_and_linked(web: Reader, queue: Queue, clock: MovableClock) -> None:
    assert not web.open("/").has("attention-card")
    queue.pause("email")
    insert(store_of(queue), "slow", "quick", type="report")
    claim_one(store_of(queue), "report", lease=10_000)
    clock.advance(minutes=4)
    claim_one(store_of(queue), "report", lease=10_000)
    clock.advance(seconds=61)
    worker(queue, "email", "report")
    insert(store_of(queue), "a", "b", type="crawl")
    queue.enqueue("fetch:slow", {}, delay=3600)
    attention = web.open("/").section("attention-card")
    assert [item.text for item in attention.all("li")] == [
        "Type email is paused.",
        "No worker for crawl (2 jobs waiting).",
        "No worker for fetch:slow (1 job waiting).",
        "slow (report) may be stuck: started 5 min ago.",
    ]
    assert [link["href"] for link in attention.all("a")] == [
        "/jobs?type=email",
        "/jobs?type=crawl",
        "/jobs?type=fetch%3Aslow",
        "/jobs/slow",
    ]


def test_many_that_need_attention_are_counted(web: Reader, queue: Queue, clock: MovableClock) -> None:
    insert(store_of(queue), *(f"s{n}" for n in range(8)))
    claim(store_of(queue))
    for n in range(13):
        insert(store_of(queue), f"j{n}", type=f"type{n:02}")
    clock.advance(hours=1)
    items = [item.text for item in web.open("/").section("attention-card").all("li")]
    assert sum("may be stuck: started" in item for item in items) == 5
    assert "3 more may be stuck." in items
    assert sum(item.startswith("No worker for ") for item in items) == 10
    assert "3 more types have no worker." in items


def test_types_are_shown_with_their_counts_as_links(web: Reader, queue: Queue) -> None:
    insert(store_of(queue), "a", "b", type="crawl")
    failing(queue, "c")
    finished(store_of(queue), "d")
    types = web.open("/").section("types")
    assert types.rows() == [
        ["crawl", "", "0", "2", "0", "0", "0", "0"],
        ["email", "", "0", "0", "0", "1", "1", "0"],
    ]
    assert [head.text for head in types.one("thead").all("th")] == ["Type", "Jobs", *STATES]
    crawl, email = types.all("svg")
    assert [(part["class"], part["x"], part["width"]) for part in crawl.all("rect")] == [
        ("pending", "0.0", "100.0")
    ]
    assert [(part["class"], part["x"], part["width"]) for part in email.all("rect")] == [
        ("completed", "0.0", "50.0"),
        ("failed", "50.0", "50.0"),
    ]
    link = types.one("a", aria_label="2 pending of crawl")["href"]
    assert shown_ids(web.open(link)) == ["b", "a"]


def test_more_types_and_workers_than_are_shown_are_said(web: Reader, queue: Queue) -> None:
    for n in range(15):
        insert(store_of(queue), f"j{n}", type=f"type{n}")
    for n in range(25):
        worker(queue, "email", id=f"w{n:02}")
    page = web.open("/")
    assert len(page.section("types").rows()) == 12
    every = web.open(page.link("Show all 15 types").partition("#")[0])
    assert len(every.section("types").rows()) == 15
    assert len(web.open(every.link("Show fewer types").partition("#")[0]).section("types").rows()) == 12
    assert len(page.section("workers").rows()) == 20
    assert "25 processes, 0 of 100 slots in use." in page.section("workers").text
    assert "The first 20 are shown" in page.section("workers").text


@both_engines
def test_last_ten_failures_are_by_their_end(web: Reader, queue: Queue, clock: MovableClock) -> None:
    assert "No recent failures." in web.open("/").section("failures").text
    insert(store_of(queue), *(f"j{n:02}" for n in range(12)))
    claims = {claimed.id: claimed for claimed in claim(store_of(queue))}
    order = [f"j{n:02}" for n in (5, 3, 9, 0, 11, 1, 7, 2, 10, 4, 8, 6)]
    for id in order:
        clock.advance(seconds=1)
        finish(store_of(queue), claims[id], Errored(f"\n\nE: {id}\nsecond line", permanent=True))
    clock.advance(minutes=2)
    failures = web.open("/").section("failures")
    assert [item.text for item in failures.all("li")] == [
        f"email {id} 2 min ago E: {id}" for id in list(reversed(order))[:10]
    ]
    assert failures.all("li")[0].one("a")["href"] == "/jobs/j06"
    assert shown_ids(web.open("/jobs?status=failed&sort=finished")) == list(reversed(order))


@both_engines
def test_group_of_errors_has_a_count_and_its_link_retries_exactly_those(
    web: Reader, queue: Queue, clock: MovableClock
) -> None:
    assert "No failures." in web.open("/").section("groups").text
    for n in range(3):
        failing(queue, f"user{n}", f"KeyError: user {n} & <co> is + not 100% there")
    failing(queue, "other", "KeyError: something else")
    failing(queue, "foreign", "KeyError: user 7 & <co> is + not 100% there", type="crawl")
    clock.advance(minutes=5)
    page = web.open("/")
    first, *others = page.section("groups").all("li")
    assert first.text.startswith("3 × email last 5 min ago KeyError: user # & <co> is + not #% there Retry")
    assert len(others) == 2
    assert shown_ids(web.open(first.all("a")[0]["href"])) == ["user2", "user1", "user0"]
    asked = web.open(page.link("Retry all of these 3 email jobs"))
    assert asked.heading == "Retry 3 jobs?"
    after = web.submit(asked.form("/jobs/bulk"))
    assert after.notice == "3 jobs retried."
    states = {id: stored(queue, id).status.value for id in ("user0", "user1", "user2", "other", "foreign")}
    assert states == dict.fromkeys(("user0", "user1", "user2"), "pending") | dict.fromkeys(
        ("other", "foreign"), "failed"
    )
    assert len(web.open("/").section("groups").all("li")) == 2


def test_workers_are_shown_with_heartbeat_and_what_they_run(
    web: Reader, queue: Queue, clock: MovableClock
) -> None:
    assert "No worker is running." in web.open("/").section("workers").text
    worker(queue, "email", "crawl", host="alpha")
    worker(queue, "email", id="w2", host="beta", slots=8)
    clock.advance(seconds=12)
    insert(store_of(queue), *(f"j{n}" for n in range(5)))
    claim(store_of(queue), worker="w2")
    clock.advance(seconds=8)
    workers = web.open("/").section("workers")
    rows = {row[0]: row[1:] for row in workers.rows()}
    assert rows["alpha (pid 17) w1"] == ["running", "20 s ago", "0 / 4", "none"]
    state, heartbeat, used, now = rows["beta (pid 17) w2"]
    assert (state, heartbeat, used) == ("running", "20 s ago", "5 / 8")
    assert len(re.findall(r"email j\d 8\.0 s", now)) == 3
    assert now.endswith("and 2 more")
    assert "2 processes, 5 of 12 slots in use." in workers.text


def test_empty_overview_says_how_to_begin(web: Reader) -> None:
    page = web.open("/")
    assert "No jobs yet. Enqueue one" in page.section("types").text
    assert "queuectl worker start" in page.section("workers").text


# The list of jobs


def shown_ids(page: Page) -> list[str]:
    """The jobs of a list, in its order; none if it has no table."""
    return [
        row["data-key"] for table in page.root.all("table", "jobs") for row in table.one("tbody").all("tr")
    ]


@both_engines
def test_columns_of_the_list(web: Reader, queue: Queue, clock: MovableClock) -> None:
    insert(store_of(queue), "j1", priority=7, key="k" * 100, max_attempts=5)
    clock.advance(minutes=1)
    claimed = claim_one(store_of(queue))
    clock.advance(seconds=2.5)
    finish(store_of(queue), claimed, Errored("\nE: it broke\nTraceback", permanent=True))
    clock.advance(hours=3)
    page = web.open("/jobs")
    heads = page.root.one("thead").all("th")
    assert [head.text for head in heads][1:] == [
        "Job", "Type", "Status", "Priority", "Attempts", "Created ↓", "Finished", "Duration", "Actions",
    ]  # fmt: skip
    [row] = page.root.one("table", "jobs").rows()
    assert row[1:] == [
        f"j1 E: it broke key {'k' * 79}…", "email", "failed", "7", "1 / 5", "3 h ago", "3 h ago", "2.5 s",
        "Retry Delete…",
    ]  # fmt: skip
    assert page.root.one("span", "badge").classes == {"badge", "failed"}
    assert page.link("j1") == "/jobs/j1"
    assert page.section("summary").text == "1 job."


def test_status_of_each_job_is_a_word_of_its_own(web: Reader, queue: Queue) -> None:
    ids = one_of_each(queue)
    page = web.open("/jobs")
    badges = {
        row["data-key"]: row.one("span", "badge").text
        for row in page.root.one("table", "jobs").one("tbody").all("tr")
    }
    assert badges == {id: state for state, id in ids.items()} | {"ends": "processing, stopping"}


def test_progress_of_a_running_job_is_in_its_row(web: Reader, queue: Queue) -> None:
    claimed = run(store_of(queue), "j1")
    store_of(queue).write_progress("worker", [(claimed.seq, claimed.version, 0.426, "resizing")])
    row = web.open("/jobs").root.one("table", "jobs").one("tbody")
    assert row.one("progress")["value"] == "0.43"
    assert "43 % · resizing" in row.text


@pytest.fixture
def corpus(queue: Queue, clock: MovableClock) -> Queue:
    """Nine jobs that differ in everything that can be asked for, one each minute; the newest is `late`."""
    steps: list[Callable[[], object]] = [
        lambda: finished(store_of(queue), "done1", key="alpha key"),
        lambda: failing(queue, "fail1", "TimeoutError: after 30 s"),
        lambda: failing(queue, "fail2", "TimeoutError: after 45 s", type="crawl"),
        lambda: finished(store_of(queue), "again", OUTCOMES["failed"], type="crawl"),
        lambda: queue.cancel(queue.enqueue("email", {}, id="gone").id),
        lambda: run(store_of(queue), "busy", type="crawl"),
        lambda: queue.enqueue("email", {"user": {"id": 42}, "to": ["a@b.c"]}, id="p42", priority=3),
        lambda: queue.enqueue("crawl", {"user": {"id": 43}, "name": "Zoë"}, id="p43", priority=-1),
        lambda: queue.enqueue("email", {"user": {"id": 42}}, id="late", delay=3600),
    ]
    for step in steps:
        step()
        clock.advance(minutes=1)
    return queue


ALL = ["late", "p43", "p42", "busy", "gone", "again", "fail2", "fail1", "done1"]

FILTERS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "nothing": ({}, ALL),
    "type": ({"type": "crawl"}, ["p43", "busy", "again", "fail2"]),
    "unknown type": ({"type": "nobody"}, []),
    "pending": ({"status": "pending"}, ["p43", "p42"]),
    "scheduled": ({"status": "scheduled"}, ["late", "again"]),
    "retrying": ({"status": "retrying"}, ["again"]),
    "two statuses": ({"status": ["failed", "completed"]}, ["fail2", "fail1", "done1"]),
    "other words": ({"status": ["dead", "done"]}, ["fail2", "fail1", "done1"]),
    "queued and claimed": ({"status": ["queued", "claimed"]}, ["p43", "p42", "busy"]),
    "part of an id": ({"q": "FAIL"}, ["fail2", "fail1"]),
    "part of a key": ({"q": "pha"}, ["done1"]),
    "phrase": ({"q": '"alpha key"'}, ["done1"]),
    "part of an error": ({"q": "timeouterror"}, ["fail2", "fail1"]),
    "two words": ({"q": "timeout 45"}, ["fail2"]),
    "nothing found": ({"q": "nowhere"}, []),
    "payload": ({"q": "payload.user.id:42"}, ["late", "p42"]),
    "payload in a list": ({"q": "payload.to.0:a@b.c"}, ["p42"]),
    "payload and a word": ({"q": "payload.user.id:42 p4"}, ["p42"]),
    "accented payload": ({"q": "payload.name:ZOË"}, ["p43"]),
    "since an instant": ({"from": "2030-01-01T00:05"}, ["late", "p43", "p42", "busy"]),
    "until an instant": ({"to": "2030-01-01T00:02:00Z"}, ["fail1", "done1"]),
    "between": ({"from": "2030-01-01T02:01:00+02:00", "to": "2030-01-01T00:03"}, ["fail2", "fail1"]),
    "in the last": ({"from": "3m"}, ["late", "p43", "p42"]),
    "before so long": ({"to": "7m"}, ["fail1", "done1"]),
    "a day": ({"from": "2030-01-02"}, []),
    "an error's group": ({"error": "TimeoutError: after # s"}, ["fail2", "fail1"]),
    "group and type": ({"error": "TimeoutError: after # s", "type": "crawl"}, ["fail2"]),
    "by priority": ({"sort": "priority"}, ["p42", *[id for id in ALL if id not in ("p42", "p43")], "p43"]),
    "by end": ({"sort": "finished"}, ["gone", "fail2", "fail1", "done1"]),
    "oldest first": ({"order": "asc"}, ALL[::-1]),
    "by end, oldest first": ({"sort": "finished", "order": "asc"}, ["done1", "fail1", "fail2", "gone"]),
    "ended in the last": ({"sort": "finished", "from": "6m"}, ["gone"]),
    "all together": (
        {"type": "crawl", "status": ["failed", "pending"], "q": "timeout", "from": "1h", "to": "1m"}
        | {"error": "TimeoutError: after # s", "sort": "finished", "order": "asc", "size": 25},
        ["fail2"],
    ),
}


@pytest.mark.parametrize("name", FILTERS)
def test_filter_finds_what_it_says_and_is_in_the_form(web: Reader, corpus: Queue, name: str) -> None:
    given, expected = FILTERS[name]
    page = web.open(f"/jobs?{urlencode(given, doseq=True)}")
    assert shown_ids(page) == expected
    assert page.alerts == []
    # The form holds all of it: sent as it is, it finds the same.
    again = web.read(web.send(page.form("/jobs", lambda form: form.method == "get")))
    assert shown_ids(again) == expected
    summary = page.section("summary").text
    if "q" not in given:
        finished = " finished" if given.get("sort") == "finished" else ""
        assert summary == f"{len(expected)}{finished} job{'' if len(expected) == 1 else 's'}."
    elif expected:
        assert summary.startswith(f"Found {len(expected)} job")
        assert "searched." in summary
    else:
        assert summary.startswith("Found nothing in the 9 jobs searched")


def test_every_filter_is_a_chip_that_takes_it_away(web: Reader, corpus: Queue) -> None:
    given = FILTERS["all together"][0]
    page = web.open(f"/jobs?{urlencode(given, doseq=True)}")
    whole = [(name, value) for name, value in query(page.address)]
    chips = page.section("chips").all("a", "chip")
    assert [re.sub(" ✕.*", "", chip.text) for chip in chips] == [
        "status: failed or pending",
        "type: crawl",
        "search: timeout",
        "finished in the last 1h",
        "finished more than 1m ago",
        "error: TimeoutError: after # s",
    ]
    for chip, name in zip(chips, ("status", "type", "q", "from", "to", "error"), strict=True):
        left = [(key, value) for key, value in whole if key != name]
        assert sorted(query(chip["href"])) == sorted(left)
        web.open(chip["href"])


def test_sort_size_and_page_links_keep_every_filter(web: Reader, queue: Queue) -> None:
    insert(store_of(queue), *(f"j{n}" for n in range(60)), type="a:b", priority=3)
    filters = [
        ("status", "pending"),
        ("status", "failed"),
        ("type", "a:b"),
        ("from", "1h"),
        ("to", "2031-01-01"),
    ]
    page = web.open(f"/jobs?{urlencode([*filters, ('sort', 'priority'), ('size', '25')])}")
    page = web.open(page.link(NEXT))

    def kept(address: str) -> dict[str, str]:
        """What an address says beside the filters, which must all be there."""
        pairs = query(address)
        assert [pair for pair in pairs if pair in filters] == filters, address
        return dict(pair for pair in pairs if pair not in filters)

    beside = {"sort": "priority", "size": "25"}
    assert kept(page.link(PREVIOUS)).keys() == {*beside, "cursor"}
    assert kept(page.link(NEXT)).keys() == {*beside, "cursor"}
    assert kept(page.link("« First")) == beside
    assert kept(page.link("Show 100 per page")) == {"sort": "priority", "size": "100"}
    heads = page.root.one("thead")
    assert [kept(link["href"]) for link in heads.all("a")] == [
        {"sort": "priority", "order": "asc", "size": "25"},
        {"size": "25"},
        {"sort": "finished", "size": "25"},
    ]
    for action in ("Retry", "Cancel", "Delete"):
        bulk = kept(page.link(f"{action} all…"))
        assert bulk == {"sort": "priority", "action": action.lower(), "all": "1"}
    form = page.form("/jobs/bulk")
    assert form.fields == [*filters, ("sort", "priority")]


def test_column_that_sorts_says_so(web: Reader, queue: Queue) -> None:
    finished(store_of(queue), "j1")

    def sorted_by(address: str) -> dict[str, str]:
        heads = web.open(address).root.one("thead").all("th")
        return {head.text: head["aria-sort"] for head in heads if "aria-sort" in head.attributes}

    assert sorted_by("/jobs") == {"Created ↓": "descending"}
    assert sorted_by("/jobs?order=asc") == {"Created ↑": "ascending"}
    assert sorted_by("/jobs?sort=finished") == {"Finished ↓": "descending"}
    assert sorted_by("/jobs?sort=priority&order=asc") == {"Priority ↑": "ascending"}


@pytest.mark.parametrize("order", ["asc", "desc"])
@pytest.mark.parametrize("sort", ["created", "finished", "priority"])
def test_pages_lead_on_to_the_end_and_back(
    web: Reader, queue: Queue, clock: MovableClock, sort: Sort, order: str
) -> None:
    for n in range(63):
        insert(store_of(queue), f"j{n:02}", priority=n % 3)
    for n, claimed in enumerate(claim(store_of(queue))):
        clock.advance(seconds=n % 2)  # some end at the same moment
        finish(store_of(queue), claimed)
    whole = [job.id for job in queue.page(sort=sort, ascending=order == "asc", limit=100).jobs]
    address = f"/jobs?{urlencode({'sort': sort, 'order': order, 'size': 25})}"
    pages = [web.open(address)]
    while pages[-1].root.has("a", rel="next"):
        assert len(pages) < 5
        pages.append(web.open(pages[-1].root.one("a", rel="next")["href"]))
    assert [shown_ids(page) for page in pages] == [whole[:25], whole[25:50], whole[50:]]
    back = pages[-1]
    for expected in (whole[25:50], whole[:25]):
        back = web.open(back.root.one("a", rel="prev")["href"])
        assert shown_ids(back) == expected
    assert not back.root.has("a", rel="prev")


@pytest.mark.parametrize(("size", "shown"), [("25", 25), ("50", 50), ("100", 100), ("", 50)])
def test_page_has_the_size_that_was_chosen(web: Reader, queue: Queue, size: str, shown: int) -> None:
    insert(store_of(queue), *(f"j{n}" for n in range(101)))
    page = web.open(f"/jobs?size={size}")
    assert len(shown_ids(page)) == shown
    assert page.section("pages").one("strong").text == str(shown)


def test_counts_are_capped_and_say_so(web: Reader, queue: Queue, monkeypatch: pytest.MonkeyPatch) -> None:
    assert COUNTED == 10_000
    for place in ("observe.words", "listing.pages", "web.dashboard.overview"):
        monkeypatch.setattr(f"holdfast.{place}.COUNTED", 1_000)
    queue.enqueue_many("email", [{}] * 1_000)
    assert web.open("/jobs").section("summary").text == "1,000 jobs."
    queue.enqueue("email")
    page = web.open("/jobs")
    assert page.section("summary").text == "1,000+ jobs."
    assert "All 1,000+ matching jobs:" in page.section("bulk").text
    assert web.open("/jobs?status=failed").section("summary").text == "0 jobs."


@both_engines
def test_search_says_how_many_it_read_and_offers_older_ones(
    web: Reader, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert MOST_SEARCHED == 10_000
    monkeypatch.setattr(listing, "MOST_SEARCHED", 1_000)
    monkeypatch.setattr(listing, "SEARCH_SECONDS", 60)  # on a busy machine, too
    queue.enqueue("email", {"n": 1}, id="needle-old")
    queue.enqueue_many("email", [{}] * 1_001)
    page = web.open("/jobs?q=needle&size=25")
    assert page.section("summary").text == "Found nothing in the 1,000 jobs searched."
    older = web.open(page.link(OLDER))
    assert shown_ids(older) == ["needle-old"]
    assert older.section("summary").text == "Found 1 job in the next 2 jobs searched."
    assert not older.root.has("a", rel="next")
    assert dict(query(older.link("« First"))) == {"q": "needle", "size": "25"}
    queue.enqueue("email", id="needle-new")
    page = web.open("/jobs?q=needle")
    assert shown_ids(page) == ["needle-new"]
    assert page.section("summary").text == "Found 1 job so far in the 1,000 jobs searched."
    assert shown_ids(web.open(page.link(OLDER))) == ["needle-old"]


def test_search_with_more_matches_than_a_page_leads_on(web: Reader, queue: Queue) -> None:
    insert(store_of(queue), *(f"match{n:02}" for n in range(30)))
    page = web.open("/jobs?q=match&size=25")
    assert len(shown_ids(page)) == 25
    assert shown_ids(web.open(page.link(NEXT))) == [f"match{n:02}" for n in range(4, -1, -1)]


def test_empty_lists_say_what_to_do(web: Reader, queue: Queue) -> None:
    page = web.open("/jobs")
    assert "No jobs yet. Enqueue the first one." in page.main.text
    insert(store_of(queue), "j1")
    page = web.open("/jobs?type=crawl")
    assert "No jobs match." in page.main.text
    assert shown_ids(web.open(page.link("Show all jobs"))) == ["j1"]
    page = web.open("/jobs?cursor=1")
    assert "This page is now empty." in page.main.text
    assert shown_ids(web.open(page.link("Go to the first page"))) == ["j1"]


WRONG = {
    "status=asleep": "'asleep' is not a status; allowed:",
    "sort=colour": "'colour' is not a sort order; allowed: created, finished, priority",
    "order=up": "order must be asc or desc, not 'up'",
    "from=soon": "since must be a time such as",
    "to=Tuesday": "until must be a time such as",
    "from=-1h": "since must be a time such as",
    "to=99999999d": "until must be a time such as",
    "cursor=abc": "cursor must be the nextCursor",
    "cursor=5.5": "cursor must be the nextCursor",
    "type=a%20b": "is not a valid job type",
}


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_filter_is_told_and_the_form_keeps_what_was_typed(
    web: Reader, corpus: Queue, wrong: str
) -> None:
    page = web.open(f"/jobs?q=kept&{wrong}&status=failed&error=e%23&size=25", 400)
    [alert] = page.alerts
    assert alert.startswith(WRONG[wrong]) or WRONG[wrong] in alert
    assert shown_ids(page) == []
    form = page.form("/jobs", lambda form: form.method == "get")
    assert form.value("q") == "kept"
    assert form.value("error") == "e#"
    assert form.value("size") == "25"
    assert ("status", "failed") in form.fields
    name, _, value = wrong.partition("=")
    if name in ("from", "to", "type"):
        assert form.value(name) == value.replace("%20", " ")


@pytest.mark.parametrize(
    ("search", "sentence"),
    [
        ("payload.user.password:x", "password is the name of a secret"),
        ("x" * 501, "a search may have at most 500 characters"),
        (" ".join(f"w{n}" for n in range(21)), "a search may have at most 20 words"),
    ],
)
def test_wrong_search_is_told_and_kept(web: Reader, search: str, sentence: str) -> None:
    page = web.open(f"/jobs?{urlencode({'q': search})}", 400)
    assert sentence in page.alerts[0]
    assert page.form("/jobs").value("q") == search


@pytest.mark.parametrize("text", ["%ff", "q=%ff", "q=" + "a=b&" * 2_001])
def test_address_that_cannot_be_read_is_a_page_that_says_so(web: Reader, text: str) -> None:
    page = web.open(f"/jobs?{text}", 400) if "%ff" in text else web.read(web.client.get(f"/jobs?{text}"), 400)
    assert page.alerts == ["The form or the URL can't be parsed."]


# A job


def test_metadata_of_a_job_field_by_field(web: Reader, queue: Queue, clock: MovableClock) -> None:
    queue.enqueue(
        "email", {}, id="j1", priority=5, max_attempts=7, timeout=90, key="welcome:42", key_for="1d",
        run_at=clock.now + timedelta(minutes=5),
    )  # fmt: skip
    metadata = web.open("/jobs/j1").section("metadata").pairs()
    assert metadata == {
        "Created": "just now 2030-01-01 00:00:00 UTC",
        "Scheduled for": "in 5 min 2030-01-01 00:05:00 UTC",
        "Duration": "–",
        "Attempts": "0 of 7",
        "Priority": "5",
        "Timeout": "1 min 30 s",
        "Key": "welcome:42 kept for 1 d after the job finishes",
        "Version": "0",
    }
    clock.advance(minutes=5)
    store_of(queue).promote_jobs(10)
    claimed = claim_one(store_of(queue))
    clock.advance(seconds=10)
    metadata = web.open("/jobs/j1").section("metadata").pairs()
    assert metadata["Last started"] == "10 s ago 2030-01-01 00:05:00 UTC"
    assert (metadata["Duration"], metadata["Attempts"], metadata["Version"]) == ("10 s", "1 of 7", "1")
    assert (metadata["Worker"], metadata["Lease expires"]) == ("worker", "in 20 s 2030-01-01 00:05:30 UTC")
    finish(store_of(queue), claimed, OUTCOMES["failed"])
    metadata = web.open("/jobs/j1").section("metadata").pairs()
    assert metadata["Next attempt"] == "in 10 s 2030-01-01 00:05:20 UTC"
    assert "Worker" not in metadata
    assert "Lease expires" not in metadata
    clock.advance(seconds=10)
    store_of(queue).promote_jobs(10)
    finish(store_of(queue), claim_one(store_of(queue)))
    metadata = web.open("/jobs/j1").section("metadata").pairs()
    assert metadata["Finished"] == "just now 2030-01-01 00:05:20 UTC"


def test_duration_is_that_of_the_last_attempt_not_of_the_wait_after_it(
    web: Reader, queue: Queue, clock: MovableClock
) -> None:
    claimed = run(store_of(queue), "j1")
    clock.advance(seconds=2)
    finish(store_of(queue), claimed, OUTCOMES["failed"])
    clock.advance(hours=1)
    queue.cancel("j1")
    assert web.open("/jobs/j1").section("metadata").pairs()["Duration"] in ("2.0 s", "–")
    assert web.open("/jobs").root.one("td", data_label="Duration").text in ("2.0 s", "–")


def test_page_of_a_failed_job_shows_one_duration(web: Reader, queue: Queue, clock: MovableClock) -> None:
    claimed = run(store_of(queue), "j1")
    clock.advance(seconds=5)  # while it was held ready
    began_at = clock()
    clock.advance(seconds=7)
    finish(store_of(queue), claimed, OUTCOMES["failed for good"], started_at=began_at)
    page = web.open("/jobs/j1")
    assert page.section("metadata").pairs()["Duration"] == "7.0 s"
    assert "took 7.0 s" in page.section("timeline").text


def test_numbers_of_payload_and_result_are_exact(web: Reader, queue: Queue) -> None:
    queue.register("echo", lambda payload: payload)
    queue.enqueue("echo", {"big": 2**200, "small": 1e-7, "odd": 2**53 + 1}, id="j1")
    assert queue.drain() == 1
    page = web.open("/jobs/j1")
    for name in ("payload", "result"):
        section = page.section(name)
        figures = [span.raw for span in section.all("span", "figure")]
        assert figures == [str(2**200), "1e-07", str(2**53 + 1)]
        assert json.loads(section.one("button", "copy")["data-copy"]) == stored(queue, "j1").payload


@pytest.mark.parametrize("size", [1_000, 100_000])
def test_large_payload_is_shown_and_cut_where_it_says(web: Reader, queue: Queue, size: int) -> None:
    deep: Any = {"leaf": "found"}
    for _ in range(60):
        deep = [deep]
    queue.enqueue("email", {"deep": deep, "many": list(range(size))}, id="j1")
    section = web.open("/jobs/j1").section("payload")
    if size == 1_000:
        assert '"found"' in section.text
        assert [span.raw for span in section.all("span", "figure")] == [str(n) for n in range(size)]
    else:
        assert section.one("pre").raw.startswith('{\n  "deep": [')
        assert re.search(r"Truncated: the first 100,000 of [\d,]+ characters\.", section.text)


def test_secrets_are_shown_nowhere(web: Reader, queue: Queue) -> None:
    queue.register("echo", lambda payload: payload)
    queue.enqueue("echo", {"user": "ada", "password": "hunter2", "deep": [{"apiKey": "hunter2"}]}, id="done")
    queue.drain()
    insert(store_of(queue), "broken", payload='{"password": "hunter2", "to": "ada"}')
    finish(store_of(queue), claim_one(store_of(queue)), OUTCOMES["failed for good"])
    for id in ("done", "broken"):
        page = web.open(f"/jobs/{id}")
        assert "hunter2" not in page.source
        assert "[redacted]" in page.section("payload").text
        assert "ada" in page.section("payload").text
    assert json.loads(
        page.form("/jobs/broken/retry", lambda form: len(form.fields) > 1).value("payload")
    ) == {
        "password": "[redacted]",
        "to": "ada",
    }


def test_error_has_its_traceback(web: Reader, queue: Queue) -> None:
    trace = 'Traceback (most recent call last):\n  File "x.py", line 1\n    <b>&amp;\nKeyError: 1\n'
    run(store_of(queue), "j1")
    [held] = store_of(queue).list_held("worker")
    insert(store_of(queue), "j2")
    claimed = claim_one(store_of(queue))
    finish(store_of(queue), claimed, Errored("KeyError: 1\n  twice", traceback=trace, permanent=True))
    assert held.id == "j1"
    page = web.open("/jobs/j2")
    error = page.section("error")
    assert error.one("pre", "error").raw == "KeyError: 1\n  twice"
    assert error.one("details").one("pre").raw == trace
    assert not web.open("/jobs/j1").has("error")


def steps(page: Page) -> list[Element]:
    timeline = page.section("timeline").one("ol", "timeline")
    return [child for child in timeline.children if isinstance(child, Element)]


def looks(page: Page) -> list[str]:
    return [step["class"] for step in steps(page)]


@both_engines
def test_timeline_of_a_job_that_fails_twice_and_then_completes(
    web: Reader, queue: Queue, clock: MovableClock
) -> None:
    insert(store_of(queue), "j1")
    for attempt, error in enumerate(("OSError: one\nmore", "OSError: two")):
        clock.advance(seconds=10)
        store_of(queue).promote_jobs(10)
        claimed = claim_one(store_of(queue), worker=f"w{attempt}")
        started_at = store_of(queue).now()
        clock.advance(seconds=1.5)
        outcome = Errored(error, traceback=f"trace {attempt}", detail={"exitCode": attempt})
        finish(store_of(queue), claimed, outcome, started_at=started_at)
    page = web.open("/jobs/j1")
    assert [step.all("p")[0].text for step in steps(page)] == [
        "Created 23 s ago 2030-01-01 00:00:00 UTC",
        "Attempt 1 failed 11 s ago 2030-01-01 00:00:11 UTC took 1.5 s on w0",
        "Attempt 2 failed just now 2030-01-01 00:00:23 UTC took 1.5 s on w1",
        "Next attempt in 10 s 2030-01-01 00:00:33 UTC",
    ]
    clock.advance(seconds=10)
    store_of(queue).promote_jobs(10)
    claimed = claim_one(store_of(queue), worker="w2")
    assert steps(web.open("/jobs/j1"))[-1].text == "Attempt 3 running just now 2030-01-01 00:00:33 UTC on w2"
    clock.advance(seconds=2)
    finish(store_of(queue), claimed)
    page = web.open("/jobs/j1")
    assert looks(page) == ["created", "failed", "failed", "completed"]
    _, first, second, last = steps(page)
    assert last.text == "Attempt 3 completed just now 2030-01-01 00:00:35 UTC took 2.0 s"
    assert first.one("p", "error").text == "OSError: one"
    closed = [details for details in first.all("details") if "json" not in details.classes]
    assert [details.one("summary").text for details in closed[:1]] == ["Traceback"]
    assert closed[1].all("summary")[0].text == "Details"
    assert first.one("pre").raw.strip() == "trace 0"
    assert second.one("span", "figure").raw == "1"
    assert not page.has("error")  # it went well in the end


def test_timeline_of_a_job_that_was_retried_by_hand(web: Reader, queue: Queue) -> None:
    failing(queue, "j1")
    assert [step.all("strong")[0].text for step in steps(web.open("/jobs/j1"))] == [
        "Created", "Attempt 1 failed", "Failed permanently",
    ]  # fmt: skip
    queue.retry("j1")
    page = web.open("/jobs/j1")
    assert looks(page) == ["created", "failed", "pending"]
    finish(store_of(queue), claim_one(store_of(queue)))
    page = web.open("/jobs/j1")
    assert [step.all("strong")[0].text for step in steps(page)] == [
        "Created", "Attempt 1 failed", "Attempt 1 completed",
    ]  # fmt: skip


def test_timeline_of_a_job_that_was_cancelled_while_it_ran(
    web: Reader, queue: Queue, clock: MovableClock
) -> None:
    claimed = run(store_of(queue), "j1")
    queue.cancel("j1")
    page = web.open("/jobs/j1")
    assert [step.all("strong")[0].text for step in steps(page)] == [
        "Created",
        "Attempt 1 running, cancellation requested",
    ]
    assert "processing, stopping" in page.section("status").text
    assert page.section("actions").text == ""
    clock.advance(seconds=3)
    finish(store_of(queue), claimed, Stopped())
    page = web.open("/jobs/j1")
    assert looks(page)[-1] == "cancelled"
    assert steps(page)[-1].text == "Cancelled just now 2030-01-01 00:00:03 UTC"


@both_engines
def test_timeline_of_a_job_whose_worker_died(web: Reader, queue: Queue, clock: MovableClock) -> None:
    run(store_of(queue), "j1", max_attempts=1)
    run(store_of(queue), "j2")
    clock.advance(seconds=31)
    assert len(reap(store_of(queue))) == 2
    once = web.open("/jobs/j1")
    assert looks(once) == ["created", "failed", "failed"]
    assert steps(once)[1].one("p", "error").text == "WorkerLost: worker"
    assert "WorkerLost: worker" in once.section("error").text
    assert looks(web.open("/jobs/j2")) == ["created", "failed", "pending"]


def test_parent_and_children_are_linked(web: Reader, queue: Queue) -> None:
    def fan_out(payload: object, ctx: Context) -> None:
        for n in range(60):
            ctx.enqueue("child", {}, id=f"child{n:02}")

    queue.register("fan_out", fan_out)
    queue.enqueue("fan_out", {}, id="parent")
    queue.drain(1)
    page = web.open("/jobs/parent")
    children = page.section("children")
    shown = [item["data-key"] for item in children.all("li")]
    assert shown == [f"child{n:02}" for n in range(50)]
    assert "Showing 50 of 60." in children.text
    assert children.all("a")[0]["href"] == "/jobs/child00"
    assert [badge.text for badge in children.all("span", "badge")] == ["pending"] * 50
    child = web.open("/jobs/child07")
    assert child.section("metadata").pairs()["Enqueued by"] == "parent completed"
    assert child.link("parent") == "/jobs/parent"
    queue.delete("parent")
    orphan = web.open("/jobs/child07")
    assert orphan.section("metadata").pairs()["Enqueued by"] == "parent deleted"
    assert "/jobs/parent" not in orphan.links


def test_why_is_told_in_every_state(web: Reader, queue: Queue) -> None:
    ids = one_of_each(queue)
    questions = dict.fromkeys(("pending", "scheduled", "retrying"), "Why isn't it running?")
    questions |= dict.fromkeys(("processing", "stopping"), "What is it doing?")
    for state, id in ids.items():
        section = web.open(f"/jobs/{id}").section("why")
        assert section.one("h2").text == questions.get(state, "How did it end?")
        told = [item.text for item in section.all("li")]
        assert told == [reason.text[:1].upper() + reason.text[1:] for reason in queue.why(id)]
        assert told
    queue.pause("email")
    assert "Email is paused" in web.open("/jobs/ready").section("why").text


def test_output_of_a_command_is_cut_at_a_whole_character(web: Reader, queue: Queue) -> None:
    run(store_of(queue), "j1", type="shell")
    assert not web.open("/jobs/j1").has("output")
    Path(log_folder()).mkdir()
    path = Path(log_path("j1"))
    path.write_bytes(b"started\n  <b>\xff\n")
    page = web.open("/jobs/j1")
    assert page.section("log").raw == "started\n  <b>\ufffd\n"
    assert "Only the end of" not in page.section("output").text
    path.write_bytes("€".encode() * 30_000)
    page = web.open("/jobs/j1")
    assert page.section("log").raw == "€" * (64 * 1024 // 3)
    assert "Only the end of 90,000 bytes is shown. Show all" in page.section("output").text
    whole = web.client.get(page.link("Show all"))
    assert whole.headers["content-type"] == "text/plain; charset=utf-8"
    assert whole.text == "€" * 30_000


def test_output_that_begins_with_a_blank_line_keeps_it(web: Reader, queue: Queue) -> None:
    run(store_of(queue), "j1", type="shell")
    Path(log_folder()).mkdir()
    Path(log_path("j1")).write_bytes(b"\nafter a blank line\n")
    assert web.open("/jobs/j1").section("log").raw == "\nafter a blank line\n"


def test_job_that_is_no_command_has_no_output(web: Reader, queue: Queue) -> None:
    finished(store_of(queue), "j1")
    assert not web.open("/jobs/j1").has("output")


def test_buttons_are_those_that_the_queue_accepts(web: Reader, queue: Queue) -> None:
    ids = one_of_each(queue)
    calls: dict[str, Callable[[str], object]] = {
        "retry": queue.retry,
        "cancel": queue.cancel,
        "delete": queue.delete,
    }
    offered: dict[str, set[str]] = {}
    in_list = {
        row["data-key"]: {word.strip("…").lower() for word in row.one("td", "actions").text.split()}
        for row in web.open("/jobs").root.one("table", "jobs").one("tbody").all("tr")
    }
    for state, id in ids.items():
        page = web.open(f"/jobs/{id}")
        offered[state] = {word.strip("…").lower() for word in page.section("actions").text.split()}
        assert offered[state] == in_list[id]
        assert page.has("edit") == ("retry" in offered[state])
    assert offered == {
        "scheduled": {"cancel"},
        "pending": {"cancel"},
        "processing": {"cancel"},
        "stopping": set(),
        "completed": {"delete"},
        "failed": {"retry", "delete"},
        "cancelled": {"retry", "delete"},
        "retrying": {"retry", "cancel"},
    }
    for state, id in ids.items():
        for action, call in calls.items():
            if (state, action) == ("stopping", "cancel"):
                continue  # asked for twice, it is accepted and changes nothing
            assert accepts(queue, call, id) == (action in offered[state]), (state, action)


def accepts(queue: Queue, call: Callable[[str], object], id: str) -> bool:
    """Whether the queue would do it; nothing is changed."""
    try:
        with store_of(queue).transaction():
            call(id)
            raise ZeroDivisionError
    except ZeroDivisionError:
        return True
    except HoldfastError:
        return False


def test_payload_that_is_too_large_is_not_edited_here(web: Reader, queue: Queue) -> None:
    failing(queue, "j1", payload=json.dumps({"text": "x" * 300_000}))
    page = web.open("/jobs/j1")
    assert not page.has("edit")
    assert "The payload is too large to edit here." in page.main.text


def test_payload_is_edited_as_it_is_stored(web: Reader, queue: Queue) -> None:
    payload = {"text": "\n leading\nline", "tag": "</textarea><b>", "n": 2**200}
    failing(queue, "j1", payload=json.dumps(payload))
    form = web.open("/jobs/j1").form("/jobs/j1/retry", lambda form: len(form.fields) > 1)
    assert json.loads(form.value("payload")) == payload


# Problems


def test_unknown_job_is_a_page(web: Reader) -> None:
    for address in ("/jobs/nobody", "/jobs/nobody/delete", "/jobs/stats"):
        page = web.open(address, 404)
        assert page.heading == "Not Found"
        assert page.alerts[0].startswith("There is no job '")
        assert page.link("Go to the overview") == "/"


def test_unknown_path_and_wrong_method_are_pages(web: Reader) -> None:
    assert web.open("/nowhere", 404).alerts == ["There is nothing at this path."]
    answer = web.client.put("/jobs")
    assert web.read(answer, 405).alerts == ["This path does not support this method."]
    assert answer.headers["allow"] == "GET, HEAD"


@pytest.mark.parametrize("path", ["/jobs/nobody", "/nowhere", "/jobs?status=asleep"])
def test_programs_are_told_in_json(api: httpx.Client, path: str) -> None:
    answer = api.get(path, headers={"accept": "*/*"})
    if path.startswith("/jobs?"):
        assert answer.status_code == 400
        return  # a page is a page
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error"]["code"] == "not_found"


def test_api_answers_json_to_a_browser_too(web: Reader) -> None:
    answer = web.client.get("/api/tasks/nobody")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"] == "there is no job 'nobody'"


PAGES = ["/", "/jobs", "/jobs/broken", "/jobs/bulk?action=retry&all=1", "/jobs/broken/delete", "/cleanup"]
PAGES += ["/enqueue", "/enqueue?type=email", "/controls", "/controls?type=email", "/docs"]


@pytest.mark.parametrize("path", PAGES)
def test_head_is_a_get_without_a_body(web: Reader, queue: Queue, path: str) -> None:
    one_of_each(queue)
    page, head = web.client.get(path), web.client.head(path)
    assert (page.status_code, head.status_code, head.content) == (200, 200, b"")
    assert head.headers["content-type"] == page.headers["content-type"]
    assert head.headers["cache-control"] == "no-store"


def test_database_that_is_gone_is_a_page(web: Reader, queue: Queue, home: Path) -> None:
    one_of_each(queue)
    queue.close()
    for name in ("queue.db", "queue.db-wal", "queue.db-shm"):
        (home / name).unlink(missing_ok=True)
    (home / "queue.db").mkdir()
    for path in PAGES[:-1]:
        answer = web.client.get(path)
        page = web.read(answer, 503)
        assert answer.headers["retry-after"] == "1"
        assert page.heading == "Service Unavailable"
        assert len(page.alerts) == 1
    assert web.open("/docs").heading.startswith("HTTP API")


def test_database_that_stays_locked_is_a_page_for_changes_only(
    web: Reader, queue: Queue, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patiently = Database.patiently
    monkeypatch.setattr(Database, "patiently", lambda self, action, _=None: patiently(self, action, 0.05))
    one_of_each(queue)
    pages = {path: web.open(path) for path in PAGES}
    with write_lock(home / "queue.db"):
        for path in PAGES:
            assert web.open(path).title == pages[path].title
        answer = web.send(
            pages["/jobs/broken"].form("/jobs/broken/retry", lambda form: len(form.fields) == 1)
        )
        page = web.read(answer, 503)
        assert "locked" in page.alerts[0]
        assert answer.headers["retry-after"] == "1"
    assert stored(queue, "broken").status == "failed"


# Every link leads somewhere


def crawl(web: Reader, prefix: str = "", *, may_change: bool = True) -> set[str]:
    """Open what can be reached from the overview in a few steps, and each kind of address once."""
    waiting = [(f"{prefix}/", 0)]
    seen: set[str] = set()
    pages: set[str] = set()
    while waiting:
        address, depth = waiting.pop(0)
        path = urlsplit(address).path
        kind = f"{re.sub('more[0-9]+', 'more', path)} {sorted({name for name, _ in query(address)})}"
        if kind in seen:
            continue
        seen.add(kind)
        assert len(seen) < 200, "too many pages"
        answer = web.client.get(address)
        if answer.status_code == 303:
            answer = web.client.get(answer.headers["location"])
        assert answer.status_code == 200, (address, answer.text)
        if not answer.headers["content-type"].startswith("text/html"):
            continue
        page = web.read(answer)
        pages.add(path.removeprefix(prefix))
        assert page.main.attributes.get("data-events", f"{prefix}/").startswith(f"{prefix}/"), address
        if depth < 2:
            waiting += [(target, depth + 1) for target in targets(page, address)]
        for target in posted_to(page) - {f"{prefix}/logout"}:
            assert may_change, target
            refused = web.client.post(target, content="", headers=FORM)
            assert (
                web.read(refused, 403).alerts[0].startswith("The form has expired or was sent from elsewhere")
            ), target
    return pages


FORM = {"content-type": "application/x-www-form-urlencoded"}


def targets(page: Page, address: str) -> list[str]:
    """What a page loads, leads to, or asks for with a form."""
    found = [
        element[name].partition("#")[0] or address
        for tag, name in (("a", "href"), ("link", "href"), ("script", "src"), ("img", "src"))
        for element in page.root.all(tag)
    ]
    for form in page.forms:
        for button in form.buttons if form.method == "get" else ():
            pressed = [(button["name"], button["value"])] if "name" in button.attributes else []
            found.append(f"{form.action}?{urlencode([*form.fields, *pressed])}")
    return found


def posted_to(page: Page) -> set[str]:
    """Where a page's buttons send its forms."""
    return {
        button.attributes.get("formaction", form.action)
        for form in page.forms
        if form.method == "post"
        for button in form.buttons
    }


def populate(queue: Queue) -> None:
    one_of_each(queue)
    queue.register("echo", lambda payload: payload)
    insert(store_of(queue), *(f"more{n}" for n in range(60)))
    run(store_of(queue), "command", type="shell")
    Path(log_folder()).mkdir()
    Path(log_path("command")).write_bytes(b"x" * 70_000)
    queue.enqueue("a:b.c-d_e", {}, id="lane")


CHANGES = {"/enqueue", "/cleanup", "/jobs/bulk", "/jobs/broken/delete"}


@pytest.mark.parametrize(("token", "prefix"), [(TOKEN, "/ops/queue"), (READ_TOKEN, "")])
def test_every_link_and_form_answers_with_a_token_and_below_a_prefix(
    queue: Queue, token: str, prefix: str
) -> None:
    populate(queue)
    app = create_app(queue, TOKEN, READ_TOKEN)
    with live(app, root_path=prefix) as address, below(address, prefix) as made:
        web = Reader(made)
        entry = web.follow(made.get(f"{prefix}/jobs?status=failed"))
        assert entry.title == "Log in · Holdfast"
        listed = web.submit(entry.form(f"{prefix}/login"), changes={"token": token})
        assert shown_ids(listed) == ["broken"]
        pages = crawl(web, prefix, may_change=token == TOKEN)
        assert pages >= {"/", "/jobs", "/jobs/command", "/controls", "/docs"}
        assert pages & CHANGES == (CHANGES if token == TOKEN else set())


def test_reader_without_the_right_to_change_is_shown_no_forms_for_it(queue: Queue) -> None:
    populate(queue)
    with live(create_app(queue, TOKEN, READ_TOKEN)) as address, client(address) as made:
        made.headers["authorization"] = f"Bearer {READ_TOKEN}"
        web = Reader(made)
        for path in (
            "/",
            "/jobs",
            *(f"/jobs/{job.id}" for job in queue.jobs(type="email", limit=8)),
            "/jobs/broken",
            "/jobs/busy",
            "/controls",
            "/controls?type=email",
            "/reconcile",
            "/docs",
        ):
            page = web.open(path)
            assert {form.action for form in page.forms if form.method == "post"} == {"/logout"}, path
            assert {form.action for form in page.forms if form.method == "get"} <= {"/jobs", "/controls"}, (
                path
            )
            assert not [link for link in page.links if urlsplit(link).path in CHANGES], path
            assert page.root.one("header").one("span", "tag").text == "read-only"
        for path in (*CHANGES, "/enqueue?type=email", "/jobs/bulk?action=retry&all=1"):
            assert web.open(path, 403).alerts == ["A read-only token can't make changes."]


def test_titles_say_where_one_is_and_no_two_pages_have_the_same(web: Reader, queue: Queue) -> None:
    populate(queue)
    titles = set()
    for path, status, part, current in (
        ("/", 200, "Overview", ["Overview"]),
        ("/jobs", 200, "Jobs", ["Jobs"]),
        ("/jobs/broken", 200, "broken", ["Jobs"]),
        ("/jobs/bulk?action=retry&id=broken", 200, "Retry 1 job?", ["Jobs"]),
        ("/jobs/broken/delete", 200, "Delete broken?", ["Jobs"]),
        ("/cleanup?older_than=0s", 200, "Clean up", []),
        ("/enqueue", 200, "Enqueue", ["Enqueue"]),
        ("/controls", 200, "Controls", ["Controls"]),
        ("/reconcile", 200, "Reconcile", ["Reconcile"]),
        ("/docs", 200, "API", ["API"]),
        ("/missing", 404, "Not Found", []),
    ):
        page = web.open(path, status)
        assert part in page.title
        assert [link.text for link in page.root.all("a", aria_current="page")] == current, path
        titles.add(page.title)
    assert len(titles) == 11
