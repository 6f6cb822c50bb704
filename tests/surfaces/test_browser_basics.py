"""The login and the reference in a real browser, and the browser of the tests itself."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from playwright.sync_api import Error, Page, Request

from tests.support import wait_until
from tests.surfaces import browser
from tests.surfaces.browser import Chromium, Guard, NewPage, Serve, expect, serious_findings, shot

TOKEN = "a token for the tests"
REPOSITORY = Path(__file__).parents[2]
WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 390, "height": 844}

looks = pytest.mark.parametrize("scheme", ["light", "dark"])
sizes = pytest.mark.parametrize("viewport", [WIDE, NARROW], ids=["wide", "narrow"])


def log_in(page: Page, token: str) -> None:
    page.get_by_label("Token").fill(token)
    page.get_by_role("button", name="Log in").click()


def log_out(page: Page) -> None:
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("button", name="Log in")).to_be_visible()


def visit(page: Page, address: str, html: str, policy: str = "") -> None:
    """Go to a page with this content, which the server knows nothing about."""
    headers = {"Content-Type": "text/html", "Content-Security-Policy": policy}
    page.route(f"{address}/visited", lambda route: route.fulfill(body=html, headers=headers))
    page.goto(f"{address}/visited")


# The pages that there are.


def test_without_a_token_the_login_leads_straight_on(page: Page, serve: Serve) -> None:
    address = serve()
    page.goto(f"{address}/login?next=/docs")
    expect(page).to_have_url(f"{address}/docs")
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_who_logs_in_by_the_form_gets_to_the_page_that_was_asked_for(page: Page, serve: Serve) -> None:
    address = serve(token=TOKEN)
    page.goto(f"{address}/docs?from=here")
    expect(page.get_by_role("button", name="Log in")).to_be_visible()
    expect(page.get_by_label("Token")).to_be_focused()
    log_in(page, TOKEN)
    expect(page).to_have_url(f"{address}/docs?from=here")
    cookies = {cookie["name"]: cookie for cookie in page.context.cookies()}
    assert cookies.keys() == {"holdfast_session", "holdfast_form"}
    assert all((c["httpOnly"], c["sameSite"]) == (True, "Strict") for c in cookies.values())
    assert page.evaluate("document.cookie") == ""


def test_a_wrong_token_is_told_next_to_its_field(page: Page, serve: Serve, guard: Guard) -> None:
    guard.expected.append("status of 401")
    address = serve(token=TOKEN)
    page.goto(f"{address}/login?next=/docs")
    log_in(page, "another")
    expect(page.get_by_role("alert")).to_be_visible()
    expect(page.get_by_label("Token")).to_have_attribute("aria-invalid", "true")
    assert page.context.cookies() == []
    assert serious_findings(page) == []
    log_in(page, TOKEN)
    expect(page).to_have_url(f"{address}/docs")


def test_who_has_logged_out_is_asked_for_the_token_again(page: Page, serve: Serve) -> None:
    address = serve(token=TOKEN)
    page.goto(f"{address}/login?next=/docs")
    log_in(page, TOKEN)
    expect(page).to_have_url(f"{address}/docs")
    log_out(page)
    assert page.context.cookies() == []
    page.goto(f"{address}/docs")
    expect(page).to_have_url(f"{address}/login?next=/docs")


@looks
@sizes
def test_axe_finds_nothing_serious(
    new_page: NewPage, serve: Serve, scheme: str, viewport: dict[str, int]
) -> None:
    address = serve(token=TOKEN)
    page = new_page(color_scheme=scheme, viewport=viewport)
    page.goto(f"{address}/docs")
    shot(page, f"login-{scheme}-{viewport['width']}")
    found = serious_findings(page)
    log_in(page, TOKEN)
    expect(page).to_have_url(f"{address}/docs")
    shot(page, f"docs-{scheme}-{viewport['width']}")
    assert found + serious_findings(page) == []


@sizes
def test_no_page_is_wider_than_the_window(new_page: NewPage, serve: Serve, viewport: dict[str, int]) -> None:
    address = serve(token=TOKEN)
    page = new_page(viewport=viewport)
    page.goto(f"{address}/docs")
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]
    log_in(page, TOKEN)
    expect(page).to_have_url(f"{address}/docs")
    page.wait_for_load_state()  # with its style sheet
    assert page.evaluate("document.documentElement.scrollWidth") <= viewport["width"]


def test_without_javascript_one_can_log_in(new_page: NewPage, serve: Serve) -> None:
    address = serve(token=TOKEN)
    page = new_page(java_script_enabled=False)
    page.goto(f"{address}/docs")
    log_in(page, TOKEN)
    expect(page).to_have_url(f"{address}/docs")


# The guard: what a page must not do is found.


@pytest.mark.parametrize(
    ("html", "finding"),
    [
        ("<script>document.title = 'ran'</script>", "CSP: script-src-elem forbids inline"),
        ("<body style='color: red'>", "CSP: style-src-attr forbids inline"),
        ("<img src=x onerror=\"document.title = 'ran'\">", "CSP: img-src forbids"),
    ],
)
def test_what_the_policy_forbids_is_found_and_does_not_run(
    page: Page, serve: Serve, guard: Guard, html: str, finding: str
) -> None:
    visit(page, serve(), f"<title>still</title>{html}", policy="default-src 'none'")
    found = guard.unexpected()
    guard.expected += ["CSP: ", "Content Security Policy", "csp"]
    assert any(finding in line for line in found), found
    assert page.title() == "still"


def test_a_script_added_to_a_page_of_ours_is_found(page: Page, serve: Serve, guard: Guard) -> None:
    page.goto(f"{serve()}/docs")
    page.evaluate("""() => {
        const script = document.createElement("script");
        script.textContent = "document.title = 'ran'";
        document.body.append(script);
    }""")
    with pytest.raises(pytest.fail.Exception, match="CSP: script-src-elem forbids inline"):
        guard.check()
    guard.expected += ["CSP: script-src-elem", "Content Security Policy"]
    assert page.title() != "ran"


@pytest.mark.parametrize(
    ("script", "finding"),
    [
        ("console.error('it broke')", "console: it broke"),
        ("throw new Error('thrown')", "thrown"),
        ("Promise.reject(new Error('rejected'))", "rejected"),
        ("fetch('/gone')", "status of 404"),
        (
            "fetch('http://elsewhere.example/x').catch(() => 0)",
            "request elsewhere: GET http://elsewhere.example/x",
        ),
        ("fetch('http://127.0.0.1:1/x').catch(() => 0)", "request failed: GET http://127.0.0.1:1/x"),
    ],
)
def test_errors_and_requests_of_a_page_are_found(
    page: Page, serve: Serve, guard: Guard, script: str, finding: str
) -> None:
    visit(page, serve(), f"<script>{script}</script>")
    wait_until(
        lambda: any(finding in line for line in guard.unexpected()), 10, f"{finding}: {guard.findings}"
    )
    guard.expected.append("")


def test_a_popup_is_watched_too(page: Page, serve: Serve, guard: Guard) -> None:
    visit(page, serve(), "<a href=/gone target=_blank>open</a>")
    with page.expect_popup():
        page.get_by_role("link").click()
    wait_until(lambda: any("status of 404" in line for line in guard.unexpected()), 10, str(guard.findings))
    guard.expected.append("status of 404")


def test_a_stream_that_ends_with_its_page_is_no_finding(page: Page, serve: Serve, guard: Guard) -> None:
    address = serve()
    page.goto(f"{address}/docs")
    page.evaluate("() => new Promise((done) => { new EventSource('/api/events').onopen = done; })")
    page.goto(f"{address}/docs")
    assert guard.unexpected() == []


TEST = """
from tests.conftest import empty_database, engine, queue, url
from tests.surfaces.browser import chromium, guard, new_page, page, serve

