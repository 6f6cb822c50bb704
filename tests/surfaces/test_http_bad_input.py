"""Good and bad input through Python, HTTP and queuectl: the same verdict everywhere, and the same bytes."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Queue
from holdfast.errors import HoldfastError
from holdfast.web.errors import refusal
from tests.corpus import VALUES, Value, as_python
from tests.surfaces.support import Cli, Ran

pytestmark = pytest.mark.slow

FIELDS = list(dict.fromkeys(value.field for value in VALUES))
COLUMNS = {
    "type": "type",
    "payload": "CAST(payload AS BLOB)",
    "id": "id",
    "priority": "priority",
    "maxAttempts": "max_attempts",
    "timeout": "timeout",
    "runAfter": "run_at",
    "idempotencyKey": "key",
}
OPTIONS = {"maxAttempts": "max_attempts", "runAfter": "run_at", "idempotencyKey": "key", "keyFor": "key_for"}
"""How Python calls them, where that is another name."""

JSON = {"Content-Type": "application/json"}
TOP = ("type", "payload")
PLAIN = {"type": b'"echo"', "payload": b"{}"}

Store = Callable[[Value], int]
"""Tries to store a job with a value; gives the status that HTTP answers, or would."""


@pytest.fixture
def stored(home: Path, queue: Queue) -> Iterator[Callable[[], list[dict[str, Any]]]]:
    """The rows that came since it was last asked, which are taken away."""
    queue.stats()  # makes the tables
    connection = sqlite3.connect(home / "queue.db", isolation_level=None)

    def take() -> list[dict[str, Any]]:
        columns = ", ".join(f"{column} AS '{field}'" for field, column in COLUMNS.items())
        cursor = connection.execute(f"SELECT {columns} FROM holdfast_jobs ORDER BY seq")
        names = [description[0] for description in cursor.description]
        rows = [dict(zip(names, row, strict=True)) for row in cursor]
        connection.execute("DELETE FROM holdfast_jobs")
        return rows

    yield take
    connection.close()


def check_all(field: str, store: Store, stored: Callable[[], list[dict[str, Any]]], jobs: int = 1) -> None:
    """Every value of the field gets its verdict, and is stored as its bytes, or not at all."""
    wrong: dict[str, object] = {}
    for value in (value for value in VALUES if value.field == field):
        status = store(value)
        rows = stored()
        if value.stored is None:
            if (status, rows) != (value.status, []):
                wrong[value.name] = (status, rows)
            continue
        found = [_shown(row[field]) for row in rows[-1:]]
        if (status, len(rows), found) != (201, jobs, [value.stored]):
            wrong[value.name] = (status, len(rows), found)
    assert wrong == {}, wrong


def _shown(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def task_with(value: Value) -> bytes:
    """A task of the HTTP API with the value's text in it, byte for byte."""
    top = dict(PLAIN)
    if value.field in TOP:
        top[value.field] = value.data
    else:
        top["options"] = b'{"%s": %s}' % (value.field.encode(), value.data)
    return b"{" + b", ".join(b'"%s": %s' % (name.encode(), text) for name, text in top.items()) + b"}"


def job_with(value: Value) -> bytes:
    """The same as queuectl takes it, all in one object."""
    fields = {**PLAIN, value.field: value.data}
    return b"{" + b", ".join(b'"%s": %s' % (name.encode(), text) for name, text in fields.items()) + b"}"


def test_the_corpus_is_large_and_has_nothing_twice() -> None:
    assert len({(value.field, value.data) for value in VALUES}) == len(VALUES) >= 150
    assert sum(value.stored is None for value in VALUES) >= 150


# The same verdict and the same bytes everywhere.


@pytest.mark.parametrize("field", FIELDS)
def test_python_takes_and_refuses_what_it_should(
    field: str, queue: Queue, stored: Callable[[], list[dict[str, Any]]]
) -> None:
    def store(value: Value) -> int:
        try:
            made = as_python(value)
        except ValueError:
            return value.status  # there is no such value in Python
        options: dict[str, Any] = {}
        type: Any = "echo"
        payload: Any = {}
        if field == "type":
            type = made
        elif field == "payload":
            payload = made
        elif made is not None or field == "nonsense":
            options[OPTIONS.get(field, field)] = _instant(made) if field == "runAfter" else made
        try:
            queue.enqueue(type, payload, **options)
        except HoldfastError as error:
            return refusal(error).status_code if str(error).isprintable() else 0
        return 201

    check_all(field, store, stored)


def _instant(value: object) -> object:
    """Python takes a datetime where JSON has its text."""
    try:
        return datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError:
        return value


@pytest.mark.parametrize("field", FIELDS)
def test_http_takes_and_refuses_the_same(
    field: str, api: httpx.Client, stored: Callable[[], list[dict[str, Any]]]
) -> None:
    def store(value: Value) -> int:
        return check_answer(api.post("/api/tasks", content=task_with(value), headers=JSON))

    check_all(field, store, stored)


