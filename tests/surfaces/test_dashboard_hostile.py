"""Hostile texts in every field that a page shows, and hostile requests: nothing runs and nothing gets in."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx
import pytest
from playwright.sync_api import Page

from holdfast import Queue
from holdfast.core.redact import redact
from holdfast.store.open import store_of
from holdfast.web import create_app
from tests.surfaces.browser import Guard, NewPage, Serve, expect
from tests.surfaces.hostile_strings import LONGEST, NAMES, STRINGS, TYPES, harmless
from tests.surfaces.live import client, live, standing
from tests.surfaces.raw import exchange

pytestmark = pytest.mark.slow

TEXTS = list(STRINGS.values())
TOKEN = "a token for the tests"
HTML = {"Accept": "text/html"}
FORM = "application/x-www-form-urlencoded"
WIDTH = 1280
SECOND = 1_000_000
HOUR = 3600 * SECOND

Change = Callable[[str], str]

# Filling the database behind the API's back.


def same(text: str) -> str:
    return text


@contextmanager
def opened(home: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(home / "queue.db", timeout=10)) as connection, connection:
        yield connection


def insert(connection: sqlite3.Connection, table: str, **values: object) -> None:
    names = ", ".join(values)
    connection.execute(
        f"INSERT INTO {table} ({names}) VALUES ({', '.join('?' * len(values))})", list(values.values())
    )


def add_job(connection: sqlite3.Connection, id: str, at: int, **values: object) -> None:
    """A job with these columns. One that fails does so afterwards, so that its error is counted."""
    row = {"type": "plain", "status": "pending", "payload": "{}", "token": id} | values
    later = {name: row.pop(name) for name in ("status", "error", "error_group") if row.get("error")}
    insert(
        connection, "holdfast_jobs", id=id, status=row.pop("status", "pending"), due_at=at, created_at=at,
        updated_at=at, max_attempts=3, **row,
    )  # fmt: skip
    if later:
        connection.execute(
            "UPDATE holdfast_jobs SET status = ?, error = ?, error_group = ?, due_at = due_at,"
            " finished_at = ? WHERE id = ?",
            [later["status"], later["error"], later.get("error_group"), at + 5, id],
        )


def add_failure(connection: sqlite3.Connection, id: str, version: int, at: int, text: str) -> None:
    (seq,) = connection.execute("SELECT seq FROM holdfast_jobs WHERE id = ?", [id]).fetchone()
    insert(
        connection, "holdfast_failures", seq=seq, version=version, attempt=version, started_at=at,
        finished_at=at + 5, worker_id=text, error=text, traceback=text, detail=json.dumps({text: text}),
    )  # fmt: skip


def failed_job(connection: sqlite3.Connection, id: str, text: str, at: int) -> None:
    """All that a job can show, and all of it this text."""
    both = json.dumps({text: text, "list": [text, {"in": {text: text}}]})
    add_job(
        connection, id, at, status="failed", error=text, error_group=text[:200], key=text, payload=both,
        result=both, started_at=at, attempts=1, parent_id=text, **{'"group"': text},
    )  # fmt: skip
    add_failure(connection, id, 1, at, text)


def running_job(connection: sqlite3.Connection, id: str, text: str, at: int, type: str = "plain") -> None:
    add_job(
        connection, id, at, status="processing", type=type, worker_id=text, started_at=at, key=text,
        lease_expires_at=at + HOUR, progress=0.5, progress_message=text, attempts=1, **{'"group"': text},
    )  # fmt: skip


def schema_of(texts: Iterable[str]) -> dict[str, Any]:
    """A payload's schema in which every name and every word is one of the texts."""
    texts = list(texts)
    fields: dict[str, Any] = {
        text: {"type": "string", "title": text, "description": text, "default": text} for text in texts
    }
    fields["choice"] = {"enum": texts, "default": texts[0], "description": texts[1]}
    fields["numbers"] = {"type": "integer", "minimum": 1, "description": texts[2]}
    fields["inner"] = {"type": "object", "properties": {text: {"const": text} for text in texts[:20]}}
    fields["examples"] = {"type": "string", "examples": texts, "pattern": texts[3]}
    return {"type": "object", "title": texts[0], "description": texts[1], "properties": fields}


def fill(home: Path, queue: Queue, change: Change, turn: int = 0) -> None:
    """Every table with texts, each changed. `turn` says with which to begin: some pages show only a few."""
    texts = [change(text) for text in (*TEXTS[turn:], *TEXTS[:turn])]
    now = store_of(queue).now()
    with opened(home) as connection:
        for place, text in enumerate(texts):
            failed_job(connection, f"failed-{place}", text, now - HOUR + place * SECOND)
        for place, text in enumerate(texts[:30]):
            running_job(connection, f"running-{place}", text, now - place * SECOND)
        failed_job(connection, "longest", change(LONGEST), now - HOUR)
        running_job(connection, "longest-running", change(LONGEST), now)
        add_job(connection, "museum", now, status="failed", error="it broke", payload=museum(texts))
        for place, text in enumerate(texts):
            add_failure(connection, "museum", place + 1, now + place, text)
        for place, type in enumerate(TYPES):
            add_job(connection, f"typed-{place}", now - HOUR, type=type)
            insert(connection, "holdfast_types", type=type, executor="thread", schema="{}")
            insert(connection, "holdfast_pauses", type=type, paused_at=now)
        for id in NAMES:
            add_job(connection, id, now, parent_id="museum")
            insert(connection, "holdfast_links", parent_id="museum", child_id=id)
        add_job(connection, "shell", now, type="shell", payload=json.dumps({"command": "\n".join(texts)}))
        insert(
            connection, "holdfast_types", type="odd", executor="thread", schema=json.dumps(schema_of(texts))
        )
        for place in range(20):
            insert(
                connection, "holdfast_workers", id=texts[place], host=texts[place + 20],
                state=texts[place + 40], pid=place, concurrency=2, types='["odd"]', slots="{}",
                started_at=now + place, heartbeat_at=now,
            )  # fmt: skip
        insert(connection, "holdfast_settings", name="lease_seconds", type="", value="3600")  # they live on
        for name, text in zip(("max_attempts", "backoff_strategy", "max_log_bytes"), texts, strict=False):
            insert(connection, "holdfast_settings", name=name, type="", value=json.dumps(text))
            insert(connection, "holdfast_settings", name=name, type="all", value=json.dumps(text))
    folder = home / "logs"
    folder.mkdir(exist_ok=True)
    (folder / "shell.log").write_bytes("\n".join(texts).encode())


def museum(texts: Iterable[str]) -> str:
    """A payload with each text as a name, a value, and an entry of a list."""
    texts = list(texts)
    return json.dumps({text: text for text in texts} | {"list": texts})


def wipe(home: Path) -> None:
    tables = ("jobs", "failures", "links", "errors", "counts", "types", "pauses", "workers", "settings")
    with opened(home) as connection:
        for table in tables:
            connection.execute(f"DELETE FROM holdfast_{table}")


