"""Jobs over HTTP, field by field: enqueue, list, look, retry, cancel, delete, batch and bulk."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Context, Fail, Job, Queue
from holdfast.jobs import install
from holdfast.store.open import store_of
from holdfast.testing import MovableClock
from holdfast.web import create_app
from holdfast.web.api import tasks as tasks_module
from tests.conformance.steps import OUTCOMES, claim_one, finish
from tests.support import both_engines, unsynced
from tests.surfaces.answers import NOW, at, got, item, refused, task
from tests.surfaces.live import client, live

pytestmark = pytest.mark.slow

UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
FUTURE = "2030-01-01T03:00:00+02:00"
"""Which is one hour ahead."""


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(NOW)


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    """The home's queue, on a clock that stands still."""
    with Queue(unsynced(url), clock=clock) as queue:
        yield queue


def add(api: httpx.Client, id: str | None = None, type: str = "echo", **body: Any) -> str:
    """Enqueue a job, which must be accepted; returns its id."""
    options = {**body.pop("options", {}), **({} if id is None else {"id": id})}
    return str(got(api.post("/api/tasks", json={"type": type, "options": options, **body}), 201)["id"])


def stored(queue: Queue, id: str) -> Job:
    job = queue.get(id)
    assert job is not None
    return job


def failed(queue: Queue, id: str, **options: Any) -> None:
    """A job of type `echo` that failed for good at its first attempt."""
    queue.enqueue("echo", options.pop("payload", {}), id=id, **options)
    finish(store_of(queue), claim_one(store_of(queue), "echo"), OUTCOMES["failed for good"])
    assert stored(queue, id).status == "failed"


# POST /api/tasks


def test_enqueue_answers_the_job_and_where_it_is(api: httpx.Client) -> None:
    answer = api.post("/api/tasks", json={"type": "send_email", "payload": {"to": "user@example.com"}})
    body = got(answer, 201)
    assert UUID7.fullmatch(body["id"])
    assert body == {"id": body["id"], "type": "send_email", "status": "pending", "createdAt": at()}
    assert answer.headers["location"] == f"/api/tasks/{body['id']}"
    assert got(api.get(answer.headers["location"])) == task(
        body["id"], "send_email", payload={"to": "user@example.com"}
    )


@both_engines
def test_request_of_the_specification_is_taken_as_it_stands(api: httpx.Client) -> None:
    body = {
        "type": "send_email",
        "payload": {"to": "user@example.com", "subject": "Welcome"},
        "options": {"maxAttempts": 3, "runAfter": "2025-01-15T10:00:00Z"},
    }
    answer = got(api.post("/api/tasks", json=body), 201)
    assert (answer["status"], answer.keys()) == ("pending", {"id", "type", "status", "createdAt"})
    assert got(api.get(f"/api/tasks/{answer['id']}"))["runAfter"] == "2025-01-15T10:00:00Z"


def test_future_run_after_answers_scheduled(api: httpx.Client) -> None:
    answer = api.post("/api/tasks", json={"type": "echo", "options": {"id": "later", "runAfter": FUTURE}})
    assert got(answer, 201) == {"id": "later", "type": "echo", "status": "scheduled", "createdAt": at()}
    assert got(api.get("/api/tasks/later")) == task("later", status="scheduled", runAfter=at(1))


@both_engines
def test_every_option_is_kept(api: httpx.Client) -> None:
    options = {
        "id": "job1",
        "priority": -7,
        "maxAttempts": 9,
        "timeout": "1.5m",
        "runAfter": FUTURE,
        "idempotencyKey": "welcome:42",
        "keyFor": "1d",
    }
    assert add(api, payload={"a": [1, 2.5, None, "ü"]}, options=options) == "job1"
    assert got(api.get("/api/tasks/job1")) == task(
        "job1",
        status="scheduled",
        priority=-7,
        maxAttempts=9,
        timeout=90.0,
        runAfter=at(1),
        idempotencyKey="welcome:42",
        keyFor=86400.0,
        payload={"a": [1, 2.5, None, "ü"]},
    )


def test_null_is_the_same_as_left_out(api: httpx.Client) -> None:
    names = ("priority", "maxAttempts", "timeout", "delay", "runAfter", "idempotencyKey", "keyFor")
    for body in (
        {"type": "echo", "payload": None, "options": None},
        {"type": "echo", "options": {"id": None, **dict.fromkeys(names)}},
    ):
        made = got(api.post("/api/tasks", json=body), 201)["id"]
        assert UUID7.fullmatch(made)
        assert got(api.get(f"/api/tasks/{made}")) == task(made)


def test_durations_may_be_numbers(api: httpx.Client) -> None:
    options = {"timeout": 30, "delay": 0.5, "idempotencyKey": "k", "keyFor": 60}
    made = got(api.get(f"/api/tasks/{add(api, options=options)}"))
    assert (made["status"], made["timeout"], made["keyFor"]) == ("scheduled", 30, 60)
    assert made["runAfter"] == "2030-01-01T00:00:00.500000Z"


@both_engines
def test_payload_comes_back_with_the_digits_it_was_sent_with(api: httpx.Client) -> None:
    sent = '{"n":123456789012345678901234567890,"f":0.1,"e":1.0,"u":"\\u00fc\\ud83d\\ude00","":{}}'
    answer = api.post(
        "/api/tasks",
        content=f'{{"type":"echo","payload":{sent}}}',
        headers={"Content-Type": "application/json; charset=utf-8"},
    )
    text = api.get(f"/api/tasks/{got(answer, 201)['id']}").text
    assert '"payload":{"n":123456789012345678901234567890,"f":0.1,"e":1.0,"u":"ü😀","":{}}' in text


WRONG_OPTIONS: dict[str, Any] = {
    "id reserved": {"id": "stats"},
    "id with a slash": {"id": "a/b"},
    "id empty": {"id": ""},
    "id too long": {"id": "a" * 129},
    "id not text": {"id": 1},
    "priority fraction": {"priority": 1.5},
    "priority text": {"priority": "1"},
    "priority true": {"priority": True},
    "priority too large": {"priority": 2**31},
    "maxAttempts 0": {"maxAttempts": 0},
    "maxAttempts text": {"maxAttempts": "3"},
    "maxAttempts too large": {"maxAttempts": 2**31},
    "timeout 0": {"timeout": 0},
    "timeout negative": {"timeout": -1},
    "timeout true": {"timeout": True},
    "timeout word": {"timeout": "soon"},
    "timeout endless": {"timeout": 10**400},
    "delay negative": {"delay": -1},
    "delay word": {"delay": "5 parsecs"},
    "delay and runAfter": {"delay": 1, "runAfter": FUTURE},
    "runAfter word": {"runAfter": "tomorrow"},
    "runAfter number": {"runAfter": 1893456000},
    "runAfter without zone": {"runAfter": "2030-01-01T00:00:00"},
    "runAfter a day": {"runAfter": "2030-01-01"},
    "runAfter beyond the calendar": {"runAfter": "9999-12-31T23:59:59-10:00"},
    "idempotencyKey empty": {"idempotencyKey": ""},
    "idempotencyKey too long": {"idempotencyKey": "k" * 513},
    "idempotencyKey with a line end": {"idempotencyKey": "a\nb"},
    "idempotencyKey not text": {"idempotencyKey": 5},
    "keyFor alone": {"keyFor": 5},
    "keyFor negative": {"idempotencyKey": "k", "keyFor": -1},
    "keyFor word": {"idempotencyKey": "k", "keyFor": "long"},
    "unknown": {"retries": 3},
    "snake_case": {"max_attempts": 3},
}


def test_each_wrong_option_is_named_and_nothing_is_stored(api: httpx.Client) -> None:
    for name, options in WRONG_OPTIONS.items():
        message = refused(
            api.post("/api/tasks", json={"type": "echo", "options": options}), 400, "invalid_request"
        )
        option = {"unknown": "retries", "snake_case": "max_attempts"}.get(name, name.partition(" ")[0])
        assert option in message, (name, message)
    assert got(api.get("/api/tasks"))["total"] == 0


