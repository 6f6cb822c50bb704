"""A real browser for the tests: one in a process, tabs that are handed on clean, and a guard that reports.

A new context costs several times what a page does, so a tab is used again: without cookies, on an empty
document, for a server on another port. One on which a test has done what can't be undone is thrown away.

Playwright's synchronous calls leave an event loop running in their thread, also while the test does something
else, and `asyncio.run` is refused there. So the browser has a thread of its own. Tests hold stand-ins that
look like Playwright's objects and do everything in that thread; `expect` is the one from this module.
"""

from __future__ import annotations

import functools
import inspect
import os
import queue as queues
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import urlsplit

import pytest

from holdfast import Queue
from holdfast.web import create_app
from holdfast.web.auth import host_name, is_loopback
from tests.surfaces.live import live

# At run time it is loaded by the first test that opens a page: most processes have none.
if TYPE_CHECKING:
    from playwright.sync_api import BrowserContext, ConsoleMessage, Page, Request, WebError
    from playwright.sync_api import expect as expect

PICTURES = "HOLDFAST_PICTURES"
"""The environment variable that names a folder for pictures of pages."""

NO_BROWSER = (
    "there is no Chromium for the browser tests: `apt-get install chromium` on Debian, "
    "`brew install --cask chromium` on macOS"
)
WAIT_SECONDS = 30.0
"""How long Playwright waits for what a test asks of a page."""

_FIRST_LOOK_MILLISECONDS = 40
_LONGEST_LOOK_MILLISECONDS = 320

OTHER_NAME = "queue.example"
"""This machine, to the browser: a name that is not trusted as loopback's are."""

CALL_SECONDS = 100.0
"""When a call counts as stuck. Not all obey Playwright's timeout: evaluate() waits for any promise."""

_NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first has no windows to keep: a page costs it a fifth of what it costs the others."""
_PLACES = (
    "/Applications/Chromium.app/Contents/MacOS/Chromium",
    "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
)
_ARGUMENTS = [
    "--no-sandbox",
    "--no-proxy-server",
    # Else each page has a process for itself, and one in reserve: half of what a short test costs.
    "--renderer-process-limit=1",
    # Whatever the pages or the browser itself want from elsewhere does not leave this machine.
    "--host-resolver-rules="
    + ", ".join(
        [f"MAP {OTHER_NAME} 127.0.0.1", "MAP * ~NOTFOUND"]
        + [f"EXCLUDE {name}" for name in ("localhost", "127.0.0.1", "[::1]")]
    ),
]
WIDE = {"width": 1280, "height": 800}
NARROW = {"width": 390, "height": 844}
LOOKS = (("light", WIDE), ("dark", NARROW))
"""Between them every page is seen in both schemes and at both widths."""

OF_THE_LOOK = ("color-contrast", "link-in-text-block", "scrollable-region-focusable")
"""The rules whose findings differ with colours and widths; the others look at the document alone."""

_CONTEXT: dict[str, Any] = {
    "viewport": WIDE,
    "reduced_motion": "reduce",
    "locale": "en-GB",
    "timezone_id": "UTC",
}
_LASTING = frozenset(
    {"add_init_script", "clock", "emulate_media", "expose_binding", "expose_function", "grant_permissions"}
    | {"new_cdp_session", "on", "once", "route", "set_extra_http_headers", "set_offline", "set_viewport_size"}
)
"""What a test can do to a page that stays with it."""

_MOST_IDLE = 3

_TELL_VIOLATIONS = """{
    const tell = console.error;
    addEventListener("securitypolicyviolation", (event) => tell(
        `CSP: ${event.effectiveDirective} forbids ${event.blockedURI} ${event.sample}`), true);
}"""


class NewPage(Protocol):
    def __call__(self, **options: Any) -> Page:
        """A page that shares nothing with the test's others, with options of Playwright's `new_context`.

        `init_script` runs in each document before its own scripts.
        """


class Serve(Protocol):
    def __call__(self, root_path: str = "", **options: Any) -> str:
        """The address of a server of the test's queue, with options of `create_app`."""


@pytest.fixture(scope="session")
def chromium() -> Iterator[Chromium]:
    """The browser of this process, which starts with the first page."""
    browser = Chromium(required_browser())
    yield browser
    browser.close()


