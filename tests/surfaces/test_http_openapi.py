"""The OpenAPI document against the server it describes: whatever is sent, the answer is one that it names."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel
from schemathesis import Case, GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.schemas import BaseSchema
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from holdfast import Queue
from holdfast.jobs import install
from holdfast.store.open import store_of
from holdfast.store.records import Demand, TypeRecord, WorkerRecord
from holdfast.web import create_app
from tests.surfaces.live import live

pytestmark = pytest.mark.slow

EXAMPLES = 25
FEWER = 2
"""How many requests are made of each operation: without tokens, and with each of the tokens there are."""

TOKEN, READ_TOKEN = "the-token-that-may-change", "the-token-that-may-look"
FULL = {"Authorization": f"Bearer {TOKEN}"}
TIMEOUT = 20.0

OPERATIONS = [
    "POST /api/tasks",
    "GET /api/tasks",
    "DELETE /api/tasks",
    "POST /api/tasks/batch",
    "POST /api/tasks/bulk",
    "GET /api/tasks/stats",
    "POST /api/tasks/pause",
    "POST /api/tasks/resume",
    "POST /api/tasks/rate-limit",
    "GET /api/tasks/{id}",
    "DELETE /api/tasks/{id}",
    "POST /api/tasks/{id}/retry",
    "POST /api/tasks/{id}/cancel",
    "GET /api/tasks/{id}/why",
    "GET /api/tasks/{id}/logs",
    "GET /api/workers",
    "GET /api/types",
    "GET /api/report",
    "GET /api/reconcile",
    "POST /api/reconcile",
    "GET /api/config",
    "GET /api/config/{key}",
    "PUT /api/config/{key}",
    "DELETE /api/config/{key}",
    "GET /api/events",
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
]

OPEN = {"GET /healthz", "GET /readyz"}
"""What wants no token."""

IDS = ["done1", "dead1", "gone1", "wait1", "later1", "retry1", "command1", "claimed1"]
KEYS = ["max_attempts", "lease_seconds", "backoff_strategy", "max_running", "job_timeout", "max_retries"]
KNOWN: dict[str, list[str]] = {
    "GET /api/tasks/{id}/logs": ["command1", "done1"],
    "POST /api/tasks/{id}/retry": ["dead1", "gone1", "retry1", "claimed1"],
    "PUT /api/config/{key}": ["max_attempts", "max_running", "max_retries"],
}
"""What is there, where an operation is about one thing; chance would find it never."""

BODIES: dict[str, list[Any]] = {
    "POST /api/tasks/{id}/retry": [{"payload": {"a": 2}}, {"payload": None}, {}],
    "PUT /api/config/{key}": [{"value": 7}, {"value": "9"}, {"value": 5, "type": "echo"}],
    "POST /api/tasks/bulk": [
        {"action": "retry", "ids": ["dead1", "done1", "nobody"]},
        {"action": "cancel", "filter": {"status": ["pending", "retrying"]}, "expectedCount": 2},
        {"action": "delete", "filter": {"status": "completed", "type": "echo"}, "expectedCount": 1},
        {
            "action": "retry",
            "filter": {"error": "RuntimeError: it broke", "search": "dead"},
            "expectedCount": 1,
        },
        {"action": "retry", "filter": {"since": "2026-01-15T10:00:00Z", "until": "soon"}, "expectedCount": 1},
    ],
}
"""Bodies that say something, for the same reason."""

QUERIES: dict[str, list[dict[str, Any]]] = {
    "GET /api/tasks": [
        {"search": "dead payload.a:1"},
        {"search": "1", "limit": 1, "full": "true"},
        {"search": "1", "sort": "finished", "order": "asc", "limit": 1},
        {"error": "RuntimeError: it broke", "sort": "priority"},
        {"since": "2026-01-15T10:00:00Z", "until": "9999-12-31T23:59:59Z", "status": ["failed", "done"]},
        {"sort": "priority", "cursor": "-3.9"},
        {"sort": "finished", "cursor": "1"},
    ],
}
"""And queries."""

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]


class Part(BaseModel):
    name: str
    size: Literal["small", "large"] = "small"
    parts: list[Part] = []


def echo(payload: object) -> object:
    return payload


def fail(payload: object) -> None:
    raise RuntimeError("it broke")


def send_email(to: str, subject: str, copies: int = 1) -> None: ...
def assemble(whole: Part, spare: Part | None = None) -> None: ...


def register(queue: Queue) -> None:
    """Handlers with and without a schema, one with definitions that refer to themselves, and a lane."""
    install(queue)
    queue.register("echo", echo)
    queue.register("bad", fail)
    queue.job(send_email)
    queue.job(assemble)


@pytest.fixture(scope="module")
def furnished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home whose database has jobs of every kind, and the output of a command."""
    home = tmp_path_factory.mktemp("furnished")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("QUEUECTL_HOME", str(home))
        with Queue(f"sqlite:///{home / 'queue.db'}", defaults={"backoff_factor": 3600}) as queue:
            register(queue)
            queue.enqueue("echo", {"a": 1, "password": "secret"}, id="done1", key="k1", key_for=3600)
            queue.enqueue("bad", {"a": 1}, id="dead1", max_attempts=1)
            queue.enqueue("bad", {"a": 1}, id="retry1", timeout=5)
            queue.enqueue("shell", {"command": "echo hello"}, id="command1")
            queue.drain()
            queue.enqueue("echo", {"a": 1}, id="gone1", delay=100)
            queue.cancel("gone1")
            queue.enqueue("nobody:knows", {"a": [1.5, None]}, id="wait1", key="taken", priority=-3)
            queue.enqueue("echo", {"a": 1}, id="later1", delay=3600)
            queue.set_config("max_attempts", 5, type="echo")
            queue.pause(type="bad")
            _hold(queue, "claimed1")
            assert {job.id: job.status for job in queue.jobs()} == {
                "done1": "completed",
                "dead1": "failed",
                "retry1": "scheduled",
                "command1": "completed",
                "gone1": "cancelled",
                "wait1": "pending",
                "later1": "scheduled",
                "claimed1": "processing",
            }
    with sqlite3.connect(home / "queue.db") as connection:
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return home