def test_what_was_sent_is_quoted_as_it_was_sent(api: httpx.Client) -> None:
    problem = "idempotencyKey must be 1 to 512 printable characters, not 'run_at or a timedelta\\n'"
    task = {"type": "echo", "options": {"idempotencyKey": "run_at or a timedelta\n"}}
    assert refused(api.post("/api/tasks", json=task), 400, "invalid_request") == problem
    message = refused(api.post("/api/tasks/batch", json={"tasks": [task]}), 400, "invalid_request")
    assert message == f"tasks[0]: {problem}; nothing was stored"


WRONG_BODIES: dict[str, tuple[str, str]] = {
    "": ("invalid_request", "a JSON body is required"),
    "{": ("invalid_request", "the body is not valid JSON"),
    "[]": ("invalid_request", "the body: must be"),
    "null": ("invalid_request", "a JSON body is required"),
    "{}": ("invalid_request", "type: is required"),
    '{"type": 1}': ("invalid_request", "type: must be a valid string"),
    '{"type": ""}': ("invalid_request", "type:"),
    '{"type": "a b"}': ("invalid_request", "type:"),
    '{"type": "a\\n"}': ("invalid_request", "type:"),
    '{"type": "%s"}' % ("a" * 256): ("invalid_request", "type:"),
    '{"type": "a", "kind": 1}': ("invalid_request", "'kind'"),
    '{"type": "a", "type": "b"}': ("invalid_request", "duplicate key 'type'"),
    '{"type": "a", "payload": []}': ("invalid_request", "payload: must be"),
    '{"type": "a", "options": []}': ("invalid_request", "options: must be"),
    '{"type": "a", "payload": {"x": NaN}}': ("invalid_payload", "payload.x: nan is not JSON"),
    '{"type": "a", "payload": {"x": 1e999}}': ("invalid_payload", "payload.x: "),
    '{"type": "a", "payload": {"x": "\\ud800"}}': ("invalid_payload", "payload.x: contains a lone surrogate"),
    '{"type": "a", "payload": {"x": "\\u0000"}}': ("invalid_payload", "payload.x: contains a NUL"),
    '{"type": "a", "payload": %s}' % ('{"a":' * 65 + "1" + "}" * 65): (
        "invalid_payload",
        "nested more than 64",
    ),
    '{"type": "a", "payload": %s}' % ("[" * 10_000): ("invalid_request", "nested too deeply"),
    '{"type": "a", "payload": {"x": %s}}' % ("9" * 5000): ("invalid_request", "the body is not valid JSON"),
}


def test_each_wrong_body_is_refused_and_nothing_is_stored(api: httpx.Client) -> None:
    for body, (code, words) in WRONG_BODIES.items():
        answer = api.post("/api/tasks", content=body, headers={"Content-Type": "application/json"})
        assert words in refused(answer, 400, code), body[:80]
    as_form = api.post("/api/tasks", data={"type": "echo"})
    assert "Content-Type: application/json" in refused(as_form, 400, "invalid_request")
    not_text = api.post("/api/tasks", content=b"\xff", headers={"Content-Type": "application/json"})
    assert refused(not_text, 400, "invalid_request") == "the body is not UTF-8"
    parameter = api.post("/api/tasks?type=echo", json={"type": "echo"})
    assert "'type'" in refused(parameter, 400, "invalid_request")
    assert got(api.get("/api/tasks"))["total"] == 0


def test_payload_that_does_not_fit_the_handler_is_refused(queue: Queue, api: httpx.Client) -> None:
    @queue.job
    def send_email(to: str) -> None: ...

    for payload, words in (({}, "to"), ({"to": 5}, "payload.to"), ({"to": "a", "cc": "b"}, "cc")):
        answer = api.post("/api/tasks", json={"type": "send_email", "payload": payload})
        assert words in refused(answer, 400, "invalid_payload")
    add(api, type="send_email", payload={"to": "a@b.c"})


def test_strict_queue_refuses_a_type_without_a_handler(home: Path) -> None:
    with (
        Queue(f"sqlite:///{home / 'strict.db'}", strict_types=True) as queue,
        live(create_app(queue)) as address,
        client(address) as api,
    ):
        answer = api.post("/api/tasks", json={"type": "nobody"})
        assert "'nobody'" in refused(answer, 400, "unknown_type")


def test_payload_larger_than_allowed_is_too_large(queue: Queue, api: httpx.Client) -> None:
    queue.set_config("max_payload_bytes", 100)
    add(api, "fits", payload={"x": "a" * 92})
    answer = api.post("/api/tasks", json={"type": "echo", "payload": {"x": "a" * 93}})
    assert refused(answer, 413, "too_large") == "payload: is 101 bytes as JSON; max_payload_bytes is 100"


def test_id_that_exists_is_a_conflict(api: httpx.Client) -> None:
    add(api, "job1", payload={"first": True})
    for payload in ({"first": True}, {"first": False}):
        again = api.post("/api/tasks", json={"type": "echo", "payload": payload, "options": {"id": "job1"}})
        assert refused(again, 409, "id_taken") == "a job with the id 'job1' already exists"
    assert got(api.get("/api/tasks/job1"))["payload"] == {"first": True}


def test_built_in_type_is_refused_unless_it_is_let_in(queue: Queue, api: httpx.Client) -> None:
    for type in ("shell", "shell:media"):
        answer = api.post("/api/tasks", json={"type": type, "payload": {"command": "true"}})
        assert "--allow-type shell" in refused(answer, 403, "type_not_allowed")
    assert queue.count() == 0
    with live(create_app(queue, allow_types=["shell:media"])) as address, client(address) as other:
        add(other, type="shell:media", payload={"command": "true"})
        body = {"type": "shell", "payload": {"command": "true"}}
        refused(other.post("/api/tasks", json=body), 403, "type_not_allowed")


# Idempotency-Key


def keyed(
    api: httpx.Client, key: str, payload: dict[str, Any] | None = None, **options: Any
) -> httpx.Response:
    body = {"type": "echo", "payload": payload or {}, "options": options}
    return api.post("/api/tasks", json=body, headers={b"Idempotency-Key": key.encode()})


@both_engines
def test_repeat_with_the_same_key_answers_200_with_the_first_job(api: httpx.Client) -> None:
    first = keyed(api, "order-1", {"a": 1, "b": 2})
    again = keyed(api, "order-1", {"b": 2, "a": 1}, priority=5)
    assert got(again, 200) == got(first, 201)
    assert again.headers["location"] == first.headers["location"]
    assert got(api.get(first.headers["location"])) == task(
        got(first, 201)["id"], payload={"a": 1, "b": 2}, idempotencyKey="order-1", keyFor=86400.0
    )
    assert got(api.get("/api/tasks"))["total"] == 1


def test_same_key_with_another_payload_is_a_conflict_that_names_the_job(api: httpx.Client) -> None:
    first = got(keyed(api, "order-1", {"a": 1}), 201)["id"]
    message = refused(keyed(api, "order-1", {"a": 2}), 409, "key_taken")
    assert "'order-1'" in message
    assert first in message
    assert got(api.get("/api/tasks"))["total"] == 1


def test_key_of_a_header_is_held_for_24_hours_after_the_job_has_finished(
    jobs: Queue, api: httpx.Client, clock: MovableClock
) -> None:
    first = got(keyed(api, "order-1", {"a": 1}), 201)
    clock.advance(hours=48)
    assert got(keyed(api, "order-1", {"a": 1}), 200) == first  # it has not finished
    assert jobs.drain() == 1
    clock.advance(hours=24, seconds=-1)
    assert got(keyed(api, "order-1", {"a": 1}), 200) == {**first, "status": "completed"}
    refused(keyed(api, "order-1", {"a": 2}), 409, "key_taken")
    clock.advance(seconds=2)
    assert got(keyed(api, "order-1", {"a": 2}), 201)["id"] != first["id"]


def test_key_of_an_option_is_free_when_its_job_has_finished(jobs: Queue, api: httpx.Client) -> None:
    first = add(api, options={"idempotencyKey": "k"})
    again = api.post("/api/tasks", json={"type": "echo", "options": {"idempotencyKey": "k"}})
    assert got(again, 200)["id"] == first
    assert jobs.drain() == 1
    assert add(api, options={"idempotencyKey": "k"}) != first


