"""The dashboard at work: a real browser, a real server, real workers, and everything without a reload."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import pytest
from fastapi import FastAPI
from playwright.sync_api import Locator, Page

from holdfast import Context, Job, Queue
from holdfast.errors import StoreUnavailable
from holdfast.jobs import install
from holdfast.store.open import store_of
from holdfast.store.sqlite.database import Database
from holdfast.web import create_app
from tests.support import both_engines, wait_until
from tests.surfaces.browser import Guard, NewPage, Serve, expect
from tests.surfaces.live import Served, live, write_lock

TOKEN = "a token for the tests"
BIG = 12345678901234567890
SOON = 60.0

StartWorker = Callable[..., Any]


class Gate:
    """Holds jobs where the test wants them: they report what they are told to, and end when it is opened."""

    def __init__(self) -> None:
        self._opened = threading.Event()
        self._report: tuple[float, str] | None = None

    def report(self, fraction: float, message: str) -> None:
        self._report = (fraction, message)

    def open(self) -> None:
        self._opened.set()

    def run(self, payload: Any, ctx: Context) -> dict[str, str]:
        told = None
        while not self._opened.wait(0.01):
            ctx.check()
            if self._report is not None and self._report != told:
                told = self._report
                ctx.progress(*told)
        return {"said": "it is done"}


@pytest.fixture
def gate(jobs: Queue) -> Iterator[Gate]:
    """Of the type `gated`, beside ok, bad and echo."""
    gate = Gate()
    jobs.register("gated", gate.run)
    yield gate
    gate.open()


def send(to: str, body: str = "", copies: int = 1) -> None: ...


@pytest.fixture
def failed(jobs: Queue) -> list[Job]:
    """Three jobs that have failed for good, the newest first."""
    made = [
        jobs.enqueue("bad", {"number": number}, id=f"bad-{number}", max_attempts=1) for number in range(3)
    ]
    jobs.drain()
    return made[::-1]


def mark(page: Page) -> None:
    """Leave something that a reload would take away."""
    page.evaluate("() => { window.mark = 'here'; }")


def is_same_document(page: Page) -> bool:
    return bool(page.evaluate("window.mark === 'here'"))


def row(page: Page, id: str) -> Locator:
    return page.locator(f'tr[data-key="{id}"]')


def shown(page: Page) -> list[str]:
    """The ids in the list, from the top."""
    found: list[str] = page.locator("table.jobs tbody tr").evaluate_all(
        "(rows) => rows.map((row) => row.dataset.key)"
    )
    return found


def query(page: Page) -> dict[str, list[str]]:
    return parse_qs(urlsplit(page.url).query)


def set_hidden(page: Page, hidden: bool) -> None:
    """Put a tab behind another, or in front: a browser without a window shows all of them."""
    page.evaluate(
        """(hidden) => {
            Object.defineProperty(document, "hidden", {configurable: true, get: () => hidden});
            document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def refresh(page: Page) -> None:
    """Have the page fetched again and put in place, as when a tab comes to the front."""
    page.evaluate("""() => {
        window.updated = new Promise((done) =>
            document.addEventListener("holdfast:updated", () => done(0), {once: true}));
    }""")
    set_hidden(page, True)
    set_hidden(page, False)
    page.evaluate("() => window.updated")


def get(queue: Queue, id: str) -> Job:
    job = queue.get(id)
    assert job is not None
    return job


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


# A job's way through the queue.


@both_engines
def test_a_job_is_seen_to_wait_run_move_on_and_complete_without_a_reload(
    page: Page, serve: Serve, jobs: Queue, gate: Gate, start_worker: StartWorker
) -> None:
    address = serve()
    jobs.enqueue("gated", id="slow")
    own = page.context.new_page()
    overview = page.context.new_page()
    page.goto(f"{address}/jobs")
    own.goto(f"{address}/jobs/slow")
    overview.goto(address)
    for tab in (page, own, overview):
        mark(tab)
    in_list, on_page = row(page, "slow"), own.locator("#status")
    expect(in_list.locator(".badge")).to_have_text("pending")
    expect(on_page.locator(".badge")).to_have_text("pending")
    expect(own.locator("#why")).to_contain_text("Why isn't it running?")
    expect(overview.locator("#headline")).to_have_text("No workers")
    start_worker()
    expect(in_list.locator(".badge")).to_have_text("processing")
    expect(on_page.locator(".badge")).to_have_text("processing")
    expect(overview.locator("#card-processing strong")).to_have_text("1")
    gate.report(0.25, "reading")
    expect(in_list).to_contain_text("25 % · reading")
    expect(on_page).to_contain_text("25 % · reading")
    expect(on_page.locator("progress")).to_have_attribute("value", "0.25")
    gate.report(0.75, "writing")
    expect(in_list).to_contain_text("75 % · writing")
    expect(on_page.locator("progress")).to_have_attribute("value", "0.75")
    gate.open()
    expect(in_list.locator(".badge")).to_have_text("completed")
    expect(on_page.locator(".badge")).to_have_text("completed")
    expect(own.locator("#result")).to_contain_text("it is done")
    expect(own).to_have_title(re.compile("^slow · completed"))
    expect(overview.locator("#card-completed strong")).to_have_text("1")
    expect(overview.locator("#headline")).to_have_text("Idle")
    assert all(is_same_document(tab) for tab in (page, own, overview))


def test_a_new_job_appears_on_top_of_the_list(page: Page, serve: Serve, jobs: Queue) -> None:
    jobs.enqueue("ok", id="first")
    page.goto(f"{serve()}/jobs")
    expect(page.locator("#summary")).to_have_text("1 job.")
    mark(page)
    jobs.enqueue("ok", id="second")
    expect(row(page, "second")).to_be_visible()
    assert shown(page) == ["second", "first"]
    expect(page.locator("#summary")).to_have_text("2 jobs.")
    assert is_same_document(page)


def test_the_first_job_appears_in_an_empty_list(page: Page, serve: Serve, jobs: Queue) -> None:
    page.goto(f"{serve()}/jobs")
    expect(page.locator("main")).to_contain_text("No jobs yet.")
    mark(page)
    jobs.enqueue("ok", id="first")
    expect(row(page, "first")).to_be_visible()
    page.get_by_label("Select all on this page").check()
    expect(page.locator("#selected")).to_contain_text("1 selected")
    assert is_same_document(page)


def test_a_job_that_leaves_the_filter_leaves_the_list(
    page: Page, serve: Serve, jobs: Queue, start_worker: StartWorker
) -> None:
    jobs.enqueue("ok", id="waits")
    page.goto(f"{serve()}/jobs?status=pending")
    expect(row(page, "waits")).to_be_visible()
    start_worker()
    expect(row(page, "waits")).to_have_count(0)
    expect(page.locator("main")).to_contain_text("No jobs match.")


# Many at once.


def test_the_selected_jobs_are_retried_after_a_question_that_counts_them(
    page: Page, serve: Serve, jobs: Queue, failed: list[Job], start_worker: StartWorker
) -> None:
    page.goto(f"{serve()}/jobs?status=failed")
    expect(page.get_by_role("button", name="Retry…")).to_be_disabled()
    page.get_by_label("Select bad-0").check()
    page.get_by_label("Select bad-2").check()
    expect(page.locator("#selected")).to_contain_text("2 selected")
    expect(page.get_by_label("Select all on this page")).to_have_js_property("indeterminate", True)
    press(page, "Retry…")
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 2 jobs?")
    expect(page.locator(".ids li")).to_have_text(["bad-2", "bad-0"])
    assert jobs.stats()["failed"] == 3
    press(page, "Retry 2 jobs")
    expect(page.locator("#notice")).to_have_text("2 jobs retried.")
    assert query(page) == {"status": ["failed"]}
    assert [get(jobs, f"bad-{number}").status for number in range(3)] == ["pending", "failed", "pending"]
    assert shown(page) == ["bad-1"]


def test_shift_selects_a_range_and_the_box_above_selects_all(
    page: Page, serve: Serve, jobs: Queue, failed: list[Job]
) -> None:
    page.goto(f"{serve()}/jobs")
    page.get_by_label("Select bad-2").click()
    page.get_by_label("Select bad-0").click(modifiers=["Shift"])
    expect(page.get_by_label("Select bad-1")).to_be_checked()
    expect(page.get_by_label("Select all on this page")).to_be_checked()
    page.get_by_label("Select all on this page").uncheck()
    expect(page.locator("#selected")).to_have_text("0 selected:")
    expect(page.get_by_label("Select bad-1")).not_to_be_checked()


def test_a_live_page_does_not_take_the_notice_of_another(page: Page, serve: Serve, jobs: Queue) -> None:
    """The cookie that carries it belongs to the whole browser."""
    address = serve()
    page.goto(f"{address}/jobs")
    page.context.add_cookies([{"name": "holdfast_notice", "value": ".Done.", "url": address}])
    refresh(page)
    expect(page.locator("#notice")).to_be_empty()
    tab = page.context.new_page()
    tab.goto(f"{address}/jobs")
    expect(tab.locator("#notice")).to_have_text("Done.")
    tab.reload()
    expect(tab.locator("#notice")).to_be_empty()


# One job.


def test_a_retry_with_an_edited_payload_keeps_big_integers_and_secrets(
    page: Page, serve: Serve, jobs: Queue
) -> None:
    jobs.enqueue("bad", {"to": "ada", "number": BIG, "password": "hunter2"}, id="job", max_attempts=1)
    jobs.drain()
    page.goto(f"{serve()}/jobs/job")
    field = page.get_by_label("Payload (JSON)")
    text = field.input_value()
    assert str(BIG) in text
    assert "hunter2" not in page.content()
    expect(page.locator("#payload")).to_contain_text(str(BIG))
    field.fill(text.replace("ada", "grace"))
    press(page, "Retry with this payload")
    expect(page.locator("#notice")).to_have_text("Job job will run again.")
    expect(page.locator("#status .badge")).to_have_text("pending")
    assert get(jobs, "job").payload == {"to": "grace", "number": BIG, "password": "hunter2"}


def test_a_wrong_edited_payload_is_refused_beside_what_was_typed(
    page: Page, serve: Serve, jobs: Queue, guard: Guard
) -> None:
    guard.expected.append("status of 400")
    jobs.job(send)
    jobs.enqueue("send", {"to": "ada"}, id="job")
    jobs.cancel("job")
    page.goto(f"{serve()}/jobs/job")
    typed = '{"to": "ada",'
    page.get_by_label("Payload (JSON)").fill(typed)
    press(page, "Retry with this payload")
    field = page.get_by_label("Payload (JSON)")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_value(typed)
    expect(field).to_be_focused()
    assert "edit-problem" in (field.get_attribute("aria-describedby") or "").split()
    expect(page.locator("#edit-problem")).to_contain_text("is not valid JSON")
    assert (get(jobs, "job").status, get(jobs, "job").payload) == ("cancelled", {"to": "ada"})


def test_a_page_that_tells_what_was_wrong_stays_live(
    page: Page, serve: Serve, jobs: Queue, guard: Guard, failed: list[Job]
) -> None:
    guard.expected.append("status of 400")
    address = serve()
    page.goto(f"{address}/jobs/bad-1")
    page.get_by_label("Payload (JSON)").fill("{")
    press(page, "Retry with this payload")
    expect(page.locator("#edit-problem")).to_be_visible()
    jobs.retry("bad-1")
    expect(page.locator("#status .badge")).to_have_text("pending")
    expect(page.locator("#live-word:visible")).to_have_text("Live")
    page.goto(f"{address}/controls")
    page.get_by_label("max_attempts").fill("many")
    press(page, "Set max_attempts")
    expect(page.locator("#setting-max_attempts-problem")).to_be_visible()
    jobs.pause()
    expect(page.locator("#all-state")).to_contain_text("paused")
    expect(page.locator("#live-word:visible")).to_have_text("Live")
    expect(page.get_by_label("max_attempts")).to_have_value("many")


def test_a_running_job_is_cancelled_from_its_page(
    page: Page, serve: Serve, jobs: Queue, gate: Gate, start_worker: StartWorker
) -> None:
    jobs.enqueue("gated", id="slow")
    start_worker()
    page.goto(f"{serve()}/jobs/slow")
    expect(page.locator("#status .badge")).to_have_text("processing")
    mark(page)
    press(page, "Cancel")
    expect(page.locator("#notice")).to_have_text("Job slow was asked to stop.")
    expect(page.locator("#status .badge")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    assert is_same_document(page)


def test_the_buttons_of_a_row_act_without_leaving_the_list(
    page: Page, serve: Serve, jobs: Queue, failed: list[Job]
) -> None:
    jobs.enqueue("ok", id="waits")
    page.goto(f"{serve()}/jobs")
    mark(page)
    page.get_by_label("Select bad-0").check()
    press(page, "Retry bad-1")
    expect(page.locator("#notice")).to_have_text("Job bad-1 will run again.")
    expect(row(page, "bad-1").locator(".badge")).to_have_text("pending")
    press(page, "Cancel waits")
    expect(row(page, "waits").locator(".badge")).to_have_text("cancelled")
    expect(page.get_by_label("Select bad-0")).to_be_checked()
    assert is_same_document(page)


def test_a_change_that_came_too_late_is_told_and_the_page_stays(
    page: Page, serve: Serve, jobs: Queue, guard: Guard, failed: list[Job]
) -> None:
    guard.expected.append("status of 400")
    page.goto(f"{serve()}/jobs/bad-0")
    page.locator("#live").click()
    mark(page)
    jobs.retry("bad-0")
    press(page, "Retry")
    expect(page.locator("#notice .problem")).to_contain_text("bad-0")
    assert is_same_document(page)


def test_deleting_asks_first_and_an_open_page_of_the_job_says_that_it_is_gone(
    page: Page, serve: Serve, jobs: Queue, guard: Guard, failed: list[Job]
) -> None:
    guard.expected.append("status of 404")
    address = serve()
    asked: list[str] = []
    watching = page.context.new_page()
    watching.on("request", lambda request: asked.append(urlsplit(request.url).path))
    watching.goto(f"{address}/jobs/bad-0")
    expect(watching.locator("#status .badge")).to_have_text("failed")
    mark(watching)
    page.bring_to_front()
    page.goto(f"{address}/jobs/bad-0")
    page.get_by_role("link", name="Delete…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Delete this job?")
    page.get_by_role("link", name="Back").click()
    expect(page).to_have_url(f"{address}/jobs/bad-0")
    assert jobs.get("bad-0") is not None
    page.get_by_role("link", name="Delete…").click()
    press(page, "Delete job")
    expect(page.locator("#notice")).to_have_text("Job bad-0 deleted.")
    assert shown(page) == ["bad-2", "bad-1"]
    expect(watching.get_by_role("heading", level=1)).to_have_text("Not Found")
    assert is_same_document(watching)
    watching.wait_for_timeout(100)
    assert {path for path in asked if not path.startswith("/static/")} == {"/jobs/bad-0", "/api/events"}


def test_the_output_of_a_command_is_followed_and_scrolling_up_stops_that(
    page: Page, serve: Serve, queue: Queue, home: Path, start_worker: StartWorker
) -> None:
    install(queue)
    steps = [f"seq -f '{word} %g' 80; until [ -e {home}/{word} ]; do sleep 0.02; done" for word in "abc"]
    queue.enqueue("shell", {"command": "; ".join(steps)}, id="talks")
    start_worker()
    page.goto(f"{serve()}/jobs/talks")
    log = page.locator("#log")
    expect(log).to_contain_text("a 80")
    mark(page)
    log.evaluate("(log) => { log.scrollTop = log.scrollHeight; }")
    (home / "a").touch()
    expect(log).to_contain_text("b 80")
    assert log.evaluate("(log) => log.scrollHeight - log.scrollTop - log.clientHeight") < 2
    log.evaluate("(log) => { log.scrollTop = 100; }")
    (home / "b").touch()
    expect(log).to_contain_text("c 80")
    assert log.evaluate("(log) => log.scrollTop") == 100
    (home / "c").touch()
    expect(page.locator("#status .badge")).to_have_text("completed")
    assert is_same_document(page)


# Controls.


def test_nothing_runs_while_the_queue_is_paused_and_all_runs_when_it_is_resumed(
    page: Page, serve: Serve, jobs: Queue, start_worker: StartWorker
) -> None:
    start_worker()
    address = serve()
    page.goto(address)
    mark(page)
    press(page, "Pause all")
    expect(page.locator("#headline")).to_have_text("Paused")
    expect(page.locator("#notice")).to_have_text("Paused the whole queue; running jobs will finish.")
    jobs.enqueue_many("ok", [{}, {}])
    expect(page.locator("#card-pending strong")).to_have_text("2")
    refresh(page)
    refresh(page)
    assert jobs.stats()["pending"] == 2
    press(page, "Resume")
    expect(page.locator("#card-completed strong")).to_have_text("2")
    expect(page.locator("#headline")).to_have_text("Idle")
    assert is_same_document(page)


def test_a_wrong_setting_is_refused_beside_its_field(
    page: Page, serve: Serve, jobs: Queue, guard: Guard
) -> None:
    guard.expected.append("status of 400")
    page.goto(f"{serve()}/controls")
    for field, name, button, wrong in (
        (page.get_by_label("lease_seconds"), "setting-lease_seconds", "Set lease_seconds", "1"),
        (page.get_by_label("Rate limit of ok"), "rate-ok", None, "fast"),
    ):
        field.fill(wrong)
        if button is None:
            row(page, "ok").get_by_role("button", name="Set", exact=True).click()
        else:
            press(page, button)
        problem = page.locator(f"#{name}-problem")
        expect(problem).to_be_visible()
        expect(field).to_have_value(wrong)
        expect(field).to_have_attribute("aria-invalid", "true")
        expect(field).to_be_focused()
        assert f"{name}-problem" in (field.get_attribute("aria-describedby") or "").split()
        expect(page.locator("[aria-invalid=true]")).to_have_count(1)
    assert jobs.settings().stored == {}


# Enqueueing by form.


def everything(
    to: str,
    message: str,
    count: int,
    share: float = 0.5,
    urgent: bool = False,
    colour: Literal["red", "green"] = "red",
    tags: list[str] | None = None,
    limits: dict[str, int] | None = None,
) -> None: ...


def test_a_job_is_enqueued_by_a_form_with_every_kind_of_field(page: Page, serve: Serve, jobs: Queue) -> None:
    jobs.job(everything)
    page.goto(f"{serve()}/enqueue")
    page.get_by_role("link", name="everything").click()
    form = page.locator("#new-job")
    fill = {"to": "ada", "count": str(BIG % 10**17), "share": "0.25", "message": "two\nlines <b>"}
    for name, text in fill.items():
        form.get_by_label(re.compile(f"^{name}\\b")).fill(text)
    form.get_by_label(re.compile("^urgent")).select_option("true")
    form.get_by_label(re.compile("^colour")).select_option("green")
    form.get_by_label(re.compile("^tags")).fill('["a", "b"]')
    form.get_by_label(re.compile("^limits")).fill('{"x": 1}')
    page.get_by_text("Options").click()
    form.get_by_label("Priority").fill("7")
    form.get_by_label("ID", exact=True).fill("by-form")
    form.get_by_label("Deduplication key", exact=True).fill("k")
    form.get_by_label("Max attempts").fill("9")
    press(page, "Enqueue")
    expect(page.locator("#notice")).to_have_text("Job by-form enqueued.")
    job = get(jobs, "by-form")
    assert job.payload == {
        "to": "ada",
        "message": "two\nlines <b>",
        "count": BIG % 10**17,
        "share": 0.25,
        "urgent": True,
        "colour": "green",
        "tags": ["a", "b"],
        "limits": {"x": 1},
    }
    assert (job.priority, job.key, job.max_attempts, job.status) == (7, "k", 9, "pending")


def test_a_double_click_enqueues_once(page: Page, serve: Serve, jobs: Queue) -> None:
    page.goto(f"{serve()}/enqueue?type=ok")
    page.get_by_role("button", name="Enqueue").dblclick()
    expect(page.locator("#notice")).to_contain_text(" enqueued.")
    assert jobs.count() == 1


# Live, and in nobody's way.

OBSERVE = """() => {
    const main = document.querySelector("main");
    const word = (element) => element.localName + (element.id ? `#${element.id}` : "");
    window.changes = [];
    new MutationObserver((records) => {
        for (const {type, target, attributeName, oldValue} of records) {
            const now = type === "attributes" ? target.getAttribute(attributeName) : target.data;
            if (type !== "childList" && now === oldValue) continue;
            const element = target.nodeType === Node.ELEMENT_NODE ? target : target.parentElement ?? main;
            const names = {attributes: `@${attributeName}`, childList: "children", characterData: "text"};
            window.changes.push(`${word(element)} ${names[type]}: ${oldValue ?? ""} → ${now ?? ""}`);
        }
    }).observe(main, {subtree: true, childList: true, attributes: true, characterData: true,
        attributeOldValue: true, characterDataOldValue: true});
}"""


def test_where_nothing_has_changed_only_ages_are_touched(
    page: Page, serve: Serve, jobs: Queue, failed: list[Job]
) -> None:
    """Anything else would flicker, or be read aloud again and again."""
    jobs.enqueue("ok", id="done")
    jobs.drain()
    address = serve()
    found: dict[str, set[str]] = {}
    for path in ("/", "/jobs", "/jobs?status=failed", "/jobs/bad-0", "/jobs/done", "/controls"):
        for _ in range(3):
            page.goto(f"{address}{path}")
            expect(page.locator("#live")).to_be_visible()
            minute = page.locator("main").get_attribute("data-now")
            page.evaluate(OBSERVE)
            refresh(page)
            assert page.locator("main").get_attribute("data-now") != minute
            if (page.locator("main").get_attribute("data-now") or "")[:16] == (minute or "")[:16]:
                break  # else the chart has moved on
        ages = ("main#content @data-now:", "time children:", "time text:")
        found[path] = {
            change
            for change in page.evaluate("window.changes")
            if not change.startswith(ages)
            and not change.endswith(" jobs/s")  # the pace falls by itself
            and not only_an_age_differs(change)
        }
    assert {path: changes for path, changes in found.items() if changes} == {}


def only_an_age_differs(change: str) -> bool:
    """Whether a text reads as before but for how long ago something was: 'at 05:50:51 UTC (2 s ago)'."""
    before, _, after = change.partition(": ")[2].partition(" → ")
    age = re.compile(r"\((just now|\d+ (s|min|h|d) ago)\)")
    return age.sub("(age)", before) == age.sub("(age)", after)


def test_the_list_keeps_what_somebody_is_at_while_jobs_come_and_change(
    page: Page, serve: Serve, jobs: Queue
) -> None:
    jobs.enqueue_many("ok", [{} for _ in range(40)])
    jobs.enqueue("ok", id="mine")
    jobs.enqueue("ok", id="other")
    page.goto(f"{serve()}/jobs")
    mark(page)
    page.get_by_role("searchbox").fill("half a wo")
    page.get_by_text("Time range").click()
    page.get_by_label("Select mine").check()
    page.evaluate("""() => {
        getSelection().selectAllChildren(document.querySelector('tr[data-key="mine"] th a'));
        scrollTo(0, 300);
    }""")
    page.evaluate("""() => document.querySelector('input[value="mine"]').focus({preventScroll: true})""")
    assert page.evaluate("scrollY") == 300
    jobs.enqueue("ok", id="new")
    jobs.cancel("other")
    jobs.cancel("mine")
    expect(row(page, "mine").locator(".badge")).to_have_text("cancelled")
    assert shown(page)[:2] == ["other", "mine"], "while something is selected, no row comes or goes"
    expect(page.get_by_label("Select mine")).to_be_checked()
    expect(page.get_by_label("Select mine")).to_be_focused()
    assert page.evaluate("getSelection().toString()") == "mine"
    expect(page.get_by_role("searchbox")).to_have_value("half a wo")
    expect(page.locator("#filters details")).to_have_attribute("open", "")
    expect(page.locator("#selected")).to_contain_text("1 selected")
    assert page.evaluate("scrollY") == 300
    page.keyboard.press("Space")
    refresh(page)
    assert shown(page)[:2] == ["other", "mine"], "nor while the pointer is at a box"
    page.mouse.move(1, 1)
    refresh(page)
    assert shown(page)[:3] == ["new", "other", "mine"]
    expect(page.get_by_label("Select mine")).not_to_be_checked()
    expect(page.get_by_label("Select mine")).to_be_focused()
    assert is_same_document(page)


def test_a_job_s_page_keeps_what_is_open_and_what_is_typed(
    page: Page, serve: Serve, jobs: Queue, failed: list[Job]
) -> None:
    jobs.enqueue("bad", {"list": [1, 2], "deep": {"a": {"b": 1}}}, id="job", max_attempts=2)
    jobs.set_config("backoff_factor", 3600)
    jobs.drain()
    page.goto(f"{serve()}/jobs/job")
    expect(page.locator("#status .badge")).to_have_text("retrying")
    traceback = page.locator("#timeline details").first
    traceback.locator("summary").click()
    page.locator("#payload details details").first.locator("summary").first.click()
    page.get_by_label("Payload (JSON)").fill("{half")
    page.get_by_label("Payload (JSON)").evaluate("(field) => field.setSelectionRange(2, 4)")
    page.evaluate("scrollTo(0, 120)")
    refresh(page)
    expect(traceback).to_have_attribute("open", "")
    assert page.locator("#payload details details").first.get_attribute("open") is None
    field = page.get_by_label("Payload (JSON)")
    expect(field).to_have_value("{half")
    expect(field).to_be_focused()
    assert field.evaluate("(field) => [field.selectionStart, field.selectionEnd]") == [2, 4]
    assert page.evaluate("scrollY") == 120


def test_what_is_typed_into_controls_stays_while_the_rest_goes_on(
    page: Page, serve: Serve, jobs: Queue
) -> None:
    page.goto(f"{serve()}/controls")
    page.get_by_label("lease_seconds").fill("12")
    page.get_by_label("Rate limit of ok").fill("3")
    page.get_by_label("backoff_max").focus()
    jobs.enqueue("ok")
    jobs.pause("echo")
    expect(row(page, "echo").locator(".badge")).to_have_text("paused")
    expect(row(page, "ok").locator("td.right")).to_have_text("1")
    expect(page.get_by_label("lease_seconds")).to_have_value("12")
    expect(page.get_by_label("Rate limit of ok")).to_have_value("3")
    expect(page.get_by_label("backoff_max")).to_be_focused()
    jobs.set_config("max_running", 4)
    refresh(page)
    expect(page.get_by_label("max_running")).to_have_value("4")
    expect(page.get_by_label("lease_seconds")).to_have_value("12")


@pytest.fixture
def app(queue: Queue) -> FastAPI:
    return create_app(queue)


@pytest.fixture
def address(app: FastAPI) -> Iterator[str]:
    """The address of a server of `app`; asked for before `page`, it stops after it."""
    with live(app) as address:
        yield address


def listeners(app: FastAPI) -> int:
    return len(app.state.backend.broadcast._listeners)


def test_the_pause_button_stops_updates_and_fetches_the_present_when_it_goes_on(
    app: FastAPI, address: str, page: Page, jobs: Queue
) -> None:
    page.goto(f"{address}/jobs")
    button = page.get_by_role("button", name="Live")
    expect(button).to_have_attribute("aria-pressed", "true")
    wait_until(lambda: listeners(app) == 1, SOON)
    button.click()
    paused = page.get_by_role("button", name="Paused")
    expect(paused).to_have_attribute("aria-pressed", "false")
    wait_until(lambda: listeners(app) == 0, SOON)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    jobs.enqueue("ok", id="unseen")
    page.reload()
    expect(row(page, "unseen")).to_be_visible()
    expect(paused).to_be_visible()
    asked.clear()
    jobs.enqueue("ok", id="later")
    page.wait_for_timeout(700)
    assert asked == []
    assert shown(page) == ["unseen"]
    page.evaluate("document.querySelector('main').dataset.refresh = '3600'")  # no look is due anyway
    paused.click()
    expect(row(page, "later")).to_be_visible()
    expect(page.get_by_role("button", name="Live")).to_have_attribute("aria-pressed", "true")
    wait_until(lambda: listeners(app) == 1, SOON)


def test_a_hidden_tab_holds_no_connection_and_is_up_to_date_when_it_is_seen_again(
    app: FastAPI, address: str, page: Page, jobs: Queue
) -> None:
    page.goto(f"{address}/jobs")
    wait_until(lambda: listeners(app) == 1, SOON)
    set_hidden(page, True)
    wait_until(lambda: listeners(app) == 0, SOON)
    jobs.enqueue("ok", id="meanwhile")
    set_hidden(page, False)
    expect(row(page, "meanwhile")).to_be_visible()
    wait_until(lambda: listeners(app) == 1, SOON)
    page.goto("about:blank")
    wait_until(lambda: listeners(app) == 0, SOON)


def test_more_tabs_than_a_browser_has_connections_still_work(
    app: FastAPI, address: str, page: Page, jobs: Queue, failed: list[Job]
) -> None:
    tabs = [page, *(page.context.new_page() for _ in range(6))]
    for tab in tabs:
        tab.goto(f"{address}/jobs")
        expect(tab.locator("#live-word:visible")).to_have_text("Live")
        set_hidden(tab, True)
    wait_until(lambda: listeners(app) == 0, SOON)
    for number, tab in enumerate((tabs[0], tabs[-1])):
        tab.bring_to_front()
        set_hidden(tab, False)
        jobs.enqueue("ok", id=f"new-{number}")
        expect(row(tab, f"new-{number}")).to_be_visible()
        press(tab, f"Retry bad-{number}")
        expect(tab.locator("#notice")).to_have_text(f"Job bad-{number} will run again.")
        set_hidden(tab, True)


# Trouble.


def test_the_page_reconnects_when_its_server_is_started_again(
    home: Path, queue: Queue, new_page: NewPage, guard: Guard
) -> None:
    guard.expected += [
        "ERR_CONNECTION_REFUSED",
        "ERR_INCOMPLETE_CHUNKED",
        "ERR_CONNECTION_RESET",
        "ERR_EMPTY",
    ]
    guard.expected += ["status of 503"]
    page = new_page()
    with Served(home, "--workers", "0") as first:
        address = first.address
        page.goto(f"{address}/jobs")
        expect(page.locator("#live-word:visible")).to_have_text("Live")
        mark(page)
        first.stop()
    expect(page.locator("#live-word:visible")).to_have_text("Reconnecting…")
    queue.enqueue("ok", id="meanwhile")
    with Served(home, "--workers", "1", "--port", str(urlsplit(address).port)) as second:
        assert second.address == address
        expect(page.locator("#live-word:visible")).to_have_text("Live")
        expect(row(page, "meanwhile")).to_be_visible()
        queue.enqueue("shell", {"command": "true"}, id="command")
        expect(row(page, "command").locator(".badge")).to_have_text("completed")
        assert is_same_document(page)
        page.close()


def test_trouble_with_the_database_leaves_the_page_as_it_was_and_says_so(
    page: Page, serve: Serve, jobs: Queue, guard: Guard, failed: list[Job], monkeypatch: pytest.MonkeyPatch
) -> None:
    guard.expected.append("status of 503")
    page.goto(f"{serve()}/jobs")
    expect(page.locator("#live")).to_have_attribute("data-state", "live")
    mark(page)
    page.get_by_role("searchbox").fill("half a wo")

    def trouble(*_: object) -> Any:
        raise StoreUnavailable("the disk is gone")

    with monkeypatch.context() as patch:
        patch.setattr(store_of(jobs), "now", trouble)
        page.locator("#live").click()
        page.locator("#live").click()
        expect(page.locator("#live-word:visible")).to_have_text("Reconnecting…")
        assert shown(page) == ["bad-2", "bad-1", "bad-0"]
        expect(page.get_by_role("searchbox")).to_have_value("half a wo")
    jobs.enqueue("ok", id="after")
    expect(row(page, "after")).to_be_visible()
    expect(page.locator("#live-word:visible")).to_have_text("Live")
    expect(page.get_by_role("searchbox")).to_have_value("half a wo")
    assert is_same_document(page)


def test_a_change_that_the_database_does_not_take_is_told_and_the_page_stays(
    page: Page,
    serve: Serve,
    home: Path,
    jobs: Queue,
    guard: Guard,
    failed: list[Job],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    transaction: Any = Database.transaction
    monkeypatch.setitem(transaction.__wrapped__.__kwdefaults__, "patience", 0.3)
    guard.expected.append("status of 503")
    page.goto(f"{serve()}/jobs")
    mark(page)
    with write_lock(home / "queue.db"):
        press(page, "Retry bad-1")
        expect(page.locator("#notice .problem")).to_contain_text("stayed locked")
    expect(page.get_by_role("button", name="Retry bad-1")).to_be_enabled()
    press(page, "Retry bad-1")
    expect(page.locator("#notice")).to_have_text("Job bad-1 will run again.")
    assert is_same_document(page)


def test_a_change_that_reaches_no_server_is_told(
    page: Page, serve: Serve, jobs: Queue, guard: Guard, failed: list[Job]
) -> None:
    guard.expected += ["ERR_CONNECTION_REFUSED"]
    page.goto(f"{serve()}/jobs")
    page.route("**/retry", lambda route: route.abort("connectionrefused"))
    press(page, "Retry bad-1")
    expect(page.locator("#notice .problem")).to_be_visible()
    expect(page.get_by_role("button", name="Retry bad-1")).to_be_enabled()


def test_a_session_that_ends_leads_to_the_login_and_back(
    page: Page, serve: Serve, jobs: Queue, guard: Guard
) -> None:
    guard.expected.append("status of 401")
    address = serve(token=TOKEN)
    page.goto(f"{address}/jobs?status=pending")
    page.get_by_label("Token").fill(TOKEN)
    press(page, "Log in")
    expect(page.locator("#live-word:visible")).to_have_text("Live")
    jobs.enqueue("ok", id="seen")
    expect(row(page, "seen")).to_be_visible()
    page.context.clear_cookies(name="holdfast_session")
    jobs.enqueue("ok", id="unseen")
    expect(page.get_by_label("Token")).to_be_visible()
    page.get_by_label("Token").fill(TOKEN)
    press(page, "Log in")
    expect(row(page, "unseen")).to_be_visible()
    assert query(page) == {"status": ["pending"]}


def test_a_refresh_leads_nobody_elsewhere_who_is_leaving_the_page(
    page: Page, serve: Serve, jobs: Queue, guard: Guard
) -> None:
    """After a logout the login is on its way, and a refresh finds the session ended."""
    guard.expected.append("status of 401")
    page.goto(f"{serve(token=TOKEN)}/jobs?status=pending")
    page.get_by_label("Token").fill(TOKEN)
    press(page, "Log in")
    expect(page.locator("#live-word:visible")).to_have_text("Live")
    page.evaluate("dispatchEvent(new Event('beforeunload'))")
    with page.expect_response(lambda response: "/login" in response.url):
        page.context.clear_cookies(name="holdfast_session")
        jobs.enqueue("ok", id="unseen")
    page.evaluate("new Promise((resolve) => setTimeout(resolve, 300))")
    expect(page).to_have_url(re.compile(r"/jobs\?status=pending$"))


def test_a_change_after_the_session_has_ended_is_not_made_and_told(
    page: Page, serve: Serve, jobs: Queue, guard: Guard, failed: list[Job]
) -> None:
    guard.expected.append("status of 401")
    page.goto(f"{serve(token=TOKEN)}/jobs/bad-0")
    page.get_by_label("Token").fill(TOKEN)
    press(page, "Log in")
    page.locator("#live").click()
    page.context.clear_cookies(name="holdfast_session")
    press(page, "Retry")
    expect(page.locator("#notice .problem")).to_contain_text("login")
    assert get(jobs, "bad-0").status == "failed"
