"""Reconciliation on the dashboard: the last report, a check on demand, and the notice on the overview."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from playwright.sync_api import Page as BrowserPage

from holdfast import Queue
from holdfast.errors import StoreUnavailable
from holdfast.jobs import install
from holdfast.reconcile import Covered, Discrepancy, Report, reconcile
from holdfast.store.open import store_of
from holdfast.store.sqlite.database import Database
from holdfast.testing import MovableClock
from holdfast.web import create_app, reconciler
from tests.support import unsynced, wait_until
from tests.surfaces.answers import NOW
from tests.surfaces.browser import NewPage, Serve, expect, findings, serious_findings, shot
from tests.surfaces.hostile_strings import STRINGS
from tests.surfaces.html_page import Page, Reader, below
from tests.surfaces.live import client, live
from tests.surfaces.world import World

TOKEN, READ_TOKEN = "a token for changes", "a token for looking"
NARROWEST = {"width": 320, "height": 640}


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(NOW)


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    """The home's queue, on a clock that stands still."""
    with Queue(unsynced(url), clock=clock) as queue:
        yield queue


@pytest.fixture
def world(queue: Queue) -> Iterator[World]:
    world = World()
    world.register(queue)
    yield world
    world.let_go()


@pytest.fixture
def web(api: httpx.Client) -> Reader:
    return Reader(api)


def found(id: str, subject: str = "thing", problem: str = "it is gone", **fields: Any) -> Discrepancy:
    given = {"type": "make", "completed_at": NOW, "is_checked": True, **fields}
    return Discrepancy(job_id=id, subject=subject, problem=problem, **given)


def keep(queue: Queue, *discrepancies: Discrepancy, **fields: Any) -> None:
    """Store a report, as whichever process may have."""
    given = {
        "started_at": NOW,
        "finished_at": NOW + timedelta(seconds=2.5),
        "covered": [Covered(type="make", completed=12, since=NOW - timedelta(days=3), removed=4)],
        "jobs": 12,
        "checked": 11,
        "superseded": 1,
        "differing": sum(one.is_checked for one in discrepancies),
        "unchecked": sum(not one.is_checked for one in discrepancies),
        **fields,
    }
    report = Report(discrepancies=list(discrepancies), **given)
    store_of(queue).write_reconciliation(msgspec.json.encode(report).decode())


def verdict(page: Page) -> tuple[set[str], str, str]:
    section = page.section("verdict")
    return section.classes - {"headline"}, section.one("h2").text, section.one("p").text


def attention(page: Page) -> list[str]:
    return (
        [item.text for item in page.section("attention-card").all("li")] if page.has("attention-card") else []
    )


# The page.


def test_page_is_in_the_menu_and_says_that_nothing_was_checked_yet(web: Reader) -> None:
    page = web.open(web.open("/").link("Reconcile"))
    assert (page.address, page.heading, page.title) == ("/reconcile", "Reconcile", "Reconcile · Holdfast")
    [current] = page.root.one("nav").all("a", aria_current="page")
    assert current.text == "Reconcile"
    assert verdict(page) == (
        {"unknown"},
        "Not checked yet",
        "The effects of completed jobs have not been checked yet.",
    )
    assert not page.has("report")
    assert not page.has("differences")


def test_page_says_that_nothing_is_repaired_and_what_to_do(web: Reader) -> None:
    text = web.open("/reconcile").section("check")
    assert "Nothing is ever repaired. To redo a job's work, enqueue a new job" in text.text
    assert text.one("a")["href"] == "/enqueue"


def test_report_is_shown_with_its_numbers_and_what_it_covered(
    web: Reader, queue: Queue, clock: MovableClock
) -> None:
    bad = found("job-2", "file /b", "could not be checked: OSError: x", type="other", is_checked=False)
    keep(queue, found("job-1", "file /a", "the file is missing"), bad, unsettled=2)
    clock.advance(minutes=7)
    page = web.open("/reconcile")
    assert verdict(page) == (
        {"problem"},
        "Differences found",
        "The effect of 1 completed job is missing or changed; 1 could not be checked.",
    )
    assert page.section("report").pairs() == {
        "Checked": "7 min ago 2030-01-01 00:00:00 UTC",
        "Duration": "2.5 s",
        "Completed jobs read": "12",
        "Superseded by a later job": "1",
        "Effects checked": "11",
        "Missing or changed": "1",
        "Couldn't be checked": "1",
        "Unsettled: job running": "2",
    }
    assert page.section("report").rows() == [["make", "12", "3 d ago 2029-12-29 00:00:00 UTC", "4"]]
    assert page.section("differences").rows() == [
        ["file /a", "the file is missing", "job-1", "make", "7 min ago"],
        ["file /b", "could not be checked: OSError: x", "job-2", "other", "7 min ago"],
    ]
    assert (page.link("job-1"), page.link("other")) == ("/jobs/job-1", "/jobs?type=other")
    assert "but not listed" not in page.source


