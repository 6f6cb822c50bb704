"""Claiming: which pending jobs a worker takes, within every limit, while others claim too.

Rows that another worker has locked are left to it. Where types compete, a look without locks says how many
of each to take, so that no more rows are locked than are claimed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.core.clock import microseconds
from holdfast.core.settings import Settings
from holdfast.core.starting import Candidate, Head, Room, Usage
from holdfast.store.candidates import Turns, choose_jobs
from holdfast.store.postgres.arrays import transposed
from holdfast.store.postgres.claim_sql import (
    BEHIND_ALL,
    CLAIM_BEST,
    CLAIM_BEST_FROM,
    CLAIM_CHOSEN,
    CLAIM_ONE,
    CLAIM_ONE_FROM,
    CLAIM_SUSPECT,
    COLUMNS,
    HEADS,
    HEADS_FROM,
    HEADS_OF,
    HEADS_OF_FROM,
    PRESENT_INSTANT,
    SAVE_LIMITS,
    SETTINGS_VERSION,
)
from holdfast.store.postgres.database import Database
from holdfast.store.postgres.floors import MOST_TYPES, Floors, lines_of
from holdfast.store.postgres.limit_locks import LimitLocks
from holdfast.store.postgres.line import SUSPECTS, Line
from holdfast.store.postgres.pausing import CLAIMING
from holdfast.store.postgres.session import Reply, Session
from holdfast.store.postgres.usage import USAGE, rate_row, usage_from
from holdfast.store.records import Claim, Claimed, Demand

_MOST_LOOKED_AT = 20_000
_STUCK_PAUSE = 0.05
"""Seconds after which a worker tries again to lock a limit that somebody holds on to."""


def _by_type(rows: Sequence[Any]) -> dict[str, Head]:
    return {type: Head(type, priority, seq) for type, priority, seq, *_ in rows}


class Prepared(NamedTuple):
    """A claim that is about to be made. If it is queued, its result is there once that was sent."""

    is_queued: bool
    result: Callable[[], Claimed]


class Claiming:
    """Claims for the workers of this process. It remembers whose turn it is, and who holds on to a limit."""

    def __init__(self) -> None:
        self._turns = Turns()
        self._locks = LimitLocks()
        self.floors = Floors()

    def list_heads(self, database: Database) -> list[Head]:
        """Where the line of each type begins that has one."""
        floors = self.floors
        known = floors.known_types()
        segments = None if floors.reads_whole(heads=True) else floors.segments(known)
        began = time.monotonic()
        if segments is None:
            rows = database.read(HEADS)
            floors.took(time.monotonic() - began, heads=True)
            for type, priority, seq, returned in rows:
                if not returned:
                    floors.lower((type, priority), seq)
        else:
            gaps = [["", *known], [*known, BEHIND_ALL]]
            rows = database.read(HEADS_FROM, [*gaps, known, *segments])
        if len(rows) <= MOST_TYPES:
            floors.learn(lines_of([row[:2] for row in rows]))
        if segments is None or not rows:  # otherwise a job waits to be claimed, which raises floors too
            floors.rise_alone(database)
        return [Head(*row[:3]) for row in rows]

    def claim_jobs(
        self,
        session: Session,
        worker_id: str,
        demands: Sequence[Demand],
        settings: Settings,
        *,
        limit: int,
        lease_seconds: float,
        alone: bool,
        now: int | None,
    ) -> Claimed:
        """Claim inside the open transaction."""
        if alone:
            session.ahead(CLAIMING, [session.database.schema])
            taking = _Taking(session, settings, worker_id, microseconds(lease_seconds), now, self.floors)
            found = taking.suspect(demands, self._locks)
            if found is not None:
                return found
        claim = self.prepare(
            session, worker_id, demands, settings, limit=limit, lease_seconds=lease_seconds, now=now
        )
        if claim.is_queued:
            session.send()
        return claim.result()

    def prepare(
        self,
        session: Session,
        worker_id: str,
        demands: Sequence[Demand],
        settings: Settings,
        *,
        limit: int,
        lease_seconds: float,
        now: int | None,
    ) -> Prepared:
        """A claim whose statements are queued, if none of them needs the answer of another."""
        session.ahead(CLAIMING, [session.database.schema])
        taking = _Taking(session, settings, worker_id, microseconds(lease_seconds), now, self.floors)
        if _is_plain(demands, settings, limit):
            return Prepared(True, taking.best(demands, limit))
        return Prepared(False, lambda: taking.chosen(demands, limit, self._locks, self._turns))


class _Taking:
    """One claim."""

    def __init__(
        self,
        session: Session,
        settings: Settings,
        worker_id: str,
        lease: int,
        now: int | None,
        floors: Floors,
    ) -> None:
        self._session = session
        self._settings = settings
        self._given = [worker_id, lease, settings.version]
        self._now = now
        self._floors = floors
        self._began = time.monotonic()
        self._is_whole = floors.reads_whole()

    def best(self, demands: Sequence[Demand], limit: int) -> Callable[[], Claimed]:
        """The first of all, where nothing but slots limits them; queued."""
        if len(demands) == 1:
            [demand] = demands
            types = [demand.type, demand.max_attempts, _timeout(demand), min(limit, demand.limit)]
            given = [self._now, *self._given, *types]
            claim = self._along([demand.type], CLAIM_ONE, CLAIM_ONE_FROM, given)
            self._floors.rise(self._session)
            return lambda: self._claimed(claim.rows, None if claim.rows else {})
        if len({self._settings.limits(demand.type).slots.name for demand in demands}) == 1:
            limit = min(limit, max(demand.limit for demand in demands))  # of the slots that they share
        rooms = [min(limit, demand.limit) for demand in demands]
        given = [self._now, *self._given, *_columns(demands, rooms), limit]
        names = [demand.type for demand in demands]
        claim = self._along(names, CLAIM_BEST, CLAIM_BEST_FROM, given)
        heads = self._along(names, HEADS_OF, HEADS_OF_FROM, [names])
        self._floors.rise(self._session)
        return lambda: self._claimed(claim.rows, _by_type(heads.rows))

    def _along(self, types: Sequence[str], sql: str, from_floors: str, given: Sequence[Any]) -> Reply:
        """Read the lines of these types; queued."""
        few = not self._is_whole and len(types) <= MOST_TYPES
        segments = self._floors.segments(types) if few else None
        if segments is None:
            return self._session.ahead(sql, given)
        return self._session.ahead(from_floors, [*given, *segments])

    def chosen(
        self,
        demands: Sequence[Demand],
        limit: int,
        locks: LimitLocks,
        turns: Turns,
    ) -> Claimed:
        """What the limits that workers share let start."""
        line = Line(self._session, None if self._is_whole else self._floors)
        ours, room, present = self._room(
            demands, locks, lambda: line.expect(demands, self._settings, limit, turns)
        )
        chosen = choose_jobs(ours, self._settings, room, limit, line, turns)
        taking = self._take(ours, chosen.jobs, present)
        self._save(room)
        unknown = [demand.type for demand in ours if demand.type not in chosen.heads]
        others = self._along(unknown, HEADS_OF, HEADS_OF_FROM, [unknown]) if unknown else None
        self._floors.rise(self._session)
        self._session.send()
        rows = list(taking.rows) if taking else []
        missing = _missing(chosen.jobs, rows)
        self._give_back(room, missing)
        heads = {type: head for type, head in chosen.heads.items() if head is not None}
        heads |= {job.type: Head(job.type, job.priority, job.seq) for job in reversed(missing)}
        heads |= _by_type(others.rows) if others else {}
        limited = frozenset(room.limited & heads.keys())
        wait = room.wait() if limited else None
        if len(ours) < len(demands):
            wait = _STUCK_PAUSE if wait is None else min(wait, _STUCK_PAUSE)
        left = {type: head for type, head in heads.items() if type not in chosen.blocked}
        places = {job.seq: place for place, job in enumerate(chosen.jobs)}
        rows.sort(key=lambda row: places[row[0]])
        return self._claimed(rows, left, wait=wait, limited=limited, used_up=chosen.used_up)

    def suspect(self, demands: Sequence[Demand], locks: LimitLocks) -> Claimed | None:
        """One job that has to run alone, if one may start."""
        rows = self._session.rows(SUSPECTS, [[demand.type for demand in demands]])
        for job in [Candidate(*row) for row in rows]:
            demand = next(demand for demand in demands if demand.type == job.type)
            ours, room, present = self._room([demand], locks)
            if ours and room.may_start(job.type, job.group):
                room.take(job.type, job.group)
                taking = self._take(ours, [job], present, CLAIM_SUSPECT)
                self._session.send()
                if taking and taking.rows:
                    self._save(room)
                    self._session.send()
                    return Claimed([Claim(*taking.rows[0][:COLUMNS])], is_alone=True)
        return None

    def _room(
        self, demands: Sequence[Demand], locks: LimitLocks, expect: Callable[[], None] = lambda: None
    ) -> tuple[list[Demand], Room, int]:
        """The demands whose limits are ours until the commit, the room that they leave, and the instant.

        `expect` says what else to read in the same round trip.
        """
        is_shared = any(self._settings.limits(demand.type).is_shared for demand in demands)

        def read() -> tuple[Reply, Reply | None]:
            present_at = self._session.ahead(PRESENT_INSTANT, [self._now])
            usage = self._session.ahead(USAGE) if is_shared else None
            expect()
            return present_at, usage

        names = {name for demand in demands for name in self._limit_rows(demand.type)}
        locked, (present_at, used) = locks.take(self._session, names, read)
        ours = [demand for demand in demands if self._limit_rows(demand.type) <= locked]
        [(present,)] = present_at.rows
        usage = Usage() if used is None else usage_from(used.rows)
        slots = ((demand.type, demand.limit) for demand in ours)
        return ours, Room(self._settings, usage, present, slots), present

    def _take(
        self, demands: Sequence[Demand], jobs: Sequence[Candidate], present: int, sql: str = CLAIM_CHOSEN
    ) -> Reply | None:
        """Take what was chosen; queued."""
        if not jobs:
            return None
        types = {job.type for job in jobs}
        wanted = [demand for demand in demands if demand.type in types]
        columns = _columns(wanted, [0] * len(wanted))
        seqs = [job.seq for job in jobs]
        return self._session.ahead(sql, [present, *self._given, *columns, seqs, len(seqs)])

    def _save(self, room: Room) -> None:
        """Store what is left of the rate limits; queued."""
        names = sorted(room.changed)
        if names:
            buckets = [room.changed[name] for name in names]
            self._session.ahead(
                SAVE_LIMITS,
                [[rate_row(name) for name in names], [b.tokens for b in buckets], [b.at for b in buckets]],
            )

    def _give_back(self, room: Room, missing: Sequence[Candidate]) -> None:
        """What others have taken of what was chosen: the limits are stored again without it."""
        for job in missing:
            room.give_back(job.type, job.group)
        if missing:
            self._save(room)
            self._session.send()

    def _claimed(self, rows: Sequence[Any], heads: dict[str, Head] | None, **more: Any) -> Claimed:
        if not rows and not self._is_current():
            return Claimed([], is_stale=True)
        claims = [Claim(*row[:COLUMNS]) for row in rows]
        self._note(claims, rows)
        if not more:
            claims.sort(key=lambda claim: (-claim.priority, claim.seq))
        return Claimed(claims, heads=heads, **more)

    def _note(self, claims: Sequence[Claim], rows: Sequence[Any]) -> None:
        """What the claim says of the lines that it has read."""
        lines = lines_of([(claim.type, claim.priority) for claim in claims])
        self._session.afterwards.append(partial(self._floors.learn, lines))
        if self._is_whole:
            self._floors.took(time.monotonic() - self._began)
            for claim, row in zip(claims, rows, strict=True):
                if not row[COLUMNS]:
                    self._floors.lower((claim.type, claim.priority), claim.seq)

    def _is_current(self) -> bool:
        version = self._settings.version
        return version is None or self._session.rows(SETTINGS_VERSION) == [(version,)]

    def _limit_rows(self, type: str) -> set[str]:
        """The rows that whoever claims a job of a type has to himself."""
        limits = self._settings.limits(type)
        rows = set()
        if limits.rate is not None:
            rows.add(rate_row(limits.rate.name))
        if limits.max_running is not None:
            rows.add(f"max_running {limits.max_running.name}")
        if limits.group is not None:
            rows.add(f"group {limits.group.name}")
        return rows


def _missing(jobs: Sequence[Candidate], rows: Sequence[Any]) -> list[Candidate]:
    taken = {row[0] for row in rows}
    return [job for job in jobs if job.seq not in taken]


def _is_plain(demands: Sequence[Demand], settings: Settings, limit: int) -> bool:
    """Whether the first in line start, as far as slots allow, of which no types share too few.

    Of very many types each is not read as far as it may have to go.
    """
    if len(demands) * limit > _MOST_LOOKED_AT:
        return False
    slots: dict[str, list[int]] = {}
    for demand in demands:
        limits = settings.limits(demand.type)
        if limits.is_shared or limits.fair or limits.paused:
            return False
        slots.setdefault(limits.slots.name, []).append(demand.limit)
    return len(slots) == 1 or not any(len(sizes) > 1 and min(sizes) < limit for sizes in slots.values())


def _columns(demands: Sequence[Demand], rooms: Sequence[int]) -> list[list[Any]]:
    return transposed(
        [(d.type, d.max_attempts, _timeout(d), room) for d, room in zip(demands, rooms, strict=True)]
    )


def _timeout(demand: Demand) -> float | None:
    return None if demand.timeout is None else float(demand.timeout)
