"""How jobs, workers and counts look as JSON: the shapes that the HTTP API and `queuectl --json` share.

A record's shape follows from its Struct: names, order and types stand there, and HIDDEN says what is not
shown. An answer that is more than a record is a Struct here. The OpenAPI document is made from both.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from functools import cache, partial
from typing import Annotated, Any

from msgspec import UNSET, Meta, Struct, UnsetType, convert, to_builtins
from msgspec.structs import asdict

from holdfast.config import Value
from holdfast.core.explain import Reason
from holdfast.core.filter import COUNTED
from holdfast.core.job import Failure, Instant, Job, JobId, Status
from holdfast.core.redact import redact
from holdfast.listing.pages import Page
from holdfast.observe.overview import Answers, Durations, Overview
from holdfast.store.records import ErrorGroup, GroupActivity, ReusedKey, Running, Waiting, WorkerRecord

WHOLE = ("payload", "result", "errors")
"""The fields that a task has in addition to those of a list item."""

HIDDEN: dict[type[Struct], tuple[str, ...]] = {
    Job: ("limit_is_open",),
    Failure: ("detail",),  # its fields stand beside the others
    Running: ("worker_id", "lease_expires_at"),
    WorkerRecord: ("slots", "backoffs"),
}
"""The fields of records that are not shown."""


@cache
def shown_fields(record: type[Struct], without: tuple[str, ...] = ()) -> dict[str, str]:
    """The fields of a record that are shown, each with its name in JSON."""
    hidden = {*without, *(name for kind in record.__mro__ for name in HIDDEN.get(kind, ()))}
    names = zip(record.__struct_fields__, record.__struct_encode_fields__, strict=True)
    return {field: name for field, name in names if field not in hidden}


def _shape(record: Struct, without: tuple[str, ...] = ()) -> dict[str, Any]:
    fields = shown_fields(type(record), without)
    shape: dict[str, Any] = to_builtins({name: getattr(record, field) for field, name in fields.items()})
    return shape


def _refer(name: str) -> Meta:
    return Meta(extra_json_schema={"$ref": f"#/components/schemas/{name}"})


Shape = dict[str, Any]
"""A record as it is shown."""

TaskItem = Annotated[Shape, _refer("TaskItem")]
FullOrItem = Annotated[Shape, _refer("FullOrItem")]
RunningJob = Annotated[Shape, _refer("RunningJob")]
Task = Annotated[Shape, _refer("Task")]


class Answer(Struct, kw_only=True, rename="camel"):
    """An answer that is more than a record."""


def shape_of(answer: Answer) -> Shape:
    made: Shape = to_builtins(answer)
    return made


# Jobs.


def task(job: Job, shown: Callable[[Any], Any] = redact) -> Shape:
    """Everything about a job; its payload, result and details of failures as `shown` gives them: redacted,
    unless somebody asks for secrets."""
    return {
        **task_item(job),
        "payload": shown(job.payload),
        "result": shown(job.result),
        "errors": [failure(entry, shown) for entry in job.errors],
    }


def task_item(job: Job) -> Shape:
    """A job as an item of a list: without payload, result and history."""
    return _shape(job, WHOLE)


def failure(entry: Failure, shown: Callable[[Any], Any] = redact) -> Shape:
    """One failed attempt of a job's history; its details as `shown` gives them."""
    return {**shown(entry.detail or {}), **_shape(entry)}


class Accepted(Answer):
    """The job is stored, and survives a crash or power loss."""

    id: JobId
    type: str
    status: Status
    created_at: Instant


class Retried(Answer):
    id: JobId
    status: Status
    attempts: int
    next_retry_at: Instant | None


class Cancelled(Answer):
    id: JobId
    status: Status
    cancel_requested: bool


def _answer(kind: type[Answer], job: Job) -> Shape:
    return shape_of(convert(job, kind, from_attributes=True))


accepted, retried, cancelled = (partial(_answer, kind) for kind in (Accepted, Retried, Cancelled))
"""The answers to an enqueue, a retry and a cancellation, for a job."""


class TaskList(Answer):
    """A page of jobs."""

    tasks: list[FullOrItem]
    total: Annotated[
        int,
        Meta(description=f"number of matching jobs, exact to {COUNTED:,}; for a search, those on this page"),
    ]
    total_is_capped: Annotated[bool, Meta(description="whether there are, or may be, more than total")]
    limit: int
    offset: int
    next_cursor: Annotated[str | None, Meta(description="cursor of the next page; null on the last page")]
    examined: Annotated[int | UnsetType, Meta(description="for a search: number of jobs examined")] = UNSET