def test_keys_of_two_types_are_two_keys(api: httpx.Client) -> None:
    first = add(api, type="one", options={"idempotencyKey": "k"})
    assert add(api, type="two", options={"idempotencyKey": "k"}) != first


def test_header_and_option_must_not_differ(api: httpx.Client) -> None:
    message = refused(keyed(api, "one", idempotencyKey="two"), 400, "invalid_request")
    assert "Idempotency-Key" in message
    made = got(keyed(api, "one", idempotencyKey="one", keyFor=60), 201)["id"]
    assert got(api.get(f"/api/tasks/{made}")) == task(made, idempotencyKey="one", keyFor=60.0)
    for wrong in ("", "k" * 513):
        assert "key" in refused(keyed(api, wrong), 400, "invalid_request").lower()


def test_key_is_utf_8(api: httpx.Client) -> None:
    made = got(keyed(api, "заказ-ü-42"), 201)["id"]
    assert got(api.get(f"/api/tasks/{made}"))["idempotencyKey"] == "заказ-ü-42"
    assert got(keyed(api, "заказ-ü-42", idempotencyKey="заказ-ü-42"), 200)["id"] == made


# Too much


@both_engines
def test_full_queue_answers_429_and_when_to_come_again(queue: Queue, api: httpx.Client) -> None:
    queue.set_config("max_depth", 2, type="echo")
    add(api, "one")
    assert got(keyed(api, "k"), 201)
    full = api.post("/api/tasks", json={"type": "echo"})
    message = refused(full, 429, "queue_full")
    assert message == "type 'echo' has 2 waiting jobs, the most that max_depth allows"
    assert int(full.headers["retry-after"]) >= 1
    assert got(keyed(api, "k"), 200)  # which adds nothing
    add(api, type="other")
    batch = api.post("/api/tasks/batch", json={"tasks": [{"type": "other"}, {"type": "echo"}]})
    assert refused(batch, 429, "queue_full").startswith("tasks[1]: ")
    assert int(batch.headers["retry-after"]) >= 1
    assert got(api.get("/api/tasks"))["total"] == 3


def test_enqueue_rate_answers_429_and_counts_batches(queue: Queue) -> None:
    with live(create_app(queue, enqueue_rate=0.01)) as address, client(address) as api:
        batch = api.post("/api/tasks/batch", json={"tasks": [{"type": "echo"}] * 10})
        assert got(batch, 201)["count"] == 10
        for path, body in (
            ("/api/tasks", {"type": "echo"}),
            ("/api/tasks/batch", {"tasks": [{"type": "echo"}]}),
        ):
            answer = api.post(path, json=body)
            assert refused(answer, 429, "rate_limited") == "rate limit exceeded: 0.01 jobs per second"
            assert 900 <= int(answer.headers["retry-after"]) <= 1000  # ten jobs, a hundred seconds each
        assert got(api.get("/api/tasks"))["total"] == 10  # looking is not limited


def test_enqueue_rate_holds_for_each_address(queue: Queue) -> None:
    app = create_app(queue, enqueue_rate=0.01)

    async def post(address: str) -> int:
        transport = httpx.ASGITransport(app, client=(address, 50_000))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as api:
            return (await api.post("/api/tasks", json={"type": "echo"})).status_code

    async def post_all() -> list[int]:
        return [await post(address) for address in ("127.0.0.1", "127.0.0.1", "127.0.0.2", "127.0.0.2")]

    try:
        assert asyncio.run(post_all()) == [201, 429, 201, 429]
    finally:
        app.state.backend.close()


def test_enqueue_rate_holds_for_a_token_however_it_is_written(queue: Queue) -> None:
    with live(create_app(queue, token="open sesame, open", enqueue_rate=0.01)) as address:
        for spaces, status in ((" ", 201), (" ", 429), ("  ", 429), ("   ", 429)):
            with client(address, headers={"Authorization": f"Bearer{spaces}open sesame, open"}) as api:
                assert api.post("/api/tasks", json={"type": "echo"}).status_code == status
        with client(address) as browser:  # a login is the token's, too
            assert browser.post("/login", data={"token": "open sesame, open"}).status_code == 303
            assert got(browser.get("/api/tasks"))["total"] == 1
            refused(browser.post("/api/tasks", json={"type": "echo"}), 429, "rate_limited")
    assert queue.count() == 1


# GET /api/tasks


def listed(api: httpx.Client, query: str = "") -> list[str]:
    return [job["id"] for job in got(api.get(f"/api/tasks{query}"))["tasks"]]


def test_empty_list(api: httpx.Client) -> None:
    assert got(api.get("/api/tasks")) == {
        "tasks": [],
        "total": 0,
        "totalIsCapped": False,
        "limit": 50,
        "offset": 0,
        "nextCursor": None,
    }


def test_list_is_newest_first_and_its_items_are_brief(api: httpx.Client) -> None:
    add(api, "b", payload={"x": 1}, options={"priority": 5})
    add(api, "a", type="other")
    assert got(api.get("/api/tasks")) == {
        "tasks": [item("a", "other"), item("b", priority=5)],
        "total": 2,
        "totalIsCapped": False,
        "limit": 50,
        "offset": 0,
        "nextCursor": None,
    }


@both_engines
def test_full_list_has_everything(queue: Queue, api: httpx.Client) -> None:
    failed(queue, "dead", payload={"x": 1, "password": "sesame"})
    add(api, "new")
    page = got(api.get("/api/tasks?full=true"))
    assert page["tasks"] == [got(api.get("/api/tasks/new")), got(api.get("/api/tasks/dead"))]
    assert page["tasks"][1]["payload"] == {"x": 1, "password": "[redacted]"}
    assert len(page["tasks"][1]["errors"]) == 1
    assert got(api.get("/api/tasks?full=false"))["tasks"][0] == item("new")


@pytest.fixture
def one_of_each(queue: Queue) -> Queue:
    """Jobs of type `echo`, each called as what it is; and one of another type."""
    store = store_of(queue)
    queue.enqueue("echo", id="retrying")
    finish(store, claim_one(store, "echo"), OUTCOMES["failed"])
    failed(queue, "failed")
    queue.enqueue("echo", id="completed")
    finish(store, claim_one(store, "echo"), OUTCOMES["completed"])
    queue.enqueue("echo", id="cancelled")
    queue.cancel("cancelled")
    queue.enqueue("echo", id="processing")
    claim_one(store, "echo")
    queue.enqueue("echo", id="scheduled", delay=3600)
    queue.enqueue("echo", id="pending")
    queue.enqueue("other", id="other")
    return queue


def test_list_takes_filters_and_repeats_them(one_of_each: Queue, api: httpx.Client) -> None:
    expected = {
        "status=failed": ["failed"],
        "status=dead": ["failed"],
        "status=pending": ["other", "pending"],
        "status=queued": ["other", "pending"],
        "status=processing": ["processing"],
        "status=claimed": ["processing"],
        "status=completed": ["completed"],
        "status=done": ["completed"],
        "status=cancelled": ["cancelled"],
        "status=scheduled": ["scheduled", "retrying"],
        "status=retrying": ["retrying"],
        "status=failed&status=pending": ["other", "pending", "failed"],
        "status=retrying&status=done": ["completed", "retrying"],
        "status=failed&status=dead": ["failed"],
        "type=other": ["other"],
        "type=echo&status=pending": ["pending"],
        "type=other&status=failed": [],
        "type=nobody": [],
        "limit=2": ["other", "pending"],
        "limit=1&offset=2": ["scheduled"],
        "offset=8": [],
        "offset=2147483647": [],
    }
    totals = {"limit=2": 8, "limit=1&offset=2": 8, "offset=8": 8, "offset=2147483647": 8}
    for query, ids in expected.items():
        page = got(api.get(f"/api/tasks?{query}"))
        assert [job["id"] for job in page["tasks"]] == ids, query
        assert page["total"] == totals.get(query, len(ids)), query
    page = got(api.get("/api/tasks?limit=1&offset=2"))
    assert (page["limit"], page["offset"]) == (1, 2)


