"""What the pages change: every form, what it asks first, what it refuses, and where it leads afterwards."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal
from urllib.parse import unquote, urlencode

import httpx
import pytest

from holdfast import Job, Queue
from holdfast.config import SETTINGS
from holdfast.core.lifecycle import Errored
from holdfast.jobs import install
from holdfast.listing import pages as listing
from holdfast.store.open import store_of
from holdfast.store.records import TypeRecord, WorkerRecord
from holdfast.testing import MovableClock
from holdfast.web import create_app
from tests.conformance.steps import OUTCOMES, everything, finished, insert, run
from tests.support import both_engines, unsynced, wait_until
from tests.surfaces.answers import NOW
from tests.surfaces.html_page import Form, Page, Reader, below, query
from tests.surfaces.live import client, live

pytestmark = pytest.mark.slow

TOKEN, READ_TOKEN = "a token for changes", "a token for looking"
KIND = "application/x-www-form-urlencoded"


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(NOW)


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    """The home's queue, on a clock that stands still."""
    with Queue(unsynced(url), clock=clock) as queue:
        yield queue


@pytest.fixture
def web(api: httpx.Client) -> Reader:
    return Reader(api)


def stored(queue: Queue, id: str) -> Job:
    job = queue.get(id)
    assert job is not None
    return job


def states(queue: Queue) -> dict[str, str]:
    return {job.id: job.status.value for job in queue.jobs(limit=1000)}


def failing(queue: Queue, *ids: str, error: str = "OSError: no route", **options: Any) -> None:
    for id in ids:
        finished(store_of(queue), id, Errored(error, permanent=True), **options)


def shown_ids(page: Page) -> list[str]:
    return [
        row["data-key"] for table in page.root.all("table", "jobs") for row in table.one("tbody").all("tr")
    ]


# Every change


CHANGES: dict[str, dict[str, str]] = {
    "/jobs/broken/retry": {},
    "/jobs/waits/cancel": {},
    "/jobs/broken/delete": {},
    "/jobs/bulk": {"action": "retry", "id": "broken", "count": "1"},
    "/cleanup": {"older_than": "1h"},
    "/enqueue": {"type": "email", "text": "1", "payload": "{}"},
    "/controls/pause": {},
    "/controls/resume": {"type": "crawl"},
    "/controls/setting": {"key": "max_attempts", "value": "7"},
    "/reconcile": {},
}
"""A form for each, which would be accepted."""


def changeable(queue: Queue, clock: MovableClock) -> Queue:
    """A queue in which each of CHANGES has something to change."""
    failing(queue, "broken")
    finished(store_of(queue), "done")
    insert(store_of(queue), "waits")
    queue.pause("crawl")
    clock.advance(hours=2)
    return queue


def whole(queue: Queue) -> object:
    """All that a change could change."""
    store = store_of(queue)
    return everything(store), store.list_paused(), store.get_settings(), store.read_reconciliation()


def post(made: httpx.Client, path: str, fields: dict[str, str]) -> httpx.Response:
    headers = {"content-type": KIND, "accept": "text/html"}
    return made.post(path, content=urlencode(fields), headers=headers)


def form_token(made: httpx.Client, page: str = "/controls") -> str:
    """What the forms of this browser carry."""
    return Page(made.get(page).text).root.all("input", name="form_token")[0]["value"]


def test_every_change_of_the_pages_is_known_to_these_tests(queue: Queue) -> None:
    app = create_app(queue)
    paths = {
        route.path
        for route in app.state.routes
        if "POST" in route.methods and not route.path.startswith("/api/")
    }
    known = {path.replace("/broken/", "/{id}/").replace("/waits/", "/{id}/") for path in CHANGES}
    assert paths == known | {"/login", "/logout"}


@pytest.mark.parametrize("path", CHANGES)
def test_change_wants_a_form_that_was_made_here(
    api: httpx.Client, queue: Queue, clock: MovableClock, path: str
) -> None:
    changeable(queue, clock)
    before = whole(queue)
    own = form_token(api)
    api.cookies.clear()
    other = form_token(api)
    assert own != other
    for given in (
        {},
        {"form_token": ""},
        {"form_token": own},
        {"form_token": "é" * 32},
        {"form_token": other[:-1]},
    ):
        answer = post(api, path, {**CHANGES[path], **given})
        page = Page(answer.text)
        assert (answer.status_code, page.heading) == (403, "Forbidden"), given
        assert page.alerts[0].startswith("The form has expired or was sent from elsewhere; reload the page")
    api.cookies.clear()
    assert post(api, path, {**CHANGES[path], "form_token": other}).status_code == 403  # no cookie at all
    api.cookies.clear()
    api.cookies.set("holdfast_form", "x")
    assert post(api, path, {**CHANGES[path], "form_token": "x"}).status_code == 403  # one that we never made
    assert whole(queue) == before
    api.cookies.clear()
    api.cookies.set("holdfast_form", other)
    assert post(api, path, {**CHANGES[path], "form_token": other}).status_code == 303
    wait_until(lambda: whole(queue) != before)  # a check may take longer than its answer


@pytest.mark.parametrize("path", CHANGES)
def test_change_is_refused_to_who_may_only_look(queue: Queue, clock: MovableClock, path: str) -> None:
    changeable(queue, clock)
    before = whole(queue)
    with live(create_app(queue, TOKEN, READ_TOKEN)) as address, client(address) as made:
        made.cookies.set("holdfast_form", "a" * 32)
        given = {"form_token": "a" * 32}
        made.headers["authorization"] = f"Bearer {READ_TOKEN}"
        answer = post(made, path, {**CHANGES[path], **given})
        assert (answer.status_code, Page(answer.text).alerts) == (
            403,
            ["A read-only token can't make changes."],
        )
        del made.headers["authorization"]
        assert post(made, path, {**CHANGES[path], **given}).status_code == 401
        assert whole(queue) == before
        made.headers["authorization"] = f"Bearer {TOKEN}"
        assert post(made, path, {**CHANGES[path], **given}).status_code == 303
        wait_until(lambda: whole(queue) != before)


@pytest.mark.parametrize("path", CHANGES)
@pytest.mark.parametrize("headers", [{"origin": "https://evil.example"}, {"sec-fetch-site": "cross-site"}])
def test_change_from_another_site_is_refused(
    api: httpx.Client, queue: Queue, clock: MovableClock, path: str, headers: dict[str, str]
) -> None:
    changeable(queue, clock)
    before = whole(queue)
    fields = {**CHANGES[path], "form_token": form_token(api)}
    api.headers.update(headers)
    assert post(api, path, fields).status_code == 403
    assert whole(queue) == before


