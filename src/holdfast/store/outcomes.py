"""What becomes of new jobs and of attempts, as rows and verdicts that are the same on every engine."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.core.clock import microseconds
from holdfast.core.error_group import error_group
from holdfast.core.job import FINISHED, Status
from holdfast.core.payload import same_json
from holdfast.errors import KeyTaken, QueueFull
from holdfast.store.database import Session
from holdfast.store.records import Finish, NewJob, Verdict


def inserted(job: NewJob, status: str, created_at: int, run_at: int | None) -> Verdict:
    return Verdict(id=job.id, inserted=True, status=Status(status), created_at=created_at, run_at=run_at)


def found_by_key(job: NewJob, id: str, token: str, status: str, created_at: int, payload: str) -> Verdict:
    """The verdict where another holds the key: the answer if its payload is the same, else the error."""
    error = None if same_json(payload, job.payload) else KeyTaken(id, job.key or "")
    is_ours = (id, token) == (job.id, job.token)
    return Verdict(id=id, error=error, inserted=is_ours, status=Status(status), created_at=created_at)


def unbounded(children: Sequence[NewJob]) -> list[NewJob]:
    """They are part of their parent's outcome, so no max_depth holds them back."""
    return [replace(child, max_depth=None) for child in children]


def link_taken(session: Session, parent_seq: int, verdicts: Sequence[Verdict]) -> None:
    """A child of a completed job whose id or key is taken becomes a link to the job that has it."""
    for verdict in verdicts:
        if not verdict.inserted:
            session.rows(
                "INSERT INTO holdfast_links (parent_id, child_id)"
                " SELECT id, ? FROM holdfast_jobs WHERE seq = ? ON CONFLICT DO NOTHING",
                [verdict.id, parent_seq],
            )


ENDING = (
    "seq", "version", "worker_id", "status", "final", "delay", "error", "attempts_back", "expired_only",
    "error_group", "loss",
)  # fmt: skip


def ending(finish: Finish) -> tuple[Any, ...]:
    """The end of an attempt that has not completed its job, as ENDING names it."""
    decision = finish.decision
    return (
        finish.seq,
        finish.version,
        finish.worker_id,
        decision.status.value,
        decision.status in FINISHED,
        microseconds(decision.delay),
        decision.error,
        decision.attempts_back,
        finish.expired_only,
        error_group(decision.error or "") if decision.status is Status.FAILED else None,
        decision.loss,
    )


FAILURE = ("seq", "version", "attempt", "started_at", "worker_id", "error", "traceback", "detail")


def failures(finishes: Sequence[Finish]) -> list[tuple[Any, ...]]:
    """Those of the attempts that failed, as FAILURE names them."""
    return [
        (
            finish.seq,
            finish.version,
            finish.attempt,
            finish.started_at,
            finish.worker_id,
            finish.decision.error,
            finish.decision.traceback,
            None if finish.decision.detail is None else json.dumps(finish.decision.detail),
        )
        for finish in finishes
        if finish.decision.error is not None
    ]


def queue_full(job: NewJob) -> QueueFull:
    """The error for a job for which its max_depth leaves no room."""
    assert job.max_depth is not None
    return QueueFull(job.type, job.max_depth.size, job.max_depth.name)


def lanes_within(name: str) -> tuple[str, str, str]:
    """A name, and from which to before which others the types lie that may inherit from it."""
    if not name:
        return "", "", "\U0010ffff"
    return name, f"{name}:", f"{name};"