@pytest.mark.parametrize("field", FIELDS)
def test_a_batch_takes_and_refuses_the_same_and_is_stored_whole_or_not_at_all(
    field: str, api: httpx.Client, stored: Callable[[], list[dict[str, Any]]]
) -> None:
    good = b'{"type": "first"}'

    def store(value: Value) -> int:
        body = b'{"tasks": [%s, %s]}' % (good, task_with(value))
        return check_answer(api.post("/api/tasks/batch", content=body, headers=JSON))

    check_all(field, store, stored, jobs=2)


@pytest.mark.parametrize("field", FIELDS)
def test_queuectl_takes_and_refuses_the_same(
    field: str, cli: Cli, stored: Callable[[], list[dict[str, Any]]]
) -> None:
    def store(value: Value) -> int:
        ran = cli("enqueue", job_with(value).decode("utf-8", "surrogateescape"))
        if ran.code == 0:
            return 201
        check_one_line(ran)
        return value.status

    check_all(field, store, stored)


def test_a_retry_with_another_payload_takes_and_refuses_the_same(
    api: httpx.Client, queue: Queue, stored: Callable[[], list[dict[str, Any]]]
) -> None:
    wrong: dict[str, object] = {}
    for value in VALUES:
        if value.field != "payload" or value.text == "null" or "[redacted]" in str(value.text):
            continue  # a retry without a payload, and a secret that stays as it was: tested elsewhere
        queue.enqueue("echo", {"before": 1}, id="job1")
        queue.cancel("job1")
        body = b'{"payload": %s}' % value.data
        status = check_answer(api.post("/api/tasks/job1/retry", content=body, headers=JSON))
        wanted = ('{"before":1}', value.status) if value.stored is None else (value.stored, 200)
        [row] = stored()
        if (_shown(row["payload"]), status) != wanted:
            wrong[value.name] = (status, row)
    assert wrong == {}, wrong


def check_answer(answer: httpx.Response) -> int:
    """An error is one line in its shape; nothing of the server shows. Returns the status."""
    if answer.status_code >= 400:
        error = answer.json()
        assert error.keys() == {"error"}
        assert error["error"].keys() == {"code", "message"}
        message = error["error"]["message"]
        assert message.isprintable(), message
        assert len(message) < 1000, len(message)
        assert "Traceback" not in message
        assert "pydantic" not in message.lower()
    return answer.status_code


def check_one_line(ran: Ran) -> None:
    assert ran.code == 2, ran
    assert ran.out == "", ran
    assert ran.err.startswith("queuectl: "), ran
    assert ran.err.endswith("\n"), ran
    assert ran.err[:-1].isprintable(), ran


# What only a body can be.

GOOD = '{"type": "echo", "payload": {"a": 1}}'
TAKEN_BODIES: list[tuple[bytes, str]] = [
    (GOOD.encode(), "application/json"),
    (GOOD.encode(), "application/json; charset=utf-8"),
    (GOOD.encode(), "Application/JSON"),
    (GOOD.encode(), "application/vnd.example+json"),
    (b"\r\n\t " + GOOD.encode() + b" \n", "application/json"),
    (b'{"payload": {"a": 1}, "type": "echo", "options": {}}', "application/json"),
]
REFUSED_BODIES: list[tuple[bytes, str | None]] = [
    (b"", "application/json"),
    (b"", None),
    (b" ", "application/json"),
    (b"\x00", "application/json"),
    (b"null", "application/json"),
    (b"true", "application/json"),
    (b"5", "application/json"),
    (b'"text"', "application/json"),
    (b"[]", "application/json"),
    (b"{}", "application/json"),
    (b'[{"type": "echo"}]', "application/json"),
    (b'{"payload": {}}', "application/json"),
    (b'{"type": "echo", "nonsense": 1}', "application/json"),
    (b'{"type": "echo", "Payload": {}}', "application/json"),
    (b'{"type": "echo", "": 1}', "application/json"),
    (b'{"type": "echo", "\\u001b[31m": 1}', "application/json"),
    (b'{"type": "echo", "\\ud800": 1}', "application/json"),
    (b'{"type": "echo", "type": "other"}', "application/json"),
    (b'{"type": "echo", "payload": {}, "payload": {}}', "application/json"),
    (b'{"type": "echo", "options": []}', "application/json"),
    (b'{"type": "echo", "options": "x"}', "application/json"),
    (b'{"type": "echo", "options": {"priority": 1, "priority": 1}}', "application/json"),
    (b'{"type": "echo", "options": {"max_attempts": 1}}', "application/json"),
    (b'{"type": "echo", "options": {"delay": 5, "runAfter": "2030-01-31T09:00:00Z"}}', "application/json"),
    (b'{"type": "echo", "status": "completed"}', "application/json"),
    (GOOD.encode() * 2, "application/json"),
    (GOOD.encode()[:-1], "application/json"),
    (GOOD.encode() + b"x", "application/json"),
    (b"\xef\xbb\xbf" + GOOD.encode(), "application/json"),
    (GOOD.encode("utf-16"), "application/json"),
    (GOOD.encode("utf-16-le"), "application/json; charset=utf-16le"),
    (GOOD.encode("utf-32"), "application/json"),
    (GOOD.replace("a", "é").encode("latin-1"), "application/json; charset=latin-1"),
    (b"[" * 50_000, "application/json"),
    (b'{"type":' * 8_000, "application/json"),
    (b"9" * 5000, "application/json"),
    (GOOD.encode(), None),
    (GOOD.encode(), ""),
    (GOOD.encode(), "text/plain"),
    (GOOD.encode(), "application/x-www-form-urlencoded"),
    (GOOD.encode(), "multipart/form-data; boundary=x"),
    (GOOD.encode(), "application/jsonx"),
    (GOOD.encode(), "text/json"),
    (b"type=echo", "application/x-www-form-urlencoded"),
]


