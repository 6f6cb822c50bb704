"""The dashboard's manners: for every eye, hand, screen, proxy and token, and without JavaScript."""

from __future__ import annotations

import re
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any, Literal
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import Locator, Page

from holdfast import Context, Queue
from tests.support import wait_until
from tests.surfaces.browser import NARROW, OTHER_NAME, Guard, NewPage, Serve, expect, findings, shot

TOKEN = "a token for the tests"
READ_TOKEN = "a token that may look"
NARROWEST = {"width": 320, "height": 640}
SOON = 60.0
LONG = "x" * 120

StartWorker = Callable[..., Any]


def everything(
    to: str,
    message: str = "",
    count: int = 1,
    colour: Literal["red", "green"] = "red",
    tags: list[str] | None = None,
) -> None: ...


@pytest.fixture
def full(jobs: Queue, start_worker: StartWorker) -> Iterator[Queue]:
    """A queue with a job in every state, each named after it, and texts that do not want to be broken."""
    opened = threading.Event()

    def wait(payload: Any, ctx: Context) -> None:
        ctx.progress(0.4, "half way " + LONG)
        while not opened.wait(0.01):
            ctx.check()

    def parent(payload: Any, ctx: Context) -> dict[str, Any]:
        ctx.enqueue("ok", {}, id="child")
        return {"list": [1, "two", None, {"deep": LONG}], "number": 12345678901234567890}

    def fail(payload: Any) -> None:
        raise RuntimeError(f"no route to {LONG}\n{LONG}")

    jobs.job(everything)
    jobs.register("gated", wait)
    jobs.register("parent", parent)
    jobs.register("fail", fail)
    jobs.register(f"long.{LONG}", fail)
    jobs.enqueue("fail", {"to": "ada", "password": "secret"}, id="failed", max_attempts=1)
    jobs.enqueue("fail", {"to": "grace"}, id="failed-too", max_attempts=1)
    jobs.enqueue(f"long.{LONG}", {LONG: LONG}, id=f"long-{LONG}", key=LONG * 2, max_attempts=1)
    jobs.enqueue("parent", id="completed")
    jobs.drain()
    jobs.set_config("backoff_factor", 3600)
    jobs.enqueue("bad", {"list": list(range(60))}, id="retrying")
    jobs.drain()
    jobs.enqueue("ok", id="scheduled", delay=3600)
    jobs.enqueue("ok", id="cancelled")
    jobs.cancel("cancelled")
    jobs.enqueue("nobody", id="pending", priority=5)
    jobs.pause("nobody")
    jobs.enqueue("gated", id="processing")
    start_worker(types=["gated"])
    wait_until(lambda: (job := jobs.get("processing")) and job.progress is not None, SOON)
    yield jobs
    opened.set()


STATES = ("scheduled", "pending", "processing", "completed", "failed", "cancelled", "retrying")
LOOKING = ["/", "/jobs", "/jobs?q=nowhere&type=ok", "/controls", "/controls?type=ok", "/reconcile"]
LOOKING += [f"/jobs/{state}" for state in (*STATES, f"long-{LONG}")]
CHANGING = [
    "/jobs/bulk?action=retry&id=failed&id=failed-too",
    "/jobs/bulk?action=delete&all=1&status=failed",
    "/jobs/failed/delete",
    "/cleanup?older_than=0s",
    "/cleanup?older_than=7d&failed=1",
    "/enqueue",
    "/enqueue?type=everything",
    "/enqueue?type=unknown",
]
REFUSED = ["/jobs?status=nothing", "/jobs/gone", "/missing"]
"""Pages that tell what was wrong with the address."""


def press(page: Page, name: str) -> None:
    page.get_by_role("button", name=name, exact=True).click()


def log_in(page: Page, token: str = TOKEN) -> None:
    page.get_by_label("Token").fill(token)
    press(page, "Log in")
    expect(page.get_by_label("Token")).to_have_count(0)


def shown(page: Page) -> list[str]:
    """The ids in the list, from the top."""
    found: list[str] = page.locator("table.jobs tbody tr").evaluate_all(
        "(rows) => rows.map((row) => row.dataset.key)"
    )
    return found