def test_each_wrong_list_parameter_is_refused(api: httpx.Client) -> None:
    wrong = {
        "limit=0": "limit: ",
        "limit=-1": "limit: ",
        "limit=101": "limit: must be less than or equal to 100",
        "limit=1000000000": "limit: must be less than or equal to 100",
        "limit=ten": "limit: ",
        "limit=": "limit: ",
        "limit=1.5": "limit: ",
        "offset=-1": "offset: ",
        "offset=2147483648": "offset: ",
        "offset=x": "offset: ",
        "cursor=x": "cursor must be",
        "cursor=": "cursor must be",
        "cursor=-1": "cursor must be",
        "cursor=99999999999999999999": "cursor must be",
        "cursor=5&offset=1": "cursor and offset are mutually exclusive",
        "status=nope": "'nope' is not a status; allowed: scheduled, pending",
        "status=": "'' is not a status",
        "status=failed&status=nope": "'nope' is not a status",
        "full=maybe": "full: ",
        "state=failed": "unknown parameter 'state'; allowed: cursor, error, full, group, limit, offset, ",
    }
    for query, words in wrong.items():
        assert words in refused(api.get(f"/api/tasks?{query}"), 400, "invalid_request"), query
    for limit in (1, 100):
        assert got(api.get(f"/api/tasks?limit={limit}"))["limit"] == limit


def test_cursor_walks_through_every_job_once(queue: Queue, api: httpx.Client) -> None:
    ids = [job.id for job in queue.enqueue_many("echo", [{}] * 1000)]
    seen: list[str] = []
    cursor, pages = "", 0
    while pages < 20:
        page = got(api.get(f"/api/tasks?limit=100{cursor}"))
        assert (page["total"], page["offset"], page["limit"]) == (1000, 0, 100)
        seen += [job["id"] for job in page["tasks"]]
        pages += 1
        if page["nextCursor"] is None:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert seen == ids[::-1]
    assert pages == 10
    by_offset = got(api.get("/api/tasks?limit=100&offset=900"))
    assert [job["id"] for job in by_offset["tasks"]] == seen[900:]
    assert by_offset["nextCursor"] is None


@both_engines
def test_cursor_misses_nothing_while_jobs_are_deleted_and_added(queue: Queue, api: httpx.Client) -> None:
    ids = [job.id for job in queue.enqueue_many("echo", [{}] * 1000)]
    for id in ids[::5]:
        queue.cancel(id)
    walk, stays = ids[::-1], {id for place, id in enumerate(ids) if place % 5}
    seen: list[str] = []
    cursor = ""
    for turn in range(20):
        page = got(api.get(f"/api/tasks?limit=90{cursor}"))
        seen += [job["id"] for job in page["tasks"]]
        # One that was shown, the last one shown, and some that are still to come go; others come.
        for id in {walk[turn * 5 + 4], *(id for id in walk[turn * 100 : turn * 100 + 300 : 50])}:
            if id not in stays and queue.get(id) is not None:
                queue.delete(id)
        queue.enqueue_many("echo", [{}] * 10)
        if page["nextCursor"] is None:
            break
        cursor = f"&cursor={page['nextCursor']}"
    assert len(seen) == len(set(seen))
    assert stays <= set(seen) <= set(ids)
    assert seen == [id for id in walk if id in set(seen)]


def test_full_page_of_large_jobs_ends_early_and_the_next_goes_on(
    queue: Queue, api: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks_module, "LARGEST_PAGE", 10_000)
    ids = [job.id for job in queue.enqueue_many("echo", [{"x": "a" * 4000}] * 5)]
    first = got(api.get("/api/tasks?full=true"))
    second = got(api.get(f"/api/tasks?full=true&cursor={first['nextCursor']}"))
    third = got(api.get(f"/api/tasks?full=true&cursor={second['nextCursor']}"))
    pages = [[job["id"] for job in page["tasks"]] for page in (first, second, third)]
    assert pages == [ids[:2:-1], ids[2:0:-1], ids[:1]]
    assert (first["limit"], first["total"], third["nextCursor"]) == (50, 5, None)
    monkeypatch.setattr(tasks_module, "LARGEST_PAGE", 10)
    assert len(got(api.get("/api/tasks?full=true"))["tasks"]) == 1


def test_cursor_keeps_to_the_filter(queue: Queue, api: httpx.Client) -> None:
    queue.enqueue_many("echo", [{}] * 5)
    queue.enqueue_many("other", [{}] * 5)
    queue.enqueue("echo", id="last", delay=60)
    first = got(api.get("/api/tasks?type=echo&status=pending&limit=3"))
    second = got(api.get(f"/api/tasks?type=echo&status=pending&limit=3&cursor={first['nextCursor']}"))
    assert (len(first["tasks"]), len(second["tasks"]), second["nextCursor"]) == (3, 2, None)
    assert {job["type"] for job in first["tasks"] + second["tasks"]} == {"echo"}
    assert second["total"] == 5


def test_total_is_exact_to_10_000_and_then_capped(queue: Queue, api: httpx.Client) -> None:
    queue.enqueue_many("echo", [{}] * 10_000)
    page = got(api.get("/api/tasks?limit=1"))
    assert (page["total"], page["totalIsCapped"]) == (10_000, False)
    queue.enqueue("echo", id="one-more")
    for query in ("limit=1", "limit=1&status=pending", "limit=1&type=echo&status=pending&status=retrying"):
        page = got(api.get(f"/api/tasks?{query}"))
        assert (page["total"], page["totalIsCapped"], page["tasks"][0]["id"]) == (10_000, True, "one-more")
    deepest = got(api.get("/api/tasks?offset=10000"))
    assert (len(deepest["tasks"]), deepest["offset"], deepest["nextCursor"]) == (1, 10_000, None)


# GET /api/tasks/{id}


@both_engines
def test_task_in_every_state(one_of_each: Queue, api: httpx.Client) -> None:
    ran: dict[str, Any] = {"attempts": 1, "version": 1, "lastAttemptAt": at()}
    no_route = {
        "attempt": 1,
        "startedAt": at(),
        "finishedAt": at(),
        "worker": "worker",
        "error": "OSError: no route",
        "traceback": None,
    }
    no_user = {**no_route, "error": "OSError: no such user"}
    expected = {
        "scheduled": task("scheduled", status="scheduled", runAfter=at(1)),
        "pending": task("pending"),
        "processing": task(
            "processing", status="processing", workerId="worker", leaseExpiresAt=at(seconds=30), **ran
        ),
        "completed": task("completed", status="completed", result={"sent": True}, completedAt=at(), **ran),
        "failed": task(
            "failed", status="failed", error=no_user["error"], errors=[no_user], completedAt=at(), **ran
        ),
        "cancelled": task("cancelled", status="cancelled", completedAt=at()),
        "retrying": task(
            "retrying",
            status="scheduled",
            error=no_route["error"],
            errors=[no_route],
            nextRetryAt=at(seconds=10),
            **ran,
        ),
    }
    assert {id: got(api.get(f"/api/tasks/{id}")) for id in expected} == expected


@both_engines
def test_history_of_a_failed_job_has_an_entry_for_each_attempt(
    jobs: Queue, api: httpx.Client, clock: MovableClock
) -> None:
    jobs.set_config("backoff_strategy", "fixed")
    jobs.set_config("backoff_factor", 10)
    jobs.set_config("backoff_jitter", 0)
    add(api, "dead", type="bad", options={"maxAttempts": 2})
    assert jobs.drain() == 1
    waiting = got(api.get("/api/tasks/dead"))
    assert (waiting["status"], waiting["nextRetryAt"]) == ("scheduled", at(seconds=10))
    clock.advance(10)
    assert jobs.drain() == 1
    body = got(api.get("/api/tasks/dead"))
    first, second = body["errors"]
    assert first.keys() == {"attempt", "startedAt", "finishedAt", "worker", "error", "traceback"}
    assert (first["attempt"], first["startedAt"], first["finishedAt"]) == (1, at(), at())
    assert (second["attempt"], second["startedAt"], second["finishedAt"]) == (
        2,
        at(seconds=10),
        at(seconds=10),
    )
    for entry in (first, second):
        assert entry["error"] == "RuntimeError: it broke"
        assert 'raise RuntimeError("it broke")' in entry["traceback"]
        assert UUID7.fullmatch(entry["worker"])
    assert body == task(
        "dead",
        "bad",
        "failed",
        attempts=2,
        maxAttempts=2,
        version=2,
        error="RuntimeError: it broke",
        errors=[first, second],
        updatedAt=at(seconds=10),
        lastAttemptAt=at(seconds=10),
        completedAt=at(seconds=10),
    )


