"""The store contract over a simulated database, as far as a worker uses it, and its faults.

Claims go through the same model as those of the engines. What the database itself does is in `database`.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from holdfast.core.clock import microseconds
from holdfast.core.job import Status
from holdfast.core.settings import Settings
from holdfast.core.starting import Head, Room, Usage
from holdfast.errors import CommitUncertain, StoreBusy, StoreUnavailable
from holdfast.store.candidates import Turns, choose_jobs
from holdfast.store.protocol import Store
from holdfast.store.records import (
    Answer,
    Beat,
    Claim,
    Claimed,
    Demand,
    Expired,
    Finish,
    StopRequest,
    StoredSettings,
    WorkerRecord,
)
from tests.simulation.database import Database, InLine, Row, WorkerRow, expired_from

COMMITS = "commits"
BUSY = "busy"
UNAVAILABLE = "unavailable"
ROLLED_BACK = "commit fails"
UNCERTAIN_DONE = "answer lost, committed"
UNCERTAIN_UNDONE = "answer lost, not committed"
FATES = (COMMITS, BUSY, UNAVAILABLE, ROLLED_BACK, UNCERTAIN_DONE, UNCERTAIN_UNDONE)


def _refuse(*_: object, **__: object) -> Any:
    raise NotImplementedError("no worker asks for it")


_not_simulated: Any = _refuse


class Client(Protocol):
    """The process whose connection a store is: it decides what becomes of a call."""

    skew: int

    def before_call(self, what: str, *, writes: bool) -> str:
        """Let time pass, and say what becomes of the call: one of FATES."""

    def committed(self, *, wakes: bool, is_empty: bool) -> None:
        """Its transaction is committed: check everything, tell the others, and let time pass."""

    def watch(self) -> Any: ...


class SimulatedStore(Store):
    """One process's connection to the database. It remembers whose turn it is, as the engines do."""

    def __init__(self, database: Database, client: Client, *, is_shared: bool) -> None:
        self.simulated = database
        self._client = client
        self.is_shared = is_shared
        self._turns = Turns()
        self._is_open = False
        self._wakes = False
        self._has_written = False

    def now(self) -> int:
        return self.simulated.now() + self._client.skew

    def _read(self, what: str) -> Database:
        """The database, for a read that may fail."""
        if not self._is_open and self._client.before_call(what, writes=False) is not COMMITS:
            raise StoreUnavailable(f"{what} failed")
        return self.simulated

    @contextmanager
    def _write(self, what: str) -> Iterator[Database]:
        """The database inside a transaction, with all that can become of one."""
        database = self.simulated
        if self._is_open:
            yield database
            return
        fate = self._client.before_call(what, writes=True)
        if fate is BUSY:
            raise StoreBusy(5.0)
        if fate is UNAVAILABLE:
            raise StoreUnavailable(f"{what} failed")
        saved = None if fate is COMMITS else database.save()
        self._is_open, self._wakes, self._has_written = True, False, False
        try:
            yield database
        finally:
            self._is_open = False
        if fate in (ROLLED_BACK, UNCERTAIN_UNDONE):
            database.restore(saved)
        else:
            self._client.committed(wakes=self._wakes, is_empty=not (self._has_written or database.journal))
        if fate is ROLLED_BACK:
            raise StoreUnavailable(f"the commit of {what} failed")
        if fate is not COMMITS:
            raise CommitUncertain(f"the answer to the commit of {what} was lost")

    def transaction(self) -> Any:
        return self._write("a transaction")

    @property
    def in_transaction(self) -> bool:
        return self._is_open

    def watch(self, *, for_work: bool = False) -> Any:
        return self._client.watch()

    # Reads.

    def list_heads(self, apart: Collection[str] = ()) -> list[Head]:
        return self._read("list_heads").heads()

    def read_usage(self) -> Usage:
        return self._read("read_usage").usage()

    def read_settings(self) -> StoredSettings:
        database = self._read("read_settings")
        return StoredSettings(dict(database.settings), frozenset(database.paused), database.version)

    def next_due_at(self) -> int | None:
        rows = self._read("next_due_at").rows.values()
        return min((row.due_at for row in rows if row.status is Status.SCHEDULED), default=None)

    def list_expired(self) -> list[Expired]:
        database = self._read("list_expired")
        now = database.now()
        return [expired_from(row) for row in database.running() if row.lease_expires_at <= now]

    def list_held(self, worker_id: str) -> list[Expired]:
        rows = self._read("list_held").running()
        return [expired_from(row) for row in rows if row.worker_id == worker_id]

    def list_suspect_types(self) -> set[str]:
        return {row.type for row in self._read("list_suspect_types").pending() if row.is_suspect}

    def list_ended(self, attempts: Collection[tuple[int, int]]) -> dict[tuple[int, int], Status]:
        rows = self._read("list_ended").rows.values()
        return {
            (row.seq, row.version): row.status
            for row in rows
            if row.status is not Status.PROCESSING and (row.seq, row.version) in attempts
        }

    def list_cancelled(self, worker_id: str) -> set[tuple[int, int]]:
        return _cancelled(self._read("list_cancelled"), worker_id)

    def list_unsuspected(
        self, worker_id: str, held: Sequence[tuple[int, int]], *, patience: float
    ) -> set[tuple[int, int]]:
        database = self._read("list_unsuspected")
        rows = {name: database.owns(*name, worker_id) for name in held}
        return {name for name, row in rows.items() if row and row.updated_at < row.lease_expires_at}

    def list_workers(self) -> list[WorkerRecord]:
        return [row.record for row in self._read("list_workers").workers.values()]

    def get_stop_request(self, worker_id: str) -> StopRequest:
        row = self._read("get_stop_request").workers.get(worker_id)
        return StopRequest(row.stop) if row else StopRequest.NONE

    def get_jobs(self, job_ids: Sequence[str]) -> list[Any]:
        return []

    # Writes.

    def _claim(
        self, database: Database, worker_id: str, demands: Sequence[Demand], settings: Settings, **how: Any
    ) -> Claimed:
        limit, lease_seconds = how["limit"], how["lease_seconds"]
        if settings.version is not None and database.version != settings.version:
            return Claimed([], is_stale=True)
        taking = _Taking(database, worker_id, demands, lease_seconds)
        if how.get("alone"):
            claim = taking.suspect(settings)
            if claim is not None:
                return Claimed([claim], is_alone=True)
        return taking.jobs(settings, limit, self._turns)

    def claim_jobs(
        self, worker_id: str, demands: Sequence[Demand], settings: Settings | None = None, **how: Any
    ) -> Claimed:
        if not demands or how["limit"] <= 0:
            return Claimed([])
        with self._write("claim_jobs") as database:
            if settings is None:
                stored = self.read_settings()
                settings = Settings(stored.values, paused=stored.paused, version=stored.version)
            return self._claim(database, worker_id, demands, settings, **how)

    def finish_jobs(self, finishes: Sequence[Finish]) -> dict[tuple[int, int], Status]:
        if not finishes:
            return {}
        with self._write("finish_jobs") as database:
            ended = {(each.seq, each.version): database.finish(each) for each in finishes}
            self._wakes = True
            return {name: status for name, status in ended.items() if status is not None}

    @contextmanager
    def finish_and_claim(
        self,
        finishes: Sequence[Finish],
        worker_id: str,
        demands: Sequence[Demand],
        settings: Settings | None = None,
        *,
        is_whole: bool = False,
        **how: Any,
    ) -> Iterator[Answer]:
        assert not (is_whole and self._is_open)
        answer = Answer()
        with self._write("finish_and_claim"):
            yield answer
            answer.ended = self.finish_jobs(finishes)
            answer.claimed = self.claim_jobs(worker_id, demands, settings, **how)

    def promote_jobs(self, limit: int) -> list[tuple[str, str]]:
        with self._write("promote_jobs") as database:
            promoted = database.promote(limit)
            self._wakes |= bool(promoted)
            return promoted

    def suspect_jobs(self, claims: Sequence[tuple[int, int]]) -> set[tuple[int, int]]:
        with self._write("suspect_jobs") as database:
            self._has_written = True
            now, marked = database.now(), set()
            for row in database.running():
                if (row.seq, row.version) in claims and row.lease_expires_at <= now:
                    row.updated_at = now
                    marked.add((row.seq, row.version))
            return marked

    def heartbeat(
        self,
        worker_id: str,
        held: Sequence[tuple[int, int]],
        *,
        state: str,
        lease_seconds: float,
        started: Collection[tuple[int, int]] = frozenset(),
        turn_age: float = 0.0,
        patience: float = math.inf,
    ) -> Beat:
        with self._write("heartbeat") as database:
            self._has_written = True
            worker = database.workers.get(worker_id)
            if worker is not None:
                worker.heartbeat_at = database.now()
            lost = set()
            for name in held:
                row = database.owns(*name, worker_id)
                if row is None:
                    lost.add(name)
                else:
                    row.lease_expires_at = database.now() + microseconds(lease_seconds)
                    row.has_started |= name in started
                    row.renewed_at = database.true_time()
            cancelled = frozenset(_cancelled(database, worker_id))
            return Beat(frozenset(lost), cancelled, registered=worker is not None)

    def redate_leases(self, lease_seconds: float) -> None:
        with self._write("redate_leases") as database:
            now, lease = database.now(), microseconds(lease_seconds)
            for row in database.running():
                worker = database.workers.get(row.worker_id or "")
                heard_at = worker.heartbeat_at if worker else row.started_at
                if row.lease_expires_at > now + lease and heard_at > now:
                    row.lease_expires_at = now + max(row.lease_expires_at - heard_at, lease)
                    row.started_at = min(row.started_at, now)
            for worker in database.workers.values():
                worker.heartbeat_at = min(worker.heartbeat_at, now)

    def register_worker(self, worker: Any, types: Any) -> None:
        with self._write("register_worker") as database:
            self._has_written = True
            database.workers.setdefault(worker.id, WorkerRow(worker, database.now()))

    def remove_workers(self, worker_ids: Sequence[str]) -> None:
        with self._write("remove_workers") as database:
            self._has_written = True
            for name in worker_ids:
                database.workers.pop(name, None)

    def remove_silent_workers(self, silent_seconds: float) -> list[str]:
        with self._write("remove_silent_workers") as database:
            since = database.now() - microseconds(silent_seconds)
            busy = {row.worker_id for row in database.running()}
            silent = [
                name
                for name, worker in database.workers.items()
                if worker.heartbeat_at < since and name not in busy
            ]
            for name in silent:
                del database.workers[name]
            return silent

    def write_progress(self, worker_id: str, reports: Any) -> Collection[int]:
        with self._write("write_progress"):
            self._has_written = True
            return ()

    def write_statistics(self, minutes: Any) -> None:
        with self._write("write_statistics"):
            self._has_written = True

    def fold_statistics(self, **ages: Any) -> None:
        return None

    def forget_names(self) -> bool:
        return False

    def forget_statistics(self, after: str = "") -> None:
        return None

    # What only applications, people and pages ask for.
    insert_jobs = insert_jobs_with = insert_jobs_awaiting = _not_simulated
    begin_attempt_transaction = back_up = measure = examine = _not_simulated