def task_list(tasks: list[Shape], page: Page, *, limit: int, offset: int) -> Shape:
    """A page as these tasks or items, and where the next one begins; `total` is shown up to COUNTED.

    What a search finds beyond its page is not counted: it has no total, but says how many it has examined.
    """
    total = page.total
    return shape_of(
        TaskList(
            tasks=tasks,
            total=len(tasks) if total is None else min(total, COUNTED),
            total_is_capped=page.next is not None if total is None else total > COUNTED,
            limit=limit,
            offset=offset,
            next_cursor=page.next,
            examined=UNSET if page.examined is None else page.examined,
        )
    )


class Why(Answer):
    """Why a job is not running, and when that will change; for a finished job, how it ended."""

    id: JobId
    status: Status
    reasons: list[Reason]


def reasons(job: Job, found: Sequence[Reason]) -> Shape:
    """Why a job is not running."""
    return shape_of(Why(id=job.id, status=job.status, reasons=list(found)))


# The queue.


class Counts(Answer):
    scheduled: int
    pending: int
    processing: int
    completed: int
    failed: int
    cancelled: int


class QueueCounts(Counts):
    """What `Queue.stats` returns."""

    by_type: dict[str, Counts]
    workers: int


class Stats(QueueCounts):
    """Job counts by state, in total and by type, and what needs attention."""

    retrying: Annotated[int, Meta(description="scheduled jobs that are waiting for a retry")]
    paused: Annotated[bool, Meta(description="whether the whole queue is paused")]
    paused_types: list[str]
    stuck: list[RunningJob]
    without_worker: Annotated[
        dict[str, int], Meta(description="waiting jobs of types that no running worker handles")
    ]
    oldest_waiting: Waiting | None
    busiest_groups: Annotated[
        list[GroupActivity], Meta(description="the groups with the most jobs waiting or running")
    ]


def overview(view: Overview) -> Shape:
    """The counts of `Queue.stats`, and what needs attention."""
    return shape_of(
        Stats(
            **view.counts,
            retrying=sum(view.retrying.values()),
            paused="" in view.paused,
            paused_types=[type for type in view.paused if type],
            stuck=[_shape(job) for job in view.stuck],
            without_worker=view.without_worker,
            oldest_waiting=view.oldest,
            busiest_groups=view.groups,
        )
    )


class FailedJobs(Answer):
    total: int
    newest: list[TaskItem]
    groups: Annotated[list[ErrorGroup], Meta(description="grouped by type and error, largest first")]


class Report(Answer):
    """Backlog, failures, stuck jobs and durations."""

    outstanding: dict[str, dict[str, int]]
    failed: FailedJobs
    stuck: list[RunningJob]
    durations: dict[str, Durations]
    duplicates: list[ReusedKey]
    last_hour: dict[str, dict[Status, int]]


def report(found: Answers) -> Shape:
    """The report as JSON."""
    return shape_of(
        Report(
            outstanding=found.outstanding,
            failed=FailedJobs(
                total=found.failed_total,
                newest=[task_item(job) for job in found.failed],
                groups=found.error_groups,
            ),
            stuck=[_shape(job) for job in found.stuck],
            durations=found.durations,
            duplicates=found.reused_keys,
            last_hour=found.last_hour,
        )
    )


class Worker(WorkerRecord, frozen=True, kw_only=True, rename="camel"):
    """A worker, its last heartbeat, and what it is running. `turnedAt` is when its dispatch loop last ran."""

    heartbeat_age: float | None
    running: list[RunningJob]


def worker(record: WorkerRecord, running: Iterable[Running], now: datetime) -> Shape:
    """A worker and what it runs."""
    age = None if record.heartbeat_at is None else max(0.0, (now - record.heartbeat_at).total_seconds())
    held = [_shape(job) for job in running if job.worker_id == record.id]
    shape = _shape(Worker(**asdict(record), heartbeat_age=age, running=held))
    return {**shape, "types": list(record.types)}


class Setting(Answer):
    """The value in effect of one setting."""

    key: str
    value: Annotated[Value, Meta(examples=["30s"])]
    type: str | None


def setting(name: str, value: Value, type: str | None) -> Shape:
    return shape_of(Setting(key=name, value=value, type=type))


def settings(values: Mapping[str, Value], stored: Mapping[tuple[str, str], Value], only: str | None) -> Shape:
    """The value in effect of every setting, and what is stored for all types, or for one."""
    by_type: dict[str, dict[str, Value]] = {}
    for (name, type), value in sorted(stored.items()):
        if type and only in (None, type):
            by_type.setdefault(type, {})[name] = value
    return {**values, "byType": by_type}
