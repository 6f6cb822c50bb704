"""The JSON shapes: every field by its name, instants in UTC with a Z, nothing left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from msgspec import to_builtins

from holdfast.core.explain import Reason
from holdfast.core.filter import COUNTED
from holdfast.core.job import Failure, Job, Progress, Status
from holdfast.listing.pages import Page
from holdfast.observe import shapes
from holdfast.store.records import ErrorGroup, Running, WorkerRecord

NOW = datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC)
LATER = datetime(2030, 1, 2, 3, 4, 6, 500, tzinfo=UTC)


def job(**fields: Any) -> Job:
    return Job(
        **{
            "id": "job1",
            "type": "email",
            "payload": {"to": "a@b.c"},
            "status": Status.PENDING,
            "created_at": NOW,
            "updated_at": NOW,
            **fields,
        }
    )


FULL = job(
    status=Status.PROCESSING,
    priority=5,
    group="customer:42",
    attempts=2,
    max_attempts=3,
    version=4,
    key="k",
    key_for=60.0,
    run_at=NOW,
    timeout=30.0,
    result={"sent": 1},
    error="OSError: no route",
    errors=(
        Failure(
            attempt=1,
            started_at=NOW,
            finished_at=LATER,
            worker_id="w1",
            error="OSError: no route",
            traceback="Traceback …",
            detail={"exitCode": 3, "output": "tail"},
        ),
    ),
    progress=Progress(0.5, "half"),
    parent_id="parent",
    cancel_requested=True,
    worker_id="w2",
    lease_expires_at=LATER,
    next_retry_at=LATER,
    started_at=NOW,
    finished_at=LATER,
)

ITEM = {
    "id": "job1",
    "type": "email",
    "status": "processing",
    "priority": 5,
    "group": "customer:42",
    "attempts": 2,
    "maxAttempts": 3,
    "version": 4,
    "idempotencyKey": "k",
    "keyFor": 60.0,
    "runAfter": "2030-01-02T03:04:05Z",
    "nextRetryAt": "2030-01-02T03:04:06.000500Z",
    "timeout": 30.0,
    "error": "OSError: no route",
    "progress": {"fraction": 0.5, "message": "half"},
    "parentId": "parent",
    "cancelRequested": True,
    "workerId": "w2",
    "leaseExpiresAt": "2030-01-02T03:04:06.000500Z",
    "createdAt": "2030-01-02T03:04:05Z",
    "updatedAt": "2030-01-02T03:04:05Z",
    "lastAttemptAt": "2030-01-02T03:04:05Z",
    "completedAt": "2030-01-02T03:04:06.000500Z",
}


def test_item_has_every_field_but_payload_result_and_history() -> None:
    assert shapes.task_item(FULL) == ITEM


def test_task_has_everything() -> None:
    assert shapes.task(FULL) == {
        **ITEM,
        "payload": {"to": "a@b.c"},
        "result": {"sent": 1},
        "errors": [
            {
                "attempt": 1,
                "startedAt": "2030-01-02T03:04:05Z",
                "finishedAt": "2030-01-02T03:04:06.000500Z",
                "worker": "w1",
                "error": "OSError: no route",
                "traceback": "Traceback …",
                "exitCode": 3,
                "output": "tail",
            }
        ],
    }


def test_field_without_a_value_is_null_not_missing() -> None:
    bare = shapes.task(job())
    assert bare.keys() == shapes.task(FULL).keys()
    empty = {name for name, value in bare.items() if value is None}
    assert empty >= {"maxAttempts", "runAfter", "progress", "workerId", "completedAt", "result", "error"}
    assert bare["errors"] == []


def test_evidence_of_a_handler_does_not_replace_what_we_recorded() -> None:
    entry = Failure(
        attempt=2,
        started_at=NOW,
        finished_at=NOW,
        worker_id=None,
        error="Boom",
        detail={"attempt": 99, "error": "another", "worker": "me", "exitCode": 1},
    )
    shape = shapes.failure(entry)
    assert (shape["attempt"], shape["error"], shape["worker"]) == (2, "Boom", None)
    assert shape["exitCode"] == 1


def test_answers_hold_what_each_command_promises() -> None:
    assert shapes.accepted(FULL) == {name: ITEM[name] for name in ("id", "type", "status", "createdAt")}
    assert shapes.retried(FULL) == {name: ITEM[name] for name in ("id", "status", "attempts", "nextRetryAt")}
    assert shapes.cancelled(FULL) == {name: ITEM[name] for name in ("id", "status", "cancelRequested")}


def listed(
    tasks: list[dict[str, Any]],
    *,
    total: int | None,
    limit: int,
    offset: int,
    following: str | None,
    examined: int | None = None,
) -> dict[str, Any]:
    page = Page(jobs=[], next=following, previous=None, total=total, examined=examined)
    return shapes.task_list(tasks, page, limit=limit, offset=offset)


@pytest.mark.parametrize("shape", [shapes.task_item, shapes.task])
def test_page_holds_tasks_and_where_it_lies(shape: Callable[[Job], dict[str, Any]]) -> None:
    shown = [shape(found) for found in (FULL, job())]
    page = listed(shown, total=7, limit=2, offset=4, following="17")
    assert page == {
        "tasks": shown,
        "total": 7,
        "totalIsCapped": False,
        "limit": 2,
        "offset": 4,
        "nextCursor": "17",
    }


def test_last_page_has_no_cursor() -> None:
    page = listed([], total=0, limit=2, offset=0, following=None)
    assert page["nextCursor"] is None


def test_payload_result_and_details_are_as_their_viewer_may_see_them() -> None:
    shape = shapes.task(FULL, lambda value: {"hidden": sorted(value)})
    assert (shape["payload"], shape["result"]) == ({"hidden": ["to"]}, {"hidden": ["sent"]})
    [shown], [failure] = shape["errors"], FULL.errors
    assert shown["hidden"] == sorted(failure.detail or {})
    whole = shapes.task(FULL)
    plain = {key: value for key, value in whole["errors"][0].items() if key not in (failure.detail or {})}
    assert {key: value for key, value in shown.items() if key != "hidden"} == plain
    assert {**shape, "payload": FULL.payload, "result": FULL.result, "errors": whole["errors"]} == whole


def test_total_that_reached_the_cap_says_so() -> None:
    page = listed([], total=COUNTED + 1, limit=2, offset=0, following=None)
    assert (page["total"], page["totalIsCapped"]) == (10_000, True)
    page = listed([], total=COUNTED, limit=2, offset=0, following=None)
    assert (page["total"], page["totalIsCapped"]) == (10_000, False)


def test_search_counts_its_page_and_says_whether_there_may_be_more() -> None:
    shown = [shapes.task_item(FULL)]
    page = listed(shown, total=None, limit=1, offset=0, following="17", examined=400)
    assert page == {
        "tasks": shown,
        "total": 1,
        "totalIsCapped": True,
        "limit": 1,
        "offset": 0,
        "nextCursor": "17",
        "examined": 400,
    }
    last = listed([], total=None, limit=1, offset=0, following=None, examined=0)
    assert (last["total"], last["totalIsCapped"], last["examined"]) == (0, False, 0)


def test_list_without_a_search_does_not_speak_of_one() -> None:
    assert "examined" not in listed([], total=0, limit=1, offset=0, following="17")


def test_group_of_errors_has_its_type_its_number_and_its_last() -> None:
    group = ErrorGroup(type="send_email", error="TimeoutError: no answer after # s", jobs=3, last_at=LATER)
    assert to_builtins(group) == {
        "type": "send_email",
        "error": "TimeoutError: no answer after # s",
        "jobs": 3,
        "lastAt": "2030-01-02T03:04:06.000500Z",
    }


def test_stats_are_named_as_over_http_and_types_keep_their_names() -> None:
    states = {**dict.fromkeys(map(str, Status), 0), "pending": 1}
    counts: dict[str, Any] = {**states, "by_type": {"send_email": states}, "workers": 2}
    shape = shapes.shape_of(shapes.QueueCounts(**counts))
    assert shape == {**states, "byType": {"send_email": states}, "workers": 2}


def running(id: str, worker_id: str) -> Running:
    return Running(
        id=id, type="email", worker_id=worker_id, attempt=2, started_at=NOW, lease_expires_at=LATER
    )


def record(**fields: Any) -> WorkerRecord:
    return WorkerRecord(
        **{
            "id": "w1",
            "host": "here",
            "pid": 7,
            "state": "running",
            "concurrency": 4,
            "types": ("email", "crawl"),
            "started_at": NOW,
            "heartbeat_at": NOW,
            **fields,
        }
    )


def test_worker_shows_what_it_runs_and_how_long_it_was_silent() -> None:
    jobs = [running("a", "w1"), running("b", "w2")]
    shape = shapes.worker(record(turned_at=LATER), jobs, NOW + timedelta(seconds=3))
    assert shape == {
        "id": "w1",
        "pid": 7,
        "host": "here",
        "state": "running",
        "concurrency": 4,
        "types": ["email", "crawl"],
        "startedAt": "2030-01-02T03:04:05Z",
        "heartbeatAt": "2030-01-02T03:04:05Z",
        "heartbeatAge": 3.0,
        "turnedAt": "2030-01-02T03:04:06.000500Z",
        "running": [
            {
                "id": "a",
                "type": "email",
                "attempt": 2,
                "startedAt": "2030-01-02T03:04:05Z",
                "cancelRequested": False,
            }
        ],
    }


def test_heartbeat_from_a_clock_that_is_ahead_is_not_of_negative_age() -> None:
    assert shapes.worker(record(), [], NOW - timedelta(seconds=3))["heartbeatAge"] == 0.0
    assert shapes.worker(record(heartbeat_at=None), [], NOW)["heartbeatAge"] is None


def test_worker_whose_loop_never_came_round_says_null() -> None:
    assert shapes.worker(record(), [], NOW)["turnedAt"] is None


def test_reasons_are_for_programs_and_for_people() -> None:
    found = [
        Reason("paused", "the whole queue is paused"),
        Reason("back-off", "later", "2030-01-01T00:00:00Z"),
    ]
    assert shapes.reasons(job(), found) == {
        "id": "job1",
        "status": "pending",
        "reasons": [
            {"code": "paused", "text": "the whole queue is paused", "until": None},
            {"code": "back-off", "text": "later", "until": "2030-01-01T00:00:00Z"},
        ],
    }


@pytest.mark.parametrize(
    "shape",
    [
        shapes.task(FULL),
        listed([shapes.task(FULL)], total=1, limit=1, offset=0, following=None),
        shapes.worker(record(), [running("a", "w1")], NOW),
        shapes.reasons(FULL, [Reason("a", "b")]),
    ],
    ids=["task", "list", "worker", "reasons"],
)
def test_shapes_are_plain_json(shape: dict[str, Any]) -> None:
    assert json.loads(json.dumps(shape)) == shape
    assert type(shape.get("status", "")) is str


def test_what_is_hidden_is_a_field_of_its_record() -> None:
    for record, hidden in shapes.HIDDEN.items():
        assert {*hidden} <= {*record.__struct_fields__}
        assert {*shapes.shown_fields(record)} == {*record.__struct_fields__} - {*hidden}
