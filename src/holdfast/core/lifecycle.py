"""The life cycle of a job: which event leads from which state to which. Pure: the store applies it.

`TRANSITIONS` is the whole state machine as data; the drawing in the docs is made from it. `decide` turns
the outcome of one attempt into the one transition it causes.
"""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from holdfast.core.backoff import Backoff
from holdfast.core.job import Status


class Transition(Struct, frozen=True):
    """One arrow in the diagram."""

    source: Status
    verb: str
    target: Status
    when: str = ""


TRANSITIONS: tuple[Transition, ...] = (
    Transition(Status.SCHEDULED, "promote", Status.PENDING, "due"),
    Transition(Status.SCHEDULED, "cancel", Status.CANCELLED),
    Transition(Status.SCHEDULED, "retry", Status.PENDING, "waiting for a retry; attempts = 0"),
    Transition(Status.PENDING, "claim", Status.PROCESSING, "attempts + 1, version + 1"),
    Transition(Status.PENDING, "cancel", Status.CANCELLED),
    Transition(Status.PROCESSING, "complete", Status.COMPLETED),
    Transition(Status.PROCESSING, "fail", Status.SCHEDULED, "attempts left: back-off"),
    Transition(Status.PROCESSING, "fail", Status.FAILED, "no attempts left, or permanent"),
    Transition(
        Status.PROCESSING, "reap", Status.PENDING, "worker lost before the start: the attempt is not counted"
    ),
    Transition(Status.PROCESSING, "reap", Status.SCHEDULED, "worker lost, attempts left: back-off"),
    Transition(Status.PROCESSING, "reap", Status.FAILED, "worker lost, no attempts left"),
    Transition(Status.PROCESSING, "release", Status.PENDING, "the attempt is not counted"),
    Transition(Status.PROCESSING, "cancel", Status.CANCELLED, "the handler stopped, or its lease expired"),
    Transition(Status.FAILED, "retry", Status.PENDING, "attempts = 0"),
    Transition(Status.CANCELLED, "retry", Status.PENDING, "attempts = 0"),
)


def sources(verb: str) -> set[Status]:
    """The states in which a verb is allowed."""
    return {t.source for t in TRANSITIONS if t.verb == verb}


class Completed(Struct, frozen=True, tag=True):
    """The handler returned. `result` is JSON text."""

    result: str | None = None


class Errored(Struct, frozen=True, tag=True):
    """The attempt failed. `permanent` means that a retry would not help."""

    error: str
    traceback: str | None = None
    detail: dict[str, Any] | None = None
    permanent: bool = False
    delay: float | None = None


class LeaseEnded(Struct, frozen=True, tag=True):
    """The worker that held the attempt is gone. `error` is the evidence.

    `has_started` is None where nobody knows whether the handler has begun.
    """

    error: str
    has_started: bool | None = True


class Released(Struct, frozen=True, tag=True):
    """The worker released the attempt, either not started or stopped at a safe point."""

    has_started: bool = False


class Stopped(Struct, frozen=True, tag=True):
    """The handler stopped because the job was cancelled, or did not start for that reason."""

    error: str | None = None
    has_started: bool = True


Outcome = Completed | Errored | LeaseEnded | Released | Stopped


class Decision(Struct, frozen=True):
    """What an outcome does to the job. Delays are durations, which the database's clock turns into times."""

    verb: str
    status: Status
    delay: float = 0.0
    error: str | None = None
    traceback: str | None = None
    detail: dict[str, Any] | None = None
    result: str | None = None
    attempts_back: int = 0
    loss: int | None = None
    """How many more workers in a row were lost with the job. None ends the row: it ran and none was lost."""


class Policy(Struct, frozen=True):
    """What decides about a failed attempt: the job's attempt limit and its type's back-off."""

    max_attempts: int
    backoff: Backoff


RELEASE = Decision("release", Status.PENDING, attempts_back=1, loss=0)
"""The end of an attempt that has not started."""

_RELEASE_STARTED = Decision("release", Status.PENDING, attempts_back=1)


def completion(result: str | None) -> Decision:
    return Decision("complete", Status.COMPLETED, result=result)


def decide(attempts: int, outcome: Outcome, policy: Policy, chance: float) -> Decision:
    """The transition that the outcome of a running attempt causes.

    A requested cancellation is not looked at here: it may arrive until the very write, so the store's
    guarded statement turns every decision but `completed` into `cancelled` when one is there.
    """
    match outcome:
        case Completed():
            return completion(outcome.result)
        case Released():
            return _RELEASE_STARTED if outcome.has_started else RELEASE
        case Stopped():
            back = 0 if outcome.has_started else 1
            return Decision("cancel", Status.CANCELLED, error=outcome.error, attempts_back=back)
        case LeaseEnded():
            return _reaping(attempts, outcome, policy, chance)
        case Errored():
            final = outcome.permanent or attempts >= policy.max_attempts
            delay = 0.0
            if not final:
                delay = outcome.delay if outcome.delay is not None else policy.backoff.delay(attempts, chance)
            return Decision(
                "fail",
                Status.FAILED if final else Status.SCHEDULED,
                delay=delay,
                error=outcome.error,
                traceback=outcome.traceback,
                detail=outcome.detail,
            )


def _reaping(attempts: int, lost: LeaseEnded, policy: Policy, chance: float) -> Decision:
    """What started counts as failed; what did not, or may not have, is given back.

    The latter is noted as a loss all the same, so that a job can't kill workers for ever where nobody is left
    to say that it had started: after some losses it is claimed as one that starts.
    """
    if not lost.has_started:
        loss = 0 if lost.has_started is False else 1
        return Decision("reap", Status.PENDING, attempts_back=1, loss=loss)
    if attempts >= policy.max_attempts:
        return Decision("reap", Status.FAILED, error=lost.error, loss=1)
    delay = policy.backoff.delay(attempts, chance)
    return Decision("reap", Status.SCHEDULED, delay=delay, error=lost.error, loss=1)
