"""Reconciliation over HTTP: the report, one at a time, whoever leaves or stops; and who may ask."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from holdfast import Queue
from holdfast.errors import StoreUnavailable
from holdfast.events import ReconciliationFailed
from holdfast.jobs import BUILT_IN, install
from holdfast.reconcile import last_report, reconcile
from holdfast.store.open import store_of
from holdfast.testing import MovableClock
from holdfast.web import create_app, reconciler
from holdfast.web.reconciler import Asked, Run
from tests.conformance.steps import everything
from tests.support import both_engines, unsynced, wait_until
from tests.surfaces.answers import NOW, at, got, refused
from tests.surfaces.live import Served, client, live
from tests.surfaces.world import World

pytestmark = pytest.mark.slow

TOKEN, READ_TOKEN = "a token for changes", "a token for looking"


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(NOW)


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    """The home's queue, on a clock that stands still."""
    with Queue(unsynced(url), clock=clock) as queue:
        yield queue


@pytest.fixture
def world(queue: Queue) -> Iterator[World]:
    world = World()
    world.register(queue)
    yield world
    world.let_go()


@pytest.fixture
def app(queue: Queue) -> FastAPI:
    return create_app(queue)


@pytest.fixture
def api(app: FastAPI) -> Iterator[httpx.Client]:
    with live(app) as address, client(address) as made:
        yield made


