"""The queue as a whole over HTTP, field by field: counts, flow, settings, workers, health, wrong paths."""

from __future__ import annotations

import asyncio
import os
import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest

from holdfast import Queue
from holdfast.config import SETTINGS
from holdfast.jobs import BUILT_IN, install
from holdfast.store.open import store_of
from holdfast.store.records import BUCKETS, TypeRecord, WorkerRecord
from holdfast.store.sqlite.database import Database
from holdfast.testing import MovableClock
from holdfast.web import create_app
from tests.conformance.steps import OUTCOMES, claim_one, finish
from tests.support import both_engines, unsynced
from tests.surfaces.answers import NOW, at, counts, got, item, refused
from tests.surfaces.live import client, live
from tests.surfaces.support import Cli

pytestmark = pytest.mark.slow

DEFAULTS: dict[str, Any] = {
    "backoff_base": 2.0,
    "backoff_factor": 1.0,
    "backoff_jitter": 0.2,
    "backoff_max": 21600.0,
    "backoff_strategy": "exponential",
    "concurrency": 10,
    "heartbeat_interval": 5.0,
    "job_timeout": None,
    "lease_seconds": 30.0,
    "max_attempts": 3,
    "group_concurrency": None,
    "fair": False,
    "prefetch": None,
    "max_depth": None,
    "max_log_bytes": 10 * 1024 * 1024,
    "log_jobs": "all",
    "max_payload_bytes": 1024 * 1024,
    "max_result_bytes": 1024 * 1024,
    "max_running": None,
    "poll_interval": 1.0,
    "rate_limit": 0.0,
    "retention_completed": None,
    "retention_failed": None,
    "shutdown_timeout": 30.0,
    "stuck_seconds": 300.0,
    "transaction_seconds": 5.0,
}


@pytest.fixture
def clock() -> MovableClock:
    return MovableClock(NOW)


@pytest.fixture
def queue(url: str, clock: MovableClock) -> Iterator[Queue]:
    """The home's queue, on a clock that stands still."""
    with Queue(unsynced(url), clock=clock) as queue:
        yield queue


def register(queue: Queue, id: str = "worker", *types: str, state: str = "running") -> None:
    """A worker that is alive as long as the clock stands still."""
    worker = WorkerRecord(
        id=id, host="here", pid=4711, state=state, concurrency=4, types=types or ("echo",), slots={}
    )
    known = [TypeRecord(type=type, executor="thread", schema={"type": "object"}) for type in types]
    store_of(queue).register_worker(worker, known)


def running(queue: Queue, id: str, worker: str = "worker") -> None:
    queue.enqueue("echo", id=id)
    assert claim_one(store_of(queue), "echo", worker).id == id


def ended(queue: Queue, id: str, how: str, **options: Any) -> None:
    """A job that ran before those that wait, and how it ended."""
    queue.enqueue("echo", id=id, priority=1, **options)
    claimed = claim_one(store_of(queue), "echo")
    assert claimed.id == id
    finish(store_of(queue), claimed, OUTCOMES[how])


@pytest.fixture
def busy(queue: Queue) -> Queue:
    """A queue with a job of type `echo` in every state, one of another type, and a worker."""
    ended(queue, "retrying", "failed")
    ended(queue, "failed", "failed for good")
    ended(queue, "completed", "completed")
    queue.enqueue("echo", id="cancelled")
    queue.cancel("cancelled")
    running(queue, "processing")
    queue.enqueue("echo", id="scheduled", delay=3600)
    queue.enqueue("echo", id="pending")
    queue.enqueue("other", id="other")
    register(queue)
    return queue


PROCESSING = {
    "id": "processing",
    "type": "echo",
    "attempt": 1,
    "startedAt": at(),
    "cancelRequested": False,
}