def hold_still(page: Page) -> None:
    """Pages of this tab are not live: nothing changes while it is examined."""
    page.add_init_script("sessionStorage.setItem('holdfast-live', 'off')")


# Forms that come back with what was wrong.


def wrong_enqueue(page: Page, address: str) -> None:
    page.goto(f"{address}/enqueue?type=everything")
    page.locator("#new-job").get_by_label(re.compile("^count")).fill("many")
    page.get_by_text("Options").click()
    page.get_by_label("Priority").fill("high")
    press(page, "Enqueue")
    expect(page.locator("[aria-invalid=true]")).to_have_count(2)


def wrong_setting(page: Page, address: str) -> None:
    page.goto(f"{address}/controls")
    page.get_by_label("lease_seconds").fill("1")
    press(page, "Set lease_seconds")
    expect(page.locator("[aria-invalid=true]")).to_have_count(1)


def wrong_payload(page: Page, address: str) -> None:
    page.goto(f"{address}/jobs/failed")
    page.get_by_label("Payload (JSON)").fill("{")
    press(page, "Retry with this payload")
    expect(page.locator("[aria-invalid=true]")).to_have_count(1)


WRONG = (wrong_enqueue, wrong_setting, wrong_payload)


# What axe finds.


@pytest.mark.parametrize(
    "paths",
    [LOOKING[:5], LOOKING[5:], CHANGING, REFUSED],
    ids=["pages", "jobs in every state", "changing", "refused"],
)
def test_axe_finds_nothing_serious_on_a_full_queue(
    page: Page, serve: Serve, full: Queue, guard: Guard, paths: list[str]
) -> None:
    guard.expected += ["status of 400", "status of 404"]
    hold_still(page)
    address = serve()
    found = {}
    for path in paths:
        page.goto(f"{address}{path}")
        shot(page, f"full{path.replace('/', '-')[:60]}")
        found[path] = findings(page)
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_axe_finds_nothing_serious_on_an_empty_queue_and_at_the_login(
    page: Page, serve: Serve, queue: Queue
) -> None:
    hold_still(page)
    address = serve(token=TOKEN)
    page.goto(address)
    found = {"/login": findings(page)}
    log_in(page)
    for path in ("/", "/jobs", "/controls", "/enqueue", "/cleanup?older_than=7d", "/docs"):
        page.goto(f"{address}{path}")
        found[path] = findings(page)
    assert {path: texts for path, texts in found.items() if texts} == {}


def test_axe_finds_nothing_serious_where_a_form_was_refused(
    page: Page, serve: Serve, full: Queue, guard: Guard
) -> None:
    guard.expected.append("status of 400")
    hold_still(page)
    address = serve()
    found = {}
    for make in WRONG:
        make(page, address)
        found[make.__name__] = findings(page)
    assert {name: texts for name, texts in found.items() if texts} == {}


# Widths and structure.

STRUCTURE = """() => {
    const labelled = (field) => field.labels?.length || field.getAttribute("aria-label") ||
        field.getAttribute("aria-labelledby");
    const missing = (name) => [...document.querySelectorAll(`[${name}]`)].flatMap((element) =>
        element.getAttribute(name).split(" ").filter((id) => !document.getElementById(id)));
    const ids = [...document.querySelectorAll("[id]")].map((element) => element.getAttribute("id"));
    return {
        title: document.title,
        headings: [...document.querySelectorAll("h1, h2, h3, h4, h5, h6")].map((h) => Number(h.localName[1])),
        unlabelled: [...document.querySelectorAll("input:not([type=hidden]), select, textarea")]
            .filter((field) => !labelled(field)).map((field) => field.outerHTML.slice(0, 120)),
        nameless: [...document.querySelectorAll("a[href], button")]
            .filter((each) => !(each.getAttribute("aria-label") || each.textContent.trim()))
            .map((each) => each.outerHTML.slice(0, 120)),
        dangling: [...missing("aria-describedby"), ...missing("aria-labelledby")],
        repeated: ids.filter((id, place) => ids.indexOf(id) !== place),
        lang: document.documentElement.lang,
        mains: document.querySelectorAll("main").length,
    };
}"""