@pytest.mark.parametrize("prefix", ["", "/ops/queue"])
@pytest.mark.parametrize("path", CHANGES)
def test_change_leads_to_a_page_below_the_prefix_with_a_notice_that_is_shown_once(
    queue: Queue, clock: MovableClock, path: str, prefix: str
) -> None:
    changeable(queue, clock)
    with live(create_app(queue), root_path=prefix) as address, below(address, prefix) as made:
        web = Reader(made)
        token = form_token(made, f"{prefix}/controls")
        answer = post(made, prefix + path, {**CHANGES[path], "form_token": token})
        assert answer.status_code == 303
        assert answer.headers["location"].startswith(f"{prefix}/")
        for cookie in answer.headers.get_list("set-cookie"):
            attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
            assert {"httponly", "samesite=strict", f"path={prefix or '/'}"} <= attributes
        page = web.follow(answer)
        assert page.notice
        assert web.open(answer.headers["location"]).notice == ""


@pytest.mark.parametrize(
    ("back", "place"),
    [
        ("/jobs?q=a%26b&size=25", "/jobs?q=a%26b&size=25"),
        ("/", "/"),
        ("//evil.example/", "/"),
        ("https://evil.example/", "/"),
        ("/\\evil.example", "/"),
        ("jobs", "/"),
        ("/a\r\nx: y", "/"),
        ("/é", "/"),
    ],
)
def test_change_goes_back_where_it_came_from_and_never_to_another_site(
    api: httpx.Client, queue: Queue, clock: MovableClock, back: str, place: str
) -> None:
    changeable(queue, clock)
    token = form_token(api)
    for path in ("/jobs/broken/retry", "/jobs/waits/cancel", "/controls/pause", "/controls/resume"):
        answer = post(api, path, {"form_token": token, "back": back})
        assert (answer.status_code, answer.headers["location"]) == (303, place), path


def test_buttons_of_the_list_go_back_to_the_same_list(web: Reader, queue: Queue) -> None:
    failing(queue, "j1", "j2")
    page = web.open("/jobs?status=failed&sort=finished&size=25")
    form = page.form("/jobs", lambda form: form.method == "post")
    after = web.submit(form, form.button("Retry j1"))
    assert after.address == page.address
    assert after.notice == "Job j1 will run again."
    assert shown_ids(after) == ["j2"]
    assert states(queue) == {"j1": "pending", "j2": "failed"}


def test_notice_fits_into_a_cookie_whatever_it_says(web: Reader, queue: Queue) -> None:
    keys = ["\N{CJK UNIFIED IDEOGRAPH-4E00}" * 190 + str(n) for n in range(5)]
    for n, key in enumerate(keys):
        failing(queue, f"j{n}", key=key)
    for n, key in enumerate(keys):
        insert(store_of(queue), f"holder{n}", key=key)
    asked = web.open("/jobs/bulk?" + urlencode([("action", "retry"), *(("id", f"j{n}") for n in range(5))]))
    answer = web.send(asked.form("/jobs/bulk"))
    # A browser drops a cookie of more than 4096 bytes.
    [cookie] = [text for text in answer.headers.get_list("set-cookie") if text.startswith("holdfast_notice=")]
    assert len(cookie.partition(";")[0]) <= 4096
    assert "5 jobs skipped" in unquote(cookie)


# Retry, cancel, delete


@both_engines
def test_job_is_retried_cancelled_and_deleted_from_its_page(web: Reader, queue: Queue) -> None:
    failing(queue, "j1")

    def press(action: str) -> Page:
        page = web.open("/jobs/j1")
        return web.submit(page.form(f"/jobs/j1/{action}", lambda form: len(form.fields) == 1))

    assert press("retry").notice == "Job j1 will run again."
    assert stored(queue, "j1").status == "pending"
    assert press("cancel").notice == "Job j1 cancelled."
    assert stored(queue, "j1").status == "cancelled"
    asked = web.open(web.open("/jobs/j1").link("Delete…"))
    assert asked.heading == "Delete this job?"
    assert "This deletes j1 (email, cancelled) and its history, and can't be undone." in asked.main.text
    assert asked.link("Back") == "/jobs/j1"
    after = web.submit(asked.form("/jobs/j1/delete"))
    assert (after.address, after.notice) == ("/jobs", "Job j1 deleted.")
    assert queue.get("j1") is None


def test_running_job_is_asked_to_stop(web: Reader, queue: Queue) -> None:
    run(store_of(queue), "j1")
    after = web.submit(web.open("/jobs/j1").form("/jobs/j1/cancel"))
    assert after.notice == "Job j1 was asked to stop."
    assert stored(queue, "j1").cancel_requested


@pytest.mark.parametrize(
    ("action", "sentence"),
    [
        ("retry", "Job 'j1' is completed and can't be retried"),
        ("cancel", "Job 'j1' is completed and can't be cancelled"),
        ("delete", "Job 'j2' is pending and can't be deleted"),
    ],
)
def test_wrong_state_is_a_page_with_the_sentence(
    web: Reader, queue: Queue, action: str, sentence: str
) -> None:
    finished(store_of(queue), "j1")
    insert(store_of(queue), "j2")
    before = whole(queue)
    id = sentence.split("'")[1]
    answer = post(web.client, f"/jobs/{id}/{action}", {"form_token": form_token(web.client)})
    page = web.read(answer, 400)
    assert page.alerts[0].startswith(sentence)
    assert page.root.one("code").text == "wrong_state"
    assert whole(queue) == before


@pytest.mark.parametrize("action", ["retry", "cancel", "delete"])
def test_change_of_a_job_that_is_gone_is_a_page(web: Reader, action: str) -> None:
    answer = post(web.client, f"/jobs/nobody/{action}", {"form_token": form_token(web.client)})
    assert web.read(answer, 404).alerts == ["There is no job 'nobody'."]


def edit_form(page: Page, id: str = "j1") -> Form:
    return page.form(f"/jobs/{id}/retry", lambda form: any(name == "payload" for name, _ in form.fields))