# Stats


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize(
    ("method", "path", "field"),
    [
        ("POST", "/api/tasks/rate-limit", "tasksPerSecond"),
        ("PUT", "/api/config/backoff_base", "value"),
        ("PUT", "/api/config/max_attempts", "value"),
        ("PUT", "/api/config/lease_seconds", "value"),
    ],
)
def test_number_that_is_none_is_refused(
    queue: Queue, api: httpx.Client, method: str, path: str, field: str, number: str
) -> None:
    before = queue.config()
    body = f'{{"{field}": {number}}}'
    answer = api.request(method, path, content=body, headers={"Content-Type": "application/json"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "invalid_request")
    assert queue.config() == before


def test_stats_of_an_empty_queue(api: httpx.Client) -> None:
    assert got(api.get("/api/tasks/stats")) == {
        **counts(),
        "byType": {},
        "workers": 0,
        "retrying": 0,
        "paused": False,
        "pausedTypes": [],
        "stuck": [],
        "withoutWorker": {},
        "oldestWaiting": None,
        "busiestGroups": [],
    }


@both_engines
def test_stats_count_every_state_in_all_and_by_type(
    busy: Queue, api: httpx.Client, clock: MovableClock
) -> None:
    clock.advance(5)
    each = counts(scheduled=2, pending=1, processing=1, completed=1, failed=1, cancelled=1)
    expected = {
        **each,
        "pending": 2,
        "byType": {"echo": each, "other": counts(pending=1)},
        "workers": 1,
        "retrying": 1,
        "paused": False,
        "pausedTypes": [],
        "stuck": [],
        "withoutWorker": {"other": 1},
        "oldestWaiting": {"id": "pending", "type": "echo", "since": at()},
        "busiestGroups": [],
    }
    assert got(api.get("/api/tasks/stats")) == expected
    busy.pause()
    busy.pause("other")
    busy.cancel("processing")
    clock.advance(26)  # beyond the job's lease and the worker's heartbeat
    assert got(api.get("/api/tasks/stats")) == {
        **expected,
        "workers": 0,
        "paused": True,
        "pausedTypes": ["other"],
        "stuck": [{**PROCESSING, "cancelRequested": True}],
        "withoutWorker": {"echo": 3, "other": 1},
    }


# Pause, resume, rate limit


def test_pause_and_resume_of_the_whole_queue(jobs: Queue, api: httpx.Client) -> None:
    jobs.enqueue("ok", id="job1")
    assert got(api.post("/api/tasks/pause")) == {"paused": True}
    assert got(api.post("/api/tasks/pause", json={})) == {"paused": True}
    assert jobs.drain() == 0
    assert got(api.get("/api/tasks/stats"))["paused"] is True
    assert got(api.post("/api/tasks/resume")) == {"paused": False}
    assert jobs.drain() == 1
    assert got(api.post("/api/tasks/resume", json={"type": None})) == {"paused": False}


@both_engines
def test_pause_and_resume_of_a_type(jobs: Queue, api: httpx.Client) -> None:
    jobs.enqueue("ok")
    jobs.enqueue("echo")
    assert got(api.post("/api/tasks/pause", json={"type": "ok"})) == {"paused": True, "type": "ok"}
    assert got(api.post("/api/tasks/pause?type=bad")) == {"paused": True, "type": "bad"}
    shown = got(api.get("/api/tasks/stats"))
    assert (shown["paused"], shown["pausedTypes"]) == (False, ["bad", "ok"])
    assert jobs.drain() == 1
    assert got(api.post("/api/tasks/resume")) == {"paused": False}  # which is another flag
    assert jobs.drain() == 0
    both = api.post("/api/tasks/resume?type=ok", json={"type": "ok"})
    assert got(both) == {"paused": False, "type": "ok"}
    assert jobs.drain() == 1


@both_engines
def test_rate_limit_is_stored_for_all_or_for_a_type(queue: Queue, api: httpx.Client) -> None:
    def limit(type: str | None = None) -> Any:
        return queue.config(type)["rate_limit"]

    assert got(api.post("/api/tasks/rate-limit", json={"tasksPerSecond": 10})) == {"tasksPerSecond": 10}
    assert limit() == 10
    answer = api.post("/api/tasks/rate-limit", json={"tasksPerSecond": 0.5, "type": "echo"})
    assert got(answer) == {"tasksPerSecond": 0.5, "type": "echo"}
    answer = api.post("/api/tasks/rate-limit?type=other", json={"tasksPerSecond": 7})
    assert got(answer) == {"tasksPerSecond": 7, "type": "other"}
    assert (limit(), limit("echo"), limit("other")) == (10, 0.5, 7)
    assert api.post("/api/tasks/rate-limit", json={"tasksPerSecond": 0}).text == '{"tasksPerSecond":0}'
    assert limit() == 0


def test_each_wrong_flow_order_is_refused_and_changes_nothing(queue: Queue, api: httpx.Client) -> None:
    wrong: list[tuple[str, Any, str]] = [
        ("pause", {"type": "a b"}, "type"),
        ("pause", {"type": ""}, "type"),
        ("pause", {"type": 5}, "type"),
        ("pause", {"kind": "echo"}, "kind"),
        ("pause", [], "body"),
        ("pause?type=", None, "type"),
        ("pause?type=a%20b", None, "type"),
        ("pause?kind=echo", None, "kind"),
        ("pause?type=one", {"type": "two"}, "differ"),
        ("resume", {"type": "a b"}, "type"),
        ("resume?kind=echo", None, "kind"),
        ("rate-limit", None, "body"),
        ("rate-limit", {}, "tasksPerSecond: is required"),
        ("rate-limit", {"tasksPerSecond": -1}, "tasksPerSecond: "),
        ("rate-limit", {"tasksPerSecond": 1_000_001}, "tasksPerSecond: "),
        ("rate-limit", {"tasksPerSecond": 10**400}, "tasksPerSecond: "),
        ("rate-limit", {"tasksPerSecond": "10"}, "tasksPerSecond: "),
        ("rate-limit", {"tasksPerSecond": True}, "tasksPerSecond: "),
        ("rate-limit", {"tasksPerSecond": None}, "tasksPerSecond: "),
        ("rate-limit", {"tasksPerSecond": 1, "type": "a b"}, "type"),
        ("rate-limit?type=one", {"tasksPerSecond": 1, "type": "two"}, "differ"),
    ]
    for path, body, words in wrong:
        answer = api.post(f"/api/tasks/{path}", **({} if body is None else {"json": body}))
        assert words in refused(answer, 400, "invalid_request"), (path, body)
    shown = got(api.get("/api/tasks/stats"))
    assert (shown["paused"], shown["pausedTypes"]) == (False, [])
    assert got(api.get("/api/config")) == {**DEFAULTS, "byType": {}}


# Workers, types, report


def test_workers_are_shown_with_what_they_run(busy: Queue, api: httpx.Client, clock: MovableClock) -> None:
    register(busy, "second", "echo", "other", state="restarting")
    clock.advance(2)
    shown = {
        "pid": 4711,
        "host": "here",
        "concurrency": 4,
        "startedAt": at(),
        "heartbeatAt": at(),
        "heartbeatAge": 2.0,
    }
    found = {worker["id"]: worker for worker in got(api.get("/api/workers"))}
    assert found == {
        "worker": {
            "id": "worker",
            "state": "running",
            "types": ["echo"],
            "turnedAt": found["worker"]["turnedAt"],
            "running": [PROCESSING],
            **shown,
        },
        "second": {
            "id": "second",
            "state": "restarting",
            "types": ["echo", "other"],
            "turnedAt": found["second"]["turnedAt"],
            "running": [],
            **shown,
        },
    }
    assert {worker["turnedAt"] for worker in found.values()} <= {None, at()}
    clock.advance(29)
    assert got(api.get("/api/workers")) == []


@both_engines
def test_real_worker_is_shown_while_it_runs(jobs: Queue, api: httpx.Client, start_worker: Any) -> None:
    worker = start_worker(concurrency=3)
    [shown] = got(api.get("/api/workers"))
    assert (shown["pid"], shown["state"], shown["concurrency"]) == (os.getpid(), "running", 3)
    assert shown["types"] == ["bad", "echo", "ok"]
    assert {type["type"]: type["workers"] for type in got(api.get("/api/types"))} == {
        "bad": 1,
        "echo": 1,
        "ok": 1,
    }
    worker.stop(timeout=5)
    assert got(api.get("/api/workers")) == []


@both_engines
def test_types_are_shown_with_the_schema_of_their_payload(queue: Queue, api: httpx.Client) -> None:
    assert got(api.get("/api/types")) == []

    @queue.job
    def send_email(to: str, urgent: bool = False) -> None: ...

    @queue.job
    async def crawl(url: str) -> None: ...

    install(queue)
    register(queue, "worker", "elsewhere", "send_email")
    shown = {type.pop("type"): type for type in got(api.get("/api/types"))}
    built_in = {name: shown.pop(name) for name in sorted(BUILT_IN - {"shell"})}
    assert all(type["builtIn"] and not type["enqueueable"] for type in built_in.values())
    assert list(shown) == ["crawl", "elsewhere", "send_email", "shell"]
    schema = shown["send_email"].pop("payloadSchema")
    assert (schema["type"], schema["required"]) == ("object", ["to"])
    assert schema["properties"]["to"] == {"type": "string"}
    assert schema["properties"]["urgent"]["type"] == "boolean"
    assert schema["additionalProperties"] is False
    assert shown["crawl"].pop("payloadSchema")["properties"] == {"url": {"type": "string"}}
    assert "command" in str(shown["shell"].pop("payloadSchema"))
    own = {"builtIn": False, "enqueueable": True}
    assert shown == {
        "crawl": {"executor": "async", "workers": 0, **own},
        "elsewhere": {"executor": "thread", "workers": 1, "payloadSchema": {"type": "object"}, **own},
        "send_email": {"executor": "thread", "workers": 1, **own},
        "shell": {"executor": "thread", "workers": 0, "builtIn": True, "enqueueable": False},
    }
    with live(create_app(queue, allow_types=["shell"])) as address, client(address) as other:
        enqueueable = {type["type"] for type in got(other.get("/api/types")) if type["enqueueable"]}
        assert enqueueable == {"crawl", "elsewhere", "send_email", "shell"}


def test_report_of_an_empty_queue(api: httpx.Client) -> None:
    assert got(api.get("/api/report")) == {
        "outstanding": {},
        "failed": {"total": 0, "newest": [], "groups": []},
        "stuck": [],
        "durations": {},
        "duplicates": [],
        "lastHour": {},
    }


@both_engines
def test_report_answers_the_standing_questions(busy: Queue, api: httpx.Client, clock: MovableClock) -> None:
    ended(busy, "first", "failed for good", key="k")
    ended(busy, "second", "completed", key="k")
    clock.advance(31)
    assert got(api.get("/api/report")) == {
        "outstanding": {
            "echo": {"scheduled": 2, "pending": 1, "processing": 1},
            "other": {"scheduled": 0, "pending": 1, "processing": 0},
        },
        "failed": {
            "total": 2,
            "newest": [
                item(
                    id,
                    status="failed",
                    priority=1,
                    attempts=1,
                    version=1,
                    error="OSError: no such user",
                    lastAttemptAt=at(),
                    completedAt=at(),
                    **more,
                )
                for id, more in (("first", {"idempotencyKey": "k"}), ("failed", {}))
            ],
            "groups": [{"type": "echo", "error": "OSError: no such user", "jobs": 2, "lastAt": at()}],
        },
        "stuck": [PROCESSING],
        "durations": {},
        "duplicates": [{"type": "echo", "key": "k", "jobs": 2}],
        "lastHour": {"echo": {"completed": 2, "failed": 2, "cancelled": 1}},
    }
    clock.advance(hours=1)
    assert got(api.get("/api/report"))["lastHour"] == {}


def test_report_knows_how_long_jobs_take(jobs: Queue, api: httpx.Client) -> None:
    for _ in range(3):
        jobs.enqueue("ok")
    assert jobs.drain() == 3
    taken = got(api.get("/api/report"))["durations"]
    ok = taken.pop("ok")  # by a clock that does not stand still
    assert (taken, ok.pop("count")) == ({}, 3)
    assert ok.keys() == {"mean", "p50", "p95", "meanWait"}
    assert ok["p50"] in BUCKETS
    assert ok["p95"] in BUCKETS
    assert 0 <= ok["mean"] <= ok["p95"]
    assert ok["meanWait"] >= 0


# Settings


def test_settings_are_listed_with_what_is_stored_for_types(queue: Queue, api: httpx.Client) -> None:
    assert DEFAULTS.keys() == SETTINGS.keys()
    assert got(api.get("/api/config")) == {**DEFAULTS, "byType": {}}
    queue.set_config("max_attempts", 5)
    queue.set_config("max_attempts", 7, type="echo")
    queue.set_config("job_timeout", "2m", type="other")
    assert got(api.get("/api/config")) == {
        **DEFAULTS,
        "max_attempts": 5,
        "byType": {"echo": {"max_attempts": 7}, "other": {"job_timeout": 120.0}},
    }
    assert got(api.get("/api/config?type=echo")) == {
        **DEFAULTS,
        "max_attempts": 7,
        "byType": {"echo": {"max_attempts": 7}},
    }


def test_setting_is_read_stored_and_forgotten(queue: Queue, api: httpx.Client) -> None:
    path = "/api/config/max_attempts"
    assert got(api.get(path)) == {"key": "max_attempts", "value": 3, "type": None}
    put = api.put(path, json={"value": 5})
    assert got(put) == {"key": "max_attempts", "value": 5, "type": None}
    put = api.put(path, json={"value": "7", "type": "echo"})
    assert got(put) == {"key": "max_attempts", "value": 7, "type": "echo"}
    put = api.put(f"{path}?type=other", json={"value": 9})
    assert got(put) == {"key": "max_attempts", "value": 9, "type": "other"}
    assert got(api.get(f"{path}?type=echo")) == {"key": "max_attempts", "value": 7, "type": "echo"}
    assert got(api.get(f"{path}?type=third")) == {"key": "max_attempts", "value": 5, "type": "third"}
    assert got(api.delete(f"{path}?type=echo")) == {"key": "max_attempts", "value": 5, "type": "echo"}
    assert got(api.delete(path)) == {"key": "max_attempts", "value": 3, "type": None}
    assert got(api.delete(path)) == {"key": "max_attempts", "value": 3, "type": None}
    assert got(api.get("/api/config")) == {**DEFAULTS, "byType": {"other": {"max_attempts": 9}}}
    assert queue.config("other")["max_attempts"] == 9


@both_engines
def test_settings_take_durations_none_and_other_names(api: httpx.Client) -> None:
    for key, value, name, kept in (
        ("lease_seconds", "1m", "lease_seconds", 60.0),
        ("lease-seconds", 5, "lease_seconds", 5.0),
        ("job_timeout", 1.5, "job_timeout", 1.5),
        ("job_timeout", None, "job_timeout", None),
        ("retention_failed", "7d", "retention_failed", 604800.0),
        ("retention_failed", "never", "retention_failed", None),
        ("backoff_strategy", "linear", "backoff_strategy", "linear"),
        ("max_retries", 4, "max_attempts", 4),
        ("default_max_tries", 6, "max_attempts", 6),
        ("max_concurrent_jobs", 2, "concurrency", 2),
        ("job_retry_delay", 3, "backoff_factor", 3.0),
        ("worker_heartbeat_interval", 2, "heartbeat_interval", 2.0),
    ):
        answer = {"key": name, "value": kept, "type": None}
        assert got(api.put(f"/api/config/{key}", json={"value": value})) == answer
        assert got(api.get(f"/api/config/{key}")) == answer


def test_each_wrong_setting_is_refused_and_changes_nothing(api: httpx.Client) -> None:
    wrong: list[tuple[str, str, Any, str]] = [
        ("GET", "nope", None, "there is no setting 'nope'; allowed: backoff_base, "),
        ("PUT", "nope", {"value": 1}, "there is no setting 'nope'; allowed: backoff_base, "),
        ("DELETE", "nope", None, "there is no setting 'nope'; allowed: backoff_base, "),
        (
            "PUT",
            "max_attempts",
            {"value": 0},
            "0 is not a valid value for max_attempts; allowed: a whole number of at least 1",
        ),
        ("PUT", "max_attempts", {"value": 1.5}, "1.5 is not a valid value for max_attempts"),
        ("PUT", "max_attempts", {"value": "many"}, "'many' is not a valid value for max_attempts"),
        ("PUT", "max_attempts", {"value": None}, "None is not a valid value for max_attempts"),
        ("PUT", "max_attempts", {"value": 10**30}, "is not a valid value for max_attempts"),
        ("PUT", "lease_seconds", {"value": 2.9}, "2.9 is not a valid value for lease_seconds"),
        ("PUT", "lease_seconds", {"value": 10**400}, "value"),
        ("PUT", "backoff_jitter", {"value": 1.1}, "1.1 is not a valid value for backoff_jitter"),
        ("PUT", "backoff_strategy", {"value": "random"}, "allowed: exponential, linear or fixed"),
        ("PUT", "rate_limit", {"value": -1}, "-1 is not a valid value for rate_limit"),
        ("PUT", "max_attempts", {"value": True}, "value"),
        ("PUT", "max_attempts", {"value": [1]}, "value"),
        ("PUT", "max_attempts", {}, "value: is required"),
        ("PUT", "max_attempts", None, "body"),
        ("PUT", "max_attempts", {"value": 1, "for": "echo"}, "for"),
        ("PUT", "max_attempts", {"value": 1, "type": "a b"}, "type"),
        ("PUT", "max_attempts?type=one", {"value": 1, "type": "two"}, "differ"),
        ("PUT", "max_attempts?kind=one", {"value": 1}, "unknown parameter 'kind'; allowed: type"),
        ("PUT", "lease_seconds", {"value": 5, "type": "echo"}, "lease_seconds applies to the whole queue"),
        ("DELETE", "lease_seconds?type=echo", None, "lease_seconds applies to the whole queue"),
        ("GET", "max_attempts?type=a%20b", None, "'a b' is not a valid job type"),
        ("DELETE", "max_attempts?type=a%20b", None, "'a b' is not a valid job type"),
    ]
    for method, path, body, words in wrong:
        more = {} if body is None else {"json": body}
        answer = api.request(method, f"/api/config/{path}", **more)
        assert words in refused(answer, 400, "invalid_request"), (method, path, body)
    assert got(api.get("/api/config")) == {**DEFAULTS, "byType": {}}


# Health


def test_healthz_answers_whatever_the_database_does(api: httpx.Client, queue: Queue, home: Path) -> None:
    assert got(api.get("/healthz")) == {"status": "ok"}
    _break_database(queue, home)
    assert got(api.get("/healthz")) == {"status": "ok"}


def test_readyz_wants_workers_where_they_belong_to_the_server(
    queue: Queue, api: httpx.Client, clock: MovableClock
) -> None:
    answer = api.get("/readyz")
    assert got(answer, 503) == {"status": "not ready", "database": "ok", "workers": 0}
    assert int(answer.headers["retry-after"]) >= 1
    register(queue)
    assert got(api.get("/readyz")) == {"status": "ready", "database": "ok", "workers": 1}
    clock.advance(31)
    assert got(api.get("/readyz"), 503)["workers"] == 0
    with live(create_app(queue, needs_workers=False)) as address, client(address) as other:
        assert got(other.get("/readyz")) == {"status": "ready", "database": "ok", "workers": 0}


def test_dead_database_is_not_ready_and_every_endpoint_says_503(
    api: httpx.Client, queue: Queue, home: Path
) -> None:
    _break_database(queue, home)
    answer = api.get("/readyz")
    body = got(answer, 503)
    assert body == {"status": "not ready", "database": body["database"], "workers": 0}
    assert body["database"] not in ("", "ok")
    assert int(answer.headers["retry-after"]) >= 1
    calls: list[tuple[str, str, Any]] = [
        ("GET", "/api/tasks", None),
        ("POST", "/api/tasks", {"type": "echo"}),
        ("POST", "/api/tasks/batch", {"tasks": [{"type": "echo"}]}),
        ("POST", "/api/tasks/bulk", {"action": "retry", "ids": ["a"]}),
        ("DELETE", "/api/tasks?olderThan=2030-01-01T00:00:00Z", None),
        ("GET", "/api/tasks/stats", None),
        ("GET", "/api/tasks/job1", None),
        ("DELETE", "/api/tasks/job1", None),
        ("POST", "/api/tasks/job1/retry", None),
        ("POST", "/api/tasks/job1/cancel", None),
        ("GET", "/api/tasks/job1/why", None),
        ("GET", "/api/tasks/job1/logs", None),
        ("POST", "/api/tasks/pause", None),
        ("POST", "/api/tasks/resume", None),
        ("POST", "/api/tasks/rate-limit", {"tasksPerSecond": 1}),
        ("GET", "/api/workers", None),
        ("GET", "/api/types", None),
        ("GET", "/api/report", None),
        ("GET", "/api/reconcile", None),
        ("POST", "/api/reconcile", None),
        ("GET", "/api/config", None),
        ("GET", "/api/config/max_attempts", None),
        ("PUT", "/api/config/max_attempts", {"value": 1}),
        ("DELETE", "/api/config/max_attempts", None),
    ]
    for method, path, order in calls:
        answer = api.request(method, path, json=order)
        refused(answer, 503, "database_unavailable")
        assert int(answer.headers["retry-after"]) >= 1, (method, path)


def _break_database(queue: Queue, home: Path) -> None:
    """The file is no database any more when it is opened again."""
    queue.close()
    for name in ("queue.db", "queue.db-wal", "queue.db-shm"):
        (home / name).unlink(missing_ok=True)
    (home / "queue.db").mkdir()


def test_database_that_stays_locked_answers_503(
    queue: Queue, api: httpx.Client, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    patiently = Database.patiently
    monkeypatch.setattr(Database, "patiently", lambda self, action, _=None: patiently(self, action, 0.05))
    assert got(api.get("/api/tasks"))["total"] == 0
    with closing(sqlite3.connect(home / "queue.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        for path, body in (("/api/tasks/pause", {}), ("/api/tasks", {"type": "echo"})):
            answer = api.post(path, json=body)
            assert "locked" in refused(answer, 503, "database_unavailable")
            assert int(answer.headers["retry-after"]) >= 1
        assert got(api.get("/api/tasks"))["total"] == 0  # who only looks is not held up
        other.execute("ROLLBACK")
    assert got(api.post("/api/tasks/pause")) == {"paused": True}
    assert queue.count() == 0


# Paths and methods


def test_unknown_path_is_not_found(api: httpx.Client) -> None:
    for path in (
        "/api",
        "/api/",
        "/api/nope",
        "/api/tasks/",
        "/api/tasks/a/b",
        "/api/tasks/a/b/c",
        "/api/tasks/a/retry/",
        "/api/config/",
        "/api/workers/1",
        "/API/tasks",
        "/nope",
    ):
        for method in ("GET", "POST", "DELETE"):
            message = refused(api.request(method, path), 404, "not_found")
            assert message == "there is nothing at this path"


ALLOWED = {
    "/api/tasks": {"GET", "HEAD", "POST", "DELETE"},
    "/api/tasks/job1": {"GET", "HEAD", "DELETE"},
    "/api/tasks/stats": {"GET", "HEAD"},
    "/api/tasks/batch": {"POST"},
    "/api/tasks/bulk": {"POST"},
    "/api/tasks/pause": {"POST"},
    "/api/tasks/resume": {"POST"},
    "/api/tasks/rate-limit": {"POST"},
    "/api/tasks/job1/retry": {"POST"},
    "/api/tasks/job1/cancel": {"POST"},
    "/api/tasks/job1/why": {"GET", "HEAD"},
    "/api/tasks/job1/logs": {"GET", "HEAD"},
    "/api/workers": {"GET", "HEAD"},
    "/api/types": {"GET", "HEAD"},
    "/api/report": {"GET", "HEAD"},
    "/api/reconcile": {"GET", "HEAD", "POST"},
    "/api/events": {"GET", "HEAD"},
    "/api/config": {"GET", "HEAD"},
    "/api/config/max_attempts": {"GET", "HEAD", "PUT", "DELETE"},
    "/healthz": {"GET", "HEAD"},
    "/readyz": {"GET", "HEAD"},
    "/metrics": {"GET", "HEAD"},
}


def test_wrong_method_is_refused_with_those_that_are_allowed(api: httpx.Client) -> None:
    for path, allowed in ALLOWED.items():
        for method in {"GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"} - allowed:
            answer = api.request(method, path)
            message = refused(answer, 405, "method_not_allowed")
            assert message == "this path does not support this method"
            given = {word.strip() for word in answer.headers.get("allow", "").split(",")}
            assert given in (allowed, allowed - {"HEAD"}), (method, path)


def test_head_is_get_without_a_body(busy: Queue, api: httpx.Client) -> None:
    for path in (
        "/api/tasks",
        "/api/tasks?limit=1000",
        "/api/tasks/failed",
        "/api/tasks/nope",
        "/api/tasks/stats",
        "/api/tasks/failed/why",
        "/api/workers",
        "/api/types",
        "/api/report",
        "/api/reconcile",
        "/api/config",
        "/api/config/nope",
        "/healthz",
        "/readyz",
        "/nope",
    ):
        get, head = api.get(path), api.head(path)
        assert (head.status_code, head.content) == (get.status_code, b""), path
        for name in ("content-length", "content-type", "cache-control"):
            assert head.headers[name] == get.headers[name], path
    answer = api.head("/api/tasks/pause")
    assert (answer.status_code, answer.content) == (405, b"")
    assert busy.stats()["pending"] == 2


def test_head_has_no_body_under_a_server_that_would_send_one(queue: Queue) -> None:
    app = create_app(queue)
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": "HEAD",
        "path": "/healthz",
        "raw_path": b"/healthz",
        "query_string": b"",
        "headers": [(b"host", b"127.0.0.1")],
        "client": ("127.0.0.1", 50_000),
        "server": ("127.0.0.1", 80),
    }
    try:
        asyncio.run(app(scope, receive, send))
    finally:
        app.state.backend.close()
    start, *body = sent
    assert (start["status"], dict(start["headers"])[b"content-length"]) == (200, b"15")
    assert [part["body"] for part in body] == [b""]


def test_every_answer_is_not_to_be_stored(api: httpx.Client) -> None:
    for answer in (api.get("/api/tasks"), api.get("/api/tasks/nope"), api.post("/api/tasks/pause")):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"


# The same shapes at the shell


@pytest.fixture
def present(clock: MovableClock) -> None:
    """The queue's clock is about that of the command, which has one of its own."""
    clock.move_to(datetime.now(UTC))


@pytest.mark.usefixtures("present")
def test_command_line_looks_in_the_shapes_of_the_api(busy: Queue, api: httpx.Client, cli: Cli) -> None:
    busy.set_config("max_attempts", 7, type="echo")
    for words, path in (
        ("list", "/api/tasks"),
        ("list --limit 2", "/api/tasks?limit=2"),
        ("list --full --status dead --status done", "/api/tasks?full=true&status=dead&status=done"),
        ("list --type other --offset 1", "/api/tasks?type=other&offset=1"),
        ("status", "/api/tasks/stats"),
        ("report", "/api/report"),
        ("config list", "/api/config"),
        ("config list --type echo", "/api/config?type=echo"),
        ("config get max_retries --type echo", "/api/config/max_retries?type=echo"),
        *((f"show {id}", f"/api/tasks/{id}") for id in ("failed", "completed", "processing", "scheduled")),
    ):
        ran = cli(*words.split(), "--json")
        assert ran.code == 0, ran
        assert ran.json == got(api.get(path)), words
    for id in ("failed", "scheduled", "processing"):
        shell, http = cli("why", id, "--json").json, got(api.get(f"/api/tasks/{id}/why"))
        for reason in (*shell["reasons"], *http["reasons"]):  # time passes between the two
            reason["text"] = re.sub(r"just now|\d+ (?:s|min|h)\b(?: ago)?", "TIME", reason["text"])
        assert shell == http, id


@pytest.mark.usefixtures("present")
def test_command_line_lists_workers_in_the_shape_of_the_api(busy: Queue, api: httpx.Client, cli: Cli) -> None:
    shell, http = cli("worker", "list", "--json").json, got(api.get("/api/workers"))
    for worker in (*shell, *http):
        del worker["heartbeatAge"]
    assert shell == http


def test_command_line_answers_in_the_shapes_of_the_api(busy: Queue, api: httpx.Client, cli: Cli) -> None:
    ended(busy, "http", "failed for good")
    ended(busy, "shell", "failed for good")
    calls: list[tuple[str, str, str, Any]] = [
        ("retry shell", "POST", "/api/tasks/http/retry", None),
        ("cancel shell", "POST", "/api/tasks/http/cancel", None),
        ("cancel processing", "POST", "/api/tasks/processing/cancel", None),
        ("pause", "POST", "/api/tasks/pause", None),
        ("pause --type echo", "POST", "/api/tasks/pause", {"type": "echo"}),
        ("resume", "POST", "/api/tasks/resume", None),
        ("rate-limit 5", "POST", "/api/tasks/rate-limit", {"tasksPerSecond": 5}),
        ("rate-limit 5 --type echo", "POST", "/api/tasks/rate-limit", {"tasksPerSecond": 5, "type": "echo"}),
        ("config set max_attempts 4", "PUT", "/api/config/max_attempts", {"value": 4}),
        ("config unset max_attempts", "DELETE", "/api/config/max_attempts", None),
    ]
    for words, method, path, body in calls:
        ran = cli(*words.split(), "--json")
        assert ran.code == 0, ran
        answer, shown = got(api.request(method, path, json=body)), ran.json
        if "shell" in words:
            assert (answer.pop("id"), shown.pop("id")) == ("http", "shell")
        assert shown == answer, words
    made = cli("enqueue", "--command", "true", "--json").json
    assert made.keys() == got(api.post("/api/tasks", json={"type": "echo"}), 201).keys()
