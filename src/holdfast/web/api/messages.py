"""Request bodies, and the responses that only the HTTP API has: the others are in observe/shapes.py."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, defstruct

from holdfast.core.filter import MEANINGS, Sort
from holdfast.core.job import Instant, JobId
from holdfast.enqueueing.enqueuer import BATCH
from holdfast.enqueueing.options import OPTIONS, Kind, Option
from holdfast.observe.shapes import Accepted, Answer
from holdfast.reconcile import Report

MOST_IN_BATCH = BATCH
MOST_IDS = 1_000

Order = Literal["asc", "desc"]
ORDER = "desc: latest or highest first"

Text = Annotated[str, Meta(max_length=65_536)]
TypeName = Annotated[
    str, Meta(min_length=1, max_length=255, pattern=r"^[A-Za-z0-9_.:\-]+$", examples=["send_email"])
]
Duration = Annotated[
    float | Text, Meta(description="seconds, or a number with ms, s, m, h, d or w", examples=[30, "5m"])
]


class Body(Struct, kw_only=True, forbid_unknown_fields=True, rename="camel"):
    """A request body: numbers are not text, and unknown fields are errors."""

    EXAMPLE: ClassVar[dict[str, Any] | None] = None


_KINDS: dict[Kind, Any] = {"whole": int, "text": Text, "duration": Duration, "instant": Text}


def _option(option: Option) -> tuple[str, Any, Any]:
    examples = [] if option.example is None else [option.example]
    meaning = Meta(description=option.help, examples=examples or None)
    return option.http_name or option.name, Annotated[_KINDS[option.kind] | None, meaning], None


if TYPE_CHECKING:
    Options = Body
else:
    Options = defstruct(
        "Options",
        [_option(option) for option in OPTIONS.values()],
        bases=(Body,),
        namespace={"__doc__": "Job options."},
        module=__name__,
        kw_only=True,
        rename="camel",
    )


class NewTask(Body):
    """A job to enqueue."""

    EXAMPLE = {
        "type": "send_email",
        "payload": {"to": "user@example.com", "subject": "Welcome"},
        "options": {"maxAttempts": 3, "runAfter": "2026-01-15T10:00:00Z"},
    }

    type: Annotated[TypeName, Meta(description="the job type, which selects the handler")]
    payload: Annotated[dict[str, Any] | None, Meta(description="the arguments of the handler")] = None
    options: Options | None = None


class NewTasks(Body):
    """Jobs to enqueue in one commit: all of them, or none."""

    EXAMPLE = {"tasks": [{"type": "send_email", "payload": {"to": "user@example.com"}}]}

    tasks: Annotated[list[NewTask], Meta(min_length=1, max_length=MOST_IN_BATCH)]


class Retry(Body):
    EXAMPLE = {}

    payload: Annotated[
        dict[str, Any] | None,
        Meta(description="a new payload; a field that shows [redacted] keeps its stored value"),
    ] = None


class OfType(Body):
    EXAMPLE = {"type": "send_email"}

    type: Annotated[TypeName | None, Meta(description="only this type; default: the whole queue")] = None


class RateLimit(OfType, kw_only=True):
    EXAMPLE = {"tasksPerSecond": 10}

    tasks_per_second: Annotated[
        float,
        Meta(
            ge=0, le=1e6, description="maximum number of job starts per second; 0 = unlimited", examples=[10]
        ),
    ]


def _field(name: str, kind: Any, default: Any = None) -> tuple[str, Any, Any]:
    return name, Annotated[kind, Meta(description=MEANINGS.get(name, ORDER))], default


if TYPE_CHECKING:
    Filter = Body
else:
    Filter = defstruct(
        "Filter",
        [
            _field("status", Text | list[Text] | None),
            *(_field(name, Text | None) for name in MEANINGS if name not in ("status", "sort")),
            _field("sort", Sort, "created"),
            _field("order", Order, "desc"),
        ],
        bases=(Body,),
        namespace={"__doc__": "Filters, as for the list of jobs."},
        module=__name__,
        kw_only=True,
        rename="camel",
    )


class Bulk(Body):
    """An action on many jobs: those listed, or all that match a filter."""

    EXAMPLE = {"action": "retry", "filter": {"status": "failed", "type": "send_email"}, "expectedCount": 12}

    action: Annotated[
        Literal["retry", "cancel", "delete"], Meta(extra_json_schema={"type": "string"}, examples=["retry"])
    ]
    ids: Annotated[list[Text], Meta(min_length=1, max_length=MOST_IDS)] | None = None
    filter: Filter | None = None
    expected_count: Annotated[
        Annotated[int, Meta(ge=0)] | None,
        Meta(description="how many jobs you expect; if the number differs, nothing is done (409)"),
    ] = None


class SettingValue(Body):
    EXAMPLE = {"value": "30s"}

    value: Annotated[Text | bool | int | float | None, Meta(description="the new value", examples=["30s"])]
    type: Annotated[TypeName | None, Meta(description="only for this type")] = None


class OfTypes(Body):
    EXAMPLE = {"types": ["create_file"]}

    types: Annotated[
        Annotated[list[TypeName], Meta(min_length=1, max_length=MOST_IDS)] | None,
        Meta(description="only jobs of these types; default: all"),
    ] = None


# Answers.


class Problem(Answer):
    code: Annotated[str, Meta(examples=["not_found"])]
    message: Annotated[str, Meta(examples=["there is no job 'job1'"])]


class Error(Answer):
    """What went wrong: a code for programs and one line for people."""

    error: Problem


class AcceptedTasks(Answer):
    tasks: list[Accepted]
    count: int


class Deleted(Answer):
    deleted: int


class Refusal(Answer):
    id: JobId
    code: str
    message: str


class BulkDone(Answer):
    """The outcome. At most 100 of the refusals are listed."""

    action: str
    matched: int
    done: int
    refused: int
    refusals: list[Refusal]


class Log(Answer):
    id: JobId
    log: str


OneType = Annotated[
    str | UnsetType, Meta(description="present if the request named a type", examples=["send_email"])
]


class Paused(Answer):
    paused: bool
    type: OneType = UNSET


class RateLimited(Answer):
    tasks_per_second: float
    type: OneType = UNSET


class JobType(Answer):
    type: str
    executor: Annotated[str, Meta(examples=["thread"])]
    built_in: bool
    enqueueable: Annotated[bool, Meta(description="whether it is accepted over HTTP")]
    workers: Annotated[int, Meta(description="how many running workers handle it")]
    payload_schema: Annotated[dict[str, Any], Meta(description="the JSON Schema of its payload")]


class Reconciliation(Report):
    """The report of a reconciliation, with the first 1,000 discrepancies, latest jobs first."""


class Reconciling(Answer):
    done: Annotated[int, Meta(description="jobs read so far")]
    total: Annotated[int, Meta(description="jobs to read; 0 until they are counted")]
    started_at: Instant


class ReconciliationState(Answer):
    """The reconciliation now running in this server, and the last report from any process."""

    running: Reconciling | None
    report: Reconciliation | None


class Health(Answer):
    status: str


class Readiness(Answer):
    status: Annotated[Literal["ready", "not ready"], Meta(examples=["ready"])]
    database: str
    workers: int