def test_job_is_retried_with_another_payload_and_keeps_its_secrets(web: Reader, queue: Queue) -> None:
    failing(queue, "j1", payload='{"password": "hunter2", "n": 1}')
    form = edit_form(web.open("/jobs/j1"))
    edited = form.value("payload").replace("1", str(2**200)).replace("\n", "\r\n")
    after = web.submit(form, changes={"payload": edited})
    assert after.notice == "Job j1 will run again."
    assert stored(queue, "j1").payload == {"password": "hunter2", "n": 2**200}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "payload: is not valid JSON"),
        ("", "payload: is not valid JSON"),
        ("[1]", "payload: must be a JSON object"),
        ('{"n": 1, "n": 2}', "payload: is not valid JSON"),
        ('{"n": NaN}', "payload"),
        ("[" * 100_000, "payload"),
        ('{"n": "one"}', "payload.n"),
        ('{"other": {"token": "[redacted]"}}', "payload.other.token: shows [redacted]"),
        ('{"n": 1, "x": "' + "x" * 1_100_000 + '"}', "payload"),
    ],
    ids=["cut", "empty", "list", "twice", "nan", "deep", "type", "secret", "large"],
)
def test_payload_that_is_wrong_is_told_at_the_field_and_kept(
    web: Reader, queue: Queue, text: str, sentence: str
) -> None:
    failing(queue, "j1", type="count", payload='{"n": 1}')

    @queue.job
    def count(n: int, other: dict[str, Any] | None = None) -> None: ...

    before = whole(queue)
    answer = web.send(edit_form(web.open("/jobs/j1")), changes={"payload": text})
    page = web.read(answer, 400)
    field = page.section("edited")
    assert field["aria-invalid"] == "true"
    assert "edit-problem" in field["aria-describedby"].split()
    assert page.section("edit-problem").text.startswith(sentence)
    assert edit_form(page).value("payload") == text
    assert whole(queue) == before


def test_payload_of_a_built_in_type_is_not_edited_unless_it_is_allowed(queue: Queue) -> None:
    failing(queue, "j1", type="shell", payload='{"command": "false"}')
    with live(create_app(queue)) as address, client(address) as made:
        web = Reader(made)
        page = web.open("/jobs/j1")
        assert not page.has("edit")
        fields = {"form_token": form_token(made), "payload": '{"command": "true"}'}
        assert web.read(post(made, "/jobs/j1/retry", fields), 403).alerts[0].startswith("The built-in type")
        assert stored(queue, "j1").payload == {"command": "false"}
        assert post(made, "/jobs/j1/retry", {"form_token": form_token(made)}).status_code == 303  # as it is
    queue.cancel("j1")
    with live(create_app(queue, allow_types=["shell"])) as address, client(address) as made:
        web = Reader(made)
        web.submit(edit_form(web.open("/jobs/j1")), changes={"payload": '{"command": "true"}'})
    assert stored(queue, "j1").payload == {"command": "true"}


# Many at once


def ask(web: Reader, action: str, **fields: Any) -> Page:
    return web.open(f"/jobs/bulk?{urlencode({'action': action, **fields}, doseq=True)}")


SENTENCES = {
    "retry": "Retried jobs start over with all their attempts.",
    "cancel": "Waiting jobs are cancelled at once; running jobs are asked to stop.",
    "delete": "This also deletes the history, and can't be undone.",
}
PAST = {"retry": "retried", "cancel": "cancelled", "delete": "deleted"}


@pytest.mark.parametrize("action", SENTENCES)
def test_selected_jobs_are_confirmed_by_count_before_anything_happens(
    web: Reader, queue: Queue, action: str
) -> None:
    failing(queue, "f1", "f2", "f3")
    insert(store_of(queue), "p1", "p2", "p3")
    before = whole(queue)
    form = web.open("/jobs?type=email").form("/jobs/bulk")
    button = form.button(f"{action.capitalize()}…")
    ticked = [("id", id) for id in ("f1", "f2", "p1", "p2", "nobody")]
    fields = [*form.fields, *ticked, (button["name"], button["value"])]
    asked = web.open(f"/jobs/bulk?{urlencode(fields)}")
    assert asked.heading == f"{action.capitalize()} 2 jobs?"
    able = ["p1", "p2"] if action == "cancel" else ["f1", "f2"]
    assert f"2 of the 5 jobs you selected can be {PAST[action]}." in asked.main.text
    assert SENTENCES[action] in asked.main.text
    assert [item.text for item in asked.root.one("ul", "ids").all("li")] == able
    assert asked.form("/jobs/bulk").buttons[0].text == f"{action.capitalize()} 2 jobs"
    assert asked.link("Back") == "/jobs?type=email"
    assert whole(queue) == before
    after = web.submit(asked.form("/jobs/bulk"))
    assert (after.address, after.notice) == ("/jobs?type=email", f"2 jobs {PAST[action]}.")
    result = {"retry": "pending", "cancel": "cancelled", "delete": None}[action]
    others = {id: state for id, state in states(queue).items() if id not in able}
    assert [states(queue).get(id) for id in able] == [result, result]
    assert others == {id: "failed" if id[0] == "f" else "pending" for id in others}
    assert len(others) == 4


def test_job_that_has_changed_since_is_left_as_it_is_and_named(web: Reader, queue: Queue) -> None:
    failing(queue, "f1", "f2")
    asked = ask(web, "retry", id=["f1", "f2"])
    queue.retry("f1")
    after = web.submit(asked.form("/jobs/bulk"))
    assert after.notice.startswith("1 job retried. 1 job skipped: job 'f1' is pending and can't be retried")
    assert "problem" in after.section("notice").one("p").classes


def test_more_selected_jobs_than_are_named_are_counted(web: Reader, queue: Queue) -> None:
    ids = [f"j{n:02}" for n in range(25)]
    insert(store_of(queue), *ids)
    asked = ask(web, "cancel", id=ids)
    named = [item.text for item in asked.root.one("ul", "ids").all("li")]
    assert named == [*ids[:20], "and 5 more"]
    assert web.submit(asked.form("/jobs/bulk")).notice == "25 jobs cancelled."


def test_nothing_selected_leads_back_to_the_list(web: Reader, queue: Queue) -> None:
    failing(queue, "j1")
    page = web.open("/jobs?status=failed")
    form = page.form("/jobs/bulk")
    after = web.submit(form, form.button("Delete…"))
    assert (after.address, after.notice) == ("/jobs?status=failed", "Select some jobs first.")


def test_form_that_names_no_job_and_not_all_changes_nothing(web: Reader, queue: Queue) -> None:
    failing(queue, "j1", "j2")
    before = whole(queue)
    answer = post(
        web.client, "/jobs/bulk", {"form_token": form_token(web.client), "action": "delete", "count": "2"}
    )
    assert answer.status_code in (303, 400, 409)
    assert whole(queue) == before