@pytest.mark.process
def test_failed_command_has_its_exit_code_and_the_tail_of_its_output(queue: Queue, api: httpx.Client) -> None:
    install(queue)
    queue.enqueue("shell", {"command": "echo lost; exit 3"}, id="command", max_attempts=1)
    assert queue.drain() == 1
    [entry] = got(api.get("/api/tasks/command"))["errors"]
    assert entry.keys() == {
        "attempt", "startedAt", "finishedAt", "worker", "error", "traceback", "exitCode", "tail",
    }  # fmt: skip
    assert (entry["exitCode"], entry["tail"], entry["error"]) == (
        3,
        "lost\n",
        "CommandFailed: exit code 3: lost",
    )


@both_engines
def test_progress_result_and_parent_are_shown(queue: Queue, api: httpx.Client) -> None:
    def parent(payload: object, ctx: Context) -> dict[str, object]:
        ctx.progress(0.25, "a quarter")
        ctx.enqueue("child", {"n": 1}, id="child")
        seen.update(got(api.get("/api/tasks/parent")))
        return {"messageId": "abc123"}

    seen: dict[str, Any] = {}
    queue.register("parent", parent)
    add(api, "parent", type="parent")
    assert queue.drain() == 1
    assert (seen["status"], seen["progress"]) == ("processing", {"fraction": 0.25, "message": "a quarter"})
    body = got(api.get("/api/tasks/parent"))
    assert (body["status"], body["result"], body["error"]) == ("completed", {"messageId": "abc123"}, None)
    assert got(api.get("/api/tasks/child")) == task("child", "child", payload={"n": 1}, parentId="parent")


SECRET = {
    "to": "a@b.c",
    "password": "sesame",
    "apiKey": "k-1",
    "nested": [{"headers": {"Authorization": "Bearer x", "Accept": "*/*"}}],
    "db_password": "",
    "token": None,
    "tokens_used": 7,
    "author": "me",
}
SHOWN = {
    "to": "a@b.c",
    "password": "[redacted]",
    "apiKey": "[redacted]",
    "nested": [{"headers": {"Authorization": "[redacted]", "Accept": "*/*"}}],
    "db_password": "",
    "token": None,
    "tokens_used": "[redacted]",
    "author": "me",
}


def test_secrets_in_payload_and_result_are_redacted(jobs: Queue, api: httpx.Client) -> None:
    add(api, "secret", payload=SECRET)
    assert jobs.drain() == 1
    assert stored(jobs, "secret").result == SECRET
    for answer in (
        got(api.get("/api/tasks/secret")),
        got(api.get("/api/tasks?full=true"))["tasks"][0],
    ):
        assert answer["payload"] == SHOWN
        assert answer["result"] == SHOWN
    text = api.get("/api/tasks/secret").text + api.get("/api/tasks?full=true").text
    assert not [word for word in ("sesame", "k-1", "Bearer x") if word in text]


def test_secrets_in_details_of_failures_are_redacted(jobs: Queue, api: httpx.Client) -> None:
    def bad(payload: object, ctx: Context) -> None:
        ctx.detail(**SECRET)
        raise Fail("no")

    jobs.unregister("bad")
    jobs.register("bad", bad)
    jobs.enqueue("bad", id="secret")
    jobs.drain()
    [failure] = got(api.get("/api/tasks/secret"))["errors"]
    assert {name: failure[name] for name in SHOWN} == SHOWN
    texts = [api.get(path).text for path in ("/api/tasks/secret", "/api/tasks?full=true", "/jobs/secret")]
    assert "redacted" in texts[-1]
    assert not [word for word in ("sesame", "k-1", "Bearer x") if word in "".join(texts)]


UNKNOWN = (
    ("GET", "/api/tasks/{}"),
    ("DELETE", "/api/tasks/{}"),
    ("POST", "/api/tasks/{}/retry"),
    ("POST", "/api/tasks/{}/cancel"),
    ("GET", "/api/tasks/{}/why"),
    ("GET", "/api/tasks/{}/logs"),
)


@pytest.mark.parametrize("id", ["nope", "%C3%BC", "%00", "a%20b", "%F0%9F%98%80", "%FF", "..", "a" * 2000])
def test_unknown_id_is_not_found(api: httpx.Client, id: str) -> None:
    for method, path in UNKNOWN:
        if id == "..":
            id = "%2E%2E"
        message = refused(api.request(method, path.format(id)), 404, "not_found")
        assert message.startswith(("there is no job '", "there is nothing"))
    message = refused(api.post(f"/api/tasks/{id}/retry", json={"payload": {"a": 1}}), 404, "not_found")
    assert message.startswith("there is no job '")


# Retry


def test_retry_begins_with_the_first_attempt(queue: Queue, api: httpx.Client, clock: MovableClock) -> None:
    failed(queue, "dead", payload={"x": 1})
    clock.advance(60)
    answer = api.post("/api/tasks/dead/retry")
    assert got(answer) == {"id": "dead", "status": "pending", "attempts": 0, "nextRetryAt": None}
    body = got(api.get("/api/tasks/dead"))
    assert body == task(
        "dead",
        payload={"x": 1},
        version=1,
        error=body["error"],
        errors=body["errors"],
        updatedAt=at(minutes=1),
        lastAttemptAt=at(),
    )
    assert len(body["errors"]) == 1


def test_cancelled_and_waiting_for_retry_may_be_retried_and_others_not(
    one_of_each: Queue, api: httpx.Client
) -> None:
    again = {"status": "pending", "attempts": 0, "nextRetryAt": None}
    for id in ("failed", "cancelled", "retrying"):
        assert got(api.post(f"/api/tasks/{id}/retry")) == {"id": id, **again}
    for id in ("completed", "processing", "scheduled", "pending"):
        message = refused(api.post(f"/api/tasks/{id}/retry"), 400, "wrong_state")
        assert message.startswith(f"job {id!r} is {id} and can't be retried")


def test_retry_takes_another_payload_and_keeps_what_is_redacted(queue: Queue, api: httpx.Client) -> None:
    failed(queue, "dead", payload=SECRET)
    shown = got(api.get("/api/tasks/dead"))["payload"]
    edited = {**shown, "to": "x@y.z", "apiKey": "k-2", "author": "[redacted]"}
    got(api.post("/api/tasks/dead/retry", json={"payload": edited}))
    assert stored(queue, "dead").payload == {
        **SECRET,
        "to": "x@y.z",
        "apiKey": "k-2",
        "author": "[redacted]",  # which is not the name of a secret
    }


def test_stored_secret_is_not_sent_to_another_host_by_a_retry(queue: Queue, api: httpx.Client) -> None:
    before = {"url": "https://api.example.com/hook", "headers": {"Authorization": "Bearer x"}}
    failed(queue, "dead", payload=before)
    shown = got(api.get("/api/tasks/dead"))["payload"]
    answer = api.post("/api/tasks/dead/retry", json={"payload": {**shown, "url": "https://evil.example/"}})
    assert "payload.url: can't be changed while a secret shows [redacted]" in refused(
        answer, 400, "invalid_payload"
    )
    assert (stored(queue, "dead").status, stored(queue, "dead").payload) == ("failed", before)
    edited = {**shown, "url": "https://api.example.com/v2/hook"}
    got(api.post("/api/tasks/dead/retry", json={"payload": edited}))
    assert stored(queue, "dead").payload == {**before, "url": "https://api.example.com/v2/hook"}