# Looking at pages.

PAGES = {
    "overview": "/",
    "jobs": "/jobs?size=100",
    "running jobs": "/jobs?status=processing&size=100",
    "job with everything": "/jobs/museum",
    "job with one text": "/jobs/failed-0",
    "longest texts": "/jobs/longest",
    "longest texts of a running job": "/jobs/longest-running",
    "output": "/jobs/shell",
    "delete": "/jobs/museum/delete",
    "bulk": "/jobs/bulk?action=retry&all=1&status=failed",
    "controls": "/controls",
    "controls of a type": "/controls?type=all",
    "controls of a long type": f"/controls?type={'t' * 255}",
    "choose a type": "/enqueue",
    "form": "/enqueue?type=odd",
    "form of JSON": "/enqueue?type=odd&text=1",
    "form of a long type": f"/enqueue?type={'t' * 255}",
    "job of a long type": f"/jobs/typed-{len(TYPES) - 1}",
    "delete a job with a long name": f"/jobs/{'i' * 128}/delete",
    "clean up": "/cleanup?older_than=7d",
    "reference": "/docs",
}

WATCH = """
    window.ran = [];
    window.canary = (...given) => { window.ran.push(`${given} ${new Error().stack}`); };
    for (const name of ["alert", "confirm", "prompt", "print", "open"]) window[name] = window.canary;
"""

SHAPE = """(root) => [...root.querySelectorAll("*")].map((element) => {
    let depth = 0;
    for (let above = element; above; above = above.parentElement) depth++;
    return `${depth} ${element.localName} ${element.getAttributeNames().sort().join(" ")}`;
})"""

TITLE = 'html => new DOMParser().parseFromString(html, "text/html").title'


def watched(new_page: NewPage, **options: Any) -> Page:
    """A page that remembers what ran on it."""
    return new_page(init_script=WATCH, **options)


def shapes_of(page: Page, htmls: list[str]) -> list[list[str]]:
    """The elements of documents, with the names of their attributes, as the browser's parser sees them."""
    shapes: list[list[str]] = page.evaluate(
        f"""(htmls) => htmls.map((html) =>
            ({SHAPE})(new DOMParser().parseFromString(html, "text/html")))""",
        htmls,
    )
    return shapes


def differing(page: Page, hostile: str, plain: str) -> str:
    """Where a page with hostile texts has other elements than one with plain ones; empty if nowhere."""
    one, other = shapes_of(page, [hostile, plain])
    return difference(one, other)


def difference(one: list[str], other: list[str]) -> str:
    for place, (mine, theirs) in enumerate(zip(one, other, strict=False)):
        if mine != theirs:
            return f"element {place} is {mine!r}, not {theirs!r}; before it: {one[max(0, place - 3) : place]}"
    return "" if len(one) == len(other) else f"{len(one)} elements, not {len(other)}"


def parsed(text: str) -> str:
    """A text as an HTML parser gives it back: it has no NUL, and one kind of line end."""
    return text.replace("\0", "").replace("\r\n", "\n").replace("\r", "\n")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_runs_gains_or_widens_anything(
    new_page: NewPage, serve: Serve, queue: Queue, home: Path, guard: Guard, scheme: str
) -> None:
    """In the dark without the policy, so that whatever gets in would run."""
    page = watched(new_page, color_scheme=scheme, bypass_csp=scheme == "dark")
    address = serve(allow_types=["shell"])
    turn = 0 if scheme == "light" else len(TEXTS) // 2
    fill(home, queue, harmless, turn)
    with client(address) as made:
        plain = {name: made.get(path, headers=HTML).text for name, path in PAGES.items()}
    wipe(home)
    fill(home, queue, same, turn)
    problems = []
    for name, path in PAGES.items():
        answer = page.goto(f"{address}{path}")
        assert answer is not None
        assert (answer.status, page.evaluate("window.ran")) == (200, []), name
        problem = differing(page, answer.text(), plain[name])
        title = page.evaluate(TITLE, plain[name])
        if problem or page.title() != title:
            problems.append(f"{name}: {problem or page.title()}")
        page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
        width = page.evaluate("document.documentElement.scrollWidth")
        if width > WIDTH:
            problems.append(f"{name} is {width} pixels wide")
    assert problems == []
    assert guard.unexpected() == []


def test_a_payload_as_deep_as_can_be_fits_the_window(page: Page, serve: Serve, queue: Queue) -> None:
    payload: Any = {"end": "here"}
    for _ in range(62):
        payload = {"in": payload}
    queue.enqueue("plain", payload, id="deep")
    page.goto(f"{serve()}/jobs/deep")
    page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    expect(page.get_by_text('"here"')).to_be_visible()


def test_long_words_in_an_address_fit_the_window(page: Page, serve: Serve, guard: Guard) -> None:
    guard.expected += ["status of 404", "status of 400"]
    address = serve()
    word = "w" * 3000
    paths = (
        f"/jobs/{word}",
        f"/jobs?q={word[:450]}&type={word}&error={word}&from={word}",
        f"/jobs?q={word[:450]}&error={word}",
        f"/jobs/bulk?action=retry&id={word}",
        f"/jobs/bulk?action=retry&all=1&q={word[:450]}&error={word}",
        f"/cleanup?older_than=7.{'0' * 3000}d",
        f"/controls?type={word}",
        f"/enqueue?type={word}",
    )
    widths = {}
    for path in paths:
        page.goto(f"{address}{path}")
        widths[path.partition(word[:400])[0]] = page.evaluate("document.documentElement.scrollWidth")
    assert {path: width for path, width in widths.items() if width > WIDTH} == {}


# Each text by itself, as the live view puts it in place: through the page's own script.

REFRESH = f"""async (ids) => {{
    const {{ refreshWith }} = await import("/static/live.js");
    const text = (selector) => document.querySelector(selector)?.textContent;
    const all = (selector) => [...document.querySelectorAll(selector)].map((found) => found.textContent);
    const seen = [];
    for (const id of ids) {{
        await refreshWith(await fetch(`/jobs/${{id}}`));
        seen.push({{
            shape: ({SHAPE})(document),
            ran: window.ran.splice(0),
            title: document.title,
            error: text("pre.error"),
            traceback: text("#error details pre"),
            metadata: all("#metadata bdi"),
            message: text("#status bdi"),
            parent: all("#metadata dd").at(-2),
            worker: text("#timeline bdi"),
            names: all("#payload .name"),
            values: all("#payload .text"),
            detail: all("#timeline .text"),
            copies: [...document.querySelectorAll("[data-copy]")].map((button) => button.dataset.copy),
        }});
    }}
    return seen;
}}"""