def test_more_than_are_listed_are_counted(web: Reader, queue: Queue) -> None:
    keep(queue, *(found(f"job-{n}") for n in range(1000)), differing=1200, unchecked=34)
    page = web.open("/reconcile")
    assert len(page.section("differences").rows()) == 1000
    assert "234 more are counted, but not listed." in page.section("differences").text
    assert page.section("report").pairs()["Missing or changed"] == "1,200"


def test_empty_states_are_told_apart(web: Reader, queue: Queue, world: World) -> None:
    reconcile(queue)
    assert verdict(web.open("/reconcile")) == (
        {"unknown"},
        "Nothing to check",
        "No completed job is of a type that can be checked (make).",
    )
    world.make(queue, ["a"])
    reconcile(queue)
    page = web.open("/reconcile")
    assert verdict(page) == ({"good"}, "No differences", "The effects of the completed jobs still exist.")
    assert not page.has("differences")
    keep(queue, found("job-1", is_checked=False))
    assert verdict(web.open("/reconcile")) == (
        {"warning"},
        "Partly checked",
        "1 completed job could not be checked.",
    )
    queue.unregister("make")
    keep(queue, jobs=0, checked=0, superseded=0, covered=[])
    page = web.open("/reconcile")
    assert verdict(page)[2] == (
        "No completed job is of a type that can be checked; this server has no handler for such a type."
    )
    assert not page.has("covered")