@pytest.mark.parametrize("action", SENTENCES)
def test_all_that_match_are_changed_and_no_others(web: Reader, queue: Queue, action: str) -> None:
    failing(queue, "f1", "f2", error="KeyError: 7")
    failing(queue, "f3", error="other")
    failing(queue, "f4", error="KeyError: 8", type="crawl")
    insert(store_of(queue), "p1")
    filters: dict[str, Any] = {"type": "email"}
    if action != "cancel":
        filters |= {"status": "failed", "error": "KeyError: #", "from": "1h"}
    page = web.open(f"/jobs?{urlencode(filters)}")
    asked = web.open(page.link(f"{action.capitalize()} all…"))
    assert asked.heading == f"{action.capitalize()} {'1 job' if action == 'cancel' else '2 jobs'}?"
    assert [chip.text for chip in asked.root.all("span", "chip")] == [
        chip.text.removesuffix(" ✕, remove this filter") for chip in page.root.all("a", "chip")
    ]
    if action == "cancel":
        assert "1 of the 4 matching jobs can be cancelled." in asked.main.text
    after = web.submit(asked.form("/jobs/bulk"))
    assert sorted(query(after.address)) == sorted(query(page.address))
    expected = {"f1": "failed", "f2": "failed", "f3": "failed", "f4": "failed", "p1": "pending"}
    if action == "retry":
        expected |= {"f1": "pending", "f2": "pending"}
    elif action == "cancel":
        expected |= {"p1": "cancelled"}
    else:
        del expected["f1"], expected["f2"]
    assert states(queue) == expected


ABLE = {
    "retry": {"failed", "cancelled", "retrying"},
    "cancel": {"scheduled", "pending", "processing", "retrying"},
    "delete": {"completed", "failed", "cancelled"},
}


@pytest.mark.parametrize("action", ABLE)
def test_all_of_a_state_are_as_many_as_the_action_can_be_done_to(
    web: Reader, queue: Queue, action: str
) -> None:
    finished(store_of(queue), "completed")
    failing(queue, "failed")
    insert(store_of(queue), "cancelled")
    queue.cancel("cancelled")
    finished(store_of(queue), "retrying", OUTCOMES["failed"])
    run(store_of(queue), "processing")
    queue.enqueue("email", {}, id="scheduled", delay=3600)
    insert(store_of(queue), "pending")
    for state in sorted({*states(queue)} - {"scheduled"}):
        asked = ask(web, action, all=1, status=state)
        count = 1 if state in ABLE[action] else 0
        assert asked.heading == (f"{action.capitalize()} 1 job?" if count else f"Nothing to {action}"), state
    asked = ask(web, action, all=1)
    assert asked.heading == f"{action.capitalize()} {len(ABLE[action])} jobs?"
    before = states(queue)
    web.submit(asked.form("/jobs/bulk"))
    after = states(queue)
    untouched = {id for id in before if before[id] == after.get(id)} - {"processing"}
    assert untouched == {*before} - ABLE[action] - {"processing"}
    assert stored(queue, "processing").cancel_requested == (action == "cancel")


def test_every_job_there_is_is_said_plainly(web: Reader, queue: Queue) -> None:
    failing(queue, "j1")
    asked = ask(web, "delete", all=1)
    assert asked.heading == "Delete 1 job?"
    assert "All jobs (no filter)" in asked.main.text


def test_nothing_that_matches_has_no_button(web: Reader) -> None:
    asked = ask(web, "delete", all=1)
    assert asked.heading == "Nothing to delete"
    assert "/jobs/bulk" not in {form.action for form in asked.forms}


def test_jobs_that_come_after_the_question_are_not_touched(
    web: Reader, queue: Queue, clock: MovableClock
) -> None:
    failing(queue, "j1", "j2")
    clock.advance(minutes=1)
    asked = ask(web, "delete", all=1, status="failed", **{"from": "5m"})
    assert "Jobs enqueued from now on are not affected." in asked.main.text
    clock.advance(minutes=3)
    failing(queue, "j3")
    clock.advance(minutes=3)  # what was created within five minutes then is not any more
    assert web.submit(asked.form("/jobs/bulk")).notice == "2 jobs deleted."
    assert states(queue) == {"j3": "failed"}


@both_engines
def test_no_more_jobs_are_changed_than_were_stated(web: Reader, queue: Queue) -> None:
    failing(queue, "j1", "j2")
    insert(store_of(queue), "j3")
    asked = ask(web, "delete", all=1)
    assert asked.heading == "Delete 2 jobs?"
    queue.cancel("j3")  # now there are three
    assert web.submit(asked.form("/jobs/bulk")).notice == "2 jobs deleted."
    assert len(states(queue)) == 1


@pytest.mark.parametrize("count", ["", "-1", "x", "9" * 30, "\N{SUPERSCRIPT TWO}"])
def test_count_that_is_none_is_refused(web: Reader, queue: Queue, count: str) -> None:
    failing(queue, "j1")
    fields = {"form_token": form_token(web.client), "action": "delete", "all": "1", "count": count}
    assert web.read(post(web.client, "/jobs/bulk", fields), 400).alerts[0].startswith("Count must be")
    assert states(queue) == {"j1": "failed"}


