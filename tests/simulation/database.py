"""The database of a simulation: rows in memory, and what each guarded write of the store contract does."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from holdfast.config import Value
from holdfast.core.clock import microseconds
from holdfast.core.job import FINISHED, Status
from holdfast.core.lifecycle import TRANSITIONS
from holdfast.core.rate_limit import Bucket
from holdfast.core.starting import Candidate, Head, Usage
from holdfast.errors import JobNotFound, WrongState
from holdfast.store.records import Expired, Finish, NewJob, WorkerRecord

LEGAL = frozenset((each.source, each.verb, each.target) for each in TRANSITIONS)


class Violation(AssertionError):
    """The simulation has found a state that must not be.

    It is remembered: worker code that survives any exception must not hide it.
    """

    found: ClassVar[list[Exception]] = []

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.found.append(self)


@dataclass(slots=True, eq=False)
class Row:
    """A job as it is stored."""

    seq: int
    id: str
    type: str
    payload: str
    token: str
    priority: int
    group: str | None
    max_attempts: int | None
    timeout: float | None
    key: str | None
    created_at: int
    due_at: int
    updated_at: int
    status: Status
    attempts: int = 0
    version: int = 0
    worker_id: str | None = None
    lease_expires_at: int = 0
    started_at: int = 0
    cancel_requested: bool = False
    has_started: bool = False
    losses: int = 0
    error: str | None = None
    renewed_at: float = 0.0
    """When its lease was last renewed, by a clock that nobody sets: for the oracle alone."""

    @property
    def is_suspect(self) -> bool:
        """Whether it has to run alone."""
        return self.losses >= 2


@dataclass(slots=True)
class WorkerRow:
    record: WorkerRecord
    heartbeat_at: int
    stop: int = 0


class Change:
    """One write of a job, for the oracle: what was done, by whom, to which attempt."""

    __slots__ = ("attempt", "is_given_back", "renewed_at", "row", "status", "verb", "version", "worker_id")

    def __init__(
        self, verb: str, row: Row, status: Status, worker_id: str | None, *, is_given_back: bool = False
    ) -> None:
        self.verb = verb
        self.row = row
        self.status = status
        self.worker_id = worker_id
        self.version = row.version
        self.attempt = row.attempts
        self.renewed_at = row.renewed_at
        self.is_given_back = is_given_back
        """Whether the attempt is not charged."""


class Database:
    """All that is stored. `clock` is the server's own."""

    def __init__(self, clock: Callable[[], int], true_time: Callable[[], float]) -> None:
        self.now = clock
        self.true_time = true_time
        self.rows: dict[int, Row] = {}
        self.ids: dict[str, Row] = {}
        self.settings: dict[tuple[str, str], Value] = {}
        self.paused: set[str] = set()
        self.version = 1
        self.buckets: dict[str, Bucket] = {}
        self.workers: dict[str, WorkerRow] = {}
        self.journal: list[Change] = []
        """The changes of the open transaction."""
        self._next_seq = 1

    # Transactions: one at a time, so that a copy of everything undoes one.

    def save(self) -> Any:
        rows = {seq: copy.copy(row) for seq, row in self.rows.items()}
        workers = {name: copy.copy(row) for name, row in self.workers.items()}
        rest = dict(self.settings), set(self.paused), self.version, dict(self.buckets), self._next_seq
        return rows, workers, rest

    def restore(self, saved: Any) -> None:
        self.rows, self.workers, rest = saved
        self.settings, self.paused, self.version, self.buckets, self._next_seq = rest
        self.ids = {row.id: row for row in self.rows.values()}
        self.journal = []

    def _move(
        self, row: Row, verb: str, status: Status, worker_id: str | None, *, is_given_back: bool = False
    ) -> None:
        if (row.status, verb, status) not in LEGAL:
            raise Violation(f"{row.id}: {verb} leads from {row.status} to {status}")
        row.status = status
        row.updated_at = self.now()
        self.journal.append(Change(verb, row, status, worker_id, is_given_back=is_given_back))

    # Enqueue.

    def insert(self, new: NewJob) -> bool:
        """Whether it was inserted: not if its id is there already, or its key held."""
        if new.id in self.ids or self.holder(new.type, new.key) is not None:
            return False
        now = self.now()
        delay = microseconds(new.delay or 0.0)
        row = Row(
            seq=self._next_seq,
            id=new.id,
            type=new.type,
            payload=new.payload,
            token=new.token,
            priority=new.priority,
            group=new.group,
            max_attempts=new.max_attempts,
            timeout=new.timeout,
            key=new.key,
            created_at=now,
            due_at=now + delay,
            updated_at=now,
            status=Status.SCHEDULED if delay > 0 else Status.PENDING,
        )
        self._next_seq += 1
        self.rows[row.seq] = self.ids[row.id] = row
        self.journal.append(Change("enqueue", row, row.status, None))
        return True

    def holder(self, type: str, key: str | None) -> Row | None:
        if key is None:
            return None
        same = (row for row in self.rows.values() if (row.type, row.key) == (type, key))
        return next((row for row in same if row.status not in FINISHED), None)

    # Claiming.

    def pending(self) -> list[Row]:
        """All pending jobs, in the order in which they go."""
        found = [row for row in self.rows.values() if row.status is Status.PENDING]
        found.sort(key=_rank)
        return found

    def running(self) -> Iterator[Row]:
        return (row for row in self.rows.values() if row.status is Status.PROCESSING)

    def heads(self) -> list[Head]:
        heads: dict[str, Head] = {}
        for row in self.pending():
            if row.type not in heads and not row.is_suspect:
                heads[row.type] = Head(row.type, row.priority, row.seq)
        return list(heads.values())

    def usage(self) -> Usage:
        running: dict[str, int] = {}
        groups: dict[tuple[str, str], int] = {}
        for row in self.running():
            running[row.type] = running.get(row.type, 0) + 1
            if row.group is not None:
                place = row.type, row.group
                groups[place] = groups.get(place, 0) + 1
        return Usage(running, groups, self.buckets)

    def claim(
        self,
        row: Row,
        worker_id: str,
        max_attempts: int,
        timeout: float | None,
        lease_seconds: float,
        *,
        alone: bool,
    ) -> None:
        now = self.now()
        row.attempts += 1
        row.version += 1
        row.max_attempts = max_attempts if row.max_attempts is None else row.max_attempts
        row.timeout = timeout if row.timeout is None else row.timeout
        row.worker_id = worker_id
        row.lease_expires_at = now + microseconds(lease_seconds)
        row.started_at = now
        row.has_started = alone
        row.renewed_at = self.true_time()
        self._move(row, "claim", Status.PROCESSING, worker_id)

    # The end of attempts.

    def owns(self, seq: int, version: int, worker_id: str) -> Row | None:
        """The row, if the attempt still holds it."""
        row = self.rows.get(seq)
        if row is None or row.status is not Status.PROCESSING:
            return None
        return row if (row.version, row.worker_id) == (version, worker_id) else None

    def finish(self, finish: Finish) -> Status | None:
        """The state that it led to, or None if the attempt no longer holds its job."""
        row = self.owns(finish.seq, finish.version, finish.worker_id)
        if row is None or (finish.expired_only and row.lease_expires_at > self.now()):
            return None
        decision = finish.decision
        verb, status = decision.verb, decision.status
        if row.cancel_requested and status is not Status.COMPLETED:
            verb, status = "cancel", Status.CANCELLED
        row.attempts -= decision.attempts_back
        is_given_back = decision.attempts_back > 0
        self._move(row, verb, status, finish.worker_id, is_given_back=is_given_back)
        row.losses = 0 if decision.loss is None else row.losses + decision.loss
        row.due_at = self.now() + microseconds(decision.delay)
        row.worker_id = None
        row.error = decision.error or row.error
        if status is Status.COMPLETED:
            row.error, row.losses = None, 0
            for child in finish.children:
                self.insert(child)
        return status

    def promote(self, limit: int) -> list[tuple[str, str]]:
        now = self.now()
        due = [row for row in self.rows.values() if row.status is Status.SCHEDULED and row.due_at <= now]
        due.sort(key=_rank)
        for row in due[:limit]:
            self._move(row, "promote", Status.PENDING, None)
        return [(row.id, row.type) for row in due[:limit]]

    # People.

    def cancel(self, job_id: str) -> None:
        row = self._known(job_id)
        if row.status is Status.PROCESSING:
            row.cancel_requested = True
        elif row.status in FINISHED:
            raise WrongState(job_id, row.status, "cancelled")
        else:
            self._move(row, "cancel", Status.CANCELLED, None)

    def retry(self, job_id: str) -> None:
        row = self._known(job_id)
        is_retrying = row.status is Status.SCHEDULED and row.attempts > 0
        holder = self.holder(row.type, row.key)
        is_free = holder is None or holder is row
        if not is_free or not (is_retrying or row.status in (Status.FAILED, Status.CANCELLED)):
            raise WrongState(job_id, row.status, "retried")
        row.attempts = 0
        row.due_at = self.now()
        row.cancel_requested = False
        row.losses = 0
        self._move(row, "retry", Status.PENDING, None)

    def _known(self, job_id: str) -> Row:
        if job_id not in self.ids:
            raise JobNotFound(job_id)
        return self.ids[job_id]