def test_every_page_fits_a_phone_and_has_headings_in_order_and_a_name_for_everything(
    new_page: NewPage, serve: Serve, full: Queue, guard: Guard
) -> None:
    guard.expected += ["status of 400", "status of 404"]
    page = new_page(viewport=NARROW, is_mobile=True, has_touch=True)
    hold_still(page)
    address = serve(token=TOKEN)
    wrong: dict[str, Any] = {}

    def examine(path: str) -> None:
        found = page.evaluate(STRUCTURE)
        levels = found.pop("headings")
        jumps = [pair for pair in zip([0, *levels], levels, strict=False) if pair[1] > pair[0] + 1]
        if levels.count(1) != 1 or jumps:
            wrong[f"headings of {path}"] = levels
        for name in ("unlabelled", "nameless", "dangling", "repeated"):
            if found[name]:
                wrong[f"{name} on {path}"] = found[name]
        if (found["lang"], found["mains"]) != ("en", 1) or not found["title"].endswith("Holdfast"):
            wrong[path] = found
        for size in (NARROW, NARROWEST):
            page.set_viewport_size(size)  # type: ignore[arg-type]
            width = page.evaluate("document.documentElement.scrollWidth")
            if width > size["width"]:
                wrong[f"{path} scrolls sideways at {size['width']}"] = width

    page.goto(address)
    examine("/login")
    log_in(page)
    for path in (*LOOKING, *CHANGING, *REFUSED, "/docs"):
        page.goto(f"{address}{path}")
        examine(path)
    for make in WRONG:
        make(page, address)
        examine(make.__name__)
    assert wrong == {}


# By keyboard.

FOCUS = """() => {
    const element = document.activeElement;
    if (!element || element === document.body) return null;
    const style = getComputedStyle(element);
    const box = element.getClientRects()[0];
    const x = box.left + box.width / 2, y = box.top + box.height / 2;
    const isLarge = box.height > innerHeight / 2 || box.width > innerWidth * 0.9;
    const above = document.elementFromPoint(x, y);
    return {
        name: element.getAttribute("aria-label") || element.labels?.[0]?.textContent.trim() ||
            element.textContent.trim().slice(0, 60) || element.localName,
        outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
        covered: !isLarge && !(above && (element.contains(above) || above.contains(element) ||
            [...(element.labels ?? [])].some((label) => label.contains(above)))),
    };
}"""