def refreshed(page: Page, address: str, ids: list[str]) -> list[dict[str, Any]]:
    """What an open page shows after each of these jobs was put in the place of the one before."""
    page.goto(f"{address}/jobs/{ids[0]}")
    page.get_by_role("button", name="Live").click()
    seen: list[dict[str, Any]] = page.evaluate(REFRESH, ids)
    return seen


def names_in(value: Any) -> Iterator[str]:
    """The names of fields and the numbers of entries, from the outside in."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, item in items:
        yield json.dumps(name, ensure_ascii=False)
        yield from names_in(item)


def texts_in(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield json.dumps(value, ensure_ascii=False)
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from texts_in(item)


def test_each_text_is_put_in_place_as_a_text(
    new_page: NewPage, serve: Serve, queue: Queue, home: Path, guard: Guard
) -> None:
    page = watched(new_page)
    now = store_of(queue).now()
    with opened(home) as connection:
        for place, text in enumerate([*TEXTS, LONGEST]):
            failed_job(connection, f"hostile-{place}", text, now)
            failed_job(connection, f"plain-{place}", harmless(text), now)
    ids = [f"{kind}-{place}" for place in range(len(TEXTS) + 1) for kind in ("hostile", "plain")]
    seen = refreshed(page, serve(), ids)
    for text, hostile, plain in zip([*TEXTS, LONGEST], seen[::2], seen[1::2], strict=True):
        shown = parsed(text)
        payload = redact(queue_payload(text))
        assert difference(hostile["shape"], plain["shape"]) == "", text
        assert (hostile["ran"], plain["ran"]) == ([], []), text
        assert hostile["title"].startswith("hostile-"), text
        assert (hostile["error"], hostile["traceback"]) == (shown, shown), text
        assert hostile["metadata"] == [shown] * 2, text  # its group, and its key
        assert hostile["worker"] == shown, text
        if text != LONGEST:  # which is shown as one text, and cut
            assert hostile["names"] == list(names_in(payload)), text
            assert hostile["values"] == list(texts_in(payload)), text
        assert hostile["detail"] == list(texts_in(redact({text: text}))), text
        pretty = json.dumps(payload, indent=2, ensure_ascii=False)
        assert hostile["copies"].count(pretty) == (2 if len(pretty) <= 100_000 else 0), text
    assert guard.unexpected() == []


def queue_payload(text: str) -> Any:
    return {text: text, "list": [text, {"in": {text: text}}]}


def test_each_message_of_progress_is_a_text(
    new_page: NewPage, serve: Serve, queue: Queue, home: Path
) -> None:
    page = watched(new_page, color_scheme="dark", bypass_csp=True)
    now = store_of(queue).now()
    with opened(home) as connection:
        for place, text in enumerate(TEXTS):
            running_job(connection, f"hostile-{place}", text, now)
            running_job(connection, f"plain-{place}", harmless(text), now)
    ids = [f"{kind}-{place}" for place in range(len(TEXTS)) for kind in ("hostile", "plain")]
    seen = refreshed(page, serve(), ids)
    for text, hostile, plain in zip(TEXTS, seen[::2], seen[1::2], strict=True):
        first = next((line.strip() for line in text.splitlines() if line.strip()), "")
        assert difference(hostile["shape"], plain["shape"]) == "", text
        assert hostile["ran"] == [], text
        assert hostile["metadata"] == [parsed(text)] * 3, text  # its group, its key, and its worker
        if len(first) <= 200:
            assert hostile["message"] == parsed(first), text


def test_output_is_shown_as_it_is(page: Page, serve: Serve, queue: Queue, home: Path) -> None:
    text = "\n".join(TEXTS)
    fill(home, queue, same)
    page.goto(f"{serve()}/jobs/shell")
    assert page.locator("#log").text_content() == parsed(text)
    assert json.loads(page.locator("#payload .text").text_content() or "") == text


def test_pages_that_are_open_take_hostile_news_as_texts(
    new_page: NewPage, serve: Serve, queue: Queue, home: Path, guard: Guard
) -> None:
    """Without the policy, so that whatever gets in would run."""
    address = serve()
    queue.enqueue("plain", {"a": 1}, id="first")
    first = watched(new_page, color_scheme="dark", bypass_csp=True)
    pages = {path: first.context.new_page() for path in ("/", "/jobs", "/jobs/first", "/controls")}
    for path, page in pages.items():
        page.goto(f"{address}{path}")
    fill(home, queue, same)
    with opened(home) as connection:
        connection.execute(
            "UPDATE holdfast_jobs SET status = 'failed', error = ?, key = ?, payload = ? WHERE id = 'first'",
            [TEXTS[0], TEXTS[1], museum(TEXTS)],
        )
    marks = {"/": TEXTS[20], "/jobs": TEXTS[10], "/jobs/first": TEXTS[0], "/controls": "javascript:canary"}
    for path, page in pages.items():
        page.bring_to_front()
        expect(page.locator("main")).to_contain_text(marks[path])
        assert page.evaluate("window.ran") == [], path
        page.get_by_role("button", name="Live").click()
        live_shape = page.evaluate(f"({SHAPE})(document)")
        page.reload()
        # What somebody may be working with is kept as it was, so only what is new is looked for.
        assert set(live_shape) - set(page.evaluate(f"({SHAPE})(document)")) == set(), path
    assert guard.unexpected() == []


# Copying.


def copied(page: Page, name: str) -> str:
    page.get_by_role("button", name=f"Copy {name}").click()
    expect(page.locator("#notice")).to_have_text("Copied.")
    page.evaluate("document.getElementById('notice').replaceChildren()")
    text: str = page.evaluate("navigator.clipboard.readText()")
    return text


def test_copies_are_exactly_the_text(new_page: NewPage, serve: Serve, queue: Queue, home: Path) -> None:
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    fill(home, queue, same)
    address = serve()
    page.goto(f"{address}/jobs/museum")
    payload = redact(json.loads(museum(TEXTS)))
    assert copied(page, "ID") == "museum"
    assert copied(page, "payload") == json.dumps(payload, indent=2, ensure_ascii=False)
    page.goto(f"{address}/jobs/failed-0")
    result = redact(queue_payload(TEXTS[0]))
    assert copied(page, "result") == json.dumps(result, indent=2, ensure_ascii=False)


def test_a_copied_output_is_the_output(new_page: NewPage, serve: Serve, queue: Queue, home: Path) -> None:
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    fill(home, queue, same)
    text = "  " + "\n".join(TEXTS) + "\n"
    (home / "logs" / "shell.log").write_bytes(text.encode())
    page.goto(f"{serve()}/jobs/shell")
    assert copied(page, "output") == parsed(text)


def test_a_copied_error_is_the_error_and_its_traceback(
    new_page: NewPage, serve: Serve, queue: Queue, home: Path
) -> None:
    page = new_page(permissions=["clipboard-read", "clipboard-write"])
    error, traceback = "  it <b>broke</b>\n  here", "Traceback (most recent call last):\n  <script>\n"
    with opened_after(queue, home) as connection:
        failed_job(connection, "one", error, 0)
        connection.execute("UPDATE holdfast_failures SET traceback = ?", [traceback])
    page.goto(f"{serve()}/jobs/one")
    text = copied(page, "error")
    assert error in text
    assert traceback in text
    assert text.replace(error, "").replace(traceback, "").strip() == ""


@contextmanager
def opened_after(queue: Queue, home: Path) -> Iterator[sqlite3.Connection]:
    store_of(queue).now()  # makes the tables
    with opened(home) as connection:
        yield connection


def test_a_page_whose_job_is_deleted_asks_for_nothing_else(
    page: Page, serve: Serve, queue: Queue, guard: Guard
) -> None:
    queue.enqueue("plain", {}, id="gone")
    queue.cancel("gone")
    address = serve()
    guard.expected.append(f"404 (Not Found) ({address}/jobs/gone)")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"{address}/jobs/gone")
    queue.delete("gone")
    expect(page.get_by_role("alert")).to_contain_text("gone")
    expected = {f"{address}/jobs/gone", f"{address}/api/events?id=gone"}
    assert {url for url in asked if "/static/" not in url} == expected


# A server that many tests find, and leave, as it is.


@pytest.fixture(scope="module")
def steady_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("steady")


@pytest.fixture(scope="module")
def steady_address(steady_home: Path) -> Iterator[str]:
    with Queue(f"sqlite:///{steady_home / 'queue.db'}") as queue:
        fill_states(queue, steady_home)
        with standing(create_app(queue)) as address:
            yield address


@pytest.fixture
def steady(steady_address: str) -> Iterator[httpx.Client]:
    """A client of its own for each test: it keeps cookies."""
    with client(steady_address) as made:
        yield made


def fill_states(queue: Queue, home: Path) -> None:
    """A job in each state that a form can change, and a type that is paused."""
    for id in ("failed", "waiting", "done"):
        queue.enqueue("plain", {"a": 1}, id=id)
    queue.cancel("done")
    queue.pause("stopped")
    with opened(home) as connection:
        connection.execute("UPDATE holdfast_jobs SET status = 'failed', finished_at = 1 WHERE id = 'failed'")
        connection.execute("UPDATE holdfast_jobs SET finished_at = 1 WHERE id = 'done'")


# Requests: addresses.

ADDRESSES: list[tuple[str, str]] = [
    *(("/jobs", name) for name in ("q", "type", "status", "from", "to", "error", "sort", "order", "size")),
    ("/jobs", "cursor"),
    ("/jobs", "unknown"),
    *(("/jobs/bulk?action=retry&all=1", name) for name in ("q", "type", "status", "from", "to", "error")),
    ("/jobs/bulk?action=retry", "id"),
    ("/jobs/bulk?id=a", "action"),
    ("/jobs/bulk?action=delete", "all"),
    ("/cleanup", "older_than"),
    ("/cleanup?older_than=1d", "failed"),
    ("/controls", "type"),
    ("/enqueue", "type"),
    ("/enqueue?type=plain", "text"),
    ("/login", "next"),
    ("/", "q"),
]


def with_parameter(path: str, name: str, value: str) -> str:
    return f"{path}{'&' if '?' in path else '?'}{urlencode({name: value})}"


def assert_clear(response: httpx.Response, text: str = "") -> None:
    """An answer for people, which is no mistake of ours and does not repeat markup."""
    assert response.status_code < 500, (response.request.url, response.text[:300])
    if not response.is_redirect:
        assert response.headers["content-type"] == "text/html; charset=utf-8", response.request.url
    if "canary" in text and set("<>\"'") & set(text):
        assert text not in response.text, response.request.url


@pytest.mark.parametrize(("path", "name"), ADDRESSES)
def test_a_hostile_parameter_is_answered_clearly(steady: httpx.Client, path: str, name: str) -> None:
    for text in TEXTS[ADDRESSES.index((path, name)) % 3 :: 3]:
        assert_clear(steady.get(with_parameter(path, name, text), headers=HTML), text)


@pytest.mark.parametrize("path", ["/jobs/{}", "/jobs/{}/delete", "/{}", "/jobs/{}/retry", "/static/{}"])
def test_a_hostile_path_is_answered_clearly(steady: httpx.Client, path: str) -> None:
    for text in TEXTS[len(path) % 2 :: 2]:
        assert_clear(steady.get(path.format(quote(text, safe="")), headers=HTML), text)


@pytest.mark.parametrize(
    "query",
    [
        "q=%ff", "q=%ed%a0%80", "type=%c3", "%ff=%fe", "q=%zz", "%", "&&&&", "=", "=x", "q", ";q=1", "q[]=1",
        "status=failed&status=%00", "cursor=" + "9" * 18, "cursor=" + "9" * 400, "cursor=<" + "9" * 18,
        "sort=finished&cursor=-1.-1", "sort=priority&cursor=" + "9" * 18 + "." + "9" * 18, "size=-1",
        "from=" + "9" * 400, "from=9999-12-31T23:59:59-23:59", "to=0001-01-01T00:00:00%2B23:59",
        "from=NaN", "to=inf", "from=1e400", "q=payload.a:1" + "+payload.b:2" * 30, "q=" + "x" * 501,
        "&".join(f"status={state}" for state in ("failed", "done", "retrying", "dead") * 100),
        "&".join(f"f{number}=1" for number in range(2_001)),
    ],
)  # fmt: skip
def test_a_broken_query_is_answered_clearly(steady: httpx.Client, query: str) -> None:
    for path in ("/jobs", "/jobs/bulk", "/cleanup", "/controls", "/enqueue"):
        assert_clear(steady.get(f"{path}?{query}", headers=HTML))


@pytest.mark.parametrize(
    "query", [b"q=\xff", b"q=\xe2\x80", b"type=\xc3\xa4", b"q=<script>canary()</script>"]
)
def test_bytes_that_no_browser_sends_are_answered_clearly(steady: httpx.Client, query: bytes) -> None:
    for path in (b"/jobs", b"/enqueue", b"/login", b"/jobs/bulk"):
        host = steady.base_url.netloc
        request = b"GET %b?%b HTTP/1.1\r\nHost: %b\r\nAccept: text/html\r\n\r\n" % (path, query, host)
        answer = exchange(str(steady.base_url), request)
        assert answer.status < 500
        assert b"<script>canary" not in answer.body


def test_parameters_put_no_element_into_a_page(page: Page, serve: Serve, queue: Queue) -> None:
    queue.enqueue("plain", {}, id="one")
    address = serve()
    page.goto(f"{address}/docs")
    with client(address, headers=HTML) as made:
        # Without such a sign a text may be a type or find the job: then the page is rightly another one.
        for text in [text for text in TEXTS if set("<>\"'`&") & set(text)]:
            pairs = []
            for value in (text, harmless(text)):
                whole = urlencode(dict.fromkeys(("q", "type", "from", "to", "error"), value))
                some = urlencode({"q": value, "error": value})
                addresses = (
                    f"/jobs?{whole}",
                    f"/jobs?{some}",
                    f"/jobs/bulk?action=retry&all=1&{some}",
                    f"/jobs/bulk?action=retry&id={quote(value, safe='')}",
                    f"/enqueue?{whole}",
                    f"/jobs/{quote(value, safe='')}",
                )
                pairs.append([made.get(path).text for path in addresses])
            shapes = shapes_of(page, [*pairs[0], *pairs[1]])
            for path, one, other in zip(addresses, shapes, shapes[len(addresses) :], strict=False):
                assert difference(one, other) == "", (text, path)


# Requests: changes.


def form_of(made: httpx.Client) -> dict[str, str]:
    """The token that a form must repeat; the client has its cookie afterwards."""
    if "holdfast_form" not in made.cookies:
        made.get("/", headers=HTML)
    return {"form_token": made.cookies["holdfast_form"]}


def state(home: Path) -> list[object]:
    """All that a request could have changed."""
    with opened(home) as connection:
        return [
            connection.execute(f"SELECT {columns} FROM holdfast_{table} ORDER BY 1, 2").fetchall()
            for table, columns in (
                ("jobs", "id, status, version, payload, cancel_requested"),
                ("settings", "name, type, value"),
                ("pauses", "type, type"),
            )
        ]


CHANGES: dict[str, dict[str, str]] = {
    "/jobs/failed/retry": {"payload": '{"a": 2}'},
    "/jobs/waiting/cancel": {},
    "/jobs/done/delete": {},
    "/jobs/bulk": {"action": "delete", "id": "done", "count": "1"},
    "/cleanup": {"older_than": "0s"},
    "/enqueue": {"type": "plain", "payload": "{}", "text": "1"},
    "/controls/pause": {"type": ""},
    "/controls/resume": {"type": "stopped"},
    "/controls/setting": {"key": "max_attempts", "value": "7"},
}


@pytest.fixture
def filled(queue: Queue, home: Path) -> Queue:
    fill_states(queue, home)
    return queue


@pytest.mark.parametrize("path", CHANGES)
def test_a_form_of_ours_is_taken(filled: Queue, api: httpx.Client, home: Path, path: str) -> None:
    """So that the refusals below are not for another reason."""
    before = state(home)
    answer = api.post(path, data=form_of(api) | CHANGES[path], headers=HTML)
    assert answer.status_code == 303
    assert state(home) != before


def assert_refused(answer: httpx.Response, home: Path, before: list[object], *statuses: int) -> None:
    assert answer.status_code in (statuses or (400, 403, 413, 415)), answer.text
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert 'role="alert"' in answer.text or 'class="problem"' in answer.text, answer.text
    assert state(home) == before


@pytest.mark.parametrize("path", CHANGES)
def test_a_form_that_was_not_made_here_is_refused(steady: httpx.Client, steady_home: Path, path: str) -> None:
    before, fields, right = state(steady_home), CHANGES[path], form_of(steady)["form_token"]
    wrong = [
        "",
        "0" * 32,
        right.upper() + "x",
        right[:-1],
        right + " ",
        " " + right,
        f"{right},{right}",
        "\0",
        "é",
    ]
    for token in wrong:
        assert_refused(
            steady.post(path, data={"form_token": token} | fields, headers=HTML), steady_home, before, 403
        )
    assert_refused(steady.post(path, data=fields or {"x": "1"}, headers=HTML), steady_home, before, 403)
    first_counts = urlencode([("form_token", "0" * 32), ("form_token", right), *fields.items()])
    typed = HTML | {"Content-Type": FORM}
    assert_refused(steady.post(path, content=first_counts, headers=typed), steady_home, before, 403)
    for cookie in ("", "0" * 31, "<script>", right + right):
        with client(str(steady.base_url), cookies={"holdfast_form": cookie}) as other:
            data = {"form_token": cookie} | fields
            assert_refused(other.post(path, data=data, headers=HTML), steady_home, before, 403)


@pytest.mark.parametrize("path", CHANGES)
def test_a_form_from_another_site_is_refused(steady: httpx.Client, steady_home: Path, path: str) -> None:
    before, data = state(steady_home), form_of(steady) | CHANGES[path]
    host = steady.base_url.netloc.decode()
    for headers in (
        {"Origin": "http://elsewhere.example"},
        {"Origin": "null"},
        {"Origin": f"http://{host}.elsewhere.example"},
        {"Origin": f"http://elsewhere.example@{host}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": f"ftp://{host}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Host": "elsewhere.example"},
    ):
        assert_refused(steady.post(path, data=data, headers=HTML | headers), steady_home, before, 403)


@pytest.mark.parametrize("path", CHANGES)
def test_a_body_that_is_no_form_is_refused(steady: httpx.Client, steady_home: Path, path: str) -> None:
    before, data = state(steady_home), form_of(steady) | CHANGES[path]
    whole = urlencode(data)
    bodies: list[tuple[str, str | bytes]] = [
        (FORM, whole + "&x=%ff"),
        (FORM, whole + "&%ff=x"),
        (FORM, whole + "&x=%ed%a0%80"),
        (FORM, whole.encode() + b"&x=\xff"),
        (FORM, whole + "&x=ä"),
        (FORM, whole + "&x=1" * 10_000),
        (FORM, "&".join(f"field{number}=1" for number in range(3_000)) + "&" + whole),
        (FORM, ""),
        (FORM, "\0" * 100),
        (FORM, "%" * 100),
        ("application/json", json.dumps(data)),
        ("text/plain", "\r\n".join(f"{name}={value}" for name, value in data.items())),
        (f"{FORM}; charset=utf-16", whole.encode("utf-16")),
    ]
    for kind, body in bodies:
        answer = steady.post(path, content=body, headers=HTML | {"Content-Type": kind})
        assert_refused(answer, steady_home, before)
    files = {name: (None, value) for name, value in data.items()}
    assert_refused(steady.post(path, files=files, headers=HTML), steady_home, before)


@pytest.mark.parametrize("path", CHANGES)
def test_a_huge_form_is_refused(steady: httpx.Client, steady_home: Path, path: str) -> None:
    before = state(steady_home)
    data = form_of(steady) | CHANGES[path] | {"filling": "x" * (5 * 1024 * 1024)}
    assert_refused(steady.post(path, data=data, headers=HTML), steady_home, before, 413)


HOSTILE_FIELDS = [
    (path, name)
    for path, fields in (CHANGES | {"/controls/setting": {"key": "", "value": "", "type": ""}}).items()
    for name in fields
    if name not in ("text",)
]


@pytest.mark.parametrize(("path", "name"), HOSTILE_FIELDS)
def test_a_hostile_value_is_refused_and_changes_nothing(
    steady: httpx.Client, steady_home: Path, path: str, name: str
) -> None:
    before, data = state(steady_home), form_of(steady) | CHANGES[path]
    texts = [text for text in TEXTS if text.strip()]
    if name in ("type", "key", "value"):
        texts = [text for text in texts if not text.replace("_", "").isalnum()]
    for text in texts[len(path + name) % 3 :: 3]:
        answer = steady.post(path, data=data | {name: text}, headers=HTML)
        assert_clear(answer, text)
        assert state(steady_home) == before, text
        if (path, name) != ("/jobs/bulk", "id"):
            assert_refused(answer, steady_home, before)


@pytest.mark.parametrize(
    ("path", "name"), [("/jobs/bulk", "action"), ("/enqueue", "type"), ("/controls/setting", "key")]
)
def test_a_field_that_is_missing_is_told(
    steady: httpx.Client, steady_home: Path, path: str, name: str
) -> None:
    before = state(steady_home)
    data = {key: value for key, value in CHANGES[path].items() if key != name}
    assert_refused(steady.post(path, data=form_of(steady) | data, headers=HTML), steady_home, before, 400)


def test_a_bulk_action_without_a_selection_does_nothing(steady: httpx.Client, steady_home: Path) -> None:
    before = state(steady_home)
    for more in ({}, {"id": ""}, {"all": ""}):
        data = form_of(steady) | {"action": "delete", "count": "3"} | more
        assert steady.post("/jobs/bulk", data=data, headers=HTML).status_code < 500
        assert state(steady_home) == before


def test_a_clean_up_without_an_age_does_nothing(steady: httpx.Client, steady_home: Path) -> None:
    before = state(steady_home)
    for more in ({}, {"older_than": ""}):
        steady.post("/cleanup", data=form_of(steady) | more, headers=HTML)
        assert state(steady_home) == before


def test_of_a_field_that_is_sent_twice_the_first_counts_alone(
    steady: httpx.Client, steady_home: Path
) -> None:
    before = state(steady_home)
    doubled = [
        *form_of(steady).items(),
        ("action", "retry"),
        ("action", "delete"),
        ("id", "done2"),
        ("count", "3"),
    ]
    headers = HTML | {"Content-Type": FORM}
    assert steady.post("/jobs/bulk", content=urlencode(doubled), headers=headers).status_code < 500
    assert state(steady_home) == before


def test_forms_that_are_sent_back_hold_the_texts_and_nothing_else(
    page: Page, serve: Serve, queue: Queue, home: Path
) -> None:
    schema = {
        "type": "object",
        "properties": {
            "number": {"type": "integer"},
            "short": {"type": "string"},
            "body": {"type": "string"},
            "choice": {"enum": ["a", "b"]},
            "list": {"type": "array"},
        },
    }
    address = serve()
    page.goto(f"{address}/docs")
    with opened_after(queue, home) as connection:
        insert(connection, "holdfast_types", type="odd", executor="thread", schema=json.dumps(schema))
        failed_job(connection, "failed", "it broke", store_of(queue).now())
    options = ("id", "priority", "max_attempts", "timeout", "delay", "run_at", "key", "key_for", "new_id")
    fields = [*(f"payload.{name}" for name in schema["properties"]), "payload", *options]
    with client(address, headers=HTML) as made:
        token = form_of(made)

        def form(text: str) -> httpx.Response:
            filled_in = dict.fromkeys(fields, text) | {"priority": "none", "type": "odd"}
            return made.post("/enqueue", data=filled_in | token)

        def sent_back(text: str) -> list[str]:
            broken = "{" + text
            answers = [
                form(text),
                made.post("/enqueue", data=token | {"type": "odd", "text": "1", "payload": broken}),
                made.post("/jobs/failed/retry", data=token | {"payload": broken}),
                made.post("/controls/setting", data=token | {"key": "max_depth", "value": "-" + text}),
            ]
            assert [answer.status_code for answer in answers] == [400] * 4, text
            return [answer.text for answer in answers]

        plain = shapes_of(page, sent_back("plain"))
        for text in TEXTS:
            htmls = sent_back(text)
            # What is wrong with the fields of the first depends on the text; the others are always the same.
            *shapes, plain[0] = shapes_of(page, [*htmls, form(harmless(text, "!")).text])
            for place, shape in enumerate(shapes):
                assert difference(shape, plain[place]) == "", (place, text)
            values = page.evaluate(VALUES, htmls)
            lines = text.replace("\r\n", "\n").replace("\r", "\n").replace("\0", "\ufffd")
            assert values["payload.body"] == lines, text
            assert values["payload.short"] == lines.replace("\n", ""), text
            assert values["key"] == lines.replace("\n", ""), text
            assert values["text"] == values["edited"] == "{" + lines, text
            assert values["setting"] == "-" + lines.replace("\n", ""), text


VALUES = """(htmls) => {
    const parse = (html) => new DOMParser().parseFromString(html, "text/html");
    const [form, text, edit, controls] = htmls.map(parse);
    const named = (name) => form.querySelector(`#new-job [name="${name}"]`).value;
    const names = ["payload.body", "payload.short", "key"];
    return {
        ...Object.fromEntries(names.map((name) => [name, named(name)])),
        text: text.getElementById("payload-text").value,
        edited: edit.getElementById("edited").value,
        setting: controls.getElementById("setting-max_depth").value,
    };
}"""


# Redirects, notices, cookies.

ELSEWHERE = [
    "//elsewhere.example", "///elsewhere.example", "////elsewhere.example", "/\\elsewhere.example",
    "\\elsewhere.example", "\\\\elsewhere.example", "/\\/elsewhere.example", "//\\elsewhere.example",
    "http://elsewhere.example", "https://elsewhere.example", "http:elsewhere.example",
    "http:/elsewhere.example",
    "HTTP://elsewhere.example", "ftp://elsewhere.example", "javascript:canary()", "JaVaScRiPt:canary()",
    "java\tscript:canary()", "data:text/html,<script>canary()</script>", "vbscript:x", "blob:x",
    "about:blank",
    "/\t/elsewhere.example", "/\n/elsewhere.example", "/\r/elsewhere.example", "\t//elsewhere.example",
    " //elsewhere.example", "\x00//elsewhere.example", "/\x00/elsewhere.example", "\u2028//elsewhere.example",
    "/\u2028/elsewhere.example", "/\u3000/elsewhere.example", "/\uff0felsewhere.example",
    "\uff0f\uff0felsewhere.example", "/\u2215elsewhere.example", "/\u200b/elsewhere.example",
    "/\xad/elsewhere.example", "/\x85/elsewhere.example", "elsewhere.example", ".elsewhere.example",
    "@elsewhere.example", ":80@elsewhere.example", "?//elsewhere.example", "#//elsewhere.example",
    "/..//elsewhere.example",
    "/.//elsewhere.example", "/%2f/elsewhere.example", "/%5celsewhere.example",
    "%2f%2felsewhere.example", "/%09/elsewhere.example", "/;//elsewhere.example",
    "/x\r\nLocation: //elsewhere.example",
    "/x%0d%0aSet-Cookie:evil=1", "/jobs\\..\\..\\elsewhere.example", "/@elsewhere.example",
    "/:@elsewhere.example",
    "/[elsewhere.example", "//[::1]", "//127.0.0.1:1/", "/\ud7ff/elsewhere.example", "",
]  # fmt: skip


def is_here(location: str) -> bool:
    """Whether a Location stays on this site: one slash, and nothing that browsers skip or take for one."""
    is_plain = location.isascii() and location.isprintable() and "\\" not in location
    return is_plain and location.startswith("/") and not location.startswith("//")


@pytest.mark.parametrize("root", ["", "/queue"])
def test_no_form_leads_to_another_site(
    filled: Queue, page: Page, serve: Serve, home: Path, root: str
) -> None:
    assert len(ELSEWHERE) >= 50
    address = serve(root, token=TOKEN) if root else serve()
    headers = HTML | ({"Authorization": f"Bearer {TOKEN}"} if root else {})
    locations = []
    with client(address, headers=headers) as made:
        page_of = made.get("/jobs")
        token = SimpleCookie(page_of.headers["set-cookie"])["holdfast_form"].value
        made.headers["Cookie"] = f"holdfast_form={token}"  # its path is the root's
        for target in ELSEWHERE:
            data = {"form_token": token, "back": target, "type": "other"}
            answers = [
                made.post("/controls/pause", data=data),
                made.post("/controls/resume", data=data),
                made.post("/jobs/bulk", data=data | {"action": "retry"}),
                made.post("/login", data={"token": TOKEN, "next": target}),
            ]
            if not root:
                answers.append(made.get(with_parameter("/login", "next", target)))
            assert [answer.status_code for answer in answers] == [303] * len(answers), target
            locations += [answer.headers["location"] for answer in answers]
        with opened(home) as connection:
            connection.execute("UPDATE holdfast_jobs SET status = 'pending' WHERE id = 'waiting'")
        for path, target in (("cancel", ELSEWHERE[0]), ("retry", ELSEWHERE[3])):
            data = {"form_token": token, "back": target}
            locations.append(made.post(f"/jobs/waiting/{path}", data=data).headers["location"])
    assert [location for location in locations if not is_here(location)] == []
    assert all(location.startswith(f"{root}/") for location in locations)
    origins = "([here, there]) => [...new Set(there.map((place) => new URL(place, here).origin))]"
    assert page.evaluate(origins, [f"{address}{root}/controls/pause", locations]) == [address]


def test_the_login_keeps_only_a_page_of_this_server(page: Page, serve: Serve, queue: Queue) -> None:
    address = serve(token=TOKEN)
    page.goto(f"{address}/login")
    read = (
        'htmls => htmls.map((html) => new DOMParser().parseFromString(html, "text/html").forms[0].next.value)'
    )
    with client(address, headers=HTML) as made:
        htmls = [made.get(with_parameter("/login", "next", target)).text for target in (*ELSEWHERE, *TEXTS)]
    assert [value for value in page.evaluate(read, htmls) if not is_here(value)] == []
    shapes = shapes_of(page, htmls)
    assert [shape for shape in shapes if shape != shapes[0]] == []


def test_a_question_leads_back_only_to_a_page_of_this_server(filled: Queue, page: Page, serve: Serve) -> None:
    address = serve()
    page.goto(f"{address}/docs")
    read = """htmls => htmls.flatMap((html) => {
        const parsed = new DOMParser().parseFromString(html, "text/html");
        const link = parsed.querySelector("a.second").getAttribute("href");
        return [link, parsed.querySelector("[name=back]").value];
    })"""
    with client(address, headers=HTML) as made:
        path = "/jobs/done/delete"
        htmls = [made.get(with_parameter(path, "back", target)).text for target in (*ELSEWHERE, *TEXTS)]
    assert [value for value in page.evaluate(read, htmls) if not is_here(value)] == []


def set_cookies(answer: httpx.Response) -> dict[str, str]:
    """The Set-Cookie headers by the cookie's name."""
    return {line.partition("=")[0]: line for line in answer.headers.get_list("set-cookie")}