@pytest.fixture
def serve(queue: Queue) -> Iterator[Serve]:
    """Starts servers that stop when the pages are closed: a live page reports a server that is gone."""
    with ExitStack() as stack:

        def start(root_path: str = "", **options: Any) -> str:
            return stack.enter_context(live(create_app(queue, **options), root_path))

        yield start


@pytest.fixture
def guard() -> Guard:
    """What the pages of this test report; a test says in `guard.expected` what it has provoked."""
    return Guard()


@pytest.fixture
def new_page(chromium: Chromium, guard: Guard, serve: Serve) -> Iterator[NewPage]:
    """Opens pages, and fails the test at its end if one of them reports what was not expected."""
    with watched_pages(chromium, guard) as make:
        yield make


@contextmanager
def watched_pages(chromium: Chromium, guard: Guard) -> Iterator[NewPage]:
    """Opens pages; at the end they must not have reported anything that was not expected."""
    tabs: list[Tab] = []

    def make(**options: Any) -> Page:
        tabs.append(chromium.take_tab({**_CONTEXT, **options}))
        guard.watch(tabs[-1])
        return tabs[-1].page

    yield make
    try:
        guard.check()
    finally:
        chromium.give_back(tabs)


@pytest.fixture
def page(new_page: NewPage) -> Page:
    """A page, 1280 × 800."""
    return new_page()


def find_browser() -> str | None:
    """The path of an installed Chromium or Chrome."""
    found = (shutil.which(name) for name in (*_NAMES, *_PLACES))
    return next((path for path in found if path is not None), None)


def required_browser() -> str:
    """The path, or else the test is skipped; in CI it fails."""
    path = find_browser()
    if path is not None:
        return path
    if os.environ.get("CI") == "true":
        pytest.fail(NO_BROWSER, pytrace=False)
    pytest.skip(NO_BROWSER)


def serious_findings(page: Page, rules: tuple[str, ...] = ()) -> list[str]:
    """What axe finds on a page, by these rules or by all, that is serious or critical: rule, target and
    summary of each."""
    from axe_playwright_python.sync_playwright import Axe  # type: ignore[import-untyped]

    if not page.evaluate("'axe' in window"):
        page.evaluate(Axe().axe_script)
    options = {"resultTypes": ["violations"], **({"runOnly": list(rules)} if rules else {})}
    violations = page.evaluate("(options) => axe.run(options).then((found) => found.violations)", options)
    return [
        f"{violation['id']} at {node['target']}: {' '.join(node['failureSummary'].split())}"
        for violation in violations
        if violation["impact"] in ("serious", "critical")
        for node in violation["nodes"]
    ]


def findings(page: Page) -> dict[str, list[str]]:
    """What is serious on a page as it is, by its look; and where it is wider than the window."""
    found: dict[str, list[str]] = {}
    for scheme, size in LOOKS:
        page.emulate_media(color_scheme=scheme)  # type: ignore[arg-type]
        page.set_viewport_size(size)  # type: ignore[arg-type]
        texts = serious_findings(page, OF_THE_LOOK if found else ())
        width = page.evaluate("document.documentElement.scrollWidth")
        found[f"{scheme}, {size['width']}"] = [*texts, *([f"{width} wide"] if width > size["width"] else [])]
    return {look: texts for look, texts in found.items() if texts}


def shot(page: Page, name: str) -> None:
    """Take a picture of the whole page, if the environment names a folder for them."""
    folder = os.environ.get(PICTURES)
    if folder:
        page.screenshot(path=Path(folder) / f"{name}.png", full_page=True)


class Guard:
    """Collects what must not happen while pages are open."""

    def __init__(self) -> None:
        self.findings: list[str] = []
        self.expected: list[str] = []
        """Parts of findings that are no fault."""
        self._tabs: list[Tab] = []

    def watch(self, tab: Tab) -> None:
        tab.guard = self
        self._tabs.append(tab)

    def unexpected(self) -> list[str]:
        """The findings so far, without what is expected."""
        for tab in self._tabs:
            for page in tab.page.context.pages:
                _settle(page)
        return [finding for finding in self.findings if not any(part in finding for part in self.expected)]

    def check(self) -> None:
        """Fail if there is anything."""
        found = self.unexpected()
        if found:
            pytest.fail("\n".join(["the pages reported:", *found]), pytrace=False)

    def on_console(self, message: ConsoleMessage) -> None:
        if message.type == "error":
            self.findings.append(f"console: {message.text} ({message.location.get('url', '')})")

    def on_error(self, error: WebError) -> None:
        self.findings.append(f"error: {error.error}")

    def on_request(self, request: Request) -> None:
        url = urlsplit(request.url)
        if url.scheme not in ("data", "blob", "about") and not _is_ours(request):
            self.findings.append(f"request elsewhere: {request.method} {request.url}")

    def on_failure(self, request: Request) -> None:
        # Aborted is what the page itself let go of: a stream, for one, when the page is left.
        if request.failure != "net::ERR_ABORTED":
            self.findings.append(f"request failed: {request.method} {request.url} {request.failure}")


