"""queuectl list and dlq by error, time, words and order: what is found, and how to go on."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Queue
from holdfast.cli import actions
from holdfast.listing import pages as listing
from holdfast.testing import MovableClock
from tests.support import both_engines, unsynced
from tests.surfaces.answers import got
from tests.surfaces.support import Cli, Ran, on_terminal, queuectl

NO_ANSWER = "RuntimeError: no answer after # s"


@pytest.fixture
def clock() -> MovableClock:
    """Five hours behind: what these tests enqueue is that old for queuectl."""
    clock = MovableClock()
    clock.advance(hours=-5)
    return clock


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    with Queue(unsynced(url), clock=clock) as queue:
        yield queue


@pytest.fixture
def varied(queue: Queue, clock: MovableClock) -> Queue:
    """A job an hour, the last one about now; they end in another order than they came in."""

    def fail(payload: dict[str, Any]) -> None:
        raise RuntimeError(payload["why"])

    for type in ("mail", "sync"):
        queue.register(type, fail)
    for id, type, why, options in (
        ("first", "other", "", {"priority": -5}),
        ("slow-1", "mail", "no answer after 30 s", {}),
        ("refused", "mail", "refused", {"key": "order-7"}),
        ("slow-2", "mail", "no answer after 45.5 s", {"priority": 7}),
        ("sync", "sync", "no answer after 9 s", {}),
        ("last", "other", "", {"priority": 7}),
    ):
        queue.enqueue(type, {"why": why, "user": {"id": 42}}, id=id, max_attempts=1, **options)
        queue.drain()
        clock.advance(hours=1)
    queue.cancel("first")
    return queue


def ids(ran: Ran) -> list[str]:
    assert (ran.code, ran.err) == (0, ""), ran
    return [row[0] for row in ran.rows]


def statuses(queue: Queue, *names: str) -> list[str]:
    return [job.status.value for job in queue.get_many(names)]


ALL = ["last", "sync", "slow-2", "refused", "slow-1", "first"]

FOUND: list[tuple[str, list[str]]] = [
    (f"--error|{NO_ANSWER}", ["sync", "slow-2", "slow-1"]),
    (f"--error|{NO_ANSWER}|--type|mail", ["slow-2", "slow-1"]),
    (f"--error|{NO_ANSWER}|--status|completed", []),
    ("--error|nothing like it", []),
    ("--error|", []),
    ("--since|150m", ["last", "sync", "slow-2"]),
    ("--until|2.5h", ["refused", "slow-1", "first"]),
    ("--since|4.5h|--until|9000s", ["refused", "slow-1"]),
    ("--since|1w", ALL),
    ("--since|0s", []),
    ("--until|10000000000s", []),
    ("--since|1970-01-01T00:00:00Z|--until|9999-12-31T23:59:59Z", ALL),
    ("--since|2.5h|--status|failed", ["sync", "slow-2"]),
    ("--sort|created", ALL),
    ("--reverse", ALL[::-1]),
    ("--sort|priority", ["last", "slow-2", "sync", "refused", "slow-1", "first"]),
    ("--sort|priority|--reverse", ["first", "slow-1", "refused", "sync", "slow-2", "last"]),
    ("--sort|finished", ["first", "sync", "slow-2", "refused", "slow-1"]),
    ("--sort|finished|--reverse", ["slow-1", "refused", "slow-2", "sync", "first"]),
    ("--sort|finished|--since|150m", ["first", "sync", "slow-2"]),
    ("--search|slow", ["slow-2", "slow-1"]),
    ("--search|ORDER-7", ["refused"]),
    ('--search|"answer after 9"', ["sync"]),
    ("--search|payload.user.id:42 slow|--reverse", ["slow-1", "slow-2"]),
    ("--search|answer|--sort|priority", ["slow-2", "sync", "slow-1"]),
    ("--search|", ALL),
    ("--search|\N{PILE OF POO}", []),
    (f"--search|slow|--error|{NO_ANSWER}|--type|mail|--status|dead|--since|2.5h|--until|0.5h", ["slow-2"]),
]


@pytest.mark.parametrize(("words", "found"), FOUND, ids=[words for words, _ in FOUND])
def test_list_takes_each_filter_and_all_together(
    cli: Cli, varied: Queue, words: str, found: list[str]
) -> None:
    assert ids(cli("list", *words.split("|"))) == found
    answer = cli("list", *words.split("|"), "--json").json
    assert ([task["id"] for task in answer["tasks"]], answer["total"]) == (found, len(found))
    assert (answer["totalIsCapped"], answer["nextCursor"]) == (False, None)


def test_instant_bounds_a_list_to_the_microsecond(cli: Cli, varied: Queue) -> None:
    created = cli("show", "refused", "--json").json["createdAt"]
    assert ids(cli("list", "--since", created, "--reverse")) == ["refused", "slow-2", "sync", "last"]
    assert ids(cli("list", "--until", created)) == ["slow-1", "first"]


def test_jobs_are_listed_by_their_parent(cli: Cli, queue: Queue) -> None:
    queue.register("parent", lambda _, ctx: ctx.enqueue("child", id="child"))
    queue.enqueue("parent", id="parent")
    queue.drain(1)
    assert ids(cli("list", "--parent", "parent")) == ids(cli("list", "--parent-id", "parent")) == ["child"]
    assert ids(cli("list", "--parent", "child")) == []
    assert "--parent-id requires --all" in cli("dlq", "retry", "child", "--parent", "parent").err


def test_error_may_be_given_as_a_job_shows_it(cli: Cli, varied: Queue) -> None:
    (row,) = cli("list", "--search", "slow-1").rows
    assert row[5] == "RuntimeError: no answer after 30 s"
    assert ids(cli("list", "--error", row[5])) == ["sync", "slow-2", "slow-1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sort", "age"], "choose from 'created', 'finished', 'priority'"),
        (
            ["--since", "yesterday"],
            "2030-01-31T09:00:00Z, or a duration before now such as 1h, not 'yesterday'",
        ),
        (["--until", "2030-01-01"], "until '2030-01-01' needs a time zone"),
        (["--until", "99999999999s"], "until must be a time such as"),
        (["--search", "a" * 501], "a search may have at most 500 characters, not 501"),
        (["--search", "payload.password:x"], "password is the name of a secret"),
        (
            ["--search", "x", "--offset", "1"],
            "search and offset are mutually exclusive; continue a search with its cursor",
        ),
        (
            ["--sort", "priority", "--cursor", "3"],
            "cursor must be the nextCursor of an earlier page in the same",
        ),
    ],
)
def test_wrong_value_is_told_what_is_allowed(cli: Cli, words: list[str], said: str) -> None:
    ran = cli("list", *words)
    assert (ran.code, ran.out, len(ran.errors)) == (2, "", 1)
    assert said in ran.err.replace("choose from created, finished, priority", said)


# Search


def test_search_that_may_find_more_says_how_to_go_on(cli: Cli, varied: Queue) -> None:
    first = cli("list", "--search", "slow", "--limit", "1")
    assert (first.code, [row[0] for row in first.rows]) == (0, ["slow-2"])
    (said,) = first.errors
    assert said.startswith("queuectl: 3 jobs searched; continue with --cursor ")
    cursor = said.partition("--cursor ")[2].split()[0]
    second = cli("list", "--search", "slow", "--limit", "1", "--cursor", cursor)
    assert [row[0] for row in second.rows] == ["slow-1"]
    assert second.err.startswith("queuectl: 2 jobs searched")
    assert cli("list", "--search", "last", "--limit", "1").err.startswith("queuectl: 1 job searched")


def test_search_as_json_says_so_in_the_answer_alone(cli: Cli, varied: Queue) -> None:
    ran = cli("list", "--search", "slow", "--limit", "1", "--json")
    assert ran.err == ""
    answer = {name: value for name, value in ran.json.items() if name not in ("tasks", "nextCursor")}
    assert answer == {"total": 1, "totalIsCapped": True, "limit": 1, "offset": 0, "examined": 3}
    assert "examined" not in cli("list", "--json").json


def test_search_reads_so_many_jobs_and_older_ones_on_demand(
    cli: Cli, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_SEARCHED", 20)
    queue.enqueue("t", {}, id="needle")
    queue.enqueue_many("t", [{}] * 25)
    ran = cli("list", "--search", "needle")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err.startswith("queuectl: 20 jobs searched; continue with --cursor ")
    cursor = ran.err.partition("--cursor ")[2].split()[0]
    assert ids(cli("list", "--search", "needle", "--cursor", cursor)) == ["needle"]


def test_notice_of_a_search_stands_beside_whole_jobs_too(cli: Cli, varied: Queue) -> None:
    ran = cli("list", "--search", "slow", "--limit", "1", "--full")
    assert ran.lines[0].split() == ["id", "slow-2"]
    assert ran.err.startswith("queuectl: 3 jobs searched")


@pytest.mark.process
def test_notice_is_no_part_of_the_output(home: Path, varied: Queue) -> None:
    ran = queuectl(home, "list", "--search", "slow", "--limit", "1")
    assert (len(ran.lines), len(ran.errors)) == (1, 1)
    shown = on_terminal(home, "list", "--search", "slow", "--limit", "1", width=120).text
    assert "3 jobs searched" in shown
    assert "to see more" not in shown


@pytest.mark.process
def test_last_page_on_a_terminal_does_not_speak_of_more(home: Path, varied: Queue, cli: Cli) -> None:
    cursor = cli("list", "--limit", "3", "--json").json["nextCursor"]
    assert "3 of 6" in on_terminal(home, "list", "--limit", "3").text
    assert "of 6" not in on_terminal(home, "list", "--limit", "3", "--cursor", cursor).text


# Pages in every order


@pytest.mark.parametrize("reverse", [[], ["--reverse"]], ids=["down", "up"])
@pytest.mark.parametrize("sort", ["created", "finished", "priority"])
@pytest.mark.parametrize("search", [[], ["--search", "job"]], ids=["list", "search"])
def test_cursor_shows_what_stays_once_in_every_order_though_jobs_come_and_go(
    cli: Cli, queue: Queue, clock: MovableClock, sort: str, reverse: list[str], search: list[str]
) -> None:
    def end(number: int) -> None:
        clock.advance(number % 2)
        queue.cancel(queue.enqueue("t", id=f"job-{number}", priority=number * 7 % 5 - 2).id)

    for number in range(30):
        end(number)
    words = ["list", "--sort", sort, *reverse, *search, "--limit", "4", "--json"]
    whole = [task["id"] for task in cli(*words, "--limit", "100").json["tasks"]]
    goes = whole[::3]
    seen: list[str] = []
    cursor: list[str] = []
    for turn in range(30):
        page = cli(*words, *cursor).json
        names = [task["id"] for task in page["tasks"]]
        seen += names
        for id in {*[name for name in names if name in goes][-1:], *goes[-1:]}:
            goes.remove(id)
            queue.delete(id)
        if turn < 5:
            end(30 + turn)
        if page["nextCursor"] is None:
            break
        cursor = ["--cursor", page["nextCursor"]]
    else:
        pytest.fail("it did not come to an end")
    assert len(seen) == len(set(seen))
    stayed = [name for place, name in enumerate(whole) if place % 3]
    assert [name for name in seen if name in stayed] == stayed


def test_list_answers_as_the_api_does(cli: Cli, varied: Queue, api: httpx.Client) -> None:
    for words, query in (
        (["--error", NO_ANSWER, "--limit", "1"], {"error": NO_ANSWER, "limit": "1"}),
        (["--search", "slow", "--limit", "1"], {"search": "slow", "limit": "1"}),
        (["--sort", "finished", "--reverse"], {"sort": "finished", "order": "asc"}),
        (["--sort", "priority", "--limit", "2"], {"sort": "priority", "limit": "2"}),
    ):
        assert cli("list", *words, "--json").json == got(api.get("/api/tasks", params=query))


# dlq


def test_dlq_list_takes_the_filters_of_a_list(cli: Cli, varied: Queue) -> None:
    assert ids(cli("dlq", "list", "--error", NO_ANSWER, "--type", "mail")) == ["slow-2", "slow-1"]
    assert ids(cli("dlq", "list", "--search", "answer", "--reverse")) == ["slow-1", "slow-2", "sync"]
    assert ids(cli("dlq", "list", "--since", "2.5h", "--sort", "priority")) == ["slow-2", "sync"]
    assert ids(cli("dlq", "list", "--search", "first")) == []


@pytest.mark.parametrize(
    ("words", "retried"),
    [
        (["--error", NO_ANSWER], ["slow-1", "slow-2", "sync"]),
        (["--error", "RuntimeError: no answer after 1 s", "--type", "mail"], ["slow-1", "slow-2"]),
        (["--search", "slow"], ["slow-1", "slow-2"]),
        (["--search", "payload.user.id:42", "--since", "2.5h"], ["slow-2", "sync"]),
        (["--until", "2.5h"], ["slow-1", "refused"]),
        (["--since", "3.5h", "--until", "2.5h"], ["refused"]),
        (["--search", ""], ["slow-1", "refused", "slow-2", "sync"]),
        (["--error", "nothing like it"], []),
    ],
)
def test_dlq_retry_of_all_takes_those_that_fit(
    cli: Cli, varied: Queue, words: list[str], retried: list[str]
) -> None:
    ran = cli("dlq", "retry", "--all", *words)
    count = len(retried)
    said = "1 job is pending again\n" if count == 1 else f"{count} jobs are pending again\n"
    assert (ran.code, ran.out, ran.err) == (0, said, "")
    assert {job.id for job in varied.jobs(status="pending")} == {*retried, "last"}
    assert statuses(varied, "first") == ["cancelled"]


@both_engines
def test_dlq_retry_by_error_leaves_jobs_whose_key_is_held(cli: Cli, varied: Queue) -> None:
    varied.enqueue("mail", {"why": "again"}, id="holder", key="order-7")
    ran = cli("dlq", "retry", "--all", "--error", "RuntimeError: refused", "--json")
    assert (ran.code, ran.json) == (1, {"retried": 0, "left": 1})
    assert "another job holds the key" in ran.err
    assert statuses(varied, "refused") == ["failed"]


def test_dlq_retry_by_a_search_says_what_it_did_not_search(
    cli: Cli, varied: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (listing, actions):
        monkeypatch.setattr(module, "MOST_SEARCHED", 3)
    ran = cli("dlq", "retry", "--all", "--search", "slow")
    assert (ran.code, ran.out) == (0, "1 job is pending again\n")
    assert ran.err.startswith("queuectl: only the newest 3 failed jobs were searched; use --until ")
    assert statuses(varied, "slow-1", "slow-2") == ["failed", "pending"]
    rest = cli("dlq", "retry", "--all", "--search", "slow", "--until", "2.5h")
    assert (rest.out, rest.err) == ("1 job is pending again\n", "")
    assert statuses(varied, "slow-1") == ["pending"]


def test_dlq_retry_of_many_goes_through_all_of_them(cli: Cli, queue: Queue, clock: MovableClock) -> None:
    def fail(payload: dict[str, Any]) -> None:
        raise RuntimeError(f"row {payload['n']} is bad")

    queue.register("rows", fail)
    queue.enqueue_many("rows", [{"n": n} for n in range(450)], max_attempts=1)
    assert queue.drain() == 450
    before = clock.now - timedelta(hours=1)
    ran = cli("dlq", "retry", "--all", "--error", "RuntimeError: row 7 is bad", "--since", before.isoformat())
    assert (ran.code, ran.out) == (0, "450 jobs are pending again\n")
    assert queue.count(status="pending") == 450