def _hold(queue: Queue, id: str) -> None:
    """A job in the hands of a worker, as far as the database knows."""
    queue.enqueue("echo:held", {"a": 1}, id=id)
    record = TypeRecord(type="elsewhere:lane", executor="thread", schema={"type": "object"})
    worker = WorkerRecord(
        id="w1", host="here", pid=1, state="running", concurrency=4, types=("echo:held", "elsewhere:lane")
    )
    store_of(queue).register_worker(worker, [record])
    demand = Demand(type="echo:held", limit=1, max_attempts=3)
    claimed = store_of(queue).claim_jobs("w1", [demand], limit=1, lease_seconds=3600)
    assert [claim.id for claim in claimed.claims] == [id]


@pytest.fixture
def stocked(home: Path, furnished: Path) -> Iterator[Queue]:
    """A queue of this test alone with those jobs."""
    shutil.copytree(furnished, home, dirs_exist_ok=True)
    with Queue(f"sqlite:///{home / 'queue.db'}") as queue:
        register(queue)
        yield queue


Check = Callable[[int, str | None], None]
"""What must hold of an answer's status and the token that was sent."""


def document(address: str) -> dict[str, Any]:
    found: dict[str, Any] = requests.get(f"{address}/openapi.json", headers=FULL, timeout=TIMEOUT).json()
    return found


@pytest.fixture(scope="module")
def schemas() -> dict[str, BaseSchema]:
    """The documents of the servers without and with tokens: to write one takes longer than most tests."""
    return {}


def schema_at(address: str, schemas: dict[str, BaseSchema], kind: str) -> BaseSchema:
    """What the first server of this kind says of itself, asked of this one."""
    if kind not in schemas:
        schemas[kind] = schemathesis.openapi.from_dict(document(address))
        schemas[kind].config.generation.with_security_parameters = False  # tokens are put in by the test
    schemas[kind].config.update(base_url=address)
    return schemas[kind]