def _is_ours(request: Request) -> bool:
    """A test may go to any server of this machine; the page that it gets speaks to that one only."""
    place = urlsplit(request.url)
    if request.is_navigation_request():
        return is_loopback(host_name(place.netloc) or "")
    page = urlsplit(request.frame.page.url)
    return (place.scheme, place.netloc) == (page.scheme, page.netloc)


def _settle(page: Page) -> None:
    """Let a page say what it has to say: a violation is announced a moment after it."""
    from playwright.sync_api import Error

    with suppress(Error):  # it was closed, or is on its way to another document
        page.wait_for_timeout(20)
        page.evaluate("0")


class Tab:
    """A page in a context of its own, and the guard of the test that has it."""

    page: Page

    def __init__(self, options: dict[str, Any]) -> None:
        self.options = options
        self.guard = Guard()

    def open(self, context: BrowserContext) -> Page:
        """In the browser's thread."""
        for script in (_TELL_VIOLATIONS, self.options.get("init_script", "")):
            context.add_init_script(script)
        context.on("console", lambda message: self.guard.on_console(message))
        context.on("weberror", lambda error: self.guard.on_error(error))
        context.on("request", lambda request: self.guard.on_request(request))
        context.on("requestfailed", lambda request: self.guard.on_failure(request))
        return context.new_page()

    def clear(self) -> None:
        """Leave what the test had, with what it stored: a later one may have a server on the same port."""
        for other in self.page.context.pages:
            if other != self.page:
                other.close()
        if self.page.url.startswith("http:") and self.options.get("java_script_enabled", True):
            self.page.evaluate("sessionStorage.clear()")
        self.page.goto("about:blank")
        self.page.mouse.move(0, 0)
        self.page.context.clear_cookies()