def _rank(row: Row) -> tuple[int, int]:
    return -row.priority, row.seq


def expired_from(row: Row) -> Expired:
    values = {name: getattr(row, name) for name in Expired.__struct_fields__}
    return Expired(**values)


class InLine:
    """The waiting jobs of a database, as a claim reads them; see WaitingJobs."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self._rows = rows

    def _of(self, type: str) -> list[Row]:
        return [row for row in self._rows if row.type == type and not row.is_suspect]

    def first(self, types: Sequence[str], count: int) -> list[list[Candidate]]:
        return [[candidate(row) for row in self._of(type)[:count]] for type in types]

    def first_ungrouped(self, type: str, count: int) -> list[Candidate]:
        return [candidate(row) for row in self._of(type) if row.group is None][:count]

    def first_of_groups(self, type: str, below: int | None, after: str, count: int) -> list[Candidate]:
        grouped = [
            row
            for row in self._rows
            if row.type == type and row.group is not None and (below is None or row.priority < below)
        ]
        if not grouped:
            return []
        top = max(row.priority for row in grouped)
        of_top = {row.group or "" for row in grouped if row.priority == top}
        names = sorted(name for name in of_top if name > after)
        line = [row for row in self._of(type) if row.priority == top]
        heads = (next((row for row in line if row.group == name), None) for name in names[:count])
        return [candidate(row) for row in heads if row is not None]

    def more_of_groups(self, type: str, priority: int, groups: Sequence[str], count: int) -> list[Candidate]:
        found = []
        for name in groups:
            line = [row for row in self._of(type) if (row.priority, row.group) == (priority, name)]
            found += [candidate(row) for row in line[:count]]
        return found


def candidate(row: Row) -> Candidate:
    return Candidate(row.priority, row.seq, row.type, row.group)
