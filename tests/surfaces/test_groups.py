"""Groups on every surface: given at enqueue, found by filters, and shown with who is in their way."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Context, Queue
from holdfast.core.job import MAX_GROUP_LENGTH
from holdfast.errors import ConfigError
from holdfast.store.open import store_of
from holdfast.testing import MovableClock
from tests.conformance.steps import claim, finished
from tests.support import both_engines, unsynced
from tests.surfaces.answers import NOW, got, refused
from tests.surfaces.html_page import Reader
from tests.surfaces.support import Cli

pytestmark = pytest.mark.slow

WRONG = "group must be 1 to 256 printable characters"


@pytest.fixture
def queue(url: str) -> Iterator[Queue]:
    """The home's queue, on a clock that stands still."""
    with Queue(unsynced(url), clock=MovableClock(NOW)) as queue:
        yield queue


@pytest.fixture
def web(api: httpx.Client) -> Reader:
    return Reader(api)


@pytest.fixture
def shared(queue: Queue) -> Queue:
    """Two jobs of customer:1 run, one waits and one is done; one of customer:2 waits, and one of nobody."""
    queue.set_config("group_concurrency", 2, type="export")
    finished(store_of(queue), "done", type="export", group="customer:1")
    for id in ("one", "two"):
        queue.enqueue("export", {}, id=id, group="customer:1")
        claim(store_of(queue), "export", limit=1)
    queue.enqueue("export", {}, id="three", group="customer:1")
    queue.enqueue("export", {}, id="other", group="customer:2")
    queue.enqueue("export", {}, id="nobody")
    return queue


def group_of(queue: Queue, id: str) -> str | None:
    return queue.require(id).group


# Enqueueing.


@both_engines
def test_every_way_to_enqueue_takes_a_group(queue: Queue) -> None:
    @queue.job
    def export(ctx: Context, n: int = 0) -> None:
        if n == 0:
            ctx.enqueue("child", {}, id="child", group="of-child")

    grouped = export.with_options(group="g")
    jobs = [
        queue.enqueue("export", {"n": 1}, group="g"),
        asyncio.run(queue.enqueue_async("export", {"n": 1}, group="g")),
        *queue.enqueue_many("export", [{"n": 1}] * 2, group="g"),
        *(job for job, _ in queue.enqueue_batch([("export", {"n": 1}, {"group": "g"})])),
        grouped.enqueue(n=1),
        *grouped.enqueue_many([{"n": 1}]),
    ]
    with queue.bulk() as bulk:
        bulk.add(1, "export", {"n": 1}, {"group": "g"})
        jobs += [queue.require(id) for id in bulk.store()]
    assert {job.group for job in jobs} == {"g"}
    assert {group_of(queue, job.id) for job in jobs} == {"g"}
    export.enqueue(n=0)
    queue.drain()
    assert group_of(queue, "child") == "of-child"


@both_engines
@pytest.mark.parametrize("group", ["g", "x" * MAX_GROUP_LENGTH, "Kundé 7: 'a\"; --", "%_\\", "\U0001f600"])
def test_a_group_comes_back_as_it_was_given_and_finds_its_jobs(queue: Queue, group: str) -> None:
    queue.enqueue("export", {}, id="job1", group=group)
    queue.enqueue("export", {}, group="another")
    assert group_of(queue, "job1") == group
    assert [job.id for job in queue.jobs(group=group)] == ["job1"]
    assert queue.count(group=group) == 1


@both_engines
@pytest.mark.parametrize(
    "group",
    ["", "x" * (MAX_GROUP_LENGTH + 1), "a\nb", "a\x00b", "\u202ea", "\ud800", 7, True, b"g"],
)
def test_anything_else_is_refused_alike(queue: Queue, group: Any) -> None:
    with pytest.raises(ConfigError, match=WRONG) as caught:
        queue.enqueue("export", {}, group=group)
    assert caught.value.option == "group"
    with pytest.raises(ConfigError, match=WRONG):
        queue.jobs(group=group)
    assert queue.count() == 0


