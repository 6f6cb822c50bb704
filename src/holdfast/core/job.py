"""A job: its fields and states, and which ids and types are valid."""

from __future__ import annotations

import re
from datetime import datetime
from enum import StrEnum
from typing import Annotated, Any

from msgspec import Meta, Struct, field

from holdfast.core.check import short_text, text
from holdfast.core.clock import from_datetime
from holdfast.errors import ConfigError, JobNotFound
from holdfast.text import shown


class Status(StrEnum):
    """The six states of a job."""

    SCHEDULED = "scheduled"
    PENDING = "pending"
    PROCESSING = "processing"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


FINISHED = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})
UNFINISHED = tuple(status for status in Status if status not in FINISHED)

RETRYING = "retrying"
"""A filter, not a state: scheduled after a failed attempt."""

# The words that other specifications use for our states.
_OTHER_WORDS = {
    "dead": "failed",
    "queued": "pending",
    "claimed": "processing",
    "done": "completed",
}


JobId = Annotated[str, Meta(examples=["0198c2f4-9a51-7c3e-8f21-6d0b2a9e4c11"])]
Instant = Annotated[datetime, Meta(tz=True, description="ISO 8601, UTC", examples=["2026-01-15T10:00:00Z"])]


class Failure(Struct, frozen=True, kw_only=True, rename="camel"):
    """One failed attempt in a job's history. Attempts of commands also have exitCode and output."""

    attempt: int
    started_at: Instant
    finished_at: Instant
    worker_id: str | None = field(name="worker")
    error: str
    traceback: str | None = None
    detail: dict[str, Any] | None = None


class Progress(Struct, frozen=True):
    """The progress that a running attempt reported, from 0 to 1."""

    fraction: float
    message: str | None = None


class Job(Struct, frozen=True, kw_only=True, rename="camel"):
    """A job as it was when it was read. To change one, use the queue.

    As JSON its fields have these names in camelCase, or the ones given here.
    """

    id: JobId
    type: str
    payload: dict[str, Any]
    status: Status
    priority: int = 0
    group: str | None = None
    attempts: int = 0
    max_attempts: int | None = None
    limit_is_open: bool = False
    """Whether its handler, which isn't known here, may still set a different `max_attempts`."""
    version: int = 0
    key: str | None = field(default=None, name="idempotencyKey")
    key_for: float | None = None
    run_at: Instant | None = field(default=None, name="runAfter")
    next_retry_at: Instant | None = None
    timeout: float | None = None
    result: Any = None
    error: str | None = None
    errors: tuple[Failure, ...] = ()
    progress: Progress | None = None
    parent_id: str | None = None
    cancel_requested: bool = False
    worker_id: str | None = None
    lease_expires_at: Instant | None = None
    created_at: Instant
    updated_at: Instant
    started_at: Instant | None = field(default=None, name="lastAttemptAt")
    finished_at: Instant | None = field(default=None, name="completedAt")

    @property
    def origin(self) -> str:
        """An id that no other job has, in this queue or any other."""
        return f"{self.id}@{from_datetime(self.created_at)}"

    @property
    def is_finished(self) -> bool:
        return self.status in FINISHED

    @property
    def is_asked_to_stop(self) -> bool:
        """Whether it was cancelled while running, and is still running."""
        return self.cancel_requested and not self.is_finished


PRIORITIES = range(-(2**31), 2**31)

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_TYPE = re.compile(r"[A-Za-z0-9_.:-]{1,255}")
# These words are paths of the HTTP API, beside /api/tasks/{id}.
RESERVED_IDS = frozenset({"stats", "batch", "bulk", "pause", "resume", "rate-limit"})


def check_id(value: object) -> str:
    if not isinstance(value, str) or not _ID.fullmatch(value):
        raise ConfigError(
            f"{shown(value)} is not a valid job id: use 1 to 128 of A-Z a-z 0-9 . _ : -,"
            " starting with a letter or digit"
        )
    if value in RESERVED_IDS:
        raise ConfigError(f"{value!r} is not a valid job id: {', '.join(sorted(RESERVED_IDS))} are reserved")
    return str.__str__(value)


def could_be_id(value: object) -> bool:
    """Whether a job may have this id. What is not text was never meant to be one, and is an error."""
    return _ID.fullmatch(text("job_id", value)) is not None


def require_possible_id(value: str) -> None:
    """Raise JobNotFound for text that can't be an id: not every database accepts it in a query."""
    if not could_be_id(value):
        raise JobNotFound(value)


def check_type(value: object) -> str:
    if not isinstance(value, str) or not _TYPE.fullmatch(value):
        raise ConfigError(f"{shown(value)} is not a valid job type: use 1 to 255 of A-Z a-z 0-9 _ . : -")
    return str.__str__(value)


MAX_GROUP_LENGTH = 256


def check_group(name: str, value: object) -> str:
    group = short_text(name, value, MAX_GROUP_LENGTH)
    if group != group.strip():  # nobody would see it: another group, with a limit of its own
        raise ConfigError(f"must not begin or end with a space: {shown(group)}", option=name)
    return group


def base_type(type: str) -> str:
    """The type whose handler runs a lane: shell for shell:media."""
    return type.partition(":")[0]


def names_of(type: str) -> tuple[str, ...]:
    """The names whose settings and pauses hold for a type, its own first: pay:eu, pay, and "" for all."""
    base = base_type(type)
    return (type, base, "") if type != base else (type, "") if type else ("",)


def parse_status(word: object) -> Status | str:
    """A filter's word as a Status, or RETRYING. The terms of other queues are accepted too."""
    known = _OTHER_WORDS.get(word, word) if isinstance(word, str) else ""
    if known == RETRYING:
        return RETRYING
    try:
        return Status(known)
    except ValueError:
        allowed = [*Status, RETRYING, *_OTHER_WORDS]
        raise ConfigError(f"{shown(word)} is not a status; allowed: {', '.join(allowed)}") from None
