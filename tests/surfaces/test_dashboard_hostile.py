"""Hostile texts in every field that a page shows, and hostile requests: nothing runs, nothing gets in or out."""

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
from holdfast.web import create_app
from tests.support import wait_until
from tests.surfaces.browser import Guard, NewPage, Serve, expect
from tests.surfaces.hostile_strings import LONGEST, NAMES, STRINGS, TYPES, harmless
from tests.surfaces.live import client, live
from tests.surfaces.raw import exchange

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
            "UPDATE holdfast_jobs SET status = ?, error = ?, error_group = ?, due_at = due_at, finished_at = ?"
            " WHERE id = ?",
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
        result=both, started_at=at, attempts=1, parent_id=text,
    )  # fmt: skip
    add_failure(connection, id, 1, at, text)


def running_job(connection: sqlite3.Connection, id: str, text: str, at: int, type: str = "plain") -> None:
    add_job(
        connection, id, at, status="processing", type=type, worker_id=text, started_at=at, key=text,
        lease_expires_at=at + HOUR, progress=0.5, progress_message=text, attempts=1,
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
    """Every table with texts, each changed; `turn` says with which to begin, as some pages show only a few."""
    texts = [change(text) for text in (*TEXTS[turn:], *TEXTS[:turn])]
    now = queue.store.now()
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
                started_at=now + place, heartbeat_at=now + HOUR,
            )  # fmt: skip
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


def wipe(home: Path, queue: Queue) -> None:
    queue.store.now()  # makes the tables
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


def watched(new_page: NewPage, **options: Any) -> Page:
    """A page that remembers what ran on it."""
    page = new_page(**options)
    page.context.add_init_script(WATCH)
    return page


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


looks = pytest.mark.parametrize("scheme", ["light", "dark"])


@looks
def test_no_page_runs_or_gains_anything(
    new_page: NewPage, serve: Serve, queue: Queue, home: Path, guard: Guard, scheme: str
) -> None:
    """In the dark without the policy, so that whatever gets in would run."""
    page = watched(new_page, color_scheme=scheme, bypass_csp=scheme == "dark")
    address = serve(allow_types=["shell"])
    seen: list[dict[str, Any]] = []
    for change in (harmless, same):
        wipe(home, queue)
        fill(home, queue, change, 0 if scheme == "light" else 45)
        looked = {}
        for name, path in PAGES.items():
            import time; t0=time.time()
            answer = page.goto(f"{address}{path}")
            t1=time.time()
            page.evaluate(f"({SHAPE})(document)")
            print(name, round(t1-t0,2), round(time.time()-t1,2))
            assert answer is not None
            assert answer.status == 200, name
            assert page.evaluate("window.ran") == [], name
            looked[name] = {"title": page.title(), "shape": page.evaluate(f"({SHAPE})(document)")}
        seen.append(looked)
    plain, hostile = seen
    assert {name: hostile[name]["title"] for name in PAGES} == {name: plain[name]["title"] for name in PAGES}
    problems = {name: difference(hostile[name]["shape"], plain[name]["shape"]) for name in PAGES}
    assert {name: problem for name, problem in problems.items() if problem} == {}
    assert guard.unexpected() == []


def test_no_page_is_wider_than_the_window(new_page: NewPage, serve: Serve, queue: Queue, home: Path) -> None:
    fill(home, queue, same)
    page = new_page()
    address = serve(allow_types=["shell"])
    widths = {}
    for name, path in PAGES.items():
        page.goto(f"{address}{path}")
        page.evaluate("for (const details of document.querySelectorAll('details')) details.open = true")
        widths[name] = page.evaluate("document.documentElement.scrollWidth")
    assert {name: width for name, width in widths.items() if width > WIDTH} == {}