def requests_of(schema: BaseSchema, label: str) -> st.SearchStrategy[Case[Any]]:
    """Requests that fit the document and requests that do not; many name something that is there."""
    operation = schema.find_operation_by_label(label)
    assert operation is not None
    kinds = [operation.as_strategy(GenerationMode.POSITIVE)]
    if operation.body or operation.query or operation.headers:
        kinds.append(operation.as_strategy(GenerationMode.NEGATIVE))
    strategy = st.one_of(kinds)
    if "{" in label:
        known = KNOWN.get(label, KEYS if "{key}" in label else IDS)
        strategy = st.builds(_name, strategy, st.sampled_from([*known, *(None for _ in known)]))
    if label in BODIES:
        strategy = st.builds(_fill, strategy, st.sampled_from([*BODIES[label], *(None for _ in range(6))]))
    if label in QUERIES:
        strategy = st.builds(
            _ask_for, strategy, st.sampled_from([*QUERIES[label], *(None for _ in range(7))])
        )
    return strategy.map(_end_at_once) if label == "GET /api/events" else strategy


def _name(case: Case[Any], known: str | None) -> Case[Any]:
    if known is not None:
        case.path_parameters = dict.fromkeys(case.path_parameters, known)
    return case


def _fill(case: Case[Any], body: Any) -> Case[Any]:
    if body is not None:
        case.body, case.query, case.media_type = body, {}, "application/json"
    return case


def _ask_for(case: Case[Any], query: dict[str, Any] | None) -> Case[Any]:
    if query is not None:
        case.query = dict(query)
    return case


def _end_at_once(case: Case[Any]) -> Case[Any]:
    case.query["once"] = "true"
    return case


def explore(
    label: str, schema: BaseSchema, bearers: list[str | None], check: Check, examples: int = EXAMPLES
) -> None:
    """Ask for examples of an operation, always the same ones; the first that is answered wrong is shrunk."""
    asked: list[int] = []

    @settings(
        max_examples=examples,
        derandomize=True,
        database=None,
        deadline=None,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(requests_of(schema, label))
    def ask(case: Case[Any]) -> None:
        for bearer in bearers:
            headers = {} if bearer is None else {"Authorization": bearer}
            answer = case.call(session=session, headers=headers, timeout=TIMEOUT)
            case.validate_response(answer, checks=CHECKS)
            check(answer.status_code, bearer)
            asked.append(answer.status_code)

    with requests.Session() as session:
        ask()
    # Where nothing can be chosen, there is one request to make.
    assert len(asked) in (examples * len(bearers), len(bearers))


def test_the_operations_tried_here_are_those_of_the_document(stocked: Queue) -> None:
    with live(create_app(stocked)) as address:
        paths = document(address)["paths"].items()
    assert sorted(f"{method.upper()} {path}" for path, item in paths for method in item) == sorted(OPERATIONS)


@pytest.mark.parametrize("label", OPERATIONS)
def test_without_a_token_every_answer_is_one_that_the_document_names(
    label: str, stocked: Queue, schemas: dict[str, BaseSchema]
) -> None:
    def check(status: int, _: str | None) -> None:
        assert status not in (401, 408, 429)

    app = create_app(stocked, allow_types=["shell"], needs_workers=False)
    with live(app) as address:
        explore(label, schema_at(address, schemas, "open"), [None], check)


@pytest.mark.parametrize("label", OPERATIONS)
def test_with_a_token_every_answer_is_one_that_the_document_names(
    label: str, stocked: Queue, schemas: dict[str, BaseSchema]
) -> None:
    full, look = f"Bearer {TOKEN}", f"Bearer {READ_TOKEN}"

    def check(status: int, bearer: str | None) -> None:
        is_open = label in OPEN
        assert (status == 401) is (bearer not in (full, look) and not is_open)
        if bearer == look and not label.startswith("GET"):
            assert status == 403

    app = create_app(stocked, TOKEN, READ_TOKEN, needs_workers=False)
    with live(app) as address:
        bearers = [None, "Bearer wrong", look, full]
        explore(label, schema_at(address, schemas, "guarded"), bearers, check, FEWER)
