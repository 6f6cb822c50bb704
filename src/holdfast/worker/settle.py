"""Settling attempts: outcomes become decisions, guarded writes, statistics and events."""

from __future__ import annotations

import random
import time
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast import events as e
from holdfast.context import Attempt
from holdfast.core.clock import lease_clock
from holdfast.core.job import Status
from holdfast.core.lifecycle import Completed, Decision, Errored, Released, Stopped, completion, decide
from holdfast.core.settings import Settings
from holdfast.store.protocol import Store
from holdfast.store.records import Claim, Finish
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
        """What to write about it, once that is decided."""
        if isinstance(ending, Completed):  # at once, in the handler's thread: the loop has less time
            self.decide(completion(ending.result))

    def decide(self, decision: Decision) -> None:
        claim = self.attempt.claim
        self.finish = Finish(
            seq=claim.seq,
            type=claim.type,
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
        return self.attempt.name

    @property
    def seconds(self) -> float:
        return self.at - self.attempt.started if self.attempt.started else 0.0


class Settler:
    """Settles the attempts of one worker: `finishes` are for the turn's transaction; `announce` and `count`
    come after it."""

    def __init__(self, worker_id: str, store: Store, events: e.Events, statistics: Statistics) -> None:
        self._worker_id = worker_id
        self._store = store
        self._events = events
        self._statistics = statistics

    def announce_claims(self, claims: Sequence[Claim]) -> None:
        """Announce which jobs were claimed."""
        if claims and self._events.wanted(e.JobClaimed):
            for claim in claims:
                self._events.emit(
                    e.JobClaimed(
                        job_id=claim.id, type=claim.type, attempt=claim.attempts, worker_id=self._worker_id
                    )
                )

    def written_already(self, ended: Sequence[Ended]) -> dict[tuple[int, int], Status]:
        """After a commit in doubt: the outcomes that did get through, and the states they led to.

        A job whose lease is over may have been given back by a reaper: the two look alike.
        """
        now = lease_clock()
        offered = {
            end.name: end.decision.status
            for end in ended
            if end.decision is not None
            and not (isinstance(end.ending, Released) and now >= end.attempt.leased_until)
        }
        found = self._store.list_ended(offered)
        return {
            claim: status for claim, status in found.items() if status in (offered[claim], Status.CANCELLED)
        }

    def finishes(self, ended: Sequence[Ended], settings: Settings) -> list[Finish]:
        """The outcomes in the form that the store accepts."""
        for end in ended:
            if end.finish is None and not isinstance(end.ending, Committed | LetGo):
                claim = end.attempt.claim
                policy = settings.policy(claim.type, claim.max_attempts)
                ending = end.ending
                if isinstance(ending, Released | Stopped):
                    ending = replace(ending, has_started=end.attempt.has_begun)
                end.decide(decide(claim.attempts, ending, policy, random.random()))
        return [end.finish for end in ended if end.finish is not None]

    def find_committed(self, ended: Iterable[Ended], accepted: Collection[tuple[int, int]]) -> None:
        """Find out which outcomes were refused because the attempt's own ctx.transaction() completed the job.

        A handler's process may die, or be killed, after its commit and before it has told of it.
        """
        refused = [end for end in ended if end.finish is not None and end.name not in accepted]
        found = self._store.list_ended([end.name for end in refused]) if refused else {}
        for end in refused:
            if found.get(end.name) is Status.COMPLETED:  # which nobody else can do to this version of it
                was_stopped = end.attempt.stop_reason is not None
                error = end.ending.error if isinstance(end.ending, Errored) and not was_stopped else None
                end.ending, end.finish = Committed(error), None

    def announce(self, ended: Sequence[Ended], accepted: dict[tuple[int, int], Status]) -> None:
        """Announce what was committed."""
        is_heard = self._events.wanted(e.JobCompleted) or self._events.wanted(e.JobEnqueued)
        all_completed = len(accepted) == len(ended) and set(accepted.values()) == {Status.COMPLETED}
        if all_completed and not is_heard:
            return
        told: list[e.Event] = []
        try:
            for end in ended:
                told += self._told_of(end, _verb(end, accepted.get(end.name)))
        finally:
            self._events.emit_all(told)

    def count(self, ended: Iterable[Ended], accepted: dict[tuple[int, int], Status]) -> None:
        """Count it in the statistics."""
        times: dict[tuple[str, str], list[tuple[float, float]]] = {}
        for end in ended:
            verb = _verb(end, accepted.get(end.name))
            if verb in ("completed", "retried", "failed"):
                claim = end.attempt.claim
                wait = max(0.0, (end.attempt.started_at - claim.due_at) / 1e6)
                times.setdefault((claim.type, verb), []).append((wait, end.seconds))
        now = self._store.now()
        for (type, verb), of_these in times.items():
            self._statistics.end(type, verb, now, of_these)

    def leave(self) -> None:
        """A worker's last write."""
        while minutes := self._statistics.portion():
            self._store.write_statistics(minutes)
            self._statistics.written(self._store.now())
        self._store.remove_workers([self._worker_id])

    def _told_of(self, end: Ended, verb: str) -> Iterator[e.Event]:
        claim, decision = end.attempt.claim, end.decision
        job = {"job_id": claim.id, "type": claim.type}
        here = {**job, "worker_id": self._worker_id}
        attempt: dict[str, Any] = {**here, "attempt": claim.attempts}
        if verb == "completed":
            if self._events.wanted(e.JobCompleted):
                yield e.JobCompleted(**attempt, seconds=round(end.seconds, 6))
            if end.attempt.children and self._events.wanted(e.JobEnqueued):
                yield from self._children(claim.id, [child.id for child in end.attempt.children])
            if isinstance(end.ending, Committed) and end.ending.error is not None:
                error, exception = end.ending.error, end.exception
                yield e.HandlerErrorIgnored(**job, error=error, exception=exception)
        elif verb == "refused":
            # What was given back, somebody else has already: nothing was done here that is refused now.
            if not isinstance(end.ending, Released):
                yield e.OutcomeRefused(**attempt)
        elif verb == "cancelled":
            yield e.JobCancelled(**here)
        elif verb == "released":
            yield e.JobReleased(**here)
        else:
            assert decision is not None
            failed = {**attempt, "error": decision.error or "", "exception": end.exception}
            if verb == "retried":
                yield e.JobRetrying(**failed, delay=decision.delay)
            else:
                yield e.JobFailed(**failed)

    def _children(self, parent_id: str, job_ids: Sequence[str]) -> Iterator[e.Event]:
        for start in range(0, len(job_ids), _CHILDREN_AT_ONCE):
            for job in self._store.get_jobs(job_ids[start : start + _CHILDREN_AT_ONCE]):
                if job.parent_id == parent_id:  # else it became a link
                    yield e.JobEnqueued(job_id=job.id, type=job.type, status=job.status, parent_id=parent_id)


def _verb(end: Ended, status: Status | None) -> str:
    """What became of an attempt whose outcome led to this state; to none if it was refused."""
    if status is Status.COMPLETED or isinstance(end.ending, Committed):
        return "completed"
    if status is None:
        return "refused"
    if status is Status.CANCELLED:
        return "cancelled"
    if end.decision is not None and end.decision.verb == "release":
        return "released"
    return "retried" if status is Status.SCHEDULED else "failed"
