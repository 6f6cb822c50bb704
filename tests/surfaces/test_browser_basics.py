"""The login and the reference in a real browser, and the browser of the tests itself."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from playwright.sync_api import Error, Page, Request

from tests.support import wait_until
from tests.surfaces import browser
from tests.surfaces.browser import Chromium, Guard, Serve, expect, serious_findings, shot, watched_pages

TOKEN = "a token for the tests"


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


# The guard: what a page must not do is found.


def test_what_the_policy_forbids_is_found_and_does_not_run(page: Page, serve: Serve, guard: Guard) -> None:
    address = serve()
    for html, finding in (
        ("<script>document.title = 'ran'</script>", "CSP: script-src-elem forbids inline"),
        ("<body style='color: red'>", "CSP: style-src-attr forbids inline"),
        ("<img src=x onerror=\"document.title = 'ran'\">", "CSP: img-src forbids"),
    ):
        visit(page, address, f"<title>still</title>{html}", policy="default-src 'none'")
        found = guard.unexpected()
        assert any(finding in line for line in found), found
        assert page.title() == "still"
        guard.findings.clear()


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


def test_errors_and_requests_of_a_page_are_found(page: Page, serve: Serve, guard: Guard) -> None:
    address = serve()
    for script, finding in (
        ("console.error('it broke')", "console: it broke"),
        ("throw new Error('thrown')", "thrown"),
        ("Promise.reject(new Error('rejected'))", "rejected"),
        ("fetch('/gone')", "status of 404"),
        (
            "fetch('http://elsewhere.example/x').catch(() => 0)",
            "request elsewhere: GET http://elsewhere.example/x",
        ),
        ("fetch('http://127.0.0.1:1/x').catch(() => 0)", "request failed: GET http://127.0.0.1:1/x"),
    ):
        visit(page, address, f"<script>{script}</script>")
        wait_until(partial(is_found, guard, finding), 30, f"{finding}: {guard.findings}")
        guard.findings.clear()
    guard.expected.append("")


def is_found(guard: Guard, finding: str) -> bool:
    return any(finding in line for line in guard.unexpected())


def test_a_popup_is_watched_too(page: Page, serve: Serve, guard: Guard) -> None:
    visit(page, serve(), "<a href=/gone target=_blank>open</a>")
    with page.expect_popup():
        page.get_by_role("link").click()
    wait_until(partial(is_found, guard, "status of 404"), 30, str(guard.findings))
    guard.expected.append("status of 404")


def test_a_stream_that_ends_with_its_page_is_no_finding(page: Page, serve: Serve, guard: Guard) -> None:
    address = serve()
    page.goto(f"{address}/docs")
    page.evaluate("() => new Promise((done) => { new EventSource('/api/events').onopen = done; })")
    page.goto(f"{address}/docs")
    assert guard.unexpected() == []


def test_a_test_whose_page_reports_something_fails(chromium: Chromium, serve: Serve) -> None:
    stack = ExitStack()
    page = stack.enter_context(watched_pages(chromium, Guard()))()
    page.goto(f"{serve()}/docs")
    page.evaluate("console.error('it broke')")
    with pytest.raises(pytest.fail.Exception, match="the pages reported:\nconsole: it broke"):
        stack.close()


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
        thread.join(60)
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


def test_a_tab_is_handed_on_without_what_a_test_left_there_or_not_at_all(
    chromium: Chromium, serve: Serve
) -> None:
    address = serve(token=TOKEN)
    options = {"locale": "fr-FR"}
    tab = chromium.take_tab(options)
    tab.page.goto(f"{address}/docs")
    log_in(tab.page, TOKEN)
    tab.page.evaluate("sessionStorage.setItem('kept', 'yes')")
    tab.page.context.new_page()
    chromium.give_back([tab])
    again = chromium.take_tab(options)
    assert again is tab
    assert (tab.page.context.cookies(), len(tab.page.context.pages)) == ([], 1)
    tab.page.goto(f"{address}/docs")
    expect(tab.page.get_by_role("button", name="Log in")).to_be_visible()
    assert tab.page.evaluate("sessionStorage.length") == 0
    tab.page.route("**/docs", lambda route: route.abort())
    chromium.give_back([tab])
    other = chromium.take_tab(options)
    assert other is not tab
    chromium.give_back([other])


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