def test_marker_that_stands_for_no_stored_secret_is_refused(queue: Queue, api: httpx.Client) -> None:
    failed(queue, "dead", payload=SECRET)
    for payload in ({"secret": "[redacted]"}, {"nested": [{"headers": {"Authorization": "[redacted]"}}]}):
        answer = api.post("/api/tasks/dead/retry", json={"payload": payload})
        assert "shows [redacted]" in refused(answer, 400, "invalid_payload")
    assert stored(queue, "dead").payload == SECRET


def test_retry_without_payload_in_its_body_keeps_the_payload(queue: Queue, api: httpx.Client) -> None:
    bodies: dict[str, dict[str, None]] = {"one": {}, "two": {"payload": None}}
    for id in bodies:
        failed(queue, id, payload={"x": 1})
    for id, body in bodies.items():
        got(api.post(f"/api/tasks/{id}/retry", json=body))
        assert (stored(queue, id).status, stored(queue, id).payload) == ("pending", {"x": 1})


def test_retry_with_a_wrong_body_changes_nothing(queue: Queue, api: httpx.Client) -> None:
    @queue.job
    def send_email(to: str) -> None: ...

    send_email.with_options(id="dead").enqueue(to="a@b.c")
    finish(store_of(queue), claim_one(store_of(queue), "send_email"), OUTCOMES["failed for good"])
    before = stored(queue, "dead")
    path = "/api/tasks/dead/retry"
    for body, code in (
        ({"payload": {"to": 5}}, "invalid_payload"),
        ({"payload": []}, "invalid_request"),
        ({"payloads": {}}, "invalid_request"),
        ([], "invalid_request"),
    ):
        refused(api.post(path, json=body), 400, code)
    queue.set_config("max_payload_bytes", 20)
    refused(api.post(path, json={"payload": {"to": "a" * 20}}), 413, "too_large")
    assert stored(queue, "dead") == before


@pytest.mark.process
def test_retry_with_payload_of_a_built_in_type_needs_it_let_in(queue: Queue, api: httpx.Client) -> None:
    install(queue)
    queue.enqueue("shell", {"command": "exit 1"}, id="command", max_attempts=1)
    assert queue.drain() == 1
    body = {"payload": {"command": "true"}}
    refused(api.post("/api/tasks/command/retry", json=body), 403, "type_not_allowed")
    assert stored(queue, "command").payload == {"command": "exit 1"}
    with live(create_app(queue, allow_types=["shell"])) as address, client(address) as other:
        got(other.post("/api/tasks/command/retry", json=body))
    assert stored(queue, "command").payload == {"command": "true"}


def test_retry_of_a_job_whose_key_another_holds_is_a_conflict(queue: Queue, api: httpx.Client) -> None:
    failed(queue, "dead", key="k")
    queue.enqueue("echo", id="holder", key="k")
    assert "'holder'" in refused(api.post("/api/tasks/dead/retry"), 409, "key_taken")
    assert stored(queue, "dead").status == "failed"


# Cancel


def test_waiting_job_is_cancelled_at_once_and_a_running_one_asked(
    one_of_each: Queue, api: httpx.Client
) -> None:
    for id in ("scheduled", "pending", "retrying"):
        body = got(api.post(f"/api/tasks/{id}/cancel"))
        assert body == {"id": id, "status": "cancelled", "cancelRequested": False}
    asked = {"id": "processing", "status": "processing", "cancelRequested": True}
    assert got(api.post("/api/tasks/processing/cancel")) == asked
    assert got(api.post("/api/tasks/processing/cancel")) == asked
    running = got(api.get("/api/tasks/processing"))
    assert (running["status"], running["cancelRequested"]) == ("processing", True)
    for id in ("completed", "failed"):
        message = refused(api.post(f"/api/tasks/{id}/cancel"), 400, "wrong_state")
        assert message.startswith(f"job {id!r} is {id} and can't be cancelled")


@both_engines
def test_running_job_that_is_cancelled_ends_cancelled(
    queue: Queue, api: httpx.Client, start_worker: Any
) -> None:
    started = threading.Event()

    def patient(payload: object, ctx: Context) -> None:
        started.set()
        for _ in range(2000):
            ctx.check()
            threading.Event().wait(0.01)

    queue.register("patient", patient)
    add(api, "job1", type="patient")
    start_worker()
    assert started.wait(60)
    assert got(api.post("/api/tasks/job1/cancel"))["cancelRequested"] is True
    assert queue.wait("job1", timeout=60).status == "cancelled"
    assert got(api.get("/api/tasks/job1"))["completedAt"] == at()


# Delete and clean up


def test_delete_takes_finished_jobs_only(one_of_each: Queue, api: httpx.Client) -> None:
    for id in ("completed", "failed", "cancelled"):
        answer = api.delete(f"/api/tasks/{id}")
        assert (answer.status_code, answer.content) == (204, b"")
        assert "content-type" not in answer.headers
        refused(api.get(f"/api/tasks/{id}"), 404, "not_found")
        refused(api.delete(f"/api/tasks/{id}"), 404, "not_found")
    for id in ("scheduled", "pending", "processing", "retrying"):
        message = refused(api.delete(f"/api/tasks/{id}"), 400, "wrong_state")
        assert message.startswith(f"job {id!r} is ")
        assert "can't be deleted" in message
    assert listed(api) == ["other", "pending", "scheduled", "processing", "retrying"]


def clean(api: httpx.Client, instant: str, **more: str) -> httpx.Response:
    return api.delete("/api/tasks", params={"olderThan": instant, **more})


@both_engines
def test_cleanup_deletes_completed_and_cancelled_jobs_that_finished_before(
    one_of_each: Queue, api: httpx.Client
) -> None:
    assert got(clean(api, at())) == {"deleted": 0}  # they finished at that instant, not before it
    assert got(clean(api, at(seconds=1))) == {"deleted": 2}
    assert listed(api) == ["other", "pending", "scheduled", "processing", "failed", "retrying"]


@pytest.mark.parametrize("word", ["failed", "dead"])
def test_cleanup_of_failed_jobs_deletes_those_instead(
    one_of_each: Queue, api: httpx.Client, word: str
) -> None:
    assert got(clean(api, at(), status=word)) == {"deleted": 0}
    assert got(clean(api, at(seconds=1), status=word)) == {"deleted": 1}
    assert "failed" not in listed(api)
    assert {"completed", "cancelled"} <= set(listed(api))


def test_cleanup_goes_through_many_jobs(queue: Queue, api: httpx.Client, clock: MovableClock) -> None:
    ids = [job.id for job in queue.enqueue_many("echo", [{}] * 1200)]
    assert queue.act("cancel", iter(ids)).done == 1200
    clock.advance(1)
    assert got(clean(api, at(seconds=1))) == {"deleted": 1200}
    assert listed(api) == []


def test_olderthan_may_be_a_duration(one_of_each: Queue, api: httpx.Client, clock: MovableClock) -> None:
    clock.advance(days=7)
    assert got(api.delete("/api/tasks?olderThan=8d")) == {"deleted": 0}
    clock.advance(1)
    assert got(api.delete("/api/tasks?olderThan=7d")) == {"deleted": 2}


def test_olderthan_with_a_plus_that_was_not_escaped_is_taken(one_of_each: Queue, api: httpx.Client) -> None:
    assert got(api.delete("/api/tasks?olderThan=2030-01-01T02:00:00+02:00")) == {"deleted": 0}
    assert got(api.delete("/api/tasks?olderThan=2030-01-01T02:00:01%2B02:00&status=failed")) == {"deleted": 1}
    assert got(api.delete("/api/tasks?olderThan=2030-01-01T02:00:01+02:00")) == {"deleted": 2}


