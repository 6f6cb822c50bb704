"""The bodies of requests and answers, as the OpenAPI document describes them.

Requests are checked against these. Answers are made by observe/shapes.py; the models here only describe them,
and a test compares the two.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from holdfast.errors import shown

MOST_IN_BATCH = 10_000
MOST_IDS = 1_000

Instant = Annotated[str, Field(examples=["2026-01-15T10:00:00Z"], description="ISO 8601, UTC")]
Id = Annotated[str, Field(examples=["0198c2f4-9a51-7c3e-8f21-6d0b2a9e4c11"])]
TypeName = Annotated[
    str, Field(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_.:\-]+$", examples=["send_email"])
]
Text = Annotated[str, Field(max_length=65_536)]  # a bound also refuses broken characters
State = Literal["scheduled", "pending", "processing", "completed", "failed", "cancelled"]
Duration = Annotated[
    float | Text, Field(description="seconds, or a number with ms, s, m, h, d or w", examples=[30, "5m"])
]


class Body(BaseModel):
    """What a client sends: numbers are not text, and unknown fields are mistakes."""

    model_config = ConfigDict(extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _name_what_is_allowed(cls, given: Any) -> Any:
        if isinstance(given, dict) and (unknown := given.keys() - cls.model_fields.keys()):
            raise ValueError(f"there is no {shown(min(unknown))}; allowed: {', '.join(cls.model_fields)}")
        return given


class Options(Body):
    """What may be said about a job, beside its type and payload."""

    id: Annotated[Text | None, Field(description="the job's id; a UUIDv7 is made if there is none")] = None
    priority: Annotated[int | None, Field(description="higher runs first")] = None
    maxAttempts: Annotated[int | None, Field(description="how often it may start", examples=[3])] = None
    timeout: Annotated[Duration | None, Field(description="how long an attempt may run")] = None
    delay: Annotated[Duration | None, Field(description="run it so much later")] = None
    runAfter: Annotated[
        Text | None, Field(examples=["2026-01-15T10:00:00Z"], description="do not run it before this instant")
    ] = None
    idempotencyKey: Annotated[
        Text | None,
        Field(description="at most one unfinished job of a type holds a key; see Idempotency-Key"),
    ] = None
    keyFor: Annotated[
        Duration | None, Field(description="how much longer the key is held after the job has finished")
    ] = None


class NewTask(Body):
    """A job to be done."""

    type: Annotated[TypeName, Field(description="which handler runs it")]
    payload: Annotated[dict[str, Any] | None, Field(description="what the handler gets")] = None
    options: Options | None = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {
                    "type": "send_email",
                    "payload": {"to": "user@example.com", "subject": "Welcome"},
                    "options": {"maxAttempts": 3, "runAfter": "2026-01-15T10:00:00Z"},
                }
            ]
        }
    )


class NewTasks(Body):
    """Jobs that are stored together, or not at all."""

    tasks: Annotated[list[NewTask], Field(min_length=1, max_length=MOST_IN_BATCH)]

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [{"tasks": [{"type": "send_email", "payload": {"to": "user@example.com"}}]}]
        }
    )


class Retry(Body):
    payload: Annotated[
        dict[str, Any] | None,
        Field(description="run it with this payload; a field that shows [redacted] keeps its stored value"),
    ] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{}]})


class OfType(Body):
    type: Annotated[TypeName | None, Field(description="only this type; left out, the whole queue")] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"type": "send_email"}]})


class RateLimit(OfType):
    tasksPerSecond: Annotated[float, Field(ge=0, le=1e6, description="0 = unlimited", examples=[10])]

    model_config = ConfigDict(json_schema_extra={"examples": [{"tasksPerSecond": 10}]})


class Filter(Body):
    """Which jobs, as in a list."""

    status: Annotated[
        Text | list[Text] | None, Field(description="one state or several, retrying included")
    ] = None
    type: TypeName | None = None
    error: Annotated[Text | None, Field(description="failed jobs with this error")] = None
    since: Annotated[Text | None, Field(description="created at this instant or later")] = None
    until: Annotated[Text | None, Field(description="created before this instant")] = None
    search: Annotated[
        Text | None, Field(description="what a search finds among the newest 10,000 of the other filters")
    ] = None


class Bulk(Body):
    """The same for many jobs: those named, or all that a filter finds."""

    action: Literal["retry", "cancel", "delete"]
    ids: Annotated[list[Text] | None, Field(min_length=1, max_length=MOST_IDS)] = None
    filter: Filter | None = None
    expectedCount: Annotated[
        int | None,
        Field(ge=0, description="how many jobs you expect; if it is another number, nothing is done (409)"),
    ] = None

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"action": "retry", "filter": {"status": "failed", "type": "send_email"}, "expectedCount": 12}
            ]
        }
    )


class SettingValue(Body):
    value: Annotated[Text | int | float | None, Field(description="what it is to be", examples=["30s"])]
    type: Annotated[TypeName | None, Field(description="only for this type")] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"value": "30s"}]})


class OfTypes(Body):
    types: Annotated[
        list[TypeName] | None,
        Field(min_length=1, max_length=MOST_IDS, description="only jobs of these types; left out, all"),
    ] = None

    model_config = ConfigDict(json_schema_extra={"examples": [{"types": ["create_file"]}]})


# Answers.


class Problem(BaseModel):
    code: Annotated[str, Field(examples=["not_found"])]
    message: Annotated[str, Field(examples=["there is no job 'job1'"])]


class Error(BaseModel):
    """What was wrong, in one line."""

    error: Problem


class Accepted(BaseModel):
    """The job is stored: it survives a crash and power loss from now on."""

    id: Id
    type: str
    status: State
    createdAt: Instant


class AcceptedTasks(BaseModel):
    tasks: list[Accepted]
    count: int


class Progress(BaseModel):
    fraction: float
    message: str | None


class TaskItem(BaseModel):
    """A job as an item of a list."""

    id: Id
    type: str
    status: State
    priority: int
    attempts: int
    maxAttempts: int
    version: int
    idempotencyKey: str | None
    keyFor: float | None
    runAfter: Instant | None
    nextRetryAt: Instant | None
    timeout: float | None
    error: str | None
    progress: Progress | None
    parentId: str | None
    cancelRequested: bool
    workerId: str | None
    leaseExpiresAt: Instant | None
    createdAt: Instant
    updatedAt: Instant
    lastAttemptAt: Instant | None
    completedAt: Instant | None


class Failure(BaseModel):
    """A failed attempt. Those of commands also have exitCode and the tail of the output."""

    attempt: int
    startedAt: Instant
    finishedAt: Instant
    worker: str | None
    error: str
    traceback: str | None


class Task(TaskItem):
    """Everything about a job."""

    payload: dict[str, Any]
    result: Any
    errors: list[Failure]


class FullOrItem(TaskItem):
    payload: Annotated[dict[str, Any], Field(description="with full=true")] = {}
    result: Annotated[Any, Field(description="with full=true")] = None
    errors: Annotated[list[Failure], Field(description="with full=true")] = []


class TaskList(BaseModel):
    """A page of jobs."""

    tasks: list[FullOrItem]
    total: Annotated[
        int, Field(description="how many there are, exact to 10,000; of a search, how many this page has")
    ]
    totalIsCapped: Annotated[bool, Field(description="whether there are, or may be, more than total")]
    limit: int
    offset: int
    nextCursor: Annotated[str | None, Field(description="the cursor of the next page; null on the last")]
    examined: Annotated[int, Field(description="with search: how many jobs it has read")] = 0


class Retried(BaseModel):
    id: Id
    status: State
    attempts: int
    nextRetryAt: Instant | None


class Cancelled(BaseModel):
    id: Id
    status: State
    cancelRequested: bool


class Deleted(BaseModel):
    deleted: int


class Refusal(BaseModel):
    id: Id
    code: str
    message: str


class BulkDone(BaseModel):
    """What came of it. At most 100 of the refusals are listed."""

    action: str
    matched: int
    done: int
    refused: int
    refusals: list[Refusal]


class RunningJob(BaseModel):
    id: Id
    type: str
    attempt: int
    startedAt: Instant
    cancelRequested: bool


class Waiting(BaseModel):
    id: Id
    type: str
    since: Instant


class Counts(BaseModel):
    scheduled: int
    pending: int
    processing: int
    completed: int
    failed: int
    cancelled: int


class Stats(Counts):
    """Jobs by state, in all and by type, and what a person should know."""

    byType: dict[str, Counts]
    workers: int
    retrying: Annotated[int, Field(description="of the scheduled ones, those that wait for a retry")]
    paused: Annotated[bool, Field(description="whether the whole queue is paused")]
    pausedTypes: list[str]
    stuck: list[RunningJob]
    withoutWorker: Annotated[dict[str, int], Field(description="waiting jobs of types that nobody handles")]
    oldestWaiting: Waiting | None


class Paused(BaseModel):
    paused: bool
    type: Annotated[str, Field(description="if one was named")] = ""


class RateLimited(BaseModel):
    tasksPerSecond: float
    type: Annotated[str, Field(description="if one was named")] = ""


class Reason(BaseModel):
    code: str
    text: str
    until: str | None


class Why(BaseModel):
    """Why a job is not running (yet), and when that will change; for a finished one, how it ended."""

    id: Id
    status: State
    reasons: list[Reason]


class Log(BaseModel):
    id: Id
    log: str


class Worker(BaseModel):
    id: str
    pid: int
    host: str
    state: str
    concurrency: int
    types: list[str]
    startedAt: Instant
    heartbeatAt: Instant
    heartbeatAge: float
    turnedAt: Annotated[Instant | None, Field(description="when its loop last came round")]
    running: list[RunningJob]


class JobType(BaseModel):
    type: str
    executor: Annotated[str, Field(examples=["thread"])]
    builtIn: bool
    enqueueable: Annotated[bool, Field(description="whether it is taken over HTTP")]
    workers: Annotated[int, Field(description="how many running workers handle it")]
    payloadSchema: Annotated[dict[str, Any], Field(description="the JSON Schema of its payload")]


class ErrorGroup(BaseModel):
    """Failed jobs of a type whose errors are alike: the same but for numbers."""

    type: str
    error: Annotated[str, Field(examples=["TimeoutError: no answer after # s"])]
    jobs: int
    lastAt: Instant


class FailedJobs(BaseModel):
    total: int
    newest: list[TaskItem]
    groups: Annotated[list[ErrorGroup], Field(description="by type and error, the largest first")]


class Durations(BaseModel):
    count: Annotated[int, Field(description="attempts that were measured")]
    mean: float
    p50: float | None
    p95: float | None
    meanWait: float


class ReusedKey(BaseModel):
    type: str
    key: str
    jobs: int


class Report(BaseModel):
    """The standing questions about the queue, answered."""

    outstanding: dict[str, dict[str, int]]
    failed: FailedJobs
    stuck: list[RunningJob]
    durations: dict[str, Durations]
    duplicates: list[ReusedKey]
    lastHour: dict[str, dict[str, int]]


class Covered(BaseModel):
    """What a reconciliation could speak of: the completed jobs of a type that are still kept."""

    type: str
    completed: int
    since: Annotated[Instant | None, Field(description="when the first of them completed")]
    removed: Annotated[int, Field(description="jobs of the type that are no longer kept, however they ended")]


class Discrepancy(BaseModel):
    """A completed job whose effect is not there, or could not be checked."""

    jobId: Id
    type: str
    subject: Annotated[str, Field(examples=["file /srv/shop/order-1.json"])]
    problem: Annotated[str, Field(examples=["the file is missing"])]
    completedAt: Instant
    isChecked: Annotated[bool, Field(description="false if it could not be checked")]


class Reconciliation(BaseModel):
    """What came of comparing completed jobs with the world."""

    startedAt: Instant
    finishedAt: Instant
    covered: list[Covered]
    leftOut: Annotated[list[str], Field(description="types with completed jobs that were not asked about")]
    jobs: Annotated[int, Field(description="completed jobs that were read")]
    checked: Annotated[int, Field(description="effects that were compared with the world")]
    superseded: Annotated[int, Field(description="jobs that a later one for the same thing follows")]
    unsettled: Annotated[int, Field(description="differences that a job at work may account for")]
    differing: int
    unchecked: Annotated[int, Field(description="effects that could not be checked")]
    discrepancies: Annotated[list[Discrepancy], Field(description="the first 1,000, the latest jobs first")]


class Reconciling(BaseModel):
    done: Annotated[int, Field(description="jobs read so far")]
    total: Annotated[int, Field(description="of so many; 0 until they are counted")]
    startedAt: Instant


class ReconciliationState(BaseModel):
    """The reconciliation that runs in this server, and the last report, whichever process made it."""

    running: Reconciling | None
    report: Reconciliation | None


class Setting(BaseModel):
    key: str
    value: str | int | float | None
    type: str | None


class Health(BaseModel):
    status: str


class Readiness(BaseModel):
    status: Literal["ready", "not ready"]
    database: str
    workers: int