def test_it(page, serve):
    page.goto(serve() + "/docs")
    page.evaluate("console.error('it broke')")
"""


@pytest.mark.browser
def test_a_test_whose_page_reports_something_fails(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text(TEST)
    paths = [str(REPOSITORY), os.environ.get("PYTHONPATH")]
    variables = {
        "PYTHONPATH": os.pathsep.join(filter(None, paths)),
        "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
    }
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-W", "error", "--rootdir", tmp_path, tmp_path],
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 1, ran.stderr
    assert "1 passed, 1 error" in ran.stdout
    assert "the pages reported:\nconsole: it broke" in ran.stdout


@pytest.mark.parametrize(
    ("ci", "outcome"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)], ids=["here", "in CI"]
)
def test_without_a_browser_tests_are_skipped_but_fail_in_ci(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, ci: str, outcome: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(browser, "_PLACES", ())
    # Both are caught, or a skip where a failure is due would skip this test.
    with pytest.raises((pytest.skip.Exception, pytest.fail.Exception), match="install chromium") as raised:
        browser.required_browser()
    assert raised.type is outcome


def test_pictures_are_taken_only_where_a_folder_is_named(
    page: Page, serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv(browser.PICTURES, raising=False)
    monkeypatch.chdir(tmp_path)
    page.goto(f"{serve()}/docs")
    shot(page, "docs")
    assert list(tmp_path.glob("**/*.png")) == []
    monkeypatch.setenv(browser.PICTURES, str(tmp_path / "pictures"))
    shot(page, "docs")
    assert list(tmp_path.glob("**/*.png")) == [tmp_path / "pictures" / "docs.png"]


def test_axe_names_what_is_serious_and_leaves_out_the_rest(page: Page, serve: Serve) -> None:
    visit(page, serve(), "<html lang=en><title>A page</title><h1>One</h1><h4>Four</h4><img src='data:,'>")
    (finding,) = serious_findings(page)
    assert finding.startswith("image-alt at ['img']: ")


# The browser's thread: an open page is in nobody's way.


async def nothing() -> str:
    return "nothing"


def test_event_loops_run_beside_an_open_page(page: Page, serve: Serve) -> None:
    page.goto(f"{serve()}/docs")
    assert asyncio.run(nothing()) == "nothing"
    expect(page.get_by_role("heading", level=1)).to_be_visible()


def test_a_page_can_be_used_from_any_thread(page: Page, serve: Serve) -> None:
    page.goto(f"{serve()}/docs")
    titles: list[str] = []
    threads = [threading.Thread(target=lambda: titles.append(page.title())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert titles == [page.title()] * 4


@pytest.mark.browser
def test_a_page_that_a_signal_interrupted_is_given_up_and_the_next_has_a_new_browser() -> None:
    """The signal may be Ctrl-C, or the alarm of pytest-timeout."""
    own = Chromium(browser.required_browser())
    try:
        page = own.new_context().new_page()
        timer = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            page.evaluate("new Promise(() => {})")
        timer.join()
        with pytest.raises(RuntimeError, match="earlier call"):
            page.title()
        assert own.new_context().new_page().evaluate("1 + 1") == 2
    finally:
        own.close()


def test_callbacks_and_nested_objects_work_through_the_thread(page: Page, serve: Serve) -> None:
    address = serve()
    asked: list[Request] = []
    page.on("request", asked.append)
    page.route("**/extra", lambda route: route.fulfill(body=f"for {page.url}"))
    page.goto(f"{address}/docs")
    with page.expect_response(lambda response: response.url.endswith("/extra")) as info:
        text = page.evaluate("fetch('/extra').then((answer) => answer.text())")
    assert text == info.value.text() == f"for {address}/docs"
    assert info.value.request.frame.page == page
    assert {f"{address}/docs", f"{address}/extra"} <= {request.url for request in asked}
    assert "user-agent" in asked[0].all_headers()
    assert [handle.get_attribute("lang") for handle in page.query_selector_all("html")] == ["en"]
    with pytest.raises(Error, match="no such thing"):
        page.evaluate("() => { throw new Error('no such thing') }")
    with pytest.raises(AssertionError, match="Other"):
        expect(page).to_have_title("Other", timeout=10)