def test_all_that_a_search_finds_are_those_that_the_list_shows(
    web: Reader, queue: Queue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MOST_SEARCHED", 3)
    failing(queue, "match-1", "match-2", "x", "y", "match-3")
    for order, found in (("desc", ["match-3"]), ("asc", ["match-1", "match-2"])):
        page = web.open(f"/jobs?q=match&order={order}")
        assert shown_ids(page) == found
        asked = web.open(page.link("Retry all…"))
        assert asked.heading == f"Retry {'1 job' if len(found) == 1 else '2 jobs'}?", order
        assert "The search covers the first" in asked.main.text
        web.submit(asked.form("/jobs/bulk"))
        retried = {id for id, state in states(queue).items() if state == "pending"}
        assert retried == set(found), order
        for id in found:
            queue.cancel(id)


def test_unknown_action_is_refused_as_a_page(web: Reader, queue: Queue) -> None:
    page = web.open("/jobs/bulk?action=explode&all=1", 400)
    assert page.alerts == ["'explode' is not an action; allowed: retry, cancel, delete."]
    fields = {"form_token": form_token(web.client), "action": "", "all": "1"}
    assert web.read(post(web.client, "/jobs/bulk", fields), 400).heading == "Bad Request"


def test_wrong_filter_of_many_is_refused_as_a_page(web: Reader) -> None:
    for wrong in ("status=asleep", "from=soon", "type=a%20b", "q=payload.password:x"):
        assert web.open(f"/jobs/bulk?action=retry&all=1&{wrong}", 400).heading == "Bad Request"


# Clean-up


@pytest.fixture
def aged(queue: Queue, clock: MovableClock) -> Queue:
    """Jobs that ended eight days and one hour ago."""
    for age in ("old", "new"):
        finished(store_of(queue), f"{age}-done")
        failing(queue, f"{age}-failed")
        insert(store_of(queue), f"{age}-cancelled")
        queue.cancel(f"{age}-cancelled")
        clock.advance(days=8 if age == "old" else 0, hours=1)
    insert(store_of(queue), "waits")
    return queue


@pytest.mark.parametrize(
    ("older_than", "failed", "gone"),
    [
        ("7d", False, {"old-done", "old-cancelled"}),
        ("7d", True, {"old-failed"}),
        ("30m", False, {"old-done", "old-cancelled", "new-done", "new-cancelled"}),
        ("0s", True, {"old-failed", "new-failed"}),
        ("9d", False, set()),
    ],
)
def test_clean_up_says_how_many_and_deletes_those(
    web: Reader, aged: Queue, older_than: str, failed: bool, gone: set[str]
) -> None:
    form = web.open("/").form("/cleanup")
    assert form.value("older_than") == "7d"
    changes: dict[str, str | None] = {"older_than": older_than, "failed": "1" if failed else None}
    before = set(states(aged))
    asked = web.read(web.send(form, changes=changes))
    what = f"{len(gone) or 'No'} {'failed' if failed else 'completed or cancelled'} job"
    assert f"{what}{'' if len(gone) == 1 else 's'} finished more than {older_than} ago." in asked.main.text
    assert set(states(aged)) == before
    if not gone:
        assert asked.heading == "Nothing to clean up"
        assert asked.form("/cleanup").buttons == []
        return
    count = "1 job" if len(gone) == 1 else f"{len(gone)} jobs"
    assert asked.heading == f"Delete {count}?"
    assert asked.form("/cleanup").buttons[0].text == f"Delete {count}"
    after = web.submit(asked.form("/cleanup"))
    assert (after.address, after.notice) == ("/", f"{count} deleted.")
    assert before - set(states(aged)) == gone


def test_clean_up_without_an_age_means_a_week_and_says_so(web: Reader, aged: Queue) -> None:
    asked = web.open("/cleanup")
    assert "2 completed or cancelled jobs finished more than 7d ago." in asked.main.text
    assert asked.form("/cleanup").value("older_than") == "7d"


@pytest.mark.parametrize("age", ["soon", "-1d", "1e99d", "99999999999999d"])
def test_age_that_is_none_is_refused(web: Reader, aged: Queue, age: str) -> None:
    page = web.open(f"/cleanup?{urlencode({'older_than': age})}", 400)
    assert page.alerts[0].startswith("The age must be a duration such as 12h or 7d")
    fields = {"form_token": form_token(web.client), "older_than": age}
    assert web.read(post(web.client, "/cleanup", fields), 400).alerts == page.alerts
    assert len(states(aged)) == 7


# Controls


def pause_form(page: Page, type: str = "") -> Form:
    return page.form(
        next(form.action for form in page.forms if _is_pause(form, type)), lambda form: _is_pause(form, type)
    )


def _is_pause(form: Form, type: str) -> bool:
    return form.action in ("/controls/pause", "/controls/resume") and ("type", type) in form.fields


@both_engines
def test_all_is_paused_and_resumed(web: Reader, queue: Queue) -> None:
    page = web.open("/controls")
    assert page.section("all-state").text.startswith("no worker")
    page = web.submit(pause_form(page))
    assert (page.address, page.notice) == ("/controls", "Paused the whole queue; running jobs will finish.")
    assert page.section("all-state").text.startswith("paused")
    assert store_of(queue).list_paused().keys() == {""}
    page = web.submit(pause_form(page))
    assert page.notice == "Resumed the whole queue."
    assert store_of(queue).list_paused() == {}


def test_overview_pauses_and_resumes_too(web: Reader, queue: Queue) -> None:
    page = web.submit(web.open("/").form("/controls/pause"))
    assert (page.address, page.heading) == ("/", "Paused")
    page = web.submit(page.form("/controls/resume"))
    assert (page.address, store_of(queue).list_paused()) == ("/", {})


def test_one_type_is_paused_and_resumed_and_the_page_stays_where_it_was(web: Reader, queue: Queue) -> None:
    insert(store_of(queue), "a", type="a:b")
    insert(store_of(queue), "b")
    page = web.submit(pause_form(web.open("/controls?type=email"), "a:b"))
    assert page.address == "/controls?type=email"
    assert page.notice == "Paused a:b; running jobs will finish."
    rows = {row[0]: row for row in page.section("types").rows()}
    assert rows["a:b"][1:3] == ["paused", "1"]
    assert rows["email"][1:3] == ["no worker", "1"]
    assert store_of(queue).list_paused().keys() == {"a:b"}
    page = web.submit(pause_form(page, "a:b"))
    assert store_of(queue).list_paused() == {}


def setting_form(page: Page, key: str, place: str | None = None) -> Form:
    return page.form(
        "/controls/setting",
        lambda form: (
            ("key", key) in form.fields
            and (
                ("place", place) in form.fields
                if place
                else not any(name == "place" for name, _ in form.fields)
            )
        ),
    )


def test_rate_limits_are_set_for_all_and_for_a_type_and_reset(web: Reader, queue: Queue) -> None:
    insert(store_of(queue), "a", type="crawl")
    page = web.submit(
        setting_form(web.open("/controls"), "rate_limit", "whole-rate"), changes={"value": " 10 "}
    )
    assert (page.address, page.notice) == ("/controls", "rate_limit is now 10.")
    form = next(form for form in page.forms if {("key", "rate_limit"), ("type", "crawl")} <= set(form.fields))
    assert form.value("value") == ""
    assert "10, shared with the whole queue" in page.section("types").text
    page = web.submit(form, changes={"value": "2.5"})
    assert page.notice == "rate_limit for crawl is now 2.5."
    assert queue.settings().get("rate_limit", "crawl") == 2.5
    form = next(form for form in page.forms if {("key", "rate_limit"), ("type", "crawl")} <= set(form.fields))
    page = web.submit(form, form.button("Reset"))
    assert page.notice == "rate_limit for crawl is now 10."
    assert store_of(queue).get_settings() == {("rate_limit", ""): 10.0}


def test_every_setting_is_shown_with_value_default_and_what_is_allowed(web: Reader, queue: Queue) -> None:
    rows = {
        row.one("label").text: row for row in web.open("/controls").section("settings").one("tbody").all("tr")
    }
    assert rows.keys() == SETTINGS.keys()
    for name, setting in SETTINGS.items():
        cells = rows[name].text
        assert setting.allowed in cells
        assert f"(default: {'none' if setting.default is None else ''}" in cells
    typed = web.open("/controls?type=email").section("settings").one("tbody").all("tr")
    assert {row.one("label").text for row in typed} == {
        name for name, setting in SETTINGS.items() if setting.per_type
    }


def test_setting_is_stored_and_reset(web: Reader, queue: Queue) -> None:
    page = web.open("/controls")
    assert not page.section("settings").has("span", "tag")
    page = web.submit(setting_form(page, "max_attempts"), changes={"value": "7"})
    assert page.notice == "max_attempts is now 7."
    form = setting_form(page, "max_attempts")
    assert form.value("value") == "7"
    assert page.section("settings").one("span", "tag").text == "stored"
    assert queue.config()["max_attempts"] == 7
    page = web.submit(form, form.button("Reset max_attempts"))
    assert page.notice == "max_attempts is now 3."
    assert store_of(queue).get_settings() == {}


@both_engines
def test_setting_of_a_type_is_stored_for_it_alone(web: Reader, queue: Queue) -> None:
    insert(store_of(queue), "j1")
    page = web.open("/controls")
    page = web.read(web.send(page.form("/controls"), changes={"type": "email"}))
    assert page.section("settings-title").text == "Settings for email"
    page = web.submit(setting_form(page, "max_attempts"), changes={"value": "9"})
    assert (page.address, page.notice) == ("/controls?type=email", "max_attempts for email is now 9.")
    assert store_of(queue).get_settings() == {("max_attempts", "email"): 9}


@pytest.mark.parametrize("value", ["0", "x", "", "1.5", '"><b>'])
def test_wrong_setting_is_told_at_its_field_with_what_is_allowed(
    web: Reader, queue: Queue, value: str
) -> None:
    answer = web.send(setting_form(web.open("/controls"), "max_attempts"), changes={"value": value})
    page = web.read(answer, 400)
    field = page.section("setting-max_attempts")
    assert (field["aria-invalid"], field["value"]) == ("true", value)
    assert "setting-max_attempts-problem" in field["aria-describedby"].split()
    [alert] = page.alerts
    assert "a whole number of at least 1" in alert
    assert store_of(queue).get_settings() == {}


def test_wrong_rate_is_told_at_the_type_it_was_meant_for(web: Reader, queue: Queue) -> None:
    insert(store_of(queue), "j1")
    page = web.open("/controls")
    form = next(form for form in page.forms if {("key", "rate_limit"), ("type", "email")} <= set(form.fields))
    page = web.read(web.send(form, changes={"value": "fast"}), 400)
    [wrong] = page.root.all("input", aria_invalid="true")
    assert wrong["value"] == "fast"
    assert wrong["aria-label"] == "Rate limit of email in jobs per second, 0 for unlimited"
    assert len(page.alerts) == 1


@pytest.mark.parametrize(
    "fields",
    [
        {"key": "colour", "value": "1"},
        {"key": "lease_seconds", "value": "9", "type": "email"},
        {"value": "1"},
    ],
    ids=["unknown", "not of a type", "none"],
)
def test_setting_that_there_is_not_is_told(web: Reader, queue: Queue, fields: dict[str, str]) -> None:
    answer = post(web.client, "/controls/setting", {**fields, "form_token": form_token(web.client)})
    page = web.read(answer, 400)
    assert page.alerts
    assert store_of(queue).get_settings() == {}


@pytest.mark.parametrize("type", ["all", "a.b:c-d_e", "x" * 255])
def test_type_of_any_name_can_be_controlled(web: Reader, queue: Queue, type: str) -> None:
    insert(store_of(queue), "j1", type=type)
    page = web.submit(pause_form(web.open("/controls"), type))
    assert store_of(queue).list_paused().keys() == {type}
    form = next(form for form in page.forms if {("key", "rate_limit"), ("type", type)} <= set(form.fields))
    page = web.submit(form, changes={"value": "4"})
    assert store_of(queue).get_settings() == {("rate_limit", type): 4.0}
    form = next(form for form in page.forms if {("key", "rate_limit"), ("type", type)} <= set(form.fields))
    page = web.read(web.send(form, changes={"value": "x"}), 400)
    assert len(page.alerts) == 1
    web.open(f"/controls?type={type}")


@pytest.mark.parametrize("path", ["/controls/pause", "/controls/resume", "/controls/setting"])
def test_type_that_can_be_none_is_refused(web: Reader, queue: Queue, path: str) -> None:
    fields = {"type": "a b", "key": "max_attempts", "value": "2", "form_token": form_token(web.client)}
    assert "is not a valid job type" in web.read(post(web.client, path, fields), 400).alerts[0]
    assert "is not a valid job type" in web.open("/controls?type=a%20b", 400).alerts[0]
    assert store_of(queue).list_paused() == {}


def test_controls_of_many_types_are_cut_and_say_so(web: Reader, queue: Queue) -> None:
    for n in range(203):
        insert(store_of(queue), f"j{n}", type=f"type{n:03}")
    page = web.open("/controls")
    assert len(page.section("types").rows()) == 200
    assert "3 more types are not shown" in page.section("types").text
    assert len(page.section("of-type").all("option")) == 204


# Enqueueing


@pytest.fixture
def typed(queue: Queue) -> Queue:
    """The home's queue with a handler whose payload has a field of each kind."""

    @queue.job
    def greet(
        name: str,
        times: int = 1,
        tone: Literal["kind", "loud"] = "kind",
        body: str = "",
        tags: list[str] | None = None,
    ) -> None: ...

    return queue


def new_job(page: Page) -> Form:
    return page.form("/enqueue", lambda form: form.method == "post")


def enqueue_page(web: Reader, type: str = "greet", **more: Any) -> Page:
    return web.open(f"/enqueue?{urlencode({'type': type, **more})}")


def test_type_is_chosen_from_those_that_are_known(typed: Queue, web: Reader) -> None:
    page = web.open("/enqueue")
    assert page.link("greet") == "/enqueue?type=greet"
    assert [option["value"] for option in page.section("known-types").all("option")] == ["greet"]
    chosen = web.read(web.send(page.form("/enqueue"), changes={"type": "greet"}))
    assert "Payload for greet" in chosen.main.text


def test_job_is_enqueued_as_the_form_says(typed: Queue, web: Reader) -> None:
    page = enqueue_page(web)
    form = new_job(page)
    assert {name for name, _ in form.fields} >= {
        "payload.name", "payload.times", "payload.tone", "payload.body", "payload.tags",
    }  # fmt: skip
    after = web.submit(
        form,
        changes={"payload.name": "Zoë\r\n", "payload.times": "12345678901234567890", "payload.tone": "loud"},
    )
    [job] = typed.jobs()
    assert after.address == f"/jobs/{job.id}"
    assert after.notice == f"Job {job.id} enqueued."
    assert stored(typed, job.id).payload["times"] == 12345678901234567890
    assert stored(typed, job.id).payload["tone"] == "loud"


@both_engines
def test_options_are_those_of_the_queue(typed: Queue, web: Reader, clock: MovableClock) -> None:
    options = {
        "priority": "-3", "delay": "5m", "max_attempts": "9", "timeout": "30s", "key": "k 1", "key_for": "1h",
        "id": "own-id",
    }  # fmt: skip
    after = web.submit(new_job(enqueue_page(web)), changes={"payload.name": "Ada", **options})
    assert after.address == "/jobs/own-id"
    job = stored(typed, "own-id")
    assert (job.priority, job.max_attempts, job.timeout, job.key, job.key_for) == (-3, 9, 30.0, "k 1", 3600.0)
    assert job.status == "scheduled"
    web.submit(
        new_job(enqueue_page(web)), changes={"payload.name": "Ada", "id": "at", "run_at": "2030-01-02T10:30"}
    )
    assert str(stored(typed, "at").run_at) == "2030-01-02 10:30:00+00:00"


@pytest.mark.parametrize(
    ("changes", "field", "sentence"),
    [
        ({"payload.name": "Ada", "payload.times": "many"}, "payload.times", ""),
        ({"payload.name": "Ada", "payload.times": "1.5"}, "payload.times", ""),
        ({"payload.name": "Ada", "payload.tags": "[1]"}, "payload.tags", ""),
        ({"payload.name": "Ada", "payload.tags": "["}, "payload.tags", ""),
        ({"payload.name": "Ada", "payload.tone": "rude"}, "payload.tone", ""),
        ({"payload.name": "Ada", "priority": "high"}, "priority", "must be a whole number"),
        ({"payload.name": "Ada", "priority": "9" * 30}, "priority", ""),
        ({"payload.name": "Ada", "max_attempts": "0"}, "max_attempts", ""),
        ({"payload.name": "Ada", "timeout": "soon"}, "timeout", ""),
        ({"payload.name": "Ada", "delay": "-1s"}, "delay", ""),
        ({"payload.name": "Ada", "run_at": "tomorrow"}, "run_at", "ISO 8601"),
        ({"payload.name": "Ada", "run_at": "2030-01-01T10:00:00Z", "delay": "1s"}, "run_at", "delay"),
        ({"payload.name": "Ada", "id": "a b"}, "id", "is not a valid job id"),
        ({"payload.name": "Ada", "id": "bulk"}, "id", "reserved"),
        ({"payload.name": "Ada", "id": "taken"}, "id", "already exists"),
        ({"payload.name": "Ada", "key": "held"}, "key", "is held by job 'taken'"),
        ({"payload.name": "Ada", "key_for": "1h"}, "key_for", ""),
    ],
)
def test_wrong_field_is_told_next_to_it_and_everything_is_kept(
    typed: Queue, web: Reader, changes: dict[str, str], field: str, sentence: str
) -> None:
    typed.enqueue("greet", {"name": "first"}, id="taken", key="held")
    form = new_job(enqueue_page(web))
    page = web.read(web.send(form, changes=dict(changes)), 400)
    assert page.alerts[0].startswith("Nothing was enqueued")
    again = new_job(page)
    for name, value in changes.items():
        if name != "payload.tone":  # a choice that there is not can't be shown
            assert again.value(name) == value
    assert again.value("new_id") == form.value("new_id")
    assert len(typed.jobs()) == 1
    wrong = page.root.all(aria_invalid="true")
    assert [element["name"] for element in wrong] == [field]
    told = page.section(wrong[0]["aria-describedby"]).one("p", "problem").text
    assert told
    assert sentence in told
    if not field.startswith("payload"):
        options = next(d for d in page.root.all("details") if d.one("summary").text == "Options")
        assert "open" in options.attributes


def test_missing_required_field_is_told(typed: Queue, web: Reader) -> None:
    form = new_job(enqueue_page(web))
    answer = web.send(form, changes={"payload.name": None})
    page = web.read(answer, 400)
    assert [element["name"] for element in page.root.all(aria_invalid="true")] == ["payload.name"]


def test_payload_is_written_as_json_instead(typed: Queue, web: Reader) -> None:
    page = web.open(enqueue_page(web).link("Write JSON instead"))
    form = new_job(page)
    assert form.value("payload") == "{}"
    for text in ("{", "[]", '{"name": 1}', '{"name": "a", "name": "b"}', "[" * 50_000):
        wrong = web.read(web.send(form, changes={"payload": text}), 400)
        assert new_job(wrong).value("payload") == text
        assert [element["name"] for element in wrong.root.all(aria_invalid="true")] == ["payload"]
    web.submit(form, changes={"payload": json.dumps({"name": "Ada", "times": 2**200})})
    [job] = typed.jobs()
    assert stored(typed, job.id).payload == {"name": "Ada", "times": 2**200}


def test_type_that_nobody_knows_is_written_as_json_and_says_so(web: Reader, queue: Queue) -> None:
    page = enqueue_page(web, "unknown")
    assert "This type is unknown here" in page.main.text
    web.submit(new_job(page), changes={"payload": '{"n": 1}'})
    assert [job.type for job in queue.jobs()] == ["unknown"]


def test_lane_has_the_form_of_its_type(typed: Queue, web: Reader) -> None:
    form = new_job(enqueue_page(web, "greet:slow"))
    assert form.value("type") == "greet:slow"
    web.submit(form, changes={"payload.name": "Ada"})
    assert [job.type for job in typed.jobs()] == ["greet:slow"]


@pytest.mark.parametrize(
    ("type", "sentence"),
    [("", "Enter a job type"), ("a b", "is not a valid job type"), ("x" * 256, "is not a valid job type")],
)
def test_job_of_a_type_that_can_be_none_is_told(web: Reader, queue: Queue, type: str, sentence: str) -> None:
    fields = {"type": type, "text": "1", "payload": "{}", "form_token": form_token(web.client)}
    page = web.read(post(web.client, "/enqueue", fields), 400)
    assert sentence in page.main.text
    assert queue.jobs() == []


def test_form_that_is_sent_twice_enqueues_once(typed: Queue, web: Reader) -> None:
    form = new_job(enqueue_page(web))
    changes: dict[str, str | None] = {"payload.name": "Ada"}
    first, second = web.send(form, changes=changes), web.send(form, changes=changes)
    assert first.headers["location"] == second.headers["location"]
    assert (first.status_code, second.status_code) == (303, 303)
    assert len(typed.jobs()) == 1
    again = new_job(enqueue_page(web))
    assert again.value("new_id") != form.value("new_id")


@both_engines
def test_form_that_is_sent_twice_at_once_enqueues_once(typed: Queue, web: Reader) -> None:
    form = new_job(enqueue_page(web))
    with ThreadPoolExecutor(4) as threads:
        answers = list(threads.map(lambda _: web.send(form, changes={"payload.name": "Ada"}), range(4)))
    assert {answer.status_code for answer in answers} == {303}
    assert len(typed.jobs()) == 1


def test_form_that_is_sent_again_with_another_payload_is_not_taken_for_the_first(
    typed: Queue, web: Reader
) -> None:
    form = new_job(enqueue_page(web))
    web.submit(form, changes={"payload.name": "Ada"})
    answer = web.send(form, changes={"payload.name": "Grace"})  # after the browser's back button
    page = web.follow(answer)
    assert '"Grace"' in page.section("payload").text
    assert {stored(typed, job.id).payload["name"] for job in typed.jobs()} == {"Ada", "Grace"}


def test_form_that_is_sent_again_with_another_option_is_not_taken_for_the_first(
    typed: Queue, web: Reader
) -> None:
    form = new_job(enqueue_page(web))
    web.submit(form, changes={"payload.name": "Ada"})
    page = web.submit(form, changes={"payload.name": "Ada", "priority": "5"})
    assert page.section("metadata").pairs()["Priority"] == "5"


def test_same_key_and_payload_leads_to_the_job_that_is_there(typed: Queue, web: Reader) -> None:
    typed.enqueue("greet", {"name": "Ada"}, id="first", key="k")
    form = new_job(enqueue_page(web, text=1))
    after = web.submit(form, changes={"payload": '{"name": "Ada"}', "key": "k"})
    assert after.address == "/jobs/first"
    assert len(typed.jobs()) == 1


def test_form_says_why_no_type_is_offered(queue: Queue) -> None:
    with live(create_app(queue)) as address, client(address) as made:
        assert "No job types yet" in Reader(made).open("/enqueue").root.text
        record = WorkerRecord(
            id="w1", host="here", pid=17, state="running", concurrency=4, types=("shell", "webhook")
        )
        known = [TypeRecord(type=type, executor="thread", schema={}) for type in record.types]
        store_of(queue).register_worker(record, known)
        text = Reader(made).open("/enqueue").root.text
    assert "No job types yet" not in text
    assert "The running workers only handle built-in types (shell, webhook)" in text
    assert "--allow-type NAME" in text


def test_built_in_types_are_not_offered_and_refused_unless_allowed(queue: Queue) -> None:
    install(queue)
    fields = {"type": "shell:media", "text": "1", "payload": '{"command": "true"}'}
    with live(create_app(queue)) as address, client(address) as made:
        web = Reader(made)
        assert web.open("/enqueue").section("known-types").all("option") == []
        page = web.read(post(made, "/enqueue", {**fields, "form_token": form_token(made)}), 403)
        assert "--allow-type shell" in page.alerts[0]
        assert queue.jobs() == []
    with live(create_app(queue, allow_types=["shell"])) as address, client(address) as made:
        web = Reader(made)
        assert [o["value"] for o in web.open("/enqueue").section("known-types").all("option")] == ["shell"]
        form = new_job(enqueue_page(web, "shell:media"))
        web.submit(form, changes={"payload.command": "true"})
        assert [job.type for job in queue.jobs()] == ["shell:media"]


def test_page_of_a_type_that_is_not_allowed_says_so(queue: Queue) -> None:
    install(queue)
    with live(create_app(queue)) as address, client(address) as made:
        answer = Reader(made).client.get("/enqueue?type=shell")
        assert "This type is unknown here" not in answer.text
        assert "--allow-type shell" in answer.text


def test_enqueueing_by_form_counts_for_the_rate(queue: Queue) -> None:
    with live(create_app(queue, enqueue_rate=1e-6)) as address, client(address) as made:
        web = Reader(made)
        form = new_job(enqueue_page(web, "email"))
        web.read(web.send(form, changes={"payload": "{"}), 400)  # what is wrong does not count
        web.submit(form)
        answer = web.send(new_job(enqueue_page(web, "email")))
        page = web.read(answer, 429)
        assert page.alerts == ["Rate limit exceeded: 1e-06 jobs per second."]
        assert int(answer.headers["retry-after"]) >= 1
        assert len(queue.jobs()) == 1


def test_full_queue_is_told_as_a_page(web: Reader, queue: Queue) -> None:
    queue.set_config("max_depth", 1)
    web.submit(new_job(enqueue_page(web, "email")))
    answer = web.send(new_job(enqueue_page(web, "email")))
    assert web.read(answer, 429).alerts
    assert answer.headers["retry-after"] == "1"


# Logging in


def test_login_leads_to_the_page_that_was_wanted(queue: Queue) -> None:
    failing(queue, "j1")
    with live(create_app(queue, TOKEN, READ_TOKEN)) as address, client(address) as made:
        web = Reader(made)
        login = web.follow(made.get("/jobs?status=failed&q=a%26b"))
        wrong = web.read(web.send(login.form("/login"), changes={"token": "guess"}), 401)
        assert wrong.alerts == ["Wrong token."]
        assert wrong.form("/login").value("token") == ""
        page = web.submit(wrong.form("/login"), changes={"token": TOKEN})
        assert page.address == "/jobs?status=failed&q=a%26b"
        left = web.submit(page.form("/logout"))
        assert left.title == "Log in · Holdfast"
        assert made.get("/jobs").status_code == 303


@pytest.mark.parametrize("next", ["//evil.example", "https://evil.example", "/\\evil", "evil"])
def test_login_never_leads_to_another_site(queue: Queue, next: str) -> None:
    with live(create_app(queue, TOKEN)) as address, client(address) as made:
        web = Reader(made)
        login = web.open(f"/login?{urlencode({'next': next})}")
        answer = web.send(login.form("/login"), changes={"token": TOKEN, "next": next})
        assert answer.headers["location"] == "/"


def test_form_too_large_or_unreadable_is_a_page(web: Reader) -> None:
    token = form_token(web.client)
    big = post(web.client, "/controls/pause", {"form_token": token, "x": "x" * 70_000})
    assert web.read(big, 413).heading in ("Request Entity Too Large", "Content Too Large")
    headers = {"content-type": KIND}
    for body in (b"form_token=\xff", b"form_token=%ff", b"a=b&" * 2_001):
        answer = web.client.post("/controls/pause", content=body, headers=headers)
        assert web.read(answer, 400).alerts == ["The form or the URL can't be parsed."]


def test_programs_that_send_a_form_are_told_in_json(api: httpx.Client) -> None:
    answer = api.post("/controls/pause", content="", headers={"content-type": KIND, "accept": "*/*"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (403, "stale_form")
    answer = api.post("/controls/pause", json={}, headers={"accept": "*/*"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
