"""The records that go into a store and come out of it, independent of the engine.

Times are microseconds on the store's own clock, except those for people, which are datetimes.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import IntEnum
from typing import Annotated, Any, Self

from msgspec import Meta, Struct

from holdfast.config import Value
from holdfast.core.filter import CREATED
from holdfast.core.job import Instant, Job, JobId, Status
from holdfast.core.lifecycle import Decision
from holdfast.core.settings import Depth
from holdfast.core.starting import Head
from holdfast.errors import HoldfastError


class NewJob(Struct, frozen=True, kw_only=True):
    """A job to be inserted. Waits for `delay` seconds, or until `run_at`, if either is given.

    `token` is random and tells our own row from another's when the outcome of a commit is unknown. It is
    empty for a job with a new id, which is random itself.
    """

    id: str
    type: str
    payload: str
    token: str
    priority: int = 0
    group: str | None = None
    max_attempts: int | None = None
    key: str | None = None
    key_for: float | None = None
    run_at: int | None = None
    delay: float | None = None
    timeout: float | None = None
    parent_id: str | None = None
    max_depth: Depth | None = None
    has_new_id: bool = False
    """Whether its id was made for it just now, so that no other job can have it."""


class Verdict(Struct, frozen=True, kw_only=True):
    """What became of one NewJob: inserted, found again by its key, or refused with an error."""

    id: str
    inserted: bool = False
    error: HoldfastError | None = None
    status: Status = Status.PENDING
    created_at: int = 0
    run_at: int | None = None


class Demand(Struct, frozen=True, kw_only=True):
    """How many jobs of a type a worker has room for, and what holds for those that leave it open."""

    type: str
    limit: int
    max_attempts: int
    timeout: float | None = None


class StoredSettings(Struct, frozen=True):
    """The stored values by (name, type), the paused types, and which change of both this is.

    The type "" stands for the whole queue.
    """

    values: dict[tuple[str, str], Value]
    paused: frozenset[str]
    version: int


class Claim(Struct, frozen=True):
    """An attempt that a worker holds, with what it needs to run."""

    seq: int
    id: str
    type: str
    payload: str
    priority: int
    attempts: int
    max_attempts: int
    version: int
    timeout: float | None
    created_at: int
    due_at: int
    worker_id: str = ""


class Claimed(Struct, frozen=True):
    """The claims made, and what became of the rest that was asked for.

    `wait` is in how many seconds a rate limit lets the next job start. If it `is_stale`, the settings or the
    pauses have changed since they were read, and nothing was claimed.
    """

    claims: list[Claim]
    wait: float | None = None
    limited: frozenset[str] = frozenset()
    """The types of which a limit over all processes kept a job from starting."""
    heads: Mapping[str, Head] | None = None
    """Where the lines of the types now begin that were asked for; those of which nothing can be taken now are
    left out. None where there was only one."""
    used_up: AbstractSet[str] = frozenset()
    """The types whose limits let no job start now."""
    is_stale: bool = False
    is_alone: bool = False
    """Whether the job claimed has lost two workers, and must run alone in its process."""


class Answer(Struct):
    """What has become of a turn's finishes, as `finish_jobs` says it, and of its claim."""

    ended: dict[tuple[int, int], Status] = {}
    claimed: Claimed = Claimed([])


class Finish(Struct, frozen=True, kw_only=True):
    """The end of an attempt, to be written if the attempt still holds its job.

    `expired_only` is the reaper's guard: the lease must have run out as well. `may_be_locked` says that the
    attempt has been inside ctx.transaction(), and might still be.
    """

    seq: int
    type: str
    version: int
    worker_id: str
    attempt: int
    decision: Decision
    started_at: int
    children: tuple[NewJob, ...] = ()
    expired_only: bool = False
    may_be_locked: bool = False


class Expired(Struct, frozen=True):
    """An attempt whose lease has run out. If it `has_started`, its handler has begun for sure."""

    seq: int
    id: str
    type: str
    version: int
    attempts: int
    max_attempts: int
    worker_id: str
    lease_expires_at: int
    started_at: int
    has_started: bool = False


class Beat(Struct, frozen=True):
    """What a heartbeat learned: the attempts that are no longer ours, and those to be cancelled.

    Those `skipped` are still ours, but were not renewed, because another transaction had locked their jobs. A
    worker that is not `registered` was silent for so long that the others forgot it.
    """

    lost: frozenset[tuple[int, int]]
    cancelled: frozenset[tuple[int, int]]
    registered: bool = True
    skipped: frozenset[tuple[int, int]] = frozenset()


RESTARTING = "restarting"
"""The state of a worker that died and is about to be replaced by its supervisor."""


class WorkerRecord(Struct, frozen=True, kw_only=True, rename="camel"):
    """A worker as others see it. The database fills in its times.

    `slots` are the limits that its code sets for a type, where they are below its concurrency, and `backoffs`
    the settings of the back-off that it sets, for the whole queue under "": whoever takes over the jobs of a
    lost worker may not know its code.
    """

    id: str
    pid: int
    host: str
    state: str
    concurrency: int
    types: tuple[str, ...]
    slots: dict[str, int] = {}
    backoffs: dict[str, dict[str, float | str]] = {}
    started_at: Instant | None = None
    heartbeat_at: Instant | None = None
    turned_at: Instant | None = None
    """When its dispatch loop last ran: a heartbeat alone does not show that it makes progress."""