@both_engines
@pytest.mark.parametrize("group", [" ", " a", "a "])
def test_a_space_at_an_end_of_a_group_is_refused(queue: Queue, api: httpx.Client, group: str) -> None:
    problem = f"group must not begin or end with a space: '{group}'"
    for call in (lambda: queue.enqueue("export", {}, group=group), lambda: queue.jobs(group=group)):
        with pytest.raises(ConfigError) as caught:
            call()
        assert str(caught.value) == problem
    task = {"type": "export", "options": {"group": group}}
    assert refused(api.post("/api/tasks", json=task), 400, "invalid_request") == problem
    answer = api.get("/api/tasks", params={"group": group})
    assert refused(answer, 400, "invalid_request") == problem
    assert queue.count() == 0


@pytest.mark.parametrize(
    "words",
    [
        ("--command", "true", "--id", "job1", "--group", "customer:1"),
        ('{"command": "true", "id": "job1", "group": "customer:1"}',),
    ],
)
def test_the_command_line_takes_a_group(cli: Cli, queue: Queue, words: tuple[str, ...]) -> None:
    assert cli("enqueue", *words).code == 0
    assert group_of(queue, "job1") == "customer:1"
    shown = cli("show", "job1")
    assert "group     customer:1" in shown.lines
    assert cli("show", "job1", "--json").json["group"] == "customer:1"


def test_a_file_of_jobs_may_have_groups(cli: Cli, queue: Queue, tmp_path: Path) -> None:
    lines = [{"type": "export", "id": f"job{n}", "group": f"customer:{n}"} for n in range(3)]
    (tmp_path / "jobs.jsonl").write_text("\n".join(map(json.dumps, lines)))
    assert cli("enqueue", "--file", str(tmp_path / "jobs.jsonl")).code == 0
    assert [group_of(queue, f"job{n}") for n in range(3)] == ["customer:0", "customer:1", "customer:2"]


def test_the_command_line_says_what_is_wrong_with_a_group(cli: Cli, queue: Queue) -> None:
    ran = cli("enqueue", "--command", "true", "--group", "")
    assert (ran.code, ran.out) == (2, "")
    assert WRONG in ran.err
    assert WRONG in cli("list", "--group", "a\tb").err


def test_http_takes_a_group_and_says_what_is_wrong_with_one(api: httpx.Client, queue: Queue) -> None:
    task = {"type": "export", "options": {"id": "job1", "group": "customer:1"}}
    assert api.post("/api/tasks", json=task).status_code == 201
    assert got(api.get("/api/tasks/job1"))["group"] == "customer:1"
    batch = {"tasks": [{"type": "export", "options": {"id": "job2", "group": "customer:2"}}]}
    assert api.post("/api/tasks/batch", json=batch).status_code == 201
    assert group_of(queue, "job2") == "customer:2"
    answer = api.post("/api/tasks", json={"type": "export", "options": {"group": ""}})
    assert WRONG in refused(answer, 400, "invalid_request")
    assert "group: " in refused(
        api.post("/api/tasks", json={"type": "export", "options": {"group": 7}}), 400, "invalid_request"
    )


def test_the_form_takes_a_group_and_says_what_is_wrong_with_one(web: Reader, queue: Queue) -> None:
    form = web.open("/enqueue?type=export&text=1").form("/enqueue", lambda form: form.method == "post")
    page = web.submit(form, changes={"id": "job1", "group": "customer:1"})
    assert page.notice == "Job job1 enqueued."
    assert group_of(queue, "job1") == "customer:1"
    assert page.section("metadata").pairs()["Group"] == "customer:1"
    page = web.read(web.send(form, changes={"id": "job2", "group": "x" * 257}), 400)
    assert WRONG in page.main.text
    assert queue.get("job2") is None


# Finding them.


@both_engines
def test_lists_counts_and_orders_for_many_know_groups(shared: Queue, api: httpx.Client, cli: Cli) -> None:
    ids = ["three", "two", "one", "done"]
    assert [job.id for job in shared.jobs(group="customer:1")] == ids
    assert shared.count(group="customer:1", status="processing") == 2
    answer = got(api.get("/api/tasks?group=customer:1"))
    assert ([task["id"] for task in answer["tasks"]], answer["total"]) == (ids, 4)
    ran = cli("list", "--group", "customer:1", "--json")
    assert [task["id"] for task in ran.json["tasks"]] == ids
    order = {"action": "cancel", "filter": {"group": "customer:2"}, "expectedCount": 1}
    assert got(api.post("/api/tasks/bulk", json=order))["done"] == 1
    assert shared.cancel_all(group="customer:1") == (3, 0)
    assert shared.retry_all(group="customer:2", status="cancelled") == (1, 0)