def test_each_wrong_cleanup_is_refused_and_deletes_nothing(one_of_each: Queue, api: httpx.Client) -> None:
    wrong = {
        "": "olderThan: is required",
        "olderThan=": "olderThan must be a time such as",
        "olderThan=yesterday": "olderThan must be a time such as",
        "olderThan=-7d": "olderThan must be a time such as",
        "olderThan=1893456000": "olderThan",
        "olderThan=2031-01-01T00:00:00": "needs a time zone",
        "olderThan=2031-01-01": "needs a time zone",
        "olderThan=2031-13-01T00:00:00Z": "olderThan must be a time such as",
        "olderThan=2031-01-01T00:00:00Z&status=pending": "status must be failed or omitted",
        "olderThan=2031-01-01T00:00:00Z&status=completed": "status must be failed or omitted",
        "olderThan=2031-01-01T00:00:00Z&type=echo": "unknown parameter 'type'",
        "older_than=2031-01-01T00:00:00Z": "unknown parameter 'older_than'",
    }
    for query, words in wrong.items():
        assert words in refused(api.delete(f"/api/tasks?{query}"), 400, "invalid_request"), query
    assert len(listed(api)) == 8


@pytest.mark.parametrize("instant", ["0001-01-01T00:00:00+14:00", "9999-12-31T23:59:59-14:00"])
def test_instant_beyond_the_calendar_is_no_trouble(api: httpx.Client, instant: str) -> None:
    answer = clean(api, instant)
    assert answer.status_code in (200, 400), answer.text


# Batch


@both_engines
def test_batch_stores_all_in_order(api: httpx.Client) -> None:
    tasks = [
        {"type": "echo", "payload": {"n": 1}, "options": {"id": "a"}},
        {"type": "other", "options": {"id": "b", "runAfter": FUTURE}},
    ]
    answer = api.post("/api/tasks/batch", json={"tasks": tasks})
    assert got(answer, 201) == {
        "tasks": [
            {"id": "a", "type": "echo", "status": "pending", "createdAt": at()},
            {"id": "b", "type": "other", "status": "scheduled", "createdAt": at()},
        ],
        "count": 2,
    }
    assert got(api.get("/api/tasks?full=true"))["tasks"] == [
        task("b", "other", "scheduled", runAfter=at(1)),
        task("a", payload={"n": 1}),
    ]


def test_batch_with_one_wrong_job_names_its_place_and_stores_none(queue: Queue, api: httpx.Client) -> None:
    @queue.job
    def send_email(to: str) -> None: ...

    add(api, "taken", payload={"a": 1}, options={"idempotencyKey": "k"})
    queue.set_config("max_payload_bytes", 50, type="small")
    wrong: list[tuple[dict[str, Any], int, str]] = [
        ({"type": "a b"}, 400, "invalid_request"),
        ({"type": "echo", "options": {"priority": "high"}}, 400, "invalid_request"),
        ({"type": "echo", "options": {"runAfter": "soon"}}, 400, "invalid_request"),
        ({"type": "echo", "options": {"keyFor": 5}}, 400, "invalid_request"),
        ({"type": "echo", "options": {"id": "stats"}}, 400, "invalid_request"),
        ({"type": "send_email", "payload": {"to": 5}}, 400, "invalid_payload"),
        ({"type": "small", "payload": {"x": "a" * 50}}, 413, "too_large"),
        ({"type": "echo", "options": {"id": "taken"}}, 409, "id_taken"),
        ({"type": "echo", "options": {"id": "first"}}, 409, "id_taken"),
        ({"type": "echo", "options": {"idempotencyKey": "k"}}, 409, "key_taken"),
    ]
    for last, status, code in wrong:
        tasks = [{"type": "echo", "options": {"id": "first"}}, {"type": "echo"}, last]
        message = refused(api.post("/api/tasks/batch", json={"tasks": tasks}), status, code)
        assert message.startswith(("tasks[2]", "tasks.2.")), (last, message)
    assert listed(api) == ["taken"]


def test_batch_names_the_place_of_a_type_that_is_not_let_in(api: httpx.Client) -> None:
    tasks = [{"type": "echo"}, {"type": "shell", "payload": {"command": "true"}}]
    message = refused(api.post("/api/tasks/batch", json={"tasks": tasks}), 403, "type_not_allowed")
    assert message.startswith("tasks[1]: ")
    assert listed(api) == []


def test_batch_takes_1_to_10_000_jobs(api: httpx.Client) -> None:
    for count in (0, 10_001):
        body = {"tasks": [{"type": "echo"}] * count}
        message = refused(api.post("/api/tasks/batch", json=body), 400, "invalid_request")
        assert message.startswith("tasks: ")
    body = got(api.post("/api/tasks/batch", json={"tasks": [{"type": "echo"}] * 10_000}), 201)
    assert (body["count"], len({job["id"] for job in body["tasks"]})) == (10_000, 10_000)
    assert got(api.get("/api/tasks?limit=1"))["total"] == 10_000
    wrongs: list[Any] = [{}, {"tasks": {}}, {"tasks": [1]}, {"tasks": [{"type": "echo"}], "atomic": True}, []]
    for wrong in wrongs:
        refused(api.post("/api/tasks/batch", json=wrong), 400, "invalid_request")


def test_batch_with_an_idempotency_key_may_be_sent_again(jobs: Queue, api: httpx.Client) -> None:
    tasks: list[dict[str, Any]] = [
        {"type": "echo", "payload": {"n": 1}},
        {"type": "echo", "payload": {"n": 2}, "options": {"idempotencyKey": "own"}},
    ]

    def send(tasks: list[dict[str, Any]]) -> httpx.Response:
        return api.post("/api/tasks/batch", json={"tasks": tasks}, headers={"Idempotency-Key": "batch-1"})

    first = got(send(tasks), 201)
    assert got(send(tasks), 200) == first
    made = got(api.get(f"/api/tasks/{first['tasks'][0]['id']}"))
    assert made["keyFor"] == 86400.0
    assert got(api.get(f"/api/tasks/{first['tasks'][1]['id']}"))["idempotencyKey"] == "own"
    changed = send([{"type": "echo", "payload": {"n": 3}}, tasks[1]])
    assert refused(changed, 409, "key_taken").startswith("tasks[0]: ")
    assert got(api.get("/api/tasks"))["total"] == 2
    longer = got(send([*tasks, {"type": "echo", "payload": {"n": 3}}]), 201)
    assert longer["tasks"][:2] == first["tasks"]
    assert got(api.get("/api/tasks"))["total"] == 3


# Bulk


def bulk(api: httpx.Client, action: str, **order: Any) -> httpx.Response:
    return api.post("/api/tasks/bulk", json={"action": action, **order})


def test_bulk_by_ids_does_what_it_can_and_names_the_rest(one_of_each: Queue, api: httpx.Client) -> None:
    answer = got(bulk(api, "retry", ids=["failed", "nope", "failed", "completed", "cancelled"]))
    why = refused(api.post("/api/tasks/completed/retry"), 400, "wrong_state")
    assert answer == {
        "action": "retry",
        "matched": 4,
        "done": 2,
        "refused": 2,
        "refusals": [
            {"id": "nope", "code": "not_found", "message": "there is no job 'nope'"},
            {"id": "completed", "code": "wrong_state", "message": why},
        ],
    }
    assert stored(one_of_each, "failed").status == stored(one_of_each, "cancelled").status == "pending"


def test_bulk_cancels_and_deletes(one_of_each: Queue, api: httpx.Client) -> None:
    done = {"refused": 0, "refusals": []}
    answer = bulk(api, "cancel", ids=["pending", "scheduled", "processing"], expectedCount=3)
    assert got(answer) == {"action": "cancel", "matched": 3, "done": 3, **done}
    assert got(api.get("/api/tasks/processing"))["cancelRequested"] is True
    answer = bulk(api, "delete", filter={"status": "cancelled"}, expectedCount=3)
    assert got(answer) == {"action": "delete", "matched": 3, "done": 3, **done}
    assert listed(api) == ["other", "processing", "completed", "failed", "retrying"]