def _cancelled(database: Database, worker_id: str) -> set[tuple[int, int]]:
    rows = database.running()
    return {(row.seq, row.version) for row in rows if row.cancel_requested and row.worker_id == worker_id}


class _Taking:
    """One claim."""

    def __init__(
        self, database: Database, worker_id: str, demands: Sequence[Demand], lease_seconds: float
    ) -> None:
        self._database = database
        self._worker_id = worker_id
        self._lease_seconds = lease_seconds
        self._demands = {demand.type: demand for demand in demands}

    def jobs(self, settings: Settings, limit: int, turns: Turns) -> Claimed:
        demands = list(self._demands.values())
        room = self._room(settings)
        waiting = InLine(self._database.pending())
        if len(demands) == 1 and _is_plain(settings, demands[0].type):
            [first] = waiting.first([demands[0].type], min(limit, demands[0].limit))
            return Claimed([self._take(job.seq) for job in first], heads=None if first else {})
        chosen = choose_jobs(demands, settings, room, limit, waiting, turns)
        claims = [self._take(job.seq) for job in chosen.jobs]
        self._database.buckets |= room.changed
        heads = {head.type: head for head in self._database.heads() if head.type in self._demands}
        limited = frozenset(room.limited & heads.keys())
        left = {type: head for type, head in heads.items() if type not in chosen.blocked}
        wait = room.wait() if limited else None
        return Claimed(claims, wait, limited, left, used_up=chosen.used_up)

    def suspect(self, settings: Settings) -> Claim | None:
        room = self._room(settings)
        for row in self._database.pending():
            if row.is_suspect and row.type in self._demands and room.may_start(row.type, row.group):
                room.take(row.type, row.group)
                self._database.buckets |= room.changed
                return self._take(row.seq, alone=True)
        return None

    def _room(self, settings: Settings) -> Room:
        slots = ((demand.type, demand.limit) for demand in self._demands.values())
        return Room(settings, self._database.usage(), self._database.now(), slots)

    def _take(self, seq: int, *, alone: bool = False) -> Claim:
        row = self._database.rows[seq]
        demand = self._demands[row.type]
        database = self._database
        database.claim(
            row, self._worker_id, demand.max_attempts, demand.timeout, self._lease_seconds, alone=alone
        )
        return claim_from(row)


def claim_from(row: Row) -> Claim:
    values = {name: getattr(row, name) for name in Claim.__struct_fields__}
    return Claim(**values)


def _is_plain(settings: Settings, type: str) -> bool:
    limits = settings.limits(type)
    return not (limits.is_shared or limits.fair or limits.paused)