def test_a_notice_puts_nothing_into_the_headers(queue: Queue, home: Path, api: httpx.Client) -> None:
    """A key stands in the notice of a retry that it forbids."""
    texts = [text for text in TEXTS if text.strip()]
    with opened_after(queue, home) as connection:
        for place, text in enumerate(texts):
            failed_job(connection, f"old-{place}", text, 1)
            add_job(connection, f"new-{place}", 2, key=text, key_held=1)
    for place, text in enumerate(texts):
        data = form_of(api) | {"action": "retry", "id": f"old-{place}", "count": "1"}
        answer = api.post("/jobs/bulk", data=data, headers=HTML)
        assert answer.status_code == 303
        assert set(set_cookies(answer)) == {"holdfast_notice"}
        assert answer.headers["location"] == "/jobs"
        assert all(value.isascii() and value.isprintable() for value in answer.headers.values())
        shown = api.get("/jobs?size=25&status=cancelled", headers=HTML)
        assert 'class="notice problem"' in shown.text
        assert_clear(shown, text)
        assert "holdfast_notice" not in api.cookies


def test_a_notice_of_the_clients_own_making_is_a_text(
    new_page: NewPage, serve: Serve, queue: Queue, guard: Guard
) -> None:
    address = serve()
    page = watched(new_page, bypass_csp=True)
    page.goto(f"{address}/controls")
    with client(address, headers=HTML) as made:
        htmls = []
        for text in TEXTS:
            if len(quote(text)) > 8_000:
                continue
            cookies = {"Cookie": f"holdfast_notice={quote('.' + text, safe='')}"}
            htmls.append((text, made.get("/enqueue", headers=cookies).text))
        plain = made.get("/enqueue", headers={"Cookie": "holdfast_notice=.plain"}).text
    shown = page.evaluate(
        """htmls => htmls.map((html) =>
            new DOMParser().parseFromString(html, "text/html").querySelector("#notice p").textContent)""",
        [html for _, html in htmls],
    )
    assert shown == [parsed(text) for text, _ in htmls]
    shapes = shapes_of(page, [plain, *(html for _, html in htmls)])
    assert [difference(shape, shapes[0]) for shape in shapes if shape != shapes[0]] == []
    value = quote("." + STRINGS["image"], safe="")
    page.context.add_cookies([{"name": "holdfast_notice", "value": value, "url": address}])
    page.goto(f"{address}/jobs")
    expect(page.locator("#notice")).to_have_text(STRINGS["image"])
    assert page.evaluate("window.ran") == []
    page.reload()
    expect(page.locator("#notice")).to_have_text("")