@both_engines
@pytest.mark.parametrize(
    ("filter", "ids"),
    [
        ({"status": "dead"}, ["failed"]),
        ({"status": ["failed", "cancelled"]}, ["cancelled", "failed"]),
        ({"status": "retrying", "type": "echo"}, ["retrying"]),
        ({"status": "failed", "type": "other"}, []),
        ({"status": []}, None),
        ({}, None),
    ],
)
def test_bulk_by_filter_takes_what_the_list_shows(
    one_of_each: Queue, api: httpx.Client, filter: dict[str, Any], ids: list[str] | None
) -> None:
    count = 8 if ids is None else len(ids)
    answer = got(bulk(api, "retry", filter=filter, expectedCount=count))
    assert (answer["matched"], answer["done"]) == (count, 3 if ids is None else count)
    retried = {"failed", "cancelled", "retrying"} if ids is None else set(ids)
    assert set(listed(api, "?status=pending")) == {"pending", "other"} | retried


def test_bulk_of_many_lists_the_first_100_refusals(queue: Queue, api: httpx.Client) -> None:
    ids = [job.id for job in queue.enqueue_many("echo", [{}] * 450)]
    answer = got(bulk(api, "delete", filter={"type": "echo"}, expectedCount=450))
    assert (answer["matched"], answer["done"], answer["refused"]) == (450, 0, 450)
    assert [refusal["id"] for refusal in answer["refusals"]] == ids[:-101:-1]
    assert got(bulk(api, "cancel", filter={"status": "pending"}, expectedCount=450))["done"] == 450
    assert got(bulk(api, "delete", ids=ids))["done"] == 450


def test_bulk_does_nothing_when_the_number_is_not_the_expected_one(
    one_of_each: Queue, api: httpx.Client
) -> None:
    for order in (
        {"filter": {"status": "failed"}, "expectedCount": 2},
        {"filter": {"status": "failed"}, "expectedCount": 0},
        {"ids": ["failed"], "expectedCount": 2},
    ):
        message = refused(bulk(api, "delete", **order), 409, "count_differs")
        assert message == f"found 1 job, not {order['expectedCount']}; nothing was done"
    assert stored(one_of_each, "failed").status == "failed"


def test_each_wrong_bulk_is_refused(one_of_each: Queue, api: httpx.Client) -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"action": "delete"}, "pass either ids or filter"),
        ({"action": "delete", "ids": ["failed"], "filter": {}, "expectedCount": 1}, "pass either ids or"),
        ({"action": "delete", "filter": {"status": "failed"}}, "filter requires expectedCount"),
        ({"action": "purge", "ids": ["failed"]}, "action: "),
        ({"ids": ["failed"]}, "action: is required"),
        ({"action": "delete", "ids": []}, "ids: "),
        ({"action": "delete", "ids": ["failed"] * 1001}, "ids: "),
        ({"action": "delete", "ids": "failed"}, "ids: "),
        ({"action": "delete", "ids": [5]}, "ids.0: "),
        ({"action": "delete", "filter": {"status": "nope"}, "expectedCount": 0}, "'nope' is not a status"),
        ({"action": "delete", "filter": {"state": "failed"}, "expectedCount": 1}, "'state'"),
        ({"action": "delete", "filter": {}, "expectedCount": -1}, "expectedCount: "),
        ({"action": "delete", "filter": {}, "expectedCount": "8"}, "expectedCount: "),
        ({"action": "delete", "ids": ["failed"], "force": True}, "'force'"),
    ]
    for body, words in wrong:
        assert words in refused(api.post("/api/tasks/bulk", json=body), 400, "invalid_request"), body
    assert len(listed(api)) == 8


def test_bulk_takes_a_broken_character_for_a_mistake(api: httpx.Client) -> None:
    for action in ("retry", "cancel", "delete"):
        answer = api.post(
            "/api/tasks/bulk",
            content=f'{{"action": "{action}", "ids": ["\\ud800"]}}',
            headers={"Content-Type": "application/json"},
        )
        if answer.status_code == 200:
            assert answer.json()["refused"] == 1
        else:
            refused(answer, 400, "invalid_request")


# Why


@both_engines
def test_why_gives_every_reason(one_of_each: Queue, api: httpx.Client) -> None:
    no_workers = {"code": "no_workers", "text": "no worker is running", "until": None}
    in_one_hour = {"code": "scheduled", "text": "scheduled for 01:00:00 UTC (in 1 h)", "until": at(1)}
    one_of_each.pause("echo")
    paused = {"code": "paused", "text": "echo is paused", "until": None}
    back_off = {
        "code": "back-off",
        "text": "attempt 1 failed (OSError: no route); next attempt at 00:00:10 UTC (in 10 s)",
        "until": at(seconds=10),
    }
    failed = "failed permanently at 00:00:00 UTC (just now) after 1 attempt: OSError: no such user"
    running = "running for 0 s on worker worker, attempt 1"
    expected = {
        "pending": ("pending", [paused, no_workers]),
        "scheduled": ("scheduled", [in_one_hour, paused, no_workers]),
        "retrying": ("scheduled", [back_off, paused, no_workers]),
        "other": ("pending", [no_workers]),
        "processing": ("processing", [{"code": "running", "text": running, "until": None}]),
        "completed": (
            "completed",
            [{"code": "completed", "text": "completed at 00:00:00 UTC (just now), attempt 1", "until": None}],
        ),
        "failed": ("failed", [{"code": "failed", "text": failed, "until": None}]),
        "cancelled": (
            "cancelled",
            [{"code": "cancelled", "text": "cancelled at 00:00:00 UTC (just now)", "until": None}],
        ),
    }
    for id, (status, reasons) in expected.items():
        assert got(api.get(f"/api/tasks/{id}/why")) == {"id": id, "status": status, "reasons": reasons}


# Logs


@pytest.fixture
def command(queue: Queue, home: Path) -> Path:
    """A waiting command, and where its output would be."""
    queue.enqueue("shell", {"command": "true"}, id="command", delay=60)
    folder = home / "logs"
    folder.mkdir()
    return folder / "command.log"


@pytest.mark.process
@both_engines
def test_output_of_a_command_is_json_or_text(queue: Queue, api: httpx.Client) -> None:
    install(queue)
    queue.enqueue("shell", {"command": "printf 'grüße\\n'"}, id="command")
    assert queue.drain() == 1
    answer = got(api.get("/api/tasks/command/logs"))
    log = answer["log"]
    assert answer == {"id": "command", "log": log}
    heading, *rest = log.splitlines()
    assert heading.startswith(f"--- attempt 1, {at()}, worker ")
    assert rest == ["grüße", "--- exit code 0 ---"]
    plain = api.get("/api/tasks/command/logs", headers={"Accept": "text/plain"})
    assert (plain.status_code, plain.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert plain.content == log.encode()


def test_tail_of_a_log_is_so_many_bytes_of_its_end(api: httpx.Client, command: Path) -> None:
    path = "/api/tasks/command/logs"
    assert got(api.get(path)) == {"id": "command", "log": ""}
    command.write_bytes(b"one\ntwo\n\xff\x00end\n")
    assert got(api.get(path)) == {"id": "command", "log": "one\ntwo\n\ufffd\x00end\n"}
    assert got(api.get(f"{path}?tail=4")) == {"id": "command", "log": "end\n"}
    assert got(api.get(f"{path}?tail=2147483647"))["log"].startswith("one\n")
    plain = api.get(f"{path}?tail=4", headers={"Accept": "text/plain"})
    assert (plain.status_code, plain.text) == (200, "end\n")
    for wrong in ("0", "-1", "x", "2147483648", ""):
        assert refused(api.get(f"{path}?tail={wrong}"), 400, "invalid_request").startswith("tail: ")


def test_tail_of_a_log_begins_with_a_whole_character(api: httpx.Client, command: Path) -> None:
    command.write_text("aüü")
    assert got(api.get("/api/tasks/command/logs?tail=3"))["log"] == "ü"


def test_job_without_output_that_is_kept_here_has_no_log(queue: Queue, api: httpx.Client) -> None:
    add(api, "job1")
    message = refused(api.get("/api/tasks/job1/logs"), 404, "not_found")
    assert message.endswith("only the output of shell jobs is stored")
    queue.enqueue("shell", {"command": "true"}, id="elsewhere")
    claim_one(store_of(queue), "shell")
    message = refused(api.get("/api/tasks/elsewhere/logs"), 404, "not_found")
    assert message.startswith("the output of job 'elsewhere' is not on this machine")