# A check on demand, without scripts.


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that nobody holds up is waited for, however busy the machine is."""
    monkeypatch.setattr("holdfast.web.dashboard.reconcile._SHORT_SECONDS", 60.0)


def test_check_now_compares_and_comes_back(web: Reader, queue: Queue, world: World, unhurried: None) -> None:
    world.make(queue, ["a", "b"])
    world.problems["b"] = "it is bent"
    page = web.submit(web.open("/reconcile").form("/reconcile"))
    assert (page.address, page.notice) == ("/reconcile", "The check is complete.")
    assert [row[:3] for row in page.section("differences").rows()] == [["thing b", "it is bent", "make-b"]]
    job = web.open(page.link("make-b"))
    assert job.section("status").text == "completed make"


def test_check_that_takes_longer_runs_on_and_is_shown(
    web: Reader, queue: Queue, world: World, clock: MovableClock
) -> None:
    world.make(queue, ["a"])
    world.hold()
    page = web.submit(web.open("/reconcile").form("/reconcile"))
    assert page.notice == "The check is running; its report will appear here."
    clock.advance(seconds=12)
    page = web.open("/reconcile")
    assert page.section("progress").text == "Counting jobs, started 12 s ago"
    assert page.main["data-refresh"] == "1"
    assert all(form.action != "/reconcile" for form in page.forms)  # one at a time
    world.let_go()
    wait_until(lambda: not web.open("/reconcile").has("progress"))
    page = web.open("/reconcile")
    assert page.section("report").pairs()["Effects checked"] == "1"
    assert page.main["data-refresh"] == "5"
    page.form("/reconcile")


def test_check_that_fails_says_why_until_one_has_succeeded(
    web: Reader,
    queue: Queue,
    world: World,
    clock: MovableClock,
    unhurried: None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise StoreUnavailable("the disk is full")

    world.make(queue, ["a"])
    with monkeypatch.context() as patched:
        patched.setattr(reconciler, "reconcile", fail)
        page = web.submit(web.open("/reconcile").form("/reconcile"))
    assert page.notice == "The check failed."
    assert page.section("notice").one("p").classes == {"notice", "problem"}
    told = page.section("failure").text
    assert told == "Check failed StoreUnavailable: the disk is full (started just now)"
    clock.advance(minutes=1)
    reconcile(queue)  # by another process
    assert not web.open("/reconcile").has("failure")


def test_read_token_sees_the_report_and_no_button(queue: Queue, world: World) -> None:
    keep(queue, found("job-1"))
    with live(create_app(queue, TOKEN, READ_TOKEN)) as address, client(address) as made:
        made.headers["authorization"] = f"Bearer {READ_TOKEN}"
        page = Reader(made).open("/reconcile")
        assert page.section("differences").rows()
        assert [form.action for form in page.forms] == ["/logout"]
        assert not page.section("check").has("a")


def test_page_works_below_a_prefix(queue: Queue, world: World, unhurried: None) -> None:
    world.make(queue, ["a"])
    world.problems["a"] = "it is bent"
    with live(create_app(queue), "/queue") as address, below(address, "/queue") as made:
        web = Reader(made)
        page = web.submit(web.open("/queue/reconcile").form("/queue/reconcile"))
        assert page.link("make-a") == "/queue/jobs/make-a"
        assert (
            web.open("/queue/").link("The effect of 1 completed job is missing or changed")
            == "/queue/reconcile"
        )


# The overview.


@pytest.mark.parametrize(
    ("differing", "unchecked", "told"),
    [
        (3, 0, "The effects of 3 completed jobs are missing or changed"),
        (1, 0, "The effect of 1 completed job is missing or changed"),
        (1_234, 2, "The effects of 1,234 completed jobs are missing or changed; 2 could not be checked"),
        (0, 2, "2 completed jobs could not be checked"),
    ],
)
def test_overview_tells_of_differences(
    web: Reader, queue: Queue, differing: int, unchecked: int, told: str
) -> None:
    keep(queue, differing=differing, unchecked=unchecked)
    page = web.open("/")
    assert attention(page) == [f"{told}."]
    assert page.link(told) == "/reconcile"


def test_overview_is_silent_when_nothing_differs(web: Reader, queue: Queue) -> None:
    assert attention(web.open("/")) == []
    keep(queue)
    assert attention(web.open("/")) == []
    for nonsense in ("", "{}", "[]", '{"differing": "x", "unchecked": 1}', "null"):
        store_of(queue).write_reconciliation(nonsense)
        assert attention(web.open("/")) == []
        assert verdict(web.open("/reconcile"))[1] == "Not checked yet"


def test_overview_reads_the_report_once_and_walks_through_nothing(
    web: Reader, queue: Queue, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.make(queue, ["a"])
    keep(queue, *(found(f"job-{n}") for n in range(1000)))
    reads: list[str] = []
    read = Database.read_one

    def counted(self: Database, sql: str, parameters: Any = ()) -> Any:
        reads.append(sql)
        return read(self, sql, parameters)

    monkeypatch.setattr(Database, "read_one", counted)
    assert attention(web.open("/")) == ["The effects of 1,000 completed jobs are missing or changed."]
    assert sum("holdfast_reconciliation" in sql for sql in reads) == 1
    assert world.checked == []


# The form of a built-in type.


def test_built_in_types_are_offered_by_the_form_only_where_they_are_let_in(
    queue: Queue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("QUEUECTL_FILE_ROOTS", str(tmp_path))
    install(queue)
    with live(create_app(queue)) as address, client(address) as made:
        web = Reader(made)
        assert web.open("/enqueue").section("known-types").all("option") == []
        form = web.open("/enqueue?type=plain").form("/enqueue", lambda form: form.method == "post")
        for type in ("create_file", "webhook"):
            page = web.read(web.send(form, changes={"type": type, "text": "1", "payload": "{}"}), 403)
            assert f"--allow-type {type}" in page.alerts[0]
    allowed = ["create_file", "delete_file"]
    with live(create_app(queue, allow_types=allowed)) as address, client(address) as made:
        web = Reader(made)
        options = web.open("/enqueue").section("known-types").all("option")
        assert [option["value"] for option in options] == allowed
        form = web.open("/enqueue?type=create_file").form("/enqueue", lambda form: form.method == "post")
        written = {'"plain text"': "plain text", '{"a": [1, null]}': None, "5": "5\n"}
        for number, (content, text) in enumerate(written.items()):
            path = tmp_path / f"made-{number}"
            web.submit(form, changes={"payload.path": str(path), "payload.content": content})
            queue.drain()
            assert path.read_text() == (text or json.dumps({"a": [1, None]}, indent=2) + "\n")
        wrong = web.read(web.send(form, changes={"payload.path": "/a", "payload.content": "plain"}), 400)
        assert wrong.root.all("p", "problem")[-1].text.startswith(
            'must be JSON such as 1, "text" or {"a": 1}'
        )
        assert len(queue.jobs()) == len(written)


# In a browser.


@pytest.fixture
def differing(queue: Queue, world: World) -> World:
    """Jobs of which some differ, with a report of them."""
    world.make(queue, [f"{n:02}" for n in range(12)])
    world.problems.update({"03": "it is bent", "07": "it is gone " + "x" * 200})
    world.broken["09"] = TimeoutError("no answer after 5 s")
    reconcile(queue)
    return world


def press(page: BrowserPage, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def test_check_is_followed_to_its_report_without_a_reload(
    page: BrowserPage, serve: Serve, queue: Queue, world: World
) -> None:
    world.make(queue, ["a", "b", "c"])
    world.problems["a"] = "it is bent"
    world.hold(after=1)
    page.goto(f"{serve()}/reconcile")
    page.evaluate("() => { window.mark = 'here'; }")
    press(page, "Check now")
    expect(page.locator("#notice")).to_have_text("The check is running; its report will appear here.")
    expect(page.locator("#progress")).to_contain_text("1 of 3 jobs read")
    expect(page.get_by_role("progressbar", name="Progress of the check")).to_have_attribute("value", "1")
    expect(page.get_by_role("button", name="Check now")).to_have_count(0)
    assert page.evaluate("document.activeElement.id") == "notice"
    shot(page, "reconcile-running")
    assert serious_findings(page) == []
    world.let_go()
    expect(page.locator("#differences tbody tr")).to_have_count(1)
    expect(page.locator("#verdict h2")).to_have_text("Differences found")
    expect(page.locator("#progress")).to_have_count(0)
    expect(page.get_by_role("button", name="Check now")).to_be_visible()
    assert page.evaluate("window.mark") == "here"


def test_report_of_another_process_appears_by_itself(
    page: BrowserPage, serve: Serve, queue: Queue, world: World
) -> None:
    world.make(queue, ["a"])
    page.goto(f"{serve()}/reconcile")
    expect(page.locator("#verdict h2")).to_have_text("Not checked yet")
    reconcile(queue)
    queue.enqueue("make", {"name": "b"}, delay=3600)  # any change has the page fetched again
    expect(page.locator("#verdict h2")).to_have_text("No differences")


def test_check_by_keyboard(page: BrowserPage, serve: Serve, queue: Queue, world: World) -> None:
    world.make(queue, ["a"])
    page.goto(f"{serve()}/reconcile")
    button = page.get_by_role("button", name="Check now")
    for _ in range(20):
        page.keyboard.press("Tab")
        if button.evaluate("(button) => button === document.activeElement"):
            break
    page.keyboard.press("Enter")
    expect(page.locator("#verdict h2")).to_have_text("No differences")


def test_page_is_accessible_and_fits_every_screen(page: BrowserPage, serve: Serve, differing: World) -> None:
    address = serve()
    for path in ("/reconcile", "/"):
        page.goto(f"{address}{path}")
        expect(page.locator("#live-word:visible")).to_have_text("Live")
        shot(page, f"reconcile{path.replace('/', '-')}")
        assert findings(page) == {}
        page.set_viewport_size(NARROWEST)  # type: ignore[arg-type]
        assert page.evaluate("document.documentElement.scrollWidth") <= NARROWEST["width"]


def test_hostile_texts_are_shown_as_texts(
    new_page: NewPage, serve: Serve, queue: Queue, world: World
) -> None:
    texts = list(STRINGS.values())
    keep(queue, *(found(f"job-{n}", text, text[:500]) for n, text in enumerate(texts)))
    page = new_page(init_script="window.ran = []; window.canary = (...given) => window.ran.push(given);")
    page.goto(f"{serve()}/reconcile")
    expect(page.locator("#live-word:visible")).to_have_text("Live")
    cells = page.locator("#differences bdi").all_text_contents()
    assert len(cells) == 2 * len(texts)
    for text, subject, problem in zip(texts, cells[::2], cells[1::2], strict=True):
        assert problem == as_parsed(text[:500])
        assert subject == as_parsed(text if len(text) <= 505 else f"{text[:499]}…")
    assert page.evaluate("window.ran") == []
    assert page.locator("main").count() == 1


def as_parsed(text: str) -> str:
    """What a browser makes of a text in HTML, whatever it is."""
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")