@pytest.fixture
def orders(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> list[Asked]:
    """What the server was asked for, as soon as whoever asked waits for it."""
    orders: list[Asked] = []
    start = app.state.backend.reconciler.start

    def counted(asked: Asked) -> Run:
        run: Run = start(asked)
        orders.append(asked)
        return run

    monkeypatch.setattr(app.state.backend.reconciler, "start", counted)
    return orders


@pytest.fixture
def beside() -> Iterator[ThreadPoolExecutor]:
    """For requests that are made while others wait."""
    with ThreadPoolExecutor(4) as pool:
        yield pool


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where file jobs may write."""
    folder = tmp_path / "data"
    folder.mkdir()
    monkeypatch.setenv("QUEUECTL_FILE_ROOTS", str(folder))
    return folder


def post(api: httpx.Client, *types: str) -> httpx.Response:
    return api.post("/api/reconcile", json={"types": list(types)}) if types else api.post("/api/reconcile")


def state(api: httpx.Client) -> Any:
    return got(api.get("/api/reconcile"))


# The report.


def test_report_of_file_jobs_written_out(
    queue: Queue, clock: MovableClock, folder: Path, api: httpx.Client
) -> None:
    install(queue)
    for name in ("gone", "changed", "kept"):
        queue.enqueue("create_file", {"path": str(folder / name), "content": name}, id=name)
    queue.enqueue("create_file", {"path": str(folder / "late"), "content": "1"}, id="early")
    queue.drain()
    clock.advance(minutes=1)
    queue.enqueue("create_file", {"path": str(folder / "late"), "content": "2", "overwrite": True}, id="late")
    queue.enqueue("delete_file", {"path": str(folder / "back")}, id="back")
    queue.drain()
    (folder / "gone").unlink()
    (folder / "changed").write_text("otherwise")
    (folder / "back").write_text("again")
    clock.advance(minutes=1)
    before = everything(store_of(queue))
    report = got(post(api))
    assert report.pop("covered") == [
        {"type": "create_file", "completed": 5, "since": at(), "removed": 0},
        {"type": "delete_file", "completed": 1, "since": at(minutes=1), "removed": 0},
    ]
    found = {entry["jobId"]: entry for entry in report.pop("discrepancies")}
    assert found == {
        id: {
            "jobId": id,
            "type": type,
            "subject": f"file {folder / id}",
            "problem": problem,
            "completedAt": at(minutes=minute),
            "isChecked": True,
        }
        for id, type, problem, minute in (
            ("gone", "create_file", "the file is missing", 0),
            ("changed", "create_file", "the file's content has changed", 0),
            ("back", "delete_file", "the file exists", 1),
        )
    }
    assert report == {
        "startedAt": at(minutes=2),
        "finishedAt": at(minutes=2),
        "leftOut": [],
        "jobs": 6,
        "checked": 5,
        "superseded": 1,
        "unsettled": 0,
        "differing": 3,
        "unchecked": 0,
    }
    # Looked at and told, never repaired.
    assert everything(store_of(queue)) == before
    assert sorted(path.name for path in folder.iterdir()) == ["back", "changed", "kept", "late"]


def test_only_the_types_named_are_compared(queue: Queue, world: World, api: httpx.Client) -> None:
    world.register(queue, "build")
    world.make(queue, ["a"])
    world.make(queue, ["b"], "build")
    for types in (["build"], ["build", "build"], ["build", "make"], None):
        world.checked.clear()
        report = got(api.post("/api/reconcile", json={"types": types}))
        wanted = set(types or ["build", "make"])
        assert {covered["type"] for covered in report["covered"]} == wanted
        assert {id.partition("-")[0] for id in world.checked} == wanted


def test_what_cannot_be_checked_is_told_apart(queue: Queue, world: World, api: httpx.Client) -> None:
    world.make(queue, ["a", "b"])
    world.problems["a"], world.broken["b"] = "it is bent", OSError("no answer")
    report = got(post(api))
    assert (report["checked"], report["differing"], report["unchecked"]) == (1, 1, 1)
    assert {(entry["jobId"], entry["isChecked"], entry["problem"]) for entry in report["discrepancies"]} == {
        ("make-a", True, "it is bent"),
        ("make-b", False, "could not be checked: OSError: no answer"),
    }


def test_checks_that_do_not_run_on_start_run_on_demand(queue: Queue, world: World, api: httpx.Client) -> None:
    world.register(queue, "cloud", on_start=False)
    world.make(queue, ["a"], "cloud")
    assert got(post(api))["checked"] == 1


@pytest.mark.parametrize("body", [None, {}, {"types": None}])
def test_without_types_everything_is_compared(
    queue: Queue, world: World, api: httpx.Client, body: Any
) -> None:
    world.make(queue, ["a"])
    assert got(api.post("/api/reconcile", json=body) if body is not None else post(api))["checked"] == 1


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"types": ["other"]}, "jobs of type 'other' can't be checked; types that can: make"),
        ({"types": ["make", "plain"]}, "jobs of type 'plain' can't be checked; types that can: make"),
        ({"types": []}, "types: must have at least 1 item"),
        ({"types": "make"}, "types: must be a valid list"),
        ({"types": [5]}, "types.0: must be a valid string"),
        ({"types": ["no type"]}, "types.0: must be 1 to 255 characters from"),
        ({"type": "make"}, "unknown field 'type'; allowed: types"),
        (["make"], "must be a JSON object"),
    ],
)
def test_wrong_order_is_refused_and_nothing_is_compared(
    queue: Queue, world: World, api: httpx.Client, body: Any, said: str
) -> None:
    queue.register("plain", lambda payload: None)
    world.make(queue, ["a"])
    assert said in refused(api.post("/api/reconcile", json=body), 400, "invalid_request")
    assert world.checked == []
    assert state(api) == {"running": None, "report": None}


def test_unknown_parameter_is_refused(world: World, api: httpx.Client) -> None:
    refused(api.post("/api/reconcile?types=make"), 400, "invalid_request")
    refused(api.get("/api/reconcile?full=1"), 400, "invalid_request")


# The last report, and one under way.


@both_engines
def test_last_report_is_the_one_of_whichever_process_made_it(
    queue: Queue, world: World, api: httpx.Client
) -> None:
    assert state(api) == {"running": None, "report": None}
    made = got(post(api))
    assert state(api) == {"running": None, "report": made}
    world.make(queue, ["a"])
    reconcile(queue)  # as `queuectl reconcile` does
    assert state(api)["report"]["jobs"] == 1


def test_progress_is_told_and_other_requests_are_answered_meanwhile(
    queue: Queue, clock: MovableClock, world: World, api: httpx.Client, beside: ThreadPoolExecutor
) -> None:
    world.make(queue, ["a", "b", "c"])
    before = got(post(api))
    clock.advance(minutes=5)
    world.hold()
    answer = beside.submit(post, api)
    world.wait_held()
    told = state(api)
    assert told == {"running": {"done": 0, "total": 0, "startedAt": at(minutes=5)}, "report": before}
    assert got(api.get("/healthz")) == {"status": "ok"}
    assert got(api.get("/api/report"))["stuck"] == []
    assert not answer.done()
    world.let_go()
    report = got(answer.result(60))
    assert state(api) == {"running": None, "report": report}


def test_progress_counts_the_jobs_read(
    queue: Queue, world: World, api: httpx.Client, beside: ThreadPoolExecutor
) -> None:
    world.make(queue, ["a", "b", "c"])
    world.hold(after=1)
    answer = beside.submit(post, api)
    world.wait_held()
    running = state(api)["running"]
    assert (running["done"], running["total"]) == (1, 3)
    world.let_go()
    assert got(answer.result(60))["jobs"] == 3


# One at a time.


def test_who_asks_for_the_same_meanwhile_gets_the_same_report(
    queue: Queue, world: World, api: httpx.Client, orders: list[Asked], beside: ThreadPoolExecutor
) -> None:
    world.make(queue, ["a"])
    world.hold()
    first = beside.submit(post, api, "make")
    world.wait_held()
    others = [beside.submit(post, api, "make") for _ in range(3)]
    wait_until(lambda: len(orders) == 4, message="all of them wait")
    world.let_go()
    reports = [got(answer.result(60)) for answer in (first, *others)]
    assert reports == [reports[0]] * 4
    assert world.checked == ["make-a"]


def test_who_asks_for_other_types_gets_a_report_of_its_own_afterwards(
    queue: Queue, world: World, api: httpx.Client, orders: list[Asked], beside: ThreadPoolExecutor
) -> None:
    world.register(queue, "build")
    world.make(queue, ["a"])
    world.make(queue, ["b"], "build")
    world.hold()
    first = beside.submit(post, api, "make")
    world.wait_held()
    second = beside.submit(post, api, "build")
    wait_until(lambda: len(orders) == 2, message="it waits for its turn")
    assert not second.done()
    world.let_go()
    assert [entry["type"] for entry in got(first.result(60))["covered"]] == ["make"]
    assert [entry["type"] for entry in got(second.result(60))["covered"]] == ["build"]
    assert world.checked == ["make-a", "build-b"]


def test_report_of_a_start_is_not_given_to_who_asks_for_everything(
    queue: Queue,
    world: World,
    app: FastAPI,
    api: httpx.Client,
    orders: list[Asked],
    beside: ThreadPoolExecutor,
) -> None:
    world.register(queue, "cloud", on_start=False)
    world.make(queue, ["a"])
    world.make(queue, ["b"], "cloud")
    world.hold()
    app.state.backend.reconciler.start(Asked(on_start=True))
    world.wait_held()
    asked = beside.submit(post, api)
    wait_until(lambda: len(orders) == 2, message="it waits for its turn")
    world.let_go()
    assert got(asked.result(60))["checked"] == 2
    assert sorted(world.checked) == ["cloud-b", "make-a", "make-a"]


def test_wrong_types_are_refused_at_once_while_one_is_under_way(
    queue: Queue, world: World, api: httpx.Client, beside: ThreadPoolExecutor
) -> None:
    world.make(queue, ["a"])
    world.hold()
    answer = beside.submit(post, api)
    world.wait_held()
    refused(post(api, "other"), 400, "invalid_request")
    world.let_go()
    assert got(answer.result(60))["checked"] == 1


# Who leaves, and what goes wrong.


def order(api: httpx.Client, body: bytes = b"") -> socket.socket:
    """A connection that has asked for a reconciliation, and waits."""
    connection = socket.create_connection((api.base_url.host, api.base_url.port or 0), timeout=20)
    connection.sendall(
        b"POST /api/reconcile HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    )
    return connection


def test_it_goes_on_when_the_client_leaves(queue: Queue, world: World, api: httpx.Client) -> None:
    world.make(queue, ["a", "b"])
    world.hold()
    with closing(order(api)):
        world.wait_held()
    world.let_go()
    wait_until(lambda: state(api)["report"] is not None)
    assert state(api)["report"]["checked"] == 2
    assert got(post(api))["checked"] == 2


def test_who_leaves_before_its_turn_starts_nothing(
    queue: Queue, world: World, api: httpx.Client, orders: list[Asked], beside: ThreadPoolExecutor
) -> None:
    world.register(queue, "build")
    world.make(queue, ["a"])
    world.make(queue, ["b"], "build")
    world.hold()
    first = beside.submit(post, api, "make")
    world.wait_held()
    with closing(order(api, b'{"types": ["build"]}')):
        wait_until(lambda: len(orders) == 2, message="it waits for its turn")
    got(api.get("/healthz"))  # by now the server has heard of its end
    world.let_go()
    got(first.result(60))
    assert got(post(api, "make"))["checked"] == 1
    assert orders == [Asked(frozenset({type})) for type in ("make", "build", "make")]
    assert "build-b" not in world.checked


def test_server_that_stops_does_not_wait_and_says_so(
    queue: Queue, world: World, beside: ThreadPoolExecutor
) -> None:
    world.make(queue, ["a", "b"])
    world.hold()
    with ExitStack() as server, ExitStack() as clients:
        address = server.enter_context(live(create_app(queue), shutdown_seconds=600.0))
        api = clients.enter_context(client(address))
        answer = beside.submit(post, api)
        world.wait_held()
        server.close()
        message = refused(answer.result(60), 503, "stopping")
    assert message == "the server is shutting down; the reconciliation was interrupted"
    world.let_go()
    wait_until(lambda: all(thread.name != "holdfast-reconcile" for thread in threading.enumerate()))
    assert len(world.checked) == 1  # it has ended after the check that was under way
    assert last_report(queue) is None


HANGS = """
import pathlib, threading
from holdfast import Queue

queue = Queue()

def hang(job):
    pathlib.Path("held").touch()
    threading.Event().wait(60)

@queue.job(reconcile=hang)
def make(name: str) -> None: ...
"""


@pytest.mark.process
def test_process_of_a_server_ends_while_a_check_hangs(
    queue: Queue, world: World, home: Path, tmp_path: Path, beside: ThreadPoolExecutor
) -> None:
    world.make(queue, ["a"])
    (tmp_path / "hanging_app.py").write_text(HANGS.replace('"held"', repr(str(tmp_path / "held"))))
    words = ["--app", "hanging_app:queue", "--workers", "0", "--no-reconcile"]
    with (
        Served(home, *words, PYTHONPATH=str(tmp_path)) as served,
        client(served.address) as api,
    ):
        answer = beside.submit(post, api)
        wait_until((tmp_path / "held").exists, timeout=30, message="the check hangs")
        assert state(api)["running"] is not None
        assert served.stop() == 0
        refused(answer.result(60), 503, "stopping")
    assert "Traceback" not in served.errors()


def test_server_that_is_started_again_compares_again(queue: Queue, world: World) -> None:
    world.make(queue, ["a"])
    app = create_app(queue)
    for _ in range(2):
        with live(app) as address, client(address) as api:
            assert got(post(api))["checked"] == 1


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [(StoreUnavailable("the disk is full"), 503, "database_unavailable"), (KeyError("x"), 500, "internal")],
)
def test_what_goes_wrong_is_answered_and_told_and_the_next_one_is_fine(
    queue: Queue,
    world: World,
    api: httpx.Client,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    code: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise error

    told: list[Any] = []
    queue.events.subscribe(
        lambda event: told.append(event) if isinstance(event, ReconciliationFailed) else None
    )
    world.make(queue, ["a"])
    with monkeypatch.context() as patched:
        patched.setattr(reconciler, "reconcile", fail)
        refused(post(api), status, code)
    assert [event.error for event in told] == [f"{type(error).__name__}: {error}"]
    assert state(api) == {"running": None, "report": None}
    assert got(post(api))["checked"] == 1


# Who may.


def test_read_token_sees_the_report_and_asks_for_none(queue: Queue, world: World) -> None:
    world.make(queue, ["a"])
    with live(create_app(queue, TOKEN, READ_TOKEN)) as address, client(address) as api:
        refused(post(api), 401, "unauthorized")
        refused(api.get("/api/reconcile"), 401, "unauthorized")
        api.headers["authorization"] = f"Bearer {READ_TOKEN}"
        refused(post(api), 403, "read_only")
        assert state(api) == {"running": None, "report": None}
        assert world.checked == []
        api.headers["authorization"] = f"Bearer {TOKEN}"
        report = got(post(api))
        api.headers["authorization"] = f"Bearer {READ_TOKEN}"
        assert state(api)["report"] == report


# Built-in types over HTTP.

PAYLOADS: dict[str, dict[str, Any]] = {
    "create_file": {"path": "/srv/a.json", "content": {"a": [1, None]}},
    "delete_file": {"path": "/srv/a.json"},
    "webhook": {"url": "https://example.com/"},
    "sync_aws": {"resourceType": "AWS::S3::Bucket", "resourceId": "b", "config": {}},
    "claude_extraction": {"prompt": "p", "targetPath": "/srv/a.md", "requirementId": "r"},
}


def one(api: httpx.Client, type: str) -> httpx.Response:
    return api.post("/api/tasks", json={"type": type, "payload": PAYLOADS[type.partition(":")[0]]})


def batch(api: httpx.Client, type: str) -> httpx.Response:
    task = {"type": type, "payload": PAYLOADS[type.partition(":")[0]]}
    return api.post("/api/tasks/batch", json={"tasks": [{"type": "plain", "payload": {}}, task]})


def test_payloads_here_are_those_of_all_built_in_types() -> None:
    assert PAYLOADS.keys() | {"shell"} == BUILT_IN


@pytest.mark.parametrize("send", [one, batch])
def test_built_in_types_are_taken_only_where_they_are_let_in(
    queue: Queue, api: httpx.Client, send: Callable[[httpx.Client, str], httpx.Response]
) -> None:
    for type in (*PAYLOADS, "create_file:lane"):
        base = type.partition(":")[0]
        assert f"--allow-type {base}" in refused(send(api, type), 403, "type_not_allowed")
    assert queue.count() == 0
    with live(create_app(queue, allow_types=["create_file", "webhook"])) as address, client(address) as other:
        for type in ("create_file", "create_file:lane", "webhook"):
            got(send(other, type), 201)
            assert queue.count(type=type) == 1
        for type in ("delete_file", "sync_aws", "claude_extraction"):
            refused(send(other, type), 403, "type_not_allowed")


def test_payload_of_a_type_that_is_let_in_is_checked_and_prepared(queue: Queue) -> None:
    with live(create_app(queue, allow_types=["create_file"])) as address, client(address) as api:
        for payload in ({"path": "/a"}, {"path": 5, "content": ""}, {"path": "/a", "content": "", "mode": 1}):
            answer = api.post("/api/tasks", json={"type": "create_file", "payload": payload})
            refused(answer, 400, "invalid_payload")
        body = {"type": "create_file", "payload": {"path": "/srv/./x/../a.json", "content": "text"}}
        id = got(api.post("/api/tasks", json=body), 201)["id"]
    job = queue.get(id)
    assert job is not None
    assert job.payload["path"] == "/srv/a.json"
