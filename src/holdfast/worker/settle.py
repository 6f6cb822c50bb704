"""Settling attempts: outcomes become decisions, guarded writes, statistics and events."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Sequence

from holdfast import events as e
from holdfast.context import Attempt
from holdfast.core.job import Status
from holdfast.core.lifecycle import Completed, Decision, Released, completion, decide
from holdfast.core.settings import Settings
from holdfast.store.protocol import Finish, Store
from holdfast.worker.run import Committed, Ending, LetGo
from holdfast.worker.statistics import Statistics

_CHILDREN_AT_ONCE = 1000


class Ended:
    """An attempt that has ended, until its outcome is written or refused."""

    __slots__ = ("at", "attempt", "ending", "exception", "finish")

    def __init__(self, attempt: Attempt, ending: Ending) -> None:
        self.attempt = attempt
        self.ending = ending
        # Taken over: its traceback leads to the attempt, which must not lead back to it.
        self.exception, attempt.exception = attempt.exception, None
        self.at = time.monotonic()
        self.finish: Finish | None = None
        """What is to be written of it, once that is decided."""
        if isinstance(ending, Completed):  # at once, in the handler's thread: the loop has less time
            self.decide(completion(ending.result))

    def decide(self, decision: Decision) -> None:
        claim = self.attempt.claim
        self.finish = Finish(
            seq=claim.seq,
            version=claim.version,
            worker_id=claim.worker_id,
            attempt=claim.attempts,
            decision=decision,
            started_at=self.attempt.started_at or claim.due_at,
            children=tuple(self.attempt.children) if decision.status is Status.COMPLETED else (),
            may_be_locked=self.attempt.used_transaction,
        )

    @property
    def decision(self) -> Decision | None:
        return None if self.finish is None else self.finish.decision

    @property
    def name(self) -> tuple[int, int]:
        """What the store calls the attempt."""
        return self.attempt.claim.seq, self.attempt.claim.version

    @property
    def seconds(self) -> float:
        return self.at - self.attempt.started if self.attempt.started else 0.0


class Settler:
    """Writes outcomes for one worker. `write` belongs inside the turn's transaction; `announce` and `count`
    come after it."""

    def __init__(self, worker_id: str, store: Store, events: e.Events, statistics: Statistics) -> None:
        self._worker_id = worker_id
        self._store = store
        self._events = events
        self._statistics = statistics

    def written_already(self, ended: Sequence[Ended]) -> dict[tuple[int, int], Status]:
        """After a commit in doubt: the outcomes that did get through, and the states they led to."""
        offered = {
            (end.attempt.claim.seq, end.attempt.claim.version): end.decision.status
            for end in ended
            if end.decision is not None
        }
        found = self._store.list_ended(list(offered))
        return {
            claim: status for claim, status in found.items() if status in (offered[claim], Status.CANCELLED)
        }

    def write(self, ended: Sequence[Ended], settings: Settings) -> dict[tuple[int, int], Status]:
        """Offer the outcomes to the guard; return the state each accepted one led to."""
        return self._store.finish_jobs(self.finishes(ended, settings))

    def finishes(self, ended: Sequence[Ended], settings: Settings) -> list[Finish]:
        """The outcomes as the store takes them."""
        for end in ended:
            if end.finish is None and not isinstance(end.ending, Committed | LetGo):
                claim = end.attempt.claim
                policy = settings.policy(claim.type, claim.max_attempts)
                end.decide(decide(claim.attempts, end.ending, policy, random.random()))
        return [end.finish for end in ended if end.finish is not None]

    def announce(self, ended: Sequence[Ended], accepted: dict[tuple[int, int], Status]) -> None:
        """Tell what was committed."""
        is_heard = self._events.wanted(e.JobCompleted) or self._events.wanted(e.JobEnqueued)
        all_completed = len(accepted) == len(ended) and set(accepted.values()) == {Status.COMPLETED}
        if all_completed and not is_heard:
            return
        for end in ended:
            claim = end.attempt.claim
            if isinstance(end.ending, Committed):
                self._completed(end)
                if end.ending.error is not None:
                    self._events.emit(
                        e.HandlerErrorIgnored(
                            job_id=claim.id,
                            type=claim.type,
                            error=end.ending.error,
                            exception=end.exception,
                        )
                    )
            elif (claim.seq, claim.version) not in accepted:
                if isinstance(end.ending, Released):
                    continue  # somebody else has it already: nothing was done here that is refused now
                self._events.emit(
                    e.OutcomeRefused(
                        job_id=claim.id, type=claim.type, attempt=claim.attempts, worker_id=self._worker_id
                    )
                )
            elif accepted[claim.seq, claim.version] is Status.COMPLETED:
                self._completed(end)
            else:
                self._not_completed(end, accepted[claim.seq, claim.version])

    def count(self, ended: Iterable[Ended], accepted: dict[tuple[int, int], Status]) -> None:
        """Note it in the statistics."""
        now = self._store.now()
        for end in ended:
            claim = end.attempt.claim
            outcome = _counted_as(end, accepted.get((claim.seq, claim.version)))
            if outcome is not None:
                self._statistics.end(claim.type, outcome, now, wait=_waited(end), run=end.seconds)

    def _completed(self, end: Ended) -> None:
        claim = end.attempt.claim
        if self._events.wanted(e.JobCompleted):
            self._events.emit(
                e.JobCompleted(
                    job_id=claim.id,
                    type=claim.type,
                    attempt=claim.attempts,
                    worker_id=self._worker_id,
                    seconds=round(end.seconds, 6),
                )
            )
        if end.attempt.children and self._events.wanted(e.JobEnqueued):
            self._tell_children(claim.id, [child.id for child in end.attempt.children])

    def _tell_children(self, parent_id: str, job_ids: Sequence[str]) -> None:
        for start in range(0, len(job_ids), _CHILDREN_AT_ONCE):
            for job in self._store.get_jobs(job_ids[start : start + _CHILDREN_AT_ONCE]):
                if job.parent_id == parent_id:  # else it became a link
                    self._events.emit(
                        e.JobEnqueued(job_id=job.id, type=job.type, status=job.status, parent_id=parent_id)
                    )

    def _not_completed(self, end: Ended, status: Status) -> None:
        claim, decision = end.attempt.claim, end.decision
        assert decision is not None
        name = {"job_id": claim.id, "type": claim.type}
        event: e.Event
        if status is Status.CANCELLED:
            event = e.JobCancelled(**name, worker_id=self._worker_id)
        elif decision.verb == "release":
            event = e.JobReleased(**name, worker_id=self._worker_id)
        else:
            event = self._failed(end, decision, status)
        self._events.emit(event)

    def _failed(self, end: Ended, decision: Decision, status: Status) -> e.Event:
        claim, error = end.attempt.claim, decision.error or ""
        if status is Status.SCHEDULED:
            return e.JobRetrying(
                job_id=claim.id,
                type=claim.type,
                attempt=claim.attempts,
                worker_id=self._worker_id,
                error=error,
                delay=decision.delay,
                exception=end.exception,
            )
        return e.JobFailed(
            job_id=claim.id,
            type=claim.type,
            attempt=claim.attempts,
            worker_id=self._worker_id,
            error=error,
            exception=end.exception,
        )


def _counted_as(end: Ended, status: Status | None) -> str | None:
    if status is Status.COMPLETED or isinstance(end.ending, Committed):
        return "completed"
    if status is None or status is Status.CANCELLED:
        return None
    if end.decision is None or end.decision.verb == "release":
        return None
    return "retried" if status is Status.SCHEDULED else "failed"


def _waited(end: Ended) -> float:
    return max(0.0, (end.attempt.started_at - end.attempt.claim.due_at) / 1e6)