class StopRequest(IntEnum):
    """What a worker has been asked to do."""

    NONE = 0
    IN_ORDER = 1
    AT_ONCE = 2


class Running(Struct, frozen=True, kw_only=True, rename="camel"):
    """A running attempt."""

    id: JobId
    type: str
    worker_id: str
    attempt: int
    started_at: Instant
    lease_expires_at: Instant
    cancel_requested: bool = False


class Waiting(Struct, frozen=True, kw_only=True, rename="camel"):
    """A pending job, and when it became ready to run."""

    id: JobId
    type: str
    since: Instant


class ReusedKey(Struct, frozen=True, kw_only=True, rename="camel"):
    """A key that several jobs of a type have had, one after another."""

    type: str
    key: str
    jobs: int


class Finding(Struct, frozen=True, kw_only=True):
    """One thing that was examined: `level` is ok, warning or problem, `advice` what to do about it."""

    level: str
    check: str
    text: str
    advice: str | None = None

    @classmethod
    def ok(cls, check: str, text: str) -> Self:
        return cls(level="ok", check=check, text=text)

    @classmethod
    def warning(cls, check: str, text: str, advice: str) -> Self:
        return cls(level="warning", check=check, text=text, advice=advice)

    @classmethod
    def problem(cls, check: str, text: str, advice: str) -> Self:
        return cls(level="problem", check=check, text=text, advice=advice)


class TypeRecord(Struct, frozen=True, kw_only=True):
    """A type that some worker has handled: how it runs and the JSON Schema of its payload."""

    type: str
    executor: str
    schema: dict[str, Any]


class LogTail(Struct, frozen=True):
    """The end of a job's output: on which machine the whole is, how long that was, and its last bytes."""

    host: str
    length: int
    tail: bytes


class Minute(Struct, kw_only=True):
    """What one worker did of one type in one minute. `waits` and `runs` count by BUCKETS."""

    minute: int
    type: str
    worker_id: str
    completed: int = 0
    failed: int = 0
    retried: int = 0
    reaped: int = 0
    wait_seconds: float = 0.0
    run_seconds: float = 0.0
    limited_seconds: float = 0.0
    waits: list[int]
    runs: list[int]

    def add(self, part: Minute) -> None:
        """Add another one's figures to these."""
        for name in self.__struct_fields__:
            own, more = getattr(self, name), getattr(part, name)
            if name in ("waits", "runs"):
                setattr(self, name, [a + b for a, b in zip(own, more, strict=True)])
            elif name not in ("minute", "type", "worker_id"):
                setattr(self, name, own + more)


BUCKETS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)
"""Upper bounds in seconds of the wait and run time histograms; a last bucket holds what is longer."""


def empty_minute(minute: int, type: str, worker_id: str) -> Minute:
    size = len(BUCKETS) + 1
    return Minute(minute=minute, type=type, worker_id=worker_id, waits=[0] * size, runs=[0] * size)


HOUR = 60
"""Minutes of an hour."""

LIFETIME = 0
"""The minute under which pruned statistics are added up."""


class Place(Struct, frozen=True, order=True):
    """Where a job stands in a list: by what the list is sorted by, then by its `seq`.

    The key is the instant of its end, its priority, or 0 in a list by creation.
    """

    key: int
    seq: int


class JobFilter(Struct, frozen=True, kw_only=True):
    """Which jobs to list, and in which order: the latest or highest first, unless `ascending`.

    `statuses` may hold RETRYING. `error` is a grouping key, and finds failed jobs only. `since` and `until`
    bound the creation, [since, until), or the end in a list by that, which holds finished jobs only. `after`
    continues after a place. With `brief` the payloads are left empty and the results None, and large ones
    cost nothing.
    """

    statuses: tuple[str, ...] = ()
    type: str | None = None
    group: str | None = None
    parent_id: str | None = None
    error: str | None = None
    since: int | None = None
    until: int | None = None
    sort: str = CREATED
    ascending: bool = False
    limit: int = 50
    offset: int = 0
    after: Place | None = None
    brief: bool = False


class Placed(Struct, frozen=True):
    """A job and where it stands in the list that it was found in."""

    place: Place
    job: Job


class ErrorGroup(Struct, frozen=True, kw_only=True, rename="camel"):
    """Failed jobs of a type with similar errors; `error` is the grouping key."""

    type: str
    error: Annotated[str, Meta(examples=["TimeoutError: no answer after # s"])]
    jobs: int
    last_at: Instant


class GroupActivity(Struct, frozen=True, kw_only=True, rename="camel"):
    """How many jobs of a group wait and run, of one type."""

    type: str
    group: str
    waiting: int
    running: int


class JobsAhead(Struct, frozen=True):
    """How many jobs of its own type wait before one: counted to a cap, and whether there are more."""

    count: int
    is_capped: bool