class Chromium:
    """The browser, in its thread. One that crashed or is stuck is replaced for the next page."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._thread: _Thread | None = None
        self._browser: Any = None
        self._idle: list[Tab] = []

    def take_tab(self, options: dict[str, Any]) -> Tab:
        """One that an earlier test had with the same options, or a new one."""
        found = [tab for tab in self._idle if tab.options == options and self._is_usable]
        if found:
            self._idle.remove(found[0])
            return found[0]
        tab = Tab(options)
        context = self.new_context(**{name: options[name] for name in options if name != "init_script"})
        assert self._thread is not None
        tab.page = self._thread.do(tab.open, context)
        return tab

    def give_back(self, tabs: list[Tab]) -> None:
        """The tabs of a test: for the next, unless something of this one would stay with them."""
        if self._thread is None or not self._is_usable:
            return
        for tab in tabs:
            if self._thread.has_lasting or tab.page.is_closed():
                tab.page.context.close()
            else:
                tab.clear()
                self._idle.append(tab)
        self._thread.has_lasting = False
        while len(self._idle) > _MOST_IDLE:
            self._idle.pop(0).page.context.close()

    @property
    def _is_usable(self) -> bool:
        return self._thread is not None and not self._thread.is_stuck and self._browser.is_connected()

    def new_context(self, **options: Any) -> BrowserContext:
        if not self._is_usable:
            self.close()
            self._start()
        context: BrowserContext = self._browser.new_context(**options)
        context.set_default_timeout(WAIT_SECONDS * 1000)
        return context

    def close(self) -> None:
        # A thread that is stuck is left to the end of the process, which ends its browser, too.
        if self._thread is not None and not self._thread.is_stuck:
            self._thread.close()
        self._thread = self._browser = None
        self._idle.clear()

    def _start(self) -> None:
        from playwright.sync_api import expect, sync_playwright

        expect.set_options(timeout=WAIT_SECONDS * 1000)
        self._thread = _Thread()
        self._thread.manager = self._thread.do(sync_playwright)
        playwright = self._thread.manager.__enter__()
        self._browser = playwright.chromium.launch(executable_path=self._path, args=_ARGUMENTS)


class _Thread:
    """Does what it is told, one call after another."""

    def __init__(self) -> None:
        self.manager: Any = None
        self.is_stuck = False
        self.has_lasting = False
        """Whether something was done that stays with a page."""
        self._calls: queues.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queues.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="browser", daemon=True)
        self._thread.start()

    def do(self, function: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Call a function in this thread, and return a stand-in of what it returns."""

        def call() -> Any:
            given = {name: self._taken(value) for name, value in options.items()}
            return self._given(function(*(self._taken(value) for value in args), **given))

        if threading.current_thread() is self._thread:  # a callback of Playwright's
            return call()
        if self.is_stuck:
            raise RuntimeError("the browser is still at an earlier call")
        future: Future[Any] = Future()
        self._calls.put((future, call))
        try:
            return future.result(CALL_SECONDS)
        except BaseException:
            # Also when the test's time is up: what it waited for is still under way.
            self.is_stuck = not future.done()
            raise

    def close(self) -> None:
        try:
            if self.manager is not None:
                self.manager.__exit__(None, None, None)
        finally:
            self._calls.put(None)
            self._thread.join(CALL_SECONDS)

    def _run(self) -> None:
        while (given := self._calls.get()) is not None:
            future, call = given
            try:
                future.set_result(call())
            except BaseException as error:
                future.set_exception(error)
            del given, future, call

    def _given(self, value: Any) -> Any:
        """What may leave this thread for a value."""
        if isinstance(value, list | tuple):
            return type(value)(self._given(item) for item in value)
        is_theirs = type(value).__module__.startswith("playwright") and not isinstance(value, Exception)
        return _StandIn(self, value) if is_theirs or inspect.isroutine(value) else value

    def _taken(self, value: Any) -> Any:
        """What a value stands for."""
        if isinstance(value, _StandIn):
            return value._value
        if isinstance(value, list | tuple):
            return type(value)(self._taken(item) for item in value)
        if isinstance(value, dict):
            return {name: self._taken(item) for name, item in value.items()}
        return self._callback(value) if inspect.isroutine(value) else value

    def _callback(self, function: Callable[..., Any]) -> Callable[..., Any]:
        # Playwright counts the parameters of a callback: wraps() shows it those of the function.
        @functools.wraps(function)
        def called(*args: Any) -> Any:
            return self._taken(function(*(self._given(value) for value in args)))

        return called


class _StandIn:
    """Stands for an object that belongs to the browser's thread."""

    __slots__ = ("_thread", "_value")

    def __init__(self, thread: _Thread, value: Any) -> None:
        self._thread = thread
        self._value = value

    def __getattr__(self, name: str) -> Any:
        self._thread.has_lasting |= name in _LASTING
        return self._thread.do(getattr, self, name)

    def __call__(self, *args: Any, **options: Any) -> Any:
        return self._thread.do(self._value, *args, **options)

    def __enter__(self) -> Any:
        return self._thread.do(self._value.__enter__)

    def __exit__(self, *error: object) -> Any:
        return self._thread.do(self._value.__exit__, *error)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _StandIn) and bool(self._value == other._value)

    def __hash__(self) -> int:
        return hash(self._value)

    def __repr__(self) -> str:
        return repr(self._value)


class _Expectation:
    """Playwright's assertions, which look again after 0.1, 0.25, 0.5 and 1 s: here with shorter rests."""

    def __init__(self, assertions: Any) -> None:
        self._assertions = assertions

    def __getattr__(self, name: str) -> Any:
        look = getattr(self._assertions, name)

        def wait(*args: Any, timeout: float = WAIT_SECONDS * 1000, **options: Any) -> None:
            deadline = time.monotonic() + timeout / 1000
            rest = _FIRST_LOOK_MILLISECONDS
            while True:
                try:
                    look(*args, timeout=rest, **options)
                    return
                except AssertionError:
                    if time.monotonic() > deadline:
                        raise
                rest = min(2 * rest, _LONGEST_LOOK_MILLISECONDS)

        return wait


if not TYPE_CHECKING:

    def expect(actual: Any, message: str | None = None) -> Any:
        """Playwright's assertions, which wait for what they expect."""
        from playwright.sync_api import expect as theirs

        return _Expectation(actual._thread.do(theirs, actual, message))