def test_a_search_finds_the_name_of_a_group(shared: Queue) -> None:
    assert [job.id for job in shared.page(search="customer:2").jobs] == ["other"]
    assert [job.id for job in shared.page(search="CUSTOMER:1", status="pending").jobs] == ["three"]


def test_live_events_follow_a_group(shared: Queue, api: httpx.Client) -> None:
    text = api.get("/api/events?group=customer:2&once=true").text
    data = [json.loads(line[6:]) for line in text.splitlines() if line.startswith("data: ")]
    assert data[1]["ids"] == ["other"]


def test_a_list_has_a_column_for_groups_only_if_a_job_has_one(shared: Queue, cli: Cli) -> None:
    rows = {row[0]: row for row in cli("list").rows}
    assert rows["three"][3] == "customer:1"
    assert rows["nobody"][3] == ""
    shared.enqueue("lonely", {}, id="lonely")
    (row,) = cli("list", "--type", "lonely").rows
    assert row[:4] == ["lonely", "pending", "lonely", "0"]


def test_the_pages_lead_from_a_job_to_its_group(shared: Queue, web: Reader) -> None:
    page = web.open("/jobs/three")
    link = page.section("metadata").one("a", href="/jobs?group=customer%3A1")
    assert link.text == "customer:1"
    page = web.open("/jobs?group=customer%3A1")
    assert "4 jobs." in page.section("summary").text
    assert "group: customer:1" in page.section("chips").text
    assert page.section("filters").one("input", name="group").get("value") == "customer:1"
    assert web.open("/jobs?group=a%09b", 400).alerts[0].startswith(WRONG)


def test_an_order_for_all_of_a_group_is_for_that_group(shared: Queue, web: Reader) -> None:
    page = web.open("/jobs/bulk?group=customer%3A1&status=pending&action=cancel&all=1")
    web.submit(page.form("/jobs/bulk"))
    assert {job.id for job in shared.jobs(status="cancelled")} == {"three"}


# Why, and how busy they are.


@both_engines
def test_why_says_how_many_of_the_group_run(shared: Queue, api: httpx.Client, cli: Cli, web: Reader) -> None:
    text = "2 of 2 jobs of customer:1 are running, the most that group_concurrency allows"
    assert text in [reason.text for reason in shared.why("three")]
    assert text in [reason["text"] for reason in got(api.get("/api/tasks/three/why"))["reasons"]]
    assert text in cli("why", "three").lines
    assert text in web.open("/jobs/three").section("why").text
    for id in ("other", "nobody"):
        assert not [reason for reason in shared.why(id) if reason.code == "group_concurrency"]


@both_engines
def test_the_busiest_groups_are_shown(shared: Queue, api: httpx.Client, cli: Cli, web: Reader) -> None:
    busiest = [
        {"type": "export", "group": "customer:1", "waiting": 1, "running": 2},
        {"type": "export", "group": "customer:2", "waiting": 1, "running": 0},
    ]
    found = shared.busiest_groups()
    assert [(g.type, g.group, g.waiting, g.running) for g in found] == [tuple(g.values()) for g in busiest]
    assert len(shared.busiest_groups(1)) == 1
    assert got(api.get("/api/tasks/stats"))["busiestGroups"] == busiest
    assert cli("status", "--json").json["busiestGroups"] == busiest
    assert ["group", "customer:1", "type export", "waiting 1", "running 2"] in cli("status").rows
    rows = web.open("/").section("busiest").rows()
    assert rows == [["customer:1", "export", "1", "2"], ["customer:2", "export", "1", "0"]]


def test_without_groups_nothing_is_said_of_them(
    queue: Queue, api: httpx.Client, cli: Cli, web: Reader
) -> None:
    queue.enqueue("export", {}, id="job1")
    assert "group" not in cli("status").out
    assert "group" not in cli("show", "job1").out
    assert not web.open("/").has("busiest")
    assert "Group" not in web.open("/jobs/job1").section("metadata").pairs()


def test_metrics_have_no_label_for_groups(shared: Queue, api: httpx.Client) -> None:
    assert "customer" not in api.get("/metrics").text