class Keyboard:
    """Goes through a page by Tab alone, and notes where the focus can't be seen."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self.unseen: list[str] = []

    def tab(self, backwards: bool = False) -> str | None:
        """To the next element; returns its name, None at the end of the page."""
        self._page.keyboard.press("Shift+Tab" if backwards else "Tab")
        found = self._page.evaluate(FOCUS)
        if found is None:
            return None
        if not found["outlined"]:
            self.unseen.append(f"{found['name']} on {self._page.url} has no outline")
        if found["covered"]:
            self.unseen.append(f"{found['name']} on {self._page.url} is covered or out of sight")
        name: str = found["name"]
        return name

    def to(self, name: str) -> None:
        """Tab until an element of this name has the focus."""
        passed = []
        for _ in range(120):
            at = self.tab()
            passed.append(at)
            if at is not None and at.startswith(name):
                return
        raise AssertionError(f"{name} is not reached by Tab: {passed}")

    def press(self, key: str) -> None:
        self._page.keyboard.press(key)


def test_filter_select_and_retry_with_the_keyboard_alone(page: Page, serve: Serve, full: Queue) -> None:
    page.goto(f"{serve()}/jobs")
    keys = Keyboard(page)
    keys.to("Search ID")
    page.keyboard.type("route")
    keys.to("failed")
    keys.press("Space")
    keys.to("Apply")
    keys.press("Enter")
    expect(page.locator("#chips .chip")).to_have_count(2)
    assert set(shown(page)) == {"failed", "failed-too", f"long-{LONG}"}
    keys.to("Select failed-too")
    keys.press("Space")
    expect(page.locator("#selected")).to_contain_text("1 selected")
    keys.to("Retry…")
    keys.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 1 job?")
    keys.to("Retry 1 job")
    keys.press("Enter")
    expect(page.locator("#notice")).to_have_text("1 job retried.")
    assert keys.unseen == []


def test_the_skip_link_is_first_can_be_seen_and_leads_to_the_content(page: Page, serve: Serve) -> None:
    page.goto(f"{serve()}/jobs")
    keys = Keyboard(page)
    assert keys.tab() == "Skip to content"
    assert keys.unseen == []
    keys.press("Enter")
    expect(page.locator("main")).to_be_focused()
    assert keys.tab() == "Search ID, key, group, error or a payload field"


def test_the_focus_is_seen_wherever_tab_goes(page: Page, serve: Serve, full: Queue) -> None:
    full.enqueue_many("ok", [{} for _ in range(20)])
    hold_still(page)
    address = serve()
    keys = Keyboard(page)
    for path in ("/", "/jobs?size=25", "/jobs/failed", "/enqueue?type=everything", "/controls"):
        page.goto(f"{address}{path}")
        count = 0
        while keys.tab() is not None and count < 200:
            count += 1
        assert count > 10, path
    assert keys.unseen == []


def test_after_a_button_was_pressed_the_focus_is_not_lost(page: Page, serve: Serve, full: Queue) -> None:
    address = serve()
    for path, name in (("/jobs", "Retry failed-too"), ("/controls", "Pause ok"), ("/", "Pause all")):
        page.goto(f"{address}{path}")
        page.get_by_role("button", name=name, exact=True).focus()
        page.keyboard.press("Enter")
        expect(page.locator("#notice")).not_to_be_empty()
        page.keyboard.press("Tab")
        assert page.evaluate(FOCUS) is not None
        assert page.evaluate("document.activeElement.className") != "skip", f"{path}: back at the top"


# The system's settings.


def test_dark_and_light_follow_the_system(page: Page, serve: Serve) -> None:
    page.goto(serve())
    page.emulate_media(color_scheme="dark")
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(color_scheme="light")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (brightness(dark) < 60, brightness(light) > 200) == (True, True)


def brightness(colour: str) -> float:
    parts = [int(part) for part in re.findall(r"\d+", colour)[:3]]
    return sum(parts) / 3


def test_nothing_moves_where_less_motion_is_wanted(page: Page, serve: Serve, full: Queue) -> None:
    page.goto(serve())
    moving = """() => [...document.querySelectorAll("*")].filter((element) => {
        const style = getComputedStyle(element);
        return parseFloat(style.transitionDuration) > 0 || style.animationName !== "none" ||
            style.scrollBehavior === "smooth";
    }).length"""
    page.emulate_media(reduced_motion="reduce")
    assert page.evaluate(moving) == 0


# Copying.


def pasted(page: Page) -> str:
    """What is in the clipboard, as a field of the page gets it."""
    field = page.get_by_label("Payload (JSON)")
    field.fill("")
    field.press("Control+v")
    return field.input_value()


def copies(page: Page) -> None:
    """Each button copies what it stands beside, and gives the focus back."""
    expect(page.get_by_role("button", name="Copy ID")).to_be_visible()
    press(page, "Copy ID")
    expect(page.locator("#notice")).to_have_text("Copied.")
    expect(page.get_by_role("button", name="Copy ID")).to_be_focused()
    assert pasted(page) == "failed"
    press(page, "Copy payload")
    wait_until(lambda: "ada" in pasted(page), SOON)
    assert pasted(page) == '{\n  "to": "ada",\n  "password": "[redacted]"\n}'
    press(page, "Copy error")
    wait_until(lambda: "no route to" in pasted(page), SOON)


def test_copying_works_on_plain_http_under_another_name(
    page: Page, serve: Serve, full: Queue, guard: Guard
) -> None:
    port = urlsplit(serve(token=TOKEN, allowed_hosts=[OTHER_NAME])).port
    guard.expected += [
        f"request elsewhere: {method} http://{OTHER_NAME}:{port}/" for method in ("GET", "POST")
    ]
    guard.expected.append("The Cross-Origin-Opener-Policy header has been ignored")
    page.goto(f"http://{OTHER_NAME}:{port}/jobs/failed")
    log_in(page)
    assert page.evaluate("isSecureContext") is False
    copies(page)


def test_copying_works_on_this_machine(page: Page, serve: Serve, full: Queue) -> None:
    page.goto(f"{serve()}/jobs/failed")
    assert page.evaluate("isSecureContext") is True
    copies(page)


# Behind a proxy, below a prefix.

PREFIX = "/tools/queue"


class Proxy(socketserver.ThreadingTCPServer):
    """Takes requests below a prefix, and hands them on without it. Others are noted."""

    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, upstream: int) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.upstream = upstream
        self.strays: list[str] = []
        self.address = f"http://127.0.0.1:{self.server_address[1]}{PREFIX}"


class _Passing(socketserver.StreamRequestHandler):
    server: Proxy

    def handle(self) -> None:
        first = self.rfile.readline().decode()
        if not first.strip():
            return
        method, path, version = first.split()
        headers = []
        length = 0
        while (line := self.rfile.readline().decode()) not in ("\r\n", ""):
            name = line.partition(":")[0].lower()
            if name == "content-length":
                length = int(line.partition(":")[2])
            if name != "connection":
                headers.append(line)
        if not path.startswith(PREFIX + "/") and path != PREFIX:
            self.server.strays.append(f"{method} {path}")
            self.wfile.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        inner = path.removeprefix(PREFIX) or "/"
        head = f"{method} {inner} {version}\r\n{''.join(headers)}Connection: close\r\n\r\n"
        with socket.create_connection(("127.0.0.1", self.server.upstream)) as upstream, suppress(OSError):
            upstream.sendall(head.encode() + self.rfile.read(length))
            while data := upstream.recv(65_536):
                self.wfile.write(data)


@pytest.fixture
def proxy(serve: Serve) -> Iterator[Proxy]:
    """A proxy in front of a server that wants a token; asked for before `page`, it ends after it."""
    port = urlsplit(serve(root_path=PREFIX, token=TOKEN)).port
    assert port is not None
    with Proxy(port) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,), name="proxy")
        thread.start()
        yield made
        made.shutdown()
        thread.join(SOON)


def test_below_a_prefix_pages_are_live_and_everything_can_be_done(
    proxy: Proxy, page: Page, full: Queue, guard: Guard
) -> None:
    guard.expected.append("status of 400")
    page.goto(f"{proxy.address}/jobs?status=pending")
    log_in(page)
    expect(page).to_have_url(f"{proxy.address}/jobs?status=pending")
    assert {cookie["path"] for cookie in page.context.cookies()} == {PREFIX}
    expect(page.locator("#live-word:visible")).to_have_text("Live")
    full.enqueue("ok", id="new")
    expect(page.locator('tr[data-key="new"]')).to_be_visible()
    press(page, "Cancel new")
    expect(page.locator("#notice")).to_have_text("Job new cancelled.")
    expect(page).to_have_url(f"{proxy.address}/jobs?status=pending")
    page.goto(f"{proxy.address}/jobs?status=failed")
    page.get_by_label("Select failed-too").check()
    press(page, "Retry…")
    press(page, "Retry 1 job")
    expect(page.locator("#notice")).to_have_text("1 job retried.")
    expect(page).to_have_url(f"{proxy.address}/jobs?status=failed")
    page.get_by_role("link", name="Controls").click()
    press(page, "Pause all")
    expect(page.locator("#all-state")).to_contain_text("paused")
    page.get_by_label("max_attempts").fill("4")
    press(page, "Set max_attempts")
    expect(page.locator("#notice")).to_have_text("max_attempts is now 4.")
    page.get_by_role("link", name="Enqueue").click()
    page.get_by_role("link", name="echo").click()
    press(page, "Enqueue")
    expect(page.locator("#notice")).to_contain_text(" enqueued.")
    press(page, "Log out")
    expect(page).to_have_url(f"{proxy.address}/login")
    assert proxy.strays == []


# Without JavaScript.


@pytest.fixture
def plain(new_page: NewPage) -> Page:
    """A page of a browser that runs no scripts."""
    return new_page(java_script_enabled=False)


def row(page: Page, id: str) -> Locator:
    return page.locator(f'tr[data-key="{id}"]')


def test_without_javascript_one_finds_jobs_by_filter_order_and_page(
    plain: Page, serve: Serve, full: Queue
) -> None:
    full.enqueue_many("ok", [{} for _ in range(60)])
    plain.goto(f"{serve()}/jobs")
    expect(plain.locator("#live")).to_be_hidden()
    expect(plain.get_by_label("Select all on this page")).to_be_hidden()
    first = shown(plain)
    plain.get_by_role("link", name="Next").click()
    second = shown(plain)
    assert (len(first), len(second), set(first) & set(second)) == (50, full.count() - 50, set())
    plain.get_by_role("link", name="Previous").click()
    assert shown(plain) == first
    plain.get_by_role("columnheader", name="Priority").get_by_role("link").click()
    assert shown(plain)[0] == "pending"
    plain.get_by_label("Type").select_option("fail")
    plain.get_by_label("failed", exact=True).check()
    plain.get_by_role("searchbox").fill("payload.to:ada")
    press(plain, "Apply")
    assert shown(plain) == ["failed"]
    plain.get_by_text("Time range").click()
    expect(plain.get_by_label("Created from")).to_be_visible()


def test_without_javascript_many_jobs_are_changed_after_a_confirmation(
    plain: Page, serve: Serve, full: Queue
) -> None:
    plain.goto(f"{serve()}/jobs?status=failed")
    press(plain, "Retry…")
    expect(plain.locator("#notice")).to_have_text("Select some jobs first.")
    plain.get_by_label("Select failed", exact=True).check()
    plain.get_by_label("Select failed-too").check()
    press(plain, "Retry…")
    expect(plain.get_by_role("heading", level=1)).to_have_text("Retry 2 jobs?")
    press(plain, "Retry 2 jobs")
    expect(plain.locator("#notice")).to_have_text("2 jobs retried.")
    plain.get_by_role("link", name="Delete all…").click()
    press(plain, "Delete 1 job")
    expect(plain.locator("#notice")).to_have_text("1 job deleted.")
    assert full.count(status="failed") == 0
    expect(plain.locator("main")).to_contain_text("No jobs match.")


def test_without_javascript_the_queue_is_controlled_fed_and_cleaned(
    plain: Page, serve: Serve, full: Queue, guard: Guard
) -> None:
    guard.expected.append("status of 400")
    address = serve(token=TOKEN)
    plain.goto(address)
    log_in(plain)
    press(plain, "Pause all")
    expect(plain.locator("#headline")).to_have_text("Paused")
    press(plain, "Resume")
    expect(plain.locator("#headline")).not_to_have_text("Paused")
    plain.get_by_role("link", name="Controls").click()
    press(plain, "Pause ok")
    expect(row(plain, "ok").locator(".badge")).to_have_text("paused")
    press(plain, "Resume ok")
    expect(plain.locator("#notice")).to_have_text("Resumed ok.")
    plain.get_by_label("Rate limit of ok").fill("3")
    row(plain, "ok").get_by_role("button", name="Set", exact=True).click()
    expect(plain.locator("#notice")).to_have_text("rate_limit for ok is now 3.")
    plain.get_by_label("max_attempts").fill("many")
    press(plain, "Set max_attempts")
    expect(plain.locator("#setting-max_attempts-problem")).to_be_visible()
    plain.get_by_label("max_attempts").fill("4")
    press(plain, "Set max_attempts")
    expect(plain.locator("#notice")).to_have_text("max_attempts is now 4.")
    plain.get_by_label("Scope", exact=True).select_option("ok")
    press(plain, "Show")
    expect(plain.locator("#settings-title")).to_have_text("Settings for ok")
    plain.get_by_role("link", name="Enqueue").click()
    plain.get_by_label("Type").fill("everything")
    press(plain, "Choose")
    plain.get_by_label(re.compile("^to")).fill("ada")
    press(plain, "Enqueue")
    expect(plain.locator("#notice")).to_contain_text(" enqueued.")
    plain.get_by_role("link", name="Overview").click()
    plain.get_by_label("Delete completed and cancelled").fill("0s")
    press(plain, "Clean up…")
    press(plain, "Delete 3 jobs")
    expect(plain.locator("#notice")).to_have_text("3 jobs deleted.")
    press(plain, "Log out")
    expect(plain.get_by_label("Token")).to_be_visible()
    plain.goto(f"{address}/jobs")
    expect(plain.get_by_label("Token")).to_be_visible()