@pytest.mark.parametrize(
    "cookie", [b"\xff", b"%ff%fe", b"%", b"", b".", b'"', b'"\\303\\"', b"=;=;", b"a" * 9_000]
)
def test_cookies_that_nobody_made_are_no_trouble(steady: httpx.Client, cookie: bytes) -> None:
    for name in (b"holdfast_notice", b"holdfast_form", b"holdfast_session"):
        header: Any = {"Cookie": name + b"=" + cookie, "Accept": b"text/html"}
        assert_clear(steady.get("/jobs", headers=header))


@pytest.mark.parametrize("scheme", ["http", "https"])
def test_cookies_are_out_of_reach_of_scripts_and_other_sites(queue: Queue, scheme: str) -> None:
    forwarded = {"X-Forwarded-Proto": scheme} | HTML
    with live(create_app(queue, token=TOKEN)) as address, client(address, headers=forwarded) as made:
        logged_in = made.post("/login", data={"token": TOKEN})
        session = SimpleCookie(logged_in.headers["set-cookie"])["holdfast_session"].value
        own = {"Cookie": f"holdfast_session={session}"}
        shown = made.get("/jobs", headers=own)
        token = SimpleCookie(shown.headers["set-cookie"])["holdfast_form"].value
        both = {"Cookie": f"holdfast_session={session}; holdfast_form={token}"}
        paused = made.post("/controls/pause", data={"form_token": token}, headers=both)
        told = made.get(
            "/jobs", headers={"Cookie": paused.headers["set-cookie"].partition(";")[0] + "; " + own["Cookie"]}
        )
        out = made.post("/logout", headers=own)
    found = [set_cookies(answer) for answer in (logged_in, shown, paused, told, out)]
    assert [sorted(cookies) for cookies in found] == [
        ["holdfast_session"], ["holdfast_form"], ["holdfast_notice"], ["holdfast_form", "holdfast_notice"],
        ["holdfast_form", "holdfast_session"],
    ]  # fmt: skip
    lines = [line for cookies in found for line in cookies.values()]
    for line in lines:
        words = {word.strip().lower() for word in line.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/"} <= words, line
        assert not any(word.startswith("domain") for word in words), line
        if "max-age=0" not in words:
            assert ("secure" in words) == (scheme == "https"), line


def test_a_link_of_another_site_leads_to_its_page(page: Page, serve: Serve, guard: Guard) -> None:
    guard.expected.append("status of 403")  # the first answer, which the browser passes over by itself
    address = serve()
    page.goto(serve())  # another port is another site
    page.evaluate("(address) => { location.href = address; }", f"{address}/jobs?status=failed")
    expect(page).to_have_title("Jobs · Holdfast")
    assert page.url == f"{address}/jobs?status=failed"


# What stands in the database and no client of ours has written.


@pytest.mark.parametrize("column", ["payload", "result"])
def test_half_a_character_in_stored_json_is_no_trouble(
    queue: Queue, api: httpx.Client, home: Path, column: str
) -> None:
    with opened_after(queue, home) as connection:
        failed_job(connection, "half", "it broke", 1)
        connection.execute(f"UPDATE holdfast_jobs SET {column} = ?", ['{"\\ud800": ["\\udfff"]}'])
        connection.execute("UPDATE holdfast_failures SET detail = ?", ['{"\\ud800": ["\\udfff"]}'])
    for path in ("/jobs/half", "/jobs", "/"):
        answer = api.get(path, headers=HTML)
        assert_clear(answer)
        assert answer.status_code == 200


NO_SCHEMAS = [
    '{"properties": []}', '{"properties": {"a": 5}}', '{"properties": {"a": {"description": 5}}}',
    '{"properties": {"a": {"type": [1, {}]}}, "required": 5}', '{"type": 5, "properties": {"a": {}}}',
    '{"anyOf": [{"$ref": 5}]}', '{"anyOf": 5, "allOf": {}}', '{"enum": 5}', '{"examples": 5}',
    '{"enum": {}}',
    '{"properties": {"\\ud800": {"default": "\\ud800", "title": "\\ud800", "description": "\\ud800"}}}',
    '{"properties": {"a": {"const": "\\ud800"}}, "required": ["a"]}', '{"examples": ["\\ud800"]}',
    '{"properties": {"a": {"$ref": "#/properties/a"}}}', '{"$ref": "#"}', '{"$defs": 5}',
    "[]", "5", "null",
    '{"$defs": {"a": 5}, "$ref": "#/$defs/a"}', '{"discriminator": {"mapping": 5}}', '{"required": "a"}',
]  # fmt: skip


def test_a_schema_that_is_none_takes_no_page_away(queue: Queue, api: httpx.Client, home: Path) -> None:
    for schema in NO_SCHEMAS:
        with opened_after(queue, home) as connection:
            connection.execute("DELETE FROM holdfast_types")
            insert(connection, "holdfast_types", type="odd", executor="thread", schema=schema)
        for path in ("/docs", "/enqueue", "/enqueue?type=odd", "/controls", "/"):
            answer = api.get(path, headers=HTML)
            assert answer.status_code == 200, (schema, path)
            assert_clear(answer)
        assert api.get("/openapi.json").status_code == 200, schema
        sent = api.post("/enqueue", data=form_of(api) | {"type": "odd", "payload.a": "<b>"}, headers=HTML)
        assert sent.status_code < 500, schema
        assert_clear(sent)


def test_progress_that_can_not_be_is_no_trouble(queue: Queue, api: httpx.Client, home: Path) -> None:
    with opened_after(queue, home) as connection:
        running_job(connection, "running", "at work", store_of(queue).now())
    for progress in (9e999, -9e999, -1.0, 5.0):
        with opened(home) as connection:
            connection.execute("UPDATE holdfast_jobs SET progress = ?", [progress])
        for path in ("/jobs/running", "/jobs", "/"):
            assert api.get(path, headers=HTML).status_code == 200, (progress, path)


def test_a_type_called_all_is_not_the_whole_queue(queue: Queue, page: Page, serve: Serve) -> None:
    queue.enqueue("all", {})
    page.goto(f"{serve()}/controls")
    ids = "[...document.querySelectorAll('[id]')].map((element) => element.id)"
    found = page.evaluate(ids)
    assert len(found) == len(set(found))


def test_a_page_that_tells_of_a_wrong_value_stays_live(
    page: Page, serve: Serve, queue: Queue, guard: Guard
) -> None:
    guard.expected.append("status of 400")
    address = serve()
    page.goto(f"{address}/controls")
    field = page.locator("#setting-max_depth")
    field.fill("<b>-1</b>")
    field.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("<b>-1</b>")
    queue.enqueue("news", {})
    expect(page.locator("#types")).to_contain_text("news")
    expect(page.locator("#live-word:visible")).to_have_text("Live")
    page.get_by_role("button", name="Pause all").click()
    expect(page.locator("#all-state")).to_contain_text("paused")