def test_a_body_is_taken_whatever_the_white_space_and_the_kind_of_json(
    api: httpx.Client, stored: Callable[[], list[dict[str, Any]]]
) -> None:
    for body, kind in TAKEN_BODIES:
        answer = api.post("/api/tasks", content=body, headers={"Content-Type": kind})
        assert answer.status_code == 201, (body, kind, answer.text)
        assert [row["payload"] for row in stored()] == [b'{"a":1}']


@pytest.mark.parametrize(
    "path", ["/api/tasks", "/api/tasks/batch", "/api/tasks/bulk", "/api/tasks/rate-limit"]
)
def test_a_body_that_is_not_one_json_object_in_utf8_is_refused_everywhere(
    path: str, api: httpx.Client, stored: Callable[[], list[dict[str, Any]]]
) -> None:
    for body, kind in REFUSED_BODIES:
        headers = {} if kind is None else {"Content-Type": kind}
        answer = api.post(path, content=body, headers=headers)
        assert check_answer(answer) == 400, (body[:80], kind, answer.text)
        assert stored() == []


def test_a_payload_that_does_not_fit_its_handler_is_refused_everywhere_naming_the_place(
    api: httpx.Client, queue: Queue, stored: Callable[[], list[dict[str, Any]]]
) -> None:
    def send(to: str, copies: list[int], ratio: float = 1.0) -> None: ...

    queue.job(send)
    misfits: list[tuple[dict[str, Any], str]] = [
        ({}, "to"),
        ({"to": "a"}, "copies"),
        ({"to": 5, "copies": []}, "payload.to"),
        ({"to": "a", "copies": [1, "2"]}, "payload.copies[1]"),
        ({"to": "a", "copies": [1.5]}, "payload.copies[0]"),
        ({"to": "a", "copies": [True]}, "payload.copies[0]"),
        ({"to": "a", "copies": [], "ratio": "x"}, "payload.ratio"),
        ({"to": "a", "copies": [], "stranger": 1}, "stranger"),
        ({"to": None, "copies": []}, "payload.to"),
    ]
    for payload, place in misfits:
        with pytest.raises(HoldfastError) as caught:
            queue.enqueue("send", payload)
        for type in ("send", "send:lane"):
            answer = api.post("/api/tasks", json={"type": type, "payload": payload})
            assert check_answer(answer) == 400, answer.text
            assert answer.json()["error"] == {"code": "invalid_payload", "message": str(caught.value)}
            assert place in str(caught.value)
    assert stored() == []


# Keys may also come in a header.


def test_a_key_in_the_header_gets_the_verdict_of_the_same_key_in_the_body(
    api: httpx.Client, stored: Callable[[], list[dict[str, Any]]]
) -> None:
    tried = 0
    for value in (value for value in VALUES if value.field == "idempotencyKey"):
        key = as_python(value) if isinstance(value.text, str) else None
        if not isinstance(key, str) or key != key.strip() or not key.isprintable():
            continue  # no header can say it
        headers = [(b"Idempotency-Key", key.encode()), (b"Content-Type", b"application/json")]
        answer = api.post("/api/tasks", content=GOOD, headers=headers)
        assert check_answer(answer) == value.status, (key, answer.text)
        keys = [row["idempotencyKey"] for row in stored()]
        assert keys == ([] if value.stored is None else [value.stored])
        tried += 1
    assert tried >= 5


# Sizes.


def test_a_payload_of_the_limit_is_taken_however_it_is_escaped_and_one_byte_more_is_not(
    api: httpx.Client, queue: Queue, stored: Callable[[], list[dict[str, Any]]]
) -> None:
    queue.set_config("max_payload_bytes", 2000)
    for letter in ("x", "é", "😀"):
        size = len(letter.encode())
        text = letter * ((2000 - 8) // size)
        for payload, status in (({"a": text}, 201), ({"a": text + letter}, 413)):
            plain = json.dumps({"type": "echo", "payload": payload}, ensure_ascii=False)
            escaped = json.dumps({"type": "echo", "payload": payload}, indent=4)
            for body in (plain, escaped):
                answer = api.post("/api/tasks", content=body.encode(), headers=JSON)
                assert check_answer(answer) == status, (letter, len(body), answer.text)
    assert len(stored()) == 6
